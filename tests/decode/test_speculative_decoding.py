"""Speculative decoding changes nothing but the time.

Greedy text is the same; sampled text has the distribution of the target model.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard import spec
from regard.builder import build
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.greedy_and_sampling import filtered_distribution
from regard.decode.speculative_decoding import DraftModel, accept_or_resample
from regard.decode.strategy import BeamSearch, Greedy, Limit, Sampling
from regard.families.decoders import gpt2
from regard.lab.bench.models import benchmark_model
from regard.models.language_model import LanguageModel
from regard.system.errors import ModelError, SettingError
from regard.wirings.decoder import Decoder

SPECIAL_TOKENS = SpecialTokens(0, None, 2, (0,))


def small_decoder(seed: int, vocabulary: int = 9, layers: int = 1) -> Decoder:
    torch.manual_seed(seed)
    model = build(gpt2.preset("tiny", vocabulary, 64, layers=layers, d_model=16, heads=2)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    assert isinstance(model, Decoder)
    return model


class StepCounter:
    """Counts the steps of a decoder."""

    def __init__(self, model: Decoder) -> None:
        self.calls = 0
        step = model.step

        def counting(*arguments: object) -> torch.Tensor:
            self.calls += 1
            return step(*arguments)  # type: ignore[arg-type]

        model.step = counting  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize("proposals", [1, 3, 7])
@pytest.mark.parametrize("seed", range(4))
def test_greedy_text_is_the_same(seed: int, proposals: int) -> None:
    model = small_decoder(seed, layers=2)
    draft = DraftModel(small_decoder(seed + 100), proposals)
    sources = [[3, 4, 5], [6], [7, 8, 3, 4]]
    settings = DecodingSettings(Greedy(), Limit.fixed(13))
    expected = decode(model, sources, SPECIAL_TOKENS, settings)
    results = decode(model, sources, SPECIAL_TOKENS, settings, draft=draft)
    assert [h[0].tokens for h in results] == [h[0].tokens for h in expected]
    assert [h[0].finished for h in results] == [h[0].finished for h in expected]
    assert [h[0].log_probability for h in results] == pytest.approx(
        [h[0].log_probability for h in expected], rel=1e-4
    )


def test_a_draft_that_agrees_saves_steps() -> None:
    model = small_decoder(1)
    twin = small_decoder(1)
    counter = StepCounter(model)
    settings = DecodingSettings(Greedy(), Limit.fixed(20))
    endless = SpecialTokens(0, None, 2, (0, 2))
    decode(model, [[3, 4]], endless, settings)
    assert counter.calls >= 20
    counter.calls = 0
    decode(model, [[3, 4]], endless, settings, draft=DraftModel(twin, 4))
    assert counter.calls <= 6  # one of the prompt, and twenty tokens five at a time


def test_accepted_or_resampled_tokens_have_the_target_distribution() -> None:
    """Over many proposals from q, the outcomes are distributed as p, whatever q is."""
    generator = np.random.default_rng(0)
    count = 20_000
    target = torch.tensor([0.5, 0.2, 0.0, 0.3], dtype=torch.float64)
    for q in ([0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 1.0, 0.0], [0.5, 0.2, 0.0, 0.3]):
        draft = torch.tensor(q, dtype=torch.float64)
        proposals = generator.choice(4, count, p=q)
        outcomes: Counter[int] = Counter()
        for proposal, noise in zip(proposals, generator.random((count, 2)), strict=True):
            _, token = accept_or_resample(target, draft, int(proposal), noise)
            outcomes[token] += 1
        shares = np.array([outcomes[token] / count for token in range(4)])
        assert np.abs(shares - target.numpy()).max() < 0.015


@pytest.mark.slow
def test_sampled_texts_have_the_distribution_of_the_model_alone() -> None:
    """All texts of three tokens, enumerated, against 3,000 sampled ones: a chi-squared test."""
    model = small_decoder(3, vocabulary=4)
    draft = DraftModel(small_decoder(4, vocabulary=4), 2)
    strategy = Sampling(temperature=1.3, top_p=0.97, seed=1)
    special_tokens = SpecialTokens(0, None, -1, (0,))
    exact: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        longer: dict[tuple[int, ...], float] = {}
        for text, probability in exact.items():
            logits = model.head(model(torch.tensor([[1, *text]]))[0])[:, -1].detach()
            logits[:, 0] = float("-inf")
            probabilities, tokens = filtered_distribution(logits, strategy)
            for share, token in zip(probabilities[0].tolist(), tokens[0].tolist(), strict=True):
                longer[(*text, token)] = probability * share
        exact = longer
    count = 3000
    settings = DecodingSettings(strategy, Limit.fixed(3))
    results = decode(model, [[1]] * count, special_tokens, settings, draft=draft)
    counts = Counter(h[0].tokens for h in results)
    assert set(counts) <= {text for text, probability in exact.items() if probability > 0}
    # The usual rule of the chi-squared test: cells that are expected at least five times.
    expected = {text: p * count for text, p in exact.items() if p * count >= 5}
    statistic = sum((counts[text] - number) ** 2 / number for text, number in expected.items())
    assert len(expected) > 10
    assert statistic < len(expected) + 4 * (2 * len(expected)) ** 0.5


def test_what_cannot_have_a_draft_is_refused() -> None:
    model = small_decoder(1)
    draft = DraftModel(small_decoder(2))
    beam = DecodingSettings(BeamSearch(2), Limit.fixed(3))
    with pytest.raises(SettingError, match="beam"):
        decode(model, [[3]], SPECIAL_TOKENS, beam, draft=draft)
    block = spec.Block(spec.Attention(2, 8, 8), spec.FeedForward(16), dropout=0.0)
    stack = spec.Stack.of(1, block, spec.CausalMask(2))
    window = build(spec.Decoder(16, spec.Tokens(9, None, dropout=0.0), stack)).eval()
    assert isinstance(window, Decoder)
    greedy = DecodingSettings(Greedy(), Limit.fixed(9))
    with pytest.raises(ModelError, match="cannot be rewound"):
        decode(window, [[3]], SPECIAL_TOKENS, greedy, draft=draft)


def test_a_language_model_takes_a_draft(tmp_path: Path) -> None:
    benchmark_model("gpt2-tiny").write(tmp_path)
    model = regard.load(tmp_path)
    draft = regard.load(tmp_path)
    assert isinstance(model, LanguageModel)
    assert isinstance(draft, LanguageModel)
    with torch.no_grad():
        for parameter in draft.model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    expected = model.generate("w10 w11", max_new_tokens=12)
    assert expected
    assert model.generate("w10 w11", max_new_tokens=12, draft=draft) == expected
