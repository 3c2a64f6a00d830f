"""Inputs unlike all of training: every kind of text model names unknown words and great lengths."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import regard
from command_line import Command
from looked import png
from regard import build
from regard.data.text.tokenizer_training import train_tokenizer
from regard.data.training_coverage import FILE
from regard.evaluation.prediction import predict
from regard.families.presets import preset
from regard.models import TextEncoder
from regard.studio import answers
from regard.system.errors import (
    CutOffOutputWarning,
    DataError,
    LongInputWarning,
    UnknownWordsWarning,
)

QUICK: dict[str, Any] = {
    "d_model": 16, "layers": 1, "steps": 2, "device": "cpu", "threads": 1, "learning_rate": 1e-3,
    "samples": 0, "batch_tokens": 256,
}  # fmt: skip
HEADS = {"d_ff": 16, "heads": 2}
SENTENCES = [f"a {mood} film of {number} cats" for mood in ("good", "bad") for number in "123456"]
CONTEXT = 48


def _lines(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


PLAIN = _lines(SENTENCES * 30)
PAIRS = _lines([f"{line}\t{line[::-1]}" for line in SENTENCES * 4])
REVIEWS = _lines([f"{line}\t{line.split()[1]}" for line in SENTENCES * 4])
RATED = _lines([f"{line}\t{i % 3}.5" for i, line in enumerate(SENTENCES * 4)])
TAGGED = _lines([line.replace(" ", " O\n") + " B-THING\n" for line in SENTENCES * 4])
QUESTIONS = _lines(
    [
        json.dumps({"question": "good or bad", "context": line, "answer_start": 2, "text": "good"})
        for line in SENTENCES[:6] * 4
    ]
)
STORIES = _lines([f"Ada went home. Bob sleeps. Who sleeps?\t{name}" for name in ("Bob", "Ada")] * 9)


@dataclass(frozen=True)
class Kind:
    """A kind of model: its settings, what it is trained on, and an input that is like it."""

    settings: dict[str, Any]
    content: str
    known: str
    suffix: str = "tsv"
    data: str = "text"  # the setting that names the file
    first: str = "a"  # a word of `known`
    limit: str = ""  # of what beyond its length is refused


def bert(objective: str | None = None) -> dict[str, Any]:
    settings = {"model": "bert:tiny", "context": CONTEXT, **HEADS}
    return settings if objective is None else settings | {"objective": objective}


def translator(**settings: Any) -> dict[str, Any]:
    return {"preset": "tiny", **HEADS, **settings}


TEXT = SENTENCES[0]
REFUSED = f"more than the {CONTEXT} tokens"
EXPRESSIONS = _lines([f"[MAX {i} [MIN 2 3 ] ]\t{i}" for i in (4, 5, 6, 7)] * 6)
KINDS = {
    "translator": Kind(translator(), PAIRS, TEXT, data="pairs"),
    "words": Kind(translator(tokenizer="words", vocabulary=2000), PAIRS, TEXT, data="pairs"),
    "characters": Kind(translator(tokenizer="characters"), PAIRS, TEXT, data="pairs"),
    "lstm": Kind({"model": "lstm"}, PAIRS, TEXT, data="pairs"),
    "llama": Kind({"model": "llama", "context": CONTEXT, **HEADS}, PLAIN, TEXT, "txt"),
    "gpt2": Kind({"model": "gpt2", "context": CONTEXT, **HEADS}, PLAIN, TEXT, "txt", limit=REFUSED),
    "lstm-lm": Kind({"model": "lstm-lm", "context": CONTEXT}, PLAIN, TEXT, "txt"),
    "bert": Kind(bert(), PLAIN, "a good [MASK] of 1 cats", "txt", limit=REFUSED),
    "electra": Kind(
        {"model": "electra:small", "objective": "replaced", "context": CONTEXT, **HEADS},
        PLAIN, TEXT, "txt", limit=REFUSED,
    ),
    "t5": Kind(
        {"model": "t5:small", "context": CONTEXT, **HEADS},
        PLAIN, "a good <extra_id_0> of 1 cats", "txt",
    ),
    "bart": Kind(
        {"model": "bart:base", "context": CONTEXT, **HEADS},
        PLAIN, "a good <mask> of 1 cats", "txt", limit=REFUSED,
    ),
    "classify": Kind(bert("classify"), REVIEWS, TEXT, limit=REFUSED),
    "listops": Kind(
        bert("classify"), EXPRESSIONS, "[MAX 4 [MIN 2 3 ] ]", first="[MIN", limit=REFUSED
    ),
    "regress": Kind(bert("regress"), RATED, TEXT, limit=REFUSED),
    "tag": Kind(bert("tag"), TAGGED, TEXT, "conll", limit=REFUSED),
    # A context is read in windows.
    "answer": Kind(
        bert("answer"), QUESTIONS, "good or bad\ta good film of 1 cats", "jsonl", first="film"
    ),
    "contrastive": Kind(bert("contrastive"), PAIRS, TEXT, limit=REFUSED),
    "memory": Kind({"model": "memory"}, STORIES, "Ada went home. Who sleeps?", first="Ada"),
}  # fmt: skip


@pytest.fixture(scope="module", params=list(KINDS))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, in a folder with the name of its kind."""
    kind = KINDS[request.param]
    folder = tmp_path_factory.mktemp("model")
    data = folder / f"data.{kind.suffix}"
    data.write_text(kind.content)
    settings = {**QUICK, **kind.settings, kind.data: str(data)}
    regard.train(settings, out=folder / request.param)
    return folder / str(request.param)


def answer(model: Any, text: str) -> None:
    """The model's own task, and the others that it has."""
    predict(model, [text])


def test_a_text_like_those_of_training_gives_no_warning(run: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # After two steps of training no translation ends.
        warnings.simplefilter("ignore", CutOffOutputWarning)
        answer(regard.load(run), KINDS[run.name].known)


def test_an_unknown_word_is_named_once(run: Path, command: Command, tmp_path: Path) -> None:
    kind = KINDS[run.name]
    unknown = kind.known.replace(kind.first, "xyløphöne", 1)
    model = regard.load(run)
    with pytest.warns(UnknownWordsWarning) as caught:
        answer(model, unknown)
    [warning] = [one.message for one in caught if isinstance(one.message, UnknownWordsWarning)]
    assert warning.words == ("xyløphöne",)
    # The same on the command line, once for many lines of a file.
    file = tmp_path / "texts.txt"
    file.write_text(f"{unknown}\n" * 3)
    for inputs in ([unknown], [file]):
        done = command("predict", run, *inputs)
        assert done.code == 0, done.err
        assert done.err.count("does not know these words: xyløphöne") == 1
    # What is saved knows it too.
    saved = regard.load(model.save(tmp_path / "saved"))
    with pytest.warns(UnknownWordsWarning, match="xyløphöne"):
        answer(saved, unknown)


def test_a_picture_names_unknown_words(run: Path, command: Command) -> None:
    kind = KINDS[run.name]
    if run.name in ("lstm", "lstm-lm", "memory", "answer"):
        pytest.skip("no attention over the tokens of one text")
    assert command("look", run, kind.known).err == ""
    done = command("look", run, kind.known.replace(kind.first, "xyløphöne", 1))
    assert done.code == 0, done.err
    assert done.err.count("does not know these words: xyløphöne") == 1


def test_a_text_far_longer_than_any_in_training(run: Path) -> None:
    kind = KINDS[run.name]
    longer = f"{kind.known} {kind.first}" + f" {kind.first}" * 200
    if run.name == "memory":
        longer = "Ada went home. " * 60 + "Who sleeps?"
    model = regard.load(run)
    if kind.limit:
        with pytest.raises(DataError, match=kind.limit):
            answer(model, longer)
    elif run.name == "lstm-lm":
        # It reads its text as one without end: none is longer.
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            answer(model, longer)
    else:
        with pytest.warns(LongInputWarning, match="longer than any in training"):
            answer(model, longer)


def test_a_score_says_itself_what_unknown_words_cost(run: Path, tmp_path: Path) -> None:
    kind = KINDS[run.name]
    if run.name in ("memory", "t5", "bart"):
        pytest.skip("evaluated on data of another form")
    data = tmp_path / f"data.{kind.suffix}"
    data.write_text(kind.content.replace("film", "mlif"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnknownWordsWarning)
        warnings.simplefilter("error", LongInputWarning)
        regard.evaluate(run, data)


@pytest.mark.parametrize("spells_all", [False, True])
def test_a_score_names_the_characters_that_have_no_token(spells_all: bool) -> None:
    texts = ["a good film", "a bad film"] * 20
    with_tokens = train_tokenizer(texts, "bpe", 2000, byte_fallback=spells_all)
    description: Any = preset("bert:tiny", len(with_tokens), 32, layers=1, d_model=16, heads=2)
    encoder = TextEncoder(build(description), description, with_tokens)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        regard.evaluate(encoder, [("a good f☃lm", "a film")] * 2, task="contrastive")
    named = [one.message.words for one in raised if isinstance(one.message, UnknownWordsWarning)]
    assert named == ([] if spells_all else [("☃",)])


@pytest.mark.parametrize(
    ("name", "task"), [("lstm", "translate"), ("llama", "causal"), ("bert", "classify")]
)
def test_fine_tuning_says_how_much_of_its_text_is_unknown(
    name: str, task: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kind = KINDS[name]
    data = tmp_path / f"data.{kind.suffix}"
    data.write_text(kind.content)
    regard.train({**QUICK, **kind.settings, kind.data: str(data)}, out=tmp_path / "base")
    new = {"causal": PLAIN, "translate": PAIRS, "classify": REVIEWS}[task]
    quick: dict[str, Any] = {"epochs": 1, "device": "cpu", "threads": 1}
    if task == "causal":
        quick["context"] = CONTEXT
    for words, is_known in ((new, True), (new.replace("film", "XYLØPHÖNE"), False)):
        file = tmp_path / f"new.{'txt' if task == 'causal' else 'tsv'}"
        file.write_text(words)
        out = tmp_path / f"tuned_{is_known}"
        regard.finetune(tmp_path / "base", task, file, out=out, **quick)
        assert ("of the tokens are unknown" in capfd.readouterr().err) != is_known
        # What either training has seen is known afterwards.
        unseen = set(json.loads((out / FILE).read_text())["unseen_tokens"])
        base = set(json.loads((tmp_path / "base" / FILE).read_text())["unseen_tokens"])
        assert unseen <= base


def test_captions_of_images(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(png())
    table = tmp_path / "captions.tsv"
    table.write_text("".join(f"cat.png\ta good cat {i % 3}\n" for i in range(12)))
    sizes = {"model": "clip:tiny", "image_size": 12, "patch": 4, "vocabulary": 300, **HEADS}
    regard.train({**QUICK, **sizes, "images": str(table)}, out=tmp_path / "run")
    model = regard.load(tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.embed_text("a good cat 1")
    with pytest.warns(UnknownWordsWarning, match="xyløphöne"):
        model.classify(str(tmp_path / "cat.png"), ["a good cat", "a xyløphöne"])


def test_the_studio_names_them_too(run: Path) -> None:
    kind = KINDS[run.name]
    model = regard.load(run)
    assert answers.warnings_of(model, kind.known).unknown == []
    unknown = kind.known.replace(kind.first, "xyløphöne", 1)
    assert answers.warnings_of(model, unknown).unknown == ["xyløphöne"]
