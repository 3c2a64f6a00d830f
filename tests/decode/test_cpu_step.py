"""The decoding step in C++ gives what the ordinary operators give, for every part that it has."""

from __future__ import annotations

import itertools
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from regard.builder import build, edit
from regard.core.amx import SlowerKernelsWarning
from regard.core.kernels import cpu_step
from regard.decode import beam_search, fused_cpu_step, fused_step
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.constraints import Constraints
from regard.decode.strategy import BeamSearch, Greedy, Limit, PowerPenalty, Sampling
from regard.decode.topk import top_tokens
from regard.families.presets import preset
from regard.wirings.generative import Generative

pytestmark = pytest.mark.skipif(cpu_step.library() is None, reason="no C++ compiler")
PRECISIONS = ("float32", "int8")


def model_of(name: str, precision: str | None, **changes: Any) -> Generative:
    """A tiny model with norms and biases that count."""
    model = cast(Generative, build(preset(f"{name}:tiny", 90, 64, **changes)).eval())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    if precision is not None:
        edit.pack_weights(model, precision)
    return model


def logits_of(step: Any, model: Generative, tokens: Tensor, padded: bool) -> Tensor:
    """The logits of tokens [rows, T], read one by one."""
    sources = torch.arange(12).repeat(len(tokens), 1) + 5
    mask = None
    if padded and model.reads_target:
        mask = torch.arange(12) < torch.tensor([12, 7, 1])[:, None]
    with torch.inference_mode():
        state = model.start(model.encode(sources, mask), capacity=tokens.shape[1])
        steps = [step(model, token, state) for token in tokens.split(1, dim=1)]
    return torch.cat(steps, dim=1)


def ordinary(model: Generative, tokens: Tensor, state: Any) -> Tensor:
    return model.step(tokens, state)


def fused(model: Generative, tokens: Tensor, state: Any) -> Tensor:
    logits = fused_cpu_step.step(model, tokens, state)
    assert logits is not None, "this model takes it"
    return logits


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("transformer", {}),
        ("transformer", {"residual": "pre"}),
        ("transformer", {"norm": "rms", "activation": "silu"}),
        ("transformer", {"activation": "tanh", "heads": 2}),
        ("bart", {}),
        ("gpt1", {}),
        ("gpt2", {}),
        ("gpt2", {"position": "none", "activation": "quick_gelu"}),
        ("llama", {"position": "learned"}),  # RMSNorm, SwiGLU, key heads
    ],
)
def test_logits_are_those_of_the_ordinary_step(
    name: str, changes: dict[str, Any], precision: str
) -> None:
    model = model_of(name, precision, **changes)
    if precision == "int8" and not cpu_step.library().has_int8():
        pytest.skip("no AVX-512 VNNI")
    tokens = torch.randint(4, 90, (3, 20))
    found = logits_of(fused, model, tokens, padded=True)
    wanted = logits_of(ordinary, model, tokens, padded=True)
    if precision == "float32":
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    else:  # each rounds the inputs of products to 8 bits in a way of its own
        assert (found - wanted).std() < 0.05 * wanted.std()


@pytest.mark.parametrize("name", ["llama", "t5", "lstm-lm", "mistral", "universal"])
def test_other_parts_take_the_ordinary_way(name: str) -> None:
    model = model_of(name, "float32")
    tokens = torch.randint(4, 90, (3, 1))
    sources = torch.arange(12).repeat(3, 1) + 5
    state = model.start(model.encode(sources), capacity=4)
    assert fused_cpu_step.step(model, tokens, state) is None


def test_weights_that_may_change_take_the_ordinary_way() -> None:
    model = model_of("transformer", None)
    state = model.start(model.encode(torch.arange(5)[None]), capacity=4)
    assert fused_cpu_step.step(model, torch.tensor([[4]]), state) is None


@pytest.mark.parametrize("precision", PRECISIONS)
def test_no_row_depends_on_another(precision: str) -> None:
    """To the last bit, in int8 too: inputs are rounded row by row."""
    model = model_of("transformer", precision)
    tokens = torch.randint(4, 90, (3, 9))
    together = logits_of(fused_step.step, model, tokens, padded=False)
    for row, single in enumerate(tokens.split(1)):
        alone = logits_of(fused_step.step, model, single, padded=False)
        assert torch.equal(alone[0], together[row])


STRATEGIES = (
    Greedy(),
    Sampling(seed=3, top_k=10),
    *(
        BeamSearch(3, PowerPenalty(penalty), n_best=2, slots=slots, stop=stop)  # type: ignore[arg-type]
        for penalty, slots, stop in itertools.product(
            (0.0, 1.0), ("released", "refilled"), ("full", "likely", "certain")
        )
    ),
)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_searches_find_the_same(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("transformer", "float32")
    sources = [[5 + i * k % 80 for i in range(3 + 4 * k)] for k in range(1, 7)]
    special = SpecialTokens(0, 1, 2, banned=(0, 1), extra_ends=(3, 4, 5, 6, 7))
    settings = DecodingSettings(strategy, Limit(1.0, 12), workers=1)
    found = decode(model, sources, special, settings)
    monkeypatch.setattr(cpu_step, "library", lambda: None)
    fused_cpu_step._PLANS.clear()
    wanted = decode(model, sources, special, settings)
    for ours, theirs in zip(found, wanted, strict=True):
        assert [(one.tokens, one.finished) for one in ours] == [
            (one.tokens, one.finished) for one in theirs
        ]
        for one, two in zip(ours, theirs, strict=True):
            assert one.score == pytest.approx(two.score, abs=1e-4)
            assert one.log_probability == pytest.approx(two.log_probability, abs=1e-4)


def test_top_tokens_and_their_normalizer(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = 5 * torch.randn(7, 1003)
    logits[:, 17] = float("-inf")
    logits[2, 5:9] = 40.0  # equals: the first come first
    values, tokens, normalizer = cpu_step.top(logits, 6)
    assert torch.equal(values, logits.topk(6).values)
    assert torch.equal(logits.gather(1, tokens), values)
    assert tokens[2, :4].tolist() == [5, 6, 7, 8]
    torch.testing.assert_close(normalizer, logits.logsumexp(dim=1))
    logits[3, 700] = float("nan")
    assert top_tokens(logits, 6)[2].isnan().tolist() == [row == 3 for row in range(7)]


def test_nan_is_not_hidden() -> None:
    """A model whose weights overflow is reported, as with the ordinary operators."""
    model = model_of("transformer", "float32")
    with torch.no_grad():
        model.front_ends()["decoder"].table.weight[7] = float("nan")
    state = model.start(model.encode(torch.arange(8, 13)[None]), capacity=2)
    logits = fused(model, torch.tensor([[7]]), state)[:, 0]
    assert cpu_step.top(logits, 2)[2].isnan().all()


def test_without_a_compiler_it_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    load = cpu_step.library.__wrapped__
    with pytest.warns(SlowerKernelsWarning, match="no C\\+\\+ compiler"):
        assert load() is None


def test_a_source_that_does_not_compile_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    source = tmp_path / "broken.cpp"
    source.write_text("this is no C++")
    monkeypatch.setattr(cpu_step, "SOURCE", source)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    with pytest.warns(SlowerKernelsWarning, match="not compiled"):
        assert cpu_step.library.__wrapped__() is None
    assert not [*tmp_path.glob("kernels/*")]


def test_beams_that_share_rows_read_what_they_descend_from() -> None:
    """A beam search is the same whether beams share a row of the cache or have one each."""
    model = model_of("transformer", "float32")
    strategy = BeamSearch(4)
    constraints = Constraints(
        start_tokens=torch.ones(2, 1, dtype=torch.long),
        limits=torch.tensor([9, 7]),
        end=2,
        banned=torch.tensor([0]),
    )
    encoded = model.encode(torch.randint(4, 90, (2, 6)))
    found = []
    for most in (64, 1):
        with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
            patch.setattr("regard.core.caches.kv_cache.MOST_SHARED_BEAMS", most)
            found.append(beam_search.search(model, encoded, strategy, constraints))
    assert found[0] == found[1]
