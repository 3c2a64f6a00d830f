"""Neurons of feed-forward networks: which tokens they react to, and which they make likelier.

A feed-forward network is a memory of keys and values (Geva et al. 2021): a neuron is active where
its key matches, and adds its value, a row of W₂, to the residual stream. Read through the LM head
(the logit lens), the value says which tokens it promotes (Geva et al. 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from regard.core.feedforward import FeedForward, GatedFeedForward
from regard.core.probe import Probe
from regard.core.stack import Stack
from regard.data.text.tokenizer import Tokenizer
from regard.look import drawing
from regard.look.forward import evaluation_mode, hidden_states
from regard.look.generation import translate, written
from regard.look.inspectable import Inspectable, tokenizer_of
from regard.look.model_inputs import IGNORED, LabelledBatch, batch
from regard.look.probe_names import require_indices, require_layer
from regard.look.recording import array
from regard.look.result import AnalysisResult, Array, Names
from regard.look.views import viewed_stack
from regard.system.arguments import whole_number
from regard.system.errors import DataError

SHOWN = 8  # neurons of a layer, where none are named
BEFORE, AFTER = 8, 4  # tokens around the one that a neuron reacts to


@dataclass(frozen=True)
class Excerpt:
    """A token of a text that a neuron reacts to, with what stands around it."""

    text: int  # its number
    position: int
    before: str
    token: str
    after: str


@dataclass(frozen=True)
class Neurons(AnalysisResult):
    """The tokens that neurons react to most, and those that their values promote.

    `mean` and `active` (the share of tokens with an activation above 0) are over all tokens.
    Promoted and suppressed tokens come with the change of their logits by a value as it stands in
    W₂; there are none where the stack has no LM head.
    """

    layer: str
    neurons: tuple[int, ...]
    activations: Array  # [neurons, top], the largest first
    excerpts: tuple[tuple[Excerpt, ...], ...]  # of the same
    mean: Array  # [neurons]
    active: Array  # [neurons]
    tokens: int  # how many have been read
    promoted: tuple[Names, ...] = ()
    promoted_logits: Array | None = None  # [neurons, top]
    suppressed: tuple[Names, ...] = ()

    note = (
        "A neuron reacts to the tokens on which it is most active. Its value promotes tokens when "
        "the LM head reads it alone: later layers may undo that."
    )
    numbers = "activations"

    @property
    def title(self) -> str:
        return f"neurons of {self.layer}, on {self.tokens:,} tokens"

    def scene(self) -> drawing.Scene:
        rows = [f"neuron {number}" for number in self.neurons]

        def ranks(values: Array) -> list[str]:
            return [str(rank + 1) for rank in range(values.shape[1])]

        inside = [[drawing.shown(one.token) for one in row] for row in self.excerpts]
        title = f"{self.title}: most active on"
        activations = self.activations
        scenes = [drawing.heat(activations, rows, ranks(activations), title=title, inside=inside)]
        if self.promoted_logits is not None:
            inside = [[*map(drawing.shown, row)] for row in self.promoted]
            logits = self.promoted_logits
            scenes.append(
                drawing.heat(logits, rows, ranks(logits), title="promotes", inside=inside)
            )
        return drawing.below(scenes)

    def lines(self, width: int = 100) -> list[str]:
        lines: list[str] = []
        for row, number in enumerate(self.neurons):
            share = f"above 0 on {self.active[row]:.0%} of tokens"
            lines += ["", f"neuron {number}: mean {self.mean[row]:.3f}, {share}"]
            for value, one in zip(self.activations[row], self.excerpts[row], strict=True):
                if value <= self.mean[row]:
                    break
                text = f"{one.before}[{one.token}]{one.after}".replace("\n", "⏎")
                lines.append(f"  {value:8.3f}  {text}"[:width])
            if self.promoted:
                promoted = "  ".join(map(drawing.shown, self.promoted[row]))
                suppressed = "  ".join(map(drawing.shown, self.suppressed[row]))
                lines += [f"  promotes    {promoted}", f"  suppresses  {suppressed}"]
        return lines[1:]


def neurons(
    model: Inspectable,
    texts: Sequence[str],
    *,
    stack: str | None = None,
    layer: int | None = None,
    neurons: Sequence[int] = (),
    top: int = 8,
    size: int = 32,
) -> Neurons:
    """The `top` tokens of neurons of one layer (by default the last) of a stack (the first) over
    texts, of which `size` make a batch.

    By default neurons are shown that single tokens excite most: whose largest activation is most
    standard deviations above their mean. The decoder of an encoder–decoder reads its own
    translations of the texts.
    """
    whole_number("top", top, least=1)
    whole_number("size", size, least=1)
    name = viewed_stack(model, "neurons", stack)
    side = model.model.stacks()[name]
    layer = require_layer(layer, side.layers)
    assert isinstance(side, Stack), "others were refused"
    feedforward = side.block(layer).feedforward
    if not isinstance(feedforward, FeedForward | GatedFeedForward):
        raise DataError(f"layer {layer} of the {name} has no neurons", "choose another layer")
    width = feedforward.outer.weight.shape[1]
    numbers = require_indices("neuron", neurons, width)
    if isinstance(texts, str) or not texts:
        raise DataError("neurons are shown over a list of texts", "pass at least one text in it")
    probe_name = f"{name}.{layer}.feedforward"
    tally = _Tally(top, numbers or list(range(width)))
    with evaluation_mode(model.model):
        for first in range(0, len(texts), size):
            data = texts_for_stack(model, name, texts[first : first + size])
            probe = Probe([f"{probe_name}.hidden"])
            hidden_states(model.model, data.named, probe)
            tally.add(probe.tensors[f"{probe_name}.hidden"], *_tokens(data, name), first)
    numbers = numbers or tally.most_selective(SHOWN)
    words = tokenizer_of(model, name)
    rows = [tally.row(number, words) for number in numbers]
    values, excerpts, mean, active = zip(*rows, strict=True)
    result = Neurons(
        probe_name,
        tuple(numbers),
        array(torch.tensor(values)),
        excerpts,
        array(torch.tensor(mean)),
        array(torch.tensor(active)),
        tally.count,
    )
    logits = _promotion(model, name, layer, numbers)
    if logits is None:
        return result
    best = logits.topk(min(top, logits.shape[1]), dim=-1)
    worst = logits.topk(min(top, logits.shape[1]), dim=-1, largest=False)
    return replace(
        result,
        promoted=tuple(tuple(words.tokens(row)) for row in best.indices.tolist()),
        promoted_logits=array(best.values),
        suppressed=tuple(tuple(words.tokens(row)) for row in worst.indices.tolist()),
    )


def texts_for_stack(model: Inspectable, stack: str, texts: Sequence[str]) -> LabelledBatch:
    """A batch of texts that a stack reads: the decoder of an encoder–decoder, its translations."""
    if not model.model.reads_target:
        return batch(model, texts)
    if stack != "decoder":
        return batch(model, texts, [""] * len(texts))
    return batch(model, texts, [written(model, translate(model, text)[0]) for text in texts])


def _tokens(data: LabelledBatch, stack: str) -> tuple[Tensor, Tensor]:
    """The token ids that a stack reads [B, T], and which of them are no padding."""
    if stack == "decoder" and data.decoder_inputs is not None:
        return data.decoder_inputs, data.labels != IGNORED
    return data.inputs, data.padding_mask


class _Tally:
    """The largest activations of each neuron so far, and sums over all tokens."""

    def __init__(self, top: int, numbers: list[int]) -> None:
        self.top = top
        self.numbers = numbers  # F neurons
        self.count = 0
        self.ids: list[list[int]] = []  # of each text
        self.best = torch.empty(0)  # [top, F] activations, the largest first
        self.places = torch.empty(0, 2, dtype=torch.long)  # [top, F, 2] text and position
        self.sums = torch.zeros(3)  # [3, F] of activations, their squares, and those above 0

    def add(self, hidden: Tensor, ids: Tensor, is_token: Tensor, first: int) -> None:
        """Activations [B, T, F] of the tokens [B, T] of the texts from number `first` on."""
        self.ids += [
            row[mask].tolist() for row, mask in zip(ids.cpu(), is_token.cpu(), strict=True)
        ]
        rows, columns = is_token.nonzero(as_tuple=True)
        values = hidden[rows, columns][:, self.numbers].float()  # [N, F]
        # Positions count tokens: padding before a text is none of it.
        columns = (is_token.cumsum(dim=1) - 1)[rows, columns]
        places = torch.stack([rows + first, columns], dim=-1)  # [N, 2]
        places = places[:, None].expand(-1, values.shape[1], -1)
        sums = torch.stack([values.sum(0), values.square().sum(0), (values > 0).float().sum(0)])
        if self.count:
            values = torch.cat([self.best, values])
            places = torch.cat([self.places, places])
            sums = self.sums + sums
        order = values.topk(min(self.top, len(values)), dim=0).indices  # [top, F]
        self.best = values.gather(0, order)
        self.places = places.gather(0, order[..., None].expand(-1, -1, 2))
        self.sums = sums
        self.count += len(rows)

    def most_selective(self, count: int) -> list[int]:
        """The neurons whose peak is most standard deviations above their mean."""
        mean = self.sums[0] / self.count
        deviation = (self.sums[1] / self.count - mean.square()).clamp_min(1e-12).sqrt()
        peaks = (self.best[0] - mean) / deviation
        return peaks.topk(min(count, len(peaks))).indices.tolist()

    def row(
        self, number: int, words: Tokenizer
    ) -> tuple[list[float], tuple[Excerpt, ...], float, float]:
        """The largest activations of a neuron, where they are, its mean, and how often it is
        active."""
        column = self.numbers.index(number)
        places = self.places[:, column].tolist()
        excerpts = tuple(_excerpt(words, self.ids[text], text, place) for text, place in places)
        mean, _, active = (self.sums[:, column] / self.count).tolist()
        return self.best[:, column].tolist(), excerpts, mean, active


def _excerpt(words: Tokenizer, ids: list[int], text: int, place: int) -> Excerpt:
    """A token with what stands around it, as it reads."""
    start = max(0, place - BEFORE)
    before = words.decode(ids[start:place])
    with_token = words.decode(ids[start : place + 1])
    after = words.decode(ids[start : place + 1 + AFTER]).removeprefix(with_token)
    token = with_token.removeprefix(before)
    before += " " * (token[:1] == " ")
    # A special token, and a part of a letter, decode to nothing.
    return Excerpt(text, place, before, token.strip() or words.tokens([ids[place]])[0], after)


def _promotion(model: Inspectable, name: str, layer: int, numbers: list[int]) -> Tensor | None:
    """What the values of neurons change about the logits: [N, V], if that can be said."""
    stack = model.model.stacks()[name]
    assert isinstance(stack, Stack), "others were refused"
    block = stack.block(layer)
    outer = cast(FeedForward, block.feedforward).outer
    values = block.scaled("feedforward", outer.weight[:, numbers].mT)  # [N, D]
    return logit_effect(model, name, values)


def logit_effect(model: Inspectable, name: str, vectors: Tensor) -> Tensor | None:
    """What vectors [N, D] in the residual stream of a stack alone change about the logits: [N, V].

    The final norm has its gain; its shift and the bias of the head, which any input gets, are
    subtracted. None where no LM head reads the stack, or several streams at once (Reformer).
    """
    core = model.model
    stack = core.stacks()[name]
    head = core.lm_head
    if head is None or name != list(core.stacks())[-1] or not isinstance(stack, Stack):
        return None
    if stack.residual_stream(vectors).shape != vectors.shape:
        return None
    with evaluation_mode(core):
        both = torch.cat([vectors, torch.zeros_like(vectors[:1])])
        read = head(stack.finish(both[:, None]))  # [N + 1, 1, V]
    return (read[:-1] - read[-1:]).squeeze(1).float()
