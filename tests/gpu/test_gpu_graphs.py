"""CUDA graphs that are captured while others are garbage."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from regard.core.cuda_graph import capture

pytestmark = pytest.mark.gpu


def captured_sum(x: torch.Tensor) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        x.add_(1)
    return graph


def test_garbage_with_graphs_does_not_disturb_a_capture() -> None:
    """As a second training in one process: the graphs of the first are garbage in cycles."""
    x = torch.zeros(4, device="cuda")
    x.add_(1)  # warm
    threshold = gc.get_threshold()
    gc.collect()
    gc.set_threshold(5_000, 1, 1)  # none before the capture, one inside of it
    for _ in range(3):
        cycle: list[Any] = [captured_sum(x)]
        cycle.append(cycle)
        del cycle
    graph = torch.cuda.CUDAGraph()
    x.zero_()
    try:
        with capture(graph):
            objects = [[number] for number in range(10_000)]
            x.add_(2)
    finally:
        gc.set_threshold(*threshold)
    graph.replay()
    assert len(objects) == 10_000
    assert x.tolist() == [2.0] * 4
