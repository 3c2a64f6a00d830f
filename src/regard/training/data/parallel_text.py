"""Parallel text: from the pairs a recipe names to tokenizers and corpora in the run folder."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from regard.data import text_files
from regard.data.batching import Batch, Rows, collate
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
from regard.data.training_coverage import InputStatistics, corpus_statistics
from regard.decode.strategy import BeamSearch, GNMTPenalty
from regard.evaluation.metrics.reference import alternatives, each_alternative
from regard.families import folder as folders
from regard.families.folder import append_end_token
from regard.models import Translator, load
from regard.system import disk
from regard.system.errors import DataError, SettingError
from regard.training import model_spec
from regard.training.data.labelled_text import one_in, with_held_out
from regard.training.data.source import Position, Source, decoder_token_ids, new_translator
from regard.training.data.splits import (
    corpora_of,
    evenly_spaced,
    generated_pairs,
    held_out_of_each,
    mixture,
    say_files,
    split_of,
)
from regard.training.objectives.distillation import teacher_folder
from regard.training.recipe.sections import DataSettings
from regard.training.run_folder import RunFolder
from regard.training.setup import Setup, Split

Pair = tuple[str, str]

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


class Pairs(Source):
    """Pairs of token sequences, in batches of similar lengths.

    Lengths are rounded up to `pad_to_multiple_of`; above 1, training batches are also filled up
    with empty rows, so that few shapes occur (on a GPU each shape is captured once).
    """

    unit = "pairs"
    rounds_lengths = True
    evaluation_factor = 1
    model: Translator
    data: ParallelCorpora

    def __init__(self, model: Translator, data: ParallelCorpora, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.corpus: Corpus = data.train
        self.splits = {"train": data.train}
        if data.valid is not None:
            self.splits["valid"] = data.valid

    @classmethod
    def prepare(cls, setup: Setup, base: Any) -> ParallelCorpora:
        data = setup.run_folder.data
        if not (data / "train" / "corpus.json").exists():
            _prepare(setup, base)
        if base is not None:
            source = base.source_tokenizer
            target = base.target_tokenizer
        else:
            # Opened from the folder, as users will: a new run and a resumed one are alike.
            source, target = open_translation_tokenizers(setup.run_folder.folder)
        train = Corpus.open(data / "train")
        valid = None
        valid_pairs: list[Pair] = []
        if (data / "valid").exists():
            valid = Corpus.open(data / "valid")
            valid_pairs = list(text_files.pairs(data / "valid.jsonl"))
        return ParallelCorpora(
            source, target, train, valid, valid_pairs, test_sets(setup.run_folder)
        )

    @classmethod
    def special_token_ids(cls, data: ParallelCorpora) -> folders.SpecialTokenIds:
        # Marian starts from padding and BART from the end; a model of our own has a start token.
        return decoder_token_ids(data.target_tokenizer)

    @classmethod
    def wrap(
        cls, model: Any, description: Any, config: dict[str, Any], data: ParallelCorpora
    ) -> Translator:
        tokenizers = (data.source_tokenizer, data.target_tokenizer)
        model_spec.check_vocabulary("source", description.source, len(tokenizers[0]))
        model_spec.check_vocabulary("target", description.target, len(tokenizers[1]))
        return new_translator(model, description, config, tokenizers, cls.special_token_ids(data))

    @classmethod
    def files(cls, model: Any, setup: Setup) -> dict[str, dict[str, Any]]:
        recipe = setup.recipe
        penalty = recipe.length_penalty
        kind = "gnmt" if isinstance(penalty, GNMTPenalty) else "power"
        tokens = model.source_tokenizer.special_tokens
        return {
            "config.json": model.config,
            "generation_config.json": folders.generation_config(
                decoder_token_ids(model.target_tokenizer),
                beam=recipe.decode.beam,
                length_penalty=penalty.alpha,
                search={kind: penalty.alpha},
            ),
            "tokenizer_config.json": folders.tokenizer_config(
                tokens["pad"], tokens["bos"], tokens["eos"], tokens.get("unk")
            ),
        }

    def lengths(self, split: str) -> NDArray[Any]:
        lengths: NDArray[Any] = self.splits[split].lengths
        return lengths

    def collate(self, split: str, rows: Rows, position: Position) -> Batch:
        multiple = self.setup.pad_to_multiple_of
        fills_up = split == "train" and multiple > 1
        return collate(
            self.splits[split],
            rows,
            source_pad=self.model.special_tokens.pad,
            target_pad=self.model.target_tokenizer.required_token_id("pad"),
            start=self.model.start,
            multiple=multiple,
            budget=self.settings.batch_tokens if fills_up else 0,
        )

    def describe(self) -> str:
        return ""  # said when the corpora were written

    def example(self, row: int) -> dict[str, Any]:
        source = _token_text(self.model.source_tokenizer, self.corpus.source(row).tolist())
        target = _token_text(self.model.target_tokenizer, self.corpus.target(row).tolist())
        return {"source": source, "target": target}

    def statistics(self) -> InputStatistics:
        return corpus_statistics(self.corpus, "source", self.model.source_tokenizer)


def _token_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The text of a row with its unknown tokens visible, without its end token."""
    return "".join(tokenizer.tokens(ids[:-1])).replace("▁", " ").strip()


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
        source, target = _tokenizers(setup, train)
        disk.write_file(setup.run_folder.folder / "tokenizer.json", source.to_json())
        if target is not source:  # one file for a joint vocabulary
            disk.write_file(setup.run_folder.folder / "target_tokenizer.json", target.to_json())
        max_length = recipe.data.max_length
    else:
        source = base.source_tokenizer
        target = base.target_tokenizer
        max_length = min(recipe.data.max_length, base.spec.max_length or recipe.data.max_length)
    if recipe.train.teacher_translates:
        train = _made_once(setup, _TAUGHT, partial(_teacher_translations, setup, train))
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
        {name: each_alternative(corpus()) for name, corpus in corpora_of(train).items()},
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
    is_finetuning = bool(recipe.tune.files)
    if not is_finetuning and recipe.generated_task is not None:
        return generated_pairs(setup)
    if not is_finetuning and recipe.builtin:
        return _builtin_splits(setup)
    for location in recipe.corpora:
        say_files(location, setup.say)
    read = _finetuning_corpora if is_finetuning else _corpora_of_files
    corpora = {split: read(setup, split) for split in ("train", "valid", "test")}
    splits = {split: split_of(named) for split, named in corpora.items() if named}
    if "valid" in splits:
        return splits
    if not is_finetuning:
        return splits | _held_out(setup, corpora["train"])
    if mixture(recipe) is None:
        return with_held_out(splits)
    return splits | held_out_of_each(
        corpora["train"], lambda _, corpus: with_held_out({"train": corpus})
    )


def _builtin_splits(setup: Setup) -> dict[str, Split]:
    lines = setup.recipe.data.builtin_lines

    def train() -> Iterator[Pair]:
        setup.say(f"data: the built-in English–German language, {lines:,} sentences")
        return _builtin_pairs("train", lines)

    return {
        "train": _made_once(setup, "train", train),
        "valid": partial(_builtin_pairs, "valid", BUILTIN_VALIDATION),
        "test": partial(_builtin_pairs, "test", BUILTIN_TEST),
        # Sentences whose pronoun can be translated only by what it refers to.
        "pronouns": partial(_builtin_pairs, "test", BUILTIN_TEST, pronouns=True),
    }


def _builtin_pairs(split: str, lines: int, pronouns: bool = False) -> Iterator[Pair]:
    for sentence in itertools.islice(builtin.sentences(split, pronouns=pronouns), lines):
        yield sentence.source, sentence.target


def _held_out(setup: Setup, corpora: Mapping[str, Split]) -> dict[str, Split]:
    """Training and validation pairs of corpora."""
    every = {}
    for name, corpus in corpora.items():
        # One of so many pairs is held out; of fewer there would be none.
        is_large = len(list(itertools.islice(corpus(), HOLD_OUT_EVERY))) == HOLD_OUT_EVERY
        every[name] = HOLD_OUT_EVERY if is_large else HOLD_OUT_OF_FEW_EVERY
    most = MAX_HELD_OUT // len(corpora)
    splits = held_out_of_each(corpora, lambda name, corpus: one_in(every[name], corpus, most))
    held_out = list(splits["valid"]())
    # Of fewer than ten pairs none is held out, which is said where nothing is validated.
    if held_out:
        which = " or ".join(f"{interval}th" for interval in sorted(set(every.values())))
        setup.say(
            f"no validation files: every {which} pair, {len(held_out):,} in all, "
            "is held out for validation"
        )
    return splits | {"valid": lambda: iter(held_out)}


def _corpora_of_files(setup: Setup, split: str) -> dict[str, Split]:
    """The pairs that files name for a split; none without files."""
    data = setup.recipe.data
    prefix = "" if split == "train" else f"{split}_"
    pairs, source, target = (
        getattr(data, f"{prefix}{key}") for key in ("pairs", "source", "target")
    )
    if pairs == "-" and not prefix:
        # It can be read once; what follows, and a resumed run, read the copy.
        return {"-": _made_once(setup, "train", partial(_standard_input, data))}
    if pairs is not None:
        languages = _languages(data)
        return {
            location: partial(text_files.pairs, location, languages=languages)
            for location in split_location(pairs)
        }
    sources = [] if source is None else split_location(source)
    targets = [] if target is None else split_location(target)
    if len(sources) != len(targets):
        raise SettingError(
            f"{len(sources)} corpora of {prefix}source, {len(targets)} of {prefix}target",
            "give as many on one side as on the other",
        )
    return {
        one: partial(text_files.pairs, one, other)
        for one, other in zip(sources, targets, strict=True)
    }


def _made_once(setup: Setup, name: str, pairs: Callable[[], Iterable[Pair]]) -> Split:
    """Pairs that are made and stored at the first call, and read back."""
    path = setup.run_folder.data / f"{name}.jsonl"

    def split() -> Iterator[Pair]:
        if not path.exists():
            write_jsonl(path, pairs())
        return text_files.pairs(path)

    return split


def _standard_input(data: DataSettings) -> Iterable[Pair]:
    if sys.stdin.isatty():  # nobody types a corpus
        raise DataError(
            "there are no pairs to train on", "pipe source<TAB>target lines into standard input"
        )
    return text_files.pairs("-", format="tsv", languages=_languages(data))


def _languages(data: DataSettings) -> tuple[str, str] | None:
    if data.languages is None:
        return None
    source, _, target = data.languages.partition("-")
    if not source or not target:
        raise SettingError(
            f"languages = {data.languages!r} does not name two languages", "write them like en-de"
        )
    return source, target


def _finetuning_corpora(setup: Setup, split: str) -> dict[str, Split]:
    """The files of `regard finetune`, each with its prefix."""
    tune = setup.recipe.tune
    if tune.prefixes and len(tune.prefixes) != len(tune.files):
        raise SettingError(
            f"{len(tune.prefixes)} prefixes for {len(tune.files)} files", "give one for each --data"
        )
    # T5 was pretrained with prefixes such as "summarize: ", which name the task.
    prefixes = tune.prefixes or ("",) * len(tune.files)
    if split != "train" and len(prefixes) > 1:
        # Several prefixes mean several tasks, whose files come with their prefixes written out.
        prefixes = ("",)
    files = setup.recipe.files.get(split, ())
    return {
        f"{prefix}{file}": partial(_prefixed, prefix, file)
        for prefix, file in zip(prefixes, files, strict=False)
    }


def _prefixed(prefix: str, file: str) -> Iterator[Pair]:
    for source, target in text_files.pairs(file):
        yield prefix + source, target


def _teacher_translations(setup: Setup, train: Split) -> Iterator[Pair]:
    """Sequence-level knowledge distillation (Kim and Rush 2016).

    The training sources with the teacher's translations by beam search: such targets are less
    diverse, so that a small model can learn them. Validation pairs stay as they are.
    """
    recipe = setup.recipe
    folder = teacher_folder(recipe)
    teacher = load(folder, Translator, device=recipe.train.device, say=setup.say)
    teacher.prepare_for_inference()  # packed weights for inference
    settings = teacher.settings(BeamSearch(recipe.decode.beam, recipe.length_penalty))
    sources = (source for source, _ in train())
    count = 0
    while chunk := list(itertools.islice(sources, TRANSLATED_AT_ONCE)):
        hypotheses = teacher.hypotheses(chunk, settings, first_index=count)
        for source, best in zip(chunk, hypotheses, strict=True):
            yield source, teacher.text(best[0]) if best else ""
        count += len(chunk)
        setup.say(f"the teacher has translated {count:,} sentences")


def write_jsonl(path: Path, pairs: Iterable[Pair]) -> None:
    """Pairs as JSON Lines, complete or not at all."""
    lines = (_json_line(source, *alternatives(target)) for source, target in pairs)
    disk.write_lines(path, lines)


def _json_line(source: str, *targets: str) -> str:
    return disk.json_line(
        {"source": source, "target": targets[0] if len(targets) == 1 else targets}
    )


# --- tokenizers -----------------------------------------------------------------------------------


def _tokenizers(setup: Setup, train: Split) -> tuple[Tokenizer, Tokenizer]:
    """Source and target tokenizer; one object if they share a vocabulary."""
    recipe = setup.recipe
    choice = recipe.tokens
    if choice.tokenizer.endswith(".json"):
        source = _with_end_token(load_translation_tokenizer(choice.tokenizer))
        target = source
        if choice.target_tokenizer:
            target = _with_end_token(load_translation_tokenizer(choice.target_tokenizer))
    elif recipe.distillation_weight:
        source, target = open_translation_tokenizers(teacher_folder(recipe))
    else:
        # The tokens of a generated task are all that there are; a text may hold any character.
        fallback = recipe.generated_task is None
        learn = partial(
            train_tokenizer, kind=choice.tokenizer, size=choice.vocabulary, byte_fallback=fallback
        )
        sample = evenly_spaced(train, choice.tokenizer_examples)
        if choice.joint:
            # One pass over both sides, as Section 5.1 has one vocabulary for both.
            source = learn(text for pair in sample() for text in pair)
            target = source
        else:
            source = learn(text for text, _ in sample())
            target = learn(text for _, text in sample())
    origin = "that of the teacher" if recipe.distillation_weight else choice.tokenizer
    sizes = f"{len(source):,} tokens"
    if source is not target:
        sizes = f"{len(source):,} source and {len(target):,} target tokens"
    setup.say(f"tokenizer: {origin}, {sizes}")
    return source, target


def _with_end_token(tokenizer: Tokenizer) -> Tokenizer:
    """Models trained from scratch read sources with an end token, whatever the file says."""
    end = tokenizer.special_tokens["eos"]
    return translation_tokenizer_from_json(append_end_token(tokenizer.to_json(), end))
