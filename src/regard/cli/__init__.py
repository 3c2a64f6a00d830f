"""The command line: one file per verb, imported when it is called, so that help is instant."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import click

from regard import __version__
from regard.decode.worker_count import one_worker_per_thread
from regard.system.errors import (
    COMMON_NAMES,
    RegardError,
    RegardWarning,
    SettingError,
    did_you_mean,
)

# verb → one line of help
VERBS = {
    # making models
    "train": "Train a model on text, images, speech, time series or graphs: your files or a "
    "recipe.",
    "finetune": "Fine-tune a pretrained model: classification, tagging, QA, text pairs or plain "
    "text.",
    "compare": "Train several models with equal data, parameters and budget: one table, one "
    "figure.",
    "plan": "Estimate the cost of a training run: FLOPs, memory, time, money; what fits, "
    "which size.",
    "tune": "Tune the hyperparameters that matter within a budget (successive halving); resumable.",
    # using them
    "translate": "Translate standard input, line by line.",
    "generate": "Continue a prompt with a language model, token by token.",
    "speak": "Say texts: WAV files, and pictures of their spectrograms.",
    "draw": "Draw texts: PNG files, and all of them in one picture.",
    "predict": "Run any model: classes, tags, answers, masked words, embeddings, transcripts, "
    "captions.",
    "embed": "Embed texts or images, from files of any size.",
    "classify": "Classify texts or images, from files of any size.",
    "evaluate": "Evaluate any model on a dataset: BLEU, perplexity, accuracy, F1 …, with "
    "intervals.",
    "serve": "Serve models over HTTP: the routes of OpenAI and LibreTranslate, and one for each "
    "task.",
    # looking inside
    "look": "Look inside a model: attention, alignment, heads, layers, the beam tree; text "
    "or HTML.",
    "studio": "The same in the browser: look inside, decode, follow runs, learn how it works.",
    "lesson": "Lessons in the browser: attention, heads, masks, beam search … on a real model.",
    "show": "Print a model's architecture on one page: layers, shapes, parameters.",
    # checking, changing and passing on
    "doctor": "Diagnose the installation, or a run and its data: what is wrong, why, how to "
    "fix it.",
    "verify": "Check a model's invariants (caching, batching, padding, fusing, saving) and parity.",
    "prune": "Remove the least important attention heads; report score and speed before and after.",
    "convert": "Export a model to the Hugging Face format, CTranslate2 or ONNX.",
    # measuring, and data to begin with
    "study": "Test claims from the literature by experiment: figures, numbers and a verdict "
    "for each.",
    "bench": "Benchmark speed and memory on this machine against other libraries.",
    "data": "Generate data: the built-in language, ListOps, sorting, addition and others.",
}

_MODULES = {"embed": "predict", "classify": "predict"}  # others are named as their verb

# Verbs that open a model, answer and end: most of their time is `import torch`.
ANSWERING = (
    "translate",
    "generate",
    "speak",
    "draw",
    "predict",
    "embed",
    "classify",
    "evaluate",
    "look",
)

CLOSED_PIPE = 141  # the exit code of who writes to a reader that has gone: 128 + SIGPIPE
LESS = "use a smaller batch (--batch-tokens), a smaller beam, or a smaller model"

EXAMPLES = """\b
Examples:
  regard train
  regard train --source train.en --target train.de --preset tiny --out runs/mine
  echo "The dog sees a cat." | regard translate runs/builtin
  regard evaluate runs/builtin --source test.en --target test.de --json
  regard generate runs/shakespeare "ROMEO:" --temperature 0.8
  regard show transformer:base
"""


# ------------------------------------------------------------------ the group of all commands


class LazyGroup(click.Group):
    """A click group whose commands are imported when they are called."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _closed_pipe_exits():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _closed_pipe_exits():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name.startswith("-"):
            return None
        if name not in VERBS:  # click's own message has no suggestion
            raise SettingError(f"there is no command {name!r}", did_you_mean(name, VERBS))
        module = importlib.import_module(f"regard.cli.{_MODULES.get(name, name)}")
        command: click.Command = getattr(module, name if name in _MODULES else "command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click would import every command for its help line; the table above has them all.
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@contextmanager
def _closed_pipe_exits() -> Iterator[None]:
    """A closed pipe ends the command by its own exit code, where click would exit with 1."""
    try:
        yield
    except BrokenPipeError:
        raise click.exceptions.Exit(CLOSED_PIPE) from None


@click.group(
    cls=LazyGroup,
    epilog=EXAMPLES,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
        "show_default": True,
    },
)
@click.version_option(__version__, prog_name="regard")
@click.option("--debug", is_flag=True, help="Show the full traceback on errors.")
@click.option("--extend", metavar="FILE", help="Run a Python file with parts of your own.")
@click.pass_context
def regard(context: click.Context, debug: bool, extend: str | None) -> None:
    """One small, readable, fast system for the whole Transformer family."""
    # Called before a verb, not for help, which would wait for the import of ctypes.
    from regard.system.memory import keep_large_blocks

    keep_large_blocks()
    if context.invoked_subcommand in ANSWERING:
        # More objects than the imports make: no collection before the answer.
        gc.set_threshold(400_000)


# ------------------------------------------------------------------ entry point and errors


def run() -> None:
    """Entry point of the shell's command."""
    atexit.register(_freeze)
    main()


def _freeze() -> None:
    """At its end Python would collect the objects of every module: 0.5 s once torch is loaded."""
    # Triton's bindings would report all of theirs as leaks.
    if "triton" not in sys.modules:
        gc.freeze()


def main() -> None:
    """The command line: expected errors are a few lines on standard error, never a traceback.

    Always ends by SystemExit, but for an error with --debug.
    """
    if "RANK" in os.environ:
        # torch reads it when it is imported. DDP's C++ side warns of what is meant so: parameters
        # that take no part in an objective.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # Importing torch makes many objects and no garbage: by Python's default of 700 objects, a tenth
    # of the time would be the collector's.
    gc.set_threshold(50_000)
    show_warnings_once()
    # --debug may stand anywhere, so it is taken out before click sees the arguments.
    debug = "--debug" in sys.argv[1:]
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        for argument in [one for one in arguments if one.startswith("--extend=")]:
            arguments.remove(argument)
            _extend(argument.removeprefix("--extend="))
        if "--extend" in arguments:
            place = arguments.index("--extend")
            _extend(*arguments[place + 1 : place + 2])
            del arguments[place : place + 2]
        # This process is ours alone, so decoding may fork it and set its threads for speed.
        with one_worker_per_thread():
            code: Any = regard.main(arguments, standalone_mode=False)
        # Flushed here, so that a closed pipe is noticed inside the try block.
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except RegardError as error:
        _fail(f"error: {error}", error.exit_code, debug)
    except click.ClickException as error:
        # `regard` alone is a question, and no mistake: the message is the help.
        is_help = isinstance(error, click.exceptions.NoArgsIsHelpError)
        message = error.format_message() if is_help else f"error: {_usage_error(error)}"
        _fail(message, error.exit_code, debug)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)  # 128 + SIGINT, as a shell reports it
    except BrokenPipeError:
        _discard_output()
        sys.exit(CLOSED_PIPE)
    except OSError as error:
        _fail(f"error: {error}\n  → check the path, the permissions and the free space", 2, debug)
    # Anything else is a defect of this program, but for a lack of memory.
    except Exception as error:
        if _is_out_of_memory(error):
            first_line = str(error).partition("\n")[0]
            _fail(f"error: there is not enough memory: {first_line}\n  → {LESS}", 2, debug)
        message = f"error: unexpected {type(error).__name__}: {error}"
        _fail(f"{message}\n  → run again with --debug and report it", 1, debug)


def _extend(file: str = "") -> None:
    """Runs a Python file of the user's; its parts of specs and its objectives are known then."""
    import dataclasses
    import importlib.util

    from regard import spec
    from regard.training.objectives.objective import Objective
    from regard.training.setup import REGISTERED

    source = importlib.util.spec_from_file_location("regard_extension", file)
    if source is None or source.loader is None or not os.path.isfile(file):
        raise SettingError(f"--extend {file!r} is not a Python file", "give the path of a .py file")
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))  # as `python FILE` does
    module = importlib.util.module_from_spec(source)
    sys.modules["regard_extension"] = module  # dataclasses look their annotations up there
    source.loader.exec_module(module)
    for value in vars(module).values():
        if not isinstance(value, type) or value.__module__ != "regard_extension":
            continue
        if issubclass(value, Objective):
            REGISTERED[value.name] = value
        elif dataclasses.is_dataclass(value) and "build" in vars(value):
            spec.register(value)


def show_warnings_once() -> None:
    """Warnings of ours go to standard error without their place in the code, once of each kind.

    A later call starts anew: each line that is typed at a prompt gets its own warnings.
    """
    shown: set[type[Warning]] = set()
    others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if not issubclass(category, RegardWarning):
            others(message, category, *place, **more)
        elif category not in shown:
            shown.add(category)
            print(f"warning: {message}", file=sys.stderr)

    # Python's own filter counts lines of code: it would hide what a second input gives cause for.
    warnings.simplefilter("always", RegardWarning)
    warnings.showwarning = show


def _usage_error(error: click.ClickException) -> str:
    """An error of click in the form of ours: the problem, and the nearest choice or the help."""
    problem = error.format_message().rstrip(".")
    problem = problem[:1].lower() + problem[1:]
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context is not None else "regard"
    repair = f"see `{path} --help`"
    if isinstance(error, click.NoSuchOption) and context is not None:
        problem = f"there is no flag {error.option_name}"
        repair = _nearest_flag(error.option_name, context)
    # click names the value and the choices in its text only.
    choice = re.search(r"'([^']*)' is not one of (.*)$", problem)
    if choice is not None:
        repair = did_you_mean(choice[1], re.findall(r"'([^']*)'", choice[2]))
        problem = problem[: choice.start(2)].removesuffix(" one of ") + " a choice"
    return f"{problem}\n  → {repair}"


def _nearest_flag(name: str, context: click.Context) -> str:
    """The flag that a wrong one is nearest to, or where all of them are listed."""
    import difflib

    flags = chain.from_iterable(parameter.opts for parameter in context.command.params)
    names = {flag.removeprefix("--"): flag for flag in flags if flag.startswith("--")}
    word = name.removeprefix("--").removeprefix("no-").replace("-", "_")
    for flag in COMMON_NAMES.get(word, ()):
        if flag.partition(" ")[0] in names.values():
            return f"use {flag}"
    # Without the hyphens, which all of them share: they would make unlike flags look alike.
    matches = difflib.get_close_matches(name.lstrip("-"), names, n=1, cutoff=0.7)
    if matches:
        return f"did you mean {names[matches[0]]!r}?"
    return f"see `{context.command_path} --help`"


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, in Python or in torch, whose CPU allocator has no class for it."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _fail(message: str, code: int, debug: bool) -> None:
    """Ends the process with a message; with --debug, with the traceback of the current error."""
    if debug:
        raise
    # The first rank of a distributed run speaks for all.
    rank = os.environ.get("RANK", "0")
    prefix = "" if rank == "0" else f"rank {rank}: "
    print(prefix + message, file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()
    sys.exit(code)


def _discard_output() -> None:
    """Points standard output to /dev/null after its reader has gone.

    Otherwise Python flushes it once more at exit and reports a second BrokenPipeError.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
