"""Presets: sizes by formula are the published ones, and each family's description is the one its files have."""

from __future__ import annotations

import pytest

from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.families import folder as folders
from regard.families.decoders import gpt2
from regard.families.encoders import bert, electra
from regard.families.presets import PRESET_FAMILIES, preset
from regard.system.errors import SettingError

# Millions. GPT-2: the corrected counts of its release; GPT-3: Table 2.1; PaLM: Table 1; T5: the released checkpoints;
# BERT, BART, ELECTRA: their papers' round figures.
PUBLISHED: list[tuple[str, str, float, float]] = [
    ("gpt2", "small", 125, 0.01), ("gpt2", "medium", 350, 0.02), ("gpt2", "large", 774, 0.01), ("gpt2", "xl", 1558, 0.01),
    ("gpt3", "large", 760, 0.01), ("gpt3", "xl", 1300, 0.02),
    ("gpt3", "2.7b", 2700, 0.02), ("gpt3", "6.7b", 6700, 0.01), ("gpt3", "13b", 13000, 0.02), ("gpt3", "175b", 175000, 0.01),
    ("palm", "8b", 8630, 0.001), ("palm", "62b", 62500, 0.001), ("palm", "540b", 540350, 0.0001),
    ("t5", "small", 60.5, 0.001), ("t5", "base", 222.9, 0.001), ("t5", "large", 737.7, 0.001), ("t5", "3b", 2851.6, 0.001),
    ("t5", "11b", 11307, 0.001), ("bart", "base", 139.4, 0.001), ("bart", "large", 406.3, 0.001), ("bert", "tiny", 4.4, 0.01),
    ("bert", "mini", 11.2, 0.01), ("bert", "small", 28.8, 0.01), ("bert", "medium", 41.4, 0.01), ("bert", "base", 110, 0.01),
    ("bert", "large", 335, 0.01), ("electra", "small", 13.5, 0.01), ("electra", "base", 110, 0.01),
    ("electra", "large", 335, 0.01),
]  # fmt: skip


@pytest.mark.parametrize(("family", "name", "millions", "tolerance"), PUBLISHED)
def test_sizes_are_the_published_ones(
    family: str, name: str, millions: float, tolerance: float
) -> None:
    assert parameter_count(preset(f"{family}:{name}")) == pytest.approx(
        millions * 1e6, rel=tolerance
    )


@pytest.mark.parametrize("family", ["gpt2", "palm", "t5", "bart", "bert"])
def test_formula_equals_model(family: str) -> None:
    for part in (preset(f"{family}:tiny", 97, 40), *electra.preset("tiny", 97, 40)):
        assert parameter_count(part) == trainable(build(part))
        assert spec.from_dict(spec.to_dict(part)) == part


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("gpt2", "gpt2"),
        ("palm", "regard"),
        ("t5", "t5"),
        ("bart", "bart"),
        ("bert", "bert"),
        ("electra", "electra"),
    ],
)
def test_descriptions_are_those_of_files(family: str, kind: str) -> None:
    for size in PRESET_FAMILIES[family].sizes:
        described = folders.describe(preset(f"{family}:{size}"), model_type=kind)
        assert described["model_type"] == kind
    assert folders.describe(preset("bert:tiny", next_sentence=True))["architectures"] == [
        "BertForPreTraining"
    ]
    discriminator, generator = electra.preset("small", 30_522, 512)
    assert folders.describe(discriminator)["architectures"] == ["ElectraForPreTraining"]
    assert folders.describe(generator, model_type="electra")["architectures"] == [
        "ElectraForMaskedLM"
    ]
    assert generator.d_model == 64


def test_mistakes_are_answered() -> None:
    with pytest.raises(SettingError, match="medium"):
        gpt2.preset("mdium", 50, 16)
    with pytest.raises(SettingError, match="activation"):
        gpt2.preset("tiny", 50, 16, activaton="relu")
    with pytest.raises(SettingError, match="heads"):
        bert.preset("tiny", 50, 16, heads=7)
