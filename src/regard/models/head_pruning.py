"""Heads taken out of a finished model, which is then an ordinary one that has fewer."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from regard import edit
from regard import spec as kinds
from regard.core.attention import Attention
from regard.core.stack import Stack
from regard.errors import SettingError
from regard.look.head_importance import Importance
from regard.look.probe_names import Head, attentions, stacks, switched_off
from regard.models.base import Model

H = TypeVar("H", bound=Model)


def prunable(held: Model) -> dict[str, int]:
    """The attentions out of which heads can be taken, with how many they have; of a block that several layers apply, that of
    the first."""
    described, found, seen = _described(held.spec), dict[str, int](), set[int]()
    for name, part in attentions(held.model).items():  # type: ignore[arg-type]
        prefix, _, kind = name.rsplit(".", 2)
        if (
            isinstance(part, Attention)
            and id(part) not in seen
            and kinds.prunable(described[prefix], kind == "cross")
        ):
            found[name] = part.heads
        seen.add(id(part))
    return found


def chosen(held: Model, found: Importance, wanted: str) -> list[Head]:
    """Which heads to take out: a number of them, or a share such as 25%."""
    known = prunable(held)
    total, most = sum(known.values()), sum(known.values()) - len(known)
    if not known:
        raise SettingError(
            "this model has no heads that can be taken out", "give one with plain attention"
        )
    try:
        count = round(float(wanted[:-1]) / 100 * total) if wanted.endswith("%") else int(wanted)
    except ValueError:
        raise SettingError(f"{wanted!r} is no number of heads", "write it as 8 or 25%") from None
    if not 0 <= count <= most:
        raise SettingError(
            f"{count} of {total} heads cannot be taken out",
            f"one of each attention stays: at most {most}",
        )
    return found.least(count, known.__contains__)


def pruned(held: H, off: Sequence[Head]) -> H:
    """A copy without some heads, named as `regard.look` does (`("decoder.0.cross", 3)`): it says what the whole model says
    with these switched off, in fewer steps. A block that several layers apply loses them in all."""
    known = prunable(held)
    switched_off(held.model, off)  # type: ignore[arg-type]  # which says what is wrong with a name
    wrong = next((name for name, _ in off if name not in known), None)
    if wrong is not None:
        raise SettingError(
            f"heads cannot be taken out of {wrong}",
            f"those of {', '.join(known) or 'no attention'} can",
        )
    copied = copy.copy(held)
    copied.model = copy.deepcopy(held.model)
    gone: dict[str, set[int]] = {}
    for name, head in off:
        gone.setdefault(name, set()).add(head)
    parts: dict[str, Any] = attentions(copied.model)  # type: ignore[arg-type,assignment]
    for name, heads in gone.items():
        kept = [head for head in range(known[name]) if head not in heads]
        if not kept:
            raise SettingError(f"no head of {name} would be left", "leave at least one")
        edit.prune(parts[name], torch.tensor(kept))
    copied.spec = _redescribed(held.spec, stacks(copied.model))  # type: ignore[arg-type]
    return copied


def _described(model: kinds.Model) -> dict[str, Any]:
    """The stacks of a spec under the names that `look` has for them; those that are none can lose nothing."""
    match model:
        case kinds.EncoderDecoder():
            return {"encoder": model.encoder, "decoder": model.decoder}
        case kinds.Encoder():
            return {"encoder": model.stack}
        case kinds.Decoder():
            return {"decoder": model.stack}
        case kinds.DualEncoder():
            return {"text.encoder": model.text.stack, "image.encoder": model.image.stack}
        case _:
            return {}


def _redescribed(model: Any, made: dict[str, Any]) -> Any:
    match model:
        case kinds.EncoderDecoder():
            encoder, decoder = (
                _counted(model.encoder, made["encoder"]),
                _counted(model.decoder, made["decoder"]),
            )
            return replace(model, encoder=encoder, decoder=decoder)
        case kinds.DualEncoder():
            text, image = model.text, model.image
            return replace(
                model,
                text=replace(text, stack=_counted(text.stack, made["text.encoder"])),
                image=replace(image, stack=_counted(image.stack, made["image.encoder"])),
            )
        case _:
            (stack,) = made.values()
            return replace(model, stack=_counted(model.stack, stack))


def _counted(part: kinds.Stack, made: Stack) -> kinds.Stack:
    """The spec of a stack with the heads that it has."""
    blocks: list[Any] = list(made.blocks)
    cross = tuple(block.cross.heads for block in blocks if block.cross is not None)
    return kinds.with_heads(part, tuple(block.attention.heads for block in blocks), cross)
