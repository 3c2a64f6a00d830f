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
    bar_chart,
    chart,
    column,
    curve_cells,
    mean,
    mean_text,
    means,
    table_of_columns,
)
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import Batch, build_seeded, language_model, mean_loss
from regard.look.drawing import Axis

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
        peaks: dict[str, list[int]] = {"explicit": [], "fused": []}
        for n in effort.over(lengths, "n = {}".format):
            for name, values in peaks.items():
                # Scores, weights and their gradients: about three times the weights at the peak.
                values.append(_peak(n, fused=name == "fused"))
        weights = [HEADS * n * n * 4 for n in lengths]  # bytes, in float32
        return {"lengths": lengths, **peaks, "weights": weights}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if the peak grows with an exponent of n of at least 1.7 with explicit weights and
        of at most 1.2 with the fused kernel, and the explicit peak is at least the size of the
        weights. Within limits if the fused kernel only needs less than half at the largest n."""
        lengths = numbers["lengths"]
        growth = {name: growth_exponent(lengths, numbers[name]) for name in ("explicit", "fused")}
        last = {name: numbers[name][-1] for name in ("explicit", "fused", "weights")}
        reason = (
            f"The peak grows as n^{growth['explicit']:.2f} with explicit weights and as "
            f"n^{growth['fused']:.2f} with the fused kernel; at n = {lengths[-1]} they take "
            f"{last['explicit'] / 1e6:.1f} and {last['fused'] / 1e6:.1f} MB, the weights alone "
            f"{last['weights'] / 1e6:.1f} MB."
        )
        # A peak below that would mean that something was not seen.
        holds_weights = last["explicit"] >= last["weights"]
        holds = growth["explicit"] >= 1.7 and growth["fused"] <= 1.2 and holds_weights
        return judge(holds, holds or last["explicit"] > 2 * last["fused"], reason)

    def show(self, numbers: Numbers) -> Shown:
        lengths = numbers["lengths"]
        names = {"weights": "h·n²·4 bytes", "explicit": "explicit", "fused": "fused"}
        megabytes = {key: [value / 1e6 for value in numbers[key]] for key in names}
        columns = {
            f"{name}, MB": [f"{value:,.2f}" for value in megabytes[key]]
            for key, name in names.items()
        }
        return [
            chart(
                "Peak memory of one attention",
                Axis("n", log=True, ticks=lengths),
                Axis("MB", log=True),
                lengths,
                {key: [megabytes[key]] for key in ("explicit", "fused")},
                theory={names["weights"]: megabytes["weights"]},
            ),
            table_of_columns(
                "Peak of one attention, forward and backward",
                {"n": [f"{n:,}" for n in lengths], **columns},
            ),
        ]


def _peak(length: int, *, fused: bool) -> int:
    shape = (1, HEADS, length, D_K)
    # [1, H, n, K]: made before, so they do not count.
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))

    def step() -> None:
        if fused:
            out = functional.scaled_dot_product_attention(q, k, v)
        else:
            out = torch.softmax(q @ k.mT * D_K**-0.5, dim=-1) @ v
        out.sum().backward()  # type: ignore[no-untyped-call]

    return peak_bytes(step)


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
        runs = effort.each_seed(lambda seed: _times(seed, lengths))
        size = language_model(VOCABULARY, 8).kv_cache_size
        assert size is not None, "Transformers have a KV cache"
        # Four bytes for each number of the cache, in float32.
        return {"lengths": lengths, "bytes_per_token": 4 * size, "runs": runs}

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
        reason = (
            f"After {lengths[-1]} tokens the next one takes {1000 * cached[-1]:.1f} ms with the "
            f"cache and {1000 * again[-1]:.1f} ms without ({factor:.1f} times); with the cache the "
            f"cost grows as n^{exponent:.2f}; the tokens are {'the same' if same else 'different'}."
        )
        # Reading the cache grows with n too, but it is small beside the weights here.
        return judge(exponent < 0.35 and factor >= 3, same and factor > 1, reason)

    def show(self, numbers: Numbers) -> Shown:
        lengths = numbers["lengths"]
        milliseconds = {
            name: [[1000 * seconds for seconds in run] for run in column(numbers["runs"], key)]
            for name, key in (("KV cache", "cached"), ("whole text again", "again"))
        }
        return [
            chart(
                "Time of the next token",
                Axis("tokens before", log=True, ticks=lengths),
                Axis("ms", log=True),
                lengths,
                milliseconds,
            ),
            table_of_columns(
                "The next token",
                {
                    "tokens before": [f"{n:,}" for n in lengths],
                    "ms with cache": curve_cells(milliseconds["KV cache"]),
                    "ms without": curve_cells(milliseconds["whole text again"]),
                    # Keys and values of all layers and heads, in float32
                    "kB of the cache": [
                        f"{n * numbers['bytes_per_token'] / 1e3:,.0f}" for n in lengths
                    ],
                },
            ),
        ]


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
        repeats = effort.choose(2, 8)
        return {"device": "cpu", "runs": effort.each_seed(lambda seed: _steps(seed, repeats))}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if bfloat16 needs at most 70 % of the bytes and at most 60 % of the time,
        accumulation at most 32 % of the bytes with the same gradient (1e-4), and checkpointing at
        most half of the bytes in at most 1.8 times the time. Within limits if everything holds but
        the speed of bfloat16, which is the hardware's."""
        ratios = {name: _ratios(numbers, name) for name in VARIANTS}
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
        reason = (
            f"Against float32 on {numbers['device']}: {listed}; the accumulated gradient differs "
            f"by {difference:.0e}."
        )
        return judge(fast, small and accumulates and recomputes, reason)

    def show(self, numbers: Numbers) -> Shown:
        runs = {name: column(numbers["runs"], name) for name in VARIANTS}
        megabytes = [[size / 1e6 for size in column(each, "bytes")] for each in runs.values()]
        seconds = [column(each, "seconds") for each in runs.values()]
        return [
            *(
                bar_chart(title, unit, VARIANTS, {title: values}, low=0.0)
                for title, unit, values in (
                    ("Memory of a step", "MB at the peak", megabytes),
                    ("Time of a step", "seconds", seconds),
                )
            ),
            table_of_columns(
                "One training step",
                {
                    "": VARIANTS,
                    "MB at the peak": map(mean_text, megabytes),
                    "seconds a step": map(mean_text, seconds),
                    "gradient differs by": [
                        f"{max(column(each, 'difference')):.1e}" for each in runs.values()
                    ],
                },
            ),
        ]


def _ratios(numbers: Numbers, name: str) -> dict[str, float]:
    """Bytes and seconds of a variant, as shares of those of float32."""
    return {
        key: mean(run[name][key] / run["float32"][key] for run in numbers["runs"])
        for key in ("bytes", "seconds")
    }


def _steps(seed: int, repeats: int) -> dict[str, dict[str, float]]:
    model: Any = build_seeded(language_model(VOCABULARY, layers=4), seed).train()
    generator = torch.Generator().manual_seed(seed)
    # Random tokens: cost does not depend on what is said.
    tokens = torch.randint(3, VOCABULARY, (ROWS, LENGTH + 1), generator=generator)
    batch = Batch(tokens[:, :-1], tokens[:, 1:])

    def step(rows: int) -> None:
        """A step in micro-batches of so many rows, which each count by their share."""
        for part in range(0, ROWS, rows):
            piece = Batch(batch.tokens[part : part + rows], batch.targets[part : part + rows])
            loss = mean_loss(model, piece)
            (loss * rows / ROWS).backward()  # type: ignore[no-untyped-call]

    def mixed() -> None:
        # Backward stands outside: it takes the types of the forward pass.
        with torch.autocast("cpu", torch.bfloat16):
            loss = mean_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]

    plain = partial(step, ROWS)
    micro_batches = partial(step, ROWS // MICRO_BATCHES)
    steps: list[Callable[[], None]] = [plain, mixed, micro_batches, plain]
    gradients: list[Tensor] = []  # the first is that of the plain step
    results = {}
    for name, one in zip(VARIANTS, steps, strict=True):
        model.stack.activation_checkpointing = name == "checkpointing"
        one()  # gradients exist from now on: they are the same for all variants
        model.zero_grad(set_to_none=False)
        size = peak_bytes(one)
        gradients.append(
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        )
        difference = (gradients[-1] - gradients[0]).abs().max() / gradients[0].abs().max()
        # Timed without the tracer, which slows every operation down; gradients grow, and no time
        # goes into making them.
        seconds = fastest(one, repeats)
        results[name] = {"bytes": float(size), "seconds": seconds, "difference": float(difference)}
    return results
