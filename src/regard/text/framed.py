"""Text as encoders read it: framed by special tokens, alone or in pairs, with the way back to its characters.

A folder's tokenizer.json is taken with its own frame. Older folders hold a vocabulary only: from `vocab.txt` (WordPiece),
`vocab.json` and `merges.txt` (byte-level BPE) or SentencePiece's files the same tokenizer is put together here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import (
    AddedToken,
    Encoding,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from regard.errors import DataError
from regard.text.sentencepiece_layouts import (
    SIDES,
    holds_pieces,
    holds_sides,
    open_pieces,
    open_side,
)
from regard.text.tokenizer import PAD_NAMES, UNKNOWN_NAMES, encodable, fork_quietly, library_errors

Text = str | tuple[str, str]  # one text, or a pair

# How tokens are called that a folder does not name.
NAMES: dict[str, tuple[str, ...]] = {
    "pad": (*PAD_NAMES, "<|endoftext|>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "unk": (*UNKNOWN_NAMES, "<|endoftext|>"),
    "bos": ("<s>", "<|startoftext|>"),
    "eos": ("</s>", "<|endoftext|>"),
}
_SPACES = ("▁", "Ġ")  # what stands for the space before a word
_REPAIR = "give a whole file; fetch the folder again"
_WRITTEN = "write its tokenizer.json with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
_WORDS_OF_CLIP = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)


class Framed:
    """Texts to ids, segments, and places in the text, as the `Encoding` of the tokenizers library has them."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        names: Mapping[str, str] | None = None,
        *,
        origin: str = "this tokenizer",
    ) -> None:
        """`names`: the special tokens by their role (pad, mask, …); `origin` names the tokenizer in error messages."""
        fork_quietly()
        # Files may ask for cutting or filling to a length; a silent cut would lose text.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._origin = origin
        usual = {
            role: next((n for n in known if backend.token_to_id(n) is not None), None)
            for role, known in NAMES.items()
        }
        self.names: dict[str, str] = {
            role: name for role, name in {**usual, **(names or {})}.items() if name is not None
        }

    @classmethod
    def open(cls, folder: str | Path) -> Framed:
        """The tokenizer of a model folder."""
        backend, names, origin = open_backend(Path(folder))
        return cls(backend, names, origin=origin)

    def encode(self, texts: Sequence[Text], most: int | None = None) -> list[Encoding]:
        """Framed ids with segments (`type_ids`), `offsets`, `word_ids` and `sequence_ids`. With `most`, longer ones are cut
        at the end, of a pair the longer text first."""
        if most is None:
            return self._encode(texts)
        self._backend.enable_truncation(most)
        try:
            return self._encode(texts)
        finally:
            self._backend.no_truncation()

    def same_vocabulary(self, other: Framed) -> bool:
        """Whether both have the same tokens under the same ids."""
        return self._backend.get_vocab() == other._backend.get_vocab()

    def windows(self, first: str, second: str, most: int, overlap: int) -> list[Encoding]:
        """The pair in as many parts as it needs: each holds all of the first text and a stretch of the second, which begins
        `overlap` tokens before the last one ended."""
        room = most - len(self._encode([(first, "")])[0])
        if room <= overlap:
            raise DataError(
                f"the first text leaves {max(0, room)} of {most} tokens to the second",
                "give a shorter first text",
            )
        self._backend.enable_truncation(most, stride=overlap, strategy="only_second")
        try:
            whole = self._encode([(first, second)])[0]
        finally:
            self._backend.no_truncation()
        return [whole, *whole.overflowing]

    def _encode(self, texts: Sequence[Text]) -> list[Encoding]:
        for text in texts:
            for part in (text,) if isinstance(text, str) else text:
                encodable(part)
        with library_errors(f"{self._origin} cannot read this text", _REPAIR):
            return self._backend.encode_batch(list(texts))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without special tokens."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=True)

    def token(self, id: int) -> str:
        return self._backend.id_to_token(id) or f"<id {id}>"

    def word(self, id: int) -> tuple[str, bool | None]:
        """A token as it stands in a text, and whether a space is before it: True, False (it goes on with the word before),
        or None where the tokenizer does not say."""
        token = self.token(id)
        if token.startswith("##"):
            return token[2:], False
        text = self.decode([id]).strip() or token
        return text, token[0] in _SPACES if self._spaced else None

    @cached_property
    def _spaced(self) -> bool:
        """Whether tokens that begin words are marked."""
        return any(token[:1] in _SPACES for token in self._backend.get_vocab())

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size())

    def id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def role(self, role: str) -> int | None:
        """The id of the special token of this role, if there is one."""
        return None if role not in self.names else self._backend.token_to_id(self.names[role])

    @property
    def pad(self) -> int:
        """What fills short rows; what stands there is never seen."""
        return self.role("pad") or 0

    def files(self) -> dict[str, str | dict[str, Any]]:
        """What a folder holds of it: names and contents."""
        names = {f"{role}_token": name for role, name in self.names.items()}
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **names,
        }
        return {
            "tokenizer.json": self._backend.to_str(pretty=True),
            "tokenizer_config.json": settings,
        }


# ------------------------------------------------------------------ from folders


def holds_tokenizer(folder: Path) -> bool:
    """Whether there is one that `open_backend` knows."""
    whole = any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt"))
    return (
        whole
        or all((folder / name).is_file() for name in ("vocab.json", "merges.txt"))
        or holds_pieces(folder)
    )


def open_backend(folder: Path) -> tuple[tokenizers.Tokenizer, dict[str, str], str]:
    """The tokenizer of a model folder, the special tokens that the folder names by their role, and where they are from."""
    settings = {
        **read_json(folder / "special_tokens_map.json"),
        **read_json(folder / "tokenizer_config.json"),
    }
    tokens = {role: content(settings.get(f"{role}_token")) for role in NAMES}
    names = {role: token for role, token in tokens.items() if token is not None}
    whole, words, pieces = (folder / name for name in ("tokenizer.json", "vocab.txt", "vocab.json"))
    if not holds_tokenizer(folder):
        raise _none(folder)
    if whole.is_file():
        with library_errors(f"{whole} is not a usable tokenizer.json", _REPAIR):
            backend = tokenizers.Tokenizer.from_str(_text(whole))
            # A vocabulary without the unknown token that its model names is only noticed at the first odd character.
            backend.encode("\U0010fffd")
        return backend, names, str(whole)
    if words.is_file():
        with library_errors(f"{words} is not a usable vocabulary", _REPAIR):
            return _wordpiece(words, settings, names), names, str(words)
    if holds_pieces(folder):
        with library_errors(f"the SentencePiece files of {folder} are not usable", _REPAIR):
            return _from_pieces(folder, settings, names), names, str(folder)
    with library_errors(f"{pieces} and merges.txt are not a usable vocabulary", _REPAIR):
        return _byte_level(folder, settings, names), names, str(pieces)


def open_target(folder: Path) -> tokenizers.Tokenizer | None:
    """The tokenizer of the target side, where SentencePiece files give it one of its own."""
    if (folder / "tokenizer.json").is_file() or not holds_sides(folder):
        return None
    own = read_json(folder / "target_vocab.json") or read_json(folder / "vocab.json")
    with library_errors(f"the SentencePiece files of {folder} are not usable", _REPAIR):
        return open_side(folder, SIDES[1], own)


def _from_pieces(
    folder: Path, settings: Mapping[str, Any], names: dict[str, str]
) -> tokenizers.Tokenizer:
    if holds_sides(folder):
        backend = open_side(folder, SIDES[0], read_json(folder / "vocab.json"))
    else:
        backend = open_pieces(folder, read_json(folder / "config.json"), settings)
    _fill(names, backend.get_vocab())
    _add(backend, folder, settings, names)
    backend.encode("\U0010fffd")
    return backend


def words(texts: Iterable[str], *, framed: bool = True) -> str:
    """A tokenizer.json of all words of some texts, whatever stands between spaces; `framed`, behind a token for the whole."""
    known = sorted({word for text in texts for word in text.split()})
    marks = ["[PAD]", "[UNK]", "[CLS]"][: 3 if framed else 2]
    vocabulary = {word: i for i, word in enumerate([*marks, *known])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if framed:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A", pair="[CLS] $A $B:1", special_tokens=[("[CLS]", vocabulary["[CLS]"])]
        )
    backend.add_special_tokens(marks)
    return str(backend.to_str())


def _wordpiece(
    path: Path, settings: Mapping[str, Any], names: dict[str, str]
) -> tokenizers.Tokenizer:
    vocabulary = {line: i for i, line in enumerate(_text(path).removesuffix("\n").split("\n"))}
    _fill(names, vocabulary)
    backend = tokenizers.Tokenizer(
        models.WordPiece(vocabulary, unk_token=names.get("unk", "[UNK]"))
    )
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    _add(backend, path.parent, settings, names)
    cls, sep = _required(path, names, "cls"), _required(path, names, "sep")
    if cls == "<s>":
        backend.post_processor = _doubled(backend, cls, sep)
    else:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
            special_tokens=[(token, backend.token_to_id(token)) for token in (cls, sep)],
        )
    return backend


def _byte_level(
    folder: Path, settings: Mapping[str, Any], names: dict[str, str]
) -> tokenizers.Tokenizer:
    vocabulary = read_json(folder / "vocab.json")
    merges = [
        tuple(line.split(" "))
        for line in _text(folder / "merges.txt").split("\n")
        if line and line[:9] != "#version:"
    ]
    pairs = [(merge[0], merge[1]) for merge in merges if len(merge) == 2]
    if len(pairs) != len(merges) or not all(isinstance(i, int) for i in vocabulary.values()):
        raise DataError(f"{folder} holds a damaged vocab.json or merges.txt", _REPAIR)
    _fill(names, vocabulary)
    ends = any(right.endswith("</w>") for _, right in pairs)
    if ends and "<|startoftext|>" not in vocabulary:
        raise DataError(f"{folder}: words that end with </w> are understood of CLIP only", _WRITTEN)
    if ends:  # words that end with a mark, in lower case: CLIP's
        model = models.BPE(vocabulary, pairs, end_of_word_suffix="</w>", unk_token=names.get("unk"))
    else:
        model = models.BPE(vocabulary, pairs)
    backend, spaced = tokenizers.Tokenizer(model), bool(settings.get("add_prefix_space", False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    backend.decoder = decoders.ByteLevel()
    if ends:
        space = normalizers.Replace(Regex(r"\s+"), " ")
        backend.normalizer = normalizers.Sequence(
            [normalizers.NFC(), space, normalizers.Lowercase()]
        )
        split = pre_tokenizers.Split(Regex(_WORDS_OF_CLIP), "removed", invert=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        backend.decoder = decoders.Sequence(
            [decoders.ByteLevel(), decoders.Replace("</w>", " "), decoders.Strip(" ", 0, 1)]
        )
    _add(backend, folder, settings, names)
    first, last = ("bos", "eos") if ends else ("cls", "sep")
    if first in names and last in names:
        backend.post_processor = _doubled(backend, names[first], names[last], spaced, trim=not ends)
    else:
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return backend


def _doubled(
    backend: tokenizers.Tokenizer, first: str, last: str, spaced: bool = False, trim: bool = True
) -> processors.RobertaProcessing:
    """One text between two tokens; between the texts of a pair stand two end tokens, and all is one segment."""
    begin, end = backend.token_to_id(first), backend.token_to_id(last)
    if begin is None or end is None:
        raise DataError(f"the vocabulary lacks {first!r} or {last!r}", _REPAIR)
    return processors.RobertaProcessing(
        (last, end), (first, begin), trim_offsets=trim, add_prefix_space=spaced
    )


def _fill(names: dict[str, str], vocabulary: Mapping[str, int]) -> None:
    for role, known in NAMES.items():
        found = next((name for name in known if name in vocabulary), None)
        if found is not None:
            names.setdefault(role, found)


def _add(
    backend: tokenizers.Tokenizer,
    folder: Path,
    settings: Mapping[str, Any],
    names: Mapping[str, str],
) -> None:
    """Special tokens keep their meaning inside texts, and the mask takes the space before it, where it is one of RoBERTa's
    kin; tokens beyond the vocabulary get the ids that the folder says."""
    more = {str(token): i for token, i in read_json(folder / "added_tokens.json").items()}
    decoder = settings.get("added_tokens_decoder")
    said = decoder if isinstance(decoder, dict) else {}
    more |= {str(content(token)): int(i) for i, token in said.items()}
    for token, i in sorted(more.items(), key=lambda item: item[1]):
        if backend.token_to_id(token) is None:
            backend.add_tokens([token])
        if backend.token_to_id(token) != i:
            raise DataError(
                f"{folder}: the token {token!r} is number {i}, which does not follow the vocabulary",
                _REPAIR,
            )
    for role, token in names.items():
        if backend.token_to_id(token) is not None:
            spaced = role == "mask" and token == "<mask>"
            backend.add_special_tokens(
                [AddedToken(token, lstrip=spaced, normalized=False, special=True)]
            )


def _required(path: Path, names: Mapping[str, str], role: str) -> str:
    if role not in names:
        raise DataError(f"{path} has no {role} token", "name it in tokenizer_config.json")
    return names[role]


def _none(folder: Path) -> DataError:
    pieces = sorted(path.name for suffix in ("model", "spm") for path in folder.glob(f"*.{suffix}"))
    held = f"only {pieces[0]}" if pieces else "none"
    return DataError(f"{folder} holds no tokenizer that can be opened here ({held})", _WRITTEN)


# ------------------------------------------------------------------ files


def content(said: Any) -> str | None:
    """A token, written plainly or with its options."""
    token = said.get("content") if isinstance(said, dict) else said
    return token if isinstance(token, str) else None


def read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        said = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON: {error}", "fetch the folder again") from None
    if not isinstance(said, dict):
        raise DataError(f"{path} holds no object", "fetch the folder again")
    return said


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", "fetch the folder again") from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text (byte {error.start})", "fetch the folder again"
        ) from None
