"""`labels` in a call: the loss of transformers' own classes, and what their training loops call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openness
import pytest
import torch
from openness import Inputs

import regard
from regard.system.errors import SettingError

CASES = [
    ("bert", "BertForMaskedLM"),
    ("bert", "BertForSequenceClassification"),
    ("bert", "BertForTokenClassification"),
    ("bert", "BertForQuestionAnswering"),
    ("bert", "BertForMultipleChoice"),
    ("electra", "ElectraForPreTraining"),
    ("gpt2", "GPT2LMHeadModel"),
    ("gpt2", "GPT2ForSequenceClassification"),
    ("llama", "LlamaForCausalLM"),
    ("bart", "BartForConditionalGeneration"),
    ("mbart", "MBartForConditionalGeneration"),
    ("t5", "T5ForConditionalGeneration"),
    ("whisper", "WhisperForConditionalGeneration"),
    ("vit", "ViTForImageClassification"),
    ("wav2vec2", "Wav2Vec2ForCTC"),
]


def opened(family: str, name: str, folder: Path) -> tuple[Any, Any, Inputs]:
    torch.manual_seed(0)
    theirs, inputs = openness.made(family, name)
    theirs.save_pretrained(folder)
    return theirs, regard.load(folder, say=lambda text: None, device="cpu"), inputs


def labels_of(name: str, output: Any) -> Inputs:
    """Random labels of a class, some of them ignored."""
    if name.endswith("QuestionAnswering"):
        ends = torch.randint(output.start_logits.shape[1] + 2, (2, len(output.start_logits)))
        return {"start_positions": ends[0], "end_positions": ends[1]}
    shape = output.logits.shape
    if name.endswith("ForPreTraining"):
        return {"labels": torch.randint(2, shape)}
    if name.endswith(("SequenceClassification", "ImageClassification", "MultipleChoice")):
        return {"labels": torch.randint(shape[-1], shape[:1])}
    if name.endswith("ForCTC"):
        return {"labels": torch.tensor([[3, 4, 5], [6, 7, -100], [8, -100, -100]]).repeat(2, 1)[:5]}
    labels = torch.randint(min(3, shape[-1] - 1), shape[-1], shape[:-1])
    labels[torch.rand(labels.shape) < 0.2] = -100
    return {"labels": labels}


@pytest.mark.parametrize(("family", "name"), CASES)
def test_the_loss_is_that_of_transformers(family: str, name: str, tmp_path: Path) -> None:
    theirs, ours, inputs = opened(family, name, tmp_path)
    with torch.no_grad():
        labels = labels_of(name, theirs(**inputs))
        if name.endswith("ForConditionalGeneration"):  # made from the labels
            inputs = {key: value for key, value in inputs.items() if "decoder" not in key}
        expected = theirs(**inputs, **labels)
        result = ours(**inputs, **labels)
    assert next(iter(result)) == "loss"
    torch.testing.assert_close(result.loss, expected.loss, rtol=1e-4, atol=1e-5)


def test_a_training_loop_of_pytorch_learns(tmp_path: Path) -> None:
    theirs, ours, inputs = opened("bert", "BertForSequenceClassification", tmp_path)
    labels = labels_of("BertForSequenceClassification", theirs(**inputs))
    optimizer = torch.optim.AdamW(ours.parameters(), lr=0.01)
    ours.train()
    losses = []
    for _ in range(8):
        loss = ours(**inputs, **labels, return_dict=True, use_cache=False)[0]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 2
    assert not ours.eval().model.training
    assert isinstance(ours(**inputs, return_dict=False), tuple)
    assert ours.state_dict().keys() == ours.model.state_dict().keys()


def test_other_names_are_answered_with_ours(tmp_path: Path) -> None:
    _, ours, inputs = opened("bert", "BertModel", tmp_path)
    for name, answer in (("save_pretrained", "save"), ("half", "float16"), ("cuda", "to")):
        with pytest.raises(AttributeError, match=answer):
            getattr(ours, name)
    with pytest.raises(SettingError, match="no loss of labels"):
        ours(**inputs, labels=torch.zeros(5, dtype=torch.long))
