"""Position encodings: the vectors or biases of positions, and how similar positions are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from regard.baselines.linear_forecaster import LinearForecaster
from regard.baselines.memory_network import MemoryHops, MemoryNetwork
from regard.baselines.recurrent import RecurrentDecoder, RecurrentEncoder
from regard.core.alibi import Alibi
from regard.core.attention import Attention
from regard.core.embedding import Embedding
from regard.core.finite_outputs import non_finite_error
from regard.core.lagged_values import StepEmbedding
from regard.core.patch_embedding import Patches
from regard.core.positional_encoding import (
    AxialPosition,
    FixedPosition,
    LearnedPosition,
    Sinusoidal,
    Sinusoidal2D,
    sinusoids,
)
from regard.core.relative_position import (
    Disentangled,
    LayerPosition,
    RelativeKeys,
    RelativeSinusoids,
)
from regard.core.rotary import Rope
from regard.core.series_patches import SeriesPatches
from regard.core.spectrogram_frontend import Spectrogram
from regard.core.stack import Stack
from regard.core.t5_bias import T5Bias
from regard.core.universal_transformer import UniversalStack
from regard.core.waveform_frontend import Waveform
from regard.decoder import Decoder
from regard.dual_encoder import DualEncoder
from regard.encoder import Encoder
from regard.encoder_decoder import EncoderDecoder
from regard.errors import SettingError
from regard.look import drawing, terminal
from regard.look.inspectable import CoreModel, Inspectable
from regard.look.probe_names import stacks
from regard.look.recording import array
from regard.look.result import AnalysisResult, Array
from regard.series_encoder_decoder import SeriesEncoderDecoder

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
        "Where there is a band along the diagonal, near places are alike; "
        "where it is the same all along, only the distance counts."
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
    encodings = _encodings(model, length, stack)
    if not np.isfinite(encodings.products).all():
        raise non_finite_error(model.model)
    return encodings


def _encodings(model: Inspectable, length: int, stack: str | None) -> PositionEncodings:
    core = model.model
    name = stack or next(iter(stacks(core)))
    numbers = torch.arange(length, device=model.device)
    part = stacks(core)[name]
    match _input_position(core, name), part.position:
        case Sinusoidal2D() as grid, _:
            # Of the patches, row by row; the class token in front has none.
            what = f"sines and cosines of row and column added at the input of the {name}"
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
    concatenated = _concatenated_position(core, name)
    if concatenated is not None:
        what = f"sinusoidal vectors next to the embeddings at the input of the {name}"
        return _of_vectors(what, concatenated.rows(length)[:length].float())
    if isinstance(part, UniversalStack) and part.universal.timing:
        vectors = sinusoids(numbers, part.universal.d_model, "halves", 10_000.0).float()
        return _of_vectors(f"sinusoidal vectors added at each step of the {name}", vectors)
    of_layers = [attention.relative for attention in _self_attentions(part)]
    if any(relative is not None for relative in of_layers):
        return _of_layers(of_layers, numbers, name)
    if isinstance(front_end(core, name), Waveform):
        raise SettingError(
            f"a convolution over the frames tells the {name} their positions, without vectors",
            "look at its attention",
        )
    raise SettingError(_without_encodings(part, name), "look at another stack")


def _without_encodings(part: nn.Module, name: str) -> str:
    """How a stack tells positions apart that has no encodings of them."""
    match part:
        case RecurrentEncoder() | RecurrentDecoder():
            return f"the {name} reads one token after the other: the order needs no encoding"
        case MemoryHops():
            return "each sentence has a learned vector of its age, and each word a weight by place"
        case _:
            return f"the {name} of this model knows nothing of places"


def _of_layers(
    parts: Sequence[LayerPosition | None], numbers: Tensor, name: str
) -> PositionEncodings:
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
                what = f"length of Shaw's vector of each distance in the {name}"
            case RelativeSinusoids():
                # Term (d) of Dai et al. 2019, Section 3.3: v · W r, for no query at all.
                heads, _, width = part.position.shape
                query = part.position.new_zeros(1, heads, len(numbers), width)
                _, scores = part(query, numbers, numbers)  # [1, H, T, T]
                terms.append(scores[0].float().mean(dim=0) / width**0.5)
                what = f"what distance alone adds to the scores (Transformer-XL) in the {name}"
            case None:
                pass
    return PositionEncodings(what, None, array(torch.stack(terms).mean(dim=0)))


def _self_attentions(part: nn.Module) -> list[Attention]:
    """The self-attention of each block of a stack; cross-attention knows no positions."""
    if not isinstance(part, Stack):
        return []
    return [block.attention for block in part.blocks if isinstance(block.attention, Attention)]


def _of_vectors(what: str, vectors: Tensor) -> PositionEncodings:
    return PositionEncodings(what, array(vectors), array(vectors @ vectors.mT))  # [T, D], [T, T]


def _input_position(model: CoreModel, stack: str) -> InputPosition | None:
    """The position encoding that is added to the embeddings of a stack."""
    part = front_end(model, stack)
    if isinstance(part, Embedding | Spectrogram | Patches | SeriesPatches | StepEmbedding):
        return part.position
    return None


def _concatenated_position(model: CoreModel, stack: str) -> Sinusoidal | None:
    """The position encoding that is concatenated with the embeddings of a stack."""
    part = front_end(model, stack)
    return part.concatenated if isinstance(part, Embedding) else None


def front_end(model: CoreModel, stack: str) -> nn.Module | None:
    """What makes vectors of the input of a stack."""
    match model:
        case EncoderDecoder() | SeriesEncoderDecoder():
            return model.source if stack == "encoder" else model.target
        case Encoder():
            return model.input
        case Decoder():
            return model.tokens
        case DualEncoder():
            tower = model.text if stack.startswith("text") else model.image
            return tower.input
        case MemoryNetwork() | LinearForecaster():
            return None
