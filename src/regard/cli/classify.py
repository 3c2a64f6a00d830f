"""regard classify"""

from __future__ import annotations

from regard.cli.predict import task_command

EXAMPLES = """\b
Examples:
  regard classify runs/mood "A fine film." "Too long."
  regard classify gpt2/ "Great fun." --label good --label bad
  regard classify runs/mood --input reviews.txt.gz --output classes.jsonl --json     resumable
"""

command = task_command(
    "classify",
    """Classify texts, images or recordings: one line per input: the input, a tab, probabilities.

    Same as `regard predict --task classify`. --input and --output handle files of any size: after a
    crash the same command resumes where it stopped.
    """,
    EXAMPLES,
)
