"""Searches recorded as CUDA graphs, with fused steps, find what plain ones find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_search import LIMIT, SPECIAL_TOKENS, STRATEGIES, eager_model, sources, tokens_of

from conftest import small_model
from regard import spec
from regard.builder import build
from regard.core.linear import Linear
from regard.decode import cuda_graphs, fused_step
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.continuous_batching import ContinuousBatch
from regard.decode.jobs import Job, Prefill
from regard.decode.strategy import BeamSearch, Greedy, Hypothesis, Sampling, Strategy
from regard.families import folder as folders
from regard.families.decoders import gpt2
from regard.models.saving import cast
from zoo import ZOO, perturb

pytestmark = pytest.mark.gpu

Model = Any


def language_model(description: spec.Model) -> Model:
    torch.manual_seed(0)
    model = build(description).eval()
    perturb(model, 0.3)
    return model


def llama() -> spec.Model:
    _, _, options = ZOO["llama"]
    config = {**options, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    # Heads of 32: a width that the fused kernels take.
    wide = {"hidden_size": 128, "num_attention_heads": 4, "tie_word_embeddings": False}
    return folders.FAMILIES["llama"].to_spec({**config, **wide, "rms_norm_eps": 1e-5})


MODELS: dict[str, Callable[[], Model]] = {
    "translator": eager_model,
    "fused translator": lambda: small_model(d_model=64, d_ff=96, heads=2, sharp=1.5),
    "gpt": lambda: language_model(gpt2.preset("tiny", 61, 64, d_model=64, heads=2, layers=2)),
    "llama": lambda: language_model(llama()),
}
FUSED = ("fused translator", "gpt", "llama")


def special_tokens_of(model: Model) -> SpecialTokens:
    if model.padding_side == "left":  # a language model continues its prompt
        return SpecialTokens(pad=0, start=None, end=2, banned=(0, 1))
    return SPECIAL_TOKENS


def run(model: Model, strategy: Strategy, batch_tokens: int = 4096) -> list[list[Hypothesis]]:
    settings = DecodingSettings(strategy, LIMIT, batch_tokens)
    return decode(model, sources(24), special_tokens_of(model), settings)


def run_plainly(model: Model, strategy: Strategy, batch_tokens: int) -> list[list[Hypothesis]]:
    """Step by step, with growing caches, one module after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_graphs, "enabled", lambda device: False)
        patch.setattr(fused_step, "_takes_kernels", lambda tokens: False)
        return run(model, strategy, batch_tokens)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_recorded_searches_find_what_plain_ones_find(name: str, strategy: Strategy) -> None:
    model = MODELS[name]().cuda()
    for batch_tokens in (4096, 1):
        expected = run_plainly(model, strategy, batch_tokens)
        # Recorded, and replayed twice: from the second search on also the prefill.
        for _ in range(3):
            results = run(model, strategy, batch_tokens)
            assert tokens_of(results) == tokens_of(expected)
            for row, expected_row in zip(results, expected, strict=True):
                for one, other in zip(row, expected_row, strict=True):
                    assert one.log_probability == pytest.approx(other.log_probability, abs=2e-3)


@pytest.mark.parametrize("name", MODELS)
def test_a_gpu_finds_what_a_cpu_finds(name: str) -> None:
    model = MODELS[name]()
    expected = run(model, BeamSearch(3))
    results = run(model.cuda(), BeamSearch(3))
    same = [
        one == other for one, other in zip(tokens_of(results), tokens_of(expected), strict=True)
    ]
    assert sum(same) >= len(same) - 1  # two beams may be equal up to rounding


@pytest.mark.parametrize("rows", [1, 3])
def test_weights_of_any_layout_give_the_same_step(rows: int) -> None:
    """Files of GPT-2 have transposed weights, which a kernel would read as others."""
    model = MODELS["gpt"]().cuda()
    tokens = torch.randint(4, 61, (rows, 9), device="cuda")

    def logits() -> torch.Tensor:
        state = model.start(model.encode(tokens, None), capacity=4)
        assert state.make_static()
        with torch.no_grad():
            return fused_step.step(model, tokens[:, :1], state)

    expected = logits()
    for part in model.modules():
        if isinstance(part, Linear):
            part.weight.data = part.weight.data.T.contiguous().T
    torch.testing.assert_close(logits(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(4)], ids=str)
def test_recorded_searches_in_bfloat16(name: str, strategy: Strategy) -> None:
    """The same each time; rounding may decide otherwise than in plain steps."""
    model = MODELS[name]().cuda()
    cast(model, torch.bfloat16)
    plain = tokens_of(run_plainly(model, strategy, 4096))
    first = tokens_of(run(model, strategy))
    for _ in range(2):
        assert tokens_of(run(model, strategy)) == first
    same = [one[0] == other[0] for one, other in zip(first, plain, strict=True)]
    assert sum(same) >= 0.5 * len(same)  # of random weights, which have no clear favourites


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("strategy", [Greedy(), Sampling(0.9, seed=5), BeamSearch(3)], ids=str)
@torch.inference_mode()
def test_texts_that_join_and_leave_find_what_batches_find(name: str, strategy: Strategy) -> None:
    """Slots: sources are read together, and several steps taken at once from CUDA graphs."""
    model = MODELS[name]().cuda()
    settings = DecodingSettings(strategy, LIMIT)
    special = special_tokens_of(model)
    jobs = [Job(one, special, settings, key=key) for key, one in enumerate(sources(24))]
    batch = ContinuousBatch(model, 128)
    waiting = [*jobs]
    while waiting or batch.owners:
        if waiting:
            prefill = Prefill(model, waiting[:5], 512)
            while not prefill.done:
                prefill()
            batch.join(prefill)
            del waiting[:5]
        batch.step(4)
    expected = tokens_of(run(model, strategy))
    found = tokens_of([[one for it in job.searches for one in it.hypotheses or ()] for job in jobs])
    same = [one == other for one, other in zip(found, expected, strict=True)]
    assert sum(same) >= len(same) - 1  # two tokens may be equal up to rounding
