"""What a page is made of: module summaries, and the parameter counts of a model by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from regard import spec
from regard.builder import outline


@dataclass(frozen=True)
class ModuleSummary:
    """The summary of one module: a line of the page, with its submodules indented below it.

    `times` is how often the module is applied in one forward pass, `copies` how many such
    modules with parameters of their own there are. They differ where layers share parameters.
    """

    name: str
    text: str = ""
    shape: str = ""
    own_parameters: int = 0  # those that no child accounts for
    children: tuple[ModuleSummary, ...] = ()
    times: int = 1
    copies: int = 1

    @property
    def parameters_per_copy(self) -> int:
        """The number of parameters of a single copy."""
        return self.own_parameters + sum(child.parameters for child in self.children)

    @property
    def parameters(self) -> int:
        """The number of parameters of all copies together."""
        return self.copies * self.parameters_per_copy


class ParameterCounts:
    """The sizes of a model's trainable parameters under their state-dict names.

    Parameters that several modules share have only the first of their names, so that sums
    over different modules never count one twice.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = dict(sizes)

    @classmethod
    def of(cls, model: spec.Model) -> ParameterCounts:
        """Counts the parameters of the model on the meta device, without memory for them."""
        parameters = outline(model).named_parameters()
        return cls({name: p.numel() for name, p in parameters if p.requires_grad})

    @property
    def total(self) -> int:
        return sum(self._sizes.values())

    def under(self, module: str) -> ParameterCounts:
        """The counts of a submodule, such as `blocks.0.attention`, with names relative to it."""
        prefix = module + "."
        inside = {n.removeprefix(prefix): k for n, k in self._sizes.items() if n.startswith(prefix)}
        return ParameterCounts(inside)

    def __getitem__(self, name: str) -> int:
        """The size of a parameter, or of all parameters of a submodule; 0 where there is none."""
        return self._sizes.get(name, 0) + self.under(name).total

    def __repr__(self) -> str:
        return f"ParameterCounts({len(self._sizes)} tensors, {self.total:,} parameters)"
