"""SentencePiece models (`*.model`, `*.spm`), read without its library.

Protocol buffers in, a `tokenizers.Tokenizer` out. A file holds pieces with scores, how a text is
segmented (unigram or BPE), and how it is normalized before. Of its many fields only those are read
that decide about ids; nothing in it is executed. The field numbers are those of
sentencepiece_model.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from regard.system import disk
from regard.system.errors import DataError

NORMAL, UNKNOWN, CONTROL, DEFINED, UNUSED, BYTE = range(1, 7)  # SentencePiece.Type
UNIGRAM = 1  # TrainerSpec.ModelType
BPE = 2
SPACE = "▁"  # U+2581, the mark for a space
FETCH_AGAIN = "fetch it again"
CONVERT = (
    "write its tokenizer.json with transformers: "
    "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
)


@dataclass(frozen=True)
class Piece:
    text: str
    score: float  # unigram: log probability; BPE: minus the rank of its merge
    kind: int  # SentencePiece.Type


@dataclass(frozen=True)
class SentencePieceModel:
    """The content of a file."""

    pieces: tuple[Piece, ...]
    model: int  # UNIGRAM or BPE
    charsmap: bytes  # the normalization rules, compiled
    prefix: bool  # add_dummy_prefix: a space is put before each text
    trimmed: bool  # remove_extra_whitespaces: at the ends, and all but one of a run
    words: bool  # split_by_whitespace: no piece contains an inner space

    @property
    def unknown(self) -> int:
        return next(i for i, piece in enumerate(self.pieces) if piece.kind == UNKNOWN)

    @property
    def bytes(self) -> bool:
        """Byte fallback: whether a character without a piece is spelled by its UTF-8 bytes."""
        return any(piece.kind == BYTE for piece in self.pieces)


# --- reading the file ---


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Everything that decides about ids; DataError for what is damaged or not understood."""
    try:
        return _parse_model(disk.read_bytes(path))
    except (OSError, ValueError, struct.error) as error:  # UnicodeDecodeError is a ValueError
        raise DataError(f"{path} is no whole SentencePiece file: {error}", FETCH_AGAIN) from None


def _parse_model(data: bytes) -> SentencePieceModel:
    """ModelProto: pieces (1), trainer_spec (2), normalizer_spec (3)."""
    pieces: list[Piece] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if number == 1:
            pieces.append(_parse_piece(dict(_fields(_bytes(value)))))
        elif number == 2:
            trainer |= dict(_fields(_bytes(value)))
        elif number == 3:
            normalizer |= dict(_fields(_bytes(value)))
    if not trainer or not normalizer:
        raise ValueError("it does not say how its pieces are meant")
    texts = [piece.text for piece in pieces]
    if len(set(texts)) != len(texts) or "" in texts:
        raise ValueError("a piece is empty or there twice")
    if sum(piece.kind == UNKNOWN for piece in pieces) != 1:
        raise ValueError("it has no piece for what is unknown, or several")
    model = trainer.get(3, UNIGRAM)  # model_type
    if model not in (UNIGRAM, BPE):
        raise DataError("SentencePiece models of words or characters are not understood", CONVERT)
    # treat_whitespace_as_suffix, escape_whitespaces
    if trainer.get(24) or not normalizer.get(5, True):
        raise DataError("SentencePiece without marks before words is not understood", CONVERT)
    return SentencePieceModel(
        pieces=tuple(pieces),
        model=int(model),
        charsmap=_bytes(normalizer.get(2, b"")),  # precompiled_charsmap
        prefix=bool(normalizer.get(3, 1)),  # add_dummy_prefix, true by default
        trimmed=bool(normalizer.get(4, 1)),  # remove_extra_whitespaces, true by default
        words=bool(trainer.get(22, 1)),  # split_by_whitespace, true by default
    )


def _parse_piece(fields: Mapping[int, int | bytes]) -> Piece:
    """SentencePiece: piece (1), score (2), type (3)."""
    score = struct.unpack("<f", _bytes(fields.get(2, bytes(4))))[0]
    kind = fields.get(3, NORMAL)
    if not isfinite(score) or not isinstance(kind, int) or not NORMAL <= kind <= BYTE:
        raise ValueError("a piece has an impossible score or kind")
    return Piece(_bytes(fields.get(1, b"")).decode(), score, kind)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol-buffer message: number and value, an integer or raw bytes.

    Each takes at least one byte, so this ends.
    """
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        match key & 7:  # the wire type
            case 0:  # varint
                value, position = _varint(data, position)
                yield key >> 3, value
                continue
            case 1:  # 64 bits
                size = 8
            case 2:  # length-delimited: strings, bytes, messages
                size, position = _varint(data, position)
            case 5:  # 32 bits
                size = 4
            case _:
                raise ValueError(f"byte {position} begins no field")
        if position + size > len(data):
            raise ValueError(f"it ends inside the field at byte {position}")
        yield key >> 3, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """An integer of 7 bits a byte, least significant first, and the position after it."""
    value = 0
    for i, byte in enumerate(data[position : position + 10]):  # 10 · 7 bits hold 64
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, position + i + 1
    raise ValueError(f"it ends inside the number at byte {position}")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a field is a number and should not be")
    return value


# --- the tokenizer ---


def build_tokenizer(
    file: SentencePieceModel,
    vocabulary: Sequence[tuple[str, float]],
    unknown: int,
    before: Sequence[normalizers.Normalizer] = (),
    *,
    prefix_once: bool = False,
) -> tokenizers.Tokenizer:
    """A tokenizer that segments texts as the file says.

    `vocabulary` has the pieces and scores under the ids of a family, `unknown` is an id in it;
    `before` is what the family does to a text first. With `prefix_once`, the space is put before
    the text only, not also before what follows a special token.
    """
    pieces = {piece for piece, _ in vocabulary}
    defined = [
        piece.text for piece in file.pieces if piece.kind == DEFINED and piece.text in pieces
    ]
    if file.model == UNIGRAM:
        model: models.Model = models.Unigram(list(vocabulary), unknown, file.bytes)
    else:
        ids = {text: i for i, (text, _) in enumerate(vocabulary)}
        model = models.BPE(
            ids,
            _merges(file, ids),
            unk_token=vocabulary[unknown][0],
            fuse_unk=True,  # a run of unknown characters is one token, as in SentencePiece
            byte_fallback=file.bytes,
        )
    backend = tokenizers.Tokenizer(model)
    # Defined symbols are split off as special tokens are.
    prefix_once = file.prefix and (prefix_once or bool(defined))
    backend.normalizer = normalizers.Sequence([*before, *_normalization(file, prefix_once)])
    split_words = file.model == UNIGRAM and file.words
    if prefix_once or split_words:
        scheme = "first" if prefix_once else "never"
        backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, split=split_words)
    backend.decoder = _decoder(file)
    backend.add_tokens([AddedToken(text, normalized=True) for text in defined])
    return backend


def _normalization(file: SentencePieceModel, prefix_once: bool) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = []
    if file.charsmap:
        steps.append(normalizers.Precompiled(file.charsmap))
    if file.trimmed:
        steps.append(normalizers.Replace(Regex(r"\A +| +\z"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    # Where spaces are kept, a text that begins with a space begins with two. Metaspace would add
    # none then, so it adds the first space only where it must not be repeated after each symbol
    # that is split off.
    if file.prefix and not prefix_once:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    return steps


def _decoder(file: SentencePieceModel) -> decoders.Decoder:
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " ")]
    if file.bytes:
        steps.append(decoders.ByteFallback())
    steps.append(decoders.Fuse())
    if file.prefix:
        steps.append(decoders.Strip(" ", 1, 0))  # the dummy prefix: one space on the left
    return decoders.Sequence(steps)


def _merges(file: SentencePieceModel, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """BPE merges: every way to make a piece of two, the piece with the best score first."""
    # SentencePiece's BPE has scores and no merges: it joins the pair whose result scores best.
    normal = [piece for piece in file.pieces if piece.kind == NORMAL and piece.text in ids]
    ranked = [piece.text for piece in sorted(normal, key=lambda piece: -piece.score)]
    texts = set(ranked)
    return [
        (text[:i], text[i:])
        for text in ranked
        for i in range(1, len(text))
        if text[:i] in texts and text[i:] in texts
    ]
