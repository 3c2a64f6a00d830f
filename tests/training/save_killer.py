"""`regard train` under torchrun, whose rank is killed inside a save: KILLS=… save_killer.py FLAGS.

KILLS has the rank, and of each start by the elastic agent the number of the operation ahead of
which SIGKILL comes. A file OUT.NUMBER says that it came.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from crash_worker import kill_in_save

from regard import cli


def arm(plan: dict[str, Any], rank: int, start: int) -> None:
    """Prepares the kill of this start, if this is the rank and there is one left."""
    if rank != plan["rank"] or start >= len(plan["operations"]):
        return
    out = Path(plan["out"])
    mark = out.with_name(f"{out.name}.{start}")
    kill_in_save(out, plan["operations"][start], mark)


if __name__ == "__main__":
    arm(
        json.loads(os.environ["KILLS"]),
        int(os.environ["RANK"]),
        int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
    )
    sys.argv[0] = "regard"
    cli.main()
