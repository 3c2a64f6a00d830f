"""The loss as a module: its forward pass is all that a training step differentiates."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn


class LossModule(nn.Module):
    """A model with its loss: the tensors of a batch → the loss and −log p.

    DDP and FSDP2 prepare parameters and gradients around the forward pass of one module, while
    losses call the heads and towers of a model by themselves.
    """

    def __init__(
        self, model: nn.Module, loss: Callable[[Mapping[str, Tensor]], tuple[Tensor, Tensor]]
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.loss(tensors)
