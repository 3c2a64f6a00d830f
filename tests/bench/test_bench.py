"""The benchmark runs, counts real tokens, and gives peers the same sizes; no test says who is faster."""

from __future__ import annotations

import pytest
import torch

from regard import size
from regard.bench.measure import turns
from regard.bench.peers import TRAINED
from regard.bench.train import Case, run
from regard.family import vaswani


def test_every_contender_is_measured_in_turns() -> None:
    pytest.importorskip("transformers")
    case = Case("tiny", "natural", vocabulary=50, batch_tokens=256, batches=1, rounds=1)
    found = run(case, ["nn.Transformer", "transformers"], torch.device("cpu"))
    assert set(found["contenders"]) == {
        "regard", "nn.Transformer, our batches", "nn.Transformer, its batches", "transformers, our batches",
        "transformers, its batches",
    }  # fmt: skip
    assert all(entry["tokens_per_second"] > 0 for entry in found["contenders"].values())
    assert found["padding"]["ours"] < found["padding"]["theirs"]


@pytest.mark.parametrize("name", ["nn.Transformer", "transformers"])
def test_peers_have_the_same_sizes(name: str) -> None:
    """Up to the biases and norms that some have more of."""
    pytest.importorskip("transformers")
    model = vaswani.preset("tiny", 50, 50, share="all")
    theirs, _ = TRAINED[name](model, torch.device("cpu"))
    count = sum(parameter.numel() for parameter in theirs.parameters() if parameter.requires_grad)
    assert count == pytest.approx(size.parameters(model), rel=0.01)


def test_turns_are_taken_one_after_the_other() -> None:
    order: list[str] = []

    def case(name: str) -> float:
        order.append(name)
        return 3.0

    timings = turns({"a": lambda: case("a"), "b": lambda: case("b")}, 2, torch.device("cpu"))
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert timings["a"].amount == 3.0
    assert len(timings["b"].seconds) == 2
