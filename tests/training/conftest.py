"""Callbacks that end a run at a chosen step, for the tests of resuming."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from regard.training.engine.loop import Loop

OnStep = Callable[[Loop], None]


@pytest.fixture
def stop_at() -> Callable[[int], OnStep]:
    """`on_step=stop_at(5)`: the run is stopped after step 5 as by SIGTERM, with its state saved."""

    def make(step: int) -> OnStep:
        def on_step(loop: Loop) -> None:
            if loop.progress.step == step:
                loop.request_stop(signal.SIGTERM)

        return on_step

    return make


@pytest.fixture
def crash_at() -> Callable[[int], OnStep]:
    """`on_step=crash_at(5)`: the run ends after step 5 without saving, as in a crash."""

    def make(step: int) -> OnStep:
        def on_step(loop: Loop) -> None:
            if loop.progress.step == step:
                raise KeyboardInterrupt

        return on_step

    return make
