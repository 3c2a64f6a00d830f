"""Diseases and healthy runs of real data, written by someone who had not read the doctor's checks.

What is right was written down before anything was run: names of findings, any of which names the
cause first. Where the doctor had no name when this was written, the one that is wanted stands in
WANTED with the words that a person needs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import doctor_real_data as real
import numpy as np
from doctor_cases import Case, Sick
from doctor_real_data import Pair, Spoil
from torch import Tensor

from regard.extend import CausalLM
from regard.training.objectives.classification import TextClassification

WANTED = {
    "majority_only": "it always answers the most frequent class, and the classes are very unequal",
    "cut_off_inputs": "what decides stands behind the part of the inputs that is kept",
    "dropped_examples": "nearly all examples are dropped as too long",
}


class Negated(TextClassification):
    """The loss is maximized; the validation's is the usual one."""

    def head_loss(self, logits: Tensor, tensors: Mapping[str, Tensor]) -> Any:
        loss, *others = super().head_loss(logits, tensors)
        return (-loss, *others)


class Detached(CausalLM):
    """Only the head learns."""

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        hidden, _ = self.model(tensors["tokens"])
        logits = self.model.head(hidden.detach()).float()
        labels = tensors["labels"].flatten()
        nll = -logits.flatten(0, 1).log_softmax(-1).gather(1, labels.clamp_min(0)[:, None])[:, 0]
        nll = nll[labels >= 0].sum()
        return nll, nll.detach()


# --- what spoils the examples ---------------------------------------------------------------------


def in_place(change: Callable[[list[Pair], random.Random], list[Pair]], *which: str) -> Spoil:
    """A change of the training pairs, of those that validate, or of both."""

    def spoil(train: list[Pair], valid: list[Pair], rng: random.Random) -> None:
        for name, split in (("train", train), ("valid", valid)):
            if name in which:
                split[:] = change(split, rng)

    return spoil


def repeat_lower(train: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    valid[:] = [(source.lower(), target.lower()) for source, target in rng.sample(train, 300)]


def other_targets(train: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    sources = [source for source, _ in rng.sample(train, 300)]
    valid[:] = [(source, target) for source, (_, target) in zip(sources, valid, strict=True)]


def a_word_less(train: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    def shorter(text: str) -> str:
        words = text.split()
        words.pop(rng.randrange(len(words)))
        return " ".join(words)

    valid[:] = [(shorter(source), target) for source, target in rng.sample(train, 300)]


def untranslated(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    return [(s, s) if rng.random() < 0.5 else (s, t) for s, t in pairs]


def all_untranslated(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    return [(s, s) for s, _ in pairs]


def shuffled_words(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    return [(" ".join(rng.sample(s.split(), len(s.split()))), t) for s, t in pairs]


def mojibake(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    return [(s, t.encode().decode("latin-1").replace("\x85", "?")) for s, t in pairs]


def few_variants(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    """Sixty sentences, each some fifty times with other capitals and punctuation."""
    few = pairs[:60]
    ends = ["", ".", "!", " .", "...", ";"]
    style = (str.lower, str.upper, str.title, str)
    return [
        (rng.choice(style)(s.rstrip(".")) + rng.choice(ends), t) for s, t in few for _ in range(50)
    ]


def boilerplate(text: str, letters: int = 400) -> str:
    """A header of a licence before every hundred letters of text."""
    header = (
        "\nPERMISSION IS HEREBY GRANTED, FREE OF CHARGE, TO ANY PERSON OBTAINING A COPY OF THIS "
        "TEXT, TO USE, COPY, MODIFY, MERGE, PUBLISH AND DISTRIBUTE IT, SUBJECT TO THE FOLLOWING "
        "CONDITIONS: THE ABOVE NOTICE SHALL BE INCLUDED IN ALL COPIES OR PORTIONS OF THE TEXT. THE "
        "TEXT IS PROVIDED AS IS, WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING\n"
    )[:letters]
    return "".join(header + text[i : i + 100] for i in range(0, len(text), 100))


def long_header(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    header = "this review was written by a visitor of our site and shows his opinion and not ours "
    return [(header * 4 + text, label) for text, label in pairs]


def filled_front(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    """Sixty words drawn from a list, then the review: its end decides, and is cut off."""
    words = [
        "the",
        "a",
        "film",
        "movie",
        "of",
        "in",
        "and",
        "with",
        "some",
        "that",
        "story",
        "actor",
        "scene",
        "it",
        "on",
        "one",
    ]
    return [(" ".join(rng.choices(words, k=60)) + " " + text, y) for text, y in pairs]


def leak_label(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    return [(f"{text} rated{label}", label) for text, label in pairs]


def rare_class(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    return [(x, y) for x, y in pairs if y == "1" or rng.random() < 0.02]


def by_label(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    return sorted(pairs, key=lambda pair: pair[1])


def several_answers(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    """Each word five times, with the sounds of another word four times."""
    few = pairs[:1000]
    return [(s, rng.choice(few)[1] if i else t) for s, t in few for i in range(5)]


def thousandfold(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    return [(x, str(1000 * float(y))) for x, y in pairs]


def french_half(train: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    """Validation has French targets, training German ones."""
    valid[:] = real.captions("en", "fr")[1]


def tags_one_later(train: list[Any], valid: list[Any], rng: random.Random) -> None:
    train[:] = [(tokens, tags[-7:] + tags[:-7]) for tokens, tags in train]


def tags_of_another(train: list[Any], valid: list[Any], rng: random.Random) -> None:
    for split in (train, valid):
        shuffled = [rng.sample(tags, len(tags)) for _, tags in split]
        split[:] = [(tokens, tags) for (tokens, _), tags in zip(split, shuffled, strict=True)]


def hours_shuffled(table: list[list[str]], rng: random.Random) -> None:
    rows = [row[1:] for row in table[1:]]
    rng.shuffle(rows)
    for row, values in zip(table[1:], rows, strict=True):
        row[1:] = values


def topics_shuffled(nodes: list[list[str]], edges: list[list[str]], rng: random.Random) -> None:
    topics = [node[1] for node in nodes]
    rng.shuffle(topics)
    for node, topic in zip(nodes, topics, strict=True):
        node[1] = topic


def topic_is_a_word(nodes: list[list[str]], edges: list[list[str]], rng: random.Random) -> None:
    for node in nodes:
        node[3] = f"{node[3]} {1433 + int(node[1])}".strip()


# --- runs -----------------------------------------------------------------------------------------


def german(
    spoil: Spoil | None = None, sides: tuple[str, str] = ("de", "en"), **changes: Any
) -> Any:
    settings = {"learning_rate": 3e-3, **changes}
    return lambda folder, rng: real.translate(folder, real.captions(*sides), rng, spoil, **settings)


def sounds_of_words(spoil: Spoil | None = None, **changes: Any) -> Any:
    settings = {"tokenizer": "words", "joint": False, "learning_rate": 3e-3, **changes}
    return lambda folder, rng: real.translate(
        folder, real.words_to_sounds(rng), rng, spoil, **settings
    )


def commands(spoil: Spoil | None = None, **changes: Any) -> Any:
    settings = {"tokenizer": "words", "joint": False, "learning_rate": 3e-3, **changes}
    return lambda folder, rng: real.translate(folder, real.scan(rng), rng, spoil, **settings)


def sentiment(spoil: Spoil | None = None, **changes: Any) -> Any:
    return lambda folder, rng: real.classify(folder, real.reviews(), rng, spoil, **changes)


def enzyme(spoil: Spoil | None = None, **changes: Any) -> Any:
    settings = {"objective": "regress", "tokenizer": "words", "context": 100, **changes}
    return lambda folder, rng: real.classify(folder, real.fitness(rng), rng, spoil, **settings)


def letters(change: Callable[[str], str] = str, valid: str | None = None, **changes: Any) -> Any:
    def make(folder: Path, rng: random.Random) -> Sick:
        text = real.shakespeare()
        held_out = change(text[-30_000:]) if valid is None else valid
        settings = {"learning_rate": 3e-3, **changes}
        return real.language(folder, change(text[:300_000]), held_out, **settings)

    return make


def structure(spoil: Spoil | None = None, **changes: Any) -> Any:
    settings = {"learning_rate": 3e-3, **changes}
    return lambda folder, rng: real.tag(folder, rng, spoil, **settings)


def pictures(spoil: Any = None, **changes: Any) -> Any:
    return lambda folder, rng: real.images(folder, rng, spoil, **changes)


def spoken(spoil: Any = None, **changes: Any) -> Any:
    settings = {"learning_rate": 2e-3, **changes}
    return lambda folder, rng: real.digits(folder, rng, spoil, **settings)


def hours(spoil: Any = None, file: str = "ETTh1", **changes: Any) -> Any:
    return lambda folder, rng: real.forecast(folder, file, spoil, rng, **changes)


def papers(spoil: Any = None, **changes: Any) -> Any:
    return lambda folder, rng: real.graph(folder, spoil, rng, **changes)


def captions_only(side: str, objective: str, model: str, **changes: Any) -> Any:
    def make(folder: Path, rng: random.Random) -> Sick:
        train, valid = (
            "".join(line + "\n" for line in real.lines(f"multi30k/{split}.{side}.gz")[:count])
            for split, count in (("train", 5000), ("val", 300))
        )
        settings = {
            "objective": objective, "model": model, "tokenizer": "bpe", "vocabulary": 1500,
            "learning_rate": 3e-3, **changes,
        }  # fmt: skip
        return real.language(folder, train, valid, **settings)

    return make


def frozen(folder: Path, rng: random.Random) -> Sick:
    """A pretrained encoder of captions, all of whose blocks are kept as they are."""
    (folder / "base").mkdir()
    base = captions_only("en", "masked", "bert:tiny", steps=60)(folder / "base", rng)
    same = dict.fromkeys(("model", "vocabulary", "d_model", "d_ff", "heads", "layers", "dropout"))
    changes = {"base": str(base.run), "layer_decay": 1e-4, "learning_rate": 1e-4, **same}
    return real.classify(folder, real.reviews(), rng, None, **changes)


def case(name: str, planted: str, make: Any) -> Case:
    return Case(name, tuple(planted.split()), make)


OUT = "setting_out_of_range"
SICK = [
    # data
    case("valid repeats train in lower case", "test_in_train", german(repeat_lower)),
    case("valid repeats train, a word less", "test_in_train", german(a_word_less)),
    case(
        "valid: sources of train, other targets",
        "test_in_train misaligned_sides labels_unrelated conflicting_labels split_mismatch",
        german(other_targets),
    ),
    case("half untranslated", "untranslated_lines", german(in_place(untranslated, "train"))),
    case(
        "validation untranslated",
        "untranslated_lines split_mismatch",
        german(in_place(all_untranslated, "valid")),
    ),
    case("words shuffled in training", "split_mismatch", german(in_place(shuffled_words, "train"))),
    case(
        "mojibake in training",
        "split_mismatch unknown_tokens",
        german(in_place(mojibake, "train"), ("en", "fr")),
    ),
    case("sixty sentences in disguise", "duplicate_examples", german(in_place(few_variants, "train"))),
    case("valid in another language", "split_mismatch", german(french_half, ("en", "de"))),
    case("most lines too long", "dropped_examples", german(max_length=9)),
    case("licence in every window", "duplicate_examples identical_inputs", letters(boilerplate)),
    case(
        "valid is German",
        "split_mismatch unknown_tokens",
        letters(valid="\n".join(real.lines("multi30k/val.de.gz")[:400])),
    ),
    case(
        "header fills the context",
        "identical_inputs",
        sentiment(in_place(long_header, "train", "valid")),
    ),
    case(
        "what decides is cut off",
        "cut_off_inputs",
        sentiment(in_place(filled_front, "train", "valid"), context=40),
    ),
    case("label in the text", "answers_in_input", sentiment(in_place(leak_label, "train", "valid"))),
    case(
        "label in the text of training",
        "answers_in_input split_mismatch",
        sentiment(in_place(leak_label, "train")),
    ),
    case("a class of two per cent", "majority_only", sentiment(in_place(rare_class, "train"))),
    case("five answers a word", "conflicting_labels", sounds_of_words(in_place(several_answers, "train"))),
    case(
        "validation in other units",
        "label_scale split_mismatch",
        enzyme(in_place(thousandfold, "valid")),
    ),
    case("tags seven residues late", "misaligned_sides labels_unrelated", structure(tags_one_later)),
    case("tags shuffled in each protein", "labels_unrelated", structure(tags_of_another)),
    case("hours shuffled", "labels_unrelated misaligned_sides", hours(hours_shuffled)),
    case("topics shuffled", "labels_unrelated", papers(topics_shuffled)),
    case("topic is a word", "answers_in_input", papers(topic_is_a_word)),
    case("black pictures", "identical_inputs", pictures(lambda x, _: np.zeros_like(x))),
    case("silent recordings", "identical_inputs", spoken(np.zeros_like)),
    case(
        "class painted into a corner",
        "answers_in_input",
        pictures(lambda x, y: np.where(np.indices(x.shape)[:2].max(0)[..., :] < 4, 25 * y, x)
                 .astype(np.uint8)),
    ),
    # settings
    case("attention dropout .97", f"{OUT} dropout_too_high", letters(attention_dropout=0.97)),
    case("label smoothing .95", OUT, sounds_of_words(label_smoothing=0.95)),
    case("loss of the wrong sign", "wrong_sign", sentiment(objective_class=Negated)),
    case("hidden states detached", "no_gradient unmoved_weights", letters(objective_class=Detached)),
    case("clip at 1e-7", OUT, letters(max_grad_norm=1e-7, adam_eps=1e-8)),
    case("weight decay 10", f"{OUT} weight_decay_too_high", sentiment(weight_decay=10.0)),
    case("batch of one review", OUT, sentiment(batch_tokens=48)),
    case("lower layers do not move", f"{OUT} unmoved_weights rate_too_low", frozen),
    case("momentum .9999", OUT, pictures(betas=[0.9999, 0.999])),
    case("second moment forgets", OUT, commands(betas=[0.9, 0.05])),
    case("drop path .95", f"{OUT} dropout_too_high", pictures(drop_path=0.95)),
    case("input dropout .99", f"{OUT} dropout_too_high", papers(input_dropout=0.99)),
    case("masks 95 %", OUT, captions_only("en", "masked", "bert:tiny", mask_ratio=0.95)),
    case("R-Drop 1000", OUT, german(r_drop=1000.0)),
    case("noise of -40 dB", OUT, spoken(noise_snr=-40.0)),
    case("forty words known", "unknown_tokens", german(tokenizer="words", vocabulary=40)),
    case("LSTM at a rate of 3", "rate_too_high diverging_loss exploding_gradients", commands(
        model="lstm:tiny", heads=None, d_ff=None, learning_rate=3.0, max_grad_norm=0.0)),
    case("forecast at 1e-8", "rate_too_low", hours(learning_rate=1e-8)),
    case("no positions, sounds of words", "order_unseen", sounds_of_words(position="none", steps=150)),
    case("no positions, proteins", "order_unseen", structure(position="none")),
    case("start of deviation 3", "bad_initialization", sentiment(init="normal:3.0")),
]  # fmt: skip


def reversing(folder: Path, rng: random.Random) -> Sick:
    settings = {"objective": "translate", "generated": "reversing:5:12", "builtin_lines": 6000,
                "test_lines": 300, "tokenizer": "words", "vocabulary": 100, "steps": 150,
                "model": "transformer:tiny", "learning_rate": 3e-3, "position": "none", "beam": 1}  # fmt: skip
    return real.start(folder, settings, {})


SICK.append(case("no positions, reversing", "order_unseen", reversing))

# Training prevents these: every tenth example validates, wherever it stands, and an average that
# had no time is not exported. Nothing is to be found then.
HEALTHY = [
    case("sorted by label, the end validates", "", sentiment(
        in_place(by_label, "train"), valid_text=None)),
    case("average that never moved", "", sentiment(final_weights="ema:0.99999")),
    case("de to en", "", german(steps=120)),
    case("de to fr", "", german(sides=("de", "fr"), steps=120, seed=2)),
    case("en to fr, T5", "", german(sides=("en", "fr"), model="t5:tiny", steps=120)),
    case("en to de, LSTM with attention", "", german(
        sides=("en", "de"), model="luong:tiny", heads=None, d_ff=None, steps=120)),
    case("letters of Shakespeare", "", letters(steps=120)),
    case("pieces of Shakespeare, LLaMA", "", letters(
        model="llama:tiny", tokenizer="bpe", vocabulary=1000, steps=120)),
    case("letters of Shakespeare, LSTM", "", letters(
        model="lstm-lm:tiny", heads=None, d_ff=None, steps=120)),
    case("French captions, GPT-2", "", captions_only("fr", "causal", "gpt2:tiny", steps=120)),
    case("English captions, BERT", "", captions_only("en", "masked", "bert:tiny", steps=120)),
    case("German captions, T5 spans", "", captions_only("de", "span", "t5:tiny", steps=120)),
    case("reviews", "", sentiment(steps=120)),
    case("reviews, words, one layer", "", sentiment(
        tokenizer="words", vocabulary=6000, layers=1, seed=3, steps=120)),
    case("sounds of words", "", sounds_of_words(steps=120)),
    case("commands to actions", "", commands(steps=120)),
    case("structure of proteins", "", structure(steps=120)),
    case("fitness of an enzyme", "", enzyme(steps=120)),
    case("pictures", "", pictures(steps=120)),
    case("spoken digits", "", spoken(steps=120, validate_every=30)),
    case("ETTh1", "", hours()),
    case("ETTh2, a linear model", "", hours(file="ETTh2", model="dlinear:tiny", dropout=None)),
    case("papers", "", papers()),
]  # fmt: skip
