"""What the analyses say, against what can be known otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache as cache_once
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from looked import SUBJECTS, TARGET, TEXT, UNFRAMED, WORDS, reader, translator, writer
from regard import spec
from regard.build import build
from regard.core.attention_mask import AttentionMask
from regard.core.mask import CausalMask, FullMask
from regard.core.probe import AttentionCall, Probe
from regard.data.builtin import sentences
from regard.decode.batch_decoding import DecodingSettings
from regard.decode.strategy import BeamSearch, GNMTPenalty, Greedy, Limit, Sampling
from regard.errors import DataError, SettingError
from regard.look import (
    Look,
    Subject,
    Words,
    ablation,
    alignment,
    attribution,
    batch,
    beam,
    cache,
    chosen_right,
    circuit,
    entropy,
    heads,
    lens,
    look,
    patched,
    patching,
    positions,
    pronoun_circuit,
    pronouns,
    referents,
    right,
    roles,
    rollout,
    steps,
    translate,
)
from regard.look.ablation import loss
from regard.look.head_roles import word_tokens
from regard.look.target import Reading, run

EVERYTHING = ["*.weights", "*.embedded", "*.residual", "logits"]


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    return SUBJECTS[request.param]()


LEARNT = tuple(islice(sentences("train"), 12))


@cache_once
def fitted() -> Subject:
    """A translator that has learnt a few sentences by heart, so that what it writes ends."""
    held = translator(share="none")
    subject = held.subject()
    data = batch(subject, [s.source for s in LEARNT], [s.target for s in LEARNT])
    optimizer = torch.optim.Adam(held.model.parameters(), 0.01)
    for _ in range(60):
        scores = run(subject.model, data.inputs, data.outputs, data.padding_mask)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(
            scores.flatten(0, 1), data.asked.flatten(), ignore_index=-1
        ).backward()
        optimizer.step()
    return subject


class Given:
    """Stands in for a mixer whose weights are known."""

    def __init__(self, weights: Tensor) -> None:
        self.known = weights

    def weights(
        self, q: Tensor, k: Tensor, attention_mask: Any, rows: Tensor, heads: Tensor | None = None
    ) -> Tensor:
        found = self.known[:, :, rows]
        return found if heads is None else found[:, heads]


def given(*layers: Tensor, causal: bool = False) -> Look:
    """A look at attentions with these weights [H, T, S] each, over a reader of T tokens."""
    subject = reader()
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
    return Look(subject, Reading(torch.zeros(1, len(labels)).long(), labels), probe)


def previous(length: int) -> Tensor:
    weights = torch.zeros(length, length)
    weights[torch.arange(length), (torch.arange(length) - 1).clamp_min(0)] = 1.0
    return weights


# ------------------------------------------------------------------ attention


def test_alignment_is_the_mean_of_the_heads_and_links_its_peaks() -> None:
    found = translator().look(TEXT, target=TARGET)
    result = alignment(found, layer=1)
    np.testing.assert_allclose(
        result.weights, found.weights("decoder.1.cross").mean(axis=0), atol=1e-6
    )
    assert result.links == tuple(enumerate(result.weights.argmax(axis=1)))
    assert len(result.weights) == len(result.target) == len(result.links)
    one = alignment(found, layer=0, heads=[2])
    np.testing.assert_allclose(
        one.weights, found.weights("decoder.0.cross", heads=[2])[0], atol=1e-6
    )
    with pytest.raises(SettingError, match="layers are 0 to 1"):
        alignment(found, layer=2)
    with pytest.raises(SettingError, match="heads are 0 to 2"):
        alignment(found, heads=[3])
    with pytest.raises(SettingError, match="cross"):
        alignment(look(writer(), TEXT))


def test_entropy_lies_between_one_place_and_all(subject: Subject) -> None:
    found = look(subject, TEXT, target=TARGET if subject.target else None)
    result = entropy(found)
    assert (result.share > 0).all()
    assert (result.share < 1 + 1e-6).all()
    for name, nats in zip(result.names, result.nats, strict=True):
        weights = found.weights(name).astype(np.float64)
        by_hand = -(weights * np.log(np.maximum(weights, 1e-300))).sum(axis=-1).mean(axis=-1)
        np.testing.assert_allclose(nats, by_hand, atol=1e-5)
        assert (nats <= math.log(weights.shape[-1]) + 1e-6).all()


def test_heads_that_collapsed_look_evenly_or_do_nothing_are_named() -> None:
    n = 7
    same = torch.zeros(n, n)
    same[:, 3] = 1.0
    found = given(torch.stack([same, torch.full((n, n), 1 / n), previous(n), previous(n)]))
    call = found.call("encoder.0.self")
    call.v[:, 3] *= 1e-3
    result = entropy(found)
    assert [f"{key.split()[-1]} {what.split(':')[0]}" for key, what in result.flags.items()] == [
        "0 collapsed",
        "1 even",
        "3 idle",
    ]
    np.testing.assert_allclose(result.nats[0], [0, math.log(n), 0, 0], atol=1e-6)
    np.testing.assert_allclose(result.favourite[0, 0], 1.0, atol=1e-6)


def test_entropy_counts_what_may_be_seen() -> None:
    """A causal head that looks at all it may evenly has the highest entropy there is."""
    weights = torch.tril(torch.ones(6, 6))
    result = entropy(given((weights / weights.sum(-1, keepdim=True)).expand(4, 6, 6), causal=True))
    assert result.share[0, 0] == pytest.approx(
        5 / 6, abs=1e-6
    )  # the first row has nothing to choose


def test_entropy_in_parts_is_entropy_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = translator().look(TEXT, target=TARGET)
    whole, rolled = entropy(found), rollout(found).weights
    monkeypatch.setattr("regard.look.recording.CHUNK", 1)
    parts = entropy(found)
    for name in ("nats", "share", "favourite", "force"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-5)
    np.testing.assert_allclose(rollout(found).weights, rolled, atol=1e-6)


def test_rollout_is_the_product_of_halves(subject: Subject) -> None:
    found = look(subject, TEXT, target=TARGET if subject.target else None)
    for stack in {name.split(".")[0] for name in found.probe.attentions}:
        result = rollout(found, stack)
        np.testing.assert_allclose(result.weights.sum(axis=1), 1.0, atol=1e-6)
        assert (result.weights >= 0).all()
        reached = np.eye(len(result.tokens))
        for layer in range(2 if len(found.probe.attentions) < 8 else 3):
            step = found.weights(f"{stack}.{layer}.self").mean(axis=0)
            reached = (step / 2 + np.eye(len(step)) / 2) @ reached
        np.testing.assert_allclose(result.weights, reached, atol=1e-5)


# ------------------------------------------------------------------ roles


def test_a_head_that_looks_back_has_that_role(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hand-made head scores 1 for what it does; a random model stays near chance for all roles."""
    subject = translator().subject()
    known = list(islice(sentences("test"), 12)) + list(islice(sentences("test", pronouns=True), 12))
    chance = roles(subject, known)
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
            found = usual(self, rows, heads).clone()
            length = found.shape[-1]
            found[:, 1] = 0.0
            for i in range(length):
                found[:, 1, i, min(max(place(i), 0), length - 1)] = 1.0
            return found

        monkeypatch.setattr(AttentionCall, "weights", weights)

    for role, place in (
        ("previous token", lambda i: i - 1),
        ("next token", lambda i: i + 1),
        ("first token", lambda i: 0),
    ):
        looks(place)
        result = roles(subject, known, size=5)
        score = result.scores[result.roles.index(role)]
        np.testing.assert_allclose(score[:, 1], 1.0)
        assert score[:, [0, 2]].max() < 0.9
        assert result.best[role][1] == 1


def test_links_are_scored_where_the_words_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that follows exactly the pronouns of one sentence scores 1 for them, and the words' tokens are theirs."""
    subject = translator().subject()
    sentence = next(
        s
        for s in sentences("test", pronouns=True)
        if any(k.kind == "pronoun-referent" for k in s.links)
    )
    link = next(k for k in sentence.links if k.kind == "pronoun-referent")
    places = word_tokens(subject, sentence.source)
    tokens = subject.reads.tokens(subject.ids(sentence.source))
    for number, word in enumerate(sentence.source.split()):
        assert "".join(tokens[i] for i in places[number]).replace("▁", "") == word.rstrip(".,?")
    usual = AttentionCall.weights

    def weights(
        self: AttentionCall, rows: Tensor | None = None, heads: Tensor | None = None
    ) -> Tensor:
        found = usual(self, rows, heads).clone()
        found[:, 2] = 0.0
        found[:, 2, places[link.start], places[link.end][0]] = 1.0
        return found

    monkeypatch.setattr(AttentionCall, "weights", weights)
    result = roles(subject, [sentence])
    np.testing.assert_allclose(result.scores[result.roles.index("pronoun→referent")][:, 2], 1.0)
    np.testing.assert_allclose(result.scores[result.roles.index("referent→pronoun")][:, 2], 0.0)


def test_roles_of_other_wirings_and_errors() -> None:
    known = list(islice(sentences("test"), 6))
    assert roles(writer(), known).names == ("decoder.0.self", "decoder.1.self")
    assert roles(reader(), known).scores.shape[1:] == (2, 4)
    causal = roles(writer(), known)
    np.testing.assert_allclose(causal.scores[causal.roles.index("next token")], 0.0, atol=1e-7)
    with pytest.raises(SettingError, match="source"):
        roles(translator(), known, stack="decoder")
    with pytest.raises(DataError, match="sentences"):
        roles(reader(), [])


# ------------------------------------------------------------------ heads off


def test_ablation_is_the_loss_without_the_head() -> None:
    held = translator()
    result = ablation(held, [TEXT, "He sings."], [TARGET, "Er singt."])
    assert result.effect.shape == (6, 3)
    assert result.whole is not None
    assert math.exp(result.whole) == pytest.approx(
        held.perplexity([TEXT, "He sings."], [TARGET, "Er singt."]), rel=1e-4
    )
    subject, data = (
        held.subject(),
        batch(held.subject(), [TEXT, "He sings."], [TARGET, "Er singt."]),
    )
    with torch.no_grad():
        held.model.decoder.blocks[0].cross.output.weight.unflatten(1, (3, -1))[:, 2] = 0  # type: ignore[union-attr]
    row = result.names.index("decoder.0.cross")
    assert loss(subject, data) - result.whole == pytest.approx(result.effect[row, 2], abs=1e-5)


def test_ablation_of_every_wiring(subject: Subject) -> None:
    targets = [TARGET, TARGET] if subject.target else None
    result = ablation(subject, [TEXT, "A cat."], targets)
    assert np.isfinite(result.effect).all()
    assert (result.effect != 0).all()
    assert (result.whole is None) == (not subject.ends)


def test_right_is_what_greedy_decoding_writes() -> None:
    subject = fitted()
    texts = [s.source for s in LEARNT]
    said = [translate(subject, text, DecodingSettings(Greedy()))[0].tokens for text in texts]
    exact = [
        tuple(WORDS.encode(s.target)) == tokens for s, tokens in zip(LEARNT, said, strict=True)
    ]
    data = batch(subject, texts, [s.target for s in LEARNT])
    assert right(subject, data).tolist() == exact
    assert any(exact)
    off = heads(subject.model)[-4:]
    broken = [
        translate(subject, text, DecodingSettings(Greedy()), off=off)[0].tokens for text in texts
    ]
    exact = [
        tuple(WORDS.encode(s.target)) == tokens for s, tokens in zip(LEARNT, broken, strict=True)
    ]
    assert right(subject, data, off).tolist() == exact
    assert not all(exact)


def test_pronouns_are_choices_between_those_of_two_nouns() -> None:
    subject = translator().subject()
    known = list(islice(sentences("test", pronouns=True), 20))
    choices = pronouns(subject, known)
    assert choices.data.outputs is not None
    for sentence, place, options, row in zip(
        known, choices.places, choices.options, choices.data.asked, strict=True
    ):
        words = [token.strip("▁") for token in WORDS.tokens(options)]
        assert len(set(words)) == 2
        assert set(words) <= {"er", "sie", "es"}
        assert int(row[place]) == options[0]
        assert words[0] in sentence.target.split()
    share = chosen_right(subject, choices).mean()
    logits = run(
        subject.model, choices.data.inputs, choices.data.outputs, choices.data.padding_mask
    ).detach()
    by_hand = [
        max(options, key=lambda i, n=n, p=place: float(logits[n, p, i])) == options[0]  # type: ignore[misc]
        for n, (place, options) in enumerate(zip(choices.places, choices.options, strict=True))
    ]
    assert share == np.mean(by_hand)
    with pytest.raises(DataError, match="pronoun"):
        pronouns(subject, [s for s in islice(sentences("test"), 30) if s.referent is None])


def test_the_smallest_circuit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ability that two heads share, a third of which the rest needs: the pair without the third is found."""
    subject = translator().subject()
    every = heads(subject.model)
    first, second, needed = every[2], every[7], every[11]

    def ability(_: Subject, __: object, off: object = ()) -> np.ndarray:  # type: ignore[type-arg]
        gone = {first, second, needed} & set(off)  # type: ignore[call-overload]
        return np.array([1.0 - 0.25 * len(gone) if needed not in gone or len(gone) > 1 else 0.5])

    def rest(_: Subject, __: object, off: object = ()) -> np.ndarray:  # type: ignore[type-arg]
        return np.array([0.2 if needed in off else 0.97])  # type: ignore[operator]

    monkeypatch.setattr("regard.look.circuits.chosen_right", ability)
    monkeypatch.setattr("regard.look.circuits.right", rest)
    few = list(islice(sentences("test", pronouns=True), 2))
    given, others = (
        pronouns(subject, few),
        batch(subject, [s.source for s in few], [s.target for s in few]),
    )
    result = circuit(subject, given, others, near=0.5)
    assert (set(result.heads), result.found) == ({first, second}, True)
    assert (result.whole, result.without, result.rest) == (1.0, 0.5, 0.97)
    assert (result.tried, result.every) == (len(every) + math.comb(len(every), 2), True)
    assert not circuit(subject, given, others, near=0.1).found
    # Where all sets would be too many, the heads that matter most alone are tried: here the three.
    fewer = circuit(subject, given, others, near=0.5, tries=3)
    assert (set(fewer.heads), fewer.every, fewer.tried) == ({first, second}, False, 3 + 3)


def test_referents_are_what_looking_at_each_sentence_says() -> None:
    subject = translator().subject()
    asked = list(islice(sentences("test", pronouns=True), 4))
    off = [("decoder.0.cross", 1)]
    result = referents(subject, asked, off)
    choices = pronouns(subject, asked)
    expected = np.zeros_like(result.weights)
    for sentence, place in zip(asked, choices.places, strict=True):
        found = look(subject, sentence.source, target=sentence.target, off=off)
        words = [word.strip(".").lower() for word in sentence.source.split()]
        first, second, adjective = (sentence.triple or ())[:3]
        nouns = (first, second) if sentence.referent == "subject" else (second, first)
        places = word_tokens(subject, sentence.source)
        spots = [places[words.index(word)] for word in (*nouns, "it", adjective)]
        for i, name in enumerate(result.names):
            row = found.weights(name)[:, spots[2][0] if name.startswith("encoder") else place]
            expected[i] += np.stack([row[:, spot].sum(axis=1) for spot in spots], axis=1) / len(
                asked
            )
    np.testing.assert_allclose(result.weights, expected, atol=1e-5)
    name, head = result.reader
    gap = expected[:, :, 0] - expected[:, :, 1]
    assert gap[result.names.index(name), head] == pytest.approx(gap.max(), abs=1e-5)
    with pytest.raises(SettingError, match="translate"):
        referents(writer(), asked)


def test_what_is_not_known_has_no_circuit() -> None:
    with pytest.raises(DataError, match="no ability"):
        pronoun_circuit(translator(), 20)


# ------------------------------------------------------------------ the residual stream


def test_the_lens_of_the_last_layer_is_the_model(subject: Subject) -> None:
    found = look(subject, TEXT, target=TARGET if subject.target else None, ask=EVERYTHING)
    if subject.model.head is None:  # type: ignore[union-attr]
        with pytest.raises(SettingError, match="vocabulary"):
            lens(found)
        return
    result = lens(found, top=3)
    said = torch.from_numpy(found["logits"]).softmax(dim=-1).topk(3)
    np.testing.assert_allclose(result.probabilities[-1], said.values, rtol=1e-5, atol=1e-7)
    assert [list(place) for place in result.tokens[-1]] == [
        WORDS.tokens(row) for row in said.indices.tolist()
    ]
    assert (
        len(result.layers)
        == len(result.tokens)
        == 1 + sum(n.endswith("residual") for n in found.names) // (2 if subject.target else 1)
    )
    assert lens(found, places=[2]).probabilities.shape[1] == 1
    with pytest.raises(SettingError, match="residual"):
        lens(look(subject, TEXT, target=TARGET if subject.target else None))


def test_patching_everything_is_the_other_run(subject: Subject) -> None:
    target = TARGET if subject.target else None
    stack = "encoder" if subject.target or not subject.ends else "decoder"
    for name in (f"{stack}.embedded", f"{stack}.0.residual", f"{stack}.1.residual"):
        clean, edited = patched(subject, TEXT, "The cat sees a small dog.", name, target)
        torch.testing.assert_close(edited, clean, rtol=1e-5, atol=1e-6)
    clean, edited = patched(
        subject, TEXT, "The cat sees a small dog.", f"{stack}.0.self.mixed", target
    )
    assert not torch.allclose(clean, edited)


def test_patching_one_place_by_hand() -> None:
    subject = translator().subject()
    other = "The cat sees a small dog."
    result = patching(subject, TEXT, other, target=TARGET, at=3)
    assert result.effect.shape == (3, len(result.tokens))
    one, two = (torch.tensor([subject.ids(text)]) for text in (TEXT, other))
    outputs = look(subject, TEXT, target=TARGET, ask=()).reading.outputs
    probe = Probe(["encoder.0.residual"])
    answer = WORDS.encode(TARGET)[3]
    assert run(subject.model, one, outputs, probe=probe)[0, 3, answer].item() == pytest.approx(
        result.clean, abs=1e-5
    )

    def edit(x: Tensor) -> Tensor:
        return torch.cat([x[:, :1], probe.tensors["encoder.0.residual"][:, 1:2], x[:, 2:]], dim=1)

    edited = run(subject.model, two, outputs, probe=Probe(edits={"encoder.0.residual": edit}))
    assert edited[0, 3, answer].item() == pytest.approx(result.scores[1, 1], abs=1e-5)
    # Where the texts are the same and nothing has been mixed yet, there is nothing to restore.
    same = [i for i, (a, b) in enumerate(zip(result.tokens, result.others, strict=True)) if a == b]
    np.testing.assert_allclose(result.effect[0, same], 0.0, atol=1e-4)
    versus = patching(subject, TEXT, other, target=TARGET, at=3, instead="Katze")
    assert versus.clean == pytest.approx(
        result.clean - run(subject.model, one, outputs)[0, 3, WORDS.encode("Katze")[0]].item(),
        abs=1e-5,
    )
    parted = patching(subject, TEXT, other, target=TARGET)
    said = run(subject.model, two, outputs)[0].argmax(dim=-1).tolist()
    ids = [*WORDS.encode(TARGET), WORDS.special_token_id("eos")]
    assert parted.at == next(i for i, (a, b) in enumerate(zip(ids, said, strict=True)) if a != b)
    assert [parted.answer, parted.instead] == WORDS.tokens([ids[parted.at], said[parted.at]])
    with pytest.raises(DataError, match="the same"):
        patching(subject, TEXT, TEXT)
    with pytest.raises(DataError, match="tokens"):
        patching(subject, TEXT, "Short.", target=TARGET)
    with pytest.raises(DataError, match="one token"):
        patching(subject, TEXT, other, target=TARGET, instead="Der Hund")


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
        spec.Stack(2, block),
        spec.Pool("mean", None),
        labels=spec.ClassifierHead(3, bias=False),
    )
    model = build(description).eval()
    with torch.no_grad():
        for parameter in model.stack.parameters():
            parameter.zero_()
    subject = Subject(model, Words.of(UNFRAMED))
    result = attribution(subject, TEXT)
    ids = torch.tensor([subject.ids(TEXT)])
    with torch.no_grad():
        shares = model.labels(model.input(ids)[0]) / ids.shape[1]  # type: ignore[misc]
        scores = model.classes(model(ids)[0])[0]
    label = int(scores.argmax())
    np.testing.assert_allclose(result.values[0], shares[:, label], rtol=1e-5, atol=1e-7)
    assert result.values.sum() == pytest.approx(scores[label].item(), rel=1e-5)
    assert result.said == (f"label {label}",)


def test_attribution_is_the_gradient_times_the_vector(subject: Subject) -> None:
    """Against small steps along the embedding of one token."""
    subject.model.double()
    target = TARGET if subject.target else None
    place = 2 if subject.model.head is not None else 0  # type: ignore[union-attr]
    result = attribution(subject, TEXT, target=target, places=[place])
    reading = look(subject, TEXT, target=target, ask=()).reading
    assert len(result.tokens) == len(reading.labels) + len(reading.written[:-1])
    stack = "encoder" if subject.target or not subject.ends else "decoder"

    @torch.no_grad()
    def score(factor: float, token: int) -> float:
        def edit(x: Tensor) -> Tensor:
            x = x.clone()
            x[:, token] *= factor
            return x

        said = run(
            subject.model,
            reading.inputs,
            reading.outputs,
            probe=Probe(edits={f"{stack}.embedded": edit}),
        )[0]
        row = said[place] if said.ndim > 1 else said
        answer = reading.next[place] if place < len(reading.next) else int(base.argmax())
        return row[answer].item()

    with torch.no_grad():
        said = run(subject.model, reading.inputs, reading.outputs)[0]
        base = said[place] if said.ndim > 1 else said
    for token in (0, 2):
        slope = (score(1 + 1e-6, token) - score(1 - 1e-6, token)) / 2e-6
        assert result.values[0, token] == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_attribution_in_batches_is_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    held = translator()
    whole = attribution(held, TEXT, target=TARGET)
    assert whole.said == held.look(TEXT, target=TARGET, ask=()).target
    monkeypatch.setattr("regard.look.attribution.ROWS", 1)
    np.testing.assert_allclose(
        attribution(held, TEXT, target=TARGET).values, whole.values, rtol=1e-4, atol=1e-6
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
    bare = spec.Decoder(24, spec.Tokens(9, None), spec.Stack(1, block, spec.CausalMask()))
    with pytest.raises(SettingError, match="nothing of places"):
        positions(Subject(build(bare)), 4)


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
    with pytest.raises(SettingError, match="tree"):
        steps(fitted(), TEXT, DecodingSettings(BeamSearch(2)))
    with pytest.raises(SettingError, match="tree"):
        beam(fitted(), TEXT, DecodingSettings(Greedy()))
    with pytest.raises(SettingError, match="writes nothing"):
        steps(reader(), TEXT)


def test_watching_is_switched_off_heads_too() -> None:
    subject = fitted()
    off = [("decoder.0.cross", 0), ("decoder.1.cross", 1)]
    short = DecodingSettings(Greedy(), Limit(0.5, 6))
    watched = steps(subject, TEXT, short, off=off)
    assert watched.output == subject.writes.text(translate(subject, TEXT, short, off=off)[0].tokens)
    plain = steps(subject, TEXT, short)
    assert watched.steps[0].candidates[0].probability != plain.steps[0].candidates[0].probability


def test_the_cache_grows_by_keys_and_values() -> None:
    result = cache(translator(), TEXT, length=5)
    each = 2 * 3 * (8 + 8) * 4  # layers, heads, d_k and d_v, bytes
    assert result.tokens == (1, 2, 3, 4, 5)
    assert result.own == tuple(each * n for n in range(1, 6))
    assert result.source == each * len(translator().subject().ids(TEXT))
    assert result.reserved == result.own[-1]
    grouped = cache(writer(), TEXT, length=3)
    prompt = len(WORDS.encode(TEXT))
    assert grouped.own == tuple(2 * 2 * (6 + 6) * 4 * (prompt + n) for n in range(3))
    assert sum(grouped.parts.values()) == grouped.own[-1]
    with pytest.raises(SettingError, match="between steps"):
        cache(reader(), TEXT)


def test_a_subject_without_ends_writes_nothing() -> None:
    with pytest.raises(SettingError, match="writes nothing"):
        translate(replace(writer(), ends=None), TEXT)
