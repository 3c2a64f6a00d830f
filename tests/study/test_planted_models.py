"""Models whose truth is known, because it was planted: studies measure it, and rules find it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.data.generated import builtin
from regard.data.generated.algorithmic_tasks import Copying, GeneratedTask, Parity, is_balanced
from regard.data.generated.builtin import Sentence
from regard.lab.study import baselines, explanation, heads, layer_types, listing, positions, scores
from regard.lab.study.baselines import DISTANCES, UniversalDepth, gradient_norms
from regard.lab.study.norms import _moves
from regard.lab.study.positions import PLACES, TRAINED, readable
from regard.lab.study.study import Outcome, Study
from regard.lab.study.training_run import (
    END,
    NO_TARGET,
    RESERVED,
    Batch,
    Task,
    TaskBatches,
    build_seeded,
    language_model,
    packaged_translator,
    shifted_batch,
)
from regard.look.forward import forward
from regard.look.head_roles import POSITIONAL, Roles
from regard.look.model_inputs import batch

HOLDS, LIMITED, FAILS, UNDECIDED = Outcome


def outcome(study: Study, seeds: int = 2) -> Outcome:
    """What a quick study says of what was planted."""
    return study.verdict(study.measure(study.effort(quick=True, seeds=seeds))).outcome


# ------------------------------------------------------------------ gradients and paths


class Recurrence(nn.Module):
    """h_t = a·h_{t−1} + x_t, whose gradient over d steps is a^d."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(x.shape[1], dtype=x.dtype)
        powers = (self.factor ** (steps[:, None] - steps)).tril()
        return powers @ x


@pytest.mark.parametrize("factor", [1e-4, 0.5, 1.0, 2.0])
def test_gradients_of_a_recurrence_are_its_powers(factor: float) -> None:
    norms = gradient_norms(Recurrence(factor), seed=1, samples=1)
    # 1e-252 at the largest distance: float32 would have none.
    assert norms == pytest.approx([factor ** (d - 1) for d in DISTANCES], rel=1e-6)


@pytest.mark.parametrize(
    ("small", "large", "gated", "attention", "truth"),
    [
        (0.5, 2.0, 0.9, 1.0, HOLDS),
        (0.5, 2.0, 0.5, 1.0, LIMITED),  # gates do not soften
        (1.0, 1.0, 1.0, 0.5, FAILS),
        (1e-6, 2.0, 0.9, 1.0, UNDECIDED),  # 1e-378 is 0 even in float64
    ],
)
def test_recurrences_as_cells(
    small: float,
    large: float,
    gated: float,
    attention: float,
    truth: Outcome,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def recurrent(cell: str, radius: float, seed: int) -> Recurrence:
        factor = small if radius == baselines.RADII["small"] else large
        return Recurrence(gated if cell in ("gru", "lstm") else factor)

    monkeypatch.setattr(baselines, "_recurrent", recurrent)
    monkeypatch.setattr(baselines, "_attention", lambda seed: Recurrence(attention))
    assert outcome(listing.load("gradient_distance")) == truth


def undilated(layer: Callable[..., Any]) -> Callable[..., Any]:
    return lambda name, width, **options: layer(name, width, **(options | {"dilation": 1}))


def in_turn(layer: Callable[..., Any]) -> Callable[..., Any]:
    """Layers whose positions wait for each other, which changes no path."""

    def planted(name: str, width: int, **options: Any) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            waited = sum((one for one in x.unbind(1)), start=torch.zeros_like(x[:, 0]))
            result: Tensor = layer(name, width, **options)(x)
            return result + 0 * waited[:, None]

        return forward

    return planted


@pytest.mark.parametrize(
    ("plant", "truth"), [(lambda layer: layer, HOLDS), (in_turn, LIMITED), (undilated, FAILS)]
)
def test_paths_of_planted_layers(
    plant: Callable[..., Any], truth: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_types, "layer", plant(layer_types.layer))
    study = listing.load("path_length")
    numbers = study.measure(study.effort(quick=True))
    assert study.verdict(numbers).outcome == truth
    # 17 and 33 positions are too near to tell what grows.
    for of_length in (numbers, numbers["paths"], numbers["chains"]):
        for name, values in of_length.items():
            of_length[name] = values[:2] if isinstance(values, list) else values
    assert study.verdict(numbers).outcome == UNDECIDED


def test_only_the_norm_over_the_batch_sees_it() -> None:
    assert max(_moves(spec.LayerNorm(), 1, seed=1).values()) < 1e-12
    assert min(_moves(spec.BatchNorm(), 1, seed=1).values()) > 0.01


# ------------------------------------------------------------------ look-ups and roles


def needless(model: Any) -> None:
    """What cross-attention reads is not used."""
    for block in model.decoder.blocks:
        nn.init.zeros_(block.cross.output.weight)


def untrained(model: Any) -> None:
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)


@pytest.mark.parametrize(
    ("plant", "truth"), [(None, HOLDS), (needless, LIMITED), (untrained, UNDECIDED)]
)
def test_translators_that_look_up_or_need_nothing(
    plant: Callable[[Any], None] | None, truth: Outcome
) -> None:
    model = packaged_translator()
    sentences = list(islice(builtin.sentences("test"), 20))
    texts = batch(model, [one.source for one in sentences], [one.target for one in sentences])
    core: Any = model.model
    if plant is not None:
        with torch.no_grad():
            plant(core)
    if plant is needless:
        # Its own translations are right: what it says, it says without looking.
        said = forward(core, texts.named).argmax(-1)
        texts = replace(texts, labels=said.where(texts.labels >= 0, texts.labels))
    predicted = scores.predictions(core, texts)
    numbers = {
        "temperatures": scores.TEMPERATURES,
        "runs": [scores._look_up(100, seed) for seed in (1, 2)],
        "translator": predicted,
    }
    assert listing.load("lookup").verdict(numbers).outcome == truth
    if plant is needless:
        assert set(predicted["same"]) == {100}


def test_a_mean_is_no_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def mean_of_all(q: Tensor, k: Tensor, v: Tensor, temperature: float) -> Tensor:
        return v.mean(1, keepdim=True)

    monkeypatch.setattr(scores, "_attend", mean_of_all)
    assert outcome(listing.load("lookup")) == FAILS


# The attention of a head from one word to another, by what is linked in truth.
PlantedHead = Callable[[set[tuple[int, int]], int, int], float]


def next_word(links: set[tuple[int, int]], start: int, end: int) -> float:
    return float(end - start == 1)


def along_links(links: set[tuple[int, int]], start: int, end: int) -> float:
    return float((start, end) in links)


def uniform(links: set[tuple[int, int]], start: int, end: int) -> float:
    return 0.2


@pytest.mark.parametrize(
    ("planted", "sentences", "truth"),
    [
        ((next_word, along_links), 1000, HOLDS),
        # A head for a distance is none for the relations at that distance.
        ((next_word, uniform), 1000, LIMITED),
        ((along_links, uniform), 1000, LIMITED),
        ((uniform, uniform), 1000, FAILS),
        ((next_word, along_links), 4, UNDECIDED),
    ],
)
def test_planted_heads(
    planted: Sequence[PlantedHead],
    sentences: int,
    truth: Outcome,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed = list(islice(builtin.sentences("test", pronouns=False), sentences))
    related = {one.source: {(link.start, link.end) for link in one.links} for one in parsed}

    def roles(model: None, sentences: Sequence[Sentence]) -> Roles:
        """What heads attend to, of planted weights."""
        pairs: dict[str, list[tuple[str, int, int]]] = {}
        for one in sentences:
            words = range(len(one.source.split()))
            pairs.setdefault("next token", []).extend((one.source, *to) for to in pairwise(words))
            for link in one.links:
                pairs.setdefault(link.kind, []).append((one.source, link.start, link.end))
        attention = np.array(
            [
                [[np.mean([head(related[text], *to) for text, *to in of_role]) for head in planted]]
                for of_role in pairs.values()
            ]
        )
        return Roles(
            ("encoder.0.self",),
            tuple(pairs),
            attention,
            (0.2,) * len(pairs),
            tuple(map(len, pairs.values())),
            {
                role: ("encoder.0.self", int(attention[number, 0].argmax()))
                for number, role in enumerate(pairs)
            },
        )

    assert "next token" in POSITIONAL
    monkeypatch.setattr(heads, "packaged_translator", lambda: None)
    monkeypatch.setattr(heads, "_sentences", lambda count: (parsed, "planted heads"))
    monkeypatch.setattr(heads, "roles", roles)
    assert outcome(listing.load("head_roles"), seeds=1) == truth


def test_controls_are_other_words_at_the_same_distance() -> None:
    for sentence in islice(builtin.sentences("test", pronouns=False), 50):
        control = heads.at_same_distance(sentence)
        distances = {(link.kind, link.end - link.start) for link in sentence.links}
        assert {(link.kind, link.end - link.start) for link in control.links} <= distances
        assert not {*control.links} & {*sentence.links}


# ------------------------------------------------------------------ algorithms


class Oracle(nn.Module):
    """A language model that answers each prompt by a function of its words."""

    writes = True

    def __init__(self, task: TaskBatches, respond: Callable[[list[str]], list[str]]) -> None:
        super().__init__()
        self.words = task.vocabulary
        self.respond = respond
        self.head = self.lm_head = nn.Identity()

    def forward(self, tokens: Tensor, *others: object) -> tuple[Tensor, dict[str, Tensor]]:
        predicted = torch.zeros_like(tokens)
        for row, ids in enumerate(tokens.tolist()):
            # START, the input, the separator; then the answer.
            words = [self.words.words[one - RESERVED] for one in ids[1:] if one >= RESERVED]
            source = words[: words.index("=")]
            answer = [*self.words.encode(self.respond(source)), END]
            place = len(source) + 1
            answer = answer[: len(ids) - place]
            predicted[row, place : place + len(answer)] = torch.tensor(answer)
        return functional.one_hot(predicted, len(self.words)).double(), {}


def copier(right: float, seed: int, inside: float = 1.0) -> Callable[[list[str]], list[str]]:
    """Copies letters, with mistakes; in texts that are longer than those of training, others."""
    rng = random.Random(seed)

    def respond(letters: list[str]) -> list[str]:
        chance = right if len(letters) > TRAINED else inside
        return [one if rng.random() < chance else "a" for one in letters]

    return respond


@pytest.mark.parametrize(
    ("sinusoidal", "learned", "alibi", "inside", "truth"),
    [
        (0.95, 0.3, 1.0, 1.0, HOLDS),
        (0.97, 0.3, 0.5, 1.0, LIMITED),
        (0.2, 0.3, 0.7, 1.0, FAILS),
        (0.2, 0.3, 0.7, 0.4, UNDECIDED),  # it has not learned to copy
    ],
)
def test_copiers_that_extrapolate_or_not(
    sinusoidal: float,
    learned: float,
    alibi: float,
    inside: float,
    truth: Outcome,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rights = {spec.Sinusoidal: sinusoidal, spec.LearnedPosition: learned}

    def trained(description: Any, seed: int, *others: object) -> nn.Module:
        right = rights.get(type(description.tokens.position), alibi)
        task = TaskBatches(Copying(max_length=TRAINED))
        return Oracle(task, copier(right, seed, inside))

    monkeypatch.setattr(positions, "trained", trained)
    assert outcome(listing.load("extrapolation"), seeds=3) == truth


def decider(task: GeneratedTask, limit: int) -> Callable[[list[str]], list[str]]:
    """Decides inputs up to a length, and guesses the same answer for all that are longer."""

    def respond(words: list[str]) -> list[str]:
        known = words[:limit]
        if isinstance(task, Parity):
            return [task.answer(known)]
        return ["balanced" if is_balanced(known) else "unbalanced"]

    return respond


@pytest.mark.parametrize(
    ("universal", "one_layer", "truth"),
    [(100, 10, HOLDS), (100, 100, LIMITED), (20, 10, FAILS), (2, 10, UNDECIDED)],
)
def test_deciders_of_any_length_or_of_some(
    universal: int, one_layer: int, truth: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = {len(TaskBatches(task).vocabulary): task for task in UniversalDepth.tasks.values()}

    def trained(description: Any, *others: object) -> nn.Module:
        limit = 100
        if isinstance(description, spec.Decoder):
            is_universal = isinstance(description.stack.scheme, spec.Universal)
            limit = universal if is_universal else one_layer
        task = tasks[description.tokens.vocabulary]
        # A bracket more is needed for a pair.
        factor = 1 if isinstance(task, Parity) or limit == 100 else 2
        return Oracle(TaskBatches(task), decider(task, limit if limit != 20 else 10 * factor))

    monkeypatch.setattr(baselines, "trained", trained)
    assert outcome(listing.load("universal")) == truth


# ------------------------------------------------------------------ probes


@pytest.mark.parametrize(
    ("planted", "least", "most"),
    [("beside the word", 99, 100), ("as a factor", 0, 50), ("missing", 5, 12)],
)
def test_a_probe_finds_positions_that_are_there(planted: str, least: float, most: float) -> None:
    generator = torch.Generator().manual_seed(1)
    words = torch.randn(100, 32, generator=generator)
    places = torch.randn(PLACES, 32, generator=generator)

    def vectors(tokens: Tensor) -> Tensor:
        of_words = words[tokens]  # [B, T, 32]
        if planted == "missing":
            return of_words
        if planted == "as a factor":
            # What the sign of a word turns around is not linear.
            return of_words * places
        return torch.cat([of_words, places.expand_as(of_words)], dim=-1)

    assert least <= readable(vectors, 100, seed=1) <= most


def test_a_feedforward_network_that_overrides_or_does_nothing() -> None:
    model: Any = build_seeded(language_model(50), 1).eval()
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(RESERVED, 50, (20, 12), generator=generator).tolist()
    texts = shifted_batch(rows)
    outer = model.stack.blocks[-1].feedforward.outer.weight
    with torch.no_grad():
        outer.mul_(1000)
    assert explanation.overriding(model, texts)["overridden"] > 0.5
    nn.init.zeros_(outer)
    assert explanation.overriding(model, texts)["overridden"] == 0


def test_a_head_that_says_what_matters_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def single_heads(agreeing: int) -> float:
        """The correlation of four heads, of which so many have the weights of what matters."""
        generator = torch.Generator().manual_seed(1)
        effect = torch.rand(30, 30, generator=generator)
        random_heads = torch.rand(1, 4, 30, 30, generator=generator)
        random_heads[0, :agreeing] = effect.T
        planted = explanation.Removals(torch.zeros(30, 5), [], random_heads, effect)
        monkeypatch.setattr(explanation, "_removals", lambda model, tokens: planted)
        tokens = torch.full((2, 30), RESERVED)
        return explanation.single_heads(None, Batch(tokens, tokens), 2)

    assert single_heads(4) == pytest.approx(1)
    assert single_heads(1) == pytest.approx(0.25, abs=0.15)
    assert single_heads(0) == pytest.approx(0, abs=0.15)


@pytest.mark.thorough
@pytest.mark.parametrize(("follows", "useful"), [("the first", True), ("the last", False)])
def test_uniform_attention_is_useful_where_the_next_word_follows_from_all(
    follows: str, useful: bool
) -> None:
    def texts(seed: int) -> Iterator[Batch]:
        rng = random.Random(seed)
        while True:
            rows = [[rng.randrange(RESERVED, 20) for _ in range(6)] for _ in range(32)]
            # The last token repeats the first, or is the one after that before it.
            for row in rows:
                row.append(row[0] if follows == "the first" else RESERVED + row[-1] % 17)
            batch = shifted_batch(rows)
            batch.targets[:, :-1] = NO_TARGET
            yield batch

    task = Task(20, texts, list(islice(texts(0), 2)))
    models = explanation.models(task.vocabulary)
    uniform, alone = (task.score(models[kind], 1, 150).loss for kind in explanation.KINDS[2:])
    assert (uniform < 0.9 * alone) == useful
