"""What a benchmark found: a table for people, JSON for programs, and a page that keeps the last of each."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from regard import disk
from regard.bench.timing import Timing
from regard.memory import amount

HEAD = """# Results

Each section is written by the command under its heading; running it again replaces the section. All contenders of a table
took turns in one run: medians, ± half of the distance from fastest to slowest. Compare rows of one table, not of two.
What is marked as published was not in the run: it is a figure given elsewhere for the same case and kind of machine.

"""


@dataclass(frozen=True)
class Row:
    """`ours` are the rows a ratio is made for. `share` is of the machine's limit, measured in the same run. What is
    `published` (where and how, in words) was in no run of ours, and no ratio is made to it."""

    name: str
    rate: float
    spread: float | None  # None: of one round
    ours: bool = False
    peak: int | None = None  # bytes
    share: float | None = None
    published: str = ""


@dataclass(frozen=True)
class Report:
    command: str
    case: str
    machine: str
    unit: str
    rows: tuple[Row, ...]
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def peers(self) -> list[Row]:
        """The others that were measured."""
        return [row for row in self.rows if not row.ours and not row.published]

    @property
    def fastest(self) -> Row | None:
        return max(self.peers, key=lambda row: row.rate, default=None)

    def as_json(self) -> dict[str, Any]:
        ratios = {
            ours.name: {peer.name: ours.rate / peer.rate for peer in self.peers}
            for ours in self.rows
            if ours.ours
        }
        return {**asdict(self), "notes": dict(self.notes), "ratios": ratios}

    def lines(self) -> list[str]:
        """A table in Markdown, which reads well as it is."""
        columns = ["", self.unit, "±"]
        columns += [] if self.fastest is None else ["× fastest peer"]
        columns += ["peak memory"] if any(row.peak for row in self.rows) else []
        columns += ["of the limit"] if any(row.share for row in self.rows) else []
        cells = [columns, ["---"] * len(columns), *(self._cells(row, columns) for row in self.rows)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
        made = [
            "| "
            + " | ".join(
                text.ljust(n, "-" if text == "---" else " ")
                for text, n in zip(line, widths, strict=True)
            )
            + " |"
            for line in cells
        ]
        notes = ", ".join(f"{key} {value}" for key, value in self.notes.items())
        sources = dict.fromkeys(f"published: {row.published}" for row in self.rows if row.published)
        return [
            *made,
            *(["", notes] if notes else []),
            *(line for source in sources for line in ("", source)),
        ]

    def _cells(self, row: Row, columns: list[str]) -> list[str]:
        all_cells = {
            "": f"{row.name} (published)" if row.published else row.name,
            self.unit: f"{row.rate:,.0f}" if row.rate >= 100 else f"{row.rate:.3g}",
            "±": "" if row.published or row.spread is None else f"{100 * row.spread:.0f} %",
            "× fastest peer": ""
            if not row.ours or self.fastest is None
            else f"{row.rate / self.fastest.rate:.2f}",
            "peak memory": "" if row.peak is None else amount(row.peak),
            "of the limit": "" if row.share is None else f"{100 * row.share:.0f} %",
        }
        return [all_cells[column] for column in columns]

    @property
    def heading(self) -> str:
        return f"{self.case} ({self.machine})"


def row(name: str, timing: Timing, *, ours: bool = False, **more: Any) -> Row:
    return Row(name, timing.rate, timing.spread, ours, **more)


def keep(page: Path, report: Report) -> None:
    """Puts the report in the place of the last one of the same case and machine."""
    text = page.read_text(encoding="utf-8") if page.exists() else HEAD
    first, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    found = {section.split("\n", 1)[0]: section for section in sections}
    body = "\n".join([report.heading, "", f"`{report.command}`", "", *report.lines(), "", ""])
    found[report.heading] = body
    disk.write_file(page, first + "".join(f"## {found[key]}" for key in sorted(found)))


def machine(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{accelerator(device)}, PyTorch {_version()}"
    kind = torch.backends.cpu.get_cpu_capability().replace("_", "-").lower()
    return f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, {platform.machine()} {kind}, PyTorch {_version()}"


def accelerator(device: torch.device) -> str | None:
    """What its driver calls a GPU; a CPU is none."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def _version() -> str:
    return torch.__version__.split("+")[0]
