"""How widely a model looks while it learns: attention entropy, measured when it is validated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from regard.core.probe import Probe
from regard.look.recording import weights_in_chunks

ROWS = 16  # of a batch that are looked at; explicit weights of more would tell the same


@torch.inference_mode()
def gaze(
    forward: Callable[[Probe], object], padding_mask: Mapping[str, Tensor | None]
) -> dict[str, Any]:
    """The mean entropy in nats over heads and places: of each attention, and of all of them together.

    `forward` runs a few rows through the model with a trace; `real` says, by the stack that looks, which places are none of
    padding ([B, T], or None for all). The model must be at rest, so that no random number is drawn.
    """
    probe = Probe(["*.weights"])
    forward(probe)
    found = {}
    for name, call in probe.attentions.items():
        places = padding_mask[name.split(".")[0]]
        total = count = 0.0
        for rows, weights in weights_in_chunks(call):
            p = weights.double().clamp_min(0)
            nll = (
                -torch.xlogy(p, p).sum(dim=-1).mean(dim=1)
            )  # [B, rows]; entr would be compiled at its first use
            seen = torch.ones_like(nll) if places is None else places[:, rows].double()
            total, count = total + (nll * seen).sum().item(), count + seen.sum().item()
        found[name] = total / max(1.0, count)
    if not found:
        return {}
    return {"attention_entropy": sum(found.values()) / len(found), "attention_entropies": found}
