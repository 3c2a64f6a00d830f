"""Attention entropy in the log of a run: what looking at each text alone says, and no trace of it in the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_run import start, text  # noqa: F401

from looked import translator, writer
from regard.core.context import Context
from regard.look import batch, entropy, look
from regard.training.engine.attention_entropy import attention_entropy

PAIRS = {
    "The dog sees a small cat.": "Der Hund sieht eine kleine Katze.",
    "The cat sleeps.": "Die Katze schläft.",
}


def test_padding_does_not_count() -> None:
    """The mean over the places of a padded batch is that of the texts, each weighed by its length."""
    model = translator()
    data = batch(model, list(PAIRS), list(PAIRS.values()))
    written = data.labels >= 0
    found = attention_entropy(
        lambda probe: model.model(
            data.inputs, data.decoder_inputs, data.padding_mask, Context(probe=probe)
        ),
        {"encoder": data.padding_mask, "decoder": written},
    )
    alone = [entropy(look(model, source, target=target)) for source, target in PAIRS.items()]
    assert set(found["attention_entropies"]) == set(alone[0].names)
    for i, name in enumerate(alone[0].names):
        lengths = (data.padding_mask if name.startswith("encoder") else written).sum(dim=1).tolist()
        expected = sum(
            n * each.nats[i].mean() for n, each in zip(lengths, alone, strict=True)
        ) / sum(lengths)
        assert found["attention_entropies"][name] == pytest.approx(expected, abs=1e-5)
    assert found["attention_entropy"] == pytest.approx(
        sum(found["attention_entropies"].values()) / 6
    )


def test_a_language_models_places_all_count() -> None:
    model = writer()
    tokens = torch.tensor([model.input_tokenizer.input_ids("The dog sees a small cat.")])
    found = attention_entropy(
        lambda probe: model.model(tokens, context=Context(probe=probe)), {"decoder": None}
    )
    alone = entropy(look(model, "The dog sees a small cat."))
    for name, nats in zip(alone.names, alone.nats, strict=True):
        assert found["attention_entropies"][name] == pytest.approx(nats.mean(), abs=1e-5)


@pytest.mark.slow
def test_a_run_logs_it_and_is_not_changed_by_it(text: dict[str, str], tmp_path: Path) -> None:  # noqa: F811
    """With dropout and however often it is measured, the weights come out the same, bit for bit."""
    often = start(text, tmp_path / "often", validate_every=4, final_weights="last")
    seldom = start(text, tmp_path / "seldom", validate_every=24, final_weights="last")
    events = [json.loads(line) for line in often.metrics.read_text().splitlines()]
    measured: list[dict[str, Any]] = [line for line in events if line.get("event") == "validation"]
    assert len(measured) == 6
    for line in measured:
        assert set(line["attention_entropies"]) == {
            "encoder.0.self",
            "decoder.0.self",
            "decoder.0.cross",
        }
        assert 0 < line["attention_entropy"] < 4
    one, other = load_file(often.weights), load_file(seldom.weights)
    assert all(torch.equal(one[name], other[name]) for name in one)
