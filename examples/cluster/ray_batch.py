"""Batch inference with Ray Data: on this machine, or unchanged on a cluster.

    python examples/cluster/ray_batch.py runs/builtin in.txt out.txt --workers 2
    ray job submit --address http://HEAD:8265 --working-dir . -- \
        python examples/cluster/ray_batch.py /shared/model s3://bucket/texts/ out.txt --workers 64

On a cluster, Ray finds its address in the environment of the job. Answers are written in the order
of the inputs, each exactly once, even if a worker is lost.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics

import ray

import regard.evaluation.ray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a model folder that every machine can read")
    parser.add_argument("texts", help="text or Parquet files; paths as Ray Data takes them")
    parser.add_argument("output", help="a local file: one answer per line")
    parser.add_argument("--task", default="translate")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpus", type=float, default=0, help="number per worker")
    parser.add_argument("--beam", type=int, default=None)
    arguments = parser.parse_args()

    ray.init()
    is_table = arguments.texts.endswith(".parquet")
    read = ray.data.read_parquet if is_table else ray.data.read_text
    options = {} if arguments.beam is None else {"beam": arguments.beam}
    answers = regard.ray.predict(
        read(arguments.texts),
        arguments.model,
        arguments.task,
        concurrency=arguments.workers,
        gpus=arguments.gpus,
        options=options,
    )
    with open(arguments.output, "w", encoding="utf-8") as file:
        # A stream: the results of all machines pass through here and are never in memory together.
        for row in answers.iter_rows():
            file.write(f"{row['prediction']}\n")


if __name__ == "__main__":
    main()
