"""Position encodings: the vectors or biases of positions, and how similar positions are."""

from __future__ import annotations

from dataclasses import dataclass

from regard.core.finite_outputs import non_finite_error
from regard.look import drawing
from regard.look.drawing import terminal
from regard.look.inspectable import Inspectable
from regard.look.position_sources import positions_of, without_positions
from regard.look.recording import array
from regard.look.result import AnalysisResult, Array
from regard.look.views import other_views, viewed_stack
from regard.system.arguments import whole_number
from regard.system.errors import SettingError


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
        "If there is a band along the diagonal, nearby positions are similar; "
        "if each diagonal has the same values, only the relative distance matters."
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
            vectors = (self.encodings, names, dimensions)
            scenes.append(drawing.heat(*vectors, title=self.title, signed=True, cell=(8.0, 22.0)))
        return drawing.below(scenes)

    def lines(self, width: int = 100) -> list[str]:
        names = [str(i) for i in range(len(self.products))]
        lowest = self.products.min()
        # Shades begin at 0, but products may be negative.
        return terminal.heat(self.products - lowest, names, names, width=width)


def positions(
    model: Inspectable, length: int = 32, *, stack: str | None = None
) -> PositionEncodings:
    """The first `length` positions of a stack, by default the first one."""
    core = model.model
    name = viewed_stack(model, "positions", stack)
    shown = positions_of(core, name, whole_number("length", length, least=1))
    if shown is None:
        raise SettingError(without_positions(core, name), other_views(model))
    if not shown.products.isfinite().all():
        raise non_finite_error(core)
    vectors = None if shown.vectors is None else array(shown.vectors)
    return PositionEncodings(shown.what, vectors, array(shown.products))
