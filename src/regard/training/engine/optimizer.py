"""Adam, or Muon, with gradient clipping and loss scaling; a non-finite gradient skips the update.

Nothing here waits for the device: clipping, unscaling and skipping are tensors that PyTorch's fused
Adam kernel takes, so that one update can also be captured into a CUDA graph.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from regard.core.amx import require_bfloat16_products
from regard.system.checkpoint import check_tensors
from regard.system.errors import SettingError
from regard.training.engine.muon import Muon, maps_of
from regard.training.parallel.strategy import Strategy
from regard.training.recipe.schema import Recipe


@dataclass(frozen=True)
class AdamConfig:
    """Hyperparameters of Adam; `kind` "adamw" decouples the weight decay. Defaults: Section 5.3.

    "muon" is AdamW for what Muon does not update.
    """

    kind: str = "adam"
    betas: tuple[float, float] = (0.9, 0.98)  # β₁, β₂
    eps: float = 1e-9  # ε
    weight_decay: float = 0.0


class Optimizer:
    """Adam, AdamW or Muon, driven by a learning-rate schedule.

    `max_grad_norm` clips the gradient norm (0: no clipping). `lr_multipliers` scale the learning
    rate of single parameters, by name (layer-wise learning-rate decay). `total_norm` is the norm of
    gradients by name, where ranks hold parts of them. `matrices` are those that Muon updates, by
    name, with the widths of the maps in each.
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
        matrices: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.total_norm = total_norm or (lambda each: get_total_norm(list(each.values())))
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
        by_muon = {name: p for name, p in self.named if name in (matrices or {})}
        self.muon = Muon(by_muon, matrices or {}, config.weight_decay)
        for name, parameter in self.named:
            if name in by_muon:
                continue
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
        # Each matrix of Muon has a learning rate of its own, for it may have a multiplier.
        self.muon_rates = {name: torch.zeros((), device=device) for name in by_muon}
        for name, learning_rate in self.muon_rates.items():
            self.learning_rates.append((learning_rate, multipliers.get(name, 1.0)))
        make = torch.optim.Adam if config.kind == "adam" else torch.optim.AdamW
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
        divisor = torch.ones_like(norm)
        if self.max_grad_norm:
            # A tensor: whether anything is clipped is not waited for.
            divisor = (norm / self.max_grad_norm).clamp_min(1.0)
        # The fused kernel divides gradients by `grad_scale`, and does nothing if `found_inf` is 1.
        grad_scale = torch.where(skipped.bool(), 1.0, self.scaler.scale * divisor)
        self.adam.grad_scale = grad_scale  # type: ignore[attr-defined]
        self.adam.found_inf = skipped  # type: ignore[attr-defined]
        self.adam.step()
        self.muon.step(self.muon_rates, grad_scale, skipped)
        # None, not zero: the next backward allocates, inside a graph from its own pool.
        for _, parameter in self.named:
            parameter.grad = None
        self.scaler.update(skipped)
        return norm, skipped

    def state(self) -> dict[str, Tensor]:
        """Everything the next update depends on, by name."""
        tensors = {"scale": self.scaler.scale, "streak": self.scaler.streak}
        for name, parameter in self.named:
            for key, value in self.adam.state[parameter].items():
                tensors[f"{key}/{name}"] = value
        return tensors | {f"momentum/{name}": m for name, m in self.muon.momentum.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        check_tensors(tensors, {"scale": self.scaler.scale, "streak": self.scaler.streak})
        self.scaler.scale.copy_(tensors["scale"])
        self.scaler.streak.copy_(tensors["streak"])
        for name, parameter in self.named:
            if f"momentum/{name}" in tensors:
                check_tensors(tensors, {f"momentum/{name}": parameter})
                momentum = torch.empty_like(parameter).copy_(tensors[f"momentum/{name}"])
                self.muon.momentum[name] = momentum
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


def make_optimizer(strategy: Strategy) -> Optimizer:
    objective = strategy.objective
    recipe = objective.setup.recipe
    train = recipe.train
    lr_multipliers = None  # one learning rate for all parameters
    if recipe.is_finetuning:
        lr_multipliers = layer_multipliers(objective.model, recipe.tune.layer_decay)
    return Optimizer(
        strategy.parameters.items(),
        lr_schedule(recipe, objective.d_model),
        AdamConfig(train.optimizer, train.betas, train.adam_eps, train.weight_decay),
        max_grad_norm=train.max_grad_norm,
        loss_scaling=train.precision == "fp16",  # bf16 has the exponents of float32
        lr_multipliers=lr_multipliers,
        total_norm=strategy.total_norm,
        matrices=maps_of(objective.model) if train.optimizer == "muon" else None,
    )


# --- learning-rate schedules: the rate as a function of the step, counted from 1 ------------------


@dataclass(frozen=True)
class InverseSquareRoot:
    """Equation 3 of the paper: factor · d_model^-½ · min(step^-½, step · warmup^-1½)."""

    d_model: int
    warmup: int = 4000  # steps, Section 5.3
    factor: float = 1.0

    @classmethod
    def with_peak(cls, peak: float, warmup: int) -> InverseSquareRoot:
        """The same curve, scaled to reach `peak` at the end of the warm-up."""
        # At step = warmup the minimum is warmup^-½.
        return cls(1, warmup, peak * math.sqrt(warmup))

    def __call__(self, step: int) -> float:
        return self.factor * self.d_model**-0.5 * min(step**-0.5, step * self.warmup**-1.5)


@dataclass(frozen=True)
class ConstantRate:
    """Linear warm-up, then constant."""

    peak: float
    warmup: int

    def __call__(self, step: int) -> float:
        return self.peak * min(1.0, step / max(1, self.warmup))


@dataclass(frozen=True)
class CosineDecay(ConstantRate):
    """Linear warm-up to `peak`, then half a cosine down to `floor · peak` at `steps`."""

    steps: int
    floor: float = 0.0

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return super().__call__(step)
        progress = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))  # 0 to 1
        cosine = 0.5 * (1 + math.cos(math.pi * progress))  # 1 to 0
        return self.peak * (self.floor + (1 - self.floor) * cosine)


@dataclass(frozen=True)
class LinearDecay(ConstantRate):
    """Linear warm-up, then linear decay to 0 just after `steps`: the usual one for fine-tuning."""

    steps: int

    def __call__(self, step: int) -> float:
        # + 1: the last update still learns something.
        left = max(0.0, (self.steps + 1 - step) / max(1, self.steps + 1 - self.warmup))
        return super().__call__(step) * min(1.0, left)


Schedule = InverseSquareRoot | ConstantRate


def lr_schedule(recipe: Recipe, d_model: int) -> Schedule:
    """The learning-rate schedule of a recipe."""
    train = recipe.train
    peak = train.learning_rate
    if train.schedule == "paper":  # Equation 3
        if peak:
            return InverseSquareRoot.with_peak(peak, train.warmup_steps)
        return InverseSquareRoot(d_model, train.warmup_steps)
    assert peak is not None, "checked with the recipe"
    if train.schedule == "linear":
        return LinearDecay(peak, train.warmup_steps, train.steps)
    if train.schedule == "cosine":
        return CosineDecay(peak, train.warmup_steps, train.steps, train.min_lr_ratio)
    return ConstantRate(peak, train.warmup_steps)


# --- layer-wise decay, and freezing of the lowest layers (Howard and Ruder 2018) ------------------

# `stack.blocks.3.attention.output.weight` is of block 3.
_BLOCK = re.compile(r"^(?P<stack>.*?)blocks\.(?P<number>\d+)\.")
# What the model calls its embeddings: an encoder, an encoder–decoder, a decoder.
_INPUTS = ("input.", "source.", "target.", "tokens.")


def depths(model: nn.Module) -> dict[str, int]:
    """The depth of each parameter, by name.

    0 for embeddings and for positions that all blocks share, i + 1 for block i of its stack, and
    one more than the deepest stack has for the heads on top.
    """
    names = [name for name, _ in model.named_parameters()]
    numbers = [int(match["number"]) for name in names if (match := _BLOCK.match(name))]
    top = 2 + max(numbers, default=-1)  # block n has depth n + 1, and heads are above it
    by_name = dict.fromkeys(names, top)
    for name in names:
        if block := _BLOCK.match(name):
            by_name[name] = int(block["number"]) + 1
        elif name.startswith(_INPUTS) or ".position." in name:
            by_name[name] = 0
    return by_name


def layer_multipliers(model: nn.Module, decay: float) -> dict[str, float]:
    """The factor on the learning rate of each parameter: decay^(distance from the top)."""
    by_name = depths(model)
    top = max(by_name.values())
    return {name: decay ** (top - depth) for name, depth in by_name.items()}


def freeze(model: nn.Module, blocks: int) -> None:
    """Freezes the embeddings and this many of the lowest blocks of each stack."""
    by_name = depths(model)
    available = max(by_name.values()) - 1
    if blocks > available:
        raise SettingError(
            f"{blocks} blocks cannot be frozen: there are {available}",
            f"give a number up to {available}",
        )
    for name, parameter in model.named_parameters():
        if by_name[name] <= blocks:  # depth 0: the embeddings, in any case
            parameter.requires_grad_(False)


# --- mixed precision ------------------------------------------------------------------------------

AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
INITIAL_LOSS_SCALE = 65536.0  # 2¹⁶, that of torch.amp.GradScaler
GROWTH_INTERVAL = 2000  # good steps in a row after which the loss scale doubles


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The context of a forward pass in this precision; float32 and tf32 need none."""
    if precision not in AUTOCAST_DTYPES:
        return nullcontext()
    if precision == "bf16" and device.type == "cpu":
        require_bfloat16_products()
    return torch.autocast(device.type, dtype=AUTOCAST_DTYPES[precision])


class LossScaler:
    """Dynamic loss scaling (Micikevicius et al. 2018), without waiting for the device.

    fp16 gradients underflow: the loss is multiplied by `scale` before backward, and the optimizer
    divides by it again. Disabled, the scale is 1 and stays so.
    """

    def __init__(self, enabled: bool, device: torch.device) -> None:
        self.enabled = enabled
        initial = INITIAL_LOSS_SCALE if enabled else 1.0
        self.scale = torch.tensor(initial, device=device)
        self.streak = torch.zeros((), device=device)  # good steps since the scale last changed

    def update(self, skipped: Tensor) -> None:
        """Halves the scale after an overflow, doubles it after a long streak of good steps."""
        if not self.enabled:
            return
        streak = (self.streak + 1) * (1 - skipped)
        grow = streak >= GROWTH_INTERVAL
        factor = torch.where(skipped.bool(), 0.5, torch.where(grow, 2.0, 1.0))
        self.scale.mul_(factor)
        self.streak.copy_(streak.masked_fill(grow, 0.0))
