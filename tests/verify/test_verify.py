"""The invariants hold for every family, and a model that is broken is seen to be."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import Command
from forked_command import run_command
from regard import spec
from regard.builder import build
from regard.core.caches.kv_cache import KVCache
from regard.core.mixers import scaled_dot_product_attention
from regard.core.positions.positional_encoding import LearnedPosition
from regard.families import folder as folders
from regard.families.encoder_decoders.transformer import transformer
from regard.families.folder import write_model
from regard.families.presets import preset
from regard.lab.verify.invariants import Finding, OutputComparison, check_invariants
from regard.lab.verify.outputs import run
from regard.lab.verify.parity import parity
from regard.lab.verify.random_inputs import random_batch
from regard.system.errors import ModelError
from zoo import ZOO, save

transformers = pytest.importorskip("transformers")

PADDED = (
    "whisper",
    "resnet",
    "vit",
    "deit",
    "dinov2",
    "vit-mae",
    "vit, masked",
    "swin",
    "swin, masked",
    "clip, image",
    "wav2vec2",
    "reformer",
    "siglip",
    "siglip, text",
    "siglip, image",
)  # which cannot be


def opened(name: str, folder: Path) -> tuple[Any, folders.ModelFolder]:
    save(name, folder)
    model, model_folder = folders.open_model(folder)
    return model.double(), model_folder


def verdicts(model: Any, model_folder: folders.ModelFolder) -> dict[str, str]:
    return {finding.name: finding.verdict for finding in check_invariants(model, model_folder)}


@pytest.mark.parametrize("name", ZOO)
def test_every_family_holds(name: str, tmp_path: Path) -> None:
    model, model_folder = opened(name, tmp_path)
    for finding in check_invariants(model, model_folder, seed=3):
        skipped = finding.name == "padded = unpadded" and name in PADDED
        decodes = isinstance(model_folder.spec, (spec.Decoder, spec.EncoderDecoder))
        skipped |= finding.name == "cached = uncached" and (
            not decodes or name in ("reformer", "bart, classes")
        )  # which reads anew; which classifies
        assert finding.verdict == ("skipped" if skipped else "holds"), finding
    finding = parity(tmp_path, model.float(), model_folder)
    assert finding.verdict == "holds", finding
    assert finding.tolerance < 1e-3


def test_a_short_window_is_left_behind(tmp_path: Path) -> None:
    _, model_folder = opened("mistral", tmp_path)
    assert random_batch(model_folder.spec).inputs["input_ids"].shape[1] > 4 + 8


# ------------------------------------------------------------------ what is broken is seen


def one_cache_for_all(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    extend = KVCache.extend
    monkeypatch.setattr(KVCache, "extend", lambda self, k, v: extend(self, k * 1.0001, v))


def rows_that_mix(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    forward = type(model).forward
    monkeypatch.setattr(
        type(model),
        "forward",
        lambda self, *a, **k: (forward(self, *a, **k)[0] + forward(self, *a, **k)[0].mean(0), {}),
    )


def padding_that_is_seen(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    from regard.core.masks import attention_mask
    from regard.core.masks.mask import FullMask

    monkeypatch.setattr(attention_mask, "padding_pattern", lambda padding_mask: FullMask())


def another_kernel(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    for part in model.modules():
        if isinstance(part, scaled_dot_product_attention.SoftmaxAttention):
            part.kernel = lambda q, k, v, mask, scale, dropout, bias=None: (
                scaled_dot_product_attention.fused(q, k, v, mask, scale * 1.001, dropout, bias)
            )


def a_table_that_moves(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    """The rows of a padded batch count their positions from somewhere else."""
    rows = LearnedPosition.rows
    monkeypatch.setattr(
        LearnedPosition, "rows", lambda self, length: rows(self, length).roll(length, 0)
    )


BREAKS: dict[str, tuple[Callable[..., None], str]] = {
    "cached = uncached": (one_cache_for_all, "llama"),
    "batched = single": (rows_that_mix, "bert"),
    "padded = unpadded": (padding_that_is_seen, "bert, classes"),
    "fused = explicit": (another_kernel, "t5"),
}


@pytest.mark.parametrize("invariant", BREAKS)
def test_what_is_broken_is_seen(
    invariant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harm, name = BREAKS[invariant]
    model, model_folder = opened(name, tmp_path)
    assert verdicts(model, model_folder)[invariant] == "holds"
    harm(monkeypatch, model)
    assert verdicts(model, model_folder)[invariant] == "fails"


def test_positions_that_move_with_the_length_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, model_folder = opened("gpt2", tmp_path)
    a_table_that_moves(monkeypatch, model)
    results = verdicts(model, model_folder)
    assert (
        results["cached = uncached"],
        results["padded = unpadded"],
        results["batched = single"],
    ) == (
        "fails",
        "fails",
        "holds",
    )


def test_a_tensor_that_comes_back_otherwise_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.system import disk

    model, model_folder = opened("bert", tmp_path)
    written = disk.write_tensors

    def rounded(path: Path, tensors: dict[str, torch.Tensor]) -> Any:
        return written(path, {n: t.bfloat16().float() for n, t in tensors.items()})

    monkeypatch.setattr(disk, "write_tensors", rounded)
    assert verdicts(model, model_folder)["saved = loaded"] == "fails"


def test_parity_sees_one_changed_weight(tmp_path: Path) -> None:
    model, model_folder = opened("bert", tmp_path)
    model.float().stack.blocks[1].feedforward.outer.bias.data[3] += 1e-3
    assert parity(tmp_path, model, model_folder).verdict == "fails"


def test_nothing_finite_is_no_agreement() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert (
        OutputComparison(1e-5)(
            "x", ("a", torch.ones(2), torch.ones(2)), ("b", nan, torch.ones(2))
        ).verdict
        == "fails"
    )
    assert OutputComparison(1e-5)("x", ("a", torch.ones(2), torch.ones(3))).verdict == "fails"
    assert Finding("x", None, 0.0).verdict == "skipped"


def test_what_a_model_gets_is_what_its_wiring_takes(tmp_path: Path) -> None:
    """A padded row says what it says alone, also where segments go with the tokens."""
    model, model_folder = opened("bert", tmp_path)
    batch = random_batch(model_folder.spec, pad=0, seed=1).padded(0)
    assert set(batch.inputs) == {"input_ids", "token_type_ids", "attention_mask"}
    assert (batch.inputs["input_ids"] == 0).sum() == (batch.inputs["attention_mask"] == 0).sum()
    assert batch.alone(2).inputs["token_type_ids"].shape == (1, batch.lengths[2])
    assert run(model, batch)["last_hidden_state"].row(2).shape == (batch.lengths[2], 36)


# ------------------------------------------------------------------ the command


def regard(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments)


def test_the_command_says_what_it_found_and_fails_if_it_must(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save("t5", folder)
    done = regard("verify", str(folder), "--against", "transformers", "--json", "--seed", "2")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["holds"], report["family"], report["seed"]) == (True, "t5", 2)
    assert [check["name"] for check in report["checks"]] == [
        "here = transformers", "cached = uncached", "batched = single", "padded = unpadded", "fused = explicit",
        "saved = loaded",
    ]  # fmt: skip
    # Not a number anywhere: nothing can be compared with it.
    model_folder = folders.read(folder)
    model_folder.weights["source.table.weight"][:] = float("nan")
    write_model(folder, model_folder)
    done = regard("verify", str(folder))
    assert done.returncode == 2
    assert "source.table.weight holds NaN" in done.stderr


def test_the_exit_code_says_that_an_invariant_fails(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save("llama", tmp_path)
    one_cache_for_all(monkeypatch, None)
    done = command("verify", tmp_path)
    assert done.code == 1
    assert re.search(r"cached = uncached +fails", done.out)


def test_our_own_format_has_no_counterpart(tmp_path: Path) -> None:
    odd = transformer(37, 37, d_model=24, d_ff=40, heads=5, layers=1, d_k=4, d_v=4)
    config = {**folders.describe(odd, folders.SpecialTokenIds(0, 1, 2)), "pad_token_id": 0}
    weights = {name: tensor.detach() for name, tensor in build(odd).named_parameters()}
    write_model(
        tmp_path, folders.ModelFolder(odd, weights, folders.SpecialTokenIds(0, 1, 2), config)
    )
    model, model_folder = folders.open_model(tmp_path)
    assert set(verdicts(model.double(), model_folder).values()) == {"holds"}
    with pytest.raises(ModelError, match="own format"):
        parity(tmp_path, model, model_folder)


@pytest.mark.parametrize(
    "name", ["graph", "graphormer", "memory", "dlinear", "universal", "mixtral"]
)
def test_models_of_other_kinds_hold(name: str, tmp_path: Path) -> None:
    description = preset(f"{name}:tiny", 61, 64)
    torch.manual_seed(0)
    ids = folders.SpecialTokenIds(0, 1, 2)
    (tmp_path / "config.json").write_text(json.dumps(folders.describe(description, ids)))
    folders.write_weights(tmp_path / "model.safetensors", build(description), description)
    model, model_folder = folders.open_model(tmp_path)
    assert set(verdicts(model.double(), model_folder).values()) <= {"holds", "skipped"}
