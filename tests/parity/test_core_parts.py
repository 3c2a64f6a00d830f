"""Parts against the same parts in transformers."""

from __future__ import annotations

import pytest
import torch

from regard.core.feedforward import ACTIVATIONS
from regard.core.norm import RMSNorm
from regard.core.positions.relative_position import T5Bias, alibi_slopes
from regard.core.positions.rotary import Rope, banded_frequencies, rope_frequencies

pytest.importorskip("transformers")


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("count", "distance"), [(32, 128), (8, 20)])
def test_t5_buckets(both_ways: bool, count: int, distance: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    ahead = torch.arange(-300, 300)[None]
    theirs = T5Attention._relative_position_bucket(
        ahead, bidirectional=both_ways, num_buckets=count, max_distance=distance
    )
    assert torch.equal(T5Bias(2, count, distance, both_ways)._bucket(ahead), theirs)


def test_rope_in_halves() -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    q, k, positions = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8), torch.arange(5)
    angles = positions[:, None].float() * rope_frequencies(8, 10_000.0)
    both = torch.cat([angles, angles], -1)[None]
    theirs = apply_rotary_pos_emb(q, k, both.cos(), both.sin())
    rope = Rope(rope_frequencies(8, 10_000.0), "halves")
    for one, other in zip((q, k), theirs, strict=True):
        torch.testing.assert_close(rope.rotate(one, rope.angles(positions)), other)


def test_banded_scaling() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64, "rope_theta": 10_000.0,
    }  # fmt: skip
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        rope_parameters=parameters,
        max_position_embeddings=512,
    )
    theirs, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    torch.testing.assert_close(
        banded_frequencies(rope_frequencies(32, 10_000.0), 8.0, 1.0, 4.0, 64), theirs
    )


def test_rms_norms() -> None:
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    x = torch.randn(3, 10) * 5
    for theirs, offset in ((LlamaRMSNorm(10, 1e-6), 0.0), (GemmaRMSNorm(10, 1e-6), 1.0)):
        torch.nn.init.normal_(theirs.weight)
        ours = RMSNorm(10, 1e-6, offset)
        ours.weight.data.copy_(theirs.weight.data)
        torch.testing.assert_close(ours(x), theirs(x))


def test_activations() -> None:
    from transformers.activations import ACT2FN

    x = torch.linspace(-5, 5, 101)
    names = {
        "gelu_tanh": "gelu_new",
        "gelu": "gelu",
        "quick_gelu": "quick_gelu",
        "silu": "silu",
        "relu": "relu",
        "tanh": "tanh",
    }
    for ours, theirs in names.items():
        torch.testing.assert_close(ACTIVATIONS[ours](x), ACT2FN[theirs](x))


@pytest.mark.parametrize("heads", [1, 4, 6, 12, 16])
def test_alibi_slopes(heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    bias = build_alibi_tensor(torch.ones(1, 4), heads, torch.float32)[:, 0]  # slope · position
    torch.testing.assert_close(bias[:, 1] - bias[:, 0], alibi_slopes(heads))
