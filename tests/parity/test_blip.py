"""BLIP's captioner against transformers: outputs, the loss, captions token for token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_vision import close

import regard
from regard import spec
from regard.builder import trainable
from regard.builder.parameter_count import parameter_count
from regard.data.generated.scenes import write_scenes
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import BeamSearch, Greedy, Limit, PowerPenalty, Strategy
from regard.families import folder as folders
from regard.system.errors import ModelError
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

START, END, PAD = 40, 2, 3
TEXT = {
    "vocab_size": 41, "max_position_embeddings": 30, "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 21, "bos_token_id": START, "sep_token_id": END,
    "pad_token_id": PAD,
}  # fmt: skip
VISION = {
    "image_size": 30, "patch_size": 7, "hidden_size": 12, "num_hidden_layers": 3,
    "num_attention_heads": 2, "intermediate_size": 19,
}  # fmt: skip


def theirs(seed: int, out: Path, width: int = 12) -> Any:
    torch.manual_seed(seed)
    config = transformers.BlipConfig(
        text_config=TEXT, vision_config={**VISION, "hidden_size": width}
    )
    model = transformers.BlipForConditionalGeneration(config).eval()
    perturb(model, 0.1)
    model.save_pretrained(out)
    return model


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("width", [12, 16])
def test_open_run_and_write_back(seed: int, width: int, tmp_path: Path) -> None:
    model = theirs(seed, tmp_path / "theirs", width)
    loaded = regard.load(tmp_path / "theirs", say=lambda text: None)
    assert isinstance(loaded, regard.ImageCaptioner)
    assert trainable(loaded.model) == parameter_count(loaded.spec)
    assert spec.from_dict(spec.to_dict(loaded.spec)) == loaded.spec
    pixels = torch.randn(3, 3, 30, 30)
    ids = torch.randint(4, 40, (3, 7))
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[1, 5:] = 0
    with torch.inference_mode():
        wanted = model(pixel_values=pixels, input_ids=ids, attention_mask=mask)
        result = loaded(
            pixel_values=pixels, decoder_input_ids=ids, decoder_attention_mask=mask,
            output_attentions=True, output_hidden_states=True,
        )  # fmt: skip
        assert close(result.logits[mask.bool()], wanted.logits[mask.bool()])
        assert close(result.encoder_last_hidden_state, wanted.image_embeds)
        # The words of its own side, as transformers records them there.
        asked: Any = {"output_attentions": True, "output_hidden_states": True}
        text = model.text_decoder.bert(
            ids, encoder_hidden_states=wanted.image_embeds, is_decoder=True, **asked
        )
        inside = loaded(pixel_values=pixels, decoder_input_ids=ids, **asked)
        pairs = list(zip(inside.decoder_hidden_states, text.hidden_states, strict=True))
        pairs += zip(inside.cross_attentions, text.cross_attentions, strict=True)
        pairs += zip(inside.decoder_attentions, text.attentions, strict=True)
        assert all(close(one, other) for one, other in pairs)

    loaded.save(tmp_path / "ours")
    before, after = (load_file(tmp_path / at / "model.safetensors") for at in ("theirs", "ours"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    configs = [json.loads((tmp_path / at / "config.json").read_text()) for at in ("theirs", "ours")]
    for config in configs:
        for key in ("transformers_version", "dtype"):
            config.pop(key, None)
    assert configs[0] == configs[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_captions_token_for_token(seed: int, tmp_path: Path) -> None:
    model = theirs(seed, tmp_path)
    ours, content = folders.open_model(tmp_path)
    ids = content.ids
    assert ids is not None
    assert (ids.start, ids.end, ids.pad) == (START, END, PAD)
    pixels = torch.randn(3, 3, 30, 30)
    searches: dict[int, Strategy] = {
        1: Greedy(),
        4: BeamSearch(4, PowerPenalty(1.0), slots="refilled", stop="likely"),
    }
    for beams, strategy in searches.items():
        expected = model.generate(pixels, num_beams=beams, max_new_tokens=11, do_sample=False)
        special = SpecialTokens(PAD, START, END)
        settings = DecodingSettings(strategy, Limit.fixed(11))
        found = decode(ours, [*pixels], special, settings)  # type: ignore[arg-type]
        for row, hypotheses in zip(expected.tolist(), found, strict=True):
            tokens = row[1:]
            if END in tokens:
                tokens = tokens[: tokens.index(END)]
            best = list(hypotheses[0].tokens)
            assert best == [i for i in tokens if i != PAD or PAD in best]


def test_another_model_of_its_name_is_refused(tmp_path: Path) -> None:
    theirs(0, tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"architectures": ["BlipForQuestionAnswering"]}))
    with pytest.raises(ModelError, match="BlipForQuestionAnswering"):
        folders.peek(tmp_path)


def test_a_new_one_is_trained_and_captions_in_transformers(tmp_path: Path) -> None:
    write_scenes(tmp_path / "scenes", {"train": 8, "valid": 4}, size=16, most=2)
    regard.train(
        objective="caption", model="blip:tiny", image_size=16, patch=8, d_model=16, heads=2, d_ff=16,
        layers=1, context=40, batch_tokens=128, warmup_steps=1, device="cpu", threads=1, steps=2,
        images=str(tmp_path / "scenes/train/captions.tsv"),
        valid_images=str(tmp_path / "scenes/valid/captions.tsv"), out=str(tmp_path / "run"),
    )  # fmt: skip
    ours = regard.load(tmp_path / "run")
    assert isinstance(ours, regard.ImageCaptioner)
    other = transformers.BlipForConditionalGeneration.from_pretrained(tmp_path / "run").eval()
    image = next((tmp_path / "scenes/valid/images").iterdir())
    pixels = ours.image_processor(image)[None]
    written = other.generate(pixels, max_new_tokens=8, do_sample=False, num_beams=1)[0].tolist()
    text = ours.text([i for i in written if i not in (ours.ids.start, ours.ids.end)])
    assert ours.caption(image, max_new_tokens=8) == text
