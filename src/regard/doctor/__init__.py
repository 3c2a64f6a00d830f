"""The doctor: examines an installation, or a run and its data, and names what is wrong."""

from regard.doctor.examination import Report, examine

__all__ = ["Report", "examine"]
