"""What attention weights alone can tell: alignments, entropies, rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.core.probe import AttentionCall
from regard.errors import SettingError
from regard.look import drawing, terminal
from regard.look.recording import Look, array, in_rows, layers_of, mean_heads
from regard.look.result import Array, Result
from regard.look.target import attentions

# ------------------------------------------------------------------ alignment


@dataclass(frozen=True)
class Alignment(Result):
    """What each target token looks at in the source; `links` join each with the source token it looks at most."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Array  # [target, source]
    links: tuple[tuple[int, int], ...]  # (target, source)
    layer: int
    heads: tuple[int, ...]

    note = "Cross-attention while each target token was written, as a mean over the heads. Not a certain alignment."

    @property
    def title(self) -> str:
        return f"alignment by decoder layer {self.layer}, heads {', '.join(map(str, self.heads))}"

    def numpy(self) -> Array:
        return self.weights

    def scene(self) -> drawing.Scene:
        strongest = np.zeros_like(self.weights)
        for row, column in self.links:
            strongest[row, column] = self.weights[row, column]
        return drawing.below(
            [
                drawing.heat(self.weights, self.target, self.source, title=self.title),
                drawing.links(strongest, self.target, self.source),
            ]
        )

    def lines(self, width: int = 100) -> list[str]:
        return terminal.heat(self.weights, self.target, self.source, width=width)


def alignment(
    found: Look, layer: int | None = None, heads: Sequence[int] | None = None
) -> Alignment:
    """Cross-attention of one decoder layer, the last but one unless said (it aligns best: Garg et al. 2019), as the mean of
    the heads."""
    names = layers_of(found, "cross")
    number = max(0, len(names) - 2) if layer is None else layer
    if not 0 <= number < len(names):
        raise SettingError(
            f"there is no decoder layer {number}", f"the layers are 0 to {len(names) - 1}"
        )
    call = found.call(names[number])
    many = call.q.shape[1]
    chosen = tuple(range(many)) if heads is None else tuple(heads)
    if not all(0 <= head < many for head in chosen):
        raise SettingError(f"the layer has no head {max(chosen)}", f"its heads are 0 to {many - 1}")
    weights = mean_heads(call, chosen)
    links = tuple((row, int(column)) for row, column in enumerate(weights.argmax(axis=1)))
    target, source = found.labels(names[number])
    return Alignment(source, target, weights, links, number, chosen)


# ------------------------------------------------------------------ entropy

COLLAPSED, EVEN, IDLE = 0.95, 0.98, 0.1


@dataclass(frozen=True)
class Entropy(Result):
    """Of each head the mean entropy of its rows in nats, and as a share of the most that these rows can have.

    `favourite`: the share of all attention that goes to its favourite key. `force`: how large what it adds is, 1 being an
    even share among the heads of its layer. From these: heads that have `collapsed` (every query looks at the same place),
    are `even` (they take the mean of all they see) or `idle` (they add less than a tenth of an even share).
    """

    names: tuple[str, ...]
    nats: Array  # [layers, heads]
    share: Array
    favourite: Array
    force: Array
    flags: dict[str, str]  # "encoder.0.self head 3" → what is the matter

    note = "0 is one place alone, 1 an even look at everything visible."

    @property
    def title(self) -> str:
        return "attention entropy of each head, as a share of the highest"

    def numpy(self) -> Array:
        return self.share

    def scene(self) -> drawing.Scene:
        columns = [str(head) for head in range(self.share.shape[1])]
        inside = [[f"{value:.2f}" for value in row] for row in self.share]
        return drawing.heat(
            self.share, self.names, columns, title=self.title, most=1.0, inside=inside
        )

    def lines(self, width: int = 100) -> list[str]:
        table = terminal.by_head(self.names, self.share, ".2f", width=width)
        return [*table, "", *(f"{head}: {what}" for head, what in self.flags.items())]


def entropy(found: Look, kind: str = "*") -> Entropy:
    """Of every recorded attention whose name fits `kind` (`self`, `cross`, `encoder.*`)."""
    names = layers_of(found, "*.*" if kind == "*" else kind)
    most = max(found.call(name).q.shape[1] for name in names)
    nats, share, favourite, force = (np.full((len(names), most), np.nan) for _ in range(4))
    flags = {}
    for i, name in enumerate(names):
        call = found.call(name)
        output = attentions(found.subject.model)[name].out_weight
        for column, values in zip(
            (nats, share, favourite, force), _measured(call, output), strict=True
        ):
            column[i, : call.q.shape[1]] = array(values)
        for head in range(call.q.shape[1]):
            what = _flag(share[i, head], favourite[i, head], force[i, head], call.q.shape[2])
            flags.update({f"{name} head {head}": what} if what else {})
    return Entropy(tuple(names), nats, share, favourite, force, flags)


def _flag(share: float, favourite: float, force: float, rows: int) -> str:
    if force < IDLE:
        return f"idle: it adds {force:.0%} of an even share of its layer"
    if favourite > COLLAPSED and rows > 1:
        return f"collapsed: {favourite:.0%} of all attention goes to one place"
    return (
        f"even: it looks at everything alike ({share:.0%} of the highest entropy)"
        if share > EVEN
        else ""
    )


def _measured(call: AttentionCall, output: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Entropy, its share of the highest, the favourite key's share, the force: [H] each."""
    many, length = call.q.shape[1], call.q.shape[2]
    nats = torch.zeros(many, dtype=torch.float64, device=call.q.device)
    share, force = torch.zeros_like(nats), torch.zeros_like(nats)
    received = nats.new_zeros(many, call.k.shape[2])
    values = call.v.repeat_interleave(many // call.v.shape[1], dim=1)
    maps = output.unflatten(1, (many, -1))  # [D, H, E]
    for rows, weights in in_rows(call):
        # Effective weights may be negative (Linformer): what counts is how large they are. Those of softmax stay as they are.
        sizes = weights[0].abs()
        sizes = sizes / sizes.sum(dim=-1, keepdim=True).clamp_min(1e-30)
        nll = torch.special.entr(sizes).sum(dim=-1, dtype=torch.float64)  # [H, rows]
        seen = call.visible(rows)[0].sum(dim=-1).double().expand(many, len(rows))
        nats += nll.sum(dim=1)
        share += torch.where(seen > 1, nll / seen.log().clamp_min(1e-9), 0.0).sum(dim=1)
        received += sizes.sum(dim=1)  # [H, S]
        added = torch.einsum("hre,dhe->hrd", (weights @ values)[0], maps)
        force += torch.linalg.vector_norm(added, dim=-1).sum(dim=1, dtype=torch.float64)
    even = force.mean().clamp_min(1e-30)
    return nats / length, share / length, received.amax(dim=-1) / length, force / even


# ------------------------------------------------------------------ rollout


@dataclass(frozen=True)
class Rollout(Result):
    """How much of each input place reaches each place after the last layer, if attention were all that moves things."""

    stack: str
    tokens: tuple[str, ...]
    weights: Array  # [places, inputs]; each row sums to 1

    note = "Attention rollout (Abnar and Zuidema 2020): products of (heads' mean + identity) / 2. Not an explanation."

    @property
    def title(self) -> str:
        return f"attention rollout of the {self.stack}"

    def numpy(self) -> Array:
        return self.weights

    def scene(self) -> drawing.Scene:
        return drawing.heat(self.weights, self.tokens, self.tokens, title=self.title)

    def lines(self, width: int = 100) -> list[str]:
        return terminal.heat(self.weights, self.tokens, self.tokens, width=width)


def rollout(found: Look, stack: str | None = None) -> Rollout:
    """Of the self-attention of one stack, the encoder's unless said."""
    name = stack or next(iter(layers_of(found, "self"))).rpartition(".")[0].rpartition(".")[0]
    reached: Array | None = None
    for layer in layers_of(found, f"{name}.*.self"):
        weights = mean_heads(found.call(layer)).astype(np.float64)
        step = weights + np.eye(len(weights))  # the residual stream carries each place on
        step /= step.sum(axis=1, keepdims=True)
        reached = step if reached is None else step @ reached
    assert reached is not None
    return Rollout(name, found.labels(f"{name}.0.self")[0], reached)
