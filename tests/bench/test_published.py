"""Published figures are shown for their own case and machine only, and never as measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.cli import bench as command
from regard.lab.bench import decode, published, train
from regard.lab.bench.models import benchmark_model
from regard.lab.bench.published import MACHINE, PEERS, Figure, split
from regard.lab.bench.report import BenchmarkReport, BenchmarkRow, write_section
from regard.system.errors import SettingError

ALL = [
    pytest.param(peer, one, id=f"{peer} {i}")
    for peer, figures in PEERS.items()
    for i, one in enumerate(figures)
]
CPU = torch.device("cpu")


def case_of(figure: Figure) -> Any:
    if "lengths" in figure.case:
        return train.TrainingCase(**figure.case)
    return decode.DecodingCase(**figure.case)


@pytest.mark.parametrize(("peer", "figure"), ALL)
def test_a_figure_is_told_for_its_case(peer: str, figure: Figure) -> None:
    rows, left = split(["transformers", peer], case_of(figure), MACHINE)
    assert [(row.name, row.rate, row.share) for row in rows] == [(peer, figure.rate, figure.share)]
    assert all(row.published and not row.ours for row in rows)
    assert left == ["transformers"]
    assert split(["transformers"], case_of(figure), MACHINE) == (
        [],
        ["transformers"],
    )  # nobody asked


@pytest.mark.parametrize(("peer", "figure"), ALL)
def test_a_figure_is_told_for_nothing_else(peer: str, figure: Figure) -> None:
    case = case_of(figure)
    for machine in (None, "NVIDIA H100 80GB HBM3", "NVIDIA H200 NVL", "NVIDIA A100-SXM4-80GB"):
        with pytest.raises(SettingError, match=MACHINE):
            split([peer], case, machine)
    for key, value in figure.case.items():
        other = (
            value + 7
            if isinstance(value, int)
            else {"equal": "natural", "bf16": "float32"}.get(value, "tiny")
        )
        with pytest.raises(SettingError, match=f"{key} {value}"):
            split([peer], replace(case, **{key: other}), MACHINE)


@pytest.mark.parametrize(
    ("peer", "figure"), [one for one in ALL if one.values[1].share is not None]
)
def test_shares_count_work_as_we_do(peer: str, figure: Figure) -> None:
    """Their rate times our FLOPs per token, over their peak FLOP/s, is the share they publish."""
    case = case_of(figure)
    work = train._flops_per_token(benchmark_model(case.model).spec, case.length)
    assert figure.rate * work / 772e12 == pytest.approx(figure.share, abs=0.006)


def test_what_was_not_published_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for room in (train, decode):
        monkeypatch.setattr(room, "time_in_turns", lambda *_: pytest.fail("measured"))
    with pytest.raises(SettingError, match="nanoGPT"):
        train.run(
            train.TrainingCase("gpt2", "equal", 1024, precision="bf16"), ["nanoGPT"], CPU, "bench"
        )
    with pytest.raises(SettingError, match="transformers-compiled"):
        decode.run(
            decode.DecodingCase("gpt2", 1, prompt_length=16, new=128),
            ["transformers-compiled"],
            CPU,
            "bench",
        )


@pytest.mark.slow
def test_a_run_tells_it_after_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that calls itself so, for a case small enough to be measured here."""
    case = {"model": "gpt2-tiny", "length": 16}
    monkeypatch.setitem(
        PEERS, "nanoGPT", (Figure(case, 1e9, 0.5), Figure({"model": "gpt2-tiny", "new": 4}, 1e9))
    )
    small = train.TrainingCase(
        "gpt2-tiny", "equal", length=16, batch_tokens=64, batches=1, rounds=1
    )
    written = decode.DecodingCase("gpt2-tiny", 1, prompt_length=3, new=4, rounds=1)
    for room, asked in ((train, small), (decode, written)):
        monkeypatch.setattr(room, "accelerator_name", lambda device: MACHINE)
        report: BenchmarkReport = room.run(asked, ["nanoGPT"], CPU, "bench")  # type: ignore[arg-type]
        assert [row.name for row in report.rows if row.published] == ["nanoGPT"]
        assert report.rows[0].ours
        assert report.rows[-1].published


def test_no_ratio_is_made_to_what_was_not_measured(tmp_path: Path) -> None:
    ours, peer = BenchmarkRow("regard", 300.0, 0.1, True), BenchmarkRow("transformers", 100.0, 0.05)
    rows, _ = split(
        ["nanoGPT"], train.TrainingCase("gpt2", "equal", 1024, precision="bf16"), MACHINE
    )
    report = BenchmarkReport("regard bench x", "case", "here", "tokens/s", (ours, peer, *rows))
    assert report.fastest == peer
    assert report.as_json()["ratios"] == {"regard": {"transformers": 3.0}}
    assert [row["published"] for row in report.as_json()["rows"]] == ["", "", published.SOURCE]
    assert (
        BenchmarkReport("regard bench x", "case", "here", "tokens/s", (ours, *rows)).fastest is None
    )
    write_section(tmp_path / "RESULTS.md", report)
    lines = (tmp_path / "RESULTS.md").read_text().splitlines()
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in lines
        if line.startswith("| nanoGPT")
    ]
    assert cells == [["nanoGPT (published)", "506,000", "", "", "56 %"]]
    assert f"published: {published.SOURCE}" in lines
    alone = BenchmarkReport("regard bench x", "case", "here", "tokens/s", (ours, peer))
    assert not any("published" in line for line in alone.lines())


def test_each_command_offers_what_there_are_figures_for() -> None:
    for verb, key in ((command.train, "lengths"), (command.decode, "prompt_length")):
        against = next(option for option in verb.params if option.name == "against")
        offered = against.type.choices  # type: ignore[attr-defined]
        peers = {peer for peer, figures in PEERS.items() if any(key in one.case for one in figures)}
        assert peers == {name for name in offered if name in PEERS}
