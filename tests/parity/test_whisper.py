"""Whisper against transformers: tiny random models, three seeds, both directions, and the tokens
that it says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard import spec
from regard.builder import trainable
from regard.builder.parameter_count import parameter_count
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import BeamSearch, Greedy, Limit, PowerPenalty
from regard.families import folder as folders
from regard.system import disk
from regard.system.errors import DataError, ModelError
from regard.wirings.encoder import Encoder
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 53,
    "num_mel_bins": 11,
    "d_model": 30,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 5,
    "encoder_ffn_dim": 41,
    "decoder_ffn_dim": 37,
    "max_source_positions": 14,
    "max_target_positions": 17,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "decoder_start_token_id": 1,
    "eos_token_id": 2,
    "begin_suppress_tokens": None,
}
CHANGES: dict[str, dict[str, Any]] = {
    "small": {},
    "relu": {"activation_function": "relu", "num_mel_bins": 8},
}


def theirs(name: str, seed: int, out: Path) -> Any:
    torch.manual_seed(seed)
    config = transformers.WhisperConfig(**{**SMALL, **CHANGES[name]})
    model = transformers.WhisperForConditionalGeneration(config).eval()
    # The sinusoids too: Whisper takes them as they are stored.
    perturb(model, 0.1, frozen=True)
    model.save_pretrained(out)
    return model


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CHANGES)
def test_open_run_and_write_back(name: str, seed: int, tmp_path: Path) -> None:
    model = theirs(name, seed, tmp_path / "theirs")
    ours, opened = folders.open_model(tmp_path / "theirs")
    assert trainable(ours) == parameter_count(opened.spec)
    assert trainable(ours) == sum(part.numel() for part in model.parameters() if part.requires_grad)
    assert spec.from_dict(spec.to_dict(opened.spec)) == opened.spec
    features, target = torch.randn(3, model.config.num_mel_bins, 28), torch.randint(3, 53, (3, 17))
    with torch.inference_mode():
        wanted = model(input_features=features, decoder_input_ids=target).logits
        result = ours.head(ours(features, target)[0])  # type: ignore[misc]
    assert (result - wanted).abs().max().item() <= 2e-5 * max(1.0, wanted.abs().mean().item())

    back = tmp_path / "ours"
    back.mkdir()
    disk.write_json(
        back / "config.json", folders.describe(opened.spec, opened.ids, opened.positions)
    )
    folders.write_weights(back / "model.safetensors", ours, opened.spec, opened.positions)
    before, after = (
        load_file(place / "model.safetensors") for place in (tmp_path / "theirs", back)
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    again, report = transformers.AutoModelForSpeechSeq2Seq.from_pretrained(
        back, output_loading_info=True
    )
    assert not any(report.values()), report
    with torch.inference_mode():
        assert torch.equal(
            again.eval()(input_features=features, decoder_input_ids=target).logits, wanted
        )


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"use_weighted_layer_sum": True}, "use_weighted_layer_sum"),
        ({"scale_embedding": True}, "scale_embedding"),
        ({"max_source_positions": 15}, "shape"),
        ({"encoder_layers": 1}, "model.encoder.layers.1"),
        ({"rope_theta": 1e4}, "rope_theta"),
    ],
)
def test_what_is_not_understood_is_refused(
    change: dict[str, Any], word: str, tmp_path: Path
) -> None:
    theirs("small", 0, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ModelError, match=word):
        folders.open_model(tmp_path)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_tokens(seed: int, tmp_path: Path) -> None:
    """Targets begin with several tokens, as Whisper's do: language and task."""
    model = theirs("small", seed, tmp_path)
    ours, _ = folders.open_model(tmp_path)
    features, start = torch.randn(3, 11, 28), (1, 7, 9)
    frame = {"input_features": features, "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    prompt = torch.tensor(start).expand(3, -1)
    # Whisper's own `generate` splits long recordings and wants the real vocabulary; underneath is
    # the general one.
    generate = transformers.GenerationMixin.generate
    end = generate(model, **frame, decoder_input_ids=prompt, num_beams=3)[0, 5].item()

    def generated(**settings: Any) -> list[list[int]]:
        rows = generate(model, **frame, decoder_input_ids=prompt, eos_token_id=end, **settings)[
            :, 3:
        ].tolist()
        return [row[: row.index(end)] if end in row else row for row in rows]

    def decoded(strategy: Any) -> list[list[int]]:
        result = decode(
            ours,  # type: ignore[arg-type]
            list(features),
            SpecialTokens(0, start, end),
            DecodingSettings(strategy, Limit.fixed(8)),
        )
        return [list(hypothesis.tokens) for hypotheses in result for hypothesis in hypotheses]

    assert decoded(Greedy()) == generated(num_beams=1)
    for stop, early in {"full": True, "likely": False}.items():
        wanted = generated(
            num_beams=3, length_penalty=0.8, early_stopping=early, num_return_sequences=3
        )
        assert decoded(BeamSearch(3, PowerPenalty(0.8), 3, "refilled", stop)) == wanted  # type: ignore[arg-type]


def test_more_sound_than_there_are_positions_is_refused(tmp_path: Path) -> None:
    theirs("small", 0, tmp_path)
    ours, _ = folders.open_model(tmp_path)
    with pytest.raises(DataError, match="14"):
        ours.encode(torch.randn(1, 11, 30))  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CHANGES)
def test_the_classifier_of_recordings(name: str, seed: int, tmp_path: Path) -> None:
    """WhisperForAudioClassification: equal logits, and the same file when it is written back."""
    torch.manual_seed(seed)
    labels = {"num_labels": 2 + seed, "classifier_proj_size": 13}
    config = transformers.WhisperConfig(**{**SMALL, **CHANGES[name], **labels})
    model = transformers.WhisperForAudioClassification(config).eval()
    perturb(model, 0.1, frozen=True)
    model.save_pretrained(tmp_path / "theirs")
    ours, opened = folders.open_model(tmp_path / "theirs")
    assert isinstance(ours, Encoder)
    assert trainable(ours) == parameter_count(opened.spec)
    assert spec.from_dict(spec.to_dict(opened.spec)) == opened.spec
    frames = torch.randn(3, config.num_mel_bins, 2 * config.max_source_positions)
    loaded = regard.load(tmp_path / "theirs", device="cpu")
    with torch.inference_mode():
        expected = model(frames).logits
        hidden, _ = ours(frames)
        assert (ours.classes(hidden) - expected).abs().max() < 2e-5
        assert (loaded(input_features=frames).logits - expected).abs().max() < 2e-5
    (tmp_path / "back").mkdir()
    folders.write_model(tmp_path / "back", opened)
    before = load_file(tmp_path / "theirs" / "model.safetensors")
    after = load_file(tmp_path / "back" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(tensor.equal(after[key]) for key, tensor in before.items())
    again = transformers.WhisperForAudioClassification.from_pretrained(tmp_path / "back").eval()
    with torch.inference_mode():
        assert again(frames).logits.equal(expected)
