"""Every family refuses a bad folder with an error that says what to do, before anything is allocated or executed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import models

from regard import models as api
from regard import spec
from regard.builder import build
from regard.families import folder as folders
from regard.families.encoder_decoders.transformer import transformer
from regard.families.folder import write_model
from regard.system import disk, memory
from regard.system.errors import CheckpointError, DataError, ModelError
from zoo import ZOO, save

pytest.importorskip("transformers")
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module", params=ZOO)
def good(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    save(request.param, folder)
    return folder


def copy(
    good: Path, out: Path, tensors: dict[str, torch.Tensor] | None = None, **changes: Any
) -> Path:
    """The folder with other tensors, or other keys in its config."""
    config = json.loads((good / "config.json").read_text())
    disk.write_json(out / "config.json", {**config, **changes})
    save_file(load_file(good / WEIGHTS) if tensors is None else tensors, out / WEIGHTS)
    return out


def test_tensors_that_are_missing_extra_or_misshapen(good: Path, tmp_path: Path) -> None:
    tensors = load_file(good / WEIGHTS)
    matrices = [name for name, tensor in tensors.items() if tensor.ndim == 2]
    name = matrices[len(matrices) // 2]  # somewhere in the blocks
    for bad, word in (
        ({key: tensor for key, tensor in tensors.items() if key != name}, "lacks"),
        ({**tensors, "model.surprise.weight": torch.zeros(2)}, "surprise"),
        ({**tensors, name: torch.zeros(3, 5)}, "shape"),
        ({**tensors, name: tensors[name].to(torch.int8)}, "int8"),
    ):
        with pytest.raises(ModelError, match=word) as caught:
            folders.open_model(copy(good, tmp_path, bad))
        assert caught.value.repair


def test_files_that_are_cut(good: Path, tmp_path: Path) -> None:
    copy(good, tmp_path)
    content = (good / WEIGHTS).read_bytes()
    for part in (content[: len(content) // 2], content[:-1], content[:9], b""):
        (tmp_path / WEIGHTS).write_bytes(part)
        with pytest.raises(CheckpointError, match="damaged or incomplete"):
            folders.open_model(tmp_path)


def test_code_and_pickles_are_refused(good: Path, tmp_path: Path) -> None:
    (tmp_path / "modeling_evil.py").write_text("raise SystemExit('executed')")
    with pytest.raises(ModelError, match="auto_map"):
        folders.open_model(copy(good, tmp_path, auto_map={"AutoModel": "modeling_evil.Evil"}))
    copy(good, tmp_path)
    (tmp_path / WEIGHTS).rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safe_serialization"):
        folders.open_model(tmp_path)
    assert folders.peek(tmp_path).spec is not None  # what it describes can be shown


def test_what_does_not_fit_is_refused_before_it_is_taken(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Path] = []
    monkeypatch.setattr(disk, "mmap_tensors", lambda path: loaded.append(path))
    monkeypatch.setattr(memory, "available", lambda: 10_000)
    with pytest.raises(ModelError, match=r"KB of memory, and 10\.0 KB are free") as caught:
        folders.open_model(good)
    assert "smaller model" in caught.value.repair
    assert not loaded


# ------------------------------------------------------------------ one is enough


def test_a_fresh_model_that_does_not_fit_is_refused_too() -> None:
    # Sinusoids are a table of 512 × d_model even on the meta device: a wider one takes gigabytes.
    with pytest.raises(ModelError, match="TB of memory"):
        build(transformer(37, 37, d_model=2_000_000, heads=8))


def test_sizes_of_memory_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    7000 kB\n")
    for name, value in {"memory.max": "6000000", "memory.current": "3000000"}.items():
        (tmp_path / name).write_text(value + "\n")
    (tmp_path / "memory.stat").write_text("anon 1000000\ninactive_file 1500000\nactive_file 3\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.available() == 4_500_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available() == 7000 * 1024
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "nowhere")
    assert memory.available() is None
    memory.require(10**30, "anything")
    assert [memory.amount(n) for n in (12, 1500, 252_329_984, 10**13)] == [
        "12 bytes",
        "1.5 KB",
        "252.3 MB",
        "10.0 TB",
    ]


def test_one_altered_byte_is_seen_in_what_we_wrote(tmp_path: Path) -> None:
    save("gpt2", tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    write_model(tmp_path / "ours", folders.read(tmp_path / "theirs"))
    path = tmp_path / "ours" / WEIGHTS
    with safe_open(path, "pt") as file:
        assert "sha256" in file.metadata()
    raw = bytearray(path.read_bytes())
    raw[-100] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match="not what was written"):
        folders.open_model(tmp_path / "ours")


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("llama", {"model_type": "llamma"}, "did you mean 'llama'"),
        ("llama", {"model_type": "llama4"}, "known: albert.* llama,"),  # no slip of typing
        ("bert", {"model_type": "modernbert"}, r"known: .*llama"),
        ("gpt2", {"model_type": "mamba"}, "known: .*llama"),
        ("llama", {"architectures": ["LlamaForMultipleChoice"]}, "ForCausalLM.*LlamaModel"),
        ("bart", {"architectures": ["BartForTokenClassification"]}, "ForConditionalGeneration"),
        (
            "bert, classes",
            {"architectures": ["BertForObjectDetection"]},
            "known: .*BertForMaskedLM",
        ),
        ("vit", {"architectures": ["ViTForDepth"]}, "known: ViTModel, .*ForMaskedImageModeling"),
        ("clip", {"architectures": ["CLIPForImageClassification"]}, "CLIPModel"),
        ("wav2vec2", {"architectures": ["Wav2Vec2ForXVector"]}, "Wav2Vec2For"),
        ("deberta", {"architectures": ["DebertaV2ForObjectDetection"]}, "DebertaV2For"),
    ],
)
def test_what_is_not_supported_names_what_is(
    family: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    save(family, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    disk.write_json(tmp_path / "config.json", {**config, **changes})
    with pytest.raises(ModelError, match=words):
        folders.open_model(tmp_path)


def test_a_tokenizer_that_makes_its_library_panic(tmp_path: Path) -> None:
    """An error, no abort; and for other files that are none."""
    save("marian", tmp_path)
    good = tokenizers.Tokenizer(
        models.WordLevel({"<pad>": 0, "</s>": 1, "<unk>": 2}, unk_token="<unk>")
    ).to_str()
    broken = json.loads(good)
    broken["post_processor"] = {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
                                "pair": [], "special_tokens": {}}  # fmt: skip
    unigram = json.loads(good)
    unigram["model"] = {
        "type": "Unigram",
        "unk_id": 7,
        "vocab": [["a", -1.0]],
        "byte_fallback": False,
    }
    panics = {
        **json.loads(good),
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    }
    for text in (
        json.dumps(panics),
        json.dumps(broken),
        json.dumps(unigram),
        good[: len(good) // 2],
        "[]",
        "",
        "\x00",
    ):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(DataError, match="tokenizer"):
            api.load(tmp_path)


def test_nothing_of_a_folder_is_executed(tmp_path: Path) -> None:
    """Every file that Python or a library could run leaves its mark; none does."""
    folder = tmp_path / "model"
    save("gpt2", folder)
    mark = tmp_path / "executed"
    code = f"open({str(mark)!r}, 'w').write('x')\n"
    for name in (
        "modeling_gpt2.py",
        "configuration_gpt2.py",
        "tokenization_gpt2.py",
        "__init__.py",
    ):
        (folder / name).write_text(code)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["tokenization_gpt2.X", None]}})
    )
    for arguments in (
        ["show", str(folder)],
        ["verify", str(folder), "--against", "transformers"],
        ["convert", str(folder), str(tmp_path / "out")],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "regard", *arguments], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert not mark.exists()
    assert not list((tmp_path / "out").glob("*.py"))


def test_a_config_of_our_own_can_be_shown_without_weights(tmp_path: Path) -> None:
    model_spec = transformer(
        37, 37, d_model=24, heads=3, layers=1, position=spec.LearnedPosition(9)
    )
    disk.write_json(
        tmp_path / "config.json", folders.describe(model_spec, folders.SpecialTokenIds(0, 1, 2))
    )
    assert folders.peek(tmp_path).spec == model_spec
    with pytest.raises(ModelError, match="holds no model"):
        folders.open_model(tmp_path)
