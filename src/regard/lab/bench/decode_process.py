"""The program in which one contender of `decode.py` decodes; started by `subprocesses.py`.

For each line of standard input it decodes one batch (`go`) or prints its peak memory (`peak`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.lab.bench.decode import DecodingCase, contenders
from regard.lab.bench.models import benchmark_model
from regard.lab.bench.process_memory import peak_memory
from regard.lab.bench.subprocesses import FAILURE, REPLY, read_request
from regard.system.errors import RegardError
from regard.system.memory import keep_large_blocks


def serve(request: dict[str, Any]) -> None:
    threads = request["threads"]
    torch.set_num_threads(threads)
    case = DecodingCase(**request["case"])
    device = torch.device(request["device"])
    on_gpu = device.type == "cuda"
    vocabulary = benchmark_model(case.model).vocabulary
    generator = np.random.default_rng(0)
    # The same sources in every process; the first four ids are special tokens.
    sources = generator.integers(4, vocabulary, (case.batch, case.prompt_length)).tolist()
    keep_large_blocks()  # as the commands do: memory is not returned between batches
    makers = contenders(case, Path(request["folder"]), request["against"], device, threads)
    # Only this one is made: others would take memory and threads.
    decode = makers[request["name"]]()
    torch.set_num_threads(threads)  # some libraries change it for the whole process
    print(REPLY, "ready", flush=True)
    for line in sys.stdin:
        reply: object = "done"
        if line.strip() == "peak":
            reply = torch.cuda.max_memory_allocated() if on_gpu else peak_memory()
        else:
            decode(sources)
            if on_gpu:
                torch.cuda.synchronize()
        print(REPLY, reply, flush=True)


if __name__ == "__main__":
    try:
        serve(read_request())
    except RegardError as error:
        # Raised again in the process of the benchmark, which prints it as any other.
        print(FAILURE, json.dumps([error.problem, error.repair]), flush=True)
