"""Every task: the scores that the run itself gave, or those of the model's own methods."""

from __future__ import annotations

import json
import math
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.data.corruption import MaskingRates
from regard.data.generated import babi_stories
from regard.data.labelled import TextPair
from regard.decode.strategy import Sampling
from regard.evaluation.corrupted_text import masked_rows, replaced_rows
from regard.evaluation.evaluation import evaluate
from regard.evaluation.scores import Score, scored_tags
from regard.evaluation.task import DecodingOptions, Settings, TextReading
from regard.evaluation.tasks import task_of
from regard.models import DualEncoderModel, ImageEncoder, LanguageModel, SpeechToText, TextEncoder
from regard.system.errors import DataError, ModelError

TINY: dict[str, Any] = {
    "preset": "tiny", "d_model": 16, "d_ff": 24, "heads": 2, "layers": 1, "threads": 1,
    "samples": 0, "context": 32, "batch_tokens": 128, "steps": 12, "warmup_steps": 3,
    "learning_rate": 1e-2, "schedule": "cosine",
    "log_every": 999, "validate_every": 999, "save_every": 999,
}  # fmt: skip
ANIMALS = ("dog", "cat", "owl", "fox", "bär")
SENTENCES = [
    f"The {first} {verb} the {second}.\n"
    for first in ANIMALS
    for verb in ("sees", "hears", "finds")
    for second in ANIMALS
]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "train.txt").write_text("".join(SENTENCES) * 3)
    # Not a multiple of the context, and with a blank line between documents.
    (folder / "valid.txt").write_text("".join(SENTENCES[::4]) + "\n" + "".join(SENTENCES[1::5]))
    return folder


# --- plain text ---


@pytest.mark.parametrize(
    ("objective", "changes"),
    [
        ("causal", {}),
        ("causal", {"tokenizer": "bpe", "vocabulary": 260}),
        # 30 streams: what the division into streams leaves over has some weight.
        ("causal", {"model": "lstm", "batch_tokens": 960, "steps": 60}),
        ("causal", {"memory": 8}),
        ("masked", {"mask_ratio": 0.3, "seed": 4}),
        ("masked", {"next_sentence": True}),
        ("span", {"span_length": 2.0, "seed": 5}),
        ("denoise", {}),
    ],
    ids=["causal", "bpe", "lstm", "transformer-xl", "masked", "next", "span", "denoise"],
)
def test_text_scores_as_in_the_run(
    objective: str, changes: dict[str, Any], texts: Path, tmp_path: Path
) -> None:
    settings = TINY | {"tokenizer": "characters"} | changes
    if "model" in changes:
        del settings["heads"], settings["d_ff"]
    result = regard.train(
        objective=objective, text=str(texts / "train.txt"), valid_text=str(texts / "valid.txt"),
        out=tmp_path / "run", metrics=["loss", "perplexity"], **settings,
    )  # fmt: skip
    own = result.scores["validation"]
    assert isinstance(own, Score)
    again = regard.evaluate(result.folder, texts / "valid.txt")
    assert again.task == objective
    assert again["loss"] == pytest.approx(own.loss, rel=2e-6)
    assert again["perplexity"] == pytest.approx(own.perplexity, rel=1e-5)
    interval = again.results["loss"].interval
    assert interval.low < again["loss"] < interval.high
    # The tokens that the run has stored, and the file read again.
    assert result.metrics["validation"]["loss"] == pytest.approx(again["loss"], rel=1e-9)
    tokens = sum(count for _, count in again.results["loss"].outputs.values)
    assert tokens == own.tokens
    if objective == "causal":
        characters = sum(again.results["loss"].outputs.references)
        text = (texts / "valid.txt").read_text()
        tokenizer = regard.load(result.folder, regard.LanguageModel).tokenizer
        # The first token is given.
        assert characters == len(text) - len(tokenizer.decode(tokenizer.encode(text)[:1]))
        bits = own.loss * tokens / characters / math.log(2)
        assert again["bits_per_character"] == pytest.approx(bits, rel=1e-5)
    if objective == "masked":
        line = (result.folder / "metrics.jsonl").read_text().splitlines()[-1]
        assert again["accuracy"] == pytest.approx(json.loads(line)["accuracy"])


@pytest.fixture(scope="module")
def electra(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ELECTRA: discriminator, and its generator in a folder inside."""
    settings = TINY | {"tokenizer": "characters", "steps": 120}
    return regard.train(
        objective="replaced", text=str(texts / "train.txt"), valid_text=str(texts / "valid.txt"),
        out=tmp_path_factory.mktemp("electra") / "run", **settings,
    ).folder  # fmt: skip


def test_replaced_tokens_are_those_that_differ(electra: Path, texts: Path) -> None:
    model = regard.load(electra)
    assert isinstance(model, TextEncoder)
    blocks = [(texts / "valid.txt").read_text()]
    settings = Settings(reading=TextReading(context=32, seed=3))
    originals = masked_rows(model, blocks, settings, MaskingRates(0.0, 0.0))
    said: list[str] = []
    model.say = said.append
    by_generator = replaced_rows(model, blocks, settings)
    model.folder = None
    at_random = replaced_rows(model, blocks, settings)
    assert "generator" in said[0]
    assert "random" in said[1]
    for rows in (by_generator, at_random):
        for row, original in zip(rows, originals, strict=True):
            differs = [a != b for a, b in zip(row.tokens, original.tokens, strict=True)]
            assert row.labels == differs
    # 15 % are replaced; a generator that has learnt something is right now and then.
    shares = [np.mean([t for row in rows for t in row.labels]) for rows in
              (by_generator, at_random)]  # fmt: skip
    assert 0.05 < shares[0] < shares[1] <= 0.16


def test_detection_is_scored_as_in_the_run(electra: Path, texts: Path) -> None:
    lines = [json.loads(line) for line in (electra / "metrics.jsonl").read_text().splitlines()]
    own = next(line for line in reversed(lines) if line.get("event") == "validation")
    again = regard.evaluate(electra, texts / "valid.txt", ["binary_f1", "accuracy", "loss"])
    assert again.task == "replaced"
    # The generator's samples are others than those of the run, of the same distribution.
    assert again["accuracy"] == pytest.approx(own["accuracy"], abs=4)
    assert again["loss"] == pytest.approx(own["loss"], abs=0.08)
    assert (
        again.scores
        == regard.evaluate(electra, texts / "valid.txt", ["binary_f1", "accuracy", "loss"]).scores
    )
    assert "positive class" in repr(again)


def test_windows_of_other_lengths(texts: Path, tmp_path: Path) -> None:
    """One window over all is the model's own log-likelihood; short ones know less."""
    result = regard.train(
        objective="causal", text=str(texts / "train.txt"), valid_text=str(texts / "valid.txt"),
        out=tmp_path / "run", tokenizer="characters", position="rope", **TINY,
    )  # fmt: skip
    model = regard.load(result.folder)
    assert isinstance(model, LanguageModel)
    text = (texts / "valid.txt").read_text()
    whole = evaluate(model, [text], settings=Settings(reading=TextReading(context=10_000)))
    nll, count = model.nll(text, batch_tokens=10_000)
    assert whole["loss"] == pytest.approx(nll / count, rel=1e-5)
    assert len(whole.results["loss"].outputs.values) == 1
    short = evaluate(model, [text], settings=Settings(reading=TextReading(context=3)))
    assert len(short.results["loss"].outputs.values) == math.ceil((len(text) - 1) / 3)
    with pytest.raises(DataError, match="one token"):
        evaluate(model, ["a"])
    with pytest.raises(ModelError, match="does not support the task 'translate'"):
        evaluate(model, [text], task="translate")


def test_a_language_model_classifies_by_its_prompt(texts: Path, tmp_path: Path) -> None:
    result = regard.train(
        objective="causal", text=str(texts / "train.txt"), valid_text=str(texts / "valid.txt"),
        out=tmp_path / "run", tokenizer="bpe", vocabulary=300, **TINY | {"context": 64},
    )  # fmt: skip
    model = regard.load(result.folder)
    assert isinstance(model, LanguageModel)
    data = tmp_path / "data.tsv"
    data.write_text("a dog\tyes\nan owl\tno\nthe fox\tno\n")
    scores = evaluate(model, data, task="classify")
    predicted = [next(iter(model.classify(text, ["no", "yes"]))) for text in ("a dog", "an owl")]
    assert list(scores.predictions[:2]) == predicted


# --- labelled texts ---


def test_tags_score_as_in_the_run(tmp_path: Path) -> None:
    lines = []
    for sentence in SENTENCES:
        words = sentence.strip(".\n").split()
        tags = ["B-X" if word in ANIMALS[:3] else "O" for word in words]
        tags[-1] = "I-X" if words[-1] == "fox" else tags[-1]
        lines += [f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)] + ["\n"]
    (tmp_path / "data.conll").write_text("".join(lines))
    result = regard.train(
        objective="tag", text=str(tmp_path / "data.conll"), test_text=str(tmp_path / "data.conll"),
        out=tmp_path / "run", metrics=["entity_f1"], **TINY,
    )  # fmt: skip
    own = result.scores["test"]
    assert isinstance(own, Score)
    again = regard.evaluate(result.folder, tmp_path / "data.conll")
    assert again.scores == {"entity_f1": own.f1, "tag_accuracy": own.accuracy}
    assert result.metrics["test"] == {"entity_f1": own.f1}
    outputs = again.results["entity_f1"].outputs
    assert scored_tags(outputs.values, outputs.references) == own
    # What does not fit the positions is counted, and has no prediction.
    model = regard.load(result.folder)
    short = evaluate(model, tmp_path / "data.conll", settings=Settings(max_length=4))
    assert all(len(tags) == 5 for tags in short.predictions)
    assert all(tags[3:] == ["O", "O"] for tags in short.predictions)


def test_parts_of_speech_have_no_entities(tmp_path: Path) -> None:
    lines = [f"{a}\tnoun\nruns\tverb\n\n" for a in ANIMALS]
    (tmp_path / "data.conll").write_text("".join(lines))
    result = regard.train(
        objective="tag", text=str(tmp_path / "data.conll"), test_text=str(tmp_path / "data.conll"),
        out=tmp_path / "run", **TINY,
    )  # fmt: skip
    own = result.scores["test"]
    assert isinstance(own, Score)
    assert regard.evaluate(result.folder, tmp_path / "data.conll").scores == {
        "tag_accuracy": own.accuracy
    }


def test_answers_score_as_in_the_run(tmp_path: Path) -> None:
    records = []
    for sentence in SENTENCES[::2]:
        animal = sentence.split()[1]
        record = {"question": "Who?", "context": sentence.strip(), "text": animal}
        records.append(record | {"answer_start": sentence.index(animal)})
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    result = regard.train(
        objective="answer", text=str(tmp_path / "data.jsonl"),
        test_text=str(tmp_path / "data.jsonl"), out=tmp_path / "run", **TINY, vocabulary=300,
    )  # fmt: skip
    own = result.scores["test"]
    assert isinstance(own, Score)
    again = regard.evaluate(result.folder, tmp_path / "data.jsonl")
    assert again.scores == {"answer_exact_match": own.exact_match, "answer_f1": own.f1}


def test_numbers_score_as_in_the_run(tmp_path: Path) -> None:
    lines = [f"{line.strip()}\t{line.count('o')}.5\n" for line in SENTENCES]
    (tmp_path / "data.tsv").write_text("".join(lines))
    result = regard.train(
        objective="regress", text=str(tmp_path / "data.tsv"), test_text=str(tmp_path / "data.tsv"),
        out=tmp_path / "run", metrics=["mae"], **TINY,
    )  # fmt: skip
    own = vars(result.scores["test"])
    again = regard.evaluate(result.folder, tmp_path / "data.tsv")
    assert again.scores == {
        "mse": pytest.approx(own["mse"], rel=1e-5),
        "mae": pytest.approx(own["mae"], rel=1e-5),
        "pearson": pytest.approx(own["pearson"], rel=1e-4),
        "spearman": pytest.approx(own["spearman"], rel=1e-4),
    }
    assert result.metrics["test"]["mae"] == again["mae"]
    (tmp_path / "words.tsv").write_text("a dog\tmany\n")
    with pytest.raises(DataError):
        regard.evaluate(result.folder, tmp_path / "words.tsv")


def test_pairs_score_as_in_the_run(tmp_path: Path) -> None:
    pairs = [(f"the {a} {v}", f"{v} {a}") for a in ANIMALS for v in ("sees", "hears", "runs")]
    (tmp_path / "data.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    result = regard.train(
        objective="contrastive", text=str(tmp_path / "data.tsv"),
        test_text=str(tmp_path / "data.tsv"), out=tmp_path / "run", vocabulary=300,
        metrics=["top_k:3"], **TINY,
    )  # fmt: skip
    own = result.scores["test"]
    assert isinstance(own, Score)
    again = regard.evaluate(result.folder, tmp_path / "data.tsv")
    assert again["accuracy"] == pytest.approx(own.accuracy, rel=1e-6)
    assert again["accuracy"] <= result.metrics["test"]["top_3"] <= again["top_5"]


def test_stories_score_as_in_the_run(tmp_path: Path) -> None:
    stories = [next_one for next_one, _ in zip(babi_stories.stories("test"), range(60))]  # noqa: B905
    (tmp_path / "data.tsv").write_text("".join(f"{text}\t{word}\n" for text, word in stories))
    result = regard.train(
        model="memory", objective="stories", text=str(tmp_path / "data.tsv"),
        test_text=str(tmp_path / "data.tsv"), out=tmp_path / "run", metrics=["accuracy"],
        **{key: value for key, value in TINY.items() if key not in ("heads", "d_ff", "context")},
    )  # fmt: skip
    own = result.scores["test"]
    assert isinstance(own, Score)
    assert regard.evaluate(result.folder, tmp_path / "data.tsv").scores == {
        "accuracy": own.accuracy
    }
    assert result.metrics["test"] == {"accuracy": own.accuracy}


# --- images and sound ---


VISION = {
    "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 30,
    "image_size": 12, "patch_size": 4,
}  # fmt: skip


@torch.no_grad()
def save_randomized(model: Any, folder: Path) -> None:
    """Larger random weights, so that predictions differ between inputs."""
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder)


def write_images(folder: Path, classes: tuple[str, ...]) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for i in range(4):
            pixels = rng.integers(0, 256, (20, 31, 3), dtype=np.uint8)
            image.fromarray(pixels).save(folder / name / f"{i}.png")


def test_images_in_folders_of_classes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    names = dict(enumerate(("ant", "bee", "cow", "dog", "elk", "fox")))
    ids = {name: i for i, name in names.items()}
    config = transformers.ViTConfig(**VISION, id2label=names, label2id=ids)
    save_randomized(transformers.ViTForImageClassification(config), tmp_path / "vit")
    size = {"height": 12, "width": 12}
    settings = {"size": size, "do_resize": True, "image_processor_type": "ViTImageProcessor"}
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(settings))
    write_images(tmp_path / "images", ("bee", "cow", "fox"))
    ours = regard.load(tmp_path / "vit")
    assert isinstance(ours, ImageEncoder)
    assert task_of(ours) == "images"
    scores = evaluate(ours, tmp_path / "images")
    files = sorted((tmp_path / "images").glob("*/*"))
    rankings = [list(ours.classify(file)) for file in files]
    hits = [file.parent.name == ranking[0] for file, ranking in zip(files, rankings, strict=True)]
    top = [file.parent.name in ranking[:5] for file, ranking in zip(files, rankings, strict=True)]
    assert scores.scores == {
        "accuracy": pytest.approx(100 * np.mean(hits)),
        "top_5": pytest.approx(100 * np.mean(top)),
    }
    write_images(tmp_path / "images", ("yak",))
    with pytest.raises(DataError, match="'yak'"):
        evaluate(ours, tmp_path / "images")
    with pytest.raises(DataError, match="subfolder"):
        evaluate(ours, tmp_path / "vit")


def test_images_by_captions_of_the_classes(tmp_path: Path) -> None:
    """Zero-shot classification by CLIP, and retrieval by its text tower."""
    transformers = pytest.importorskip("transformers")
    letters = [*"abcdefghijklmnopqrstuvwxyz."]
    special = ["<|startoftext|>", "<|endoftext|>"]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *special]
    end = len(tokens) - 1
    text = {
        "vocab_size": len(tokens), "hidden_size": 24, "intermediate_size": 30,
        "num_hidden_layers": 1, "num_attention_heads": 3, "max_position_embeddings": 40,
        "bos_token_id": end - 1, "eos_token_id": end, "pad_token_id": end,
    }  # fmt: skip
    config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=9)
    save_randomized(transformers.CLIPModel(config), tmp_path / "clip")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    (tmp_path / "clip" / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "clip" / "merges.txt").write_text("#version: 0.2\n")
    size = {"height": 12, "width": 12}
    settings = {"size": size, "crop_size": size, "image_processor_type": "CLIPImageProcessor"}
    (tmp_path / "clip" / "preprocessor_config.json").write_text(json.dumps(settings))
    write_images(tmp_path / "images", ("bee", "sea_cow"))
    ours = regard.load(tmp_path / "clip")
    assert isinstance(ours, DualEncoderModel)
    scores = evaluate(ours, tmp_path / "images", ["accuracy"])
    captions = ["a photo of a bee.", "a photo of a sea cow."]
    files = sorted((tmp_path / "images").glob("*/*"))
    best = [next(iter(ours.classify(file, captions))) for file in files]
    hits = [("bee" in caption) == (i < 4) for i, caption in enumerate(best)]
    assert scores["accuracy"] == pytest.approx(100 * np.mean(hits))
    table = tmp_path / "captions.tsv"
    of_classes = dict(zip(("bee", "sea_cow"), captions, strict=True))
    table.write_text(
        "".join(f"{file}\t{of_classes[file.parent.name]}\n" for file in files), encoding="utf-8"
    )
    # Among two captions the nearest is that of the class.
    assert evaluate(ours, table, ["accuracy"], "image_text")["accuracy"] == scores["accuracy"]
    pairs = [TextPair("a bee", "a bee"), TextPair("sea cow", "sea cow")]
    assert evaluate(ours, pairs, ["accuracy"], "contrastive")["accuracy"] == 100.0


def write_recordings(folder: Path, *names: str) -> None:
    rng = np.random.default_rng(0)
    for name in names:
        with wave.open(str(folder / name), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16000)
            file.writeframes((rng.normal(0, 0.1, 9000) * 32767).astype("<i2").tobytes())


def test_recordings_with_transcripts(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("jiwer")
    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAON"]
    config = transformers.Wav2Vec2Config(
        vocab_size=len(letters), hidden_size=24, num_hidden_layers=1, num_attention_heads=3,
        intermediate_size=30, conv_dim=[8, 8], conv_stride=[40, 8], conv_kernel=[60, 8],
        num_conv_pos_embeddings=6, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    save_randomized(transformers.Wav2Vec2ForCTC(config), tmp_path / "ctc")
    (tmp_path / "ctc" / "vocab.json").write_text(json.dumps({n: i for i, n in enumerate(letters)}))
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(tmp_path / "ctc")
    write_recordings(tmp_path, "one.wav", "two.wav")
    ours: Any = regard.load(tmp_path / "ctc")
    spoken = ours.transcribe(tmp_path / "one.wav")
    table = tmp_path / "table.tsv"
    table.write_text(f"one.wav\t{spoken}\ntwo.wav\tNOT THIS\n")
    scores = evaluate(ours, table)
    assert list(scores.scores) == ["wer", "cer"]
    words = len(spoken.split()) + 2
    assert scores["wer"] > 0
    assert evaluate(ours, table, ["exact_match"])["exact_match"] == 50.0
    edits, counted = (
        scores.results["wer"]
        .metric.statistics(scores.predictions, scores.results["wer"].outputs.references)
        .sum(axis=0)
    )
    assert counted == words
    assert scores["wer"] == pytest.approx(100 * edits / words)
    table.write_text("three.wav\tNO\n")
    with pytest.raises(DataError, match=r"three\.wav"):
        evaluate(ours, table)


def test_speech_is_decoded_by_the_strategy(tmp_path: Path) -> None:
    """Whisper transcribes greedily, or as the settings say."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bpe = tokenizers.models.BPE({letter: i for i, letter in enumerate(alphabet)}, [])
    backend = tokenizers.Tokenizer(bpe)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    special = ["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"]
    backend.add_special_tokens(special)
    end = len(alphabet)
    config = transformers.WhisperConfig(
        vocab_size=backend.get_vocab_size(), num_mel_bins=80, d_model=24, encoder_layers=1,
        decoder_layers=1, encoder_attention_heads=3, decoder_attention_heads=3,
        encoder_ffn_dim=30, decoder_ffn_dim=30, max_source_positions=100,
        max_target_positions=12, pad_token_id=end, bos_token_id=end, eos_token_id=end,
        decoder_start_token_id=end + 1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    model.generation_config.is_multilingual = False
    save_randomized(model, tmp_path / "whisper")
    backend.save(str(tmp_path / "whisper" / "tokenizer.json"))
    write_recordings(tmp_path, "one.wav", "two.wav")
    ours = regard.load(tmp_path / "whisper")
    assert isinstance(ours, SpeechToText)
    table = tmp_path / "table.tsv"
    table.write_text("one.wav\tyes\ntwo.wav\tno\n")
    files: list[Any] = [tmp_path / "one.wav", tmp_path / "two.wav"]
    assert evaluate(ours, table, ["exact_match"]).predictions == ours.transcribe(files)
    sampling = Sampling(temperature=5.0, seed=3)
    settings = Settings(DecodingOptions(sampling))
    sampled = evaluate(ours, table, ["exact_match"], settings=settings).predictions
    assert sampled == ours.transcribe(files, strategy=sampling)
    assert sampled != ours.transcribe(files)
