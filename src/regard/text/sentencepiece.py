"""SentencePiece's files (`*.model`, `*.spm`), read without its library: protocol buffers in, a `tokenizers.Tokenizer` out.

A file holds pieces with scores, how they are searched for (unigram or BPE), and how a text is normalised before. Of its many
fields only those are read that decide about ids; nothing in it is executed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from regard.errors import DataError

NORMAL, UNKNOWN, CONTROL, DEFINED, UNUSED, BYTE = range(1, 7)  # the kinds of pieces
UNIGRAM, BPE = 1, 2
SPACE = "▁"
_AGAIN = "fetch the file again"
_WRITTEN = "write its tokenizer.json with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"


@dataclass(frozen=True)
class Piece:
    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class Pieces:
    """What a file says. `prefix`: a space is put before each text; `trimmed`: spaces at its ends are dropped and runs of
    them are one; `words`: no piece reaches over a space."""

    pieces: tuple[Piece, ...]
    model: int
    charsmap: bytes
    prefix: bool
    trimmed: bool
    words: bool

    @property
    def unknown(self) -> int:
        return next(i for i, piece in enumerate(self.pieces) if piece.kind == UNKNOWN)

    @property
    def bytes(self) -> bool:
        """Whether a character without a piece is spelled by its bytes."""
        return any(piece.kind == BYTE for piece in self.pieces)


# ------------------------------------------------------------------ the file


def read_pieces(path: Path) -> Pieces:
    """Everything that decides about ids; DataError for what is damaged or not understood."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", _AGAIN) from None
    try:
        return _pieces(data)
    except (ValueError, struct.error) as error:  # UnicodeDecodeError is one of the former
        raise DataError(f"{path} is no whole SentencePiece file: {error}", _AGAIN) from None
    except DataError as error:
        raise DataError(f"{path}: {error.problem}", error.repair) from None


def _pieces(data: bytes) -> Pieces:
    pieces: list[Piece] = []
    trainer: dict[int, int | bytes] = {}
    normal: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if number == 1:
            pieces.append(_piece(dict(_fields(_block(value)))))
        elif number == 2:
            trainer |= dict(_fields(_block(value)))
        elif number == 3:
            normal |= dict(_fields(_block(value)))
    if not trainer or not normal:
        raise ValueError("it does not say how its pieces are meant")
    if len({piece.text for piece in pieces}) != len(pieces) or not all(
        piece.text for piece in pieces
    ):
        raise ValueError("a piece is empty or there twice")
    if sum(piece.kind == UNKNOWN for piece in pieces) != 1:
        raise ValueError("it has no piece for what is unknown, or several")
    model = trainer.get(3, UNIGRAM)
    if model not in (UNIGRAM, BPE):
        raise DataError("its pieces are words or characters, which is not understood", _WRITTEN)
    if trainer.get(24) or not normal.get(5, True):
        raise DataError("its spaces are not marked before words, which is not understood", _WRITTEN)
    charsmap = _block(normal.get(2, b""))
    _check_charsmap(charsmap)
    prefix, trimmed, words = (
        bool(normal.get(3, 1)),
        bool(normal.get(4, 1)),
        bool(trainer.get(22, 1)),
    )
    return Pieces(tuple(pieces), int(model), charsmap, prefix, trimmed, words)


def _piece(fields: Mapping[int, int | bytes]) -> Piece:
    score = struct.unpack("<f", _block(fields.get(2, bytes(4))))[0]
    kind = fields.get(3, NORMAL)
    if not isfinite(score) or not isinstance(kind, int) or not NORMAL <= kind <= BYTE:
        raise ValueError("a piece has an impossible score or kind")
    return Piece(_block(fields.get(1, b"")).decode(), score, kind)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: number and value, which is whole or raw bytes. Each takes one byte at least, so this ends."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                value, at = _varint(data, at)
                yield key >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(data, at)
            case 5:
                size = 4
            case _:
                raise ValueError(f"byte {at} begins no field")
        if at + size > len(data):
            raise ValueError(f"it ends inside the field at byte {at}")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise ValueError(f"it ends inside the number at byte {at}")


def _block(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a field is a number and should not be")
    return value


def _check_charsmap(data: bytes) -> None:
    """A table of replacements: the size of a tree, the tree, and the texts its leaves point to."""
    if not data:
        return
    (size,) = struct.unpack_from("<I", data)
    texts = data[4 + size :]
    if size % 4 or size == 0 or len(data) <= 4 + size or texts[-1]:
        raise ValueError("its table of replacements is damaged")
    texts.decode()


# ------------------------------------------------------------------ the tokenizer


def tokenizer(
    file: Pieces,
    vocabulary: Sequence[tuple[str, float]],
    unknown: int,
    before: Sequence[normalizers.Normalizer] = (),
    *,
    once: bool = False,
) -> tokenizers.Tokenizer:
    """A tokenizer that cuts texts as the file says; `vocabulary` is its pieces as a family numbers them, `before` what the
    family does to a text first. `once`: the space before a text is not put before what follows a special token too."""
    tables: dict[str, float] = dict(vocabulary)
    defined = [
        piece.text for piece in file.pieces if piece.kind == DEFINED and piece.text in tables
    ]
    normal = [piece.text for piece in file.pieces if piece.kind == NORMAL]
    if file.model == UNIGRAM:
        model: models.Model = models.Unigram(list(vocabulary), unknown, file.bytes)
    else:
        numbers = {text: i for i, (text, _) in enumerate(vocabulary)}
        merges = _merges(
            [text for text in normal if text in tables], {p.text: p.score for p in file.pieces}
        )
        model = models.BPE(
            numbers,
            merges,
            unk_token=vocabulary[unknown][0],
            fuse_unk=True,
            byte_fallback=file.bytes,
        )
    backend = tokenizers.Tokenizer(model)
    steps = [*before, *([normalizers.Precompiled(file.charsmap)] if file.charsmap else [])]
    if file.trimmed:
        steps += [
            normalizers.Replace(Regex(r"\A +| +\z"), ""),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    # A text that begins with a space, if spaces are kept, begins with two: so the first one is no matter of Metaspace, except
    # where it must not come again after each symbol that is cut out of the text.
    once = file.prefix and (once or bool(defined))
    steps += [normalizers.Prepend(SPACE)] if file.prefix and not once else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    if once or (file.model == UNIGRAM and file.words):
        split = file.model == UNIGRAM and file.words
        backend.pre_tokenizer = pre_tokenizers.Metaspace(
            SPACE, "first" if once else "never", split=split
        )
    strip = [decoders.Strip(" ", 1, 0)] if file.prefix else []
    spelled = [decoders.ByteFallback()] if file.bytes else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), *spelled, decoders.Fuse(), *strip]
    )
    backend.add_tokens([AddedToken(text, normalized=True) for text in defined])
    return backend


def _merges(pieces: Sequence[str], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two, the best piece first."""
    known = set(pieces)
    ranked = sorted(pieces, key=lambda piece: -scores[piece])
    return [
        (piece[:i], piece[i:])
        for piece in ranked
        for i in range(1, len(piece))
        if piece[:i] in known and piece[i:] in known
    ]
