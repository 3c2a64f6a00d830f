"""Chunks on a ring, layers that take turns, positions on axes, both streams of a reversible stack; decoding that reads anew."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch

from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.core.context import Context
from regard.core.masks.attention_mask import AttentionMask
from regard.core.masks.mask import CausalMask, FullMask, PaddingMask
from regard.core.mixers.local_chunk_attention import ChunkedAttention
from regard.core.mixers.lsh_attention import LshAttention, auto_buckets
from regard.core.positions.positional_encoding import AxialPosition
from regard.core.probe import NO_PROBE, AttentionCall, Probe
from regard.system.errors import DataError, ModelError

RING = spec.ChunkRing(12, 4)
LOCAL = spec.Attention(3, 4, 4, bias="", mixer=spec.ChunkedAttention(4, RING, after=1))
HASHED = spec.Attention(
    3, 4, 4, bias="", mixer=spec.LshAttention(4, 6, 2, ring=RING), projection="shared"
)


def block(attention: spec.Attention, dropout: float = 0.0) -> spec.Block:
    return spec.Block(
        attention,
        spec.FeedForward(20),
        None,
        spec.PreNorm(),
        dropout=dropout,
        pattern=spec.CausalMask(),
    )


def decoder(dropout: float = 0.0) -> spec.Decoder:
    kinds = (LOCAL, HASHED, HASHED, LOCAL, HASHED)
    blocks = tuple(block(attention, dropout) for attention in kinds)
    stack = spec.Stack(blocks, spec.LayerNorm(), scheme=spec.Reversible("both"))
    tokens = spec.Tokens(19, spec.AxialPosition((7, 8), (5, 7), 50), False, 0.0)
    return spec.Decoder(12, tokens, stack, (spec.LMHead("kept"),), tied=False)


def counted(length: int, chunk: int, around: tuple[int, int], ring: spec.ChunkRing) -> torch.Tensor:
    """[T, T]: how often each place meets each, chunk by chunk as they are written down."""
    whole = length + -length % ring.multiple
    count, times = whole // chunk, torch.zeros(whole, whole)
    for i in range(count):
        for by in range(-around[0], around[1] + 1):
            j = (i + by) % count if abs(by) < count else i
            times[i * chunk : (i + 1) * chunk, j * chunk : (j + 1) * chunk] += 1
    return times[:length, :length]


@pytest.mark.parametrize("around", [(0, 0), (1, 0), (1, 1), (2, 3), (9, 0)])
@pytest.mark.parametrize("length", [7, 12, 13, 24, 31])
@pytest.mark.parametrize("causal", [False, True])
def test_a_ring_counts_each_meeting(causal: bool, length: int, around: tuple[int, int]) -> None:
    q, k, v = (torch.randn(2, 3, length, 5).double().requires_grad_() for _ in range(3))
    padding_mask = torch.arange(length) < torch.tensor([length, length - 2])[:, None]
    places = torch.arange(length)
    attention_mask = AttentionMask(
        (CausalMask() if causal else FullMask()) & PaddingMask(padding_mask), places, places, 2
    )
    mixer = ChunkedAttention(spec.ChunkedAttention(4, RING, *around), 0.4)
    times = counted(length, 4, around, RING) * attention_mask.allowed
    scores = (q @ k.mT * 0.4).exp() * times
    expected = scores / scores.sum(-1, keepdim=True).clamp_min(1e-99) @ v  # padding may see nothing
    found = mixer(q, k, v, attention_mask)
    seen = padding_mask[:, None].expand(-1, 3, -1)
    torch.testing.assert_close(found[seen], expected[seen], rtol=1e-9, atol=1e-9)
    grads, wanted = (torch.autograd.grad(x[seen].sin().sum(), (q, k, v)) for x in (found, expected))
    torch.testing.assert_close(grads, wanted, rtol=1e-8, atol=1e-9)
    rows = torch.tensor([0, 3, length - 3])
    visible = AttentionCall(mixer, q, k, v, attention_mask).visible(rows)
    assert torch.equal(visible.expand(2, 3, -1, -1), (times > 0)[:, :, rows].expand(2, 3, -1, -1))


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_hashing_on_a_ring_says_which_keys_it_could_see(causal: bool, rounds: int) -> None:
    q = torch.randn(2, 3, 50, 4)
    k, places = torch.nn.functional.normalize(q, dim=-1), torch.arange(50)
    part = spec.LshAttention(spec.AutoBuckets(4), 6, rounds, seed=1, ring=RING)
    mixer = LshAttention(part, 3, 4, 1.0).eval()
    attention_mask = AttentionMask(CausalMask() if causal else FullMask(), places, places, 2)
    rows = torch.tensor([0, 7, 31, 49])
    seen, weights = (
        mixer.visible(q, k, attention_mask, rows),
        mixer.weights(q, k, attention_mask, rows),
    )
    assert (weights[~seen] == 0).all()
    assert (weights[seen & (rows[:, None] != places)] > 0).all()


def test_hashing_on_a_ring_of_one_turn_is_full_attention_without_itself() -> None:
    """Two chunks that see each other, once each."""
    q, v = torch.randn(2, 3, 12, 4).double(), torch.randn(2, 3, 12, 5).double()
    k, places = torch.nn.functional.normalize(q, dim=-1), torch.arange(12)
    attention_mask = AttentionMask(FullMask(), places, places, 2)
    part = spec.LshAttention(4, 6, seed=1, ring=spec.ChunkRing(12, 6))
    mixer = LshAttention(part, 3, 4, 1.0).eval()
    expected = (q @ k.mT).masked_fill(torch.eye(12, dtype=torch.bool), -1e5).softmax(-1) @ v
    torch.testing.assert_close(mixer(q, k, v, attention_mask), expected, rtol=1e-9, atol=1e-9)


def test_twice_as_many_buckets_as_chunks() -> None:
    assert [auto_buckets(chunks, 16) for chunks in (2, 3, 4, 8, 9, 16, 40)] == [
        (4,), (4,), (8,), (16,), (16,), (4, 8), (8, 8),
    ]  # fmt: skip


def test_axes() -> None:
    part = AxialPosition((3, 4), (2, 5), 11)
    rows = part.rows(11)
    for place in range(11):
        expected = torch.cat([part.tables[0][place // 4], part.tables[1][place % 4]])
        assert torch.equal(rows[place], expected)
    assert torch.equal(part.rows(5)[:5], rows[:5])
    with pytest.raises(DataError, match="11"):
        part.rows(12)


def test_layers_take_turns() -> None:
    description = decoder()
    model = build(description)
    assert trainable(model) == parameter_count(description)
    kinds = [type(each.attention.mixer) for each in model.stack.blocks]  # type: ignore[union-attr]
    assert kinds == [ChunkedAttention, LshAttention, LshAttention, ChunkedAttention, LshAttention]
    assert spec.from_dict(spec.to_dict(description)) == description
    assert model(torch.zeros(1, 5, dtype=torch.long))[0].shape == (1, 5, 24)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_of_both_streams_are_the_ordinary_ones(dropout: float) -> None:
    torch.manual_seed(0)
    model, tokens = build(decoder(dropout)).double().train(), torch.randint(0, 19, (2, 30))
    found = []
    for probe in (NO_PROBE, Probe()):
        torch.manual_seed(1)
        out, _ = model(tokens, context=Context(probe=probe))
        wanted = [p for name, p in model.named_parameters() if not name.startswith("head")]
        found.append((out, *torch.autograd.grad(out.sin().sum(), wanted)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-7, atol=1e-8)


def test_what_is_written_is_read_anew() -> None:
    """Each step is what the whole text up to there gives, for rows that begin at different places, in any order."""
    model, tokens = build(decoder()).double().eval(), torch.randint(0, 19, (3, 20))
    padding_mask = torch.arange(9) >= torch.tensor([0, 5, 0])[:, None]
    begins = [0, 5, 0]
    with torch.inference_mode():
        state = model.start(model.encode(tokens[:, :9], padding_mask), width=2, capacity=11)
        rows = tokens.repeat_interleave(2, dim=0)
        for end in range(9, 16):
            before = copy.deepcopy(state)
            found = model.step(rows[:, end - 1 : end], state)
            for row in range(6):
                alone = model.head(model(rows[row : row + 1, begins[row // 2] : end])[0])[:, -1]
                torch.testing.assert_close(found[row], alone, rtol=1e-9, atol=1e-9)
            probe = Probe(["*"])
            probed = copy.deepcopy(before)
            probed.probe = probe
            assert model.step(rows[:, end - 1 : end], probed).equal(found)
            assert "decoder.4.self" in probe.attentions
            order = torch.tensor([1, 1, 2, 3, 5, 4])
            state.reorder(order)
            rows = torch.cat([rows[order, :end], torch.randint(0, 19, (6, 20 - end))], dim=1)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: spec.ChunkedAttention(5, RING), "does not divide into chunks"),
        (lambda: spec.LshAttention(4, 2, ring=RING), "beyond"),
        (lambda: spec.ChunkedAttention(4, RING, before=-1), "before cannot be -1"),
        (lambda: spec.Attention(4, 4, 4, groups=2, mixer=spec.ChunkedAttention(4, RING)), "groups"),
        (
            lambda: spec.Stack((block(LOCAL), block(HASHED)), scheme=spec.Shared()),
            "groups of equal blocks",
        ),
        (lambda: spec.Stack.of(2, block(LOCAL), position=spec.Rope()), "cannot be added"),
        (lambda: spec.Stack.of(2, block(LOCAL), spec.WindowMask(3)), "no masks other than"),
        (lambda: dataclasses.replace(decoder(), tied=True), "tied=False"),
        (lambda: spec.AxialPosition((2, 3), (4,), 6), "axis"),
        (
            lambda: build(
                spec.Encoder(
                    12, spec.Tokens(9, spec.AxialPosition((2, 3), (4, 9), 6)), decoder().stack
                )
            ),
            "add up",
        ),
        (
            lambda: spec.EncoderDecoder(
                12, spec.Tokens(9), spec.Tokens(9), decoder().stack, crossed(spec.PreNorm())
            ),
            "must have d_model dimensions",
        ),
        (
            lambda: spec.EncoderDecoder(
                12, spec.Tokens(9), spec.Tokens(9), plain(), crossed(spec.PreNorm(), LOCAL)
            ),
            "cannot be cached",
        ),
    ],
)
def test_what_does_not_exist_is_refused_with_the_reason(make: Any, word: str) -> None:
    with pytest.raises(ModelError, match=word):
        make()


def plain() -> spec.Stack:
    return spec.Stack.of(1, spec.Block(spec.Attention(3, 4, 4), spec.FeedForward(9)))


def crossed(residual: spec.Residual, own: spec.Attention | None = None) -> spec.Stack:
    other = spec.Attention(3, 4, 4)
    return spec.Stack.of(
        1, spec.Block(own or other, spec.FeedForward(9), other, residual), spec.CausalMask()
    )
