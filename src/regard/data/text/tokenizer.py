"""The tokenizer: text to token ids and back, one class over the `tokenizers` library.

All models use this class. They differ in two choices:

- the framing: which special tokens stand around a text when a model reads it (`Between`, or
  the file's template);
- whether the framing tokens themselves (padding, start, end, unknown) can be part of a text.

Tokenizers are trained in `tokenizer_training` and opened from files in `tokenizer_files`.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import Encoding

from regard.system.errors import DataError, RegardError

Text = str | tuple[str, str]  # one text, or a pair of texts
Role = Literal["pad", "bos", "eos", "unk", "cls", "sep", "mask"]

# The special tokens of a tokenizer that is trained here.
PAD = "<pad>"
START = "<s>"
END = "</s>"
UNKNOWN = "<unk>"
SPECIALS = (PAD, START, END, UNKNOWN)

# The roles of special tokens under the names that other tokenizers give them, the likeliest first.
SPECIAL_TOKEN_NAMES: dict[Role, tuple[str, ...]] = {
    "pad": (PAD, "[PAD]", "<|pad|>", "<|padding|>"),
    "bos": (START, "[CLS]", "<bos>", "[BOS]", "<|startoftext|>", "<|begin_of_text|>"),
    "eos": (END, "[SEP]", "<eos>", "[EOS]", "<|endoftext|>", "<|end_of_text|>"),
    "unk": (UNKNOWN, "[UNK]", "<|unk|>"),
    "cls": ("[CLS]", START),
    "sep": ("[SEP]", END),
    "mask": ("[MASK]", "<mask>"),
}
# Tokens that stand around or in place of text, never for text.
FRAMING_ROLES: tuple[Role, ...] = ("pad", "bos", "eos", "unk")

# For error messages.
_ROLE_WORDS: dict[Role, str] = {"pad": "padding", "bos": "start", "eos": "end", "unk": "unknown"}
_ODD_CHARACTERS = "leave unusual characters out"
_WORD_BOUNDARIES = ("▁", "Ġ")  # SentencePiece's and byte-level BPE's mark for the space before


# --- framing ---


@dataclass(frozen=True)
class Between:
    """A text between fixed token ids."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


# --- the tokenizer ---


class Tokenizer:
    """Text to token ids and back.

    `encode` and `decode` deal with the text alone; `input_ids` is what a model reads, with the
    special tokens of the framing around it.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[Role, str] | None = None,
        *,
        origin: str = "this tokenizer",
    ) -> None:
        """Wrap a `tokenizers.Tokenizer`; `origin` names it in error messages.

        `special_tokens` maps roles to tokens; by default they are looked up under their usual
        names.
        """
        silence_fork_warning()
        # Files may ask for truncation or padding to a length; silent truncation would lose text.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        # The library gives them in the order of a hash table.
        self._vocabulary = dict(sorted(backend.get_vocab().items(), key=lambda entry: entry[1]))
        self._origin = origin
        if special_tokens is None:
            special_tokens = find_special_tokens(self._vocabulary)
        self.special_tokens: dict[Role, str] = dict(special_tokens)
        #: None: the file's own template (its post-processor), such as `[CLS] $A [SEP]`
        self.framing: Between | None = None
        #: the id that stands around each letter (VITS)
        self.blank: int | None = None
        added_tokens = backend.get_added_tokens_decoder()
        #: ids of the tokens that the file marks as special
        self.special_ids = frozenset(i for i, token in added_tokens.items() if token.special)
        self._dropped_ids: frozenset[int] = frozenset()
        self._model_size: int | None = None  # of a model that lacks some of the tokens

    @classmethod
    def for_translation(
        cls, backend: tokenizers.Tokenizer, *, origin: str = "this tokenizer"
    ) -> Tokenizer:
        """The tokenizer of a translation model, which needs a padding and an end token.

        A source sentence is framed as the file says (BART: between <s> and </s>, mBART-50: after
        its language code); where the file has no template, the end token follows the sentence.
        """
        tokenizer = cls(backend, origin=origin)
        tokenizer.required_token_id("pad")
        eos = tokenizer.required_token_id("eos")
        # Decoding drops the framing tokens even where the file does not mark them as special, and
        # encoding reads "</s>" as four characters. With special tokens beyond these (BERT's [MASK],
        # T5's sentinels), which users do write in texts, all keep their meaning: the library has
        # one switch for all of them.
        tokenizer._dropped_ids = tokenizer.framing_ids
        backend.encode_special_tokens = tokenizer.special_ids <= tokenizer.framing_ids
        if backend.num_special_tokens_to_add(False) == 0:
            # transformers' class for Marian appends it by code, not by a template.
            tokenizer.framing = Between(after=(eos,))
        return tokenizer

    def for_prompts(self) -> Tokenizer:
        """The same tokenizer without an end token behind a text: a prompt is to be continued."""
        before, after = self.frame_ids
        eos = self.special_token_id("eos")
        return self.with_framing(Between(before, tuple(i for i in after if i != eos)))

    def with_framing(self, framing: Between) -> Tokenizer:
        """The same tokenizer with another framing."""
        other = copy.copy(self)
        other.framing = framing
        return other

    def for_model(self, vocab_size: int) -> Tokenizer:
        """The same tokenizer for a model with so many tokens: texts with others are refused.

        A tokenizer may have more tokens than its model; that is no fault while no text has them.
        """
        # A template has ids of its own, whatever its vocabulary says.
        with library_errors(f"{self._origin} cannot encode this text", _ODD_CHARACTERS):
            encodings = [self._backend.encode("a"), self._backend.encode("a", "b")]
        highest = max(len(self) - 1, *(id for encoding in encodings for id in encoding.ids))
        if highest < vocab_size:
            return self
        other = copy.copy(self)
        other._model_size = vocab_size
        return other

    def __repr__(self) -> str:
        roles = ", ".join(f"{role}={token!r}" for role, token in self.special_tokens.items())
        return f"Tokenizer({len(self):,} tokens, {roles}, {self.framing})"

    # --- text alone ---

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of many texts without special tokens, encoded on all cores."""
        checked = [check_encodable(text) for text in texts]
        with library_errors(f"{self._origin} cannot encode this text", _ODD_CHARACTERS):
            # "fast": without offsets
            encodings = self._backend.encode_batch_fast(checked, add_special_tokens=False)
            rows = [encoding.ids for encoding in encodings]
        if self.blank is not None:
            rows = [_with_blanks(row, self.blank) for row in rows]
        self._require_tokens_of_model(rows)
        return rows

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids, without special tokens."""
        text_ids = [int(i) for i in ids if int(i) not in self._dropped_ids]
        return self._backend.decode(text_ids, skip_special_tokens=True)

    def decode_batch(self, batch: Iterable[Iterable[int]]) -> list[str]:
        """The texts of many lists of token ids."""
        return [self.decode(ids) for ids in batch]

    # --- text as a model reads it ---

    def input_ids(self, text: str) -> list[int]:
        """Token ids of a text with the special tokens of the framing."""
        return self.frame(self.encode(text))

    def input_offsets(self, text: str) -> list[tuple[int, int]]:
        """Character offsets of each of `input_ids(text)`; (0, 0) for special tokens."""
        before, after = self.frame_ids
        return [*[(0, 0)] * len(before), *self.text_offsets(text), *[(0, 0)] * len(after)]

    def text_offsets(self, text: str) -> list[tuple[int, int]]:
        """Character offsets of each of `encode(text)`."""
        return list(self._encode([text], add_special_tokens=False)[0].offsets)

    def frame(self, ids: Sequence[int]) -> list[int]:
        """Token ids of a text (of `encode`) with the special tokens of the framing around them."""
        before, after = self.frame_ids
        self._require_tokens_of_model([before, after])
        return [*before, *ids, *after]

    def encode_with_template(
        self, texts: Sequence[Text], max_length: int | None = None
    ) -> list[Encoding]:
        """Encodings of texts or pairs, framed by the file's template.

        An `Encoding` has `ids`, `type_ids` (segments), `offsets`, `word_ids` and `sequence_ids`.
        With `max_length`, longer ones are truncated at the end, of a pair the longer text first.
        """
        if max_length is None:
            return self._encode(texts)
        # Truncation is a state of the library's tokenizer: it is set for one call.
        self._backend.enable_truncation(max_length)
        try:
            return self._encode(texts)
        finally:
            self._backend.no_truncation()

    def windows(self, first: str, second: str, max_length: int, overlap: int) -> list[Encoding]:
        """Sliding windows over the second text of a pair, framed by the file's template.

        Each window holds all of the first text and a stretch of the second, which begins `overlap`
        tokens before the previous one ended.
        """
        # An empty second text leaves the first one and all special tokens of the template.
        room = max_length - len(self._encode([(first, "")])[0])
        if room <= overlap:
            raise DataError(
                f"the first text leaves {max(0, room)} of {max_length} tokens to the second",
                "give a shorter first text",
            )
        self._backend.enable_truncation(max_length, stride=overlap, strategy="only_second")
        try:
            encoding = self._encode([(first, second)])[0]
        finally:
            self._backend.no_truncation()
        return [encoding, *encoding.overflowing]

    # --- the vocabulary ---

    def __len__(self) -> int:
        """The rows an embedding needs: the highest token id plus one."""
        return max(self._vocabulary.values()) + 1  # ids may have gaps

    @property
    def vocabulary(self) -> dict[str, int]:
        """Token → id, in the order of the ids (a copy)."""
        return dict(self._vocabulary)

    def same_vocabulary(self, other: Tokenizer) -> bool:
        """Whether both have the same tokens under the same ids."""
        return self._vocabulary == other._vocabulary

    def token_to_id(self, token: str) -> int | None:
        return self._vocabulary.get(token)

    def id_to_token(self, id: int) -> str:
        """The token of an id; an id outside the vocabulary shows as `<id 99>`."""
        return self._backend.id_to_token(int(id)) or f"<id {int(id)}>"

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The token of each id, special ones too, as it reads.

        Of byte-level BPE that is what its bytes spell: `ä`, where the vocabulary has `Ã¤`, and
        `<0xC3>` for a part of a letter.
        """
        tokens = [self.id_to_token(i) for i in ids]
        return [_spelt(token) for token in tokens] if self._spells_bytes else tokens

    def surface_form(self, id: int) -> tuple[str, bool | None]:
        """A token as it stands in a text, and whether a space precedes it.

        False: it continues the word before. None: the vocabulary does not mark word boundaries.
        """
        token = self.id_to_token(id)
        if token.startswith("##"):  # WordPiece's mark for the continuation of a word
            return token[2:], False
        text = self.decode([id]).strip() or token  # special tokens decode to nothing
        if not self._marks_word_boundaries:
            return text, None
        return text, token[0] in _WORD_BOUNDARIES

    @functools.cached_property
    def continues_word(self) -> list[bool]:
        """Of each token, whether it goes on with the word of the token before it.

        None does where the vocabulary does not mark word boundaries.
        """
        marks = self._marks_word_boundaries
        special = self.special_ids
        return [
            id not in special
            and (token.startswith("##") or (marks and token[0] not in _WORD_BOUNDARIES))
            for id, token in enumerate(map(self.id_to_token, range(len(self))))
        ]

    # --- special tokens ---

    def special_token_id(self, role: Role) -> int | None:
        """The id of the special token of this role, or None."""
        token = self.special_tokens.get(role)
        return None if token is None else self._vocabulary.get(token)

    def required_token_id(self, role: Role) -> int:
        """The id of the special token of this role; DataError where there is none."""
        token_id = self.special_token_id(role)
        if token_id is None:
            names = SPECIAL_TOKEN_NAMES[role]
            raise DataError(
                f"{self._origin} has no {_ROLE_WORDS.get(role, role)} token "
                f"(looked for {', '.join(names)})",
                "add one of these names to it as a special token, or train a tokenizer",
            )
        return token_id

    @property
    def framing_ids(self) -> frozenset[int]:
        """The ids that stand for no text: padding, start, end and unknown, where they exist."""
        ids = (self.special_token_id(role) for role in FRAMING_ROLES)
        return frozenset(i for i in ids if i is not None)

    # --- files ---

    def to_json(self) -> str:
        """The content of tokenizer.json."""
        return self._backend.to_str(pretty=True)

    @property
    def fingerprint(self) -> str:
        """sha256 of `to_json()`: equal for equal tokenizers."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json. It is a plain write; `disk.atomic_folder` makes it atomic."""
        Path(path).write_bytes(self.to_json().encode())

    @property
    def config(self) -> dict[str, Any]:
        """The content of tokenizer_config.json."""
        # Without the clean-up, which removes spaces before punctuation and so changes texts.
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **{f"{role}_token": token for role, token in self.special_tokens.items()},
        }

    def files(self) -> dict[str, str | dict[str, Any]]:
        """The files of a Hugging Face folder: names and contents."""
        return {"tokenizer.json": self.to_json(), "tokenizer_config.json": self.config}

    @property
    def dropped_ids(self) -> frozenset[int]:
        """The ids that decoding leaves out, besides those that the file marks as special."""
        return self._dropped_ids

    @property
    def reads_special_tokens_as_text(self) -> bool:
        """Whether "</s>" in a text is four characters, and not the end token."""
        return bool(self._backend.encode_special_tokens)

    # --- underneath ---

    @property
    def frame_ids(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens before and after a text."""
        if self.framing is None:
            return self._template_ids
        return self.framing.before, self.framing.after

    @functools.cached_property
    def _template_ids(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens that the file's template puts before and after a text."""
        encoding = self._backend.encode("a")  # any text will do
        is_text = [not special for special in encoding.special_tokens_mask]
        if not any(is_text):
            return (), ()
        first = is_text.index(True)
        last = len(is_text) - 1 - is_text[::-1].index(True)
        return tuple(encoding.ids[:first]), tuple(encoding.ids[last + 1 :])

    @functools.cached_property
    def _spells_bytes(self) -> bool:
        """Whether this is byte-level BPE: each of the 256 bytes is a token."""
        return all(letter in self._vocabulary for letter in _byte_letters())

    @functools.cached_property
    def _marks_word_boundaries(self) -> bool:
        return any(token[:1] in _WORD_BOUNDARIES for token in self._vocabulary)

    def _encode(self, texts: Sequence[Text], *, add_special_tokens: bool = True) -> list[Encoding]:
        """Encodings with offsets, which takes longer than ids alone."""
        for text in texts:
            for part in (text,) if isinstance(text, str) else text:
                check_encodable(part)
        with library_errors(f"{self._origin} cannot encode this text", _ODD_CHARACTERS):
            encodings = self._backend.encode_batch(
                list(texts), add_special_tokens=add_special_tokens
            )
        # Not as a list: each `ids` is copied from the library, and seldom needed here.
        self._require_tokens_of_model(encoding.ids for encoding in encodings)
        return encodings

    def _require_tokens_of_model(self, rows: Iterable[Sequence[int]]) -> None:
        """Raises `DataError` for ids that the model has no embedding for (see `for_model`)."""
        if self._model_size is None:
            return
        highest = max((max(ids, default=0) for ids in rows), default=0)
        if highest >= self._model_size:
            raise DataError(
                f"{self._origin} has the token {self.id_to_token(highest)!r} under {highest:,}, "
                f"and the model has {self._model_size:,} tokens",
                "fetch both again, or write a text without this token",
            )


def _with_blanks(ids: Iterable[int], blank: int) -> list[int]:
    """The ids with a blank on both sides of each, and one between two. MMS's blank is a letter
    too: as transformers reads it, it has none of its own."""
    out: list[int] = []
    for is_blank, run in groupby(ids, lambda id: id == blank):
        letters = list(run)
        if not is_blank:
            letters = [blank, *(one for letter in letters for one in (letter, blank))]
        out += letters
    return out


@functools.cache
def _byte_letters() -> dict[str, int]:
    """GPT-2's printable letter of each byte → the byte: those that print are themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    return letters | {chr(256 + i): byte for i, byte in enumerate(others)}


def _spelt(token: str) -> str:
    """A token of byte-level BPE as text; the mark of the space before it stays."""
    text = token.lstrip("Ġ")
    letters = _byte_letters()
    # Special tokens may have letters of their own, and most tokens are plain ASCII.
    if text.isascii() or any(letter not in letters for letter in text):
        return token
    spelt = bytes(letters[letter] for letter in text)
    try:
        text = spelt.decode()
    except UnicodeDecodeError:  # a part of a letter
        text = "".join(f"<0x{byte:02X}>" if byte >= 0x80 else chr(byte) for byte in spelt)
    return "Ġ" * (len(token) - len(token.lstrip("Ġ"))) + text


def find_special_tokens(
    vocabulary: Mapping[str, int], names: Mapping[Role, Sequence[str]] = SPECIAL_TOKEN_NAMES
) -> dict[Role, str]:
    """Role → token, for the roles that the vocabulary has one of the usual names for."""
    special_tokens: dict[Role, str] = {}
    for role, candidates in names.items():
        for name in candidates:
            if name in vocabulary:
                special_tokens[role] = name
                break
    return special_tokens


# --- the library ---


def check_encodable(text: str) -> str:
    """The text, unless it has a lone surrogate, which UTF-8 cannot encode.

    JSON's \\ud800 escapes can bring them in.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"the text {text[:40]!r} holds half a character (a lone surrogate) "
            f"at position {error.start}",
            "drop it, or replace it with U+FFFD",
        ) from error
    return text


@contextmanager
def library_errors(problem: str, repair: str) -> Iterator[None]:
    """Exceptions of the `tokenizers` library as DataError."""
    try:
        yield
    except (RegardError, OSError):
        raise
    except BaseException as error:
        # A panic of the Rust library derives from BaseException and has no importable name.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{problem}: {str(error).strip()[:200]}", repair) from error


@functools.cache
def silence_fork_warning() -> None:
    """Tokenize on all cores, but on one in forked children, where the library's threads are gone.

    The library (before 0.23 with a warning) decides that inside fork() by this variable: it is set
    just before a fork and, in the parent, unset just after. A user's own setting is left alone.
    """
    name = "TOKENIZERS_PARALLELISM"
    set_here: list[bool] = []

    def before() -> None:
        if name not in os.environ:
            os.environ[name] = "false"
            set_here.append(True)

    def after() -> None:
        if set_here:
            set_here.clear()
            os.environ.pop(name, None)

    if sys.platform != "win32":
        os.register_at_fork(before=before, after_in_parent=after)
