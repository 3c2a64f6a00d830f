"""regard embed"""

from __future__ import annotations

from regard.cli.predict import task_command

EXAMPLES = """\b
Examples:
  regard embed bert/ "A text." "Another one." --json
  regard embed bert/ --input 'shards/*.parquet' --output vectors.jsonl --json     resumable
"""

command = task_command(
    "embed",
    """Vectors of texts or images: one line for each, the input, a tab, its numbers.

    The same as `regard predict --task embed`. With --input and --output, files of any size: after a
    crash the same command goes on where it stopped.
    """,
    EXAMPLES,
)
