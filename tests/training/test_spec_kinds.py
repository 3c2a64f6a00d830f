"""Every objective × every kind of spec, and × every kind of model: trained, or refused in words.

A refusal comes before data is prepared, and leaves no folder.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest

import regard
from command_line import Command
from regard import spec
from regard.data.text.tokenizer_training import train_tokenizer
from regard.lab.plan.subject import Request, resolve
from regard.system.errors import DataError, ModelError, RegardError, SettingError
from regard.training import assembly
from regard.training.recipe.objectives import DATA_KEYS, OBJECTIVES, TASKS
from regard.training.setup import objective_class

WIDTH = 16
TOKENS = spec.Tokens(64)
ATTENTION = spec.Attention(2, 8, 8)
BLOCK = spec.Block(ATTENTION, spec.FeedForward(8))
CROSS_BLOCK = spec.Block(ATTENTION, spec.FeedForward(8), ATTENTION)
STACK = spec.Stack.of(1, BLOCK)
DECODER = spec.Stack.of(1, CROSS_BLOCK, spec.CausalMask())
CELLS = spec.Recurrent("gru")
POOL = spec.Pool("mean", None)
CLASSES = spec.ClassifierHead(2)
TAGS = spec.ClassifierHead(2, "tag")
PATCHES = spec.Patches(16, 4)
CLIPS = spec.Tubelets(16, 4, extras=0, position="sinusoidal", frames=4)
SOUND = spec.Waveform((spec.Convolution(8, 10, 5),), spec.ConvPosition(4, 4))
SPECTROGRAM = spec.Spectrogram(80, spec.FixedPosition(1500))
WINDOWS = spec.SeriesPatches(16, 2, (spec.TimeScale(4, 2),))
NODES = spec.NodeFeatures(3)
SEEING = dataclasses.replace(BLOCK, position=spec.AddedPosition())


def encoder(front_end: spec.FrontEnd, *heads: spec.Head) -> spec.Encoder:
    return spec.Encoder(WIDTH, front_end, STACK, heads)


SPECS: dict[str, spec.Model] = {
    "text-to-text": spec.EncoderDecoder(WIDTH, TOKENS, TOKENS, STACK, DECODER),
    "speech-to-text": spec.EncoderDecoder(
        WIDTH, SPECTROGRAM, TOKENS, STACK, DECODER, share="target"
    ),
    "image and text": encoder(spec.TextAndImage(TOKENS, PATCHES), POOL, CLASSES),
    "captioner": spec.EncoderDecoder(WIDTH, PATCHES, TOKENS, STACK, DECODER, share="target"),
    "detector": spec.EncoderDecoder(
        WIDTH,
        spec.FeatureMap(PATCHES, WIDTH),
        spec.ObjectQueries(3),
        spec.Stack.of(1, SEEING),
        spec.Stack.of(1, dataclasses.replace(SEEING, cross=SEEING.attention)),
        (spec.DetectionHead(2),),
        "none",
    ),
    "recurrent text-to-text": spec.SequenceToSequence(WIDTH, TOKENS, TOKENS, CELLS, CELLS),
    "series-to-series": spec.SeriesEncoderDecoder(
        WIDTH, spec.LaggedValues(8, 2, (1, 2)), STACK, DECODER, 4
    ),
    "headless series-to-series": spec.SeriesEncoderDecoder(
        WIDTH, spec.LaggedValues(8, 2, (1, 2)), STACK, DECODER, 4, None
    ),
    "text": encoder(TOKENS),
    "masked text": encoder(TOKENS, spec.LMHead()),
    "text classes": encoder(TOKENS, POOL, CLASSES),
    "text tags": encoder(TOKENS, TAGS),
    "text answers": encoder(TOKENS, spec.ClassifierHead(2, "answer")),
    "images": encoder(PATCHES, POOL),
    "image classes": encoder(PATCHES, POOL, CLASSES),
    "convolutional image classes": spec.ConvolutionalEncoder(
        WIDTH, spec.ConvStem(16), spec.ResidualStages((8, 8), (1, 1))
    ).with_head(spec.ClassifierHead(3)),
    "clips": encoder(CLIPS, POOL),
    "clip classes": encoder(CLIPS, POOL, CLASSES),
    "masked clips": encoder(CLIPS, spec.TubeletDecoder(WIDTH, STACK)),
    "masked images": encoder(PATCHES, spec.PixelDecoder(WIDTH, STACK)),
    "image segments": encoder(PATCHES, spec.MaskDecoder(3, WIDTH, STACK)),
    "spectrograms": encoder(SPECTROGRAM),
    "spectrogram classes": encoder(SPECTROGRAM, POOL, CLASSES),
    "waveforms": encoder(SOUND),
    "waveform classes": encoder(SOUND, POOL, CLASSES),
    "waveform characters": encoder(SOUND, spec.ClassifierHead(5, "transcribe")),
    "contrasted waveforms": encoder(SOUND, spec.ContrastiveHead()),
    "series": encoder(WINDOWS),
    "forecasts": encoder(WINDOWS, spec.ForecastHead(4)),
    "masked series": encoder(WINDOWS, spec.PatchHead()),
    "series classes": encoder(WINDOWS, spec.ChannelHead(3)),
    "nodes": encoder(NODES),
    "node classes": encoder(NODES, TAGS),
    "graph classes": encoder(NODES, POOL, CLASSES),
    "trajectories": spec.Encoder(
        WIDTH,
        spec.Trajectories(3, 2),
        spec.Stack.of(1, BLOCK, spec.CausalMask()),
        (spec.TrajectoryHead(),),
    ),
    "recurrent text": spec.RecurrentEncoder(WIDTH, TOKENS, CELLS),
    "recurrent text classes": spec.RecurrentEncoder(WIDTH, TOKENS, CELLS, (POOL, CLASSES)),
    "language model": spec.Decoder(WIDTH, TOKENS, spec.Stack.of(1, BLOCK, spec.CausalMask())),
    "recurrent language model": spec.RecurrentDecoder(WIDTH, TOKENS, CELLS),
    "dual encoder": spec.DualEncoder(
        encoder(TOKENS, spec.Pool(width=8)), encoder(PATCHES, spec.Pool(width=8))
    ),
    "memory network": spec.MemoryNetwork(WIDTH, 64),
    "linear forecaster": spec.LinearForecaster(16, 2, 4, moving_average=3),
    "text-to-speech": spec.TextToSpeech(
        WIDTH,
        TOKENS,
        spec.Stack.of(1, BLOCK),
        spec.VarianceAdaptor(),
        spec.Stack.of(1, BLOCK),
    ),
    "drawn text-to-speech": spec.VariationalTextToSpeech(
        WIDTH,
        TOKENS,
        spec.Stack.of(1, BLOCK),
        spec.StochasticDurations(),
        spec.CouplingFlow(8),
        (spec.HifiGan(8, 8, (2,), (4,), (3,), ((1,),), of_latents=True),),
    ),
    "vocoder": spec.Vocoder((spec.HifiGan(8, 8, (2,), (4,), (3,), ((1,),)),)),
}
TRANSLATORS = {"text-to-text", "recurrent text-to-text"}
ENCODERS = {"text", "masked text", "text classes", "text tags", "text answers"}
# What `describe` gives a head.
READERS = {
    *ENCODERS, "recurrent text", "recurrent text classes", "language model",
    "recurrent language model", *TRANSLATORS,
}  # fmt: skip
WAVEFORMS = {"waveforms", "waveform classes", "waveform characters", "contrasted waveforms"}
IMAGES = {"images", "image classes", "masked images", "image segments"}
# The specs that an objective trains as they are.
AS_GIVEN: dict[str, set[str]] = {
    "translate": TRANSLATORS,
    "causal": {"language model", "recurrent language model"},
    "masked": {"masked text"},
    "replaced": set(),
    "span": TRANSLATORS,
    "denoise": TRANSLATORS,
    "classify": {"text classes", "recurrent text classes"},
    "tag": {"text tags"},
    "answer": {"text answers"},
    "regress": {"text classes", "recurrent text classes"},
    "contrastive": READERS,
    "ctc": {"waveform characters"},
    "transcribe": {"speech-to-text"},
    "sounds": {"spectrogram classes", "waveform classes"},
    "speak": {"text-to-speech"},
    "speech_contrastive": {"contrasted waveforms"},
    "stories": {"memory network"},
    "images": {"image classes", "convolutional image classes"},
    "masked_images": {"masked images"},
    "clips": {"clip classes"},
    "masked_clips": {"masked clips"},
    "vqa": {"image and text"},
    "draw": {"language model"},
    "caption": {"captioner"},
    "detect": {"detector"},
    "segment": {"image segments"},
    "image_text": {"dual encoder"},
    "forecast": {"forecasts", "linear forecaster", "series-to-series"},
    "act": {"trajectories"},
    "nodes": {"node classes"},
    "graphs": {"graph classes"},
}
# Those of files, where an objective changes them.
OF_FILES: dict[str, set[str]] = AS_GIVEN | {
    "classify": READERS,
    "tag": READERS,
    "answer": READERS,
    "regress": READERS,
    "contrastive": READERS,
    "ctc": WAVEFORMS,
    "sounds": {*WAVEFORMS, "spectrograms", "spectrogram classes", "speech-to-text"},
    "speech_contrastive": WAVEFORMS,
    "images": IMAGES | {"convolutional image classes"},
    "masked_images": IMAGES,
    "segment": IMAGES,
    "clips": {"clips", "clip classes", "masked clips"},
    "masked_clips": {"clips", "clip classes", "masked clips"},
}


class PreparationError(RegardError):
    """All checks have passed, and the data would be prepared."""


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """A file that has nothing in it: whoever reads it fails in another way."""
    (tmp_path / "data").mkdir()
    return {"device": "cpu", "threads": 1, "out": tmp_path / "run"}


def data_keys(objective: str, file: Path) -> dict[str, str]:
    kind = OBJECTIVES[objective].data
    if kind == "pairs":
        return {"source": str(file), "target": str(file)}
    return {DATA_KEYS[kind]: str(file)}


@pytest.fixture
def prepares(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(*_: Any) -> NoReturn:
        raise PreparationError("the data would be prepared now", "look at the next test")

    for objective in OBJECTIVES:
        monkeypatch.setattr(objective_class(objective).source_class, "prepare", prepare)


def test_every_objective_and_kind_is_in_the_table() -> None:
    assert AS_GIVEN.keys() == OBJECTIVES.keys()
    assert {type(model) for model in SPECS.values()} == set(spec.Model.__args__)


@pytest.mark.usefixtures("prepares")
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("origin", ["file", "python"])
def test_a_spec_is_trained_or_refused(
    objective: str, origin: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    accepted = OF_FILES if origin == "file" else AS_GIVEN
    settings |= data_keys(objective, tmp_path / "data")
    for name, model in SPECS.items():
        given: dict[str, Any] = {"model": model}
        if origin == "file":
            (tmp_path / "spec.json").write_text(json.dumps(spec.to_dict(model)))
            given = {"recipe": {"spec": str(tmp_path / "spec.json")}}
        if name in accepted[objective]:
            with pytest.raises(PreparationError):
                regard.train(**given, objective=objective, **settings)
            continue
        with pytest.raises(SettingError, match=r"not a model for|no head for|no one spec") as error:
            regard.train(**given, objective=objective, **settings)
        assert error.value.repair, name
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("objective", ["translate", "causal", "images"])
def test_the_command_refuses_alike(objective: str, tmp_path: Path, command: Command) -> None:
    (tmp_path / "data").touch()
    (tmp_path / "spec.json").write_text(json.dumps(spec.to_dict(SPECS["memory network"])))
    flags = [f"--{key}={name}" for key, name in data_keys(objective, tmp_path / "data").items()]
    outcome = command(
        "train", "--objective", objective, "--spec", tmp_path / "spec.json", *flags,
        "--out", tmp_path / "run",
    )  # fmt: skip
    outcome.refused("spec.MemoryNetwork that reads stories is not a model", "give a spec.")
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------ files that hold no spec

GOOD = json.dumps(spec.to_dict(SPECS["language model"]))
BAD_FILES: dict[str, bytes] = {
    "a part": b'{"kind": "Rope"}',
    "a list": b"[]",
    "a text": b'"Decoder"',
    "nothing": b"",
    "an empty object": b"{}",
    "bytes": bytes(range(256)),
    "half a file": GOOD[:60].encode(),
    "no number": GOOD.replace('"d_model": 16', '"d_model": NaN').encode(),
    "no size": GOOD.replace('"d_model": 16', '"d_model": -16').encode(),
    "a long number": GOOD.replace('"d_model": 16', '"d_model": ' + "9" * 5000).encode(),
    "an unknown kind": GOOD.replace("FeedForward", "FeedForwards").encode(),
    "a kind in another's place": GOOD.replace("FeedForward", "GlobalMask").encode(),
    "many brackets": b"[" * 100_000,
}


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("verb", ["show", "plan", "train"])
def test_a_file_without_a_spec(verb: str, name: str, tmp_path: Path, command: Command) -> None:
    file = tmp_path / "spec.json"
    file.write_bytes(BAD_FILES[name])
    (tmp_path / "data").touch()
    flags = ["--objective", "causal", "--text", tmp_path / "data", "--out", tmp_path / "run"]
    given = ["--spec", file, *flags] if verb == "train" else [file]
    command(verb, *given).refused()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_is_planned(name: str, tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(spec.to_dict(SPECS[name])))
    subject = resolve(str(file), Request())
    assert subject.workload.inputs


# ------------------------------------------------------------------ what the data decides


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ring of twelve nodes of two classes, with three features each."""
    folder = tmp_path_factory.mktemp("graph")
    splits = ("train", "train", "valid", "test")
    rows = [f"{i}\t{'ab'[i % 2]}\t{splits[i % 4]}\t{i % 3}\n" for i in range(12)]
    (folder / "nodes.tsv").write_text("".join(rows))
    (folder / "edges.tsv").write_text("".join(f"{i}\t{(i + 1) % 12}\n" for i in range(12)))
    return folder


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("objective", ["classify", "tag", "nodes"])
def test_a_head_has_the_classes_of_the_data(
    objective: str, count: int, graph: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    text = tmp_path / "text"
    lines = {"classify": "a b\tgood\nb a\tbad\n", "tag": "a good\nb bad\n\n"}
    text.write_text(lines.get(objective, "") * 8)
    settings |= data_keys(objective, graph if objective == "nodes" else text)
    head = spec.ClassifierHead(count, "classify" if objective == "classify" else "tag")
    model = encoder(NODES if objective == "nodes" else spec.Tokens(5), POOL, head)
    with pytest.raises(SettingError, match=rf"has {count} classes, but the data 2(.|\n)*of 2"):
        regard.train(model=model, objective=objective, **settings)


def test_a_next_sentence_needs_its_head(settings: dict[str, Any], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("The dog sees. The cat hears.\n" * 20)
    settings |= {"text": str(text), "context": 16, "next_sentence": True}
    (tmp_path / "spec.json").write_text(json.dumps(spec.to_dict(SPECS["masked text"])))
    with pytest.raises(SettingError, match=r"no head for the next sentence\n.*leave --next"):
        regard.train({"spec": str(tmp_path / "spec.json")}, objective="masked", **settings)


@pytest.mark.parametrize("position", [None, spec.Sinusoidal()])
@pytest.mark.parametrize("objective", ["transcribe", "sounds"])
def test_a_spectrogram_has_a_window(
    objective: str, position: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    front_end = spec.Spectrogram(80, position)
    models: dict[str, spec.Model] = {
        "transcribe": spec.EncoderDecoder(WIDTH, front_end, TOKENS, STACK, DECODER, share="none"),
        "sounds": encoder(front_end, POOL, CLASSES),
    }
    settings |= data_keys(objective, tmp_path / "data")
    with pytest.raises(SettingError, match=r"how long a window(.|\n)*FixedPosition"):
        regard.train(model=models[objective], objective=objective, **settings)


# ------------------------------------------------------------------ fine-tuning


# The kind of a model → the tasks that take it.
TEXT_TASKS = {"classify", "tag", "answer", "regress", "contrastive"}
SUITABLE: dict[str, set[str]] = {
    "text-to-text": {"translate", "summarize", "pronounce", "span", "denoise", *TEXT_TASKS},
    "recurrent text-to-text": {
        "translate",
        "summarize",
        "pronounce",
        "span",
        "denoise",
        *TEXT_TASKS,
    },
    "speech-to-text": {"transcribe", "sounds"},
    "masked text": {*TEXT_TASKS, "masked"},
    "text classes": TEXT_TASKS,
    "recurrent text classes": TEXT_TASKS,
    "language model": {*TEXT_TASKS, "causal", "lm"},
    "recurrent language model": {*TEXT_TASKS, "causal", "lm"},
    "images": {"images", "masked_images", "segment"},
    "image classes": {"images", "masked_images", "segment"},
    "masked images": {"images", "masked_images", "segment"},
    "image segments": {"images", "masked_images", "segment"},
    "clips": {"clips", "masked_clips"},
    "clip classes": {"clips", "masked_clips"},
    "masked clips": {"clips", "masked_clips"},
    "spectrogram classes": {"sounds"},
    "waveforms": {"ctc", "sounds"},
    "waveform classes": {"ctc", "sounds"},
    "contrasted waveforms": {"ctc", "sounds", "speech_contrastive"},
    "nodes": set(),
    "node classes": {"nodes"},
    "graph classes": {"graphs"},
    "dual encoder": {"image_text"},
    "memory network": {"stories"},
    "trajectories": {"act"},
    # Series are fine-tuned by `regard train`.
    "forecasts": set(),
    "series": set(),
    "linear forecaster": set(),
    "series-to-series": set(),
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, regard.Model]:
    """A model of each kind, as `regard.load` opens it."""
    tokenizer = train_tokenizer(["the dog sees"], "characters", 64)
    models = {}
    for name in SUITABLE:
        folder = tmp_path_factory.mktemp("base")
        core = regard.build(SPECS[name])
        regard.Model(core, SPECS[name]).save(folder)
        (folder / "tokenizer.json").write_text(tokenizer.to_json())
        config = json.loads((folder / "config.json").read_text())
        special = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
        special["decoder_start_token_id"] = 2
        (folder / "config.json").write_text(json.dumps(special | config))
        models[name] = regard.load(folder, device="cpu")
    return models


@pytest.mark.usefixtures("prepares")
@pytest.mark.parametrize("task", [*OBJECTIVES, *TASKS])
def test_a_model_is_fine_tuned_or_refused(
    task: str, bases: dict[str, regard.Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    settings: dict[str, Any] = {
        "out": tmp_path / "run", "threads": 1, "device": "cpu", "context": 16,
    }  # fmt: skip
    for name, base in bases.items():
        monkeypatch.setattr(assembly, "load", lambda *_, base=base, **__: base)
        with pytest.raises(RegardError) as error:
            regard.finetune(base, task, tmp_path / "data", **settings)
        assert (error.type is PreparationError) == (task in SUITABLE[name]), name
        assert error.value.repair
        assert not (tmp_path / "run").exists()


def test_a_graph_model_learns_on(graph: Path, settings: dict[str, Any], tmp_path: Path) -> None:
    short = {"steps": 1, "warmup_steps": 1, "validate_every": 1, "save_every": 1}
    base = tmp_path / "base"
    model = SPECS["node classes"]
    regard.train(
        model=model, objective="nodes", graph=str(graph), **settings | short | {"out": base}
    )
    tuned = regard.finetune(base, "nodes", graph, epochs=1, **settings)
    assert set(tuned.scores) == {"valid", "test"}
    other = tmp_path / "other"
    shutil.copytree(graph, other)
    (other / "nodes.tsv").write_text((graph / "nodes.tsv").read_text().replace("\ta\t", "\tx\t"))
    again = settings | {"out": tmp_path / "again"}
    with pytest.raises(DataError, match="no class 'x'; it knows a, b"):
        regard.finetune(base, "nodes", other, **again)
    with pytest.raises(SettingError, match="give one --data"):
        regard.finetune(base, "nodes", [graph, graph], **again)
    with pytest.raises(ModelError, match="classifies nodes, and the task is of graphs"):
        regard.finetune(base, "graphs", graph, **again)
