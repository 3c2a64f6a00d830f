"""A model built from parts, trained by `regard.train` with tokenizer, schedule and checkpoints.

Run it: python examples/train_from_spec.py
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from own_attention import Sigmoid
from transformer_from_parts import transformer

import regard
from regard.data.generated.builtin import write_tsv
from regard.system.errors import SettingError

TOKENS = 400  # of the tokenizer: byte-pair encoding fills its vocabulary


def run(folder: Path) -> None:
    pairs = folder / "pairs.tsv"
    with pairs.open("w", encoding="utf-8") as file:
        write_tsv(file, "train", lines=400)  # of the built-in English and German
    base = transformer(TOKENS, d_model=32, d_ff=64, heads=4, layers=1, dropout=0.0)
    attention = replace(base.decoder.block.attention, mixer=Sigmoid())
    description = replace(base, decoder=base.decoder.with_blocks(attention=attention))
    settings = {
        "pairs": str(pairs),
        "vocabulary": TOKENS,
        "steps": 40,
        "warmup_steps": 10,
        "threads": 1,
    }
    result = regard.train(settings, model=description, out=folder / "run")
    print(f"{result.parameters:,} parameters in {result.folder}")

    # The run folder opens like any other; pass the class of the part that is not in the package.
    translator = regard.load(result.folder, kinds=[Sigmoid])
    assert isinstance(translator, regard.Translator)
    assert translator.spec == description

    # A size given together with a complete model would contradict it.
    try:
        regard.train(settings, model=description, d_model=64)
    except SettingError as error:
        print(error)
    else:
        raise AssertionError("a contradiction was not refused")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder))
