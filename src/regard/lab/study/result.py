"""The result of a study: its numbers, and what follows from them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from regard.lab.study import listing, report
from regard.lab.study.figure import Table
from regard.lab.study.study import Effort, Numbers, Study, Verdict
from regard.look.drawing import Figure
from regard.look.result import to_json
from regard.system import disk
from regard.system.errors import DataError


@dataclass(frozen=True)
class StudyResult:
    """Numbers of a study with verdict, figures and tables; shown as a page in notebooks."""

    study: Study
    effort: Effort
    numbers: Numbers  # as `measure` returned them
    seconds: float  # of measuring
    fingerprint: str  # of code and settings

    @property
    def name(self) -> str:
        return self.study.name

    @property
    def title(self) -> str:
        return listing.STUDIES[self.name].title

    @property
    def topic(self) -> str:
        """The heading that it stands under."""
        return listing.TOPICS[listing.STUDIES[self.name].topic]

    # A page asks for it several times.
    @cached_property
    def verdict(self) -> Verdict:
        return self.study.verdict(self.numbers)

    @property
    def figures(self) -> list[Figure]:
        return self.study.figures(self.numbers)

    @property
    def tables(self) -> list[Table]:
        return self.study.tables(self.numbers)

    @property
    def settings(self) -> str:
        """How it was made, in a few words."""
        # Quick results must not be taken for full ones.
        seeds = len(self.effort.seeds)
        runs = "1 seed" if seeds == 1 else f"{seeds} seeds"
        return f"{'quick' if self.effort.quick else 'full'}, {runs}, {self.seconds:.0f} s"

    # --- for people ---

    def section(self) -> report.Section:
        """What a report has of it."""
        return report.Section(
            self.name,
            self.title,
            self.topic,
            self.study.claim,
            self.study.source,
            self.study.measurement,
            self.study.rule,
            self.settings,
            self.verdict,
            self.figures,
            self.tables,
        )

    def html(self) -> str:
        """An HTML fragment, for a page that has `report.STYLE`."""
        return report.section(self.section())

    def _repr_html_(self) -> str:
        return report.standalone(self.section())

    def to_html(self, path: str | Path) -> None:
        """Writes a self-contained HTML page."""
        disk.write_file(Path(path), report.page([self.section()]))

    def __str__(self) -> str:
        return "\n".join(report.lines(self.section()))

    # --- for programs ---

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "study": self.name,
            "title": self.title,
            "topic": self.topic,
            "claim": self.study.claim,
            "source": self.study.source,
            "measurement": self.study.measurement,
            "rule": self.study.rule,
            "outcome": self.verdict.outcome.value,
            "reason": self.verdict.reason,
            "quick": self.effort.quick,
            "seeds": list(self.effort.seeds),
            "seconds": round(self.seconds, 3),
            "fingerprint": self.fingerprint,
            "numbers": to_json(self.numbers),
        }

    def save(self, folder: Path) -> None:
        """Writes NAME.json, atomically."""
        disk.write_json(folder / f"{self.name}.json", self.to_dict())

    @classmethod
    def read(cls, file: Path) -> StudyResult:
        """A result that `save` has written."""
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            return cls(
                # Verdict, figures and tables follow from the numbers, as the code is today.
                listing.load(values["study"]),
                Effort(values["quick"], tuple(values["seeds"])),
                values["numbers"],
                values["seconds"],
                values["fingerprint"],
            )
        except (KeyError, TypeError, json.JSONDecodeError):
            raise DataError(f"{file} is no result of a study", "delete it") from None
