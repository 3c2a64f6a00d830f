"""Changes of a preset that hold for every wiring: attention, positions, norms, weight tying.

Sizes are changed where a family makes its spec; what follows here is changed in the spec itself,
so that encoders, decoders and encoder–decoders of all families understand the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from regard import spec
from regard.families.attention_options import (
    parse_attention,
    parse_compressed_memory,
    self_attention,
)
from regard.families.series.forecast_options import parse_forecast, parse_scales
from regard.system.errors import ModelError, SettingError, did_you_mean
from regard.system.options import parse_option

# ------------------------------------------------------------------ words


class Positions(NamedTuple):
    """Positional encodings: added at the input, or inside the attention of a stack."""

    at_input: spec.InputPosition | None = None
    inside: spec.StackPosition | None = None


POSITIONS = (
    "sinusoidal",
    "interleaved",
    "learned",
    "concatenated",
    "relative",
    "buckets",
    "alibi",
    "rope",
    "none",
)
RESIDUALS: dict[str, spec.Residual] = {
    "post": spec.PostNorm(),
    "pre": spec.PreNorm(),
    "sandwich": spec.SandwichNorm(),  # Gemma 2
    "parallel": spec.Parallel(),  # GPT-J, PaLM, GPT-NeoX
    "reversible": spec.PreNorm(),  # in two streams: Reformer
    "none": spec.NoResidual(),
}
NORMS: dict[str, spec.Norm] = {
    "layer": spec.LayerNorm(),
    "rms": spec.RMSNorm(),
    "batch": spec.BatchNorm(),
}
PROJECTIONS = ("apart", "tied_qkv", "tied_qk", "tied_kv")
SHARES = ("all", "target", "none")


def parse_position(option: str, length: int) -> Positions:
    """The positions that a word names; learned ones are `length` long.

    - `sinusoidal`: all sines, then all cosines, as the authors' code has them; `interleaved`: in
      the order of the paper's formula
    - `learned`, `concatenated:64` (so many sinusoids next to the embedding), `none`
    - inside attention: `relative:16` (Shaw et al. 2018, clipped to that distance), `buckets:32:128`
      (T5), `alibi`, `rope:10000`
    """
    constructors: dict[str, Callable[..., Positions]] = {
        "sinusoidal": lambda: Positions(spec.Sinusoidal()),
        "interleaved": lambda: Positions(spec.Sinusoidal("interleaved")),
        "learned": lambda: Positions(spec.LearnedPosition(length)),
        "concatenated": lambda width=64: Positions(spec.ConcatenatedPosition(width)),
        # k = 16, as in Shaw et al., Section 4.1.
        "relative": lambda distance=16: Positions(inside=spec.RelativeKeys(distance)),
        "buckets": lambda count=32, distance=128: Positions(inside=spec.T5Bias(count, distance)),
        "alibi": lambda: Positions(inside=spec.Alibi()),
        "rope": lambda base=10_000: Positions(inside=spec.Rope(float(base))),
        "none": Positions,
    }
    return parse_option(
        option,
        {word: constructors[word] for word in POSITIONS},
        subject="position",
        usage="write it like learned, rope or relative:16",
        convert=int,
    )


def _word(key: str, value: Any, words: Any) -> Any:
    if value not in words:
        raise SettingError(f"{key} cannot be {value!r}", did_you_mean(str(value), words))
    return value


# ------------------------------------------------------------------ the changes


def with_changes(model: spec.Model, length: int, changes: Mapping[str, Any]) -> spec.Model:
    """The model with other positions, attention, norms, dropout or weight tying.

    `length` is the longest input, which learned positions and Linformer's projections depend on.
    An option that the kind of model does not have raises a `SettingError`.
    """
    for key in changes:
        if key not in CHANGES:
            raise SettingError(f"there is no option {key!r}", did_you_mean(key, CHANGES))
    try:
        # In this order: a memory needs its positions, and attention the dropout that it keeps.
        for key, change in CHANGES.items():
            if key in changes:
                model = change(model, changes[key], length)
    except ModelError as error:
        # An invalid spec comes from a setting of the user.
        raise SettingError(error.problem, error.repair) from None
    return model


def _dropout(model: spec.Model, probability: float, length: int) -> spec.Model:
    def of_stack(stack: spec.Stack) -> spec.Stack:
        return stack.with_blocks(dropout=probability)

    changed = _with_stacks("dropout", model, of_stack)
    return _with_front_ends(changed, lambda part: replace(part, dropout=probability))


def _attention_dropout(model: spec.Model, probability: float, length: int) -> spec.Model:
    def of_block(block: spec.Block) -> spec.Block:
        cross = block.cross and _with_attention_dropout(block.cross, probability)
        attention = _with_attention_dropout(block.attention, probability)
        return replace(block, attention=attention, cross=cross)

    return _with_stacks("attention_dropout", model, lambda stack: _with_blocks(stack, of_block))


def _drop_path(model: spec.Model, probability: float, length: int) -> spec.Model:
    def of_stack(stack: spec.Stack) -> spec.Stack:
        if not isinstance(stack.scheme, spec.Stages):
            return stack.with_blocks(drop_path=probability)
        rates = [stack.scheme.drop_path(probability, i) for i in range(stack.layers)]
        return replace(stack, blocks=tuple(map(_with_drop_path, stack.blocks, rates)))

    return _with_stacks("drop_path", model, of_stack)


def _with_drop_path(block: spec.Block, probability: float) -> spec.Block:
    return replace(block, drop_path=probability)


def _with_attention_dropout(part: spec.Attention, probability: float) -> spec.Attention:
    if isinstance(part.mixer, spec.LinearAttention | spec.BuildsAttention):
        raise SettingError(
            f"{type(part.mixer).__name__} does not support attention_dropout",
            "remove `attention_dropout`",
        )
    return replace(part, mixer=replace(part.mixer, dropout=probability))


def _feedforward_dropout(model: spec.Model, probability: float, length: int) -> spec.Model:
    return _with_feedforward("feedforward_dropout", model, {"dropout": probability})


def _activation(model: spec.Model, activation: str, length: int) -> spec.Model:
    return _with_feedforward("activation", model, {"activation": activation})


def _d_ff(model: spec.Model, width: int, length: int) -> spec.Model:
    return _with_feedforward("d_ff", model, {"d_ff": width})


def _with_feedforward(key: str, model: spec.Model, changes: Mapping[str, Any]) -> spec.Model:
    def of_block(block: spec.Block) -> spec.Block:
        part = block.feedforward
        if isinstance(part, spec.MixtureOfExperts):
            return replace(block, feedforward=replace(part, inner=replace(part.inner, **changes)))
        return replace(block, feedforward=replace(part, **changes))

    return _with_stacks(key, model, lambda stack: _with_blocks(stack, of_block))


def _residual(model: spec.Model, word: str, length: int) -> spec.Model:
    residual = RESIDUALS[_word("residual", word, RESIDUALS)]

    def of_stack(stack: spec.Stack) -> spec.Stack:
        reversible = isinstance(stack.scheme, spec.Reversible)
        to_reversible = word == "reversible"
        if isinstance(stack.block.residual, type(residual)) and reversible == to_reversible:
            return stack
        # Only post-norm leaves the stream normalized; the others end with a norm.
        final = None
        if not isinstance(residual, spec.PostNorm | spec.NoResidual):
            final = stack.final or stack.block.norm
        if reversible:
            stack = replace(stack, scheme=spec.Plain())
        stack = replace(stack.with_blocks(residual=residual), final=final)
        return _with_scheme(stack, spec.Reversible()) if to_reversible else stack

    return _with_stacks("residual", model, of_stack)


def _norm(model: spec.Model, word: str, length: int) -> spec.Model:
    norm = NORMS[_word("norm", word, NORMS)]

    def of_stack(stack: spec.Stack) -> spec.Stack:
        # A norm of the same kind keeps its family's ε.
        if isinstance(stack.block.norm, type(norm)):
            return stack
        return replace(stack.with_blocks(norm=norm), final=stack.final and norm)

    return _with_stacks("norm", model, of_stack)


def _kernel(model: spec.Model, width: int, length: int) -> spec.Model:
    def of_block(block: spec.Block) -> spec.Block:
        part = block.feedforward
        if not isinstance(part, spec.FeedForward | spec.ConvFeedForward):
            raise SettingError(
                f"`feedforward_kernel_size` needs a FeedForward, not {type(part).__name__}",
                "remove it",
            )
        convolutions = spec.ConvFeedForward(
            part.d_ff, (width, 1), part.activation, part.dropout, part.bias
        )
        return replace(block, feedforward=convolutions)

    return _with_stacks(
        "feedforward_kernel_size", model, lambda stack: _with_blocks(stack, of_block)
    )


def _projection(model: spec.Model, word: str, length: int) -> spec.Model:
    projection = _word("projection", word, PROJECTIONS)

    def of_block(block: spec.Block) -> spec.Block:
        return replace(block, attention=replace(block.attention, projection=projection))

    return _with_stacks("projection", model, lambda stack: _with_blocks(stack, of_block))


def _position(model: spec.Model, word: str, length: int) -> spec.Model:
    positions = parse_position(word, length)
    if isinstance(model, spec.Encoder) and isinstance(model.input, spec.Patches):
        kind = _word("position of image patches", word, ("learned", "sinusoidal"))
        return replace(model, input=replace(model.input, position=kind))
    if isinstance(model, spec.Encoder) and isinstance(model.input, spec.SeriesPatches):
        kind = _word("position of time patches", word, ("learned", "sinusoidal"))
        position: Any = "learned" if kind == "learned" else "fixed"
        return replace(model, input=replace(model.input, position=position))
    _check_has_positions(model)

    def of_front_end(part: Any) -> Any:
        at_input = positions.at_input
        # The same kind with its own length and offset: 1,500 frames of Whisper, RoBERTa's rows.
        if isinstance(at_input, spec.LearnedPosition):
            if isinstance(part.position, spec.LearnedPosition):
                return part
            if isinstance(part.position, spec.FixedPosition):
                at_input = spec.LearnedPosition(part.position.length)
        return replace(part, position=at_input)

    def of_stack(stack: spec.Stack) -> spec.Stack:
        stack = stack.with_blocks(position=positions.inside)
        if not isinstance(stack.scheme, spec.Universal):
            return stack
        # A Universal Transformer adds sinusoids at each step; these other positions replace.
        return replace(stack, scheme=replace(stack.scheme, timing=False))

    # Front ends first: a segment memory allows no positions there.
    return _with_stacks("position", _with_front_ends(model, of_front_end), of_stack)


def _check_has_positions(model: spec.Model) -> None:
    """Refuses models whose positional encoding is fixed by their architecture."""
    match model:
        case spec.Encoder(input=spec.Waveform()):
            raise SettingError(
                "models of waveforms have a convolutional positional embedding",
                "remove `position`",
            )
        case spec.Encoder(input=spec.NodeFeatures()):
            raise SettingError(
                "the nodes of a graph have no order",
                "remove `position`; `laplacian`, `degrees` and `distances` encode the structure",
            )
        case spec.SeriesEncoderDecoder():
            raise SettingError(
                "an encoder–decoder of time series has sinusoidal positions", "remove `position`"
            )
        case spec.DualEncoder():
            raise SettingError(
                "both towers of a dual encoder have learned positions", "remove `position`"
            )


def _memory(model: spec.Model, positions: int, length: int) -> spec.Model:
    if not isinstance(model, spec.Decoder):
        raise SettingError(
            "only decoder-only language models support a segment memory", "remove `memory`"
        )
    stack = model.stack
    # Positions at the input would begin anew in each segment (Transformer-XL, Section 3.3).
    if model.tokens.position is not None or stack.block.position is None:
        tokens = replace(model.tokens, position=None)
        stack = stack.with_blocks(position=spec.RelativeSinusoids())
        model = replace(model, tokens=tokens, stack=stack)
    compressed = stack.scheme.compressed if isinstance(stack.scheme, spec.Segments) else None
    return replace(model, stack=_with_scheme(stack, spec.Segments(positions, compressed)))


def _compressed(model: spec.Model, option: str, length: int) -> spec.Model:
    if not isinstance(model, spec.Decoder):
        raise SettingError(
            "only decoder-only language models support a compressive memory", "remove `compressed`"
        )
    compressed = parse_compressed_memory(option)
    scheme = model.stack.scheme
    if not isinstance(scheme, spec.Segments):
        raise SettingError("`compressed` needs a segment memory", "set `memory`")
    scheme = replace(scheme, compressed=compressed)
    return replace(model, stack=replace(model.stack, scheme=scheme))


def _attention(model: spec.Model, option: str, length: int) -> spec.Model:
    return _with_stacks("attention", model, lambda stack: _with_attention(stack, option, length))


def _decoder_attention(model: spec.Model, option: str, length: int) -> spec.Model:
    if not isinstance(model, spec.EncoderDecoder):
        raise SettingError(
            "`decoder_attention` needs an encoder–decoder", "set `attention` instead"
        )
    return replace(model, decoder=_with_attention(model.decoder, option, length))


def _with_attention(stack: spec.Stack, option: str, length: int) -> spec.Stack:
    mixer, _ = parse_attention(option)

    def of_block(block: spec.Block) -> spec.Block:
        dropout = block.attention.mixer.dropout
        # Linear attention does not compute weights, so the family's dropout does not apply.
        if isinstance(mixer, spec.LinearAttention):
            dropout = 0.0
        softmax = replace(
            block.attention,
            mixer=spec.SoftmaxAttention(dropout),
            projection="apart",
            global_tokens=None,
        )
        causal = spec.is_causal(block.pattern)
        attention, pattern = self_attention(option, softmax, length, causal=causal)
        # The bias for repeated blocks belongs to the pattern that is replaced (BigBird).
        position = block.position
        if isinstance(position, spec.RepeatedBlockBias):
            position = None
        return replace(block, attention=attention, pattern=pattern, position=position)

    return _with_blocks(stack, of_block)


def _share(model: spec.Model, word: str, length: int) -> spec.Model:
    share = _word("tie_embeddings", word, SHARES)
    if isinstance(model, spec.EncoderDecoder | spec.SequenceToSequence):
        model = replace(model, share=share)
        return model if model.head is None else model.with_head(_untied_head(model.head, word))
    others = (
        spec.DualEncoder | spec.MemoryNetwork | spec.LinearForecaster | spec.SeriesEncoderDecoder
    )
    if isinstance(model, others) or model.head is None:
        raise SettingError(
            "this model has no output matrix to tie to the embedding", "remove `tie_embeddings`"
        )
    # With one embedding, `all` and `target` are the same: it is the output matrix too.
    tied = replace(model, tied=word != "none")
    return tied.with_head(_untied_head(model.head, word))


def _forecast(model: spec.Model, option: str, length: int) -> spec.Model:
    output = parse_forecast(option)
    if isinstance(model, spec.LinearForecaster):
        if isinstance(output, spec.Distribution):
            raise SettingError(
                f"a linear forecaster forecasts points or quantiles, not {option}",
                "set forecast = points, or quantiles:0.1:0.5:0.9",
            )
        return replace(model, output=output)
    if isinstance(model, spec.Encoder) and isinstance(model.series, spec.ForecastHead):
        return model.with_head(replace(model.series, output=output))
    if isinstance(model, spec.SeriesEncoderDecoder):
        if not isinstance(output, spec.Distribution):
            raise SettingError(
                f"an encoder–decoder of time series forecasts a distribution, not {option}",
                "set forecast = student_t, normal or negative_binomial",
            )
        return replace(model, output=output)
    raise SettingError("this model does not forecast", "remove `forecast`")


def _scales(model: spec.Model, option: str, length: int) -> spec.Model:
    scales = parse_scales(option)
    if isinstance(model, spec.Encoder) and isinstance(model.input, spec.SeriesPatches):
        return replace(model, input=replace(model.input, scales=scales))
    raise SettingError("`scales` needs a model of time-series patches", "remove `scales`")


def _untied_head(head: spec.LMHead, share: str) -> spec.LMHead:
    """T5 and PaLM scale the logits only where the matrix is the embedding."""
    return replace(head, scale=1.0) if share == "none" else head


def _target_vocabulary(model: spec.Model, vocabulary: int, length: int) -> spec.Model:
    if not isinstance(model, spec.EncoderDecoder | spec.SequenceToSequence):
        raise SettingError(
            "`target_vocabulary` needs an encoder–decoder", "remove `target_vocabulary`"
        )
    target = replace(model.target, vocabulary=vocabulary)
    share = model.share
    if share == "all" and vocabulary != model.target.vocabulary:
        share = "target"  # two vocabularies cannot have one matrix
    return replace(model, target=target, share=share)


Change = Callable[[Any, Any, int], spec.Model]
# By their names, in the order in which they are made.
CHANGES: dict[str, Change] = {
    "target_vocabulary": _target_vocabulary,
    "tie_embeddings": _share,
    "d_ff": _d_ff,
    "activation": _activation,
    "dropout": _dropout,
    "feedforward_dropout": _feedforward_dropout,
    "feedforward_kernel_size": _kernel,
    "norm": _norm,
    "residual": _residual,
    "drop_path": _drop_path,
    "position": _position,
    "attention": _attention,
    "decoder_attention": _decoder_attention,
    "projection": _projection,
    "attention_dropout": _attention_dropout,
    "memory": _memory,
    "compressed": _compressed,
    "forecast": _forecast,
    "scales": _scales,
}

# ------------------------------------------------------------------ parts of any wiring


def _with_stacks(
    key: str, model: spec.Model, change: Callable[[spec.Stack], spec.Stack]
) -> spec.Model:
    match model:
        case spec.EncoderDecoder() | spec.SeriesEncoderDecoder():
            encoder = change(model.encoder)
            decoder = change(model.decoder)
            return replace(model, encoder=encoder, decoder=decoder)
        case spec.Encoder():
            return replace(model, stack=change(model.stack))
        case spec.Decoder():
            return replace(model, stack=change(model.stack))
        case spec.DualEncoder(text, image):
            text = replace(text, stack=change(text.stack))
            image = replace(image, stack=change(image.stack))
            return replace(model, text=text, image=image)
        case _:
            raise SettingError(
                f"{key} is a setting of Transformers, not of recurrent, convolutional and memory "
                "networks",
                f"remove `{key}`",
            )


def _with_blocks(stack: spec.Stack, change: Callable[[spec.Block], spec.Block]) -> spec.Stack:
    return replace(stack, blocks=tuple(map(change, stack.blocks)))


def _with_scheme(stack: spec.Stack, scheme: spec.Scheme) -> spec.Stack:
    if not isinstance(stack.scheme, spec.Plain | type(scheme)):
        names = (type(stack.scheme).__name__, type(scheme).__name__)
        raise SettingError(f"a stack cannot be {names[0]} and {names[1]}", "choose one of them")
    return replace(stack, scheme=scheme)


def _with_front_ends(model: spec.Model, change: Callable[[Any], Any]) -> spec.Model:
    match model:
        case spec.EncoderDecoder():
            return replace(model, source=change(model.source), target=change(model.target))
        case spec.Encoder() | spec.SeriesEncoderDecoder():
            return replace(model, input=change(model.input))
        case spec.Decoder():
            return replace(model, tokens=change(model.tokens))
        case spec.DualEncoder(text, image):
            text = replace(text, input=change(text.input))
            image = replace(image, input=change(image.input))
            return replace(model, text=text, image=image)
        case _:
            return model
