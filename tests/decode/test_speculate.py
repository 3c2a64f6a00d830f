"""A draft changes nothing but the time: greedy text is the same, drawn text is drawn from the same distribution."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard import spec
from regard.bench.models import measured
from regard.build import build
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.sampling import filtered
from regard.decode.speculative_decoding import DraftModel, settle
from regard.decode.strategy import BeamSearch, Greedy, Limit, Sampling
from regard.errors import ModelError, SettingError
from regard.families import gpt2
from regard.model import Decoder
from regard.models.language_model import LanguageModel

ENDS = SpecialTokens(0, None, 2, (0,))


def made(seed: int, vocabulary: int = 9, layers: int = 1) -> Decoder:
    torch.manual_seed(seed)
    model = build(
        gpt2.preset("tiny", vocabulary, 64, layers=layers, d_model=16, heads=2)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    assert isinstance(model, Decoder)
    return model


class Counted:
    """A decoder that counts its steps."""

    def __init__(self, model: Decoder) -> None:
        self.calls = 0
        step = model.step

        def counting(*given: object) -> torch.Tensor:
            self.calls += 1
            return step(*given)  # type: ignore[arg-type]

        model.step = counting  # type: ignore[method-assign]


@pytest.mark.parametrize("ahead", [1, 3, 7])
@pytest.mark.parametrize("seed", range(4))
def test_greedy_text_is_the_same(seed: int, ahead: int) -> None:
    model, other = made(seed, layers=2), made(seed + 100)
    sources = [[3, 4, 5], [6], [7, 8, 3, 4]]
    settings = DecodingSettings(Greedy(), Limit(0, 13))
    wanted = decode(model, sources, ENDS, settings)
    found = decode(model, sources, ENDS, settings, draft=DraftModel(other, ahead))
    assert [h[0].tokens for h in found] == [h[0].tokens for h in wanted]
    assert [h[0].finished for h in found] == [h[0].finished for h in wanted]
    assert [h[0].log_probability for h in found] == pytest.approx(
        [h[0].log_probability for h in wanted], rel=1e-4
    )


def test_a_draft_that_agrees_saves_steps() -> None:
    model, twin = made(1), made(1)
    counted = Counted(model)
    settings = DecodingSettings(Greedy(), Limit(0, 20))
    ends = SpecialTokens(0, None, 2, (0, 2))  # never ends
    decode(model, [[3, 4]], ends, settings)
    plain, counted.calls = counted.calls, 0
    decode(model, [[3, 4]], ends, settings, draft=DraftModel(twin, 4))
    assert plain >= 20
    assert counted.calls <= 6  # one of the prompt, and twenty tokens five at a time


def test_what_is_kept_or_drawn_instead_is_drawn_from_the_sure_distribution() -> None:
    """Over many guesses from q, the outcomes are distributed as p, whatever q is."""
    chance = np.random.default_rng(0)
    p = torch.tensor([[0.5, 0.2, 0.0, 0.3]], dtype=torch.float64)
    for q in ([0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 1.0, 0.0], [0.5, 0.2, 0.0, 0.3]):
        doubts = torch.tensor([q], dtype=torch.float64)
        count = 20_000
        guesses = chance.choice(4, count, p=q)
        noise = chance.random((count, 1, 2))
        found = Counter(
            settle(p, doubts, [int(g)], n)[1] for g, n in zip(guesses, noise, strict=True)
        )
        shares = np.array([found[i] / count for i in range(4)])
        assert np.abs(shares - p[0].numpy()).max() < 0.015


def test_drawn_texts_are_distributed_as_the_model_alone_draws_them() -> None:
    """All texts of three tokens, by enumeration, against 3,000 drawn with a draft: a chi-squared test."""
    model, other = made(3, vocabulary=4), made(4, vocabulary=4)
    strategy = Sampling(temperature=1.3, top_p=0.97, seed=1)
    ends = SpecialTokens(0, None, -1, (0,))
    exact: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        longer: dict[tuple[int, ...], float] = {}
        for text, chance in exact.items():
            logits = model.head(model(torch.tensor([[1, *text]]))[0])[:, -1].detach()
            logits[:, 0] = float("-inf")
            probabilities, tokens = filtered(logits, strategy)
            for share, token in zip(probabilities[0].tolist(), tokens[0].tolist(), strict=True):
                longer[(*text, token)] = chance * share
        exact = longer
    count = 3000
    drawn = decode(
        model,
        [[1]] * count,
        ends,
        DecodingSettings(strategy, Limit(0, 3)),
        draft=DraftModel(other, 2),
    )
    found = Counter(h[0].tokens for h in drawn)
    assert set(found) <= {text for text, chance in exact.items() if chance > 0}
    likely = {text: chance * count for text, chance in exact.items() if chance * count >= 5}
    statistic = sum((found[text] - wanted) ** 2 / wanted for text, wanted in likely.items())
    assert len(likely) > 10
    assert statistic < len(likely) + 4 * (2 * len(likely)) ** 0.5


def test_what_cannot_have_a_draft_says_so() -> None:
    model, other = made(1), made(2)
    with pytest.raises(SettingError, match="beam"):
        decode(
            model,
            [[3]],
            ENDS,
            DecodingSettings(BeamSearch(2), Limit(0, 3)),
            draft=DraftModel(other),
        )
    window = build(
        spec.Decoder(
            16, spec.Tokens(9, None, dropout=0.0),
            spec.Stack(1, spec.Block(spec.Attention(2, 8, 8), spec.FeedForward(16), dropout=0.0), spec.CausalMask(2)),
        )
    ).eval()  # fmt: skip
    with pytest.raises(ModelError, match="forget"):
        decode(
            window, [[3]], ENDS, DecodingSettings(Greedy(), Limit(0, 9)), draft=DraftModel(other)
        )  # type: ignore[arg-type]


def test_a_language_model_takes_a_draft(tmp_path: Path) -> None:
    measured("gpt2-tiny").write(tmp_path)
    model, other = regard.load(tmp_path), regard.load(tmp_path)
    assert isinstance(model, LanguageModel)
    assert isinstance(other, LanguageModel)
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    wanted = model.generate("w10 w11", max_new_tokens=12)
    assert wanted
    assert model.generate("w10 w11", max_new_tokens=12, draft=other) == wanted
