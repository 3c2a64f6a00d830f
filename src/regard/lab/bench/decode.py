"""Decoding speed: new tokens a second.

Each output is forced to one length, so that all contenders do the same work.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from regard.builder import edit
from regard.builder.parameter_count import parameter_count, parameters_by_module
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import BeamSearch, Greedy, Limit, PowerPenalty
from regard.families.folder import open_model
from regard.lab.bench import published
from regard.lab.bench.models import IDS, benchmark_model
from regard.lab.bench.peers import import_peer
from regard.lab.bench.report import (
    BenchmarkReport,
    accelerator_name,
    machine_name,
    timing_row,
)
from regard.lab.bench.subprocesses import ContenderProcess
from regard.lab.bench.timing import time_in_turns
from regard.lab.measure.instruments import bandwidth

DecodeBatch = Callable[[list[list[int]]], None]

PRECISIONS = {"cpu": ("float32", "int8"), "cuda": ("bf16",)}
# Bytes that a step reads for each parameter.
BYTES = {"float32": 4, "int8": 1, "bf16": 2}
SMALL_BATCH = 8  # rows up to which a step is bound by memory bandwidth


@dataclass(frozen=True)
class DecodingCase:
    """A batch of sources or prompts of `prompt_length` tokens, with `new` tokens after them.

    A `beam` of 1 is greedy decoding.
    """

    model: str
    batch: int
    beam: int = 1
    prompt_length: int = 32
    new: int = 64
    rounds: int = 5

    def __str__(self) -> str:
        search = "greedy" if self.beam == 1 else f"beam {self.beam}"
        lengths = f"{self.prompt_length} + {self.new} tokens"
        return f"decode {self.model}, {search}, batch {self.batch}, {lengths}"


def run(
    case: DecodingCase,
    against: list[str],
    device: torch.device,
    command: str,
    *,
    memory: bool = False,
) -> BenchmarkReport:
    """Times each contender in a process of its own; with `memory`, reports their peaks, too."""
    published_rows, against = published.split(against, case, accelerator_name(device))
    model = benchmark_model(case.model)
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if against:  # peers open the model from a folder; ours alone is built in its process
            model.write(folder)
        with ExitStack() as stack:
            request = {
                "case": asdict(case),
                "folder": temporary,
                "against": against,
                "device": str(device),
                "threads": threads,
            }
            tokens = float(case.batch * case.new)
            processes = {
                name: stack.enter_context(ContenderProcess({**request, "name": name}, tokens))
                for name in contenders(case, folder, against, device, threads)
            }
            timings = time_in_turns(processes, case.rounds, device)
            peaks = {name: process.peak() for name, process in processes.items() if memory}
    limit = bandwidth(device)
    rows = []
    for name, timing in timings.items():
        precision = name.removeprefix("regard ")
        share = None
        # The memory bandwidth limits small batches: every step reads all weights of the decoder.
        if precision in BYTES and case.batch * case.beam <= SMALL_BATCH:
            step_bytes = _step_parameters(model.spec) * BYTES[precision]
            share = step_bytes * case.new / timing.median / limit
        rows.append(timing_row(name, timing, peak=peaks.get(name), share=share))
    notes = {"memory bandwidth": f"{limit / 1e9:,.0f} GB/s"}
    all_rows = (*rows, *published_rows)
    return BenchmarkReport(command, str(case), machine_name(device), "tokens/s", all_rows, notes)


def _step_parameters(description: Any) -> float:
    """The parameters that a step reads: the decoder's layers and the head, not the encoder."""
    if description.is_encoder_decoder:
        head = description.target.vocabulary * description.d_model
        return float(parameters_by_module(description)["decoder"] + head)
    return float(parameter_count(description))


# --- contenders ---


def contenders(
    case: DecodingCase, folder: Path, against: list[str], device: torch.device, threads: int
) -> dict[str, Callable[[], DecodeBatch]]:
    """The contenders by name, each made when it is called.

    CTranslate2 is up to four: float32 and int8, each with one worker or with one for each thread.
    """
    makers: dict[str, Callable[[], DecodeBatch]] = {
        f"regard {precision}": partial(regard_decoder, case, folder, precision, device)
        for precision in PRECISIONS[device.type]
    }
    if "transformers" in against:
        makers["transformers"] = partial(transformers_decoder, case, folder, device)
    if "ctranslate2" in against:
        layouts = [(1, threads)]  # workers, threads each
        if case.batch > 1 and threads > 1:
            layouts.append((threads, 1))
        for precision in ("float32", "int8") if device.type == "cpu" else ("bfloat16",):
            for workers, each in layouts:
                name = f"CTranslate2 {precision}, {workers} × {each} threads"
                options = {
                    "device": device.type,
                    "compute_type": precision,
                    "inter_threads": workers,
                    "intra_threads": each,
                }
                makers[name] = partial(ctranslate2_decoder, case, folder, options)
    return makers


def regard_decoder(
    case: DecodingCase, folder: Path, precision: str, device: torch.device
) -> DecodeBatch:
    description = benchmark_model(case.model)
    model: Any
    if (folder / "config.json").exists():
        model = open_model(folder)[0].eval()
    else:
        model = description.build(device)
    if device.type == "cpu":
        edit.pack_weights(model, precision)  # weights packed for inference, and int8 if asked
    else:
        model.to(device, {"bf16": torch.bfloat16, "float32": torch.float32}[precision])
    strategy = Greedy() if case.beam == 1 else BeamSearch(case.beam, PowerPenalty(1.0))
    settings = DecodingSettings(
        strategy,
        Limit.fixed(case.new),
        batch_tokens=10**9,  # one batch, whatever its size
        workers=torch.get_num_threads(),  # as the commands do
    )
    start = IDS.start if description.is_encoder_decoder else None
    # The end token is banned, so that every output has the full length.
    special_tokens = SpecialTokens(IDS.pad, start, IDS.end, banned=(IDS.pad, IDS.end))

    def decode_batch(sources: list[list[int]]) -> None:
        results = decode(model, sources, special_tokens, settings)  # type: ignore[arg-type]
        assert all(len(hypotheses[0].tokens) == case.new for hypotheses in results)

    return decode_batch


def transformers_decoder(case: DecodingCase, folder: Path, device: torch.device) -> DecodeBatch:
    transformers = import_peer("transformers")
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    if benchmark_model(case.model).is_encoder_decoder:
        auto_model = transformers.AutoModelForSeq2SeqLM
        tokens_before = 1  # the decoder's start token
    else:
        auto_model = transformers.AutoModelForCausalLM
        tokens_before = case.prompt_length
    model = auto_model.from_pretrained(folder, dtype=dtype).to(device).eval()
    model.generation_config.pad_token_id = IDS.pad

    def decode_batch(sources: list[list[int]]) -> None:
        input_ids = torch.tensor(sources, device=device)
        with torch.inference_mode():
            out = model.generate(
                input_ids=input_ids,
                attention_mask=torch.ones_like(input_ids),
                num_beams=case.beam,
                do_sample=False,
                min_new_tokens=case.new,
                max_new_tokens=case.new,
            )
        assert out.shape[1] == tokens_before + case.new

    return decode_batch


def ctranslate2_decoder(case: DecodingCase, folder: Path, options: dict[str, Any]) -> DecodeBatch:
    """`options` are those of CTranslate2's engine."""
    library = import_peer("ctranslate2")
    converted = folder / "ctranslate2"
    if not converted.exists():
        from regard.lab.convert.ctranslate2 import write  # only this contender pays for the import

        converted.mkdir()
        model, opened = open_model(folder)
        write(converted, folder, model, opened)
    is_encoder_decoder = benchmark_model(case.model).is_encoder_decoder
    engine_type = library.Translator if is_encoder_decoder else library.Generator
    engine = engine_type(str(converted), **options)
    # Each worker takes an equal share of the batch.
    common = {
        "beam_size": case.beam,
        "max_batch_size": -(-case.batch // options["inter_threads"]),
    }

    def decode_batch(sources: list[list[int]]) -> None:
        words = [[f"w{i}" for i in source] for source in sources]
        if is_encoder_decoder:
            results = engine.translate_batch(
                words,
                length_penalty=1,
                min_decoding_length=case.new,
                max_decoding_length=case.new,
                **common,
            )
            outputs = [result.hypotheses[0] for result in results]
        else:
            results = engine.generate_batch(
                words,
                sampling_topk=1,  # greedy
                min_length=case.new,
                max_length=case.new,
                include_prompt_in_result=False,
                **common,
            )
            outputs = [result.sequences[0] for result in results]
        assert all(len(tokens) == case.new for tokens in outputs)

    return decode_batch
