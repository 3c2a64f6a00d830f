"""Text encoders against transformers: tiny random models, odd sizes, padding, three seeds with another config each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from encoder_outputs import assert_close, encoder_outputs, write_back
from safetensors.torch import load_file, save_file

from regard import spec as kinds
from regard.builder import trainable
from regard.builder.parameter_count import parameter_count
from regard.families import folder as folders
from regard.system import disk
from regard.system.errors import ModelError
from regard.wirings.encoder import Encoder
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 61, "hidden_size": 36, "intermediate_size": 50, "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 40,
}  # fmt: skip
PAIRS = {**SIZES, "type_vocab_size": 3, "layer_norm_eps": 1e-5, "num_hidden_layers": 2}
OTHER = {
    **SIZES,
    "num_attention_heads": 4,
    "type_vocab_size": 1,
    "classifier_dropout": 0.3,
    "num_labels": 1,
}
NARROW: dict[str, Any] = {"embedding_size": 20}
DISTIL = {
    "vocab_size": 61,
    "dim": 36,
    "hidden_dim": 50,
    "n_layers": 3,
    "n_heads": 6,
    "max_position_embeddings": 40,
}
# For each family, one config for each seed.
CONFIGS: dict[str, list[dict[str, Any]]] = {
    "Bert": [SIZES, {**PAIRS, "hidden_act": "gelu_new", "num_labels": 5}, {**OTHER,
    "hidden_act": "relu"}],
    "Roberta": [SIZES, {**PAIRS, "pad_token_id": 0, "hidden_act": "silu", "num_labels": 5},
    {**OTHER, "pad_token_id": 4}],
    "Camembert": [PAIRS, OTHER, SIZES],
    "XLMRoberta": [OTHER, SIZES, PAIRS],
    "DistilBert": [
        DISTIL,
        {**DISTIL, "activation": "relu", "num_labels": 5, "qa_dropout": 0.3,
        "attention_dropout": 0.0},
        {**DISTIL, "n_heads": 4, "seq_classif_dropout": 0.0, "dropout": 0.2},
    ],
    "Albert": [
        {**SIZES, **NARROW},
        {**PAIRS, **NARROW, "hidden_act": "relu", "num_labels": 5, "classifier_dropout_prob": 0.0},
        {**SIZES, "embedding_size": 36, "hidden_dropout_prob": 0.2},
    ],
    "Electra": [
        {**SIZES, **NARROW},
        {**PAIRS, "embedding_size": 36, "hidden_act": "relu", "num_labels": 5},
        {**OTHER, **NARROW},
    ],
    "MPNet": [
        SIZES,
        {**SIZES, "hidden_act": "relu", "num_labels": 5, "layer_norm_eps": 1e-5},
        {**SIZES, "num_attention_heads": 4, "hidden_dropout_prob": 0.3},
    ],
}  # fmt: skip
ESM = {**SIZES, "mask_token_id": 4, "pad_token_id": 1}
ESM2 = {**ESM, "position_embedding_type": "rotary", "token_dropout": True}
CONFIGS["Esm"] = [
    ESM2,
    {
        **SIZES,
        "pad_token_id": 1,
        "emb_layer_norm_before": True,
        "num_labels": 5,
        "layer_norm_eps": 1e-5,
    },
    {**ESM2, "num_attention_heads": 3, "rope_theta": 500.0, "emb_layer_norm_before": True},
]
TASKS = [
    "Model",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
]
NO_SPANS = ("Esm", "ForQuestionAnswering")
ARCHITECTURES = [
    *((family, task) for family in CONFIGS for task in TASKS if (family, task) != NO_SPANS),
    ("Bert", "ForNextSentencePrediction"),
    *((family, "ForPreTraining") for family in ("Bert", "Albert", "Electra")),
]
SEGMENTED = ("Bert", "Albert", "Electra")
_DROPOUTS = ("classifier_dropout", "classifier_dropout_prob", "qa_dropout", "seq_classif_dropout")
_CLASSES = (*_DROPOUTS, "num_labels")
# Keys that say nothing about the model of a task; ours is written without them.
UNUSED: dict[str, tuple[str, ...]] = {
    **{task: _CLASSES for _, task in ARCHITECTURES},
    "ForSequenceClassification": ("qa_dropout",),
    "ForTokenClassification": ("qa_dropout", "seq_classif_dropout"),
    "ForQuestionAnswering": (
        "classifier_dropout",
        "classifier_dropout_prob",
        "seq_classif_dropout",
        "num_labels",
    ),
}


Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def saved(family: str, task: str, seed: int, out: Path, **extra: Any) -> Any:
    """Their model, with every parameter shaken, so that biases and norms matter."""
    torch.manual_seed(seed)
    options = dict(CONFIGS[family][seed])
    if task == "ForQuestionAnswering" or (family, task) == ("Albert", "ForPreTraining"):
        options.pop("num_labels", None)
    config = getattr(transformers, f"{family}Config")(**options)
    config._attn_implementation = "eager"
    model = getattr(transformers, family + task)(config, **extra).eval()
    perturb(model)
    model.save_pretrained(out)
    return model


def batch(family: str, config: Any) -> Inputs:
    """Tokens padded on the right, their padding mask, and segments where the family has them."""
    pad = config.pad_token_id
    padding_mask = torch.arange(13) < torch.tensor([13, 8, 5])[:, None]
    tokens = torch.randint(5, 61, (3, 13))
    if family == "Esm":  # masked tokens
        tokens[:, 2] = config.mask_token_id or 4
        tokens[1, 4] = 4
    tokens = tokens.masked_fill(~padding_mask, pad)
    segments = torch.randint(0, config.type_vocab_size, (3, 13)) if family in SEGMENTED else None
    return tokens, padding_mask, segments


def their_outputs(model: Any, inputs: Inputs) -> dict[str, torch.Tensor]:
    """Their outputs under our names."""
    tokens, padding_mask, segments = inputs
    extra = {} if segments is None else {"token_type_ids": segments}
    with torch.inference_mode():
        out = model(input_ids=tokens, attention_mask=padding_mask.long(), **extra)
    task = type(model).__name__
    if "start_logits" in out:
        return {"labels": torch.stack([out.start_logits, out.end_logits], dim=-1)}
    if "prediction_logits" in out:
        pair = "sop_logits" if "sop_logits" in out else "seq_relationship_logits"
        return {"head": out.prediction_logits, "labels": out[pair]}
    if "last_hidden_state" in out:
        pooled = out.get("pooler_output")
        return {"hidden": out.last_hidden_state, **({} if pooled is None else {"pool": pooled})}
    if task == "ElectraForPreTraining":
        return {"labels": out.logits[..., None]}
    return {"head" if task.endswith("MaskedLM") else "labels": out.logits}


def our_outputs(model: Any, inputs: Inputs, names: Any) -> dict[str, torch.Tensor]:
    """Our outputs of these names, from tokens, padding mask and segments."""
    tokens, padding_mask, segments = inputs
    return encoder_outputs(model, tokens, padding_mask, names, segments=segments)


def assert_same_file(one: Path, other: Path) -> None:
    before, after = (load_file(place / "model.safetensors") for place in (one, other))
    # transformers writes ESM under the names of its first files.
    for new, old in {
        "LayerNorm.weight": "LayerNorm.gamma",
        "LayerNorm.bias": "LayerNorm.beta",
        "rotary": "encoder.layer.*.attention.self.rotary",
    }.items():
        before = {name.replace(old, new): tensor for name, tensor in before.items()}
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def edit(folder: Path, **changes: Any) -> None:
    """config.json with other values; None removes a key."""
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(
        json.dumps({k: v for k, v in config.items() if v is not None})
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("family", "task"), ARCHITECTURES)
def test_open_run_and_write_back(family: str, task: str, seed: int, tmp_path: Path) -> None:
    theirs = saved(family, task, seed, tmp_path / "theirs")
    model, opened = folders.open_model(tmp_path / "theirs")
    assert isinstance(model, Encoder)
    assert trainable(model) == parameter_count(opened.spec)
    inputs = batch(family, theirs.config)
    expected = their_outputs(theirs, inputs)
    assert_close(our_outputs(model, inputs, expected), expected, inputs[1])

    back = write_back(model, opened, tmp_path / "ours")
    assert_same_file(tmp_path / "theirs", back)
    again, report = getattr(transformers, family + task).from_pretrained(
        back, attn_implementation="eager", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert json.loads((back / "config.json").read_text())["architectures"] == [family + task]
    for name, output in their_outputs(again.eval(), inputs).items():
        torch.testing.assert_close(output, expected[name], rtol=0, atol=1e-6)
    for key, value in CONFIGS[family][seed].items():
        if key not in UNUSED.get(task, ()):
            assert getattr(again.config, key) == value, key


def test_far_words_of_mpnet_fall_into_the_same_buckets(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.MPNetConfig(
        **{**SIZES, "max_position_embeddings": 202, "num_hidden_layers": 1}
    )
    theirs = transformers.MPNetModel(config).eval()
    torch.nn.init.normal_(theirs.encoder.relative_attention_bias.weight)
    theirs.save_pretrained(tmp_path)
    model, _ = folders.open_model(tmp_path)
    tokens = torch.randint(5, 61, (1, 200))
    inputs = tokens, torch.ones_like(tokens, dtype=torch.bool), None
    expected = their_outputs(theirs, inputs)
    assert_close(our_outputs(model, inputs, expected), expected, inputs[1])  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["Bert", "Roberta", "Albert", "MPNet"])
def test_models_without_a_pooler(family: str, tmp_path: Path) -> None:
    theirs = saved(family, "Model", 1, tmp_path / "theirs", add_pooling_layer=False)
    model, opened = folders.open_model(tmp_path / "theirs")
    assert isinstance(opened.spec, kinds.Encoder)
    assert opened.spec.pool is None
    inputs = batch(family, theirs.config)
    assert_close(
        our_outputs(model, inputs, ["hidden"]),  # type: ignore[arg-type]
        {"hidden": their_outputs(theirs, inputs)["hidden"]},
        inputs[1],
    )
    back = write_back(model, opened, tmp_path / "ours")
    assert_same_file(tmp_path / "theirs", back)
    assert folders.read(back, weights={}).spec == opened.spec


@pytest.mark.parametrize("family", ["Bert", "Roberta", "Albert", "MPNet"])
@pytest.mark.parametrize("task", ["ForMaskedLM", "ForTokenClassification"])
def test_a_pooler_beside_another_head_is_kept(family: str, task: str, tmp_path: Path) -> None:
    """roberta-base and albert-base-v2 hold one beside the vocabulary."""
    theirs = saved(family, task, 0, tmp_path / "theirs")
    tensors, name = load_file(tmp_path / "theirs/model.safetensors"), theirs.base_model_prefix
    pooler = f"{name}.pooler" if family == "Albert" else f"{name}.pooler.dense"
    tensors |= {f"{pooler}.weight": torch.randn(36, 36), f"{pooler}.bias": torch.randn(36)}
    save_file(tensors, tmp_path / "theirs/model.safetensors")
    model, opened = folders.open_model(tmp_path / "theirs")
    assert isinstance(model, Encoder)
    assert model.pool is not None
    inputs = batch(family, theirs.config)
    expected = their_outputs(theirs, inputs)
    assert_close(our_outputs(model, inputs, expected), expected, inputs[1])
    back = write_back(model, opened, tmp_path / "ours")
    assert_same_file(tmp_path / "theirs", back)
    assert folders.read(back, weights={}).spec == opened.spec


def test_bert_as_its_authors_released_it(tmp_path: Path) -> None:
    """bert-base-uncased: called a masked language model, but with all of pre-training, norms in TensorFlow's words, places,
    and copies of what is tied."""
    theirs = saved("Bert", "ForPreTraining", 0, tmp_path / "theirs")
    before = load_file(tmp_path / "theirs/model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in before.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(40)[None]
    old["cls.predictions.decoder.weight"] = before["bert.embeddings.word_embeddings.weight"].clone()
    old["cls.predictions.decoder.bias"] = before["cls.predictions.bias"].clone()
    assert "bert.encoder.layer.1.attention.output.LayerNorm.gamma" in old
    save_file(old, tmp_path / "theirs/model.safetensors")
    for architectures in (
        ["BertForMaskedLM"],
        ["BertModel"],
        ["BertForNextSentencePrediction"],
        None,
    ):
        edit(tmp_path / "theirs", architectures=architectures)
        model, opened = folders.open_model(tmp_path / "theirs")
        inputs = batch("Bert", theirs.config)
        expected = their_outputs(theirs, inputs)
        assert_close(our_outputs(model, inputs, expected), expected, inputs[1])  # type: ignore[arg-type]
    after = load_file(write_back(model, opened, tmp_path / "ours") / "model.safetensors")
    assert before.keys() == after.keys()
    old["cls.predictions.decoder.bias"][3] += 1
    save_file(old, tmp_path / "theirs/model.safetensors")
    with pytest.raises(ModelError, match=r"decoder\.bias differ"):
        folders.open_model(tmp_path / "theirs")


@pytest.mark.parametrize(
    ("family", "options"), [("Bert", "BertModel"), ("MPNet", "MPNetForMaskedLM")]
)
def test_sentence_transformers(family: str, options: str, tmp_path: Path) -> None:
    """all-MiniLM-L6-v2 and all-mpnet-base-v2: files of the bare model, whatever the architecture; with places."""
    theirs = saved(family, "Model", 0, tmp_path)
    edit(tmp_path, architectures=[options])
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {**tensors, "embeddings.position_ids": torch.arange(40)[None]},
        tmp_path / "model.safetensors",
    )
    model, opened = folders.open_model(tmp_path)
    inputs = batch(family, theirs.config)
    expected = their_outputs(theirs, inputs)
    assert_close(our_outputs(model, inputs, expected), expected, inputs[1])  # type: ignore[arg-type]
    assert (
        load_file(write_back(model, opened, tmp_path / "ours") / "model.safetensors").keys()
        == tensors.keys()
    )
    save_file(
        {**tensors, "embeddings.position_ids": torch.arange(1, 41)[None]},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(ModelError, match="position_ids has other values than"):
        folders.open_model(tmp_path)


@pytest.mark.parametrize("family", ["Roberta", "MPNet"])
def test_a_pooler_beside_a_classifier_of_its_own_is_left_behind(
    family: str, tmp_path: Path
) -> None:
    """roberta-large-mnli holds one that nothing computes with."""
    theirs = saved(family, "ForSequenceClassification", 1, tmp_path)
    tensors, name = load_file(tmp_path / "model.safetensors"), theirs.base_model_prefix
    extra = {
        f"{name}.pooler.dense.weight": torch.randn(36, 36),
        f"{name}.pooler.dense.bias": torch.randn(36),
    }
    save_file({**tensors, **extra}, tmp_path / "model.safetensors")
    model, opened = folders.open_model(tmp_path)
    inputs = batch(family, theirs.config)
    expected = their_outputs(theirs, inputs)
    assert_close(our_outputs(model, inputs, expected), expected, inputs[1])  # type: ignore[arg-type]
    assert (
        load_file(write_back(model, opened, tmp_path / "ours") / "model.safetensors").keys()
        == tensors.keys()
    )


def test_without_a_hint_the_first_family_that_can_say_it_writes(tmp_path: Path) -> None:
    """A wide ELECTRA that tags is BERT's machine; so is CamemBERT RoBERTa's."""
    for family, seed, other in (("Electra", 1, "Bert"), ("Camembert", 0, "Roberta")):
        theirs, written = (
            saved(family, "ForTokenClassification", seed, tmp_path / family),
            f"{other}ForTokenClassification",
        )
        model, opened = folders.open_model(tmp_path / family)
        back = tmp_path / written
        back.mkdir()
        disk.write_json(back / "config.json", folders.describe(opened.spec))
        folders.write_weights(back / "model.safetensors", model, opened.spec)
        again = (
            getattr(transformers, written).from_pretrained(back, attn_implementation="eager").eval()
        )
        inputs = batch(family, theirs.config)
        torch.testing.assert_close(
            their_outputs(again, inputs)["labels"],
            their_outputs(theirs, inputs)["labels"],
            rtol=0,
            atol=1e-6,
        )


def test_what_no_family_can_say_is_written_in_our_own_words(tmp_path: Path) -> None:
    """A pooler on ELECTRA or DistilBERT; a vocabulary beside tags; a mean of BERT's states."""
    for family, heads in (
        ("Electra", (kinds.Pool(),)),
        ("DistilBert", (kinds.Pool(),)),
        ("Bert", (kinds.Pool("mean", None),)),
        ("Bert", (kinds.LMHead(), kinds.ClassifierHead(3, "tag"))),
    ):
        saved(family, "Model", 0, tmp_path / family)
        model = folders.read(tmp_path / family).spec.with_heads(*heads)
        assert folders.describe(model, model_type=family.lower())["model_type"] == "regard"


@pytest.mark.parametrize(
    ("family", "seed", "task", "pooled", "scored"),
    [
        (
            "Bert",
            0,
            "ForSequenceClassification",
            0.0,
            0.1,
        ),  # as in the layers, where nothing else is options
        ("Bert", 2, "ForSequenceClassification", 0.0, 0.3),
        ("Bert", 2, "ForTokenClassification", None, 0.3),
        ("Bert", 2, "ForQuestionAnswering", None, 0.0),
        ("Bert", 2, "ForPreTraining", 0.0, 0.0),
        ("Roberta", 2, "ForSequenceClassification", 0.3, 0.3),
        ("DistilBert", 0, "ForSequenceClassification", 0.0, 0.2),
        ("DistilBert", 2, "ForTokenClassification", None, 0.2),
        ("DistilBert", 1, "ForQuestionAnswering", None, 0.3),
        ("Albert", 0, "ForSequenceClassification", 0.0, 0.1),
        ("Albert", 0, "ForPreTraining", 0.0, 0.1),
        ("Electra", 2, "ForSequenceClassification", 0.3, 0.3),
        ("Electra", 2, "ForPreTraining", None, 0.0),
        ("MPNet", 2, "ForSequenceClassification", 0.3, 0.3),
    ],
)
def test_dropout_around_the_labels(
    family: str, seed: int, task: str, pooled: float | None, scored: float, tmp_path: Path
) -> None:
    """It acts in training only, so outputs do not show it."""
    saved(family, task, seed, tmp_path)
    model = folders.read(tmp_path).spec
    assert isinstance(model, kinds.Encoder)
    assert model.labels is not None
    assert (model.pool.dropout if model.pool else None) == pooled
    assert model.labels.dropout == scored


# ------------------------------------------------------------------ what is refused


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    saved("Bert", "ForMaskedLM", 0, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, word in (
        ({"hidden_act": "mish"}, "mish"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"rope_theta": 1e4}, "rope_theta"),
        ({"architectures": ["BertLMHeadModel"]}, "BertLMHeadModel"),
        ({"num_attention_heads": 5}, "not divisible by 5 heads"),
        ({"num_hidden_layers": 2}, "encoder.layer.2"),
        ({"num_hidden_layers": 4}, "lacks bert.encoder.layer.3"),
        ({"intermediate_size": 51}, "shape"),
        ({"architectures": ["BertForSequenceClassification"]}, "lacks bert.pooler"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=word):
            folders.open_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    for changed, word in (
        ({**tensors, "bert.extra.weight": torch.zeros(2)}, "unexpected tensors: bert.extra.weight"),
        (
            {k: t for k, t in tensors.items() if k != "cls.predictions.bias"},
            "lacks cls.predictions.bias",
        ),
        ({**tensors, "cls.predictions.bias": torch.zeros(60)}, "shape"),
    ):
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(ModelError, match=word):
            folders.open_model(tmp_path)


@pytest.mark.parametrize(
    ("family", "change", "word"),
    [
        ("Albert", {"num_hidden_groups": 2}, "lacks albert.encoder.albert_layer_groups.1"),
        ("Albert", {"inner_group_num": 2}, "inner_group_num"),
        ("MPNet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets"),
        ("DistilBert", {"sinusoidal_pos_embds": True}, "sinusoidal_pos_embds"),
        ("Roberta", {"pad_token_id": 39}, "leaves no positions of max_position_embeddings 40"),
        ("Roberta", {"pad_token_id": "<pad>"}, "not a token id"),
        ("Electra", {"id2label": None, "num_labels": "two"}, "num_labels"),
        ("Electra", {"id2label": {"0": "a", "1": "b", "2": "c"}}, "shape"),
    ],
)
def test_what_a_family_alone_does_not_understand(
    family: str, change: dict[str, Any], word: str, tmp_path: Path
) -> None:
    saved(family, "ForSequenceClassification", 0, tmp_path)
    edit(tmp_path, **change)
    with pytest.raises(ModelError, match=word):
        folders.open_model(tmp_path)


def test_a_task_has_its_number_of_scores() -> None:
    for task, count in (("answer", 3), ("choice", 2), ("detect", 2)):
        with pytest.raises(ModelError, match="needs count="):
            kinds.ClassifierHead(count, task)  # type: ignore[arg-type]


# ------------------------------------------------------------------ configs as they were published

BASE = {
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02, "intermediate_size": 3072, "num_attention_heads": 12,
    "num_hidden_layers": 12,
}  # fmt: skip
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "bert-base-uncased": ({
        **BASE, "architectures": ["BertForMaskedLM"], "gradient_checkpointing": False,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "model_type": "bert", "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "transformers_version": "4.6.0.dev0", "type_vocab_size": 2, "use_cache": True,
        "vocab_size": 30522,
    }, 109_514_298),
    "bert-base-multilingual-cased": ({
        **BASE, "architectures": ["BertForMaskedLM"], "directionality": "bidi",
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "model_type": "bert", "pad_token_id": 0,
        "pooler_fc_size": 768,
        "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3, "pooler_size_per_head": 128,
        "pooler_type": "first_token_transform", "type_vocab_size": 2, "vocab_size": 119547,
    }, 177_974_523),
    "all-MiniLM-L6-v2": ({
        **BASE, "_name_or_path": "nreimers/MiniLM-L6-H384-uncased", "architectures": ["BertModel"],
        "gradient_checkpointing": False, "hidden_size": 384, "intermediate_size": 1536,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "model_type": "bert", "num_hidden_layers": 6,
        "pad_token_id": 0,
        "position_embedding_type": "absolute", "transformers_version": "4.8.2",
        "type_vocab_size": 2,
        "use_cache": True, "vocab_size": 30522,
    }, 22_713_216),
    "roberta-base": ({
        **BASE, "architectures": ["RobertaForMaskedLM"], "bos_token_id": 0, "eos_token_id": 2,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 514, "model_type": "roberta", "pad_token_id": 1,
        "type_vocab_size": 1,
        "vocab_size": 50265,
    }, 124_697_433),
    "xlm-roberta-base": ({
        **BASE, "architectures": ["XLMRobertaForMaskedLM"], "bos_token_id": 0, "eos_token_id": 2,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "xlm-roberta",
        "output_past": True,
        "pad_token_id": 1, "position_embedding_type": "absolute",
        "transformers_version": "4.17.0.dev0",
        "type_vocab_size": 1, "use_cache": True, "vocab_size": 250002,
    }, 278_295_186),
    "distilbert-base-uncased": ({
        "activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1,
        "dim": 768,
        "dropout": 0.1, "hidden_dim": 3072, "initializer_range": 0.02,
        "max_position_embeddings": 512,
        "model_type": "distilbert", "n_heads": 12, "n_layers": 6, "pad_token_id": 0,
        "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True,
        "transformers_version": "4.10.0.dev0", "vocab_size": 30522,
    }, 66_985_530),
    "albert-base-v2": ({
        **BASE, "architectures": ["AlbertForMaskedLM"], "attention_probs_dropout_prob": 0,
        "bos_token_id": 2,
        "classifier_dropout_prob": 0.1, "down_scale_factor": 1, "embedding_size": 128,
        "eos_token_id": 3, "gap_size": 0,
        "hidden_act": "gelu_new", "hidden_dropout_prob": 0, "inner_group_num": 1,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "model_type": "albert", "net_structure_type": 0,
        "num_hidden_groups": 1,
        "num_memory_blocks": 0, "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 30000,
    }, 11_221_680),
    "electra-small-discriminator": ({
        **BASE, "architectures": ["ElectraForPreTraining"], "embedding_size": 128,
        "hidden_size": 256,
        "intermediate_size": 1024, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
        "model_type": "electra",
        "num_attention_heads": 4, "pad_token_id": 0, "position_embedding_type": "absolute",
        "summary_activation": "gelu", "summary_last_dropout": 0.1, "summary_type": "first",
        "summary_use_proj": True,
        "transformers_version": "4.4.0", "type_vocab_size": 2, "vocab_size": 30522,
    }, 13_549_057),
    "all-mpnet-base-v2": ({
        **BASE, "_name_or_path": "microsoft/mpnet-base", "architectures": ["MPNetForMaskedLM"],
        "bos_token_id": 0,
        "eos_token_id": 2, "layer_norm_eps": 1e-05, "max_position_embeddings": 514,
        "model_type": "mpnet",
        "pad_token_id": 1, "relative_attention_num_buckets": 32, "transformers_version": "4.8.2",
        "vocab_size": 30527,
    }, 109_518_527),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_read_and_counted(name: str) -> None:
    config, count = PUBLISHED[name]
    model = folders.FAMILIES[config["model_type"]].to_spec(config)
    with torch.device("meta"):
        theirs = getattr(transformers, config["architectures"][0])(
            transformers.AutoConfig.for_model(**config)
        )
    assert (
        parameter_count(model)
        == count
        == sum(parameter.numel() for parameter in theirs.parameters())
    )
