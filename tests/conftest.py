"""What several tests share: small models with settled randomness."""

from __future__ import annotations

import hypothesis
import pytest
import torch

from regard.build import build
from regard.families.transformer import transformer
from regard.model import EncoderDecoder

# A busy machine is not a failure, and a red run must be red again.
hypothesis.settings.register_profile("regard", deadline=None, derandomize=True)
hypothesis.settings.load_profile("regard")


@pytest.fixture(autouse=True)
def _settled() -> None:
    torch.manual_seed(0)


def small_model(
    vocabulary: int = 23, seed: int = 0, sharp: float = 2.0, **changes: object
) -> EncoderDecoder:
    """A random model whose predictions are far from uniform, so that searches have something to decide."""
    torch.manual_seed(seed)
    options = {"d_model": 24, "d_ff": 40, "heads": 3, "layers": 2, "dropout": 0.0} | changes
    model = build(transformer(vocabulary, vocabulary, **options))  # type: ignore[arg-type]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "table" not in name:
                parameter.mul_(sharp)
    return model.eval()
