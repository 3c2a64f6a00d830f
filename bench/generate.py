"""`generate` of GPT-2 124M, one prompt, three ways: whole, streamed, and watched at every step.

python bench/generate.py [--device cuda] [--tokens 256] [--rounds 7]

Watched: a callback sees the logits inside each step, as `regard look` does, which rules out CUDA
graphs and the fused step. The ways take turns; weights are random. Medians, with the fastest and
the slowest round, the first one (compilation and capture) left out.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import tokenizers
import torch

import regard
from regard.builder import build
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokenizer_training import word_level_json
from regard.decode.batch_decoding import DecodingSettings, decode
from regard.decode.strategy import Greedy, Limit, Sampling
from regard.families.presets import preset

VOCABULARY = 50_257
STRATEGIES: dict[str, Greedy | Sampling] = {
    "greedy": Greedy(),
    "top-k 50": Sampling(0.8, top_k=50, seed=1),
    "top-p 0.9": Sampling(0.8, top_p=0.9, seed=1),
}


def language_model(device: str) -> regard.LanguageModel:
    words = word_level_json([" ".join(f"w{i}" for i in range(2000))], cls_token=False)
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(words)).for_prompts()
    description: Any = preset("gpt2:small", VOCABULARY, 1024)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    core: Any = build(description).to(device, dtype).eval()
    return regard.LanguageModel(core, description, tokenizer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    model = language_model(arguments.device)
    tokens = arguments.tokens
    prompt = "w1 w2 w3 w4"
    ids = model.tokenizer.input_ids(prompt)
    for name, strategy in STRATEGIES.items():

        def watched(strategy: Any = strategy) -> object:
            settings = DecodingSettings(strategy, Limit.fixed(tokens))
            return decode(
                model.model, [ids], model.special_tokens, settings, on_step=lambda event: None
            )

        def streamed(strategy: Any = strategy) -> object:
            return model.generate(
                prompt, strategy, max_new_tokens=tokens, stream=lambda piece: None
            )

        def whole(strategy: Any = strategy) -> object:
            return model.generate(prompt, strategy, max_new_tokens=tokens)

        ways: dict[str, Callable[[], object]] = {
            "watched": watched,
            "streamed": streamed,
            "whole": whole,
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(arguments.rounds + 1):
            for way, run in ways.items():
                started = time.perf_counter()
                run()
                seconds[way].append(time.perf_counter() - started)
        for way, all_rounds in seconds.items():
            rates = sorted(tokens / one for one in all_rounds[1:])
            median = statistics.median(rates)
            print(f"{name:10} {way:9} {median:7.0f} tokens/s ({rates[0]:.0f} to {rates[-1]:.0f})")


if __name__ == "__main__":
    main()
