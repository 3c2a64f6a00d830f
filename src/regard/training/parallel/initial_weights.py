"""Initial weights of a sharded model: drawn by the main rank, received one tensor at a time.

No device holds the whole model, and of the hosts only that of the main rank: the other ranks build
it on the meta device. The values are those that one process draws from the same seed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regard.core.meta_parameters import meta_parameter
from regard.system.checkpoint_shards import Layout
from regard.training.parallel.ranks import Ranks


class InitialWeights:
    """The parameters of a model, taken out of it; `materialize` puts parts of them back.

    Every rank has to ask for the same ones in the same order.
    """

    def __init__(self, model: nn.Module, ranks: Ranks, device: torch.device) -> None:
        self.model = model
        self.ranks = ranks
        self.device = device
        self._values: dict[str, Tensor] = {}  # on the main rank
        if ranks.is_main:
            self._values = {name: p.detach() for name, p in model.named_parameters()}
        # One for each parameter that several modules share (weight tying).
        replaced: dict[int, nn.Parameter] = {}
        for module in model.modules():
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    on_meta = replaced.setdefault(id(parameter), meta_parameter(parameter))
                    module._parameters[key] = on_meta

    def materialize(
        self, part: nn.Module, layouts: Mapping[str, Layout] | None = None, rank: int = 0
    ) -> None:
        """Gives a part of the model its values; of what has a layout, the part of this rank."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        received: dict[int, nn.Parameter] = {}
        for module in part.modules():
            for key, parameter in module._parameters.items():
                if parameter is None or not parameter.is_meta:
                    continue
                if id(parameter) not in received:
                    name = names[id(parameter)]
                    layout = (layouts or {}).get(name)
                    value = self._received(name, parameter, layout, rank)
                    received[id(parameter)] = nn.Parameter(value, parameter.requires_grad)
                module._parameters[key] = received[id(parameter)]

    def _received(
        self, name: str, parameter: nn.Parameter, layout: Layout | None, rank: int
    ) -> Tensor:
        if self.ranks.is_main:
            # Files hold some matrices transposed (GPT-2); collective operations take none of these.
            full = self._values.pop(name).to(self.device).contiguous()
        else:
            shape = parameter.shape if layout is None else torch.Size(layout.shape)
            full = torch.empty(shape, dtype=parameter.dtype, device=self.device)
        dist.broadcast(full, 0)
        if layout is None:
            return full
        return layout.part(full, rank)


def move_buffers(model: nn.Module, device: torch.device) -> None:
    """Puts buffers on a device; parameters stay where they are."""
    for module in model.modules():
        for key, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[key] = buffer.to(device)
