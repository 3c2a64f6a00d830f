"""Which inputs a prediction depends on: tests of masks, shifted targets and padding.

Each test replaces some tokens of a batch and compares losses. What must not be seen must not change
anything, whatever the weights are: no threshold has to be learnt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.core.context import Context
from regard.core.mixers.lsh_attention import LshAttention
from regard.core.mixture_of_experts import MixtureOfExperts
from regard.data.batching import Batch
from regard.data.padding import IGNORED
from regard.models import Model
from regard.training.diagnostics.finding import Finding
from regard.training.objectives.objective import CarriesState, Objective

ROWS = 4  # of a batch that are tested
# Relative difference of two numbers that must be equal. The same kernels sum in the same order, so
# that what is independent is equal to the bit, up to sums over the whole batch.
TOLERANCE = 1e-6
TOLD_APART = 1e-3  # nats between the likeliest and the least likely token


@dataclass(frozen=True)
class TokenBatch:
    """A few rows of a batch of token sequences, on the device."""

    tensors: Mapping[str, Tensor]
    key: str  # the tensor whose tokens predict the labels: `target` or `tokens`
    vocabulary: int
    # Whether the loss holds auxiliary losses (halting, load balance), which are of all tokens.
    has_auxiliary: bool = False

    @property
    def inputs(self) -> Tensor:
        return self.tensors[self.key]

    @property
    def labels(self) -> Tensor:
        return self.tensors["labels"]

    def replaced(self, cells: Tensor, key: str | None = None) -> TokenBatch:
        """The same with other tokens in these cells [B, T] of its inputs, or of another tensor."""
        key = key or self.key
        tokens = self.tensors[key]
        generator = torch.Generator().manual_seed(0)
        # Any token but the one that was there.
        shift = torch.randint(1, self.vocabulary, tokens.shape, generator=generator)
        others = (tokens + shift.to(tokens.device)) % self.vocabulary
        return self.changed(key, torch.where(cells, others, tokens))

    def changed(self, key: str, tensor: Tensor) -> TokenBatch:
        return replace(self, tensors={**self.tensors, key: tensor})


def token_batch(objective: Objective, batch: Batch) -> TokenBatch | None:
    """The rows to test with, or None where the labels are not those of each token."""
    labels = batch.tensors.get("labels")
    key = "target" if "target" in batch.tensors else "tokens"
    inputs = batch.tensors.get(key)
    if labels is None or inputs is None or labels.shape != inputs.shape or labels.ndim != 2:
        return None
    model = objective.trained_model
    if model.model.inputs[0].kind != "tokens":
        return None
    count = len(labels)
    tensors = {name: tensor.to(model.device) for name, tensor in batch.tensors.items()}
    # What an objective carries on has as many rows as its batches.
    if not isinstance(objective, CarriesState):
        tensors = {
            name: tensor[:ROWS] if tensor.ndim and len(tensor) == count else tensor
            for name, tensor in tensors.items()
        }
    vocabulary = min(len(model.input_tokenizer), len(model.output_tokenizer))
    has_auxiliary = bool(forward(model, tensors)[1])
    return TokenBatch(tensors, key, vocabulary, has_auxiliary)


@torch.no_grad()
def check_information_flow(objective: Objective, batches: list[Batch]) -> Iterator[Finding]:
    """All tests, on the first batch that fits each."""
    training = objective.model.training
    objective.model.eval()
    try:
        candidates = [token_batch(objective, batch) for batch in batches]
        rows = [batch for batch in candidates if batch is not None]
        if not rows:
            return
        if objective.trained_model.model.writes:
            yield from check_causality(objective, rows[0])
        else:
            yield from check_masked_labels(rows)
        padding = (list(check_padding(objective, batch)) for batch in rows)
        yield from next(filter(None, padding), [])
    finally:
        objective.model.train(training)


# --- losses ---------------------------------------------------------------------------------------


def loss_sum(objective: Objective, batch: TokenBatch) -> float:
    """The loss of a batch; what the objective carries on stays as it was."""
    carried = objective.carry if isinstance(objective, CarriesState) else {}
    before = {name: tensor.clone() for name, tensor in carried.items()}
    # Some losses draw numbers (ELECTRA's generator samples tokens): two of them must draw the same.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        loss, nll = objective.checked_loss(batch.tensors)
    for name, tensor in before.items():
        carried[name].copy_(tensor)
    return float(nll if batch.has_auxiliary else loss)


def differs(value: float, other: float) -> bool:
    return abs(value - other) > TOLERANCE * max(abs(value), abs(other))


# --- the future -----------------------------------------------------------------------------------


def check_causality(objective: Objective, batch: TokenBatch) -> Iterator[Finding]:
    """The prediction at a position must see the tokens up to it, and none behind."""
    # Buckets of LSH attention and the room of experts depend on all tokens, by their nature.
    modules = objective.model.modules()
    if any(isinstance(module, LshAttention | MixtureOfExperts) for module in modules):
        return
    shifted = _shift_of_labels(batch)
    if shifted is not None and shifted != 1:
        yield _not_shifted(f"labels equal the inputs {shifted} positions later", shifted)
        return
    # A position in the middle that has labels before and after it.
    columns = (batch.labels != IGNORED).any(dim=0).nonzero()[:, 0]
    if len(columns) < 4:
        return
    place = int(columns[len(columns) // 2])
    positions = torch.arange(batch.inputs.shape[1], device=batch.inputs.device)
    after = (positions > place).expand_as(batch.inputs)
    if _outputs_differ(objective, batch, after, ~after):
        yield Finding(
            "future_leak",
            f"other tokens after position {place} change the model's output at and before it",
            "the attention mask leaks: a position sees the tokens that it has to predict",
            "use a causal mask in the decoder; custom attention must leave out what `allowed` "
            "excludes, in sums and normalizations too",
            0.99,
        )
        return
    yield from _check_shift(objective, batch, place, after)


def _check_shift(
    objective: Objective, batch: TokenBatch, place: int, after: Tensor
) -> Iterator[Finding]:
    other_label = batch.labels.clone()
    other_label[:, place] = (batch.labels[:, place] + 1) % batch.vocabulary
    # To the bit: initial weights give all labels almost the same loss.
    if loss_sum(objective, batch) == loss_sum(objective, batch.changed("labels", other_label)):
        yield from _check_own_labels(objective, batch)
        return
    only = torch.full_like(batch.labels, IGNORED)
    nothing = loss_sum(objective, batch.changed("labels", only))
    if math.isfinite(nothing) and abs(nothing) > TOLERANCE:
        return  # it counts labels that are to be ignored: no position can be tested by itself
    only[:, place] = batch.labels[:, place]
    single = batch.changed("labels", only)  # the loss of one position
    value = loss_sum(objective, single)
    if differs(value, loss_sum(objective, single.replaced(after))):
        yield _not_shifted("the loss at a position depends on tokens behind it", 0)
        return
    positions = torch.arange(batch.inputs.shape[1], device=after.device)
    here = (positions == place).expand_as(after)
    before = (positions == place - 1).expand_as(after)
    sees_before = differs(value, loss_sum(objective, single.replaced(before)))
    if sees_before and not differs(value, loss_sum(objective, single.replaced(here))):
        yield _not_shifted("the loss at a position does not depend on the token there", 2)


def _check_own_labels(objective: Objective, batch: TokenBatch) -> Iterator[Finding]:
    """An objective that makes its labels of the inputs: which position does it compare with?"""
    model = objective.trained_model
    hidden, _ = forward(model, batch.tensors)
    if hidden is None:
        return
    head = model.model.lm_head
    assert head is not None, "of a model that generates"
    log_p = head(hidden).float().log_softmax(dim=-1)  # [B, T, V]
    if float((log_p.amax(dim=-1) - log_p.amin(dim=-1)).max()) < TOLD_APART:
        return  # all labels cost the same: which of them are compared with cannot be seen
    total, nll = (float(value) for value in objective.loss(batch.tensors))
    distances = {}
    for shift in (1, 0, 2):
        length = batch.inputs.shape[1] - shift
        labels = batch.inputs[:, shift:, None]
        expected = -float(log_p[:, :length].gather(2, labels).sum())
        distances[shift] = min(abs(expected - total), abs(expected - nll)) / abs(expected)
    closest = min(distances, key=lambda shift: distances[shift])
    # It must be this one, and clearly none of the others.
    if closest != 1 and distances[closest] < 1e-5 < distances[1] / 10:
        yield _not_shifted(f"the loss is that of the inputs {closest} positions later", closest)


def _not_shifted(evidence: str, shift: int) -> Finding:
    cause = "targets are shifted too far: the next token is never learned"
    if shift <= 0:
        cause = "targets are not shifted: a position is given the token that it has to predict"
    return Finding(
        "targets_not_shifted",
        evidence,
        cause,
        "the label of position t is the token at t + 1; shift once, in the batch or in the loss",
        0.98,
    )


def _shift_of_labels(batch: TokenBatch) -> int | None:
    """By how many positions the labels lag behind the inputs; None if they do not match."""
    counted = batch.labels != IGNORED
    matches: dict[int, float] = {}
    for shift in (1, 0, 2):
        length = batch.inputs.shape[1] - shift
        valid = counted[:, :length] & counted[:, shift:]
        same = (batch.labels[:, :length] == batch.inputs[:, shift:]) & valid
        matches[shift] = float(same.sum() / valid.sum().clamp_min(1))
    best = max(matches, key=lambda shift: matches[shift])  # 1 where several are equal
    return best if matches[best] > 0.98 else None


def _outputs_differ(
    objective: Objective, batch: TokenBatch, cells: Tensor, positions: Tensor
) -> bool:
    """Whether other tokens in these cells change the hidden states at some positions [B, T]."""
    one, _ = forward(objective.trained_model, batch.tensors)
    other, _ = forward(objective.trained_model, batch.replaced(cells).tensors)
    if one is None or other is None:
        return False
    one = one[positions]  # [N, D]
    distance = (one - other[positions]).abs().max()
    return float(distance) > 10 * TOLERANCE * max(float(one.abs().mean()), 1e-6)


def forward(
    model: Model, tensors: Mapping[str, Tensor], context: Context | None = None
) -> tuple[Tensor | None, Mapping[str, Tensor]]:
    """Hidden states [B, T, D] of texts, and auxiliary losses; None where a batch is of others."""
    core = model.model
    mask = tensors.get("padding_mask")
    if core.reads_target and {"source", "target"} <= tensors.keys():
        return core(tensors["source"], tensors["target"], mask, context)  # type: ignore[no-any-return]
    required = [one.name for one in core.inputs if one.required]
    if required != ["input_ids"] or "tokens" not in tensors:
        return None, {}
    if core.writes:
        return core(tensors["tokens"], None, context)  # type: ignore[no-any-return]
    segments = {name: tensors[name] for name in ("segments",) if name in tensors}
    return core(tensors["tokens"], mask, context, **segments)  # type: ignore[no-any-return]


# --- masked tokens --------------------------------------------------------------------------------


def check_masked_labels(batches: list[TokenBatch]) -> Iterator[Finding]:
    """Of a masked language model: the tokens to predict must be hidden, but for a tenth."""
    visible = 0
    total = 0
    for batch in batches:
        counted = batch.labels != IGNORED
        visible += int((batch.inputs[counted] == batch.labels[counted]).sum())
        total += int(counted.sum())
    # BERT leaves 10 % as they are; tags and other labels equal tokens by chance only.
    if total >= 20 and visible > 0.5 * total:
        yield Finding(
            "answers_in_input",
            f"{100 * visible / total:.0f} % of the labels appear unmasked in the input",
            "the model is given the tokens that it has to predict",
            "replace the tokens to predict by the mask token before the forward pass",
            0.95,
        )


# --- padding --------------------------------------------------------------------------------------


def check_padding(objective: Objective, batch: TokenBatch) -> Iterator[Finding]:
    """What stands in padded cells must change no loss, and padding is no label."""
    model = objective.trained_model
    pad = model.output_tokenizer.special_token_id("pad")
    end = model.output_tokenizer.special_token_id("eos")
    counted = batch.labels != IGNORED
    is_padding = _padded(batch, pad)
    labels_padding = (counted & is_padding & (batch.labels == pad)).any() and pad != end
    value = loss_sum(objective, batch)
    changes = is_padding.any() and differs(value, loss_sum(objective, batch.replaced(is_padding)))
    mask = batch.tensors.get("padding_mask")
    source = batch.tensors.get("source")
    # Either the loss counts padded cells, or real tokens attend to them: the model tells.
    if changes and not labels_padding and mask is not None and not model.model.writes:
        is_attended = _outputs_differ(objective, batch, is_padding, mask)
    elif changes or labels_padding or mask is None or source is None or bool(mask.all()):
        is_attended = False
    else:
        is_attended = differs(value, loss_sum(objective, batch.replaced(~mask, "source")))
    if is_attended:
        yield Finding(
            "padding_attended",
            "other tokens in the padding change the outputs of real tokens",
            "attention looks at padding",
            "pass the padding mask to the model; custom attention must leave out what `allowed` "
            "excludes",
            0.97,
        )
    elif labels_padding or changes:
        share = 100 * float(is_padding.float().mean())
        evidence = f"padding tokens are labels ({share:.0f} % of a batch)"
        if changes:
            evidence = f"other tokens in the padding ({share:.0f} % of a batch) change the loss"
        yield Finding(
            "padding_in_loss",
            evidence,
            "padding is counted in the loss",
            f"set the labels of padding to {IGNORED} and leave them out of sum and mean",
            0.97,
        )


def _padded(batch: TokenBatch, pad: int | None) -> Tensor:
    """Which cells of the inputs are padding: [B, T]."""
    mask = batch.tensors.get("padding_mask")
    if mask is not None and batch.key == "tokens" and mask.shape == batch.inputs.shape:
        return ~mask
    if pad is None:
        return torch.zeros_like(batch.inputs, dtype=torch.bool)
    # Padding stands at the end: everything behind the last other token.
    is_token = batch.inputs != pad
    behind = is_token.flip(1).cumsum(dim=1).flip(1) == 0
    behind[:, 0] = False  # a first token that is `pad` starts a decoder
    return behind
