"""What is converted is the same model: for transformers, for CTranslate2, for onnxruntime, and read again here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file
from tokenizers import models

from forked_command import run_command
from regard import spec
from regard.builder import build
from regard.families import folder as folders
from regard.families.encoder_decoders import recurrent
from regard.families.encoder_decoders.transformer import transformer
from regard.families.folder import write_model
from regard.families.presets import preset
from regard.lab.convert import convert as converting
from regard.lab.convert import ctranslate2, ctranslate2_check, onnx
from regard.lab.convert.convert import convert
from regard.lab.verify.parity import parity
from regard.system import disk
from regard.system.errors import DataError, DiskError, ModelError, SettingError
from zoo import ZOO, save

pytestmark = pytest.mark.thorough

transformers = pytest.importorskip("transformers")


def own(folder: Path, **changes: Any) -> Path:
    """A translator with odd heads, which no family of Hugging Face's can say."""
    model_spec = transformer(
        37,
        37,
        **{"d_model": 24, "d_ff": 40, "heads": 5, "layers": 1, "d_k": 4, "d_v": 4, **changes},
    )
    ids = folders.SpecialTokenIds(0, 1, 2, 3)
    weights = {name: tensor.detach() for name, tensor in build(model_spec).named_parameters()}
    folder.mkdir()
    write_model(
        folder,
        folders.ModelFolder(
            model_spec,
            weights,
            ids,
            folders.describe(model_spec, ids),
        ),
    )
    return folder


def vocabulary(folder: Path) -> None:
    """A tokenizer whose token n is called wn, but for two that Whisper's library looks for by name."""
    config = json.loads((folder / "config.json").read_text())
    special = {}
    if config["model_type"] == "whisper":
        special = {1: "<|startoftranscript|>", 50: "<|notimestamps|>"}
    tokens = {special.get(i, f"w{i}"): i for i in range(53)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(tokens, unk_token="w3"))
    tokenizer.save(str(folder / "tokenizer.json"))


def all_hold(done: converting.Converted) -> None:
    assert {finding.verdict for finding in done.findings} == {"holds"}, done.findings


# ------------------------------------------------------------------ folders


@pytest.mark.parametrize("name", ZOO)
def test_there_and_back_again(name: str, tmp_path: Path) -> None:
    """theirs → theirs keeps every byte; → ours → theirs comes back to it, where the family is told by its choices alone."""
    save(name, tmp_path / "in")
    done = convert(tmp_path / "in", tmp_path / "out")
    all_hold(done)
    before, after = (load_file(tmp_path / place / "model.safetensors") for place in ("in", "out"))
    if name != "esm":  # transformers writes old names of its norms, and we today's
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (
        config["model_type"]
        == json.loads((tmp_path / "in" / "config.json").read_text())["model_type"]
    )
    all_hold(convert(tmp_path / "out", tmp_path / "own", "regard"))
    assert folders.peek(tmp_path / "own").spec == folders.peek(tmp_path / "in").spec
    all_hold(convert(tmp_path / "own", tmp_path / "again", "huggingface"))
    model, opened = folders.open_model(tmp_path / "again")
    assert parity(tmp_path / "again", model, opened).verdict == "holds"


def test_what_goes_with_a_model_goes_with_it(tmp_path: Path) -> None:
    save("bert, classes", tmp_path / "in")
    for name, text in {
        "vocab.txt": "a\nb",
        "tokenizer_config.json": "{}",
        "README.md": "# Mine",
    }.items():
        (tmp_path / "in" / name).write_text(text)
    (tmp_path / "in" / "modeling_evil.py").write_text("raise SystemExit")
    (tmp_path / "in" / "training_args.bin").write_bytes(b"pickle")
    convert(tmp_path / "in", tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == [
        "README.md", "config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt",
    ]  # fmt: skip
    assert (tmp_path / "out" / "README.md").read_text() == "# Mine"
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "fair", "2": "good"}
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert again.config.id2label == {0: "bad", 1: "fair", 2: "good"}


def test_a_card_and_a_generation_config_are_written_where_there_are_none(tmp_path: Path) -> None:
    save("marian", tmp_path / "in")
    (tmp_path / "in" / "generation_config.json").unlink()
    convert(tmp_path / "in", tmp_path / "out")
    assert "parameters" in (tmp_path / "out" / "README.md").read_text()
    assert (
        json.loads((tmp_path / "out" / "generation_config.json").read_text())[
            "decoder_start_token_id"
        ]
        == 2
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_precision_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    save("llama", tmp_path / "in", dtype=dtype)
    all_hold(convert(tmp_path / "in", tmp_path / "out"))
    assert {
        tensor.dtype for tensor in load_file(tmp_path / "out" / "model.safetensors").values()
    } == {dtype}
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == dtype


def test_shards(tmp_path: Path) -> None:
    save("gpt2", tmp_path / "in")
    done = convert(tmp_path / "in", tmp_path / "out", shard=20_000)
    all_hold(done)
    parts = [name for name in done.files if name.endswith(".safetensors")]
    assert len(parts) > 3
    assert parts[0] == f"model-00001-of-{len(parts):05}.safetensors"
    assert all(done.files[name] <= 20_000 + 4_000 for name in parts)  # and a header each
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(
        t.nbytes for t in load_file(tmp_path / "in" / "model.safetensors").values()
    )
    _, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(report.values()), report
    all_hold(convert(tmp_path / "out", tmp_path / "whole"))


def test_what_no_family_can_say_is_refused_there_and_kept_here(tmp_path: Path) -> None:
    folder = own(tmp_path / "in")
    with pytest.raises(ModelError, match="--to regard"):
        convert(folder, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["in"]
    all_hold(convert(folder, tmp_path / "out", "regard"))


def test_nothing_is_overwritten_and_nothing_is_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save("bert", tmp_path / "in")
    (tmp_path / "out").mkdir()
    with pytest.raises(SettingError, match="exists"):
        convert(tmp_path / "in", tmp_path / "out")
    with pytest.raises(SettingError, match="use one of: huggingface"):
        convert(tmp_path / "in", tmp_path / "new", "tensorflow")

    def full(path: Path, content: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "write_tensors", full)
    for to in ("huggingface", "regard"):
        with pytest.raises(DiskError, match="full"):
            convert(tmp_path / "in", tmp_path / "new", to)
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def test_a_difference_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("bert", tmp_path / "in")
    written = disk.write_tensors

    def rounded(path: Path, tensors: dict[str, torch.Tensor]) -> Any:
        return written(path, {n: t.bfloat16().float() for n, t in tensors.items()})

    monkeypatch.setattr(disk, "write_tensors", rounded)
    assert {finding.verdict for finding in convert(tmp_path / "in", tmp_path / "out").findings} == {
        "fails"
    }


# ------------------------------------------------------------------ CTranslate2

TRANSLATED = ["marian", "pegasus", "bart", "mbart", "t5", "t5 1.1", "whisper", "gpt2", "gpt", "neox", "llama", "mistral",
              "qwen2", "gemma"]  # fmt: skip


@pytest.mark.parametrize("name", TRANSLATED)
def test_ctranslate2_computes_the_same(name: str, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    save(name, tmp_path / "in")
    vocabulary(tmp_path / "in")
    done = convert(tmp_path / "in", tmp_path / "out", "ctranslate2")
    all_hold(done)
    assert "model.bin" in done.files
    assert all(finding.tolerance < 1e-3 for finding in done.findings)


def test_ctranslate2_translates_a_model_of_our_own(tmp_path: Path) -> None:
    """Also one that has no counterpart in transformers, and the same greedy words."""
    ct2 = pytest.importorskip("ctranslate2")
    from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
    from regard.decode.strategy import Greedy, Limit

    folder = own(tmp_path / "in", residual=spec.PreNorm(), position=spec.Sinusoidal("interleaved"))
    vocabulary(folder)
    all_hold(convert(folder, tmp_path / "out", "ctranslate2"))
    model, _ = folders.open_model(folder)
    sources = [[5, 9, 12, 2], [30, 7, 2]]
    theirs = ct2.Translator(str(tmp_path / "out"), compute_type="float32").translate_batch(
        [[f"w{i}" for i in row] for row in sources], beam_size=1, max_decoding_length=9
    )
    settings = DecodingSettings(Greedy(), Limit.fixed(9))
    ours = decode(model, sources, SpecialTokens(0, 1, 2), settings)  # type: ignore[arg-type]
    assert [row.hypotheses[0] for row in theirs] == [
        [f"w{i}" for i in row[0].tokens] for row in ours
    ]


@pytest.mark.parametrize(
    ("name", "to"),
    [("marian", "ctranslate2"), ("gpt2", "ctranslate2"), ("bert", "onnx"), ("vit", "onnx")],
)
def test_the_readme_runs_the_model(name: str, to: str, tmp_path: Path) -> None:
    for package in ("ctranslate2", "onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    save(name, tmp_path / "in")
    if name != "vit":
        vocabulary(tmp_path / "in")
    (tmp_path / "in" / "README.md").write_text("trained on tales")
    convert(tmp_path / "in", tmp_path / "out", to)
    readme = (tmp_path / "out" / "README.md").read_text()
    code = readme.partition("```python\n")[2].partition("```")[0]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "out", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert (tmp_path / "out" / "MODEL_CARD.md").read_text() == "trained on tales"


def test_ctranslate2_says_what_it_lacks(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    save("bert", tmp_path / "bert")
    vocabulary(tmp_path / "bert")
    with pytest.raises(ModelError, match="does not support models of the kind Encoder"):
        convert(tmp_path / "bert", tmp_path / "out", "ctranslate2")
    folder = own(tmp_path / "narrow", d_v=3)
    vocabulary(folder)
    with pytest.raises(ModelError, match="values and keys of different widths"):
        convert(folder, tmp_path / "out", "ctranslate2")
    save("gpt2", tmp_path / "gpt2")
    with pytest.raises(DataError, match=r"no tokenizer\.json"):
        convert(tmp_path / "gpt2", tmp_path / "out", "ctranslate2")
    assert not (tmp_path / "out").exists()


def test_a_difference_to_ctranslate2_is_seen(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    save("gpt2", tmp_path / "in")
    vocabulary(tmp_path / "in")
    model, opened = folders.open_model(tmp_path / "in")
    (tmp_path / "out").mkdir()
    vocabularies = ctranslate2.write(tmp_path / "out", tmp_path / "in", model, opened)
    model.stack.blocks[1].feedforward.outer.bias.data[3] += 0.01  # type: ignore[union-attr, operator]
    findings = ctranslate2_check.compare(tmp_path / "out", vocabularies, model, opened)
    assert [finding.verdict for finding in findings] == ["fails"]


# ------------------------------------------------------------------ ONNX


SOON = ("gpt2", "reformer", "vit-mae")


@pytest.mark.parametrize(
    "name", [name if name in SOON else pytest.param(name, marks=pytest.mark.slow) for name in ZOO]
)
def test_onnxruntime_computes_the_same(name: str, tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    save(name, tmp_path / "in")
    if name == "reformer":
        with pytest.raises(ModelError, match="circular chunked attention"):
            convert(tmp_path / "in", tmp_path / "out", "onnx")
        return
    done = convert(tmp_path / "in", tmp_path / "out", "onnx")
    all_hold(done)
    assert {"config.json", "model.onnx"} <= done.files.keys()
    if name == "gpt2":
        model, opened = folders.open_model(tmp_path / "in")
        model.stack.blocks[1].feedforward.outer.bias.data[3] += 0.01  # type: ignore[union-attr, operator]
        assert {finding.verdict for finding in onnx.compare(tmp_path / "out", model, opened)} == {
            "fails"
        }


_LM: dict[str, Any] = {"d_model": 8, "heads": 2, "layers": 1}
OURS = {
    "compressed": preset("gpt2:tiny", 30, 16, memory=5, compressed="4:2", **_LM),
    "convs2s": recurrent.preset("convs2s", "tiny", 30, 30, d_model=8),
    "bytenet": recurrent.preset("bytenet", "tiny", 30, 30, d_model=8),
}


def written(folder: Path, model_spec: Any) -> Path:
    ids = (
        folders.SpecialTokenIds(0, 1, 2, 3)
        if isinstance(model_spec, spec.SequenceToSequence)
        else None
    )
    weights = {name: tensor.detach() for name, tensor in build(model_spec).named_parameters()}
    folder.mkdir()
    write_model(
        folder, folders.ModelFolder(model_spec, weights, ids, folders.describe(model_spec, ids))
    )
    return folder


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) for n in OURS])
def test_onnxruntime_computes_what_no_family_has(name: str, tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    all_hold(convert(written(tmp_path / "in", OURS[name]), tmp_path / "out", "onnx"))


@pytest.mark.parametrize("kind", ["gru", "bahdanau"])
def test_recurrent_models_are_no_graph(kind: str, tmp_path: Path) -> None:
    models = [recurrent.preset(kind, "tiny", 30, 30, d_model=8)]
    models += [preset("gru-lm:tiny", 30, d_model=8)] if kind == "gru" else []  # type: ignore[list-item]
    for i, model_spec in enumerate(models):
        with pytest.raises(ModelError, match="fixed length only"):
            convert(written(tmp_path / f"in{i}", model_spec), tmp_path / "out", "onnx")
        assert not (tmp_path / "out").exists()


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("gpt2", tmp_path / "in")
    vocabulary(tmp_path / "in")
    for package, to in (("ctranslate2", "ctranslate2"), ("onnx", "onnx")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(SettingError, match=f"pip install {package}"):
            convert(tmp_path / "in", tmp_path / "out", to)
    assert sorted(os.listdir(tmp_path)) == ["in"]


# ------------------------------------------------------------------ the command


def regard(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments)


def test_the_command(tmp_path: Path) -> None:
    save("t5", tmp_path / "in")
    done = regard(
        "convert", str(tmp_path / "in"), str(tmp_path / "out"), "--shard-size", "20KB", "--json"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [check["verdict"] for check in report["checks"]] == ["holds", "holds"]
    assert "model.safetensors.index.json" in report["files"]
    for arguments, word in (
        ([str(tmp_path / "in"), str(tmp_path / "out")], "exists"),
        (
            [str(tmp_path / "in"), str(tmp_path / "new"), "--shard-size", "many"],
            "not a file size",
        ),
        ([str(tmp_path / "nowhere"), str(tmp_path / "new")], "not a model or run folder"),
    ):
        done = regard("convert", *arguments)
        assert done.returncode == 2
        assert word in done.stderr
        assert not done.stdout
