"""Pre-norm models and PegasusForConditionalGeneration of transformers: the same logits and files,
in both directions.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_marian import (
    DETAILS,
    IDS,
    batch,
    check_there_and_back,
    open_theirs,
    ours,
    random_theirs,
    same_logits,
    stir,
    theirs,
    write,
)

from regard import spec
from regard.builder import build
from regard.families.encoder_decoders.transformer import transformer
from regard.families.folder import describe, read
from seeds import SEEDS

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("seed", SEEDS)
def test_ours_opens_there(seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    sizes = {
        "d_model": 24 - 3 * (seed % 2),
        "d_ff": 40,
        "heads": 3,
        "layers": 2,
        "decoder_layers": 3,
    }
    model_spec = transformer(37, 37, residual=spec.PreNorm(), **sizes, **DETAILS[seed])  # type: ignore[arg-type]
    model = build(model_spec)
    stir(model.parameters())
    write(tmp_path, model, model_spec)
    other, data = open_theirs(tmp_path), batch(37, 37)
    assert type(other).__name__ == "PegasusForConditionalGeneration"
    assert same_logits(ours(model, data), theirs(other, data))
    opened = read(tmp_path)
    assert (opened.spec, opened.ids) == (model_spec, IDS)
    assert all(torch.equal(opened.weights[name], part) for name, part in model.named_parameters())


@pytest.mark.parametrize("scale", [True, False])
def test_theirs_opens_here_and_goes_back(scale: bool, tmp_path: Path) -> None:
    torch.manual_seed(3)
    kind, config = transformers.PegasusForConditionalGeneration, transformers.PegasusConfig
    check_there_and_back(random_theirs(kind, config, scale_embedding=scale), tmp_path)


@pytest.mark.parametrize("share", ["target", "none"])
def test_what_pegasus_cannot_say_is_written_as_our_own(share: str) -> None:
    model_spec = transformer(37, 37, d_model=24, heads=3, share=share, residual=spec.PreNorm())  # type: ignore[arg-type]
    assert describe(model_spec, IDS)["model_type"] == "regard"
