"""What is traced once computes every length: that of the example is no constant of the graph.

Tracing alone is quick. The slow tests of `test_convert` go on to ONNX with every family.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from regard import spec
from regard.builder import build
from regard.core.context import Context
from regard.core.mixers import scaled_dot_product_attention
from regard.families import folder as folders
from regard.families.decoders import gpt2
from regard.lab.convert import onnx
from regard.lab.verify.invariants import with_kernel
from regard.system.errors import ModelError
from regard.wirings.core_model import Function

TERMS: list[tuple[spec.StackPosition, spec.MaskPattern]] = [
    (spec.T5Bias(6, 9), spec.FullMask()),
    (spec.T5Bias(6, 9), spec.WindowMask(2)),
    (spec.Alibi(), spec.CausalMask()),
]


@pytest.mark.parametrize(("position", "pattern"), TERMS)
def test_a_stack_is_traced_for_any_length(
    position: spec.StackPosition, pattern: spec.MaskPattern
) -> None:
    block = spec.Block(spec.Attention(2, 4, 4), spec.FeedForward(6))
    model = build(
        spec.Encoder(8, spec.Tokens(20, None), spec.Stack.of(1, block, pattern, position))
    ).eval()
    function = Function(model, lambda model, tokens: (model(tokens)[0],)).eval()
    with torch.no_grad(), with_kernel(model, scaled_dot_product_attention.explicit):
        example = torch.randint(20, (2, 7))
        axes = {"inputs": ({1: torch.export.Dim("length")},)}
        program = torch.export.export(function, (example,), dynamic_shapes=axes).module()
        for other in (5, 12):
            tokens = torch.randint(20, (2, other))
            torch.testing.assert_close(program(tokens), function(tokens), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_graph_of_one_length_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter makes one without a word where the length is taken for a number."""
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    model_spec = gpt2.preset("tiny", 30, 16, d_model=8, heads=2, layers=1)
    opened = folders.ModelFolder(model_spec, {}, None, folders.describe(model_spec, None))
    axes = Context.axes

    def fixed(self: Context, x: torch.Tensor, layer: int) -> Any:
        return axes(self, x.new_empty(x.shape[0], int(x.shape[1]), 0), layer)

    monkeypatch.setattr(Context, "axes", fixed)
    with pytest.raises(ModelError, match="supports one size of"):
        onnx.write(tmp_path, build(model_spec), opened)
    assert not list(tmp_path.iterdir())
