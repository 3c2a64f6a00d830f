"""The views of a model, in one table: what each shows, what it needs and what it reads.

A view that does not support a model is refused before anything runs, and the repair lists those
that do. Nothing heavy is imported at the top: the command reads the table for its help.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.system.errors import SettingError

if TYPE_CHECKING:
    from regard.look.inspectable import Inspectable
    from regard.wirings.core_model import CoreModel

Obstacle = str | None  # why a view does not support a model


@dataclass(frozen=True)
class View:
    """A view of a model: `regard look --what NAME`, and the function of its name in Python."""

    summary: str
    obstacle: Callable[[Inspectable], Obstacle]
    options: tuple[str, ...] = ()  # of the command, those that it reads besides the input
    probes: tuple[str, ...] = ()  # of the one forward pass that it is made from
    takes_input: bool = True  # or the model is enough
    needs_input: bool = True  # one that takes an input may do without


def fitting_views(model: Inspectable) -> list[str]:
    """The views that support a model, by the names that `regard look --what` gives them."""
    return [name for name, view in VIEWS.items() if view.obstacle(model) is None]


def require_view(model: Inspectable, name: str) -> None:
    """Raises `SettingError` if a view does not support a model."""
    obstacle = VIEWS[name].obstacle(model)
    if obstacle is not None:
        raise SettingError(obstacle, other_views(model))


def viewed_stack(model: Inspectable, view: str, name: str | None) -> str:
    """The stack that a view is asked for; the first one, if that can be shown, where it is not."""
    from regard.look.probe_names import require_name

    if name is None:
        require_view(model, view)
    stacks = model.model.stacks()
    return require_name("stack", name or next(iter(stacks)), stacks)


def other_views(model: Inspectable) -> str:
    """The repair for an unsupported view: the supported views, or other commands."""
    fitting = fitting_views(model)
    if not fitting:
        return "no view supports this model; try `regard show`, or `regard studio` for its forecast"
    repair = f"use a view that supports this model: {', '.join(fitting)}"
    if _without_attention(model):
        repair += "; in Python, record the residual stream: ask='*.residual'"
    if spells_frames(model.model):
        repair += "; in Python, use `ctc_alignment`"
    return repair


# ------------------------------------------------------------------ what each view needs


def _without_attention(model: Inspectable, name: str = "", kind: str = "attention") -> Obstacle:
    """`name` is what the name of an attention begins or ends with."""
    for stack, side in model.model.stacks().items():
        for attention in side.attentions():
            if f"{stack}.{attention}".endswith(name):
                return None
    return f"this model has no {kind}"


def _without_alignment(model: Inspectable) -> Obstacle:
    if spells_frames(model.model) or speaks(model.model):
        return None
    return _without_attention(model, ".cross", "cross-attention")


def spells_frames(core: CoreModel) -> bool:
    """Whether it gives a letter to each frame of a recording (CTC)."""
    heads = core.heads()
    return core.inputs[0].kind == "samples" and "labels" in heads and "pool" not in heads


def speaks(core: CoreModel) -> bool:
    """Whether it makes a sound of a text, each of whose tokens lasts for some frames."""
    heads = core.heads()
    return core.inputs[0].kind == "tokens" and ("spectrogram" in heads or "vocoder" in heads)


def reads_paths(model: Inspectable) -> bool:
    """Whether its input is given by a path that it reads itself: of a series, a trajectory, or a
    graph."""
    return model.model.inputs[0].kind in ("values", "nodes", "steps")


def _without_tokens(model: Inspectable) -> Obstacle:
    if model.accepts_text:
        return None
    if "memory" in model.model.stacks():
        return "this view needs tokens, but the model reads whole sentences"
    return "this view needs text inputs, but the model does not read text"


def _without_roles(model: Inspectable) -> Obstacle:
    # Links of the grammar are between words of the source, which the first stack reads.
    first = next(iter(model.model.stacks().values()), None)
    if first is None or not any(name.endswith(".self") for name in first.attentions()):
        return "head roles need self-attention, which the stack that reads the text lacks"
    return _without_tokens(model)


def _without_lens(model: Inspectable) -> Obstacle:
    from regard.core.stack import Stack  # imported late, for the command's help

    if model.model.lm_head is None:
        return "this model has no LM head (logits over a vocabulary)"
    *_, last = model.model.stacks().values()
    if isinstance(last, Stack):
        return None
    return "the last stack of this model has no residual stream"


def _without_attribution(model: Inspectable) -> Obstacle:
    if not model.model.stacks():
        return "a linear forecaster has no embeddings"
    return _without_tokens(model) if "memory" in model.model.stacks() else None


def _without_encodings(model: Inspectable) -> Obstacle:
    from regard.look.position_sources import positions_of, without_positions

    first = next(iter(model.model.stacks()), None)
    if first is None:
        return "a linear forecaster has no position encodings"
    if positions_of(model.model, first, 1) is None:
        return without_positions(model.model, first)
    return None


def _without_angles(model: Inspectable) -> Obstacle:
    from regard.core.stack import Stack

    # What came before compares queries and keys in other ways than by a product.
    if not any(isinstance(stack, Stack) for stack in model.model.stacks().values()):
        return "this model has no attention by products of queries and keys"
    return _without_attention(model)


def _without_neurons(model: Inspectable) -> Obstacle:
    from regard.look.probe_names import probes

    first = next(iter(model.model.stacks()), None)
    if f"{first}.0.feedforward.hidden" not in probes(model.model):
        return "this model has no feed-forward networks with neurons to show"
    return _without_tokens(model)


def _without_layers(model: Inspectable) -> Obstacle:
    if model.model.stacks():
        return None
    return "a linear forecaster has no layers with hidden states"


def _without_circuits(model: Inspectable) -> Obstacle:
    first = next(iter(model.model.stacks()), None)
    if first is None:
        return "a linear forecaster has no attention"
    return _without_tokens(model) or without_head_circuits(model, first)


def without_head_circuits(model: Inspectable, name: str) -> Obstacle:
    """Why the heads of a stack have no QK and OV circuits."""
    from regard.core.frontends.embedding import Embedding
    from regard.core.projection import SelfProjection
    from regard.core.stack import Stack

    stack = model.model.stacks()[name]
    if not isinstance(stack, Stack):
        return f"the {name} of this model has no self-attention with QK and OV circuits"
    attentions = [stack.block(number).attention for number in range(stack.layers)]
    if not all(isinstance(one.project, SelfProjection) for one in attentions):
        return "the queries, keys and values of this model do not have matrices of their own"
    if len({one.heads for one in attentions}) > 1:
        return "the layers of this model have different numbers of heads"
    if not isinstance(model.model.front_ends().get(name), Embedding):
        return f"the {name} of this model does not read tokens"
    return None


def _without_decoding(model: Inspectable) -> Obstacle:
    # The start tokens of sound are known when it has been read.
    is_framed = model.special_tokens is not None or model.medium is not None
    return None if model.model.writes and is_framed else "this model does not generate text"


def _without_cache(model: Inspectable) -> Obstacle:
    return None if model.model.writes else "this model has no KV cache or other decoding state"


# ------------------------------------------------------------------ the table

_SEARCH = ("beam", "penalty", "limit")
_SAMPLING = ("sample", "temperature", "top_k", "top_p", "min_p", "seed")

# In the order of `regard look --help`.
VIEWS = {
    "attention": View(
        "attention weights, head by head",
        _without_attention,
        ("target", "part", "layer", "head", "position"),
        ("*.weights",),
    ),
    "alignment": View(
        "which source tokens, or moments of speech, each target token attends to",
        _without_alignment,
        ("target", "layer", "head"),
        ("*.cross.weights",),
    ),
    "entropy": View(
        "attention entropy of each head; collapsed and idle heads",
        _without_attention,
        ("target",),
        ("*.weights",),
    ),
    "roles": View(
        "heads vs. grammar of the built-in language, or of --conllu (no text needed)",
        _without_roles,
        ("conllu",),
        takes_input=False,
    ),
    "ablation": View(
        "how much each head matters for this text",
        lambda model: _without_attention(model) or _without_tokens(model),
        ("target", *_SEARCH, *_SAMPLING),
    ),
    "patching": View(
        "which layers and positions carry the difference to --other (same token count)",
        _without_tokens,
        ("target", "other", "part"),
    ),
    "lens": View(
        "what each layer would predict (logit lens)",
        _without_lens,
        ("target",),
        # nostalgebraist 2020: the residual stream of each layer
        ("*.embedded", "*.residual"),
    ),
    "rollout": View(
        "attention through all layers",
        lambda model: _without_attention(model, ".self", "self-attention"),
        ("target", "part"),
        ("*.self.weights",),
    ),
    "neurons": View(
        "texts that excite neurons, and tokens they promote; of TEXT, or the lines of --texts",
        _without_neurons,
        ("texts", "part", "layer", "neuron"),
    ),
    "probe": View(
        "linear probes: --labels, --tags, or positions in --texts, read from each layer",
        _without_layers,
        ("labels", "tags", "texts", "part"),
        takes_input=False,
    ),
    "circuits": View(
        "induction and other heads, and their composition; with TEXT, QK and OV of one head",
        _without_circuits,
        ("part", "layer", "head"),
        needs_input=False,
    ),
    "angles": View(
        "scores of a head as lengths and angles of its queries and keys: |q| |k| cos θ",
        _without_angles,
        ("target", "part", "layer", "head"),
        ("*.weights",),
    ),
    "attribution": View("gradient × input", _without_attribution, ("target",)),
    "positions": View(
        "position encodings and their dot products (no text needed)",
        _without_encodings,
        ("part",),
        takes_input=False,
    ),
    "steps": View(
        "candidates at each step of decoding", _without_decoding, ("beam", "limit", *_SAMPLING)
    ),
    "beam": View("the beam search tree", _without_decoding, _SEARCH),
    "cache": View("how the KV cache grows", _without_cache),
}
