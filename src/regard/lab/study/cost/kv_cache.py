"""The KV cache: cost of a token with it and without."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.lab.compare.cost import growth_exponent
from regard.lab.study import training_run
from regard.lab.study.figure import Table, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Outcome, Progress, Study, Verdict
from regard.look.drawing import Axis, Chart, Figure, Series

VOCABULARY = 64


class KVCache(Study):
    name = "kv_cache"
    claim = (
        "Keys and values of earlier tokens need not be computed again: with a cache a token costs "
        "nearly the same wherever it stands, without one the cost grows with the text."
    )
    source = "Shazeer 2019, Section 2.3 (incremental decoding)"
    measurement = (
        "A language model of 2 layers of width 64 that generates greedily: milliseconds for the "
        "next token after n tokens, with the KV cache (`start`, `step`) and by running the whole "
        "text again; whether both choose the same tokens; and the bytes of the cache."
    )
    rule = (
        "Holds if the tokens are the same, the cost of a token grows with an exponent of n below "
        "0.35 with the cache, and without it the last token costs at least 3 times as much as with "
        "it. Within limits if it is only faster."
    )
    quick_seeds = 2
    full_seeds = 5

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        lengths = effort.choose([32, 64, 128, 256], [32, 64, 128, 256, 512, 1024])
        runs = []
        for seed in progress.over(effort.seeds, lambda seed: f"seed {seed}"):
            runs.append(_times(seed, lengths))
        size = training_run.language_model(VOCABULARY, 8).kv_cache_size
        assert size is not None, "Transformers have a KV cache"
        # Four bytes for each number of the cache, in float32.
        return {"lengths": lengths, "bytes_per_token": 4 * size, "runs": runs}

    def verdict(self, numbers: Numbers) -> Verdict:
        lengths = numbers["lengths"]
        cached = _means(numbers, "cached")
        again = _means(numbers, "again")
        # 0 would be the same cost everywhere, 1 a cost in proportion to the text.
        exponent = growth_exponent(lengths, cached)
        factor = again[-1] / cached[-1]
        same = all(run["same"] for run in numbers["runs"])
        reason = (
            f"After {lengths[-1]} tokens the next one takes {1000 * cached[-1]:.1f} ms with the "
            f"cache and {1000 * again[-1]:.1f} ms without ({factor:.1f} times); with the cache the "
            f"cost grows as n^{exponent:.2f}; the tokens are {'the same' if same else 'different'}."
        )
        if not same or factor <= 1:
            return Verdict(Outcome.FAILS, reason)
        # Reading the cache grows with n too, but it is small beside the weights here.
        is_flat = exponent < 0.35 and factor >= 3
        return Verdict(Outcome.HOLDS if is_flat else Outcome.LIMITED, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        lengths = numbers["lengths"]
        series = []
        for name, key in (("KV cache", "cached"), ("whole text again", "again")):
            runs = [[1000 * value for value in run[key]] for run in numbers["runs"]]
            series.append(Series.over_seeds(name, lengths, runs))
        x = Axis("tokens before", log=True, ticks=tuple(lengths))
        return [Chart("Time of the next token", x, Axis("ms", log=True), series)]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = []
        for index, n in enumerate(numbers["lengths"]):
            cells = []
            for key in ("cached", "again"):
                cells.append(mean_text([1000 * run[key][index] for run in numbers["runs"]]))
            # Keys and values of all layers and heads, in float32
            kilobytes = n * numbers["bytes_per_token"] / 1e3
            rows.append([f"{n:,}", *cells, f"{kilobytes:,.0f}"])
        columns = ["tokens before", "ms with cache", "ms without", "kB of the cache"]
        return [Table("The next token", columns, rows)]


def _means(numbers: Numbers, key: str) -> list[float]:
    by_length = zip(*[run[key] for run in numbers["runs"]], strict=True)
    return [mean(values) for values in by_length]


@torch.no_grad()
def _times(seed: int, lengths: list[int]) -> dict[str, Any]:
    description = training_run.language_model(VOCABULARY, lengths[-1] + 8)
    model: Any = training_run.build_seeded(description, seed).eval()
    generator = torch.Generator().manual_seed(seed)
    # A random prompt: what is said does not change the cost.
    tokens = torch.randint(0, VOCABULARY, (1, lengths[-1]), generator=generator)
    cached = []
    again = []
    same = True
    for length in lengths:
        prompt = tokens[:, :length]
        # Room for the five steps below.
        state = model.start(model.encode(prompt), capacity=8)
        # The first step takes the prompt's last token; the others only show how long one takes.
        seconds, first = _fastest(partial(model.step, prompt[:, -1:], state), 5)
        cached.append(seconds)
        seconds, second = _fastest(partial(_whole_text, model, prompt), 3)
        again.append(seconds)
        same = same and bool(first[0, -1].argmax() == second[0, -1].argmax())
    return {"cached": cached, "again": again, "same": same}


def _whole_text(model: Any, tokens: Tensor) -> Tensor:
    """The logits of the next token, without a cache: [B, 1, V]."""
    hidden, _ = model(tokens)
    output: Tensor = model.head(hidden[:, -1:])
    return output


def _fastest(step: Any, repeats: int) -> tuple[float, Tensor]:
    """The shortest time of several runs, and the first result."""
    results = []
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        results.append(step())
        times.append(time.perf_counter() - start)
    # The minimum: whatever else the machine does only ever adds to a time.
    return min(times), results[0]
