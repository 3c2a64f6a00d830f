"""Who resolves "it": what the example finds, as it is stored with the packaged model and drawn."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from looked import WORDS, translator
from regard.data.generated.builtin import sentences
from regard.look import (
    Circuit,
    chosen_right,
    look,
    stored_circuit,
    translate,
    written,
)
from regard.look.forward import forward
from regard.look.head_roles import word_positions
from regard.models import Model, load
from regard.system.errors import DataError

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "src/regard/studio/demo"
EXAMPLE = runpy.run_path(str(ROOT / "examples/pronoun_circuit.py"))
pronouns, referents = EXAMPLE["pronouns"], EXAMPLE["referents"]
SENTENCE = "The animal did not cross the street because it was too {}."


@cache
def packaged() -> tuple[Model, Circuit]:
    result = stored_circuit(DEMO)
    assert result is not None
    return load(DEMO, device="cpu"), result


@pytest.mark.slow
def test_the_example_finds_few_heads_that_pronouns_hang_on() -> None:
    """Chosen on sentences of one split, measured on those of another."""
    _, stored = packaged()
    command = [sys.executable, str(ROOT / "examples/pronoun_circuit.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result["meets_bounds"]
    assert result["every"]
    assert result["accuracy"] >= 0.97
    assert 0.4 <= result["ablated_accuracy"] <= 0.55
    assert result["ablated_rest_accuracy"] >= 0.9
    assert [tuple(head) for head in result["heads"]] == list(stored.heads)
    assert tuple(result["reader"]) == stored.reader
    assert result["looks"] == pytest.approx(stored.looks, abs=0.01)


def test_a_head_looks_at_what_it_stands_for_as_long_as_they_work() -> None:
    model, stored = packaged()
    some = list(islice(sentences("test", seed=7, pronouns=True), 100))
    assert stored.reader is not None
    on, off = (referents(model, some, heads)[stored.reader] for heads in ((), stored.heads))
    assert on[0] > 0.9 > 0.1 > on[1]
    assert off[0] < 0.7


def test_without_them_the_adjective_makes_no_difference() -> None:
    model, stored = packaged()

    def pronoun(adjective: str, off: tuple[tuple[str, int], ...]) -> str:
        words = written(model, translate(model, SENTENCE.format(adjective), off=off)[0]).split()
        return next(word for word in words if word in ("er", "sie", "es"))

    assert [pronoun(adjective, ()) for adjective in ("tired", "wide")] == ["es", "sie"]
    assert pronoun("tired", stored.heads) == pronoun("wide", stored.heads)


def test_the_picture_tells_these_figures() -> None:
    _, stored = packaged()
    picture = (ROOT / "docs/assets/pronoun.svg").read_text(encoding="utf-8")
    for before, after in (
        (stored.accuracy, stored.ablated_accuracy),
        (stored.rest_accuracy, stored.ablated_rest_accuracy),
    ):
        assert f"{before:.0%} → {after:.0%}" in picture
    assert len(picture) < 40_000


def test_what_is_no_circuit_is_refused(tmp_path: Path) -> None:
    assert stored_circuit(tmp_path) is None
    (tmp_path / "circuit.json").write_text('{"heads": 3}')
    with pytest.raises(DataError, match="does not contain a circuit"):
        stored_circuit(tmp_path)


# --- random weights ---


def test_pronouns_are_choices_between_those_of_two_nouns() -> None:
    model = translator()
    asked_sentences = list(islice(sentences("test", pronouns=True), 20))
    choices = pronouns(model, asked_sentences)
    assert choices.data.decoder_inputs is not None
    for sentence, place, options, row in zip(
        asked_sentences, choices.positions, choices.options, choices.data.labels, strict=True
    ):
        words = [token.strip("▁") for token in WORDS.tokens(options)]
        assert len(set(words)) == 2
        assert set(words) <= {"er", "sie", "es"}
        assert int(row[place]) == options[0]
        assert words[0] in sentence.target.split()
    share = chosen_right(model, choices).mean()
    logits = forward(model.model, choices.data.named).detach()
    by_hand = [
        max(options, key=lambda i, n=n, p=place: float(logits[n, p, i])) == options[0]  # type: ignore[misc]
        for n, (place, options) in enumerate(zip(choices.positions, choices.options, strict=True))
    ]
    assert share == np.mean(by_hand)


def test_referents_are_what_looking_at_each_sentence_says() -> None:
    model = translator()
    asked = list(islice(sentences("test", pronouns=True), 4))
    off = [("decoder.0.cross", 1)]
    result = referents(model, asked, off)
    choices = pronouns(model, asked)
    expected = {head: np.zeros(4) for head in result}
    for sentence, place in zip(asked, choices.positions, strict=True):
        run = look(model, sentence.source, target=sentence.target, off=off)
        words = [word.strip(".").lower() for word in sentence.source.split()]
        assert sentence.triple is not None
        first, second, adjective = sentence.triple[:3]
        nouns = (first, second) if sentence.referent == "subject" else (second, first)
        places = word_positions(model, sentence.source)
        spots = [places[words.index(word)] for word in (*nouns, "it", adjective)]
        for name, head in result:
            row = run.weights(name)[:, spots[2][0] if name.startswith("encoder") else place][head]
            expected[name, head] += [row[spot].sum() / len(asked) for spot in spots]
    for head, shares in expected.items():
        np.testing.assert_allclose(result[head], shares, atol=1e-5)
