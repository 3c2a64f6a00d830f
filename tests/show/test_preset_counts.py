"""A preset's page has its published parameter count beside ours; the list has all of them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from regard import spec
from regard.builder import outline
from regard.builder.parameter_count import parameter_count
from regard.cli.show import command
from regard.families.presets import listing, preset
from regard.lab.show.modules import ModuleSummary, meanings, summarize


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(command, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_the_page_says_why_counts_differ() -> None:
    page = shown("transformer:base")
    assert "63,082,496" in page
    assert "65 M: 37,000 shared tokens; the paper's 65 M take about 41,000" in page
    values = json.loads(shown("transformer:base", "--json"))
    assert values["published"]["parameters"] == 65_000_000
    assert "41,000" in values["published"]["reason"]
    assert json.loads(shown("bert:base", "--json"))["published"]["reason"] is None
    assert json.loads(shown("lstm:tiny", "--json"))["published"] is None
    assert "published" not in shown("lstm:tiny")


@pytest.mark.parametrize("arguments", [[], pytest.param(["--list"], marks=pytest.mark.slow)])
def test_without_a_model_all_presets_are_listed(arguments: list[str]) -> None:
    lines = {line.split()[0]: line for line in shown(*arguments).splitlines() if line}
    for entry in listing():
        assert entry.kind in lines[entry.name]
    assert "174,604,259,328" in lines["gpt3:175b"]
    assert "175 B" in lines["gpt3:175b"]


@pytest.mark.slow
def test_the_list_as_json() -> None:
    values = {entry["name"]: entry for entry in json.loads(shown("--json"))}
    assert values.keys() == {entry.name for entry in listing()}
    assert values["gpt2:xl"]["parameters"] == parameter_count(preset("gpt2:xl"))
    assert values["t5:3b"]["published"]["parameters"] == 2_800_000_000
    assert values["t5:3b"]["kind"] == "encoder-decoder"


def find(modules: list[ModuleSummary], name: str) -> list[ModuleSummary]:
    matches = [module for module in modules if module.name == name]
    for module in modules:
        matches += find(list(module.children), name)
    return matches


def test_a_universal_stack_shows_its_halting_unit() -> None:
    model = preset("universal:tiny", 50, 32)
    assert isinstance(model, spec.EncoderDecoder)
    units = find(list(summarize(model)), "halt")
    # One for each side: a linear map to one logit, with its bias.
    assert [unit.parameters for unit in units] == [model.d_model + 1] * 2
    assert "halting_threshold" in shown("universal:tiny")
    stored = [name for name, _ in outline(model).named_parameters() if "halt" in name]
    assert len(stored) == 4


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("bert:tiny", {"position": "relative"}, "Shaw"),
        ("bert:tiny", {"position": "concatenated"}, "Sinusoidal"),
        ("transformer-xl:tiny", {}, "Transformer-XL"),
    ],
)
def test_positions_have_their_names(name: str, changes: dict[str, str], words: str) -> None:
    said = meanings(summarize(preset(name, 50, 32, **changes)))
    assert any(words in text for text in said.values())
