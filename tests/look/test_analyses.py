"""What the analyses say, against what can be known otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache as cache_once
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from looked import MODELS, TARGET, TEXT, WORDS, Tokenized, reader, target_of, translator, writer
from regard import spec
from regard.builder import build
from regard.core.masks.attention_mask import AttentionMask
from regard.core.masks.mask import CausalMask, FullMask
from regard.core.probe import AttentionCall, Probe
from regard.data.generated.builtin import sentences
from regard.decode.batch_decoding import DecodingSettings
from regard.decode.strategy import (
    BeamSearch,
    GNMTPenalty,
    Greedy,
    Limit,
    Sampling,
)
from regard.look import (
    Choices,
    Look,
    ablation,
    alignment,
    attribution,
    batch,
    beam,
    cache,
    circuit,
    entropy,
    heads,
    lens,
    look,
    patched,
    patching,
    positions,
    right,
    roles,
    rollout,
    steps,
    translate,
)
from regard.look.alignments import monotonic_spans
from regard.look.forward import forward
from regard.look.head_importance import loss
from regard.look.head_roles import word_positions
from regard.look.model_inputs import ModelInputs
from regard.models import Model, Translator
from regard.system.errors import DataError, SettingError

EVERYTHING = ["*.weights", "*.embedded", "*.residual", "logits"]


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Model:
    return MODELS[request.param]()


LEARNT = tuple(islice(sentences("train"), 12))


@cache_once
def fitted() -> Translator:
    """A translator that has learnt a few sentences by heart, so that what it writes ends."""
    model = translator(share="none")
    data = batch(model, [s.source for s in LEARNT], [s.target for s in LEARNT])
    optimizer = torch.optim.Adam(model.model.parameters(), 0.01)
    for _ in range(60):
        scores = forward(model.model, data.named)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(
            scores.flatten(0, 1), data.labels.flatten(), ignore_index=-1
        ).backward()
        optimizer.step()
    return model


class Given:
    """Stands in for a mixer whose weights are known."""

    def __init__(self, weights: Tensor) -> None:
        self.known = weights

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        mask: Any,
        rows: Tensor,
        heads: Tensor | None = None,
        bias: Any = None,
    ) -> Tensor:
        run = self.known[:, :, rows]
        return run if heads is None else run[:, heads]


def recording(*layers: Tensor, causal: bool = False) -> Look:
    """A look at attentions with these weights [H, T, S] each, over a reader of T tokens."""
    model = reader()
    probe = Probe(["*"])
    for i, weights in enumerate(layers):
        many, length, width = weights.shape
        places = torch.arange(width)
        attention_mask = AttentionMask(CausalMask() if causal else FullMask(), places, places)
        q = torch.arange(length).float()[None, None, :, None].expand(1, many, length, 1)
        values = torch.randn(1, many, width, 6)
        probe.attentions[f"encoder.{i}.self"] = AttentionCall(
            Given(weights[None]), q, values, values, attention_mask
        )
    labels = tuple(str(i) for i in range(layers[0].shape[1]))
    return Look(
        model, ModelInputs({"input_ids": torch.zeros(1, len(labels)).long()}, labels), probe
    )


def previous(length: int) -> Tensor:
    weights = torch.zeros(length, length)
    weights[torch.arange(length), (torch.arange(length) - 1).clamp_min(0)] = 1.0
    return weights


# ------------------------------------------------------------------ attention


def test_alignment_is_the_mean_of_the_heads_and_links_its_peaks() -> None:
    run = translator().look(TEXT, target=TARGET)
    result = alignment(run, layer=1)
    np.testing.assert_allclose(
        result.weights, run.weights("decoder.1.cross").mean(axis=0), atol=1e-6
    )
    assert result.links == tuple(enumerate(result.weights.argmax(axis=1)))
    assert len(result.weights) == len(result.target) == len(result.links)
    one = alignment(run, layer=0, heads=[2])
    np.testing.assert_allclose(one.weights, run.weights("decoder.0.cross", heads=[2])[0], atol=1e-6)
    with pytest.raises(SettingError, match="use 0 to 1"):
        alignment(run, layer=2)
    with pytest.raises(SettingError, match="use 0 to 2"):
        alignment(run, heads=[3])
    with pytest.raises(SettingError, match="cross"):
        alignment(look(writer(), TEXT))


def test_spans_are_the_best_of_all_monotonic_paths() -> None:
    chance = np.random.default_rng(0)

    def best(shares: Any, i: int, begin: int) -> float:
        """The best sum from target i on, whose span begins here, by trying everything."""
        targets, sources = shares.shape
        if i == targets - 1:
            return float(shares[i, begin:].sum())
        sums = []
        for end in range(begin + 1, sources + 1):
            following = [best(shares, i + 1, at) for at in (end - 1, end) if at < sources]
            sums.append(shares[i, begin:end].sum() + max(following))
        return max(sums)

    for _ in range(60):
        weights = chance.random((chance.integers(1, 5), chance.integers(1, 7)))
        spans = monotonic_spans(weights)
        shares = weights / weights.sum(axis=0)
        total = sum(shares[i, begin:end].sum() for i, (begin, end) in enumerate(spans))
        assert total == pytest.approx(best(shares, 0, 0))
        assert (spans[0][0], spans[-1][1]) == (0, weights.shape[1])
        assert all(two[0] in (one[1] - 1, one[1]) for one, two in pairwise(spans))


def test_entropy_lies_between_one_place_and_all(model: Model) -> None:
    run = look(model, TEXT, target=target_of(model))
    result = entropy(run)
    assert (result.share > 0).all()
    assert (result.share < 1 + 1e-6).all()
    for name, nats in zip(result.names, result.nats, strict=True):
        weights = run.weights(name).astype(np.float64)
        by_hand = -(weights * np.log(np.maximum(weights, 1e-300))).sum(axis=-1).mean(axis=-1)
        np.testing.assert_allclose(nats, by_hand, atol=1e-5)
        assert (nats <= math.log(weights.shape[-1]) + 1e-6).all()


def test_heads_that_collapsed_look_evenly_or_do_nothing_are_named() -> None:
    n = 7
    same = torch.zeros(n, n)
    same[:, 3] = 1.0
    run = recording(torch.stack([same, torch.full((n, n), 1 / n), previous(n), previous(n)]))
    call = run.call("encoder.0.self")
    call.v[:, 3] *= 1e-3
    result = entropy(run)
    assert [f"{key.split()[-1]} {what.split(':')[0]}" for key, what in result.flags.items()] == [
        "0 collapsed",
        "1 uniform",
        "3 idle",
    ]
    np.testing.assert_allclose(result.nats[0], [0, math.log(n), 0, 0], atol=1e-6)
    np.testing.assert_allclose(result.favourite[0, 0], 1.0, atol=1e-6)


def test_entropy_counts_what_may_be_seen() -> None:
    """A causal head that looks at all it may evenly has the highest entropy there is."""
    weights = torch.tril(torch.ones(6, 6))
    result = entropy(
        recording((weights / weights.sum(-1, keepdim=True)).expand(4, 6, 6), causal=True)
    )
    assert result.share[0, 0] == pytest.approx(
        5 / 6, abs=1e-6
    )  # the first row has nothing to choose


def test_entropy_in_parts_is_entropy_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = translator().look(TEXT, target=TARGET)
    complete, rolled = entropy(run), rollout(run).weights
    monkeypatch.setattr("regard.look.recording.CHUNK", 1)
    parts = entropy(run)
    for name in ("nats", "share", "favourite", "force"):
        np.testing.assert_allclose(getattr(parts, name), getattr(complete, name), rtol=1e-5)
    np.testing.assert_allclose(rollout(run).weights, rolled, atol=1e-6)


def test_rollout_is_the_product_of_halves(model: Model) -> None:
    run = look(model, TEXT, target=target_of(model))
    for stack in {name.split(".")[0] for name in run.probe.attentions}:
        result = rollout(run, stack)
        np.testing.assert_allclose(result.weights.sum(axis=1), 1.0, atol=1e-6)
        assert (result.weights >= 0).all()
        reached = np.eye(len(result.tokens))
        for layer in range(2 if len(run.probe.attentions) < 8 else 3):
            step = run.weights(f"{stack}.{layer}.self").mean(axis=0)
            reached = (step / 2 + np.eye(len(step)) / 2) @ reached
        np.testing.assert_allclose(result.weights, reached, atol=1e-5)


# ------------------------------------------------------------------ roles


def test_a_head_that_looks_back_has_that_role(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hand-made head scores 1 for what it does; a random model stays near chance for all roles."""
    model = translator()
    asked_sentences = list(islice(sentences("test"), 12)) + list(
        islice(sentences("test", pronouns=True), 12)
    )
    chance = roles(model, asked_sentences)
    assert {
        "previous token",
        "next token",
        "first token",
        "subject→verb",
        "adjective→noun",
        "pronoun→referent",
    } <= set(chance.roles)
    means = chance.scores.mean(axis=(1, 2))
    np.testing.assert_allclose(means, chance.chance, rtol=0.8)

    usual = AttentionCall.weights

    def looks(place: Callable[[int], int]) -> None:
        def weights(
            self: AttentionCall, rows: Tensor | None = None, heads: Tensor | None = None
        ) -> Tensor:
            run = usual(self, rows, heads).clone()
            length = run.shape[-1]
            run[:, 1] = 0.0
            for i in range(length):
                run[:, 1, i, min(max(place(i), 0), length - 1)] = 1.0
            return run

        monkeypatch.setattr(AttentionCall, "weights", weights)

    for role, place in (
        ("previous token", lambda i: i - 1),
        ("next token", lambda i: i + 1),
        ("first token", lambda i: 0),
    ):
        looks(place)
        result = roles(model, asked_sentences, size=5)
        score = result.scores[result.roles.index(role)]
        np.testing.assert_allclose(score[:, 1], 1.0)
        assert score[:, [0, 2]].max() < 0.9
        assert result.best[role][1] == 1


def test_links_are_scored_where_the_words_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that follows exactly the pronouns of one sentence scores 1 for them, and the words' tokens are theirs."""
    model = translator()
    sentence = next(
        s
        for s in sentences("test", pronouns=True)
        if any(k.kind == "pronoun-referent" for k in s.links)
    )
    link = next(k for k in sentence.links if k.kind == "pronoun-referent")
    places = word_positions(model, sentence.source)
    tokens = model.input_tokenizer.tokens(model.input_tokenizer.input_ids(sentence.source))
    for number, word in enumerate(sentence.source.split()):
        assert "".join(tokens[i] for i in places[number]).replace("▁", "") == word.rstrip(".,?")
    usual = AttentionCall.weights

    def weights(
        self: AttentionCall, rows: Tensor | None = None, heads: Tensor | None = None
    ) -> Tensor:
        run = usual(self, rows, heads).clone()
        run[:, 2] = 0.0
        run[:, 2, places[link.start], places[link.end][0]] = 1.0
        return run

    monkeypatch.setattr(AttentionCall, "weights", weights)
    result = roles(model, [sentence])
    np.testing.assert_allclose(result.scores[result.roles.index("pronoun→referent")][:, 2], 1.0)
    np.testing.assert_allclose(result.scores[result.roles.index("referent→pronoun")][:, 2], 0.0)


def test_roles_of_other_wirings_and_errors() -> None:
    asked_sentences = list(islice(sentences("test"), 6))
    assert roles(writer(), asked_sentences).names == ("decoder.0.self", "decoder.1.self")
    assert roles(reader(), asked_sentences).scores.shape[1:] == (2, 4)
    causal = roles(writer(), asked_sentences)
    np.testing.assert_allclose(causal.scores[causal.roles.index("next token")], 0.0, atol=1e-7)
    with pytest.raises(SettingError, match="source"):
        roles(translator(), asked_sentences, stack="decoder")
    with pytest.raises(DataError, match="sentences"):
        roles(reader(), [])


# ------------------------------------------------------------------ heads off


def test_ablation_is_the_loss_without_the_head() -> None:
    model = translator()
    result = ablation(model, [TEXT, "He sings."], [TARGET, "Er singt."])
    assert result.effect.shape == (6, 3)
    assert result.baseline is not None
    assert math.exp(result.baseline) == pytest.approx(
        model.perplexity([TEXT, "He sings."], [TARGET, "Er singt."]), rel=1e-4
    )
    data = batch(model, [TEXT, "He sings."], [TARGET, "Er singt."])
    with torch.no_grad():
        model.model.decoder.blocks[0].cross.output.weight.unflatten(1, (3, -1))[:, 2] = 0  # type: ignore[union-attr]
    row = result.names.index("decoder.0.cross")
    assert loss(model, data) - result.baseline == pytest.approx(result.effect[row, 2], abs=1e-5)


def test_ablation_of_every_wiring(model: Model) -> None:
    targets = [TARGET, TARGET] if target_of(model) else None
    result = ablation(model, [TEXT, "A cat."], targets)
    assert np.isfinite(result.effect).all()
    assert (result.effect != 0).all()
    assert (result.baseline is None) == (not model.special_tokens)


def test_right_is_what_greedy_decoding_writes() -> None:
    model = fitted()
    texts = [s.source for s in LEARNT]
    output = [translate(model, text, DecodingSettings(Greedy()))[0].tokens for text in texts]
    exact = [
        tuple(WORDS.encode(s.target)) == tokens for s, tokens in zip(LEARNT, output, strict=True)
    ]
    data = batch(model, texts, [s.target for s in LEARNT])
    assert right(model, data).tolist() == exact
    assert any(exact)
    off = heads(model.model)[-4:]
    broken = [
        translate(model, text, DecodingSettings(Greedy()), off=off)[0].tokens for text in texts
    ]
    exact = [
        tuple(WORDS.encode(s.target)) == tokens for s, tokens in zip(LEARNT, broken, strict=True)
    ]
    assert right(model, data, off).tolist() == exact
    assert not all(exact)


def test_the_smallest_circuit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ability that two heads share, a third of which the rest needs: the pair without the third is found."""
    model = translator()
    every = heads(model.model)
    first, second, needed = every[2], every[7], every[11]

    def ability(_: Model, __: object, off: object = ()) -> np.ndarray:  # type: ignore[type-arg]
        gone = {first, second, needed} & set(off)  # type: ignore[call-overload]
        return np.array([1.0 - 0.25 * len(gone) if needed not in gone or len(gone) > 1 else 0.5])

    def rest(_: Model, __: object, off: object = ()) -> np.ndarray:  # type: ignore[type-arg]
        return np.array([0.2 if needed in off else 0.97])  # type: ignore[operator]

    monkeypatch.setattr("regard.look.circuit_search.chosen_right", ability)
    monkeypatch.setattr("regard.look.circuit_search.right", rest)
    few = list(islice(sentences("test", pronouns=True), 2))
    others = batch(model, [s.source for s in few], [s.target for s in few])
    recording = Choices(others, (3, 3), ((5, 6), (5, 6)))
    result = circuit(model, recording, others, near=0.5)
    assert (set(result.heads), result.meets_bounds) == ({first, second}, True)
    assert (result.accuracy, result.ablated_accuracy) == (1.0, 0.5)
    assert result.ablated_rest_accuracy == 0.97
    assert (result.tried, result.every) == (len(every) + math.comb(len(every), 2), True)
    assert not circuit(model, recording, others, near=0.1).meets_bounds
    # Where all sets would be too many, the heads that matter most alone are tried: here the three.
    fewer = circuit(model, recording, others, near=0.5, tries=3)
    assert (set(fewer.heads), fewer.every, fewer.tried) == ({first, second}, False, 3 + 3)


# ------------------------------------------------------------------ the residual stream


def test_the_lens_of_the_last_layer_is_the_model(model: Model) -> None:
    run = look(model, TEXT, target=target_of(model), ask=EVERYTHING)
    if model.model.lm_head is None:  # type: ignore[union-attr]
        with pytest.raises(SettingError, match="vocabulary"):
            lens(run)
        return
    result = lens(run, top=3)
    output = torch.from_numpy(run["logits"]).softmax(dim=-1).topk(3)
    np.testing.assert_allclose(result.probabilities[-1], output.values, rtol=1e-5, atol=1e-7)
    assert [list(place) for place in result.tokens[-1]] == [
        WORDS.tokens(row) for row in output.indices.tolist()
    ]
    assert (
        len(result.layers)
        == len(result.tokens)
        == 1 + sum(n.endswith("residual") for n in run.names) // (2 if target_of(model) else 1)
    )
    assert lens(run, positions=[2]).probabilities.shape[1] == 1
    with pytest.raises(SettingError, match="was not recorded"):
        lens(look(model, TEXT, target=target_of(model)))


def test_patching_everything_is_the_other_run(model: Model) -> None:
    target = target_of(model)
    stack = "encoder" if target_of(model) or not model.special_tokens else "decoder"
    for name in (f"{stack}.embedded", f"{stack}.0.residual", f"{stack}.1.residual"):
        clean, edited = patched(model, TEXT, "The cat sees a small dog.", name, target)
        torch.testing.assert_close(edited, clean, rtol=1e-5, atol=1e-6)
    clean, edited = patched(
        model, TEXT, "The cat sees a small dog.", f"{stack}.0.self.mixed", target
    )
    assert not torch.allclose(clean, edited)


def test_patching_one_place_by_hand() -> None:
    model = translator()
    other = "The cat sees a small dog."
    result = patching(model, TEXT, other, target=TARGET, at=3)
    assert result.effect.shape == (3, len(result.tokens))
    one = look(model, TEXT, target=TARGET, ask=()).model_inputs.named
    two = look(model, other, target=TARGET, ask=()).model_inputs.named
    probe = Probe(["encoder.0.residual"])
    answer = WORDS.encode(TARGET)[3]
    # What the other text makes the model predict there is subtracted, wherever one looks.
    contrast = int(forward(model.model, two)[0, 3].argmax())
    assert contrast != answer
    assert [result.answer, result.instead] == WORDS.tokens([answer, contrast])

    def metric(logits: Tensor) -> float:
        return (logits[0, 3, answer] - logits[0, 3, contrast]).item()

    clean = forward(model.model, one, probe)
    assert metric(clean) == pytest.approx(result.clean, abs=1e-5)

    def edit(x: Tensor) -> Tensor:
        return torch.cat([x[:, :1], probe.tensors["encoder.0.residual"][:, 1:2], x[:, 2:]], dim=1)

    edited = forward(model.model, two, Probe(edits={"encoder.0.residual": edit}))
    assert metric(edited) == pytest.approx(result.scores[1, 1], abs=1e-5)
    # Where the texts are the same and nothing has been mixed yet, there is nothing to restore.
    same = [i for i, (a, b) in enumerate(zip(result.tokens, result.others, strict=True)) if a == b]
    np.testing.assert_allclose(result.effect[0, same], 0.0, atol=1e-4)
    versus = patching(model, TEXT, other, target=TARGET, at=3, instead="Katze")
    cat = WORDS.encode("Katze")[0]
    assert versus.clean == pytest.approx((clean[0, 3, answer] - clean[0, 3, cat]).item(), abs=1e-5)
    parted = patching(model, TEXT, other, target=TARGET)
    output = forward(model.model, two)[0].argmax(dim=-1).tolist()
    end = WORDS.special_token_id("eos")
    assert end is not None
    ids = [*WORDS.encode(TARGET), end]
    assert parted.at == next(i for i, (a, b) in enumerate(zip(ids, output, strict=True)) if a != b)
    assert [parted.answer, parted.instead] == WORDS.tokens([ids[parted.at], output[parted.at]])
    with pytest.raises(DataError, match="the same"):
        patching(model, TEXT, TEXT)
    with pytest.raises(DataError, match="tokens"):
        patching(model, TEXT, "Short.", target=TARGET)
    with pytest.raises(DataError, match="one token"):
        patching(model, TEXT, other, target=TARGET, instead="Der Hund")


# ------------------------------------------------------------------ gradients


def test_attribution_of_a_linear_model_is_exact() -> None:
    """Blocks that add nothing, a mean and a matrix: each token adds its own share, and together they are the score."""
    block = spec.Block(
        spec.Attention(2, 6, 6), spec.FeedForward(8), residual=spec.PreNorm(), dropout=0.0
    )
    tokens = spec.Tokens(len(WORDS), dropout=0.0)
    description = spec.Encoder(
        12,
        tokens,
        spec.Stack.of(2, block),
        (spec.Pool("mean", None), spec.ClassifierHead(3, bias=False)),
    )
    core = build(description).eval()
    with torch.no_grad():
        for parameter in core.stack.parameters():
            parameter.zero_()
    model = Tokenized(core, description)
    result = attribution(model, TEXT)
    ids = torch.tensor([model.input_tokenizer.input_ids(TEXT)])
    with torch.no_grad():
        shares = core.labels(core.input(ids)[0]) / ids.shape[1]  # type: ignore[misc]
        scores = core.classes(core(ids)[0])[0]
    label = int(scores.argmax())
    np.testing.assert_allclose(result.values[0], shares[:, label], rtol=1e-5, atol=1e-7)
    assert result.values.sum() == pytest.approx(scores[label].item(), rel=1e-5)
    assert result.predictions == (f"LABEL_{label}",)


def test_attribution_is_the_gradient_times_the_vector(model: Model) -> None:
    """Against small steps along the embedding of one token."""
    model.model.double()
    target = target_of(model)
    place = 2 if model.model.lm_head is not None else 0  # type: ignore[union-attr]
    result = attribution(model, TEXT, target=target, positions=[place])
    inputs = look(model, TEXT, target=target, ask=()).model_inputs
    assert len(result.tokens) == len(inputs.input_tokens) + len(inputs.decoder_tokens[:-1])
    stack = "encoder" if target_of(model) or not model.special_tokens else "decoder"

    @torch.no_grad()
    def score(factor: float, token: int) -> float:
        def edit(x: Tensor) -> Tensor:
            x = x.clone()
            x[:, token] *= factor
            return x

        output = forward(
            model.model,
            inputs.named,
            Probe(edits={f"{stack}.embedded": edit}),
        )[0]
        row = output[place] if output.ndim > 1 else output
        answer = inputs.next_ids[place] if place < len(inputs.next_ids) else int(base.argmax())
        return row[answer].item()

    with torch.no_grad():
        output = forward(model.model, inputs.named)[0]
        base = output[place] if output.ndim > 1 else output
    for token in (0, 2):
        slope = (score(1 + 1e-6, token) - score(1 - 1e-6, token)) / 2e-6
        assert result.values[0, token] == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_attribution_in_batches_is_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = translator()
    complete = attribution(model, TEXT, target=TARGET)
    assert complete.predictions == model.look(TEXT, target=TARGET, ask=()).target
    monkeypatch.setattr("regard.look.gradient_attribution.ROWS", 1)
    np.testing.assert_allclose(
        attribution(model, TEXT, target=TARGET).values, complete.values, rtol=1e-4, atol=1e-6
    )
    causal = attribution(writer(), TEXT)
    future = np.triu(np.ones_like(causal.values), 1).astype(bool)
    np.testing.assert_allclose(causal.values[future], 0.0, atol=1e-7)


def test_attention_is_not_explanation_and_the_page_says_so() -> None:
    assert (
        "Attention is not explanation"
        in attribution(translator(), TEXT, target=TARGET)._repr_html_()
    )


# ------------------------------------------------------------------ positions


def test_positions_and_their_products() -> None:
    result = positions(translator(), 20)
    assert result.encodings is not None
    assert result.encodings.shape == (20, 24)
    np.testing.assert_allclose(
        result.products, result.encodings @ result.encodings.T, rtol=1e-5, atol=1e-5
    )
    # Sines and cosines: the product depends on the distance only (Section 3.5).
    for distance in range(1, 5):
        diagonal = np.diagonal(result.products, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-4)
    rope = positions(writer(), 9).products
    np.testing.assert_allclose(np.diagonal(rope, 2), rope[0, 2], atol=1e-5)
    alibi = positions(writer(position=spec.Alibi()), 9)
    assert alibi.encodings is None
    assert (np.diff(alibi.products[8]) > 0).all()
    assert positions(reader(), 9).encodings is not None
    block = spec.Block(spec.Attention(2, 4, 4), spec.FeedForward(8))
    bare = spec.Decoder(24, spec.Tokens(9, None), spec.Stack.of(1, block, spec.CausalMask()))
    with pytest.raises(SettingError, match="has no position encodings"):
        positions(Model(build(bare), bare), 4)


# ------------------------------------------------------------------ decoding


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("slots", ["released", "refilled"])
def test_the_tree_of_a_beam_ends_in_its_answer(width: int, slots: str) -> None:
    for wiring in (fitted(), writer()):
        settings = DecodingSettings(BeamSearch(width, GNMTPenalty(0.6), 1, slots), Limit(1.0, 6))  # type: ignore[arg-type]
        text = LEARNT[0].source
        tree = beam(wiring, text, settings)
        best = translate(wiring, text, settings)[0]
        node = tree.nodes[tree.answer]
        path = tree.path(tree.answer)
        assert tuple(path[:-1] if best.finished else path) == best.tokens
        assert node.log_probability == pytest.approx(best.log_probability, rel=1e-5)
        assert node.score == pytest.approx(best.score, rel=1e-5)
        steps_of = {n.step for n in tree.nodes[1:]}
        assert steps_of == set(range(len(steps_of)))
        for i, each in enumerate(tree.nodes[1:], start=1):
            assert each.parent < i
            parent = tree.nodes[each.parent]
            assert parent.step == each.step - 1
            assert each.log_probability <= parent.log_probability + 1e-5
            assert parent.fate in ("open", "best")
        for step in steps_of:
            alive = [
                n
                for n in tree.nodes
                if n.step == step and n.fate in ("open", "left", "best") and n.score is None
            ]
            assert len(alive) <= width
        if width > 1:
            assert any(n.fate == "pruned" for n in tree.nodes)


def test_every_step_is_shown_with_its_probabilities() -> None:
    for wiring in (fitted(), writer()):
        short = Limit(0.5, 6)
        greedy = steps(wiring, TEXT, DecodingSettings(Greedy(), short), top=4)
        best = translate(wiring, TEXT, DecodingSettings(Greedy(), short))[0]
        ids = [step.id for step in greedy.steps]
        assert tuple(ids[:-1] if best.finished else ids) == best.tokens
        total = sum(math.log(step.candidates[0].probability) for step in greedy.steps)
        assert total == pytest.approx(best.log_probability, rel=1e-4)
        assert all(
            step.candidates[0].id == step.id and step.candidates[0].drawn == 1
            for step in greedy.steps
        )
        chance = Sampling(0.7, top_k=3, seed=4)
        drawn = steps(wiring, TEXT, DecodingSettings(chance, short), top=5)
        one = translate(wiring, TEXT, DecodingSettings(chance, short))[0]
        assert tuple(s.id for s in drawn.steps)[: len(one.tokens)] == one.tokens
        for step in drawn.steps:
            assert sum(c.drawn for c in step.candidates) == pytest.approx(1.0)
            assert sum(c.drawn > 0 for c in step.candidates) == 3
            assert step.id in [c.id for c in step.candidates if c.drawn > 0]
    with pytest.raises(SettingError, match="uses beam search"):
        steps(fitted(), TEXT, DecodingSettings(BeamSearch(2)))
    with pytest.raises(SettingError, match="tree"):
        beam(fitted(), TEXT, DecodingSettings(Greedy()))
    with pytest.raises(SettingError, match="does not generate text"):
        steps(reader(), TEXT)


def test_watching_is_switched_off_heads_too() -> None:
    model = fitted()
    off = [("decoder.0.cross", 0), ("decoder.1.cross", 1)]
    short = DecodingSettings(Greedy(), Limit(0.5, 6))
    watched = steps(model, TEXT, short, off=off)
    assert watched.output == model.output_tokenizer.decode(
        translate(model, TEXT, short, off=off)[0].tokens
    )
    plain = steps(model, TEXT, short)
    assert watched.steps[0].candidates[0].probability != plain.steps[0].candidates[0].probability


def test_the_cache_grows_by_keys_and_values() -> None:
    result = cache(translator(), TEXT, length=5)
    each = 2 * 3 * (8 + 8) * 4  # layers, heads, d_k and d_v, bytes
    assert result.tokens == (1, 2, 3, 4, 5)
    assert result.used == tuple(each * n for n in range(1, 6))
    assert result.source == each * len(translator().input_tokenizer.input_ids(TEXT))
    assert result.reserved == result.used[-1]
    grouped = cache(writer(), TEXT, length=3)
    prompt = len(WORDS.encode(TEXT))
    assert grouped.used == tuple(2 * 2 * (6 + 6) * 4 * (prompt + n) for n in range(3))
    assert sum(grouped.parts.values()) == grouped.used[-1]
    with pytest.raises(SettingError, match="no KV cache"):
        cache(reader(), TEXT)


def test_a_model_without_special_tokens_writes_nothing() -> None:
    with pytest.raises(SettingError, match="does not generate text"):
        model = writer()
        model.special_tokens = None
        translate(model, TEXT)
