"""What every model that a user holds has in common."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import nn

from regard import edit
from regard import spec as kinds
from regard.errors import SettingError


class Output(dict[str, Any]):
    """Tensors by name, as attributes too: `out.logits` is `out["logits"]`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"this output has {', '.join(self)}, and no {name}") from None


class Held:
    """A model with its description and the config.json it came with; made by `regard.load`.

    Called with Hugging Face's argument names it returns the same main tensors under the same names.
    """

    def __init__(self, model: nn.Module, description: kinds.Model, config: dict[str, Any] | None = None) -> None:
        self.model = model
        self.spec = description
        self.config = config or {}

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def to(self, device: str | torch.device) -> Self:
        self.model.to(device)
        return self

    def freeze(self, precision: str | None = None) -> Self:
        """Ready to be used only: on a CPU the weights are packed for speed, as float32 unless `int8` or `bf16` is asked for.
        A frozen model cannot be trained or saved."""
        if self.device.type == "cpu":
            edit.freeze(self.model, precision or "float32")
        elif precision:
            raise SettingError(f"{precision} weights are for CPUs", "leave it out on a GPU, or choose the device cpu")
        return self


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU if there is one."""
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except RuntimeError:
        raise SettingError(f"there is no device {name!r}", "auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SettingError(f"PyTorch finds no GPU for {name!r} here", "use cpu or auto")
    return device
