"""Longformer's global tokens by task, through the call of transformers: the same by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file
from torch import Tensor

import regard
from regard import spec as kinds
from regard.builder import build
from regard.families import folder as folders
from regard.families.encoders import bert
from regard.families.presets import preset
from regard.system.errors import ModelError, SettingError
from regard.wirings.encoder import Encoder
from zoo import perturb

transformers = pytest.importorskip("transformers")

SEP = 7
SIZES = {
    "vocab_size": 61, "hidden_size": 36, "intermediate_size": 50, "num_hidden_layers": 2,
    "num_attention_heads": 6, "max_position_embeddings": 90, "attention_window": 4,
    "sep_token_id": SEP,
}  # fmt: skip
TASKS = [
    "Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification",
    "ForQuestionAnswering",
]  # fmt: skip


def theirs(task: str, folder: Path, **changes: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LongformerConfig(**{**SIZES, **changes})
    model = getattr(transformers, f"Longformer{task}")(config).eval()
    perturb(model, 0.2)
    model.save_pretrained(folder)
    return model


def batch() -> dict[str, Tensor]:
    """Rows of `question [SEP] [SEP] context [SEP]`, of different lengths."""
    mask = torch.arange(41) < torch.tensor([41, 29, 12])[:, None]
    tokens = torch.randint(8, 61, (3, 41))
    for row, (end, length) in enumerate(((9, 41), (4, 29), (2, 12))):
        tokens[row, [end, end + 1, length - 1]] = SEP
    return {"input_ids": tokens.masked_fill(~mask, 1), "attention_mask": mask.long()}


def assert_equal_outputs(found: Any, expected: Any, mask: Tensor) -> None:
    names = [name for name in found if name in expected]
    assert names
    for name in names:
        ours = found[name]
        reference = expected[name]
        if ours.ndim >= 2 and ours.shape[1] == mask.shape[1]:  # what stands at padding is free
            ours = ours[mask]
            reference = reference[mask]
        tolerance = 2e-5 * max(1.0, reference.abs().mean().item())
        assert (ours - reference).abs().max().item() <= tolerance, name


@pytest.mark.parametrize("task", TASKS)
def test_the_global_tokens_of_a_task_are_those_of_transformers(task: str, tmp_path: Path) -> None:
    model = theirs(task, tmp_path / "theirs")
    ours = regard.load(tmp_path / "theirs")
    inputs = batch()
    chosen = torch.zeros_like(inputs["input_ids"])
    chosen[:, [0, 5]] = 1
    for arguments in (inputs, {**inputs, "global_attention_mask": chosen}):
        with torch.inference_mode():
            expected = model(**arguments)
            found = ours(**arguments)
        assert_equal_outputs(found, expected, inputs["attention_mask"].bool())

    back = ours.save(tmp_path / "ours")
    before = load_file(tmp_path / "theirs" / "model.safetensors")
    after = load_file(back / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    again = type(model).from_pretrained(back).eval()
    with torch.inference_mode():
        assert_equal_outputs(again(**inputs), model(**inputs), inputs["attention_mask"].bool())


@pytest.mark.parametrize("task", ["ForSequenceClassification", "ForQuestionAnswering"])
def test_training_computes_what_the_call_computes(task: str, tmp_path: Path) -> None:
    """Objectives give the core model tokens and padding, and nothing about global tokens."""
    model = theirs(task, tmp_path)
    core, _ = folders.open_model(tmp_path)
    assert isinstance(core, Encoder)
    inputs = batch()
    mask = inputs["attention_mask"].bool()
    with torch.inference_mode():
        expected = model(**inputs)
        hidden, _ = core(inputs["input_ids"], mask)
        logits = core.classes(hidden, mask, inputs["input_ids"])
    if task == "ForQuestionAnswering":
        expected = {"logits": torch.stack([expected.start_logits, expected.end_logits], dim=-1)}
    assert_equal_outputs({"logits": logits}, expected, mask)


def test_a_question_without_separator_is_refused(tmp_path: Path) -> None:
    theirs("ForQuestionAnswering", tmp_path)
    model = regard.load(tmp_path)
    tokens = torch.full((1, 9), 9)
    with pytest.raises(SettingError, match="global_attention_mask"):
        model(input_ids=tokens)
    model(input_ids=tokens, global_attention_mask=torch.ones_like(tokens))
    theirs("Model", tmp_path / "bare", attention_window=6)
    with pytest.raises(SettingError, match="global_attention_mask"):
        regard.load(tmp_path / "bare")(input_ids=tokens, global_mask=tokens)


def test_answers_of_text_have_a_global_question(tmp_path: Path) -> None:
    """`answer` reads texts with their special tokens, and scores them as transformers does."""
    model = theirs("ForQuestionAnswering", tmp_path, sep_token_id=2)
    words = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    words |= {f"w{i}": i for i in range(4, 61)}
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(words, unk_token="<unk>")  # type: ignore[call-arg]
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    backend.post_processor = tokenizers.processors.RobertaProcessing(  # type: ignore[assignment]
        ("</s>", 2), ("<s>", 0)
    )
    backend.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    context = " ".join(f"w{i}" for i in range(20, 50))
    answer = regard.load(tmp_path).answer("w5 w6 w7", context)
    encoding = backend.encode("w5 w6 w7", context)
    with torch.inference_mode():
        scores = model(input_ids=torch.tensor([encoding.ids]))
    allowed = torch.tensor([i == 0 or s == 1 for i, s in enumerate(encoding.sequence_ids)])
    start, end = (
        scores[name][0].masked_fill(~allowed, -torch.inf).log_softmax(dim=0)
        for name in ("start_logits", "end_logits")
    )
    assert answer.none == pytest.approx(float((start[0] + end[0]).exp()), rel=1e-3)


# ------------------------------------------------------------------ from scratch


def test_longformer_from_scratch_has_projections_of_its_own() -> None:
    """With the local projections copied to them, it is attention with a global first position."""
    sizes: dict[str, Any] = {"layers": 2, "d_model": 16, "heads": 2, "dropout": 0.0}
    heads = (kinds.Pool(), kinds.ClassifierHead(3))
    plain: Any = preset("bert:tiny", 61, 64, attention="global:2", **sizes).with_heads(*heads)
    own: Any = preset("bert:tiny", 61, 64, attention="longformer:2", **sizes).with_heads(*heads)
    assert own.stack.block.attention.global_tokens == kinds.FirstTokens()
    assert kinds.from_dict(kinds.to_dict(own)) == own
    torch.manual_seed(0)
    reference = build(plain).eval().double()
    model = build(own).eval().double()
    weights = reference.state_dict()
    for i in range(2):
        for name in ("weight", "bias"):
            local = f"stack.blocks.{i}.attention.project.qkv.{name}"
            copied = f"stack.blocks.{i}.attention.global_attention.project.qkv.{name}"
            weights[copied] = weights[local]
    model.load_state_dict(weights)
    mask = torch.arange(50) < torch.tensor([50, 33])[:, None]
    tokens = torch.randint(0, 61, (2, 50))
    with torch.inference_mode():
        expected = reference(tokens, mask)[0][mask]
        torch.testing.assert_close(model(tokens, mask)[0][mask], expected)
        model.get_parameter("stack.blocks.1.attention.global_attention.project.qkv.weight").mul_(2)
        changed = (model(tokens, mask)[0] - reference(tokens, mask)[0]).abs().amax(dim=-1)
    assert (changed[:, 0] > 1e-3).all()  # in the last layer, what the first token sees


def test_a_decoder_has_none() -> None:
    model: Any = preset("gpt2:tiny", 61, 64, attention="longformer:2")
    assert model.stack.block.attention.projection == "apart"


def test_positions_inside_attention_are_refused_with_the_reason() -> None:
    model = bert.preset("tiny", 61, 64, attention="longformer:2")
    with pytest.raises(ModelError, match="`global`"):
        kinds.Stack.of(1, model.stack.block, kinds.WindowMask(2), position=kinds.Alibi())
