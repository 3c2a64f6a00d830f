"""The whole model, two ways: cached and uncached, padded and unpadded, probed and not, recomputed
and not.
"""

from __future__ import annotations

import pytest
import torch

from conftest import small_model
from regard import spec
from regard.core.context import Context
from regard.core.mixers import scaled_dot_product_attention
from regard.core.probe import Probe
from regard.core.stack import Stack
from regard.wirings.encoder_decoder import EncoderDecoder

VARIANTS = [
    {},
    {"residual": spec.PreNorm()},
    {"position": spec.LearnedPosition(64)},
    {"position": spec.Sinusoidal("interleaved")},
    {"d_k": 5, "d_v": 7},
    {"share": "none", "activation": "gelu", "decoder_layers": 3},
]


def logits(
    model: EncoderDecoder,
    source: torch.Tensor,
    target: torch.Tensor,
    padding_mask: torch.Tensor | None,
) -> torch.Tensor:
    return model.head(model(source, target, padding_mask)[0])


@pytest.fixture(params=VARIANTS, ids=str)
def model(request: pytest.FixtureRequest) -> EncoderDecoder:
    return small_model(**request.param).double()


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    source, target = torch.randint(4, 23, (4, 9)), torch.randint(4, 23, (4, 7))
    return source, target, torch.arange(9) < torch.tensor([9, 4, 1, 7])[:, None]


def test_cached_equals_uncached(model: EncoderDecoder, batch: tuple[torch.Tensor, ...]) -> None:
    source, target, padding_mask = batch
    whole = logits(model, source, target, padding_mask)
    for cuts in ([1] * 7, [3, 1, 3], [7]):
        state = model.start(model.encode(source, padding_mask), capacity=8)
        pieces = [model.step(piece, state) for piece in target.split(cuts, dim=1)]
        torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=1e-9, atol=1e-9)


def test_beams_share_memory_and_reorder(batch: tuple[torch.Tensor, ...]) -> None:
    """Two rows a sentence, swapped after two tokens and one sentence dropped: as if each had been
    run whole.
    """
    model, (source, target, padding_mask) = small_model().double(), batch
    both = torch.stack([target, target.flip(1)], dim=1).flatten(0, 1)  # [B·2, T]
    state = model.start(model.encode(source, padding_mask), width=2, capacity=7)
    model.step(both[:, :2], state)
    swap = torch.arange(8).view(4, 2).flip(1).flatten()
    state.reorder(swap)
    keep = torch.tensor([0, 3])
    state.keep(keep)
    rows = both[swap].view(4, 2, 7)[keep].flatten(0, 1)
    stepped = model.step(rows[:, 2:], state)
    whole = logits(
        model,
        source[keep].repeat_interleave(2, 0),
        rows,
        padding_mask[keep].repeat_interleave(2, 0),
    )
    torch.testing.assert_close(stepped, whole[:, 2:], rtol=1e-9, atol=1e-9)


def test_padding_changes_nothing(model: EncoderDecoder, batch: tuple[torch.Tensor, ...]) -> None:
    source, target, padding_mask = batch
    together = logits(model, source, target, padding_mask)
    for row, length in enumerate(padding_mask.sum(1).tolist()):
        alone = logits(model, source[row : row + 1, :length], target[row : row + 1], None)
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-9, atol=1e-9)


def test_the_future_is_not_seen(model: EncoderDecoder, batch: tuple[torch.Tensor, ...]) -> None:
    source, target, padding_mask = batch
    before = logits(model, source, target, padding_mask)
    target = target.clone()
    target[:, 4:] = 5
    torch.testing.assert_close(
        logits(model, source, target, padding_mask)[:, :4], before[:, :4], rtol=0, atol=1e-6
    )
    assert not torch.allclose(logits(model, source, target, padding_mask)[:, 4:], before[:, 4:])


def test_explicit_kernels_give_the_same_model(
    model: EncoderDecoder, batch: tuple[torch.Tensor, ...]
) -> None:
    source, target, padding_mask = batch
    usual = logits(model, source, target, padding_mask)
    for part in model.modules():
        if isinstance(part, scaled_dot_product_attention.SoftmaxAttention):
            part.kernel = scaled_dot_product_attention.explicit
    torch.testing.assert_close(
        logits(model, source, target, padding_mask), usual, rtol=1e-9, atol=1e-9
    )


def test_recomputing_activations_changes_no_gradient(batch: tuple[torch.Tensor, ...]) -> None:
    """Dropout on: the second forward draws what the first one drew."""
    source, target, padding_mask = batch
    gradients = []
    for recompute in (False, True):
        model = small_model(dropout=0.3, attention_dropout=0.2, feedforward_dropout=0.2).train()
        for stack in (model.encoder, model.decoder):
            assert isinstance(stack, Stack)
            stack.activation_checkpointing = recompute
        torch.manual_seed(3)
        logits(model, source, target, padding_mask).square().mean().backward()
        gradients.append([p.grad for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_probes_record_what_the_mixers_used_and_change_nothing(
    batch: tuple[torch.Tensor, ...],
) -> None:
    model, (source, target, padding_mask) = small_model().double(), batch
    usual, _ = model(source, target, padding_mask)
    probe = Probe(["encoder.1.self", "decoder.0.*"])
    probed, _ = model(source, target, padding_mask, Context(probe=probe))
    assert torch.equal(usual, probed)
    assert set(probe.attentions) == {"encoder.1.self", "decoder.0.self", "decoder.0.cross"}
    sublayers = {
        f"decoder.0.{sublayer}.{part}"
        for sublayer in ("self", "cross", "feedforward")
        for part in ("input", "output")
    }
    inside = {"decoder.0.self.mixed", "decoder.0.cross.mixed", "decoder.0.feedforward.hidden"}
    assert set(probe.tensors) == {"decoder.0.residual"} | inside | sublayers
    for name, call in probe.attentions.items():
        weights = probe.weights(name)
        mixed = weights @ call.v
        torch.testing.assert_close(
            mixed, call.mixer(call.q, call.k, call.v, call.mask, call.bias), rtol=1e-9, atol=1e-9
        )
        rows = torch.tensor([2, 0])
        torch.testing.assert_close(
            probe.weights(name, rows), weights[:, :, rows], rtol=1e-5, atol=1e-6
        )
    assert (probe.weights("decoder.0.cross")[1, :, :, 4:] == 0).all()
