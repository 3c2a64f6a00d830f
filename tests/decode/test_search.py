"""Searches agree with each other, with brute force, and with themselves in other batches."""

from __future__ import annotations

import copy
import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import small_model
from regard.builder import build
from regard.core.probe import NO_PROBE
from regard.decode import beam_search, cuda_graphs
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, batch_by_length, decode
from regard.decode.constraints import Constraints
from regard.decode.cuda_graphs import GraphedLoop
from regard.decode.greedy_and_sampling import sample_tokens
from regard.decode.strategy import (
    BeamSearch,
    GNMTPenalty,
    Greedy,
    Hypothesis,
    LengthPenalty,
    Limit,
    PowerPenalty,
    Sampling,
    Strategy,
)
from regard.decode.topk import top_tokens
from regard.families.decoders.gpt2 import preset
from regard.system.errors import SettingError
from regard.wirings.decoder import Decoder
from regard.wirings.encoder_decoder import EncoderDecoder

SPECIAL_TOKENS = SpecialTokens(pad=0, start=1, end=2, banned=(0, 1, 3))
LIMIT = Limit(1.0, 5)
STRATEGIES: list[Strategy] = [
    Greedy(),
    BeamSearch(4, n_best=4),
    BeamSearch(3, PowerPenalty(1.0)),
    Sampling(0.9, top_k=9, top_p=0.95, min_p=0.01, seed=5),
]


def eager_model(vocabulary: int = 23, seed: int = 0) -> EncoderDecoder:
    """A model that likes to end, so that lengths differ."""
    model = small_model(vocabulary, seed)
    with torch.no_grad():
        model.head.table.weight[SPECIAL_TOKENS.end] *= 2.5
    return model


def sources(count: int, vocabulary: int = 23, seed: int = 0) -> list[list[int]]:
    """Random sentences of 1 to 11 tokens and the end token."""
    generator = random.Random(seed)
    sentences = []
    for _ in range(count):
        length = generator.randrange(1, 12)
        sentences.append([*(generator.randrange(4, vocabulary) for _ in range(length)), 2])
    return sentences


def run(
    model: EncoderDecoder, texts: list[list[int]], strategy: Strategy, batch_tokens: int = 4096
) -> list[list[Hypothesis]]:
    settings = DecodingSettings(strategy, LIMIT, batch_tokens)
    return decode(model, texts, SPECIAL_TOKENS, settings)


def tokens_of(results: list[list[Hypothesis]]) -> list[list[tuple[int, ...]]]:
    return [[hypothesis.tokens for hypothesis in row] for row in results]


def same_hypotheses(results: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    """The same tokens, and the same scores up to rounding."""
    assert tokens_of(results) == tokens_of(expected)
    for row, expected_row in zip(results, expected, strict=True):
        scores = [hypothesis.score for hypothesis in expected_row]
        assert [hypothesis.score for hypothesis in row] == pytest.approx(scores, rel=1e-4)


def test_lengths_of_the_test_model_differ() -> None:
    hypotheses = [h[0] for h in run(eager_model(), sources(40), Greedy())]
    assert {h.finished for h in hypotheses} == {True, False}
    assert len({len(h.tokens) for h in hypotheses}) > 4


@pytest.mark.parametrize(
    "penalty", [GNMTPenalty(0.6), GNMTPenalty(0.0), PowerPenalty(1.0), PowerPenalty(-0.5)]
)
def test_beam_one_is_greedy(penalty: LengthPenalty) -> None:
    for seed in range(3):
        model = eager_model(seed=seed)
        texts = sources(40, seed=seed)
        greedy = run(model, texts, Greedy())
        one_beam = run(model, texts, BeamSearch(1, penalty))
        assert [h[0].tokens for h in greedy] == [h[0].tokens for h in one_beam]
        assert [h[0].log_probability for h in greedy] == pytest.approx(
            [h[0].log_probability for h in one_beam], rel=1e-4
        )


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_static_shapes_find_the_same(strategy: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    """As CUDA graphs need them: a static KV cache, and finished sentences that stay for a while."""
    model = eager_model()
    texts = sources(30)
    expected = run(model, texts, strategy)
    monkeypatch.setattr(cuda_graphs, "enabled", lambda device: True)
    monkeypatch.setattr(cuda_graphs, "CHECK_INTERVAL", 3)
    monkeypatch.setattr(cuda_graphs, "CHECK_LEAD", 1)
    results = run(model, texts, strategy)
    assert tokens_of(results) == tokens_of(expected)
    assert [row[0].finished for row in results] == [row[0].finished for row in expected]
    assert [row[0].log_probability for row in results] == pytest.approx(
        [row[0].log_probability for row in expected], rel=1e-4
    )


@pytest.mark.parametrize(("running", "expected"), [(4, []), (3, []), (2, [16, 32]), (0, [16, 32])])
def test_a_graphed_loop_is_checked_when_half_of_the_rows_have_stopped(
    running: int, expected: list[int]
) -> None:
    rows = torch.arange(4) < running

    def loop(graphed: bool) -> GraphedLoop[torch.Tensor]:
        return GraphedLoop(lambda rows: None, rows, graphed=graphed, model=eager_model())

    static = loop(graphed=True)
    assert [step for step in range(40) if static.check_is_due(step, lambda rows: rows)] == expected
    plain = loop(graphed=False)
    assert all(plain.check_is_due(step, lambda rows: rows) == (step > 0) for step in range(5))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_other_sentences_of_a_batch_do_not_matter_and_order_is_kept(strategy: Strategy) -> None:
    model = eager_model()
    texts = sources(30)
    together = run(model, texts, strategy)
    for batch_tokens in (1, 64):
        same_hypotheses(run(model, texts, strategy, batch_tokens), together)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_several_workers_find_the_same(strategy: Strategy) -> None:
    model = eager_model()
    texts = sources(30)
    threads = torch.get_num_threads()
    progress: list[int] = []
    try:
        results = []
        for workers in (1, 3):
            torch.set_num_threads(workers)
            settings = DecodingSettings(strategy, LIMIT, workers=workers)
            results.append(decode(model, texts, SPECIAL_TOKENS, settings, progress.append))
            assert torch.get_num_threads() == workers
        with pytest.raises(IndexError):
            decode(model, [*texts[:-1], [99]], SPECIAL_TOKENS, settings)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert progress == [30, 10, 10, 10]
    same_hypotheses(*results)


def test_long_outputs_of_many_rows_are_those_of_one_row() -> None:
    """More tokens than a KV cache has room for at first, and enough rows for the batched kernel."""
    model = small_model(23, 3)
    texts = sources(24, seed=3)
    few, many = (
        decode(
            model,
            texts,
            SPECIAL_TOKENS,
            DecodingSettings(Greedy(), Limit.fixed(40), batch_tokens),
        )
        for batch_tokens in (1, 4096)
    )
    assert max(len(h[0].tokens) for h in many) == 40
    same_hypotheses(few, many)


@given(st.integers(1, 5), st.integers(1, 3000), st.integers(1, 12), st.integers(0, 100))
def test_top_k_is_that_of_a_sort(rows: int, length: int, count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(50 * length, (rows, length), generator=generator).float() / (5 * length)
    count = min(count, length)
    values, tokens, normalizer = top_tokens(scores, count)
    assert torch.equal(values, scores.sort(dim=1, descending=True).values[:, :count])
    assert torch.equal(values, scores.gather(1, tokens))
    assert all(len(set(row)) == count for row in tokens.tolist())
    assert torch.allclose(normalizer, scores.logsumexp(dim=1), atol=1e-4)
    assert torch.equal(top_tokens(scores, 1)[1][:, 0], scores.argmax(dim=1))


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 100))
def test_every_sentence_is_in_one_batch_within_the_budget(lengths: list[int], tokens: int) -> None:
    groups = batch_by_length(lengths, tokens, width=2)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    assert all(len(g) == 1 or len(g) * 2 * max(lengths[i] for i in g) <= tokens for g in groups)


class Chain:
    """A Markov chain in place of a model: the next logits depend on the last token and the step."""

    probe = NO_PROBE
    keeps_cache = False

    def __init__(self, seed: int, steps: int, vocabulary: int = 8) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (steps, vocabulary, vocabulary)
        self.table = torch.randn(shape, generator=generator) * 2
        self.position = 0

    def start(self, encoded: object, *, width: int, capacity: int) -> Chain:
        self.position = 0
        return self

    def step(self, tokens: torch.Tensor, state: Chain) -> torch.Tensor:
        self.position += 1
        return self.table[self.position - 1][tokens]

    def reorder(self, rows: torch.Tensor) -> None:
        """The chain has no KV cache whose rows could be reordered."""

    keep = reorder

    def share_rows(self) -> None:
        """Nor has it rows that beams could share."""


CHAIN = Constraints(
    torch.ones(4, 1, dtype=torch.long), torch.tensor([2, 5, 9, 12]), end=2, banned=torch.tensor([0])
)
PENALTIES: list[LengthPenalty] = [
    GNMTPenalty(0.6),
    GNMTPenalty(3.0),
    PowerPenalty(1.0),
    PowerPenalty(2.0),
    PowerPenalty(0.0),
    PowerPenalty(-1.0),
]
Scored = tuple[float, list[int]]  # a sum or score, and the tokens it is of


def refilled_search(
    chain: Chain, limit: int, width: int, penalty: LengthPenalty, stop: str
) -> list[Scored]:
    """Beam search with refilled slots, with lists: `never` stops at the limit only."""
    beam: list[Scored] = [(0.0, [])]
    finished: list[Scored] = []
    for t in range(limit):
        logits = torch.stack([chain.table[t][ids[-1] if ids else 1] for _, ids in beam])
        logits[:, 0] = float("-inf")
        log_probabilities = logits.log_softmax(-1).tolist()
        candidates = [
            (total + log_probability, [*ids, token])
            for (total, ids), row in zip(beam, log_probabilities, strict=True)
            for token, log_probability in enumerate(row)
        ]
        candidates = [candidate for candidate in candidates if candidate[0] > float("-inf")]
        candidates = sorted(candidates, reverse=True)[: 2 * width]
        divisor = penalty.divisor(t + 1)
        for total, ids in candidates[:width]:
            if ids[-1] == 2 or t + 1 == limit:
                finished.append((total / divisor, ids))
        finished = sorted(finished, reverse=True)[:width]
        beam = [candidate for candidate in candidates if candidate[1][-1] != 2][:width]
        if not beam:
            break
        full = len(finished) == width
        likely = full and finished[-1][0] >= beam[0][0] / divisor
        if (stop == "full" and full) or (stop == "likely" and likely):
            break
    return finished


@settings(max_examples=100)
@given(st.integers(0, 2**31), st.integers(1, 5), st.sampled_from(PENALTIES))
def test_refilled_slots_against_lists(seed: int, width: int, penalty: LengthPenalty) -> None:
    """`certain` gives what never stopping gives; the other rules stop where the lists do."""
    for stop, other in (("certain", "never"), ("likely", "likely"), ("full", "full")):
        n_best = 1 if stop == "certain" else width
        strategy = BeamSearch(width, penalty, n_best, "refilled", stop)  # type: ignore[arg-type]
        chain = Chain(seed, 12)
        results = beam_search.search(chain, None, strategy, CHAIN)  # type: ignore[arg-type]
        for limit, hypotheses in zip(CHAIN.limits.tolist(), results, strict=True):
            expected = refilled_search(Chain(seed, 12), limit, width, penalty, other)[:n_best]
            tokens = [[*h.tokens, 2] if h.finished else [*h.tokens] for h in hypotheses]
            assert tokens == [ids for _, ids in expected]
            scores = [score for score, _ in expected]
            assert [h.score for h in hypotheses] == pytest.approx(scores, rel=1e-4)


@settings(max_examples=150)
@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 3), st.sampled_from(PENALTIES))
def test_stopping_early_never_changes_the_answer(
    seed: int, width: int, best: int, penalty: LengthPenalty
) -> None:
    n_best = min(best, width)
    certain = BeamSearch(width, penalty, n_best, stop="certain")
    full = BeamSearch(width, penalty, n_best, stop="full")
    early, late = (
        beam_search.search(Chain(seed, 12), None, strategy, CHAIN)  # type: ignore[arg-type]
        for strategy in (certain, full)
    )
    assert tokens_of(early) == tokens_of(late)


def test_a_beam_wide_enough_finds_the_best_of_all() -> None:
    """Against brute force: every sequence over a small vocabulary, scored by the uncached model."""
    longest = 3
    penalty = GNMTPenalty(0.8)
    model = eager_model(vocabulary=7, seed=2)
    source = torch.tensor([[4, 5, 6, 2]])
    vocabulary = [2, 4, 5, 6]

    def score(ids: tuple[int, ...]) -> float:
        target = torch.tensor([[1, *ids[:-1]]])
        logits = model.head(model(source, target)[0])
        logits[:, :, list(SPECIAL_TOKENS.banned)] = float("-inf")
        log_probabilities = logits.log_softmax(-1)[0].gather(1, torch.tensor(ids)[:, None])
        return log_probabilities.sum().item() / penalty.divisor(len(ids))

    everything = [
        ids
        for n in range(1, longest + 1)
        for ids in itertools.product(vocabulary, repeat=n)
        if 2 not in ids[:-1] and (ids[-1] == 2 or n == longest)
    ]
    decoding = DecodingSettings(BeamSearch(100, penalty, 5), Limit.fixed(longest))
    with torch.inference_mode():
        best = sorted(everything, key=score, reverse=True)[:5]
        hypotheses = decode(model, [[4, 5, 6, 2]], SPECIAL_TOKENS, decoding)[0]
        expected = [ids[:-1] if ids[-1] == 2 else ids for ids in best]
        assert [h.tokens for h in hypotheses] == expected
        assert [h.score for h in hypotheses] == pytest.approx(
            [score(ids) for ids in best], rel=1e-4
        )


def test_n_best_is_sorted_and_distinct() -> None:
    for hypotheses in run(eager_model(), sources(20), BeamSearch(4, n_best=4)):
        scores = [h.score for h in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({(h.tokens, h.finished) for h in hypotheses}) == len(hypotheses) == 4


def test_banned_tokens_never_appear() -> None:
    for strategy in STRATEGIES:
        for hypotheses in run(eager_model(), sources(20), strategy):
            assert all(token not in (0, 1, 2, 3) for h in hypotheses for token in h.tokens)


@settings(max_examples=30)
@given(
    st.floats(0.3, 3.0),
    st.integers(0, 6),
    st.floats(0.05, 1.0),
    st.floats(0.0, 0.5),
    st.integers(0, 2**31),
)
def test_sampling_follows_the_filtered_distribution(
    temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    """Against a plain loop over the filters, by inverting the cumulative sum at known points."""
    strategy = Sampling(temperature, top_k, top_p, min_p)
    logits = torch.randn(6, generator=torch.Generator().manual_seed(seed))
    ranked = sorted(range(6), key=lambda i: -logits[i].item())[: top_k or 6]
    weights = [torch.exp(logits[i].double() / temperature).item() for i in ranked]
    shares = [w / sum(weights) for w in weights]
    nucleus = []
    mass = 0.0
    for token, share in zip(ranked, shares, strict=True):
        if mass < top_p and share >= min_p * shares[0]:
            nucleus.append((token, share))
        mass += share

    def sampled(noise: float) -> int:
        point = torch.tensor([noise], dtype=torch.float64)
        return int(sample_tokens(logits[None], strategy, point).item())

    total = sum(share for _, share in nucleus)
    cumulative = 0.0
    for token, share in nucleus:
        assert sampled((cumulative + share / 2) / total) == token
        cumulative += share
    assert sampled(1 - 1e-16) == nucleus[-1][0]


def test_sampling_depends_on_seed_only() -> None:
    model = eager_model()
    texts = sources(10)
    first = run(model, texts, Sampling(seed=1))
    again = run(model, texts, Sampling(seed=1))
    other = run(model, texts, Sampling(seed=2))
    assert tokens_of(first) == tokens_of(again)
    assert tokens_of(first) != tokens_of(other)


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


def test_prefill_computes_no_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(preset("tiny", 50, 64)).eval()
    assert isinstance(model, Decoder)
    lengths: list[int] = []
    forward = model.head.forward

    def recording(x: torch.Tensor) -> torch.Tensor:
        lengths.append(x.shape[1])
        return forward(x)

    monkeypatch.setattr(model.head, "forward", recording)
    special_tokens = SpecialTokens(0, None, 2)
    for strategy in (Greedy(), BeamSearch(3)):
        decoding = DecodingSettings(strategy, Limit.fixed(4))
        decode(model, [[5, 6, 7, 8, 9]] * 2, special_tokens, decoding)
    assert set(lengths) == {1}


@pytest.mark.parametrize("start", [1, None])
def test_a_capture_can_copy_the_inputs_of_a_search(
    start: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A CUDA graph has inputs of its own, into which those of each later search are copied.
    searched = []
    search = beam_search.search

    def recording(model: object, encoded: object, *rest: object) -> object:
        searched.append((encoded, rest[1]))
        return search(model, encoded, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(beam_search, "search", recording)
    model = small_model() if start else build(preset("tiny", 50, 64)).eval()
    sources = [[5, 6, 7], [5, 8, 7]]
    decode(model, sources, SpecialTokens(0, start, 2), DecodingSettings(BeamSearch(2), LIMIT))  # type: ignore[arg-type]
    inputs = cuda_graphs.tensors_in(searched)
    assert len(inputs) > 3
    torch._foreach_copy_(cuda_graphs.tensors_in(copy.deepcopy(searched)), inputs)
