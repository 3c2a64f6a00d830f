"""The command line: one file a verb, loaded when it is called, so that help never waits for torch."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from regard import __version__
from regard.allocator import keep_large_blocks
from regard.decode.worker_count import one_worker_per_thread
from regard.errors import RegardError

# verb → (module, one line of help)
VERBS = {
    "train": (
        "regard.cli.train",
        "Train a translator or a language model: on your text, a recipe, or the built-in language.",
    ),
    "finetune": (
        "regard.cli.finetune",
        "Train a finished model further: classes, tags, answers, pairs, or plain text.",
    ),
    "compare": (
        "regard.cli.compare",
        "Train several models at equal data, parameters and budget: one table, one figure.",
    ),
    "translate": ("regard.cli.translate", "Translate standard input, line by line."),
    "generate": (
        "regard.cli.generate",
        "Go on from a prompt with a language model, token by token.",
    ),
    "evaluate": (
        "regard.cli.evaluate",
        "Score a model on a test set: BLEU, chrF, exact match, perplexity.",
    ),
    "look": (
        "regard.cli.look",
        "Look inside: attention, alignment, heads, layers, the beam tree; in the terminal or as a page.",
    ),
    "studio": (
        "regard.cli.studio",
        "The same in the browser: look, decode, watch runs, learn how it works.",
    ),
    "show": (
        "regard.cli.show",
        "Print a model's architecture on one page: stations, shapes, parameters.",
    ),
    "verify": (
        "regard.cli.verify",
        "Check a model's invariants: cached, batched, padded, fused, saved; and parity.",
    ),
    "prune": (
        "regard.cli.prune",
        "Take the heads out that matter least: a smaller model, its score beside its speed.",
    ),
    "convert": (
        "regard.cli.convert",
        "Write a model for others: Hugging Face's layout, CTranslate2, ONNX.",
    ),
    "bench": ("regard.cli.bench", "Measure speed and memory here, next to others, in one run."),
    "data": ("regard.cli.data", "Write the built-in parallel language, so that you can read it."),
}

EXAMPLES = """\b
Examples:
  regard train
  regard train --source train.en --target train.de --preset tiny --out runs/mine
  echo "The dog sees a cat." | regard translate runs/builtin
  regard evaluate runs/builtin --source test.en --target test.de --json
  regard generate runs/shakespeare "ROMEO:" --temperature 0.8
  regard show vaswani:base
"""


class Verbs(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        command: click.Command = importlib.import_module(VERBS[name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from regard.errors import SettingError, did_you_mean

            raise SettingError(f"there is no command {args[0]!r}", did_you_mean(args[0], VERBS))
        return super().resolve_command(ctx, args)


@click.group(
    cls=Verbs,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="regard")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def regard(debug: bool) -> None:
    """One small, readable, fast system for the whole Transformer family."""


def main() -> None:
    """The entry point: expected errors are a few lines on standard error, never a traceback."""
    keep_large_blocks()
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    try:
        # This process is ours alone, so decoding may fork it and set its threads for speed.
        with one_worker_per_thread():
            code: Any = regard.main([a for a in arguments if a != "--debug"], standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except RegardError as error:
        _fail(f"error: {error}", error.exit_code, debug)
    except click.ClickException as error:
        error.show(sys.stderr)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        # The reader has gone; Python would complain once more when it closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        _fail(f"error: {error}\n  → check the path, the permissions and the free space", 2, debug)
    except Exception as error:
        _fail(
            f"error: unexpected {type(error).__name__}: {error}\n  → run again with --debug and report it",
            1,
            debug,
        )


def _fail(message: str, code: int, debug: bool) -> None:
    if debug:
        raise
    print(message, file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
