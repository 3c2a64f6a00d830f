"""Every mixer and every pattern keeps the same promises, inside whole models."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.core import projection
from regard.core.caches.kv_cache import CacheRoom
from regard.core.context import Context, LayerContext
from regard.core.masks import attention_mask as mask_module
from regard.core.masks.attention_mask import AttentionMask
from regard.core.masks.mask import CausalMask, DocumentMask, FullMask, PaddingMask
from regard.core.mixers import (
    linear_attention,
    linformer,
    lsh_attention,
    scaled_dot_product_attention,
)
from regard.core.probe import AttentionCall, Probe
from regard.system.errors import DataError, ModelError

FAVOR = spec.LinearAttention(spec.FavorFeatures(9, seed=2))
ATTENTION = spec.Attention(4, 6, 5)
LSH = spec.LshAttention(4, chunk=4, rounds=2, before=1, after=1)
SPARSE: dict[str, spec.MaskPattern] = {
    "everything": spec.FullMask(),
    "window": spec.WindowMask(2),
    "dilated": spec.DilatedMask(2, 3),
    "strided": spec.StridedMask(4),
    "blocks": spec.BlockLocalMask(3),
    "block neighbours": spec.BlockLocalMask(3, 1),
    "window and global": spec.Or(spec.WindowMask(2), spec.GlobalMask(1)),
    "not": spec.Not(spec.WindowMask(1)),
}
FROM_THE_END: dict[str, spec.MaskPattern] = {
    "global ends": spec.Or(spec.WindowMask(1), spec.GlobalMask(1, 2)),
    "random": spec.Or(spec.BlockLocalMask(3, 1), spec.RandomBlockMask(3, 1, seed=4)),
}
MIXERS: dict[str, spec.Mixer] = {
    "softmax": spec.SoftmaxAttention(),
    "top": spec.SoftmaxAttention(top=3),
    "capped, with sinks": spec.SoftmaxAttention(cap=2.0, sinks=True),
    "elu": spec.LinearAttention(),
    "favor": FAVOR,
    "linformer": spec.Linformer(30, 5),
    "linformer none": spec.Linformer(30, 5, "none"),
    "linformer both": spec.Linformer(30, 5, "both"),
    "linformer layers": spec.Linformer(30, 5, "layers"),
    "lsh": LSH,
}


def causal(allowed: spec.MaskPattern) -> spec.MaskPattern:
    return spec.CausalMask() if allowed == spec.FullMask() else spec.And(spec.CausalMask(), allowed)


def stack(mixer: spec.Mixer, allowed: spec.MaskPattern, **more: Any) -> spec.Stack:
    shared = isinstance(mixer, spec.LshAttention)
    attention = spec.Attention(
        4,
        6,
        5,
        groups=None if shared else 2,
        mixer=mixer,
        projection="shared" if shared else "apart",
    )
    return spec.Stack.of(
        2, spec.Block(attention, spec.FeedForward(20), dropout=0.0, **more), allowed
    )


def encoder(mixer: spec.Mixer, allowed: spec.MaskPattern = spec.FullMask()) -> spec.Encoder:  # noqa: B008
    return spec.Encoder(24, spec.Tokens(19, dropout=0.0), stack(mixer, allowed))


def decoder(mixer: spec.Mixer, allowed: spec.MaskPattern) -> spec.Decoder:
    return spec.Decoder(24, spec.Tokens(19, dropout=0.0), stack(mixer, allowed))


ENCODERS: dict[str, spec.Encoder] = {
    **{name: encoder(mixer) for name, mixer in MIXERS.items()},
    **{
        name: encoder(spec.SoftmaxAttention(), allowed)
        for name, allowed in (SPARSE | FROM_THE_END).items()
    },
    "top window": encoder(spec.SoftmaxAttention(top=2), spec.WindowMask(3)),
    "elu causal": encoder(spec.LinearAttention(), spec.CausalMask()),
    "favor causal": encoder(FAVOR, spec.CausalMask()),
    "lsh causal": encoder(LSH, spec.CausalMask()),
}
DECODERS: dict[str, spec.Decoder] = {
    **{name: decoder(spec.SoftmaxAttention(), causal(allowed)) for name, allowed in SPARSE.items()},
    "causal window": decoder(spec.SoftmaxAttention(), spec.CausalMask(3)),
    "random before": decoder(
        spec.SoftmaxAttention(),
        causal(spec.Or(spec.BlockLocalMask(3), spec.RandomBlockMask(3, 1, of="before"))),
    ),
    "top": decoder(spec.SoftmaxAttention(top=3), spec.CausalMask()),
    "capped window, with sinks": decoder(
        spec.SoftmaxAttention(cap=2.0, sinks=True), spec.CausalMask(4)
    ),
    "top window": decoder(spec.SoftmaxAttention(top=2), spec.CausalMask(4)),
    "elu": decoder(spec.LinearAttention(), spec.CausalMask()),
    "favor": decoder(FAVOR, spec.CausalMask()),
}
CROSSES = ["softmax", "top", "elu", "favor", "linformer", "linformer none", "linformer layers"]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sparse kernels already for these short inputs."""
    monkeypatch.setattr(mask_module, "BLOCK_SIZES", (2, 4))
    monkeypatch.setattr(linear_attention, "CHUNK", 4)


def made(description: Any) -> Any:
    model = build(description).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize(
    "description", [*ENCODERS.values(), *DECODERS.values()], ids=[*ENCODERS, *DECODERS]
)
def test_formula_equals_model_and_json_round_trips(description: Any) -> None:
    assert parameter_count(description) == trainable(build(description))
    assert spec.from_dict(spec.to_dict(description)) == description


@pytest.mark.parametrize("name", ENCODERS)
def test_padding_changes_nothing_and_gradients_are_finite(name: str) -> None:
    model = made(ENCODERS[name])
    tokens = torch.randint(0, 19, (4, 21))
    lengths = [21, 10, 3, 1]
    padding_mask = torch.arange(21) < torch.tensor(lengths)[:, None]
    together, _ = model(tokens, padding_mask)
    for gradient in torch.autograd.grad(
        together[padding_mask].square().sum(), [*model.parameters()]
    ):
        assert gradient.isfinite().all()
        assert gradient.abs().sum() > 0
    if name in FROM_THE_END:
        return  # what is last or drawn there is so of the padded length
    for row, length in enumerate(lengths):
        alone, _ = model(tokens[row : row + 1, :length])
        torch.testing.assert_close(together[row : row + 1, :length], alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", DECODERS)
def test_cached_equals_uncached_with_padding_in_front(name: str) -> None:
    model = made(DECODERS[name])
    tokens = torch.randint(0, 19, (3, 17))
    padding_mask = torch.arange(17) >= torch.tensor([0, 4, 5])[:, None]
    whole = model.head(model(tokens, padding_mask)[0])
    for length, cuts in ((6, [1, 1, 5, 4, 1]), (9, [9])):
        state = model.start(model.encode(tokens[:, :length], padding_mask[:, :length]), capacity=12)
        pieces = [model.step(piece, state) for piece in tokens[:, length - 1 :].split(cuts, dim=1)]
        torch.testing.assert_close(
            torch.cat(pieces, 1), whole[:, length - 1 :], rtol=1e-9, atol=1e-9
        )
    for row, first in enumerate([0, 4, 5]):
        alone = model.head(model(tokens[row : row + 1, first:])[0])
        torch.testing.assert_close(whole[row : row + 1, first:], alone, rtol=1e-6, atol=1e-6)
    changed = tokens.clone()
    changed[:, 12:] = 5
    torch.testing.assert_close(
        model.head(model(changed, padding_mask)[0])[:, :12], whole[:, :12], rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("name", DECODERS)
def test_beams_fork_and_leave(name: str) -> None:
    model = made(DECODERS[name])
    prompt, more = torch.randint(0, 19, (2, 5)), torch.randint(0, 19, (4, 4))
    state = model.start(model.encode(prompt), width=2, capacity=8)
    model.step(torch.cat([prompt[:, -1:].repeat_interleave(2, 0), more[:, :2]], 1), state)
    swap = torch.tensor([1, 0, 2, 2])
    state.reorder(swap)
    state.keep(torch.tensor([1]))
    found = model.step(more[[2, 2], 2:], state)
    rows = torch.cat([prompt[[1, 1]], more[[2, 2]]], 1)
    torch.testing.assert_close(found, model.head(model(rows)[0])[:, -2:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["window", "causal window", "dilated", "blocks", "elu", "favor"])
def test_a_long_text_needs_no_more_memory_than_a_short_one(name: str) -> None:
    model = made(DECODERS[name])
    state = model.start(model.encode(torch.randint(0, 19, (2, 3))), capacity=60)
    held = []
    for _ in range(30):
        model.step(torch.randint(0, 19, (2, 1)), state)
        held.append(
            sum(
                t.untyped_storage().nbytes()
                for t in vars(state.layers[0].self_attention).values()
                if torch.is_tensor(t)
            )
        )
    assert held[29] == held[9]


@pytest.mark.parametrize("name", ENCODERS)
def test_probes_see_the_effective_weights(name: str) -> None:
    model = made(ENCODERS[name])
    tokens = torch.randint(0, 19, (3, 13))
    padding_mask = torch.arange(13) < torch.tensor([13, 4, 1])[:, None]
    probe = Probe(["*.self"])
    model(tokens, padding_mask, context=Context(probe=probe))
    for attention, call in probe.attentions.items():
        mixed = call.mixer(call.q, call.k, call.v, call.mask)  # type: ignore[operator]
        weights = probe.weights(attention)
        torch.testing.assert_close(
            weights @ projection.per_query_head(call.v, 4), mixed, rtol=1e-9, atol=1e-9
        )
        rows = torch.tensor([3, 0])
        torch.testing.assert_close(
            probe.weights(attention, rows), weights[:, :, rows], rtol=1e-9, atol=1e-9
        )
        assert (weights[1, :, :, 4:] == 0).all()


@pytest.mark.parametrize("name", SPARSE | FROM_THE_END)
def test_best_fused_and_explicit_are_one_function(name: str) -> None:
    model = made(ENCODERS[name])
    tokens = torch.randint(0, 19, (3, 29))
    padding_mask = torch.arange(29) < torch.tensor([29, 14, 1])[:, None]
    results = []
    for kernel in (
        scaled_dot_product_attention.dispatch,
        scaled_dot_product_attention.fused,
        scaled_dot_product_attention.explicit,
    ):
        for part in model.modules():
            if isinstance(part, scaled_dot_product_attention.SoftmaxAttention):
                part.kernel = kernel
        hidden, _ = model(tokens, padding_mask)
        results.append(
            [
                hidden,
                *torch.autograd.grad(hidden[padding_mask].square().sum(), [*model.parameters()]),
            ]
        )
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MIXERS)
def test_a_query_that_sees_nothing_gets_zeros(name: str) -> None:
    mixer = made(encoder(MIXERS[name])).stack.blocks[0].attention.mixer
    q, v = torch.randn(2, 4, 9, 6).double(), torch.randn(2, 4, 9, 5).double()
    places = torch.arange(9)
    padding_mask = torch.tensor([[False], [True]]).expand(2, 9)
    inputs = [q.requires_grad_(), v.requires_grad_()]
    groups = 4 if name == "lsh" else 2
    out = mixer(
        q, q[:, :groups], v[:, :groups], AttentionMask(PaddingMask(padding_mask), places, places, 2)
    )
    assert (out[0] == 0).all()
    assert (out[1] != 0).all()
    assert all(
        gradient.isfinite().all() for gradient in torch.autograd.grad(out.square().sum(), inputs)
    )


@pytest.mark.parametrize("name", CROSSES)
def test_cross_attention(name: str) -> None:
    """Cached with two beams a sentence = uncached; padded = unpadded."""
    cross = spec.Attention(4, 6, 5, groups=2, mixer=MIXERS[name])
    block = stack(spec.SoftmaxAttention(), spec.FullMask(), cross=cross)
    description = spec.EncoderDecoder(
        24, spec.Tokens(19, dropout=0.0), spec.Tokens(19, dropout=0.0),
        stack(spec.SoftmaxAttention(), spec.FullMask()), block.with_blocks(pattern=spec.CausalMask()),
    )  # fmt: skip
    assert parameter_count(description) == trainable(build(description))
    model = made(description)
    source, target = torch.randint(0, 19, (2, 9)), torch.randint(0, 19, (2, 2, 11))
    padding_mask = torch.arange(9) < torch.tensor([9, 4])[:, None]
    state = model.start(model.encode(source, padding_mask), width=2, capacity=11)
    stepped = torch.cat(
        [model.step(piece, state) for piece in target.flatten(0, 1).split([1, 6, 4], 1)], 1
    )
    for row, length in enumerate([9, 4]):
        alone = model.head(model(source[row : row + 1, :length].expand(2, -1), target[row])[0])
        torch.testing.assert_close(stepped.unflatten(0, (2, 2))[row], alone, rtol=1e-9, atol=1e-9)


def test_documents_in_one_row_are_as_if_alone() -> None:
    model = made(
        spec.Decoder(
            24,
            spec.Tokens(19, None, dropout=0.0),
            stack(spec.SoftmaxAttention(), spec.CausalMask()),
        )
    )
    tokens = torch.randint(0, 19, (1, 11))
    together, _ = model(
        tokens, context=Context(documents=DocumentMask(torch.tensor([[0] * 4 + [1] * 7])))
    )
    for part in (slice(0, 4), slice(4, 11)):
        torch.testing.assert_close(
            together[:, part], model(tokens[:, part])[0], rtol=1e-9, atol=1e-9
        )
    with pytest.raises(ModelError, match="does not support the mask DocumentMask"):
        made(ENCODERS["elu"])(
            tokens, context=Context(documents=DocumentMask(torch.tensor([[0] * 4 + [1] * 7])))
        )


def test_global_tokens_look_by_projections_of_their_own() -> None:
    block = spec.Block(
        spec.Attention(4, 6, 5, groups=2, projection="global"), spec.FeedForward(20), dropout=0.0
    )
    description = spec.Encoder(
        24, spec.Tokens(19, dropout=0.0), spec.Stack.of(1, block, spec.WindowMask(2))
    )
    assert parameter_count(description) == trainable(build(description))
    model = made(description)
    tokens, padding_mask = (
        torch.randint(0, 19, (2, 13)),
        torch.arange(13) < torch.tensor([13, 6])[:, None],
    )
    named = torch.zeros(2, 13, dtype=torch.bool)
    named[0, [0, 9]] = named[1, 3] = True
    x, part = model.input(tokens), model.stack.blocks[0].attention
    inputs = model.stack.layer_inputs(x, padding_mask, Context(global_tokens=named))[0]
    probe = Probe(["*"])
    found = part(x, inputs.mask, inputs.positions, LayerContext(probe.scope("self")))
    mixed = [
        probe.weights(name) @ projection.per_query_head(probe.attentions[name].v, 4)
        for name in ("self", "self.global")
    ]
    expected = part.output(
        torch.where(named[:, None, :, None], mixed[1], mixed[0]).transpose(1, 2).flatten(-2)
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    local = probe.weights("self")
    assert (local[0, :, 12, [0, 9]] > 0).all()
    assert (local[0, :, 12, 1:9] == 0).all()
    assert (local[1, :, :, 6:] == 0).all()
    assert (probe.weights("self.global")[0] > 0).all()
    plain = replace(description, stack=description.stack.with_blocks(attention=ATTENTION))
    without = made(plain).stack.layer_inputs(x, padding_mask, Context(global_tokens=named))[0]
    seen = without.mask.allowed
    assert (
        seen[0, 0, 9] == padding_mask[0]
    ).all()  # without projections of their own they see by those of all
    assert seen[1, 0, 5].tolist() == [False, False, False, True, True, True] + [False] * 7


class Numbers(TorchDispatchMode):
    """How many numbers all tensors held that were made."""

    made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.made += sum(
            leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)
        )
        return out


@pytest.mark.parametrize(
    "mixer", [spec.LinearAttention(), FAVOR, spec.Linformer(2048, 5), LSH], ids=str
)
@pytest.mark.parametrize("allowed", [spec.FullMask(), spec.CausalMask()], ids=str)
def test_memory_grows_as_the_length_does(mixer: spec.Mixer, allowed: spec.MaskPattern) -> None:
    if isinstance(mixer, spec.Linformer) and allowed == spec.CausalMask():
        return
    model, made = build(encoder(mixer, allowed)), []
    for length in (512, 1024, 2048):
        with Numbers() as mode:
            model(torch.randint(0, 19, (1, length)))[0].sum().backward()
        made.append(mode.made)
    assert made[2] < 2.2 * made[1] < 2.2 * 2.2 * made[0]  # four times, if it grew as n² does


# ------------------------------------------------------------------ what each approximates


def test_performer_is_unbiased_and_its_error_falls_as_the_root_of_the_features() -> None:
    q, k, v = (torch.randn(1, 1, 12, 8).double() * 0.3 for _ in range(3))
    places = torch.arange(12)
    attention_mask = AttentionMask(FullMask(), places, places)
    exact = scaled_dot_product_attention.explicit(q, k, v, attention_mask, 8**-0.5, 0.0)
    errors, kernels = [], []
    for count in (16, 64, 256, 1024):
        outs = []
        for seed in range(24):
            part = spec.FavorFeatures(count, seed, 0)
            features = linear_attention.FavorFeatures(part, 8, 8**-0.5).double()
            outs.append(linear_attention.LinearAttention(features)(q, k, v, attention_mask))
            if count == 64:
                kernels.append(
                    (features._exponents(q).exp() @ features._exponents(k).exp().mT) / count
                )
        errors.append(
            math.sqrt(sum((out - exact).square().mean().item() for out in outs) / len(outs))
        )
    slope = (math.log(errors[-1]) - math.log(errors[0])) / math.log(1024 / 16)
    assert -0.62 < slope < -0.4
    kernel = torch.stack(kernels)
    spread = kernel.std(0) / math.sqrt(len(kernels))
    assert ((kernel.mean(0) - (q @ k.mT * 8**-0.5).exp()).abs() < 4.5 * spread).all()


def test_directions_are_orthogonal_and_as_long_as_normal_vectors() -> None:
    drawn = linear_attention.directions(20, 8, 3, 0).double()
    products = drawn[:8] @ drawn[:8].mT
    torch.testing.assert_close(products, products.diagonal().diag(), rtol=0, atol=1e-5)
    assert linear_attention.directions(4000, 8, 0, 0).norm(
        dim=1
    ).square().mean().item() == pytest.approx(8, rel=0.03)
    assert torch.equal(drawn, linear_attention.directions(20, 8, 3, 0).double())


def test_redrawing_is_a_function_of_the_step_and_of_training_only() -> None:
    model = build(encoder(spec.LinearAttention(spec.FavorFeatures(9, redraw=10)))).double()
    tokens = torch.randint(0, 19, (1, 8))
    with torch.no_grad():
        before = model.eval()(tokens)[0]
        seen: dict[int, torch.Tensor] = {}
        for step in (0, 9, 10, 25, 10):
            linear_attention.redraw(model, step)
            output = model.train()(tokens)[0]
            assert torch.equal(model.eval()(tokens)[0], before)
            assert torch.equal(seen.setdefault(step, output), output)
    assert torch.equal(seen[0], seen[9])
    assert not torch.allclose(seen[9], seen[10])
    assert not torch.allclose(seen[25], seen[10])


def test_large_keys_do_not_overflow() -> None:
    """Steps whose keys grow: sums of the past are brought to the new scale."""
    mixer = linear_attention.LinearAttention(
        linear_attention.FavorFeatures(spec.FavorFeatures(64, redraw=0), 8, 1.0)
    ).eval()
    q = torch.randn(1, 2, 30, 8)
    k = torch.randn(1, 2, 30, 8) * torch.linspace(0.1, 9, 30)[:, None]
    places = torch.arange(30)
    whole = mixer(q, k, q, AttentionMask(CausalMask(), places, places))
    past = mixer.start(CacheRoom(q, 1, 30), (2, 8, 8))
    pieces = []
    for i in range(30):
        piece = slice(i, i + 1)
        pieces.append(
            mixer(
                q[:, :, piece],
                k[:, :, piece],
                q[:, :, piece],
                AttentionMask(CausalMask(), places[piece], places[: i + 1]),
                cache=past,
            )
        )
    assert whole.isfinite().all()
    torch.testing.assert_close(torch.cat(pieces, 2), whole, rtol=1e-3, atol=1e-3)


def test_linformer_with_the_identity_is_full_attention() -> None:
    q, k, v = (torch.randn(2, 4, 9, 6).double() for _ in range(3))
    lengths = linformer.LengthProjection(spec.Linformer(9, 9), 4).double()
    with torch.no_grad():
        lengths.keys.copy_(torch.eye(9)[None])
        lengths.values.copy_(torch.eye(9)[None])  # type: ignore[union-attr]
    places = torch.arange(9)
    attention_mask = AttentionMask(FullMask(), places, places, 2)
    found = linformer.Linformer(0.4, 0.0, lengths)(q, k, v, attention_mask)
    torch.testing.assert_close(
        found,
        scaled_dot_product_attention.explicit(q, k, v, attention_mask, 0.4, 0.0),
        rtol=1e-9,
        atol=1e-9,
    )
    with pytest.raises(DataError, match="at most 30"):
        build(encoder(spec.Linformer(30, 5)))(torch.randint(0, 19, (1, 31)))


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("hidden", [False, True])
def test_hashing_with_one_chunk_is_full_attention_without_itself(hidden: bool, rounds: int) -> None:
    q, v = torch.randn(2, 4, 9, 6).double(), torch.randn(2, 4, 9, 5).double()
    k = torch.nn.functional.normalize(q, dim=-1)
    places = torch.arange(9)
    attention_mask = AttentionMask(CausalMask() if hidden else FullMask(), places, places, 2)
    scores = (
        (q @ k.mT)
        .masked_fill(torch.eye(9, dtype=torch.bool), -1e5)
        .masked_fill(~attention_mask.allowed, float("-inf"))
    )
    expected = scores.softmax(-1) @ v
    # One chunk; two that see each other, sorted by their hashes; and chunks of which the outer ones see all.
    for chunk, around in ((9, (1, 0)), (5, (1, 1)), (3, (2, 2))):
        part = spec.LshAttention(4, chunk, rounds, *around)
        mixer = lsh_attention.LshAttention(part, 4, 6, 1.0).eval()
        torch.testing.assert_close(mixer(q, k, v, attention_mask), expected, rtol=1e-9, atol=1e-9)


def test_alike_places_find_each_other() -> None:
    """Two clusters of queries in opposite directions share no chunk, whatever their places."""
    side = torch.tensor([1.0, -1.0]).repeat(8)[None, None, :, None]
    q = side * torch.tensor([3.0, 0.0, 0.0, 0.0]) + 0.01 * torch.randn(1, 1, 16, 4)
    part = spec.LshAttention(2, 8, before=0, seed=1)
    mixer = lsh_attention.LshAttention(part, 1, 4, 1.0).eval()
    places = torch.arange(16)
    weights = mixer.weights(
        q,
        torch.nn.functional.normalize(q, dim=-1),
        AttentionMask(FullMask(), places, places),
        places,
    )
    assert (weights[0, 0, ::2, 1::2] == 0).all()
    assert (weights[0, 0, 1::2, ::2] == 0).all()


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("pattern", [FullMask(), CausalMask()])
def test_hashing_says_which_keys_it_could_see(pattern: Any, rounds: int) -> None:
    """No others have a weight, and those that do not are themselves, or had no chance beside others."""
    q = torch.randn(2, 3, 50, 4)
    k, places = torch.nn.functional.normalize(q, dim=-1), torch.arange(50)
    part = spec.LshAttention((2, 4), 8, rounds, seed=1)
    mixer = lsh_attention.LshAttention(part, 3, 4, 1.0).eval()
    attention_mask = AttentionMask(pattern, places, places, 2)
    rows = torch.tensor([0, 7, 31, 49])
    seen = AttentionCall(mixer, q, k, q, attention_mask).visible(rows)
    weights = mixer.weights(q, k, attention_mask, rows)
    assert (weights[~seen] == 0).all()
    others = seen & (rows[:, None] != places)
    assert (weights[others] > 0).all()
    assert seen.shape == (2, 3, 4, 50)
    assert seen.sum(-1).max() <= 16 * rounds


def test_top_keeps_the_best_scores() -> None:
    q, k = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 7, 4)
    weights = scaled_dot_product_attention.attention_weights(
        q, k, torch.ones(1, 1, 3, 7, dtype=torch.bool), 1.0, top=2
    )
    best = (q @ k.mT).topk(2, dim=-1).indices
    assert ((weights > 0).sum(-1) == 2).all()
    torch.testing.assert_close(weights.gather(-1, best).sum(-1), torch.ones(1, 1, 3))


# ------------------------------------------------------------------ what does not exist


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: stack(spec.Linformer(9, 3), spec.CausalMask()), "no causal form"),
        (lambda: stack(spec.LinearAttention(), spec.WindowMask(3)), "no masks other than"),
        (lambda: stack(LSH, spec.BlockLocalMask(3)), "no masks other than"),
        (
            lambda: stack(spec.LinearAttention(), spec.CausalMask()).with_blocks(
                position=spec.Alibi()
            ),
            "no scores",
        ),
        (lambda: decoder(LSH, spec.CausalMask()), "cannot be cached"),
        (lambda: decoder(spec.SoftmaxAttention(), spec.WindowMask(3)), "must be causal"),
        (
            lambda: decoder(spec.SoftmaxAttention(), causal(spec.GlobalMask(1, 1))),
            "must not depend on the length",
        ),
        (
            lambda: decoder(spec.SoftmaxAttention(), causal(spec.RandomBlockMask(3))),
            "must not depend on the length",
        ),
        (lambda: spec.Attention(2, 4, 4, mixer=LSH), "shared"),
        (lambda: spec.Attention(2, 4, 4, scale=1.0, mixer=spec.LinearAttention()), "scale"),
        (lambda: spec.Attention(4, 4, 4, groups=2, projection="shared"), "groups"),
        (lambda: spec.LshAttention(5), "even"),
        (lambda: spec.WindowMask(0), "at least 1"),
        (
            lambda: stack(
                spec.SoftmaxAttention(),
                spec.CausalMask(),
                cross=spec.Attention(2, 4, 4, projection="shared", mixer=LSH),
            ),
            "different sequences",
        ),
    ],
)
def test_what_does_not_exist_is_refused_with_the_reason(make: Any, word: str) -> None:
    with pytest.raises(ModelError, match=word):
        make()
