"""How large a model is, by formula, from its spec alone: nothing is built and torch is not imported."""

from __future__ import annotations

from operator import mul

from regard import spec


def parameters(model: spec.Model) -> int:
    """Trainable numbers of the whole model, shared matrices counted once."""
    if isinstance(model, spec.DualEncoder):
        return parameters(model.text) + parameters(model.image) + 1
    if isinstance(model, spec.MemoryNetwork):
        return (model.hops + 1) * (model.vocabulary + model.sentences) * model.d_model
    d = model.d_model
    if isinstance(model, spec.EncoderDecoder | spec.SequenceToSequence):
        table = model.target.vocabulary * d
        inputs = _front_end(model.source, d) - (table if model.share in ("all", "inputs") else 0)
        output = _head(model.head, model.target.vocabulary, d) + (
            0 if model.share in ("all", "target") else table
        )
        return inputs + _front_end(model.target, d) + _sides(model) + output
    front = model.input if isinstance(model, spec.Encoder) else model.tokens
    inside, output = model.stack, 0
    wide = inside.width(d) if isinstance(inside, spec.Stack) else d
    if isinstance(front, spec.Tokens) and model.head is not None:
        width = model.head.transform.width if model.head.transform else wide
        output = _head(model.head, front.vocabulary, wide) + (
            0 if model.tied else front.vocabulary * width
        )
    if isinstance(model, spec.Encoder):
        output += _pool(model.pool, wide, d) + _labels(model.labels, model.scored)
    layers = (
        part_of_sequences(inside, d) if isinstance(inside, spec.Recurrent) else stack(inside, d)
    )
    return _front_end(front, d) + layers + output


def _sides(model: spec.EncoderDecoder | spec.SequenceToSequence) -> int:
    if isinstance(model, spec.EncoderDecoder):
        return stack(model.encoder, model.d_model) + stack(model.decoder, model.d_model)
    return part_of_sequences(model.encoder, model.d_model) + part_of_sequences(
        model.decoder, model.d_model, decodes=True
    )


def part_of_sequences(
    part: spec.Recurrent | spec.Convolutional, d_model: int, *, decodes: bool = False
) -> int:
    """One side of a model that came before stacks; a recurrent decoder has a bridge to its first state."""
    d = d_model
    if isinstance(part, spec.Convolutional):
        seen = {"attention": part.layers * 2 * (d * d + d), "aligned": 2 * d * d + d}.get(
            part.sees or "", 0
        )
        return (
            part.layers * _unit(part.unit, d)
            + seen
            + (2 * d if isinstance(part.unit, spec.BottleneckUnit) else 0)
        )
    looks = part.looks
    told = isinstance(looks, spec.BahdanauAttention) or (
        isinstance(looks, spec.LuongAttention) and looks.feeding
    )
    layers = cells(part.cell, 2 * d if told else d, d) + (part.layers - 1) * cells(part.cell, d, d)
    if part.bidirectional:
        layers = part.layers * 2 * cells(part.cell, d, d // 2)
    bridge = (2 if part.cell == "lstm" else 1) * part.layers * (d * d + d) if decodes else 0
    return layers + bridge + (_score(looks.score, d) + 2 * d * d + d if looks else 0)


def cells(kind: str, inputs: int, width: int) -> int:
    """One layer: for each gate the maps of the input and of the state, with a bias each."""
    return {"rnn": 1, "gru": 3, "lstm": 4}[kind] * width * (inputs + width + 2)


def _score(part: spec.AttentionScore, d: int) -> int:
    match part:
        case spec.GeneralScore():
            return d * d
        case spec.AdditiveScore(given):
            width = given or d
            return 2 * d * width + 2 * width
        case _:
            return 0


def _unit(part: spec.GatedUnit | spec.BottleneckUnit, d: int) -> int:
    if isinstance(part, spec.GatedUnit):
        return 2 * d * (part.kernel * d + 1)
    half = d // 2
    norms = 2 * (d + half + half)
    return norms + d * half + half + half * (part.kernel * half + 1) + half * d + d


def stack(part: spec.Stack, d_model: int) -> int:
    blocks = sum(block(each, d_model) for each in part.own)
    attentions = [part.block.attention] + ([part.block.cross] if part.block.cross else [])
    blocks += sum(_lengths(each) for each in attentions if _shared_lengths(each))
    if part.compressed is not None and part.compressed.function == "convolution":
        blocks += (
            (1 if part.shared else part.layers) * (part.compressed.factor * d_model + 1) * d_model
        )
    blocks += d_model + 1 if part.universal is not None and part.universal.halts else 0
    return (
        blocks
        + _stack_position(part, d_model)
        + _beside(part.beside, d_model)
        + _norm(part.final, part.width(d_model))
    )


def _stack_position(part: spec.Stack, d_model: int) -> int:
    match part.position:
        case spec.T5Bias(count):
            return count * part.block.attention.heads
        case spec.Disentangled(distance, buckets, norm=norm):
            return 2 * (buckets or distance) * d_model + _norm(norm, d_model)
        case spec.RelativeKeys(distance):
            return len(part.own) * (2 * distance + 1) * part.block.attention.d_k
        case spec.RelativeSinusoids():
            heads = sum(each.attention.heads for each in part.own)
            return (d_model + 2) * heads * part.block.attention.d_k
        case _:
            return 0


def _beside(part: spec.ConvLayer | None, d_model: int) -> int:
    if part is None:
        return 0
    return d_model * (d_model // part.groups) * part.width + d_model + _norm(part.norm, d_model)


def block(part: spec.Block, d_model: int) -> int:
    attentions = [part.attention] + ([part.cross] if part.cross else [])
    norms = part.residual.norms if isinstance(part.residual, spec.Parallel) else len(attentions) + 1
    return (
        sum(attention(a, d_model) for a in attentions)
        + feedforward(part.feedforward, d_model)
        + norms * _norm(part.norm, d_model)
    )


def attention(part: spec.Attention, d_model: int) -> int:
    """W_Q, W_K, W_V and W_O (Section 3.2.2), with the biases they have, and what the mixer has for itself."""
    widths = {"q": part.heads * part.d_k, "v": part.key_heads * part.d_v}
    if part.projection != "shared":
        widths["k"] = part.key_heads * part.d_k
    sets = 2 if part.projection == "global" else 1
    inside = sum(
        d_model * width + (width if letter in part.bias else 0) for letter, width in widths.items()
    )
    output = part.heads * part.d_v * d_model + (d_model if "o" in part.bias else 0)
    return sets * inside + output + (0 if _shared_lengths(part) else _lengths(part))


def _shared_lengths(part: spec.Attention) -> bool:
    return isinstance(part.mixer, spec.Linformer) and part.mixer.share == "layers"


def _lengths(part: spec.Attention) -> int:
    """Projections of the length, of one layer or of all."""
    if not isinstance(part.mixer, spec.Linformer):
        return 0
    matrices = {"none": 2 * part.key_heads, "heads": 2, "both": 1, "layers": 1}[part.mixer.share]
    return matrices * part.mixer.rank * part.mixer.length


def feedforward(part: spec.PositionWise, d_model: int) -> int:
    if isinstance(part, spec.MixtureOfExperts):
        return part.count * (feedforward(part.inner, d_model) + d_model)
    inner = 2 if isinstance(part, spec.GatedFeedForward) else 1
    return (inner + 1) * d_model * part.d_ff + (inner * part.d_ff + d_model if part.bias else 0)


def _norm(part: spec.Norm | None, width: int) -> int:
    if part is None:
        return 0
    return 2 * width if isinstance(part, spec.LayerNorm) and part.bias else width


def _front_end(part: spec.FrontEnd, d_model: int) -> int:
    match part:
        case spec.Tokens():
            return part.vocabulary * (part.width or d_model) + _embedding(part, d_model)
        case spec.Spectrogram():
            convolutions = 3 * (part.mels + d_model) * d_model + 2 * d_model
            return convolutions + _rows(part.position) * d_model
        case spec.Waveform():
            return _waves(part, d_model)
        case spec.Patches():
            pixels = part.channels * part.patch**2
            positions = part.positions if part.position == "learned" else 0
            vectors = pixels + positions + part.extras + (1 if part.bias else 0)
            return vectors * d_model + _norm(part.norm, d_model)


def _waves(part: spec.Waveform, d_model: int) -> int:
    total, inputs = 0, 1
    for each in part.convolutions:
        norm = (
            2 * each.channels
            if isinstance(each.norm, spec.TimeNorm)
            else _norm(each.norm, each.channels)
        )
        total += each.channels * (inputs * each.kernel + (1 if each.bias else 0)) + norm
        inputs = each.channels
    project = _norm(part.features, inputs) + (inputs + 1) * d_model
    kernel = part.position.kernel
    position = d_model * (d_model // part.position.groups) * kernel + kernel + d_model
    return total + project + position + _norm(part.norm, d_model) + (d_model if part.masked else 0)


def _embedding(part: spec.Tokens, d_model: int) -> int:
    """What an embedding has beside its token table."""
    width = part.width or d_model
    whole = width + (
        part.position.width if isinstance(part.position, spec.ConcatenatedPosition) else 0
    )
    project = (whole + 1) * d_model if part.width or whole > width else 0
    axes = (
        sum(map(mul, part.position.shape, part.position.widths))
        if isinstance(part.position, spec.AxialPosition)
        else 0
    )
    return axes + (_rows(part.position) + part.segments) * width + _norm(part.norm, whole) + project


def _rows(part: spec.InputPosition | None) -> int:
    """How many trained vectors the positions have."""
    return part.length + part.offset if isinstance(part, spec.LearnedPosition) else 0


def _head(part: spec.LMHead, vocabulary: int, d_model: int) -> int:
    """What a head has beside its vocabulary matrix."""
    bias = vocabulary if part.bias is True else 0
    if part.transform is None:
        return bias
    width = part.transform.width
    return bias + d_model * width + width + _norm(part.transform.norm, width)


def _pool(part: spec.Pool | None, wide: int, d_model: int) -> int:
    if part is None:
        return 0
    dense = (wide + 1) * d_model if part.activation else 0
    return (
        _norm(part.norm, wide) + dense + (d_model if part.activation else wide) * (part.width or 0)
    )


def _labels(part: spec.ClassifierHead | spec.DistilledHead | None, d_model: int) -> int:
    if part is None:
        return 0
    if isinstance(part, spec.DistilledHead):
        return part.voters * part.count * (d_model + 1)
    hidden = d_model * d_model + d_model if part.hidden else 0
    return hidden + part.count * d_model + (part.count if part.bias else 0)
