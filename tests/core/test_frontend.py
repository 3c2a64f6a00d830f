"""Front ends: what they compute said in another way, what padding may not change, and that all of them can learn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.core.context import Context
from regard.core.feedforward import ACTIVATIONS
from regard.core.probe import Probe
from regard.system.errors import ModelError

BLOCK = spec.Block(spec.Attention(2, 6, 6), spec.FeedForward(16), dropout=0.0)
STACK = spec.Stack.of(2, BLOCK)
LAYERS = (
    spec.Convolution(5, 4, 2, True, spec.LayerNorm()),
    spec.Convolution(7, 3, 2, norm=spec.LayerNorm()),
)
PICTURES = spec.Patches(11, 3, channels=2, extras=2, norm=spec.LayerNorm())
SOUND = spec.Waveform(LAYERS, spec.ConvPosition(4, 3), norm=spec.LayerNorm(), dropout=0.0)
TIMED = spec.Waveform(
    (spec.Convolution(5, 4, 2, norm=spec.InstanceNorm()),),
    spec.ConvPosition(3, 2),
    dropout=0.0,
    masked=False,
)
SCALES = (spec.TimeScale(3, 3), spec.TimeScale(6, 2))
SCALED = replace(SOUND, scales=SCALES)


@pytest.mark.parametrize("extras", [0, 1, 3])
def test_patches_are_a_convolution(extras: int) -> None:
    patches = spec.Patches(11, 3, channels=2, extras=extras)
    front: Any = build(spec.Encoder(12, patches, STACK)).eval().input
    pixels = torch.randn(3, 2, 11, 11)
    kernel = front.project.weight.view(12, 2, 3, 3)
    wanted = functional.conv2d(pixels, kernel, front.project.bias, stride=3).flatten(2).mT
    table = front.position.table
    found = front(pixels) - table
    torch.testing.assert_close(found[:, extras:], wanted)
    for i in range(extras):
        torch.testing.assert_close(found[:, i], front.extras[i].expand(3, -1))  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [16, 19])
def test_convolutions_of_patches_read_whole_patches(size: int) -> None:
    part = spec.Patches(size, 8, channels=2, convolutions=True)
    description = spec.Encoder(12, part, STACK)
    model = build(description).eval()
    assert parameter_count(description) == trainable(model)
    front: Any = model.input
    pixels = torch.randn(3, 2, size, size)
    found = front.embed(pixels)
    assert found.shape == (3, 4, 12)
    maps = pixels[..., :16, :16]
    for layer in front.convolutions:
        weights = layer.project
        maps = functional.conv2d(maps, weights.weight, weights.bias, stride=2, padding=1)
        maps = layer.norm(maps.movedim(1, -1)).movedim(-1, 1).relu()
    torch.testing.assert_close(found, front.project(maps.flatten(2).mT))
    with pytest.raises(ModelError, match="power of two"):
        replace(part, patch=6)


def test_a_text_and_an_image_do_not_wait_for_the_device() -> None:
    text = spec.Tokens(9, spec.LearnedPosition(5))
    front = spec.TextAndImage(text, spec.Patches(8, 4, convolutions=True))
    model: Any = build(spec.Encoder(12, front, STACK))
    with FakeTensorMode(allow_non_fake_inputs=True):  # whose values cannot be read
        tokens = torch.zeros(2, 5, dtype=torch.long)
        mask = torch.ones(2, 5, dtype=torch.bool)
        hidden, _ = model(tokens, mask, pixels=torch.zeros(2, 3, 8, 8))
    assert hidden.shape == (2, 5 + 1 + 4, 12)


def test_positions_of_patches_begin_as_rows_and_columns() -> None:
    side = 5
    clip = spec.Tubelets(4 * side, 4, frames=3)
    front: Any = build(spec.Encoder(32, clip, STACK)).input
    grid = front.position.table[1:].detach().view(side, side, -1)
    # As long as the vectors of patches, and the further apart the less alike.
    assert grid.square().mean().item() == pytest.approx(0.5, abs=1e-3)
    for line in (grid[2], grid[:, 2], front.times.table.detach()):
        alike = torch.cosine_similarity(line, line[:1], dim=-1)
        assert (alike.diff() < -0.01).all()


@pytest.mark.parametrize("front", [SOUND, SCALED], ids=["one scale", "three"])
def test_padding_sound_changes_nothing_that_is_real(front: spec.Waveform) -> None:
    model = (
        build(spec.Encoder(12, front, STACK, (spec.Pool("mean", None), spec.ClassifierHead(3))))
        .double()
        .eval()
    )
    waves, lengths = torch.randn(3, 61).double(), [61, 40, 22]
    padding_mask = torch.arange(61) < torch.tensor(lengths)[:, None]
    hidden, _ = model(waves, padding_mask)
    places = model.input.output_padding_mask(padding_mask)
    assert places is not None
    scores = model.classes(hidden, padding_mask)
    for row, length in enumerate(lengths):
        alone, _ = model(waves[row : row + 1, :length])
        assert places[row].sum() == alone.shape[1]
        torch.testing.assert_close(
            hidden[row : row + 1, : alone.shape[1]], alone, rtol=1e-9, atol=1e-9
        )
        torch.testing.assert_close(
            scores[row : row + 1], model.classes(alone), rtol=1e-9, atol=1e-9
        )


def test_time_scales_add_the_means_of_windows_to_their_positions() -> None:
    length, heard = 11, 8  # positions; the last three are padding
    scales: Any = build(spec.Encoder(12, SCALED, STACK)).eval().input.scales
    x = torch.randn(1, length, 12)
    found = scales(x, torch.arange(length)[None] < heard)[0]
    for position in range(heard):
        wanted = x[0, position]
        for scale, project in zip(SCALES, scales.projections, strict=True):
            # The window begins so much before the first of the positions that it stands for.
            first = position // scale.stride * scale.stride - (scale.length - scale.stride) // 2
            window = x[0, max(0, first) : min(first + scale.length, heard)]
            wanted = wanted + ACTIVATIONS["gelu"](project(window.mean(dim=0)))
        torch.testing.assert_close(found[position], wanted)


def test_a_coarse_scale_hears_what_is_far() -> None:
    fine = spec.Spectrogram(4, spec.Sinusoidal())
    far = replace(fine, scales=(spec.TimeScale(10, 10),))
    frames = torch.randn(1, 4, 40)
    changed = frames.clone()
    changed[:, :, 38:] += 1  # position 19, in the window of positions 10 to 19
    for front, reached in ((fine, range(18, 20)), (far, range(10, 20))):
        module = build(spec.Encoder(12, front, STACK)).eval().input
        moved = (module(changed) - module(frames)).abs().amax(dim=2)[0] > 0
        assert moved.nonzero()[:, 0].tolist() == list(reached)


def test_windows_must_not_leave_sound_out() -> None:
    with pytest.raises(ModelError, match="a window of 5 positions every 6"):
        replace(SOUND, scales=(spec.TimeScale(5, 6),))


@pytest.mark.parametrize(
    "front", [PICTURES, SOUND, TIMED, SCALED], ids=lambda front: type(front).__name__
)
def test_everything_learns(front: spec.Patches | spec.Waveform) -> None:
    description = spec.Encoder(12, front, STACK, (spec.DistilledHead(5, 2),))
    model = build(description)
    assert parameter_count(description) == trainable(model)
    assert spec.from_dict(spec.to_dict(description)) == description
    if isinstance(front, spec.Patches):
        hidden, _ = model(torch.randn(2, 2, 11, 11))
    else:
        frames = 27 if len(front.convolutions) == 1 else 13
        masked = (torch.arange(frames) % 3 == 0).expand(2, -1) if front.masked else None
        hidden, _ = model(torch.randn(2, 57), torch.ones(2, 57, dtype=torch.bool), masked=masked)
    scores = model.classes(hidden)
    assert scores.shape == (2, 5)
    (scores.sum() + hidden.square().sum()).backward()
    assert [
        name
        for name, p in model.named_parameters()
        if p.grad is None or not p.grad.isfinite().all()
    ] == []


def test_a_pair_learns_and_can_be_looked_into() -> None:
    text = spec.Encoder(
        12,
        spec.Tokens(9),
        spec.Stack.of(1, BLOCK, spec.CausalMask()),
        (spec.Pool(spec.EndToken(8), None, width=5),),
    )
    image = spec.Encoder(12, PICTURES, STACK, (spec.Pool(norm=spec.LayerNorm(), width=5),))
    description = spec.DualEncoder(text, image, scale=1.0)
    model = build(description).eval()
    assert parameter_count(description) == trainable(model)
    assert spec.from_dict(spec.to_dict(description)) == description
    probe = Probe(["*.self"])
    tokens = torch.tensor([[1, 2, 8, 8], [3, 8, 4, 5], [7, 6, 5, 8]])
    scores, _ = model(tokens, torch.randn(2, 2, 11, 11), context=Context(probe=probe))
    assert scores.shape == (3, 2)
    assert scores.abs().max() <= torch.e
    assert sorted(probe.attentions) == [
        "image.encoder.0.self",
        "image.encoder.1.self",
        "text.encoder.0.self",
    ]
    functional.cross_entropy(scores, torch.tensor([0, 1, 1])).backward()
    assert all(p.grad is not None for p in model.parameters())
    # What follows the end is not seen.
    changed = torch.tensor([[1, 2, 8, 3]])
    torch.testing.assert_close(model.texts(changed), model.texts(tokens[:1]))
