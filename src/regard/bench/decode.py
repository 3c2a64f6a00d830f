"""Decoding speed: new tokens a second, each output forced to one length, so that all contenders do the same work."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from regard import edit, spec
from regard.bench import published, subprocesses
from regard.bench.models import IDS, Measured, measured
from regard.bench.peers import library
from regard.bench.report import Report, Row, accelerator, machine, row
from regard.bench.timing import Timing, bandwidth, turns
from regard.build import CoreModel
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import BeamSearch, Greedy, Limit, PowerPenalty
from regard.families.folder import open_model
from regard.parameter_count import parameter_count

Decodes = Callable[[list[list[int]]], None]

OURS = {"cpu": ("float32", "int8"), "cuda": ("bf16",)}
BYTES = {"float32": 4, "int8": 1, "bf16": 2}


@dataclass(frozen=True)
class Case:
    """`given` source or prompt tokens, `new` ones after them; `beam` 1 is greedy."""

    model: str
    batch: int
    beam: int = 1
    given: int = 32
    new: int = 64
    rounds: int = 5

    def __str__(self) -> str:
        search = "greedy" if self.beam == 1 else f"beam {self.beam}"
        return (
            f"decode {self.model}, {search}, batch {self.batch}, {self.given} + {self.new} tokens"
        )


def run(
    case: Case, against: list[str], device: torch.device, command: str, *, memory: bool = False
) -> Report:
    """With `memory`, what each contender took at most is told, too."""
    told, against = published.split(against, case, accelerator(device))
    model, threads = measured(case.model), torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        if against:
            model.write(home)
        with ExitStack() as stack:
            made = {}
            for name in contenders(case, home, against, device, threads):
                made[name] = subprocesses.Waiting(case, home, against, name, device, threads)
                stack.callback(made[name].close)
            timings = turns(made, case.rounds, device)
            peaks = {name: one.peak() for name, one in made.items()} if memory else {}
    limit = bandwidth(device)
    rows = [
        _row(name, timing, model, case, limit, peaks.get(name)) for name, timing in timings.items()
    ]
    notes = {"memory bandwidth": f"{limit / 1e9:,.0f} GB/s"}
    return Report(command, str(case), machine(device), "tokens/s", (*rows, *told), notes)


def _row(
    name: str, timing: Timing, model: Measured, case: Case, limit: float, peak: int | None
) -> Row:
    """The limit of a small batch: every step reads all weights of the decoder once."""
    kind = name.removeprefix("regard ")
    if name == kind:
        return row(name, timing, peak=peak)
    read = _read_each_step(model.spec) * BYTES[kind] * case.new / timing.median
    return row(
        name,
        timing,
        ours=True,
        peak=peak,
        share=read / limit if case.batch * case.beam <= 8 else None,
    )


def _read_each_step(description: Any) -> float:
    """Parameters that a step multiplies by: the decoder's layers and its head, not the encoder and not the look-up."""
    if isinstance(description, spec.EncoderDecoder):
        alone = spec.Decoder(description.d_model, description.target, description.decoder)
        return float(parameter_count(alone))
    return float(parameter_count(description))


# ------------------------------------------------------------------ contenders


def contenders(
    case: Case, home: Path, against: list[str], device: torch.device, threads: int
) -> dict[str, Callable[[], Decodes]]:
    """Each by name, made when called. CTranslate2 is four: float32 and int8, one worker or two."""
    found: dict[str, Callable[[], Decodes]] = {}
    for kind in OURS[device.type]:
        found[f"regard {kind}"] = partial(ours, case, home, kind, device)
    if "transformers" in against:
        found["transformers"] = partial(transformers, case, home, device)
    if "ctranslate2" in against:
        shapes = [(1, threads)] + ([(threads, 1)] if case.batch > 1 and threads > 1 else [])
        for kind in ("float32", "int8") if device.type == "cpu" else ("bfloat16",):
            for workers, each in shapes:
                name = f"CTranslate2 {kind}, {workers} × {each} threads"
                found[name] = partial(ctranslate2, case, home, kind, workers, each, device)
    return found


def ours(case: Case, home: Path, kind: str, device: torch.device) -> Decodes:
    model = measured(case.model)
    held: CoreModel = (
        open_model(home)[0].eval() if (home / "config.json").exists() else model.build(device)
    )
    if device.type == "cpu":
        edit.freeze(held, kind)
    else:
        held.to(device, {"bf16": torch.bfloat16, "float32": torch.float32}[kind])
    strategy = Greedy() if case.beam == 1 else BeamSearch(case.beam, PowerPenalty(1.0))
    settings = DecodingSettings(strategy, Limit(0, case.new), batch_tokens=10**9)
    framed = isinstance(model.spec, spec.EncoderDecoder)
    ends = SpecialTokens(IDS.pad, IDS.start if framed else None, IDS.end, (IDS.pad, IDS.end))

    def go(sources: list[list[int]]) -> None:
        found = decode(held, sources, ends, settings)  # type: ignore[arg-type]
        assert all(len(best[0].tokens) == case.new for best in found)

    return go


def transformers(case: Case, home: Path, device: torch.device) -> Decodes:
    peer = library("transformers", "transformers")
    peer.utils.logging.set_verbosity_error()
    peer.utils.logging.disable_progress_bar()
    framed = isinstance(measured(case.model).spec, spec.EncoderDecoder)
    kind = peer.AutoModelForSeq2SeqLM if framed else peer.AutoModelForCausalLM
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    model = kind.from_pretrained(home, dtype=dtype).to(device).eval()
    model.generation_config.pad_token_id = IDS.pad

    def go(sources: list[list[int]]) -> None:
        given = torch.tensor(sources, device=device)
        with torch.inference_mode():
            out = model.generate(
                input_ids=given, attention_mask=torch.ones_like(given), num_beams=case.beam, do_sample=False,
                min_new_tokens=case.new, max_new_tokens=case.new,
            )  # fmt: skip
        assert out.shape[1] == case.new + (1 if framed else case.given)

    return go


def ctranslate2(
    case: Case, home: Path, kind: str, workers: int, threads: int, device: torch.device
) -> Decodes:
    peer = library("ctranslate2", "ctranslate2")
    folder = home / "ctranslate2"
    if not folder.exists():
        from regard.convert.ctranslate2 import write

        folder.mkdir()
        model, opened = open_model(home)
        write(folder, home, model, opened)
    framed = isinstance(measured(case.model).spec, spec.EncoderDecoder)
    options = {
        "device": device.type,
        "compute_type": kind,
        "inter_threads": workers,
        "intra_threads": threads,
    }
    engine = (peer.Translator if framed else peer.Generator)(str(folder), **options)
    share = -(-case.batch // workers)

    def go(sources: list[list[int]]) -> None:
        words = [[f"w{i}" for i in source] for source in sources]
        common = {"beam_size": case.beam, "max_batch_size": share}
        if framed:
            limits = {"max_decoding_length": case.new, "min_decoding_length": case.new}
            found = [
                r.hypotheses[0]
                for r in engine.translate_batch(words, length_penalty=1, **limits, **common)
            ]
        else:
            limits = {
                "max_length": case.new,
                "min_length": case.new,
                "include_prompt_in_result": False,
            }
            found = [
                r.sequences[0]
                for r in engine.generate_batch(words, sampling_topk=1, **limits, **common)
            ]
        assert all(len(tokens) == case.new for tokens in found)

    return go
