"""ViLT against transformers: outputs with and without masks, images of odd sizes, tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_vision import close
from torch import Tensor

import regard
from regard import spec
from regard.builder import trainable
from regard.builder.parameter_count import parameter_count
from regard.families import folder as folders
from regard.system.errors import ModelError
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 41,
    "hidden_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 21,
    "image_size": 30,
    "patch_size": 7,
    "num_channels": 2,
    "max_position_embeddings": 12,
    "num_labels": 5,
}
KINDS = ("ViltModel", "ViltForQuestionAnswering")
WORDS = 6


def theirs(kind: str, seed: int, out: Path) -> Any:
    torch.manual_seed(seed)
    model = getattr(transformers, kind)(transformers.ViltConfig(**SIZES)).eval()
    perturb(model, 0.1)
    model.save_pretrained(out)
    return model


def batches() -> dict[str, dict[str, Tensor]]:
    """Images of the model's size, and padded ones of several sizes beside texts of several."""
    ids = torch.randint(0, 41, (3, WORDS))
    pixel_mask = torch.zeros(3, 45, 38, dtype=torch.long)
    attention_mask = torch.ones(3, WORDS, dtype=torch.long)
    for row, (height, width, words) in enumerate([(45, 20, 4), (15, 38, 6), (30, 31, 2)]):
        pixel_mask[row, :height, :width] = 1
        attention_mask[row, words:] = 0
    return {
        "plain": {"input_ids": ids, "pixel_values": torch.randn(3, 2, 30, 30)},
        "masked": {
            "input_ids": ids,
            "pixel_values": torch.randn(3, 2, 45, 38) * pixel_mask[:, None],
            "pixel_mask": pixel_mask,
            "attention_mask": attention_mask,
            "token_type_ids": torch.randint(0, 2, (3, WORDS)),
        },
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_open_run_and_write_back(kind: str, seed: int, tmp_path: Path) -> None:
    model = theirs(kind, seed, tmp_path / "theirs")
    loaded = regard.load(tmp_path / "theirs")
    assert isinstance(loaded, regard.VisualQuestionModel)
    assert trainable(loaded.model) == parameter_count(loaded.spec)
    assert spec.from_dict(spec.to_dict(loaded.spec)) == loaded.spec
    for inputs in batches().values():
        shown = inputs.get("attention_mask", torch.ones(3, WORDS)).bool()
        with torch.inference_mode():
            wanted, result = model(**inputs), loaded(**inputs)
        assert [*result] == [*wanted]
        for key, value in result.items():
            other = wanted[key]
            if key == "last_hidden_state":
                # transformers shuffles the patches, and leaves some padding out.
                assert close(value[:, WORDS], other[:, WORDS])
                value, other = value[:, :WORDS][shown], other[:, :WORDS][shown]
            assert close(value, other), key

    loaded.save(tmp_path / "ours")
    before, after = (load_file(tmp_path / at / "model.safetensors") for at in ("theirs", "ours"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    configs = [json.loads((tmp_path / at / "config.json").read_text()) for at in ("theirs", "ours")]
    for config in configs:
        for key in ("transformers_version", "dtype"):
            config.pop(key, None)
    assert configs[0] == configs[1]


@pytest.mark.parametrize("change", [{"max_image_length": 9}, {"num_images": 2}])
def test_what_is_not_supported(change: dict[str, int], tmp_path: Path) -> None:
    theirs("ViltModel", 0, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match=next(iter(change))):
        folders.peek(tmp_path)
