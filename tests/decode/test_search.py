"""Searches agree with each other, with brute force, and with themselves in other company."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import small_model
from regard.build import build
from regard.decode import beam_search, cuda_graphs
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, batches, decode
from regard.decode.constraints import Constraints
from regard.decode.sampling import choose
from regard.decode.strategy import (
    BeamSearch,
    GNMTPenalty,
    Greedy,
    Hypothesis,
    Limit,
    PowerPenalty,
    Sampling,
)
from regard.decode.topk import top
from regard.errors import SettingError
from regard.families.gpt2 import preset
from regard.model import Decoder, EncoderDecoder

ENDS = SpecialTokens(pad=0, start=1, end=2, banned=(0, 1, 3))
LIMIT = Limit(1.0, 5)
STRATEGIES = [
    Greedy(),
    BeamSearch(4, n_best=4),
    BeamSearch(3, PowerPenalty(1.0)),
    Sampling(0.9, top_k=9, top_p=0.95, min_p=0.01, seed=5),
]


def eager_model(vocabulary: int = 23, seed: int = 0) -> EncoderDecoder:
    """A model that likes to end, so that lengths differ."""
    model = small_model(vocabulary, seed)
    with torch.no_grad():
        model.head.table.weight[ENDS.end] *= 2.5
    return model


def sources(count: int, vocabulary: int = 23, seed: int = 0) -> list[list[int]]:
    chance = random.Random(seed)
    return [
        [*(chance.randrange(4, vocabulary) for _ in range(chance.randrange(1, 12))), 2]
        for _ in range(count)
    ]


def run(
    model: EncoderDecoder, texts: list[list[int]], strategy: object, tokens: int = 4096
) -> list[list[Hypothesis]]:
    return decode(model, texts, ENDS, DecodingSettings(strategy, LIMIT, tokens))  # type: ignore[arg-type]


def test_lengths_of_the_test_model_differ() -> None:
    found = [h[0] for h in run(eager_model(), sources(40), Greedy())]
    assert {h.finished for h in found} == {True, False}
    assert len({len(h.tokens) for h in found}) > 4


@pytest.mark.parametrize(
    "penalty", [GNMTPenalty(0.6), GNMTPenalty(0.0), PowerPenalty(1.0), PowerPenalty(-0.5)]
)
def test_beam_one_is_greedy(penalty: GNMTPenalty | PowerPenalty) -> None:
    for seed in range(3):
        model, texts = eager_model(seed=seed), sources(40, seed=seed)
        greedy, one = run(model, texts, Greedy()), run(model, texts, BeamSearch(1, penalty))
        assert [h[0].tokens for h in greedy] == [h[0].tokens for h in one]
        assert [h[0].log_probability for h in greedy] == pytest.approx(
            [h[0].log_probability for h in one], rel=1e-4
        )


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_turns_that_are_all_alike_find_the_same(
    strategy: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As GPUs record them: states of fixed shape, finished sentences that stay for a while."""
    model, texts = eager_model(), sources(30)
    wanted = run(model, texts, strategy)
    monkeypatch.setattr(cuda_graphs, "recordable", lambda device: True)
    monkeypatch.setattr(cuda_graphs, "CHECKED", 3)
    monkeypatch.setattr(cuda_graphs, "EARLY", 1)
    found = run(model, texts, strategy)
    assert [[h.tokens for h in row] for row in found] == [[h.tokens for h in row] for row in wanted]
    assert [row[0].finished for row in found] == [row[0].finished for row in wanted]
    assert [row[0].log_probability for row in found] == pytest.approx(
        [row[0].log_probability for row in wanted], rel=1e-4
    )


@pytest.mark.parametrize(("running", "expected"), [(4, []), (3, []), (2, [16, 32]), (0, [16, 32])])
def test_recorded_turns_are_looked_at_when_half_have_left(
    running: int, expected: list[int]
) -> None:
    going = torch.arange(4) < running
    repeat = cuda_graphs.GraphedLoop(lambda going: None, going, record=True, model=eager_model())
    assert [step for step in range(40) if repeat.due(step, lambda going: going)] == expected
    plain = cuda_graphs.GraphedLoop(lambda going: None, going, record=False, model=eager_model())
    assert all(plain.due(step, lambda going: going) == (step > 0) for step in range(5))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_neighbours_do_not_matter_and_order_is_kept(strategy: object) -> None:
    model, texts = eager_model(), sources(30)
    together = run(model, texts, strategy)
    for tokens in (1, 64):
        alone = run(model, texts, strategy, tokens)
        for one, other in zip(together, alone, strict=True):
            assert [h.tokens for h in one] == [h.tokens for h in other]
            assert [h.score for h in one] == pytest.approx([h.score for h in other], rel=1e-4)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_cores_that_share_the_work_find_the_same(strategy: object) -> None:
    model, texts, threads = eager_model(), sources(30), torch.get_num_threads()
    seen: list[int] = []
    try:
        found = []
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append(
                decode(model, texts, ENDS, DecodingSettings(strategy, LIMIT), progress=seen.append)
            )  # type: ignore[arg-type]
            assert torch.get_num_threads() == count
        with pytest.raises(IndexError):
            decode(model, [*texts[:-1], [99]], ENDS, DecodingSettings(strategy, LIMIT))  # type: ignore[arg-type]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert seen == [30, 10, 10, 10]
    for one, other in zip(*found, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]
        assert [h.score for h in one] == pytest.approx([h.score for h in other], rel=1e-4)


def test_long_outputs_of_many_rows_are_those_of_one_row() -> None:
    """More tokens than a state has room for at first, and enough rows for the kernel of many."""
    model, texts, long = small_model(23, 3), sources(24, seed=3), Limit(0.0, 40)
    few, many = (
        decode(model, texts, ENDS, DecodingSettings(Greedy(), long, tokens)) for tokens in (1, 4096)
    )
    assert max(len(h[0].tokens) for h in many) == 40
    assert [h[0].tokens for h in few] == [h[0].tokens for h in many]
    assert [h[0].score for h in few] == pytest.approx([h[0].score for h in many], rel=1e-4)


@given(st.integers(1, 5), st.integers(1, 3000), st.integers(1, 12), st.integers(0, 100))
def test_the_best_of_many_scores(rows: int, length: int, count: int, seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    scores = torch.randint(50 * length, (rows, length), generator=chance).float() / (5 * length)
    count = min(count, length)
    values, places, normaliser = top(scores, count)
    assert torch.equal(values, scores.sort(dim=1, descending=True).values[:, :count])
    assert torch.equal(values, scores.gather(1, places))
    assert all(len(set(row)) == count for row in places.tolist())
    assert torch.allclose(normaliser, scores.logsumexp(dim=1), atol=1e-4)
    assert torch.equal(top(scores, 1)[1][:, 0], scores.argmax(dim=1))


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 100))
def test_every_sentence_is_in_one_batch_within_the_budget(lengths: list[int], tokens: int) -> None:
    groups = batches(lengths, DecodingSettings(BeamSearch(2), tokens=tokens))
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    assert all(len(g) == 1 or len(g) * 2 * max(lengths[i] for i in g) <= tokens for g in groups)


class Chain:
    """Stands in for a model: the next token depends on the last one and the step, by a random table."""

    def __init__(self, seed: int, steps: int, vocabulary: int = 8) -> None:
        chance = torch.Generator().manual_seed(seed)
        self.table = torch.randn(steps, vocabulary, vocabulary, generator=chance) * 2
        self.position = 0

    def start(self, encoded: object, *, width: int, capacity: int) -> Chain:
        self.position = 0
        return self

    def step(self, tokens: torch.Tensor, state: Chain) -> torch.Tensor:
        self.position += 1
        return self.table[self.position - 1][tokens]

    def reorder(self, rows: torch.Tensor) -> None:
        """The table needs no memory of the rows."""

    keep = reorder

    def share(self) -> None:
        """Nor has it rows to share."""


CHAIN = Constraints(
    torch.ones(4, 1, dtype=torch.long), torch.tensor([2, 5, 9, 12]), end=2, banned=torch.tensor([0])
)


def refilled(
    chain: Chain, limit: int, width: int, penalty: GNMTPenalty | PowerPenalty, stop: str
) -> list[tuple[float, list[int]]]:
    """The rule of refilled places, with lists: `never` stops at the limit only."""
    going: list[tuple[float, list[int]]] = [(0.0, [])]
    done: list[tuple[float, list[int]]] = []
    for t in range(limit):
        rows = torch.stack([chain.table[t][ids[-1] if ids else 1] for _, ids in going])
        rows[:, 0] = float("-inf")
        steps = rows.log_softmax(-1).tolist()
        ways = [
            (total + step, [*ids, i])
            for (total, ids), row in zip(going, steps, strict=True)
            for i, step in enumerate(row)
        ]
        ways = sorted((way for way in ways if way[0] > float("-inf")), reverse=True)[: 2 * width]
        ended = [way for way in ways[:width] if way[1][-1] == 2 or t + 1 == limit]
        done = sorted(
            done + [(total / penalty.divisor(t + 1), ids) for total, ids in ended], reverse=True
        )[:width]
        going = [way for way in ways if way[1][-1] != 2][:width]
        likely = (
            bool(going)
            and len(done) == width
            and done[-1][0] >= going[0][0] / penalty.divisor(t + 1)
        )
        if not going or (stop == "full" and len(done) == width) or (stop == "likely" and likely):
            break
    return done


@settings(max_examples=100)
@given(
    st.integers(0, 2**31), st.integers(1, 5),
    st.sampled_from([GNMTPenalty(0.6), GNMTPenalty(3.0), PowerPenalty(1.0), PowerPenalty(2.0), PowerPenalty(0.0), PowerPenalty(-1.0)]),
)  # fmt: skip
def test_refilled_places_against_lists(
    seed: int, width: int, penalty: GNMTPenalty | PowerPenalty
) -> None:
    """Stopping by certainty gives what never stopping gives; the other rules stop where the lists do."""
    for stop, other in (("certain", "never"), ("likely", "likely"), ("full", "full")):
        strategy = BeamSearch(width, penalty, width if stop != "certain" else 1, "refilled", stop)  # type: ignore[arg-type]
        found = beam_search.search(Chain(seed, 12), None, strategy, CHAIN)  # type: ignore[arg-type]
        for limit, hypotheses in zip(CHAIN.limits.tolist(), found, strict=True):
            wanted = refilled(Chain(seed, 12), limit, width, penalty, other)[: strategy.n_best]
            assert [[*h.tokens, 2] if h.finished else [*h.tokens] for h in hypotheses] == [
                ids for _, ids in wanted
            ]
            assert [h.score for h in hypotheses] == pytest.approx(
                [score for score, _ in wanted], rel=1e-4
            )


@settings(max_examples=150)
@given(
    st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 3),
    st.sampled_from([GNMTPenalty(0.6), GNMTPenalty(3.0), PowerPenalty(1.0), PowerPenalty(2.0), PowerPenalty(0.0), PowerPenalty(-1.0)]),
)  # fmt: skip
def test_stopping_early_never_changes_the_answer(
    seed: int, width: int, best: int, penalty: GNMTPenalty | PowerPenalty
) -> None:
    certain, full = (
        beam_search.search(
            Chain(seed, 12), None, BeamSearch(width, penalty, min(best, width), stop=stop), CHAIN
        )  # type: ignore[arg-type]
        for stop in ("certain", "full")
    )
    for one, other in zip(certain, full, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]


def test_a_beam_wide_enough_finds_the_best_of_all() -> None:
    """Against brute force: every sequence over a small vocabulary, scored by the uncached model."""
    vocabulary, most, penalty = 7, 3, GNMTPenalty(0.8)
    model = eager_model(vocabulary, seed=2)
    source = torch.tensor([[4, 5, 6, 2]])
    letters = [2, 4, 5, 6]

    def score(ids: tuple[int, ...]) -> float:
        target = torch.tensor([[1, *ids[:-1]]])
        logits = model.head(model(source, target)[0])
        logits[:, :, list(ENDS.banned)] = float("-inf")
        chosen = logits.log_softmax(-1)[0].gather(1, torch.tensor(ids)[:, None]).sum().item()
        return chosen / penalty.divisor(len(ids))

    everything = [
        ids
        for n in range(1, most + 1)
        for ids in itertools.product(letters, repeat=n)
        if 2 not in ids[:-1] and (ids[-1] == 2 or n == most)
    ]
    with torch.inference_mode():
        best = sorted(everything, key=score, reverse=True)[:5]
        found = decode(
            model,
            [[4, 5, 6, 2]],
            ENDS,
            DecodingSettings(BeamSearch(100, penalty, 5), Limit(0, most)),
        )[0]
        assert [h.tokens for h in found] == [ids[:-1] if ids[-1] == 2 else ids for ids in best]
        assert [h.score for h in found] == pytest.approx([score(ids) for ids in best], rel=1e-4)


def test_n_best_is_sorted_and_distinct() -> None:
    for found in run(eager_model(), sources(20), BeamSearch(4, n_best=4)):
        scores = [h.score for h in found]
        assert scores == sorted(scores, reverse=True)
        assert len({(h.tokens, h.finished) for h in found}) == len(found) == 4


def test_banned_tokens_never_appear() -> None:
    for strategy in STRATEGIES:
        for found in run(eager_model(), sources(20), strategy):
            assert all(token not in (0, 1, 2, 3) for h in found for token in h.tokens)


@settings(max_examples=30)
@given(
    st.floats(0.3, 3.0),
    st.integers(0, 6),
    st.floats(0.05, 1.0),
    st.floats(0.0, 0.5),
    st.integers(0, 2**31),
)
def test_sampling_follows_the_filtered_distribution(
    t: float, k: int, p: float, m: float, seed: int
) -> None:
    """Against a plain Python loop over the filters, by inverting the cumulative sum at known points."""
    logits = torch.randn(6, generator=torch.Generator().manual_seed(seed))
    ranked = sorted(range(6), key=lambda i: -logits[i].item())[: k or 6]
    weights = [torch.exp(logits[i].double() / t).item() for i in ranked]
    shares = [w / sum(weights) for w in weights]
    kept, mass = [], 0.0
    for i, share in zip(ranked, shares, strict=True):
        if mass < p and share >= m * shares[0]:
            kept.append((i, share))
        mass += share
    total = sum(share for _, share in kept)
    reached = 0.0
    for i, share in kept:
        middle = torch.tensor([(reached + share / 2) / total], dtype=torch.float64)
        assert choose(logits[None], Sampling(t, k, p, m), middle).item() == i
        reached += share
    assert (
        choose(
            logits[None], Sampling(t, k, p, m), torch.tensor([1 - 1e-16], dtype=torch.float64)
        ).item()
        == kept[-1][0]
    )


def test_sampling_depends_on_seed_only() -> None:
    model, texts = eager_model(), sources(10)
    one, again = run(model, texts, Sampling(seed=1)), run(model, texts, Sampling(seed=1))
    other = run(model, texts, Sampling(seed=2))
    assert [h[0].tokens for h in one] == [h[0].tokens for h in again]
    assert [h[0].tokens for h in one] != [h[0].tokens for h in other]


def test_length_penalties_are_their_formulas() -> None:
    assert GNMTPenalty(0.6).divisor(7) == pytest.approx(2**0.6)
    assert PowerPenalty(2.0).divisor(7) == pytest.approx(49)


def test_impossible_strategies_are_refused() -> None:
    for make in (
        lambda: BeamSearch(2, n_best=3),
        lambda: BeamSearch(0),
        lambda: Sampling(temperature=0.0),
        lambda: Sampling(top_p=1.5),
    ):
        with pytest.raises(SettingError):
            make()


def test_no_scores_are_made_of_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(preset("tiny", 50, 64)).eval()
    assert isinstance(model, Decoder)
    scored: list[int] = []
    plain = model.head.forward
    monkeypatch.setattr(model.head, "forward", lambda x: (scored.append(x.shape[1]), plain(x))[1])
    for strategy in (Greedy(), BeamSearch(3)):
        decode(
            model,
            [[5, 6, 7, 8, 9]] * 2,
            SpecialTokens(0, None, 2),
            DecodingSettings(strategy, Limit(0, 4)),
        )
    assert set(scored) == {1}
