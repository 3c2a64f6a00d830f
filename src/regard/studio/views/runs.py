"""Views of runs: settings, status and metrics while they train."""

from __future__ import annotations

from regard.studio.metrics_tail import follow
from regard.studio.model_store import ModelStore
from regard.studio.requests import (
    MetricsRequest,
    RunRequest,
)
from regard.studio.run_status import run_status
from regard.studio.views.packed import Answer


def run(store: ModelStore, request: RunRequest) -> Answer:
    """The settings and the status of a run."""
    return run_status(store.run(request.run).parent)


def metrics(store: ModelStore, request: MetricsRequest) -> Answer:
    return follow(store.run(request.run), request.offset)
