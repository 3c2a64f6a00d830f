"""From a spec to the stations of its page. Nothing is built: a model of 70 billion parameters is described at once.

What a part counts is what the model would lack without it, by the formula of `size`; so the stations of a page add up to
the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from regard import size, spec
from regard.show import wording as words


@dataclass(frozen=True)
class Station:
    """One line of the page, or a group of them. `copies` is how often a group's parameters exist, `times` how often it is
    applied."""

    name: str
    text: str = ""
    shape: str = ""
    own: int = 0
    inside: tuple[Station, ...] = ()
    times: int = 1
    copies: int = 1

    @property
    def once(self) -> int:
        """Its parameters, if it were there once."""
        return self.own + sum(station.parameters for station in self.inside)

    @property
    def parameters(self) -> int:
        return self.copies * self.once


def stations(model: spec.Model) -> list[Station]:
    """Top to bottom, in the order in which the data passes them."""
    match model:
        case spec.EncoderDecoder() | spec.SequenceToSequence():
            return _encoder_decoder(model)
        case spec.Encoder():
            return _encoder(model)
        case spec.Decoder() | spec.RecurrentDecoder():
            return _decoder(model)
        case spec.DualEncoder(text, image):
            return [
                Station("text tower", inside=tuple(_encoder(text))),
                Station("image tower", inside=tuple(_encoder(image))),
                Station("scores", "cosine of both vectors × e^scale", "[texts, images]", 1),
            ]
        case spec.MemoryNetwork():
            return _memory(model)


def cache(model: spec.Model) -> int | None:
    """Numbers that decoding remembers of each token, if it decodes; what is carried or compressed does not grow."""
    if isinstance(model, spec.SequenceToSequence | spec.RecurrentDecoder):
        return 0
    if not isinstance(model, (spec.Decoder, spec.EncoderDecoder)):
        return None
    stack = model.stack if isinstance(model, spec.Decoder) else model.decoder
    if stack.compressed is not None:
        return 0
    attentions = [block.attention for block in stack.blocks]
    if any(
        isinstance(attention.mixer, spec.ChunkedAttention | spec.LshAttention)
        for attention in attentions
    ):
        return 0  # of the tokens alone, which are read anew
    return sum(attention.key_heads * (attention.d_k + attention.d_v) for attention in attentions)


def letters(model: spec.Model) -> dict[str, str]:
    """The letters of the shapes (`shapes.py`) with what they are in this model."""
    if isinstance(model, spec.DualEncoder):
        return {
            "B": "batch rows",
            "T": "positions",
            "D": f"{model.text.d_model:,} (text), {model.image.d_model:,} (image)",
        }
    if isinstance(model, spec.MemoryNetwork):
        return {
            "B": "batch rows",
            "N": "sentences",
            "D": f"{model.d_model:,}",
            "V": f"{model.vocabulary:,} tokens",
        }
    said = {"B": "batch rows", "T": "positions"}
    if isinstance(model, spec.SequenceToSequence):
        said |= {"T": "target positions", "S": "source positions", "D": f"{model.d_model:,}"}
        return said | {"V": f"{model.target.vocabulary:,} tokens"}
    if isinstance(model, spec.RecurrentDecoder):
        return said | {"D": f"{model.d_model:,}", "V": f"{model.tokens.vocabulary:,} tokens"}
    stack = model.decoder if isinstance(model, spec.EncoderDecoder) else model.stack
    if isinstance(model, spec.EncoderDecoder):
        said |= {"T": "target positions", "S": "source positions"}
    said |= {"D": f"{model.d_model:,}", "H": f"{stack.block.attention.heads} heads"}
    if stack.block.attention.key_heads != stack.block.attention.heads:
        said["G"] = f"{stack.block.attention.key_heads} key heads"
    said |= {"K": str(stack.block.attention.d_k), "F": f"{stack.block.feedforward.d_ff:,}"}
    tokens = (
        model.target
        if isinstance(model, spec.EncoderDecoder)
        else getattr(model, "input", None) or model.tokens
    )
    return said | (
        {"V": f"{tokens.vocabulary:,} tokens"} if isinstance(tokens, spec.Tokens) else {}
    )


# ------------------------------------------------------------------ wirings


def _encoder_decoder(model: spec.EncoderDecoder | spec.SequenceToSequence) -> list[Station]:
    d, share = model.d_model, model.share
    both, out = share in ("all", "inputs"), share in ("all", "target")
    note = {
        "all": "one matrix for source, target and output",
        "inputs": "one matrix for source and target",
    }.get(share, "")
    return [
        Station("encoder side", inside=(
            *_front(model.source, d, "S", note),
            _side("encoder", model.encoder, d, "S"),
            Station("memory", "what the decoder looks at", "[B, S, D]"),
        )),
        Station("decoder side", inside=(
            *_front(model.target, d, "T", "the source's matrix" if both else "", shared=both),
            _side("decoder", model.decoder, d, "T", memory="S"),
            *_head(model.head, model.target.vocabulary, d, "T", tied=out),
        )),
    ]  # fmt: skip


def _memory(model: spec.MemoryNetwork) -> list[Station]:
    words, ages = model.vocabulary * model.d_model, model.sentences * model.d_model
    return [
        Station("question", "sum of its words, each weighed by its place", "[B, D]"),
        Station("tables", f"{model.hops + 1} of {model.vocabulary:,} × {model.d_model:,}, a hop takes from the next one", "",
                (model.hops + 1) * words),
        Station("ages", f"{model.hops + 1} of {model.sentences} × {model.d_model:,}", "", (model.hops + 1) * ages),
        Station("hop", "what is known + softmax(known · sentences) · sentences", "[B, N]", times=model.hops),
        Station("head", "the last table", "[B, V]"),
    ]  # fmt: skip


def _decoder(model: spec.Decoder | spec.RecurrentDecoder) -> list[Station]:
    wide = model.stack.width(model.d_model) if isinstance(model, spec.Decoder) else model.d_model
    return [
        *_front(model.tokens, model.d_model, "T"),
        _side("decoder", model.stack, model.d_model, "T"),
        *_head(model.head, model.tokens.vocabulary, wide, "T", tied=model.tied),
    ]


def _encoder(model: spec.Encoder) -> list[Station]:
    found = [
        *_front(model.input, model.d_model, "T"),
        _stack("encoder", model.stack, model.d_model, "T"),
    ]
    bare = replace(model, labels=None)
    if model.head is not None:
        wide = model.stack.width(model.d_model)
        found += _head(model.head, model.tokens.vocabulary, wide, "T", tied=model.tied)
    if model.pool is not None:
        found.append(
            Station("pool", _pool(model.pool), _pooled(model.pool), _lacks(bare, pool=None))
        )
    match model.labels:
        case spec.ClassifierHead(count, task, hidden):
            text = (
                f"{task}: "
                + (f"dense, {words.activation(hidden)}, then " if hidden else "")
                + _classes(count)
            )
            shape = f"[B, T, {count}]" if model.labels.each else f"[B, {count}]"
            found.append(
                Station("labels", text, shape, size.parameters(model) - size.parameters(bare))
            )
        case spec.DistilledHead(count, voters):
            text = f"mean of what the first {voters} positions say of {_classes(count)}"
            found.append(
                Station(
                    "votes", text, f"[B, {count}]", size.parameters(model) - size.parameters(bare)
                )
            )
    return found


def _lacks(model: spec.Encoder, **without: Any) -> int:
    return size.parameters(model) - size.parameters(replace(model, **without))


def _classes(count: int) -> str:
    return f"{count:,} class" + "es" * (count != 1)


def _pooled(part: spec.Pool) -> str:
    return f"[B, {part.width:,}]" if part.width else "[B, D]"


def _pool(part: spec.Pool) -> str:
    where = {"mean": "mean of all positions"}.get(str(part.which), f"the {part.which} position")
    said = ["the end token's position" if isinstance(part.which, spec.EndToken) else where]
    said += [words.norm(part.norm)] if part.norm else []
    said += [f"dense, {words.activation(part.activation)}"] if part.activation else []
    return ", then ".join([*said, f"mapped to {part.width:,}"] if part.width else said)


# ------------------------------------------------------------------ parts


def _front(
    part: spec.FrontEnd, d: int, length: str, note: str = "", *, shared: bool = False
) -> Iterator[Station]:
    """What goes in, and what makes vectors of it. `shared`: its token table is counted elsewhere."""
    stack = spec.Stack(1, spec.Block(spec.Attention(1, 1, 1), spec.FeedForward(1)))

    def count(part: spec.FrontEnd) -> int:
        return size.parameters(spec.Encoder(d, part, stack)) - size.stack(stack, d)

    whole = f"[B, {length}, D]"
    match part:
        case spec.Tokens():
            width = part.width or d
            yield Station("tokens", "ids", f"[B, {length}]")
            parts = []
            scale = " × √" + ("D" if part.width is None else f"{width:,}") if part.scale else ""
            said = f"{part.vocabulary:,} × {width:,}{scale}" + (f", {note}" if note else "")
            shape = whole if part.width is None else f"[B, {length}, {width:,}]"
            parts.append(
                Station("token table", said, shape, 0 if shared else part.vocabulary * width)
            )
            if part.segments:
                parts.append(
                    Station(
                        "+ segments",
                        f"{part.segments} kinds",
                        "",
                        count(part) - count(replace(part, segments=0)),
                    )
                )
            if part.position is not None:
                here = count(part) - count(replace(part, position=None))
                parts.append(Station("+ positions", words.position(part.position), "", here))
            if part.norm is not None:
                parts.append(
                    Station(
                        "norm",
                        words.norm(part.norm),
                        "",
                        count(part) - count(replace(part, norm=None)),
                    )
                )
            if part.width is not None:
                parts.append(Station("widen", f"{width:,} → {d:,}", whole, width * d + d))
            yield Station("embedding", "", whole, inside=tuple(parts))
        case spec.Patches():
            yield Station("pixels", "", f"[B, {part.channels}, {part.size}, {part.size}]")
            extras = {
                1: ", behind a class token",
                2: ", behind a class and a distillation token",
            }.get(part.extras, "")
            said = (
                f"squares of {part.patch} × {part.patch}, each a vector{extras}; learned positions"
            )
            said += f"; {words.norm(part.norm)}" if part.norm else ""
            yield Station("patches", f"{said}; {length} = {part.positions}", whole, count(part))
        case spec.Spectrogram():
            yield Station("spectrogram", f"{part.mels} mels of N frames", f"[B, {part.mels}, N]")
            said = f"two over 3 frames, {words.activation(part.activation)}; {length} = ⌈N / 2⌉; positions: "
            yield Station("convolutions", said + words.position(part.position), whole, count(part))
        case spec.Waveform():
            yield Station("sound", "samples", "[B, N]")
            stride, least = 1, 1
            for each in part.convolutions:
                least, stride = least + (each.kernel - 1) * stride, stride * each.stride
            channels = part.convolutions[-1].channels
            said = f"{len(part.convolutions)} to {channels} channels: {least} samples a position, every {stride}; "
            said += words.norm(part.features)
            said += f"; {channels} → {d}; + {words.position(part.position)}" + (
                f"; {words.norm(part.norm)}" if part.norm else ""
            )
            yield Station("convolutions", said, whole, count(part))
        case _:
            yield Station(type(part).__name__.lower(), words.named(part), whole, count(part))


def _head(
    part: spec.LMHead, vocabulary: int, d: int, length: str, *, tied: bool
) -> Iterator[Station]:
    width = part.transform.width if part.transform else d
    if part.transform is not None:
        kind, norm = words.activation(part.transform.activation), part.transform.norm
        said, numbers = (
            f"{d:,} → {width:,}, {kind}, {words.norm(norm)}",
            d * width + width + _norm(norm, width),
        )
        yield Station("transform", said, f"[B, {length}, {width if width != d else 'D'}]", numbers)
    said = f"{width:,} → {vocabulary:,}, " + (
        "the embedding's matrix" if tied else "a matrix of its own"
    )
    said += (f" × {part.scale:.4g}" if part.scale != 1 else "") + (
        ", bias" if part.bias is True else ""
    )
    yield Station(
        "head",
        said,
        f"[B, {length}, V]",
        (0 if tied else vocabulary * width) + (vocabulary if part.bias is True else 0),
    )


def _side(
    name: str,
    part: spec.Stack | spec.Recurrent | spec.Convolutional,
    d: int,
    length: str,
    memory: str = "",
) -> Station:
    """A stack, or what came before it. `memory`: the length that a decoder sees."""
    shape, decodes = f"[B, {length}, D]", bool(memory)
    if isinstance(part, spec.Stack):
        return _stack(name, part, d, length, memory)

    def rest(without: spec.Recurrent | spec.Convolutional) -> int:
        return size.part_of_sequences(part, d, decodes=decodes) - size.part_of_sequences(
            without, d, decodes=decodes
        )

    if isinstance(part, spec.Convolutional):
        bare = replace(part, sees=None)
        said = f"{words.named(part.unit)}" + (f"; dropout {part.dropout:g}" if part.dropout else "")
        inside = [
            Station("convolutions", said, shape, size.part_of_sequences(bare, d), times=part.layers)
        ]
        if part.sees is not None:
            seen = {
                "attention": "each layer looks at the memory",
                "aligned": "place t is told the memory's place t",
            }
            inside.append(Station("memory", seen[part.sees], shape, rest(bare)))
        return Station(name, "", shape, inside=tuple(inside))
    plain = replace(part, looks=None)
    ways = "forwards and backwards, half the width each" if part.bidirectional else "forwards"
    bridge = size.part_of_sequences(plain, d, decodes=decodes) - size.part_of_sequences(plain, d)
    inside = (
        [Station("bridge", "first state: tanh of a map of the encoder's end", "[B, D]", bridge)]
        if decodes
        else []
    )
    if part.looks is not None:
        when = (
            "before each step"
            if isinstance(part.looks, spec.BahdanauAttention)
            else "after each step"
        )
        when += (
            ", fed into the next"
            if isinstance(part.looks, spec.LuongAttention) and part.looks.feeding
            else ""
        )
        said = f"{words.named(part.looks.score)} over the memory {when}; tanh(W [found; state])"
        inside.append(Station("attention", said, f"[B, {length}, {memory}]", rest(plain)))
    said = f"{part.layers} of {part.cell}, {ways}" + (
        f"; dropout {part.dropout:g}" if part.dropout else ""
    )
    inside.append(Station("cells", said, shape, size.part_of_sequences(plain, d)))
    return Station(name, "", shape, inside=tuple(inside))


def _stack(name: str, part: spec.Stack, d: int, length: str, memory: str = "") -> Station:
    """`memory`: the length that cross-attention looks at."""

    def lacks(**without: Any) -> int:
        return size.stack(part, d) - size.stack(replace(part, **without), d)

    shape = f"[B, {length}, D]"
    around = []
    if part.position is not None:
        around.append(
            Station(
                "positions",
                words.position(part.position) + ", for all layers",
                "",
                lacks(position=None),
            )
        )
    if part.memory is not None:
        left = (
            f"; what leaves: {words.named(part.compressed)}" if part.compressed is not None else ""
        )
        around.append(
            Station(
                "memory",
                f"{part.memory:,} places before a segment{left}",
                "",
                lacks(compressed=None),
            )
        )
    for one, times in Counter(part.blocks).items():  # in the order in which they come first
        made = tuple(
            _block(
                replace(part, block=one, turns=(), heads=None, cross_heads=None), d, length, memory
            )
        )
        told, copies = "; ".join(_always(part)), 1 if part.shared else times
        around.append(Station("block", told, shape, inside=made, times=times, copies=copies))
    if part.beside is not None:
        beside = part.beside
        said = f"norm(first block + {words.activation(beside.activation)}(convolution over {beside.width}))"
        around.append(Station("beside block 1", said, shape, lacks(beside=None)))
    if part.final is not None:
        around.append(Station("last norm", words.norm(part.final), shape, lacks(final=None)))
    return Station(name, "", shape, inside=tuple(around))


def _always(part: spec.Stack) -> Iterator[str]:
    if part.shared:
        yield "the same one each time"
    if part.turns:
        yield "takes turns with others"
    if part.block.dropout:
        yield f"dropout {part.block.dropout:g}"


def _block(stack: spec.Stack, d: int, length: str, memory: str) -> Iterator[Station]:
    """Sublayers in their order, with the norm where it stands."""
    part, shape = stack.block, f"[B, {length}, D]"
    sees = words.pattern(stack.pattern) + ("" if stack.position is None else ", positions as above")
    scores = words.scores(part.attention, stack.position)
    sublayers = [_attention("self-attention", part.attention, d, (length, length), sees, scores)]
    if part.cross is not None:
        sublayers.append(
            _attention(
                "cross-attention",
                part.cross,
                d,
                (length, memory),
                "of the memory",
                words.scores(part.cross),
            )
        )
    said = words.feedforward(part.feedforward, d)
    sublayers.append(
        Station("feed-forward", said, f"[B, {length}, F]", size.feedforward(part.feedforward, d))
    )
    norm = Station("norm", words.norm(part.norm), shape, _norm(part.norm, d))
    match part.residual:
        case spec.Parallel(norms):
            for sublayer in sublayers:
                if norms == 2 or sublayer is sublayers[0]:
                    yield norm
                yield sublayer
            yield Station("add", "x + all of them, side by side", shape)
        case spec.PreNorm():
            for sublayer in sublayers:
                yield norm
                yield sublayer
                yield Station("add", "x + sublayer(norm(x))", shape)
        case spec.PostNorm():
            for sublayer in sublayers:
                yield sublayer
                yield replace(norm, name="add & norm", text=f"norm(x + sublayer(x)): {norm.text}")
        case _:
            yield from sublayers
            yield Station(
                "residual",
                words.named(part.residual),
                shape,
                size.block(part, d) - sum(s.parameters for s in sublayers),
            )


def _attention(
    name: str, part: spec.Attention, d: int, lengths: tuple[str, str], sees: str, scores: str
) -> Station:
    queries, keys = lengths
    joined = part.heads * part.d_v
    output = joined * d + (d if "o" in part.bias else 0)
    width = "K" if part.d_v == part.d_k else "E"
    heads = "H" if part.key_heads == part.heads else "G"
    steps = (
        Station(
            "queries",
            f"{d:,} → {part.heads} × {part.d_k}",
            f"[B, H, {queries}, K]",
            _projection(part, d, "q"),
        ),
        Station(
            "keys, values",
            f"{d:,} → {part.key_heads} × {part.d_k} and {part.key_heads} × {part.d_v}",
            f"[B, {heads}, {keys}, {width}]",
            _projection(part, d, "k") + _projection(part, d, "v"),
        ),
        Station("weights", scores, f"[B, H, {queries}, {keys}]"),
        Station(
            "output", f"weights · v, heads joined: {joined:,} → {d:,}", f"[B, {queries}, D]", output
        ),
    )
    rest = size.attention(part, d) - sum(step.parameters for step in steps)
    return Station(
        name, f"{words.attention(part)}; {sees}", f"[B, {queries}, D]", rest, inside=steps
    )


def _projection(part: spec.Attention, d: int, letter: str) -> int:
    if letter == "k" and part.projection == "shared":
        return 0  # the queries are the keys
    width = {
        "q": part.heads * part.d_k,
        "k": part.key_heads * part.d_k,
        "v": part.key_heads * part.d_v,
    }[letter]
    return d * width + (width if letter in part.bias else 0)


def _norm(part: spec.Norm, width: int) -> int:
    stack = spec.Stack(1, spec.Block(spec.Attention(1, 1, 1), spec.FeedForward(1)))
    return size.stack(replace(stack, final=part), width) - size.stack(stack, width)
