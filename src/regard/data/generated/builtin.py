"""The built-in parallel corpus: English and German sentences from one synchronous grammar.

Every choice is made once and said in both languages, so each English sentence has exactly one
translation. A pattern is a small function that says its English words into a `Draft` and returns
the German; `PATTERNS` lists them with their weights. Stable hashes of the text decide the splits,
so they are disjoint whatever the seed; see `sentences`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from typing import IO

from regard.data.generated import lexicon
from regard.data.generated.algorithmic_tasks import digest, write_examples
from regard.data.generated.grammar import (
    AUXILIARIES,
    BE,
    OWNED,
    PLAIN,
    POINTED,
    RELATIVES,
    Antecedent,
    Clause,
    Draft,
    Phrase,
    ambiguous,
    clause,
    complement,
    contract,
    english_verb,
    german_verb,
    join,
    noun_phrase,
    nouns,
    predicate,
    verbs,
)
from regard.data.generated.lexicon import ADJECTIVES, FRAMES, VERBS, Frame, Noun, Verb
from regard.system.errors import DataError, SettingError, did_you_mean

SPLITS = ("train", "valid", "test")
PRONOUN_SHARE = 0.22  # of sentences with a pronoun to resolve
HELD_PERCENT = 4  # of the sentences without a pronoun, for valid and for test each
TRIES = 200_000  # for one new sentence, before the stream counts as exhausted


@dataclass(frozen=True, slots=True)
class Link:
    """One edge of the parse; `start` and `end` index `source.split()`.

    Verbs are linked by their main word.
    """

    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Sentence:
    """An English sentence and its German translation, with the parse of the English."""

    source: str  # English
    target: str  # German
    links: tuple[Link, ...] = ()
    triple: tuple[str, str, str] | None = None  # of a pronoun sentence: subject, object, adjective
    referent: str | None = None  # what its "it" means: "subject" or "object"


# --- patterns ---

TENSES = (*PLAIN * 6, "perfect", "perfect", "future", "future", "can", "must", "should", "want")
DENIED = (*PLAIN * 2, "future", "can", "could")  # without "must not", which is not "muss nicht"
ASKED = (*PLAIN * 2, "perfect", "future", "can", "must", "should")
ACTIONS = verbs("stay join alone go put acc for dat give")
TRANSITIVE = verbs("acc for dat")
# With an object, so that German sets their infinitive off by a comma.
EXTENDED = verbs("put acc for dat give", "person")
PASSIVES = tuple(verb for verb in verbs("acc for", "person") if verb.particle not in ("for", "at"))
ADVERBS = {
    tense: tuple(
        (english, german) for english, german, tenses in lexicon.ADVERBS if tense in tenses.split()
    )
    for tense in (*PLAIN, "perfect", *AUXILIARIES)
}


def statement(draft: Draft, pool: Sequence[Verb] = ACTIONS) -> str:
    """The old dog sees a small cat."""
    tense = draft.pick(TENSES)
    adverb = ("", "")
    if draft.chance() < 0.25:
        adverb = draft.pick(ADVERBS[tense])
    return clause(draft, draft.pick(pool), tense, adverb=adverb).main()


def description(draft: Draft) -> str:
    """The house is not very old."""
    return clause(draft, BE, draft.pick(PLAIN), negated=draft.chance() < 0.2).main()


def denial(draft: Draft) -> str:
    """The man does not read the book."""
    return clause(draft, draft.pick(ACTIONS), draft.pick(DENIED), negated=True).main()


def fronted(draft: Draft) -> str:
    """Today the man reads a book."""
    tense = draft.pick(TENSES)
    english, german = draft.pick(ADVERBS[tense])
    draft.say(english)
    return clause(draft, draft.pick(ACTIONS), tense).main(german)


def fronted_place(draft: Draft) -> str:
    """In the garden a bird sleeps."""
    verb = draft.pick(verbs("stay join"))
    place = draft.prepositional(lexicon.PLACES[verb.frame])
    return clause(draft, verb, draft.pick(TENSES), gap=True).main(place)


def linked(draft: Draft) -> tuple[str, str, str, str]:
    """A conjunction in both languages, the tense of the main clause and that of the other."""
    english, german, tenses = draft.pick(lexicon.CONJUNCTIONS)
    tense = draft.pick(tenses.split())
    if english == "when":
        # "als" is once in the past, "wenn" the present and what repeats.
        german = "als" if tense == "past" else "wenn"
    if tense == "present" and english in ("because", "although"):
        return english, german, tense, draft.pick(("present", "perfect", "can", "must", "want"))
    return english, german, tense, tense


def subordinate(draft: Draft, english: str, german: str, tense: str) -> str:
    """Say a subordinate clause and return its German, verb last."""
    draft.say(english)
    still = tense in PLAIN and english in ("because", "although", "that") and draft.chance() < 0.3
    verb = BE if still else draft.pick(ACTIONS)
    deniable = tense in DENIED and english not in ("while", "before")
    return clause(draft, verb, tense, negated=deniable and draft.chance() < 0.15).last(german)


def reason(draft: Draft) -> str:
    """The cat sleeps because the dog is not hungry."""
    english, german, tense, other = linked(draft)
    main = clause(draft, draft.pick(ACTIONS), tense).main()
    return f"{main}, {subordinate(draft, english, german, other)}"


def condition(draft: Draft) -> str:
    """When the man came back, the child slept."""
    english, german, tense, other = linked(draft)
    front = subordinate(draft, english, german, other)
    draft.words[-1] += ","  # after a clause in front, English has a comma too
    return clause(draft, draft.pick(ACTIONS), tense).main(f"{front},")


def report(draft: Draft) -> str:
    """The teacher says that the child wants to buy a ball."""
    tense = draft.pick(PLAIN)
    main = clause(draft, draft.pick(verbs("that")), tense).main()
    reported = draft.pick(TENSES) if tense == "present" else tense
    return f"{main}, {subordinate(draft, 'that', 'dass', reported)}"


def infinitive(draft: Draft, english: str, german: str = "") -> str:
    """Say an infinitive with its complement and return the German one."""
    verb = draft.pick(EXTENDED)
    draft.say(english)
    draft.verb = draft.say(verb.base)
    draft.say(verb.particle)
    end = f"zu {verb.infinitive}"
    if verb.prefix:  # einzuschlafen
        end = f"{verb.prefix}zu{verb.infinitive}"
    return join(german, *complement(draft, verb, "person"), end)


def attempt(draft: Draft) -> str:
    """The woman tries to open the door."""
    main = clause(draft, draft.pick(verbs("to")), draft.pick(PLAIN)).main()
    return f"{main}, {infinitive(draft, 'to')}"


def purpose(draft: Draft) -> str:
    """The man goes to the station in order to help the woman."""
    verb = draft.pick(verbs("go alone", "person"))
    main = clause(draft, verb, draft.pick(PLAIN), subject=draft.phrase("person")).main()
    return f"{main}, {infinitive(draft, 'in order to', 'um')}"


def relative(draft: Draft, phrase: Phrase, head: int, main: str) -> str:
    """Say a relative clause whose subject is the phrase at `head`; `main` is the outer tense."""
    draft.link("relative-noun", draft.say("who" if phrase.sort == "person" else "that"), head)
    verb = draft.pick(verbs("stay go put acc for dat give", phrase.sort))
    tense = "past" if main == "past" else draft.pick(("present", "past", "perfect"))
    if phrase.plural and ambiguous(verb):
        tense = "perfect"  # "who put" would not say whether it is present or past
    pronoun = RELATIVES["nom"][phrase.gender]
    return clause(draft, verb, tense, subject=Antecedent(phrase, head)).last(pronoun)


def subject_relative(draft: Draft) -> str:
    """The man who bought the car is happy."""
    still = draft.chance() < 0.5  # a state, not an action
    tense = draft.pick(PLAIN)
    kind = draft.pick(("person", "animal"))
    phrase = draft.phrase(kind, (*POINTED, "a"), described=0.0 if still else 0.3)
    head = draft.put(phrase)
    front = f"{phrase.german['nom']}, {relative(draft, phrase, head, tense)},"
    verb = BE if still else draft.pick(verbs("stay join alone go dat", phrase.sort))
    return clause(draft, verb, tense, subject=Antecedent(phrase, head)).main(front)


def object_relative(draft: Draft) -> str:
    """The car that the man bought is red."""
    verb = draft.pick(TRANSITIVE)
    phrase = draft.phrase(verb.objects, POINTED, described=0.0)
    head = draft.put(phrase)
    draft.link("relative-noun", draft.say("whom" if phrase.sort == "person" else "that"), head)
    lasting = verb.base != "eat"  # what has been eaten is no longer anything
    tense = draft.pick(("past", "past", "perfect")) if lasting else "past"
    inner = clause(draft, verb, tense, gap=True)
    opening = RELATIVES["dat" if verb.frame == "dat" else "acc"][phrase.gender]
    front = f"{phrase.german['nom']}, {inner.last(opening)},"
    state = "present" if tense == "perfect" or (lasting and draft.chance() < 0.5) else "past"
    return clause(draft, BE, state, subject=Antecedent(phrase, head)).main(front)


def trailing_relative(draft: Draft) -> str:
    """The child sees the dog that chased the cat."""
    verb = draft.pick([verb for verb in TRANSITIVE if "person" in verb.objects])
    kinds = "person animal" if "animal" in verb.objects else "person"
    phrase = draft.phrase(kinds, POINTED)
    draft.object = phrase
    tense = draft.pick(TENSES)
    main = clause(draft, verb, tense).main()
    return f"{main}, {relative(draft, phrase, len(draft.words) - 1, tense)}"


def counting(draft: Draft) -> str:
    """The farmer has twenty-three cows."""
    if draft.chance() < 0.4:
        verb = draft.pick(ACTIONS)
        tense = "future" if ambiguous(verb) else draft.pick(TENSES)
        return clause(draft, verb, tense, subject=draft.counted(verb.subjects)).main()
    verb = draft.pick(verbs("acc for dat give own"))
    draft.object = draft.counted(verb.objects)
    return clause(draft, verb, draft.pick(PLAIN)).main()


def passive(draft: Draft) -> str:
    """The letter was written by the teacher."""
    verb = draft.pick(PASSIVES)
    tense = draft.pick(PLAIN)
    phrase = draft.phrase(verb.objects)
    head = draft.put(phrase)
    draft.say(english_verb(BE, tense, phrase.plural, False)[1])
    draft.link("subject-verb", head, draft.say(verb.participle))
    draft.say(join(verb.particle, "by"))
    agent = draft.phrase(verb.subjects)
    draft.put(agent)
    finite = {"present": ("wird", "werden"), "past": ("wurde", "wurden")}[tense][phrase.plural]
    return join(
        phrase.german["nom"], finite, contract("von", agent.german["dat"]), verb.german_participle
    )


def question(draft: Draft) -> str:
    """Why does the man read the book?"""
    draft.mark = "?"
    why = draft.chance() < 0.4
    if why:
        draft.say("why")
    asked = clause(draft, draft.pick(ACTIONS), draft.pick(ASKED), asked=True)
    if why:
        return asked.main("warum")
    return asked.asked()


def coordination(draft: Draft) -> str:
    """The man reads a book, but the woman does not sleep."""
    tense = draft.pick(PLAIN)
    contrast = draft.chance() < 0.4
    first = clause(draft, draft.pick(ACTIONS), tense).main()
    if contrast:
        draft.words[-1] += ","
        draft.say("but")
        conjunction = ", aber"
    else:
        draft.say("and")
        conjunction = " und"
    verb = draft.pick(ACTIONS)
    second = clause(draft, verb, tense, negated=contrast and draft.chance() < 0.5).main()
    return f"{first}{conjunction} {second}"


PATTERNS: tuple[tuple[Callable[[Draft], str], int], ...] = (
    (statement, 12),
    (partial(statement, pool=verbs("give")), 8),
    (partial(statement, pool=verbs("go put stay join")), 8),
    (partial(statement, pool=tuple(verb for verb in ACTIONS if verb.prefix)), 8),
    (description, 3), (denial, 7), (question, 5), (coordination, 3),
    (fronted, 9), (fronted_place, 3),
    (reason, 8), (condition, 5), (report, 6),
    (attempt, 4), (purpose, 3), (passive, 4),
    (subject_relative, 5), (object_relative, 4), (trailing_relative, 4),
    (counting, 11),
)  # fmt: skip
# Each pattern as often as its weight, to pick from evenly.
WEIGHTED = tuple(pattern for pattern, weight in PATTERNS for _ in range(weight))
# Train has more of what is rare and hard, so that a short run learns it too: verbs in front, things
# as subjects, "wenn" and "als", the dative of relatives. Valid and test keep the proportions above.
_MORE_IN_TRAIN = ((question, 15), (passive, 10), (condition, 4), (object_relative, 3))
TRAIN_WEIGHTED = (
    *WEIGHTED,
    *(pattern for pattern, weight in _MORE_IN_TRAIN for _ in range(weight)),
)

# --- pronoun sentences ---

IT = {"m": "er", "f": "sie", "n": "es"}


def held_out(subject: str, other: str, adjective: str) -> bool:
    """Whether train must not see the triple: one in ten is kept for valid and test."""
    return digest(f"{subject}|{other}|{adjective}") % 10 == 0


@cache
def choices(
    frame: Frame, referent: str, for_evaluation: bool
) -> tuple[tuple[Noun, Noun, tuple[str, ...]], ...]:
    """The subjects and objects of a frame, with the adjectives that point to the referent.

    The two differ in gender, so that German has to resolve the pronoun.
    """
    adjectives = frame.subject_adjectives if referent == "subject" else frame.object_adjectives
    triples = []
    for subject in nouns(frame.subjects):
        for other in nouns(frame.objects):
            fit = tuple(
                word
                for word in adjectives
                if held_out(subject.english, other.english, word) == for_evaluation
            )
            if fit and subject.gender != other.gender:
                triples.append((subject, other, fit))
    return tuple(triples)


def neutral(draft: Draft, noun: Noun, determiners: Sequence[str]) -> Phrase:
    """The noun with a determiner and perhaps an adjective.

    They tell nothing about the pronoun to come.
    """
    determiner = draft.pick(determiners)
    if determiner == "my" and "unowned" in noun.kinds:
        determiner = "the"
    adjective = ""
    if draft.chance() < 0.25:
        adjective = draft.pick(lexicon.NEUTRAL)
    return noun_phrase(noun, determiner, adjective)


def failure(
    draft: Draft, frame: Frame, subject: Noun, other: Noun
) -> tuple[str, str, dict[str, int]]:
    """Say what did not happen.

    Returns the German, the tense of the reason, and the positions of the two nouns.
    """
    # Of two equal ones, that for animals (fressen, not essen).
    verb = draft.pick([v for v in VERBS if v.base in frame.verbs and v.subjects != "person"])
    tense = draft.pick(PLAIN if verb.base in ("want", "fit") else (*PLAIN, "can", "could"))
    single = [pair for pair in ADVERBS[tense] if pair[0] in lexicon.ONCE]
    when = ("", "")
    if draft.chance() < 0.3:
        when = draft.pick(single)
    draft.say(when[0])
    first = neutral(draft, subject, OWNED)
    second = neutral(draft, other, POINTED)
    heads = {"subject": draft.put(first)}
    predicate(draft, verb, tense, False, heads["subject"], negated=True)
    draft.say(frame.preposition[0])
    heads["object"] = draft.put(second)
    draft.link("verb-object", draft.verb, heads["object"])
    thing = second.german["acc"]
    if frame.preposition[1]:
        middle = f"nicht {contract(frame.preposition[1], thing)}"
    else:
        middle = f"{thing} nicht"
    german = Clause(first.german["nom"], middle, *german_verb(verb, tense, False)).main(when[1])
    reason_tense = "past" if tense in ("past", "could") else "present"
    return german, reason_tense, heads


def pronoun(draft: Draft, for_evaluation: bool) -> str:
    """The animal did not cross the street because it was too tired."""
    frame = draft.pick(FRAMES)
    draft.referent = draft.pick(("subject", "object"))
    subject, other, adjectives = draft.pick(choices(frame, draft.referent, for_evaluation))
    adjective = draft.pick(adjectives)
    draft.triple = (subject.english, other.english, adjective)
    main, tense, heads = failure(draft, frame, subject, other)
    because, weil = draft.pick((("because", "weil"), ("because", "weil"), ("since", "da")))
    too, zu = draft.pick((("too", "zu"), ("too", "zu"), ("much too", "viel zu"), ("so", "so")))
    it = draft.say(f"{because} it")
    draft.link("pronoun-referent", it, heads[draft.referent])
    predicate(draft, BE, tense, False, it)
    draft.say(f"{too} {adjective}")
    referent = subject if draft.referent == "subject" else other
    er = IT[referent.gender]  # here German must know what "it" is
    return f"{main}, {weil} {er} {zu} {ADJECTIVES[adjective]} {german_verb(BE, tense, False)[0]}"


# --- streams ---


def sentences(split: str, *, seed: int = 0, pronouns: bool = False) -> Iterator[Sentence]:
    """An endless stream of different sentences of a split, the same for the same seed.

    `pronouns` asks for pronoun sentences alone. A hash of the English decides the split. Pronoun
    sentences of valid and test use only held-out triples of subject, object and adjective, which
    train never sees.
    """
    if split not in SPLITS:
        raise SettingError(
            f"there is no split {split!r} in the built-in language", did_you_mean(split, SPLITS)
        )
    chance = random.Random(f"{split} {seed} {pronouns}").random
    digests: set[int] = set()  # of the sentences so far
    return (
        _new_sentence(split, chance, pronouns or chance() < PRONOUN_SHARE, digests) for _ in count()
    )


def _new_sentence(
    split: str, chance: Callable[[], float], resolve: bool, digests: set[int]
) -> Sentence:
    """A random sentence of the split that has not come before, with a pronoun if `resolve`."""
    for _ in range(TRIES):
        draft = Draft(chance)
        if resolve:
            german = pronoun(draft, split != "train")
        else:
            german = draft.pick(TRAIN_WEIGHTED if split == "train" else WEIGHTED)(draft)
        english = " ".join(draft.words)
        # Not `capitalize`, which would put the rest in lower case.
        source = english[0].upper() + english[1:] + draft.mark
        key = digest(source)
        if key in digests or not 4 <= len(draft.words) <= 20 or not _belongs(split, key, resolve):
            continue
        digests.add(key)
        target = german[0].upper() + german[1:] + draft.mark
        links = tuple(Link(*link) for link in draft.links)
        return Sentence(source, target, links, draft.triple, draft.referent)
    most = len(digests)
    raise DataError(
        f"the built-in language has no more than about {most} such sentences "
        f"for the split {split!r}",
        f"ask for at most {most} lines",
    )


def _belongs(split: str, key: int, resolve: bool) -> bool:
    if resolve:  # its triple has already decided between train and the other two
        return split == "train" or (split == "test") == bool(key % 2)
    percentile = key % 100
    if percentile < HELD_PERCENT:
        return split == "test"
    if percentile < 2 * HELD_PERCENT:
        return split == "valid"
    return split == "train"


def write_tsv(
    out: IO[str], split: str, lines: int, *, seed: int = 0, pronouns: bool = False
) -> None:
    """Write that many lines of `source`, a tab and `target`."""
    stream = sentences(split, seed=seed, pronouns=pronouns)
    write_examples(out, ((one.source, one.target) for one in stream), lines)
