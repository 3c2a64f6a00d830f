"""Attention entropy, measured at each validation: how widely attention spreads its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from regard.core.probe import Probe
from regard.look.recording import weights_in_chunks

ROWS = 16  # of a batch that are measured: explicit weights of more would cost and show no more


@torch.inference_mode()
def attention_entropy(
    forward: Callable[[Probe], object], padding_masks: Mapping[str, Tensor | None]
) -> dict[str, Any]:
    """The mean entropy in nats over heads and positions: of each attention, and of all together.

    `forward` runs a few rows through the model with a probe. `padding_masks` has, for each stack
    whose positions attend, its mask [B, T] (True = token), or None if nothing is padded. The model
    must be in eval mode, so that no random number is drawn.
    """
    probe = Probe(["*.weights"])
    forward(probe)
    entropies: dict[str, float] = {}
    for name, call in probe.attentions.items():
        padding_mask = padding_masks[name.split(".")[0]]
        total = 0.0
        count = 0.0
        for positions, weights in weights_in_chunks(call):
            p = weights.double().clamp_min(0)  # [B, H, positions, keys]
            # Not torch.special.entr: on a GPU that is compiled at its first use.
            entropy = -torch.xlogy(p, p).sum(dim=-1).mean(dim=1)  # [B, positions]
            if padding_mask is None:
                counted = torch.ones_like(entropy)
            else:
                counted = padding_mask[:, positions].double()
            total += (entropy * counted).sum().item()
            count += counted.sum().item()
        # 0 is a head with all its weight on one key, log(keys) one that attends evenly.
        entropies[name] = total / max(1.0, count)
    if not entropies:
        return {}
    mean = sum(entropies.values()) / len(entropies)
    return {"attention_entropy": mean, "attention_entropies": entropies}
