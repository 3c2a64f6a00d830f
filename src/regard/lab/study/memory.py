"""Memory and time: of attention over the length, of the KV cache, and of a training step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.lab.measure.instruments import fastest, growth_exponent, peak_bytes
from regard.lab.study.figure import (
    Shown,
    chart_and_table,
    column,
    columns,
    mean,
    means,
    measured_bars,
    table,
)
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import Batch, build_seeded, language_model, mean_loss, seeded

HEADS = 8
D_K = 16


class AttentionMemory(Study):
    """The weights of attention take h·n² numbers a layer, 33 MB at n = 1,024 with 8 heads in
    float32; a fused kernel (FlashAttention) never stores them and needs O(n).

    The peak of the tensors that one attention with {HEADS} heads of width {D_K} makes in a forward
    and backward pass, in float32, over n: softmax(QKᵀ)V with its weights, and PyTorch's fused
    kernel; and the size of the weights alone, h·n²·4 bytes.
    """

    source = "Dao et al. 2022, Section 2; Vaswani et al. 2017, Table 1"
    seeds = (1, 1)  # bytes do not depend on chance

    def measure(self, effort: Effort) -> Numbers:
        lengths = effort.choose([128, 256, 512, 1024], [128, 256, 512, 1024, 2048, 4096])
        return {
            "lengths": lengths,
            # Scores, weights and their gradients: about three times the weights at the peak.
            "explicit": [_peak(n, _explicit) for n in effort.over(lengths, "n = {}".format)],
            "fused": [_peak(n, functional.scaled_dot_product_attention) for n in lengths],
            "weights": [HEADS * n * n * 4 for n in lengths],  # bytes, in float32
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if the peak grows with an exponent of n of at least 1.7 with explicit weights and
        of at most 1.2 with the fused kernel, and the explicit peak is at least the size of the
        weights. Within limits if the fused kernel only needs less than half at the largest n."""
        lengths = numbers["lengths"]
        growth = {name: growth_exponent(lengths, numbers[name]) for name in ("explicit", "fused")}
        last = {name: numbers[name][-1] for name in ("explicit", "fused", "weights")}
        # A peak below that would mean that something was not seen.
        holds_weights = last["explicit"] >= last["weights"]
        holds = growth["explicit"] >= 1.7 and growth["fused"] <= 1.2 and holds_weights
        return judge(
            holds,
            holds or last["explicit"] > 2 * last["fused"],
            f"The peak grows as n^{growth['explicit']:.2f} with explicit weights and as "
            f"n^{growth['fused']:.2f} with the fused kernel; at n = {lengths[-1]} they take "
            f"{last['explicit'] / 1e6:.1f} and {last['fused'] / 1e6:.1f} MB, the weights alone "
            f"{last['weights'] / 1e6:.1f} MB.",
        )

    def show(self, numbers: Numbers) -> Shown:
        lengths = numbers["lengths"]
        megabytes = {
            name: [[value / 1e6 for value in numbers[name]]]
            for name in ("explicit", "fused", "weights")
        }
        title = "Peak of one attention, forward and backward"
        return chart_and_table(title, "n", "MB", lengths, megabytes, log_x=True, log=True)


def _explicit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * D_K**-0.5, dim=-1) @ v


def _peak(length: int, attention: Callable[..., Tensor]) -> int:
    # [1, H, n, K]: made before, so they do not count.
    q, k, v = (torch.randn(1, HEADS, length, D_K, requires_grad=True) for _ in range(3))
    return peak_bytes(lambda: attention(q, k, v).sum().backward())  # type: ignore[no-untyped-call]


# ------------------------------------------------------------------ the KV cache

VOCABULARY = 64


class KVCache(Study):
    """Keys and values of earlier tokens need not be computed again: with a cache a token costs
    nearly the same wherever it stands, without one the cost grows with the text.

    A language model of 2 layers of width 64 that generates greedily: milliseconds for the next
    token after n tokens, with the KV cache (`start`, `step`) and by running the whole text again;
    whether both choose the same tokens; and the bytes of the cache.
    """

    source = "Shazeer 2019, Section 2.3 (incremental decoding)"
    seeds = (2, 5)

    def measure(self, effort: Effort) -> Numbers:
        lengths = effort.choose([32, 64, 128, 256], [32, 64, 128, 256, 512, 1024])
        description: Any = language_model(VOCABULARY, lengths[-1] + 8)

        @torch.no_grad()
        def measure(seed: int) -> Numbers:
            model: Any = build_seeded(description, seed).eval()
            with seeded(seed):
                # A random prompt: what is said does not change the cost.
                tokens = torch.randint(VOCABULARY, (1, lengths[-1]))
            places = [_next_token(model, tokens[:, :n]) for n in lengths]
            curves = columns(places, places[0])
            return curves | {"same": all(curves["same"])}

        runs = effort.each_seed(measure)
        # Four bytes for each number of the cache, in float32.
        return {"lengths": lengths, "bytes_per_token": 4 * description.kv_cache_size, "runs": runs}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if the tokens are the same, the cost of a token grows with an exponent of n below
        0.35 with the cache, and without it the last token costs at least 3 times as much as with
        it. Within limits if it is only faster."""
        lengths = numbers["lengths"]
        cached, again = (means(column(numbers["runs"], key)) for key in ("cached", "again"))
        # 0 would be the same cost everywhere, 1 a cost in proportion to the text.
        exponent = growth_exponent(lengths, cached)
        factor = again[-1] / cached[-1]
        same = all(column(numbers["runs"], "same"))
        # Reading the cache grows with n too, but it is small beside the weights here.
        return judge(
            exponent < 0.35 and factor >= 3,
            same and factor > 1,
            f"After {lengths[-1]} tokens the next one takes {1000 * cached[-1]:.1f} ms with the "
            f"cache and {1000 * again[-1]:.1f} ms without ({factor:.1f} times); with the cache the "
            f"cost grows as n^{exponent:.2f}; the tokens are "
            f"{'the same' if same else 'different'}.",
        )

    def show(self, numbers: Numbers) -> Shown:
        lengths = numbers["lengths"]
        milliseconds = {
            name: [[1000 * seconds for seconds in run] for run in column(numbers["runs"], key)]
            for name, key in (("KV cache", "cached"), ("whole text again", "again"))
        }
        return chart_and_table(
            "Time of the next token",
            "tokens before",
            "ms",
            lengths,
            milliseconds,
            log_x=True,
            # Keys and values of all layers and heads, in float32
            note=f"The cache takes {numbers['bytes_per_token']:,} bytes a token.",
            log=True,
        )


def _next_token(model: Any, prompt: Tensor) -> Numbers:
    """Seconds with a cache and without, and whether both choose the same token."""
    # Room for the steps below.
    state = model.start(model.encode(prompt), capacity=8)
    # The first step takes the prompt's last token; the others only show how long one takes.
    step = partial(model.step, prompt[:, -1:], state)

    def whole_text() -> Tensor:
        hidden, _ = model(prompt)
        return model.head(hidden[:, -1:])

    same = bool(step()[0, -1].argmax() == whole_text()[0, -1].argmax())
    return {"cached": fastest(step, 4), "again": fastest(whole_text, 3), "same": same}


ROWS = 16
LENGTH = 64
MICRO_BATCHES = 4
VARIANTS = ("float32", "bfloat16", "accumulation", "checkpointing")


class TrainingMemory(Study):
    """Mixed precision halves memory and is two to three times faster; gradient accumulation divides
    the memory of activations by the number of micro-batches; activation checkpointing trades a
    second forward pass for most of them.

    One training step of a language model of 4 layers on {ROWS} rows of {LENGTH} tokens: seconds,
    and the peak of the tensors that the step makes (weights and their gradients left out), in
    float32, under bfloat16 autocast, in {MICRO_BATCHES} micro-batches and with checkpointing; and
    by how much the gradient differs from that of the plain step.
    """

    source = "Micikevicius et al. 2018; Chen et al. 2016, Section 4"
    seeds = (2, 5)

    def measure(self, effort: Effort) -> Numbers:
        return {"device": "cpu", "runs": effort.each_seed(partial(_steps, effort.choose(2, 8)))}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if bfloat16 needs at most 70 % of the bytes and at most 60 % of the time,
        accumulation at most 32 % of the bytes with the same gradient (1e-4), and checkpointing at
        most half of the bytes in at most 1.8 times the time. Within limits if everything holds but
        the speed of bfloat16, which is the hardware's."""
        # Bytes and seconds of each variant, as shares of those of float32.
        ratios = {
            name: {
                key: mean(run[name][key] / run["float32"][key] for run in numbers["runs"])
                for key in ("bytes", "seconds")
            }
            for name in VARIANTS
        }
        difference = max(run["accumulation"]["difference"] for run in numbers["runs"])
        # Half of the bytes are those of float32 parts: norms, softmax, the loss.
        small = ratios["bfloat16"]["bytes"] <= 0.7
        fast = ratios["bfloat16"]["seconds"] <= 0.6
        accumulates = ratios["accumulation"]["bytes"] <= 1.3 / MICRO_BATCHES and difference < 1e-4
        recomputes = (
            ratios["checkpointing"]["bytes"] <= 0.5 and ratios["checkpointing"]["seconds"] <= 1.8
        )
        listed = ", ".join(
            f"{name} {of['bytes']:.0%} of the bytes in {of['seconds']:.2f} × time"
            for name, of in ratios.items()
            if name != "float32"
        )
        return judge(
            fast,
            small and accumulates and recomputes,
            f"Against float32 on {numbers['device']}: {listed}; the accumulated gradient differs "
            f"by {difference:.0e}.",
        )

    def show(self, numbers: Numbers) -> Shown:
        runs = {
            name: [one | {"MB": one["bytes"] / 1e6} for one in each]
            for name, each in columns(numbers["runs"], VARIANTS).items()
        }
        units = {"MB": "MB at the peak", "seconds": "seconds a step"}
        headings = units | {"difference": "gradient differs by"}
        return [
            *(
                measured_bars("One training step", unit, runs, {key: unit})
                for key, unit in units.items()
            ),
            table("", headings, runs, "One training step"),
        ]


def _steps(repeats: int, seed: int) -> Numbers:
    model: Any = build_seeded(language_model(VOCABULARY, layers=4), seed).train()
    with seeded(seed):
        # Random tokens: cost does not depend on what is said.
        tokens = torch.randint(3, VOCABULARY, (ROWS, LENGTH + 1))

    def step(micro_batches: int, *, mixed: bool) -> None:
        """A step whose micro-batches each count by their share."""
        for piece in tokens.chunk(micro_batches):
            # Backward stands outside: it takes the types of the forward pass.
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                loss = mean_loss(model, Batch(piece[:, :-1], piece[:, 1:])) / micro_batches
            loss.backward()  # type: ignore[no-untyped-call]

    plain: Any = None  # gradient
    results = {}
    for name in VARIANTS:
        model.stack.activation_checkpointing = name == "checkpointing"
        micro_batches = MICRO_BATCHES if name == "accumulation" else 1
        one = partial(step, micro_batches, mixed=name == "bfloat16")
        one()  # gradients exist from now on: they are the same for all variants
        model.zero_grad(set_to_none=False)
        size = peak_bytes(one)
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        plain = gradient if plain is None else plain
        difference = (gradient - plain).abs().max() / plain.abs().max()
        # Timed without the tracer, which slows every operation down; gradients grow, and no time
        # goes into making them.
        seconds = fastest(one, repeats)
        results[name] = {"bytes": float(size), "seconds": seconds, "difference": float(difference)}
    return results
