"""From a spec to the module summaries of its page, top to bottom.

Counts come from the model built on the meta device: a model of 540 billion parameters takes
no memory and is described at once. The summaries of a page add up to the whole model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from regard import spec
from regard.parameter_count import parameter_count
from regard.show import wording
from regard.show.stack import summarize_stack
from regard.show.summary import ModuleSummary, ParameterCounts


def summarize(model: spec.Model) -> list[ModuleSummary]:
    """The modules of a model, in the order in which the data passes through them."""
    counts = ParameterCounts.of(model)
    match model:
        case spec.EncoderDecoder() | spec.SequenceToSequence():
            return _encoder_decoder(model, counts)
        case spec.SeriesEncoderDecoder():
            return _series_encoder_decoder(model, counts)
        case spec.Encoder():
            return _encoder(model, counts)
        case spec.RecurrentEncoder():
            return _recurrent_encoder(model, counts)
        case spec.Decoder() | spec.RecurrentDecoder():
            return _decoder(model, counts)
        case spec.DualEncoder(text, image):
            text_tower = tuple(_encoder(text, counts.under("text")))
            image_tower = tuple(_encoder(image, counts.under("image")))
            cosine = "cosine of both vectors × e^scale"
            if model.bias:  # SigLIP
                cosine += " + bias"
            own_parameters = counts["scale"] + counts["bias"]
            return [
                ModuleSummary("text tower", children=text_tower),
                ModuleSummary("image tower", children=image_tower),
                ModuleSummary("scores", cosine, "[texts, images]", own_parameters),
            ]
        case spec.MemoryNetwork():
            return _memory_network(model, counts)
        case spec.LinearForecaster():
            return _linear_forecaster(model, counts)


# ------------------------------------------------------------------ architectures


def _encoder_decoder(
    model: spec.EncoderDecoder | spec.SequenceToSequence, counts: ParameterCounts
) -> list[ModuleSummary]:
    d_model = model.d_model
    source_note = {
        "all": "one matrix for source, target and output",
        "inputs": "one matrix for source and target",
    }.get(model.share, "")
    # Section 3.4 of the paper: source, target and output may share one matrix.
    target_note = "the source's matrix" if model.share in ("all", "inputs") else ""
    tied = model.share in ("all", "target")
    encoder = (
        *_front_end(model.source, d_model, "S", counts.under("source"), source_note),
        _encoder_or_decoder(model, "encoder", counts.under("encoder")),
        ModuleSummary("memory", "what the decoder attends to", "[B, S, D]"),
    )
    if isinstance(model, spec.EncoderDecoder) and model.labels is not None:
        head = iter(_classifier(model, counts))
    else:
        vocabulary = model.target.vocabulary
        head = _lm_head(model.head, vocabulary, d_model, counts.under("head"), tied=tied)
    decoder = (
        *_front_end(model.target, d_model, "T", counts.under("target"), target_note),
        _encoder_or_decoder(model, "decoder", counts.under("decoder")),
        *head,
    )
    return [
        ModuleSummary("encoder side", children=encoder),
        ModuleSummary("decoder side", children=decoder),
    ]


def _series_encoder_decoder(
    model: spec.SeriesEncoderDecoder, counts: ParameterCounts
) -> list[ModuleSummary]:
    part = model.input
    window = ModuleSummary("window", "values", f"[B, {part.past}, {part.channels}]")
    lagged = ModuleSummary("lagged values", wording.lagged_values(part), "", counts["input"])
    linear = f"{part.width} → {model.d_model:,}; + sinusoids; {wording.norm(part.norm)}"
    sides = []
    for name, stack, length, memory in (
        ("encoder", model.encoder, "S", ""),
        ("decoder", model.decoder, "T", "S"),
    ):
        front = "source" if name == "encoder" else "target"
        shape = f"[B, {length}, D]"
        embedding = ModuleSummary("embedding", linear, shape, counts[front])
        inner = counts.under(name)
        layers = summarize_stack(name, stack, model.d_model, inner, length, memory)
        sides.append((embedding, layers))
    encoder = (window, lagged, *sides[0])
    future = f"lagged values, its own from the second of {model.horizon} steps on"
    decoder = [ModuleSummary("steps", future, f"[B, {model.horizon}, {part.width}]"), *sides[1]]
    if model.output is not None:
        text = f"{model.output.parameters} parameters of a {model.output.name}, for each step"
        shape = f"[B, T, {part.channels}]"
        decoder.append(ModuleSummary("distribution", text, shape, counts["series"]))
    return [
        ModuleSummary("encoder side", children=encoder),
        ModuleSummary("decoder side", children=tuple(decoder)),
    ]


def _encoder_or_decoder(
    model: spec.EncoderDecoder | spec.SequenceToSequence, name: str, counts: ParameterCounts
) -> ModuleSummary:
    if name == "encoder":
        part = model.encoder
        length = "S"
        memory = ""
    else:
        part = model.decoder
        length = "T"
        memory = "S"  # the length of what cross-attention looks at
    match part:
        case spec.Stack():
            return summarize_stack(name, part, model.d_model, counts, length, memory)
        case spec.Convolutional():
            return _convolutional(name, part, counts, length)
        case spec.Recurrent():
            return _recurrent(name, part, counts, length, memory, _attention_count(model, name))


def _attention_count(model: spec.EncoderDecoder | spec.SequenceToSequence, name: str) -> int:
    """What attention costs a recurrent decoder: also the weights by which cells read its result."""
    if name == "encoder" or not isinstance(model.decoder, spec.Recurrent):
        return 0
    assert isinstance(model, spec.SequenceToSequence)
    without = replace(model, decoder=replace(model.decoder, looks=None))
    return parameter_count(model) - parameter_count(without)


def _encoder(model: spec.Encoder, counts: ParameterCounts) -> list[ModuleSummary]:
    d_model = model.d_model
    modules = [
        *_front_end(model.input, d_model, "T", counts.under("input")),
        summarize_stack("encoder", model.stack, d_model, counts.under("stack"), "T"),
    ]
    if model.head is not None:
        width = model.stack.width(d_model)
        vocabulary = model.tokens.vocabulary
        head_counts = counts.under("head")
        modules += _lm_head(model.head, vocabulary, width, head_counts, tied=model.tied)
    if model.series is not None:
        text = wording.named(model.series)
        modules.append(ModuleSummary("series head", text, "", counts["series"]))
    if isinstance(model.pixels, spec.PixelDecoder):
        modules.append(_pixel_decoder(model.pixels, model, counts.under("pixels")))
    if isinstance(model.pixels, spec.PixelShuffleHead):
        width = model.stack.width(d_model)
        text = wording.pixel_shuffle(model.pixels, model.patches.channels, width)
        modules.append(ModuleSummary("pixel shuffle head", text, "", counts["pixels"]))
    return [*modules, *_classifier(model, counts)]


def _pixel_decoder(
    part: spec.PixelDecoder, model: spec.Encoder, counts: ParameterCounts
) -> ModuleSummary:
    """The decoder of a masked autoencoder, which is wider or narrower than its encoder."""
    patches = model.patches
    project = f"{model.d_model:,} → {part.d_model:,}"
    pixels = patches.channels * patches.patch**2
    share = f"{patches.masked_share:.0%} of the patches are a learned vector; fixed positions"
    visible = counts["project"] + counts["mask_token"]
    hidden = f"[B, T, {part.d_model:,}]"
    children = (
        ModuleSummary("embedding", f"{project}; {share}", hidden, visible),
        summarize_stack("decoder", part.stack, part.d_model, counts.under("stack"), "T"),
        ModuleSummary("output", f"{part.d_model:,} → {pixels:,} pixels", "", counts["output"]),
    )
    return ModuleSummary("pixel decoder", children=children)


def _recurrent_encoder(
    model: spec.RecurrentEncoder, counts: ParameterCounts
) -> list[ModuleSummary]:
    return [
        *_front_end(model.input, model.d_model, "T", counts.under("input")),
        _recurrent("encoder", model.stack, counts.under("stack"), "T"),
        *_classifier(model, counts),
    ]


def _classifier(
    model: spec.Encoder | spec.RecurrentEncoder | spec.EncoderDecoder, counts: ParameterCounts
) -> list[ModuleSummary]:
    """The pooled vector and the classification head."""
    modules = []
    if model.pool is not None:
        shape = "[B, D]"  # one vector a row
        if model.pool.width:
            shape = f"[B, {model.pool.width:,}]"
        elif model.pool.which == "first_and_mean":
            shape = "[B, 2·D]"
        modules.append(ModuleSummary("pool", wording.pool(model.pool), shape, counts["pool"]))
    match model.labels:
        case spec.ClassifierHead(classes):
            # Token classification, or one class for each row.
            shape = f"[B, T, {classes}]" if model.labels.each else f"[B, {classes}]"
            text = wording.classifier(model.labels)
            modules.append(ModuleSummary("labels", text, shape, counts["labels"]))
        case spec.DistilledHead(classes):  # DeiT
            text = wording.classifier(model.labels)
            modules.append(ModuleSummary("votes", text, f"[B, {classes}]", counts["labels"]))
    return modules


def _decoder(
    model: spec.Decoder | spec.RecurrentDecoder, counts: ParameterCounts
) -> list[ModuleSummary]:
    d_model = model.d_model
    width = d_model
    if isinstance(model, spec.Decoder):
        width = model.stack.width(d_model)  # a reversible stack may give both its streams
        decoder = summarize_stack("decoder", model.stack, d_model, counts.under("stack"), "T")
    else:
        decoder = _recurrent("decoder", model.stack, counts.under("stack"), "T")
    vocabulary = model.tokens.vocabulary
    return [
        *_front_end(model.tokens, d_model, "T", counts.under("tokens")),
        decoder,
        *_lm_head(model.head, vocabulary, width, counts.under("head"), tied=model.tied),
    ]


def _memory_network(model: spec.MemoryNetwork, counts: ParameterCounts) -> list[ModuleSummary]:
    tables = model.hops + 1  # adjacent weight sharing: a hop's output table is the next's input
    sizes = f"{tables} of {model.vocabulary:,} × {model.d_model:,}"
    ages = f"{tables} of {model.sentences} × {model.d_model:,}"
    hop = "u + softmax(u · m) · c: u the query, m and c the embedded sentences"
    return [
        ModuleSummary("question", "sum of word embeddings, weighted by position", "[B, D]"),
        ModuleSummary("tables", f"{sizes}, shared by adjacent hops", "", counts["hops.tables"]),
        ModuleSummary("ages", ages, "", counts["hops.ages"]),
        ModuleSummary("hop", hop, "[B, N]", times=model.hops),
        ModuleSummary("head", "the last table", "[B, V]"),
    ]


def _linear_forecaster(
    model: spec.LinearForecaster, counts: ParameterCounts
) -> list[ModuleSummary]:
    window = f"[B, {model.length}, {model.channels}]"
    text = f"a linear map to {model.horizon} steps, for all channels"
    forecast = f"[B, {model.horizon}, {model.channels}]"
    if model.moving_average is None:
        less = ModuleSummary("window", "minus its last value, which is added back", window)
        return [less, ModuleSummary("forecast", text, forecast, counts["seasonal"])]
    trend = f"mean of {model.moving_average} steps: {text}"
    return [
        ModuleSummary("window", wording.named(model.output), window),
        ModuleSummary("trend", trend, forecast, counts["trend"]),
        ModuleSummary("rest", text, forecast, counts["seasonal"]),
    ]


# ------------------------------------------------------------------ front ends


def _front_end(
    part: spec.FrontEnd, d_model: int, length: str, counts: ParameterCounts, note: str = ""
) -> Iterator[ModuleSummary]:
    """The input of a model, and the module that makes hidden states of it.

    `note` follows the size of a token embedding: which other matrices it is.
    """
    shape = f"[B, {length}, D]"
    match part:
        case spec.Tokens():
            yield ModuleSummary("tokens", "ids", f"[B, {length}]")
            yield _embedding(part, d_model, length, counts, note)
        case spec.Patches():
            yield ModuleSummary("pixels", "", f"[B, {part.channels}, {part.size}, {part.size}]")
            text = f"{wording.patches(part)}; {length} = {part.positions}"
            yield ModuleSummary("patches", text, shape, counts.total)
        case spec.Spectrogram():
            frames = f"{part.mels} mels of N frames"
            yield ModuleSummary("spectrogram", frames, f"[B, {part.mels}, N]")
            activation = wording.activation(part.activation)
            text = f"two over 3 frames, {activation}; {length} = ⌈N / 2⌉; positions: "
            text += wording.position(part.position)
            yield ModuleSummary("convolutions", text, shape, counts.total)
        case spec.Waveform():
            yield ModuleSummary("sound", "samples", "[B, N]")
            text = wording.waveform(part, d_model)
            yield ModuleSummary("convolutions", text, shape, counts.total)
        case spec.NodeFeatures(features):
            yield ModuleSummary("nodes", "features", f"[B, {length}, {features}]")
            yield ModuleSummary("embedding", wording.node_features(part), shape, counts.total)
        case spec.SeriesPatches():
            yield ModuleSummary("window", "values", f"[B, {part.length}, {part.channels}]")
            text = f"{wording.series_patches(part)}; {length} = {part.positions}"
            shape = f"[B·{part.channels}, {length}, D]"
            yield ModuleSummary("patches", text, shape, counts.total)
        case _:  # a front end from outside the package
            name = type(part).__name__.lower()
            yield ModuleSummary(name, wording.named(part), shape, counts.total)


def _embedding(
    part: spec.Tokens, d_model: int, length: str, counts: ParameterCounts, note: str
) -> ModuleSummary:
    """The token embedding, with what is added to it and what follows it."""
    shape = f"[B, {length}, D]"
    width = part.width or d_model
    table_shape = shape
    symbol = "D"
    if part.width is not None:  # factorized: a narrow table, widened by a linear map (ALBERT)
        table_shape = f"[B, {length}, {width:,}]"
        symbol = f"{width:,}"
    text = f"{part.vocabulary:,} × {width:,}"
    if part.scale:  # section 3.4 of the paper
        text += f" × √{symbol}"
    if note:
        text += f", {note}"
    children = [ModuleSummary("token table", text, table_shape, counts["table"])]
    if part.segments:  # BERT's token types
        kinds = f"{part.segments} kinds"
        children.append(ModuleSummary("+ segments", kinds, "", counts["segments"]))
    if part.position is not None:
        positions = counts["position"]
        if part.width is None:  # concatenated positions are what there is a projection for
            positions += counts["project"]
        text = wording.position(part.position)
        children.append(ModuleSummary("+ positions", text, "", positions))
    if part.norm is not None:
        children.append(ModuleSummary("norm", wording.norm(part.norm), "", counts["norm"]))
    if part.width is not None:
        text = f"{width:,} → {d_model:,}"
        children.append(ModuleSummary("widen", text, shape, counts["project"]))
    return ModuleSummary("embedding", "", shape, children=tuple(children))


# ------------------------------------------------------------------ heads


def _lm_head(
    part: spec.LMHead, vocabulary: int, d_model: int, counts: ParameterCounts, *, tied: bool
) -> Iterator[ModuleSummary]:
    """The language-model head: hidden states to logits, perhaps through a transform."""
    width = d_model
    if part.transform is not None:  # BERT's masked-language-model head
        width = part.transform.width
        activation = wording.activation(part.transform.activation)
        text = f"{d_model:,} → {width:,}, {activation}, {wording.norm(part.transform.norm)}"
        symbol = "D" if width == d_model else str(width)
        yield ModuleSummary("transform", text, f"[B, T, {symbol}]", counts["transform"])
    text = f"{width:,} → {vocabulary:,}, "
    text += "the embedding's matrix" if tied else "a matrix of its own"
    if part.scale != 1:
        text += f" × {part.scale:.4g}"
    if part.bias is True:
        text += ", bias"
    yield ModuleSummary("head", text, "[B, T, V]", counts["table"] + counts["bias"])


# ------------------------------------------------------------------ recurrent and convolutional


def _convolutional(
    name: str, part: spec.Convolutional, counts: ParameterCounts, length: str
) -> ModuleSummary:
    shape = f"[B, {length}, D]"
    text = wording.named(part.unit)
    if part.dropout:
        text += f"; dropout {part.dropout:g}"
    # ConvS2S has attention in every layer; ByteNet aligns source and target positions.
    from_memory = counts["glances"] + counts["aligned"]
    convolutions = counts.total - from_memory
    children = [ModuleSummary("convolutions", text, shape, convolutions, times=part.layers)]
    if part.sees is not None:
        text = {
            "attention": "each layer attends to the memory",
            "aligned": "position t reads position t of the memory",
        }[part.sees]
        children.append(ModuleSummary("memory", text, shape, from_memory))
    return ModuleSummary(name, "", shape, children=tuple(children))


def _recurrent(
    name: str,
    part: spec.Recurrent,
    counts: ParameterCounts,
    length: str,
    memory: str = "",
    attention_count: int = 0,
) -> ModuleSummary:
    """A recurrent encoder or decoder; `memory` is the length that a decoder attends to."""
    shape = f"[B, {length}, D]"
    children = []
    if memory:  # the decoder starts from the encoder's last state
        text = "initial state: tanh of a linear map of the last encoder state"
        children.append(ModuleSummary("bridge", text, "[B, D]", counts["bridge"]))
    if part.looks is not None:
        scores = f"[B, {length}, {memory}]"
        text = wording.recurrent_attention(part.looks)
        children.append(ModuleSummary("attention", text, scores, attention_count))
    direction = "forward"
    if part.bidirectional:
        direction = "bidirectional, half the width each"
    text = f"{part.layers} of {part.cell}, {direction}"
    if part.dropout:
        text += f"; dropout {part.dropout:g}"
    cells = counts.total - counts["bridge"] - attention_count
    children.append(ModuleSummary("cells", text, shape, cells))
    return ModuleSummary(name, "", shape, children=tuple(children))
