"""regard train on text, and regard generate, as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forked_command import run_command

MODEL = [
    "--objective",
    "causal",
    "--preset",
    "tiny",
    "--d-model",
    "32",
    "--heads",
    "2",
    "--layers",
    "1",
    "--context",
    "16",
    "--tokenizer",
    "bpe",
    "--vocabulary",
    "300",
    "--steps",
    "30",
    "--warmup-steps",
    "5",
    "--schedule",
    "cosine",
    "--learning-rate",
    "0.02",
    "--batch-tokens",
    "256",
    "--validate-every",
    "15",
    "--threads",
    "1",
]


def regard(
    *arguments: str, cwd: Path, text: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, cwd=cwd, text=text, environment=environment)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    (folder / "tales.txt").write_text("Der Käfer sagt: 😀😀 Hallo.\n" * 80)
    done = regard("train", "--text", "tales.txt", *MODEL, "--out", "runs/tales", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "validation: loss" in done.stderr
    name, loss, perplexity = done.stdout.splitlines()[0].split("\t")
    assert (name, loss.split()[0], perplexity.split()[0]) == ("validation", "loss", "perplexity")
    return folder


def test_the_prompt_and_what_follows(home: Path) -> None:
    greedy = regard(
        "generate", "runs/tales", "Der Kä", "--greedy", "--max-new-tokens", "40", cwd=home
    )
    assert greedy.returncode == 0, greedy.stderr
    assert greedy.stdout.startswith("Der Kä")
    assert greedy.stdout.endswith("\n")
    flags = ["--max-new-tokens", "40", "--temperature", "1.3", "--top-p", "0.95", "--seed"]
    one, again, other = (
        regard("generate", "runs/tales", "Der", *flags, s, cwd=home).stdout for s in ("4", "4", "5")
    )
    assert one == again != other
    piped = regard("generate", "runs/tales", "-", *flags, "4", cwd=home, text="Der").stdout
    left_out = regard("generate", "runs/tales", *flags, "4", cwd=home, text="Der").stdout
    assert piped == left_out == one
    exact = regard("generate", "runs/tales", *flags, "4", cwd=home, text="Der  \n\n").stdout
    assert exact.startswith("Der  \n\n")


def test_as_json(home: Path) -> None:
    found = json.loads(
        regard("generate", "runs/tales", "Der", "--beam", "3", "--json", cwd=home).stdout
    )
    assert set(found) == {"prompt", "text"}
    streamed = regard("generate", "runs/tales", "Der", "--beam", "3", cwd=home).stdout
    assert streamed == "Der" + found["text"] + "\n"


def test_stops_and_several_continuations(home: Path) -> None:
    def generate(*flags: str) -> str:
        done = regard("generate", "runs/tales", "Der", "--max-new-tokens", "40", *flags, cwd=home)
        assert done.returncode == 0, done.stderr
        return done.stdout

    free = generate("--greedy").removeprefix("Der")
    stop = free[2:4]
    assert generate("--greedy", "--stop", stop, "--stop", "?!") == f"Der{free.partition(stop)[0]}\n"
    assert generate("--greedy", "--repetition-penalty", "0.001") != "Der" + free
    several = ["-n", "3", "--seed", "5"]
    found = [json.loads(line) for line in generate(*several, "--json").splitlines()]
    assert [one["prompt"] for one in found] == ["Der"] * 3
    assert generate(*several) == "".join(f"Der{one['text']}\n" for one in found)
    (home / "prompts.txt").write_text("Der\nDas\n")
    done = regard(
        "generate", "runs/tales", "--input", "prompts.txt", "--beam", "2", "-n", "2", cwd=home
    )
    prompts = [json.loads(line)["prompt"] for line in done.stdout.splitlines()]
    assert prompts == ["Der", "Der", "Das", "Das"]


def test_a_character_of_several_tokens_is_written_at_once(home: Path) -> None:
    """Each write to standard output is whole UTF-8, though 😀 may be up to four tokens."""
    script = (
        "import sys; from regard.models import LanguageModel, load\n"
        "writer = load('runs/tales', LanguageModel); told = []\n"
        "writer.generate('Der Käfer sagt: ', max_new_tokens=60, stream=told.append)\n"
        "assert len(told) > 5 and not any('\\ufffd' in piece for piece in told), told\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "nowhere", "a"], "the folder nowhere does not exist"),
        (["generate", "runs/tales", "a", "--greedy", "--seed", "3"], "--seed"),
        (["generate", "runs/tales", "a", "--greedy", "--beam", "3"], "cannot be combined"),
        (["generate", "runs/tales", "a", "--temperature", "-1"], "from 0"),
        (["generate", "runs/tales", ""], "prompt"),
        (["generate", "runs/tales", "a", "--greedy", "-n", "2"], "one continuation"),
        (["generate", "runs/tales", "a", "--stop", ""], "no text"),
        (["generate", "runs/tales", "a", "--beam", "10000000"], "hypotheses"),
        (["translate", "runs/tales"], "not a Translator"),
        (["train", "--objective", "causal"], "--text"),
        (["train", "shakespeare"], "REGARD_DATA"),
    ],
)
def test_mistakes_are_answered(home: Path, arguments: list[str], words: str) -> None:
    done = (
        regard(*arguments, cwd=home, REGARD_DATA="")
        if "shakespeare" in arguments
        else regard(*arguments, cwd=home)
    )
    assert done.returncode == 2, done.stderr
    assert "→" in done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
