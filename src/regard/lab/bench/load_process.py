"""The program that opens a model and translates one line; started by `subprocesses.py`.

It imports little itself, because the time that imports take is measured.
"""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

from regard.lab.bench.process_memory import peak_memory
from regard.lab.bench.subprocesses import read_request


def first_output(request: dict[str, Any]) -> dict[str, float]:
    """Seconds of import, load and translation, and the peak memory in bytes."""
    clocks = [time.perf_counter()]
    if request["name"] == "regard":
        import regard
        from regard.decode.batch_decoding import DecodingSettings
        from regard.decode.strategy import BeamSearch, Limit

        clocks.append(time.perf_counter())
        model = regard.load(request["folder"])
        clocks.append(time.perf_counter())
        settings = DecodingSettings(BeamSearch(4), Limit.fixed(request["new"]))
        hypotheses = model.hypotheses([request["text"]], settings)[0]  # type: ignore[attr-defined]
        translation = model.text(hypotheses[0])  # type: ignore[attr-defined]
    else:
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        clocks.append(time.perf_counter())
        tokenizer = AutoTokenizer.from_pretrained(request["folder"])
        peer: Any = AutoModelForSeq2SeqLM.from_pretrained(request["folder"])
        clocks.append(time.perf_counter())
        inputs = tokenizer(request["text"], return_tensors="pt")
        out = peer.generate(**inputs, num_beams=4, max_new_tokens=request["new"])
        translation = tokenizer.decode(out[0], skip_special_tokens=True)
    clocks.append(time.perf_counter())
    assert isinstance(translation, str)
    seconds = [end - start for start, end in itertools.pairwise(clocks)]
    reply = dict(zip(("import", "load", "translate"), seconds, strict=True))
    return {**reply, "peak": peak_memory()}


if __name__ == "__main__":
    print(json.dumps(first_output(read_request())))
