"""Recurrent encoders with a classification head: built, counted, padded, saved and opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard import spec
from regard.builder import build
from regard.builder.parameter_count import parameter_count
from regard.models.saving import config_json, write_weights
from regard.system.errors import ModelError
from regard.training.model_spec import with_task_head


def classifier(bidirectional: bool = False, pool: Any = "last") -> spec.RecurrentEncoder:
    stack = spec.Recurrent("lstm", 2, bidirectional)
    head = spec.ClassifierHead(3, "classify")
    return spec.RecurrentEncoder(8, spec.Tokens(11, None), stack, (spec.Pool(pool, None), head))


@pytest.mark.parametrize(("bidirectional", "pool"), [(False, "last"), (True, "mean")])
def test_padding_changes_nothing(bidirectional: bool, pool: str) -> None:
    model = build(classifier(bidirectional, pool)).double().eval()
    tokens = torch.randint(0, 11, (2, 7))
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, 4:] = False

    def logits(tokens: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        hidden, _ = model(tokens, mask)
        return model.classes(hidden, mask, tokens)

    together = logits(tokens, mask)
    assert together.shape == (2, 3)
    torch.testing.assert_close(together[1:], logits(tokens[1:, :4], None))


def test_the_parameters_are_those_of_the_matrices() -> None:
    d = 8
    gates = 4 * (2 * d * d + 2 * d)  # of one layer, with PyTorch's two biases
    assert parameter_count(classifier()) == 11 * d + 2 * gates + 3 * d + 3
    # Each direction has half of the width, and reads all of it.
    half = 4 * (d // 2 * d + (d // 2) ** 2 + 2 * (d // 2))
    assert parameter_count(classifier(True)) == 11 * d + 4 * half + 3 * d + 3


def test_it_is_saved_and_opened(tmp_path: Path) -> None:
    description = classifier(True, "mean")
    model = build(description).eval()
    from regard.families import folder as folders
    from regard.system import disk

    config = config_json(description, folders.describe(description))
    disk.write_json(tmp_path / "config.json", config)
    write_weights(tmp_path / "model.safetensors", model, description, config)
    opened = regard.load(tmp_path)
    assert opened.spec == description
    tokens = torch.randint(0, 11, (1, 5))
    hidden, _ = model(tokens)
    torch.testing.assert_close(opened.model(tokens)[0], hidden, rtol=0, atol=0)
    # Called like all others, also with the states of its layers.
    called = opened(input_ids=tokens, output_hidden_states=True)
    torch.testing.assert_close(called.logits, model.classes(hidden, None, tokens))
    assert [state.shape for state in called.hidden_states] == [(1, 5, 8)] * 3


def test_a_language_model_becomes_a_classifier() -> None:
    tokens = spec.Tokens(11, None)
    language_model = spec.RecurrentDecoder(8, tokens, spec.Recurrent("gru", 1))
    described = with_task_head(language_model, "gru", "classify", 4)
    assert isinstance(described, spec.RecurrentDecoder)
    assert described.pool == spec.Pool("last", None)
    assert with_task_head(language_model, "gru", "tag", 4).pool is None


def test_what_cannot_be_is_refused() -> None:
    tokens = spec.Tokens(11, None)
    with pytest.raises(ModelError, match="needs an even d_model, not 7"):
        spec.RecurrentEncoder(7, tokens, spec.Recurrent("lstm", 1, True))
