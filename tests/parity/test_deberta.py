"""DeBERTa v2 and v3 against transformers: each head, odd sizes, padding behind, three seeds, both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard import spec
from regard.builder import trainable
from regard.builder.parameter_count import parameter_count
from regard.core.positions.relative_position import Disentangled
from regard.families import folder as folders
from regard.families.encoders import deberta
from regard.system import disk
from regard.system.errors import ModelError
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

# As published for version 3, but for the sizes; inputs are longer than the exact buckets and than
# the distance.
V3: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 6,
    "intermediate_size": 50,
    "max_position_embeddings": 24, "relative_attention": True, "position_buckets": 6,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7,
    "max_relative_positions": -1,
    "position_biased_input": False, "type_vocab_size": 0, "pad_token_id": 0,
}  # fmt: skip
PLAIN = {
    k: v
    for k, v in V3.items()
    if k not in ("relative_attention", "norm_rel_ebd", "pos_att_type", "position_biased_input")
}
# The first DeBERTa has neither buckets nor a norm of distances, and projections of their own.
V1: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 6,
    "intermediate_size": 50, "max_position_embeddings": 24, "relative_attention": True,
    "pos_att_type": "c2p|p2c", "layer_norm_eps": 1e-7, "max_relative_positions": -1,
    "position_biased_input": False, "type_vocab_size": 0, "pad_token_id": 0,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bare": ("Model", V3),
    "v2-xlarge": (
        "Model",
        {**V3, "conv_kernel_size": 3, "conv_act": "gelu", "attention_head_size": 6},
    ),
    "one term, groups": (
        "Model",
        {**V3, "pos_att_type": ["c2p"], "conv_kernel_size": 5, "conv_groups": 4},
    ),
    "other term, no norm": (
        "Model",
        {**V3, "pos_att_type": ["p2c"], "norm_rel_ebd": "none", "position_buckets": 7},
    ),
    "no buckets": (
        "Model",
        {**V3, "position_buckets": -1, "max_relative_positions": 9, "hidden_act": "gelu_new"},
    ),
    "absolute": ("Model", PLAIN),
    "everything": (
        "Model",
        {**V3, "position_biased_input": True, "type_vocab_size": 3, "max_relative_positions": 20},
    ),
    "masked": ("ForMaskedLM", V3),
    "masked, new head": ("ForMaskedLM", {**V3, "legacy": False, "hidden_act": "relu"}),
    "classes": (
        "ForSequenceClassification",
        {**V3, "num_labels": 4, "pooler_dropout": 0.2, "cls_dropout": 0.3},
    ),
    "classes, tanh": (
        "ForSequenceClassification",
        {**V3, "pooler_hidden_act": "tanh", "position_biased_input": True},
    ),
    "tags": ("ForTokenClassification", {**V3, "num_labels": 5}),
    "answers": ("ForQuestionAnswering", {**V3, "conv_kernel_size": 3}),
    "v1": ("Model", V1),
    "v1, near": ("Model", {**V1, "max_relative_positions": 9, "type_vocab_size": 3}),
    "v1, one term": ("Model", {**V1, "pos_att_type": ["c2p"], "hidden_act": "gelu_new"}),
    "v1, other term": ("Model", {**V1, "pos_att_type": ["p2c"], "position_biased_input": True}),
    "v1, absolute": (
        "Model",
        {**V1, "relative_attention": False, "pos_att_type": None, "position_biased_input": True},
    ),
    "v1, masked": ("ForMaskedLM", V1),
    "v1, masked, new head": ("ForMaskedLM", {**V1, "legacy": False, "hidden_act": "relu"}),
    "v1, classes": (
        "ForSequenceClassification",
        {**V1, "num_labels": 4, "pooler_dropout": 0.2, "cls_dropout": 0.3},
    ),
    "v1, tags": ("ForTokenClassification", {**V1, "num_labels": 5}),
    "v1, answers": ("ForQuestionAnswering", V1),
}


def theirs(name: str, seed: int, out: Path) -> Any:
    torch.manual_seed(seed)
    top, config = CASES[name]
    family = "Deberta" if name.startswith("v1") else "DebertaV2"
    made = getattr(transformers, f"{family}Config")(**config)
    model = getattr(transformers, f"{family}{top}")(made).eval()
    perturb(model, 0.1)
    model.save_pretrained(out)
    return model


def run(
    model: Any, tokens: torch.Tensor, padding_mask: torch.Tensor, segments: torch.Tensor
) -> torch.Tensor:
    with torch.inference_mode():
        out = model(input_ids=tokens, attention_mask=padding_mask.long(), token_type_ids=segments)
    if "start_logits" in out:
        return torch.stack([out.start_logits, out.end_logits], -1)
    return out.logits if "logits" in out else out.last_hidden_state


def ours(
    model: Any, tokens: torch.Tensor, padding_mask: torch.Tensor, segments: torch.Tensor
) -> torch.Tensor:
    more = {} if model.input.segments is None else {"segments": segments}
    with torch.inference_mode():
        hidden, _ = model(tokens, padding_mask, **more)
        if "labels" in model.heads():
            return model.classes(hidden, padding_mask)
        return hidden if model.lm_head is None else model.lm_head(hidden)


def legacy(name: str) -> str:
    """The older name of a tensor of the newer head."""
    return name.replace(
        "lm_predictions.lm_head.",
        "cls.predictions." + ("" if name.endswith("head.bias") else "transform."),
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_open_run_and_write_back(name: str, seed: int, tmp_path: Path) -> None:
    model = theirs(name, seed, tmp_path / "theirs")
    our_model, opened = folders.open_model(tmp_path / "theirs")
    assert trainable(our_model) == parameter_count(opened.spec)
    batch = (
        torch.randint(1, 61, (3, 23)),
        torch.arange(23) < torch.tensor([23, 9, 1])[:, None],
        torch.randint(0, 3, (3, 23)),
    )
    wanted, mine = run(model, *batch), ours(our_model, *batch)
    assert wanted.shape == mine.shape
    unpadded = batch[1] if wanted.ndim == 3 else slice(None)
    tolerance = 2e-5 * max(1.0, wanted[unpadded].abs().mean().item())
    assert (mine - wanted)[unpadded].abs().max().item() <= tolerance

    back = tmp_path / "ours"
    back.mkdir()
    disk.write_json(
        back / "config.json",
        folders.describe(opened.spec, None, opened.positions, opened.model_type),
    )
    folders.write_weights(
        back / "model.safetensors", our_model, opened.spec, opened.positions, opened.model_type
    )
    before, after = (
        load_file(place / "model.safetensors") for place in (tmp_path / "theirs", back)
    )
    before = {legacy(key): tensor for key, tensor in before.items()}
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    again, report = type(model).from_pretrained(back, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    torch.testing.assert_close(
        run(again.eval(), *batch)[unpadded], wanted[unpadded], rtol=0, atol=1e-6
    )
    assert folders.read(back).spec == opened.spec


@pytest.mark.parametrize(("buckets", "distance"), [(256, 512), (6, 24), (7, 20), (32, 128)])
def test_buckets(buckets: int, distance: int) -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    max_lookback = torch.arange(-2000, 2001)
    wanted = make_log_bucket_position(max_lookback, buckets, distance).long()
    part = Disentangled(spec.Disentangled(distance, buckets), 4, None)
    assert torch.equal(part._bucket(max_lookback), wanted)


def test_files_of_pretraining_open_whole(tmp_path: Path) -> None:
    """microsoft/deberta-v3 files name no architecture, and hold two heads and a table that nothing uses."""
    theirs("masked, new head", 0, tmp_path)
    _, small = folders.open_model(tmp_path)
    tensors, config = (
        load_file(tmp_path / "model.safetensors"),
        json.loads((tmp_path / "config.json").read_text()),
    )
    for part, shape in (("dense", (36, 36)), ("LayerNorm", (36,)), ("classifier", (1, 36))):
        tensors |= {
            f"mask_predictions.{part}.weight": torch.randn(shape),
            f"mask_predictions.{part}.bias": torch.randn(shape[0]),
        }
    tensors["deberta.embeddings.position_embeddings.weight"] = torch.randn(24, 36)
    tensors["deberta.embeddings.position_ids"] = torch.arange(24)[None]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(
        json.dumps({k: v for k, v in config.items() if k not in ("architectures", "legacy")})
    )
    _, full = folders.open_model(tmp_path)
    assert full.spec == small.spec
    assert all(torch.equal(tensor, full.weights[name]) for name, tensor in small.weights.items())


def test_the_first_deberta_refuses_what_it_does_not_understand(tmp_path: Path) -> None:
    theirs("v1", 0, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, word in (
        ({"talking_head": True}, "talking_head"),
        ({"pos_att_type": "p2p|c2p"}, "p2p"),
        ({"relative_attention": False}, "unexpected tensors: .*pos_proj"),
        ({"embedding_size": 7}, "embedding_size"),
        ({"num_attention_heads": 5}, "not divisible by 5 heads"),
        ({"max_relative_positions": 7}, "shape"),
        ({"pos_att_type": ["c2p"]}, "pos_q_proj"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=word):
            folders.open_model(tmp_path)


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    theirs("bare", 0, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, word in (
        ({"share_att_key": False}, "share_att_key"),
        ({"pos_att_type": "p2p|c2p"}, "p2p"),
        ({"norm_rel_ebd": "rms"}, "rms"),
        ({"hidden_act": "mish"}, "mish"),
        ({"attention_head_size": 5}, "attention_head_size 5"),
        ({"conv_kernel_size": 4}, "odd"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"conv_kernel_size": 3}, "lacks .*conv"),
        ({"num_hidden_layers": 2}, r"encoder\.layer\.2"),
        ({"position_buckets": 5}, "shape"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=word):
            folders.open_model(tmp_path)
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "architectures": ["DebertaV2ForObjectDetection"]})
    )
    folders.open_model(
        tmp_path
    )  # a file without a head is the model without one, whatever it was made for
    headed = {
        f"deberta.{name}": tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
    }
    save_file(headed, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="ObjectDetection"):
        folders.open_model(tmp_path)


@pytest.mark.parametrize(
    ("changes", "millions"),
    [
        ({"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6,
        "intermediate_size": 1536}, 70.7),
        ({"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12,
        "intermediate_size": 3072}, 141.3),
        ({"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072}, 183.8),
        ({"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
        "intermediate_size": 4096}, 434.0),
        (
            {
                "hidden_size": 1536, "num_hidden_layers": 24, "num_attention_heads": 24,
                "intermediate_size": 6144,
                "attention_head_size": 64, "conv_kernel_size": 3, "conv_act": "gelu",
            },
            884.6,
        ),
    ],
    ids=["v3-xsmall", "v3-small", "v3-base", "v3-large", "v2-xlarge"],
)  # fmt: skip
def test_published_sizes(changes: dict[str, Any], millions: float) -> None:
    config = {
        **V3,
        **changes,
        "vocab_size": 128100,
        "max_position_embeddings": 512,
        "position_buckets": 256,
    }
    with torch.device("meta"):
        model = transformers.DebertaV2Model(transformers.DebertaV2Config(**config))
    counted = parameter_count(deberta.to_spec({"model_type": "deberta-v2", **config}))
    assert counted == sum(parameter.numel() for parameter in model.parameters())
    assert counted / 1e6 == pytest.approx(millions, abs=0.05)
