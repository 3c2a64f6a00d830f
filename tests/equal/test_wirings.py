"""Encoders and decoders from the same parts, with every kind of position, norm, feed-forward and residual."""

from __future__ import annotations

import itertools
import math
from typing import Any, Literal, TypeVar

import pytest
import torch

from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.core.caches.kv_cache import StaticKVCache
from regard.core.context import Context
from regard.core.masks.attention_mask import AttentionMask
from regard.core.masks.sparse_masks import CausalSlidingWindowMask
from regard.core.mixers import scaled_dot_product_attention
from regard.core.probe import Probe
from regard.look.probe_names import probes
from regard.system.errors import ModelError
from regard.wirings.decoder import Decoder
from regard.wirings.encoder import Encoder

Wiring = TypeVar("Wiring", Decoder, Encoder)

ATTENTION = spec.Attention(4, 6, 6)
POSITIONS: list[spec.StackPosition | None] = [
    None,
    spec.Rope(),
    spec.Rope(base=500.0, share=0.5, pairs="neighbours", scaling=spec.LinearScaling(2.0)),
    spec.Rope(scaling=spec.BandedScaling(8.0, 1.0, 4.0, 16)),
    spec.Rope(scaling=spec.YarnScaling(8.0, 16, truncate=False)),
    spec.T5Bias(8, 20),
    spec.Alibi(),
    spec.Disentangled(7, buckets=4, norm=spec.LayerNorm()),
    spec.Disentangled(3, terms="c2p"),
    spec.Disentangled(5, terms="p2c", norm=spec.RMSNorm()),
    spec.RelativeKeys(3),
    spec.RelativeKeys(2, windowed=True, values=True),
    spec.RelativeSinusoids(),
]
BLOCKS = [
    spec.Block(ATTENTION, spec.FeedForward(20), dropout=0.0),
    spec.Block(ATTENTION, spec.GatedFeedForward(20), residual=spec.PreNorm(), norm=spec.RMSNorm(), dropout=0.0),
    spec.Block(
        spec.Attention(4, 6, 5, groups=2, bias="qv", scale=1.0), spec.FeedForward(20, "gelu_tanh", bias=False),
        residual=spec.Parallel(2), norm=spec.LayerNorm(bias=False), dropout=0.0,
    ),
    spec.Block(
        spec.Attention(4, 6, 6, groups=1, bias=""), spec.GatedFeedForward(20, "gelu", bias=True),
        residual=spec.Parallel(1), norm=spec.RMSNorm(offset=1.0), dropout=0.0,
    ),
    spec.Block(
        spec.Attention(
            4, 6, 6, groups=2, scale=0.3, mixer=spec.SoftmaxAttention(cap=2.0, sinks=True),
            qk_norm=spec.RMSNorm(),
        ),
        spec.GatedFeedForward(20, "quick_gelu", bias=True, limit=0.5), residual=spec.SandwichNorm(),
        norm=spec.RMSNorm(), dropout=0.0,
    ),
]  # fmt: skip
TOKENS = [
    spec.Tokens(19, spec.LearnedPosition(40, offset=2), scale=False, dropout=0.0),
    spec.Tokens(19, None, dropout=0.0, segments=3, norm=spec.LayerNorm(1e-12), width=10),
    spec.Tokens(19, spec.Sinusoidal(), dropout=0.0),
    spec.Tokens(19, spec.ConcatenatedPosition(6), dropout=0.0, norm=spec.LayerNorm()),
]
CASES = list(zip(POSITIONS * 2, itertools.cycle(BLOCKS), itertools.cycle(TOKENS)))


def decoder(case: tuple[Any, ...], window: int | None = None) -> spec.Decoder:
    position, block, tokens = case
    stack = spec.Stack.of(
        3,
        block,
        spec.CausalMask(window),
        position,
        final=spec.LayerNorm(),
        scheme=spec.Shared() if tokens.width is not None else spec.Plain(),
    )
    head = (
        spec.LMHead(bias=True, transform=spec.HeadTransform(10))
        if tokens.width
        else spec.LMHead(scale=0.5, cap=3.0)
    )
    return spec.Decoder(24, tokens, stack, (head,), tied=tokens.width is not None)


def made(description: spec.Decoder) -> Decoder:
    return shaken(build(description))


def shaken(model: Wiring) -> Wiring:
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(
                torch.randn_like(parameter) * 0.1
            )  # biases and norms too must be seen to matter
    return model


@pytest.mark.parametrize("case", CASES, ids=str)
def test_formula_equals_model_and_json_round_trips(case: tuple[object, ...]) -> None:
    description = decoder(case)
    assert parameter_count(description) == trainable(build(description))
    assert spec.from_dict(spec.to_dict(description)) == description
    for pool, labels in [
        (None, None),
        (spec.Pool(), spec.ClassifierHead(5)),
        (spec.Pool("mean", None), spec.ClassifierHead(3, bias=False)),
        (None, spec.ClassifierHead(1, "detect", hidden="gelu")),
    ]:
        encoder = spec.Encoder(24, description.tokens, description.stack, spec.heads(pool, labels))
        assert parameter_count(encoder) == trainable(build(encoder))
        assert spec.from_dict(spec.to_dict(encoder)) == encoder


@pytest.mark.parametrize("which", ["first", "last", "mean"])
def test_pooling_sees_only_real_positions(which: Literal["first", "last", "mean"]) -> None:
    block = spec.Block(spec.Attention(2, 6, 6), spec.FeedForward(16), dropout=0.0)
    model = shaken(
        build(
            spec.Encoder(
                12,
                spec.Tokens(19),
                spec.Stack.of(1, block),
                (spec.Pool(which), spec.ClassifierHead(3)),
            )
        )
    )
    tokens = torch.randint(0, 19, (3, 7))
    lengths = [7, 4, 1]
    padding_mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    hidden = model(tokens, padding_mask)[0]
    found = model.classes(hidden, padding_mask)
    assert found.shape == (3, 3)
    places = {
        "first": slice(0, 1),
        "last": slice(3, 4),
        "mean": slice(0, 4),
    }  # of the row with four tokens
    assert model.pool is not None
    assert model.pool.dense is not None
    wanted = model.pool.dense(hidden[1, places[which]].mean(dim=0)).tanh()
    torch.testing.assert_close(model.pool(hidden, padding_mask)[1], wanted, rtol=1e-9, atol=1e-9)
    for row, length in enumerate(lengths):
        alone = model.classes(model(tokens[row : row + 1, :length])[0])
        torch.testing.assert_close(found[row : row + 1], alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_cached_equals_uncached_with_padding_in_front(
    case: tuple[object, ...], window: int | None
) -> None:
    model = made(decoder(case, window))
    tokens = torch.randint(0, 19, (3, 9))
    padding_mask = torch.arange(9) >= torch.tensor([0, 4, 2])[:, None]
    whole = model.head(model(tokens, padding_mask)[0])
    state = model.start(model.encode(tokens[:, :6], padding_mask[:, :6]), capacity=4)
    pieces = [model.step(piece, state) for piece in tokens[:, 5:].split([1, 2, 1], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), whole[:, 5:], rtol=1e-9, atol=1e-9)
    for row, start in enumerate([0, 4, 2]):
        alone = model.head(model(tokens[row : row + 1, start:])[0])
        torch.testing.assert_close(whole[row : row + 1, start:], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fixed_and_shared_states_step_as_a_growing_one(case: tuple[object, ...]) -> None:
    """One token a step at a place that only a tensor knows, over slots of which most are empty; beams that share a row and are
    put into another order by what they may look at."""
    model = made(decoder(case))
    tokens, padding_mask = torch.randint(0, 19, (3, 9)), torch.ones(3, 4, dtype=torch.bool)
    padding_mask[0, :3] = padding_mask[2, :1] = False
    states = [
        model.start(model.encode(tokens[:, :4], padding_mask), capacity=7, width=2)
        for _ in range(4)
    ]
    growing, fixed, shared, both = states
    for state in (shared, both):
        state.share_rows()
        assert state.ancestry is not None
    assert fixed.make_static()
    assert both.make_static()
    for slots in (layer.self_attention for state in (fixed, both) for layer in state.layers):
        assert isinstance(slots, StaticKVCache)
        assert not slots.k[:, :, 3:].any()  # nothing that a weight of zero would not hide
        assert not slots.v[:, :, 3:].any()
    for t in range(4, 9):
        step = tokens[:, t - 1 : t].repeat_interleave(2, dim=0)
        step[1::2] = (step[1::2] + 1) % 19  # beams differ
        wanted, *found = [model.step(step, state) for state in states]
        for each in found:
            torch.testing.assert_close(each, wanted, rtol=1e-5, atol=1e-5)
        rows = torch.tensor([1, 0, 3, 3, 4, 5] if t % 2 else [0, 0, 3, 2, 5, 4])
        for state in states:
            state.reorder(rows)
    assert fixed.device_position is not None
    assert fixed.device_position.item() == growing.position


@pytest.mark.parametrize("case", CASES, ids=str)
def test_padding_behind_changes_nothing_for_encoders(case: tuple[object, ...]) -> None:
    description = decoder(case)
    position = description.stack.block.position
    model = (
        build(
            spec.Encoder(
                24, description.tokens, spec.Stack.of(2, description.stack.block, position=position)
            )
        )
        .double()
        .eval()
    )
    tokens, segments = torch.randint(0, 19, (2, 7)), torch.randint(0, 3, (2, 7))
    padding_mask = torch.arange(7) < torch.tensor([7, 4])[:, None]
    asked = {"segments": segments} if description.tokens.segments else {}
    together, _ = model(tokens, padding_mask, **asked)
    alone, _ = model(tokens[1:, :4], **({"segments": segments[1:, :4]} if asked else {}))
    torch.testing.assert_close(together[1:, :4], alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fused_equals_explicit_and_probes_see_the_weights(case: tuple[object, ...]) -> None:
    description = decoder(case)
    stack = spec.Stack.of(2, description.stack.block, position=description.stack.block.position)
    model = shaken(build(spec.Encoder(24, description.tokens, stack)))
    tokens = torch.randint(0, 19, (3, 9))
    padding_mask = torch.arange(9) < torch.tensor([9, 4, 1])[:, None]
    probe, results = Probe(["*.self"]), []
    for kernel in (scaled_dot_product_attention.fused, scaled_dot_product_attention.explicit):
        for part in model.modules():
            if isinstance(part, scaled_dot_product_attention.SoftmaxAttention):
                part.kernel = kernel
        hidden, _ = model(tokens, padding_mask, context=Context(probe=probe))
        results.append(
            [
                hidden,
                *torch.autograd.grad(hidden[padding_mask].square().sum(), [*model.parameters()]),
            ]
        )
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    for name, call in probe.attentions.items():
        mixed = call.mixer(call.q, call.k, call.v, call.mask, call.bias)  # type: ignore[operator]
        weights = probe.weights(name) @ call.v.repeat_interleave(4 // call.v.shape[1], dim=1)
        torch.testing.assert_close(mixed, weights, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [spec.FeedForward, spec.GatedFeedForward])
def test_hidden_activations_are_recorded_and_edited(
    kind: type[spec.FeedForward | spec.GatedFeedForward],
) -> None:
    """What is recorded inside a feed-forward network is what its output is made of."""
    block = spec.Block(ATTENTION, kind(10), dropout=0.0)
    model = shaken(build(spec.Encoder(24, spec.Tokens(19), spec.Stack.of(2, block))))
    tokens = torch.randint(0, 19, (2, 5))
    name = "encoder.1.feedforward"
    outer = model.stack.blocks[1].feedforward.outer  # type: ignore[union-attr]
    probe = Probe(["*.feedforward.*"])
    model(tokens, context=Context(probe=probe))
    hidden = probe.tensors[f"{name}.hidden"]
    assert hidden.shape == (2, 5, 10)
    assert name + ".hidden" in probes(model)
    torch.testing.assert_close(outer(hidden), probe.tensors[f"{name}.output"])  # type: ignore[operator]
    # One neuron ablated: its column of W₂ no longer contributes.
    edit = torch.ones(10).double()
    edit[3] = 0
    ablated = Probe(["*.output"], {f"{name}.hidden": lambda values: values * edit})
    model(tokens, context=Context(probe=ablated))
    difference = probe.tensors[f"{name}.output"] - ablated.tensors[f"{name}.output"]
    torch.testing.assert_close(difference, hidden[..., 3:4] * outer.weight[:, 3])  # type: ignore[union-attr]


def test_relative_scores_by_hand() -> None:
    """q·k, q·key of the distance and query of the distance·k, written as loops."""
    block = spec.Block(spec.Attention(2, 4, 4, bias="kv"), spec.FeedForward(8), dropout=0.0)
    position = spec.Disentangled(3, norm=spec.LayerNorm())
    model = shaken(
        build(spec.Encoder(8, spec.Tokens(19), spec.Stack.of(1, block, position=position)))
    )
    probe = Probe(["*"])
    model(torch.randint(0, 19, (1, 6)), context=Context(probe=probe))
    call = probe.attentions["encoder.0.self"]
    place, project = model.stack.position, model.stack.blocks[0].attention.project  # type: ignore[union-attr]
    far_q, far_k, _ = project(place.norm(place.table)[None], None)  # type: ignore[misc, operator, union-attr]
    scores = torch.empty(2, 6, 6).double()
    for h, i, j in itertools.product(range(2), range(6), range(6)):
        row = min(max(i - j + 3, 0), 5)
        q, k = call.q[0, h, i], call.k[0, h, j]
        scores[h, i, j] = (q @ k + q @ far_k[0, h, row] + far_q[0, h, row] @ k) / math.sqrt(3 * 4)
    torch.testing.assert_close(
        probe.weights("encoder.0.self")[0], scores.softmax(-1), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("position", [spec.RelativeKeys(2), spec.RelativeSinusoids()], ids=str)
def test_positions_of_each_layer_by_hand(
    position: spec.RelativeKeys | spec.RelativeSinusoids,
) -> None:
    """q·(k + a of the distance), clipped (Shaw); (q + u)·k + (q + v)·W r of the distance (Transformer-XL): as loops."""
    block = spec.Block(spec.Attention(2, 4, 4), spec.FeedForward(8), dropout=0.0)
    description = spec.Encoder(8, spec.Tokens(19), spec.Stack.of(1, block, position=position))
    model = shaken(build(description))
    probe = Probe(["*"])
    tokens = torch.randint(0, 19, (1, 6))
    x = model.input(tokens)
    model(tokens, context=Context(probe=probe))
    part = model.stack.blocks[0].attention  # type: ignore[union-attr]
    q, k, _ = part.project(x, None)  # type: ignore[union-attr, operator]
    scores = torch.empty(2, 6, 6).double()
    for h, i, j in itertools.product(range(2), range(6), range(6)):
        if isinstance(position, spec.RelativeKeys):
            far = part.position.table[min(max(i - j, -2), 2) + 2]  # type: ignore[union-attr]
            scores[h, i, j] = q[0, h, i] @ (k[0, h, j] + far)
        else:
            angles = (i - j) / 10_000 ** (torch.arange(4) * 2 / 8).double()
            wave = torch.cat([angles.sin(), angles.cos()])
            far = (part.position.project.weight @ wave).view(2, 4)[h]  # type: ignore[union-attr, operator]
            u, v = part.position.content[h, 0], part.position.position[h, 0]  # type: ignore[union-attr, index]
            scores[h, i, j] = (q[0, h, i] + u) @ k[0, h, j] + (q[0, h, i] + v) @ far
    torch.testing.assert_close(
        probe.weights("encoder.0.self")[0], (scores / 2).softmax(-1), rtol=1e-6, atol=1e-6
    )


def test_sinusoids_of_rows_and_columns() -> None:
    """Two patches of one row share the first half of their positions, two of one column the second."""
    patches = spec.Patches(12, 4, extras=1, position="sinusoidal")
    block = spec.Block(spec.Attention(2, 6, 6), spec.FeedForward(16), dropout=0.0)
    description = spec.Encoder(12, patches, spec.Stack.of(1, block), (spec.Pool(),))
    assert parameter_count(description) == trainable(build(description))
    assert spec.from_dict(spec.to_dict(description)) == description
    model = build(description)
    assert model(torch.randn(2, 3, 12, 12))[0].shape == (2, 10, 12)
    table = model.input.position.table  # type: ignore[union-attr]
    places = table[1:].view(3, 3, 12)
    assert (table[0] == 0).all()
    assert (places[1, 0, :6] == places[1, 2, :6]).all()
    assert (places[0, 1, 6:] == places[2, 1, 6:]).all()
    assert len(places.flatten(0, 1).unique(dim=0)) == 9


def test_padding_is_nothing_to_a_convolution() -> None:
    block = spec.Block(spec.Attention(2, 6, 6), spec.FeedForward(16), dropout=0.0)
    conv_layer = spec.ConvLayer(5, groups=3, activation="gelu")
    description = spec.Encoder(
        12, spec.Tokens(19, norm=spec.LayerNorm()), spec.Stack.of(2, block, scheme=conv_layer)
    )
    assert parameter_count(description) == trainable(build(description))
    assert spec.from_dict(spec.to_dict(description)) == description
    model = shaken(build(description))
    tokens = torch.randint(0, 19, (3, 7))
    together, _ = model(tokens, torch.arange(7) < torch.tensor([7, 4, 1])[:, None])
    for row, length in enumerate([7, 4, 1]):
        alone, _ = model(tokens[row : row + 1, :length])
        torch.testing.assert_close(together[row : row + 1, :length], alone, rtol=1e-9, atol=1e-9)
    with pytest.raises(ModelError, match="an unmasked stack"):
        spec.Stack.of(2, block, spec.CausalMask(), scheme=conv_layer)
    with pytest.raises(ModelError, match="odd"):
        spec.ConvLayer(4)


def test_a_window_sees_the_last_tokens_only() -> None:
    positions = torch.arange(6)
    mask = AttentionMask(CausalSlidingWindowMask(2), positions, positions).allowed[0, 0]
    assert mask.int().tolist()[3] == [0, 0, 1, 1, 0, 0]


def test_a_key_without_bias_adds_nothing() -> None:
    part = build(decoder(CASES[2])).stack.blocks[0].attention.project.qkv  # type: ignore[union-attr]
    assert part.biased == (True, False, True)
    full = part.full_bias()
    assert len(full) == sum(part.parts)
    assert (full[part.parts[0] : part.parts[0] + part.parts[1]] == 0).all()


def test_shared_blocks_are_applied_many_times() -> None:
    description = decoder(CASES[1])
    assert description.stack.scheme == spec.Shared()
    model = build(description)
    assert len(model.stack.blocks) == 1  # type: ignore[arg-type]
    assert len(model.stack.start(2, 5)) == 3


def test_cross_attention_has_no_place_in_a_parallel_block() -> None:
    with pytest.raises(ModelError, match="parallel"):
        spec.Block(ATTENTION, spec.FeedForward(4), cross=ATTENTION, residual=spec.Parallel())
