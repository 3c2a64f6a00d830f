"""An objective and a data source defined outside the package, with exact resume.

Numbers are counted in words; the focal loss (Lin et al. 2017) makes easy tokens count less.

Run it: python examples/own_objective.py
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from torch.nn import functional

import regard
from regard.extend import CausalLM

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


@dataclass(frozen=True)
class Counting:
    """Yields pieces of text, by split; stored in the run folder before the first step."""

    until: int = 2000

    def splits(self) -> Mapping[str, Callable[[], Iterator[str]]]:
        return {"train": lambda: self.lines(0), "valid": lambda: self.lines(self.until)}

    def lines(self, first: int) -> Iterator[str]:
        for number in range(first, first + self.until):
            yield " ".join(WORDS[int(digit)] for digit in str(number)) + "\n"


class FocalLM(CausalLM):
    """Language modelling by (1 − p)² · −log p, summed over tokens."""

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        hidden, _ = self.model(tensors["tokens"])  # [B, T, D]
        logits = self.model.head(hidden).float()  # [B, T, V]
        labels = tensors["labels"].flatten()
        nll = functional.cross_entropy(logits.flatten(0, 1), labels, reduction="none")
        focal = (1 - (-nll).exp()).square() * nll
        return focal.sum(), nll.detach().sum()


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else f"{tempfile.mkdtemp()}/run")
    settings = {"tokenizer": "characters", "context": 32, "batch_tokens": 1024}
    settings |= {"steps": 40, "save_every": 10}
    if folder.exists():  # stopped before: goes on where it was, bit for bit
        result = regard.resume(folder, objective=FocalLM, data=Counting())
    else:
        model = "llama:tiny"
        result = regard.train(settings, model=model, data=Counting(), objective=FocalLM, out=folder)
    print(result.scores["validation"])
