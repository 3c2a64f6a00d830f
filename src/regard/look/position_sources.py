"""The position encodings of a stack: those added at its input, and those of its layers."""

from __future__ import annotations

from torch import nn

from regard.core.attention import Attention
from regard.core.frontends.embedding import Embedding
from regard.core.frontends.lagged_values import StepEmbedding
from regard.core.frontends.patch_embedding import Patches
from regard.core.frontends.series_patches import SeriesPatches
from regard.core.frontends.spectrogram_frontend import Spectrogram
from regard.core.frontends.waveform_frontend import Waveform
from regard.core.positions.positional_encoding import (
    AxialPosition,
    FixedPosition,
    LearnedPosition,
    Sinusoidal,
    Sinusoidal2D,
)
from regard.core.positions.relative_position import Alibi, Disentangled, RelativeScores, T5Bias
from regard.core.positions.rotary import Rope
from regard.core.stack import Stack
from regard.core.stacks.universal_transformer import UniversalStack
from regard.wirings.core_model import CoreModel

InputPosition = Sinusoidal | LearnedPosition | FixedPosition | AxialPosition | Sinusoidal2D


def has_positions(model: CoreModel, stack: str) -> bool:
    """Whether a stack has position encodings that can be shown."""
    part = model.stacks()[stack]
    if input_position(model, stack) or concatenated_position(model, stack):
        return True
    if isinstance(part.position, Rope | T5Bias | Alibi | Disentangled):
        return True
    if isinstance(part, UniversalStack) and part.universal.spec.timing:
        return True
    return any(
        isinstance(attention.position, RelativeScores) for attention in self_attentions(part)
    )


def without_positions(model: CoreModel, stack: str) -> str:
    """Why a stack has no position encodings to show."""
    if isinstance(model.front_ends().get(stack), Waveform):
        return f"the {stack} has convolutional position embeddings, which cannot be shown"
    match model.stacks()[stack].kind:
        case "recurrent":
            return f"the {stack} is recurrent, which needs no position encodings"
        case "memory":
            return (
                "each sentence has a learned vector for its age (temporal encoding), "
                "and each word a weight by its position"
            )
        case _:
            return f"the {stack} of this model has no position encodings"


def self_attentions(part: nn.Module) -> list[Attention]:
    """The self-attention of each block of a stack; cross-attention has no positions."""
    if not isinstance(part, Stack):
        return []
    return [block.attention for block in part.blocks if isinstance(block.attention, Attention)]


def input_position(model: CoreModel, stack: str) -> InputPosition | None:
    """The position encoding that is added to the embeddings of a stack."""
    part = model.front_ends().get(stack)
    if isinstance(part, Embedding | Spectrogram | Patches | SeriesPatches | StepEmbedding):
        return part.position
    return None


def concatenated_position(model: CoreModel, stack: str) -> Sinusoidal | None:
    """The position encoding that is concatenated with the embeddings of a stack."""
    part = model.front_ends().get(stack)
    return part.concatenated if isinstance(part, Embedding) else None
