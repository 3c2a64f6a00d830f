"""What every model that a user holds has in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from regard import spec as kinds
from regard.errors import SettingError

if TYPE_CHECKING:
    from regard.look import Look, Subject


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

    def look(
        self,
        text: str | Tensor,
        *,
        target: str | None = None,
        ask: Sequence[str] = ("*.weights",),
        off: Sequence[tuple[str, int]] = (),
    ) -> Look:
        """One run with named probes (`encoder.3.self.weights`, `decoder.2.residual`, `logits`, with * and ?); see
        `regard.look`."""
        from regard.look import look

        return look(self.subject(), text, target=target, ask=ask, off=off)

    def subject(self) -> Subject:
        """What the analyses of `regard.look` need of this model; kinds that read text say here how."""
        from regard.look import Subject

        return Subject(self.model)  # type: ignore[arg-type]


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU if there is one."""
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except RuntimeError:
        raise SettingError(f"there is no device {name!r}", "auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SettingError(f"PyTorch finds no GPU for {name!r} here", "use cpu or auto")
    return device
