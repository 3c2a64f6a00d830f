"""Auxiliary losses of model parts are minimised with the main loss, whatever is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard import spec
from regard.core.block import Block
from regard.core.feedforward import FeedForward
from regard.core.mixture_of_experts import MixtureOfExperts
from regard.training.assembly import assemble
from regard.training.objectives.objective import Objective
from regard.training.recipe import loading
from regard.training.run_folder import begin
from regard.training.setup import Setup
from regard.wirings.decoder import Decoder
from regard.wirings.encoder import Encoder
from regard.wirings.encoder_decoder import EncoderDecoder

SIZES: dict[str, Any] = {
    "preset": "tiny", "d_model": 16, "d_ff": 24, "heads": 2, "layers": 2, "batch_tokens": 256, "steps": 1, "warmup_steps": 1,
    "threads": 1, "device": "cpu", "schedule": "constant", "learning_rate": 0.01,
}  # fmt: skip
TEXT = "".join(f"The {a} dog sees the {b} cat.\nIt runs.\n\n" for a in "abcdefgh" for b in "ijklmn")
OBJECTIVES: dict[str, dict[str, Any]] = {
    "translate": {"builtin_lines": 100, "vocabulary": 300},
    "agreement": {
        "objective": "translate",
        "builtin_lines": 100,
        "vocabulary": 300,
        "r_drop": 1.0,
    },
    "causal": {},
    "memory": {"objective": "causal", "memory": 12},
    "compressed": {"objective": "causal", "memory": 12, "compressed": "4:2"},
    "masked": {},
    "next": {"objective": "masked", "next_sentence": True},
    "span": {},
    "denoise": {},
    "replaced": {},
    "classify": {"builtin_lines": 100, "test_lines": 10, "context": 64},
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "tales.txt"
    path.write_text(TEXT)
    return path


def with_experts(model: nn.Module) -> list[MixtureOfExperts]:
    """Every feed-forward network becomes several."""
    found = []
    for block in [part for part in model.modules() if isinstance(part, Block)]:
        width = next(block.residual.parameters()).shape[0]
        inner = spec.FeedForward(12)
        part = spec.MixtureOfExperts(3, inner, top=1, balance=0.0)
        block.feedforward = MixtureOfExperts(
            part, width, [FeedForward(inner, width) for _ in range(3)]
        )
        found.append(block.feedforward)
    return found


def check(task: Objective) -> None:
    """With a balance, the loss is greater by just what the models said, for each token that the step divides by."""
    torch.manual_seed(0)
    experts = with_experts(task.model)
    task.model.eval()
    _, batch = next(task.batches(0, 0))
    said: list[Tensor] = []
    parts = (Encoder, Decoder, EncoderDecoder)
    for part in [p for p in task.model.modules() if isinstance(p, parts)]:
        part.register_forward_hook(lambda _, __, made: said.append(sum(made[1].values())))  # type: ignore[arg-type]
    torch.manual_seed(0)  # the replaced tokens are drawn
    plain, nll = task.loss(batch.tensors)
    said.clear()
    for expert in experts:
        expert.balance = 7.0
    torch.manual_seed(0)
    loss, again = task.loss(batch.tensors)
    assert sum(said) > 1
    torch.testing.assert_close((loss - plain) / batch.tokens, sum(said), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(again, nll)
    task.model.zero_grad()
    loss.backward()
    assert all(part.router.weight.grad is not None for part in experts)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives(name: str, text: Path, tmp_path: Path) -> None:
    own = {"objective": name} | OBJECTIVES[name]
    if own["objective"] not in ("translate", "classify"):
        own = {"text": str(text), "tokenizer": "characters", "context": 32} | own
    recipe = loading.load(None, SIZES | own)
    check(assemble(Setup(begin(recipe, tmp_path / "run", "test"), recipe, lambda _: None)))


@pytest.mark.parametrize("name", ["classify", "tag", "answer"])
def test_fine_tuning(name: str, text: Path, tmp_path: Path) -> None:
    base = SIZES | {"objective": "masked", "text": str(text), "context": 32, "vocabulary": 300}
    regard.train(base | {"samples": 0}, out=tmp_path / "base")
    nouns = ("dog", "cat", "owl")
    path = tmp_path / ("data.conll" if name == "tag" else "data.jsonl")
    answers = [
        {
            "question": "who?",
            "context": f"the {n} runs",
            "answers": {"text": [n], "answer_start": [4]},
        }
        for n in nouns
    ]
    path.write_text({
        "classify": "".join(json.dumps({"text": f"the {n} runs", "label": n}) + "\n" for n in nouns),
        "tag": "\n".join(f"the O\n{n} B-ANIMAL\nruns O\n" for n in nouns),
        "answer": "".join(json.dumps(row) + "\n" for row in answers),
    }[name])  # fmt: skip
    values = {
        "task": name,
        "base": str(tmp_path / "base"),
        "files": [str(path)],
        "device": "cpu",
        "epochs": 1,
    }
    recipe = loading.load(None, values)
    place = begin(recipe, tmp_path / "run", "test")
    check(assemble(Setup(place, recipe, lambda _: None)))
