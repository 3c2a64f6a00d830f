"""From a recipe's text to tokenizers and corpora inside the run folder."""

from __future__ import annotations

import itertools
import json
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
from regard.training.objectives.distillation import found
from regard.training.recipe.schema import Data, Recipe
from regard.training.run_folder import RunFolder

Pair = tuple[str, str]
KINDS = ("bpe", "unigram", "words", "characters")
BUILTIN_VALID, BUILTIN_TEST = 500, 1000
HELD_OUT_EVERY, HELD_OUT_MOST = 100, 1000
TAUGHT = 2000  # sentences that a teacher translates between two reports


@dataclass(frozen=True)
class Prepared:
    source: Tokenizer
    target: Tokenizer
    corpus: Corpus
    valid: Corpus | None
    valid_pairs: list[Pair]


def prepared(place: RunFolder, recipe: Recipe, say: Callable[[str], None]) -> Prepared:
    """Tokenizers and corpora of a run: made on the first call, found by later ones."""
    done = place.data / "train"
    if not (done / "corpus.json").exists():
        _make(place, recipe, say)
    source, target = open_translation_tokenizers(place.folder)
    valid = place.data / "valid"
    return Prepared(
        source,
        target,
        Corpus.open(done),
        Corpus.open(valid) if valid.exists() else None,
        list(_jsonl(place.data / "valid.jsonl")) if valid.exists() else [],
    )


def test_sets(recipe: Recipe) -> dict[str, list[Pair]]:
    """What the finished model is scored on, by name."""
    if recipe.builtin:
        return {
            "test": _builtin("test", BUILTIN_TEST),
            "pronouns": _builtin("test", BUILTIN_TEST, pronouns=True),
        }
    data = recipe.data
    if data.test_source and data.test_target:
        return {"test": list(text_files.pairs(data.test_source, data.test_target))}
    return {}


def _builtin(split: str, lines: int, pronouns: bool = False) -> list[Pair]:
    found = itertools.islice(builtin.sentences(split, pronouns=pronouns), lines)
    return [(sentence.source, sentence.target) for sentence in found]


def _make(place: RunFolder, recipe: Recipe, say: Callable[[str], None]) -> None:
    """The training corpus is committed last, so its presence means that all of this is there."""
    place.data.mkdir(parents=True, exist_ok=True)
    train, valid = _texts(place, recipe.data, say)
    source, target = _tokenizers(recipe, train, say)
    if (
        recipe.train.teacher_translates
    ):  # its words may be fewer: tokens are learnt from the text itself
        train = _taught(place, recipe, train, say)
    disk.write_file(place.folder / "tokenizer.json", source.to_json())
    if target is not source:
        disk.write_file(place.folder / "target_tokenizer.json", target.to_json())
    limit = recipe.data.max_length
    if valid:
        _write_jsonl(place.data / "valid.jsonl", valid)
        report = prepare(valid, source, target, place.data / "valid", max_length=limit)
        say(f"validation: {report}")
    else:
        say("no validation text: nothing to choose the best weights by, so the last ones are kept")
    report = prepare(train(), source, target, place.data / "train", max_length=limit)
    say(f"training: {report}")


def _texts(
    place: RunFolder, data: Data, say: Callable[[str], None]
) -> tuple[Callable[[], Iterator[Pair]], list[Pair]]:
    """The training pairs, as often as they are asked for, and the validation pairs."""
    if data.source is None and data.pairs is None:
        lines = data.builtin_lines
        say(f"data: the built-in English–German language, {lines:,} sentences")
        # Generated once and read back: the same sentences for the tokenizer and the corpus.
        _write_jsonl(place.data / "train.jsonl", _builtin("train", lines))
        return lambda: _jsonl(place.data / "train.jsonl"), _builtin("valid", BUILTIN_VALID)
    everything = _training_pairs(place, data)
    valid = _validation_pairs(data)
    if valid is None:
        held = list(
            itertools.islice(
                (pair for i, pair in enumerate(everything()) if _held_out(i)), HELD_OUT_MOST
            )
        )
        say(
            f"no validation files: every {HELD_OUT_EVERY}th pair, {len(held):,} in all, is held out for validation"
        )
        return lambda: _without_held_out(everything()), held
    return everything, valid


def _taught(
    place: RunFolder,
    recipe: Recipe,
    train: Callable[[], Iterator[Pair]],
    say: Callable[[str], None],
) -> Callable[[], Iterator[Pair]]:
    """The training sources with what the teacher makes of them by beam search (Kim and Rush 2016): such targets are fewer and
    more alike, so that a small model can learn them. What validates stays as it is."""
    path = place.data / "taught.jsonl"
    if not path.exists():
        teacher = load_translator(found(recipe), device=recipe.train.device, say=say)
        teacher.freeze()
        settings = teacher.settings(BeamSearch(recipe.decode.beam, recipe.penalty))
        pairs: list[Pair] = []
        sources = (source for source, _ in train())
        while chunk := list(itertools.islice(sources, TAUGHT)):
            best = teacher.hypotheses(chunk, settings, before=len(pairs))
            pairs += [
                (source, teacher.text(h[0]) if h else "")
                for source, h in zip(chunk, best, strict=True)
            ]
            say(f"the teacher has translated {len(pairs):,} sentences")
        _write_jsonl(path, pairs)
    return lambda: _jsonl(path)


def _held_out(index: int) -> bool:
    return index % HELD_OUT_EVERY == HELD_OUT_EVERY - 1


def _without_held_out(pairs: Iterator[Pair]) -> Iterator[Pair]:
    held = 0
    for i, pair in enumerate(pairs):
        if _held_out(i) and held < HELD_OUT_MOST:
            held += 1
        else:
            yield pair


def _training_pairs(place: RunFolder, data: Data) -> Callable[[], Iterator[Pair]]:
    languages = _languages(data)
    if data.pairs is None:
        if data.source is None or data.target is None:
            raise SettingError(
                "training needs both sides", "give --source and --target, or --pairs"
            )
        source, target = data.source, data.target
        return lambda: text_files.pairs(source, target)
    pairs = data.pairs
    if pairs == "-":
        # Standard input can be read once; what follows, and a resumed run, need it again.
        spool = place.data / "train.jsonl"
        if not spool.exists():
            typed = sys.stdin.isatty()
            _write_jsonl(
                spool,
                [] if typed else list(text_files.pairs("-", format="tsv", languages=languages)),
            )
        return lambda: _jsonl(spool)
    return lambda: text_files.pairs(pairs, languages=languages)


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


def _tokenizers(
    recipe: Recipe, train: Callable[[], Iterator[Pair]], say: Callable[[str], None]
) -> tuple[Tokenizer, Tokenizer]:
    choice = recipe.tokens
    if choice.tokenizer.endswith(".json"):
        source = _ended(load_translation_tokenizer(choice.tokenizer))
        target = (
            _ended(load_translation_tokenizer(choice.target_tokenizer))
            if choice.target_tokenizer
            else source
        )
    elif recipe.teaching:
        source, target = open_translation_tokenizers(found(recipe))
    elif choice.tokenizer not in KINDS:
        raise SettingError(
            f"there is no tokenizer {choice.tokenizer!r}",
            f"{', '.join(KINDS)}, or a path to a tokenizer.json",
        )
    elif choice.joint:
        both = (side for pair in train() for side in pair)
        source = target = train_tokenizer(both, choice.tokenizer, choice.vocabulary)
    else:
        source = train_tokenizer((pair[0] for pair in train()), choice.tokenizer, choice.vocabulary)
        target = train_tokenizer((pair[1] for pair in train()), choice.tokenizer, choice.vocabulary)
    sizes = (
        f"{len(source):,} tokens"
        if source is target
        else f"{len(source):,} source and {len(target):,} target tokens"
    )
    say(f"tokenizer: {'that of the teacher' if recipe.teaching else choice.tokenizer}, {sizes}")
    return source, target


def _ended(tokenizer: Tokenizer) -> Tokenizer:
    """A model that is trained from nothing has its sources with the end token behind them, whatever the file says."""
    end = tokenizer.special_tokens["eos"]
    return translation_tokenizer_from_json(append_end_token(tokenizer.to_json(), end))


def _write_jsonl(path: Path, pairs: list[Pair]) -> None:
    if not pairs:
        raise DataError(
            "there are no pairs to train on", "pipe source<TAB>target lines into standard input"
        )
    disk.write_file(
        path,
        "".join(
            json.dumps({"source": s, "target": t}, ensure_ascii=False) + "\n" for s, t in pairs
        ),
    )


def _jsonl(path: Path) -> Iterator[Pair]:
    return text_files.pairs(path)
