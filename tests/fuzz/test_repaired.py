"""What fuzzing found: each class of it has a typed error now, or is no error at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import models, pre_tokenizers, processors
from torch.nn import functional

import regard
from regard import spec
from regard.core.dropout import Dropout
from regard.core.masks.attention_mask import AttentionMask
from regard.core.masks.mask import CausalMask
from regard.core.mixers.scaled_dot_product_attention import fused
from regard.data import file_access, labelled, text_files
from regard.data.corpus import MANIFEST
from regard.data.text.tokenizer import Tokenizer
from regard.families.decoders.rope_config import parse_rope
from regard.families.encoder_decoders.fairseq_layout import sinusoid_rules
from regard.families.encoder_decoders.transformer import transformer
from regard.families.encoders import bigbird
from regard.families.folder.files import weight_files
from regard.families.folder.special_tokens import check_token_ids
from regard.families.presets import preset
from regard.families.speech.wav2vec2 import convolutions
from regard.families.tensor_table import Constant
from regard.lab.verify.random_inputs import random_batch
from regard.models.generation_config import generation_defaults
from regard.models.labels import label_names
from regard.studio.model_store import DEMO
from regard.system import disk, memory
from regard.system.checkpoint import Checkpoints, Retention, Snapshots, damage
from regard.system.errors import CheckpointError, DataError, ModelError, RegardError, SettingError
from regard.training import preflight
from regard.training.data.text_sources import Row, StoredRows, stored_rows
from regard.training.diagnostics.run_log import RunLog
from regard.training.engine.metrics_log import last_losses
from regard.training.engine.progress import Progress
from regard.training.entry_points import train
from regard.training.recipe import loading
from regard.training.run import resume
from regard.training.run_folder import read_run

SETTINGS: dict[str, Any] = {
    "preset": "tiny", "d_model": 16, "d_ff": 24, "heads": 2, "layers": 1, "batch_tokens": 64,
    "context": 16, "tokenizer": "characters", "steps": 4, "warmup_steps": 2, "validate_every": 2,
    "save_every": 2, "log_every": 1, "samples": 0, "threads": 1, "device": "cpu",
    "objective": "causal",
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    text = folder / "text.txt"
    text.write_text("the dog sees a cat and the cat sees a dog\n" * 20)
    train({**SETTINGS, "text": str(text)}, out=folder / "run")
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


# --- files that are none --------------------------------------------------------------------------


def test_a_pipe_of_text_is_read_if_somebody_writes(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert list(text_files.lines(path)) == []  # nobody writes: nothing is waited for
    reader, writer = os.pipe()
    os.write(writer, b"one\ntwo\n")
    os.close(writer)
    assert list(text_files.lines(f"/dev/fd/{reader}")) == ["one", "two"]  # as of <(command)
    os.close(reader)


@pytest.mark.parametrize("kind", ["device", "pipe", "huge", "deep", "folder"])
def test_special_files_are_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "config.json"
    match kind:
        case "device":
            path.symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo(path)
        case "huge":
            with path.open("wb") as file:
                file.truncate(2**33)
        case "deep":
            path.write_bytes(b"[" * 100_000)
        case "folder":
            path.mkdir()
    with pytest.raises(DataError):
        disk.read_json(path, DataError)


def test_a_header_of_any_length_is_valid(tmp_path: Path) -> None:
    """The data of a safetensors file may begin off the boundaries of its numbers."""
    path = tmp_path / "x.safetensors"
    save_file({"x": torch.arange(6.0)}, path)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].rstrip() + b" "
    while len(header) % 4 != 1:
        header += b" "
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    assert disk.mmap_tensors(path)["x"].tolist() == list(range(6))


# --- run folders ----------------------------------------------------------------------------------


def test_a_damaged_log_is_read_where_it_can_be(run: Path) -> None:
    metrics = run / "metrics.jsonl"
    before = RunLog.read(metrics)
    losses = last_losses(metrics)
    damage = '{"step": \n[1]\nnull\n{"step": "x", "loss": 1}\n{"loss": 1}\n' + "[" * 100_000 + "\n"
    metrics.write_text(damage + metrics.read_text())
    assert RunLog.read(metrics).losses == before.losses
    assert last_losses(metrics) == losses


@pytest.mark.parametrize("text", ["[]", "{}", "{", '{"name": 3}', "[" * 100_000])
def test_a_damaged_recipe_of_a_run(run: Path, text: str) -> None:
    (run / "state" / "recipe.json").write_text(text)
    with pytest.raises(CheckpointError):
        read_run(run)


@pytest.mark.parametrize(
    "values", [{"step": "x"}, {"x": 1}, {"threads": 10**9}, {"step": -1}, {"window": [1]}]
)
def test_a_damaged_progress(values: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"progress\.json"):
        Progress.from_json(values)


def newest(run: Path) -> Path:
    return sorted((run / "state" / "checkpoints").iterdir())[-1]


def rehash(checkpoint: Path) -> None:
    files = [path for path in checkpoint.iterdir() if path.name != "hashes.json"]
    hashes = {path.name: disk.sha256(path) for path in files}
    (checkpoint / "hashes.json").write_text(json.dumps(hashes))
    assert damage(checkpoint) is None


@pytest.mark.parametrize("group", ["weights", "optimizer"])
@pytest.mark.parametrize("change", ["missing", "shape"])
def test_tensors_of_another_model(run: Path, group: str, change: str) -> None:
    """With hashes that agree: not damaged, but not of this run."""
    path = newest(run) / f"{group}.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("norm.weight"))
    if change == "missing":
        del tensors[name]
    else:
        tensors[name] = tensors[name][:1]
    if group == "optimizer" and name.startswith("step/"):
        tensors = {key: t for key, t in tensors.items() if not key.startswith("exp_avg/")}
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
    rehash(newest(run))
    with pytest.raises(CheckpointError, match="the checkpoint has"):
        resume(run, quiet=True, steps=6)


def test_a_run_goes_on_without_a_damaged_snapshot(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (run / "state" / "snapshots").iterdir():
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    resume(run, steps=6)
    assert "cannot read the best weights" in capsys.readouterr().err


def test_stored_data_that_has_changed(run: Path) -> None:
    path = run / "state" / "data" / "train" / "text.tokens"
    content = bytearray(path.read_bytes())
    content[7] ^= 64
    path.write_bytes(content)
    with pytest.raises(DataError, match="not what was written"):
        resume(run, quiet=True, steps=6)


# --- recipes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "[data]\ntext = []\n",
        "[data]\ngenerated = 1.5\n",
        "[train]\nbetas = [0.9, 1e30]\n",
        '[train]\nfinal_weights = "average:0"\n',
        "[data]\n[data]\n",
    ],
)
def test_strange_recipes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(SettingError):
        loading.load(path, {})


def test_a_name_with_a_null_byte() -> None:
    recipe = loading.load(None, {"text": "a\0b", "objective": "causal"})
    with pytest.raises(DataError, match="null"):
        preflight.check(recipe)


# --- models ---------------------------------------------------------------------------------------


def test_labels_that_are_no_object() -> None:
    with pytest.raises(ModelError, match="id2label"):
        label_names({"id2label": ["a", "b"]}, 2)


def test_a_dropout_that_is_almost_none() -> None:
    q = torch.randn(1, 2, 5, 8)
    mask = AttentionMask(CausalMask(), torch.arange(5), torch.arange(5))
    out = fused(q, q, q, mask, 1.0, 5e-324)
    expected = functional.scaled_dot_product_attention(q, q, q, is_causal=True, scale=1.0)
    assert torch.allclose(out, expected)


def test_all_of_these_are_errors_of_the_package() -> None:
    kinds: list[Callable[..., RegardError]] = [CheckpointError, DataError, ModelError, SettingError]
    assert all(isinstance(kind("a", "b"), RegardError) for kind in kinds)
    assert Checkpoints(Path("/nowhere")).newest(print) is None


# --- words, lines and halves of characters --------------------------------------------------------


@pytest.mark.parametrize(
    "line", ["[train]\nobjective = 5", "[tune]\ntask = [1]", "[model]\nmodel = 7",
             "[model]\nmodel = [1]", "[data]\ngenerated = 3", "[tune]\nbase = 1979-05-27"]
)  # fmt: skip
def test_what_decides_defaults_is_a_word(tmp_path: Path, line: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(line)
    with pytest.raises(SettingError, match="valid string"):
        loading.load(path, {})


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_access, "LONGEST_LINE", 1 << 20)
    with pytest.raises(DataError, match="a line of more than 1 MiB"):
        next(text_files.lines("/dev/zero"))


@pytest.mark.parametrize("name", [["linear"], {"a": 1}, 3, None])
def test_a_kind_that_is_no_word_is_unknown(name: Any) -> None:
    values = {"rope_theta": 1e4, "rope_scaling": {}, "rope_parameters": {"rope_type": name}}
    with pytest.raises(ModelError, match=r"rope_type .* is not supported"):
        parse_rope(values)
    config = {"hidden_act": name, "architectures": ["BigBirdModel"], "vocab_size": 9}
    if name is not None:
        with pytest.raises(ModelError):
            bigbird.to_spec(config)


@pytest.mark.parametrize("name", ["metrics.jsonl", "state/lock"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(run: Path, name: str) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    with pytest.raises(RegardError):
        resume(run, quiet=True, steps=5)


def test_dropout_of_everything_is_zero() -> None:
    x = torch.randn(5, 7, requires_grad=True)
    y = Dropout(1.0).train()(x)
    y.sum().backward()
    assert not y.any()
    assert x.grad is not None
    assert not x.grad.any()


def test_half_a_character_in_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(r'{"a": "\ud83d\ude00"}')
    assert disk.read_json(path, ModelError) == {"a": "\N{GRINNING FACE}"}
    path.write_text(r'{"a": "\ud800"}')
    with pytest.raises(ModelError, match="half a character"):
        disk.read_json(path, ModelError)
    path.write_text(r'{"text": "a", "label": "\ud800"}')
    with pytest.raises(DataError, match="half a character"):
        list(labelled.labelled_texts(path))


def test_a_score_that_is_no_number_ranks_no_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, Retention(last=1, best=1))
    for step, score in ((1, 2.0), (2, "2"), (3, 10**400), (4, 3.0)):
        checkpoints.save(step, {"weights": {"w": torch.zeros(1)}}, {"score": score})
    assert sorted(int(path.name[5:]) for path in tmp_path.iterdir()) == [1, 4]


# --- numbers out of bounds ------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [-0.1, 1.1])
def test_a_dropout_that_is_no_probability(rate: float) -> None:
    with pytest.raises(ModelError, match=r"SoftmaxAttention.dropout cannot be .*\n.*from 0 to 1"):
        spec.SoftmaxAttention(dropout=rate)


@pytest.mark.parametrize(
    "line",
    [
        f"[train]\nseed = {2**63}\n",
        f"[tune]\nlora = {10**30}\n",
        f"[train]\nsteps = {2**31}\n",
        f"[model]\nlayers = {10**25}\n",
    ],
)
def test_numbers_of_a_recipe_that_overflow(tmp_path: Path, line: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(line)
    with pytest.raises(SettingError, match=line.split()[1]):
        loading.load(path, {})


@pytest.mark.parametrize("name", ["examples", "full", "labels"])
def test_a_manifest_of_rows_that_lacks_a_note(tmp_path: Path, name: str) -> None:
    def rows(some: Sequence[list[int]]) -> list[Row]:
        return [Row(ids, [0] * len(ids), [1]) for ids in some]

    def open_rows() -> StoredRows:
        return stored_rows(
            tmp_path / "rows", [[1, 2], [3]], rows, max_length=8, id_type="uint16", workers=0
        )

    assert len(open_rows()) == 2
    path = tmp_path / "rows" / MANIFEST
    manifest = json.loads(path.read_text())
    del manifest["about"][name]
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=f"damaged: {name} of"):
        open_rows()


def test_a_list_of_no_end_token(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="eos_token_id is \\[None\\], not a token id"):
        check_token_ids({"eos_token_id": [None]}, "config.json")
    check_token_ids({"eos_token_id": None, "pad_token_id": -1}, "config.json")


def test_a_log_that_no_run_writes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with path.open("wb") as file:
        file.truncate(2**40)  # a hole: it takes no room
    with pytest.raises(DataError, match="bytes are too many"):
        last_losses(path)


def test_a_shard_that_is_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.safetensors")
    disk.write_json(
        tmp_path / "model.safetensors.index.json", {"weight_map": {"x": "a.safetensors"}}
    )
    with pytest.raises(CheckpointError, match="is not a regular file"):
        weight_files(tmp_path)


def test_a_token_that_the_model_lacks(finished: Path, tmp_path: Path) -> None:
    """Its text is refused, others are not: a tokenizer may have more tokens than its model."""
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    assert "d" in vocabulary
    vocabulary["d"] = 1000
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    model = regard.load(folder, device="cpu")
    with pytest.raises(DataError, match="'d' under 1,000, and the model has"):
        model.generate("the dog", max_new_tokens=2)
    assert isinstance(model.generate("the cat", max_new_tokens=2), str)


def test_inputs_that_no_memory_holds() -> None:
    model = preset("wav2vec2:tiny", 32)
    assert isinstance(model, spec.Encoder)
    assert isinstance(model.input, spec.Waveform)
    layer = replace(model.input.convolutions[0], kernel=2**20, stride=2**20)
    front_end = replace(model.input, convolutions=(layer, layer))
    model = replace(model, input=front_end)
    with pytest.raises(ModelError, match="inputs of shape"):
        random_batch(model, 0)


def test_a_template_with_ids_of_its_own() -> None:
    """Its ids need not be those of the vocabulary."""
    backend = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "[CLS]": 1, "a": 2}, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing("[CLS] $A", None, [("[CLS]", 7)])
    tokenizer = Tokenizer(backend).for_model(3)
    with pytest.raises(DataError, match="under 7, and the model has 3 tokens"):
        tokenizer.input_ids("a")


def test_threads_whose_stacks_do_not_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "available", lambda: 10**9)
    memory.require_threads(100)
    text = tmp_path / "text.txt"
    text.write_text("the dog sees a cat\n" * 20)
    with pytest.raises(ModelError, match=r"stacks of 1,000 threads take 8\.4 GB"):
        train({**SETTINGS, "text": str(text), "threads": 1000}, out=tmp_path / "run")


def test_a_snapshot_that_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(path: Path) -> bool:
        raise MemoryError("Cannot allocate memory (os error 12)")

    monkeypatch.setattr(disk, "is_altered", no_memory)
    snapshots = Snapshots(tmp_path)
    assert snapshots.damage(3, {}) == f"{snapshots.path(3).name} is missing or damaged"


def test_more_convolutions_than_have_sizes() -> None:
    """Counted before a list of so many is made."""
    values = dict.fromkeys(("conv_dim", "conv_kernel", "conv_stride"), (8, 8))
    with pytest.raises(ModelError, match="need 1000000000000 sizes each"):
        convolutions({**values, "num_feat_extract_layers": 10**12, "feat_extract_norm": "layer"})


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("config.json", "decoder_start_token_id"),
        ("generation_config.json", "forced_bos_token_id"),
    ],
)
def test_a_first_token_that_the_model_lacks(tmp_path: Path, file: str, key: str) -> None:
    folder = Path(shutil.copytree(DEMO, tmp_path / "demo"))
    config = disk.read_json_object(folder / file, ModelError)
    disk.write_json(folder / file, {**config, key: 10**9})
    with pytest.raises(ModelError, match=f"{key} = 1,000,000,000 is outside the vocabulary"):
        regard.load(folder, device="cpu")


def test_ends_and_starts_that_a_language_model_lacks(finished: Path, tmp_path: Path) -> None:
    """They never come; a prompt that has to begin with one is refused."""
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    config = disk.read_json_object(folder / "config.json", ModelError)
    changes = {"eos_token_id": [10**9], "bos_token_id": 10**9}
    disk.write_json(folder / "config.json", {**config, **changes})
    (folder / "generation_config.json").unlink(missing_ok=True)
    model = regard.load(folder, device="cpu")
    assert isinstance(model.generate("the cat", max_new_tokens=3), str)
    with pytest.raises(DataError, match="the prompt is empty"):
        model.generate("", max_new_tokens=3)


def test_a_word_in_the_place_of_true() -> None:
    with pytest.raises(ModelError, match="do_sample"):
        generation_defaults({"do_sample": "yes"}, {}, frozenset())


def test_positions_whose_sinusoids_no_memory_holds() -> None:
    rule = sinusoid_rules(transformer(50, 50, d_model=16, heads=2), 2**40, written=False)[0]
    assert isinstance(rule, Constant)
    with pytest.raises(ModelError, match="sinusoids of 1,099,511,627,776 positions take"):
        rule.make()
