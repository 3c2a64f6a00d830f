"""Table 3 of the paper: variations of the Transformer, run small, beside the printed rows."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from regard.builder.parameter_count import parameter_count
from regard.families.presets import preset
from regard.lab.study.figure import Table, column, deviation, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.lab.study.training_run import (
    Pairs,
    Vocabulary,
    bleu,
    builtin_sentences,
    builtin_vocabulary,
    evaluate,
    pair_batches,
    trained,
    words_of,
)
from regard.look.drawing import Axis, BarChart, Bars, Figure

BASE: dict[str, Any] = {"d_model": 32, "d_ff": 128, "heads": 4, "layers": 2, "dropout": 0.1}
SMOOTHING = 0.1


class Row(NamedTuple):
    """A row of the table: what is changed here, and what the paper printed."""

    changes: dict[str, Any]
    perplexity: float  # of the paper's development set, newstest2013
    bleu: float
    smoothing: float = SMOOTHING
    quick: bool = False  # whether a quick study has it


# The paper's base has h = 8, d_k = 64, N = 6, d_model = 512, d_ff = 2048, dropout and ε 0.1.
ROWS: dict[str, Row] = {
    "base": Row({}, 4.92, 25.8, quick=True),
    "(A) one head": Row({"heads": 1}, 5.29, 24.9, quick=True),
    "(A) half as many heads": Row({"heads": 2}, 5.00, 25.5),
    "(A) twice as many heads": Row({"heads": 8}, 4.91, 25.8),
    "(B) d_k a quarter": Row({"d_k": 2}, 5.16, 25.1, quick=True),
    "(B) d_k half": Row({"d_k": 4}, 5.01, 25.4),
    "(C) a third of the layers": Row({"layers": 1}, 6.11, 23.7, quick=True),
    "(C) twice the layers": Row({"layers": 4}, 4.88, 25.5),
    "(C) half the width": Row({"d_model": 16, "d_k": 4}, 5.75, 24.5, quick=True),
    "(C) twice the width": Row({"d_model": 64, "d_k": 16}, 4.66, 26.0),
    "(C) half of d_ff": Row({"d_ff": 64}, 5.12, 25.4),
    "(C) twice d_ff": Row({"d_ff": 256}, 4.75, 26.2),
    "(D) no dropout": Row({"dropout": 0.0}, 5.77, 24.6, quick=True),
    "(D) dropout 0.2": Row({"dropout": 0.2}, 4.95, 25.5),
    "(D) no smoothing": Row({}, 4.67, 25.3, smoothing=0.0, quick=True),
    "(D) smoothing 0.2": Row({}, 5.47, 25.7, smoothing=0.2),
    "(E) learned positions": Row({"position": "learned"}, 4.92, 25.7, quick=True),
}


class Ablation(Study):
    name = "ablation"
    claim = (
        "Varying the base model changes quality as in Table 3: one head and small keys hurt, "
        "bigger models are better, dropout helps, learned positions are nearly identical."
    )
    source = "Vaswani et al. 2017, Table 3, rows (A) to (E)"
    measurement = (
        "A small base model (2 + 2 layers of width 32, 4 heads) and its variations on the built-in "
        "language, or on Multi30k where $REGARD_DATA has it: held-out perplexity and BLEU of "
        "greedy translations, beside the paper's perplexity and BLEU on newstest2013."
    )
    rule = (
        "A row agrees if its perplexity moves against the base as printed: up, down, or by less "
        "than 2 % and the standard deviation over the seeds on either side. Holds if 80 % of the "
        "rows agree, within limits from 50 % on."
    )
    quick_seeds = 1
    full_seeds = 2

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        steps = effort.choose(80, 1500)
        names = [name for name, row in ROWS.items() if row.quick or not effort.quick]
        runs = effort.each(progress, names, lambda name, seed: _scores(ROWS[name], seed, steps))
        scores = {
            name: {key: column(of_row, key) for key in ("perplexity", "bleu")}
            for name, of_row in runs.items()
        }
        parameters = {name: parameter_count(_model(ROWS[name])) for name in names}
        return {"data": corpus().name, "scores": scores, "parameters": parameters}

    def verdict(self, numbers: Numbers) -> Verdict:
        rows = {name: one["perplexity"] for name, one in numbers["scores"].items()}
        base = mean(rows["base"])
        # Two per cent of the base: about what one seed differs from another.
        noise = max(0.02 * base, max(deviation(values) for values in rows.values()))
        agree: list[str] = []
        differ: list[str] = []
        for name, values in rows.items():
            if name == "base":
                continue
            here = _direction(mean(values) - base, noise)
            # 2 % of the paper's base perplexity, as there is one printed value for each row.
            printed = _direction(ROWS[name].perplexity - ROWS["base"].perplexity, 0.02 * 4.92)
            (agree if here == printed else differ).append(name)
        share = len(agree) / (len(agree) + len(differ))
        reason = (
            f"{len(agree)} of {len(agree) + len(differ)} rows move as printed (base perplexity "
            f"{base:.2f} on {numbers['data']}); others: {', '.join(differ) or 'none'}."
        )
        return judge(share >= 0.8, share >= 0.5, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        scores = numbers["scores"]
        base = mean(scores["base"]["perplexity"])
        names = [name for name in scores if name != "base"]
        here = [[v / base for v in scores[name]["perplexity"]] for name in names]
        # Ratios, because perplexities of other vocabularies cannot be compared.
        printed = [[ROWS[name].perplexity / ROWS["base"].perplexity] for name in names]
        series = [Bars("here", here), Bars("the paper", printed)]
        title = "Perplexity relative to the base model"
        return [BarChart(title, Axis("perplexity ÷ base"), names, series)]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = []
        for name, scores in numbers["scores"].items():
            parameters = f"{numbers['parameters'][name] / 1e3:,.0f} k"
            here = [mean_text(scores["perplexity"]), mean_text(scores["bleu"])]
            printed = [f"{ROWS[name].perplexity:.2f}", f"{ROWS[name].bleu:.1f}"]
            rows.append([name, parameters, *here, *printed])
        columns = ["", "parameters", "perplexity", "BLEU", "paper: perplexity", "paper: BLEU"]
        return [Table(f"Table 3 on {numbers['data']}", columns, rows)]


def _direction(change: float, noise: float) -> int:
    """1 for worse, −1 for better, 0 for about equal."""
    return 0 if abs(change) <= noise else round(math.copysign(1, change))


# ------------------------------------------------------------------ models and data


class PairCorpus(NamedTuple):
    """Pairs of sentences in words, for training and held out, with their vocabulary."""

    name: str
    words: Vocabulary
    training: Pairs
    held_out: Pairs


MOST_WORDS = 4000  # of Multi30k; rarer ones are one token
UNKNOWN = "<unk>"


@cache
def corpus() -> PairCorpus:
    """The built-in language, or Multi30k under the data root."""
    root = os.environ.get("REGARD_DATA")
    folder = Path(root) / "multi30k" if root else None
    if folder is None or not (folder / "train.en").is_file():
        return PairCorpus(
            "the built-in language",
            builtin_vocabulary(),
            builtin_sentences("train", 20_000),
            builtin_sentences("test", 600),
        )
    training = _read_pairs(folder, "train")
    held_out = _read_pairs(folder, "val")
    counts = Counter(word for pair in training for side in pair for word in side)
    # Words and not subwords: enough to compare models with each other.
    frequent = {word for word, _ in counts.most_common(MOST_WORDS)}

    def with_unknown(side: list[str]) -> list[str]:
        return [word if word in frequent else UNKNOWN for word in side]

    return PairCorpus(
        "Multi30k",
        Vocabulary([*frequent, UNKNOWN]),
        [(with_unknown(a), with_unknown(b)) for a, b in training],
        [(with_unknown(a), with_unknown(b)) for a, b in held_out],
    )


def _read_pairs(folder: Path, split: str) -> Pairs:
    sides = []
    for language in ("en", "de"):
        lines = (folder / f"{split}.{language}").read_text(encoding="utf-8").splitlines()
        # 40 words: few captions of Multi30k are longer, and positions end at 64.
        sides.append([words_of(line)[:40] for line in lines])
    return list(zip(*sides, strict=True))


def _model(row: Row) -> Any:
    changes = {**BASE, **row.changes}
    d_k = changes.pop("d_k", None)
    model: Any = preset("transformer:tiny", len(corpus().words), 64, **changes)
    if d_k is None:
        return model
    # Queries and keys of another width, in encoder and decoder alike; values keep theirs.
    for side in ("encoder", "decoder"):
        stack = getattr(model, side)
        attention = replace(stack.block.attention, d_k=d_k)
        cross = stack.block.cross and replace(stack.block.cross, d_k=d_k)
        model = replace(model, **{side: stack.with_blocks(attention=attention, cross=cross)})
    return model


def _scores(row: Row, seed: int, steps: int) -> dict[str, float]:
    data = corpus()
    batches = pair_batches(data.training, data.words, seed)
    model = trained(_model(row), seed, batches, steps, smoothing=row.smoothing)
    # 100 sentences, the same for all rows
    held_out = next(pair_batches(data.held_out, data.words, seed=0, rows=100))
    loss = evaluate(model, [held_out]).loss
    # Per word here; the paper's perplexities are per subword, so that only directions compare.
    return {"perplexity": math.exp(loss), "bleu": bleu(model, held_out, data.words)}
