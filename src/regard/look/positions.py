"""Positions: what a model knows of places, and how alike it makes them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
from regard.look.recording import array
from regard.look.result import Array, Result
from regard.look.target import Holds, Model, Subject, stacks, subject_of
from regard.model import (
    Decoder,
    DualEncoder,
    Encoder,
    EncoderDecoder,
)


@dataclass(frozen=True)
class Positions(Result):
    """`encodings`: a vector for each place, where positions are vectors; `products`: for each pair of places their dot
    product, or what is added to the score of attention (the mean over the heads)."""

    what: str
    encodings: Array | None  # [places, dimensions]
    products: Array  # [places, places]

    note = "A band along the diagonal: near places are alike. The same along it: only the distance counts."

    @property
    def title(self) -> str:
        return f"positions: {self.what}"

    def numpy(self) -> Array:
        return self.products

    def scene(self) -> drawing.Scene:
        places = [str(i) for i in range(len(self.products))]
        scenes = [
            drawing.heat(
                self.products, places, places, title=f"{self.title}, each with each", signed=True
            )
        ]
        if self.encodings is not None:
            dimensions = [str(i) for i in range(self.encodings.shape[1])]
            scenes.append(
                drawing.heat(
                    self.encodings, places, dimensions, title=self.title, signed=True, cell=8.0
                )
            )
        return drawing.below(scenes)

    def lines(self, width: int = 100) -> list[str]:
        places = [str(i) for i in range(len(self.products))]
        lowest = self.products.min()
        return terminal.heat(self.products - lowest, places, places, width=width)


@torch.no_grad()
def positions(held: Subject | Holds, length: int = 32, *, stack: str | None = None) -> Positions:
    """Of the first `length` places of a stack, the first unless said."""
    subject = subject_of(held)
    name = stack or next(iter(stacks(subject.model)))
    part = stacks(subject.model)[name].position
    places = torch.arange(length, device=subject.device)
    match _input_position(subject.model, name), part:
        case Sinusoidal() | LearnedPosition() | FixedPosition() | AxialPosition() as table, _:
            rows = table.rows(length)[:length].float()
            return _of_vectors(
                f"{type(table).__name__.lower()} vectors added at the input of the {name}", rows
            )
        case None, Rope() as rope:
            cos, sin = rope.angles(places)
            return _of_vectors(
                f"angles of the rotation of q and k in the {name}", torch.cat([cos, sin], dim=-1)
            )
        case None, (T5Bias() | Alibi()) as bias:
            added = bias(places, places)[0].mean(dim=0)
            return Positions(f"what distance adds to the scores in the {name}", None, array(added))
        case None, Disentangled() as distances:
            vectors = distances.table if distances.norm is None else distances.norm(distances.table)
            return _of_vectors(f"vectors of distances in the {name}", vectors[:length])
        case _:
            raise SettingError(
                f"the {name} of this model knows nothing of places", "look at another stack"
            )


def _of_vectors(what: str, rows: Tensor) -> Positions:
    return Positions(what, array(rows), array(rows @ rows.mT))


def _input_position(
    model: Model, stack: str
) -> Sinusoidal | LearnedPosition | FixedPosition | AxialPosition | Sinusoidal2D | None:
    match model:
        case EncoderDecoder():
            front = model.source if stack == "encoder" else model.target
        case Encoder():
            front = model.input
        case Decoder():
            front = model.tokens
        case DualEncoder():
            front = (model.text if stack.startswith("text") else model.image).input
        case MemoryNetwork():
            return None
    return front.position if isinstance(front, Embedding | Spectrogram | Patches) else None
