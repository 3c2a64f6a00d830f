"""Longformer and BigBird against transformers: windows, global tokens, blocks, padding; three seeds, each another config."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from encoder_outputs import assert_close, encoder_outputs, write_back
from safetensors.torch import load_file, save_file

import regard
from regard import spec as kinds
from regard.builder import trainable
from regard.builder.parameter_count import parameter_count
from regard.core.context import Context
from regard.families import folder as folders
from regard.system.errors import ModelError
from regard.wirings.encoder import Encoder
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 61, "hidden_size": 36, "intermediate_size": 50, "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 90,
}  # fmt: skip
OTHER = {
    **SIZES,
    "num_attention_heads": 4,
    "type_vocab_size": 1,
    "num_hidden_layers": 2,
    "hidden_act": "relu",
}
CONFIGS: dict[str, list[dict[str, Any]]] = {
    "Longformer": [
        {**SIZES, "attention_window": 4},
        {**OTHER, "attention_window": [6, 6], "num_labels": 5, "layer_norm_eps": 1e-5},
        {**SIZES, "attention_window": 20, "pad_token_id": 3, "hidden_dropout_prob": 0.3},
    ],
    "BigBird": [
        {**SIZES, "block_size": 4, "num_random_blocks": 1},
        {
            **OTHER,
            "block_size": 3,
            "num_random_blocks": 2,
            "num_labels": 5,
            "classifier_dropout": 0.3,
        },
        {**SIZES, "attention_type": "original_full", "rescale_embeddings": True},
    ],
}
TASKS = {
    "Longformer": [
        "Model",
        "ForMaskedLM",
        "ForSequenceClassification",
        "ForTokenClassification",
        "ForQuestionAnswering",
    ],
    "BigBird": [
        "Model",
        "ForMaskedLM",
        "ForSequenceClassification",
        "ForTokenClassification",
        "ForQuestionAnswering",
        "ForPreTraining",
    ],
}
CASES = [(family, task) for family, tasks in TASKS.items() for task in tasks]
LENGTH = 41  # longer than what BigBird of these sizes sees whole, and divided by no block or window


def saved(family: str, task: str, seed: int, out: Path) -> Any:
    torch.manual_seed(seed)
    options = dict(CONFIGS[family][seed])
    if task == "ForQuestionAnswering":
        options.pop("num_labels", None)
    config = getattr(transformers, f"{family}Config")(**options)
    config._attn_implementation = "eager"
    model = getattr(transformers, family + task)(config).eval()
    perturb(model)
    model.save_pretrained(out)
    return model


def batch(family: str, config: Any, length: int = LENGTH) -> dict[str, torch.Tensor]:
    padding_mask = torch.arange(length) < torch.tensor([length, length // 2, 7])[:, None]
    tokens = torch.randint(5, 61, (3, length)).masked_fill(~padding_mask, config.pad_token_id)
    inputs = {
        "tokens": tokens,
        "padding_mask": padding_mask,
        "segments": torch.randint(0, config.type_vocab_size, (3, length)),
    }
    if family == "Longformer":
        inputs["global_tokens"] = torch.zeros_like(padding_mask)
        inputs["global_tokens"][:, 0] = True
        inputs["global_tokens"][0, [5, 30]] = True
        inputs["global_tokens"][1, 6] = True
    return inputs


def their_outputs(model: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    extra = (
        {"global_attention_mask": inputs["global_tokens"].long()}
        if "global_tokens" in inputs
        else {}
    )
    with torch.inference_mode():
        out = model(
            input_ids=inputs["tokens"],
            attention_mask=inputs["padding_mask"].long(),
            token_type_ids=inputs["segments"],
            **extra,
        )
    if "start_logits" in out:
        return {"labels": torch.stack([out.start_logits, out.end_logits], dim=-1)}
    if "prediction_logits" in out:
        return {"head": out.prediction_logits, "labels": out.seq_relationship_logits}
    if "last_hidden_state" in out:
        return {"hidden": out.last_hidden_state, "pool": out.pooler_output}
    return {"head" if type(model).__name__.endswith("MaskedLM") else "labels": out.logits}


def our_outputs(model: Any, inputs: dict[str, torch.Tensor], names: Any) -> dict[str, torch.Tensor]:
    """Our outputs of these names."""
    return encoder_outputs(
        model,
        inputs["tokens"],
        inputs["padding_mask"],
        names,
        segments=inputs["segments"],
        context=Context(global_tokens=inputs.get("global_tokens")),
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("family", "task"), CASES)
def test_open_run_and_write_back(family: str, task: str, seed: int, tmp_path: Path) -> None:
    theirs = saved(family, task, seed, tmp_path / "theirs")
    model, opened = folders.open_model(tmp_path / "theirs")
    assert isinstance(model, Encoder)
    assert trainable(model) == parameter_count(opened.spec)
    assert kinds.from_dict(kinds.to_dict(opened.spec)) == opened.spec
    inputs = batch(family, theirs.config)
    expected = their_outputs(theirs, inputs)
    assert_close(our_outputs(model, inputs, expected), expected, inputs["padding_mask"])

    back = write_back(model, opened, tmp_path / "ours")
    before, after = (
        load_file(place / "model.safetensors") for place in (tmp_path / "theirs", back)
    )
    assert before.keys() == after.keys()
    unread = (
        {"bert.pooler.weight", "bert.pooler.bias"}
        if (family, task) == ("BigBird", "ForSequenceClassification")
        else {}
    )
    assert all(torch.equal(before[key], after[key]) for key in before if key not in unread)
    again, report = getattr(transformers, family + task).from_pretrained(
        back, attn_implementation="eager", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    for name, output in their_outputs(again.eval(), inputs).items():
        torch.testing.assert_close(output, expected[name], rtol=0, atol=1e-6)
    for key in (
        "block_size",
        "num_random_blocks",
        "attention_type",
        "rescale_embeddings",
        "hidden_act",
    ):
        if key in CONFIGS[family][seed]:
            assert getattr(again.config, key) == CONFIGS[family][seed][key], key


@pytest.mark.parametrize("length", [28, 29, 32, 33, 80])
def test_bigbird_of_any_length(length: int, tmp_path: Path) -> None:
    """28 is the longest input that sees everything; and both sides of whole blocks."""
    theirs = saved("BigBird", "Model", 0, tmp_path)
    model, _ = folders.open_model(tmp_path)
    inputs = batch("BigBird", theirs.config, length)
    expected = their_outputs(theirs, inputs)
    assert_close(our_outputs(model, inputs, expected), expected, inputs["padding_mask"])  # type: ignore[arg-type]


@pytest.mark.parametrize("global_tokens", ["none", "all"])
def test_longformer_without_global_tokens_and_with_nothing_else(
    global_tokens: str, tmp_path: Path
) -> None:
    theirs = saved("Longformer", "Model", 0, tmp_path)
    model, _ = folders.open_model(tmp_path)
    inputs = batch("Longformer", theirs.config)
    inputs["global_tokens"] = (
        inputs["padding_mask"]
        if global_tokens == "all"
        else torch.zeros_like(inputs["padding_mask"])
    )
    expected = their_outputs(theirs, inputs)
    assert_close(our_outputs(model, inputs, expected), expected, inputs["padding_mask"])  # type: ignore[arg-type]


def test_long_inputs_take_the_sparse_kernel(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.LongformerConfig(
        **{**SIZES, "attention_window": 16, "max_position_embeddings": 600}
    )
    theirs = transformers.LongformerModel(config).eval()
    theirs.save_pretrained(tmp_path)
    model, _ = folders.open_model(tmp_path)
    assert isinstance(model, Encoder)
    assert model.stack.layer_inputs(torch.zeros(3, 580, 1), None, Context())[0].mask.is_sparse
    inputs = batch("Longformer", config, 580)
    expected = their_outputs(theirs, inputs)
    assert_close(our_outputs(model, inputs, expected), expected, inputs["padding_mask"])


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    cases: list[tuple[str, str, list[tuple[dict[str, Any], str]]]] = [
        (
            "Longformer", "ForMaskedLM",
            [
                ({"attention_window": [4, 6, 4]}, "not the same in all"),
                ({"attention_window": 5}, "even"),
                ({"attention_window": "wide"}, "even"), ({"onnx_export": True}, "onnx_export"),
                ({"rope_theta": 1e4}, "rope_theta"),
            ],
        ),
        (
            "BigBird", "ForMaskedLM",
            [
                ({"use_bias": False}, "use_bias"), ({"attention_type": "sparse"}, "attention_type"),
                ({"block_size": 0}, "block_size"), ({"is_decoder": True}, "is_decoder"),
                ({"rope_theta": 1e4}, "rope_theta"),
                ({"architectures": ["BigBirdForObjectDetection"]}, "BigBirdForObjectDetection"),
            ],
        ),
    ]  # fmt: skip
    for family, task, changes in cases:
        saved(family, task, 0, tmp_path / family)
        path = tmp_path / family / "config.json"
        config = json.loads(path.read_text())
        for change, word in changes:
            path.write_text(json.dumps({**config, **change}))
            with pytest.raises(ModelError, match=word):
                folders.open_model(tmp_path / family)
        path.write_text(json.dumps(config))
        tensors = load_file(tmp_path / family / "model.safetensors")
        name = next(n for n in tensors if n.endswith("layer.1.attention.self.key.bias"))
        for changed, word in (
            ({**tensors, "extra.weight": torch.zeros(2)}, "unexpected tensors: extra.weight"),
            ({n: t for n, t in tensors.items() if n != name}, f"lacks {name}"),
            ({**tensors, name: torch.zeros(35)}, "shape"),
        ):
            save_file(changed, tmp_path / family / "model.safetensors")
            with pytest.raises(ModelError, match=word):
                folders.open_model(tmp_path / family)


def test_another_pattern_is_no_longformer(tmp_path: Path) -> None:
    saved("Longformer", "Model", 0, tmp_path)
    model = folders.read(tmp_path).spec
    assert isinstance(model, kinds.Encoder)
    assert folders.describe(model)["model_type"] == "longformer"
    wide = replace(model, stack=model.stack.with_blocks(pattern=kinds.DilatedMask(2, 3)))
    assert folders.describe(wide)["model_type"] == "regard"


@pytest.mark.parametrize("segments", [True, False])
def test_bigbird_excludes_the_question_from_its_answers(segments: bool, tmp_path: Path) -> None:
    """Through the call of transformers: the separator of config.json ends the question, and says
    the segments where the caller does not."""
    torch.manual_seed(0)
    config = transformers.BigBirdConfig(
        **SIZES, block_size=4, num_random_blocks=1, sep_token_id=9, attn_implementation="eager"
    )
    theirs = transformers.BigBirdForQuestionAnswering(config).eval()
    perturb(theirs)
    theirs.save_pretrained(tmp_path / "theirs")
    inputs = batch("BigBird", config)
    tokens = inputs["tokens"].masked_fill(inputs["tokens"] == 9, 10)
    tokens[0, 7] = 9
    tokens[0, 30] = 9
    tokens[1, 3] = 9  # and none in the last row
    arguments = {"input_ids": tokens, "attention_mask": inputs["padding_mask"].long()}
    if segments:
        arguments["token_type_ids"] = inputs["segments"]
    model = regard.load(tmp_path / "theirs", say=print)
    for folder in (tmp_path / "theirs", model.save(tmp_path / "ours")):
        with torch.inference_mode():
            expected = theirs(**arguments)
            found = regard.load(folder, say=print)(**arguments)
        assert list(found)[:2] == ["start_logits", "end_logits"]
        for name in ("start_logits", "end_logits"):
            assert (expected[name][0, 1:8] < -1e5).all()
            close = torch.isclose(found[name], expected[name], rtol=1e-6, atol=2e-5)
            assert close[inputs["padding_mask"]].all()
