"""The main outputs of a model for a random batch, under Hugging Face's names."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from regard.core.output import OutputOptions, Outputs
from regard.lab.verify.random_inputs import RandomBatch
from regard.wirings.core_model import CoreModel


@torch.inference_mode()
def run(model: CoreModel, batch: RandomBatch) -> Outputs:
    """The main outputs of a model for a batch, without gradients."""
    return forward(model, batch.like(model).inputs)


def forward(model: CoreModel, inputs: Mapping[str, Tensor]) -> Outputs:
    """The main outputs of a model, without losses and what is drawn at random."""
    outputs = model.outputs(inputs, OutputOptions())
    return {name: output for name, output in outputs.items() if not output.aside}


def rounding_errors(model: CoreModel, batch: RandomBatch) -> dict[str, float]:
    """How far each output in float32 is from that in float64.

    The float32 of another library cannot be expected to come closer to ours than that.
    """
    single = run(model, batch)
    double = run(model.double(), batch)
    model.float()
    errors = {}
    for name in single:
        difference = single[name].without_padding - double[name].without_padding
        errors[name] = difference.abs().max().item()
    return errors
