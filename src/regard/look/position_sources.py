"""The position encodings of a stack: those added at its input, and those of its layers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from regard.core.attention import Attention
from regard.core.frontends.embedding import Embedding
from regard.core.frontends.waveform_frontend import Waveform
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
    RelativeSinusoids,
    T5Bias,
)
from regard.core.positions.rotary import Rope
from regard.core.stack import Stack
from regard.core.stacks.universal_transformer import UniversalStack
from regard.wirings.core_model import CoreModel


class Positions(NamedTuple):
    """The encodings of positions and their products; of biases of the scores these alone."""

    what: str
    vectors: Tensor | None  # [positions, dimensions]
    products: Tensor  # [positions, positions]


@torch.no_grad()
def positions_of(model: CoreModel, name: str, length: int) -> Positions | None:
    """The first `length` positions of a stack; None if it has none that can be shown."""
    part = model.stacks()[name]
    front_end = model.front_ends().get(name)
    numbers = torch.arange(length, device=next(part.parameters()).device)
    added: Any = getattr(front_end, "position", None)
    match added, part.position:
        case Sinusoidal2D(), _:
            # Of the patches, row by row; the class token in front has none.
            what = f"2D sinusoidal vectors added at the input of the {name}"
            return _of_vectors(what, added.rows(length)[:length])
        case Sinusoidal() | LearnedPosition() | FixedPosition() | AxialPosition(), _:
            kind = type(added).__name__.removesuffix("Position").lower()
            if not isinstance(added, Sinusoidal):
                length = min(length, added.length)  # there are no more
            what = f"{kind} vectors added at the input of the {name}"
            return _of_vectors(what, added.rows(length)[:length])
        case _, Rope() as rope:
            # Products of these vectors are Σ cos of the angles between two positions.
            what = f"rotation angles (RoPE) of q and k in the {name}"
            return _of_vectors(what, torch.cat(rope.angles(numbers), dim=-1))
        case _, (T5Bias() | Alibi()) as bias:
            what = f"position bias added to the attention scores in the {name}"
            return Positions(what, None, bias(numbers, numbers)[0].mean(dim=0))  # of [1, H, T, T]
        case _, Disentangled() as distances:
            vectors: Tensor = distances.table
            if distances.norm is not None:
                vectors = distances.norm(vectors)
            return _of_vectors(f"relative position embeddings in the {name}", vectors[:length])
    if isinstance(front_end, Embedding) and front_end.concatenated is not None:
        what = f"sinusoidal vectors concatenated with the embeddings at the input of the {name}"
        return _of_vectors(what, front_end.concatenated.rows(length)[:length])
    if isinstance(part, UniversalStack) and part.universal.spec.timing:
        vectors = sinusoids(numbers, part.universal.d_model, "halves", 10_000.0)
        return _of_vectors(f"sinusoidal vectors added at each step of the {name}", vectors)
    return _of_layers(part, numbers, name) if isinstance(part, Stack) else None


def _of_layers(stack: Stack, numbers: Tensor, name: str) -> Positions | None:
    """Positions with parameters in the self-attention of each layer: the mean over the layers."""
    terms = []
    what = ""
    attentions = [block.attention for block in stack.blocks]
    for part in [one.position for one in attentions if isinstance(one, Attention)]:
        match part:
            case RelativeKeys():
                # What is added to a score is q · a; its size is that of a, whatever the query.
                sizes = functional.pad(part.table.float().norm(dim=-1), (0, 1))  # [R + 1]
                terms.append(sizes[part.rows(numbers, numbers)[0, 0]])  # [T, T]
                what = f"norm of the relative position embeddings (Shaw et al. 2018) in the {name}"
            case RelativeSinusoids():
                # Term (d) of Dai et al. 2019, Section 3.3: v · W r, for no query at all.
                heads, _, width = part.position.shape
                query = part.position.new_zeros(1, heads, len(numbers), width)
                _, scores = part(query, numbers, numbers)  # [1, H, T, T]
                terms.append(scores[0].float().mean(dim=0) / width**0.5)
                what = f"relative position bias of the scores (Transformer-XL) in the {name}"
    return Positions(what, None, torch.stack(terms).mean(dim=0)) if terms else None


def _of_vectors(what: str, vectors: Tensor) -> Positions:
    vectors = vectors.float()
    return Positions(what, vectors, vectors @ vectors.mT)


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
