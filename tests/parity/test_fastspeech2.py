"""FastSpeech 2 and HiFi-GAN against transformers: durations, spectrograms, samples, the loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_vision import check_back, close
from torch import Tensor

import regard
from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.core.context import Context
from regard.families import folder as folders
from regard.system.errors import ModelError
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "hidden_size": 24,
    "vocab_size": 19,
    "num_mel_bins": 7,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_linear_units": 20,
    "decoder_linear_units": 33,
    "speech_decoder_postnet_units": 11,
    "speech_decoder_postnet_layers": 3,
    "duration_predictor_channels": 9,
    "pitch_predictor_channels": 8,
    "energy_predictor_channels": 10,
}
SIZES: dict[str, dict[str, Any]] = {
    "post-norm": {**SMALL, "num_speakers": 3, "num_languages": 2},
    "pre-norm": {
        **SMALL,
        "encoder_normalize_before": True,
        "decoder_normalize_before": True,
        "encoder_num_attention_heads": 3,
        "encoder_kernel_size": 3,
        "decoder_kernel_size": 5,
        "positionwise_conv_kernel_size": 1,
        "convolution_bias": False,
        "use_macaron_style_in_conformer": False,
        "speaker_embed_dim": 5,
        "reduction_factor": 2,
        "speaking_speed": 1.3,
        "speech_decoder_postnet_layers": 1,
        "pitch_embed_kernel_size": 3,
        "energy_embed_kernel_size": 5,
        "pitch_predictor_layers": 1,
        "stop_gradient_from_energy_predictor": True,
    },
}
ATTENTION = [
    f"{side}_{name}dropout_rate"
    for side in ("encoder", "decoder")
    for name in ("", "positional_", "attention_")
]
VOCODER: dict[str, Any] = {
    "model_in_dim": 7,
    "upsample_initial_channel": 12,
    "upsample_rates": [3, 2],
    "upsample_kernel_sizes": [7, 4],
    "resblock_kernel_sizes": [3, 5],
    "resblock_dilation_sizes": [[1, 3], [1, 2]],
}


def config_of(name: str, **changes: Any) -> Any:
    return transformers.FastSpeech2ConformerConfig(**SIZES[name], **changes)


def theirs(kind: str, name: str, seed: int, out: Path, **changes: Any) -> Any:
    torch.manual_seed(seed)
    vocoder = transformers.FastSpeech2ConformerHifiGanConfig(**VOCODER)
    config = vocoder if kind.endswith("ConformerHifiGan") else config_of(name, **changes)
    if kind.endswith("WithHifiGan"):
        config = transformers.FastSpeech2ConformerWithHifiGanConfig(
            model_config=config_of(name, **changes), vocoder_config=vocoder
        )
    model = getattr(transformers, kind)(config).eval()
    perturb(model, 0.1)
    for key, buffer in model.named_buffers():
        if buffer.is_floating_point() and "pos_enc" not in key:
            buffer.add_(torch.rand_like(buffer))
    for key, parameter in model.named_parameters():
        if key.endswith("duration_predictor.linear.bias"):
            parameter.data.fill_(1.2)  # frames of a token: about two
    model.save_pretrained(out)
    return model


def batch(config: Any, lengths: tuple[int, ...] = (11, 6, 1)) -> dict[str, Tensor]:
    """Texts of several lengths, and who speaks."""
    config = getattr(config, "model_config", config)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    inputs = {
        "input_ids": torch.randint(1, config.vocab_size, mask.shape) * mask,
        "attention_mask": mask.long(),
    }
    if config.num_speakers:
        inputs["speaker_ids"] = torch.randint(config.num_speakers, (len(lengths), 1))
        inputs["lang_ids"] = torch.randint(config.num_languages, (len(lengths), 1))
    if config.speaker_embed_dim:
        inputs["speaker_embedding"] = torch.randn(len(lengths), config.speaker_embed_dim)
    return inputs


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("kind", ["Model", "WithHifiGan"])
def test_open_run_and_write_back(kind: str, name: str, seed: int, tmp_path: Path) -> None:
    model = theirs(f"FastSpeech2Conformer{kind}", name, seed, tmp_path / "theirs")
    ours, opened = folders.open_model(tmp_path / "theirs")
    assert trainable(ours) == parameter_count(opened.spec)
    assert spec.from_dict(spec.to_dict(opened.spec)) == opened.spec
    inputs = batch(model.config)

    def run(model: Any) -> dict[str, Tensor]:
        return dict(model(**inputs))

    with torch.inference_mode():
        loaded = regard.load(tmp_path / "theirs")
        wanted = run(model)
        result = run(loaded)
        assert list(result) == list(wanted)
        assert wanted["spectrogram"].shape[1] > 11
        assert torch.equal(result["duration_outputs"], wanted["duration_outputs"])
        for key, value in result.items():
            assert value.shape == wanted[key].shape
            assert close(value.float(), wanted[key].float(), 1e-4), key
        alone = {"input_ids": inputs["input_ids"][:1]}
        assert close(loaded(**alone)[0], model(**alone)[0], 1e-4)
        check_back(opened, ours, tmp_path, type(model).from_pretrained, run, wanted)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_vocoder_alone(seed: int, tmp_path: Path) -> None:
    model = theirs("FastSpeech2ConformerHifiGan", "", seed, tmp_path / "theirs")
    ours, opened = folders.open_model(tmp_path / "theirs")
    spectrogram = torch.randn(2, 13, 7)

    def run(model: Any) -> dict[str, Tensor]:
        result = model(spectrogram)
        return {"waveform": result if isinstance(result, Tensor) else result.waveform}

    with torch.inference_mode():
        loaded = regard.load(tmp_path / "theirs")
        wanted = run(model)
        assert wanted["waveform"].shape == (2, 13 * opened.spec.heads[0].hop)
        assert close(run(loaded)["waveform"], wanted["waveform"])
        check_back(opened, ours, tmp_path, type(model).from_pretrained, run, wanted)


def test_hidden_states_and_attentions(tmp_path: Path) -> None:
    model = theirs("FastSpeech2ConformerModel", "post-norm", 1, tmp_path)
    options = {"output_hidden_states": True, "output_attentions": True}
    inputs = batch(model.config, (5, 5))
    with torch.inference_mode():
        wanted = model(**inputs, **options)
        result = regard.load(tmp_path)(**inputs, **options)
    for key in ("encoder_hidden_states", "decoder_hidden_states", "encoder_attentions",
                "decoder_attentions"):  # fmt: skip
        pairs = zip(result[key], wanted[key], strict=True)
        assert all(close(one, other) for one, other in pairs), key


def test_silence_lasts_a_frame_a_token(tmp_path: Path) -> None:
    model = theirs("FastSpeech2ConformerModel", "post-norm", 1, tmp_path)
    model.duration_predictor.linear.bias.data.fill_(-9.0)
    model.save_pretrained(tmp_path)
    inputs = batch(model.config)
    with torch.inference_mode():
        wanted = model(**inputs)
        result = regard.load(tmp_path)(**inputs)
    assert torch.equal(result.duration_outputs, wanted.duration_outputs)
    assert close(result.spectrogram, wanted.spectrogram)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_loss_and_its_gradients(seed: int, tmp_path: Path) -> None:
    rates = (*ATTENTION, "speech_decoder_postnet_dropout", "duration_predictor_dropout_rate",
             "pitch_predictor_dropout", "energy_predictor_dropout")  # fmt: skip
    no_dropout = dict.fromkeys(rates, 0.0)
    model = theirs("FastSpeech2ConformerModel", "post-norm", seed, tmp_path, **no_dropout)
    loaded = regard.load(tmp_path)
    inputs = batch(model.config, (6, 6))
    durations = torch.tensor([[2, 0, 3, 1, 4, 2], [1, 1, 5, 0, 0, 2]])
    frames = durations.sum(dim=1)
    spectrogram = torch.randn(2, 12, 7)
    spectrogram[torch.arange(12) >= frames[:, None]] = -100.0
    labels = {
        "spectrogram_labels": spectrogram,
        "duration_labels": durations,
        "pitch_labels": torch.randn(2, 6, 1),
        "energy_labels": torch.randn(2, 6, 1),
    }
    model.train()
    loaded.model.train()
    # There, the statistics of a batch are of its padding as well.
    for one in (model, loaded.model):
        for module in one.modules():
            if "BatchNorm" in type(module).__name__:
                module.eval()
    wanted = model(**inputs, **labels)
    result = loaded(**inputs, **labels)
    torch.testing.assert_close(result.loss, wanted.loss)
    assert torch.isfinite(wanted.loss)
    wanted.loss.backward()
    result.loss.backward()
    ours = loaded.model.source.table.weight.grad
    torch.testing.assert_close(ours[1:], model.encoder.embed.weight.grad[1:], rtol=1e-3, atol=1e-5)


def test_a_text_is_spoken_as_it_is_alone(tmp_path: Path) -> None:
    # Other than in transformers, where shorter texts hear the padding of a batch.
    theirs("FastSpeech2ConformerModel", "post-norm", 2, tmp_path)
    core = regard.load(tmp_path).model
    inputs = batch(config_of("post-norm"))
    both = core.utter(inputs["input_ids"], inputs["attention_mask"].bool(), Context(), inputs)
    for row, length in enumerate((11, 6, 1)):
        voice = {key: inputs[key][row : row + 1] for key in ("speaker_ids", "lang_ids")}
        alone = core.utter(
            inputs["input_ids"][row : row + 1, :length],
            None,
            Context(),
            voice,
        )
        frames = alone.hidden.shape[1]
        assert both.is_frame[row].sum() == frames
        assert close(both.hidden[row, :frames], alone.hidden[0])


def test_configs_of_another_model_are_refused(tmp_path: Path) -> None:
    theirs("FastSpeech2ConformerModel", "post-norm", 1, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    changes: list[dict[str, Any]] = [
        {"encoder_concat_after": True},
        {"use_cnn_in_conformer": False},
        {"encoder_kernel_size": 4},
        {"pitch_predictor_kernel_size": 2},
        {"hidden_size": 25},
    ]
    for change in changes:
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelError):
            folders.read(tmp_path)


@pytest.mark.parametrize("norm", [spec.PreNorm(), spec.PostNorm()])
def test_any_encoder_can_have_conformer_blocks(norm: spec.Residual) -> None:
    block = spec.Block(
        spec.Attention(2, 4, 4),
        spec.FeedForward(16),
        residual=norm,
        position=spec.RelativeSinusoids(),
        conformer=spec.Conformer(5),
    )
    model = build(spec.Encoder(8, spec.Tokens(11, None), spec.Stack.of(2, block), ())).eval()
    tokens = torch.randint(11, (2, 7))
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, 4:] = False
    padded, _ = model(tokens, mask)
    alone, _ = model(tokens[1:, :4])
    assert close(padded[1, :4], alone[0])
    with pytest.raises(ModelError):
        spec.Block(
            spec.Attention(2, 4, 4),
            spec.FeedForward(16),
            pattern=spec.CausalMask(),
            conformer=spec.Conformer(5),
        )
