"""Studies: claims of the literature as experiments, each with figures and a verdict.

    result = regard.study.run("scaling", quick=True)    # a notebook shows claim, figures, verdict
    result.verdict.outcome, result.numbers, result.to_html("scaling.html")

To add one: a subclass of `Study` in the file of its subject, and its line in `listing.TOPICS`. Its
docstring is the claim and how it is measured, that of `verdict` the rule. `measure` returns plain
JSON values, separately for each seed; `verdict` and `show` are pure functions of them, so that a
stored result can be shown again, and tests give each rule results that confirm the claim, refute
it, or do not tell (`VERDICTS` in tests/study/TOPIC_verdicts.py).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.lab.study.report import StudyResult
    from regard.lab.study.runner import run, run_all

__all__ = ["StudyResult", "run", "run_all"]

_PLACES = {"StudyResult": "report", "run": "runner", "run_all": "runner"}

if not TYPE_CHECKING:
    # As in `regard`: listing the studies does not wait for torch.
    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'regard.lab.study' has no attribute {name!r}")
        return getattr(importlib.import_module(f"regard.lab.study.{_PLACES[name]}"), name)
