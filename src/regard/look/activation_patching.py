"""Activation patching: activations of a clean run put into a corrupted one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from regard.core.probe import PARTS, Edit, Probe
from regard.look import drawing
from regard.look.drawing import terminal
from regard.look.forward import evaluation_mode, forward, named_inputs
from regard.look.inspectable import Inspectable, token_ids
from regard.look.model_inputs import ModelInputs
from regard.look.probe_names import probes, require_name, require_positions, residual_probes
from regard.look.recording import array, look
from regard.look.result import AnalysisResult, Array, Names
from regard.look.views import require_view
from regard.system.errors import DataError
from regard.wirings.core_model import CoreModel


@dataclass(frozen=True)
class Patching(AnalysisResult):
    """The logit of `answer` in the corrupted run, with one residual patched from the clean run.

    From it the logit of `instead` is subtracted, if there is one; both are read at the output
    position `at`. `effect` is 0 where a patch changes nothing and 1 where it restores the clean
    run's logit.
    """

    layers: Names
    tokens: Names  # of the clean text
    others: Names  # of the corrupted text
    answer: str
    instead: str | None
    at: int
    clean: float
    corrupted: float
    scores: Array  # [layers, positions]
    effect: Array  # [layers, positions]

    note = (
        "Effect of patching each layer and position: 1 restores the answer to the first text, "
        "0 changes nothing."
    )
    numbers = "effect"

    @property
    def title(self) -> str:
        answer = drawing.shown(self.answer)
        if self.instead:
            answer += f" − {drawing.shown(self.instead)}"
        return f"activation patching: logit of {answer}, {self.corrupted:.3f} → {self.clean:.3f}"

    def scene(self) -> drawing.Scene:
        positions = self._position_names()
        return drawing.heat(self.effect, self.layers, positions, title=self.title, signed=True)

    def table(self) -> list[list[str]]:
        rows = [["", *self.layers]]
        for position, effects in zip(self._position_names(), self.effect.T, strict=True):
            cells = [f"{value:5.2f} {terminal.bar(max(0.0, value), 1.0, 10)}" for value in effects]
            rows.append([drawing.shown(position), *cells])
        return rows

    def _position_names(self) -> list[str]:
        return [
            clean if clean == other else f"{drawing.shown(other)}←{drawing.shown(clean)}"
            for clean, other in zip(self.tokens, self.others, strict=True)
        ]


@dataclass(frozen=True)
class _Metric:
    """The patching metric: the logit of the answer at an output position, or a logit difference."""

    position: int
    answer: int
    contrast: int | None  # the token whose logit is subtracted

    def __call__(self, logits: Tensor) -> Tensor:
        """[B] from [B, T, V], or from the [B, L] of a classifier."""
        row = logits[:, self.position] if logits.ndim > 2 else logits
        subtracted = 0.0 if self.contrast is None else row[:, self.contrast].float()
        return row[:, self.answer].float() - subtracted


def patching(
    model: Inspectable,
    text: str,
    other: str,
    *,
    target: str | None = None,
    at: int | None = None,
    instead: str | None = None,
    stack: str | None = None,
) -> Patching:
    """Patches the residual stream of `text` into the run on `other`, one layer and position a time.

    The metric is the logit of what the model predicts for `text` at the output position `at`, less
    that of the token `instead`. By default `at` is the first position where the run on `other`
    predicts something else (of a language model, the last position), and `instead` is what it
    predicts at `at`, if that is something else. Both runs read the `target`, by default what the
    model makes of `text`. `stack` is by default the first one.
    """
    core = model.model
    require_view(model, "patching")
    # A dual encoder's other stack reads images.
    stacks = [name for name in core.stacks() if not name.startswith("image.")]
    stack = require_name("stack of texts", stack or stacks[0], stacks)
    residuals = residual_probes(core, stack)
    clean = look(model, text, target=target, ask=[*residuals, "logits"])
    clean_inputs = clean.model_inputs
    clean_logits = clean.tensor("logits")
    with evaluation_mode(core):
        corrupted_inputs = _aligned_inputs(model, clean_inputs, other)
        if torch.equal(clean_inputs.inputs, corrupted_inputs.inputs):
            raise DataError("both texts have the same tokens", "change a word of the second text")
        corrupted_logits = forward(core, corrupted_inputs.named)
        # A given target says what is right; otherwise it is what the clean run predicts.
        answers = _predictions(clean_logits) if target is None else clean_inputs.next_ids
        metric = _metric(model, answers, _predictions(corrupted_logits), at, instead)
        clean_score = metric(clean_logits)[0].item()
        corrupted_score = metric(corrupted_logits)[0].item()
        # One row of a batch for each position, so that a layer is patched by one forward pass.
        count = clean.tensor(residuals[0]).shape[1]
        named = {name: one.expand(count, -1) for name, one in corrupted_inputs.named.items()}
        patches = [Probe(edits={name: _patch_diagonal(clean.tensor(name))}) for name in residuals]
        rows = [array(metric(forward(core, named, patch))) for patch in patches]
    scores = np.stack(rows)  # [layers, positions]
    gap = clean_score - corrupted_score
    # 0 at the corrupted run's score, 1 at the clean run's.
    effect = (scores - corrupted_score) / gap if abs(gap) > 1e-12 else np.zeros_like(scores)
    pooled = clean_logits.ndim < 3  # [1, L] of a classifier
    return Patching(
        layers=("embedded", *(f"layer {i}" for i in range(len(residuals) - 1))),
        tokens=clean_inputs.tokens_of(stack),
        others=corrupted_inputs.tokens_of(stack),
        answer=_output_name(model, metric.answer, pooled),
        instead=None if metric.contrast is None else _output_name(model, metric.contrast, pooled),
        at=metric.position,
        clean=clean_score,
        corrupted=corrupted_score,
        scores=scores,
        effect=effect,
    )


def patched(
    model: Inspectable, text: str, other: str, name: str, target: str | None = None
) -> tuple[Tensor, Tensor]:
    """The logits of the run on `text`, and of that on `other` with one probe patched wholly."""
    core = model.model
    require_view(model, "patching")
    # Parts of an attention are read only; a dual encoder's other stack reads images.
    patchable = [
        name
        for name in probes(core)
        if not name.startswith("image.") and name.rpartition(".")[2] not in PARTS
    ]
    require_name("probe to patch", name, patchable)
    clean = look(model, text, target=target, ask=[name, "logits"])
    patch = Probe(edits={name: lambda _: clean.tensor(name)})
    with evaluation_mode(core):
        corrupted_inputs = _aligned_inputs(model, clean.model_inputs, other)
        return clean.tensor("logits"), forward(core, corrupted_inputs.named, patch)


def _predictions(logits: Tensor) -> list[int]:
    """The most probable token at each position, or the most probable label."""
    return logits[0].argmax(dim=-1).flatten().tolist()


def _metric(
    model: Inspectable,
    answers: Sequence[int],
    predictions: Sequence[int],
    at: int | None,
    instead: str | None,
) -> _Metric:
    """Where which logit is read, from what is asked for or from how the two runs differ."""
    if at is None:
        position = _first_difference(model.model, answers, predictions)
    else:
        [position] = require_positions([at], len(predictions))
    contrast = None
    if instead is not None:
        contrast = _single_token(model, instead)
    elif predictions[position] != answers[position]:
        contrast = predictions[position]
    return _Metric(position, answers[position], contrast)


def _first_difference(model: CoreModel, answers: Sequence[int], predictions: Sequence[int]) -> int:
    """The first position where the runs differ; of a language model, the last position of all."""
    if model.writes and not model.reads_target:
        return len(predictions) - 1
    for position, (answer, prediction) in enumerate(zip(answers, predictions, strict=False)):
        if answer != prediction:
            return position
    raise DataError(
        "the model predicts the same tokens for both texts",
        "choose another second text, or (in Python) set the output position: at=-1",
    )


def _aligned_inputs(model: Inspectable, clean: ModelInputs, other: str) -> ModelInputs:
    """The inputs of the corrupted text, which must have as many tokens as the clean one."""
    ids = token_ids(model, other)
    tokens = tuple(model.input_tokenizer.tokens(ids))
    if len(tokens) != len(clean.input_tokens):
        raise DataError(
            f"the texts have {len(clean.input_tokens)} and {len(tokens)} tokens, "
            "so their positions do not correspond",
            "replace words only by words with the same number of tokens",
        )
    # Both runs read the same decoder inputs, so that only the source differs.
    inputs = torch.tensor([ids], device=model.device)
    named = named_inputs(model.model, inputs, clean.decoder_inputs)
    return replace(clean, named=named, input_tokens=tokens)


def _single_token(model: Inspectable, word: str) -> int:
    """The id of a word that must be one token, without the special tokens around it."""
    ids = model.output_tokenizer.encode(word)
    if len(ids) != 1:
        raise DataError(
            f"{word!r} is not one token but {model.output_tokenizer.tokens(ids)}",
            "choose a word that is a single token",
        )
    return ids[0]


def _output_name(model: Inspectable, index: int, pooled: bool) -> str:
    """The name of a logit: a token's, or a label's."""
    if pooled:
        return model.label_name(index)
    return model.output_tokenizer.tokens([index])[0]


def _patch_diagonal(clean: Tensor) -> Edit:
    """Row i of the batch gets the clean activation at position i; `clean` is [1, T, D]."""

    def edit(residual: Tensor) -> Tensor:  # [T, T, D]
        positions = torch.arange(clean.shape[1], device=residual.device)
        residual = residual.clone()  # the rows of an expanded batch share memory
        residual[positions, positions] = clean[0]
        return residual

    return edit
