"""What all weights of an attention amount to: entropy by head, and rollout through the layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from regard.core.probe import AttentionCall
from regard.look import drawing
from regard.look.drawing import terminal
from regard.look.probe_names import attentions
from regard.look.recording import (
    Look,
    array,
    even_weights,
    mean_over_heads,
    recorded_attentions,
    weights_in_chunks,
)
from regard.look.result import Array, HeadNumbers, Names, TokenAttention, by_attention

COLLAPSED = 0.95  # share of all attention on one key, above which a head has collapsed
UNIFORM = 0.98  # share of the highest entropy, above which a head attends uniformly
IDLE = 0.1  # share of the layer's mean output norm, below which a head is idle


@dataclass(frozen=True)
class Entropy(HeadNumbers):
    """The mean entropy of each head's attention, and what is conspicuous about it.

    `nats` is the entropy, `share` its ratio to the highest possible one. `favourite` is the share
    of all attention that one key receives. `force` is the norm of what the head adds to the
    residual stream, relative to the mean of its layer. `flags` names heads that have collapsed
    (every query attends to the same key), are uniform, or idle (a force below a tenth).
    """

    names: Names
    nats: Array  # [layers, heads]
    share: Array  # [layers, heads], and the next two
    favourite: Array
    force: Array
    flags: dict[str, str]  # "encoder.0.self head 3" → what is conspicuous

    note = "0: all attention on one position; 1: uniform attention over all visible positions."
    title = "attention entropy of each head, relative to the maximum"

    numbers = "share"
    form = ".2f"
    most = 1.0

    def lines(self, width: int = 100) -> list[str]:
        flags = [f"{head}: {flag}" for head, flag in self.flags.items()]
        return [*super().lines(width), "", *flags]


def entropy(run: Look, kind: str = "*") -> Entropy:
    """The entropies of every recorded attention of a kind: `self`, `cross`, `encoder.*`."""
    names = recorded_attentions(run, "*.*" if kind == "*" else kind)
    modules = attentions(run.model.model)
    measures = [_measure(run.call(name), modules[name].out_weight) for name in names]
    flags: dict[str, str] = {}
    nats, share, favourite, force = map(by_attention, zip(*measures, strict=True))
    for i, name in enumerate(names):
        _, heads, queries, _ = run.call(name).q.shape
        for head in range(heads):
            flag = _flag(share[i, head], favourite[i, head], force[i, head], queries)
            if flag:
                flags[f"{name} head {head}"] = flag
    return Entropy(tuple(names), nats, share, favourite, force, flags)


def _flag(share: float, favourite: float, force: float, queries: int) -> str:
    """What is conspicuous about a head, or nothing."""
    if force < IDLE:
        return f"idle: its output norm is {force:.0%} of the mean of its layer"
    if favourite > COLLAPSED and queries > 1:
        return f"collapsed: {favourite:.0%} of all attention goes to one position"
    if share > UNIFORM:
        return f"uniform: its entropy is {share:.0%} of the maximum"
    return ""


def _measure(call: AttentionCall, out_weight: Tensor) -> list[Array]:
    """Entropy, its share of the highest, the favourite key's share, the force: [H] each."""
    _, heads, length, _ = call.q.shape
    nats = torch.zeros(heads, dtype=torch.float64, device=call.q.device)
    share = torch.zeros_like(nats)
    force = torch.zeros_like(nats)
    received = nats.new_zeros(heads, call.k.shape[2])  # [H, S]: attention that each key gets
    values = call.v.repeat_interleave(heads // call.v.shape[1], dim=1)  # [B, H, S, E]
    projections = out_weight.unflatten(1, (heads, -1))  # [D, H, E]
    for rows, weights in weights_in_chunks(call):  # [B, H, rows, S]
        # Effective weights may be negative (Linformer): their size counts. Softmax's stay as is.
        sizes = weights[0].abs()
        sizes = sizes / sizes.sum(dim=-1, keepdim=True).clamp_min(1e-30)
        entropies = torch.special.entr(sizes).sum(dim=-1, dtype=torch.float64)  # [H, rows]
        visible = call.visible(rows)[0].sum(dim=-1).double().expand(heads, len(rows))
        highest = visible.log().clamp_min(1e-9)  # the entropy of uniform attention
        nats += entropies.sum(dim=1)
        share += torch.where(visible > 1, entropies / highest, 0.0).sum(dim=1)
        received += sizes.sum(dim=1)
        mixed = (weights @ values)[0]  # [H, rows, E]
        projected = torch.einsum("hre,dhe->hrd", mixed, projections)
        force += torch.linalg.vector_norm(projected, dim=-1).sum(dim=1, dtype=torch.float64)
    mean_force = force.mean().clamp_min(1e-30)
    favourite = received.amax(dim=-1) / length
    return [array(one) for one in (nats / length, share / length, favourite, force / mean_force)]


@dataclass(frozen=True)
class Rollout(TokenAttention):
    """How much of each input position reaches each position of the last layer.

    It is what would reach it if attention were all that moves information.
    """

    stack: str
    tokens: Names

    note = (
        "Attention rollout (Abnar and Zuidema 2020): product over layers of (mean over heads + "
        "identity) / 2. Not a causal explanation."
    )

    @property
    def title(self) -> str:
        return f"attention rollout of the {self.stack}"

    def scene(self) -> drawing.Scene:
        if self.backdrop is not None:
            # What reaches the position that stands for the input, or the mean of all.
            panel = replace(self.panel, name="").of_query(self.backdrop.query)
            return self.backdrop.attended([panel], title=self.title)
        return drawing.attention_heat(self.panel, self.tokens, self.tokens)

    def lines(self, width: int = 100) -> list[str]:
        names = (self.weights, self.tokens, self.tokens)
        return terminal.heat(*names, width=width, shades=self.shades())


def rollout(run: Look, stack: str | None = None) -> Rollout:
    """The rollout of one stack's self-attention, by default of the first stack that has any."""
    if stack is None:
        first = recorded_attentions(run, "self")[0]
        stack = first.rsplit(".", 2)[0]  # "encoder" of "encoder.0.self"
    names = recorded_attentions(run, f"{stack}.*.self")
    # [T, T] of each layer, in double precision: products of many
    layers = [mean_over_heads(run.call(name)).astype(np.float64) for name in names]
    even_layers = [even_weights(run.call(name)).mean(axis=0) for name in names]
    return Rollout(
        stack,
        run.labels(names[0])[1],
        weights=_rolled(layers),
        backdrop=run.backdrop_of(names[0]),
        even=_rolled(even_layers),
    )


def _rolled(layers: Sequence[Array]) -> Array:
    """The product of (attention + identity) / 2 of all layers, first layer first."""
    rolled = np.eye(len(layers[0]))
    for weights in layers:
        # The residual connection carries each position on.
        mixed = weights + np.eye(len(weights))
        mixed /= mixed.sum(axis=1, keepdims=True)
        # Later layers mix what earlier ones have mixed: they multiply from the left.
        rolled = mixed @ rolled
    return rolled
