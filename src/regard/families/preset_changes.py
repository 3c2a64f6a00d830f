"""Changes of a preset that hold for every wiring: attention, positions, norms, weight tying.

Sizes are changed where a family makes its spec; what follows here is changed in the spec itself,
so that encoders, decoders and encoder–decoders of all families understand the same words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from regard import spec
from regard.families.attention_options import parse_compressed_memory, self_attention
from regard.families.preset_settings import Settings
from regard.families.series.forecast_options import parse_forecast, parse_scales
from regard.system.errors import ModelError, SettingError, did_you_mean
from regard.system.options import parse_option

# ------------------------------------------------------------------ words


class Positions(NamedTuple):
    """Positional encodings: added at the input, or inside the attention of a stack."""

    at_input: spec.InputPosition | None = None
    inside: spec.StackPosition | None = None


POSITIONS: dict[str, Callable[..., Positions]] = {
    "sinusoidal": lambda: Positions(spec.Sinusoidal()),
    "interleaved": lambda: Positions(spec.Sinusoidal("interleaved")),
    "learned": lambda: Positions(spec.LearnedPosition()),
    "concatenated": lambda width=64: Positions(spec.ConcatenatedPosition(width)),
    # k = 16, as in Shaw et al., Section 4.1.
    "relative": lambda distance=16: Positions(inside=spec.RelativeKeys(distance)),
    "buckets": lambda count=32, distance=128: Positions(inside=spec.T5Bias(count, distance)),
    "alibi": lambda: Positions(inside=spec.Alibi()),
    "rope": lambda base=10_000: Positions(inside=spec.Rope(float(base))),
    "none": Positions,
}
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
    "instance": spec.InstanceNorm(),
}
# The words of settings that are one of several.
_WORDS: dict[str, Iterable[str]] = {
    "residual": RESIDUALS,
    "norm": NORMS,
    "projection": ("apart", "tied_qkv", "tied_qk", "tied_kv"),
    "tie_embeddings": ("all", "target", "none"),
    "stem": ("linear", "convolutional"),
}


def parse_position(option: str, length: int) -> Positions:
    """The positions that a word names; learned ones are `length` long.

    - `sinusoidal`: all sines, then all cosines, as the authors' code has them; `interleaved`: in
      the order of the paper's formula
    - `learned`, `concatenated:64` (so many sinusoids next to the embedding), `none`
    - inside attention: `relative:16` (Shaw et al. 2018, clipped to that distance), `buckets:32:128`
      (T5), `alibi`, `rope:10000`
    """
    positions = parse_option(
        option,
        POSITIONS,
        subject="position",
        usage="write it like learned, rope or relative:16",
        convert=int,
    )
    if isinstance(positions.at_input, spec.LearnedPosition):
        return Positions(spec.LearnedPosition(length))
    return positions


def _check_word(key: str, value: Any, words: Iterable[str]) -> None:
    if value not in words:
        raise SettingError(f"{key} cannot be {value!r}", did_you_mean(str(value), words))


# ------------------------------------------------------------------ the changes


def with_changes(model: spec.Model, length: int, changes: Settings) -> spec.Model:
    """The model with other positions, attention, norms, dropout or weight tying.

    `length` is the longest input, which learned positions and Linformer's projections depend on.
    An option that the kind of model does not have raises a `SettingError`.
    """
    try:
        for key, value in changes.items():
            _check_word(key, value, _WORDS.get(key, [value]))
        # In this order: a memory needs its positions, and attention the dropout that it keeps.
        for key, change in CHANGES.items():
            if key in changes:
                if key in _OF_STACKS and not model.stacks:
                    raise SettingError(
                        f"{key} is a setting of Transformers, not of recurrent, convolutional and "
                        "memory networks",
                        f"remove `{key}`",
                    )
                model = change(model, changes[key], length)
    except ModelError as error:
        # An invalid spec comes from a setting of the user.
        raise SettingError(error.problem, error.repair) from None
    return model


Change = Callable[[Any, Any, int], Any]


def _of_stacks(change: Change) -> Change:
    """A change of all stacks of a model."""

    def changed(model: spec.Model, value: Any, length: int) -> Any:
        stacks = {name: change(stack, value, length) for name, stack in model.stacks.items()}
        return model.with_stacks(stacks)

    return changed


def _of_blocks(change: Change) -> Change:
    """A change of all blocks of a model."""
    return _of_stacks(lambda stack, value, length: _with_blocks(stack, change, value, length))


def _with_blocks(stack: spec.Stack, change: Change, value: Any, length: int) -> spec.Stack:
    return replace(stack, blocks=tuple(change(block, value, length) for block in stack.blocks))


def _of_feedforward(field: str) -> Change:
    """A change of this field of all feed-forward networks, or of each expert's."""

    def changed(block: spec.Block, value: Any, length: int) -> spec.Block:
        part: Any = block.feedforward
        if isinstance(part, spec.MixtureOfExperts):
            return replace(
                block, feedforward=replace(part, inner=replace(part.inner, **{field: value}))
            )
        return replace(block, feedforward=replace(part, **{field: value}))

    return _of_blocks(changed)


def _with_front_ends(model: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(model, spec.DualEncoder):
        return replace(
            model,
            text=_with_front_ends(model.text, change),
            image=_with_front_ends(model.image, change),
        )
    names = {field.name for field in dataclasses.fields(model)}
    names &= {"input", "tokens", "source", "target"}
    return replace(model, **{name: change(getattr(model, name)) for name in names})


# ------------------------------------------------------------------ blocks and stacks


@_of_stacks
def _stack_dropout(stack: spec.Stack, probability: float, length: int) -> spec.Stack:
    return stack.with_blocks(dropout=probability)


def _dropout(model: spec.Model, probability: float, length: int) -> Any:
    changed = _stack_dropout(model, probability, length)
    return _with_front_ends(changed, lambda part: replace(part, dropout=probability))


@_of_blocks
def _attention_dropout(block: spec.Block, probability: float, length: int) -> spec.Block:
    cross = block.cross and _with_attention_dropout(block.cross, probability)
    attention = _with_attention_dropout(block.attention, probability)
    return replace(block, attention=attention, cross=cross)


def _with_attention_dropout(part: spec.Attention, probability: float) -> spec.Attention:
    if isinstance(part.mixer, spec.LinearAttention | spec.BuildsAttention):
        raise SettingError(
            f"{type(part.mixer).__name__} does not support attention_dropout",
            "remove `attention_dropout`",
        )
    return replace(part, mixer=replace(part.mixer, dropout=probability))


@_of_stacks
def _drop_path(stack: spec.Stack, probability: float, length: int) -> spec.Stack:
    scheme = stack.scheme
    if not isinstance(scheme, spec.Stages):
        return stack.with_blocks(drop_path=probability)
    rates = [scheme.drop_path(probability, layer) for layer in range(stack.layers)]
    pairs = zip(stack.blocks, rates, strict=True)
    return replace(stack, blocks=tuple(replace(block, drop_path=rate) for block, rate in pairs))


@_of_stacks
def _residual(stack: spec.Stack, word: str, length: int) -> spec.Stack:
    residual = RESIDUALS[word]
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


@_of_stacks
def _norm(stack: spec.Stack, word: str, length: int) -> spec.Stack:
    norm = NORMS[word]
    # A norm of the same kind keeps its family's ε.
    if isinstance(stack.block.norm, type(norm)):
        return stack
    return replace(stack.with_blocks(norm=norm), final=stack.final and norm)


@_of_blocks
def _kernel(block: spec.Block, width: int, length: int) -> spec.Block:
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


@_of_blocks
def _projection(block: spec.Block, word: Any, length: int) -> spec.Block:
    return replace(block, attention=replace(block.attention, projection=word))


def _with_attention(block: spec.Block, option: str, length: int) -> spec.Block:
    softmax = replace(
        block.attention,
        mixer=spec.SoftmaxAttention(block.attention.mixer.dropout),
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


def _decoder_attention(model: spec.Model, option: str, length: int) -> spec.Model:
    if not isinstance(model, spec.EncoderDecoder):
        raise SettingError(
            "`decoder_attention` needs an encoder–decoder", "set `attention` instead"
        )
    decoder = _with_blocks(model.decoder, _with_attention, option, length)
    return replace(model, decoder=decoder)


def _with_scheme(stack: spec.Stack, scheme: spec.Scheme) -> spec.Stack:
    if not isinstance(stack.scheme, spec.Plain | type(scheme)):
        names = (type(stack.scheme).__name__, type(scheme).__name__)
        raise SettingError(f"a stack cannot be {names[0]} and {names[1]}", "choose one of them")
    return replace(stack, scheme=scheme)


# ------------------------------------------------------------------ positions and memory


def _position(model: Any, word: str, length: int) -> Any:
    positions = parse_position(word, length)
    front_end = getattr(model, "input", None)
    if isinstance(front_end, spec.Patches | spec.SeriesPatches):
        _check_word("position of patches", word, ("learned", "sinusoidal"))
        of_series = isinstance(front_end, spec.SeriesPatches)
        kind: Any = "fixed" if of_series and word == "sinusoidal" else word
        return replace(model, input=replace(front_end, position=kind))
    architectural = spec.Waveform | spec.NodeFeatures | spec.LaggedValues | spec.Trajectories
    if isinstance(front_end, architectural) or isinstance(model, spec.DualEncoder):
        raise SettingError(
            "models of sounds, graphs, pairs, episodes and lags have positions of their own",
            "remove `position`; of graphs, `laplacian`, `degrees` and `distances` encode the "
            "structure",
        )
    changed = _with_front_ends(model, lambda part: _with_position(part, positions.at_input))
    # Front ends first: a segment memory allows no positions there.
    return _positions_inside(changed, positions.inside, length)


def _with_position(part: Any, position: spec.InputPosition | None) -> Any:
    # The same kind with its own length and offset: 1,500 frames of Whisper, RoBERTa's rows.
    if isinstance(position, spec.LearnedPosition):
        if isinstance(part.position, spec.LearnedPosition):
            return part
        if isinstance(part.position, spec.FixedPosition):
            position = spec.LearnedPosition(part.position.length)
    return replace(part, position=position)


@_of_stacks
def _positions_inside(
    stack: spec.Stack, position: spec.StackPosition | None, length: int
) -> spec.Stack:
    stack = stack.with_blocks(position=position)
    if not isinstance(stack.scheme, spec.Universal):
        return stack
    # A Universal Transformer adds sinusoids at each step; these other positions replace.
    return replace(stack, scheme=replace(stack.scheme, timing=False))


def _memory(model: spec.Model, positions: int, length: int) -> spec.Model:
    if not isinstance(model, spec.Decoder):
        raise SettingError(
            "only decoder-only language models support a segment memory", "remove `memory`"
        )
    stack = model.stack
    tokens = replace(model.tokens, position=None, segment_tokens=False)
    # Positions at the input would begin anew in each segment (Transformer-XL, Section 3.3).
    if model.tokens.position is not None or stack.block.position is None:
        stack = stack.with_blocks(position=spec.RelativeSinusoids())
    compressed = stack.scheme.compressed if isinstance(stack.scheme, spec.Segments) else None
    stack = _with_scheme(stack, spec.Segments(positions, compressed))
    return replace(model, tokens=tokens, stack=stack)


@_of_stacks
def _compressed(stack: spec.Stack, option: str, length: int) -> spec.Stack:
    compressed = parse_compressed_memory(option)
    if not isinstance(stack.scheme, spec.Segments):
        raise SettingError("`compressed` needs a segment memory", "set `memory`")
    return replace(stack, scheme=replace(stack.scheme, compressed=compressed))


# ------------------------------------------------------------------ embeddings and forecasts


def _share(model: Any, word: str, length: int) -> Any:
    is_pair = isinstance(model, spec.EncoderDecoder | spec.SequenceToSequence)
    if is_pair:
        model = replace(model, share=word)
    elif model.head is None:
        raise SettingError(
            "this model has no output matrix to tie to the embedding", "remove `tie_embeddings`"
        )
    else:
        # With one embedding, `all` and `target` are the same: it is the output matrix too.
        model = replace(model, tied=word != "none")
    if model.head is None or word != "none":
        return model
    # T5 and PaLM scale the logits only where the matrix is the embedding.
    return model.with_head(replace(model.head, scale=1.0))


def _target_vocabulary(model: spec.Model, vocabulary: int, length: int) -> spec.Model:
    if not isinstance(model, spec.EncoderDecoder | spec.SequenceToSequence):
        raise SettingError(
            "`target_vocabulary` needs an encoder–decoder", "remove `target_vocabulary`"
        )
    target = replace(model.target_tokens, vocabulary=vocabulary)
    share = model.share
    if share == "all" and vocabulary != model.target_tokens.vocabulary:
        share = "target"  # two vocabularies cannot have one matrix
    return replace(model, target=target, share=share)


def _forecast(model: spec.Model, option: str, length: int) -> spec.Model:
    output: Any = parse_forecast(option)
    if isinstance(model, spec.LinearForecaster | spec.SeriesEncoderDecoder):
        return replace(model, output=output)
    if isinstance(model, spec.Encoder) and isinstance(model.series, spec.ForecastHead):
        return model.with_head(replace(model.series, output=output))
    raise SettingError("this model does not forecast", "remove `forecast`")


def _scales(model: spec.Model, option: str, length: int) -> spec.Model:
    scales = parse_scales(option)
    match model:
        case spec.Encoder(input=(spec.SeriesPatches() | spec.Waveform() | spec.Spectrogram()) as x):
            return replace(model, input=replace(x, scales=scales))
        case spec.EncoderDecoder(source=spec.Spectrogram() as source):
            return replace(model, source=replace(source, scales=scales))
    raise SettingError("`scales` needs a model of time series or of sound", "remove `scales`")


def _stem(model: spec.Model, word: str, length: int) -> spec.Model:
    def changed(part: Any) -> Any:
        match part:
            case spec.TextAndImage():
                return replace(part, image=changed(part.image))
            case spec.Patches():
                return replace(part, convolutions=word == "convolutional")
        return part

    if not any(map(_has_patches, model.front_ends.values())):
        raise SettingError("`stem` needs a model that reads patches of images", "remove `stem`")
    return _with_front_ends(model, changed)


def _has_patches(part: Any) -> bool:
    return isinstance(part, spec.Patches | spec.TextAndImage)


# By their names, in the order in which they are made.
CHANGES: dict[str, Change] = {
    "target_vocabulary": _target_vocabulary,
    "tie_embeddings": _share,
    "d_ff": _of_feedforward("d_ff"),
    "activation": _of_feedforward("activation"),
    "dropout": _dropout,
    "feedforward_dropout": _of_feedforward("dropout"),
    "feedforward_kernel_size": _kernel,
    "norm": _norm,
    "residual": _residual,
    "drop_path": _drop_path,
    "position": _position,
    "attention": _of_blocks(_with_attention),
    "decoder_attention": _decoder_attention,
    "projection": _projection,
    "attention_dropout": _attention_dropout,
    "memory": _memory,
    "compressed": _compressed,
    "forecast": _forecast,
    "scales": _scales,
    "stem": _stem,
}
_OF_STACKS = CHANGES.keys() - {
    "target_vocabulary", "tie_embeddings", "decoder_attention", "memory", "forecast", "scales",
    "stem",
}  # fmt: skip
