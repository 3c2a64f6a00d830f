"""Circuits of a model: what its heads do on repeated tokens, how they compose, and what the QK and
OV circuits of one head do to the tokens of a text."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.core.block import AnyBlock
from regard.core.frontends.embedding import Embedding
from regard.core.norm import normalize
from regard.core.probe import Probe
from regard.core.residual import ParallelResidual
from regard.core.stack import Stack
from regard.look import drawing
from regard.look.drawing import terminal
from regard.look.feedforward_neurons import logit_effect
from regard.look.forward import evaluation_mode, hidden_states, named_inputs
from regard.look.head_circuits import (
    Mode,
    composition_scores,
    copying_scores,
    duplicate_token_scores,
    head_circuits,
    head_weights,
    induction_scores,
    previous_token_scores,
)
from regard.look.inspectable import Inspectable, decoder_start, empty_input, tokenizer_of
from regard.look.probe_names import require_indices, require_layer
from regard.look.recording import array
from regard.look.result import AnalysisResult, Array, Names, by_attention
from regard.look.views import other_views, viewed_stack, without_head_circuits
from regard.system.errors import SettingError

PERIOD = 24  # tokens, after which a random text repeats
TEXTS = 8
PAIRS = 8  # of composed heads that a table lists
MODES: tuple[Mode, ...] = ("Q", "K", "V")


@dataclass(frozen=True)
class Composition:
    """How much a head reads what an earlier one has written, through queries, keys or values."""

    mode: str
    writer: str
    reader: str
    score: float


@dataclass(frozen=True)
class Circuits(AnalysisResult):
    """What each head does on random tokens that repeat, and which heads compose.

    `scores` are mean attention to the token before (previous token), to the last occurrence of the
    token itself (duplicate token), and to the one after that (induction); `chance` is that of
    uniform attention. Copying is Σλ/Σ|λ| over the eigenvalues of W_E W_OV W_U. Compositions are
    ratios of norms, which are about `baseline` for matrices that have nothing to do with each
    other.
    """

    names: Names
    kinds: Names
    scores: Array  # [kinds, attentions, heads]
    chance: tuple[float, ...]
    composition: dict[str, Array]  # "Q", "K", "V" → [L, H, L, H] of writer and reader
    strongest: tuple[Composition, ...]
    baseline: float

    note = (
        "An induction head attends to what followed the last occurrence of a token; it is built "
        "with a previous-token head of an earlier layer, by K-composition (Olsson et al. 2022)."
    )
    title = "circuits: what heads do on repeated random tokens"
    numbers = "scores"

    def scene(self) -> drawing.Scene:
        heads = [*map(str, range(self.scores.shape[2]))]
        scenes = []
        for kind, scores, chance in zip(self.kinds, self.scores, self.chance, strict=True):
            title = f"{kind} (chance {chance:.2f})"
            signed = bool(np.nanmin(scores) < 0)
            inside = [[f"{value:.2f}" for value in row] for row in scores]
            scenes.append(
                drawing.heat(
                    scores, self.names, heads, title=title, most=1.0, signed=signed, inside=inside
                )
            )
        for mode, values in self.composition.items():
            layers, count = values.shape[:2]
            # The last layer writes for none, and the first reads of none.
            names = [f"{name} {head}" for name in self.names for head in range(count)]
            square = values.reshape(layers * count, -1)[:-count, count:]
            title = f"{mode}-composition: rows write, columns read (baseline {self.baseline:.3f})"
            scenes.append(drawing.heat(square, names[:-count], names[count:], title=title))
        return drawing.below(scenes)

    def lines(self, width: int = 100) -> list[str]:
        lines: list[str] = []
        for kind, scores, chance in zip(self.kinds, self.scores, self.chance, strict=True):
            lines += [f"{kind} (chance {chance:.2f})"]
            lines += [*terminal.by_head(self.names, scores, ".2f", width=width), ""]
        rows = [["composition", "writes", "reads", "score", f"(baseline {self.baseline:.3f})"]]
        rows += [[one.mode, one.writer, one.reader, f"{one.score:.3f}"] for one in self.strongest]
        if not self.strongest:
            return lines[:-1]
        return [*lines, *terminal.table(rows, width=width)]


@dataclass(frozen=True)
class HeadCircuit(AnalysisResult):
    """What one head would do if it read nothing but the embeddings of tokens (its direct path).

    `scores` are q · k of the QK circuit, without positions. `promoted` are the tokens whose logits
    rise if the head attends to a token, by the OV circuit; there are none without an LM head.
    """

    name: str
    head: int
    tokens: Names
    scores: Array  # [queries, keys]
    promoted: tuple[Names, ...] = ()  # of each token
    logits: Array | None = None  # [tokens, top]

    note = (
        "What a token alone would attend to, and what it would write if attended to: without "
        "positions, and as if no layer came before or after."
    )
    numbers = "scores"

    @property
    def title(self) -> str:
        return f"QK and OV circuits of {self.name}, head {self.head}"

    def scene(self) -> drawing.Scene:
        title = f"{self.title}: q · k of tokens alone"
        scenes = [drawing.heat(self.scores, self.tokens, self.tokens, title=title, signed=True)]
        if self.logits is not None:
            ranks = [str(rank + 1) for rank in range(self.logits.shape[1])]
            inside = [[*map(drawing.shown, row)] for row in self.promoted]
            title = "OV: attending to a token promotes"
            scenes.append(drawing.heat(self.logits, self.tokens, ranks, title=title, inside=inside))
        return drawing.below(scenes)

    def table(self) -> list[list[str]]:
        rows = [["token", "attends to (QK)", "promotes (OV)"]]
        for i, token in enumerate(self.tokens):
            best = np.argsort(-self.scores[i])[:3]
            keys = " ".join(
                f"{drawing.shown(self.tokens[j])} {self.scores[i, j]:.1f}" for j in best
            )
            rows.append([drawing.shown(token), keys])
        for row, promoted in zip(rows[1:], self.promoted, strict=False):
            row.append(" ".join(map(drawing.shown, promoted)))
        return rows


@torch.no_grad()
def circuits(model: Inspectable, *, stack: str | None = None) -> Circuits:
    """What the heads of a stack do (by default of the first), and how they compose."""
    core = model.model
    name = viewed_stack(model, "circuits", stack)
    side = _stack(model, name)
    weights, visible = _on_repeated_tokens(model, name)
    period = visible.shape[-1] // 2
    measures = {
        "previous token": [previous_token_scores(one) for one in weights],
        "duplicate token": [duplicate_token_scores(one, period) for one in weights],
        "induction": [induction_scores(one, period) for one in weights],
    }
    # Uniform attention over the keys that a query may attend to.
    even = (visible / visible.sum(dim=-1, keepdim=True).clamp_min(1))[None, None]
    chance = [previous_token_scores(even), duplicate_token_scores(even, period)]
    chance.append(induction_scores(even, period))
    factors = head_circuits(side)
    table = _vectors_of_all(model, name)
    head = getattr(core.lm_head, "table", None)
    if head is not None and table is not None and name == list(core.stacks())[-1]:
        measures["copying"] = [*copying_scores(factors, table, head.weight)]
        chance.append(torch.zeros(1))
    names = tuple(f"{name}.{layer}.self" for layer in range(side.layers))
    composition: dict[str, Array] = {}
    if side.layers > 1:
        composition = {mode: array(composition_scores(factors, mode)) for mode in MODES}
    pairs = [
        Composition(mode, f"{names[i]} {j}", f"{names[k]} {m}", float(values[i, j, k, m]))
        for mode, values in composition.items()
        for i, j, k, m in np.argwhere(values > 0).tolist()
    ]
    pairs.sort(key=lambda one: -one.score)
    return Circuits(
        names,
        tuple(measures),
        np.stack([by_attention([array(one) for one in rows]) for rows in measures.values()]),
        tuple(one.item() for one in chance),
        composition,
        tuple(pairs[:PAIRS]),
        factors.q.shape[2] ** -0.5,
    )


@torch.no_grad()
def head_circuit(
    model: Inspectable,
    text: str,
    *,
    layer: int | None = None,
    head: int = 0,
    stack: str | None = None,
    top: int = 6,
) -> HeadCircuit:
    """The QK and OV circuits of one head on the tokens of a text, by default of the last layer."""
    core = model.model
    name = viewed_stack(model, "circuits", stack)
    side = _stack(model, name)
    layer = require_layer(layer, side.layers)
    block = side.block(layer)
    require_indices("head", [head], block.attention.heads)
    words = tokenizer_of(model, name)
    ids = words.input_ids(text)
    if not ids:
        raise empty_input(model)
    with evaluation_mode(core):
        x = _reads(block, _token_vectors(model, name, torch.tensor(ids, device=model.device)))
        q, k, v = (one[0] for one in block.attention.project(x[None], None))  # [H or G, T, K]
        shared = len(q) // len(k)
        scores = q[head] @ k[head // shared].mT  # [T, T]
        result = HeadCircuit(f"{name}.{layer}.self", head, tuple(words.tokens(ids)), array(scores))
        writes = v[head // shared] @ head_weights(block.attention)[3][head]  # [T, D]
        logits = logit_effect(model, name, block.scaled("self", writes))  # [T, V]
        if logits is None:
            return result
    best = logits.topk(min(top, logits.shape[1]), dim=-1)
    promoted = tuple(tuple(words.tokens(row)) for row in best.indices.tolist())
    return replace(result, promoted=promoted, logits=array(best.values))


def _stack(model: Inspectable, name: str) -> Stack:
    """The stack of a name, whose heads have circuits."""
    side = model.model.stacks()[name]
    obstacle = without_head_circuits(model, name)
    if obstacle is not None or not isinstance(side, Stack):
        raise SettingError(obstacle or "", other_views(model))
    return side


# ------------------------------------------------------------------ on repeated tokens


def _on_repeated_tokens(model: Inspectable, name: str) -> tuple[list[Tensor], Tensor]:
    """The attention weights of all heads on random tokens that repeat, [B, H, 2P, 2P] of each
    layer, and which keys each query may attend to: [2P, 2P]."""
    core = model.model
    words = tokenizer_of(model, name)
    start = decoder_start(model.special_tokens)
    frame = words.frame([])
    limit = model.spec.max_length or 2 * PERIOD + len(frame) + 1
    period = min(PERIOD, (limit - len(frame) - 1) // 2)
    if period < 2:
        raise SettingError(
            f"this model reads {limit} tokens, too few to repeat any", "use one with more positions"
        )
    # Special tokens have attention of their own kind.
    usual = torch.tensor([i for i in range(len(words)) if i not in words.special_ids])
    generator = torch.Generator().manual_seed(0)
    ids = usual[torch.randint(len(usual), (TEXTS, period), generator=generator)]
    once = ids.tolist()
    source = [words.frame([*ids, *ids]) for ids in once]
    rows = source
    # An encoder needs no target, but its model does.
    target = [start or [0]] * TEXTS
    if core.reads_target and name == "decoder":
        source = [model.input_tokenizer.frame(ids) for ids in once]
        rows = [[*start, *ids, *ids] for ids in once]
        target = rows
    begins = rows[0].index(once[0][0])
    inputs = named_inputs(core, torch.tensor(source), torch.tensor(target))
    ends = begins + 2 * period
    probe = Probe([f"{name}.*.self"])
    with evaluation_mode(core):
        device = model.device
        hidden_states(core, {key: value.to(device) for key, value in inputs.items()}, probe)
    calls = [call for key, call in probe.attentions.items() if key.endswith(".self")]
    inside = slice(begins, ends)
    every = torch.arange(len(rows[0]), device=model.device)
    visible = calls[0].visible(every)[0].any(dim=0).expand(len(every), -1)
    weights = [call.weights()[:, :, inside, inside].float() for call in calls]
    return weights, visible[inside, inside].float()


# ------------------------------------------------------------------ tokens as heads read them


def _token_vectors(model: Inspectable, name: str, ids: Tensor) -> Tensor:
    """The embeddings of tokens [T] without positions: [T, D]."""
    front = model.model.front_ends()[name]
    assert isinstance(front, Embedding), "others were refused"
    x = functional.embedding(ids, front.table.weight) * front.scale
    if front.norm is not None:
        x = front.norm(x)
    if front.project is not None:
        x = front.project(x)
    return x


def _vectors_of_all(model: Inspectable, name: str) -> Tensor | None:
    """The embedding table of a stack, as wide as its residual stream: [V, D]."""
    front = model.model.front_ends()[name]
    assert isinstance(front, Embedding), "others were refused"
    if front.concatenated is not None:
        return None
    if front.project is not None:
        return front.table.weight @ front.project.weight.mT
    return front.table.weight


def _reads(block: AnyBlock, x: Tensor) -> Tensor:
    """What self-attention reads of a residual stream x [T, D]: after the norm, if that is first."""
    if isinstance(block.residual, ParallelResidual):
        return normalize(block.residual.norms[0], x[None], None)[0]
    inputs = []

    def attention(y: Tensor) -> Tensor:
        inputs.append(y)
        return torch.zeros_like(y)

    block.residual.each[0](x[None], attention)
    return inputs[0][0]
