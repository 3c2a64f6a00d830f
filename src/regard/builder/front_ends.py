"""Front ends from specs: token embeddings, patches, spectrograms, waveforms, time series."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, assert_never

from regard import spec
from regard.builder.norms import PYRAMID_NORM, build_block_norm, build_norm, optional_norm
from regard.core import convolution, linear, norm, side
from regard.core.frontends import (
    embedding,
    feature_map,
    lagged_values,
    node_features,
    overlap_patches,
    patch_embedding,
    resnet,
    series_patches,
    spectrogram_frontend,
    text_and_image,
    time_scales,
    trajectories,
    tubelets,
    waveform_frontend,
)
from regard.core.positions import positional_encoding
from regard.system.errors import ModelError


def build_front_end(
    part: spec.FrontEnd | spec.ConvStem | spec.ObjectQueries,
    d_model: int,
    shared: Any = None,
) -> side.FrontEnd:
    match part:
        case spec.Tokens():
            table = shared or embedding.Table(part.vocabulary, part.width or d_model)
            return build_embedding(part, table, d_model)
        case spec.Spectrogram():
            position = _input_position(part.position, d_model)
            scales = _time_scales(part, d_model)
            return spectrogram_frontend.Spectrogram(part, d_model, position, scales)
        case (
            spec.Tubelets()
            | spec.Waveform()
            | spec.SeriesPatches()
            | spec.NodeFeatures()
            | spec.Trajectories()
        ):
            return _BUILDERS[type(part)](part, d_model)
        case spec.Patches():
            return patch_embedding.Patches(
                part,
                d_model,
                _patch_position(part, d_model),
                optional_norm(part.norm, d_model),
                _patch_convolutions(part, d_model) if part.convolutions else (),
            )
        case spec.OverlapPatches():
            return overlap_patches.OverlapPatches(
                part, overlap_embedding(part.channels, d_model, part.kernel, part.patch)
            )
        case spec.ConvStem():
            return resnet.ConvStem(part, d_model, map_norm(part.norm))
        case spec.FeatureMap() | spec.TextAndImage():
            return _of_parts(part, d_model)
        case spec.ObjectQueries(count):
            return feature_map.ObjectQueries(count, d_model, shared)
        case _:
            assert_never(part)


def _of_parts(part: spec.FeatureMap | spec.TextAndImage, d_model: int) -> side.FrontEnd:
    """A front end that is made of others."""
    if isinstance(part, spec.FeatureMap):
        return _feature_map(part, d_model)
    text = build_front_end(part.text, d_model)
    image = build_front_end(part.image, d_model)
    assert isinstance(text, embedding.Embedding), "it is described by Tokens"
    assert isinstance(image, patch_embedding.Patches), "it is described by Patches"
    modalities = embedding.Table(part.modalities, d_model)
    return text_and_image.TextAndImage(text, image, modalities)


def _patch_position(part: spec.Patches, d_model: int) -> patch_embedding.PatchPosition | None:
    match part.position:
        case "learned":
            learned = positional_encoding.LearnedPosition
            return learned.from_sinusoids(d_model, part.side, part.extras)
        case "fixed":
            return positional_encoding.FixedPosition.grid(d_model, part.side, part.extras)
        case "sinusoidal":
            return positional_encoding.Sinusoidal2D(d_model, part.side, part.extras)
        case "none":
            return None
        case _:
            assert_never(part.position)


def _patch_convolutions(part: spec.Patches, d_model: int) -> list[overlap_patches.OverlapEmbedding]:
    """From pixels to patches by halves; each has twice the channels of the one before."""
    # Not BatchNorm: texts of one length are a batch, and their images have something in common
    # (how many objects, say) by which their statistics are not those of all.
    halvings = part.patch.bit_length() - 1
    widths = [part.channels, *(d_model >> i for i in reversed(range(halvings)))]
    return [overlap_embedding(*pair, kernel=3, stride=2) for pair in pairwise(widths)]


def overlap_embedding(
    inputs: int, outputs: int, kernel: int, stride: int
) -> overlap_patches.OverlapEmbedding:
    """Overlapping patches of pixels, or of the positions of the stage before."""
    project = convolution.GridConvolution(inputs, outputs, kernel, stride)
    return overlap_patches.OverlapEmbedding(project, build_norm(PYRAMID_NORM, outputs))


def _tubelets(part: spec.Tubelets, d_model: int) -> tubelets.Tubelets:
    if part.position == "sinusoidal":
        sinusoids = positional_encoding.Sinusoidal(d_model, "interleaved", 10_000.0)
        return tubelets.Tubelets(part, d_model, sinusoids, None)
    learned = positional_encoding.LearnedPosition.from_sinusoids
    patches = learned(d_model, part.side, part.extras)
    times = learned(d_model, part.times, axes=1) if not part.separate else None
    return tubelets.Tubelets(part, d_model, patches, times)


def build_residual_stages(part: spec.ResidualStages, inputs: int) -> resnet.ResidualStages:
    """The stages of a ResNet over the `inputs` channels of its stem."""
    make_norm = map_norm(part.norm)
    blocks = [resnet.ResidualBlock(part, block, make_norm) for block in part.blocks(inputs)]
    return resnet.ResidualStages(blocks, part.depths)


def _feature_map(part: spec.FeatureMap, d_model: int) -> feature_map.FeatureMap:
    backbone = build_front_end(part.backbone, part.width)
    assert isinstance(backbone, side.ImageFrontEnd), "it reads images"
    stages = None if part.stages is None else build_residual_stages(part.stages, part.width)
    project = linear.Linear(part.features, d_model)
    position: feature_map.GridSinusoids | feature_map.GridTables
    position = feature_map.GridTables(d_model)
    if part.position == "sinusoidal":
        position = feature_map.GridSinusoids(d_model, part.temperature)
    return feature_map.FeatureMap(part, backbone, stages, project, position)


def map_norm(part: spec.BatchNorm) -> resnet.MakeNorm:
    """Norms of feature maps, of any number of channels."""
    options = {"counts": part.counts, "frozen": part.frozen}
    return partial(norm.BatchNorm2d, eps=part.eps, momentum=part.momentum, **options)


def _waveform(part: spec.Waveform, d_model: int) -> waveform_frontend.Waveform:
    convolutions = []
    channels = 1  # samples are one channel; each convolution takes what the one before it gives
    for layer in part.convolutions:
        normalize = build_block_norm(layer.norm, layer.channels) if layer.norm else None
        convolutions.append(waveform_frontend.Convolution(layer, channels, normalize))
        channels = layer.channels
    features = optional_norm(part.features, channels)
    norm_part = optional_norm(part.norm, d_model)
    project = linear.Linear(channels, d_model)
    scales = _time_scales(part, d_model)
    return waveform_frontend.Waveform(part, convolutions, features, project, norm_part, scales)


def _time_scales(
    part: spec.Spectrogram | spec.Waveform, d_model: int
) -> time_scales.TimeScales | None:
    if not part.scales:
        return None
    projections = [linear.Linear(d_model, d_model) for _ in part.scales]
    return time_scales.TimeScales(part.scales, projections, part.activation)


def _series_patches(part: spec.SeriesPatches, d_model: int) -> series_patches.SeriesPatches:
    maps = 1 if part.shared else part.channels
    projections = [
        [linear.Linear(scale.length, d_model) for _ in range(maps)] for scale in part.scales
    ]
    position: positional_encoding.LearnedPosition | positional_encoding.FixedPosition
    if part.position == "learned":
        position = positional_encoding.LearnedPosition(d_model, part.positions)
    else:
        position = positional_encoding.FixedPosition.sinusoidal(
            d_model, part.positions, standardized=True
        )
    return series_patches.SeriesPatches(part, projections, position)


def _trajectories(part: spec.Trajectories, d_model: int) -> trajectories.Trajectories:
    return trajectories.Trajectories(part, d_model, build_norm(part.norm, d_model))


_BUILDERS: dict[type, Callable[[Any, int], side.FrontEnd]] = {
    spec.Tubelets: _tubelets,
    spec.Waveform: _waveform,
    spec.SeriesPatches: _series_patches,
    spec.NodeFeatures: node_features.NodeFeatures,
    spec.Trajectories: _trajectories,
}


def build_step_embedding(
    part: spec.LaggedValues, d_model: int, horizon: int, *, start: int
) -> lagged_values.StepEmbedding:
    """The embedding of one side's steps; positions count from the encoder's first step."""
    return lagged_values.StepEmbedding(
        linear.Linear(part.width, d_model, bias=False),
        positional_encoding.FixedPosition.sinusoidal(d_model, part.length + horizon),
        build_norm(part.norm, d_model),
        start=start,
        dropout=part.dropout,
    )


def build_embedding(part: spec.Tokens, table: embedding.Table, d_model: int) -> embedding.Embedding:
    width = part.width or d_model
    # Positions are added to the embedding, or concatenated with it, never both.
    position = None
    concatenated = None
    if isinstance(part.position, spec.ConcatenatedPosition):
        concatenated = positional_encoding.Sinusoidal(
            part.position.width, part.position.order, part.position.base
        )
    else:
        position = _input_position(part.position, width)
    total_width = width + (concatenated.d_model if concatenated else 0)
    # The order of the random draws (position, segments, projection) is part of what a seed means.
    segments = embedding.Table(part.segments, width) if part.segments else None
    norm_part = optional_norm(part.norm, total_width)
    # A width that is set explicitly has a projection, even where it equals d_model.
    projects = part.width or concatenated
    project = linear.Linear(total_width, d_model) if projects else None
    return embedding.Embedding(
        part,
        table,
        position,
        segments=segments,
        norm=norm_part,
        project=project,
        concatenated=concatenated,
    )


def _input_position(
    part: spec.InputPosition | None, width: int
) -> positional_encoding.InputPosition | None:
    match part:
        case None:
            return None
        case spec.Sinusoidal(order, base):
            return positional_encoding.Sinusoidal(width, order, base)
        case spec.LearnedPosition(length, offset, padding):
            return positional_encoding.LearnedPosition(width, length, offset, padding)
        case spec.FixedPosition(length):
            return positional_encoding.FixedPosition.sinusoidal(width, length)
        case spec.AxialPosition(shape, widths):
            if sum(widths) != width:
                raise ModelError(
                    f"the widths {widths} of the axial positions do not add up to {width}",
                    "change one of them",
                )
            return positional_encoding.AxialPosition(shape, widths, part.length)
        case spec.ConcatenatedPosition():
            raise ModelError(
                "ConcatenatedPosition is supported for tokens only", "use Sinusoidal instead"
            )
        case _:
            assert_never(part)
