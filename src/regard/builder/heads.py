"""Heads from specs: language-model head, pooling, classifiers, heads of time series."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, assert_never, cast

from torch import nn

from regard import spec
from regard.builder.norms import build_norm, optional_norm
from regard.builder.stacks import build_stack
from regard.core import attention, feedforward, linear, projection
from regard.core.frontends import embedding
from regard.core.heads import (
    contact_head,
    contrastive_head,
    detection_head,
    head,
    hifi_gan,
    mask_decoder,
    pixel_decoder,
    series_head,
    speech_head,
    trajectory_head,
)
from regard.core.mixers import scaled_dot_product_attention
from regard.system.errors import ModelError

SERIES_HEADS: dict[type, Callable[..., series_head.SeriesHead]] = {
    spec.ForecastHead: series_head.ForecastHead,
    spec.PatchHead: series_head.PatchHead,
    spec.ChannelHead: series_head.ChannelHead,
}


def build_heads(
    model: spec.ModelSpec, d_model: int, width: int, table: Callable[[], Any]
) -> dict[str, nn.Module]:
    """The heads of a model by their names in it, in the order of its spec.

    `width` is that of the hidden states, `table` makes the output matrix of the language-model
    head, or gives the anchors of object queries.
    """
    heads: dict[str, nn.Module] = {}
    encoder = cast(spec.Encoder, model)  # only its heads read windows, waves or patches
    for part in model.heads:
        match part:
            case spec.Pool():
                heads["pool"] = build_pool(part, width, d_model)
            case spec.LMHead():
                heads["head"] = build_lm_head(part, table(), width)
            case (
                spec.ClassifierHead()
                | spec.DetectionHead()
                | spec.DistilledHead()
                | spec.MaskDecoder()
            ):
                heads["labels"] = _label_head(part, model, d_model, width, table)
            case spec.ForecastHead() | spec.PatchHead() | spec.ChannelHead():
                heads["series"] = SERIES_HEADS[type(part)](part, d_model, encoder.windows)
            case spec.TrajectoryHead():
                heads["steps"] = trajectory_head.TrajectoryHead(part, width, encoder.trajectories)
            case spec.ContactHead(count):
                heads["contacts"] = contact_head.ContactHead(count)
            case spec.SpectrogramHead():
                heads["spectrogram"] = speech_head.SpectrogramHead(part, width)
            case spec.HifiGan():
                heads["vocoder"] = hifi_gan.HifiGan(part)
            case spec.ContrastiveHead():
                channels = encoder.waves.convolutions[-1].channels
                heads["contrastive"] = contrastive_head.ContrastiveHead(part, d_model, channels)
            case spec.PixelDecoder() | spec.PixelShuffleHead():
                heads["pixels"] = _pixels(part, width, encoder.patches)
            case _:
                assert_never(part)
    return heads


def _pixels(
    part: spec.PixelDecoder | spec.PixelShuffleHead, width: int, patches: spec.Patches
) -> nn.Module:
    if isinstance(part, spec.PixelShuffleHead):
        return pixel_decoder.PixelShuffleHead(part, width, patches)
    of_clips = isinstance(part, spec.TubeletDecoder)
    kind = pixel_decoder.TubeletDecoder if of_clips else pixel_decoder.PixelDecoder
    return kind(part, width, build_stack(part.stack, part.d_model), patches)


def _of_positions(
    part: spec.DistilledHead | spec.MaskDecoder, model: spec.Encoder, width: int
) -> head.LabelHead:
    """The first positions vote, or those behind them are scored."""
    if isinstance(part, spec.DistilledHead):
        return head.DistilledHead(width, part.count, part.voters)
    stack = build_stack(part.stack, part.width)
    front: Any = model.input
    return mask_decoder.MaskDecoder(width, part.width, part.count, stack, front.extras)


def _label_head(
    part: spec.ClassifierHead | spec.DetectionHead | spec.DistilledHead | spec.MaskDecoder,
    model: spec.ModelSpec,
    d_model: int,
    width: int,
    table: Callable[[], Any],
) -> nn.Module:
    match part:
        case spec.ClassifierHead():
            return _classifier(part, model, d_model, width)
        case spec.DetectionHead(count):
            return detection_head.DetectionHead(width, count, table())
        case _:
            return _of_positions(part, cast(spec.Encoder, model), width)


def build_lm_head(part: spec.LMHead, table: embedding.Table, d_model: int) -> head.LMHead:
    transform = None
    if part.transform is not None:
        width = part.transform.width
        transform_norm = build_norm(part.transform.norm, width)
        transform = head.HeadTransform(d_model, width, part.transform.activation, transform_norm)
    return head.LMHead(table, part.bias, part.scale, transform, part.cap)


def build_pool(part: spec.Pool, input_width: int, d_model: int) -> head.Pool:
    which: Any = part.which
    end = None
    match part.which:
        case spec.EndToken(token, position):
            end = token
            which = "end" if position == "first" else "last end"
        case spec.AttentionPool():
            which = _attention_pool(part.which, input_width)
    norm = optional_norm(part.norm, input_width)
    return head.Pool(part, which, input_width, d_model, end=end, norm=norm)


def _attention_pool(part: spec.AttentionPool, d_model: int) -> head.AttentionPool:
    if d_model % part.heads:
        raise ModelError(
            f"the width {d_model} of the pooled vectors is not divisible by {part.heads} heads",
            "change one of them",
        )
    d_head = d_model // part.heads
    attend = attention.Attention(
        projection.JointProjection(spec.Attention(part.heads, d_head, d_head), d_model),
        scaled_dot_product_attention.SoftmaxAttention(d_head**-0.5, 0.0),
        linear.Linear(d_model, d_model),
    )
    layers = feedforward.FeedForward(spec.FeedForward(part.d_ff, part.activation), d_model)
    return head.AttentionPool(d_model, attend, build_norm(part.norm, d_model), layers)


def _classifier(
    part: spec.ClassifierHead, model: spec.ModelSpec, d_model: int, width: int
) -> head.ClassifierHead:
    """The head reads each position, the vector of the model's pool, or that of one of its own."""
    pool = None
    inputs = width
    if part.pool is not None:
        pool = build_pool(spec.Pool(part.pool, None), width, d_model)
    elif not part.each and model.pool is None:
        # What has seen the whole text: the last token of a decoder, the first of an encoder.
        which: Any = "last" if spec.knows_at_the_end(model) else "first"
        pool = build_pool(spec.Pool(which, None), width, d_model)
    elif not part.each and model.pool is not None:
        inputs = _pooled_width(model.pool, d_model, width)
    sublayer = None
    if part.feedforward is not None:
        more = part.feedforward
        # Dropout acts around the layers, not between them.
        layers = feedforward.FeedForward(spec.FeedForward(more.d_ff, more.activation), inputs)
        sublayer = head.HeadFeedForward(layers, build_norm(more.norm, inputs), more.dropout)
    norm_part = optional_norm(part.norm, part.width or inputs)
    return head.ClassifierHead(part, inputs, pool, sublayer, norm_part)


def _pooled_width(pool: spec.Pool, d_model: int, width: int) -> int:
    if pool.width:
        return pool.width
    if pool.activation:
        return d_model  # the pooler's dense layer ends at d_model
    return 2 * width if pool.which == "first_and_mean" else width


def build_forecast_loss(output: spec.Forecast) -> series_head.ForecastLoss:
    """The loss that a forecast of this kind is trained by."""
    match output:
        case spec.Distribution(kind):
            return partial(series_head.negative_log_likelihood, kind=kind)
        case spec.Quantiles(levels):
            return partial(series_head.mean_pinball_loss, levels=levels)
        case _:
            return series_head.squared_error
