"""Files that ordinary users have: long texts, labelled files, UTF-16."""

from __future__ import annotations

import codecs
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import model_kinds
import regard
from command_line import Command
from looked import wav
from regard.data import text_files
from regard.data.audio import read_wav_and_rate
from regard.decode import limits
from regard.decode.strategy import Sampling
from regard.evaluation.prediction import PredictionOptions
from regard.models.inputs.sound import read_samples
from regard.models.spans import Filling
from regard.system.errors import (
    CutOffOutputWarning,
    DataError,
    EmptyInputWarning,
    LongOutputWarning,
    SettingError,
    UnknownWordsWarning,
)
from regard.training.engine.metrics_log import MetricsLog

LONG_TEXT = "Mary is in the garden. " * 20  # more than the 255 bytes of a file name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kinds")
    model_kinds.write_data(folder / "data")
    return folder


def kind(name: str, folder: Path) -> Path:
    """The run folder of a kind of model, trained once for all tests of this file."""
    out = folder / name
    return out if out.exists() else model_kinds.train(name, folder / "data", out)


# --- texts that are too long for the name of a file ---


def test_a_paragraph_is_a_context(command: Command, folder: Path) -> None:
    done = command("predict", kind("memory", folder), "Where is Mary?", "--context", LONG_TEXT)
    assert done.code == 0, done.err


@pytest.mark.parametrize("text", ["日本語" * 100 + "/日本語", "a" * 300 + ".txt"])
def test_a_long_word_is_a_text(text: str, command: Command, folder: Path) -> None:
    done = command("predict", kind("classifier", folder), text, "--truncation")
    assert "File name too long" not in done.err
    # A word that ends as the name of a file does is taken for one that is missing.
    assert done.code == (2 if text.endswith(".txt") else 0), done.err


# --- answers of `predict` ---


def test_tokens_that_read_alike_keep_their_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    """ " cat" and "cat" are two tokens: the second must not replace the first."""
    model = regard.load(Path(regard.__file__).parent / "studio/demo")
    fillings = [
        Filling("cat", 0.5, "A cat.", 7),
        Filling("dog", 0.3, "A dog.", 8),
        Filling("cat", 0.1, "Acat.", 9),
    ]
    monkeypatch.setattr(type(model), "fill", lambda self, texts, top: [fillings], raising=False)
    from regard.evaluation import answers

    (answer,) = answers.fill(model, ["A [MASK]."], PredictionOptions(top=3))
    assert answer == {"cat": 0.5, "dog": 0.3, "cat (token 9)": 0.1}
    assert list(answer.values()) == sorted(answer.values(), reverse=True)


def test_labels_of_a_labelled_file_are_no_second_texts(command: Command, folder: Path) -> None:
    file = folder / "data" / "labels.tsv"
    done = command("predict", kind("classifier", folder), file)
    done.refused("'good'", "regard evaluate")
    # Two texts with a tab between them are still a pair.
    assert command("predict", kind("classifier", folder), "The dog sees.\tThe cat sees.").code == 0


def test_each_line_of_json_is_an_object(command: Command, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("The dog sees the cat.\n\nThe owl hears.\n")
    done = command("predict", kind("classifier", folder), file, "--json")
    answers = [json.loads(line)["answer"] for line in done.out.splitlines()]
    assert [answer is None for answer in answers] == [False, True, False]


def test_an_input_of_two_lines_has_one_line(command: Command, folder: Path) -> None:
    done = command("predict", kind("classifier", folder), "The dog\nsees.", "The owl hears.")
    assert [line.split("\t")[0] for line in done.out.splitlines()] == [
        "The dog sees.",
        "The owl hears.",
    ]


def test_files_of_images_are_arguments(command: Command, folder: Path) -> None:
    image = folder / "data" / "images" / "dark" / "0.png"
    command("predict", kind("vit", folder), "--input", image).refused(
        "reads files", "predict MODEL FILE"
    )
    done = command("predict", kind("clip", folder), "a dark image", image, "--task", "embed")
    done.refused("texts and images")


def test_a_hyphen_is_standard_input(command: Command, demo: Path) -> None:
    piped = command("translate", demo, text="The dog sees a cat.\n")
    assert command("translate", demo, "-", text="The dog sees a cat.\n").out == piped.out


# --- nothing, too much, and cut off ---


def test_an_empty_text_has_no_answer(folder: Path) -> None:
    model = regard.load(kind("classifier", folder))
    for empty in ("", "  "):
        with pytest.warns(EmptyInputWarning, match="text 1 is empty"):
            model.classify(empty)
    with pytest.warns(EmptyInputWarning, match="text 2 is empty"):
        model.classify(["The dog sees the cat.", ""])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.classify("The dog sees the cat.")


def test_a_translation_that_is_cut_off(demo: Path) -> None:
    model = regard.load(demo)
    with pytest.warns(CutOffOutputWarning, match="1 of 1 outputs"):
        short = model.translate("The dog sees a cat.", max_new_tokens=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = model.translate("The dog sees a cat.")
    assert whole.startswith(short.rstrip("."))
    assert len(short) < len(whole)
    with pytest.raises(SettingError, match="max_new_tokens"):
        model.translate("The dog sees a cat.", max_new_tokens=0)


def test_a_very_long_output_is_announced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_LONG", 4)
    model = regard.load(kind("gpt2", folder))
    with pytest.warns(LongOutputWarning, match="up to 5 tokens"):
        model.generate("The dog", max_new_tokens=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate("The dog", max_new_tokens=4)


def test_a_long_unknown_word_is_shortened(demo: Path) -> None:
    with pytest.warns(UnknownWordsWarning) as caught:
        regard.load(demo).translate("語" * 300)
    assert "語" * 60 not in str(caught[0].message)
    assert caught[0].message.words == ("語" * 300,)  # type: ignore[union-attr]


@pytest.mark.parametrize("temperature", [1e19, 1e300, float("inf"), float("nan")])
def test_temperatures_beyond_float32(temperature: float) -> None:
    with pytest.raises(SettingError, match="temperature"):
        Sampling(temperature=temperature)


@pytest.mark.parametrize("limit", ["1e9,50", "1,99999999999", "nan,1", "0,0", "-1,50"])
def test_absurd_length_limits(limit: str, command: Command, demo: Path) -> None:
    done = command("translate", demo, "--max-length", limit, text="The dog sees a cat.\n")
    done.refused("--max-length", "1,50")


def test_a_length_penalty_needs_its_formula(demo: Path) -> None:
    with pytest.raises(SettingError) as refusal:
        regard.load(demo).translate("The dog sees a cat.", length_penalty=0.6)  # type: ignore[call-overload]
    assert "gnmt:0.6" in refusal.value.repair


# --- files ---


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [
        ("utf-16-le", codecs.BOM_UTF16_LE),
        ("utf-16-be", codecs.BOM_UTF16_BE),
        ("utf-16-le", b""),
        ("utf-16-be", b""),
    ],
)
def test_utf_16_is_named(encoding: str, mark: bytes, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(mark + "The dog sees a cat.\nThe owl hears.\n".encode(encoding))
    with pytest.raises(DataError, match="UTF-16") as refusal:
        list(text_files.lines(file))
    assert "iconv -f utf-16 -t utf-8" in refusal.value.repair


def test_utf_8_with_a_zero_byte_is_no_utf_16(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(b"The dog\0 sees a cat.\n")
    assert list(text_files.lines(file)) == ["The dog\0 sees a cat."]


def test_a_recipe_with_a_byte_order_mark(command: Command, files: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    text = '[data]\npairs = ""\n[train]\nsteps = 1\n'
    recipe.write_bytes(codecs.BOM_UTF8 + text.encode())
    # Its first line is read; an empty path is not the folder of all data.
    done = command("train", recipe, "--data-dir", files, "--out", tmp_path / "run")
    done.refused("path is empty")
    recipe.write_bytes(text.encode("utf-16"))
    done = command("train", recipe, "--data-dir", files, "--out", tmp_path / "run")
    done.refused("not UTF-8", "save it as UTF-8")


def test_a_recording_that_is_cut_off(tmp_path: Path) -> None:
    whole = wav()
    with pytest.raises(DataError, match=r"8,000 samples, and 2,4\d\d are there"):
        read_wav_and_rate(whole[:5001])
    for rate in (1, 5_000_000):
        with pytest.raises(DataError, match=f"{rate} samples a second"):
            read_wav_and_rate(whole[:24] + rate.to_bytes(4, "little") + whole[28:])
    for content in (b"", b"no sound"):
        with pytest.raises(DataError, match="is not a WAV file") as refusal:
            read_wav_and_rate(content)
        assert "ffmpeg -i" not in refusal.value.repair


def test_what_is_wrong_with_samples() -> None:
    for samples, problem in (
        (np.zeros(0, np.float32), "shape"),
        (np.full(100, np.nan, np.float32), "NaN"),
        (np.zeros((2, 100), np.float32), "shape"),
    ):
        with pytest.raises(DataError, match=problem):
            read_samples(samples)


# --- resuming beside a log that was changed ---


@pytest.mark.parametrize(
    ("content", "position", "kept"),
    [
        (b'{"step": 1}\n{"step": 2}\n', 24, b'{"step": 1}\n{"step": 2}\n'),
        (b'{"step": 1}\n{"step": 2}\n', 12, b'{"step": 1}\n'),
        (b"", 24, b""),  # it was removed
        (b'{"step": 1}\n', 24, b'{"step": 1}\n'),  # lines were removed
        (b'{"step": 1, "mine": 0}\n{"step": 2}\n', 24, b'{"step": 1, "mine": 0}\n'),
        (b"no line", 24, b""),
    ],
)
def test_a_metrics_log_is_never_padded(
    content: bytes, position: int, kept: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(content)
    log = MetricsLog(file)
    is_unchanged = log.truncate(position)
    log.close()
    assert file.read_bytes() == kept
    assert is_unchanged is (len(kept) == position)


def test_predictions_of_few_pairs_say_one_thing(command: Command, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("a b\tc d\n" * 3)
    sizes = ["--preset", "tiny", "--d-model", "16", "--heads", "2", "--layers", "1"]
    done = command(
        *("train", "--pairs", pairs, "--steps", "1", "--out", tmp_path / "run", *sizes),
        *("--tokenizer", "characters", "--device", "cpu"),
    )
    assert done.code == 0, done.err
    assert "held out" not in done.err
    assert "no validation text" in done.err


def test_a_caption_is_given_once(folder: Path) -> None:
    model = regard.load(kind("clip", folder))
    image = str(folder / "data" / "images" / "dark" / "0.png")
    with pytest.raises(SettingError, match="different texts"):
        regard.predict(model, [image], "classify", labels=["a cat", "a cat"])


def test_the_same_file_on_both_sides(command: Command, files: Path, tmp_path: Path) -> None:
    same = files / "s.en"
    sizes = ["--preset", "tiny", "--d-model", "16", "--heads", "2", "--layers", "1"]
    done = command(
        *("train", "--source", same, "--target", same, "--steps", "1", *sizes),
        *("--tokenizer", "characters", "--device", "cpu", "--out", tmp_path / "run"),
    )
    assert done.code == 0, done.err
    assert "learns to copy" in done.err


def test_fine_tuning_of_a_few_steps_says_so(command: Command, folder: Path, tmp_path: Path) -> None:
    data = folder / "data" / "labels.tsv"
    settings = ["--task", "classify", "--out", tmp_path / "run", "--device", "cpu"]
    done = command("finetune", kind("bert", folder), "--data", data, *settings)
    assert done.code == 0, done.err
    assert "change a model very little" in done.err
