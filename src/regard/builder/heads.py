"""Heads from specs: language-model head, pooling, classifiers, heads of time series."""

from __future__ import annotations

from functools import partial
from typing import assert_never

from regard import spec
from regard.builder.norms import build_norm
from regard.builder.stacks import build_stack
from regard.core import attention, feedforward, linear, projection
from regard.core.frontends import embedding, patch_embedding
from regard.core.heads import (
    attention_pool,
    contrastive_head,
    forecast_loss,
    head,
    pixel_decoder,
    series_head,
)
from regard.core.mixers import scaled_dot_product_attention
from regard.system.errors import ModelError


def build_lm_head(part: spec.LMHead, table: embedding.Table, d_model: int) -> head.LMHead:
    transform = None
    if part.transform is not None:
        width = part.transform.width
        transform_norm = build_norm(part.transform.norm, width)
        transform = head.HeadTransform(d_model, width, part.transform.activation, transform_norm)
    return head.LMHead(table, part.bias, part.scale, transform)


def build_pool(part: spec.Pool, input_width: int, d_model: int) -> head.Pool:
    which: str | attention_pool.AttentionPool
    end = None
    match part.which:
        case spec.EndToken(token, position):
            end = token
            which = "end" if position == "first" else "last end"
        case spec.AttentionPool():
            which = _attention_pool(part.which, input_width)
        case _:
            which = part.which
    norm = None if part.norm is None else build_norm(part.norm, input_width)
    projection = head.PoolProjection(part.width, part.bias) if part.width else None
    return head.Pool(
        d_model,
        which,
        part.activation,
        part.dropout,
        end=end,
        norm=norm,
        projection=projection,
        input_width=input_width,
    )


def _attention_pool(part: spec.AttentionPool, d_model: int) -> attention_pool.AttentionPool:
    if d_model % part.heads:
        raise ModelError(
            f"the width {d_model} of the pooled vectors is not divisible by {part.heads} heads",
            "change one of them",
        )
    d_head = d_model // part.heads
    attend = attention.Attention(
        projection.JointProjection(d_model, part.heads, part.heads, d_head, d_head, "qkvo"),
        scaled_dot_product_attention.SoftmaxAttention(d_head**-0.5, 0.0),
        linear.Linear(d_model, d_model),
    )
    layers = feedforward.FeedForward(d_model, part.d_ff, part.activation, 0.0, bias=True)
    return attention_pool.AttentionPool(d_model, attend, build_norm(part.norm, d_model), layers)


def build_classifier(
    part: spec.ClassifierHead | spec.DistilledHead, d_model: int
) -> head.ClassifierHead | head.DistilledHead:
    match part:
        case spec.ClassifierHead(count, _, hidden, bias, dropout):
            classifier = head.ClassifierHead(
                d_model,
                count,
                scores=_scores(part),
                hidden=hidden,
                bias=bias,
                dropout=dropout,
                feedforward=_feedforward(part.feedforward, d_model),
                separator=part.excludes.separator if part.excludes else None,
            )
            classifier.task = part.task
            return classifier
        case spec.DistilledHead(count, voters):
            return head.DistilledHead(d_model, count, voters)
        case _:
            assert_never(part)


def _scores(part: spec.ClassifierHead) -> str:
    """What a classifier reads."""
    if part.each:
        return "positions"
    return part.pool or "pooled"


def _feedforward(part: spec.HeadFeedForward | None, d_model: int) -> head.HeadFeedForward | None:
    if part is None:
        return None
    # Dropout acts around the layers, not between them.
    layers = feedforward.FeedForward(d_model, part.d_ff, part.activation, 0.0, bias=True)
    return head.HeadFeedForward(layers, build_norm(part.norm, d_model), part.dropout)


def build_contrastive_head(
    part: spec.ContrastiveHead, channels: int, d_model: int
) -> contrastive_head.ContrastiveHead:
    return contrastive_head.ContrastiveHead(
        d_model,
        channels,
        contrastive_head.Codebook(part.groups, part.entries, part.code_width),
        part.width,
        temperature=part.temperature,
        diversity=part.diversity,
        dropout=part.dropout,
    )


def build_pixel_decoder(
    part: spec.MaskedImageDecoder, patches: spec.Patches, inputs: int
) -> pixel_decoder.MaskedImageDecoder:
    shape = patch_embedding.PatchShape(patches.size, patches.patch, patches.channels)
    match part:
        case spec.PixelDecoder(d_model, stack, normalized):
            return pixel_decoder.PixelDecoder(
                inputs,
                d_model,
                build_stack(stack, d_model),
                shape,
                extras=patches.extras,
                normalized=normalized,
            )
        case spec.PixelShuffleHead(stride):
            return pixel_decoder.PixelShuffleHead(inputs, shape, stride, extras=patches.extras)
        case _:
            assert_never(part)


# ------------------------------------------------------------------ time series


def build_series_head(
    part: spec.SeriesHead, windows: spec.SeriesPatches, d_model: int
) -> series_head.SeriesHead:
    channels = windows.channels
    match part:
        case spec.ForecastHead(horizon, output, pool, dropout):
            width = d_model if pool else d_model * windows.positions
            quantiles = len(output.levels) if isinstance(output, spec.Quantiles) else None
            distribution = output.name if isinstance(output, spec.Distribution) else None
            return series_head.ForecastHead(
                width,
                horizon,
                channels,
                pool=pool,
                dropout=dropout,
                quantiles=quantiles,
                kind=distribution,
            )
        case spec.PatchHead(dropout):
            return series_head.PatchHead(
                d_model,
                windows.scales[0].length,
                channels,
                class_token=windows.class_token,
                dropout=dropout,
            )
        case spec.ChannelHead(count, task, output, pool, dropout, bounds):
            return series_head.ChannelHead(
                d_model,
                count,
                channels,
                pool=pool,
                dropout=dropout,
                kind=output.name if isinstance(output, spec.Distribution) else None,
                bounds=bounds,
                task=task,
            )
        case _:
            assert_never(part)


def build_distribution_head(
    part: spec.Distribution, d_model: int, channels: int
) -> series_head.DistributionParameters:
    """The parameters of a distribution for each channel, from the hidden state of a step."""
    return series_head.DistributionParameters(part.name, d_model, channels)


def build_forecast_loss(output: spec.Forecast) -> forecast_loss.ForecastLoss:
    """The loss that a forecast of this kind is trained by."""
    match output:
        case spec.Distribution(kind):
            return partial(forecast_loss.negative_log_likelihood, kind=kind)
        case spec.Quantiles(levels):
            return partial(forecast_loss.mean_pinball_loss, levels=levels)
        case _:
            return forecast_loss.squared_error
