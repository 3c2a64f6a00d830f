"""T5, mT5, BART and mBART against transformers: tiny random models, odd sizes, padding, three seeds,
both directions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

import regard
from regard.builder import trainable
from regard.builder.parameter_count import parameter_count
from regard.families import folder as folders
from regard.system import disk
from regard.system.errors import DataError, ModelError, SettingError
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

T5 = {
    "vocab_size": 53,
    "d_model": 30,
    "d_kv": 7,
    "d_ff": 41,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 13,
    "decoder_start_token_id": 0,
}
BART = {
    "vocab_size": 53,
    "d_model": 30,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 5,
    "encoder_ffn_dim": 41,
    "decoder_ffn_dim": 37,
    "max_position_embeddings": 19,
    "decoder_start_token_id": 2,
}
CASES: dict[str, Any] = {
    "t5 1.0": lambda: transformers.T5Config(**T5),
    "t5 1.1": lambda: transformers.T5Config(
        **T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False
    ),
    "t5, tied, unscaled": lambda: transformers.T5Config(
        **T5, scale_decoder_outputs=False, feed_forward_proj="gelu"
    ),
    "t5, other norm": lambda: transformers.T5Config(
        **T5, layer_norm_epsilon=1e-2, feed_forward_proj="gated-silu"
    ),
    "mt5": lambda: transformers.MT5Config(**T5),
    "mt5, tied": lambda: transformers.MT5Config(**T5, feed_forward_proj="gated-silu"),
    "bart": lambda: transformers.BartConfig(**BART),
    "bart, scaled": lambda: transformers.BartConfig(
        **BART, scale_embedding=True, activation_function="relu"
    ),
    "mbart": lambda: transformers.MBartConfig(**BART),
    "mbart, scaled": lambda: transformers.MBartConfig(
        **BART, scale_embedding=True, activation_function="silu"
    ),
}


def theirs(name: str, seed: int, out: Path) -> Any:
    torch.manual_seed(seed)
    model = transformers.AutoModelForSeq2SeqLM.from_config(
        CASES[name](), attn_implementation="eager"
    ).eval()
    if name in ("t5 1.1", "mt5"):
        # As their files have it: transformers 5 ties it when it makes a new one.
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight))
    with torch.no_grad():
        for tensor in [
            *model.parameters(),
            *(b for n, b in model.named_buffers() if n == "final_logits_bias"),
        ]:
            tensor.add_(torch.randn_like(tensor) * 0.1)
    if "bart" in name:
        model.generation_config.forced_bos_token_id = 5
    model.save_pretrained(out)
    return model


def inputs() -> dict[str, torch.Tensor]:
    padding_mask = torch.arange(17) < torch.tensor([17, 9, 1])[:, None]
    source, target = (
        torch.randint(3, 53, (3, 17)).masked_fill(~padding_mask, 1),
        torch.randint(3, 53, (3, 18)),
    )
    return {"input_ids": source, "attention_mask": padding_mask.long(), "decoder_input_ids": target}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_open_run_and_write_back(name: str, seed: int, tmp_path: Path) -> None:
    model = theirs(name, seed, tmp_path / "theirs")
    ours, opened = folders.open_model(tmp_path / "theirs")
    assert trainable(ours) == parameter_count(opened.spec)
    batch = inputs()
    with torch.inference_mode():
        wanted = model(**batch).logits
        result = ours.head(
            ours(batch["input_ids"], batch["decoder_input_ids"], batch["attention_mask"].bool())[0]
        )  # type: ignore
    assert (result - wanted).abs().max().item() <= 1e-5 * max(1.0, wanted.abs().mean().item())

    back = tmp_path / "ours"
    back.mkdir()
    # T5 1.1 and mT5 differ in names only; all other folders are written as what they are unasked.
    family = "mt5" if name.startswith("mt5") else None
    disk.write_json(
        back / "config.json", folders.describe(opened.spec, opened.ids, opened.positions, family)
    )
    if opened.ids is not None:
        disk.write_json(back / "generation_config.json", folders.generation_config(opened.ids))
    assert (
        json.loads((back / "config.json").read_text())["model_type"] == opened.config["model_type"]
    )
    folders.write_weights(back / "model.safetensors", ours, opened.spec, opened.positions, family)
    before, after = (
        load_file(place / "model.safetensors") for place in (tmp_path / "theirs", back)
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    again, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        back, attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report
    with torch.inference_mode():
        assert torch.equal(again.eval()(**batch).logits, wanted)
    assert (folders.read(back).spec, folders.read(back).ids) == (opened.spec, opened.ids)
    if "bart" in name:
        assert opened.ids == folders.SpecialTokenIds(
            pad=1, start=2, end=2, forced_bos=5, forced_eos=True
        )
        assert (
            again.generation_config.forced_bos_token_id,
            again.generation_config.forced_eos_token_id,
        ) == (5, 2)


@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        ("t5 1.0", {"feed_forward_proj": "mish"}, "mish"),
        ("t5 1.0", {"dense_act_fn": "gelu"}, "dense_act_fn"),
        ("t5 1.0", {"is_decoder": True}, "is_decoder"),
        ("t5 1.0", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("t5 1.0", {"num_decoder_layers": 2}, "decoder.block.2"),
        ("t5 1.0", {"d_kv": 6}, "shape"),
        ("bart", {"normalize_before": True}, "normalize_before"),
        ("bart", {"tie_word_embeddings": False}, "tie_word_embeddings"),
        ("bart", {"encoder_layerdrop": 0.1}, "encoder_layerdrop"),
        ("mbart", {"max_position_embeddings": 20}, "shape"),
        ("mbart", {"decoder_layers": 4}, "lacks"),
    ],
)
def test_what_is_not_understood_is_refused(
    name: str, change: dict[str, Any], word: str, tmp_path: Path
) -> None:
    theirs(name, 0, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ModelError, match=word):
        folders.open_model(tmp_path)


def test_t5_as_its_authors_released_it(tmp_path: Path) -> None:
    """Version 1.0 stores copies of the one matrix and a bias nobody uses; version 1.1 says
    tie_word_embeddings: false.
    """
    theirs("t5 1.0", 0, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    unused = {
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.randn(8, 4)
    }
    save_file(
        {**tensors, **{c: tensors["shared.weight"].clone() for c in copies}, **unused},
        tmp_path / "model.safetensors",
    )
    config = json.loads((tmp_path / "config.json").read_text())
    for key in (
        "scale_decoder_outputs",
        "tie_word_embeddings",
        "dense_act_fn",
        "is_gated_act",
        "decoder_start_token_id",
    ):
        config.pop(key)
    (tmp_path / "config.json").write_text(json.dumps({**config, "n_positions": 512}))
    _, opened = folders.open_model(tmp_path)
    assert (opened.spec.share, opened.spec.head.scale) == ("all", 30**-0.5)  # type: ignore[union-attr]
    assert opened.ids == folders.SpecialTokenIds(pad=0, start=0, end=1)

    model = theirs("t5 1.1", 1, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("scale_decoder_outputs")
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    ours, opened = folders.open_model(tmp_path)
    assert (opened.spec.share, opened.spec.head.scale) == ("inputs", 1.0)  # type: ignore[union-attr]
    assert torch.equal(ours.get_parameter("head.table.weight"), model.lm_head.weight)


def test_bart_without_its_head(tmp_path: Path) -> None:
    """BartModel's file lacks a prefix and the bias of the logits. Its head is tied: whoever wants a
    model that writes has it."""
    language_model = theirs("bart", 0, tmp_path / "model").eval()
    torch.nn.init.zeros_(language_model.final_logits_bias)
    bare = language_model.model
    write_tokenizer(tmp_path / "bare")
    bare.save_pretrained(tmp_path / "bare")
    arguments = inputs()
    with torch.inference_mode():
        hidden = regard.load(tmp_path / "bare")(**arguments).last_hidden_state
        torch.testing.assert_close(hidden, bare(**arguments).last_hidden_state)
        writes = regard.load(tmp_path / "bare", regard.Translator)
        torch.testing.assert_close(writes(**arguments).logits, language_model(**arguments).logits)


@pytest.mark.parametrize("family", ["Bart", "MBart"])
def test_a_classifier_is_opened_run_and_written_back(family: str, tmp_path: Path) -> None:
    """The labels are scored at the last end token of the input, which the decoder reads again."""
    torch.manual_seed(3)
    names = {0: "contradiction", 1: "neutral", 2: "entailment"}
    config = getattr(transformers, f"{family}Config")(
        **BART, id2label=names, label2id={n: i for i, n in names.items()}, classifier_dropout=0.2
    )
    architecture = getattr(transformers, f"{family}ForSequenceClassification")
    model = architecture(config).eval()
    perturb(model)
    model.save_pretrained(tmp_path / "theirs")
    batch = inputs()
    for row, end in enumerate((16, 8, 0)):
        batch["input_ids"][row][batch["input_ids"][row] == 2] = 3
        batch["input_ids"][row, end] = 2
    arguments = {key: batch[key] for key in ("input_ids", "attention_mask")}
    ours = regard.load(tmp_path / "theirs")
    with torch.inference_mode():
        wanted = model(**arguments)
        found = ours(**arguments)
    assert list(found) == ["logits", "encoder_last_hidden_state"]
    assert (found.logits - wanted.logits).abs().max() <= 1e-5
    assert ours.labels == list(names.values())  # type: ignore[attr-defined]

    back = ours.save(tmp_path / "ours")
    before = load_file(tmp_path / "theirs" / "model.safetensors")
    after = load_file(back / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    again, report = architecture.from_pretrained(back, output_loading_info=True)
    assert not any(report.values()), report
    with torch.inference_mode():
        assert torch.equal(again.eval()(**arguments).logits, wanted.logits)
    assert again.config.classifier_dropout == 0.2
    assert again.config.id2label == names
    with pytest.raises(SettingError, match="end token"):
        ours(input_ids=torch.full((1, 4), 7))


def write_tokenizer(folder: Path) -> Any:
    """A word-level tokenizer of a and b in BART's layout, written to tokenizer.json."""
    folder.mkdir()
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5, "ab": 6, "ba": 7}
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(vocabulary, unk_token="<unk>")  # type: ignore[call-arg]
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()  # type: ignore[assignment]
    backend.post_processor = tokenizers.processors.RobertaProcessing(  # type: ignore[assignment]
        ("</s>", 2), ("<s>", 0)
    )
    backend.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    backend.save(str(folder / "tokenizer.json"))
    return backend


def test_a_classifier_of_text(tmp_path: Path) -> None:
    """`classify` gives the probabilities of the call, for lists, pairs and single texts."""
    tokenizer = write_tokenizer(tmp_path / "model")
    torch.manual_seed(0)
    config = transformers.BartConfig(**{**BART, "vocab_size": 300})
    transformers.BartForSequenceClassification(config).eval().save_pretrained(tmp_path / "model")
    model = regard.load(tmp_path / "model")
    assert model.tasks == ["embed", "classify"]
    texts: list[str | tuple[str, str]] = ["ab a", ("ba", "b b"), "aaab"]
    scores = model.classify(texts)  # type: ignore[arg-type]
    for text, found in zip(texts, scores, strict=True):
        ids = torch.tensor([tokenizer.encode(*([text] if isinstance(text, str) else text)).ids])
        with torch.inference_mode():
            logits = model(input_ids=ids).logits[0]
        expected = dict(zip(model.labels or (), logits.softmax(dim=-1).tolist(), strict=True))
        assert found == pytest.approx(expected, abs=1e-6)
    assert model.classify("ab a") == pytest.approx(scores[0], abs=1e-6)  # type: ignore[call-overload]
    # All in one batch, by the tensors of `tokens`.
    with torch.inference_mode():
        logits = model(**model.tokens(texts)).logits
    for row, found in zip(logits, scores, strict=True):
        assert row.softmax(dim=-1).max().item() == pytest.approx(max(found.values()), abs=1e-6)
    with pytest.raises(DataError, match="truncation=True"):
        model.tokens(texts, max_length=4)
    long = "ab " * 40
    with pytest.raises(DataError, match="truncation=True"):
        model.classify(long)
    messages: list[str] = []
    model.say = messages.append
    assert len(model.classify(long, truncation=True)) == 3
    assert "truncated" in messages[0]
