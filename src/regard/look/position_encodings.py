"""Position encodings: the vectors or biases of positions, and how similar positions are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.baselines.memory_network import MemoryNetwork
from regard.core.embedding import Embedding
from regard.core.frontend import Patches, Spectrogram
from regard.core.positional_encoding import (
    AxialPosition,
    FixedPosition,
    LearnedPosition,
    Sinusoidal,
    Sinusoidal2D,
)
from regard.core.relative_position import Alibi, Disentangled, T5Bias
from regard.core.rotary import Rope
from regard.errors import SettingError
from regard.look import drawing, terminal
from regard.look.inspectable import CoreModel, Inspectable
from regard.look.probe_names import stacks
from regard.look.recording import array
from regard.look.result import AnalysisResult, Array
from regard.model import (
    Decoder,
    DualEncoder,
    Encoder,
    EncoderDecoder,
)

# How the tables of vectors that are added to the embeddings are called.
TABLES: dict[type[nn.Module], str] = {
    Sinusoidal: "sinusoidal",
    LearnedPosition: "learned",
    FixedPosition: "fixed",
    AxialPosition: "axial",
}
InputPosition = Sinusoidal | LearnedPosition | FixedPosition | AxialPosition | Sinusoidal2D


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
        "A band along the diagonal: near places are alike. "
        "The same along it: only the distance counts."
    )

    @property
    def title(self) -> str:
        return f"positions: {self.what}"

    def numpy(self) -> Array:
        return self.products

    def scene(self) -> drawing.Scene:
        names = [str(i) for i in range(len(self.products))]
        title = f"{self.title}, each with each"
        scenes = [drawing.heat(self.products, names, names, title=title, signed=True)]
        if self.encodings is not None:
            dimensions = [str(i) for i in range(self.encodings.shape[1])]
            scenes.append(
                drawing.heat(
                    self.encodings, names, dimensions, title=self.title, signed=True, cell=8.0
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
    core = model.model
    name = stack or next(iter(stacks(core)))
    numbers = torch.arange(length, device=model.device)
    match _input_position(core, name), stacks(core)[name].position:
        case Sinusoidal() | LearnedPosition() | FixedPosition() | AxialPosition() as table, _:
            kind = TABLES[type(table)]
            vectors = table.rows(length)[:length].float()  # [T, D]
            return _of_vectors(f"{kind} vectors added at the input of the {name}", vectors)
        case None, Rope() as rope:
            # Products of these vectors are Σ cos of the angles between two positions.
            cos, sin = rope.angles(numbers)
            vectors = torch.cat([cos, sin], dim=-1)
            return _of_vectors(f"angles of the rotation of q and k in the {name}", vectors)
        case None, (T5Bias() | Alibi()) as bias:
            mean_bias = bias(numbers, numbers)[0].mean(dim=0)  # [T, T] from [1, H, T, T]
            what = f"what distance adds to the scores in the {name}"
            return PositionEncodings(what, None, array(mean_bias))
        case None, Disentangled() as distances:
            vectors = distances.table
            if distances.norm is not None:
                vectors = distances.norm(vectors)
            return _of_vectors(f"vectors of distances in the {name}", vectors[:length])
        case _:
            raise SettingError(
                f"the {name} of this model knows nothing of places", "look at another stack"
            )


def _of_vectors(what: str, vectors: Tensor) -> PositionEncodings:
    return PositionEncodings(what, array(vectors), array(vectors @ vectors.mT))  # [T, D], [T, T]


def _input_position(model: CoreModel, stack: str) -> InputPosition | None:
    """The position encoding that is added to the embeddings of a stack."""
    match model:
        case EncoderDecoder():
            front_end = model.source if stack == "encoder" else model.target
        case Encoder():
            front_end = model.input
        case Decoder():
            front_end = model.tokens
        case DualEncoder():
            tower = model.text if stack.startswith("text") else model.image
            front_end = tower.input
        case MemoryNetwork():
            return None
    if isinstance(front_end, Embedding | Spectrogram | Patches):
        return front_end.position
    return None
