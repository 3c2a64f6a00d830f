"""Captures are not disturbed by the garbage collector; tests/gpu has what happens otherwise."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from regard.core.cuda_graph import capture


@pytest.fixture(autouse=True)
def _without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **options: nullcontext())


GRAPH: Any = object()


def test_no_garbage_is_collected_during_a_capture() -> None:
    assert gc.isenabled()
    with capture(GRAPH):
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_inside_leaves_the_collector_as_it_was() -> None:
    with pytest.raises(ValueError, match="inside"), capture(GRAPH):
        raise ValueError("inside")
    assert gc.isenabled()
    gc.disable()
    try:
        with capture(GRAPH):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
