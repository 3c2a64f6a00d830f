"""The benchmarks run, count real tokens, and give peers the same sizes.

No test says who is faster.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.builder import edit
from regard.builder.parameter_count import parameter_count
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens
from regard.decode.batch_decoding import decode as search
from regard.decode.strategy import Greedy, Limit
from regard.families.encoder_decoders import transformer
from regard.lab.bench import decode, forward, load, train
from regard.lab.bench.models import benchmark_model
from regard.lab.bench.peers import TRAINABLE
from regard.lab.bench.report import BenchmarkReport, BenchmarkRow, write_section
from regard.lab.bench.timing import time_in_turns
from regard.system.errors import SettingError

CPU = torch.device("cpu")


@pytest.mark.slow
def test_every_contender_is_measured_in_turns() -> None:
    pytest.importorskip("transformers")
    case = train.TrainingCase("tiny", "natural", batch_tokens=256, batches=1, rounds=1)
    report = train.run(case, ["nn.Transformer", "transformers"], CPU, "bench")
    assert [row.name for row in report.rows] == [
        "regard",
        "nn.Transformer, our batches",
        "nn.Transformer, its batches",
        "transformers, our batches",
        "transformers, its batches",
    ]
    assert all(row.rate > 0 for row in report.rows)
    assert report.rows[0].ours
    assert not any(row.ours for row in report.rows[1:])


@pytest.mark.slow
def test_blocks_stay_compiled_while_they_are_benchmark_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside: list[object] = []

    @contextmanager
    def compiled(model: object) -> Iterator[None]:
        inside.append(model)
        try:
            yield
        finally:
            inside.clear()

    def checked_timing(*arguments: Any) -> Any:
        assert inside
        return time_in_turns(*arguments)

    monkeypatch.setattr(edit, "compiled", compiled)
    monkeypatch.setattr(train, "time_in_turns", checked_timing)
    case = train.TrainingCase(
        "tiny", "natural", batch_tokens=128, batches=1, rounds=1, compile=True
    )
    assert train.run(case, [], torch.device("cpu"), "").rows[0].rate > 0
    assert not inside


def test_a_language_model_trains_on_windows() -> None:
    case = train.TrainingCase("gpt2-tiny", "equal", length=16, batch_tokens=64, batches=1, rounds=1)
    assert train.run(case, [], CPU, "bench").rows[0].rate > 0
    with pytest.raises(SettingError, match="gpt2-tiny"):
        train.run(case, ["transformers"], CPU, "bench")


@pytest.mark.slow
def test_decoders_produce_exactly_what_is_counted() -> None:
    """Each contender checks the number of its tokens itself, in a process of its own."""
    pytest.importorskip("transformers")
    pytest.importorskip("ctranslate2")
    case = decode.DecodingCase("tiny", batch=2, beam=2, prompt_length=5, new=6, rounds=1)
    report = decode.run(case, ["transformers", "ctranslate2"], CPU, "bench", memory=True)
    assert [row.name for row in report.rows][:3] == [
        "regard float32",
        "regard int8",
        "transformers",
    ]
    assert sum(row.name.startswith("CTranslate2") for row in report.rows) in (
        2,
        4,
    )  # as there are threads
    assert all(row.peak is not None and row.peak > 2**26 for row in report.rows)


def test_contenders_decode_the_same_tokens(tmp_path: Path) -> None:
    """The same weights: what float32 contenders choose is equal."""
    transformers = pytest.importorskip("transformers")
    model = benchmark_model("gpt2-tiny")
    model.write(tmp_path)
    prompt = list(range(10, 17))
    ours = search(
        model.build(),  # type: ignore[arg-type]
        [prompt],
        SpecialTokens(0, None, 2, (0, 2)),
        DecodingSettings(Greedy(), Limit.fixed(8)),
    )[0][0].tokens
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).generate(
        torch.tensor([prompt]),
        do_sample=False,
        min_new_tokens=8,
        max_new_tokens=8,
        suppress_tokens=[0],
        pad_token_id=0,
    )
    assert theirs[0, 7:].tolist() == list(ours)


@pytest.mark.slow
def test_forward_and_load_are_benchmark_model() -> None:
    pytest.importorskip("transformers")
    passed = forward.run(forward.ForwardCase("bert-tiny", 2, 9, 1), ["transformers"], CPU, "bench")
    assert [row.name for row in passed.rows] == ["regard", "regard, frozen", "transformers"]
    begun = load.run(load.LoadingCase("tiny", 3, 1), [], "bench")
    assert begun.rows[0].rate > 0


def test_results_replace_those_of_the_same_case(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"

    def result(case: str, rate: float) -> BenchmarkReport:
        return BenchmarkReport(
            "regard bench x",
            case,
            "here",
            "tokens/s",
            (BenchmarkRow("regard", rate, 0.1, True), BenchmarkRow("other", 50.0, 0.0)),
        )

    write_section(page, result("one", 100.0))
    write_section(page, result("two", 200.0))
    write_section(page, result("one", 150.0))
    text = page.read_text()
    assert text.count("## one (here)") == 1
    assert "## two (here)" in text
    assert "150" in text
    assert "3.00" in text
    assert "100" not in text


@pytest.mark.slow
def test_the_command_prints_what_programs_can_read() -> None:
    command = [sys.executable, "-m", "regard", "bench", "decode", "--model", "gpt2-tiny"]
    command += ["--batch", "1,2", "--given", "3", "--new", "4", "--rounds", "1"]
    command += ["--json", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert [case["case"] for case in cases] == [
        "decode gpt2-tiny, greedy, batch 1, 3 + 4 tokens",
        "decode gpt2-tiny, greedy, batch 2, 3 + 4 tokens",
    ]
    assert cases[0]["command"].startswith("regard bench decode --model gpt2-tiny")


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(SettingError, match="gpt3"):
        benchmark_model("gpt3")


@pytest.mark.parametrize("name", ["nn.Transformer", "transformers"])
def test_peers_have_the_same_sizes(name: str) -> None:
    """Up to the biases and norms that some have more of."""
    pytest.importorskip("transformers")
    model = transformer.preset("tiny", 50, 50, share="all")
    theirs, _ = TRAINABLE[name](model, torch.device("cpu"))
    count = sum(parameter.numel() for parameter in theirs.parameters() if parameter.requires_grad)
    assert count == pytest.approx(parameter_count(model), rel=0.01)


def test_turns_are_taken_one_after_the_other() -> None:
    order: list[str] = []

    def case(name: str) -> float:
        order.append(name)
        return 3.0

    timings = time_in_turns(
        {"a": lambda: case("a"), "b": lambda: case("b")}, 2, torch.device("cpu")
    )
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert timings["a"].amount == 3.0
    assert len(timings["b"].seconds) == 2
