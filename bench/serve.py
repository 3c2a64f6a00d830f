"""Many clients of one served model: how much faster than one request after the other, and than
`transformers serve`.

    python bench/serve.py translator                         # the built-in model, 32 clients
    python bench/serve.py gpt2 --streams 64 --tokens 16      # random weights of GPT-2's size

The second needs `transformers[serving]`; without it our figures stand alone. Our side is asked
through the engine, theirs over HTTP on the same machine. All figures are of one run; the machine's
other load is that of both sides, which take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import torch

import regard
from regard.data.generated.builtin import sentences
from regard.data.text.tokenizer_training import train_tokenizer
from regard.decode.strategy import BeamSearch, Greedy, Strategy
from regard.models import LanguageModel, Translator
from regard.serve.engine import Engine
from regard.serve.requests import Generation, Limits
from regard.studio.model_store import DEMO


@dataclass
class Load:
    """What clients have seen: when each token came, and how long each request took."""

    first: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        parts = [
            f"{len(self.latencies) / self.seconds:.2f} requests/s",
            f"{self.tokens / self.seconds:.1f} tokens/s",
            f"median latency {statistics.median(self.latencies) * 1000:.0f} ms",
        ]
        if self.first:
            first = statistics.median(self.first) * 1000
            parts.append(f"median time to first token {first:.0f} ms")
        return ", ".join(parts)


async def load(clients: int, each: int, ask: Callable[[int, Load], Awaitable[None]]) -> Load:
    """So many clients at once, each of which asks again when it has been answered."""
    found = Load()

    async def client(number: int) -> None:
        for turn in range(each):
            begin = time.monotonic()
            await ask(number * each + turn, found)
            found.latencies.append(time.monotonic() - begin)

    begin = time.monotonic()
    await asyncio.gather(*map(client, range(clients)))
    found.seconds = time.monotonic() - begin
    return found


async def warm_load(clients: int, each: int, ask: Callable[[int, Load], Awaitable[None]]) -> Load:
    """As `load`, after one request that is not counted."""
    await load(1, 1, ask)
    return await load(clients, each, ask)


def asking(engine: Engine, generation_of: Callable[[int], Generation]) -> Any:
    async def ask(number: int, found: Load) -> None:
        begin = time.monotonic()
        seen = 0
        async for token in engine.submit(generation_of(number)):
            if not seen:
                found.first.append(time.monotonic() - begin)
            seen += len(token.ids)
        found.tokens += seen

    return ask


def english(count: int) -> list[str]:
    return [one.source for one in islice(sentences("test"), count)]


# ------------------------------------------------------------------ the built-in translator


def translator(clients: int, each: int) -> None:
    model = regard.load(DEMO, device="cpu", kind=Translator)
    model.say = lambda _: None
    texts = english(clients * each)
    for search in (Greedy(), BeamSearch()):
        compare(model, search, texts, clients)


def compare(model: Translator, search: Strategy, texts: list[str], clients: int) -> None:
    engine = Engine(model, Limits(rows=4 * clients))
    asked = asking(engine, lambda i: Generation(engine.read(texts[i]), search, 60))
    asyncio.run(load(clients, 1, asked))  # warm
    few = min(len(texts), 3 * clients)
    alone = asyncio.run(load(1, few, asked))
    together = asyncio.run(load(clients, len(texts) // clients, asked))
    begin = time.monotonic()
    for text in texts[:few]:
        model.translate(text, search, max_new_tokens=60)
    library = few / (time.monotonic() - begin)
    engine.drain()
    name = type(search).__name__
    rate = len(together.latencies) / together.seconds
    print(f"{name}: {clients} clients: {together}")
    print(f"{name}: one after the other: {alone}")
    print(f"{name}: {rate * alone.seconds / few:.2f} × one request after the other")
    print(f"{name}: {rate / library:.2f} × model.translate, one by one", flush=True)


# ------------------------------------------------------------------ a model of GPT-2's size


def save_gpt2(folder: Path) -> Path:
    """Random weights in GPT-2's shapes, with a tokenizer of few words."""
    torch.manual_seed(0)
    spec: Any = regard.preset("gpt2:small")
    words = train_tokenizer(english(2000), "bpe", 2000)
    model = LanguageModel(regard.build(spec), spec, words)  # type: ignore[arg-type]
    return model.save(folder)


@contextmanager
def transformers_serve(folder: Path, *options: str) -> Iterator[str]:
    """`transformers serve` on a free port; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = "import sys; from transformers.cli.transformers import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "serve", str(folder), "--port", str(port)]
    # It lists the models of a cache, which must be there.
    settings = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(folder.parent)}
    with subprocess.Popen([*command, "--device", "cpu", *options], env=settings) as server:
        try:
            for _ in range(600):
                with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/v1/models"):
                    break
                time.sleep(0.5)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()


def asking_over_http(address: str, model: str, prompts: list[str], tokens: int) -> Any:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=address, api_key="none", timeout=600, max_retries=0)

    async def ask(number: int, found: Load) -> None:
        begin = time.monotonic()
        stream = await client.completions.create(
            model=model,
            prompt=prompts[number % len(prompts)],
            max_tokens=tokens,
            temperature=0,
            stream=True,
        )
        seen = 0
        async for event in stream:
            if event.choices and event.choices[0].text:
                if not seen:
                    found.first.append(time.monotonic() - begin)
                seen += 1
        found.tokens += tokens

    return ask


def gpt2(streams: int, each: int, tokens: int, theirs: bool, options: list[str]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = save_gpt2(Path(temporary) / "gpt2")
        prompts = english(streams)
        model = regard.load(folder, device="cpu", kind=LanguageModel)
        engine = Engine(model, Limits(rows=streams))
        asked = asking(
            engine, lambda i: Generation(engine.read(prompts[i % streams]), Greedy(), tokens)
        )
        ours = asyncio.run(warm_load(streams, each, asked))
        engine.drain()
        print(f"regard: {streams} streams of {tokens} tokens: {ours}", flush=True)
        if not theirs:
            return
        with transformers_serve(folder, *options) as address:
            asked = asking_over_http(address, str(folder), prompts, tokens)
            other = asyncio.run(warm_load(streams, each, asked))
        print(f"transformers serve: {streams} streams of {tokens} tokens: {other}")
        rate = ours.tokens / ours.seconds
        print(f"{rate / (other.tokens / other.seconds):.2f} × the throughput")
        first = statistics.median(other.first) / statistics.median(ours.first)
        print(f"{first:.2f} × sooner to the first token")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("translator", "gpt2"))
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--each", type=int, default=4, help="requests of each client")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--alone", action="store_true", help="without transformers serve")
    parser.add_argument("--option", action="append", default=[], help="of transformers serve")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    if given.what == "translator":
        translator(given.streams, given.each)
    else:
        gpt2(given.streams, given.each, given.tokens, not given.alone, given.option)


if __name__ == "__main__":
    main()
