"""Presets: sizes by formula are the published ones, and each family's description is the one its files have."""

from __future__ import annotations

from typing import Any

import pytest

from regard import spec
from regard.build import build, trainable
from regard.errors import SettingError
from regard.families import (
    bart_presets,
    bert_presets,
    electra_presets,
    gpt_presets,
    palm,
    t5_presets,
)
from regard.families import folder as folders
from regard.parameter_count import parameter_count

# Millions. GPT-3: Table 2.1; PaLM: Table 1; T5: the released checkpoints; BERT, BART, ELECTRA: their papers' round figures.
PUBLISHED: list[tuple[Any, str, float, float]] = [
    (gpt_presets, "small", 125, 0.01), (gpt_presets, "medium", 350, 0.02), (gpt_presets, "large", 760, 0.01), (gpt_presets, "xl", 1300, 0.02),
    (gpt_presets, "2.7b", 2700, 0.02), (gpt_presets, "6.7b", 6700, 0.01), (gpt_presets, "13b", 13000, 0.02), (gpt_presets, "175b", 175000, 0.01),
    (palm, "8b", 8630, 0.001), (palm, "62b", 62500, 0.001), (palm, "540b", 540350, 0.0001),
    (t5_presets, "small", 60.5, 0.001), (t5_presets, "base", 222.9, 0.001), (t5_presets, "large", 737.7, 0.001), (t5_presets, "3b", 2851.6, 0.001),
    (t5_presets, "11b", 11307, 0.001), (bart_presets, "base", 139.4, 0.001), (bart_presets, "large", 406.3, 0.001), (bert_presets, "tiny", 4.4, 0.01),
    (bert_presets, "mini", 11.2, 0.01), (bert_presets, "small", 28.8, 0.01), (bert_presets, "medium", 41.4, 0.01), (bert_presets, "base", 110, 0.01),
    (bert_presets, "large", 335, 0.01), (electra_presets, "small", 13.5, 0.01), (electra_presets, "base", 110, 0.01),
    (electra_presets, "large", 335, 0.01),
]  # fmt: skip


def kept(found: Any) -> spec.Model:
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize(("family", "name", "millions", "tolerance"), PUBLISHED)
def test_sizes_are_the_published_ones(
    family: Any, name: str, millions: float, tolerance: float
) -> None:
    assert parameter_count(kept(family.preset(name))) == pytest.approx(
        millions * 1e6, rel=tolerance
    )


@pytest.mark.parametrize(
    "family", [gpt_presets, palm, t5_presets, bart_presets, bert_presets, electra_presets]
)
def test_formula_equals_model(family: Any) -> None:
    found = family.preset("tiny", 97, 40)
    for part in found if isinstance(found, tuple) else (found,):
        assert parameter_count(part) == trainable(build(part))
        assert spec.from_dict(spec.to_dict(part)) == part


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        (gpt_presets, "gpt2"),
        (palm, "regard"),
        (t5_presets, "t5"),
        (bart_presets, "bart"),
        (bert_presets, "bert"),
        (electra_presets, "electra"),
    ],
)
def test_descriptions_are_those_of_files(family: Any, kind: str) -> None:
    for name in family.PRESETS:
        assert folders.describe(kept(family.preset(name)), kind=kind)["model_type"] == kind
    assert folders.describe(bert_presets.preset("tiny", next_sentence=True))["architectures"] == [
        "BertForPreTraining"
    ]
    discriminator, generator = electra_presets.preset("small")
    assert folders.describe(discriminator)["architectures"] == ["ElectraForPreTraining"]
    assert folders.describe(generator, kind="electra")["architectures"] == ["ElectraForMaskedLM"]
    assert generator.d_model == 64


def test_mistakes_are_answered() -> None:
    with pytest.raises(SettingError, match="medium"):
        gpt_presets.preset("mdium")
    with pytest.raises(SettingError, match="activation"):
        gpt_presets.preset("tiny", activaton="relu")
    with pytest.raises(SettingError, match="heads"):
        bert_presets.preset("tiny", heads=7)
