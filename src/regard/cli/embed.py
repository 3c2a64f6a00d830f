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
    """Embed texts or images: one line per input: the input, a tab, its embedding.

    Same as `regard predict --task embed`. --input and --output handle files of any size: after a
    crash the same command resumes where it stopped.
    """,
    EXAMPLES,
)
