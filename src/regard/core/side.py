"""What a wiring is made of: a front end that makes vectors of its inputs, and sides that turn
vectors into hidden states."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from regard.core.caches.kv_cache import LayerCache
from regard.core.encoder_output import EncoderOutput
from regard.core.output import Inputs
from regard.core.probe import HasHeads

SideKind = Literal["transformer", "recurrent", "convolutional", "memory"]


class FrontEnd(nn.Module):
    """Abstract: maps the inputs of a model to [B, T, D]: embeddings of tokens, patches of images,
    frames of sound."""

    # Whether it makes other vectors of an input beside padding: of a window of a series, say.
    meets_padding: ClassVar[bool] = True
    has_padding: ClassVar[bool] = True  # an image has none
    mask_name: ClassVar[str] = "attention_mask"  # transformers' name of its padding mask
    also_reads: ClassVar[tuple[str, ...]] = ()  # arguments that it takes under their own names

    def output_padding_mask(self, padding_mask: Tensor | None) -> Tensor | None:
        """The padding mask of the T positions, from that of the inputs: the same."""
        if not self.has_padding:
            return None
        return padding_mask

    def joint_mask(self, inputs: Tensor, padding_mask: Tensor | None, more: Any) -> Tensor | None:
        """The padding mask of the T positions, from everything that it reads."""
        return self.output_padding_mask(padding_mask)

    def added_positions(self, inputs: Tensor, padding_mask: Tensor | None) -> Tensor | None:
        """Vectors [B or 1, T, D] that attention adds to its queries and keys; None where positions
        are part of what the front end gives, or of attention itself."""
        return None

    @property
    def queries(self) -> int:
        """How many positions it gives without reading anything: object queries."""
        return 0

    def grid(self, inputs: Tensor) -> tuple[int, int] | None:
        """Rows and columns of positions in images [..., height, width]; None of what is none."""
        return None

    # Whether its own vectors, and what the last layer makes, are among the hidden states that
    # transformers gives.
    shows_first: ClassVar[bool] = True
    shows_last: ClassVar[bool] = True
    # Whether the last of them is that after the final norm where a decoder reads what it gives;
    # of an encoder that stands alone it is that before, unless `shows_norm_alone`.
    shows_norm: ClassVar[bool] = True
    shows_norm_alone: ClassVar[bool] = False

    def check_values(self, inputs: Inputs) -> None:
        """Refuses numbers that it cannot read; asking for them waits for the device."""

    def states(self, hidden: Tensor, inputs: Inputs) -> Tensor:
        """The hidden states of the inputs as they are shown: [B, T, D]."""
        return hidden

    def of_inputs(self, answers: Tensor) -> Tensor:
        """Answers to whole inputs, from those to its rows [rows, …]: other rows may be its
        parts."""
        return answers

    def vector(self, pooled: Tensor) -> Tensor:
        """A pooled vector as it is shown: [B, D]."""
        return pooled


class ImageFrontEnd(FrontEnd):
    """Abstract: maps images [B, channels, height, width] to positions, row by row, behind
    `extras` trained vectors."""

    has_padding = False
    patch: int  # pixels from one position to the next
    frames: int | None = None  # of a clip, where it reads such

    def __init__(self) -> None:
        super().__init__()
        self.extras: nn.ParameterList | tuple[()] = ()

    def grid(self, inputs: Tensor) -> tuple[int, int]:
        raise NotImplementedError

    def as_maps(self, values: Tensor, pixels: Tensor) -> Tensor:
        """Values of positions [B, N, C], of any stage, as maps [B, C, rows, columns]; those of
        `extras` are left out."""
        rows, columns = self.grid(pixels)
        # Each further stage has a fraction of both, rounded up.
        sides = ((-(-rows // step), -(-columns // step)) for step in count(1))
        grid = next(grid for grid in sides if math.prod(grid) <= values.shape[1])
        return values[:, -math.prod(grid) :].mT.unflatten(2, grid)

    def place_names(self, pixels: Tensor) -> Iterator[str]:
        """A name for each position: `row,column` behind the extra vectors."""
        yield from (f"extra {i}" for i in range(len(self.extras)))
        rows, columns = self.grid(pixels)
        yield from (f"{row},{column}" for row in range(rows) for column in range(columns))


class Side(nn.Module):
    """Abstract: side(x, padding_mask, context, memory) → hidden states. A stack, or one of the
    recurrent and convolutional networks before it."""

    kind: ClassVar[SideKind] = "transformer"  # of its layers
    layers: int

    @property
    def position(self) -> Any:
        """What acts inside attention; None where order comes from elsewhere."""
        return None

    @property
    def carries_state(self) -> bool:
        """Whether state goes on from one segment of a text to the next."""
        return False

    @property
    def meets_padding(self) -> bool:
        """Whether padding concerns parts besides attention: BatchNorm, InstanceNorm, experts,
        convolutions."""
        return False

    @property
    def waits_for_device(self) -> bool:
        """Whether a forward pass waits for the device, so that no CUDA graph can hold it."""
        return False

    def start(
        self, rows: int, capacity: int, memory: EncoderOutput | None = None
    ) -> list[LayerCache]:
        """The caches before the first of at most `capacity` tokens."""
        raise NotImplementedError

    def start_segments(self, rows: int, width: int) -> list[LayerCache]:
        """What is carried on before the first segment of `rows` texts, of `width` numbers a
        position."""
        raise NotImplementedError

    @property
    def output_layers(self) -> list[int]:
        """The layers whose outputs transformers counts as hidden states: all of them."""
        return list(range(self.layers))

    @property
    def weighed_layers(self) -> list[int]:
        """The layers whose attention weights transformers gives: those of the hidden states."""
        return self.output_layers

    def attentions(self) -> dict[str, HasHeads]:
        """Every application of an attention, by its name inside the side."""
        return {}


def sides(model: nn.Module) -> list[Side]:
    """All sides of a model."""
    return [part for part in model.modules() if isinstance(part, Side)]
