"""Parallel text: from the pairs a recipe names to tokenizers and corpora in the run folder."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from regard.data import text_files
from regard.data.corpus import Corpus, prepare
from regard.data.file_access import split_location
from regard.data.generated import builtin
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokenizer_files import (
    load_translation_tokenizer,
    open_translation_tokenizers,
    translation_tokenizer_from_json,
)
from regard.data.text.tokenizer_training import train_tokenizer
from regard.decode.strategy import BeamSearch
from regard.families.folder import append_end_token
from regard.models import Translator, load
from regard.system import disk
from regard.system.errors import DataError, SettingError
from regard.training.data.generated_examples import generated_pairs
from regard.training.data.labelled_text import held_out_stream, one_in
from regard.training.data.mixtures import (
    corpora_of,
    evenly_spaced,
    mixture,
    say_files,
    split_of,
)
from regard.training.objectives.distillation import teacher_folder
from regard.training.recipe.schema import Recipe
from regard.training.recipe.sections import DataSettings
from regard.training.run_folder import RunFolder
from regard.training.setup import Say, Setup, Split

Pair = tuple[str, str]

TOKENIZER_KINDS = ("bpe", "unigram", "words", "characters")
BUILTIN_VALIDATION = 500  # sentences
BUILTIN_TEST = 1000
# Without validation files, every 100th pair validates, but not more than 1,000.
HOLD_OUT_EVERY = 100
HOLD_OUT_OF_FEW_EVERY = 10  # of fewer pairs than that
MAX_HELD_OUT = 1000
_FITTED = ("train", "valid")  # splits that training itself uses
_TAUGHT = "taught"  # the file of a teacher's translations
TRANSLATED_AT_ONCE = 2000  # sentences that a teacher translates between two reports


@dataclass(frozen=True)
class ParallelCorpora:
    """Tokenizers and tokenized pairs of a run; validation and test pairs as text too."""

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    train: Corpus
    valid: Corpus | None
    valid_pairs: list[Pair]
    test_sets: dict[str, list[Pair]]


def parallel_corpora(setup: Setup, base: Translator | None = None) -> ParallelCorpora:
    """Prepares tokenizers and corpora on the first call; later calls open them.

    A translator that is fine-tuned, `base`, brings its tokenizers.
    """
    data = setup.run_folder.data
    if not (data / "train" / "corpus.json").exists():
        _prepare(setup, base)
    if base is not None:
        source = base.source_tokenizer
        target = base.target_tokenizer
    else:
        # Opened from the folder, as users will: what was prepared now and what is resumed are one.
        source, target = open_translation_tokenizers(setup.run_folder.folder)
    train = Corpus.open(data / "train")
    valid = None
    valid_pairs: list[Pair] = []
    if (data / "valid").exists():
        valid = Corpus.open(data / "valid")
        valid_pairs = list(text_files.pairs(data / "valid.jsonl"))
    return ParallelCorpora(source, target, train, valid, valid_pairs, test_sets(setup.run_folder))


def test_sets(run_folder: RunFolder) -> dict[str, list[Pair]]:
    """The splits that were stored to be scored after training, by name."""
    names = [path.stem for path in sorted(run_folder.data.glob("*.jsonl"))]
    return {
        name: list(text_files.pairs(run_folder.data / f"{name}.jsonl"))
        for name in names
        if name not in (*_FITTED, _TAUGHT)
    }


def _prepare(setup: Setup, base: Translator | None) -> None:
    recipe = setup.recipe
    folder = setup.run_folder.data
    folder.mkdir(parents=True, exist_ok=True)
    splits = dict(setup.splits(pair_splits))
    train = splits.pop("train")
    valid = list(splits.pop("valid")()) if "valid" in splits else []
    if base is None:
        # The tokenizer learns from the original targets, which have more words than the teacher's.
        source, target = _tokenizers(recipe, train, setup.say)
        disk.write_file(setup.run_folder.folder / "tokenizer.json", source.to_json())
        if target is not source:  # one file for a joint vocabulary
            disk.write_file(setup.run_folder.folder / "target_tokenizer.json", target.to_json())
        max_length = recipe.data.max_length
    else:
        source = base.source_tokenizer
        target = base.target_tokenizer
        max_length = min(recipe.data.max_length, base.spec.max_length or recipe.data.max_length)
    if recipe.train.teacher_translates:
        train = _teacher_translations(setup.run_folder, recipe, train, setup.say)
    for name, split in splits.items():
        write_jsonl(folder / f"{name}.jsonl", split())
    if valid:
        write_jsonl(folder / "valid.jsonl", valid)
        report = prepare(valid, source, target, folder / "valid", max_length=max_length)
        setup.say(f"validation: {report}")
    else:
        setup.say("no validation text to select the best weights by: keeping the last ones")
    # Last: the presence of the training corpus says that everything is there.
    report = prepare(
        {name: corpus() for name, corpus in corpora_of(train).items()},
        source,
        target,
        folder / "train",
        max_length=max_length,
        mixture=mixture(recipe),
        workers=recipe.data.preprocessing_workers,
    )
    setup.say(f"training: {report}")


# --- where the pairs come from --------------------------------------------------------------------


def pair_splits(setup: Setup) -> dict[str, Split]:
    """The pairs that a recipe names, by split."""
    recipe = setup.recipe
    if recipe.tune.files:
        return _finetuning_splits(setup)
    if recipe.generated_task is not None:
        return generated_pairs(setup)
    if recipe.builtin:
        return _builtin_splits(setup)
    splits = _held_out_splits(setup)
    test = _scored_pairs(recipe.data, "test")
    if test is not None:
        splits["test"] = test
    return splits


def _builtin_splits(setup: Setup) -> dict[str, Split]:
    lines = setup.recipe.data.builtin_lines
    path = setup.run_folder.data / "train.jsonl"

    def train() -> Iterator[Pair]:
        # Generated once and read back: the same sentences for the tokenizer and the corpus.
        if not path.exists():
            setup.say(f"data: the built-in English–German language, {lines:,} sentences")
            write_jsonl(path, _builtin_pairs("train", lines))
        return text_files.pairs(path)

    return {
        "train": train,
        "valid": lambda: _builtin_pairs("valid", BUILTIN_VALIDATION),
        "test": lambda: _builtin_pairs("test", BUILTIN_TEST),
        # Sentences whose pronoun can be translated only by what it refers to.
        "pronouns": lambda: _builtin_pairs("test", BUILTIN_TEST, pronouns=True),
    }


def _builtin_pairs(split: str, lines: int, pronouns: bool = False) -> Iterator[Pair]:
    for sentence in itertools.islice(builtin.sentences(split, pronouns=pronouns), lines):
        yield sentence.source, sentence.target


def _held_out_splits(setup: Setup) -> dict[str, Split]:
    """Training and validation pairs of the user's files."""
    data = setup.recipe.data
    pairs = _training_pairs(setup.run_folder, data)
    for location in setup.recipe.corpora:
        say_files(location, setup.say)
    valid = _scored_pairs(data, "valid")
    if valid is not None:
        return {"train": pairs, "valid": valid}
    # Each corpus has its part in the validation set.
    most = MAX_HELD_OUT // len(corpora_of(pairs))
    intervals = {name: _hold_out_interval(corpus) for name, corpus in corpora_of(pairs).items()}
    parts = {
        name: one_in(intervals[name], corpus, most) for name, corpus in corpora_of(pairs).items()
    }
    held_out = [pair for part in parts.values() for pair in part["valid"]()]
    # Of fewer than ten pairs none is held out, which is said where nothing is validated.
    if held_out:
        which = " or ".join(f"{interval}th" for interval in sorted({*intervals.values()}))
        setup.say(
            f"no validation files: every {which} pair, {len(held_out):,} in all, "
            "is held out for validation"
        )
    train = split_of({name: part["train"] for name, part in parts.items()})
    return {"train": train, "valid": lambda: iter(held_out)}


def _hold_out_interval(corpus: Split) -> int:
    """One of so many pairs is held out; of fewer than HOLD_OUT_EVERY there would be none."""
    first = itertools.islice(corpus(), HOLD_OUT_EVERY)
    is_large = sum(1 for _ in first) == HOLD_OUT_EVERY
    return HOLD_OUT_EVERY if is_large else HOLD_OUT_OF_FEW_EVERY


def _training_pairs(run_folder: RunFolder, data: DataSettings) -> Split:
    languages = _languages(data)
    if data.pairs == "-":
        return _spooled_stdin(run_folder, languages)
    if data.pairs is not None:
        return split_of(
            {
                location: partial(text_files.pairs, location, languages=languages)
                for location in split_location(data.pairs)
            }
        )
    if data.source is None or data.target is None:
        raise SettingError("training needs both sides", "give --source and --target, or --pairs")
    sources = split_location(data.source)
    targets = split_location(data.target)
    if len(sources) != len(targets):
        raise SettingError(
            f"{len(sources)} corpora of sources, {len(targets)} of targets",
            "give as many on one side as on the other",
        )
    return split_of(
        {
            source: partial(text_files.pairs, source, target)
            for source, target in zip(sources, targets, strict=True)
        }
    )


def _spooled_stdin(run_folder: RunFolder, languages: tuple[str, str] | None) -> Split:
    """Standard input can be read once; what follows, and a resumed run, read the copy."""
    path = run_folder.data / "train.jsonl"
    if not path.exists():
        pairs: Iterable[Pair] = ()
        if not sys.stdin.isatty():  # nobody types a corpus
            pairs = text_files.pairs("-", format="tsv", languages=languages)
        write_jsonl(path, pairs)
    return lambda: text_files.pairs(path)


def _scored_pairs(data: DataSettings, split: Literal["valid", "test"]) -> Split | None:
    """The pairs that files name for validation or for the test; None where none are named."""
    pairs = getattr(data, f"{split}_pairs")
    source = getattr(data, f"{split}_source")
    target = getattr(data, f"{split}_target")
    if pairs is not None:
        return partial(text_files.pairs, pairs, languages=_languages(data))
    if source is None and target is None:
        return None
    if source is None or target is None:
        raise SettingError(
            f"the {split} split needs both sides", f"give --{split}-source and --{split}-target"
        )
    return partial(text_files.pairs, source, target)


def _languages(data: DataSettings) -> tuple[str, str] | None:
    if data.languages is None:
        return None
    source, _, target = data.languages.partition("-")
    if not source or not target:
        raise SettingError(
            f"languages = {data.languages!r} does not name two languages", "write them like en-de"
        )
    return source, target


def _finetuning_splits(setup: Setup) -> dict[str, Split]:
    """The files of `regard finetune`, each with its prefix."""
    tune = setup.recipe.tune
    if tune.prefixes and len(tune.prefixes) != len(tune.files):
        raise SettingError(
            f"{len(tune.prefixes)} prefixes for {len(tune.files)} files", "give one for each --data"
        )
    # T5 was pretrained with prefixes such as "summarize: ", which name the task.
    prefixes = tune.prefixes or ("",) * len(tune.files)
    corpora = {
        f"{prefix}{file}": partial(_prefixed, prefix, file)
        for prefix, file in zip(prefixes, tune.files, strict=True)
    }
    train = split_of(corpora)
    splits: dict[str, Split] = {"train": train}
    # Several prefixes mean several tasks; validation files come with their prefixes written out.
    prefix = prefixes[0] if len(prefixes) == 1 else ""
    if tune.valid is not None:
        splits["valid"] = partial(_prefixed, prefix, tune.valid)
    elif mixture(setup.recipe) is None:
        splits |= held_out_stream(train)
    else:
        parts = {name: held_out_stream(corpus) for name, corpus in corpora.items()}
        splits["train"] = split_of({name: part["train"] for name, part in parts.items()})
        valid = {name: part["valid"] for name, part in parts.items() if "valid" in part}
        if valid:
            splits["valid"] = split_of(valid)
    if tune.test is not None:
        splits["test"] = partial(_prefixed, prefix, tune.test)
    return splits


def _prefixed(prefix: str, file: str) -> Iterator[Pair]:
    for source, target in text_files.pairs(file):
        yield prefix + source, target


def _teacher_translations(run_folder: RunFolder, recipe: Recipe, train: Split, say: Say) -> Split:
    """Sequence-level knowledge distillation (Kim and Rush 2016).

    The training sources with the teacher's translations by beam search: such targets are less
    diverse, so that a small model can learn them. Validation pairs stay as they are.
    """
    path = run_folder.data / f"{_TAUGHT}.jsonl"
    if not path.exists():
        teacher = load(teacher_folder(recipe), Translator, device=recipe.train.device, say=say)
        teacher.prepare_for_inference()  # packed weights for inference
        settings = teacher.settings(BeamSearch(recipe.decode.beam, recipe.length_penalty))
        sources = (source for source, _ in train())

        def translations() -> Iterator[Pair]:
            count = 0
            while chunk := list(itertools.islice(sources, TRANSLATED_AT_ONCE)):
                hypotheses = teacher.hypotheses(chunk, settings, first_index=count)
                for source, best in zip(chunk, hypotheses, strict=True):
                    yield source, teacher.text(best[0]) if best else ""
                count += len(chunk)
                say(f"the teacher has translated {count:,} sentences")

        write_jsonl(path, translations())
    return lambda: text_files.pairs(path)


def write_jsonl(path: Path, pairs: Iterable[Pair]) -> None:
    """Pairs as JSON Lines, complete or not at all."""

    def lines() -> Iterator[str]:
        count = 0
        for source, target in pairs:
            yield disk.json_line({"source": source, "target": target})
            count += 1
        if not count:
            raise DataError(
                "there are no pairs to train on", "pipe source<TAB>target lines into standard input"
            )

    disk.write_lines(path, lines())


# --- tokenizers -----------------------------------------------------------------------------------


def _tokenizers(recipe: Recipe, train: Split, say: Say) -> tuple[Tokenizer, Tokenizer]:
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
        sample = evenly_spaced(train, choice.tokenizer_examples)
        source, target = _learn_tokenizers(recipe, sample)
    origin = "that of the teacher" if recipe.distillation_weight else choice.tokenizer
    sizes = f"{len(source):,} tokens"
    if source is not target:
        sizes = f"{len(source):,} source and {len(target):,} target tokens"
    say(f"tokenizer: {origin}, {sizes}")
    return source, target


def _learn_tokenizers(recipe: Recipe, train: Split) -> tuple[Tokenizer, Tokenizer]:
    kind = recipe.tokens.tokenizer
    vocabulary = recipe.tokens.vocabulary
    if kind not in TOKENIZER_KINDS:
        raise SettingError(
            f"there is no tokenizer {kind!r}",
            f"{', '.join(TOKENIZER_KINDS)}, or a path to a tokenizer.json",
        )
    # The tokens of a generated task are all that there are; a text may hold any character.
    fallback = recipe.generated_task is None

    def learn(texts: Iterable[str]) -> Tokenizer:
        return train_tokenizer(texts, kind, vocabulary, byte_fallback=fallback)

    if recipe.tokens.joint:
        # One pass over both sides, as Section 5.1 has one vocabulary for both.
        joint = learn(text for pair in train() for text in pair)
        return joint, joint
    source = learn(source for source, _ in train())
    target = learn(target for _, target in train())
    return source, target


def _with_end_token(tokenizer: Tokenizer) -> Tokenizer:
    """Models trained from scratch read sources with an end token, whatever the file says."""
    end = tokenizer.special_tokens["eos"]
    return translation_tokenizer_from_json(append_end_token(tokenizer.to_json(), end))
