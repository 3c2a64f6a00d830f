"""From text to token ids and back: one class around the `tokenizers` library.

What every tokenizer learned here does to a text before it is cut:

- Unicode NFC, so that "e" + combining accent and "é" are one letter;
- "▁" (U+2581), the mark for a space inside tokens, is read as a space;
- runs of spaces become one space, and white space at both ends is dropped.

Everything else comes back: `decode(encode(x)) == x` as long as every character of x was seen in learning (for
"words": every word). White space other than the space (tab, no-break space, line feed) is kept as it is.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from regard.errors import DataError, RegardError, SettingError, did_you_mean

PAD, START, END, UNKNOWN = SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")

# The same four roles under the names that other people's tokenizers give them, the likeliest first.
PAD_NAMES = (PAD, "[PAD]", "<|pad|>", "<|padding|>")
START_NAMES = (START, "[CLS]", "<bos>", "[BOS]", "<|startoftext|>", "<|begin_of_text|>")
END_NAMES = (END, "[SEP]", "<eos>", "[EOS]", "<|endoftext|>", "<|end_of_text|>")
UNKNOWN_NAMES = (UNKNOWN, "[UNK]", "<|unk|>")

ALPHABET = 1000  # characters that pieces are built from; a corpus has thousands more that it holds once or twice

# Punctuation, symbols and odd white space stand alone, with the space before them: "street." and "street" share a
# piece, and because ▁ stays where the space was, gluing the pieces together still gives the text.
ALONE = r"▁?(?!▁)[\p{P}\p{S}\s]"


class Tokenizer:
    """Text to ids and back. Make one with `learn`, `load` or `from_json`."""

    def __init__(self, backend: tokenizers.Tokenizer, *, origin: str = "this tokenizer") -> None:
        """Wrap a `tokenizers.Tokenizer`; `origin` names it in error messages."""
        fork_quietly()
        # Files from elsewhere may ask for cutting or filling to a length; a silent cut would lose text.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        by_id = sorted((i, token) for token, i in backend.get_vocab().items())
        self._vocabulary = {token: i for i, token in by_id}
        self._origin = origin
        self._pad = self._required("padding", PAD_NAMES)
        self._eos = self._required("end", END_NAMES)
        self._bos = self._find(START_NAMES)
        self._unk = self._find(UNKNOWN_NAMES)
        self._skipped = frozenset(
            i for i in (self._pad, self._bos, self._eos, self._unk) if i is not None
        )
        # Where the special tokens are only these, nobody writes them on purpose: "</s>" in a text is four characters.
        # With others (BERT's [MASK], T5's sentinels) users do write them, so they keep their meaning.
        added = backend.get_added_tokens_decoder()
        backend.encode_special_tokens = all(
            i in self._skipped for i, token in added.items() if token.special
        )

    @classmethod
    def learn(cls, texts: Iterable[str], kind: str, size: int) -> Tokenizer:
        """Learn a vocabulary of at most `size` tokens, the four special ones included.

        `kind` is "bpe", "unigram", "words" or "characters". The same texts in the same order give the same bytes;
        only for "unigram" pieces that tie exactly in its likelihood could be pruned differently.
        """
        if kind not in _LEARNERS:
            raise SettingError(
                f"no kind of tokenizer is called {kind!r}", did_you_mean(kind, _LEARNERS)
            )
        if size < len(SPECIALS) + 2:
            raise SettingError(
                f"a vocabulary of {size} tokens has no room: {len(SPECIALS)} are special",
                "ask for more, say 8000",
            )
        with library_errors(
            "the tokenizer could not be learned", "check the texts, or try kind 'bpe'"
        ):
            backend = _LEARNERS[kind](texts, size)
        backend.post_processor = processors.TemplateProcessing(
            single=f"$A {END}",
            pair=f"$A {END} $B {END}",
            special_tokens=[(END, SPECIALS.index(END))],
        )
        return cls(backend)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Open a tokenizer.json, ours or another's."""
        repair = "give the path of a tokenizer.json, as Hugging Face folders hold it"
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise DataError(
                f"cannot read the tokenizer {path}: {error.strerror}", repair
            ) from error
        except UnicodeDecodeError as error:
            raise DataError(
                f"the tokenizer {path} is not UTF-8 text (byte {error.start})", repair
            ) from error
        return cls.from_json(text, origin=str(path))

    @classmethod
    def from_json(cls, text: str, *, origin: str = "this tokenizer") -> Tokenizer:
        """The inverse of `to_json`; `origin` names the text in error messages."""
        with library_errors(
            f"{origin} is not a usable tokenizer.json", "give a whole file; fetch or learn it again"
        ):
            backend = tokenizers.Tokenizer.from_str(text)
            # A vocabulary without the unknown token that its model names is only noticed at the first odd character.
            backend.encode("\U0010fffd")
        return cls(backend, origin=origin)

    def to_json(self) -> str:
        """The whole tokenizer as the text of a tokenizer.json."""
        return self._backend.to_str(pretty=True)

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json (a plain write; who needs it atomic writes into a folder that is renamed)."""
        Path(path).write_bytes(self.to_json().encode())

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, on all cores."""
        whole = [encodable(text) for text in texts]
        with library_errors(
            f"{self._origin} cannot write this text", "leave unusual characters out"
        ):
            return [
                encoding.ids
                for encoding in self._backend.encode_batch_fast(whole, add_special_tokens=False)
            ]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """For each id of `encode(text)` where its characters begin and end in the text."""
        return self._backend.encode(encodable(text), add_special_tokens=False).offsets

    @functools.cached_property
    def around(self) -> tuple[list[int], list[int]]:
        """What stands before and after a source sentence: as the file frames it (BART between <s> and </s>, mBART-50 after
        its language), or else the end token behind it."""
        found = self._backend.encode("a")
        text = [place for place, added in enumerate(found.special_tokens_mask) if not added]
        if not text or len(text) == len(found.ids):
            return [], [self._eos]
        return found.ids[: text[0]], found.ids[text[-1] + 1 :]

    def framed(self, ids: Sequence[int]) -> list[int]:
        """A source sentence's ids with what stands around them."""
        before, after = self.around
        return [*before, *ids, *after]

    def id(self, token: str) -> int | None:
        return self._vocabulary.get(token)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; padding, start, end and unknown tokens are left out."""
        return self._backend.decode(
            [int(i) for i in ids if int(i) not in self._skipped], skip_special_tokens=True
        )

    def decode_batch(self, batch: Iterable[Iterable[int]]) -> list[str]:
        """The texts of many lists of ids."""
        return [self.decode(ids) for ids in batch]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The token of each id, special ones too; an id outside the vocabulary shows as `<id 99>`."""
        return [self._backend.id_to_token(int(i)) or f"<id {int(i)}>" for i in ids]

    def __len__(self) -> int:
        """The number of ids, that is the rows an embedding needs: the highest id plus one."""
        return max(self._vocabulary.values()) + 1

    @property
    def vocabulary(self) -> dict[str, int]:
        """Token → id, in the order of the ids (a copy)."""
        return dict(self._vocabulary)

    def same_vocabulary(self, other: Tokenizer) -> bool:
        """Whether both have the same tokens under the same ids."""
        return self._vocabulary == other._vocabulary

    @property
    def fingerprint(self) -> str:
        """sha256 of `to_json()`: equal for equal tokenizers."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def pad(self) -> int:
        """The id that fills short rows."""
        return self._pad

    @property
    def bos(self) -> int:
        """The id a sentence starts with; DataError where the tokenizer has none (T5, Marian)."""
        if self._bos is None:
            raise DataError(
                f"{self._origin} has no start token", "start with its padding or end token instead"
            )
        return self._bos

    @property
    def eos(self) -> int:
        """The id a sentence ends with."""
        return self._eos

    @property
    def unk(self) -> int | None:
        """The id of what is not in the vocabulary; None for tokenizers that can spell everything."""
        return self._unk

    @property
    def frame(self) -> frozenset[int]:
        """The ids that stand for no text: padding, start, end and unknown, as far as there are."""
        return self._skipped

    def _find(self, names: Iterable[str]) -> int | None:
        return next((self._vocabulary[name] for name in names if name in self._vocabulary), None)

    def _required(self, role: str, names: Sequence[str]) -> int:
        found = self._find(names)
        if found is None:
            raise DataError(
                f"{self._origin} has no {role} token (looked for {', '.join(names)})",
                f"add one of these names to it as a special token, or learn a tokenizer with {SPECIALS}",
            )
        return found


def vocabulary_of(path: str | Path) -> dict[int, str]:
    """id → token of any tokenizer.json, whatever special tokens it has or lacks."""
    with library_errors(
        f"{path} is not a usable tokenizer.json", "give a whole file; fetch or learn it again"
    ):
        backend = tokenizers.Tokenizer.from_str(Path(path).read_text(encoding="utf-8"))
    return {i: token for token, i in backend.get_vocab().items()}


def _backend(model: models.Model) -> tokenizers.Tokenizer:
    """A tokenizer around `model` with the normalisation that this module promises."""
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Replace("▁", " "),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Strip(),
        ]
    )
    return backend


def _with_words(model: models.Model) -> tokenizers.Tokenizer:
    backend = _backend(model)
    alone = pre_tokenizers.Split(Regex(ALONE), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), alone])
    backend.decoder = decoders.Metaspace()
    return backend


def _learn_bpe(texts: Iterable[str], size: int) -> tokenizers.Tokenizer:
    backend = _with_words(models.BPE(unk_token=UNKNOWN))
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIALS), show_progress=False
    )
    with _common_letters(texts, backend, size) as lines:
        backend.train_from_iterator(lines, trainer)
    return backend


def _learn_unigram(texts: Iterable[str], size: int) -> tokenizers.Tokenizer:
    backend = _with_words(models.Unigram())
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=list(SPECIALS), unk_token=UNKNOWN, show_progress=False
    )
    with _common_letters(texts, backend, size) as lines:
        backend.train_from_iterator(lines, trainer)
    return _settle_scores(backend, size)


def _learn_words(texts: Iterable[str], size: int) -> tokenizers.Tokenizer:
    return _learn_levels(_with_words(models.WordLevel(unk_token=UNKNOWN)), texts, size)


def _learn_characters(texts: Iterable[str], size: int) -> tokenizers.Tokenizer:
    backend = _backend(models.WordLevel(unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return _learn_levels(backend, texts, size)


def _learn_levels(
    backend: tokenizers.Tokenizer, texts: Iterable[str], size: int
) -> tokenizers.Tokenizer:
    trainer = trainers.WordLevelTrainer(
        vocab_size=size, special_tokens=list(SPECIALS), show_progress=False
    )
    backend.train_from_iterator(map(encodable, texts), trainer)
    if backend.get_vocab_size() == len(SPECIALS):
        raise _nothing_to_learn()
    return backend


_LEARNERS: dict[str, Callable[[Iterable[str], int], tokenizers.Tokenizer]] = {
    "bpe": _learn_bpe,
    "unigram": _learn_unigram,
    "words": _learn_words,
    "characters": _learn_characters,
}


@contextmanager
def _common_letters(
    texts: Iterable[str], backend: tokenizers.Tokenizer, size: int
) -> Iterator[Iterator[str]]:
    """The texts with rare characters blanked out, so that they become `<unk>` and never crowd out pieces.

    The library has a limit of its own, but settles ties in the order of a randomly seeded hash. Counting needs a pass
    of its own, and the texts may be a stream larger than memory: hence the file.
    """
    counts: Counter[str] = Counter()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as spool:
        for text in texts:
            normal = backend.normalizer.normalize_str(encodable(text))
            counts.update(normal)
            spool.write(json.dumps(normal) + "\n")
        counts.pop(" ", None)
        if not counts:
            raise _nothing_to_learn()
        room = min(ALPHABET, size - len(SPECIALS) - 1)  # one place is the ▁'s
        ranked = sorted(counts, key=lambda letter: (-counts[letter], letter))
        yield _blanked(spool, dict.fromkeys(map(ord, ranked[room:]), " "))


def _blanked(spool: IO[str], rare: dict[int, str]) -> Iterator[str]:
    spool.seek(0)
    for line in spool:
        text: str = json.loads(line)
        yield text.translate(rare) if rare else text


def _settle_scores(backend: tokenizers.Tokenizer, size: int) -> tokenizers.Tokenizer:
    """Take the accidents of hashing out of a fresh unigram model, so that equal texts give equal bytes.

    The trainer sums in random order (scores differ in the last digits, equal ones come in any order), and gives the
    characters its search dropped the lowest score plus 0.0001 × their place in a hash set. And where the characters
    alone fill the vocabulary, it forgets to stop.
    """
    state = json.loads(backend.to_str())
    scores: dict[str, float] = {
        piece: score for piece, score in state["model"]["vocab"] if piece not in SPECIALS
    }
    floor = min(scores.values())
    for piece, score in scores.items():
        dropped = len(piece) == 1 and score < floor + 0.0001 * ALPHABET
        scores[piece] = round(floor if dropped else score, 4)
    ranked = sorted(scores, key=lambda piece: (-scores[piece], piece))
    kept = set(sorted(ranked, key=lambda piece: len(piece) > 1)[: size - len(SPECIALS)])
    state["model"]["vocab"] = [(special, 0.0) for special in SPECIALS] + [
        (p, scores[p]) for p in ranked if p in kept
    ]
    state["model"]["unk_id"] = SPECIALS.index(UNKNOWN)
    return tokenizers.Tokenizer.from_str(json.dumps(state))


def _nothing_to_learn() -> DataError:
    return DataError(
        "there is no text to learn a tokenizer from", "give at least one line that is not blank"
    )


def encodable(text: str) -> str:
    """The text, unless it holds half a character, which JSON's \\ud800 escapes can bring in and no UTF-8 can write."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"the text {text[:40]!r} holds half a character (a lone surrogate) at position {error.start}",
            "drop it, or replace it with U+FFFD",
        ) from error
    return text


@contextmanager
def library_errors(problem: str, repair: str) -> Iterator[None]:
    """The library's exceptions as DataError; its panics derive from BaseException, and have no importable name."""
    try:
        yield
    except (RegardError, OSError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{problem}: {str(error).strip()[:200]}", repair) from error


@functools.cache
def fork_quietly() -> None:
    """Tokenize on all cores, but on one in forked children, where the library's threads are gone.

    The library (before 0.23 with a warning) decides that inside fork(), by this variable; so it is set just before
    and, in the parent, unset just after. A user who has set it is left alone.
    """
    name = "TOKENIZERS_PARALLELISM"
    ours: list[bool] = []

    def before() -> None:
        if name not in os.environ:
            os.environ[name] = "false"
            ours.append(True)

    def after() -> None:
        if ours:
            ours.clear()
            os.environ.pop(name, None)

    if sys.platform != "win32":
        os.register_at_fork(before=before, after_in_parent=after)
