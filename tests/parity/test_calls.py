"""Every architecture through `regard.load(folder)(**inputs)` against transformers: the same names,
the same tensors; and saved again, a folder that transformers opens with nothing missing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import test_clip
import test_deberta
import test_decoders
import test_encoders
import test_marian
import test_sequences
import test_vision
import test_wav2vec2
import test_whisper
import torch
from safetensors.torch import load_file
from torch import Tensor

import regard
from conftest import small_model
from regard.data.text.tokenizer_training import train_tokenizer
from regard.families.encoder_decoders.transformer import transformer
from regard.models import (
    CTCModel,
    DualEncoderModel,
    ImageEncoder,
    Model,
    SpeechToText,
    TextEncoder,
    Translator,
)
from regard.models.sound_models import WaveformModel
from regard.system.errors import DiskError, SettingError

transformers = pytest.importorskip("transformers")

Inputs = dict[str, Tensor]
LOOSE = ("DebertaV2", "Whisper", "CLIP", "Wav2Vec2", "Gemma")


def encoder(family: str, task: str, out: Path) -> tuple[Any, Inputs]:
    model = test_encoders.saved(family, task, 1, out)
    tokens, padding_mask, segments = test_encoders.batch(family, model.config)
    extra = {} if segments is None else {"token_type_ids": segments}
    return model, {"input_ids": tokens, "attention_mask": padding_mask.long(), **extra}


def deberta(name: str, out: Path) -> tuple[Any, Inputs]:
    padding_mask = torch.arange(23) < torch.tensor([23, 9, 1])[:, None]
    return test_deberta.theirs(name, 0, out), {
        "input_ids": torch.randint(1, 61, (3, 23)),
        "attention_mask": padding_mask.long(),
    }


def image(kind: str, out: Path) -> tuple[Any, Inputs]:
    model = test_vision.theirs(kind, "small", 0, out)
    return model, {"pixel_values": torch.randn(3, 3, 12, 12)}


def clip(kind: str, out: Path) -> tuple[Any, Inputs]:
    text, vision = test_clip.CASES["an end inside the vocabulary"]
    tokens, padding_mask = test_clip.texts(20)
    words = {"input_ids": tokens, "attention_mask": padding_mask.long()}
    if kind == "CLIPModel":
        config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=7)
        inputs = {**words, "pixel_values": test_clip.images()}
    elif "Text" in kind:
        config, inputs = transformers.CLIPTextConfig(**text), words
    else:
        config, inputs = (
            transformers.CLIPVisionConfig(**vision),
            {"pixel_values": test_clip.images()},
        )
    model = test_vision.shaken(getattr(transformers, kind)(config))
    model.save_pretrained(out)
    return model, inputs


def sound(kind: str, out: Path) -> tuple[Any, Inputs]:
    model = test_wav2vec2.theirs(kind, "norms before", 0, out)
    waves, padding_mask = test_wav2vec2.sound()
    return model, {"input_values": waves, "attention_mask": padding_mask.long()}


def whisper(out: Path) -> tuple[Any, Inputs]:
    model = test_whisper.theirs("small", 0, out)
    frames = torch.ones(3, 28).long()
    frames[1, 20:] = 0
    target = torch.randint(3, 53, (3, 17))
    return model, {
        "input_features": torch.randn(3, 11, 28),
        "attention_mask": frames,
        "decoder_input_ids": target,
    }


def sequence(name: str, out: Path) -> tuple[Any, Inputs]:
    model, inputs = test_sequences.theirs(name, 0, out), test_sequences.inputs()
    max_lookback = torch.arange(18) < torch.tensor([18, 11, 2])[:, None]
    return model, {**inputs, "decoder_attention_mask": max_lookback.long()}


def marian(stem: str, kind: str, out: Path) -> tuple[Any, Inputs]:
    model = test_marian.random_theirs(
        getattr(transformers, kind), getattr(transformers, f"{stem}Config")
    ).eval()
    model.save_pretrained(out)
    data = test_marian.batch(37, 37)
    return model, {
        "input_ids": data.source,
        "attention_mask": data.padding_mask.long(),
        "decoder_input_ids": data.target,
    }


def decoder(name: str, out: Path) -> tuple[Any, Inputs]:
    padding_mask = torch.arange(11) < torch.tensor([11, 8, 5])[:, None]
    return test_decoders.theirs(name, 0, out), {
        "input_ids": torch.randint(1, 61, (3, 11)),
        "attention_mask": padding_mask.long(),
    }


DEBERTAS = ("bare", "masked", "classes", "tags", "answers")
DECODERS = (
    "llama",
    "mistral, window",
    "mixtral",
    "qwen2",
    "gemma",
    "gemma2",
    "gemma3",
    "gpt-oss",
    "gpt2",
    "gpt",
    "neox",
)
CLIPS = [
    "CLIPModel",
    "CLIPTextModel",
    "CLIPTextModelWithProjection",
    "CLIPVisionModel",
    "CLIPVisionModelWithProjection",
]
CASES: dict[str, Any] = {
    **{f + t: lambda out, f=f, t=t: encoder(f, t, out) for f, t in test_encoders.ARCHITECTURES},
    **{f"deberta, {name}": lambda out, name=name: deberta(name, out) for name in DEBERTAS},
    **{
        kind: lambda out, kind=kind: image(kind, out)
        for kinds in test_vision.HEADS.values()
        for kind in kinds
    },
    **{kind: lambda out, kind=kind: clip(kind, out) for kind in CLIPS},
    **{
        kind: lambda out, kind=kind: sound(kind, out)
        for kind in ("Wav2Vec2Model", "Wav2Vec2ForCTC")
    },
    "whisper": whisper,
    **{
        name: lambda out, name=name: sequence(name, out)
        for name in ("t5 1.0", "t5 1.1", "bart", "mbart")
    },
    "marian": lambda out: marian("Marian", "MarianMTModel", out),
    "pegasus": lambda out: marian("Pegasus", "PegasusForConditionalGeneration", out),
    **{name: lambda out, name=name: decoder(name, out) for name in DECODERS},
}
CLASSES = {
    "input_values": CTCModel,
    "input_features": SpeechToText,
    "pixel_values": ImageEncoder,
    "input_ids": TextEncoder,
}


def quiet(folder: Path) -> Model:
    return regard.load(folder, say=lambda text: None)


@torch.inference_mode()
def tensors(model: Any, inputs: Inputs) -> dict[str, Tensor]:
    """The main ones, in their order; what Wav2Vec2 gives of its convolutions is none."""
    their_items = model(**inputs).items()
    return {
        name: value
        for name, value in their_items
        if isinstance(value, Tensor) and name != "extract_features"
    }


def without_padding(output: Tensor, inputs: Inputs, loaded: Model) -> Tensor:
    """At positions that are no padding, where there are positions."""
    mask = inputs.get("attention_mask")
    if "input_values" in inputs:
        mask = loaded.model.input.output_padding_mask(mask.bool())  # type: ignore[union-attr, operator]
    if (
        "decoder_attention_mask" in inputs
        and output.shape[1] == inputs["decoder_input_ids"].shape[1]
    ):
        mask = inputs["decoder_attention_mask"]
    if mask is None or output.shape[:2] != mask.shape:
        return output
    return output[mask.bool()]


@pytest.mark.parametrize("name", CASES)
def test_called_and_saved(name: str, tmp_path: Path) -> None:
    theirs, inputs = CASES[name](tmp_path / "theirs")
    loaded = quiet(tmp_path / "theirs")
    wanted, result = tensors(theirs, inputs), tensors(loaded, inputs)
    kind = type(theirs).__name__
    assert list(result) == list(wanted)
    for key, value in wanted.items():
        mine, value = (
            without_padding(result[key], inputs, loaded),
            without_padding(value, inputs, loaded),
        )
        assert mine.shape == value.shape, key
        tolerance = (2e-5 if kind.startswith(LOOSE) else 1e-5) * max(1.0, value.abs().mean().item())
        assert (mine - value).abs().max().item() <= tolerance, key

    loaded.save(tmp_path / "back")
    same = {"attn_implementation": theirs.config._attn_implementation, "output_loading_info": True}
    again, report = type(theirs).from_pretrained(tmp_path / "back", **same)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    for key, value in tensors(again.eval(), inputs).items():
        assert (
            without_padding(value, inputs, loaded) - without_padding(wanted[key], inputs, loaded)
        ).abs().max().item() <= 1e-6, key
    for key in (
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
        "decoder_start_token_id",
        "id2label",
    ):
        assert getattr(again.config, key, None) == getattr(theirs.config, key, None), key
    reopened = quiet(tmp_path / "back")
    assert type(reopened) is type(loaded)
    assert reopened.spec == loaded.spec
    for key, value in tensors(reopened, inputs).items():
        torch.testing.assert_close(value, result[key], rtol=0, atol=1e-6)


def test_what_is_made_of_a_folder(tmp_path: Path) -> None:
    for name, kind in (
        ("BertForMaskedLM", TextEncoder),
        ("CLIPTextModel", TextEncoder),
        ("ViTModel", ImageEncoder),
        ("CLIPVisionModel", ImageEncoder),
        ("CLIPModel", DualEncoderModel),
        ("Wav2Vec2ForCTC", CTCModel),
        ("Wav2Vec2Model", WaveformModel),
        ("whisper", SpeechToText),
    ):
        CASES[name](tmp_path / name)
        assert type(quiet(tmp_path / name)) is kind


def test_one_file_called_as_several_architectures(tmp_path: Path) -> None:
    """bert-base-uncased holds all of pre-training; its config names one architecture."""
    model, inputs = encoder("Bert", "ForPreTraining", tmp_path)
    expected_tensors = tensors(model, inputs)
    for architecture, names in (
        ("BertForMaskedLM", {"logits": "prediction_logits"}),
        ("BertForNextSentencePrediction", {"logits": "seq_relationship_logits"}),
        ("BertForPreTraining", {name: name for name in expected_tensors}),
    ):
        test_encoders.edit(tmp_path, architectures=[architecture])
        result = tensors(quiet(tmp_path), inputs)
        assert result.keys() == names.keys()
        for ours, theirs in names.items():
            torch.testing.assert_close(result[ours], expected_tensors[theirs], rtol=0, atol=2e-5)
    test_encoders.edit(tmp_path, architectures=["BertModel"])
    assert list(tensors(quiet(tmp_path), inputs)) == ["last_hidden_state", "pooler_output"]


def test_arguments(tmp_path: Path) -> None:
    _, inputs = encoder("Bert", "Model", tmp_path / "bert")
    loaded = quiet(tmp_path / "bert")
    for wrong, word in (
        (
            {"input_id": inputs["input_ids"]},
            "did you mean 'input_ids'.*attention_mask, token_type_ids",
        ),
        ({**inputs, "position_ids": None}, "position_ids"),
        ({"attention_mask": inputs["attention_mask"]}, "needs input_ids"),
    ):
        with pytest.raises(SettingError, match=word):
            loaded(**wrong)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="3 arguments"):
        loaded(*[inputs["input_ids"]] * 4)
    out = loaded(inputs["input_ids"], inputs["attention_mask"], inputs["token_type_ids"])
    assert torch.equal(out[0], out.last_hidden_state)
    assert torch.equal(out[1], loaded(**inputs)["pooler_output"])
    assert out.last_hidden_state.requires_grad  # as in transformers, the caller decides
    with pytest.raises(AttributeError, match="no logits, only last_hidden_state, pooler_output"):
        _ = out.logits
    _, inputs = whisper(tmp_path / "whisper")
    loaded = quiet(tmp_path / "whisper")
    with pytest.raises(SettingError, match="this model needs decoder_input_ids"):
        loaded(input_features=inputs["input_features"])


def test_targets_are_padded_anywhere(tmp_path: Path) -> None:
    theirs, inputs = whisper(tmp_path)
    mask = (torch.arange(17).expand(3, -1) > 2) & (torch.arange(17) != 9)
    inputs |= {"decoder_attention_mask": mask.long()}
    with torch.inference_mode():
        wanted = theirs(**inputs).logits[mask]
        torch.testing.assert_close(quiet(tmp_path)(**inputs).logits[mask], wanted)


# ------------------------------------------------------------------ saving


def test_what_a_saved_folder_carries(tmp_path: Path) -> None:
    CASES["BertForSequenceClassification"](tmp_path / "theirs")
    names = {str(i): name for i, name in enumerate("abcde")}
    back = {name: i for i, name in enumerate("abcde")}
    more = {
        "id2label": names,
        "label2id": back,
        "problem_type": "multi_label_classification",
        "sep_token_id": 7,
    }
    test_encoders.edit(tmp_path / "theirs", **more)
    (tmp_path / "theirs/vocab.txt").write_text("x")
    (tmp_path / "theirs/1_Pooling").mkdir()
    (tmp_path / "theirs/1_Pooling/config.json").write_text("{}")
    (tmp_path / "theirs/pytorch_model.bin").write_text("no")
    (tmp_path / "theirs/modeling.py").write_text("no")
    loaded = quiet(tmp_path / "theirs")
    assert loaded.save(tmp_path / "new/ours") == tmp_path / "new/ours"
    config_json = json.loads((tmp_path / "new/ours/config.json").read_text())
    assert {key: config_json[key] for key in more} == more
    files = [p for p in (tmp_path / "new").rglob("*") if p.is_file()]
    held_files = sorted(p.relative_to(tmp_path / "new/ours").as_posix() for p in files)
    assert held_files == ["1_Pooling/config.json", "config.json", "model.safetensors", "vocab.txt"]
    before = load_file(tmp_path / "theirs/model.safetensors")
    after = load_file(tmp_path / "new/ours/model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_what_is_there_is_kept_unless_it_is_a_model(tmp_path: Path) -> None:
    CASES["ViTModel"](tmp_path / "theirs")
    loaded = quiet(tmp_path / "theirs")
    loaded.save(tmp_path / "ours")
    loaded.save(tmp_path / "ours")  # a model in place of a model
    (tmp_path / "file").write_text("x")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.txt").write_text("x")
    (tmp_path / "ours/state").mkdir()
    (tmp_path / "ours/state/recipe.json").write_text("{}")
    for place, word in (
        ("file", "is a file"),
        ("thesis", r"chapter\.txt"),
        ("ours", r"state/recipe\.json"),
    ):
        with pytest.raises(DiskError, match=word):
            loaded.save(tmp_path / place)
    assert (tmp_path / "thesis/chapter.txt").read_text() == "x"
    assert (tmp_path / "ours/model.safetensors").is_file()


def test_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CASES["ViTModel"](tmp_path / "theirs")
    loaded = quiet(tmp_path / "theirs")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("regard.system.disk.write_tensors", full)
    with pytest.raises(DiskError, match="full"):
        loaded.save(tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_a_model_that_came_from_no_folder(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["a dog runs", "the small house"] * 9, "bpe", 40)
    size = len(tokenizer)
    description = transformer(size, size, d_model=24, d_ff=40, heads=3, layers=2, dropout=0.0)
    their_items = Translator(
        small_model(size), description, tokenizer, tokenizer, tokenizer.required_token_id("bos")
    )
    their_items.save(tmp_path / "ours")
    opened = regard.load(tmp_path / "ours")
    assert isinstance(opened, Translator)
    assert opened.translate("the dog") == their_items.translate("the dog")
    again = regard.load(opened.save(tmp_path / "again"))
    assert again.translate("the dog") == their_items.translate("the dog")  # type: ignore[attr-defined]
