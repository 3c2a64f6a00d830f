"""A model as data for the forward pass in JavaScript: its parts with their options, and weights.

Parts that the engine does not compute are refused by their name.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn

from regard.core.attention import Attention
from regard.core.block import Block
from regard.core.feedforward import ACTIVATION_NAMES, FeedForward, GatedFeedForward
from regard.core.frontends.embedding import Embedding
from regard.core.heads.head import LMHead
from regard.core.linear import Linear
from regard.core.masks.mask import CausalMask, FullMask
from regard.core.mixers.scaled_dot_product_attention import SoftmaxAttention
from regard.core.norm import LayerNorm, RMSNorm
from regard.core.positions.position_terms import LayerPosition
from regard.core.positions.positional_encoding import FixedPosition, LearnedPosition, Sinusoidal
from regard.core.positions.rotary import Rope
from regard.core.projection import CrossProjection, SelfProjection
from regard.core.residual import PostNorm, PreNorm
from regard.core.stack import LayerType, Stack
from regard.decode.batch_decoding import SpecialTokens
from regard.decode.strategy import BeamSearch, Limit
from regard.look.inspectable import decoder_start
from regard.models import Model
from regard.studio.answers import task_of
from regard.system.errors import ModelError

Data = dict[str, Any]
TASKS = ("translate", "generate", "fill", "embed")


def refuse(name: str) -> NoReturn:
    """Refuses a model with a part that the exported page does not compute."""
    raise ModelError(
        f"the exported page does not compute {name}",
        "open this model with `regard studio FOLDER`, which computes everything",
    )


class Weights:
    """Tensors by number, each stored once: float16 where that is exact, float32 otherwise."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        self._kept: list[Tensor] = []  # so that no address is given twice

    def number(self, tensor: Tensor) -> int:
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if key not in self._numbers:
            self._numbers[key] = len(self._kept)
            self._kept.append(tensor)
        return self._numbers[key]

    def to_json(self) -> list[Data]:
        stored = []
        for tensor in self._kept:
            values = tensor.detach().float().cpu().contiguous()
            half = values.half()
            is_exact = torch.equal(half.float(), values)
            numbers = (half if is_exact else values).numpy()
            kind = "<f2" if is_exact else "<f4"
            data = base64.b64encode(numbers.astype(kind).tobytes()).decode()
            stored.append({"bits": 16 if is_exact else 32, "data": data})
        return stored


def model_data(model: Model) -> Data:
    """What the engine computes a model from, and how it decodes."""
    if task_of(model) not in TASKS or not model.accepts_text:
        refuse(f"models that {task_of(model)}")
    weights = Weights()
    core = model.model
    front_ends = core.front_ends()
    stacks = []
    for name, stack in core.stacks().items():
        if not isinstance(stack, Stack):
            refuse(f"{name}: {type(stack).__name__}")
        reads = "target" if core.reads_target and name == "decoder" else "input"
        data = _stack(stack, weights)
        embedding = _embedding(front_ends[name], weights)
        stacks.append({"name": name, "reads": reads, "embedding": embedding, **data})
    head = core.lm_head
    data = {
        "stacks": stacks,
        "head": None if head is None else _head(cast(nn.Module, head), weights),
        "writes": core.writes,
        "reads_target": core.reads_target,
        "decoding": _decoding(model),
    }
    return {**data, "weights": weights.to_json()}


def _decoding(model: Model) -> Data | None:
    """How the model writes; None of a model that writes nothing."""
    special = model.special_tokens
    if special is None or not model.model.writes:
        return None
    # Whatever else it has is as a plain one's.
    plain = SpecialTokens(
        special.pad, special.start, special.end, special.banned, extra_ends=special.extra_ends
    )
    if special != plain:
        refuse("forced or suppressed tokens")
    beam = asdict(BeamSearch())
    limit = asdict(Limit())
    return {
        "start": decoder_start(special),
        "ends": [special.end, *special.extra_ends],
        "banned": list(special.banned),
        "width": beam["width"],
        "alpha": beam["penalty"]["alpha"],
        "limit": limit,
        "positions": model.model.positions_left(0),
    }


# ------------------------------------------------------------------ parts


def _require(part: Any, *kinds: type) -> None:
    """Refuses a part that is none of these kinds itself; a subclass computes something else."""
    if type(part) not in kinds:
        refuse(type(part).__name__)


def _linear(part: Linear, weights: Weights, first: int = 0, rows: int | None = None) -> Data:
    """A linear map, or some rows of one: y = W x + b."""
    _require(part, Linear)
    if part.packed is not None or part.added is not None:
        refuse("packed or adapted weights")
    bias = part.full_bias()
    return {
        "weight": weights.number(part.weight),
        "bias": None if bias is None else weights.number(bias),
        "inputs": part.weight.shape[1],
        "first": first,
        "rows": part.weight.shape[0] if rows is None else rows,
    }


def _norm(part: nn.Module | None, weights: Weights) -> Data | None:
    if part is None:
        return None
    _require(part, LayerNorm, RMSNorm)
    if isinstance(part, RMSNorm):
        gain = part.weight + part.offset if part.offset else part.weight
        return {"kind": "rms", "gain": weights.number(gain), "shift": None, "eps": part.eps}
    assert isinstance(part, LayerNorm)
    shift = None if part.bias is None else weights.number(part.bias)
    return {"kind": "layer", "gain": weights.number(part.weight), "shift": shift, "eps": part.eps}


def _embedding(part: nn.Module, weights: Weights) -> Data:
    _require(part, Embedding)
    assert isinstance(part, Embedding)
    for name in ("zeroed", "concatenated"):
        if getattr(part, name) is not None:
            refuse(f"{name} embeddings")
    return {
        "table": weights.number(part.table.weight),
        "width": part.table.weight.shape[1],
        "scale": part.scale,
        # All tokens are of sentence A.
        "segments": None if part.segments is None else weights.number(part.segments.weight),
        "position": _added_position(part.position, weights),
        "norm": _norm(part.norm, weights),
        "project": None if part.project is None else _linear(part.project, weights),
    }


def _added_position(part: nn.Module | None, weights: Weights) -> Data | None:
    """Positions that are added at the input."""
    match part:
        case None:
            return None
        case Sinusoidal():
            return {"kind": "sinusoidal", "order": part.order, "base": part.base}
        case LearnedPosition() | FixedPosition():
            rows = weights.number(part.table)
            return {"kind": "table", "rows": rows, "offset": part.offset, "count": part.length}
        case _:
            refuse(type(part).__name__)


def _stack(stack: Stack, weights: Weights) -> Data:
    _require(stack, Stack)
    if stack.segment_length is not None:
        refuse("segment memories")
    layers = []
    for number, kind in enumerate(stack.layer_types):
        block = stack.block(number)
        _require(block, Block)
        assert isinstance(block, Block)
        layers.append(_block(block, kind, weights))
    return {"layers": layers, "final_norm": _norm(stack.final_norm, weights)}


def _block(block: Block, kind: LayerType, weights: Weights) -> list[Data]:
    """The sublayers of a block, in order."""
    if block.layer_scales is not None:
        refuse("LayerScale")
    _require(kind.pattern, FullMask, CausalMask)
    sublayers = [{"kind": "self", **_attention(block.attention, kind, weights)}]
    if block.cross is not None:
        plain = LayerType(FullMask())
        sublayers.append({"kind": "cross", **_attention(block.cross, plain, weights)})
    sublayers.append({"kind": "feedforward", **_feedforward(block.feedforward, weights)})
    for sublayer, residual in zip(sublayers, block.residual.each, strict=True):
        _require(residual, PreNorm, PostNorm)
        sublayer["place"] = "pre" if isinstance(residual, PreNorm) else "post"
        sublayer["norm"] = _norm(cast(PreNorm, residual).norm, weights)
    return sublayers


def _attention(part: Attention, kind: LayerType, weights: Weights) -> Data:
    _require(part, Attention)
    _require(part.project, SelfProjection, CrossProjection)
    _require(part.mixer, SoftmaxAttention)
    mixer = cast(SoftmaxAttention, part.mixer)
    if not mixer.is_plain:
        refuse("attention with a cap, sinks or a number of keys")
    if not isinstance(part.position, Rope):
        _require(part.position, LayerPosition)
    project = part.project
    data: Data = {
        "heads": project.heads,
        "groups": project.groups,
        "scale": mixer.scale,
        "causal": isinstance(kind.pattern, CausalMask),
        "rope": _rope(kind.position),
        "output": _linear(part.output, weights),
    }
    # Several of queries, keys and values are rows of one matrix.
    for letters, matrix in project.matrices().items():
        first = 0
        for letter, width in zip(letters, matrix.parts, strict=True):
            data[letter] = _linear(matrix, weights, first, width)
            first += width
    return data


def _rope(part: nn.Module | None) -> Data | None:
    if part is None:
        return None
    _require(part, Rope)
    assert isinstance(part, Rope)
    frequencies = part.frequencies.tolist()
    return {"frequencies": frequencies, "pairs": part.pairs, "length": part.length}


def _feedforward(part: nn.Module, weights: Weights) -> Data:
    _require(part, FeedForward, GatedFeedForward)
    dense = cast(FeedForward | GatedFeedForward, part)
    if isinstance(part, GatedFeedForward) and part.limit is not None:
        refuse("clamped gates")
    return {
        "inner": _linear(dense.inner, weights),
        "outer": _linear(dense.outer, weights),
        "activation": ACTIVATION_NAMES[dense.activation],
        "gated": isinstance(part, GatedFeedForward),
    }


def _head(part: nn.Module, weights: Weights) -> Data:
    _require(part, LMHead)
    head = cast(LMHead, part)
    if head.packed is not None:
        refuse("packed weights")
    rows, width = head.table.weight.shape
    table = {
        "weight": weights.number(head.table.weight),
        "bias": None if head.bias is None else weights.number(head.bias),
        "inputs": width,
        "first": 0,
        "rows": rows,
    }
    transform = None
    if head.transform is not None:
        transform = {
            "dense": _linear(head.transform.dense, weights),
            "activation": ACTIVATION_NAMES[head.transform.activation],
            "norm": _norm(head.transform.norm, weights),
        }
    return {"table": table, "transform": transform, "scale": head.scale, "cap": head.cap}


# ------------------------------------------------------------------ tokenizers

# What the tokenizer in JavaScript reads of a tokenizer.json, by section.
_KINDS: dict[str, tuple[str, ...]] = {
    "normalizer": (
        *("Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"),
        *("Replace", "Strip", "BertNormalizer"),
    ),
    "pre_tokenizer": (
        *("Sequence", "Metaspace", "Split", "Whitespace", "WhitespaceSplit"),
        *("BertPreTokenizer", "ByteLevel"),
    ),
    "model": ("WordLevel", "BPE", "WordPiece"),
    "decoder": ("Sequence", "Metaspace", "Fuse", "ByteLevel", "WordPiece", "ByteFallback"),
}


def check_tokenizer(described: Data) -> None:
    """Refuses a tokenizer.json with a kind of part that the page does not have."""
    for section, kinds in _KINDS.items():
        for part in _parts(described.get(section)):
            if part["type"] not in kinds:
                refuse(f"the tokenizer's {section} {part['type']}")


def _parts(part: Data | None) -> list[Data]:
    """A part of a tokenizer with those inside it."""
    if part is None:
        return []
    inside: Sequence[Data] = ()
    for name in ("normalizers", "pretokenizers", "decoders"):
        inside = part.get(name, inside)
    return [part, *(each for one in inside for each in _parts(one))]
