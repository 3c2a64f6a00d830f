"""Where weights lie: views of the file on a CPU, rows of adjacent numbers elsewhere."""

from __future__ import annotations

from pathlib import Path

import torch

import regard
import zoo
from regard.core.linear import Linear
from regard.core.stack import Stack
from regard.decode import fused_step
from regard.models.saving import place


def opened_gpt2(folder: Path) -> tuple[regard.LanguageModel, Stack]:
    """GPT-2's files have the weights of linear maps transposed."""
    zoo.save("gpt2", folder)
    model = regard.load(folder, regard.LanguageModel, device="cpu")
    stack = model.model.stacks()["decoder"]
    assert isinstance(stack, Stack)
    return model, stack


def test_weights_that_leave_the_cpu_are_stored_in_rows(tmp_path: Path) -> None:
    model, stack = opened_gpt2(tmp_path)
    assert not all(parameter.is_contiguous() for parameter in stack.parameters())
    # Shapes and strides without memory, as a GPU would have them.
    place(model.model, torch.device("meta"))
    assert all(parameter.is_contiguous() for parameter in model.model.parameters())


def test_kernels_that_read_rows_take_no_other_weights(tmp_path: Path) -> None:
    _, stack = opened_gpt2(tmp_path)
    linears = [part for part in stack.modules() if isinstance(part, Linear)]
    assert not any(map(fused_step._is_plain, linears))
    for part in linears:
        part.weight.data = part.weight.data.contiguous()
    assert all(map(fused_step._is_plain, linears))
