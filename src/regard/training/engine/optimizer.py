"""One update: unscale, clip, skip if anything is not finite, Adam. Nothing here waits for the device."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from regard.training.engine.lr_schedule import Schedule


class Optimizer:
    """Adam with what surrounds it. The fused kernel takes the factor and the skip as tensors on the device.

    `rates`: the share of the learning rate that a parameter gets, by its name; the whole of it unless said.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        schedule: Schedule,
        *,
        kind: str = "adam",
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-9,
        weight_decay: float = 0.0,
        clip: float = 0.0,
        loss_scaling: bool = False,
        rates: Mapping[str, float] | None = None,
    ) -> None:
        self.named = [(name, p) for name, p in parameters if p.requires_grad]
        self.schedule = schedule
        self.clip = clip
        device = self.named[0][1].device
        make = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
        on_gpu = device.type == "cuda"
        # Norms, biases and other vectors are not decayed; matrices are.
        groups: dict[tuple[bool, float], list[nn.Parameter]] = defaultdict(list)
        for name, p in self.named:
            groups[p.ndim <= 1, (rates or {}).get(name, 1.0)].append(p)
        order = sorted(groups)
        self.rates = [(torch.zeros((), device=device), share) for _, share in order]
        self.adam = make(
            [
                {"params": groups[key], "weight_decay": 0.0 if key[0] else weight_decay}
                for key in order
            ],
            lr=self.rates[0][0],
            betas=betas,
            eps=eps,
            fused=True,
            capturable=on_gpu,
        )
        for group, (rate, _) in zip(self.adam.param_groups, self.rates, strict=True):
            group["lr"] = rate
        self.scale = torch.tensor(65536.0 if loss_scaling else 1.0, device=device)
        self.streak = torch.zeros((), device=device)  # good steps since the loss scale last changed
        self.loss_scaling = loss_scaling

    def prepare(self, step: int) -> None:
        """Sets what the next update takes from the host."""
        for rate, share in self.rates:
            rate.fill_(self.schedule(step) * share)

    def update(self, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Applies the gradients; returns the gradient norm and whether the update was skipped (1.0), both on the device."""
        gradients = [p.grad for _, p in self.named if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients) / self.scale
        skipped = (~(norm.isfinite() & loss.isfinite())).float()
        shrink = (norm / self.clip).clamp_min(1.0) if self.clip else torch.ones_like(norm)
        self.adam.grad_scale = torch.where(skipped.bool(), 1.0, self.scale * shrink)  # type: ignore[attr-defined]
        self.adam.found_inf = skipped  # type: ignore[attr-defined]
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        if self.loss_scaling:
            self._rescale(skipped)
        return norm, skipped

    def _rescale(self, skipped: Tensor) -> None:
        """Halve after an overflow, double after 2,000 good steps in a row (Micikevicius et al. 2018)."""
        streak = (self.streak + 1) * (1 - skipped)
        grow = streak >= 2000
        self.scale.mul_(torch.where(skipped.bool(), 0.5, torch.where(grow, 2.0, 1.0)))
        self.streak.copy_(streak.masked_fill(grow, 0.0))

    def state(self) -> dict[str, Tensor]:
        """Everything the next update depends on, by name."""
        tensors = {"scale": self.scale, "streak": self.streak}
        for name, parameter in self.named:
            for key, value in self.adam.state[parameter].items():
                tensors[f"{key}/{name}"] = value
        return tensors

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.scale.copy_(tensors["scale"])
        self.streak.copy_(tensors["streak"])
        for name, parameter in self.named:
            keys = ("step", "exp_avg", "exp_avg_sq")
            if f"step/{name}" in tensors:
                self.adam.state[parameter] = {
                    key: tensors[f"{key}/{name}"].to(parameter.device) for key in keys
                }


def perplexity(nll: float, tokens: int) -> float:
    """exp of the mean unsmoothed −log p, infinity rather than an overflow."""
    mean = nll / max(1, tokens)
    return math.exp(mean) if mean < 700 else math.inf
