"""What is heard in recordings, against transformers on the same tiny folders."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers

import regard
from regard.data.audio import RATE, resample
from regard.decode.strategy import BeamSearch
from regard.models import CTCModel, SpeechToText
from regard.system.errors import DataError, ModelError, SettingError

transformers = pytest.importorskip("transformers")

SPECIAL = [
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|de|>",
    "<|fr|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|notimestamps|>",
]
END, BEGIN = 256, 257


def sounds() -> list[Any]:
    chance = np.random.default_rng(0)
    return [chance.normal(0, 0.1, n).astype(np.float32) for n in (9000, 30000, 79999)]


def wav(path: Path, samples: Any) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


def whisper(place: Path, **generation: Any) -> Any:
    """A tiny model that hears windows of two seconds, and says bytes."""
    torch.manual_seed(0)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer, backend.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    backend.add_special_tokens(SPECIAL)
    backend.add_tokens([AddedToken("<|0.00|>"), AddedToken("<|0.02|>")])
    config = transformers.WhisperConfig(
        vocab_size=backend.get_vocab_size(),
        num_mel_bins=80,
        d_model=24,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=30,
        decoder_ffn_dim=30,
        max_source_positions=100,
        max_target_positions=20,
        pad_token_id=END,
        bos_token_id=END,
        eos_token_id=END,
        decoder_start_token_id=BEGIN,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(place)
    backend.save(str(place / "tokenizer.json"))
    said = json.loads((place / "generation_config.json").read_text())
    (place / "generation_config.json").write_text(json.dumps({**said, **generation}))
    return model


def listener(place: Path) -> SpeechToText:
    held = regard.load(place)
    assert isinstance(held, SpeechToText)
    return held


def expected(model: Any, place: Path, samples: Any, prompt: list[int], **options: Any) -> str:
    """By their features and their general `generate`, a window at a time."""
    extract = transformers.WhisperFeatureExtractor(chunk_length=2)
    backend = tokenizers.Tokenizer.from_file(str(place / "tokenizer.json"))
    parts = []
    for i in range(0, len(samples), 32000):
        features = extract(
            samples[i : i + 32000], sampling_rate=16000, return_tensors="pt"
        ).input_features
        tokens = transformers.GenerationMixin.generate(
            model,
            input_features=features,
            decoder_input_ids=torch.tensor([prompt]),
            do_sample=False,
            max_length=20,
            **options,
        )[0, len(prompt) :].tolist()
        tokens = tokens[: tokens.index(END)] if END in tokens else tokens
        parts.append(backend.decode([i for i in tokens if i <= BEGIN + 6]).strip())
    return " ".join(part for part in parts if part)


LANGUAGES = {"lang_to_id": {"<|en|>": 258, "<|de|>": 259, "<|fr|>": 260}, "is_multilingual": True}


def test_silence_is_what_the_decoder_says_of_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = whisper(tmp_path)
    ours = listener(tmp_path)
    windows = ours.features(sounds()[2])
    assert ours.no_speech_probability(windows) == 0  # there is no such token
    monkeypatch.setattr("regard.models.speech_to_text._NO_SPEECH", ("<|fr|>",))
    start = torch.tensor([[BEGIN]])
    with torch.inference_mode():
        logits = model(input_features=windows[:1], decoder_input_ids=start).logits[0, -1]
    wanted = float(logits.softmax(dim=-1)[260])
    assert ours.no_speech_probability(windows) == pytest.approx(wanted, abs=1e-6)


def test_whisper(tmp_path: Path) -> None:
    model = whisper(tmp_path, **LANGUAGES)
    ours, given = listener(tmp_path), sounds()
    wanted = [expected(model, tmp_path, samples, [BEGIN, 259, 262, 263]) for samples in given]
    assert len({*wanted}) > 1
    assert ours.transcribe(given, language="de") == wanted
    assert ours.transcribe(given[2], "de") == wanted[2]
    english = expected(model, tmp_path, given[0], [BEGIN, 259, 261, 263])
    assert ours.transcribe(given[0], "de", "translate") == english
    beams = expected(
        model, tmp_path, given[0], [BEGIN, 259, 262, 263], num_beams=3, early_stopping=True
    )
    from regard.decode.strategy import PowerPenalty

    assert (
        ours.transcribe(
            given[0], "de", strategy=BeamSearch(3, PowerPenalty(1.0), 1, "refilled", "full")
        )
        == beams
    )
    rounded = (given[0] * 32767).astype("<i2").astype(np.float32) / 32768
    path = wav(tmp_path / "one.wav", given[0])
    assert ours.transcribe(path, "de") == ours.transcribe(rounded, "de")
    assert ours.languages == ["de", "en", "fr"]
    for settings, word in (
        ({"language": "xx"}, "use one of: de, en, fr"),
        ({"task": "sing"}, "transcribe or translate"),
    ):
        with pytest.raises(SettingError, match=word):
            ours.transcribe(given[0], **settings)  # type: ignore[call-overload]
    with pytest.raises(DataError, match=r"\[samples\]"):
        ours.transcribe(np.zeros((2, 5), np.float32))


def test_the_language_is_heard(tmp_path: Path) -> None:
    model = whisper(tmp_path, **LANGUAGES)
    ours, given = listener(tmp_path), sounds()
    extract = transformers.WhisperFeatureExtractor(chunk_length=2)
    for samples in given:
        features = extract(samples[:32000], sampling_rate=16000, return_tensors="pt").input_features
        with torch.inference_mode():
            logits = model(
                input_features=features, decoder_input_ids=torch.tensor([[BEGIN]])
            ).logits[0, -1]
        language = 258 + int(logits[258:261].argmax())
        assert ours.transcribe(samples) == expected(
            model, tmp_path, samples, [BEGIN, language, 262, 263]
        )


def test_tokens_that_are_not_to_be_said(tmp_path: Path) -> None:
    plain = whisper(tmp_path / "plain", **LANGUAGES)
    prompt, sound = [BEGIN, 258, 262, 263], sounds()[0]
    extract = transformers.WhisperFeatureExtractor(chunk_length=2)
    features = extract(sound, sampling_rate=16000, return_tensors="pt").input_features
    said = transformers.GenerationMixin.generate(
        plain,
        input_features=features,
        decoder_input_ids=torch.tensor([prompt]),
        do_sample=False,
        max_length=20,
    )[0, 4:].tolist()
    whole = listener(tmp_path / "plain").transcribe(sound, "en")
    for more in ({"suppress_tokens": [said[0]]}, {"begin_suppress_tokens": [said[0]]}):
        place = tmp_path / next(iter(more))
        model = whisper(place, **LANGUAGES, **more)
        found = listener(place).transcribe(sound, "en")
        assert found == expected(model, place, sound, prompt, **more)
        assert found != whole


def test_english_only(tmp_path: Path) -> None:
    model = whisper(tmp_path, is_multilingual=False)
    ours, sound = listener(tmp_path), sounds()[0]
    assert ours.transcribe(sound) == expected(model, tmp_path, sound, [BEGIN, 263])
    with pytest.raises(SettingError, match="English only"):
        ours.transcribe(sound, "de")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"hop_length": 80}))
    with pytest.raises(ModelError, match="hop_length"):
        listener(tmp_path).transcribe(sound)


@pytest.mark.parametrize("norm", ["layer", "group"])
@pytest.mark.parametrize("normalize", [True, False])
def test_wav2vec2(norm: str, normalize: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    vocabulary = {
        name: i for i, name in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAON"])
    }
    config = transformers.Wav2Vec2Config(
        vocab_size=len(vocabulary),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=30,
        conv_dim=[8, 8],
        conv_stride=[40, 8],
        conv_kernel=[60, 8],
        num_conv_pos_embeddings=6,
        num_conv_pos_embedding_groups=2,
        feat_extract_norm=norm,
        do_stable_layer_norm=norm == "layer",
    )
    model = transformers.Wav2Vec2ForCTC(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        model.lm_head.bias[1:4] -= 100  # letters only
    model.save_pretrained(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    extract = transformers.Wav2Vec2FeatureExtractor(do_normalize=normalize)
    extract.save_pretrained(tmp_path)
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json"))
    ours, given = regard.load(tmp_path), sounds()
    assert isinstance(ours, CTCModel)
    wanted = []
    for samples in given:
        with torch.inference_mode():
            logits = model(
                extract(samples, sampling_rate=16000, return_tensors="pt").input_values
            ).logits
        wanted.append(tokenizer.decode(logits.argmax(-1)[0]))
    assert len({*wanted}) == 3
    assert ours.transcribe(given) == wanted
    assert ours.transcribe(given[1]) == wanted[1]
    again = regard.load(ours.save(tmp_path / "ours"))
    assert again.transcribe(given) == wanted  # type: ignore[attr-defined]
    (tmp_path / "vocab.json").unlink()
    with pytest.raises(DataError, match=r"vocab\.json"):
        regard.load(tmp_path).transcribe(given[0])  # type: ignore[attr-defined]


def test_an_array_is_read_at_the_rate_that_is_said(tmp_path: Path) -> None:
    whisper(tmp_path, **LANGUAGES)
    ours, sound = listener(tmp_path), sounds()[0]
    half_rate = sound[::2]
    resampled = resample(half_rate, RATE // 2)
    wanted = ours.transcribe(resampled, "de", sampling_rate=RATE)
    assert ours.transcribe(half_rate, "de", sampling_rate=RATE // 2) == wanted
    assert ours.transcribe(half_rate, "de", sampling_rate=RATE) != wanted
    messages: list[str] = []
    ours.say = messages.append
    ours.transcribe(resampled, "de")
    assert any("sampling_rate" in message for message in messages)
    with pytest.raises(SettingError, match="sampling_rate"):
        ours.transcribe(half_rate, "de", sampling_rate=0)
