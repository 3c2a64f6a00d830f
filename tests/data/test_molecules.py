"""Molecules in SMILES: random ones are right, and so is the judgement of others, by RDKit's."""

from __future__ import annotations

import random
from itertools import islice
from typing import Any

import pytest

import looked
import regard
from regard.builder import build
from regard.data.generated.algorithmic_tasks import Molecules
from regard.data.generated.molecules import grown, is_valid, read
from regard.evaluation import language_modelling
from regard.families.presets import preset
from regard.models import LanguageModel

ALPHABET = "CNOSFclnos=#()123-B[]Hr"


def texts(count: int, split: str = "train") -> list[str]:
    return [text for text, _ in islice(Molecules().examples(split), count)]


def corrupted(rng: random.Random, text: str) -> str:
    """A text with one to three characters replaced, left out or put in."""
    letters = list(text)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(letters))
        action = rng.randrange(3)
        letters[place : place + (action < 2)] = [rng.choice(ALPHABET)] if action else []
    return "".join(letters)


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("CCO", True),
        ("CC(=O)Oc1ccccc1C(=O)O", True),  # aspirin
        ("c1ccc2ccccc2c1", True),
        ("c1cc[nH]c1", True),
        ("c1ccc(-c2ccccc2)cc1", True),
        ("CS(=O)(=O)N", True),
        ("C%10CC%10", True),
        ("", False),
        ("C(", False),
        ("C()C", False),
        ("C1CC", False),  # a ring that does not close
        ("C11", False),
        ("C==C", False),
        ("C=", False),
        ("CX", False),
        ("CC(C)(C)(C)C", False),  # five bonds of a carbon
        ("FC=F", False),
        ("c1cccc1", False),  # no double bonds for five atoms
        ("Cc1(C)ccccc1", False),  # five of an aromatic carbon
        ("cc", False),  # aromatic without a ring
        ("CoC", False),
        ("n1ccccc1C1=O1C", False),
    ],
)
def test_the_judgement_of_a_text(text: str, valid: bool) -> None:
    assert is_valid(text) == valid


def test_random_molecules_are_valid_and_as_large_as_asked() -> None:
    rng = random.Random(3)
    for size in (1, 4, 9, 20, 33):
        assert len(grown(rng, size).atoms) == size
    for text in texts(300):
        molecule = read(text)
        assert is_valid(text)
        assert molecule is not None
        assert 4 <= len(molecule.atoms) <= 20
    assert not set(texts(300)) & set(texts(300, "test"))


def test_rdkit_judges_alike() -> None:
    """All that we write is valid there; of corrupted texts, 99 % are judged alike."""
    chem: Any = pytest.importorskip("rdkit.Chem")
    pytest.importorskip("rdkit.RDLogger").DisableLog("rdApp.*")
    written = texts(500)
    assert all(chem.MolFromSmiles(text) is not None for text in written)
    rng = random.Random(4)
    wrong = [one for text in written for _ in range(3) if (one := corrupted(rng, text))]
    theirs = [chem.MolFromSmiles(text) is not None for text in wrong]
    ours = [is_valid(text) for text in wrong]
    assert 0.05 < sum(theirs) / len(theirs) < 0.5
    assert sum(map(bool.__eq__, ours, theirs)) > 0.98 * len(wrong)


def test_what_a_model_writes_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_modelling, "SAMPLES", 6)
    description = preset("gpt2:tiny", len(looked.WORDS), 32, layers=1, d_model=16, heads=2)
    model = LanguageModel(build(description), description, looked.WORDS)  # type: ignore[arg-type]
    samples = ["CCO", "CCO", "CCN", "C(", "O", "O"]
    monkeypatch.setattr(model, "generate", lambda prompts, *_, **__: samples[: len(prompts)])
    found = regard.evaluate(model, ["CCN\nCCC\n"], task="molecules")
    scores = [found[name] for name in ("valid", "unique", "novel")]
    assert scores == pytest.approx([100 * 5 / 6, 50.0, 100 / 3])
