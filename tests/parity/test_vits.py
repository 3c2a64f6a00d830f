"""VITS against transformers: the same samples for the same noise; and how it speaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from test_vision import close
from torch import Tensor

import regard
from regard import spec
from regard.builder import trainable
from regard.builder.parameter_count import parameter_count
from regard.data.audio import read_wav_and_rate
from regard.data.text.tokenizer_files import open_encoder_tokenizer
from regard.families import folder as folders
from regard.lab.plan.planner import plan
from regard.lab.verify.invariants import check_invariants
from regard.lab.verify.parity import parity
from regard.models.speech_synthesizer import VariationalSynthesizer
from regard.system.errors import DataError, ModelError, SettingError
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "vocab_size": 31,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "window_size": 3,
    "ffn_dim": 20,
    "flow_size": 10,
    "spectrogram_bins": 9,
    "duration_predictor_num_flows": 3,
    "prior_encoder_num_flows": 2,
    "prior_encoder_num_wavenet_layers": 3,
    "posterior_encoder_num_wavenet_layers": 2,
    "upsample_initial_channel": 12,
    "upsample_rates": [3, 2],
    "upsample_kernel_sizes": [7, 4],
    "resblock_kernel_sizes": [3, 5],
    "resblock_dilation_sizes": [[1, 3], [1, 2]],
}
SIZES: dict[str, dict[str, Any]] = {
    "one voice": SMALL,
    "voices": {
        **SMALL,
        "num_speakers": 4,
        "speaker_embedding_size": 5,
        "wavenet_dilation_rate": 2,
        "num_attention_heads": 3,
        "speaking_rate": 0.8,
        "noise_scale": 0.3,
        "noise_scale_duration": 1.1,
    },
    "computed durations": {
        **SMALL,
        "use_stochastic_duration_prediction": False,
        "duration_predictor_filter_channels": 11,
        "num_speakers": 3,
        "speaker_embedding_size": 6,
        "use_bias": False,
        "hidden_act": "gelu",
        "ffn_kernel_size": 5,
        "layer_norm_eps": 1e-3,
    },
}


def theirs(name: str, seed: int, out: Path, **changes: Any) -> Any:
    torch.manual_seed(seed)
    model = transformers.VitsModel(transformers.VitsConfig(**SIZES[name], **changes)).eval()
    perturb(model, 0.1)
    model.save_pretrained(out)
    return model


def batch(*lengths: int) -> dict[str, Tensor]:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return {"input_ids": torch.randint(1, 31, mask.shape) * mask, "attention_mask": mask.long()}


def run(model: Any, **inputs: Any) -> dict[str, Any]:
    torch.manual_seed(7)  # of the noise
    with torch.inference_mode():
        return dict(model(**inputs))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SIZES)
def test_the_same_samples_for_the_same_noise(name: str, seed: int, tmp_path: Path) -> None:
    model = theirs(name, seed, tmp_path / "theirs")
    ours, opened = folders.open_model(tmp_path / "theirs")
    assert trainable(ours) == parameter_count(opened.spec)
    assert spec.from_dict(spec.to_dict(opened.spec)) == opened.spec
    loaded = regard.load(tmp_path / "theirs")
    # Latents of random weights are large, so that float32 has few digits left.
    loaded.model.double()
    model.double()
    voice = {"speaker_id": 2} if name != "one voice" else {}
    calls: list[dict[str, Any]] = [
        batch(11, 6, 1) | voice,
        batch(13, 13) | {"speaking_rate": 1.7},
        {"input_ids": batch(1)["input_ids"]} | voice,
    ]
    for inputs in calls:
        asked = inputs | {"output_hidden_states": True, "output_attentions": True}
        wanted = run(model, **asked)
        result = run(loaded, **asked)
        assert list(result) == list(wanted)
        assert torch.equal(result["sequence_lengths"], wanted["sequence_lengths"])
        assert close(result["waveform"], wanted["waveform"], 1e-9)
        assert close(result["spectrogram"], wanted["spectrogram"], 1e-9)
        tokens = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
        for one, other in zip(result["hidden_states"], wanted["hidden_states"], strict=True):
            assert close(one[tokens], other[tokens])
        for one, other in zip(result["attentions"], wanted["attentions"], strict=True):
            assert close(one, other)


@pytest.mark.parametrize("name", SIZES)
def test_every_tensor_comes_back(name: str, tmp_path: Path) -> None:
    theirs(name, 1, tmp_path / "theirs")
    regard.load(tmp_path / "theirs").save(tmp_path / "ours")
    before, after = (load_file(tmp_path / at / "model.safetensors") for at in ("theirs", "ours"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    old, new = (
        json.loads((tmp_path / at / "config.json").read_text()) for at in ("theirs", "ours")
    )
    assert all(new[key] == old[key] for key in old.keys() - {"dtype", "transformers_version"})
    _, report = transformers.VitsModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values())


def test_older_names_of_normalized_weights(tmp_path: Path) -> None:
    theirs("voices", 1, tmp_path)
    inputs = batch(5)
    today = run(regard.load(tmp_path), **inputs)
    tensors = load_file(tmp_path / "model.safetensors")
    names = {"parametrizations.weight.original0": "weight_g"}
    names["parametrizations.weight.original1"] = "weight_v"

    def former(name: str) -> str:
        for new, old in names.items():
            name = name.replace(new, old)
        return name

    older = {former(name): tensor for name, tensor in tensors.items()}
    save_file(older, tmp_path / "model.safetensors")
    assert torch.equal(run(regard.load(tmp_path), **inputs)["waveform"], today["waveform"])


def test_configs_of_another_model_are_refused(tmp_path: Path) -> None:
    theirs("one voice", 1, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    changes: list[dict[str, Any]] = [
        {"depth_separable_channels": 4},
        {"ffn_kernel_size": 2},
        {"duration_predictor_kernel_size": 4},
        {"wavenet_kernel_size": 4},
        {"flow_size": 9},
        {"hidden_act": "mish"},
    ]
    for change in changes:
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelError):
            folders.read(tmp_path)
    with pytest.raises(ModelError):
        spec.VariationalTextToSpeech(
            8,
            spec.Tokens(9),
            spec.Stack.of(1, BLOCK),
            spec.StochasticDurations(),
            spec.CouplingFlow(4),
        )


BLOCK = spec.Block(spec.Attention(2, 4, 4), spec.FeedForward(8))

# ------------------------------------------------------------------ texts

LETTERS = [*"k'zyudhesw3cp-1jmiflobran_xvt"]


def tokenizer(folder: Path, blank: str = "k", **settings: Any) -> Any:
    """transformers' tokenizer of these letters, whose files stand in a folder."""
    tokens = dict.fromkeys([blank, *LETTERS, " ", "<unk>"])
    vocabulary = {token: number for number, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    settings = {"phonemize": False, "pad_token": blank, **settings}
    made = transformers.VitsTokenizer(folder / "vocab.json", **settings)
    made.save_pretrained(folder)
    return made


@pytest.mark.parametrize("blank", ["k", "<pad>"])
@pytest.mark.parametrize(
    "settings", [{}, {"add_blank": False}, {"normalize": False}, {"language": "ron"}], ids=str
)
def test_letters_as_transformers_reads_them(
    blank: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    wanted = tokenizer(tmp_path, blank, **settings)
    ours = open_encoder_tokenizer(tmp_path)
    for text in ("Hello - my dog is CUTE!", "  kick, k k ", "Țar 3.14", "Kk", "a", "", "Ω?"):
        assert ours.input_ids(text) == wanted(text)["input_ids"], text


def test_phonemes_and_latin_letters_are_not_made(tmp_path: Path) -> None:
    theirs("one voice", 1, tmp_path)
    tokenizer(tmp_path, phonemize=True)
    with pytest.raises(DataError):
        regard.load(tmp_path).speak("a")
    tokenizer(tmp_path, is_uroman=True)
    assert regard.load(tmp_path).speak("a").durations
    with pytest.raises(DataError):
        regard.load(tmp_path).speak("a б")


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vits")
    theirs("voices", 2, folder)
    tokenizer(folder)
    return folder


def test_it_speaks(speaker: Path, tmp_path: Path) -> None:
    model = regard.load(speaker)
    assert isinstance(model, VariationalSynthesizer)
    speech = model.speak("hello, you", seed=3)
    assert speech.rate == 16_000
    assert len(speech.samples) == 6 * sum(speech.durations) == round(speech.seconds * speech.rate)
    assert len(speech.tokens) == len(speech.durations) == 2 * len("hello you") + 1
    # Of a list, each is said as it is alone; another seed says it otherwise.
    _, again = model.speak(["a", "hello, you"], seed=3)
    assert np.array_equal(again.samples, speech.samples)
    assert model.speak("hello, you", seed=4).durations != speech.durations
    # Without noise, only who speaks and how slowly change anything.
    plain, other, slow = (
        model.speak("hello, you", noise=0.0, **manner)
        for manner in ({"seed": 5}, {"seed": 6}, {"slowness": 2.0})
    )
    assert np.array_equal(plain.samples, other.samples)
    assert all(
        2 * one - 2 <= two <= 2 * one
        for one, two in zip(plain.durations, slow.durations, strict=True)
    )
    voice = model.speak("hello, you", speaker=model.speakers[2], noise=0.0)
    assert voice.durations != plain.durations
    speech.save(tmp_path / "a.wav")
    samples, rate = read_wav_and_rate(tmp_path / "a.wav")
    assert (rate, len(samples)) == (16_000, len(speech.samples))
    alignment = speech.look()
    assert alignment.probabilities.sum(axis=1).tolist() == list(speech.durations)
    with pytest.raises(SettingError):
        model.speak("a", speaker="nobody")
    with pytest.raises(SettingError):
        run(model, **batch(3), speaker_id=4)


def test_it_is_verified_and_planned(speaker: Path) -> None:
    model, opened = folders.open_model(speaker)
    assert {one.verdict for one in check_invariants(model.double(), opened)} <= {"holds", "skipped"}
    assert parity(speaker, model.float(), opened).verdict == "holds"
    assert plan(str(speaker), device="H200").subject.objective == "outputs"
