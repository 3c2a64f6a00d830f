"""Who resolves "it"? The fewest heads of a translator of the built-in language that do.

"The animal did not cross the street because it was too tired": German needs `es` for the animal
and `sie` for the street. Every set of heads is ablated, smallest first, until the pronoun is only
right by chance. Run it:
python examples/pronoun_circuit.py [MODEL] [> circuit.json]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

import regard
from regard.core.probe import Probe
from regard.data.generated.builtin import IT, Sentence, sentences
from regard.data.generated.lexicon import NOUNS
from regard.look import Choices, Circuit, Inspectable, batch, chosen_right, circuit, right
from regard.look.forward import evaluation_mode, hidden_states
from regard.look.head_roles import word_positions
from regard.look.inspectable import decoder_start
from regard.look.model_inputs import LabelledBatch
from regard.look.probe_names import Head, attentions, switched_off
from regard.look.recording import array
from regard.look.result import Array

DEMO = Path(regard.__file__).parent / "studio/demo"
WORDS = ("the referent", "the other noun", "it", "the adjective")
GENDERS = {noun.english: noun.gender for noun in NOUNS}


def pronouns(model: Inspectable, ambiguous: Sequence[Sentence]) -> Choices:
    """The choice of the pronoun that translates "it": those of the two nouns it could stand for."""
    # At position p of the target, the decoder has read the start tokens and p tokens.
    shift = len(decoder_start(model.special_tokens)) - 1
    positions = []
    options = []
    for sentence in ambiguous:
        assert sentence.triple is not None
        words = sentence.target.split()
        # The pronoun of the reason, which comes last, translates "it".
        number = max(i for i, word in enumerate(words) if word in IT.values())
        both = [IT[GENDERS[noun]] for noun in sentence.triple[:2]]
        right_first = both if sentence.referent == "subject" else both[::-1]
        versions = [
            model.output_tokenizer.input_ids(
                " ".join([*words[:number], pronoun, *words[number + 1 :]])
            )
            for pronoun in right_first
        ]
        # German pronouns may share their first token: the choice is where the versions part.
        pairs = enumerate(zip(*versions, strict=False))
        position = next(i for i, ids in pairs if len(set(ids)) > 1)
        positions.append(position + shift)
        options.append(tuple(version[position] for version in versions))
    data = batch(model, [s.source for s in ambiguous], [s.target for s in ambiguous])
    return Choices(data, tuple(positions), tuple(options))


def referents(
    model: Inspectable, asked: Sequence[Sentence], off: Sequence[Head] = ()
) -> dict[Head, Array]:
    """The mean attention of each head from a pronoun to each of `WORDS`.

    In the encoder it is from "it"; in cross-attention from where its translation is predicted.
    """
    choices = pronouns(model, asked)
    data = choices.data
    modules = attentions(model.model)
    names = [name for name in modules if name.startswith("encoder.") or name.endswith(".cross")]
    probe = Probe(names, switched_off(model.model, off))
    with evaluation_mode(model.model):
        hidden_states(model.model, data.named, probe)
    places = [_positions(model, sentence) for sentence in asked]
    shares: dict[Head, Array] = {}
    for name in names:
        weights = array(probe.weights(name))  # [B, H, T, S]
        queries = choices.positions
        if name.startswith("encoder."):
            queries = tuple(words[WORDS.index("it")][0] for words in places)
        rows = weights[np.arange(len(asked)), :, queries]  # [B, H, S]
        # A word of several tokens gets the sum of their attention.
        received = np.mean(
            [
                [row[:, word].sum(axis=1) for word in words]
                for row, words in zip(rows, places, strict=True)
            ],
            axis=0,
        )  # [words, H]
        shares |= {(name, head): received[:, head] for head in range(weights.shape[1])}
    return shares


def _positions(model: Inspectable, sentence: Sentence) -> list[list[int]]:
    """The positions of the tokens of each of `WORDS`."""
    # Of two subjects, the main clause's comes first: reversed, it is the one that stays.
    links = {link.kind: link for link in reversed(sentence.links)}
    nouns = {links["subject-verb"].start, links["verb-object"].end}
    referent = links["pronoun-referent"].end
    (other,) = nouns - {referent}
    words = word_positions(model, sentence.source)
    # The adjective ends the sentence.
    return [words[i] for i in (referent, other, links["pronoun-referent"].start, max(words))]


def pronoun_circuit(
    model: Inspectable, count: int = 300, near: float = 0.55, keep: float = 0.9
) -> Circuit:
    """Chosen on `count` sentences of the valid split, and measured on as many of the test split.

    A model that does not resolve "it" is right half of the time; of 300 such guesses, 55 % or fewer
    are right in 19 of 20 cases.
    """
    asked, rest = _sample(model, "valid", count)
    selected = circuit(model, pronouns(model, asked), rest, near=near, keep=keep)
    off = selected.heads
    asked, rest = _sample(model, "test", count)
    choices = pronouns(model, asked)
    ablated_accuracy = float(chosen_right(model, choices, off).mean())
    ablated_rest = float(right(model, rest, off).mean())
    # The reader attends most to the referent rather than to the other noun, with all heads on.
    attended = referents(model, asked)
    reader = max(attended, key=lambda head: attended[head][0] - attended[head][1])
    return replace(
        selected,
        accuracy=float(chosen_right(model, choices).mean()),
        ablated_accuracy=ablated_accuracy,
        rest_accuracy=float(right(model, rest).mean()),
        ablated_rest_accuracy=ablated_rest,
        meets_bounds=selected.meets_bounds and ablated_accuracy <= near and ablated_rest >= keep,
        reader=reader,
        looks=(float(attended[reader][0]), float(referents(model, asked, off)[reader][0])),
    )


def _sample(model: Inspectable, split: str, count: int) -> tuple[list[Sentence], LabelledBatch]:
    """Sentences of a split with a pronoun to resolve, and a batch of others."""
    others = list(islice((s for s in sentences(split) if s.triple is None), count))
    data = batch(model, [s.source for s in others], [s.target for s in others])
    return list(islice(sentences(split, pronouns=True), count)), data


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else DEMO
    result = pronoun_circuit(regard.load(folder, device="cpu"))
    print(*result.lines(), sep="\n", file=sys.stderr)
    print(json.dumps(result.to_dict()))
