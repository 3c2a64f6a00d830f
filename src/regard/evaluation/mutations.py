"""The effect of mutations by a masked language model, without training on any (Meier et al. 2021).

Where a text differs from the wild type, the wild type is masked there: the score is how much more
likely the model finds what stands in the text than what stood in the wild type.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.core.finite_outputs import require_finite
from regard.data.labelled import RatedText
from regard.evaluation.task import Outputs, Settings
from regard.models import TextEncoder
from regard.system.errors import DataError

BATCH_TOKENS = 4096


@torch.inference_mode()
def masked_marginals(
    model: TextEncoder, examples: Sequence[RatedText], settings: Settings
) -> Outputs:
    """Σ log p(x) − log p(wild type) over the places where a text differs, all masked alone.

    The wild type is what most texts have at each place: they are variants of one protein.
    """
    texts = [example.text for example in examples]
    rows = [model.tokens([text])["input_ids"][0] for text in texts]
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise DataError(
            f"the texts have {min(lengths)} to {max(lengths)} tokens",
            "give variants of one protein by substitutions only",
        )
    tokens = torch.stack(rows).cpu()  # [N, T]
    wild = tokens.mode(dim=0).values  # [T]
    places = (tokens != wild).any(dim=0).nonzero()[:, 0]
    log_p = _log_p_of_masked(model, wild, places)  # [places, V]
    gains = log_p.gather(1, tokens[:, places].T) - log_p.gather(1, wild[places, None])
    # A text that does not differ at a place gains nothing there.
    return Outputs(gains.sum(dim=0).tolist(), [example.score for example in examples])


def _log_p_of_masked(model: TextEncoder, wild: Tensor, places: Tensor) -> Tensor:
    """log p of all tokens at each place, which alone is masked: [places, V]."""
    model.model.eval()
    mask = model.tokenizer.required_token_id("mask")
    log_p = [torch.empty(0, len(model.tokenizer))]
    for some in places.split(max(1, BATCH_TOKENS // len(wild))):
        rows = torch.arange(len(some))
        masked = wild.repeat(len(some), 1)
        masked[rows, some] = mask
        hidden, _ = model.model(masked.to(model.device))
        logits = require_finite(model.model.head(hidden[rows, some]).float(), model.model)
        log_p.append(logits.log_softmax(dim=-1)[:, : len(model.tokenizer)].cpu())
    return torch.cat(log_p)
