"""Parallel text: from the pairs a recipe names to tokenizers and corpora in the run folder."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from regard import disk
from regard.data import builtin, text_files
from regard.data.corpus import Corpus, prepare
from regard.decode.strategy import BeamSearch
from regard.errors import DataError, SettingError
from regard.families.folder import append_end_token
from regard.models import load_translator
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_files import (
    load_translation_tokenizer,
    open_translation_tokenizers,
    translation_tokenizer_from_json,
)
from regard.text.tokenizer_training import train_tokenizer
from regard.training.objectives.distillation import teacher_folder
from regard.training.recipe.schema import Recipe
from regard.training.recipe.sections import Data
from regard.training.run_folder import RunFolder

Pair = tuple[str, str]
Pairs = Callable[[], Iterator[Pair]]  # from the beginning, as often as it is called
Say = Callable[[str], None]

TOKENIZER_KINDS = ("bpe", "unigram", "words", "characters")
BUILTIN_VALIDATION = 500  # sentences
BUILTIN_TEST = 1000
# Without validation files, every 100th pair validates, but not more than 1,000.
HOLD_OUT_EVERY = 100
MAX_HELD_OUT = 1000
TRANSLATED_AT_ONCE = 2000  # sentences that a teacher translates between two reports


@dataclass(frozen=True)
class ParallelCorpora:
    """Tokenizers and tokenized pairs of a run; the validation pairs as text too."""

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    train: Corpus
    valid: Corpus | None
    valid_pairs: list[Pair]


def parallel_corpora(run_folder: RunFolder, recipe: Recipe, say: Say) -> ParallelCorpora:
    """Prepares tokenizers and corpora on the first call; later calls open them."""
    train = run_folder.data / "train"
    if not (train / "corpus.json").exists():
        _prepare(run_folder, recipe, say)
    # Opened from the folder, as users will: what was prepared now and what is resumed are one.
    source, target = open_translation_tokenizers(run_folder.folder)
    valid = run_folder.data / "valid"
    if not valid.exists():
        return ParallelCorpora(source, target, Corpus.open(train), None, [])
    pairs = list(text_files.pairs(run_folder.data / "valid.jsonl"))
    return ParallelCorpora(source, target, Corpus.open(train), Corpus.open(valid), pairs)


def test_sets(recipe: Recipe) -> dict[str, list[Pair]]:
    """The pairs that the finished model is scored on, by name of the set."""
    if recipe.builtin:
        return {
            "test": _builtin_pairs("test", BUILTIN_TEST),
            # Sentences whose pronoun can be translated only by what it refers to.
            "pronouns": _builtin_pairs("test", BUILTIN_TEST, pronouns=True),
        }
    data = recipe.data
    if data.test_source and data.test_target:
        return {"test": list(text_files.pairs(data.test_source, data.test_target))}
    return {}


def _builtin_pairs(split: str, lines: int, pronouns: bool = False) -> list[Pair]:
    sentences = itertools.islice(builtin.sentences(split, pronouns=pronouns), lines)
    return [(sentence.source, sentence.target) for sentence in sentences]


def _prepare(run_folder: RunFolder, recipe: Recipe, say: Say) -> None:
    run_folder.data.mkdir(parents=True, exist_ok=True)
    train, valid = _splits(run_folder, recipe.data, say)
    # The tokenizer learns from the original targets, which have more words than the teacher's.
    source, target = _tokenizers(recipe, train, say)
    if recipe.train.teacher_translates:
        train = _teacher_translations(run_folder, recipe, train, say)
    disk.write_file(run_folder.folder / "tokenizer.json", source.to_json())
    if target is not source:  # one file for a joint vocabulary
        disk.write_file(run_folder.folder / "target_tokenizer.json", target.to_json())
    max_length = recipe.data.max_length
    if valid:
        _write_jsonl(run_folder.data / "valid.jsonl", valid)
        folder = run_folder.data / "valid"
        say(f"validation: {prepare(valid, source, target, folder, max_length=max_length)}")
    else:
        say("no validation text: nothing to choose the best weights by, so the last ones are kept")
    # Last: the presence of the training corpus says that everything is there.
    folder = run_folder.data / "train"
    say(f"training: {prepare(train(), source, target, folder, max_length=max_length)}")


# --- where the pairs come from --------------------------------------------------------------------


def _splits(run_folder: RunFolder, data: Data, say: Say) -> tuple[Pairs, list[Pair]]:
    """Training and validation pairs."""
    if data.source is None and data.pairs is None:
        lines = data.builtin_lines
        say(f"data: the built-in English–German language, {lines:,} sentences")
        # Generated once and read back: the same sentences for the tokenizer and the corpus.
        path = run_folder.data / "train.jsonl"
        _write_jsonl(path, _builtin_pairs("train", lines))
        return lambda: text_files.pairs(path), _builtin_pairs("valid", BUILTIN_VALIDATION)
    pairs = _training_pairs(run_folder, data)
    valid = _validation_pairs(data)
    if valid is not None:
        return pairs, valid
    candidates = (pair for i, pair in enumerate(pairs()) if _is_held_out(i))
    valid = list(itertools.islice(candidates, MAX_HELD_OUT))
    say(
        f"no validation files: every {HOLD_OUT_EVERY}th pair, {len(valid):,} in all, "
        "is held out for validation"
    )
    return lambda: _without_held_out(pairs()), valid


def _is_held_out(index: int) -> bool:
    return index % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1


def _without_held_out(pairs: Iterator[Pair]) -> Iterator[Pair]:
    held_out = 0
    for i, pair in enumerate(pairs):
        if _is_held_out(i) and held_out < MAX_HELD_OUT:
            held_out += 1
        else:
            yield pair


def _training_pairs(run_folder: RunFolder, data: Data) -> Pairs:
    languages = _languages(data)
    if data.pairs is None:
        if data.source is None or data.target is None:
            raise SettingError(
                "training needs both sides", "give --source and --target, or --pairs"
            )
        source = data.source
        target = data.target
        return lambda: text_files.pairs(source, target)
    if data.pairs == "-":
        return _spooled_stdin(run_folder, languages)
    pairs = data.pairs
    return lambda: text_files.pairs(pairs, languages=languages)


def _spooled_stdin(run_folder: RunFolder, languages: tuple[str, str] | None) -> Pairs:
    """Standard input can be read once; what follows, and a resumed run, read the copy."""
    path = run_folder.data / "train.jsonl"
    if not path.exists():
        pairs: list[Pair] = []
        if not sys.stdin.isatty():  # nobody types a corpus
            pairs = list(text_files.pairs("-", format="tsv", languages=languages))
        _write_jsonl(path, pairs)
    return lambda: text_files.pairs(path)


def _validation_pairs(data: Data) -> list[Pair] | None:
    if data.valid_pairs is not None:
        return list(text_files.pairs(data.valid_pairs, languages=_languages(data)))
    if data.valid_source is None and data.valid_target is None:
        return None
    if data.valid_source is None or data.valid_target is None:
        raise SettingError("validation needs both sides", "give --valid-source and --valid-target")
    return list(text_files.pairs(data.valid_source, data.valid_target))


def _languages(data: Data) -> tuple[str, str] | None:
    if data.languages is None:
        return None
    source, _, target = data.languages.partition("-")
    if not source or not target:
        raise SettingError(
            f"languages = {data.languages!r} does not name two languages", "write them like en-de"
        )
    return source, target


def _teacher_translations(run_folder: RunFolder, recipe: Recipe, train: Pairs, say: Say) -> Pairs:
    """Sequence-level knowledge distillation (Kim and Rush 2016).

    The training sources with the teacher's translations by beam search: such targets are less
    diverse, so that a small model can learn them. Validation pairs stay as they are.
    """
    path = run_folder.data / "taught.jsonl"
    if not path.exists():
        teacher = load_translator(teacher_folder(recipe), device=recipe.train.device, say=say)
        teacher.freeze()  # packed weights for inference
        settings = teacher.settings(BeamSearch(recipe.decode.beam, recipe.length_penalty))
        pairs: list[Pair] = []
        sources = (source for source, _ in train())
        while chunk := list(itertools.islice(sources, TRANSLATED_AT_ONCE)):
            hypotheses = teacher.hypotheses(chunk, settings, before=len(pairs))
            for source, best in zip(chunk, hypotheses, strict=True):
                pairs.append((source, teacher.text(best[0]) if best else ""))
            say(f"the teacher has translated {len(pairs):,} sentences")
        _write_jsonl(path, pairs)
    return lambda: text_files.pairs(path)


def _write_jsonl(path: Path, pairs: list[Pair]) -> None:
    if not pairs:
        raise DataError(
            "there are no pairs to train on", "pipe source<TAB>target lines into standard input"
        )
    lines = [disk.json_line({"source": source, "target": target}) for source, target in pairs]
    disk.write_file(path, "".join(lines))


# --- tokenizers -----------------------------------------------------------------------------------


def _tokenizers(recipe: Recipe, train: Pairs, say: Say) -> tuple[Tokenizer, Tokenizer]:
    """Source and target tokenizer; one object if they share a vocabulary."""
    choice = recipe.tokens
    if choice.tokenizer.endswith(".json"):
        source = _with_end_token(load_translation_tokenizer(choice.tokenizer))
        target = source
        if choice.target_tokenizer:
            target = _with_end_token(load_translation_tokenizer(choice.target_tokenizer))
    elif recipe.distillation_weight:
        source, target = open_translation_tokenizers(teacher_folder(recipe))
    else:
        source, target = _learn_tokenizers(recipe, train)
    origin = "that of the teacher" if recipe.distillation_weight else choice.tokenizer
    sizes = f"{len(source):,} tokens"
    if source is not target:
        sizes = f"{len(source):,} source and {len(target):,} target tokens"
    say(f"tokenizer: {origin}, {sizes}")
    return source, target


def _learn_tokenizers(recipe: Recipe, train: Pairs) -> tuple[Tokenizer, Tokenizer]:
    kind = recipe.tokens.tokenizer
    vocabulary = recipe.tokens.vocabulary
    if kind not in TOKENIZER_KINDS:
        raise SettingError(
            f"there is no tokenizer {kind!r}",
            f"{', '.join(TOKENIZER_KINDS)}, or a path to a tokenizer.json",
        )
    if recipe.tokens.joint:
        # One pass over both sides, as Section 5.1 has one vocabulary for both.
        both_sides = (text for pair in train() for text in pair)
        joint = train_tokenizer(both_sides, kind, vocabulary)
        return joint, joint
    source = train_tokenizer((source for source, _ in train()), kind, vocabulary)
    target = train_tokenizer((target for _, target in train()), kind, vocabulary)
    return source, target


def _with_end_token(tokenizer: Tokenizer) -> Tokenizer:
    """Models trained from scratch read sources with an end token, whatever the file says."""
    end = tokenizer.special_tokens["eos"]
    return translation_tokenizer_from_json(append_end_token(tokenizer.to_json(), end))
