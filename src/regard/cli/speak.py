"""regard speak"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regard.cli.shared_options import (
    MODEL_FOLDER,
    SEED,
    Number,
    device_option,
    download_option,
    flag,
    option,
)
from regard.system.errors import DataError, SettingError

EXAMPLES = """\b
Examples:
  regard speak runs/speak "three" --out three.wav                one file
  regard speak runs/speak "three" --speaker theo --slowness 1.5 --out slow.wav
  regard speak runs/speak --table speech/test.tsv --out spoken/  spoken/*.wav and spoken/table.tsv
  regard speak runs/speak --table speech/test.tsv --out spoken/ --recogniser runs/digits
                                                                 and what share does it understand?
"""


@click.command(epilog=EXAMPLES)
@click.argument("model", type=MODEL_FOLDER)
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@option("--speaker", "who speaks, of several  [the first]")
@option("--slowness", "factor of all durations", Number(0.1, 10.0), default=1.0)
@option("--noise", "factor of what is drawn at random, as by VITS", Number(0.0, 10.0), default=1.0)
@option("--seed", "of what is drawn at random", SEED, default=0)
@option("--table", "say the texts of a table: file, tab, text, tab, speaker")
@option("--out", "WAV file, or a folder for several texts", default="speech.wav")
@option("--recogniser", "model that the sounds are played to, which says what it understands")
@flag("--pictures", "beside each WAV file, its spectrogram with the tokens above it (.html)")
@device_option
@download_option
def command(model: str, texts: tuple[str, ...], **flags: Any) -> None:
    """Say TEXTs with a model such as FastSpeech 2.

    One text becomes a WAV file. Several become those of a folder, with a table of their names and
    texts that `regard evaluate` reads: does a recogniser understand them?
    """
    # Imported late: help must not wait for torch.
    from regard.data.labelled import read_spoken_texts
    from regard.evaluation.evaluation import evaluate
    from regard.models import load

    spoken = [*texts]
    out = flags["out"]
    table = flags["table"]
    if table is not None:
        # What several recordings say alike is said once.
        spoken += dict.fromkeys(recording.text for recording in read_spoken_texts(table))
    if not spoken:
        raise SettingError("there is no text", "give one, or a --table of texts")
    loaded = load(model, device=flags["device"], download=flags["download"])
    manner = {name: flags[name] for name in ("speaker", "slowness", "noise", "seed")}
    utterances = loaded.speak(spoken, **manner)
    place = Path(out)
    files = [place]
    if len(spoken) > 1:
        if place.suffix == ".wav":
            raise DataError(f"{out} cannot hold {len(spoken)} texts", "name a folder: --out DIR")
        files = [place / f"{number:04}.wav" for number in range(len(spoken))]
    files[0].parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for file, speech in zip(files, utterances, strict=True):
        speech.save(file)
        if flags["pictures"]:
            speech.look().to_html(file.with_suffix(".html"))
        lines.append(f"{file.name}\t{speech.text}\n")
        durations = zip(speech.tokens, speech.durations, strict=True)
        lasting = " ".join(f"{token}:{frames}" for token, frames in durations)
        click.echo(f"{file}\t{speech.text}\t{speech.seconds:.2f} s\t{lasting}")
    if len(spoken) > 1:
        (place / "table.tsv").write_text("".join(lines), encoding="utf-8")
    if flags["recogniser"] is not None:
        recogniser = load(flags["recogniser"], device=flags["device"])
        pairs = zip(files, utterances, strict=True)
        evaluation = evaluate(recogniser, [(str(file), speech.text) for file, speech in pairs])
        for text, heard in zip(spoken, evaluation.predictions, strict=True):
            click.echo(f"{text}\tunderstood as\t{heard}")
        scores = "\t".join(f"{name} {evaluation[name]:.1f}" for name in evaluation.scores)
        click.echo(f"{len(spoken)} texts\t{scores}")
