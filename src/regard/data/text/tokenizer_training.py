"""Training tokenizers: BPE, unigram, word-level and character vocabularies.

`train_tokenizer` is for sentences (translation). It normalizes a text before it is tokenized:

- Unicode NFC, so that "e" + combining accent and "é" are one letter;
- "▁" (U+2581), the mark for a space inside tokens, is read as a space;
- runs of spaces become one space, and white space at both ends is dropped.

Everything else comes back: `decode(encode(x)) == x` as long as every character of x occurred in
training (for "words" and "whitespace": every word), and for every x with byte fallback: what the
vocabulary lacks is spelled by characters, and a character that it lacks by the bytes of its UTF-8.
White space other than the space (tab, no-break space, line feed) is kept as it is.

`train_lossless_tokenizer` is for language models: it normalizes nothing, so no character is lost.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from regard.data.text.tokenizer import (
    END,
    SPECIAL_TOKEN_NAMES,
    SPECIALS,
    UNKNOWN,
    Tokenizer,
    check_encodable,
    library_errors,
)
from regard.system.errors import DataError, SettingError, did_you_mean
from regard.system.process_pool import batched, ordered_map

TEXTS_AT_ONCE = 1000  # normalized by one process
SUBWORDS = ("bpe", "unigram")  # kinds whose tokens are pieces of words
# Characters that pieces are built from; a corpus has thousands more that occur once or twice.
ALPHABET = 1000

# A token for each byte, by the names that SentencePiece gives them. A vocabulary smaller than this
# has none: they would crowd out the pieces.
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
SMALLEST_WITH_BYTES = 4 * len(BYTE_TOKENS)

# Punctuation, symbols and odd white space are tokens of their own, together with the space before
# them: "street." and "street" share a piece, and because ▁ stays where the space was, joining the
# pieces still gives the text.
PUNCTUATION = r"▁?(?!▁)[\p{P}\p{S}\s]"


# --- sentences: normalized, with padding, start, end and unknown tokens ---


def train_tokenizer(
    texts: Iterable[str], kind: str, size: int, *, byte_fallback: bool = False
) -> Tokenizer:
    """Train a vocabulary of at most `size` tokens, the four special ones included.

    `kind` is "bpe", "unigram", "words", "whitespace" or "characters". With `byte_fallback`, what
    the vocabulary lacks is spelled by characters and bytes instead of `<unk>`, if `size` leaves
    room for them. The same texts in the same order give the same bytes; only for "unigram", pieces
    that tie exactly in its likelihood could be pruned differently.
    """
    if kind not in _TRAINERS:
        raise SettingError(
            f"no kind of tokenizer is called {kind!r}", did_you_mean(kind, _TRAINERS)
        )
    if size < len(SPECIALS) + 2:
        raise SettingError(
            f"a vocabulary of {size} tokens has no room: {len(SPECIALS)} are special",
            "ask for more, say 8000",
        )
    with library_errors("the tokenizer could not be trained", "check the texts, or try kind 'bpe'"):
        if byte_fallback and size >= SMALLEST_WITH_BYTES:
            backend = _train_with_byte_fallback(texts, kind, size)
        else:
            backend = _TRAINERS[kind](texts, size)
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {END}",
        pair=f"$A {END} $B {END}",
        special_tokens=[(END, SPECIALS.index(END))],
    )
    return Tokenizer.for_translation(backend)


def _normalized(model: models.Model) -> tokenizers.Tokenizer:
    """A tokenizer with the normalization that this module promises."""
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Replace("▁", " "),  # before runs of spaces are joined
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Strip(),
        ]
    )
    return backend


def _with_spaces(model: models.Model) -> tokenizers.Tokenizer:
    """A tokenizer whose pieces stand between spaces; ▁ marks the space before each."""
    backend = _normalized(model)
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return backend


def _with_words(model: models.Model) -> tokenizers.Tokenizer:
    """A tokenizer whose pieces stay within words; ▁ marks the space before a word."""
    backend = _with_spaces(model)
    punctuation = pre_tokenizers.Split(Regex(PUNCTUATION), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([backend.pre_tokenizer, punctuation])
    return backend


def _train_subwords(
    model: models.Model, trainer: trainers.Trainer, texts: Iterable[str], size: int
) -> tokenizers.Tokenizer:
    backend = _with_words(model)
    with _without_rare_characters(texts, backend, size) as lines:
        backend.train_from_iterator(lines, trainer)
    return backend


def _train_bpe(texts: Iterable[str], size: int) -> tokenizers.Tokenizer:
    """Byte-pair encoding (Sennrich et al., 2016)."""
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIALS), show_progress=False
    )
    return _train_subwords(models.BPE(unk_token=UNKNOWN), trainer, texts, size)


def _train_unigram(texts: Iterable[str], size: int) -> tokenizers.Tokenizer:
    """The unigram language model (Kudo, 2018)."""
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=list(SPECIALS), unk_token=UNKNOWN, show_progress=False
    )
    return _deterministic_scores(_train_subwords(models.Unigram(), trainer, texts, size), size)


def _with_characters(model: models.Model) -> tokenizers.Tokenizer:
    """A tokenizer whose pieces are characters."""
    backend = _normalized(model)
    # Not ".", which does not match a line feed.
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return backend


def _train_word_level(
    tokenizer_of: Callable[[models.Model], tokenizers.Tokenizer], texts: Iterable[str], size: int
) -> tokenizers.Tokenizer:
    """The most frequent of the pieces into which a tokenizer splits texts."""
    backend = tokenizer_of(models.WordLevel(unk_token=UNKNOWN))
    trainer = trainers.WordLevelTrainer(
        vocab_size=size, special_tokens=list(SPECIALS), show_progress=False
    )
    backend.train_from_iterator(map(check_encodable, texts), trainer)
    if backend.get_vocab_size() == len(SPECIALS):
        raise _no_text()
    return backend


_TRAINERS: dict[str, Callable[[Iterable[str], int], tokenizers.Tokenizer]] = {
    "bpe": _train_bpe,
    "unigram": _train_unigram,
    "words": partial(_train_word_level, _with_words),  # the most frequent ones
    "whitespace": partial(_train_word_level, _with_spaces),  # phonemes, actions, residues
    "characters": partial(_train_word_level, _with_characters),
}


def _train_with_byte_fallback(texts: Iterable[str], kind: str, size: int) -> tokenizers.Tokenizer:
    """A vocabulary with a token for each byte behind its pieces (Kudo and Richardson, 2018)."""
    characters: Counter[str] = Counter()
    if kind not in SUBWORDS:  # what has no pieces is spelled by its most frequent characters
        texts = _counting_characters(texts, characters)
    backend = _TRAINERS[kind](texts, size - len(BYTE_TOKENS))
    model = json.loads(backend.to_str())["model"]  # the library has no getters
    if kind == "unigram":
        # The search falls back to bytes by itself: their scores are never compared.
        pieces = [*map(tuple, model["vocab"]), *((token, 0.0) for token in BYTE_TOKENS)]
        backend.model = models.Unigram(pieces, model["unk_id"], byte_fallback=True)
    else:
        tokens = sorted(model["vocab"], key=model["vocab"].get)
        if kind not in SUBWORDS:
            ranked = sorted(characters, key=lambda character: (-characters[character], character))
            alphabet = sorted({"▁", *ranked[: min(ALPHABET, size // 4)]} - {" "} - set(tokens))
            # The most frequent words come first: the last ones give way.
            tokens = [*tokens[: size - len(BYTE_TOKENS) - len(alphabet)], *alphabet]
        # The library's word-level model knows words only. BPE without merges spells everything, and
        # with `ignore_merges` it takes a word that is in the vocabulary as it is.
        backend.model = models.BPE(
            _numbered([*tokens, *BYTE_TOKENS]),
            [tuple(pair) for pair in model.get("merges", ())],
            unk_token=UNKNOWN,
            byte_fallback=True,
            ignore_merges=kind not in SUBWORDS,
        )
    # Bytes are joined to characters before the marks of spaces are read.
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), backend.decoder])
    return backend


def _counting_characters(texts: Iterable[str], counts: Counter[str]) -> Iterator[str]:
    for text in texts:
        counts.update(text)
        yield text


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


@contextmanager
def _without_rare_characters(
    texts: Iterable[str], backend: tokenizers.Tokenizer, size: int
) -> Iterator[Iterator[str]]:
    """The texts with rare characters replaced by spaces.

    They become `<unk>` and never crowd out pieces. The library has a limit of its own, but breaks
    ties in the order of a randomly seeded hash. Counting needs a pass of its own, and the texts may
    be a stream larger than memory: hence the temporary file.
    """
    counts: Counter[str] = Counter()
    chunks = batched(texts, TEXTS_AT_ONCE)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as spool:
        for lines, characters in ordered_map(partial(_normalized_lines, backend), chunks):
            spool.write(lines)
            counts.update(characters)
        counts.pop(" ", None)
        if not counts:
            raise _no_text()
        room = min(ALPHABET, size - len(SPECIALS) - 1)  # one entry is the ▁'s
        # By frequency, ties by code point: the same for the same texts.
        ranked = sorted(counts, key=lambda character: (-counts[character], character))
        rare = dict.fromkeys(map(ord, ranked[room:]), " ")
        spool.seek(0)
        yield (json.loads(line).translate(rare) for line in spool)


def _normalized_lines(
    backend: tokenizers.Tokenizer, texts: Sequence[str]
) -> tuple[str, Counter[str]]:
    """Normalized texts as lines of JSON, which escapes line feeds in them, and their characters."""
    normalized = [backend.normalizer.normalize_str(check_encodable(text)) for text in texts]
    return "".join(json.dumps(text) + "\n" for text in normalized), Counter("".join(normalized))


def _deterministic_scores(backend: tokenizers.Tokenizer, size: int) -> tokenizers.Tokenizer:
    """A freshly trained unigram model without the accidents of hashing: equal texts, equal bytes.

    The library's trainer sums in random order: scores differ in the last digits, and equal ones
    come in any order. It gives the characters that its search dropped the lowest score plus
    0.0001 × their position in a hash set. And where the characters alone fill the vocabulary, it
    forgets to stop.
    """
    pieces_and_scores = json.loads(backend.to_str())["model"]["vocab"]  # there is no getter
    scores: dict[str, float] = {
        piece: score for piece, score in pieces_and_scores if piece not in SPECIALS
    }
    lowest = min(scores.values())
    for piece, score in scores.items():
        dropped = len(piece) == 1 and score < lowest + 0.0001 * ALPHABET
        scores[piece] = round(lowest if dropped else score, 4)
    ranked = sorted(scores, key=lambda piece: (-scores[piece], piece))
    # Characters before longer pieces (the sort is stable), so that everything can be spelled.
    characters_first = sorted(ranked, key=lambda piece: len(piece) > 1)
    vocabulary = set(characters_first[: size - len(SPECIALS)])
    specials = [(special, 0.0) for special in SPECIALS]
    pieces = [(piece, scores[piece]) for piece in ranked if piece in vocabulary]
    backend.model = models.Unigram([*specials, *pieces], SPECIALS.index(UNKNOWN), False)
    return backend


def _no_text() -> DataError:
    return DataError(
        "there is no text to learn a tokenizer from", "give at least one line that is not blank"
    )


# --- language models: lossless, with the special tokens that their objective needs ---


@dataclass(frozen=True)
class SpecialTokenTemplate:
    """The special tokens that a tokenizer is trained with, and how they frame a text and a pair."""

    tokens: tuple[str, ...] = ()
    single: str = "$A"  # $A is the text
    pair: str | None = None  # $B is the second text; None: appended to `single`


def train_lossless_tokenizer(
    texts: Iterable[str], kind: str, size: int, template: SpecialTokenTemplate
) -> Tokenizer:
    """Train a tokenizer that keeps every character of a text.

    `kind` is "characters" (every character that occurs, in the order of Unicode) or "bpe"
    (byte-level, as GPT-2's).
    """
    trainers_by_kind: dict[str, Callable[..., tokenizers.Tokenizer]] = {
        "characters": _all_characters,
        "bpe": _train_byte_level_bpe,
    }
    if kind not in trainers_by_kind:
        hint = did_you_mean(kind, trainers_by_kind)
        raise SettingError(
            f"no tokenizer for texts is called {kind!r}",
            f"characters, bpe, or a path to a tokenizer.json; {hint}",
        )
    with library_errors("the tokenizer could not be trained", "check the texts, or try characters"):
        backend = trainers_by_kind[kind](map(check_encodable, texts), size, template.tokens)
    return _framed(backend, template)


def train_closed_word_tokenizer(
    texts: Iterable[str], size: int, template: SpecialTokenTemplate
) -> Tokenizer:
    """Train a tokenizer of all words, each with the space before it.

    It keeps every character of texts whose vocabulary is closed: there is no way to spell a word
    that does not occur.
    """
    # White space that stands before no word is a token for each character.
    return _framed(_all_pieces(r" ?[^\s]+|\s", "words", texts, size, template.tokens), template)


def _framed(backend: tokenizers.Tokenizer, template: SpecialTokenTemplate) -> Tokenizer:
    if template.single != "$A":
        backend.post_processor = processors.TemplateProcessing(
            single=template.single,
            pair=template.pair or f"{template.single} $B",
            special_tokens=[
                (token, backend.token_to_id(token))
                for token in template.tokens
                if token in template.single
            ],
        )
    return Tokenizer(backend).for_prompts()


def _train_byte_level_bpe(
    texts: Iterable[str], size: int, special_tokens: Sequence[str]
) -> tokenizers.Tokenizer:
    """BPE over the 256 bytes of UTF-8, which can spell every text (Radford et al., 2019)."""
    # GPT-2's printable characters for the 256 bytes; all are in the vocabulary from the start.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(alphabet) + len(special_tokens)
    if size < smallest:
        raise SettingError(
            f"a vocabulary of {size} has no room for all bytes", f"ask for {smallest} or more"
        )
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    # A mask takes the space before it, as the tokens of whole words do.
    special = [
        AddedToken(token, lstrip=token in SPECIAL_TOKEN_NAMES["mask"], normalized=False)
        for token in special_tokens
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def _all_pieces(
    pattern: str, name: str, texts: Iterable[str], size: int, special_tokens: Sequence[str]
) -> tokenizers.Tokenizer:
    """A vocabulary of all pieces into which a pattern splits the texts."""
    pieces = sorted({piece for text in texts for piece in re.findall(pattern, text)})
    if not pieces:
        raise _no_text()
    if len(pieces) + len(special_tokens) + 1 > size:
        raise SettingError(
            f"the text has {len(pieces):,} different {name}, more than the vocabulary of {size:,}",
            "raise vocabulary, or use tokenizer = 'bpe'",
        )
    unknown_names = SPECIAL_TOKEN_NAMES["unk"]
    unknown = next((token for token in special_tokens if token in unknown_names), UNKNOWN)
    special = list(dict.fromkeys((*special_tokens, unknown)))
    vocabulary = _numbered([*special, *pieces])
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    backend.add_special_tokens(special)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    backend.decoder = decoders.Fuse()
    return backend


_all_characters = partial(_all_pieces, r"[\s\S]", "characters")


# --- classifiers and memory networks: all words of the data ---


def word_level_json(
    texts: Iterable[str], *, cls_token: bool = True, size: int | None = None
) -> str:
    """The tokenizer.json of a word-level vocabulary: every word between spaces of some texts.

    With a `size`, only the most frequent words, so that there are so many tokens with the special
    ones. With `cls_token`, a text is framed by [CLS] in front, whose hidden state stands for it.
    """
    special = ["[PAD]", "[UNK]"]
    if cls_token:
        special.append("[CLS]")
    counts = Counter(word for text in texts for word in text.split())
    # Sorted twice, so that the order is the same in every process and for every size.
    frequent = sorted(counts, key=lambda word: (-counts[word], word))
    words = sorted(frequent if size is None else frequent[: max(0, size - len(special))])
    vocabulary = _numbered([*special, *words])
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if cls_token:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A", pair="[CLS] $A $B:1", special_tokens=[("[CLS]", vocabulary["[CLS]"])]
        )
    backend.add_special_tokens(special)
    return str(backend.to_str())
