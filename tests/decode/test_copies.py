"""Groups of sentences are decoded by copies of a process, where it has no other threads: here in one of its own."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import torch
from regard.bench.models import measured
from regard.decode import search
from regard.decode.batch_decoding import Ends, Settings, decode
from regard.decode.strategy import Beam, Greedy, Limit, Sample
from regard.errors import DataError

if __name__ == "__main__":
    model = measured("tiny").build()
    sources = [torch.randint(4, 900, (3 + i % 5,)).tolist() for i in range(40)]
    copied = []
    plain = search._borrowed
    search._borrowed, search._forks = plain, (lambda known=search._forks: (copied.append(known()), known())[1])
    for strategy in (Greedy(), Beam(3), Sample(seed=4)):
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            told = []
            hypotheses = decode(model, sources, Ends(0, 1, 2, (0,)), Settings(strategy, Limit(0, 9)), told.append)
            assert sum(told) == len(sources)
            assert torch.get_num_threads() == threads
            found.append([[h.tokens for h in one] for one in hypotheses])
        assert found[0] == found[1], strategy
    assert copied == [True] * 3, copied

    def broken(*given):
        raise DataError("a sentence is broken", "mend it")

    search._decode_batch = broken
    try:
        decode(model, sources, Ends(0, 1, 2, (0,)), Settings(Greedy(), Limit(0, 9)))
    except DataError as error:
        assert "mend it" in str(error)
    else:
        raise AssertionError("no error")
    search._TASKS.append(broken)  # as a copy of the process would say it
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        try:
            pool.submit(plain, [1]).result()
        except DataError as error:
            assert "mend it" in str(error)
    print("as one")
"""


def test_copies_of_the_process_find_what_one_finds() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "as one\n", done.stderr[-3000:]
