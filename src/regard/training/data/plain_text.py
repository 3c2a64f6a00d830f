"""From a recipe's text file to a tokenizer and corpora inside the run folder."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from regard import disk
from regard.data import text_files
from regard.data.corpus import Corpus, write_columns
from regard.errors import DataError
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_files import load_tokenizer, open_language_model_tokenizer
from regard.text.tokenizer_training import SpecialTokenTemplate, train_lossless_tokenizer
from regard.training.objectives.distillation import found
from regard.training.recipe.schema import Data, Recipe
from regard.training.run_folder import RunFolder

Blocks = Callable[[], Iterator[str]]
SHORTEST = 4  # tokens of a row; from fewer nothing can be hidden and guessed
CHUNK = 1000

# What each objective needs in a vocabulary, if it is learnt here.
_BERT = SpecialTokenTemplate(
    ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"
)
_T5 = SpecialTokenTemplate(
    ("<pad>", "</s>", "<unk>", *(f"<extra_id_{i}>" for i in range(100))),
    "$A </s>",
    "$A </s> $B </s>",
)
_BART = SpecialTokenTemplate(
    ("<s>", "<pad>", "</s>", "<unk>", "<mask>"), "<s> $A </s>", "<s> $A </s> </s> $B </s>"
)
MARKS = {
    "causal": SpecialTokenTemplate(()),
    "masked": _BERT,
    "replaced": _BERT,
    "span": _T5,
    "denoise": _BART,
}


@dataclass(frozen=True)
class Texts:
    """`train` and `valid` have a column `text`: for causal the text in blocks, one after the other; for the others rows
    that fit the context, with a column `breaks` of the places where sentences (lines) begin."""

    tokenizer: Tokenizer
    train: Corpus
    valid: Corpus


def texts(place: RunFolder, recipe: Recipe, say: Callable[[str], None]) -> Texts:
    """Tokenizer and corpora of a run: made on the first call, found by later ones."""
    if not (place.data / "train" / "corpus.json").exists():
        _make(place, recipe, say)
    tokenizer = load_tokenizer(place.folder / "tokenizer.json")
    return Texts(tokenizer, Corpus.open(place.data / "train"), Corpus.open(place.data / "valid"))


def _make(place: RunFolder, recipe: Recipe, say: Callable[[str], None]) -> None:
    """The training corpus is committed last, so its presence means that all of this is there."""
    place.data.mkdir(parents=True, exist_ok=True)
    train, valid = _splits(place, recipe.data, say)
    tokenizer = _tokenizer(recipe, train, say)
    disk.write_file(place.folder / "tokenizer.json", tokenizer.to_json())
    for name, blocks in (("valid", valid), ("train", train)):
        said = _write(blocks, tokenizer, recipe, place.data / name)
        say(f"{'training' if name == 'train' else 'validation'}: {said}")


def _splits(place: RunFolder, data: Data, say: Callable[[str], None]) -> tuple[Blocks, Blocks]:
    assert data.text is not None, "the recipe has seen to that"
    path = data.text
    if path == "-":
        # Standard input can be read once; the split and a resumed run need it again.
        path = str(place.data / "text.txt")
        if not Path(path).exists():
            disk.write_file(Path(path), "".join(text_files.text("-")))
    if data.valid_text is not None:
        other = data.valid_text
        return lambda: text_files.text(path), lambda: text_files.text(other)
    total = sum(len(block) for block in text_files.text(path))
    if total == 0:
        raise DataError(f"{path} is empty", "give a file with some text in it")
    cut = int(total * (1 - data.held_out))
    say(f"data: the first {cut:,} of {total:,} characters train, the rest validates")
    return lambda: _between(text_files.text(path), 0, cut), lambda: _between(
        text_files.text(path), cut, total
    )


def _between(blocks: Iterable[str], start: int, end: int) -> Iterator[str]:
    """Characters `start` to `end` of all blocks together."""
    place = 0
    for block in blocks:
        piece = block[max(0, start - place) : max(0, end - place)]
        place += len(block)
        if piece:
            yield piece
        if place >= end:
            return


def _tokenizer(recipe: Recipe, train: Blocks, say: Callable[[str], None]) -> Tokenizer:
    choice = recipe.tokens
    if choice.tokenizer.endswith(".json"):
        tokenizer = load_tokenizer(choice.tokenizer)
    elif recipe.teaching:
        tokenizer = open_language_model_tokenizer(found(recipe))
    else:
        marks = MARKS[recipe.train.objective]
        tokenizer = train_lossless_tokenizer(train(), choice.tokenizer, choice.vocabulary, marks)
    say(
        f"tokenizer: {'that of the teacher' if recipe.teaching else choice.tokenizer}, {len(tokenizer):,} tokens"
    )
    return tokenizer


def _write(blocks: Blocks, tokenizer: Tokenizer, recipe: Recipe, folder: Path) -> str:
    """Writes a corpus and says what is in it."""
    dtype = "uint16" if len(tokenizer) <= 65_535 else "uint32"
    counts = {"rows": 0, "tokens": 0, "unknown": 0, "short": 0}

    def counted(ids: list[int]) -> list[int]:
        counts["rows"] += 1
        counts["tokens"] += len(ids)
        unknown = tokenizer.special_token_id("unk")
        counts["unknown"] += 0 if unknown is None else ids.count(unknown)
        return ids

    if recipe.train.objective == "causal":
        write_columns(
            ((counted(tokenizer.encode(block)),) for block in blocks()), ["text"], [dtype], folder
        )
        said = f"{counts['tokens']:,} tokens"
    else:
        kept = _kept(packed(_lines(blocks()), tokenizer, room(recipe)), counts)
        write_columns(
            ((counted(ids), breaks) for ids, breaks in kept),
            ["text", "breaks"],
            [dtype, "uint32"],
            folder,
        )
        said = f"{counts['tokens']:,} tokens in {counts['rows']:,} rows"
        said += (
            f"; {counts['short']:,} rows of under {SHORTEST} tokens left out"
            if counts["short"]
            else ""
        )
    if counts["tokens"] <= recipe.data.context:
        raise DataError(
            f"{counts['tokens']:,} tokens to {folder.name} on are not enough for a context of {recipe.data.context}",
            "give more text, a smaller context, or a larger held_out share",
        )
    return said + (
        f"; {counts['unknown']:,} are not in the vocabulary" if counts["unknown"] else ""
    )


def _kept(
    rows: Iterable[tuple[list[int], list[int]]], counts: dict[str, int]
) -> Iterator[tuple[list[int], list[int]]]:
    for ids, breaks in rows:
        if len(ids) < SHORTEST:
            counts["short"] += 1
        else:
            yield ids, breaks


def room(recipe: Recipe) -> int:
    """Tokens of text that fit into the context beside the special tokens of the objective."""
    frame = {
        "masked": 3 if recipe.train.next_sentence else 2,
        "replaced": 2,
        "denoise": 2,
        "span": 1,
    }
    return recipe.data.context - frame[recipe.train.objective]


def _lines(blocks: Iterable[str]) -> Iterator[str]:
    """Lines with their ends; blocks are cut at line ends, except perhaps the first and the last."""
    return (line for block in blocks for line in io.StringIO(block))


def packed(
    lines: Iterable[str], tokenizer: Tokenizer, room: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Rows of at most `room` tokens, each of as many sentences (lines) as fit, and the places where they begin. A blank
    line ends a document, and no row goes over it; a sentence that is longer than a row is cut."""
    ids: list[int] = []
    breaks: list[int] = []
    stream = iter(lines)
    while chunk := list(itertools.islice(stream, CHUNK)):
        for line, sentence in zip(chunk, tokenizer.encode_batch(chunk), strict=True):
            ends = not line.strip()
            if ids and (ends or len(ids) + len(sentence) > room):
                yield ids, breaks
                ids, breaks = [], []
            if ends:
                continue
            while len(sentence) > room:
                yield sentence[:room], [0]
                sentence = sentence[room:]
            if sentence:
                breaks.append(len(ids))
                ids.extend(sentence)
    if ids:
        yield ids, breaks
