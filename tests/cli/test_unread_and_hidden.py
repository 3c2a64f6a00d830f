"""What no command reads is refused, and nothing that it does is hidden."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import looked
from command_line import Command
from regard import build, spec
from regard.families import folder as folders
from regard.families.presets import preset
from regard.lab.compare.contenders import Contender
from regard.lab.compare.experiment import _say_what_is_replaced
from regard.lab.doctor.run_evidence import open_recipe, open_run
from regard.lab.doctor.start_checks import check_start
from regard.lab.plan.subject import Request, resolve
from regard.models import LanguageModel
from regard.training.recipe import loading
from regard.training.run_folder import read_run
from regard.training.setup import Parts


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, demo: Path) -> Path:
    """A folder of models: gpt2 with its weights, whisper and vit as configs, and two exports."""
    root = tmp_path_factory.mktemp("models")
    description = preset("gpt2:tiny", len(looked.WORDS), 32)
    assert isinstance(description, spec.Decoder)
    LanguageModel(build(description).eval(), description, looked.WORDS).save(root / "gpt2")
    tokens = {"eos_token_id": 2, "pad_token_id": 2, "decoder_start_token_id": 1}
    for name, changes in {"whisper": {"max_source_positions": 150, **tokens}, "vit": {}}.items():
        config = folders.describe(preset(f"{name}:tiny")) | changes
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(config))
    # As `regard convert` leaves them.
    (root / "onnx").mkdir()
    shutil.copy(root / "gpt2" / "config.json", root / "onnx")
    (root / "onnx" / "model.onnx").write_bytes(b"graph")
    (root / "ctranslate2").mkdir()
    (root / "ctranslate2" / "config.json").write_text('{"unk_token": "<unk>"}')
    (root / "ctranslate2" / "model.bin").write_bytes(b"weights")
    (root / "ctranslate2" / "shared_vocabulary.json").write_text('["<unk>"]')
    (root / "script.sh").write_text("echo\n")
    return root


# The command, with MODELS for the folder of models, and words of the answer.
REFUSED = {
    # A search, an examination, a list: flags of something else.
    "tune --resume x --steps 30 --data y": ("--data, --steps", "--resume"),
    "tune --resume x --minutes 5": ("--minutes",),
    "tune --resume x --flops 1e15": ("--flops",),
    "tune --resume x --order rate": ("--order",),
    "tune --steps 30 --order rate,rate --out MODELS/new": ("rate is listed twice",),
    "doctor --html x.html": ("--html", "give a RUN"),
    "doctor --trial-seconds 5": ("--trial-seconds", "give a RUN"),
    "doctor --data-dir x": ("--data-dir", "give a RUN"),
    "doctor MODELS --data-dir x": ("--data-dir", "run folder"),
    "doctor cora --data-dir MODELS": ("MODELS/cora is not a graph folder",),
    "study --json --html x.html": ("--html", "give a NAME or --all"),
    "study --quick": ("--quick", "give a NAME or --all"),
    "study --seeds 3": ("--seeds", "give a NAME or --all"),
    "show --list gpt2": ("MODEL", "--list"),
    "show --download": ("--download", "give a MODEL"),
    # Plans: of a folder, of a budget, of a task.
    "plan MODELS/gpt2 --vocabulary 77": ("--vocabulary has no effect",),
    "plan MODELS/vit --length 7": ("--length has no effect",),
    "plan vit:tiny --length 7": ("--length has no effect",),
    "plan cifar10_small --length 7": ("--length has no effect",),
    "plan gpt2:tiny --flops 1e21": ("MODEL", "--flops"),
    "plan gpt2:tiny --task translate --examples 30": ("MODEL", "--task"),
    "plan --task translate --examples 300 --flops 1e20": ("--task, --examples", "--flops"),
    "plan --flops 1e21 --device H100": ("--device", "--flops"),
    "plan --task translate --device H100": ("--device", "--task"),
    "plan --flops 10": ("--flops 10", "1e+12 or more"),
    "plan --examples 300": ("--examples", "--task"),
    "plan MODELS/script.sh": ("script.sh is not a recipe, config.json or spec",),
    "plan MODELS/gpt2/model.safetensors": ("model.safetensors is not a recipe",),
    "plan gpt2:tiny --measure --device H100": ("no H100 here",),
    # Comparisons.
    "compare copying --models rnn --heads 2 --out MODELS/new": ("--heads has no effect on rnn",),
    "compare copying --models rnn,gru --position rope --out MODELS/new": ("no effect on rnn, gru",),
    "compare copying --models t5 --position rope --out MODELS/new": ("--position", "NAME@position"),
    # Pruning.
    "prune MODELS/gpt2 --heads 1 --pairs F --source F --target F": ("--source, --target: --pairs",),
    "prune MODELS/gpt2 --heads 1 --text F --source F": ("--source: ", "leave it out"),
    "prune DEMO --heads 1 --text F": ("--text: a translation model",),
    "prune DEMO --heads 0 --source EN --target DE --lines 4": ("0 of 24 heads cannot be removed",),
    "prune DEMO --heads 0.1% --source EN --target DE --lines 4": (
        "0 of 24 heads cannot be removed",
    ),
    # Exports.
    "convert MODELS/gpt2 MODELS/new --to onnx --shard-size 9MB": ("--shard-size", "huggingface"),
    "convert MODELS/gpt2 MODELS/new --to ctranslate2 --shard-size 9MB": ("--shard-size",),
    "verify MODELS/onnx": ("export for ONNX Runtime", "exported from"),
    "verify MODELS/ctranslate2": ("export for CTranslate2", "exported from"),
    "generate MODELS/onnx hello": ("export for ONNX Runtime",),
    # Files and words.
    "show MODELS/gpt2/config.json": ("is a file", "pass the folder: MODELS/gpt2"),
    "bench attention --kinds ful": ("did you mean 'full'",),
    "bench attention --kinds xyz": ("known: ", "full"),
}
# Paths that are empty: the argument or flag that the answer names.
EMPTY = {
    ("show", ""): "MODEL",
    ("plan", ""): "MODEL",
    ("train", ""): "RECIPE",
    ("convert", "", "x"): "IN",
    ("convert", "x", ""): "OUT",
    ("doctor", "copying", "--html", ""): "--html",
    ("doctor", "copying", "--data-dir", ""): "--data-dir",
    ("study", "scaling", "--html", ""): "--html",
    ("look", "x", "hello", "--png", ""): "--png",
    ("tune", "--steps", "30", "--out", ""): "--out",
    ("compare", "--out", ""): "--out",
    ("prune", "x", "--heads", "1", "--out", ""): "--out",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_not_read_is_refused(
    command: Command, models: Path, demo: Path, files: Path, line: str
) -> None:
    places = {
        "MODELS": str(models),
        "DEMO": str(demo),
        "EN": str(files / "s.en"),
        "DE": str(files / "s.de"),
    }

    def filled(text: str) -> str:
        for word, place in places.items():
            text = text.replace(word, place)
        return text

    words = (word.replace("MODELS", str(models)) for word in REFUSED[line])
    command(*map(filled, line.split())).refused(*words)
    assert not (models / "new").exists()


@pytest.mark.parametrize("arguments", EMPTY, ids=" ".join)
def test_an_empty_path_is_said(command: Command, arguments: tuple[str, ...]) -> None:
    command(*arguments).refused(f"{EMPTY[arguments]} is empty")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_studio_needs_its_device(command: Command, demo: Path) -> None:
    command("studio", demo, "--device", "cuda").refused("not available")


def test_measuring_is_refused_before_it_begins(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.lab.plan.measurement.measure", None)
    command("plan", "gpt2:tiny", "--measure", "--devices", "2").refused("--devices N")


@pytest.mark.parametrize("arguments", ["data builtin --lines 100000", "--help"])
def test_a_closed_pipe_has_its_exit_code(arguments: str) -> None:
    line = [sys.executable, "-m", "regard", *arguments.split()]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141  # 128 + SIGPIPE


def test_a_plan_takes_the_length_of_a_speech_model(models: Path) -> None:
    assert resolve(str(models / "whisper"), Request()).sizes.source_length == 150
    assert resolve("whisper:tiny", Request()).sizes.source_length == 1500


def test_a_setting_that_one_model_reads_is_taken(command: Command, tmp_path: Path) -> None:
    """The rnn has no heads, but the Transformer beside it has; so the answer is another one."""
    out = tmp_path / "new"
    words = ("compare", "copying", "--models", "rnn,transformer", "--out", out)
    command(*words, "--heads", "7").refused("is not divisible by 7 heads")


def test_a_table_that_is_replaced_is_named(tmp_path: Path) -> None:
    file = tmp_path / "compare.json"
    file.write_text('{"contestants": [{"word": "rnn"}, {"word": "gru"}]}')
    said: list[str] = []
    _say_what_is_replaced(file, [Contender("rnn"), Contender("gru")], said.append)
    assert said == []
    _say_what_is_replaced(file, [Contender("rnn"), Contender("lstm")], said.append)
    assert len(said) == 1
    assert "without gru:" in said[0]


@pytest.mark.parametrize(
    ("content", "words"), [(None, "is missing"), (b'{"st', "has no training records")]
)
def test_a_log_that_is_lost_is_not_healthy_in_silence(
    trained: Path, tmp_path: Path, content: bytes | None, words: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / "metrics.jsonl").unlink()
    if content is not None:
        (run / "metrics.jsonl").write_bytes(content)
    run_folder, recipe, _ = read_run(run)
    problems = open_run(run_folder, recipe, Parts(None, None, ())).problems
    assert [f"metrics.jsonl {words}" in problem for problem in problems] == [True]


@pytest.mark.parametrize(
    ("start", "loss", "expected"),
    [
        (None, None, None),  # 5.5, where guessing has 3.4: gone after 30 updates
        (None, 50.0, "use a smaller standard deviation"),
        ("normal:1", None, "remove init, or use a smaller standard deviation"),
    ],
)
def test_the_default_initialization_is_no_finding(
    start: str | None, loss: float | None, expected: str | None
) -> None:
    changes = {"builtin_lines": 300} | ({} if start is None else {"init": start})
    recipe, name = loading.choose("copying", changes)
    with open_recipe(recipe, name, Parts(None, None, ())) as run:
        if loss is not None:
            vars(run)["initial_loss"] = loss
        findings = list(check_start(run))
    assert [finding.check for finding in findings] == ["bad_initialization"] * bool(expected)
    if expected is not None:
        assert findings[0].change.startswith(expected)
