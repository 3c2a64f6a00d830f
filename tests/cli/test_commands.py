"""The command line as a user meets it: results, and answers to bad input."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from forked_command import run_command
from regard.cli.shared_options import json_text
from regard.evaluation.scores import scored

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
MODEL = [
    "--preset",
    "tiny",
    "--d-model",
    "32",
    "--d-ff",
    "48",
    "--heads",
    "2",
    "--layers",
    "1",
    "--steps",
    "6",
    "--warmup-steps",
    "5",
    "--batch-tokens",
    "512",
    "--validate-every",
    "3",
    "--save-every",
    "3",
    "--builtin-lines",
    "300",
    "--tokenizer",
    "bpe",
    "--vocabulary",
    "400",
    "--threads",
    "1",
    "--beam",
    "2",
    "--samples",
    "1",
]


def regard(*arguments: str, cwd: Path, text: str | bytes = "") -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, cwd=cwd, text=text)


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """A few lines that name the problem and the repair; no traceback, nothing on
    standard output.
    """
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    message = done.stderr[done.stderr.index("error: ") :]
    assert len(message.splitlines()) <= 5, message
    assert "→" in message
    for word in words:
        assert word in message, message


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small finished run in runs/builtin and some text."""
    folder = tmp_path_factory.mktemp("home")
    done = regard("train", *MODEL, "--out", "runs/builtin", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["run"] == "runs/builtin"
    assert {"bleu", "chrf", "exact_match", "signature"} <= set(result["pronouns"])
    pairs = regard("data", "builtin", "--split", "test", "--lines", "12", cwd=folder).stdout
    rows = [line.split("\t") for line in pairs.splitlines()]
    (folder / "test.tsv").write_text(pairs)
    (folder / "test.en").write_text("".join(row[0] + "\n" for row in rows))
    (folder / "test.de").write_text("".join(row[1] + "\n" for row in rows))
    return folder


def test_data_is_readable_and_reproducible(tmp_path: Path) -> None:
    one = regard(
        "data", "builtin", "--split", "valid", "--lines", "7", "--pronouns", cwd=tmp_path
    ).stdout
    assert (
        one
        == regard(
            "data", "builtin", "--split", "valid", "--lines", "7", "--pronouns", cwd=tmp_path
        ).stdout
    )
    rows = [line.split("\t") for line in one.splitlines()]
    assert len(rows) == 7
    assert all(len(row) == 2 and " it " in row[0] for row in rows)


def test_one_line_out_for_each_line_in(home: Path) -> None:
    done = regard(
        "translate",
        "runs/builtin",
        cwd=home,
        text="The dog sees a cat.\n\n   \nHe sings.\r\nno newline at the end",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert len(lines) == 6
    assert lines[5] == ""
    assert lines[1] == lines[2] == ""
    assert regard("translate", "runs/builtin", cwd=home, text="").stdout == ""
    best = regard(
        "translate", "runs/builtin", "--beam", "3", "--n-best", "2", cwd=home, text="He sings.\n\n"
    ).stdout
    assert len(best.split("\n")) == 5


def test_translations_as_json_and_by_chance(home: Path) -> None:
    out = regard(
        "translate",
        "runs/builtin",
        "--json",
        "--beam",
        "3",
        "--n-best",
        "3",
        cwd=home,
        text="He sings.\n",
    ).stdout
    found = json.loads(out)
    assert found["source"] == "He sings."
    assert [c["score"] for c in found["translations"]] == sorted(
        (c["score"] for c in found["translations"]), reverse=True
    )
    flags = [
        "translate",
        "runs/builtin",
        "--sample",
        "--top-p",
        "0.9",
        "--temperature",
        "1.5",
        "--seed",
    ]
    one, again, other = (
        regard(*flags, seed, cwd=home, text="He sings.\n").stdout for seed in ("4", "4", "5")
    )
    assert one == again != other
    # A line's chance is its own: blank lines and neighbours before it are counted, not drawn for.
    shifted = regard(*flags, "4", cwd=home, text="\nHe sings.\n").stdout.split("\n")
    padded = regard(*flags, "4", cwd=home, text="A dog sleeps.\nHe sings.\n").stdout.split("\n")
    assert shifted[1] == padded[1]


def test_evaluate_prints_the_object(home: Path) -> None:
    report = json.loads(
        regard(
            "evaluate",
            "runs/builtin",
            "--source",
            "test.en",
            "--target",
            "test.de",
            "--json",
            cwd=home,
        ).stdout
    )
    assert {
        "bleu",
        "chrf",
        "exact_match",
        "perplexity",
        "signatures",
        "seconds",
        "tokens_per_second",
    } <= set(report)
    assert "tok:13a" in report["signatures"]["bleu"]
    pairs = regard(
        "evaluate", "runs/builtin", "--pairs", "test.tsv", "--json", "--tokenize", "none", cwd=home
    )
    other = json.loads(pairs.stdout)
    assert "tok:none" in other["signatures"]["bleu"]
    assert other["perplexity"] == pytest.approx(report["perplexity"])
    both = ["evaluate", "runs/builtin", "./runs/builtin", "--pairs", "test.tsv"]
    head, row, _ = regard(*both, cwd=home).stdout.splitlines()
    assert [
        word
        for word in ("BLEU", "exact match", "perplexity", "parameters", "tokens/s")
        if word not in head
    ] == []
    assert row.startswith("runs/builtin")
    refused(regard(*both, "--output", "x", cwd=home), "one MODEL")


def test_perfect_translations_score_100(home: Path, tmp_path: Path) -> None:
    """The scorer itself, through the library it leans on."""

    lines = (home / "test.de").read_text().splitlines()
    same = scored("translate", lines, lines)
    assert (same.bleu, same.exact_match) == (pytest.approx(100.0), 100.0)
    assert scored("translate", ["x"] * len(lines), lines).exact_match == 0.0


@pytest.mark.parametrize("form", ["text", "gzip", "tsv", "jsonl", "stdin"])
def test_trains_from_every_kind_of_file(home: Path, tmp_path: Path, form: str) -> None:
    rows = [line.split("\t") for line in (home / "test.tsv").read_text().splitlines()] * 10
    flags, stdin = [], ""
    if form in ("text", "gzip"):
        for side, column in (("source", 0), ("target", 1)):
            content = "".join(row[column] + "\n" for row in rows).encode()
            (tmp_path / side).write_bytes(gzip.compress(content) if form == "gzip" else content)
            flags += [f"--{side}", side]
    elif form == "stdin":
        flags, stdin = ["--pairs", "-"], "".join("\t".join(row) + "\n" for row in rows)
    else:
        lines = [
            "\t".join(r) if form == "tsv" else json.dumps({"source": r[0], "target": r[1]})
            for r in rows
        ]
        (tmp_path / f"all.{form}").write_text("".join(line + "\n" for line in lines))
        flags = ["--pairs", f"all.{form}"]
    done = regard("train", *MODEL, *flags, "--out", "run", "--steps", "2", cwd=tmp_path, text=stdin)
    assert done.returncode == 0, done.stderr
    assert "held out for validation" in done.stderr
    assert (tmp_path / "run" / "model.safetensors").exists()


# ---------------------------------------------------------------------- bad input


def test_files_of_different_length(home: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\nthree\n")
    (tmp_path / "b").write_text("eins\nzwei\n")
    refused(regard("train", "--source", "a", "--target", "b", "--out", "r", cwd=tmp_path), "2")
    done = regard(
        "evaluate", str(home / "runs/builtin"), "--source", "a", "--target", "b", cwd=tmp_path
    )
    refused(done, "line")


def test_empty_missing_and_undecodable_files(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "good").write_text("a\nb\n")
    (tmp_path / "bad").write_bytes(b"fine\nnot \xff fine\n")
    refused(
        regard("train", "--source", "empty", "--target", "empty", "--out", "r1", cwd=tmp_path),
        "empty",
    )
    refused(
        regard("train", "--source", "nowhere", "--target", "good", "--out", "r2", cwd=tmp_path),
        "nowhere",
    )
    refused(
        regard("train", "--source", "good", "--target", "bad", "--out", "r3", cwd=tmp_path),
        "bad",
        "9",
    )


def test_lines_over_the_limit_are_counted_and_named(home: Path, tmp_path: Path) -> None:
    text = (home / "test.en").read_text().splitlines() * 20
    text[4] = "word " * 100
    (tmp_path / "a").write_text("\n".join(text) + "\n")
    done = regard(
        "train",
        *MODEL,
        "--source",
        "a",
        "--target",
        "a",
        "--max-length",
        "60",
        "--out",
        "r",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\b1 .*(longer|over|limit).*60", done.stderr), done.stderr


def test_strange_folders_and_words(home: Path, tmp_path: Path) -> None:
    refused(regard("translate", str(tmp_path), cwd=tmp_path, text="x\n"), "config.json")
    refused(regard("translate", "runs/builtim", cwd=home, text="x\n"))
    refused(regard("train", "--resume", str(tmp_path), cwd=tmp_path), "not a run")
    refused(regard("train", "--preset", "tinny", "--out", "r", cwd=tmp_path), "did you mean 'tiny'")
    refused(regard("train", "--stepps", "3", cwd=tmp_path), "did you mean '--steps'")
    refused(regard("train", "bultin", cwd=tmp_path), "did you mean 'builtin'")
    refused(regard("trian", cwd=tmp_path), "did you mean 'train'")
    refused(regard("train", "--out", str(home / "runs/builtin"), cwd=tmp_path), "--resume")
    refused(
        regard("translate", "runs/builtin", "--length-penalty", "gnt:1", cwd=home, text="x\n"),
        "did you mean 'gnmt'",
    )
    refused(regard("translate", "runs/builtin", "--top-k", "3", cwd=home, text="x\n"), "--sample")
    refused(regard("evaluate", "runs/builtin", cwd=home), "--source")
    refused(
        regard("evaluate", "runs/builtin", "--pairs", "test.tsv", "--tokenize", "14a", cwd=home),
        "13a",
    )


def test_devices_that_are_not_there(home: Path) -> None:
    refused(
        regard("translate", "runs/builtin", "--device", "gpu7", cwd=home, text="x\n"), "gpu7", "cpu"
    )
    refused(
        regard("translate", "runs/builtin", "--device", "cuda:99", cwd=home, text="x\n"),
        "cuda:99",
        "cpu",
    )


def test_undecodable_input_names_the_byte(home: Path) -> None:
    refused(regard("translate", "runs/builtin", cwd=home, text=b"good\n\xfe\n"), "byte")


def test_damaged_weights(home: Path, tmp_path: Path) -> None:
    """The newest intact checkpoint is used, and it is said; without one it is an error."""
    run = tmp_path / "run"
    subprocess.run(["cp", "-r", str(home / "runs/builtin"), str(run)], check=True)
    whole = regard("translate", str(run), cwd=tmp_path, text="He sings.\n").stdout
    content = bytearray((run / "model.safetensors").read_bytes())
    content[-30] ^= 64
    for harmed in (content, content[:-40]):
        (run / "model.safetensors").write_bytes(harmed)
        done = regard("translate", str(run), cwd=tmp_path, text="He sings.\n")
        assert done.returncode == 0, done.stderr
        assert "damaged" in done.stderr
        assert done.stdout == whole
    subprocess.run(["rm", "-r", str(run / "state")], check=True)
    refused(regard("translate", str(run), cwd=tmp_path, text="He sings.\n"), "model.safetensors")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_under_standard_output(home: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "regard", "translate", "runs/builtin"],
            cwd=home, input=b"He sings.\n", stdout=full, stderr=subprocess.PIPE,
        )  # fmt: skip
    assert done.returncode == 2
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


def test_help_ends_with_examples(tmp_path: Path) -> None:
    for verb in (
        [],
        ["train"],
        ["translate"],
        ["evaluate"],
        ["look"],
        ["data"],
        ["data", "builtin"],
    ):
        done = regard(*verb, "--help", cwd=tmp_path)
        assert done.returncode == 0
        assert "Examples:" in done.stdout
        assert (
            done.stdout.rstrip().splitlines()[-1].strip().startswith(("regard", "echo", "--preset"))
        )


def test_json_has_null_where_a_number_is_none() -> None:
    assert (
        json_text({"loss": math.inf, "all": [math.nan, 1.0]})
        == '{"loss": null, "all": [null, 1.0]}'
    )
