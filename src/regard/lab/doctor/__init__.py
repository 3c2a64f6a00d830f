"""The doctor: examines an installation, or a run and its data, and names what is wrong."""

from __future__ import annotations

from regard.lab.doctor.examination import Report, examine
from regard.training.diagnostics.finding import Finding

__all__ = ["Finding", "Report", "examine"]
