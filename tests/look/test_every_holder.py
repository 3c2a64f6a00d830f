"""Every model that reads text can be looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers, processors

import regard

transformers = pytest.importorskip("transformers")


def folder(model: Any, path: Path, framed: bool) -> Path:
    model.save_pretrained(path)
    words = {
        w: i
        for i, w in enumerate(
            ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", "the", "dog", "sees", "a", "cat"]
        )
    }
    tokenizer = tokenizers.Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if framed:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
        )
    tokenizer.save(str(path / "tokenizer.json"))
    names = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "cls", "sep", "unk", "mask")}
    (path / "tokenizer_config.json").write_text(json.dumps(names))
    return path


def test_encoders_and_language_models_are_looked_at_by_their_words(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 10, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    bert = transformers.BertModel(transformers.BertConfig(**sizes, intermediate_size=30))
    gpt = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=10, n_embd=24, n_layer=2, n_head=4)
    )
    for model, framed, station, count in (
        (bert, True, "encoder.1.self", 7),
        (gpt, False, "decoder.1.self", 5),
    ):
        loaded = regard.load(folder(model, tmp_path / station, framed))
        run = loaded.look("the dog sees a cat")
        weights = run.weights(station)
        assert weights.shape[-2:] == (count, count)
        assert np.allclose(weights.sum(-1), 1.0, atol=1e-5)
        assert [token for token in run.source if "[" not in token] == [
            "the",
            "dog",
            "sees",
            "a",
            "cat",
        ]
