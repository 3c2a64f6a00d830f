"""regard look"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from regard.cli.completion import FILE, MODEL_FOLDER, TEXT_OR_FILE, Suggested
from regard.cli.decoding_options import (
    SAMPLING_FLAGS,
    decoding_strategy,
    length_limit,
    one_output_options,
)
from regard.cli.model_options import download_option
from regard.cli.number_types import INDEX
from regard.cli.output_files import PAGE, PICTURE, check_page
from regard.cli.text_arguments import check_is_text, with_space
from regard.cli.unread_flags import check_flags_are_read, given_flags
from regard.errors import DataError, SettingError, did_you_mean

if TYPE_CHECKING:
    from regard.decode.batch_decoding import DecodingSettings
    from regard.look import AnalysisResult, Inspectable
    from regard.look.inspectable import Input
    from regard.models import Model

WHAT = {
    "attention": "attention weights, head by head",
    "alignment": "which source tokens, or moments of speech, each target token attends to",
    "entropy": "attention entropy of each head; collapsed and idle heads",
    "roles": "heads vs. grammar of the built-in language, or of --conllu (no text needed)",
    "ablation": "how much each head matters for this text",
    "patching": "which layers and positions carry the difference to --other (same token count)",
    "lens": "what each layer would predict (logit lens)",
    "rollout": "attention through all layers",
    "attribution": "gradient × input",
    "positions": "position encodings and their dot products (no text needed)",
    "steps": "candidates at each step of decoding",
    "beam": "the beam search tree",
    "cache": "how the KV cache grows",
}

# Views that need no text, and those that read the probes of one forward pass.
_WITHOUT_TEXT = ("roles", "positions")
_ONE_RUN = {
    "attention": ["*.weights"],
    "entropy": ["*.weights"],
    "alignment": ["*.cross.weights"],
    "rollout": ["*.self.weights"],
    "lens": ["*.embedded", "*.residual"],  # nostalgebraist 2020: the residual stream of each layer
}

# The options that each view reads. An option that would change nothing is refused.
_SEARCH = ("beam", "penalty", "limit")
_SAMPLING = ("sample", *SAMPLING_FLAGS)
USES: dict[str, tuple[str, ...]] = {
    "attention": ("target", "part", "layer", "head", "position"),
    "alignment": ("target", "layer", "head"),
    "entropy": ("target",),
    "roles": ("conllu",),
    "ablation": ("target", *_SEARCH, *_SAMPLING),
    "patching": ("target", "other", "part"),
    "lens": ("target",),
    "rollout": ("target", "part"),
    "attribution": ("target",),
    "positions": ("part",),
    "steps": ("beam", "limit", *_SAMPLING),
    "beam": _SEARCH,
    "cache": (),
}

VIEWS = "\b\nViews:\n" + "\n".join(f"  {name:12} {text}" for name, text in WHAT.items())
EXAMPLES = """\b
Examples:
  regard look runs/builtin "The dog sees a cat." --part cross --layer 1
  regard look runs/builtin "The dog sees a cat." --what alignment --html alignment.html
  regard look runs/builtin "The dog sees a cat." --what beam --beam 3 --json
  regard look runs/builtin "The dog sees a cat." --what patching --other "The dog sees a house."
  regard look vit/ cat.png --png attention.png           attention drawn on the image
  regard look whisper/ speech.wav --what alignment       when each word was heard
  regard look runs/cora graph:12                         a node and its neighbours
"""


@click.command(epilog=f"{VIEWS}\n\n{EXAMPLES}", context_settings={"max_content_width": 110})
@click.argument("model", type=MODEL_FOLDER)
@click.argument("text", type=TEXT_OR_FILE, default="")
@click.option(
    "--what",
    type=Suggested(WHAT),
    default="attention",
    show_default=True,
    help="view to show; see below",
)
@click.option(
    "--target",
    default=None,
    help="decoder input, instead of the model's own translation",
)
@click.option(
    "--other",
    default=None,
    help="for patching: the text whose run is patched with TEXT's activations",
)
@click.option(
    "--part",
    default=None,
    help="part of the model to show: encoder, decoder or cross  [the first available]",
)
@click.option(
    "--layer",
    type=INDEX,
    default=None,
    help="layer index, from 0  [the last; alignment: the best-aligned one]",
)
@click.option("--head", type=INDEX, default=None, help="head index, from 0  [all]")
@click.option(
    "--position",
    type=INDEX,
    default=None,
    help="position whose attention is drawn over an image, recording, series or graph  [the class "
    "token, the given node, or the mean over all]",
)
@click.option(
    "--conllu", type=FILE, metavar="FILE", help="for roles: your own parsed sentences (CoNLL-U)"
)
@click.option("--html", type=FILE, help="write a self-contained HTML page")
@click.option("--png", type=FILE, help="write an image (needs Pillow)")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object with all numbers")
@download_option
@one_output_options
def command(
    model: str, text: str, what: str, html: str | None, png: str | None, as_json: bool, **flags: Any
) -> None:
    """Look inside a model as it processes a text, an image, a recording, a time series or a graph.

    TEXT is a file path for models of images, audio or time series, and FOLDER:NUMBER for a graph
    node; attention is then drawn on that input. MODEL is a run folder or a folder in Hugging Face
    format. The forward pass is the usual one; attention weights are recomputed only for what is
    shown.
    """
    if what not in WHAT:
        raise SettingError(f"there is no view {what!r}", did_you_mean(what, WHAT))
    if not text and what not in _WITHOUT_TEXT:
        raise SettingError(
            "there is no text to look at",
            f"regard look {quote(model)} INPUT --what {what}; INPUT is a text in quotes, an image "
            "or sound file for models of those, a story and its question for a memory network",
        )
    check_page("--html", html, PAGE, [text])
    check_page("--png", png, PICTURE, [text])
    if text and what in _WITHOUT_TEXT:
        raise SettingError(
            f"{what} takes no text", f"leave it out: regard look {quote(model)} --what {what}"
        )
    check_flags_are_read(USES, what, "the view")
    # Imported late: wrong flags are reported before torch is loaded.
    from regard.look.view_requirements import require_view
    from regard.models import load

    loaded = load(model, device=flags["device"], download=flags["download"])
    require_view(loaded, what)
    if text:
        if not _reads_file(loaded, text):
            check_is_text(text, with_space(text), "give a text in quotes: this model reads texts")
        loaded.warn_of_input(text)
    result = _result(loaded, _input(loaded, text), what, flags)
    # Files are extra: standard output has the result in any case.
    for path, write in ((html, result.to_html), (png, result.to_png)):
        if path:
            write(path)
            print(f"wrote {path}", file=sys.stderr)
    if as_json:
        # NaN is no JSON, although Python would write it.
        click.echo(json.dumps(result.to_dict(), ensure_ascii=False, allow_nan=False))
    else:
        click.echo(str(result))


def _reads_file(model: Model, text: str) -> bool:
    """Whether this input is a path for the model: of series, graphs, images or sound."""
    from regard.models import GraphModel, SeriesModel

    if isinstance(model, GraphModel | SeriesModel):
        return True
    # CLIP reads both.
    return model.medium is not None and (Path(text).is_file() or not model.accepts_text)


def _refuse(names: tuple[str, ...], reason: str) -> None:
    """Refuses options that this model, or another option, leaves without effect."""
    typed = [flag for flag in given_flags() if flag.name in names]
    if typed:
        spelt = " and ".join(flag.opts[0] for flag in typed)
        raise SettingError(reason, f"leave {spelt} out")


def _refuse_unread_target(flags: dict[str, Any], attention: str) -> None:
    """The encoder does not read a target: one that was given for its attention is refused."""
    if flags["target"] is not None and attention.startswith("encoder"):
        raise SettingError(
            "--target has no effect on the encoder, which reads the source",
            "leave it out, or add --part decoder",
        )


def _input(model: Model, text: str) -> Input:
    """The text, or the image or recording at its path for a model that reads these."""
    if model.medium is None or not text:
        return text
    path = Path(text)
    # CLIP reads both.
    if not path.is_file() and model.accepts_text:
        return text
    try:
        return model.read_medium(path.read_bytes())
    except OSError as error:
        raise DataError(
            f"cannot read {text}: {error.strerror}",
            f"give the path of a file: this model reads {model.medium}s",
        ) from None


# ------------------------------------------------------------------ which view


def _result(model: Inspectable, text: Input, what: str, flags: dict[str, Any]) -> AnalysisResult:
    """The view that --what names."""
    if what in _WITHOUT_TEXT:
        return _view_of_weights(model, what, flags)
    if what in _ONE_RUN:
        return _view_of_one_run(model, text, what, flags)
    return _view_of_many_runs(model, text, what, flags)


def _view_of_weights(model: Inspectable, what: str, flags: dict[str, Any]) -> AnalysisResult:
    """Views of the model itself, or of the built-in language: they need no text."""
    from regard import look as views
    from regard.data.conllu import read_conllu

    if what == "positions":
        return views.positions(model, stack=_stack(model, flags["part"]))
    # By default the built-in language, whose parse is known.
    path = flags["conllu"]
    return views.roles(model, None if path is None else read_conllu(path))


def _view_of_one_run(
    model: Inspectable, text: Input, what: str, flags: dict[str, Any]
) -> AnalysisResult:
    """Views of what one forward pass computes, recorded by the probes that are asked for."""
    from regard import look as views
    from regard.models import CTCModel

    layer = flags["layer"]
    # Views take a list of heads; the flag names one.
    heads = None if flags["head"] is None else [flags["head"]]
    ask = _ONE_RUN[what]
    if what == "alignment" and isinstance(model, CTCModel):
        _refuse(USES[what], "CTC aligns letters without attention")
        run = views.look(model, text, ask=["logits"])
        return views.ctc_alignment(run, model.decoder.names, model.decoder.blank)
    run = views.look(model, text, target=flags["target"], ask=ask)
    match what:
        case "alignment":
            return views.alignment(run, layer, heads)
        case "entropy":
            return views.entropy(run)
        case "rollout":
            result = views.rollout(run, _stack(model, flags["part"]))
            _refuse_unread_target(flags, result.stack)
            return result
        case "lens":
            return views.lens(run)
        case _:
            name = _attention(list(run.probe.attentions), flags["part"], layer)
            _refuse_unread_target(flags, name)
            rows = None if flags["position"] is None else [flags["position"]]
            return run.attention(name, rows=rows, heads=heads)


def _view_of_many_runs(
    model: Inspectable, text: Input, what: str, flags: dict[str, Any]
) -> AnalysisResult:
    """Views that differentiate, edit activations, switch heads off, or decode."""
    from regard import look as views
    from regard.encoder_decoder import EncoderDecoder

    target = flags["target"]
    match what:
        case "attribution":
            return views.attribution(model, text, target=target)
        case "patching":
            if flags["other"] is None:
                raise SettingError(
                    "patching needs a second text", 'give --other "a text with as many tokens"'
                )
            stack = _stack(model, flags["part"])
            original = _require_text(text, what)
            return views.patching(model, original, flags["other"], target=target, stack=stack)
        case "ablation":
            original = _require_text(text, what)
            # An encoder–decoder is scored on a target: what it translates itself, by default.
            targets = None
            if isinstance(model.model, EncoderDecoder):
                targets = [_ablation_target(model, original, flags)]
            else:
                _refuse(
                    USES[what],
                    "these options only apply to encoder–decoders, which are scored on a target",
                )
            return views.ablation(model, [original], targets)
        case "cache":
            return views.cache(model, text)
        case "beam":
            return views.beam(model, text, _settings(what, flags))
        case _:
            return views.steps(model, text, _settings(what, flags))


def _require_text(text: Input, what: str) -> str:
    if not isinstance(text, str):
        # Models that read no texts at all were refused before.
        raise SettingError(f"{what} compares texts", "give a text in quotes instead of a file")
    return text


# ------------------------------------------------------------------ what flags name


def _attention(names: list[str], part: str | None, layer: int | None) -> str:
    """The attention that --part and --layer name: `encoder.3.self`, `decoder.0.cross`."""
    # A tower of CLIP has one more name in front: text.encoder.3.self.
    layers: dict[str, list[str]] = {}  # the attentions of each part, layer by layer
    for name in names:
        stack, _, kind = name.split(".")[-3:]
        layers.setdefault("cross" if kind == "cross" else stack, []).append(name)
    chosen = part or next(iter(layers))
    if chosen not in layers:
        raise SettingError(
            f"this model has no attention {part!r}", f"use --part {' or '.join(layers)}"
        )
    count = len(layers[chosen])
    if layer is None:
        layer = count - 1  # the last one
    if not 0 <= layer < count:
        raise SettingError(f"there is no layer {layer}", f"the layers are 0 to {count - 1}")
    return layers[chosen][layer]


def _stack(model: Inspectable, part: str | None) -> str | None:
    """The stack that --part names."""
    if part is not None and part not in model.model.stacks():
        raise SettingError(
            f"--part {part!r} is not a stack of this model",
            f"it has {', '.join(model.model.stacks())}",
        )
    return part


def _settings(what: str, flags: dict[str, Any]) -> DecodingSettings:
    """How the views of decoding decode; `steps` is greedy unless flags say otherwise."""
    from regard.decode.batch_decoding import DecodingSettings
    from regard.decode.strategy import BeamSearch, Limit

    if what == "steps" and not flags["beam"] and not flags["sample"]:
        flags = flags | {"beam": 1}  # candidates of a step are clearest without a beam
    strategy = decoding_strategy(flags) or BeamSearch()
    return DecodingSettings(strategy, length_limit(flags["limit"]) or Limit())


def _ablation_target(model: Inspectable, text: str, flags: dict[str, Any]) -> str:
    """The target that is given, or the model's own translation, by beam search."""
    from regard import look as views

    if flags["target"] is not None:
        _refuse((*_SEARCH, *_SAMPLING), "with --target nothing is decoded")
        return str(flags["target"])
    best = views.translate(model, text, _settings("ablation", flags))[0]
    return views.written(model, best)
