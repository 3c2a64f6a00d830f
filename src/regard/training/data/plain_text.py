"""Plain text: from the text file a recipe names to a tokenizer and corpora in the run folder."""

from __future__ import annotations

import io
import itertools
from collections import Counter
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
from regard.training.objectives.distillation import teacher_folder
from regard.training.recipe.schema import Recipe
from regard.training.recipe.sections import Data
from regard.training.run_folder import RunFolder

Blocks = Callable[[], Iterator[str]]  # pieces of a text from its beginning, whenever it is called
Say = Callable[[str], None]
PackedRow = tuple[list[int], list[int]]  # token ids, and where sentences begin

MIN_ROW_TOKENS = 4  # in fewer, nothing can be masked and predicted
LINES_AT_ONCE = 1000  # tokenized together
MAX_UINT16_VOCABULARY = 65_535  # more need 32 bits for an id

# The special tokens that each objective needs in a vocabulary, if it is learnt here.
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
SPECIAL_TOKENS = {
    "causal": SpecialTokenTemplate(()),
    "masked": _BERT,
    "replaced": _BERT,
    "span": _T5,
    "denoise": _BART,
}


@dataclass(frozen=True)
class TextCorpora:
    """The tokenizer and the tokenized text of a run, in a column `text`.

    For causal language models `text` is the text in blocks, one after the other. For the other
    objectives it is rows that fit the context, with a column `breaks` of where sentences (lines)
    begin.
    """

    tokenizer: Tokenizer
    train: Corpus
    valid: Corpus


def text_corpora(run_folder: RunFolder, recipe: Recipe, say: Say) -> TextCorpora:
    """Prepares tokenizer and corpora on the first call; later calls open them."""
    train = run_folder.data / "train"
    if not (train / "corpus.json").exists():
        _prepare(run_folder, recipe, say)
    tokenizer = load_tokenizer(run_folder.folder / "tokenizer.json")
    return TextCorpora(tokenizer, Corpus.open(train), Corpus.open(run_folder.data / "valid"))


def _prepare(run_folder: RunFolder, recipe: Recipe, say: Say) -> None:
    run_folder.data.mkdir(parents=True, exist_ok=True)
    train, valid = _splits(run_folder, recipe.data, say)
    # Of the training text alone: validation must not be seen.
    tokenizer = _tokenizer(recipe, train, say)
    disk.write_file(run_folder.folder / "tokenizer.json", tokenizer.to_json())
    report = _write_corpus(valid, tokenizer, recipe, run_folder.data / "valid")
    say(f"validation: {report}")
    # Last: the presence of the training corpus says that everything is there.
    report = _write_corpus(train, tokenizer, recipe, run_folder.data / "train")
    say(f"training: {report}")


def _splits(run_folder: RunFolder, data: Data, say: Say) -> tuple[Blocks, Blocks]:
    """Training and validation text."""
    assert data.text is not None, "the recipe has checked that"
    path = data.text
    if path == "-":
        # Standard input can be read once; the split and a resumed run read the copy.
        copy = run_folder.data / "text.txt"
        if not copy.exists():
            disk.write_file(copy, "".join(text_files.text("-")))
        path = str(copy)
    if data.valid_text is not None:
        valid_path = data.valid_text
        return lambda: text_files.text(path), lambda: text_files.text(valid_path)
    total = sum(len(block) for block in text_files.text(path))
    if total == 0:
        raise DataError(f"{path} is empty", "give a file with some text in it")
    # The end, not random lines: neighbours of training lines would be too easy.
    cut = int(total * (1 - data.held_out))
    say(f"data: the first {cut:,} of {total:,} characters train, the rest validates")

    def train() -> Iterator[str]:
        return _between(text_files.text(path), 0, cut)

    def valid() -> Iterator[str]:
        return _between(text_files.text(path), cut, total)

    return train, valid


def _between(blocks: Iterable[str], start: int, end: int) -> Iterator[str]:
    """Characters `start` to `end` of all blocks together."""
    offset = 0
    for block in blocks:
        piece = block[max(0, start - offset) : max(0, end - offset)]
        offset += len(block)
        if piece:
            yield piece
        if offset >= end:
            return


def _tokenizer(recipe: Recipe, train: Blocks, say: Say) -> Tokenizer:
    choice = recipe.tokens
    origin = choice.tokenizer
    if choice.tokenizer.endswith(".json"):
        tokenizer = load_tokenizer(choice.tokenizer)
    elif recipe.distillation_weight:
        tokenizer = open_language_model_tokenizer(teacher_folder(recipe))
    else:
        special_tokens = SPECIAL_TOKENS[recipe.train.objective]
        tokenizer = train_lossless_tokenizer(
            train(), choice.tokenizer, choice.vocabulary, special_tokens
        )
    if recipe.distillation_weight:
        origin = "that of the teacher"
    say(f"tokenizer: {origin}, {len(tokenizer):,} tokens")
    return tokenizer


# --- writing corpora ------------------------------------------------------------------------------


def _write_corpus(blocks: Blocks, tokenizer: Tokenizer, recipe: Recipe, folder: Path) -> str:
    """Writes a corpus; returns a report of what is in it."""
    dtype = "uint16" if len(tokenizer) <= MAX_UINT16_VOCABULARY else "uint32"
    counts: Counter[str] = Counter()
    unknown = tokenizer.special_token_id("unk")

    def counted(ids: list[int]) -> list[int]:
        counts["rows"] += 1
        counts["tokens"] += len(ids)
        if unknown is not None:
            counts["unknown"] += ids.count(unknown)
        return ids

    if recipe.train.objective == "causal":
        # A stream without rows: windows begin anywhere.
        texts = ((counted(tokenizer.encode(block)),) for block in blocks())
        write_columns(texts, ["text"], [dtype], folder)
        report = f"{counts['tokens']:,} tokens"
    else:
        rows = pack_sentences(_lines(blocks()), tokenizer, max_row_tokens(recipe))
        long_rows = _without_short(rows, counts)
        columns = ((counted(ids), starts) for ids, starts in long_rows)
        write_columns(columns, ["text", "breaks"], [dtype, "uint32"], folder)
        report = f"{counts['tokens']:,} tokens in {counts['rows']:,} rows"
    if counts["short"]:
        report += f"; {counts['short']:,} rows of under {MIN_ROW_TOKENS} tokens left out"
    if counts["unknown"]:
        report += f"; {counts['unknown']:,} are not in the vocabulary"
    # A window and the token after it must fit.
    if counts["tokens"] <= recipe.data.context:
        raise DataError(
            f"{counts['tokens']:,} tokens to {folder.name} on are not enough "
            f"for a context of {recipe.data.context}",
            "give more text, a smaller context, or a larger held_out share",
        )
    return report


def _without_short(rows: Iterable[PackedRow], counts: Counter[str]) -> Iterator[PackedRow]:
    for ids, starts in rows:
        if len(ids) < MIN_ROW_TOKENS:
            counts["short"] += 1
        else:
            yield ids, starts


def max_row_tokens(recipe: Recipe) -> int:
    """Tokens of text that fit into the context besides the special tokens of the objective."""
    # [CLS] A [SEP] (B [SEP]); <s> A </s>; A </s>.
    special_tokens = {
        "masked": 3 if recipe.train.next_sentence else 2,
        "replaced": 2,
        "denoise": 2,
        "span": 1,
    }
    return recipe.data.context - special_tokens[recipe.train.objective]


def _lines(blocks: Iterable[str]) -> Iterator[str]:
    """Lines with their ends; only the first and the last block may cut a line."""
    for block in blocks:
        yield from io.StringIO(block)


def pack_sentences(
    lines: Iterable[str], tokenizer: Tokenizer, max_tokens: int
) -> Iterator[PackedRow]:
    """Packs sentences (lines) into rows of at most `max_tokens` tokens.

    Yields token ids and where the sentences begin. A blank line ends a document, and no row crosses
    it; a sentence longer than a row is cut.
    """
    ids: list[int] = []
    starts: list[int] = []
    stream = iter(lines)
    while chunk := list(itertools.islice(stream, LINES_AT_ONCE)):
        for line, sentence in zip(chunk, tokenizer.encode_batch(chunk), strict=True):
            document_ends = not line.strip()
            # A row is full before it is too long: no sentence is cut that fits into a row.
            if ids and (document_ends or len(ids) + len(sentence) > max_tokens):
                yield ids, starts
                ids = []
                starts = []
            if document_ends:
                continue
            while len(sentence) > max_tokens:
                yield sentence[:max_tokens], [0]
                sentence = sentence[max_tokens:]
            if sentence:
                starts.append(len(ids))
                ids.extend(sentence)
    if ids:
        yield ids, starts
