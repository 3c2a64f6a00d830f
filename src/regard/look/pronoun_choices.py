"""Pronoun resolution as a choice between two words, scored by their logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.data.builtin import IT, Sentence
from regard.data.lexicon import NOUNS
from regard.errors import DataError
from regard.look.arguments import core_of, require_instance, require_sentences
from regard.look.forward import apply_head, evaluation_mode, hidden_states
from regard.look.head_ablation import ablation_probe
from regard.look.inspectable import Inspectable, decoder_start
from regard.look.model_inputs import LabelledBatch, batch
from regard.look.probe_names import Head
from regard.look.recording import array
from regard.look.result import Array
from regard.look.view_requirements import require_view


@dataclass(frozen=True, eq=False)
class Choices:
    """Texts with several tokens to choose from at one position; the first option is right."""

    data: LabelledBatch
    positions: tuple[int, ...]  # of the choice in each text's decoder
    options: tuple[tuple[int, ...], ...]  # token ids

    def first(self, count: int) -> Choices:
        """The first few of them."""
        return Choices(self.data.first(count), self.positions[:count], self.options[:count])


def pronouns(model: Inspectable, sentences: Sequence[Sentence]) -> Choices:
    """The choice of the pronoun that translates "it", in sentences of the built-in language.

    The options are the pronouns of the two nouns that "it" could stand for. A model that does not
    resolve it is right half of the time.
    """
    require_view(model, "circuit")
    require_sentences(sentences)
    ambiguous = [sentence for sentence in sentences if sentence.triple is not None]
    if not ambiguous:
        raise DataError(
            "none of the sentences has an ambiguous pronoun",
            "generate some: regard.data.builtin.sentences(split, pronouns=True)",
        )
    # At position p of the target, the decoder has read the start tokens and p tokens.
    shift = len(decoder_start(model.special_tokens)) - 1
    positions = []
    options = []
    for sentence in ambiguous:
        position, tokens = _choice(model, sentence)
        positions.append(position + shift)
        options.append(tokens)
    sources = [sentence.source for sentence in ambiguous]
    targets = [sentence.target for sentence in ambiguous]
    return Choices(batch(model, sources, targets), tuple(positions), tuple(options))


def _choice(model: Inspectable, sentence: Sentence) -> tuple[int, tuple[int, ...]]:
    """The position of the pronoun's token in the target, and the right and the wrong token."""
    assert sentence.triple is not None
    words = sentence.target.split()
    # The pronoun of the reason, which comes last, translates "it".
    number = max(i for i, word in enumerate(words) if word in IT.values())
    genders = {noun.english: noun.gender for noun in NOUNS}
    subject_noun, object_noun = sentence.triple[:2]
    right = IT[genders[subject_noun]]
    wrong = IT[genders[object_noun]]
    if sentence.referent != "subject":
        right, wrong = wrong, right
    versions = []
    for pronoun in (right, wrong):
        version = [*words[:number], pronoun, *words[number + 1 :]]
        versions.append(model.output_tokenizer.input_ids(" ".join(version)))
    # German pronouns may share their first token: the choice is where the versions part.
    differing = (i for i, ids in enumerate(zip(*versions, strict=False)) if len(set(ids)) > 1)
    position = next(differing, None)
    if position is None:
        raise DataError(
            f"the tokenizer of this model encodes {right!r} and {wrong!r} as the same tokens",
            "use a model trained on the built-in language: regard train --out runs/builtin",
        )
    return position, tuple(version[position] for version in versions)


def chosen_right(model: Inspectable, choices: Choices, off: Sequence[Head] = ()) -> Array:
    """[B] whether the right option has the highest logit, with some heads ablated."""
    core = core_of(model)
    require_instance(choices, Choices, "pass the result of `look.pronouns(model, sentences)`")
    data = choices.data
    with evaluation_mode(core):
        probe = ablation_probe(core, off)
        hidden = hidden_states(core, data.inputs, data.decoder_inputs, data.padding_mask, probe)
        rows = torch.arange(len(hidden), device=hidden.device)
        # The LM head is applied at one position of each text only.
        selected = hidden[rows, list(choices.positions)][:, None]  # [B, 1, D]
        logits = apply_head(core, selected, None, data.inputs)[:, 0]  # [B, V]
        options = torch.tensor(choices.options, device=hidden.device)
        scores = logits.gather(1, options)  # [B, options]
    return array((scores[:, :1] > scores[:, 1:]).all(dim=1))
