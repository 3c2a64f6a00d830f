"""Benchmark reports: a table for people, JSON for programs, and a page with the latest of each."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from regard.lab.bench.timing import Timing
from regard.system import disk
from regard.system.memory import amount

# The text before the sections of a page of results. It is part of the file format.
HEAD = """# Results

Each section is written by the command under its heading; running it again replaces the section. \
All contenders of a table
took turns in one run: medians, ± half of the distance from fastest to slowest. Compare rows of \
one table, not of two.
What is marked as published was not in the run: it is a figure given elsewhere for the same case \
and kind of machine.

"""

RATIO = "× fastest peer"
MEMORY = "peak memory"
SHARE = "of the limit"


@dataclass(frozen=True)
class BenchmarkRow:
    """One contender of a table.

    `ours`: whether ratios to the peers are shown. `share` is that of the machine's limit, measured
    in the same run. `published` says where and how a figure was measured that is not of this run;
    no ratio is made to it.
    """

    name: str
    rate: float  # in the report's unit
    spread: float | None  # None for one round
    ours: bool = False
    peak: int | None = None  # bytes
    share: float | None = None  # of FLOP/s in training, of memory bandwidth in decoding; 0 to 1
    published: str = ""


@dataclass(frozen=True)
class BenchmarkReport:
    """One table: the command, the case, the machine, and a row for each contender."""

    command: str
    case: str
    machine: str
    unit: str
    rows: tuple[BenchmarkRow, ...]
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def peers(self) -> list[BenchmarkRow]:
        """The measured rows of other libraries."""
        return [row for row in self.rows if not row.ours and not row.published]

    @property
    def fastest(self) -> BenchmarkRow | None:
        return max(self.peers, key=lambda row: row.rate, default=None)

    @property
    def heading(self) -> str:
        return f"{self.case} ({self.machine})"

    def as_json(self) -> dict[str, Any]:
        ratios = {
            ours.name: {peer.name: ours.rate / peer.rate for peer in self.peers}
            for ours in self.rows
            if ours.ours
        }
        return {**asdict(self), "notes": dict(self.notes), "ratios": ratios}

    def lines(self) -> list[str]:
        """The table in Markdown, aligned so that it also reads well as plain text."""
        columns = self._columns()
        cells = [columns, ["---"] * len(columns)]
        cells += [self._cells(row, columns) for row in self.rows]
        # Columns as wide as their widest cell.
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = []
        for line in cells:
            padded = [
                text.ljust(width, "-" if text == "---" else " ")
                for text, width in zip(line, widths, strict=True)
            ]
            lines.append(f"| {' | '.join(padded)} |")
        notes = ", ".join(f"{key} {value}" for key, value in self.notes.items())
        if notes:
            lines += ["", notes]
        # Each source once, in order.
        for source in dict.fromkeys(row.published for row in self.rows if row.published):
            lines += ["", f"published: {source}"]
        return lines

    def _columns(self) -> list[str]:
        optional = {
            RATIO: self.fastest is not None,
            MEMORY: any(row.peak for row in self.rows),
            SHARE: any(row.share for row in self.rows),
        }
        return ["", self.unit, "±", *(column for column, shown in optional.items() if shown)]

    def _cells(self, row: BenchmarkRow, columns: list[str]) -> list[str]:
        """The texts of a row; what it does not have is empty."""
        cells = dict.fromkeys(columns, "")
        cells[""] = f"{row.name} (published)" if row.published else row.name
        cells[self.unit] = f"{row.rate:,.0f}" if row.rate >= 100 else f"{row.rate:.3g}"
        if row.spread is not None and not row.published:
            cells["±"] = f"{100 * row.spread:.0f} %"
        if row.ours and self.fastest is not None:
            cells[RATIO] = f"{row.rate / self.fastest.rate:.2f}"
        if row.peak is not None:
            cells[MEMORY] = amount(row.peak)
        if row.share is not None:
            cells[SHARE] = f"{100 * row.share:.0f} %"
        return [cells[column] for column in columns]


def timing_row(name: str, timing: Timing, **more: Any) -> BenchmarkRow:
    """The row of a contender that was timed; the names of ours begin with regard."""
    return BenchmarkRow(name, timing.rate, timing.spread, name.startswith("regard"), **more)


def write_section(page: Path, report: BenchmarkReport) -> None:
    """Writes a report into a page of results, in place of the last one of its case and machine."""
    text = page.read_text(encoding="utf-8") if page.exists() else HEAD
    head, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    # Sections by heading, each with its heading as the first line.
    sections = {part.split("\n", 1)[0]: part for part in parts}
    lines = [report.heading, "", f"`{report.command}`", "", *report.lines(), "", ""]
    sections[report.heading] = "\n".join(lines)
    # Sorted, so that running a command again changes only its own section.
    body = "".join(f"## {sections[heading]}" for heading in sorted(sections))
    disk.write_file(page, head + body)


def machine_name(device: torch.device) -> str:
    """The machine as the heading of a report has it."""
    version = torch.__version__.split("+")[0]
    if device.type == "cuda":
        return f"{accelerator_name(device)}, PyTorch {version}"
    instructions = torch.backends.cpu.get_cpu_capability().replace("_", "-").lower()
    return (
        f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, "
        f"{platform.machine()} {instructions}, PyTorch {version}"
    )


def accelerator_name(device: torch.device) -> str | None:
    """The name of a GPU, by its driver; None for a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None
