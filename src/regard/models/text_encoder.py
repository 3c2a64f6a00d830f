"""A reader of text: sentence vectors, classification, tagging, masked tokens, question answering.

Each method takes one text or a list; a list is batched by length, and its results keep its order.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar, overload

import torch
from tokenizers import Encoding
from torch import Tensor

from regard.core.finite_outputs import require_finite
from regard.core.heads.contact_head import ContactHead
from regard.core.heads.head import Pool
from regard.data.padding import pad_rows
from regard.data.tag_alignment import word_spans
from regard.data.text.tokenizer import Text
from regard.decode.batch_decoding import batch_by_length
from regard.look.forward import evaluation_mode
from regard.models.base import TokenizerModel
from regard.models.hf_call import padding_mask
from regard.models.hf_loss import shift_right
from regard.models.inputs.input_checks import require_known_ids
from regard.models.inputs.input_warnings import warn_of_inputs
from regard.models.inputs.token_batches import (
    SAY_TRUNCATION,
    SPLIT,
    SPLIT_OR_TRUNCATE,
    padded_inputs,
    smaller_limit,
    template_encodings,
    text_list,
    text_pairs,
    texts_and_pairs,
)
from regard.models.labels import Scores
from regard.models.sentence_transformers import SentencePooling
from regard.models.spans import (
    Answer,
    Filling,
    Suspect,
    Tagged,
    best_answer,
    merge_entities,
    replaced_tokens,
    tagged_words,
)
from regard.models.tasks import one_or_many, one_or_stacked
from regard.system.arguments import whole_number
from regard.system.errors import DataError, ModelError

R = TypeVar("R")
# hidden states [B, T, D], padding mask [B, T] or None, token ids [B, T] → one result for each row
Head = Callable[[Tensor, Tensor | None, Tensor], Tensor]
# The methods that each task of a classification head has; entities are merged from tags of words.
_METHODS = {
    "classify": ["classify"],
    "next": ["follows"],
    "tag": ["tag", "entities"],
    "answer": ["answer"],
    "detect": ["detect"],
}


@dataclass(frozen=True)
class TokenIds:
    """What a model reads of an `Encoding`, of a text that comes as token ids."""

    ids: list[int]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def type_ids(self) -> list[int]:
        """One segment: 0 everywhere."""
        return [0] * len(self.ids)


class TextEncoder(TokenizerModel):
    """A model of text whose heads write no text: an encoder such as BERT, or a decoder or an
    encoder–decoder with another head than a language model's; made by `regard.load(folder)`."""

    model: Any  # of any wiring
    spec: Any
    budget = 8192  # positions of a batch
    truncates = frozenset({"classify", "embed"})

    @cached_property
    def sentence(self) -> SentencePooling:
        """How the hidden states of a text are pooled into one vector."""
        return SentencePooling.open(self.folder)

    @property
    def text_encoder(self) -> TextEncoder:
        """What embeds texts: of a dual encoder it is one of the towers."""
        return self

    @property
    def regresses(self) -> bool:
        """Whether what the head gives is a number of each text."""
        if self.spec.task != "classify":
            return False
        # transformers takes one output for a regression, unless the config says otherwise.
        default = "regression" if self.spec.labels.count == 1 else None
        return (self.config.get("problem_type") or default) == "regression"

    @property
    def evaluations(self) -> tuple[str, ...]:
        heads: dict[str | None, str] = {"tag": "tag", "answer": "answer", "detect": "replaced"}
        heads["classify"] = "regress" if self.regresses else "classify"
        names = [heads[self.spec.task]] if self.spec.task in heads else []
        return (*names, *(["masked", "mutations"] if self.spec.head else []), "contrastive")

    @property
    def tasks(self) -> list[str]:
        """The task methods that this model has a head for."""
        fills = ["fill"] if self.spec.head else []
        return ["embed", *fills, *_METHODS.get(self.spec.task, ())]

    def text_tensors(
        self, texts: Text | Sequence[Text], max_length: int | None, truncation: bool
    ) -> dict[str, Tensor]:
        encodings = self._encode(texts_and_pairs(texts), truncation, max_length, SAY_TRUNCATION)
        return self._batch(encodings)

    # -------------------------------------------------------------- sentence vectors

    @one_or_stacked
    def embed(self, texts: list[str], *, truncation: bool = False) -> Tensor:
        """The vector of a text, [D], or [N, D] for a list.

        Pooled as a sentence-transformers folder says, the projected vector of a CLIP tower,
        otherwise the mean over the text's tokens. A text that is too long is an error, or is
        truncated with a warning if `truncation`.
        """
        # No pairs here: a sentence vector is of one text.
        prepared = [self.sentence.prepare_text(one) for one in text_list(texts)]
        encodings = self._encode(
            prepared, truncation, self.sentence.max_seq_length, SPLIT_OR_TRUNCATE
        )
        # torch.stack refuses an empty list; D is that of any text's vector.
        any_encodings = encodings or self.tokenizer.encode_with_template(["a"])
        return torch.stack(self._map(any_encodings, self._pool))[: len(encodings)]

    def embed_ids(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """`embed` of texts as token ids, [N, D]; special tokens are added where they lack."""
        marks = self.tokenizer.frame([])
        framed = []
        ids = torch.tensor([id for row in rows for id in row], dtype=torch.long)
        require_known_ids(self.spec, {"input_ids": ids})
        for row in rows:
            is_framed = bool(marks) and (row[0], row[-1]) == (marks[0], marks[-1])
            framed.append(TokenIds(list(row) if is_framed else self.tokenizer.frame(row)))
        limit = smaller_limit(self.sentence.max_seq_length, self.positions)
        longest = max(map(len, framed), default=0)
        if limit is not None and longest > limit:
            raise DataError(f"a text has {longest:,} tokens, and this model reads {limit:,}", SPLIT)
        return torch.stack(self._map(framed, self._pool))

    def _pool(self, hidden: Tensor, padding_mask: Tensor | None, ids: Tensor) -> Tensor:
        pool = self.model.part(Pool)
        projects = self.spec.pool is not None and self.spec.pool.width is not None
        if pool is not None and projects:
            # CLIP: the projected state of the end token, which is found by its id.
            return pool(hidden, padding_mask, ids)
        return self.sentence(hidden, padding_mask)

    # -------------------------------------------------------------- classification

    @one_or_many
    def classify(self, texts: list[Text], *, truncation: bool = False) -> list[Scores]:
        """Label → probability, likeliest first, of a text, a pair (a tuple), or each of a list."""
        self._require("classify")
        return self.scores(self.logits(texts_and_pairs(texts), truncation=truncation))

    @overload
    def follows(self, first: str, second: str) -> float: ...
    @overload
    def follows(self, first: list[str], second: list[str]) -> list[float]: ...
    def follows(self, first: str | list[str], second: str | list[str]) -> float | list[float]:
        """The probability that the second text follows the first (next-sentence prediction)."""
        self._require("follows")
        # [2] of each pair
        logits = self._map(self._encode(text_pairs(first, second)), self.model.classes)
        # BERT's label 0 is "is next", 1 is "random".
        probabilities = [float(row.softmax(dim=-1)[0]) for row in logits]
        return probabilities[0] if isinstance(first, str) else probabilities

    # -------------------------------------------------------------- tokens

    @one_or_many
    def tag(self, texts: list[str]) -> list[list[Tagged]]:
        """The label of each word (token classification), which is that of its first token."""
        spans = [*map(word_spans, text_list(texts))]
        # Words are read with spaces between them, as in the data of a tagger.
        spaced = [
            " ".join(text[start:end] for start, end in words)
            for text, words in zip(texts, spans, strict=True)
        ]
        tagged = self._of_tokens("tag", spaced, partial(tagged_words, names=self.labels or []))
        places = [[i for start, end in words for i in range(start, end + 1)] for words in spans]
        return [
            [replace(one, start=at[one.start], end=at[one.end - 1] + 1) for one in words]
            for at, words in zip(places, tagged, strict=True)
        ]

    @one_or_many
    def entities(self, texts: list[str]) -> list[list[Tagged]]:
        """Named entities: the spans of words tagged B-x, I-x, labelled x."""
        tagged = zip(texts, self.tag(texts), strict=True)
        return [merge_entities(text, words) for text, words in tagged]

    @torch.inference_mode()
    def contacts(self, text: str) -> Tensor:
        """The probability that two residues of a protein touch, of all pairs [T, T] (ESM)."""
        head = self.model.part(ContactHead)
        if head is None:
            raise ModelError(f"{self.folder} predicts no contacts", "give a folder of ESM")
        [encoding] = self._encode([text])
        weights = self(**self._batch([encoding]), output_attentions=True).attentions
        # Without the tokens around the protein: [1, heads of all layers, T, T].
        heads: Tensor = head(torch.cat(weights, dim=1)[..., 1:-1, 1:-1].float())
        return heads[0].cpu()

    @one_or_many
    def detect(self, texts: list[str]) -> list[list[Suspect]]:
        """The probability of each token that it was replaced (ELECTRA's discriminator)."""
        return self._of_tokens("detect", texts, replaced_tokens)

    def _of_tokens(
        self, method: str, texts: list[str], result: Callable[[str, Encoding, Tensor], R]
    ) -> list[R]:
        """What follows from the logits of the tokens of each text."""
        self._require(method)
        texts = text_list(texts)
        encodings = self._encode(texts)
        return list(map(result, texts, encodings, self._map(encodings, self.model.classes)))

    # -------------------------------------------------------------- masked tokens

    @one_or_many
    def fill(self, texts: list[str], top: int = 5) -> list[list[Filling]]:
        """The likeliest tokens for the mask in a text, which holds one."""
        self._require("fill")
        head = self.model.lm_head
        top = whole_number("top", top, least=1)
        mask_id = self.tokenizer.special_token_id("mask")
        if mask_id is None:
            raise ModelError(
                "the tokenizer of this model has no mask token",
                "set mask_token in tokenizer_config.json",
            )
        texts = text_list(texts)
        encodings = self._encode(texts)
        for one, encoding in zip(texts, encodings, strict=True):
            masks = encoding.ids.count(mask_id)
            if masks != 1:
                mask_token = self.tokenizer.special_tokens["mask"]
                raise DataError(
                    f"{reprlib.repr(one)} has {masks} masks, not one",
                    f"write {mask_token} once, in place of the missing word",
                )

        def mask_logits(hidden: Tensor, padding_mask: Tensor | None, ids: Tensor) -> Tensor:
            return head(hidden[ids == mask_id])  # [B, V]: each row has one mask

        logits = self._map(encodings, mask_logits)
        return [
            self._fillings(one, encoding.offsets[encoding.ids.index(mask_id)], row, top)
            for one, encoding, row in zip(texts, encodings, logits, strict=True)
        ]

    def _fillings(
        self, text: str, mask_span: tuple[int, int], logits: Tensor, top: int
    ) -> list[Filling]:
        """The `top` likeliest tokens in place of the mask, by logits [V]."""
        start, end = mask_span
        best = logits.softmax(dim=-1).topk(min(top, len(logits)))  # [top] each
        fillings = []
        for probability, i in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            word, starts_word = self.tokenizer.surface_form(i)
            # None: the tokenizer's tokens do not tell whether a space comes before.
            before = text[:start]
            if starts_word is not None:
                before = before.rstrip()
            space = " " if starts_word and before else ""
            filled = before + space + word + text[end:]
            fillings.append(Filling(word, probability, filled, i))
        return fillings

    # -------------------------------------------------------------- question answering

    @overload
    def answer(self, question: str, context: str) -> Answer: ...
    @overload
    def answer(self, question: list[str], context: list[str]) -> list[Answer]: ...
    def answer(self, question: str | list[str], context: str | list[str]) -> Answer | list[Answer]:
        """The span of the context that answers a question.

        A context that is too long is read in overlapping windows.
        """
        self._require("answer")
        pairs = text_pairs(question, context)
        windows = [self._windows(question, context) for question, context in pairs]
        # A context of several windows has several rows.
        encodings = [encoding for rows in windows for encoding in rows]
        number = [i for i, rows in enumerate(windows) for _ in rows]
        warn_of_inputs(
            self.tokenizer,
            [pairs[i] for i in number],
            [encoding.ids for encoding in encodings],
            self.coverage,
            number,
        )
        # All windows of all contexts in one go, so that they are batched by length.
        logits = iter(self._map(encodings, self.model.classes))  # each [T, 2]
        answers = [
            best_answer(one_context, rows, [next(logits) for _ in rows])
            for (_, one_context), rows in zip(pairs, windows, strict=True)
        ]
        return answers[0] if isinstance(question, str) else answers

    def _windows(self, question: str, context: str) -> list[Encoding]:
        """A question with each window of its context; windows overlap by a quarter."""
        limit = self.positions
        if limit is None:
            return self.tokenizer.encode_with_template([(question, context)])
        # Overlap: an answer that one window cuts off may be complete in the next.
        return self.tokenizer.windows(question, context, limit, limit // 4)

    # -------------------------------------------------------------- running the encoder

    def logits(
        self, texts: Sequence[Text], *, truncation: bool = False, max_length: int | None = None
    ) -> list[Tensor]:
        """The logits of the classification head: [labels] of each text, or [T, labels].

        Those of tokens end with what the head says of the padding. A text of more than `max_length`
        tokens, or more than the model reads, is an error unless `truncation`.
        """
        encodings = self._encode(texts, truncation, max_length, SPLIT_OR_TRUNCATE)
        return self._map(encodings, self.model.classes)

    def _require(self, method: str) -> None:
        """Raises `ModelError` unless there is the head that a method needs."""
        if method not in self.tasks:
            getattr(super(), method)()

    def _encode(
        self,
        texts: Sequence[Text],
        truncation: bool = False,
        max_length: int | None = None,
        repair: str = SPLIT,
    ) -> list[Encoding]:
        """Token ids of texts, with special tokens.

        A text with more than `max_length` tokens, or than there are positions, is an error, or is
        truncated if `truncation`.
        """
        limit = smaller_limit(max_length, self.positions)
        encodings = template_encodings(self.tokenizer, texts, limit, truncation, self.say, repair)
        rows = [encoding.ids for encoding in encodings]
        warn_of_inputs(self.tokenizer, texts, rows, self.coverage)
        return encodings

    @torch.inference_mode()
    def _map(self, encodings: Sequence[Encoding | TokenIds], head: Head) -> list[Tensor]:
        """Applies a head to the hidden states of each text; results are on the CPU, in float32.

        Results of heads over tokens end with those of the padding.
        """
        results: dict[int, Tensor] = {}
        # Fine-tuning evaluates in between: dropout goes back on afterwards.
        with evaluation_mode(self.model):
            for batch in batch_by_length([*map(len, encodings)], self.budget):
                outputs = self._run([encodings[i] for i in batch], head)
                require_finite(outputs, self.model)
                results |= zip(batch, outputs.float().cpu(), strict=True)
        return [results[i] for i in range(len(encodings))]

    def _run(self, encodings: Sequence[Encoding | TokenIds], head: Head) -> Tensor:
        """Runs one batch through the encoder and a head."""
        batch = self._batch(encodings)
        tokens = batch["input_ids"]
        mask = padding_mask(batch.get("attention_mask"))
        more = self.side_tokens(tokens)
        if "token_type_ids" in batch:
            more["segments"] = batch["token_type_ids"]
        hidden, _ = self.model(tokens, padding_mask=mask, **more)  # [B, T, D]
        return head(hidden, mask, tokens)

    def side_tokens(self, tokens: Tensor) -> dict[str, Tensor]:
        """What the decoder behind an encoder reads: the same text once more (BART, Lewis et al.
        2020, Section 3.1)."""
        if not self.spec.is_encoder_decoder:
            return {}
        return {"target": shift_right(tokens, self.config)}

    def _batch(self, encodings: Sequence[Encoding | TokenIds]) -> dict[str, Tensor]:
        """The padded tensors of the call, on the model's device."""
        pad_token_id = self.tokenizer.special_token_id("pad") or 0  # masked, so any id will do
        rows = [encoding.ids for encoding in encodings]
        pool = self.spec.pool
        if pool is not None and pool.which == "final":
            # SigLIP reads all texts at one length, padding included: nothing is masked.
            ids, _ = pad_rows(rows, pad_token_id, min_width=self.positions or 0)
            return {"input_ids": ids.to(self.device)}
        batch = padded_inputs(rows, pad_token_id)
        # RoBERTa has one segment: its embedding is the same for all tokens, and no input.
        if self.spec.tokens.segments > 1:
            batch["token_type_ids"], _ = pad_rows([one.type_ids for one in encodings], 0)
        return {name: tensor.to(self.device) for name, tensor in batch.items()}
