"""Shell completion: presets, recipes, views, folders, files, listed without importing torch."""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Iterable
from typing import Any, Literal

import click
from click.shell_completion import CompletionItem

from regard.cli.shared_options import as_written
from regard.system.errors import SettingError

# NAME and SIZEs of `regard show`. The families' own list comes with torch, which would make a
# press of Tab wait for seconds; a test keeps the two equal.
PRESETS = """
transformer tiny small base big
universal tiny base big
t5 tiny small base large 3b 11b
t5-v1.1 tiny small base large xl xxl
mt5 tiny small base large xl xxl
bart tiny base large
mbart tiny large
pegasus tiny base large
marian tiny base
gpt1 tiny base
gpt2 tiny small medium large xl
gpt3 tiny small medium large xl 2.7b 6.7b 13b 175b
transformer-xl tiny base large enwik8-12 enwik8-24
reformer tiny crime-and-punishment enwik8
llama tiny 7b 13b 33b 65b
llama2 tiny 7b 13b 70b
llama3 tiny 8b 70b 405b
mistral tiny 7b
mixtral tiny 8x7b 8x22b
qwen2 tiny 0.5b 1.5b 7b 72b
gemma tiny 2b 7b
gpt-neox tiny 20b
pythia tiny 70m 160m 410m 1b 1.4b 2.8b 6.9b 12b
palm tiny 8b 62b 540b
bert tiny mini small medium base large
roberta tiny base large
camembert tiny base large
xlm-roberta tiny base large
distilbert tiny base
albert tiny base large xlarge xxlarge
electra tiny small base large
mpnet tiny base
deberta tiny base large xlarge
deberta-v2 tiny xlarge xxlarge
deberta-v3 tiny xsmall small base large
longformer tiny base large
bigbird tiny base large
vit tiny small/16 base/16 base/32 large/16 large/32 huge/14
deit tiny small base
dinov2 tiny small base large giant
vit-mae tiny base/16 large/16 huge/14
swin tiny small base large
clip tiny vit-b/32 vit-b/16 vit-l/14
clip-text tiny vit-b/32 vit-b/16 vit-l/14
clip-image tiny vit-b/32 vit-b/16 vit-l/14
siglip tiny base/16 large/16 so400m/14
whisper tiny base small medium large
wav2vec2 tiny base large
hubert tiny base large xlarge
rnn tiny small base big
rnn_relu tiny small base big
gru tiny small base big
lstm tiny small base big
bahdanau tiny small base big
luong tiny small base big
luong_feeding tiny small base big
convs2s tiny small base big
bytenet tiny small base big
rnn-lm tiny small base big
rnn_relu-lm tiny small base big
gru-lm tiny small base big
lstm-lm tiny small base big
memory tiny small
patchtst tiny base
time-series-transformer tiny base
dlinear tiny
nlinear tiny
graph tiny small
graphormer tiny small
"""


class Suggested(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2
    """A text for which a shell offers values, and folders or files besides if it may be one."""

    name = "text"

    def __init__(
        self,
        values: Iterable[str] = (),
        places: Literal["dir", "file"] | None = None,
        may_be_empty: bool = False,
    ) -> None:
        self.values = tuple(values)
        self.may_be_empty = may_be_empty or places is None
        self.places = places  # shells offer the folders on the way to a file too

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        # Python's Path("") is the current folder: errors would speak of ".".
        if not value and not self.may_be_empty:
            name = "the path" if param is None else as_written(param)
            raise SettingError(f"{name} is empty", "give a path")
        # A quoted ~ reaches us as it is; one in a sentence is no path.
        is_home = self.places is not None and str(value).startswith("~/")
        return os.path.expanduser(value) if is_home else str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        # First, because click's script for bash forgets the values before it.
        places = [CompletionItem(incomplete, type=self.places)] if self.places else []
        return [
            *places,
            *(CompletionItem(value) for value in self.values if value.startswith(incomplete)),
        ]


def preset_names() -> list[str]:
    """NAME:SIZE of every preset."""
    names = []
    for line in PRESETS.split("\n"):
        family, *sizes = line.split() or [""]
        names += [f"{family}:{size}" for size in sizes]
    return names


def preset_sizes() -> list[str]:
    """The SIZEs of all presets."""
    return sorted({name.partition(":")[2] for name in preset_names()})


def recipe_names() -> list[str]:
    """The recipes of the package."""
    # As a resource: a package may be installed as a zip file, which has no folders on disk.
    folder = importlib.resources.files("regard") / "training" / "recipes"
    return sorted(
        file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")
    )


# A run folder or a folder in Hugging Face's layout.
MODEL_FOLDER = Suggested(places="dir")
PRESET_OR_FOLDER = Suggested(preset_names(), "dir")
RECIPE = Suggested(recipe_names(), "file")
FILE = Suggested(places="file")
TEXT_OR_FILE = Suggested(places="file", may_be_empty=True)
