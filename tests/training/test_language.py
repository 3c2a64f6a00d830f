"""Runs on plain text, for every objective: resumed = uninterrupted, losses fall, folders that transformers opens."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.data.padding import IGNORED
from regard.data.sentence_packing import pack_sentences
from regard.families import folder as folders
from regard.models import LanguageModel
from regard.system.errors import DataError, SettingError, TrainingInterrupted
from regard.training.assembly import assemble
from regard.training.data.plain_text import PlainText
from regard.training.objectives.causal_lm import CausalLM
from regard.training.recipe import loading
from regard.training.run import resume, run
from regard.training.run_folder import RunFolder, begin
from regard.training.setup import Setup

TEXT = "".join(
    f"The {a} {n} {v} the {b} {o}.\n{'Then it sleeps.' if v == 'sees' else 'Now it runs away!'}\n\n"
    for a in ("old", "small", "green") for b in ("big", "wise") for n in ("dog", "cat", "owl")
    for v in ("sees", "hears") for o in ("fish", "bird", "tree")
)  # fmt: skip
SMALL: dict[str, Any] = {
    "preset": "tiny", "d_model": 32, "d_ff": 48, "heads": 2, "layers": 1, "dropout": 0.1, "context": 32,
    "batch_tokens": 256, "steps": 48, "warmup_steps": 5, "save_every": 8, "validate_every": 8, "log_every": 3, "samples": 1,
    "tokenizer": "characters", "vocabulary": 400, "threads": 1, "learning_rate": 0.01, "schedule": "cosine",
    "optimizer": "adamw", "max_grad_norm": 1.0,
}  # fmt: skip
OBJECTIVES: dict[str, dict[str, Any]] = {
    "causal": {},
    "masked": {},
    "next": {"objective": "masked", "next_sentence": True},
    "span": {},
    "denoise": {},
    "replaced": {},
    "palm": {"objective": "causal", "model": "palm"},
}


def settings(path: Path, name: str, **changes: Any) -> dict[str, Any]:
    return SMALL | {"text": str(path), "objective": name} | OBJECTIVES[name] | changes


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "tales.txt"
    path.write_text(TEXT)
    return path


def start(out: Path, values: dict[str, Any], on_step: Any = None) -> RunFolder:
    recipe = loading.load(None, values)
    place = begin(recipe, out, "test")
    run(place, recipe, "test", quiet=True, on_step=on_step)
    return place


def lines(place: RunFolder) -> list[dict[str, Any]]:
    """The log without its clocks."""
    clocks = {"seconds", "tokens_per_second"}
    found = [json.loads(line) for line in place.metrics.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in clocks} for line in found]


@pytest.fixture(scope="module")
def runs(text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: start(folder / name, settings(text, name)) for name in OBJECTIVES}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_losses_fall(runs: dict[str, RunFolder], name: str) -> None:
    found = lines(runs[name])
    logged = [line["loss"] for line in found if "event" not in line]
    checked = [line["loss"] for line in found if line.get("event") == "validation"]
    assert logged[-1] < 0.92 * logged[0]
    assert checked[-1] < checked[0]


@pytest.mark.parametrize("name", ["causal", "masked", "next", "replaced"])
def test_resumed_equals_uninterrupted(
    runs: dict[str, RunFolder],
    text: Path,
    tmp_path: Path,
    stop_at: Callable[[int], Any],
    name: str,
) -> None:
    with pytest.raises(TrainingInterrupted):
        start(tmp_path / "cut", settings(text, name), stop_at(13))
    resume(tmp_path / "cut", quiet=True)
    cut = RunFolder(tmp_path / "cut")
    assert lines(cut) == lines(runs[name])
    one, other = load_file(cut.weights), load_file(runs[name].weights)
    assert all(torch.equal(one[key], other[key]) for key in other)


@pytest.mark.parametrize(
    ("name", "kind", "architecture"),
    [
        ("causal", "gpt2", "AutoModelForCausalLM"),
        ("masked", "bert", "AutoModelForMaskedLM"),
        ("next", "bert", "AutoModelForPreTraining"),
        ("span", "t5", "AutoModelForSeq2SeqLM"),
        ("denoise", "bart", "AutoModelForSeq2SeqLM"),
        ("replaced", "electra", "AutoModelForPreTraining"),
        ("replaced/generator", "electra", "AutoModelForMaskedLM"),
    ],
)
def test_transformers_opens_the_folder(
    runs: dict[str, RunFolder], name: str, kind: str, architecture: str
) -> None:
    """Equal logits, no missing or unexpected tensor, and the same tokens from the tokenizer."""
    transformers = pytest.importorskip("transformers")
    top, _, inside = name.partition("/")
    folder = runs[top].folder / inside
    theirs, report = getattr(transformers, architecture).from_pretrained(
        folder, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ours: Any
    ours, opened = folders.open_model(folder)
    assert opened.model_type == kind
    words = transformers.AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([words("The old dog sees", add_special_tokens=False)["input_ids"]])
    with torch.inference_mode():
        if kind in ("t5", "bart"):
            out = theirs.eval()(input_ids=ids, decoder_input_ids=ids[:, :3]).logits
            found = ours.head(ours(ids, ids[:, :3])[0])
        else:
            result = theirs.eval()(input_ids=ids)
            out = (
                result.prediction_logits
                if architecture == "AutoModelForPreTraining" and kind == "bert"
                else result.logits
            )
            hidden, _ = ours(ids)
            found = ours.classes(hidden)[..., 0] if name == "replaced" else ours.head(hidden)
    assert (found - out).abs().max() <= 1e-5 * max(1.0, out.abs().mean())


def test_generator_and_discriminator_have_the_same_embeddings(runs: dict[str, RunFolder]) -> None:
    one, other = (
        load_file(runs["replaced"].folder / part / "model.safetensors")
        for part in ("", "generator")
    )
    same = [name for name in one if "embeddings." in name]
    assert len(same) >= 4
    assert all(torch.equal(one[name], other[name]) for name in same)


def test_a_language_model_opens_here(runs: dict[str, RunFolder]) -> None:
    for name in ("causal", "palm"):
        model = regard.load(runs[name].folder)
        assert isinstance(model, LanguageModel)
        assert len(model.generate("The", max_new_tokens=80)) == 80
    assert regard.load(runs["palm"].folder).config["model_type"] == "regard"
    assert "loss" in (runs["causal"].folder / "README.md").read_text()


def test_the_loss_is_of_the_whole_held_out_text(runs: dict[str, RunFolder], text: Path) -> None:
    """By hand: the last tenth, every token but the first, in windows that do not overlap."""
    whole = text.read_text()
    held = whole[int(len(whole) * 0.9) :]
    place = runs["causal"]
    model: Any = regard.load(place.folder)
    ids = model.tokenizer.encode(held)
    assert model.tokenizer.decode(ids) == held
    total = 0.0
    for i in range(0, len(ids) - 1, 32):
        window = torch.tensor([ids[i : i + 33]])
        scores = model(window[:, :-1]).logits.log_softmax(-1)
        total -= scores.gather(-1, window[:, 1:, None]).sum().item()
    best = [line for line in lines(place) if line.get("event") == "validation" and line["best"]][-1]
    assert best["tokens"] == len(ids) - 1
    assert best["loss"] == pytest.approx(total / (len(ids) - 1), rel=1e-5)


def test_windows_follow_from_seed_and_place(text: Path, tmp_path: Path) -> None:
    recipe = loading.load(None, settings(text, "causal"))
    objective = assemble(Setup(begin(recipe, tmp_path / "a", "test"), recipe, lambda _: None))
    assert isinstance(objective, CausalLM)
    stream = objective.batches(0, 0)
    batches = [next(stream) for _ in range(4)]
    (position, again) = next(objective.batches(*batches[2][0]))
    assert position == (0, 4)
    assert torch.equal(again.tensors["tokens"], batches[3][1].tensors["tokens"])
    for _, batch in batches:
        assert batch.tensors["tokens"].shape == (8, 32)
        assert torch.equal(batch.tensors["tokens"][:, 1:], batch.tensors["labels"][:, :-1])
    assert len({int(row) for _, batch in batches for row in batch.rows}) > 16
    shown = objective.examples([0])[0]["text"]
    assert text.read_text().startswith(shown)


@pytest.mark.parametrize("name", ["masked", "next", "replaced"])
def test_hidden_rows_are_framed(text: Path, tmp_path: Path, name: str) -> None:
    recipe = loading.load(None, settings(text, name))
    task: Any = assemble(Setup(begin(recipe, tmp_path / name, "test"), recipe, lambda _: None))
    special = {role: task.tokenizer.special_token_id(role) for role in ("bos", "eos", "mask")}
    (_, batch) = next(task.batches(0, 0))
    tokens, labels, padding_mask = (
        batch.tensors[key] for key in ("tokens", "labels", "padding_mask")
    )
    assert tokens.shape[1] <= 32
    assert (tokens[:, 0] == special["bos"]).all()
    assert (tokens[torch.arange(len(tokens)), padding_mask.sum(dim=1) - 1] == special["eos"]).all()
    assert ((tokens == task.pad_id) == ~padding_mask).all()
    assert batch.tokens == (labels >= 0).sum()
    assert (labels[~padding_mask] == IGNORED).all()
    if name == "replaced":
        assert (tokens[labels >= 0] == special["mask"]).all()
    if name == "next":
        segments = batch.tensors["segments"]
        assert ((tokens == special["eos"]).sum(dim=1) == 2).all()
        for row, marks in zip(tokens, segments, strict=True):
            cut = int((row == special["eos"]).nonzero()[0])
            assert marks[: cut + 1].sum() == 0
            assert marks[cut + 1] == 1
        assert set(batch.tensors["next_sentence_labels"].tolist()) == {0, 1}
    # Another epoch hides other tokens of the same rows; the same epoch the same ones.
    again, other = (task.collate("train", batch.rows, (epoch, 0)) for epoch in (0, 1))
    assert torch.equal(again.tensors["labels"], labels)
    assert not torch.equal(other.tensors["labels"], labels)


def test_rows_hold_sentences_of_one_document(text: Path, tmp_path: Path) -> None:
    recipe = loading.load(None, settings(text, "masked"))
    data = PlainText.prepare(
        Setup(begin(recipe, tmp_path / "a", "test"), recipe, lambda _: None), None
    )
    lengths = data.train.columns["text"].lengths
    assert lengths.max() <= 30
    words = data.tokenizer
    source = ["Then.\n", "The dog.\n", "\n", "t" * 25 + "\n", "Then"]
    rows = [(words.decode(ids), breaks) for ids, breaks in pack_sentences(source, words, 15)]
    assert rows == [("Then.\nThe dog.\n", [0, 6]), ("t" * 15, [0]), ("t" * 10 + "\nThen", [0, 11])]


def test_bytes_of_any_text_train_too(text: Path, tmp_path: Path) -> None:
    path = tmp_path / "odd.txt"
    path.write_text("naïve  text\twith   spaces 😀\n" * 60)
    place = start(
        tmp_path / "run", settings(path, "causal", tokenizer="bpe", vocabulary=300, steps=2)
    )
    model: Any = regard.load(place.folder)
    words = model.tokenizer
    for each in ("naïve  text\twith   spaces 😀\n", "日本語  never seen\r\n"):
        assert words.decode(words.encode(each)) == each
    given = start(
        tmp_path / "given",
        settings(path, "causal", tokenizer=str(place.folder / "tokenizer.json"), steps=2),
    )
    assert (given.folder / "tokenizer.json").read_text() == (
        place.folder / "tokenizer.json"
    ).read_text()


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"text": None}, SettingError, "--text"),
        ({"metric": "bleu"}, SettingError, "not a score of causal"),
        ({"next_sentence": True}, SettingError, "next_sentence"),
        ({"mask_ratio": 0.2}, SettingError, "mask_ratio"),
        ({"objective": "translate"}, SettingError, "pairs"),
        ({"source": "a.en"}, SettingError, "one text"),
        ({"text": "/nowhere.txt"}, DataError, "cannot read"),
        ({"decoder_attention": "linear"}, SettingError, "set `attention`"),
        ({"preset": "smal"}, SettingError, "small"),
        ({"tokenizer": "words"}, SettingError, "characters"),
        ({"context": 2000}, DataError, "not enough"),
        ({"heads": 3}, SettingError, "heads"),
        ({"objective": "span", "memory": 8}, SettingError, "memory is not a setting"),
        ({"tokenizer": "bpe", "vocabulary": 40}, SettingError, "bytes"),
        ({"vocabulary": 12}, SettingError, "characters"),
        ({"init": "scald"}, SettingError, "scaled"),
    ],
)
def test_mistakes_are_answered(
    text: Path, tmp_path: Path, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        start(tmp_path / "bad", settings(text, "causal") | changes)


def test_first_weights(text: Path, tmp_path: Path) -> None:
    """GPT-2's: deviation 0.02 everywhere, and 0.02 / √(2 · layers) where a sublayer ends."""
    recipe = loading.load(None, settings(text, "causal", d_model=256, d_ff=1024, heads=4, layers=2))
    objective = assemble(Setup(begin(recipe, tmp_path / "a", "test"), recipe, lambda _: None))
    for name, parameter in objective.model.named_parameters():
        if parameter.ndim < 2:
            assert (parameter == (1.0 if "norm.weight" in name else 0.0)).all(), name
        elif parameter.numel() > 2000:
            expected = (
                0.01
                if name.endswith(("attention.output.weight", "feedforward.outer.weight"))
                else 0.02
            )
            assert parameter.std().item() == pytest.approx(expected, rel=0.05), name


def test_the_packaged_recipe_splits_as_nanogpt_does(tmp_path: Path) -> None:
    if not (Path(os.environ.get("REGARD_DATA", "/nowhere")) / "text").is_dir():
        pytest.skip("REGARD_DATA has no text/")
    recipe = loading.load("shakespeare", {})
    found = PlainText.prepare(
        Setup(begin(recipe, tmp_path / "a", "test"), recipe, lambda _: None), None
    )
    assert [len(c.columns["text"].tokens) for c in (found.train, found.valid)] == [
        1_003_854,
        111_540,
    ]
    assert len(found.tokenizer) == 66  # its 65 characters, and one for all others
    assert np.unique(found.train.columns["text"].tokens).size == 65
