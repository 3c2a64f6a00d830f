"""The Compressive Transformer: what its memory holds, what it equals, and who learns from which loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.core.caches.kv_cache import DecoderState
from regard.core.caches.segment_memory import SegmentMemory
from regard.core.context import Context
from regard.core.probe import Probe
from regard.families.attention_options import parse_compressed_memory
from regard.system.errors import ModelError, SettingError
from regard.wirings.decoder import Decoder

POSITIONS = [spec.RelativeSinusoids(), spec.RelativeKeys(5), spec.T5Bias(8, 20), spec.Alibi(), None]
FUNCTIONS: Any = ["convolution", "mean", "max"]
D = 8


def model(
    compressed: spec.CompressiveMemory | None,
    memory: int = 6,
    position: Any = None,
    *,
    layers: int = 2,
    pre: bool = True,
    groups: int | None = None,
) -> spec.Decoder:
    residual = spec.PreNorm() if pre else spec.PostNorm()
    block = spec.Block(
        spec.Attention(2, 4, 3, groups), spec.FeedForward(12), residual=residual, dropout=0.0
    )
    scheme = spec.Segments(memory, compressed)
    stack = spec.Stack.of(layers, block, spec.CausalMask(), position, scheme=scheme)
    return spec.Decoder(D, spec.Tokens(19, None, dropout=0.0), stack)


def made(description: spec.Decoder, seed: int = 0) -> Decoder:
    torch.manual_seed(seed)
    found = build(description).double()
    for name, parameter in found.named_parameters():
        if "position" in name or "content" in name:  # which begin as zeros
            torch.nn.init.normal_(parameter)
    return found


def text(rows: int, length: int) -> Tensor:
    return torch.randint(0, 19, (rows, length), generator=torch.Generator().manual_seed(1))


def pasts(states: Any) -> list[SegmentMemory]:
    return [state.self_attention for state in states]


def read(
    part: Decoder, tokens: Tensor, cuts: Any, rows: Tensor | None = None
) -> tuple[Tensor, Any]:
    """Hidden states of a text read in segments, and what is remembered after the last."""
    states = part.stack.start_segments(len(tokens), D)  # type: ignore[operator, union-attr]
    return torch.cat(
        [
            part(piece, context=Context(state=DecoderState(states)))[0]
            for piece in tokens.split(cuts, dim=1)
        ],
        dim=1,
    ), states


# ------------------------------------------------------------------ what is remembered


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("factor", [1, 2, 3])
@pytest.mark.parametrize("cuts", [1, 3, 6, 8, 17, [5, 1, 9, 2, 6]])
def test_the_memory_is_the_last_groups_and_the_last_places(
    function: Any, factor: int, cuts: Any
) -> None:
    """A queue written out: places wait until a group is full behind the last 6. Where a text is cut does not matter."""
    part = made(model(spec.CompressiveMemory(4, factor, function), layers=1))
    tokens = text(2, 23)
    _, states = read(part, tokens, cuts)
    attention = part.stack.blocks[0].attention  # type: ignore[union-attr, index]
    norm = part.stack.blocks[0].residual.each[0].norm  # type: ignore[union-attr, index]
    given, compressed = list(norm(part.tokens(tokens)).unbind(1)), []  # type: ignore[operator]
    while len(given) >= 6 + factor:
        group, given = torch.stack(given[:factor], dim=1), given[factor:]
        compressed.append(_written(function, group, attention))
    compressed = compressed[-4:]
    (past,) = pasts(states)
    assert past.x.shape == (2, 4 + factor - 1 + 6, D)
    assert past.padding_mask[0].tolist() == (
        [False] * (4 - len(compressed)) + [True] * len(compressed)
        + [False] * (factor - 1 + 6 - len(given)) + [True] * len(given)
    )  # fmt: skip
    expected = torch.stack(compressed + given, dim=1)
    torch.testing.assert_close(
        past.x[past.padding_mask].view(2, -1, D), expected, rtol=1e-9, atol=1e-9
    )


def _written(function: str, group: Tensor, attention: Any) -> Tensor:
    """[B, c, D] → [B, D]"""
    if function != "convolution":
        return group.mean(dim=1) if function == "mean" else group.max(dim=1).values
    linear = attention.compression.function.map
    kernel = linear.weight.view(D, -1, D).transpose(1, 2)  # as conv1d has it: [out, in, width]
    return torch.nn.functional.conv1d(group.mT, kernel, linear.bias, stride=group.shape[1])[..., 0]


@pytest.mark.parametrize("position", POSITIONS, ids=lambda p: type(p).__name__)
def test_queries_look_at_what_was_compressed(position: Any) -> None:
    """One layer of a second segment, written out: compressed, waiting, recent and own places stand in a row."""
    part = made(model(spec.CompressiveMemory(3, 2), 4, position, layers=1))
    probe = Probe(["decoder.0.self"])
    states = part.stack.start_segments(2, D)  # type: ignore[operator, union-attr]
    tokens = text(2, 16)
    part(tokens[:, :9], context=Context(state=DecoderState(states)))
    before = pasts(states)[0]
    x, padding_mask = before.x.clone(), before.padding_mask.clone()
    part(tokens[:, 9:], context=Context(state=DecoderState(states), probe=probe))
    seen = probe.attentions["decoder.0.self"]
    visible = seen.visible(torch.arange(7)).expand(2, 1, 7, 15)
    # 9 places: 2 groups of 2 left, then 1 waits and 4 are recent.
    assert padding_mask[0].tolist() == [False, True, True, True, True, True, True, True]
    own = torch.ones(7, 7).tril().bool()
    assert torch.equal(visible[0, 0], torch.cat([padding_mask[0].expand(7, -1), own], dim=1))
    attention = part.stack.blocks[0].attention  # type: ignore[union-attr, index]
    weights = seen.weights()
    assert (weights[..., 1:3] > 0).all()
    assert not weights.masked_select(~visible).any()
    norm = part.stack.blocks[0].residual.each[0].norm  # type: ignore[union-attr, index]
    _, k, v = attention.project(torch.cat([x, norm(part.tokens(tokens[:, 9:]))], dim=1), None)  # type: ignore[operator, union-attr]
    torch.testing.assert_close(seen.k, k, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(seen.v, v, rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------ what it equals


@pytest.mark.parametrize("pre", [False, True])
@pytest.mark.parametrize("position", POSITIONS, ids=lambda p: type(p).__name__)
def test_without_loss_it_is_a_longer_memory(position: Any, pre: bool) -> None:
    """Factor 1 and the mean: memories of M and C are one of M + C, forward and gradient, in segments of any length."""
    one = made(model(spec.CompressiveMemory(5, 1, "mean"), 6, position, pre=pre))
    other = made(model(None, 11, position, pre=pre))
    tokens = text(3, 40)
    for cuts in (4, 7, [13, 1, 6, 20]):
        results = []
        for part in (one, other):
            hidden, states = read(part, tokens, cuts)
            part.zero_grad()
            hidden.square().sum().backward()
            gradients = [parameter.grad for parameter in part.parameters()]
            results.append(
                [
                    hidden,
                    *gradients,
                    *(past.x for past in pasts(states)),
                    pasts(states)[0].padding_mask,
                ]
            )
        for first, second in zip(*results, strict=True):
            torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("position", POSITIONS, ids=lambda p: type(p).__name__)
def test_with_no_compressed_places_it_is_transformer_xl(position: Any) -> None:
    """With no place for them, compressed groups are forgotten; where memory and segments hold whole groups, none waits."""
    one, other = (
        made(model(spec.CompressiveMemory(0, 3, "mean"), 6, position)),
        made(model(None, 6, position)),
    )
    tokens = text(2, 45)
    for cuts in (3, 9, [6, 3, 12, 24]):
        for first, second in zip(
            read(one, tokens, cuts)[0], read(other, tokens, cuts)[0], strict=True
        ):
            torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-9)


def test_a_text_within_the_memory_is_one_pass() -> None:
    """Nothing leaves, so that segments of any length are one long pass, as Transformer-XL's are."""
    part = made(model(spec.CompressiveMemory(4, 3), 40, spec.RelativeSinusoids()))
    tokens = text(2, 39)
    for cuts in (1, 5, 13):
        torch.testing.assert_close(
            read(part, tokens, cuts)[0], part(tokens)[0], rtol=1e-9, atol=1e-9
        )


# ------------------------------------------------------------------ decoding


@pytest.mark.parametrize("groups", [None, 1])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_steps_are_segments_and_cost_the_same_for_ever(function: Any, groups: int | None) -> None:
    """Decoding, which remembers keys and values, is segments as long as its steps (the prompt, then single tokens)."""
    part = made(
        model(spec.CompressiveMemory(4, 3, function), 6, spec.RelativeSinusoids(), groups=groups)
    ).eval()
    tokens = text(2, 60)
    with torch.no_grad():
        expected, _ = read(part, tokens, [11, *[1] * 49])
        state = part.start(part.encode(tokens[:, :12]), capacity=100)
        shapes = [
            {name: v.shape for name, v in vars(layer.self_attention).items()}
            for layer in state.layers
        ]
        found = torch.cat([part.step(one, state) for one in tokens[:, 11:].split(1, dim=1)], dim=1)
    torch.testing.assert_close(found, part.head(expected[:, 11:]), rtol=1e-9, atol=1e-9)
    assert [
        {name: v.shape for name, v in vars(layer.self_attention).items()} for layer in state.layers
    ] == shapes


def test_segments_of_whole_groups_leave_what_single_steps_leave() -> None:
    """Of the lowest layer, whose inputs do not depend on what is seen: segments of c·k and steps of one token remember the
    same. Layers above saw more in a long segment, as in every model with a memory."""
    part = made(model(spec.CompressiveMemory(5, 3), 6, spec.RelativeSinusoids())).eval()
    tokens = text(2, 48)
    state = part.start(part.encode(tokens[:, :1]), capacity=60)
    for one in tokens.split(1, dim=1):
        part.step(one, state)
    for cuts in (3, 6, 12, 24):
        past = pasts(read(part, tokens, cuts)[1])[0]
        torch.testing.assert_close(past.x, state.layers[0].self_attention.x, rtol=1e-9, atol=1e-9)  # type: ignore[attr-defined]
        assert torch.equal(past.padding_mask, state.layers[0].self_attention.padding_mask)  # type: ignore[attr-defined]


def test_padding_in_front_changes_nothing() -> None:
    """Groups are counted from where each text begins: prompts of a batch go on as they would alone, beams are reordered."""
    part = made(model(spec.CompressiveMemory(4, 3), 5, spec.RelativeSinusoids())).eval()
    tokens = text(3, 40)
    lengths, most = [17, 20, 13], 20
    padding_mask = torch.arange(most) >= most - torch.tensor(lengths)[:, None]
    prompt = torch.zeros(3, most, dtype=torch.long)
    for row, length in enumerate(lengths):
        prompt[row, -length:] = tokens[row, :length]
    with torch.no_grad():
        batch = part.start(part.encode(prompt, padding_mask), width=2, capacity=30)
        alone = [
            part.start(part.encode(tokens[i : i + 1, :n]), capacity=30)
            for i, n in enumerate(lengths)
        ]
        nexts = torch.stack([tokens[i, n - 1 : n + 19] for i, n in enumerate(lengths)])
        for step in range(20):
            one = nexts[:, step : step + 1]
            found = part.step(one.repeat_interleave(2, dim=0), batch)
            expected = torch.cat(
                [part.step(one[i : i + 1], state) for i, state in enumerate(alone)]
            )
            torch.testing.assert_close(
                found, expected.repeat_interleave(2, dim=0), rtol=1e-9, atol=1e-9
            )
            batch.reorder(torch.tensor([1, 0, 2, 2, 5, 4]))
        batch.keep(torch.tensor([2]))
        assert batch.layers[0].self_attention.rows == 2


# ------------------------------------------------------------------ who learns what


def test_each_loss_teaches_its_own_part() -> None:
    part = made(model(spec.CompressiveMemory(4, 2), 4, spec.RelativeSinusoids())).train()
    tokens = text(2, 24)
    states = part.stack.start_segments(2, D)  # type: ignore[operator, union-attr]
    for piece in tokens.split(4, dim=1):
        hidden, losses = part(piece, context=Context(state=DecoderState(states)))
    names = {name for name, _ in part.named_parameters() if ".compression." in name}
    assert len(names) == 4
    assert list(losses) == ["compression"]

    def reached(loss: Tensor) -> set[str]:
        part.zero_grad()
        loss.backward(retain_graph=True)
        return {
            name
            for name, p in part.named_parameters()
            if p.grad is not None and p.grad.abs().sum() > 0
        }

    assert reached(losses["compression"]) == names
    assert (
        reached(part.head(hidden).logsumexp(-1).sum())
        == {name for name, _ in part.named_parameters()} - names
    )
    part.eval()
    assert part(tokens, context=Context(state=DecoderState(states)))[1] == {}, (
        "nothing is measured that nobody learns from"
    )


def test_the_loss_is_what_attention_misses() -> None:
    """The mean square of the difference of content-based attention over old and compressed places, summed over layers."""
    part = made(model(spec.CompressiveMemory(4, 2), 4, spec.RelativeSinusoids(), groups=1)).train()
    tokens = text(2, 16)
    states = part.stack.start_segments(2, D)  # type: ignore[operator, union-attr]
    _, nothing = part(tokens[:, :4], context=Context(state=DecoderState(states)))
    assert nothing["compression"] == 0, "what has not left cannot be missed"
    part(tokens[:, 4:8], context=Context(state=DecoderState(states)))
    olds = [past.x[:, 5:].clone() for past in pasts(states)]  # the recent 4, which leave next
    probe = Probe(["decoder.*.self.q"])
    _, losses = part(tokens[:, 8:12], context=Context(state=DecoderState(states), probe=probe))
    expected = 0.0
    for i, old in enumerate(olds):
        attention: Any = part.stack.blocks[i].attention  # type: ignore[union-attr, index]
        new = attention.compression.function(old.unflatten(1, (2, 2)))
        q = probe.attentions[f"decoder.{i}.self"].q - attention.position.content

        def found(x: Tensor, attention: Any = attention, q: Tensor = q) -> Tensor:
            _, k, v = attention.project(x, None)
            return torch.softmax(q @ k.mT * 4**-0.5, dim=-1) @ v

        expected += (found(old) - found(new)).square().mean().item()
    assert losses["compression"].item() == pytest.approx(expected, rel=1e-6)
    assert expected > 0


def test_nothing_is_lost_without_compression() -> None:
    part = made(model(spec.CompressiveMemory(4, 1, "mean"), 4, spec.RelativeSinusoids())).train()
    states = part.stack.start_segments(2, D)  # type: ignore[operator, union-attr]
    for piece in text(2, 24).split(6, dim=1):
        _, losses = part(piece, context=Context(state=DecoderState(states)))
        assert losses["compression"] < 1e-30


# ------------------------------------------------------------------ as data


@pytest.mark.parametrize("function", FUNCTIONS)
def test_it_is_counted_and_written(function: Any) -> None:
    description = model(spec.CompressiveMemory(4, 3, function), position=spec.RelativeSinusoids())
    assert parameter_count(description) == trainable(build(description))
    assert spec.from_dict(spec.to_dict(description)) == description


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ModelError, match="factor"):
        spec.CompressiveMemory(4, 0)
    description = model(spec.CompressiveMemory(4, 2))
    with pytest.raises(ModelError, match="a causal mask without a window"):
        description.stack.with_blocks(pattern=spec.CausalMask(3))
    assert parse_compressed_memory("64:4") == spec.CompressiveMemory(64, 4, "convolution")
    assert parse_compressed_memory("64:4:max") == spec.CompressiveMemory(64, 4, "max")
    for word in ("64", "64:x", "64:4:sum", "64:4:mean:1"):
        with pytest.raises(SettingError, match="compressed memory"):
            parse_compressed_memory(word)
