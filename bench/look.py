"""The cost of probes: a forward pass with one probed layer, as a ratio to one without probes.

python bench/look.py [--tokens 1024] [--layers 12] [--width 768] [--tries 9] [--threads 2]
    [--device cpu]

Three runs take turns: without probes; with the arguments of one attention recorded, as `look` does;
and with all weights of that attention computed as well. The ratios of the medians are printed with
their spread over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from regard.builder import build
from regard.families.encoders import bert
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
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    description = bert.preset(
        "base", 1000, options.tokens, layers=options.layers, d_model=options.width
    )
    model = Model(build(description).eval().to(options.device), description)
    ids = torch.randint(0, 1000, (1, options.tokens), device=options.device)
    name = f"encoder.{options.layers // 2}.self"

    def plain() -> object:
        with evaluation_mode(model.model):
            return hidden_states(model.model, {"input_ids": ids})

    runs: dict[str, Callable[[], object]] = {
        "without probes": plain,
        f"{name} recorded": lambda: look(model, ids, ask=[f"{name}.weights"]),
        "and its weights computed": lambda: look(model, ids, ask=[f"{name}.weights"]).weights(name),
    }
    times: dict[str, list[float]] = {what: [] for what in runs}
    for turn in range(options.tries + 1):
        for what, act in runs.items():
            start = time.perf_counter()
            act()
            if options.device != "cpu":
                torch.cuda.synchronize()
            if turn:  # the first round warms up
                times[what].append(time.perf_counter() - start)
    baseline = times["without probes"]
    for what, seconds in times.items():
        ratios = [one / other for one, other in zip(seconds, baseline, strict=True)]
        median = statistics.median(seconds)
        ratio = median / statistics.median(baseline)
        spread = f"{min(ratios):.3f}–{max(ratios):.3f} in a round"
        print(f"{what:<28} {1000 * median:8.1f} ms   {ratio:.3f} ×  ({spread})")


if __name__ == "__main__":
    main()
