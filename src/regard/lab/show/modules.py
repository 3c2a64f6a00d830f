"""The modules of a model from top to bottom, as they are built: what each is, and its parameters.

The model is on the meta device: one of 540 billion parameters takes no memory and is described at
once. Its modules say what they are by `extra_repr` and the first sentence of their docstrings.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from regard import spec
from regard.builder import make_fake, outline
from regard.core.dropout import Dropout, DropPath
from regard.core.output import OutputOptions
from regard.lab.verify.random_inputs import ROWS, random_batch
from regard.wirings.core_model import CoreModel

Shapes = Mapping[nn.Module, str]


@dataclass(frozen=True)
class ModuleSummary:
    """One module, or several equal ones, with those inside it.

    `times` is how many equal modules there are, `copies` how many of them have parameters of their
    own: layers may share theirs.
    """

    name: str
    kind: str  # its class
    text: str  # its settings
    meaning: str  # what its class is
    shape: str = field(compare=False)  # of its output
    own_parameters: int  # those of no child
    children: tuple[ModuleSummary, ...]
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


def summarize(model: spec.Model, *, with_shapes: bool = False) -> tuple[ModuleSummary, ...]:
    """The modules of a model; their parameters add up to those of the model."""
    core = outline(model)
    shapes = output_shapes(core, model) if with_shapes else {}
    root = _Walk(core, shapes).summary(type(core).__name__, "", core)
    if not root.own_parameters:
        return root.children
    # What belongs to the whole model, such as the scale of CLIP's cosines, stands below its parts.
    return (*root.children, replace(root, children=()))


def output_shapes(core: CoreModel, model: spec.Model) -> Shapes:
    """What the modules of a model on the meta device return for a random batch.

    B stands for its rows, T for the positions of its main input, and U for those of another text,
    such as a decoder's, where they are others. The model is moved to fake tensors.
    """
    batch = random_batch(model)
    texts = reversed(model.vocabularies)
    letters = {batch.inputs[name].shape[1]: "T" if name == batch.main else "U" for name in texts}
    shapes: dict[nn.Module, str] = {}

    def record(module: nn.Module, _: Any, output: Any) -> None:
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor):
                sizes = [letters.get(size, f"{size:,}") for size in tensor.shape]
                if tensor.ndim and len(tensor) == ROWS:
                    sizes[0] = "B"
                shapes.setdefault(module, f"[{', '.join(sizes)}]")
                return

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    make_fake(core.eval(), fake)
    hooks = [module.register_forward_hook(record) for module in core.modules()]
    # A mixture of experts asks which tokens there are: what comes after it has no shape.
    with contextlib.suppress(RuntimeError), fake, torch.no_grad():
        core.outputs(batch.inputs, OutputOptions())
    for hook in hooks:
        hook.remove()
    return shapes


class _Walk:
    """A walk through the modules of a model, which counts each parameter once."""

    def __init__(self, core: nn.Module, shapes: Shapes) -> None:
        self.shapes = shapes
        # Where each trainable parameter counts: of the modules that share it in the outermost.
        self.owners: dict[nn.Parameter, str] = {}
        for path, module in core.named_modules(remove_duplicate=False):
            for parameter in module.parameters(recurse=False):
                owner = self.owners.get(parameter)
                if parameter.requires_grad and (
                    owner is None or path.count(".") < owner.count(".")
                ):
                    self.owners[parameter] = path

    def children(self, path: str, parent: nn.Module) -> tuple[ModuleSummary, ...]:
        summaries: list[ModuleSummary] = []
        for name, module in parent.named_children():
            inner = f"{path}.{name}" if path else name
            if isinstance(module, nn.ModuleList | nn.ModuleDict):
                summaries += self._equal_ones(inner, module)
            elif isinstance(module, DropPath) or (isinstance(module, Dropout) and not module.rate):
                continue  # DropPath's rate differs in layers that are equal otherwise
            else:
                summaries.append(self.summary(name, inner, module))
        return tuple(summaries)

    def _equal_ones(
        self, path: str, modules: nn.ModuleList | nn.ModuleDict
    ) -> Iterator[ModuleSummary]:
        """Equal modules of a list as one summary, in the order of their first occurrence."""
        groups: dict[ModuleSummary, list[nn.Module]] = {}
        # Not `children()`, which names a module that stands there twice only once.
        for index, module in modules._modules.items():
            assert module is not None
            same = next((group for group in groups.values() if module in group), None)
            if same is None:
                name = path.rpartition(".")[2]
                summary = self.summary(name, f"{path}.{index}", module)
                same = groups.setdefault(summary, [])
            same.append(module)
        for summary, group in groups.items():
            yield replace(summary, times=len(group), copies=len(set(group)))

    def summary(self, name: str, path: str, module: nn.Module) -> ModuleSummary:
        text = module.extra_repr()
        if isinstance(module, nn.ParameterList):  # whose own text is long
            text = f"{len(module)} tensors"
        count = 0
        for parameter in module.parameters(recurse=False):
            owner = self.owners.get(parameter)
            if owner == path:
                count += parameter.numel()
            elif owner is not None:
                text += f", shared with {owner}"
        children = self.children(path, module)
        kind = type(module)
        shape = self.shapes.get(module, "")
        return ModuleSummary(
            name, kind.__name__, text.removeprefix(", "), _meaning(kind), shape, count, children
        )


def architecture(model: spec.Model) -> tuple[str, str]:
    """The class of a model, and what it is."""
    kind = type(outline(model))
    return kind.__name__, _meaning(kind)


def _meaning(kind: type[nn.Module]) -> str:
    """The first sentence of the docstring of a class."""
    text = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
    return re.split(r"\. (?=[A-Z`])", text)[0].removesuffix(".")


def meanings(modules: tuple[ModuleSummary, ...]) -> dict[str, str]:
    """What each class in the summaries is, once, in the order of the page."""
    kinds: dict[str, str] = {}
    for module in modules:
        if module.meaning:
            kinds.setdefault(module.kind, module.meaning)
        for kind, text in meanings(module.children).items():
            kinds.setdefault(kind, text)
    return kinds
