"""Extractive question answering: where in a context the answer begins and ends (SQuAD)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tokenizers import Encoding
from torch import Tensor
from torch.nn import functional

from regard.data import labelled
from regard.data.labelled import Question
from regard.metrics.question_answering import AnswerScore, answer_score
from regard.text.tokenizer import Tokenizer
from regard.training.data.stored_rows import Row
from regard.training.objectives.head_objective import HeadObjective, LabelledData

NO_ANSWER = (0, 0)  # the first token, as in BERT for SQuAD 2.0


class QuestionAnswering(HeadObjective[Question]):
    """The first and the last token of the answer; long contexts are read in windows."""

    name = "answer"
    unit = "windows"
    head_task = "answer"
    head_fields = "labels=ClassifierHead(2, 'answer')"
    truncates = False
    tokenizer_kind = "bpe"  # its template separates question and context

    @classmethod
    def read(cls, path: str) -> Iterable[Question]:
        return labelled.questions(path)

    @classmethod
    def texts(cls, example: Question) -> list[str]:
        return [example.question, example.context]

    @classmethod
    def label_names(cls, examples: Iterable[Question]) -> list[str]:
        return ["start", "end"]

    @classmethod
    def label_config(cls, config: dict[str, Any], data: LabelledData) -> dict[str, Any]:
        return config  # a span has no label

    def rows(self, examples: Sequence[Question]) -> list[Row]:
        rows = []
        for example in examples:
            for encoding, span in answer_windows(self.encoder.tokenizer, example, self.max_length):
                rows.append(Row(encoding.ids, encoding.type_ids, list(span)))
        return rows

    def logits_loss(self, logits: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The mean of −log p of the first and of the last token, each a softmax over the row."""
        padding = ~tensors["padding_mask"][..., None]
        logits = logits.float().masked_fill(padding, float("-inf"))  # [B, T, 2]
        # Over dimension 1, the positions; labels [B, 2].
        loss = functional.cross_entropy(logits, tensors["labels"], reduction="sum") / 2
        return loss, loss.detach()

    def score(
        self, examples: Sequence[Question], autocast: AbstractContextManager[Any]
    ) -> AnswerScore:
        questions = [example.question for example in examples]
        contexts = [example.context for example in examples]
        with autocast:
            answers = self.encoder.answer(questions, contexts)
        # No answer, where that is likelier than the best span.
        texts = [answer.text if answer.probability >= answer.none else "" for answer in answers]
        return answer_score(texts, [example.text for example in examples])


def answer_windows(
    tokenizer: Tokenizer, example: Question, max_length: int
) -> list[tuple[Encoding, tuple[int, int]]]:
    """The context in overlapping windows, each with the answer's first and last token.

    A window that does not contain the answer completely has NO_ANSWER.
    """
    windows = []
    start = example.answer_start
    end = start + len(example.text)
    stride = max_length // 4  # by which windows overlap
    for encoding in tokenizer.windows(example.question, example.context, max_length, stride):
        tokens = [
            i
            for i, sequence in enumerate(encoding.sequence_ids)
            if sequence == 1 and encoding.offsets[i][0] < end and encoding.offsets[i][1] > start
        ]
        span = NO_ANSWER
        if tokens and example.text:
            first = tokens[0]
            last = tokens[-1]
            # Where a window cuts the answer off there is none: another window may have all of it.
            if encoding.offsets[first][0] <= start and encoding.offsets[last][1] >= end:
                span = (first, last)
        windows.append((encoding, span))
    return windows
