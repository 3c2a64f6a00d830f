"""The kernels of a decoding step against their definitions; run by test_kernels.py.

And steps of whole models: fused, against one module after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernel_programs import assert_same, chosen_dtype, combinations
from regard import spec as R
from regard.builder import build
from regard.core.caches.kv_cache import DecoderState
from regard.core.feedforward import ACTIVATIONS
from regard.core.kernels import decode_step, topk
from regard.core.mixers.scaled_dot_product_attention import attention_weights
from regard.core.positions.rotary import Rope
from regard.core.projection import per_query_head
from regard.decode import fused_step, greedy_and_sampling
from regard.decode.constraints import Constraints
from regard.decode.strategy import Greedy
from regard.families import folder as folders
from regard.families.decoders import gpt2
from regard.families.encoder_decoders import transformer
from regard.models.saving import cast

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
random = partial(torch.randn, device=device, dtype=chosen_dtype())


def same(actual: Tensor, expected: Tensor, tolerance: float = 1e-4) -> None:
    assert_same(actual, expected, tolerance)


def normalized(kind: str | None, x: Tensor, gain: Tensor, shift: Tensor) -> tuple[Tensor, Any]:
    """The norm of x, and the same norm as an argument for kernels."""
    width = x.shape[1:]
    if kind == "layer":
        return functional.layer_norm(x, width, gain, shift, 1e-3), (kind, gain, shift, 1e-3, 0.0)
    if kind == "rms":
        return functional.rms_norm(x, width, gain + 1.0, 1e-3), (kind, gain, None, 1e-3, 1.0)
    return x, None


# --- linear layers ---

for rows, (inputs, outputs), norm, gated in combinations(
    (1, 3, 18), ((24, 10), (150, 70)), (None, "layer", "rms"), (False, True)
):
    x = random(rows, inputs)
    residual = random(rows, outputs)
    weight = random(outputs * (2 if gated else 1), inputs)
    bias = random(len(weight))
    normed, kernel_norm = normalized(norm, x, random(inputs), random(inputs))
    # Every activation once: it comes after the norm, and knows nothing of it.
    for name in ACTIVATIONS if rows == 1 and norm is None else ("relu", "silu"):
        y = functional.linear(normed, weight, bias)
        first, second = y.chunk(2, dim=-1) if gated else (y, 1.0)
        expected = ACTIVATIONS[name](first) * second + residual
        options: dict[str, Any] = {"activation": name, "gated": gated, "rest": residual}
        if rows == 1:
            actual = decode_step.linear(x, weight, bias, norm=kernel_norm, **options)
        else:  # the norm of several rows is a kernel of its own
            actual = decode_step.linear(normed, weight, bias, **options)
        same(actual, expected, 1e-3)
    same(decode_step.linear(x, weight), functional.linear(x, weight))

# --- residual sums and norms, with split-K ---

for rows, (inputs, outputs), norm in combinations(
    (3, 18), ((24, 10), (150, 70), (1100, 40)), (None, "layer", "rms")
):
    x = random(rows, inputs)
    residual = random(rows, outputs)
    weight = random(outputs, inputs)
    bias = random(outputs)
    parts = decode_step.parts(x, weight)
    assert len(parts) > 1 or inputs < 512
    total = residual + functional.linear(x, weight, bias)
    expected, kernel_norm = normalized(norm, total, random(outputs), random(outputs))
    pending = decode_step.Sum(residual, parts, bias)
    for actual_total, actual in (
        decode_step.summed(pending, kernel_norm, total=True),
        decode_step.summed(decode_step.Sum(total), kernel_norm),
    ):
        same(actual_total, total, 1e-3)
        same(actual, expected, 1e-3)

# --- attention over a KV cache ---


def attention(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, bias: Tensor | None = None
) -> Tensor:
    """The definition: [B, H, T, K] → [B, T, H, K], with a mask that is expanded to all pairs."""
    mask = visible.expand(len(q), 1, q.shape[2], k.shape[2])
    weights = attention_weights(q, k, mask, 0.3, bias)
    return (weights @ per_query_head(v, q.shape[1])).transpose(1, 2)


for (heads, groups), length, slots, kind in combinations(
    ((2, 2), (4, 2)), (1, 3), (5, 70), ("all", "rows", "pairs", "bias")
):
    q = random(2, heads, length, 32)
    k = random(2, groups, slots, 32)
    v = random(2, groups, slots, 32)
    position = torch.arange(slots, device=device)
    score_bias = random(1, heads, length, slots) if kind == "bias" else None
    mask: Tensor | None
    if kind in ("rows", "pairs"):
        visible = torch.rand(2, 1, length if kind == "pairs" else 1, slots, device=device) > 0.4
        mask = visible
    else:
        visible = torch.ones(1, 1, 1, slots, dtype=torch.bool, device=device)
        mask = score_bias
    same(decode_step.attend(q, k, v, mask, 0.3), attention(q, k, v, visible, score_bias))
    # Up to the last position, with two keys a position.
    last = torch.tensor([1], device=device)
    same(
        decode_step.attend(q, k, v, mask, 0.3, last=last, columns=2),
        attention(q, k, v, visible & (position // 2 <= 1), score_bias),
    )
    if length > 1:
        continue
    # A new key and value, rotated and written into slot 2.
    rope = Rope(torch.rand(16), "halves").to(device)
    slot = torch.tensor([2], device=device)
    angles = rope.angles(slot)
    new_k = random(2, groups, 1, 32)
    new_v = random(2, groups, 1, 32)
    expected_k = k.index_copy(2, slot, rope.rotate(new_k, angles))
    expected_v = v.index_copy(2, slot, new_v)
    visible = visible | (position == 2)
    if kind in ("rows", "pairs"):
        mask = visible
    expected = attention(
        rope.rotate(q, angles), expected_k, expected_v, visible & (position <= 2), score_bias
    )
    actual = decode_step.attend(q, k, v, mask, 0.3, last=slot, new=(new_k, new_v), angles=angles)
    same(actual, expected)
    same(k, expected_k)
    same(v, expected_v)

# --- embeddings ---

for rows, offset in combinations((1, 5), (0, 2)):
    table = random(30, 24)
    positions = random(12, 24)[offset:]
    tokens = torch.randint(0, 30, (rows,), device=device)
    at = torch.tensor([7], device=device)
    actual = decode_step.look_up(tokens, table, 3.0, positions, at)
    same(actual, 3 * table[tokens] + positions[7])
    same(decode_step.look_up(tokens, table, 1.0, None, at), table[tokens])

# --- whole models: logits of some steps, with and without the kernels ---

llama = folders.FAMILIES["llama"].to_spec(
    {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 41,
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    }
)  # fmt: skip
small: dict[str, Any] = {"d_model": 64, "heads": 2, "layers": 2, "d_ff": 96}
shared: dict[str, Any] = {"share": "all", **small}
models: dict[str, Any] = {
    "gpt": build(gpt2.preset("tiny", 41, 32, **small)),
    "llama": build(llama),
    "post-norm": build(transformer.preset("tiny", 41, 41, **shared)),
    "pre-norm": build(transformer.preset("tiny", 41, 41, residual=R.PreNorm(), **shared)),
}


def step_logits(
    model: Any,
    step: Callable[[Tensor, DecoderState], Tensor],
    source: Tensor,
    padding_mask: Tensor,
    tokens: Tensor,
) -> Tensor:
    """[B, T, V] logits of one step for each of the tokens [B, T]."""
    state = model.start(model.encode(source, padding_mask), capacity=8)
    assert state.make_static()
    steps = [step(tokens[:, t : t + 1], state) for t in range(tokens.shape[1])]
    return torch.cat(steps, dim=1)


# Fused also on a CPU, and in float32.
fused_step._takes_kernels = lambda tokens: True
fused_step._compiles_fast = lambda x: True


for name, model in models.items():
    cast(model.to(device).eval(), chosen_dtype())
    source = torch.randint(4, 41, (3, 7), device=device)
    padding_mask = torch.arange(7, device=device) >= torch.tensor([[0], [2], [3]], device=device)
    if model.padding_side == "right":
        padding_mask = padding_mask.flip(1)
    # Triton's interpreter takes seconds for a step of all models.
    steps = 6 if torch.cuda.is_available() else 2
    tokens = torch.randint(4, 41, (3, steps), device=device)
    with torch.no_grad():
        expected = step_logits(model, model.step, source, padding_mask, tokens)
        fused = partial(fused_step.step, model)
        actual = step_logits(model, fused, source, padding_mask, tokens)
    same(actual, expected)
    assert not torch.equal(actual, expected), f"the step of {name} was not fused"

# --- top-k over a vocabulary ---

topk._BLOCK = 16
for size, count in combinations((5, 16, 50), (1, 4)):
    logits = random(7, size)
    logits[0, 3:] = float("-inf")
    logits[1] = float("-inf")
    logits[2] = logits[2].round()  # ties
    values, tokens, normalizer = topk.top(logits, count)
    same(values, logits.topk(count).values)
    same(logits.gather(1, tokens), values)
    same(normalizer, logits.logsumexp(dim=-1))
    assert all(len(set(row)) == count for row in tokens.tolist())

# --- greedy decoding: the argmax with its bookkeeping in one kernel, against PyTorch ---


class RandomModel:
    """Five tokens with random logits, so that the end token comes soon."""

    keeps_cache = False

    def step(self, last: Tensor, state: DecoderState) -> Tensor:
        # float32: in low precision two tokens could be equally likely.
        return torch.randn(7, 1, 5, device=device)


fused_step._takes_kernels = lambda tokens: False  # a random model has no parts to fuse

results = []
for fast in (False, True):
    torch.manual_seed(1)
    zeros = partial(torch.zeros, dtype=torch.long, device=device)
    limits = torch.tensor([9, 3, 9, 5, 9, 9, 1], device=device)
    constraints = Constraints(zeros(7, 1), limits, 2, torch.tensor([0], device=device))
    state = greedy_and_sampling.GenerationState(
        cache=DecoderState([]),
        constraints=constraints,
        t=zeros(1),
        sentences=torch.arange(7, device=device),
        limits=limits,
        last=zeros(7, 1),
        tokens=zeros(7, 9) + 2,
        sums=torch.zeros(7, device=device),
        ended=torch.zeros(7, dtype=torch.bool, device=device),
        noise=None,
    )
    kernel = topk.take_best if fast else None
    greedy_and_sampling.greedy_kernel = lambda logits, kernel=kernel: kernel  # type: ignore[assignment, attr-defined, misc]
    for _ in range(9):
        greedy_and_sampling.generation_step(RandomModel(), state, Greedy(), None, first=False)  # type: ignore[arg-type]
        state.t.add_(1)
    results.append((state.tokens, state.last, state.ended, state.sums))
for ours, theirs in zip(*results, strict=True):
    same(ours, theirs)
ended = results[0][2]
assert 0 < ended.sum() < 7
