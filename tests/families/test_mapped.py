"""Tensors of a file, each mapped by itself: equal to what is stored, and given back as soon as they are given up."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from regard.builder import build, edit
from regard.families.decoders.gpt2 import preset
from regard.families.folder import describe, open_model, write_weights
from regard.system import disk
from regard.system.memory import give_back
from regard.wirings.decoder import Decoder

LINUX = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="what is mapped is asked of Linux"
)
SPEC = preset("tiny", 1000, 64, dropout=0.0)
TABLE = "transformer.wte.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    disk.write_json(tmp_path / "config.json", describe(SPEC))
    write_weights(tmp_path / "model.safetensors", build(SPEC), SPEC)
    return tmp_path


def mappings(path: Path) -> list[int]:
    """Kilobytes in memory of each mapping of this file."""
    result, ours = [], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            result.append(int(line.split()[1]))
    return result


@pytest.mark.parametrize("addresses", ["enough", "limited"])
def test_tensors_are_what_is_stored(
    tmp_path: Path, addresses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8)
    stored = {str(kind): (torch.randn(3, 5, 7) * 50).to(kind) for kind in kinds}
    stored |= {
        "one": torch.tensor(3.0),
        "none": torch.empty(0, 4),
        "truth": torch.tensor([True, False, True]),
    }
    save_file(stored, path)
    if addresses == "limited":
        monkeypatch.setattr(torch, "from_file", _refuse)
    result = disk.mmap_tensors(path)
    assert result.keys() == stored.keys()
    for name, tensor in stored.items():
        assert result[name].dtype == tensor.dtype
        assert torch.equal(result[name], tensor), name
        result[name].zero_()  # private: the file keeps what it has
    assert all(torch.equal(tensor, stored[name]) for name, tensor in load_file(path).items())


def _refuse(*_: object, **__: object) -> Tensor:
    raise RuntimeError("unable to mmap: Cannot allocate memory (12)")


def test_a_file_that_is_replaced_meanwhile_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, plain = folder / "model.safetensors", disk._mmap_tensor

    def slow(*arguments: object) -> Tensor:
        disk.write_file(path, path.read_bytes())
        return plain(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(disk, "_mmap_tensor", slow)
    with pytest.raises(OSError, match="replaced"):
        disk.mmap_tensors(path)


@LINUX
def test_what_is_given_up_is_given_back(folder: Path) -> None:
    path = folder / "model.safetensors"
    result = disk.mmap_tensors(path)
    assert len(mappings(path)) == len(result)
    retained = result[TABLE]
    result.clear()
    assert len(mappings(path)) == 1
    assert torch.equal(retained, load_file(path)[TABLE])


@LINUX
def test_what_was_read_is_forgotten_and_what_was_written_is_not(folder: Path) -> None:
    path = folder / "model.safetensors"
    stored, table = load_file(path)[TABLE].clone(), disk.mmap_tensors(path)[TABLE]
    assert torch.equal(table, stored)
    (before,) = mappings(path)
    disk.drop_pages(table)
    (after,) = mappings(path)
    assert after <= before - 4 * (table.nbytes // 4096 - 1)
    assert torch.equal(table, stored)
    table[500, 3] = 7.0
    disk.drop_pages(table)
    assert table[500, 3] == 7.0
    other = torch.randn(1000, 64)
    for tensor in (other, other.mT, other[:1, :1], torch.empty(0)):
        wanted = tensor.clone()
        disk.drop_pages(tensor)
        assert torch.equal(tensor, wanted)


@LINUX
@pytest.mark.parametrize("precision", ["float32", "int8", "bf16"])
def test_of_frozen_weights_nothing_is_left_in_memory(folder: Path, precision: str) -> None:
    path = folder / "model.safetensors"
    model, stored = open_model(folder)[0], load_file(path)
    turned = [
        name for name in stored if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
    ]
    left = len(stored) - len(turned)  # the table, positions, norms and biases
    del stored
    assert turned
    assert len(mappings(path)) > left
    edit.pack_weights(model, precision)
    gc.collect()
    assert len(mappings(path)) <= left
    assert isinstance(model, Decoder)
    tokens = torch.randint(0, 1000, (3, 9))
    looked_up = functional.embedding(tokens, model.tokens.table.weight)
    assert torch.equal(looked_up, load_file(path)[TABLE][tokens])


def test_freezing_keeps_what_was_learnt_since_the_file_was_opened(folder: Path) -> None:
    model, plain = open_model(folder)[0], open_model(folder)[0]
    assert isinstance(model, Decoder)
    assert isinstance(plain, Decoder)
    before = (folder / "model.safetensors").read_bytes()
    tokens = torch.randint(0, 1000, (2, 8))
    for one in (model, plain):
        one.head(one(tokens)[0]).logsumexp(-1).sum().backward()
        torch.optim.SGD(one.parameters(), 0.1).step()
    edit.pack_weights(model)
    with torch.inference_mode():
        wanted, result = (one.head(one(tokens)[0]) for one in (plain, model))
    assert (wanted - result).abs().max() <= 1e-5 * wanted.abs().max()
    assert torch.equal(model.tokens.table.weight, plain.tokens.table.weight)
    write_weights(folder / "again.safetensors", plain, SPEC)
    assert not torch.equal(
        load_file(folder / "again.safetensors")[TABLE],
        load_file(folder / "model.safetensors")[TABLE],
    )
    assert (folder / "model.safetensors").read_bytes() == before


def test_what_is_opened_is_written_as_it_was(folder: Path) -> None:
    model = open_model(folder)[0]
    write_weights(folder / "again.safetensors", model, SPEC)
    result, wanted = (load_file(folder / f"{name}.safetensors") for name in ("again", "model"))
    assert result.keys() == wanted.keys()
    assert all(result[name].numpy().tobytes() == wanted[name].numpy().tobytes() for name in wanted)


def test_free_memory_can_be_given_back() -> None:
    retained = torch.ones(2**20)
    assert give_back() in (True, False)
    assert retained.sum() == 2**20
