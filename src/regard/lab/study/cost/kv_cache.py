"""The KV cache: cost of a token with it and without."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.lab.measure.instruments import fastest, growth_exponent
from regard.lab.study.figure import Table, column, mean_text, means
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.lab.study.training_run import build_seeded, language_model
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

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        lengths = effort.choose([32, 64, 128, 256], [32, 64, 128, 256, 512, 1024])
        runs = effort.each_seed(progress, lambda seed: _times(seed, lengths))
        size = language_model(VOCABULARY, 8).kv_cache_size
        assert size is not None, "Transformers have a KV cache"
        # Four bytes for each number of the cache, in float32.
        return {"lengths": lengths, "bytes_per_token": 4 * size, "runs": runs}

    def verdict(self, numbers: Numbers) -> Verdict:
        lengths = numbers["lengths"]
        cached = means(column(numbers["runs"], "cached"))
        again = means(column(numbers["runs"], "again"))
        # 0 would be the same cost everywhere, 1 a cost in proportion to the text.
        exponent = growth_exponent(lengths, cached)
        factor = again[-1] / cached[-1]
        same = all(run["same"] for run in numbers["runs"])
        reason = (
            f"After {lengths[-1]} tokens the next one takes {1000 * cached[-1]:.1f} ms with the "
            f"cache and {1000 * again[-1]:.1f} ms without ({factor:.1f} times); with the cache the "
            f"cost grows as n^{exponent:.2f}; the tokens are {'the same' if same else 'different'}."
        )
        # Reading the cache grows with n too, but it is small beside the weights here.
        return judge(exponent < 0.35 and factor >= 3, same and factor > 1, reason)

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
            times = [
                mean_text([1000 * run[key][index] for run in numbers["runs"]])
                for key in ("cached", "again")
            ]
            # Keys and values of all layers and heads, in float32
            kilobytes = n * numbers["bytes_per_token"] / 1e3
            rows.append([f"{n:,}", *times, f"{kilobytes:,.0f}"])
        columns = ["tokens before", "ms with cache", "ms without", "kB of the cache"]
        return [Table("The next token", columns, rows)]


@torch.no_grad()
def _times(seed: int, lengths: list[int]) -> dict[str, Any]:
    description = language_model(VOCABULARY, lengths[-1] + 8)
    model: Any = build_seeded(description, seed).eval()
    generator = torch.Generator().manual_seed(seed)
    # A random prompt: what is said does not change the cost.
    tokens = torch.randint(0, VOCABULARY, (1, lengths[-1]), generator=generator)
    cached = []
    again = []
    same = True
    for length in lengths:
        prompt = tokens[:, :length]
        whole_text = partial(_whole_text, model, prompt)
        # Room for the steps below.
        state = model.start(model.encode(prompt), capacity=8)
        # The first step takes the prompt's last token; the others only show how long one takes.
        step = partial(model.step, prompt[:, -1:], state)
        same = same and bool(step()[0, -1].argmax() == whole_text()[0, -1].argmax())
        cached.append(fastest(step, 4))
        again.append(fastest(whole_text, 3))
    return {"cached": cached, "again": again, "same": same}


def _whole_text(model: Any, tokens: Tensor) -> Tensor:
    """The logits of the next token, without a cache: [B, 1, V]."""
    hidden, _ = model(tokens)
    return model.head(hidden[:, -1:])
