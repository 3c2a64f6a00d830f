"""regard draw"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regard.cli.shared_options import (
    MODEL_FOLDER,
    SEED,
    Number,
    WholeNumber,
    device_option,
    download_option,
    option,
)
from regard.system.errors import SettingError

EXAMPLES = """\b
Examples:
  regard draw runs/emoji "red apple" --out apple.png               one file
  regard draw runs/emoji "red apple" "cat face" --copies 4 --out drawn/
                                                                   drawn/*.png, table.tsv, grid.png
  regard draw runs/emoji --table emoji/names.json:test --out drawn/
  regard evaluate runs/emoji_clip --data drawn/table.tsv --metrics mean_rank
                                                                   does CLIP know what it shows?
"""


@click.command(epilog=EXAMPLES)
@click.argument("model", type=MODEL_FOLDER)
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@option("--table", "draw the texts of a table of images: file, tab, text")
@option("--copies", "images of each text", WholeNumber(1, 1000), default=1)
@option(
    "--temperature", "below 1 likelier patches, above 1 rarer ones", Number(0.01, 10), default=1.0
)
@option("--top-p", "share of the probability that is drawn from", Number(0.01, 1.0), default=0.95)
@option("--seed", "random seed", SEED, default=0)
@option("--out", "PNG file, or a folder for several images", default="drawing.png")
@device_option
@download_option
def command(model: str, texts: tuple[str, ...], **flags: Any) -> None:
    """Draw TEXTs with a model of image tokens (DALL-E's way).

    One image becomes a PNG file. Several become those of a folder, with a table of their names and
    texts that `regard evaluate` reads, and a grid of all, a row for each text.
    """
    # Imported late: help must not wait for torch.
    from regard.data.labelled import read_captions
    from regard.models import load

    wanted = [*texts]
    if flags["table"] is not None:
        wanted += dict.fromkeys(one.text for one in read_captions(flags["table"]))
    if not wanted:
        raise SettingError("there is no text", "give one, or a --table of texts")
    copies = flags["copies"]
    drawn = load(model, device=flags["device"], download=flags["download"]).draw(
        [text for text in wanted for _ in range(copies)],
        temperature=flags["temperature"],
        top_p=flags["top_p"],
        seed=flags["seed"],
    )
    place = Path(flags["out"])
    if len(drawn) == 1:
        drawn[0].save(place)
        return
    if place.suffix == ".png":
        raise SettingError(f"{place} cannot hold {len(drawn)} images", "name a folder: --out DIR")
    place.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, image in enumerate(drawn):
        image.save(place / f"{number:04}.png")
        lines.append(f"{number:04}.png\t{image.text}\n")
    (place / "table.tsv").write_text("".join(lines), encoding="utf-8")
    _grid(drawn, copies).save(place / "grid.png")


def _grid(images: Any, copies: int) -> Any:
    """One image of all, a row for each text; of single images, a square."""
    import numpy as np
    from PIL import Image

    columns = copies if copies > 1 else round(len(images) ** 0.5)
    blank = np.full_like(images[0].pixels, 255)
    pixels = [image.pixels for image in images]
    pixels += [blank] * (-len(pixels) % columns)
    rows = [np.concatenate(pixels[i : i + columns], 1) for i in range(0, len(pixels), columns)]
    return Image.fromarray(np.concatenate(rows))
