"""regard look"""

from __future__ import annotations

import sys
from os.path import isfile
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from regard import look
from regard.cli.decoding_options import (
    DECODING_FLAGS,
    decoding_strategy,
    length_limit,
    one_output_options,
)
from regard.cli.shared_options import (
    FILE,
    INDEX,
    MODEL_FOLDER,
    TEXT_OR_FILE,
    Flags,
    check_flags_are_read,
    download_option,
    json_option,
    option,
    print_result,
    refuse_flags,
)
from regard.cli.texts_and_files import PAGE, PICTURE, check_is_text, check_page, with_space
from regard.look.views import VIEWS, reads_paths, require_view, speaks, spells_frames
from regard.system.errors import DataError, SettingError

if TYPE_CHECKING:
    from regard.decode.batch_decoding import DecodingSettings
    from regard.look import AnalysisResult, Look
    from regard.models import Model

_VIEWS = "\b\nViews:\n" + "\n".join(f"  {name:12} {v.summary}" for name, v in VIEWS.items())
EXAMPLES = """\b
Examples:
  regard look runs/builtin "The dog sees a cat." --part cross --layer 1
  regard look runs/builtin "The dog sees a cat." --what alignment --html alignment.html
  regard look runs/builtin "The dog sees a cat." --what beam --beam 3 --json
  regard look runs/builtin "The dog sees a cat." --what patching --other "The dog sees a house."
  regard look gpt2/ --what circuits                      induction heads and composition
  regard look gpt2/ --what neurons --texts corpus.txt    what excites neurons, what they promote
  regard look bert/ --what probe --tags pos.tsv          parts of speech, layer by layer
  regard look vit/ cat.png --png attention.png           attention drawn on the image
  regard look whisper/ speech.wav --what alignment       when each word was heard
  regard look runs/cora graph:12                         a node and its neighbours
"""


@click.command(epilog=f"{_VIEWS}\n\n{EXAMPLES}")
@click.argument("model", type=MODEL_FOLDER)
@click.argument("text", type=TEXT_OR_FILE, default="")
@option(
    "--what",
    "view to show; see below",
    click.Choice(list(VIEWS)),
    default="attention",
    metavar="VIEW",
)
@option("--target", "decoder input, instead of the model's own translation")
@option("--other", "for patching: the text whose run is patched with TEXT's activations")
@option("--part", "part of the model to show: encoder, decoder or cross  [the first available]")
@option("--layer", "layer index, from 0  [the last; alignment: the best-aligned one]", INDEX)
@option("--head", "head index, from 0  [all]", INDEX)
@option(
    "--position",
    "position whose attention is drawn over an image, recording, series or graph  [the class "
    "token, the given node, or the mean over all]",
    INDEX,
)
@option(
    "--neuron",
    "for neurons: index of one, from 0; several times for several  [the most selective ones]",
    INDEX,
    multiple=True,
)
@option("--texts", "for neurons and probe: a file of texts, one a line", FILE, metavar="FILE")
@option("--labels", "for probe: inputs with a class, INPUT⇥CLASS a line", FILE, metavar="FILE")
@option("--tags", "for probe: words with a tag, WORD⇥TAG a line", FILE, metavar="FILE")
@option("--conllu", "for roles: your own parsed sentences (CoNLL-U)", FILE, metavar="FILE")
@option("--html", "write a self-contained HTML page", FILE)
@option("--png", "write an image (needs Pillow)", FILE)
@json_option("print one JSON object with all numbers")
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
    view = VIEWS[what]
    if view.takes_input and view.needs_input and not (text or flags["texts"]):
        raise SettingError(
            "there is no text to look at",
            f"regard look {quote(model)} INPUT --what {what}; INPUT is a text in quotes, an image "
            "or sound file for models of those, a story and its question for a memory network",
        )
    check_page("--html", html, PAGE, [text])
    check_page("--png", png, PICTURE, [text])
    if not view.takes_input:
        refuse_flags(("text",), f"{what} takes no text")
    readers = {name: one.options for name, one in VIEWS.items()}
    check_flags_are_read(readers, what, "the view")
    # Imported late: wrong flags are reported before torch is loaded.
    from regard.models import load

    loaded = load(model, device=flags["device"], download=flags["download"])
    require_view(loaded, what)
    source = _input(loaded, text)
    if isinstance(source, str) and source:
        loaded.warn_of_input(source)
    result = _result(loaded, source, what, flags)
    # Files are extra: standard output has the result in any case.
    for path, write in ((html, result.to_html), (png, result.to_png)):
        if path:
            write(path)
            print(f"wrote {path}", file=sys.stderr)
    print_result(as_json, result.to_dict(), [str(result)])


def _input(model: Model, text: str) -> str | Path:
    """The text, or the path of a file for a model that reads files; CLIP reads both."""
    if reads_paths(model) or (
        model.medium is not None and (isfile(text) or not model.accepts_text)
    ):
        return Path(text)
    if text:
        check_is_text(text, with_space(text), "give a text in quotes: this model reads texts")
    return text


def _text(text: str | Path, what: str) -> str:
    if isinstance(text, Path):
        # Models that read no texts at all were refused before.
        raise SettingError(f"{what} needs texts", "give a text in quotes instead of a file")
    return text


# ------------------------------------------------------------------ the views


def _result(model: Model, text: str | Path, what: str, flags: Flags) -> AnalysisResult:
    """The view that --what names."""
    view = VIEWS[what]
    target = flags["target"]
    part = flags["part"]
    if what == "alignment" and speaks(model.model):
        refuse_flags(view.options, "durations are predicted, without attention")
        return model.speak(text).look()
    if what == "alignment" and spells_frames(model.model):
        refuse_flags(view.options, "CTC aligns letters without attention")
        run = look.look(model, text, ask=["logits"])
        return look.ctc_alignment(run, model.decoder.names, model.decoder.blank)
    if view.probes:
        return _of_run(look.look(model, text, target=target, ask=view.probes), what, flags)
    match what:
        case "probe":
            return _probe(model, flags)
        case "roles" | "positions" | "neurons" | "circuits":
            return _of_model(model, text, what, flags)
        case "ablation":
            return _ablation(model, _text(text, what), flags)
        case "patching":
            if flags["other"] is None:
                raise SettingError(
                    "patching needs a second text", 'give --other "a text with as many tokens"'
                )
            original = _text(text, what)
            return look.patching(model, original, flags["other"], target=target, stack=part)
        case "attribution":
            return look.attribution(model, text, target=target)
        case "steps":
            return look.steps(model, text, _settings(flags, greedy=True))
        case "beam":
            return look.beam(model, text, _settings(flags))
        case _:
            return look.cache(model, text)


def _of_model(model: Model, text: str | Path, what: str, flags: Flags) -> AnalysisResult:
    """A view of what is in the weights, which texts only illustrate."""
    part = flags["part"]
    layer = flags["layer"]
    match what:
        case "roles":
            from regard.data.conllu import read_conllu

            path = flags["conllu"]
            return look.roles(model, None if path is None else read_conllu(path))
        case "positions":
            return look.positions(model, stack=part)
        case "neurons":
            from regard.data import text_files

            texts = [_text(text, what)]
            if flags["texts"] is not None:
                texts += text_files.texts(flags["texts"])
            texts = [line for line in texts if line.strip()]
            return look.neurons(model, texts, stack=part, layer=layer, neurons=flags["neuron"])
    if not text:
        refuse_flags(("layer", "head"), "the circuits of one head are shown on a TEXT")
        return look.circuits(model, stack=part)
    head = flags["head"] or 0
    return look.head_circuit(model, _text(text, what), layer=layer, head=head, stack=part)


def _probe(model: Model, flags: Flags) -> AnalysisResult:
    """Linear probes of the classes of inputs, of the tags of words, or of positions in texts."""
    from regard.data import labelled, text_files

    sources = [name for name in ("labels", "tags", "texts") if flags[name] is not None]
    if len(sources) != 1:
        raise SettingError(
            "probe needs one file of labels",
            "give --labels FILE, --tags FILE, or --texts FILE for positions",
        )
    path = flags[sources[0]]
    inputs: list[Any] = []
    labels: Any = "position"
    match sources[0]:
        case "labels":
            rows = [*labelled.labelled_texts(path)]
            if any(row.text2 is not None for row in rows):
                raise DataError(f"{path} has pairs of texts", "probe reads one input a line")
            inputs = [_input(model, row.text) for row in rows]
            labels = [row.label for row in rows]
        case "tags":
            sentences = [*labelled.tagged_words(path)]
            inputs = [sentence.tokens for sentence in sentences]
            labels = [sentence.tags for sentence in sentences]
        case _:
            inputs = [line for line in text_files.texts(path) if line.strip()]
    return look.linear_probes(model, inputs, labels, stack=flags["part"])


def _of_run(run: Look, what: str, flags: Flags) -> AnalysisResult:
    """A view of a recorded forward pass; analyses take lists of heads or rows, a flag is one."""
    heads = None if flags["head"] is None else [flags["head"]]
    match what:
        case "attention":
            name = _attention_name(list(run.probe.attentions), flags["part"], flags["layer"])
            rows = None if flags["position"] is None else [flags["position"]]
            result: AnalysisResult = run.attention(name, rows=rows, heads=heads)
        case "alignment":
            return look.alignment(run, flags["layer"], heads)
        case "angles":
            name = _attention_name(list(run.probe.attentions), flags["part"], flags["layer"])
            return look.angles(run, name, flags["head"] or 0)
        case "entropy":
            return look.entropy(run)
        case "lens":
            return look.lens(run)
        case _:
            result = look.rollout(run, flags["part"])
            name = result.stack
    if name.startswith("encoder"):
        repair = "leave it out, or add --part decoder"
        refuse_flags(("target",), "the encoder reads the source", repair)
    return result


def _ablation(model: Model, text: str, flags: Flags) -> AnalysisResult:
    """An encoder–decoder is scored on a target: by default what it translates itself."""
    if not model.model.reads_target:
        problem = "only applies to encoder–decoders, which are scored on a target"
        refuse_flags(VIEWS["ablation"].options, problem)
        return look.ablation(model, [text])
    target = flags["target"]
    if target is None:
        target = look.written(model, look.translate(model, text, _settings(flags))[0])
    else:
        refuse_flags(DECODING_FLAGS, "with --target nothing is decoded")
    return look.ablation(model, [text], [target])


# ------------------------------------------------------------------ what flags name


def _attention_name(names: list[str], part: str | None, layer: int | None) -> str:
    """The attention that --part and --layer name: `encoder.3.self`, `decoder.0.cross`."""
    from regard.look.probe_names import require_layer, require_name

    # A tower of CLIP has one more name in front: text.encoder.3.self.
    layers: dict[str, list[str]] = {}  # the attentions of each part, layer by layer
    for name in names:
        stack, _, kind = name.split(".")[-3:]
        layers.setdefault("cross" if kind == "cross" else stack, []).append(name)
    part = require_name("part", part or next(iter(layers)), layers)
    of_part = layers[part]
    return of_part[require_layer(layer, len(of_part))]


def _settings(flags: Flags, *, greedy: bool = False) -> DecodingSettings:
    """How the views of decoding decode, where flags say nothing else: greedily, or by a beam."""
    from regard.decode.batch_decoding import DecodingSettings
    from regard.decode.strategy import BeamSearch, Limit

    if greedy and not flags["beam"] and not flags["sample"]:
        flags = flags | {"beam": 1}  # candidates of a step are clearest without a beam
    strategy = decoding_strategy(flags) or BeamSearch()
    return DecodingSettings(strategy, length_limit(flags["limit"]) or Limit())
