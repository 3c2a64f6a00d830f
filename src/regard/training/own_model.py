"""A model of the user's own in a run: a spec in place of the sizes of a recipe.

It is written to state/model.json before anything else, so that the run resumes with it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from regard import disk, spec
from regard.errors import CheckpointError, SettingError
from regard.training.recipe.schema import Recipe
from regard.training.recipe.sections import Model
from regard.training.run_folder import RunFolder

# Settings of the recipe's [model] section that say how it starts, not what it is.
_STARTING_POINT = {"start", "vectors", "freeze_embeddings"}
_ARCHITECTURE = tuple(key for key in Model.model_fields if key not in _STARTING_POINT)

OwnModel = spec.EncoderDecoder | spec.Decoder


def with_model(recipe: Recipe, model: spec.Model, changes: Collection[str]) -> Recipe:
    """The recipe without its sizes, which those of `model` replace.

    `changes` are the settings that the caller named: a size among them would contradict the model.
    """
    for key in _ARCHITECTURE:
        if key in changes:
            raise SettingError(
                f"{key} is decided by the model that was given", f"leave `{key}` or `model` out"
            )
    wanted = {"translate": spec.EncoderDecoder, "causal": spec.Decoder}.get(recipe.train.objective)
    if wanted is None:
        raise SettingError(
            f"a model of your own cannot be trained with the objective {recipe.train.objective!r}",
            "choose translate or causal",
        )
    if not isinstance(model, wanted):
        raise SettingError(
            f"{type(model).__name__} is no model for the objective {recipe.train.objective!r}",
            f"give a spec.{wanted.__name__}",
        )
    if isinstance(model, spec.Decoder) and model.stack.memory is not None:
        raise SettingError(
            "a segment memory needs batches that a recipe prepares for it",
            "give the recipe's `memory` instead of a model",
        )
    sizes = Model.model_validate(recipe.model.model_dump(include=_STARTING_POINT))
    return recipe.model_copy(update={"model": sizes})


def write(run_folder: RunFolder, model: spec.Model) -> None:
    disk.write_json(run_folder.model, spec.to_dict(model))


def read(run_folder: RunFolder, kinds: Sequence[type] = ()) -> OwnModel | None:
    """The model that a run was given, if any; `kinds` are the dataclasses of own parts."""
    if not run_folder.model.is_file():
        return None
    try:
        data = json.loads(disk.read_text(run_folder.model, CheckpointError))
    except ValueError as error:
        raise CheckpointError(
            f"{run_folder.model} cannot be read: {error}", "start a new run"
        ) from None
    model: OwnModel = spec.from_dict(data, kinds)
    return model


def check_vocabulary(name: str, tokens: spec.FrontEnd, size: int) -> None:
    """A model has one embedding for each token of its tokenizer."""
    if not isinstance(tokens, spec.Tokens):
        raise SettingError(f"recipes are of text, not of {type(tokens).__name__}", "give Tokens")
    if tokens.vocabulary != size:
        raise SettingError(
            f"the model's {name} has {tokens.vocabulary} tokens, but the tokenizer {size}",
            f"give the model Tokens({size}), or another tokenizer",
        )
