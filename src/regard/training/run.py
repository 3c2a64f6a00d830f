"""regard.train: a recipe becomes a run folder that translates, or whatever else its objective is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import disk, spec
from regard.allocator import keep_large_blocks
from regard.build import build
from regard.checkpoint import Checkpoints, Snapshots
from regard.core.embedding import Embedding
from regard.core.stack import Stack
from regard.data.word_vectors import read_vectors
from regard.decode.strategy import GNMTPenalty
from regard.errors import SettingError
from regard.families import folder as folders
from regard.families import recurrent, transformer
from regard.metrics.scores import AnyScore
from regard.models import Translator, choose_device
from regard.training import finetune as tuning
from regard.training import model_card
from regard.training.data.parallel_text import Prepared, prepared, test_sets
from regard.training.engine import layerwise_lr_decay
from regard.training.engine.initialization import draw
from regard.training.engine.logging import MetricsLog, ProgressLog
from regard.training.engine.loop import Interrupted, Loop
from regard.training.engine.lr_schedule import (
    ConstantRate,
    CosineDecay,
    InverseSquareRoot,
    LinearDecay,
    Schedule,
)
from regard.training.engine.optimizer import Optimizer
from regard.training.job import Job, multiple
from regard.training.language import language
from regard.training.objectives import distillation
from regard.training.objectives.sequence_to_sequence import SequenceToSequence, final_scores
from regard.training.recipe import schema as recipes
from regard.training.recipe.schema import Recipe
from regard.training.run_folder import RunFolder, begin, resume


@dataclass(frozen=True)
class Result:
    """A finished run: where it is, how it scores on each test set, and what it took."""

    folder: Path
    scores: dict[str, AnyScore]
    seconds: float  # of training, of which
    compiling: float  # were spent on that
    parameters: int


def train(
    recipe: str | Path | Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    **changes: Any,
) -> Result:
    """Runs a packaged recipe, a TOML file, or plain settings: `regard.train("builtin", steps=100)`."""
    if isinstance(recipe, Mapping):
        parsed, name = recipes.choose(None, {**recipe, **changes})
    else:
        parsed, name = recipes.choose(recipe, changes)
    return run(begin(parsed, Path(out) if out else None, name), parsed, name)


def finetune(
    model: str | Path,
    task: str,
    data: str | Path | Sequence[str | Path],
    *,
    out: str | Path | None = None,
    quiet: bool = False,
    **changes: Any,
) -> Result:
    """Trains a finished model further: `regard.finetune("bert/", "classify", "train.tsv", valid="dev.tsv", lora=8)`. The
    changes are the settings of `regard finetune`; several files of pairs come with as many `prefixes`."""
    files = (
        [str(Path(data).absolute())]
        if isinstance(data, str | Path)
        else [str(Path(d).absolute()) for d in data]
    )
    named = {
        key: str(Path(changes[key]).absolute())
        for key in ("valid", "test")
        if changes.get(key) is not None
    }
    base = str(Path(model).absolute())
    values = {**changes, **named, "task": task, "base": base, "files": files}
    place, recipe, name = tuning.start(values, Path(out) if out else None)
    return run(place, recipe, name, quiet=quiet)


def go_on(folder: str | Path, *, quiet: bool = False) -> Result:
    """Resumes a run where its newest intact checkpoint left it."""
    place, recipe, name = resume(Path(folder))
    return run(place, recipe, name, quiet=quiet)


def run(place: RunFolder, recipe: Recipe, name: str, *, quiet: bool = False) -> Result:
    """Prepares, trains, scores and describes."""
    talk = ProgressLog(recipe.train.steps, quiet)
    keep_large_blocks()
    if recipe.train.threads:
        torch.set_num_threads(recipe.train.threads)
    torch.backends.cuda.matmul.allow_tf32 = recipe.train.precision == "tf32"
    made = job(place, recipe, talk)
    parameters = sum(parameter.numel() for parameter in made.task.model.parameters())
    where = choose_device(recipe.train.device)
    talk.say(
        f"model: {parameters:,} parameters, {recipe.train.precision} on {where}; run folder: {place.folder}"
    )
    metrics = MetricsLog(
        place.metrics, place.folder / "tensorboard" if recipe.train.tensorboard else None
    )
    stores = Checkpoints(place.state / "checkpoints"), Snapshots(place.state / "snapshots")
    loop = Loop(
        recipe, made.task, _updater(recipe, made.task.model, made.d_model), stores, metrics, talk
    )
    saved = loop.checkpoints.newest(talk.say)
    if saved is not None:
        loop.restore(saved)
        talk.say(f"resuming at step {saved.step}")
    else:
        metrics.cut(0)
    loop.after_save = made.export
    try:
        loop.run()
    except Interrupted as interruption:
        talk.say(
            f"saved at step {loop.progress.step}; go on with: regard train --resume {place.folder}"
        )
        raise SystemExit(interruption.exit_code) from None
    finally:
        metrics.close()
    with loop.exported():
        scores = made.scores()
    model_card.write(
        place,
        recipe,
        name,
        model_card.Facts(parameters, loop.progress.step, loop.progress.seconds, scores),
    )
    return Result(place.folder, scores, loop.progress.seconds, loop.progress.compiling, parameters)


def job(place: RunFolder, recipe: Recipe, talk: ProgressLog) -> Job:
    """What a recipe trains, with its data prepared and its first weights drawn."""
    if recipe.tune:
        return tuning.job(place, recipe, talk)
    return (
        _translation(place, recipe, talk)
        if recipe.train.objective == "translate"
        else language(place, recipe, talk)
    )


def describe(
    recipe: Recipe, source_vocabulary: int, target_vocabulary: int
) -> spec.EncoderDecoder | spec.SequenceToSequence:
    """The spec of a recipe's model."""
    choice = recipe.model
    joint = recipe.tokens.joint and recipe.tokens.target_tokenizer is None
    share = choice.share or ("all" if joint else "target")
    if recipe.came_before:
        own = {
            key: value
            for key in ("d_model", "layers", "dropout")
            if (value := getattr(choice, key)) is not None
        }
        more = {"share": share, "max_length": recipe.data.max_length}
        return recurrent.preset(
            str(choice.model), recipe.preset, source_vocabulary, target_vocabulary, **own, **more
        )
    changes = {
        key: value
        for key in ("d_model", "d_ff", "heads", "layers", "decoder_layers", "dropout", "attention_dropout",
                    "feedforward_dropout", "activation",
                    "attention", "decoder_attention")
        if (value := getattr(choice, key)) is not None
    }  # fmt: skip
    changes["max_length"] = recipe.data.max_length
    changes |= _positions(recipe)
    changes["residual"] = spec.PreNorm() if choice.residual == "pre" else spec.PostNorm()
    return transformer.preset(
        recipe.preset, source_vocabulary, target_vocabulary, share=share, **changes
    )


def _positions(recipe: Recipe) -> dict[str, Any]:
    """Where places are told: at the input, or inside attention."""
    at_input: dict[str, spec.InputPosition] = {
        "sinusoidal": spec.Sinusoidal(),
        "learned": spec.LearnedPosition(recipe.data.max_length),
        "concatenated": spec.ConcatenatedPosition(64),
    }
    inside: dict[str, spec.StackPosition] = {
        "relative": spec.RelativeKeys(16),
        "buckets": spec.T5Bias(),
        "alibi": spec.Alibi(),
        "rope": spec.Rope(),
    }
    word = recipe.model.position or "sinusoidal"
    return {"position": at_input.get(word), "relative": inside.get(word)}


def _translator(recipe: Recipe, data: Prepared, say: Callable[[str], None]) -> Translator:
    """A new model with its first weights, on its device."""
    description = describe(recipe, len(data.source), len(data.target))
    torch.manual_seed(recipe.train.seed)
    model = build(description)
    draw(model, recipe.first_weights)
    assert isinstance(model.source, Embedding), "recipes are of text"
    if recipe.model.vectors:
        read_vectors(Path(recipe.model.vectors), data.source, model.source.table.weight.data, say)
        if model.target.table is not model.source.table:
            read_vectors(
                Path(recipe.model.vectors), data.target, model.target.table.weight.data, say
            )
    if recipe.model.freeze_embeddings:
        model.source.table.weight.requires_grad_(False)
        model.target.table.weight.requires_grad_(False)
    for side in (model.encoder, model.decoder):
        if isinstance(side, Stack):
            side.activation_checkpointing = recipe.train.recompute
    model.to(choose_device(recipe.train.device))
    return Translator(
        model, description, data.source, data.target, data.target.required_token_id("bos")
    )


def _describe_folder(place: RunFolder, recipe: Recipe, translator: Translator) -> None:
    """What makes the run folder a Hugging Face repository, besides weights and card."""
    source, target = translator.source_tokenizer, translator.target_tokenizer
    ids = folders.SpecialTokenIds(
        target.required_token_id("pad"),
        translator.start,
        target.required_token_id("eos"),
        target.special_token_id("unk"),
    )
    alpha, kind = (
        recipe.penalty.alpha,
        "gnmt" if isinstance(recipe.penalty, GNMTPenalty) else "power",
    )
    generation = folders.generation_config(
        ids, beam=recipe.decode.beam, length_penalty=alpha, search={kind: alpha}
    )
    tokens = source.special_tokens
    names = folders.tokenizer_config(tokens["pad"], tokens["bos"], tokens["eos"], tokens.get("unk"))
    for name, content in {
        "config.json": folders.describe(translator.spec, ids),
        "generation_config.json": generation,
        "tokenizer_config.json": names,
    }.items():
        disk.write_json(place.folder / name, content)


def _translation(place: RunFolder, recipe: Recipe, talk: ProgressLog) -> Job:
    data = prepared(place, recipe, talk.say)
    translator = _translator(recipe, data, talk.say)
    _describe_folder(place, recipe, translator)
    return Job(
        SequenceToSequence(
            translator,
            data,
            recipe.train,
            multiple(recipe, translator.device),
            distillation.of_translator(recipe, translator),
        ),
        translator.spec.d_model,
        lambda: folders.write_weights(place.weights, translator.model, translator.spec),
        lambda: final_scores(test_sets(recipe), translator, recipe, talk),
    )


def _updater(recipe: Recipe, model: nn.Module, d_model: int) -> Optimizer:
    train = recipe.train
    return Optimizer(
        model.named_parameters(),
        schedule(recipe, d_model),
        kind=train.optimizer,
        betas=train.betas,
        eps=train.adam_eps,
        weight_decay=train.weight_decay,
        clip=train.clip,
        loss_scaling=train.precision == "fp16",
        rates=layerwise_lr_decay.rates(model, recipe.tune.layer_decay) if recipe.tune else None,
    )


def schedule(recipe: Recipe, d_model: int) -> Schedule:
    """The learning-rate curve a recipe asks for."""
    train = recipe.train
    if train.schedule == "paper":
        return (
            InverseSquareRoot.with_peak(train.learning_rate, train.warmup)
            if train.learning_rate
            else InverseSquareRoot(d_model, train.warmup)
        )
    if train.learning_rate is None:
        raise SettingError(f"schedule = {train.schedule!r} needs a peak", "set learning_rate")
    if train.schedule == "linear":
        return LinearDecay(train.learning_rate, train.warmup, train.steps)
    if train.schedule == "cosine":
        return CosineDecay(train.learning_rate, train.warmup, train.steps, train.floor)
    return ConstantRate(train.learning_rate, train.warmup)
