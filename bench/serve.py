"""Many clients of one served model: how much faster than one request after the other, than
`transformers serve`, and beside a batch of the same size; whether answers are those alone.

    python bench/serve.py translator                       # the built-in model, 32 clients
    python bench/serve.py gpt2 --streams 64 --seconds 180  # both servers over HTTP
    python bench/serve.py gpu --streams 256 --tokens 128   # GPT-2 124M and base in bf16
    python bench/serve.py equal --count 1000               # alone, and among 63 others
    python bench/serve.py look                             # what neighbours of `look` feel

`gpt2` needs `transformers[serving]`, if not `--alone`; both servers run on `--cores`, one after the
other. All weights are random but the translator's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import torch

import regard
from regard.core.frontends.patch_embedding import Patches
from regard.core.frontends.spectrogram_frontend import Spectrogram
from regard.core.probe import NO_PROBE, NullProbe, Probe
from regard.data.generated.builtin import sentences
from regard.data.text.tokenizer_training import train_tokenizer
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.continuous_batching import ContinuousBatch
from regard.decode.jobs import Job, Prefill
from regard.decode.strategy import BeamSearch, Greedy, Hypothesis, Limit, Strategy
from regard.families.presets import names
from regard.look.probe_names import attentions, switched_off
from regard.models import LanguageModel, Translator
from regard.serve.engine import Engine
from regard.serve.requests import AttentionRows, Generation, Limits, LookRequest
from regard.studio.model_store import DEMO
from regard.system.errors import RegardError
from regard.wirings.generative import Generative


@dataclass
class Load:
    """What clients have seen: when each token came, and how long each request took."""

    first: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0

    errors: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [
            f"{len(self.latencies) / self.seconds:.2f} requests/s",
            f"{self.tokens / self.seconds:.1f} tokens/s",
            f"median latency {statistics.median(self.latencies) * 1000:.0f} ms",
        ]
        if self.first:
            first = statistics.median(self.first) * 1000
            parts.append(f"median time to first token {first:.0f} ms")
        return ", ".join([*parts, f"{len(self.errors)} errors"])


Ask = Callable[[int, Load], Awaitable[None]]


async def load(clients: int, each: int, ask: Ask, seconds: float = math.inf) -> Load:
    """So many clients at once, each of which asks again when it has been answered, for so many
    turns or seconds."""
    found = Load()
    begin = time.monotonic()

    async def client(number: int) -> None:
        for turn in range(each):
            asked = time.monotonic()
            if asked - begin > seconds:
                return
            try:
                await ask(number * each + turn, found)
            except Exception as error:
                found.errors.append(repr(error))
            found.latencies.append(time.monotonic() - asked)

    await asyncio.gather(*map(client, range(clients)))
    found.seconds = time.monotonic() - begin
    return found


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
def server(command: Sequence[str], port: int, cores: str, **settings: str) -> Iterator[int]:
    """A server in a process of its own, on these cores; its id, once it answers."""
    pinned = ["taskset", "-c", cores] if cores else []
    environment = {**os.environ, **settings}
    with subprocess.Popen([*pinned, *command], env=environment, stdout=sys.stderr) as process:
        try:
            for _ in range(600):
                with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/v1/models"):
                    break
                time.sleep(0.5)
            yield process.pid
        finally:
            process.terminate()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def asking_over_http(port: int, model: str, prompts: list[str], tokens: int) -> Ask:
    """A client that speaks HTTP by itself, and so costs both servers the same."""

    async def ask(number: int, found: Load) -> None:
        begin = time.monotonic()
        wanted = {
            "model": model,
            "prompt": prompts[number % len(prompts)],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
        }
        body = json.dumps(wanted).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise OSError(status + await reader.read())
        first = True
        ended = False
        while line := await reader.readline():
            ended = ended or b"[DONE]" in line or b'"finish_reason":"length"' in line
            if line.startswith(b"data:") and first:
                found.first.append(time.monotonic() - begin)
                first = False
            if b'"error"' in line:
                raise OSError(line)
        writer.close()
        if not ended:
            raise OSError("the stream broke off")
        found.tokens += tokens

    return ask


def resident(pid: int) -> float:
    """The memory of a process, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def processor_seconds(pid: int) -> float:
    """What a process has used of the processor: less of what else the machine does is in it."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def loaded(name: str, given: argparse.Namespace, folder: Path, command: list[str]) -> Load:
    """What clients of one server see, and what its memory does."""
    prompts = english(max(64, given.streams))
    port = free_port()
    # Theirs lists the models of a cache, which must be there.
    settings = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(folder.parent)}
    settings["OMP_NUM_THREADS"] = str(given.threads)
    with server([*command, "--port", str(port)], port, given.cores, **settings) as pid:
        model = "gpt2" if name == "regard" else str(folder)
        ask = asking_over_http(port, model, prompts, given.tokens)
        asyncio.run(load(4, 1, ask))  # warm
        before = resident(pid)
        used = processor_seconds(pid)
        found = asyncio.run(load(given.streams, 1 << 20, ask, given.seconds))
        growth = resident(pid) - before
        used = processor_seconds(pid) - used
    print(f"{name}: {given.streams} streams of {given.tokens} tokens: {found}")
    print(f"{name}: {found.tokens / used:.1f} tokens per second of the processor")
    print(f"{name}: memory {before:.0f} MB, {growth:+.0f} MB in {found.seconds:.0f} s", flush=True)
    for error in {*found.errors[:3]}:
        print(f"{name}: {error[:300]}")
    return found


def gpt2(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = save_gpt2(Path(temporary) / "gpt2")
        command = [sys.executable, "-m", "regard", "serve", str(folder), "--device", "cpu"]
        command += ["--no-studio", "--limit", f"rows={given.streams}"]
        if given.precision:
            command += ["--precision", given.precision]
        ours = loaded("regard", given, folder, command)
        if given.alone:
            return
        program = "import sys; from transformers.cli.transformers import main; sys.exit(main())"
        theirs = [sys.executable, "-c", program, "serve", str(folder), "--device", "cpu"]
        if given.precision == "bf16":
            theirs += ["--dtype", "bfloat16"]
        name = "transformers serve --continuous-batching"
        other = loaded(name, given, folder, [*theirs, "--continuous-batching"])
        rate = (ours.tokens / ours.seconds) / (other.tokens / other.seconds)
        first = statistics.median(other.first) / statistics.median(ours.first)
        print(f"{rate:.2f} × the throughput of {name}")
        print(f"{first:.2f} × sooner to the first token", flush=True)


# ------------------------------------------------------------------ one GPU


def base_translator() -> Translator:
    words = train_tokenizer(english(2000), "bpe", 2000)
    spec: Any = regard.preset("transformer:base", len(words), len(words))
    bos = words.required_token_id("bos")
    return Translator(regard.build(spec), spec, words, words, bos)  # type: ignore[arg-type]


def gpu(given: argparse.Namespace) -> None:
    torch.manual_seed(0)
    for name in ("GPT-2 124M", "base"):
        model: Any
        with tempfile.TemporaryDirectory() as temporary:
            if name == "base":
                model = base_translator()
            else:
                model = regard.load(save_gpt2(Path(temporary) / "gpt2"), device="cpu")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model.to(device)
        model.prepare_for_inference("bf16")
        model.say = lambda _: None
        beside_a_batch(name, model, given)


def beside_a_batch(name: str, model: Any, given: argparse.Namespace) -> None:
    """Tokens per second of so many clients, beside those of one batch of their texts."""
    count = given.streams
    engine = Engine(model, Limits(rows=count))
    readings = [engine.read(text) for text in english(count)]
    sources = [reading.inputs[0].tolist() for reading in readings]
    special = readings[0].special_tokens
    assert special is not None
    settings = DecodingSettings(Greedy(), Limit.fixed(given.tokens), batch_tokens=1 << 20)

    def offline() -> float:
        begin = time.monotonic()
        answers = decode(model.model, sources, special, settings)
        return sum(len(one[0].tokens) for one in answers) / (time.monotonic() - begin)

    ask = asking(engine, lambda i: Generation(readings[i % count], Greedy(), given.tokens))
    rates = {"batch": [], "clients": []}  # type: dict[str, list[float]]
    for number in range(given.rounds + 1):
        batch = offline()
        before = engine.metrics()
        found = asyncio.run(load(count, given.each, ask))
        steps = engine.metrics().steps - before.steps
        print(f"{name}: batch {batch:,.0f} tokens/s; clients {found}; {steps} steps", flush=True)
        if number:  # the first round is not counted
            rates["batch"].append(batch)
            rates["clients"].append(found.tokens / found.seconds)
    engine.drain()
    both = {key: statistics.median(values) for key, values in rates.items()}
    share = both["clients"] / both["batch"]
    print(f"{name}: {count} clients {both['clients']:,.0f}, batch {both['batch']:,.0f} tokens/s")
    print(f"{name}: {share:.0%} of the batch", flush=True)


# ------------------------------------------------------------------ equality


def writers() -> Iterator[tuple[str, Generative]]:
    """A tiny model of every preset that writes."""
    for number, name in enumerate(names()):
        try:
            description: Any = regard.preset(f"{name}:tiny", 64, 64)
            torch.manual_seed(number)
            model = regard.build(description).eval()
        except RegardError:
            continue
        if isinstance(model, Generative) and model.writes:
            yield name, model


def greedy_job(model: Generative, key: int, probe: NullProbe = NO_PROBE) -> Job:
    chance = random.Random(key)
    start = 1 if model.reads_target else None
    most = model.positions_left(25) or 60
    source: Any = [chance.randrange(4, 60) for _ in range(chance.randrange(1, min(60, most)))]
    shape: tuple[int, ...] = ()
    match model.front_ends().get("encoder"):
        case Spectrogram() as front_end:
            shape = (front_end.first.in_channels, 40)
        case Patches() as front_end:
            shape = (front_end.spec.channels, front_end.spec.size, front_end.spec.size)
    if shape:
        source = torch.randn(shape, generator=torch.Generator().manual_seed(key))
    settings = DecodingSettings(Greedy(), Limit.fixed(chance.randrange(1, 25)), probe=probe)
    return Job(source, SpecialTokens(0, start, 2, (0, 1, 3)), settings, key=key)


def written(job: Job) -> list[Hypothesis]:
    if job.error is not None:
        raise job.error
    return [one for search in job.searches for one in search.hypotheses or ()]


@torch.inference_mode()
def run_jobs(model: Generative, jobs: Sequence[Job]) -> None:
    """Decodes jobs in up to 64 rows; prompts are read together as they come."""
    batch = ContinuousBatch(model, 64)
    waiting = [*jobs]
    while waiting or batch.owners:
        while waiting and batch.free:
            count = 1
            if all(Prefill.can_share(model, job) for job in waiting[:5]):
                count = min(5, batch.free, len(waiting))
            prefill = Prefill(model, waiting[:count], 512)
            while not prefill.done:
                prefill()
            batch.join(prefill)
            del waiting[:count]
        batch.step()


def off(model: Generative) -> NullProbe:
    """Heads switched off, as `look` asks for it."""
    named = [name for name, one in attentions(model).items() if one.heads]
    if not named:
        return NO_PROBE
    return Probe(edits=switched_off(model, [(named[-1], 0)]))


def equal(count: int) -> None:
    """Greedy answers, tokens and scores, alone and among 63 others, some of which are changed as
    `look` asks for it."""
    models = [*writers()]
    each = -(-count // len(models))
    total = same = with_look = 0
    for name, model in models:
        for probe in (NO_PROBE, off(model)):
            alone = [greedy_job(model, key) for key in range(each)]
            for job in alone:
                run_jobs(model, [job])
            among = [greedy_job(model, key) for key in range(each)]
            others = [greedy_job(model, 1000 + key, probe) for key in range(max(0, 64 - each))]
            mixed = [*among, *others]
            random.Random(0).shuffle(mixed)
            run_jobs(model, mixed)
            equal = sum(written(a) == written(b) for a, b in zip(alone, among, strict=True))
            total += each
            same += equal
            with_look += each * probe.active
            if equal < each:
                print(f"{name}: {equal} of {each} equal, neighbours changed: {probe.active}")
    print(
        f"{len(models)} models: {same:,} of {total:,} answers equal to the last bit of their scores"
    )
    print(f"{with_look:,} of them beside neighbours with heads switched off", flush=True)
    equal_through_the_engine(count)


def equal_through_the_engine(count: int) -> None:
    """The built-in translator: greedy and beam, alone and among 63 others, which look."""
    model = regard.load(DEMO, device="cpu", kind=Translator)
    model.say = lambda _: None
    model.prepare_for_inference()
    engine = Engine(model)
    texts = english(count)
    look = LookRequest(alignment=True, hidden=("decoder.0.residual",))
    changed = replace(look, heads_off=(("decoder.0.cross", 0),))

    def answers(strategy: Strategy, looks: Sequence[LookRequest | None], at_once: int) -> list[Any]:
        found = []
        for first in range(0, count, at_once):
            streams = [
                engine.submit(
                    Generation(engine.read(text), strategy, 60, look=looks[i % len(looks)])
                )
                for i, text in enumerate(texts[first : first + at_once])
            ]
            found += [stream.wait(600).choices for stream in streams]
        return found

    alone = answers(Greedy(), [None], 1)
    among = answers(Greedy(), [None], 64)
    beside = answers(Greedy(), [None, look, None, changed], 64)
    equal = sum(a == b for a, b in zip(alone, among, strict=True))
    print(f"translator: {equal:,} of {count:,} greedy answers alone and among 63 others equal")
    kept = [i for i in range(count) if i % 64 % 4 != 3]
    equal = sum(alone[i] == beside[i] for i in kept)
    print(f"translator: {equal:,} of {len(kept):,} equal where neighbours look or are changed")
    beams = [one[0].text for one in answers(BeamSearch(), [None], 64)]
    expected = model.translate(texts, BeamSearch(), max_new_tokens=60)
    equal = sum(a == b for a, b in zip(beams, expected, strict=True))
    print(f"translator: {equal:,} of {count:,} beams equal to model.translate", flush=True)
    engine.drain()


# ------------------------------------------------------------------ neighbours of look


def looking(given: argparse.Namespace) -> None:
    """The time per token of streams, while others look and while the same others do not."""
    with tempfile.TemporaryDirectory() as temporary:
        model: Any = regard.load(save_gpt2(Path(temporary) / "gpt2"), device="cpu")
    model.prepare_for_inference()
    model.say = lambda _: None
    engine = Engine(model, Limits(rows=given.streams + 1))
    prompts = english(given.streams)
    request = LookRequest(alignment=False, lens=5, hidden=("decoder.6.residual",))
    request = replace(request, attention=(AttentionRows("decoder.3.self"),))

    async def others(look: LookRequest | None, stop: asyncio.Event) -> int:
        count = 0
        while not stop.is_set():
            one = Generation(engine.read(prompts[0]), Greedy(), 12, look=look)
            await engine.submit(one).result()
            count += 1
        return count

    async def gaps(look: LookRequest | None) -> tuple[list[float], int]:
        stop = asyncio.Event()
        other = asyncio.create_task(others(look, stop))
        found: list[float] = []

        async def stream(text: str) -> None:
            last = 0.0
            async for _ in engine.submit(Generation(engine.read(text), Greedy(), given.tokens)):
                now = time.monotonic()
                if last:
                    found.append(now - last)
                last = now

        await asyncio.gather(*map(stream, prompts[: given.streams]))
        stop.set()
        return found, await other

    for _ in range(given.rounds):
        for name, look in (("no look", None), ("look", request)):
            found, count = asyncio.run(gaps(look))
            cuts = statistics.quantiles(found, n=100)
            print(
                f"{name}: {count} requests beside {given.streams} streams; time per token: median "
                f"{cuts[49] * 1000:.1f} ms, 95 % {cuts[94] * 1000:.1f} ms, 99 % "
                f"{cuts[98] * 1000:.1f} ms, mean {statistics.mean(found) * 1000:.1f} ms",
                flush=True,
            )
    engine.drain()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("translator", "gpt2", "gpu", "equal", "look"))
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--each", type=int, default=4, help="requests of each client")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--alone", action="store_true", help="without transformers serve")
    parser.add_argument("--cores", default="", help="of the servers: 0,1")
    parser.add_argument("--precision", default="")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    match given.what:
        case "translator":
            translator(given.streams, given.each)
        case "gpt2":
            gpt2(given)
        case "gpu":
            gpu(given)
        case "equal":
            equal(given.count)
        case "look":
            looking(given)


if __name__ == "__main__":
    main()
