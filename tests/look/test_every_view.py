"""Every view of every kind of model: an answer, or a typed error whose repair works."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import model_kinds as kinds
import regard
from regard import models
from regard.cli.look import command
from regard.look import fitting_views, patching, roles
from regard.look.views import VIEWS
from regard.system.errors import DataError, RegardError, SettingError

pytestmark = pytest.mark.thorough

# Views that fit a model and yet depend on what it has learnt, or on the texts.
OF_WHAT_IS_LEARNT = ("roles", "patching")
OF_THE_ENCODER = ("attention", "rollout")  # which reads no target
TRANSLATORS = ("translator", "universal", "t5", "lstm", "bahdanau", "luong", "convs2s", "bytenet")
CONLLU = "1\tdogs\t_\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\tsee\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kinds")


@pytest.fixture
def opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], models.Model]:
    """The model of a kind, trained for one step and opened once."""
    load = models.load

    def open_once(kind: str) -> models.Model:
        path = folder / "models" / kind
        if not path.exists():
            kinds.write_data(folder)
            kinds.train(kind, folder, path)
        model = load(path, device="cpu")
        monkeypatch.setattr(models, "load", lambda *_, **__: model)
        return model

    return open_once


def arguments(kind: str, view: str, folder: Path) -> list[str]:
    """The command line of a view, after the model."""
    reads = kinds.KINDS[kind][0]
    inputs = kinds.write_data(folder)
    source = inputs[reads]
    # CLIP reads both: what compares texts is given one.
    if kind == "clip" and view in ("ablation", "patching", "neurons", "circuits", "probe"):
        source = kinds.SENTENCE
    flags = ["--what", view]
    if view == "patching":
        flags += ["--other", source.replace("dog", "owl")]
    if view == "roles":
        parsed = folder / "short.conllu"
        parsed.write_text(CONLLU)
        flags += ["--conllu", str(parsed)]
    if view == "probe":
        labelled = folder / "classes.jsonl"
        rows = [json.dumps({"text": source, "label": label}) for label in "abababab"]
        labelled.write_text("\n".join(rows))
        flags += ["--labels", str(labelled)]
    # What has learnt nothing writes until it may write no more.
    if "target" in VIEWS[view].options and view not in OF_THE_ENCODER and kind in TRANSLATORS:
        flags += ["--target", "Der Hund."]
    elif view in ("steps", "beam"):
        flags += ["--max-length", "0,5"]
    return flags if not VIEWS[view].takes_input else [source, *flags]


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_every_view_answers_or_names_those_that_do(
    kind: str, opened: Callable[[str], models.Model], folder: Path, tmp_path: Path
) -> None:
    fitting = fitting_views(opened(kind))
    files = ["--html", str(tmp_path / "a.html"), "--png", str(tmp_path / "a.png")]
    for view in VIEWS:
        asked = ["model", *arguments(kind, view, folder)]
        try:
            done = CliRunner().invoke(command, [*asked, "--json", *files], catch_exceptions=False)
            assert done.exit_code == 0, done.output
            assert json.loads(done.stdout.splitlines()[-1])["kind"]
            done = CliRunner().invoke(command, asked, catch_exceptions=False)
            assert done.exit_code == 0, done.output
            assert done.stdout.strip()
            assert view in fitting
        except SettingError as refusal:
            assert view not in fitting, refusal
            if fitting:
                named = re.match(r"use a view that supports this model: ([a-z, ]+)", refusal.repair)
                assert named is not None
                assert named[1].split(", ") == fitting
            else:
                assert "regard show" in refusal.repair
        except DataError as refusal:
            assert view in OF_WHAT_IS_LEARNT, refusal


@pytest.mark.parametrize("kind", ["lstm", "bytenet", "rnn-lm", "dlinear", "memory"])
def test_python_refuses_with_the_same_words(
    kind: str, opened: Callable[[str], models.Model], folder: Path
) -> None:
    model: Any = opened(kind)
    source = kinds.write_data(folder)[kinds.KINDS[kind][0]]
    fitting = fitting_views(model)
    calls: dict[str, Callable[[], Any]] = {
        "roles": lambda: regard.look.roles(model),
        "ablation": lambda: regard.look.ablation(model, [source], [source]),
        "patching": lambda: patching(model, source, source),
        "attribution": lambda: regard.look.attribution(model, source),
        "positions": lambda: regard.look.positions(model),
        "steps": lambda: regard.look.steps(model, source),
        "cache": lambda: regard.look.cache(model, source),
        "lens": lambda: regard.look.lens(model.look(source, ask="logits")),
    }
    for view, call in calls.items():
        if view not in fitting:
            with pytest.raises(SettingError, match=r"supports? this model"):
                call()
    if "attention" not in fitting:
        with pytest.raises(RegardError, match="no attention") as refused:
            model.look(source)
        if fitting:
            (probe,) = re.findall(r"ask='([a-z.*]+)'", str(refused.value))
            assert model.look(source, ask=probe).names


def test_sentences_that_are_too_long_are_replaced_by_shorter_ones(
    opened: Callable[[str], models.Model], tmp_path: Path
) -> None:
    for kind in ("gpt2", "clip"):
        model = opened(kind)
        with pytest.raises(DataError, match="positions, but this model has"):
            roles(model)
        parsed = tmp_path / "short.conllu"
        parsed.write_text(CONLLU)
        asked = ["model", "--what", "roles", "--conllu", str(parsed)]
        assert CliRunner().invoke(command, asked, catch_exceptions=False).exit_code == 0


def test_texts_of_which_a_model_says_the_same(opened: Callable[[str], models.Model]) -> None:
    model = opened("classifier")
    with pytest.raises(DataError, match="both texts have the same tokens"):
        patching(model, kinds.SENTENCE, kinds.SENTENCE)
    assert patching(model, kinds.SENTENCE, "The owl sees the cat.", at=-1).effect.size


@pytest.mark.parametrize(("kind", "words"), [("graph", "path"), ("patchtst", "path"), ("gpt2", "")])
def test_an_empty_input_is_no_path(
    kind: str, words: str, opened: Callable[[str], models.Model]
) -> None:
    model: Any = opened(kind)
    with pytest.raises(DataError, match=rf"(text|input) is empty.*\n.*{words}"):
        model.look(" ")


@pytest.mark.parametrize("kind", ["translator", "gpt2", "clip", "memory", "bahdanau"])
def test_the_part_that_a_repair_names_is_one(
    kind: str, opened: Callable[[str], models.Model], folder: Path
) -> None:
    model: Any = opened(kind)
    asked = ["model", *arguments(kind, "attention", folder)]
    with pytest.raises(SettingError, match="known: ") as refused:
        CliRunner().invoke(command, [*asked, "--part", "middle"], catch_exceptions=False)
    for part in refused.value.repair.removeprefix("known: ").split(", "):
        done = CliRunner().invoke(command, [*asked, "--part", part], catch_exceptions=False)
        assert done.exit_code == 0, part
    if kind in ("gpt2", "clip"):
        reads = arguments(kind, "attention", folder)[0]
        with pytest.raises(SettingError, match="view that supports this model"):
            regard.look.alignment(model.look(reads))


def test_what_compares_texts_is_given_one(
    opened: Callable[[str], models.Model], folder: Path
) -> None:
    opened("clip")
    image = kinds.write_data(folder)["image"]
    with pytest.raises(SettingError, match="give a text in quotes"):
        CliRunner().invoke(command, ["m", image, "--what", "ablation"], catch_exceptions=False)
