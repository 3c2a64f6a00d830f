"""Adam with gradient clipping and loss scaling; an update with non-finite gradients is skipped.

Nothing here waits for the device: clipping, unscaling and skipping are tensors that PyTorch's fused
Adam kernel takes, so that one update can also be captured into a CUDA graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.system.checkpoint import check_tensors
from regard.training.engine.lr_schedule import Schedule
from regard.training.engine.mixed_precision import LossScaler


def clip_divisor(norm: Tensor, max_grad_norm: float) -> Tensor:
    """What gradients are divided by, so that their norm is at most that; 0 is no clipping.

    A tensor: whether anything is clipped is not waited for.
    """
    if not max_grad_norm:
        return torch.ones_like(norm)
    return (norm / max_grad_norm).clamp_min(1.0)


@dataclass(frozen=True)
class AdamConfig:
    """Hyperparameters of Adam; `kind` "adamw" decouples the weight decay. Defaults: Section 5.3."""

    kind: str = "adam"
    betas: tuple[float, float] = (0.9, 0.98)  # β₁, β₂
    eps: float = 1e-9  # ε
    weight_decay: float = 0.0


class Optimizer:
    """Adam or AdamW, driven by a learning-rate schedule.

    `max_grad_norm` clips the gradient norm (0: no clipping). `lr_multipliers` scale the learning
    rate of single parameters, by name (layer-wise learning-rate decay). `total_norm` is the norm of
    gradients by name, where ranks hold parts of them.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        schedule: Schedule,
        config: AdamConfig | None = None,
        *,
        max_grad_norm: float = 0.0,
        loss_scaling: bool = False,
        lr_multipliers: Mapping[str, float] | None = None,
        total_norm: Callable[[Mapping[str, Tensor]], Tensor] | None = None,
    ) -> None:
        self.total_norm = total_norm or _total_norm
        self.named = [(name, p) for name, p in parameters if p.requires_grad]
        self.schedule = schedule
        self.max_grad_norm = max_grad_norm
        device = self.named[0][1].device
        self.scaler = LossScaler(loss_scaling, device)
        config = config or AdamConfig()

        # One parameter group for each weight decay and learning-rate multiplier. Norms, biases and
        # other vectors are not decayed.
        groups: dict[tuple[bool, float], list[nn.Parameter]] = defaultdict(list)
        multipliers = lr_multipliers or {}
        for name, parameter in self.named:
            is_vector = parameter.ndim <= 1
            groups[is_vector, multipliers.get(name, 1.0)].append(parameter)

        # Learning rates are tensors on the device: a captured CUDA graph reads them anew each step.
        self.learning_rates: list[tuple[Tensor, float]] = []
        param_groups = []
        for is_vector, multiplier in sorted(groups):
            learning_rate = torch.zeros((), device=device)
            self.learning_rates.append((learning_rate, multiplier))
            param_groups.append(
                {
                    "params": groups[is_vector, multiplier],
                    "weight_decay": 0.0 if is_vector else config.weight_decay,
                    "lr": learning_rate,
                }
            )
        make = torch.optim.AdamW if config.kind == "adamw" else torch.optim.Adam
        self.adam = make(
            param_groups,
            lr=self.learning_rates[0][0],
            betas=config.betas,
            eps=config.eps,
            fused=True,
            capturable=device.type == "cuda",  # its step counter is a tensor on the device, too
        )

    def set_learning_rate(self, step: int) -> None:
        """Sets the learning rate of the update to come."""
        for learning_rate, multiplier in self.learning_rates:
            learning_rate.fill_(self.schedule(step) * multiplier)

    def update(self, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Applies the gradients, clipped; returns the gradient norm, and 1.0 if it was skipped.

        Both stay on the device. The norm is that of the unscaled gradient before clipping.
        """
        # A parameter that took no part in the step has no gradient.
        gradients = {name: p.grad for name, p in self.named if p.grad is not None}
        norm = self.total_norm(gradients) / self.scaler.scale
        skipped = (~(norm.isfinite() & loss.isfinite())).float()
        divisor = clip_divisor(norm, self.max_grad_norm)
        # The fused kernel divides gradients by `grad_scale`, and does nothing if `found_inf` is 1.
        grad_scale = torch.where(skipped.bool(), 1.0, self.scaler.scale * divisor)
        self.adam.grad_scale = grad_scale  # type: ignore[attr-defined]
        self.adam.found_inf = skipped  # type: ignore[attr-defined]
        self.adam.step()
        # None, not zero: the next backward allocates, inside a graph from its own pool.
        self.adam.zero_grad(set_to_none=True)
        self.scaler.update(skipped)
        return norm, skipped

    def state(self) -> dict[str, Tensor]:
        """Everything the next update depends on, by name."""
        tensors = {"scale": self.scaler.scale, "streak": self.scaler.streak}
        for name, parameter in self.named:
            for key, value in self.adam.state[parameter].items():
                tensors[f"{key}/{name}"] = value
        return tensors

    def load(self, tensors: dict[str, Tensor]) -> None:
        check_tensors(tensors, {"scale": self.scaler.scale, "streak": self.scaler.streak})
        self.scaler.scale.copy_(tensors["scale"])
        self.scaler.streak.copy_(tensors["streak"])
        for name, parameter in self.named:
            if f"step/{name}" not in tensors:
                self.adam.state.pop(parameter, None)  # it had no gradient yet
                continue
            moments = (f"exp_avg/{name}", f"exp_avg_sq/{name}")
            check_tensors(tensors, dict.fromkeys(moments, parameter))
            self.adam.state[parameter] = {
                "step": tensors[f"step/{name}"].reshape(()).to(parameter.device, torch.float32),
                # The fused kernel goes through memory, so that averages need the parameter's
                # strides: files hold some matrices transposed (GPT-2).
                "exp_avg": torch.empty_like(parameter).copy_(tensors[f"exp_avg/{name}"]),
                "exp_avg_sq": torch.empty_like(parameter).copy_(tensors[f"exp_avg_sq/{name}"]),
            }


def _total_norm(gradients: Mapping[str, Tensor]) -> Tensor:
    return torch.nn.utils.get_total_norm(list(gradients.values()))
