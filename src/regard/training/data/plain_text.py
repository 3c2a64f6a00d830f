"""Plain text: from the text file a recipe names to a tokenizer and corpora in the run folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from regard.data import text_files
from regard.data.batching import Rows
from regard.data.corpus import (
    Corpus,
    RowChunk,
    id_type,
    order_notes,
    row_chunks,
    write_chunks,
)
from regard.data.corruption import Ids
from regard.data.file_access import expand, split_location
from regard.data.sentence_packing import (
    MIN_ROW_TOKENS,
    PackedRow,
    block_lines,
    pack_sentences,
)
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokenizer_files import load_tokenizer, open_language_model_tokenizer
from regard.data.text.tokenizer_training import (
    SpecialTokenTemplate,
    train_closed_word_tokenizer,
    train_lossless_tokenizer,
)
from regard.data.training_coverage import InputStatistics, corpus_statistics
from regard.models import LanguageModel, Model, TextEncoder
from regard.system import disk
from regard.system.errors import DataError
from regard.system.process_pool import ordered_map
from regard.training.data.source import Source, special_token_ids, text_model_files
from regard.training.data.splits import (
    corpora_of,
    evenly_spaced,
    generated_lines,
    generated_prompts,
    held_out_of_each,
    mixture,
    say_files,
    split_of,
)
from regard.training.objectives.distillation import teacher_folder
from regard.training.recipe.schema import Recipe
from regard.training.setup import Setup, Split

Pair = tuple[str, str]
_FITTED = ("train", "valid")  # the splits of plain text

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
    begin. A generated task also has pairs of a prompt and what is to follow it, by split.
    """

    tokenizer: Tokenizer
    train: Corpus
    valid: Corpus
    test_sets: Mapping[str, list[Pair]] = field(default_factory=dict)


def _prepare(setup: Setup, base: Model | None) -> None:
    folder = setup.run_folder.data
    folder.mkdir(parents=True, exist_ok=True)
    splits = dict(setup.splits(text_splits))
    if "valid" not in splits:
        splits |= _train_and_valid(setup, "the text", splits["train"])
    unread = next((name for name in splits if name not in _FITTED), None)
    # A generated task has prompts to be scored, which are made anew.
    if unread is not None and setup.parts.source is not None:
        raise DataError(
            f"the objective {setup.recipe.objective!r} scores no split {unread!r}",
            "leave it out; `regard.evaluate` scores a finished model on any text",
        )
    train = splits["train"]
    # Of the training text alone: validation must not be seen.
    tokenizer = _tokenizer(setup, train, base)
    disk.write_file(setup.run_folder.folder / "tokenizer.json", tokenizer.to_json())
    report = _write_corpus(splits["valid"], tokenizer, setup.recipe, folder / "valid")
    setup.say(f"validation: {report}")
    # Last: the presence of the training corpus says that everything is there.
    report = _write_corpus(train, tokenizer, setup.recipe, folder / "train")
    setup.say(f"training: {report}")


def text_splits(setup: Setup) -> dict[str, Split]:
    """The text that a recipe names, in pieces, by split."""
    recipe = setup.recipe
    if recipe.generated_task is not None:
        return generated_lines(setup)
    column = recipe.data.text_column
    location = _text_location(setup)
    text_files.check_has_columns(expand(location), column)
    say_files(location, setup.say)
    corpora: dict[str, Split] = {
        path: partial(text_files.text, path, column=column) for path in split_location(location)
    }
    if "valid" in recipe.files:
        valid = partial(text_files.text, recipe.files["valid"][0], column=column)
        return {"train": split_of(corpora), "valid": valid}
    return held_out_of_each(corpora, partial(_train_and_valid, setup))


def _text_location(setup: Setup) -> str:
    """Where the text is; that of standard input is copied, for it can be read once."""
    location = setup.recipe.files["train"][0]
    if location != "-":
        return location
    copy = setup.run_folder.data / "text.txt"
    if not copy.exists():
        disk.write_lines(copy, text_files.text("-"))
    return str(copy)


def _train_and_valid(setup: Setup, path: str, text: Split) -> dict[str, Split]:
    """A text without its end, and its end."""
    # A pass of its own: where the validation part begins depends on the length.
    total = sum(len(block) for block in text())
    if total == 0:
        raise DataError(f"{path} is empty", "give a file that contains text")
    # The end, not random lines: neighbours of training lines would be too easy.
    cut = int(total * (1 - setup.recipe.data.held_out))
    setup.say(
        f"data: the first {cut:,} of {total:,} characters for training, the rest for validation"
    )
    return {
        "train": lambda: _between(text(), 0, cut),
        "valid": lambda: _between(text(), cut, total),
    }


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


def _tokenizer(setup: Setup, train: Split, base: Model | None) -> Tokenizer:
    recipe = setup.recipe
    choice = recipe.tokens
    origin = choice.tokenizer
    if base is not None:
        origin = "that of the model"
        tokenizer = _base_tokenizer(base)
    elif choice.tokenizer.endswith(".json"):
        tokenizer = load_tokenizer(choice.tokenizer)
    elif recipe.distillation_weight:
        tokenizer = open_language_model_tokenizer(teacher_folder(recipe))
    elif recipe.generated_task is not None and choice.tokenizer == "words":
        special_tokens = SPECIAL_TOKENS[recipe.objective]
        tokenizer = train_closed_word_tokenizer(train(), choice.vocabulary, special_tokens)
    else:
        special_tokens = SPECIAL_TOKENS[recipe.objective]
        sample = evenly_spaced(train, choice.tokenizer_examples)
        tokenizer = train_lossless_tokenizer(
            sample(), choice.tokenizer, choice.vocabulary, special_tokens
        )
    if recipe.distillation_weight:
        origin = "that of the teacher"
    setup.say(f"tokenizer: {origin}, {len(tokenizer):,} tokens")
    return tokenizer


def _base_tokenizer(base: Model) -> Tokenizer:
    """The tokenizer of a model that is trained on, which frames no text by itself."""
    if base.folder is not None and (base.folder / "tokenizer.json").is_file():
        return load_tokenizer(base.folder / "tokenizer.json")
    return base.input_tokenizer


# --- writing corpora ------------------------------------------------------------------------------


def _write_corpus(blocks: Split, tokenizer: Tokenizer, recipe: Recipe, folder: Path) -> str:
    """Writes a corpus; returns a report of what is in it.

    Of a causal language model that is the text in blocks, whose windows begin anywhere; of the
    others rows of sentences that fit the context, with a column of where sentences begin.
    """
    is_stream = recipe.objective == "causal"
    workers = recipe.data.preprocessing_workers
    dtypes = [id_type(tokenizer)] if is_stream else [id_type(tokenizer), "uint32"]
    unknown = tokenizer.special_token_id("unk")
    # Filled while the rows are written out: the text is read only once.
    counts: Counter[str] = Counter()
    rows: dict[str, int] = {}  # of each corpus
    tokens: dict[str, int] = {}

    def encode(block: str) -> tuple[RowChunk]:
        return (RowChunk.of([tokenizer.encode(block)], dtypes[0]),)

    def packed(corpus: Split) -> Iterator[PackedRow]:
        lines = block_lines(corpus())
        for ids, starts in pack_sentences(lines, tokenizer, max_row_tokens(recipe), workers):
            if len(ids) >= MIN_ROW_TOKENS:
                yield ids, starts
            else:
                counts["short"] += 1

    def chunks() -> Iterator[tuple[RowChunk, ...]]:
        for name, corpus in corpora_of(blocks).items():
            before = counts.copy()
            columns: Iterator[tuple[RowChunk, ...]] = row_chunks(packed(corpus), dtypes)
            if is_stream:
                columns = ordered_map(encode, corpus(), workers)
            for chunk in columns:
                counts["rows"] += len(chunk[0].lengths)
                counts["tokens"] += len(chunk[0].ids)
                if unknown is not None:
                    counts["unknown"] += int((chunk[0].ids == unknown).sum())
                yield chunk
            rows[name] = counts["rows"] - before["rows"]
            tokens[name] = counts["tokens"] - before["tokens"]

    def about() -> Mapping[str, Any]:
        return order_notes(rows, mixture(recipe), list(tokens.values()) if is_stream else None)

    write_chunks(chunks(), ["text", "breaks"][: len(dtypes)], dtypes, folder, about)
    # A window and the token after it must fit.
    if counts["tokens"] <= recipe.data.context:
        raise DataError(
            f"{counts['tokens']:,} tokens of the {folder.name} split are not enough "
            f"for a context of {recipe.data.context}",
            "give more text, a smaller --context, or a larger --held-out",
        )
    return _report(counts, "" if is_stream else f" in {counts['rows']:,} rows")


def _report(counts: Counter[str], rows: str) -> str:
    report = f"{counts['tokens']:,} tokens{rows}"
    if counts["short"]:
        report += f"; {counts['short']:,} rows of under {MIN_ROW_TOKENS} tokens left out"
    if counts["unknown"]:
        report += f"; {counts['unknown']:,} are not in the vocabulary"
    return report


def max_row_tokens(recipe: Recipe) -> int:
    """Tokens of text that fit into the context besides the special tokens of the objective."""
    # [CLS] A [SEP] (B [SEP]); <s> A </s>; A </s>.
    special_tokens = {
        "masked": 3 if recipe.train.next_sentence else 2,
        "replaced": 2,
        "denoise": 2,
        "span": 1,
    }
    return recipe.data.context - special_tokens[recipe.objective]


# --- sources --------------------------------------------------------------------------------------

MAX_SPECIAL_TOKENS = 3  # that frame a row: [CLS] A [SEP] B [SEP]


class PlainText(Source):
    """A text for a causal language model: its tokens, one after the other."""

    unit = "blocks"
    evaluation_factor = 1
    model_class: ClassVar[Callable[..., Model]] = LanguageModel
    data: TextCorpora

    def __init__(self, model: Model, data: TextCorpora, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.corpus: Corpus = data.train
        self.context = setup.recipe.data.context
        self.splits = {"train": data.train, "valid": data.valid}

    @classmethod
    def prepare(cls, setup: Setup, base: Model | None) -> TextCorpora:
        folder = setup.run_folder.data
        if not (folder / "train" / "corpus.json").exists():
            _prepare(setup, base)
        tokenizer = load_tokenizer(setup.run_folder.folder / "tokenizer.json")
        train = Corpus.open(folder / "train")
        valid = Corpus.open(folder / "valid")
        test_sets = {}
        if setup.parts.source is None and setup.recipe.generated_task is not None:
            # Generated anew: an example is a function of its split and number.
            splits = generated_prompts(setup)
            test_sets = {name: list(split()) for name, split in splits.items()}
        return TextCorpora(tokenizer, train, valid, test_sets)

    @classmethod
    def wrap(cls, model: Any, description: Any, config: dict[str, Any], data: TextCorpora) -> Model:
        return super().wrap(model, description, config | special_token_ids(data.tokenizer), data)

    @classmethod
    def files(cls, model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
        return text_model_files(model, setup)

    def lengths(self, split: str) -> NDArray[Any]:
        lengths: NDArray[Any] = self.splits[split].lengths
        return lengths

    def describe(self) -> str:
        return ""  # said when the corpora were written

    def example(self, row: int) -> dict[str, Any]:
        window = self.corpus.columns["text"].tokens[row : row + self.context]
        return {"text": self.data.tokenizer.decode(window.tolist())}

    def statistics(self) -> InputStatistics:
        statistics = corpus_statistics(self.corpus, "text", self.data.tokenizer)
        return replace(statistics, longest=self.context)


class PackedText(PlainText):
    """Rows of sentences that fit the context.

    With `pad_to_multiple_of` above 1 all batches are as wide as the context, so that few shapes
    occur.
    """

    unit = "rows"
    model_class = TextEncoder

    def lengths(self, split: str) -> NDArray[Any]:
        return self._lengths(self.splits[split], slice(None))

    def corpus_lengths(self, rows: Rows) -> NDArray[Any]:
        return self._lengths(self.corpus, rows)

    def _lengths(self, corpus: Corpus, rows: Any) -> NDArray[Any]:
        """[rows, 1]: tokens of some rows with their special tokens."""
        lengths = corpus.columns["text"].row_lengths(rows)[:, None] + MAX_SPECIAL_TOKENS
        if self.setup.pad_to_multiple_of == 1:
            return lengths
        return np.full_like(lengths, self.context)

    def row(self, split: str, row: int) -> tuple[Ids, Ids]:
        """The tokens of a row, and where its sentences begin."""
        columns = self.splits[split].columns
        return columns["text"][row].astype(np.int64), columns["breaks"][row].astype(np.int64)

    def example(self, row: int) -> dict[str, Any]:
        return {"text": self.data.tokenizer.decode(self.row("train", row)[0].tolist())}

    def statistics(self) -> InputStatistics:
        tokenizer = self.data.tokenizer
        special_tokens = len(tokenizer.frame([]))
        return corpus_statistics(self.corpus, "text", tokenizer, special_tokens)
