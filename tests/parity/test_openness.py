"""What `regard.load` opens of transformers' own classes, with the configurations of its tests."""

from __future__ import annotations

from pathlib import Path

import openness
import pytest

from seeds import SEEDS

# One class of each layout; the slow test has all of them.
FAST = [
    ("albert", "AlbertForPreTraining"),
    ("bart", "BartForQuestionAnswering"),
    ("bert", "BertForPreTraining"),
    ("bert", "BertLMHeadModel"),
    ("big_bird", "BigBirdForSequenceClassification"),
    ("clip", "CLIPModel"),
    ("deberta", "DebertaForTokenClassification"),
    ("gemma3_text", "Gemma3TextForSequenceClassification"),
    ("gpt2", "GPT2DoubleHeadsModel"),
    ("gpt_oss", "GptOssForCausalLM"),
    ("gpt_neox", "GPTNeoXForCausalLM"),
    ("longformer", "LongformerForMultipleChoice"),
    ("marian", "MarianForCausalLM"),
    ("mixtral", "MixtralForCausalLM"),
    ("pegasus", "PegasusModel"),
    ("roberta", "RobertaForMaskedLM"),
    ("t5", "T5ForConditionalGeneration"),
    ("t5", "T5ForTokenClassification"),
    ("vit", "ViTForImageClassification"),
    ("whisper", "WhisperDecoder"),
    ("whisper", "WhisperForConditionalGeneration"),
]
# Under masks that hide the first token DeBERTa attends to all positions evenly, the hidden ones
# included; here the first token attends to what the mask shows.
DIFFERS = {
    "DebertaForSequenceClassification",
    "DebertaV2ForSequenceClassification",
    "DebertaV2ForMultipleChoice",
}


@pytest.mark.parametrize(("family", "name"), FAST)
def test_a_class_of_each_layout_is_equal(family: str, name: str, tmp_path: Path) -> None:
    assert openness.verdict(family, name, 0, tmp_path) == "equal"


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("family", "name"), list(openness.cases()))
def test_no_class_is_wrong(family: str, name: str, seed: int, tmp_path: Path) -> None:
    verdict = openness.verdict(family, name, seed, tmp_path)
    assert verdict == "equal" or verdict.startswith("refused") or name in DIFFERS
