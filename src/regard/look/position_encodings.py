"""Position encodings: the vectors or biases of positions, and how similar positions are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from regard.core.finite_outputs import non_finite_error
from regard.core.positions.position_terms import LayerPosition
from regard.core.positions.positional_encoding import (
    AxialPosition,
    FixedPosition,
    LearnedPosition,
    Sinusoidal,
    Sinusoidal2D,
    sinusoids,
)
from regard.core.positions.relative_position import (
    Alibi,
    Disentangled,
    RelativeKeys,
    RelativeScores,
    RelativeSinusoids,
    T5Bias,
)
from regard.core.positions.rotary import Rope
from regard.core.stacks.universal_transformer import UniversalStack
from regard.look import drawing
from regard.look.drawing import terminal
from regard.look.inspectable import Inspectable
from regard.look.position_sources import (
    concatenated_position,
    input_position,
    self_attentions,
    without_positions,
)
from regard.look.probe_names import stack_name
from regard.look.recording import array
from regard.look.result import AnalysisResult, Array
from regard.look.views import other_views, require_view
from regard.system.arguments import whole_number
from regard.system.errors import SettingError

# How the tables of vectors that are added to the embeddings are called.
TABLES: dict[type[nn.Module], str] = {
    Sinusoidal: "sinusoidal",
    LearnedPosition: "learned",
    FixedPosition: "fixed",
    AxialPosition: "axial",
}


@dataclass(frozen=True)
class PositionEncodings(AnalysisResult):
    """The encodings of positions and their dot products.

    Where positions are biases of the attention scores, `products` are those, as a mean over the
    heads, and there are no encodings.
    """

    what: str
    encodings: Array | None  # [positions, dimensions]
    products: Array  # [positions, positions]

    note = (
        "A band along the diagonal: nearby positions are similar. "
        "The same values along each diagonal: only the relative distance matters."
    )
    numbers = "products"

    @property
    def title(self) -> str:
        return f"positions: {self.what}"

    def scene(self) -> drawing.Scene:
        names = [str(i) for i in range(len(self.products))]
        title = f"{self.title}, inner products of all pairs"
        scenes = [drawing.heat(self.products, names, names, title=title, signed=True)]
        if self.encodings is not None:
            dimensions = [str(i) for i in range(self.encodings.shape[1])]
            scenes.append(
                drawing.heat(
                    self.encodings,
                    names,
                    dimensions,
                    title=self.title,
                    signed=True,
                    cell=(8.0, 22.0),
                )
            )
        return drawing.below(scenes)

    def lines(self, width: int = 100) -> list[str]:
        names = [str(i) for i in range(len(self.products))]
        lowest = self.products.min()
        # Shades begin at 0, but products may be negative.
        return terminal.heat(self.products - lowest, names, names, width=width)


@torch.no_grad()
def positions(
    model: Inspectable, length: int = 32, *, stack: str | None = None
) -> PositionEncodings:
    """The first `length` positions of a stack, by default the first one."""
    encodings = _encodings(model, whole_number("length", length, least=1), stack)
    if not np.isfinite(encodings.products).all():
        raise non_finite_error(model.model)
    return encodings


def _encodings(model: Inspectable, length: int, stack: str | None) -> PositionEncodings:
    core = model.model
    if stack is None:
        require_view(model, "positions")
        stack = next(iter(core.stacks()))
    name = stack_name(core, stack)
    numbers = torch.arange(length, device=model.device)
    part = core.stacks()[name]
    match input_position(core, name), part.position:
        case Sinusoidal2D() as grid, _:
            # Of the patches, row by row; the class token in front has none.
            what = f"2D sinusoidal vectors added at the input of the {name}"
            return _of_vectors(what, grid.rows(length)[:length].float())
        case Sinusoidal() | LearnedPosition() | FixedPosition() | AxialPosition() as table, _:
            kind = TABLES[type(table)]
            if not isinstance(table, Sinusoidal):
                length = min(length, table.length)  # there are no more
            vectors = table.rows(length)[:length].float()  # [T, D]
            return _of_vectors(f"{kind} vectors added at the input of the {name}", vectors)
        case None, Rope() as rope:
            # Products of these vectors are Σ cos of the angles between two positions.
            cos, sin = rope.angles(numbers)
            vectors = torch.cat([cos, sin], dim=-1)
            return _of_vectors(f"rotation angles (RoPE) of q and k in the {name}", vectors)
        case None, (T5Bias() | Alibi()) as bias:
            mean_bias = bias(numbers, numbers)[0].mean(dim=0)  # [T, T] from [1, H, T, T]
            what = f"position bias added to the attention scores in the {name}"
            return PositionEncodings(what, None, array(mean_bias))
        case None, Disentangled() as distances:
            vectors = distances.table
            if distances.norm is not None:
                vectors = distances.norm(vectors)
            return _of_vectors(f"relative position embeddings in the {name}", vectors[:length])
    concatenated = concatenated_position(core, name)
    if concatenated is not None:
        what = f"sinusoidal vectors concatenated with the embeddings at the input of the {name}"
        return _of_vectors(what, concatenated.rows(length)[:length].float())
    if isinstance(part, UniversalStack) and part.universal.spec.timing:
        vectors = sinusoids(numbers, part.universal.d_model, "halves", 10_000.0).float()
        return _of_vectors(f"sinusoidal vectors added at each step of the {name}", vectors)
    of_layers = [attention.position for attention in self_attentions(part)]
    if any(isinstance(position, RelativeScores) for position in of_layers):
        return _of_layers(of_layers, numbers, name)
    raise SettingError(without_positions(core, name), other_views(model))


def _of_layers(parts: Sequence[LayerPosition], numbers: Tensor, name: str) -> PositionEncodings:
    """PositionEncodings with parameters in each layer: the mean over the layers."""
    terms = []
    for part in parts:
        match part:
            case RelativeKeys():
                # What is added to a score is q · a; its size is that of a, whatever the query.
                distance = (numbers[:, None] - numbers[None, :]).clamp(
                    -part.distance, part.distance
                )
                sizes = part.table.float().norm(dim=-1)  # [2k + 1]
                terms.append(sizes[distance + part.distance])  # [T, T]
                what = f"norm of the relative position embeddings (Shaw et al. 2018) in the {name}"
            case RelativeSinusoids():
                # Term (d) of Dai et al. 2019, Section 3.3: v · W r, for no query at all.
                heads, _, width = part.position.shape
                query = part.position.new_zeros(1, heads, len(numbers), width)
                _, scores = part(query, numbers, numbers)  # [1, H, T, T]
                terms.append(scores[0].float().mean(dim=0) / width**0.5)
                what = f"relative position bias of the scores (Transformer-XL) in the {name}"
            case _:
                pass
    return PositionEncodings(what, None, array(torch.stack(terms).mean(dim=0)))


def _of_vectors(what: str, vectors: Tensor) -> PositionEncodings:
    return PositionEncodings(what, array(vectors), array(vectors @ vectors.mT))  # [T, D], [T, T]
