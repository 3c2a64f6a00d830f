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
from regard.lab.study.evidence import above, changes, every, negated, share
from regard.lab.study.figure import Shown, Table, column, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Study, Truth, Verdict, judge
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
from regard.look.drawing import Axis, BarChart, Bars

BASE: dict[str, Any] = {"d_model": 64, "d_ff": 256, "heads": 4, "layers": 3, "dropout": 0.1}
SMOOTHING = 0.1
PAIRS = 4000  # of sentences in training: few enough that a model may learn them by heart
CHANGE = 0.02  # share of the base perplexity by which a row must move


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
    "(B) d_k a quarter": Row({"d_k": 4}, 5.16, 25.1, quick=True),
    "(B) d_k half": Row({"d_k": 8}, 5.01, 25.4),
    "(C) a third of the layers": Row({"layers": 1}, 6.11, 23.7, quick=True),
    "(C) twice the layers": Row({"layers": 6}, 4.88, 25.5),
    "(C) half the width": Row({"d_model": 32, "d_k": 8}, 5.75, 24.5, quick=True),
    "(C) twice the width": Row({"d_model": 128, "d_k": 32}, 4.66, 26.0),
    "(C) half of d_ff": Row({"d_ff": 128}, 5.12, 25.4),
    "(C) twice d_ff": Row({"d_ff": 512}, 4.75, 26.2),
    "(D) no dropout": Row({"dropout": 0.0}, 5.77, 24.6, quick=True),
    "(D) dropout 0.2": Row({"dropout": 0.2}, 4.95, 25.5),
    "(D) no smoothing": Row({}, 4.67, 25.3, smoothing=0.0, quick=True),
    "(D) smoothing 0.2": Row({}, 5.47, 25.7, smoothing=0.2),
    "(E) learned positions": Row({"position": "learned"}, 4.92, 25.7, quick=True),
}


class Ablation(Study):
    """Varying the base model changes quality as in Table 3: one head and small keys hurt, bigger
    models are better, dropout helps, learned positions are nearly identical.

    A small base model (3 + 3 layers of width 64, 4 heads) and its variations on {PAIRS:,} pairs of
    sentences of the built-in language, or of Multi30k where $REGARD_DATA has it: held-out
    perplexity and BLEU of greedy translations, beside the paper's perplexity and BLEU on
    newstest2013.
    """

    name = "ablation"
    source = "Vaswani et al. 2017, Table 3, rows (A) to (E)"
    seeds = (1, 4)

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(80, 2000)
        names = [name for name, row in ROWS.items() if row.quick or not effort.quick]
        runs = effort.each(names, lambda name, seed: _scores(ROWS[name], seed, steps))
        scores = {
            name: {key: column(of_row, key) for key in ("perplexity", "bleu")}
            for name, of_row in runs.items()
        }
        parameters = {name: parameter_count(_model(ROWS[name])) for name in names}
        return {"data": corpus().name, "scores": scores, "parameters": parameters}

    def verdict(self, numbers: Numbers) -> Verdict:
        """A row agrees if its perplexity moves against that of the base with the same seed as
        printed: up or down by 2 % or more, or by less, over its own seeds (Student's t, 95 %);
        where they do not tell, it is open. Holds if 80 % of the rows agree, within limits from 50 %
        on; too small to say where the open rows decide that."""
        rows = {name: one["perplexity"] for name, one in numbers["scores"].items()}
        base = rows.pop("base")
        printed = {name: ROWS[name].perplexity / ROWS["base"].perplexity - 1 for name in rows}
        agrees = {
            name: _agrees(changes(values, base), printed[name]) for name, values in rows.items()
        }
        truths = list(agrees.values())
        others = {
            text: ", ".join(name for name, agree in agrees.items() if agree is truth) or "none"
            for text, truth in (("otherwise", False), ("open", None))
        }
        reason = (
            f"{truths.count(True)} of {len(truths)} rows move as printed (base perplexity "
            f"{mean(base):.2f} on {numbers['data']}); otherwise: {others['otherwise']}; open: "
            f"{others['open']}."
        )
        return judge(share(truths, 0.8), share(truths, 0.5), reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        scores = numbers["scores"]
        base = mean(scores["base"]["perplexity"])
        names = [name for name in scores if name != "base"]
        here = [[v / base for v in scores[name]["perplexity"]] for name in names]
        # Ratios, because perplexities of other vocabularies cannot be compared.
        printed = [[ROWS[name].perplexity / ROWS["base"].perplexity] for name in names]
        series = [Bars("here", here), Bars("the paper", printed)]
        title = "Perplexity relative to the base model"
        rows = [
            [
                name,
                f"{numbers['parameters'][name] / 1e3:,.0f} k",
                mean_text(of_row["perplexity"]),
                mean_text(of_row["bleu"]),
                f"{ROWS[name].perplexity:.2f}",
                f"{ROWS[name].bleu:.1f}",
            ]
            for name, of_row in scores.items()
        ]
        columns = ["", "parameters", "perplexity", "BLEU", "paper: perplexity", "paper: BLEU"]
        return [
            BarChart(title, Axis("perplexity ÷ base"), names, series),
            Table(f"Table 3 on {numbers['data']}", columns, rows),
        ]


def _agrees(here: list[float], printed: float) -> Truth:
    """Whether a perplexity moves as printed: up, down, or about equal."""
    up = above(here, CHANGE)
    down = above([-change for change in here], CHANGE)
    if abs(printed) <= CHANGE:
        return every([negated(up), negated(down)])
    return up if printed > 0 else down


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
            builtin_sentences("train", PAIRS),
            builtin_sentences("test", 600),
        )
    training = _read_pairs(folder, "train")[:PAIRS]
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
