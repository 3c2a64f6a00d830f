"""What looking costs: a forward with one probed layer of twelve at 1,024 tokens, as a ratio to the forward without probes.

python bench/look.py [--tokens 1024] [--layers 12] [--width 768] [--tries 9] [--threads 2] [--device cpu]

Three runs follow each other again and again: without probes; with the arguments of one attention recorded, as `look` does;
and with all weights of that attention computed as well. The medians' ratios are printed with the spread over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from regard.builder import build
from regard.families import bert
from regard.look import look
from regard.look.forward import evaluation_mode, hidden_states
from regard.models import Model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--tries", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    description = bert.preset("base", 1000, asked.tokens, layers=asked.layers, d_model=asked.width)
    model = Model(build(description).eval().to(asked.device), description)
    ids = torch.randint(0, 1000, (1, asked.tokens), device=asked.device)
    name = f"encoder.{asked.layers // 2}.self"

    def plain() -> object:
        with evaluation_mode(model.model):
            return hidden_states(model.model, ids)

    runs: dict[str, Callable[[], object]] = {
        "without probes": plain,
        f"{name} recorded": lambda: look(model, ids, ask=[f"{name}.weights"]),
        "and its weights computed": lambda: look(model, ids, ask=[f"{name}.weights"]).weights(name),
    }
    times: dict[str, list[float]] = {what: [] for what in runs}
    for round_ in range(asked.tries + 1):
        for what, act in runs.items():
            began = time.perf_counter()
            act()
            if asked.device != "cpu":
                torch.cuda.synchronize()
            if round_:  # the first warms up
                times[what].append(time.perf_counter() - began)
    usual = times["without probes"]
    for what, found in times.items():
        ratios = [one / other for one, other in zip(found, usual, strict=True)]
        middle, low, high = (
            statistics.median(found) / statistics.median(usual),
            min(ratios),
            max(ratios),
        )
        print(
            f"{what:<28} {1000 * statistics.median(found):8.1f} ms   {middle:.3f} ×  ({low:.3f}–{high:.3f} in a round)"
        )


if __name__ == "__main__":
    main()
