"""A small Evoformer (Jumper et al. 2021) that fills in masked residues of alignments.

Generated: columns of letters in pairs that co-vary as A with U and C with G, other pairs in every
alignment. Who finds the pairs knows the masked letters, and attention shows which ones it found.
Real: the sequences of a protein family in an .a3m file, of which a tenth is kept for the end.

Run it: python examples/alignment.py [generated | FILE.a3m.gz] [STEPS]
With 1,000 steps, some minutes, it finds the pairs; without, it shows how it is done.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import regard
from regard import spec
from regard.core.context import Context
from regard.core.probe import Probe
from regard.data.batching import Batch, Rows
from regard.data.corruption import mask_tokens
from regard.data.text_files import lines
from regard.extend import MaskedLM

COMPLEMENT = {"A": "U", "U": "A", "C": "G", "G": "C"}


class Covarying:
    """Alignments of some sequences over paired columns, one a line, sequence after sequence."""

    columns = 12

    def __init__(self, sequences: int, alignments: int) -> None:
        self.sequences = sequences
        self.alignments = alignments

    def splits(self) -> Mapping[str, Callable[[], Iterator[str]]]:
        return {
            "train": lambda: self.lines(1, self.alignments),
            "valid": lambda: self.lines(2, 200),
        }

    def lines(self, seed: int, count: int) -> Iterator[str]:
        random = np.random.default_rng(seed)
        for _ in range(count):
            yield self.draw(random)[0] + "\n"

    def draw(self, random: np.random.Generator) -> tuple[str, np.ndarray[Any, Any]]:
        """An alignment, and its pairs [columns / 2, 2]."""
        pairs = random.permutation(self.columns).reshape(-1, 2)
        letters = random.choice(list(COMPLEMENT), (self.sequences, self.columns))
        for first, second in pairs:
            letters[:, second] = [COMPLEMENT[letter] for letter in letters[:, first]]
        return "".join(letters.flatten()), pairs


class Family:
    """Alignments of randomly chosen sequences of one family; insertions are left out."""

    def __init__(self, path: str, sequences: int, alignments: int) -> None:
        self.sequences = sequences
        self.alignments = alignments
        aligned = ["".join(c for c in line if not c.islower()) for line in lines(path)]
        rows = list(dict.fromkeys(row for row in aligned if row and row[0] != ">"))
        self.columns = len(rows[0])
        order = np.random.default_rng(0).permutation(len(rows))
        chosen = [rows[number] for number in order]
        self.held_out, self.known = np.split(np.array(chosen), [len(rows) // 10])

    def splits(self) -> Mapping[str, Callable[[], Iterator[str]]]:
        return {
            "train": lambda: self.lines(1, self.known, self.alignments),
            "valid": lambda: self.lines(2, self.held_out, 50),
        }

    def lines(self, seed: int, rows: np.ndarray[Any, Any], count: int) -> Iterator[str]:
        random = np.random.default_rng(seed)
        for _ in range(count):
            yield "".join(random.choice(rows, self.sequences, replace=False)) + "\n"

    def baseline(self) -> float:
        """How often the most frequent residue of a column is right."""
        known = [Counter(column).most_common(1)[0][0] for column in zip(*self.known, strict=True)]
        right = [a == b for row in self.held_out for a, b in zip(row, known, strict=True)]
        return 100 * sum(right) / len(right)


class MaskedAlignments(MaskedLM):
    """Some residues of each alignment are masked; no token stands before or behind it."""

    def collate(self, split: str, rows: Rows, position: tuple[int, int] = (0, 0)) -> Batch:
        tokens, labels = [], []
        for row in rows:
            visible, hidden = mask_tokens(
                self.source.row(split, int(row))[0],
                self.random_numbers(position[0], int(row)),
                share=self.corrupted_share,
                token=self.tokenizer.required_token_id("mask"),
                ordinary=self.masking.ordinary_ids,
                rates=self.rates,
            )
            tokens.append(torch.from_numpy(visible))
            labels.append(torch.from_numpy(hidden))
        tensors = {"tokens": torch.stack(tokens), "labels": torch.stack(labels)}
        tensors["padding_mask"] = torch.ones_like(tensors["tokens"], dtype=torch.bool)
        return Batch(tensors, int((tensors["labels"] >= 0).sum()), np.asarray(rows))


def evoformer(columns: int, layers: int = 3, d_model: int = 32, pairs: int = 16) -> spec.Encoder:
    """Gated attention of four heads along sequences and columns, and of two heads over pairs."""
    attention = spec.Attention(4, d_model // 4, d_model // 4, bias="o")
    over_pairs = spec.Attention(2, pairs // 2, pairs // 2, bias="o")
    feedforward = spec.FeedForward(4 * d_model)
    block = spec.Block(attention, feedforward, residual=spec.PreNorm(), dropout=0.0)
    scheme = spec.Evoformer(pairs, over_pairs, spec.FeedForward(2 * pairs), pairs, outer=8)
    # A token for each residue, and those of the objective: the gap, the mask, what is unknown, ….
    tokens = spec.Tokens(40, position=None, dropout=0.0, columns=columns)
    stack = spec.Stack.of(layers, block, final=block.norm, scheme=scheme)
    return spec.Encoder(d_model, tokens, stack, (spec.LMHead(),))


def train(data: Covarying | Family, out: Path, **settings: Any) -> Any:
    positions = data.sequences * data.columns
    settings = {
        "tokenizer": "characters",
        "context": positions + 2,  # a line is a row, as if it were framed
        "batch_tokens": 8 * positions,
        "optimizer": "adamw",
        "schedule": "cosine",
        "learning_rate": 0.003,
        "warmup_steps": 50,
        "init": "xavier",
        "max_grad_norm": 1.0,
        "label_smoothing": 0.0,
        "validate_every": 300,
        "save_every": 10_000,
        "samples": 0,
    } | settings
    model = evoformer(data.columns)
    return regard.train(settings, model=model, data=data, objective=MaskedAlignments, out=out)


def pairs_by_attention(model: Any, alignment: str, columns: int) -> torch.Tensor:
    """[columns, columns]: how much two columns attend to each other, beyond what each does."""
    tokens = torch.tensor([model.tokenizer.encode(alignment)], device=model.device)
    probe = Probe(["encoder.*.self"])
    with torch.inference_mode():
        model.model(tokens, None, Context(probe=probe))
    names = list(probe.attentions)
    weights = probe.weights(names[-1])[0].mean(dim=0)  # [positions, positions]
    blocks = weights.unflatten(0, (-1, columns)).unflatten(2, (-1, columns))
    found = torch.einsum("sisj->ij", blocks).cpu()  # inside each sequence
    found = (found + found.T).fill_diagonal_(0)
    # Average product correction (Dunn et al. 2008).
    return found - found.sum(0, keepdim=True) * found.sum(1, keepdim=True) / found.sum()


def share_of_pairs(model: Any, data: Covarying, alignments: int = 50) -> float:
    """The share of true pairs among the most attended ones of new alignments."""
    random = np.random.default_rng(3)
    right = 0
    for _ in range(alignments):
        alignment, pairs = data.draw(random)
        found = pairs_by_attention(model, alignment, data.columns).triu(diagonal=1)
        best = found.flatten().topk(len(pairs)).indices.tolist()
        true = {tuple(sorted(pair)) for pair in pairs.tolist()}
        right += sum(divmod(place, data.columns) in true for place in best)
    return 100 * right / (alignments * data.columns // 2)


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp())
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    if len(sys.argv) > 1 and sys.argv[1] != "generated":
        for depth in (1, 16):
            family = Family(sys.argv[1], depth, 4000 // depth)
            result = train(family, folder / f"family{depth}", steps=steps)
            print(f"alignments of {depth}:", result.scores["validation"])
        print(f"the most frequent residue of a column: {family.baseline():.1f} %")
    else:
        covarying = Covarying(sequences=24, alignments=4000)
        result = train(covarying, folder / "covarying", steps=steps)
        model = regard.load(result.folder)
        print(result.scores["validation"])
        print(f"pairs found by attention: {share_of_pairs(model, covarying):.0f} %")
