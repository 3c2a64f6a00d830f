"""Arguments of loaded models that do not fit: a typed error with a repair, or the right answer.

Nothing is answered silently that was not asked, and no exception comes from far inside torch.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

import model_kinds
import regard
from regard.decode.strategy import BeamSearch, Greedy, Sampling, choose_strategy
from regard.evaluation.ray import Predictor
from regard.models.inputs.input_warnings import unknown_words
from regard.models.spans import best_answer
from regard.system.errors import (
    DataError,
    ModelError,
    RegardError,
    SettingError,
    UnknownWordsWarning,
)

DEMO = Path(regard.__file__).parent / "studio" / "demo"
S = "The dog sees a cat."
IDS = torch.tensor([[5, 6, 3]])
WAV = np.zeros(16000, np.float32)
STEPS = np.arange(240, dtype=np.float32).reshape(120, 2)
IMAGE = np.zeros((16, 16, 3), np.uint8)
PIXELS = torch.zeros(1, 3, 16, 16)
KINDS = {"lm": "gpt2", "bert": "bert", "memory": "memory", "clip": "clip", "vit": "vit",
         "whisper": "whisper", "wav": "wav2vec2", "patches": "patchtst",
         "series": "time-series-transformer", "cls": "classifier"}  # fmt: skip

Run = Callable[[Any], Any]


class Models:
    """Small models by their short names, each trained for a step and loaded once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inputs = model_kinds.write_data(folder / "data")
        self.opened: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in self.opened:
            folder = DEMO
            if name != "mt":
                folder = model_kinds.train(KINDS[name], self.folder / "data", self.folder / name)
            self.opened[name] = regard.load(folder, device="cpu")
        return self.opened[name]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


def refused(run: Callable[[], Any]) -> RegardError:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RegardError) as caught:
            run()
    assert caught.value.repair
    return caught.value


def parametrize(cases: dict[str, Run]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "run", [pytest.param(run, id=name) for name, run in cases.items()]
    )


# ------------------------------------------------------------------ texts and choices

WRONG_TEXTS = [b"ab", [b"a"], [None], [["a"]]]


@pytest.mark.parametrize("wrong", WRONG_TEXTS, ids=repr)
@pytest.mark.parametrize("method", ["nll", "perplexity"])
def test_a_likelihood_is_of_texts(method: str, wrong: Any, models: Models) -> None:
    score = getattr(models.mt, method)
    refused(lambda: score(wrong, ["a"]))
    refused(lambda: score(["a"], wrong))


def test_two_texts_are_one_pair(models: Models) -> None:
    pair = ("The dog sees", "Der Hund sie")
    assert models.mt.perplexity(*pair) == models.mt.perplexity([pair[0]], [pair[1]])
    for wrong in ((["a", "b"], ["c"]), ("a", ["c"]), ([], ["c"])):
        error = refused(lambda wrong=wrong: models.mt.nll(*wrong))  # type: ignore[misc]
        assert "lists of texts differ in length" in error.problem


TEXT_CHOICES: dict[str, Run] = {
    "a label twice": lambda m: m.lm.classify("a", ["x", "y", "x"]),
    "labels in lists": lambda m: m.lm.classify("a", [["x"], ["y"]]),
    "labels in a text": lambda m: m.lm.classify("a", "xy"),
    "captions in lists": lambda m: m.clip.classify(IMAGE, [["a"]]),
    "a caption twice": lambda m: m.clip.classify(IMAGE, ["a", "b", "a"]),
    "sentences up to a letter": lambda m: m.memory.tokens("A b. C d?", "x"),
}


@parametrize(TEXT_CHOICES)
def test_texts_and_choices_of_texts(run: Run, models: Models) -> None:
    refused(lambda: run(models))


# ------------------------------------------------------------------ numbers and switches

NUMBERS: dict[str, Run] = {
    "a likelihood of -1 tokens": lambda m: m.lm.nll("The dog", -1),
    "a translation's of 0": lambda m: m.mt.nll("a", "b", 0),
    "no first index": lambda m: m.lm.generate("a", first_index=None),
    "a first index of -1": lambda m: m.lm.generate("a", first_index=-1),
    "top is true": lambda m: m.bert.fill("The [MASK].", top=True),
    "0 fillings": lambda m: m.bert.fill("The [MASK].", top=0),
    "no trajectories": lambda m: m.series.sample(STEPS, 0),
    "-1 trajectories": lambda m: m.series.sample(STEPS, -1),
    "x trajectories": lambda m: m.series.sample(STEPS, "x"),
    "no seed": lambda m: m.series.sample(STEPS, 2, seed=None),
    "0 sequences": lambda m: m.series.generate_sequences(0, past_values=torch.zeros(1, 24, 2)),
    "a label below 0": lambda m: m.cls.label_name(-1),
    "a dtype in a list": lambda m: m.mt.to(dtype=[4]),
    "a precision in a list": lambda m: m.mt.prepare_for_inference([4]),
    "a dtype to load in a list": lambda m: regard.load(DEMO, dtype=[4]),  # type: ignore[arg-type]
}  # fmt: skip


@parametrize(NUMBERS)
def test_numbers_and_switches(run: Run, models: Models) -> None:
    refused(lambda: run(models))


def test_numbers_of_numpy_are_numbers(models: Models) -> None:
    mt = models.mt
    assert mt.translate(S, beam=np.int64(2)) == mt.translate(S, beam=2)
    assert mt.tokens(S, max_length=np.int32(50))["input_ids"].shape == (1, 7)
    by_numpy = models.lm.generate(
        "The", max_new_tokens=np.int64(3), temperature=np.float32(0.5), top_k=np.int64(4)
    )
    assert by_numpy == models.lm.generate("The", max_new_tokens=3, temperature=0.5, top_k=4)


def test_max_length_counts_the_prompt_too(models: Models) -> None:
    given = len(models.lm.tokens("The dog")["input_ids"][0])
    both = models.lm.generate("The dog", max_length=given + 3)
    assert both == models.lm.generate("The dog", max_new_tokens=3)
    assert "max_length" in refused(lambda: models.lm.generate("The dog", max_length=1)).problem


@pytest.mark.parametrize("wrong", ["no", 0, 1, 0.0, [True], "True"], ids=repr)
def test_sample_is_true_or_false(wrong: Any) -> None:
    assert "sample" in refused(lambda: choose_strategy(None, {"sample": wrong})).problem


def test_sample_says_whether_to_draw() -> None:
    yes: Any = np.bool_(True)
    no: Any = np.bool_(False)
    assert choose_strategy(None, {"sample": yes}) == Sampling()
    assert choose_strategy(None, {"sample": no}) == Greedy()
    error = refused(lambda: choose_strategy(None, {"sample": False, "temperature": 0.5}))
    assert "beam" not in str(error)
    assert "temperature" in error.problem


@pytest.mark.parametrize("wrong", ["beam", 3, [Greedy()]], ids=repr)
def test_a_strategy_of_speech_is_a_strategy(wrong: Any, models: Models) -> None:
    refused(lambda: models.whisper.transcribe(WAV, strategy=wrong))


def test_speech_takes_the_keywords_of_a_strategy(models: Models) -> None:
    by_strategy = models.whisper.transcribe(WAV, strategy=BeamSearch(2))
    assert models.whisper.transcribe(WAV, beam=2) == by_strategy
    assert "task" in refused(lambda: models.whisper.transcribe(WAV, taks="x")).repair


def test_a_misspelt_option_is_told_all(models: Models) -> None:
    assert "max_new_tokens" in refused(lambda: models.lm.generate("a", max_tokens=3)).repair
    assert "language" in refused(lambda: models.mt.translate("a", langauge="x")).repair


def test_the_name_of_a_label_far_beyond(models: Models) -> None:
    assert models.cls.label_name(10**12) == "LABEL_1000000000000"
    assert [models.cls.label_name(i) for i in range(2)] == models.cls.labels


# ------------------------------------------------------------------ answers


def test_white_space_is_no_answer() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({" ": 0, "x": 1}, unk_token="x"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "isolated")
    context = "  x  "
    encoding = backend.encode("x", context)
    # White space has the best logits of all tokens.
    logits = torch.zeros(len(encoding), 2)
    logits[1] = 9.0
    answer = best_answer(context, [encoding], [logits])
    assert (answer.text, answer.start, answer.end) == ("x", 2, 3)
    nothing = best_answer("  ", [backend.encode("x", "  ")], [torch.zeros(3, 2)])
    assert (nothing.text, nothing.start, nothing.end) == ("", 0, 0)


def test_a_line_end_inside_is_said(models: Models) -> None:
    with pytest.warns(UnknownWordsWarning, match="replace white space by") as caught:
        models.mt.translate("The dog.\nA cat.")
    warning: Any = caught[0].message
    assert warning.words == ("'\\n'",)
    tokenizer = models.mt.source_tokenizer
    assert unknown_words(tokenizer, "The dog. A cat.") == []


def test_no_inputs_have_no_vectors_of_the_same_width(models: Models) -> None:
    bert, clip, vit = models.bert, models.clip, models.vit
    assert vit.embed([]).shape == vit.embed([IMAGE])[:0].shape
    assert clip.embed_image([]).shape == clip.embed_image([IMAGE])[:0].shape
    assert clip.embed_text([]).shape == clip.embed_text(["a"])[:0].shape
    assert bert.embed([]).shape == bert.embed(["a"])[:0].shape
    assert vit.classify([]) == []


# ------------------------------------------------------------------ series and sound

SERIES: dict[str, Run] = {
    "an empty path": lambda m: m.patches.forecast(""),
    "a blank path": lambda m: m.patches.forecast("  "),
    "a folder": lambda m: m.patches.forecast(m.folder),
    "no steps": lambda m: m.patches.forecast([]),
    "rows of two lengths": lambda m: m.patches.forecast([[1.0, 2.0], [1.0]]),
    "no series": lambda m: m.patches.forecast(None),
    "words": lambda m: m.patches.forecast(["a", "b"]),
    "one number": lambda m: m.patches.forecast(3.0),
    "only missing values": lambda m: m.patches.forecast(STEPS * np.nan),
    "infinity": lambda m: m.patches.forecast(STEPS + np.inf),
    "beyond float32": lambda m: m.patches.forecast(STEPS.astype(np.float64) * 1e300),
    "no sound": lambda m: m.whisper.transcribe(None),
    "a set of sounds": lambda m: m.whisper.transcribe({0.1}),
    "sounds that are numbers": lambda m: m.whisper.transcribe([0.1, 0.2]),
    "a ragged sound": lambda m: m.wav.transcribe(([0.1], [0.1, 0.2])),
    "no samples": lambda m: m.wav.transcribe(np.zeros(0, np.float32)),
}


@parametrize(SERIES)
def test_series_and_sound(run: Run, models: Models) -> None:
    error = refused(lambda: run(models))
    assert isinstance(error, DataError)
    assert "training" not in str(error)


def test_a_tensor_with_a_gradient_is_as_good(models: Models) -> None:
    series = torch.from_numpy(STEPS).requires_grad_()
    np.testing.assert_array_equal(models.patches.forecast(series), models.patches.forecast(STEPS))
    sound = torch.from_numpy(WAV).requires_grad_()
    assert models.whisper.transcribe(sound) == models.whisper.transcribe(WAV)


def test_a_channel_without_values_is_said(models: Models) -> None:
    said: list[str] = []
    model = models.patches
    steps = STEPS.copy()
    steps[:, 1] = np.nan
    model.say, before = said.append, model.say
    assert np.isfinite(model.forecast(steps)).all()
    model.say = before
    assert said == ["no value in the last 24 steps of: heat"]


# ------------------------------------------------------------------ tensors of a call


def long(*shape: int, value: int = 1) -> torch.Tensor:
    return torch.full(shape, value)


def memory(m: Any, **changes: Any) -> Any:
    return m.memory(**m.memory.tokens("Mary is in the garden. Where is Mary?") | changes)


CALLS: dict[str, Run] = {
    "labels of another length": lambda m: m.mt(IDS, decoder_input_ids=IDS, labels=long(1, 2)),
    "labels that are fractions": lambda m: m.mt(IDS, decoder_input_ids=IDS, labels=IDS.float()),
    "segments of another length": lambda m: m.bert(IDS, token_type_ids=long(1, 2)),
    "ids of 8 bits": lambda m: m.bert(IDS.to(torch.uint8)),
    "a mask for two": lambda m: m.bert(IDS, attention_mask=long(2, 3)),
    "an id of -1 for CLIP": lambda m: m.clip(long(1, 3, value=-1), PIXELS),
    "a huge id for CLIP": lambda m: m.clip(long(1, 3, value=10**6), PIXELS),
    "float64 pixels": lambda m: m.vit(PIXELS.double()),
    "half pixels": lambda m: m.vit(PIXELS.half()),
    "int pixels": lambda m: m.vit(PIXELS.int()),
    "bool pixels": lambda m: m.clip(IDS, PIXELS.bool()),
    "no images": lambda m: m.vit(PIXELS[:0]),
    "one image": lambda m: m.vit(PIXELS[0]),
    "images of another size": lambda m: m.vit(torch.zeros(1, 3, 8, 8)),
    "grey images": lambda m: m.vit(torch.zeros(1, 1, 16, 16)),
    "float64 windows": lambda m: m.patches(torch.zeros(1, 24, 2).double()),
    "int windows": lambda m: m.patches(torch.zeros(1, 24, 2).int()),
    "no windows": lambda m: m.patches(torch.zeros(0, 24, 2)),
    "one window": lambda m: m.patches(torch.zeros(24, 2)),
    "values observed of another window": lambda m: m.patches(torch.zeros(1, 24, 2), long(1, 23, 2)),
    "half samples": lambda m: m.wav(torch.zeros(1, 16000).half()),
    "samples without a batch": lambda m: m.wav(torch.zeros(16000)),
    "no recordings": lambda m: m.wav(torch.zeros(0, 16000)),
    "too few samples": lambda m: m.wav(torch.zeros(1, 3)),
    "a mask of another sound": lambda m: m.wav(torch.zeros(1, 16000), long(1, 8)),
    "float64 features": lambda m: m.whisper(
        torch.zeros(1, 80, 3000).double(), decoder_input_ids=IDS
    ),
    "a story without a batch": lambda m: memory(m, story=long(1, 5)),
    "a story of fractions": lambda m: memory(m, story=torch.ones(1, 1, 5)),
    "a story of an unknown word": lambda m: memory(m, story=long(1, 1, 5, value=10**6)),
    "a story of padding": lambda m: memory(m, story=long(1, 1, 5, value=-1)),
    "a story of booleans": lambda m: memory(m, story=long(1, 1, 5).bool()),
    "an empty story": lambda m: memory(m, story=long(1, 0, 5)),
    "a question of another story": lambda m: memory(m, question=long(1, 9)),
    "nothing": lambda m: m.mt(),
    "a mask alone": lambda m: m.bert(attention_mask=long(1, 3)),
}  # fmt: skip


@parametrize(CALLS)
def test_tensors_of_a_call(run: Run, models: Models) -> None:
    refused(lambda: run(models))


def test_a_cast_repairs_the_dtype(models: Models) -> None:
    error = refused(lambda: models.vit(PIXELS.double()))
    assert error.repair == "cast it: pixel_values.to(torch.float32)"
    assert torch.isfinite(models.vit(PIXELS.double().to(torch.float32)).logits).all()
    labels = long(1, 3).int()
    assert models.mt(IDS, decoder_input_ids=IDS, labels=labels).loss > 0


# ------------------------------------------------------------------ packed weights


@pytest.mark.parametrize("precision", ["int8", "bf16", None])
def test_packed_weights_stay_as_they_are(precision: str | None, tmp_path: Path) -> None:
    model = regard.load(DEMO, device="cpu").prepare_for_inference(precision)
    answer = model.translate(S)
    for run in (lambda: model.to(dtype="bfloat16"), lambda: model.save(tmp_path / "saved")):
        error = refused(run)
        assert isinstance(error, ModelError)
        assert "load the model again" in error.repair
    assert not (tmp_path / "saved").exists()
    # What changes nothing is no change.
    assert model.to("cpu", "float32").translate(S) == answer


# ------------------------------------------------------------------ Ray


def test_the_options_of_a_stage_are_of_the_models_own_task(models: Models) -> None:
    predictor = Predictor(str(DEMO), device="cpu", options={"beam": 1})
    rows = predictor({"text": [S, None, float("nan"), " "]})["prediction"].tolist()
    assert rows == [models.mt.translate(S, beam=1), "", "", ""]


@pytest.mark.parametrize("options", [{"beam": 2}, {"top": "x"}], ids=repr)
def test_options_of_another_kind(options: Any, models: Models) -> None:
    folder = models.cls.folder
    assert isinstance(
        refused(lambda: Predictor(str(folder), device="cpu", options=options)), SettingError
    )


def test_a_row_without_text_has_no_answer(models: Models) -> None:
    predictor = Predictor(str(models.cls.folder), device="cpu")
    assert predictor({"text": [None]})["prediction"].tolist() == [None]


def test_a_strategy_holds_plain_numbers() -> None:
    strategy = Sampling(temperature=np.float32(0.5), top_k=np.int64(3))  # type: ignore[arg-type]
    assert {type(value) for value in dataclasses.asdict(strategy).values()} == {int, float}


def test_weights_are_packed_in_one_precision() -> None:
    model = regard.load(DEMO, device="cpu").prepare_for_inference("int8")
    assert model.prepare_for_inference("int8") is model
    assert model.prepare_for_inference() is model  # as it is
    with pytest.raises(ModelError, match="another precision"):
        model.prepare_for_inference("bf16")
