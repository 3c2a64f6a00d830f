"""Which views support a model, and why the others do not.

An unsupported view is refused here, before anything runs, and the repair lists the supported ones.
"""

from __future__ import annotations

from collections.abc import Callable

from regard.baselines.linear_forecaster import LinearForecaster
from regard.baselines.memory_network import MemoryNetwork
from regard.core.stack import Stack
from regard.core.waveform_frontend import Waveform
from regard.core_model import CoreModel
from regard.decoder import Decoder
from regard.dual_encoder import DualEncoder
from regard.encoder import Encoder
from regard.encoder_decoder import EncoderDecoder
from regard.errors import SettingError
from regard.look.inspectable import Inspectable
from regard.look.position_sources import has_positions, without_positions
from regard.look.probe_names import attentions
from regard.series_encoder_decoder import SeriesEncoderDecoder

Obstacle = str | None  # why a view does not fit a model


def fitting_views(model: Inspectable) -> list[str]:
    """The views that fit a model, by the names that `regard look --what` gives them."""
    return [view for view, obstacle in OBSTACLES.items() if obstacle(model) is None]


def require_view(model: Inspectable, view: str) -> None:
    """Raises `SettingError` if a view does not fit a model."""
    obstacle = OBSTACLES[view](model)
    if obstacle is not None:
        raise SettingError(obstacle, other_views(model))


def other_views(model: Inspectable) -> str:
    """The repair for an unsupported view: the supported views, or other commands."""
    fitting = fitting_views(model)
    if not fitting:
        return "no view supports this model; try `regard show`, or `regard studio` for its forecast"
    repair = f"use a view that supports this model: {', '.join(fitting)}"
    if not attentions(model.model):
        repair += "; in Python, record the residual stream: ask='*.residual'"
    if spells_frames(model.model):
        repair += "; in Python, use `ctc_alignment`"
    return repair


# ------------------------------------------------------------------ what each view needs


def _without_attention(model: Inspectable) -> Obstacle:
    return None if attentions(model.model) else "this model has no attention"


def _without_alignment(model: Inspectable) -> Obstacle:
    has_cross_attention = any(name.endswith(".cross") for name in attentions(model.model))
    if has_cross_attention or spells_frames(model.model):
        return None
    return "this model has no cross-attention"


def spells_frames(core: CoreModel) -> bool:
    """Whether it gives a letter to each frame of a recording (CTC)."""
    if not isinstance(core, Encoder) or not isinstance(core.input, Waveform):
        return False
    return core.labels is not None and core.pool is None


def _without_self_attention(model: Inspectable) -> Obstacle:
    if any(name.endswith(".self") for name in attentions(model.model)):
        return None
    return "this model has no self-attention"


def _without_tokens(model: Inspectable) -> Obstacle:
    if isinstance(model.model, MemoryNetwork):
        return "this view needs tokens, but the model reads whole sentences"
    return (
        None
        if model.accepts_text
        else "this view needs text inputs, but the model does not read text"
    )


def _without_roles(model: Inspectable) -> Obstacle:
    # Links of the grammar are between words of the source, which the first stack reads.
    first = next(iter(model.model.stacks()), "")
    if not any(name.startswith(f"{first}.") for name in _self_attentions(model)):
        return "head roles need self-attention, which the stack that reads the text lacks"
    return _without_tokens(model)


def _self_attentions(model: Inspectable) -> list[str]:
    return [name for name in attentions(model.model) if name.endswith(".self")]


def _without_ablation(model: Inspectable) -> Obstacle:
    return _without_attention(model) or _without_tokens(model)


def _without_lens(model: Inspectable) -> Obstacle:
    core = model.model
    without_scores = DualEncoder | LinearForecaster | SeriesEncoderDecoder
    if isinstance(core, without_scores) or core.head is None:
        return "this model has no LM head (logits over a vocabulary)"
    last = list(core.stacks().values())[-1]
    return (
        None if isinstance(last, Stack) else "the last stack of this model has no residual stream"
    )


def _without_attribution(model: Inspectable) -> Obstacle:
    if isinstance(model.model, LinearForecaster):
        return "a linear forecaster has no embeddings"
    return _without_tokens(model) if isinstance(model.model, MemoryNetwork) else None


def _without_encodings(model: Inspectable) -> Obstacle:
    first = next(iter(model.model.stacks()), None)
    if first is None:
        return "a linear forecaster has no position encodings"
    if has_positions(model.model, first):
        return None
    return without_positions(model.model, first)


def _without_decoding(model: Inspectable) -> Obstacle:
    # The start tokens of sound are known when it has been read.
    is_framed = model.special_tokens is not None or model.medium is not None
    if isinstance(model.model, EncoderDecoder | Decoder) and is_framed:
        return None
    return "this model does not generate text"


def _without_cache(model: Inspectable) -> Obstacle:
    if isinstance(model.model, EncoderDecoder | Decoder):
        return None
    return "this model has no KV cache or other decoding state"


# The name of a view → what keeps it from a model. The order is that of `regard look --help`.
OBSTACLES: dict[str, Callable[[Inspectable], Obstacle]] = {
    "attention": _without_attention,
    "alignment": _without_alignment,
    "entropy": _without_attention,
    "roles": _without_roles,
    "ablation": _without_ablation,
    "patching": _without_tokens,
    "lens": _without_lens,
    "rollout": _without_self_attention,
    "attribution": _without_attribution,
    "positions": _without_encodings,
    "steps": _without_decoding,
    "beam": _without_decoding,
    "cache": _without_cache,
}
