"""The kernels of one step against the definitions, and a whole step of models against the ordinary one; run by
test_kernels.py."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from regard import spec as R
from regard.build import build
from regard.core.feedforward import ACTIVATIONS
from regard.core.kernels import decode_step
from regard.core.rotary import Rope
from regard.core.softmax_attention import attention_weights, per_query_head
from regard.decode import fused_step
from regard.families import folder as folders
from regard.families import gpt_presets, transformer

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
random = lambda *shape: torch.randn(*shape, device=device)  # noqa: E731


def same(ours, theirs, tolerance=1e-4):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


for rows, (inputs, outputs), norm, gated in itertools.product(
    (1, 3, 18), ((24, 10), (150, 70)), (None, "layer", "rms"), (False, True)
):
    x, rest = random(rows, inputs), random(rows, outputs)
    weight, bias = (
        random(outputs * (2 if gated else 1), inputs),
        random(outputs * (2 if gated else 1)),
    )
    gain, shift = random(inputs), random(inputs)
    normed = {
        None: x,
        "layer": functional.layer_norm(x, (inputs,), gain, shift, 1e-3),
        "rms": functional.rms_norm(x, (inputs,), gain + 1.0, 1e-3),
    }[norm]
    told = {
        None: None,
        "layer": ("layer", gain, shift, 1e-3, 0.0),
        "rms": ("rms", gain, None, 1e-3, 1.0),
    }[norm]
    for name in ("relu", "silu") if rows > 1 else ACTIVATIONS:
        y = functional.linear(normed, weight, bias)
        first, second = y.chunk(2, dim=-1) if gated else (y, 1.0)
        expected = ACTIVATIONS[name](first) * second + rest
        before, inside = (
            (x, told) if rows == 1 else (normed, None)
        )  # the norm of several rows is a kernel of its own
        found = decode_step.linear(
            before, weight, bias, norm=inside, activation=name, gated=gated, rest=rest
        )
        same(found, expected, 1e-3)
    same(decode_step.linear(x, weight), functional.linear(x, weight))

for rows, (inputs, outputs), norm in itertools.product(
    (3, 18), ((24, 10), (150, 70), (1100, 40)), (None, "layer", "rms")
):
    x, rest, weight, bias = (
        random(rows, inputs),
        random(rows, outputs),
        random(outputs, inputs),
        random(outputs),
    )
    gain, shift = random(outputs), random(outputs)
    cut = decode_step.parts(x, weight)
    assert len(cut) > 1 or inputs < 512
    total = rest + functional.linear(x, weight, bias)
    told = {
        None: None,
        "layer": ("layer", gain, shift, 1e-3, 0.0),
        "rms": ("rms", gain, None, 1e-3, 1.0),
    }[norm]
    expected = {
        None: total,
        "layer": functional.layer_norm(total, (outputs,), gain, shift, 1e-3),
        "rms": functional.rms_norm(total, (outputs,), gain + 1.0, 1e-3),
    }[norm]
    for whole, normed in (
        decode_step.summed(decode_step.Sum(rest, cut, bias), told, total=True),
        decode_step.summed(decode_step.Sum(total), told),
    ):
        same(whole, total, 1e-3)
        same(normed, expected, 1e-3)

for (heads, groups), length, slots, kind in itertools.product(
    ((2, 2), (4, 2)), (1, 3), (5, 70), ("all", "rows", "pairs", "bias")
):
    q, k, v = (
        random(2, heads, length, 32),
        random(2, groups, slots, 32),
        random(2, groups, slots, 32),
    )
    seen = torch.rand(2, 1, length if kind == "pairs" else 1, slots, device=device) > 0.4
    bias = random(1, heads, length, slots) if kind == "bias" else None
    seen = (
        seen
        if kind in ("rows", "pairs")
        else torch.ones(1, 1, 1, slots, dtype=torch.bool, device=device)
    )
    weights = attention_weights(q, k, seen.expand(2, 1, length, slots), 0.3, bias)
    expected = (weights @ per_query_head(v, heads)).transpose(1, 2)
    mask = None if kind == "all" else bias if kind == "bias" else seen
    same(decode_step.attend(q, k, v, mask, 0.3), expected)
    last = torch.tensor([1], device=device)
    places = torch.arange(slots, device=device) // 2 <= 1  # two keys a place
    weights = attention_weights(q, k, (seen & places).expand(2, 1, length, slots), 0.3, bias)
    same(
        decode_step.attend(q, k, v, mask, 0.3, last=last, columns=2),
        (weights @ per_query_head(v, heads)).transpose(1, 2),
    )
    if length > 1:
        continue
    rope = Rope(torch.rand(16), "halves").to(device)
    angles = rope.angles(torch.tensor([2], device=device))
    new_k, new_v = random(2, groups, 1, 32), random(2, groups, 1, 32)
    slot = torch.tensor([2], device=device)
    turned = rope.rotate(new_k, angles)
    whole_k, whole_v = k.index_copy(2, slot, turned), v.index_copy(2, slot, new_v)
    places = torch.arange(slots, device=device) <= 2
    seen = seen | (torch.arange(slots, device=device) == 2)
    mask = seen if kind in ("rows", "pairs") else mask
    weights = attention_weights(
        rope.rotate(q, angles), whole_k, (seen & places).expand(2, 1, 1, slots), 0.3, bias
    )
    found = decode_step.attend(q, k, v, mask, 0.3, last=slot, new=(new_k, new_v), angles=angles)
    same(found, (weights @ per_query_head(whole_v, heads)).transpose(1, 2))
    same(k, whole_k)
    same(v, whole_v)

for rows, offset in itertools.product((1, 5), (0, 2)):
    table, places = random(30, 24), random(12, 24)[offset:]
    tokens, place = torch.randint(0, 30, (rows,), device=device), torch.tensor([7], device=device)
    same(decode_step.look_up(tokens, table, 3.0, places, place), 3 * table[tokens] + places[7])
    same(decode_step.look_up(tokens, table, 1.0, None, place), table[tokens])

# Whole models: logits of some steps, with and without the kernels.
llama = folders.FAMILIES["llama"].spec(
    {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 41, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    }
)  # fmt: skip
small: dict[str, Any] = {"d_model": 64, "heads": 2, "layers": 2, "d_ff": 96}
for name, model in {
    "gpt": build(gpt_presets.preset("tiny", 41, 32, **small)),
    "llama": build(llama),
    "post": build(transformer.preset("tiny", 41, 41, share="all", **small)),
    "pre": build(transformer.preset("tiny", 41, 41, share="all", residual=R.PreNorm(), **small)),
}.items():
    model = model.to(device).eval()
    source = torch.randint(4, 41, (3, 7), device=device)
    padding_mask = torch.arange(7, device=device) >= torch.tensor([[0], [2], [3]], device=device)
    padding_mask = padding_mask if model.padding_side == "left" else padding_mask.flip(1)
    tokens = torch.randint(4, 41, (3, 6), device=device)
    few, found = fused_step.few, []
    with torch.no_grad():
        for fast in (False, True):
            fused_step.few = few if not fast else (lambda x: x.ndim == 3 and x.shape[1] == 1)
            state = model.start(model.encode(source, padding_mask), capacity=8)
            assert state.fix()
            found.append(
                torch.cat([model.step(tokens[:, t : t + 1], state) for t in range(6)], dim=1)
            )
    fused_step.few = few
    same(found[1], found[0])
    assert not torch.equal(found[1], found[0]), f"{name} took the ordinary way"

# The best of a vocabulary.
from regard.core.kernels import topk  # noqa: E402

topk._BLOCK = 16
for size, count in itertools.product((5, 16, 50), (1, 4)):
    scores = random(7, size)
    scores[0, 3:] = scores[1] = float("-inf")
    scores[2] = scores[2].round()  # ties
    values, places, normaliser = topk.top(scores, count)
    same(values, scores.topk(count).values)
    same(scores.gather(1, places), values)
    same(normaliser, scores.logsumexp(dim=-1))
    assert all(len(set(row)) == count for row in places.tolist())

# A greedy choice with its bookkeeping in one kernel, against the one in PyTorch.
from regard.decode import sampling  # noqa: E402
from regard.decode.constraints import Constraints  # noqa: E402
from regard.decode.strategy import Greedy  # noqa: E402


class RandomModel:
    """Five tokens with random logits, so that the end token comes soon."""

    def step(self, last: torch.Tensor, cache: None) -> torch.Tensor:
        return random(7, 1, 5)


results = []
for fast in (False, True):
    torch.manual_seed(1)
    zeros = partial(torch.zeros, dtype=torch.long, device=device)
    limits = torch.tensor([9, 3, 9, 5, 9, 9, 1], device=device)
    constraints = Constraints(zeros(7, 1), limits, 2, torch.tensor([0], device=device))
    state = sampling.GenerationState(
        cache=None,  # type: ignore[arg-type]
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
    sampling.has_greedy_kernel = lambda logits, fast=fast: fast  # type: ignore[assignment, misc]
    for _ in range(9):
        sampling.generation_step(RandomModel(), state, Greedy(), None, first=False)  # type: ignore[arg-type]
        state.t.add_(1)
    results.append((state.tokens, state.last, state.ended, state.sums))
for ours, theirs in zip(*results, strict=True):
    same(ours, theirs)
ended = results[0][2]
assert 0 < ended.sum() < 7
