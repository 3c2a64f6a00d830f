"""Tab, help, repr, and the keywords that one tries first."""

from __future__ import annotations

from pathlib import Path

import pytest

import regard
from regard.decode.strategy import BeamSearch, Greedy, Sampling, choose_strategy
from regard.models import Translator
from regard.system.errors import DataError, ModelError, SettingError

TEXT = "The dog sees a cat."


@pytest.fixture(scope="module")
def translator(demo: Path) -> Translator:
    return regard.load(demo, regard.Translator)


def test_the_package_shows_what_it_offers() -> None:
    assert {"load", "train", "finetune", "evaluate", "build", "look", "spec"} <= set(dir(regard))
    assert "importlib" not in dir(regard)
    assert {"alignment", "beam", "Look"} <= set(dir(regard.look))
    for word in ("Translator", "classify", "transcribe", "save", "look"):
        assert word in (regard.load.__doc__ or "")


def test_objects_say_what_they_are(translator: Translator) -> None:
    assert repr(translator).startswith("Translator(")
    assert "parameters" in repr(translator)
    for one in (translator.source_tokenizer, translator.look(TEXT), translator.model.head):
        assert "object at 0x" not in repr(one)
    assert "in=" in str(translator.model) or "→" in str(translator.model)


def test_plain_keywords(translator: Translator) -> None:
    assert translator.translate(TEXT, beam=8) == translator.translate(TEXT, BeamSearch(8))
    assert translator.translate([TEXT], beam=1) == translator.translate([TEXT], Greedy())
    drawn = translator.translate(TEXT, temperature=3.0, seed=5)
    assert drawn == translator.translate(TEXT, Sampling(3.0, seed=5))
    assert choose_strategy(None, {"top_p": 0.5, "seed": 2}) == Sampling(top_p=0.5, seed=2)
    assert choose_strategy(None, {"sample": True}) == Sampling()
    assert choose_strategy(None, {}) is None


def test_keywords_that_do_not_fit(translator: Translator) -> None:
    with pytest.raises(SettingError, match="did you mean 'beam'"):
        translator.translate(TEXT, baem=8)  # type: ignore[call-overload]
    with pytest.raises(SettingError, match="beam search does not sample"):
        translator.translate(TEXT, beam=8, temperature=0.5)
    with pytest.raises(SettingError, match="remove `beam`"):
        translator.translate(TEXT, Greedy(), beam=8)
    with pytest.raises(SettingError, match="beam = 0 is too small"):
        translator.translate(TEXT, beam=0)
    for wrong in (None, 7, [TEXT, None]):
        with pytest.raises(DataError, match="expected a string, not"):
            translator.translate(wrong)  # type: ignore[arg-type]


def test_a_task_that_a_model_lacks_names_those_it_has(translator: Translator) -> None:
    with pytest.raises(ModelError, match=r"cannot `classify`\n.*it can: translate"):
        translator.classify(TEXT)


def test_names_of_transformers_mean_the_same(translator: Translator) -> None:
    greedy = translator.translate(TEXT, beam=1)
    assert translator.translate(TEXT, num_beams=1) == greedy
    assert translator.translate(TEXT, do_sample=False) == greedy
    assert translator.translate(TEXT, temperature=0, seed=3) == greedy
    assert translator.translate(TEXT, num_beams=3) == translator.translate(TEXT, beam=3)
