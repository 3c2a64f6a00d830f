"""Models without memory for their parameters: the same names, shapes and buffers."""

from __future__ import annotations

import torch

from regard.builder import build
from regard.core.meta_parameters import are_parameters_on_meta, parameters_on_meta
from regard.families.presets import preset


def test_parameters_have_no_memory_and_buffers_keep_their_values() -> None:
    for name in ("t5:tiny", "llama:tiny", "albert:tiny"):
        description = preset(name, 50, 16)
        torch.manual_seed(0)
        expected = build(description)
        with parameters_on_meta():
            assert are_parameters_on_meta()
            model = build(description)
        assert not are_parameters_on_meta()
        shapes = {key: value.shape for key, value in expected.named_parameters()}
        assert {key: value.shape for key, value in model.named_parameters()} == shapes
        assert all(parameter.is_meta for parameter in model.parameters())
        buffers = dict(expected.named_buffers())
        for key, buffer in model.named_buffers():
            assert torch.equal(buffer, buffers[key]), key
    # Outside of the block everything is as before.
    torch.manual_seed(0)
    again = build(description)
    for key, parameter in again.named_parameters():
        assert torch.equal(parameter, dict(expected.named_parameters())[key])
