"""Settings that are ignored, out of range, or end the process: refused, and nothing is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import regard
from command_line import SIZES, Command
from regard.data.labelled import tagged_words
from regard.look.views import VIEWS
from regard.system.errors import DataError, SettingError
from regard.training.recipe import loading

FLAGS = [w for k, v in SIZES.items() for w in (f"--{k.replace('_', '-')}", str(v))]

# What is added to a good command, with a word of the answer.
MISTAKES = {
    # `tokenizers` allocates a table for all of them and aborts the process: no error, a core dump.
    ("--vocabulary", "99999999999"): "vocabulary",
    ("--seed", "99999999999999999999"): "seed",
    ("--steps", "9999999999999999999999"): "steps",
    ("--learning-rate", "inf"): "finite",
    ("--betas", "abc"): "betas",
    ("--betas", "0.9"): "betas",
    ("--steps", "5", "--epochs", "2"): "cannot be combined",
    ("--lora", "4"): "--base",
    ("--freeze", "1"): "--base",
    ("--layer-decay", "0.9"): "--base",
    ("--text-column", "body"): "text_column",
    ("--pairs", "pairs.tsv"): "both name pairs",
    ("--valid-pairs", "v.tsv", "--valid-source", "v.en"): "both name pairs",
    ("--out", ""): "empty",
}


@pytest.mark.parametrize("flags", list(MISTAKES), ids=" ".join)
def test_a_setting_is_refused(
    flags: tuple[str, ...],
    command: Command,
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    data = ("--source", files / "s.en", "--target", files / "s.de", "--out", "run")
    command("train", *FLAGS, *data, *flags).refused(MISTAKES[flags])
    assert not list(tmp_path.iterdir())


def test_one_file_takes_the_place_of_a_recipe_s_two(tmp_path: Path) -> None:
    two = tmp_path / "two.toml"
    two.write_text('[data]\nsource = "a.en"\ntarget = "a.de"\nvalid_pairs = "v.tsv"\n')
    data = loading.load(two, {"pairs": "mine.tsv"}).data
    assert (data.source, data.target, data.pairs) == (None, None, "mine.tsv")
    data = loading.load(two, {"valid_source": "v.en", "valid_target": "v.de"}).data
    assert (data.valid_pairs, data.valid_source) == (None, "v.en")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("steps = 3", "belongs in [train]"),
        ("train = 3", "write [train]"),
        ("[[train]]\nsteps = 3", "write [train]"),
    ],
)
def test_a_recipe_without_its_sections(
    content: str, words: str, command: Command, tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(content)
    command("train", path, "--out", tmp_path / "run").refused(words)


def test_empty_standard_input_leaves_no_folder(command: Command, tmp_path: Path) -> None:
    command("train", *FLAGS, "--pairs", "-", "--out", tmp_path / "run").refused("empty")
    assert not (tmp_path / "run").exists()


def test_a_search_that_is_refused_leaves_no_folder(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "searches" / "copying"
    command("tune", "copying", "--steps", "1", "--out", out).refused("too few")
    assert not out.parent.exists()


@pytest.fixture(scope="module")
def questions(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of one step with a head for questions."""
    folder = tmp_path_factory.mktemp("questions")
    line = {"question": "Who?", "context": "Ada lives.", "answer_start": 0, "text": "Ada"}
    (folder / "train.jsonl").write_text(f"{json.dumps(line)}\n" * 4)
    sizes = {key: SIZES[key] for key in ("d_model", "d_ff", "heads", "threads", "samples")}
    regard.train(
        sizes,
        model="bert:tiny",
        objective="answer",
        text=str(folder / "train.jsonl"),
        layers=1,
        steps=1,
        context=32,
        out=folder / "run",
    )
    return folder / "run"


def test_options_that_a_task_would_ignore(command: Command, questions: Path, demo: Path) -> None:
    command("predict", demo, "The dog.", "--context", "x").refused("--context")
    command("predict", demo, "The dog.", "--label", "x").refused("--label")
    command("predict", questions, "Who?", "--context", "Ada", "--samples", "3").refused("--samples")
    # An empty text has no answer in it.
    command("predict", questions, "Who?", "--context", "").refused("--context")
    command("predict", demo, "The dog.", "--task", "").refused("unknown task ''")
    pairs = ("--pairs", "x.tsv", "--metrics", "")
    command("evaluate", demo, *pairs).refused()


OPTIONS = {
    "target": ("--target", "Der Hund sieht die Katze."),
    "other": ("--other", "The dog sees a house."),
    "part": ("--part", "decoder"),
    "layer": ("--layer", "0"),
    "head": ("--head", "1"),
    "position": ("--position", "2"),
    "neuron": ("--neuron", "5"),
    "texts": ("--texts", "texts.txt"),
    "conllu": ("--conllu", "parsed.conllu"),
    "labels": ("--labels", "labels.tsv"),
    "tags": ("--tags", "tags.tsv"),
    "beam": ("--beam", "2"),
    "penalty": ("--length-penalty", "power:3"),
    "limit": ("--max-length", "0,3"),
    "sample": ("--sample",),
    "temperature": ("--temperature", "3"),
    "top_k": ("--top-k", "2"),
    "top_p": ("--top-p", "0.1"),
    "min_p": ("--min-p", "0.9"),
    "seed": ("--seed", "5"),
}
SAMPLED = ("temperature", "top_k", "top_p", "min_p", "seed")
WITHOUT_TEXT = ("roles", "positions", "probe")
# A second text is needed, steps are greedy anyway, and this model translates alike by any beam.
WITHOUT_DIFFERENCE = (
    ("patching", "other"), ("steps", "beam"), ("ablation", "beam"), ("ablation", "penalty"),
)  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
def test_an_option_that_a_view_does_not_read(view: str, command: Command) -> None:
    """It is refused before a model is opened, and the views that read it are named."""
    text = () if view in WITHOUT_TEXT else ("The dog sees a cat.",)
    for name, option in OPTIONS.items():
        if name in VIEWS[view].options:
            continue
        readers = [other for other, one in VIEWS.items() if name in one.options]
        done = command("look", "no-model-here", *text, "--what", view, *option)
        done.refused(f"{option[0]} has no effect", ", ".join(readers))
    command("look", "no-model-here", *text, "--n-best", "3").refused("--n-best")


# A probe needs one file of labels, whose tests are in tests/look.
@pytest.mark.parametrize("view", [view for view in VIEWS if view not in ("roles", "probe")])
def test_an_option_that_a_view_reads_changes_it(
    view: str, command: Command, demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("The old man sees a white cat.\n")
    text = (
        () if view in WITHOUT_TEXT else ("The dog does not enter the house because it is tired.",)
    )
    asked = ["look", demo, *text, "--what", view, "--json", "--device", "cpu"]
    if view == "patching":
        asked += ["--other", "The dog does not enter the house because it is empty."]
    sampled = (*asked, "--sample", "--temperature", "9")
    usual: dict[tuple[object, ...], str] = {}
    for name in VIEWS[view].options:
        if (view, name) in WITHOUT_DIFFERENCE:
            continue
        base = tuple(asked)
        if name in SAMPLED:
            base = sampled  # seeds and cuts change what is drawn
        elif name == "target" and "part" in VIEWS[view].options:
            base = (*asked, "--part", "decoder")  # the encoder does not read it
        if base not in usual:
            usual[base] = command(*base).out
        done = command(*base, *OPTIONS[name])
        assert done.code == 0, done.err
        assert done.out != usual[base], name


def test_options_that_another_option_or_the_model_leaves_without_effect(
    command: Command, demo: Path, questions: Path
) -> None:
    text = "The dog sees a cat."
    ablation = ("look", demo, text, "--what", "ablation", "--target", "Der Hund.")
    command(*ablation, "--beam", "2").refused("nothing is decoded", "leave --beam out")
    other = ("look", questions, text, "--what", "ablation", "--target", "Der Hund.")
    command(*other).refused("leave --target out")
    command("look", demo, text, "--target", "Der Hund.").refused("--target", "--part decoder")
    command("look", demo, text, "--what", "roles").refused("takes no text", "leave TEXT out")
    command("look", demo, text, "--what", "beam", "--beam", "1").refused("--beam 2 or more")
    command("look", demo, text, "--what", "steps", "--beam", "3").refused(
        "greedy decoding: --beam 1"
    )
    assert command("look", demo, text, "--what", "steps", "--beam", "1").code == 0


def test_texts_with_labels_are_no_words_with_tags(tmp_path: Path) -> None:
    """All but the first word of each line would be skipped, as other columns of CoNLL."""
    table = tmp_path / "labels.tsv"
    table.write_text("what a waste of time\tbad\na joy to watch\tgood\n")
    with pytest.raises(DataError, match=r"line 1 begins with several words\W.*\n.*classify"):
        list(tagged_words(table))
    table.write_text("EU NNP B-NP B-ORG\nrejects\tVBZ\tO\n")
    assert [one.tags for one in tagged_words(table)] == [["B-ORG", "O"]]


# --- settings that an objective, a view or a task does not read ---

UNREAD: dict[str, dict[str, Any]] = {
    "classify": {
        "beam": 3, "length_penalty": "gnmt:1", "tokenize": "none", "joint": False,
        "target_tokenizer": "t.json", "tokenizer_examples": 10, "languages": "en-de",
        "series_split": "0.5:0.2:0.3", "held_out": 0.2, "text_column": "body", "span_length": 4.0,
    },
    "causal": {"label_smoothing": 0.2, "max_length": 30, "beam": 3, "joint": False},
    "masked": {"label_smoothing": 0.2, "max_length": 30, "span_length": 4.0},
    "answer": {"label_smoothing": 0.2},
    "regress": {"label_smoothing": 0.1},
    "contrastive": {"label_smoothing": 0.2},
    "forecast": {"label_smoothing": 0.2, "beam": 3},
    "translate": {"held_out": 0.2, "span_length": 4.0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("objective", "key"), [(name, key) for name, keys in UNREAD.items() for key in keys]
)
def test_a_setting_that_the_objective_does_not_read(objective: str, key: str) -> None:
    data = {"translate": "pairs", "forecast": "series"}.get(objective, "text")
    named = {"objective": objective, data: "file.tsv"}
    loading.load(None, named)
    with pytest.raises(
        SettingError, match=f"{key} is not a setting of the objective '{objective}'"
    ):
        loading.load(None, {**named, key: UNREAD[objective][key]})


@pytest.mark.parametrize("key", ["tokenizer", "target_tokenizer", "vocabulary", "joint"])
def test_a_model_that_is_fine_tuned_brings_its_tokenizer(key: str) -> None:
    value = {"vocabulary": 99, "joint": False}.get(key, "bpe")
    named = {"objective": "translate", "base": "folder", "pairs": "p.tsv"}
    loading.load(None, named)
    with pytest.raises(SettingError, match=f"{key} is decided by the model"):
        loading.load(None, {**named, key: value})


def test_settings_that_are_read_are_taken() -> None:
    loading.load(None, {"pairs": "p.tsv", "beam": 3, "joint": False, "label_smoothing": 0.2})
    loading.load(None, {"text": "t.txt", "model": "gpt2:tiny", "held_out": 0.2})
    loading.load(None, {"text": "t.txt", "model": "t5:tiny", "span_length": 4.0})
    # What switches off what is not there is harmless.
    loading.load(None, {"text": "t.txt", "model": "gpt2:tiny", "label_smoothing": 0.0, "beam": 1})


def test_flags_that_a_task_does_not_read(command: Command, questions: Path, demo: Path) -> None:
    command("predict", demo, "The dog.", "--top", "3").refused("--top")
    command("predict", questions, "Who?\tAda lives.", "--top", "3").refused("--top")
    for verb in ("predict", "translate"):
        done = command(verb, demo, "The dog.", "--text-column", "body")
        done.refused("--text-column", "--input")
    data = questions.parent / "train.jsonl"
    done = command("evaluate", questions, "--data", data, "--batch-tokens", "99")
    done.refused("--batch-tokens has no effect on the task", "translate")


def test_a_column_of_files_that_are_arguments(command: Command, demo: Path, tmp_path: Path) -> None:
    """It was read for --input alone."""
    table = tmp_path / "texts.jsonl"
    table.write_text('{"body": "The dog sleeps.", "title": "x"}\n')
    done = command("predict", demo, table, "--text-column", "body")
    assert done.code == 0, done.err
    assert done.out.startswith("The dog sleeps.\t")
