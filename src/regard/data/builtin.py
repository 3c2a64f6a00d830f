"""The built-in parallel language: a synchronous grammar that writes English and German sentences side by side.

Every choice is made once and said in both languages, so each English sentence has exactly one German one. A pattern
is a small function: it says its English words into a `Draft` and returns the German. Splits are decided by stable
hashes of the text, so they are disjoint whatever the seed; see `sentences`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple, TextIO, TypeVar

from regard.data import lexicon
from regard.data.lexicon import ADJECTIVES, FRAMES, NOUNS, NUMBERS, VERBS, Frame, Noun, Preposition, Verb
from regard.errors import DataError, SettingError, did_you_mean

SPLITS = ("train", "valid", "test")
PRONOUN_SHARE = 0.22
HELD_PERCENT = 4  # of the sentences without a pronoun, for valid and for test each
TRIES = 200_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Link:
    """One edge of the parse; `start` and `end` index `source.split()`. Verbs are linked by their main word."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Sentence:
    """An English sentence and its German translation, with the parse of the English."""

    source: str
    target: str
    links: tuple[Link, ...] = ()
    triple: tuple[str, str, str] | None = None
    referent: str | None = None


# --- noun phrases: columns are masculine, feminine, neuter, plural --------------------------------------------------


def _cases(forms: str) -> dict[str, list[str]]:
    cells = [form.replace("-", "") for form in forms.split()]
    return {"nom": cells[:4], "acc": cells[4:8], "dat": cells[8:]}


GENDERS = "mfnp"
ARTICLES = {
    "the": _cases("der die das die  den die das die  dem der dem den"),
    "this": _cases("dieser diese dieses diese  diesen diese dieses diese  diesem dieser diesem diesen"),
    "a": _cases("ein eine ein -  einen eine ein -  einem einer einem -"),
    "my": _cases("mein meine mein meine  meinen meine mein meine  meinem meiner meinem meinen"),
    "not a": _cases("kein keine kein keine  keinen keine kein keine  keinem keiner keinem keinen"),
}
WEAK = _cases("e e e en  en e e en  en en en en")  # after der and dieser
MIXED = _cases("er e es en  en e es en  en en en en")  # after ein, mein, kein
STRONG = _cases("er e es e  en e es e  em er em en")  # after a number or nothing
RELATIVES = _cases("der die das die  den die das die  dem der dem denen")
ENDINGS = {"the": WEAK, "this": WEAK, "a": MIXED, "my": MIXED, "not a": MIXED}
IT = {"m": "er", "f": "sie", "n": "es"}
DEFINITE = ("the", "the", "the", "this", "my")
DETERMINERS = ("the", "the", "the", "the", "a", "a", "a", "this", "my", "my")


class Phrase(NamedTuple):
    """A noun phrase: the English words, noun last, and the German in three cases."""

    words: tuple[str, ...]
    german: dict[str, str]
    gender: int
    sort: str
    described: bool = False

    @property
    def plural(self) -> bool:
        """Whether its verb must be plural."""
        return self.gender == 3


PRONOUNS = (
    Phrase(("he",), {"nom": "er"}, 0, "person"),
    Phrase(("she",), {"nom": "sie"}, 1, "person"),
    Phrase(("they",), {"nom": "sie"}, 3, "person"),
)


@cache
def noun_phrase(noun: Noun, determiner: str, adjective: str = "", plural: bool = False) -> Phrase:
    """The phrase in both languages; `determiner` is one of `ARTICLES`, or a number word if `plural`."""
    words = [word for word in (adjective, noun.plural if plural else noun.english) if word]
    if determiner not in ("a", "not a"):
        words.insert(0, "these" if plural and determiner == "this" else determiner)
    elif not plural:
        words.insert(0, "an" if words[0][0] in "aeiou" else "a")
    column = 3 if plural else GENDERS.index(noun.gender)
    endings = STRONG if plural and determiner == "a" else ENDINGS.get(determiner, STRONG)
    german = {}
    for case in ("nom", "acc", "dat"):
        article = NUMBERS.get(determiner) or ARTICLES[determiner][case][column]
        described = ADJECTIVES[adjective].removesuffix("e") + endings[case][column] if adjective else ""
        head = noun.german_plural if plural else noun.german if case == "nom" else noun.oblique
        if plural and case == "dat" and head[-1] not in "ns":
            head += "n"
        german[case] = _join(article, described, head)
    return Phrase(tuple(words), german, column, noun.sort, bool(adjective))


@cache
def nouns(kinds: str) -> tuple[Noun, ...]:
    """All nouns of any of the kinds, which are divided by spaces."""
    return tuple(noun for noun in NOUNS if noun.kinds.intersection(kinds.split()))


@cache
def verbs(frames: str, subject: str = "") -> tuple[Verb, ...]:
    """All verbs of any of the frames, or those of them that take a subject of this kind."""
    chosen = [verb for verb in VERBS if verb.frame in frames.split()]
    return tuple(verb for verb in chosen if not subject or subject in verb.subjects.split())


def _join(*parts: str) -> str:
    return " ".join([part for part in parts if part])


# --- verbs and clauses ----------------------------------------------------------------------------------------------

BE = verbs("be")[0]
AUXILIARIES = {  # English singular and plural, German singular and plural
    "future": ("will", "will", "wird", "werden"),
    "can": ("can", "can", "kann", "können"),
    "could": ("could", "could", "konnte", "konnten"),
    "must": ("must", "must", "muss", "müssen"),
    "should": ("should", "should", "sollte", "sollten"),
    "want": ("wants to", "want to", "will", "wollen"),
}
PLAIN = ("present", "past")
TENSES = (*PLAIN * 6, "perfect", "perfect", "future", "future", "can", "must", "should", "want")
DENIED = (*PLAIN * 2, "future", "can", "could")  # without "must not", which is not "muss nicht"
ASKED = (*PLAIN * 2, "perfect", "future", "can", "must", "should")


@cache
def english_verb(verb: Verb, tense: str, plural: bool, support: bool) -> tuple[str, str]:
    """Auxiliary and main word; `support` asks for an auxiliary, as questions and "not" do."""
    if tense == "perfect":
        return ("have" if plural else "has"), verb.participle
    if tense in AUXILIARIES:
        return AUXILIARIES[tense][plural], verb.base
    if verb is BE:
        return "", {"present": ("is", "are"), "past": ("was", "were")}[tense][plural]
    if support:
        return ("did" if tense == "past" else "do" if plural else "does"), verb.base
    return "", verb.past if tense == "past" else verb.base if plural else verb.third


@cache
def german_verb(verb: Verb, tense: str, plural: bool) -> tuple[str, str, str]:
    """The finite word, what closes a main clause, and what closes a subordinate clause."""
    if tense in PLAIN:
        if tense == "past":
            finite = verb.german_past + (("n" if verb.german_past[-1] == "e" else "en") if plural else "")
        else:
            finite = ("sind" if verb is BE else verb.infinitive) if plural else verb.german_third
        return finite, verb.prefix, verb.prefix + finite
    if tense == "perfect":
        finite = {"hat": "haben", "ist": "sind"}[verb.auxiliary] if plural else verb.auxiliary
        end = verb.german_participle
    else:
        finite, end = AUXILIARIES[tense][3 if plural else 2], verb.prefix + verb.infinitive
    return finite, end, f"{end} {finite}"


class Clause(NamedTuple):
    """The German of a clause in the pieces that its word orders arrange."""

    subject: str
    middle: str
    finite: str
    end: str
    joined: str

    def main(self, front: str = "") -> str:
        """Verb second: after the subject, or after what stands in front of it."""
        first, third = (front, self.subject) if front else (self.subject, "")
        return _join(first, self.finite, third, self.middle, self.end)

    def asked(self) -> str:
        """Verb first."""
        return _join(self.finite, self.subject, self.middle, self.end)

    def last(self, opening: str) -> str:
        """Verb last, after a conjunction or a relative pronoun."""
        return _join(opening, self.subject, self.middle, self.joined)


class Draft:
    """One sentence in the making: the English words and links so far, and the nouns already used."""

    __slots__ = ("chance", "words", "links", "used", "mark", "verb", "object", "triple", "referent")

    def __init__(self, chance: Callable[[], float]) -> None:
        self.chance = chance
        self.words: list[str] = []
        self.links: list[tuple[str, int, int]] = []
        self.used: set[Noun] = set()
        self.mark = "."
        self.verb = 0  # index of the last main verb
        self.object: Phrase | None = None  # what the next object has to be, if that is settled
        self.triple: tuple[str, str, str] | None = None
        self.referent: str | None = None

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, each equally likely."""
        return options[int(self.chance() * len(options))]

    def say(self, text: str) -> int:
        """Add English words and return the index of the last one."""
        self.words += text.split()
        return len(self.words) - 1

    def comma(self) -> None:
        """Put a comma after the last English word."""
        self.words[-1] += ","

    def link(self, kind: str, start: int, end: int) -> None:
        """Add an edge of the parse."""
        self.links.append((kind, start, end))

    def put(self, phrase: Phrase) -> int:
        """Say a noun phrase and return the index of its noun."""
        self.words += phrase.words
        head = len(self.words) - 1
        if phrase.described:
            self.links.append(("adjective-noun", head - 1, head))
        return head

    def noun(self, kinds: str) -> Noun:
        """A noun that this sentence has not used yet."""
        while (noun := self.pick(nouns(kinds))) in self.used:
            pass
        self.used.add(noun)
        return noun

    def phrase(
        self, kinds: str, *, plurals: float = 0.3, described: float = 0.4, definite: bool = False, negated: bool = False
    ) -> Phrase:
        """A noun phrase of some kind with its determiner, adjective and number chosen at random."""
        noun = self.noun(kinds)
        plural = bool(noun.plural) and self.chance() < plurals
        determiner = self.pick(DEFINITE if definite else DETERMINERS)
        if (determiner == "a" and not noun.plural) or (determiner == "my" and "unowned" in noun.kinds):
            determiner = "the"
        elif determiner == "a" and negated:
            determiner = "not a"
        adjective = self.pick(lexicon.ATTRIBUTES[noun.sort]) if self.chance() < described else ""
        return noun_phrase(noun, determiner, adjective, plural)

    def counted(self, kinds: str) -> Phrase:
        """A noun phrase with a number word."""
        while not (noun := self.noun(kinds)).plural:
            pass
        adjective = self.pick(lexicon.ATTRIBUTES[noun.sort]) if self.chance() < 0.3 else ""
        return noun_phrase(noun, self.pick(tuple(NUMBERS)), adjective, plural=True)

    def prepositional(self, options: Sequence[Preposition], definite: bool = False) -> str:
        """Say a prepositional phrase and return its German."""
        english, german, case, kinds = self.pick(options)
        self.say(english)
        plurals = 0.3 if kinds.startswith("person") else 0.0
        phrase = self.phrase(kinds, plurals=plurals, described=0.25, definite=definite)
        self.put(phrase)
        return contract(german, phrase.german[case])


def contract(preposition: str, phrase: str) -> str:
    """Preposition and phrase, with "in dem" and the like drawn together."""
    article, _, rest = phrase.partition(" ")
    short = lexicon.CONTRACTIONS.get(f"{preposition} {article}")
    return f"{short} {rest}" if short else f"{preposition} {phrase}"


def ambiguous(verb: Verb) -> bool:
    """Whether its plural says no tense in English ("they read"), so that German could not choose one."""
    return verb.base == verb.past


def subject_of(draft: Draft, verb: Verb) -> Phrase:
    """A random subject that the verb can take."""
    if "person" in verb.subjects and draft.chance() < 0.1:
        return draft.pick(PRONOUNS[: 2 if ambiguous(verb) else 3])
    plurals = 0.0 if ambiguous(verb) else 0.3
    return draft.phrase(verb.subjects, plurals=plurals, described=0.0 if verb is BE else 0.4)


def predicate(draft: Draft, verb: Verb, tense: str, plural: bool, subject: int, negated: bool) -> None:
    """Say the English verb of a statement."""
    auxiliary, main = english_verb(verb, tense, plural, negated)
    draft.say(auxiliary + ("not" if auxiliary == "can" else " not") if negated and auxiliary else auxiliary)
    draft.verb = draft.say(main)
    draft.link("subject-verb", subject, draft.verb)
    draft.say("not" if negated and not auxiliary else "")
    draft.say(verb.particle)


def say_object(draft: Draft, kinds: str, case: str, negated: bool) -> str:
    """Say the object and return its German."""
    phrase = draft.object or draft.phrase(kinds, negated=negated)
    draft.object = None
    draft.link("verb-object", draft.verb, draft.put(phrase))
    return phrase.german[case]


def complement(draft: Draft, verb: Verb, sort: str, negated: bool = False) -> tuple[str, str]:
    """Say what follows the verb in English; return its German, divided at the place where "nicht" stands."""
    match verb.frame:
        case "be":
            degree = draft.pick((("", ""), ("very", "sehr"), ("too", "zu")))
            adjective = draft.pick(lexicon.PREDICATES[sort])
            draft.say(_join(degree[0], adjective))
            return "", _join(degree[1], ADJECTIVES[adjective])
        case "stay" | "join":
            company = draft.prepositional(lexicon.WITH, negated) if verb.frame == "join" and draft.chance() < 0.4 else ""
            place = draft.prepositional(lexicon.PLACES[verb.frame], negated) if draft.chance() < 0.8 else ""
            return "", _join(company, place)
        case "go":
            return "", draft.prepositional(lexicon.DIRECTIONS, negated)
        case "put":
            thing = say_object(draft, verb.objects, "acc", negated)
            return thing, draft.prepositional(lexicon.TARGETS, negated)
        case "give":
            thing = say_object(draft, verb.objects, "acc", negated)
            draft.say("to")
            recipient = draft.phrase("person", definite=negated)
            draft.put(recipient)
            return f"{recipient.german['dat']} {thing}", ""
        case "for":
            thing = say_object(draft, verb.objects, "acc", negated)
            return thing, "" if negated or draft.chance() < 0.7 else draft.prepositional(lexicon.FOR)
        case "acc" | "dat" | "own":
            return say_object(draft, verb.objects, "dat" if verb.frame == "dat" else "acc", negated), ""
    return "", ""


def clause(
    draft: Draft,
    verb: Verb,
    tense: str,
    *,
    subject: Phrase | None = None,
    said: int | None = None,  # where the subject stands if it has been said already
    negated: bool = False,
    asked: bool = False,
    adverb: tuple[str, str] = ("", ""),
    gap: bool = False,  # leave the object out
) -> Clause:
    """Say an English clause and return its German."""
    subject = subject or subject_of(draft, verb)
    if asked:
        draft.say(english_verb(verb, tense, subject.plural, True)[0])
    at = draft.put(subject) if said is None else said
    if asked:
        draft.verb = draft.say(english_verb(verb, tense, subject.plural, True)[1])
        draft.link("subject-verb", at, draft.verb)
        draft.say(verb.particle)
    else:
        predicate(draft, verb, tense, subject.plural, at, negated)
    objects, rest = ("", "") if gap else complement(draft, verb, subject.sort, negated)
    draft.say(adverb[0])
    nicht = "nicht" if negated and "kein" not in objects else ""
    middle = _join(adverb[1], objects, nicht, rest)
    return Clause(subject.german["nom"] if said is None else "", middle, *german_verb(verb, tense, subject.plural))


# --- patterns -------------------------------------------------------------------------------------------------------

ACTIONS = verbs("stay join alone go put acc for dat give")
EXTENDED = verbs("go put acc for dat give", "person")  # infinitives of these are always set off by a comma
TRANSITIVE = verbs("acc for dat")
SEPARABLE = tuple(verb for verb in ACTIONS if verb.prefix)


def adverb_for(draft: Draft, tense: str) -> tuple[str, str]:
    """An adverb of time that goes with the tense."""
    return draft.pick(ADVERBS_FOR[tense])


ADVERBS_FOR = {
    tense: tuple((english, german) for english, german, tenses in lexicon.ADVERBS if tense in tenses.split())
    for tense in (*PLAIN, "perfect", *AUXILIARIES)
}


def statement(draft: Draft, pool: Sequence[Verb] = ACTIONS) -> str:
    """The old dog sees a small cat."""
    tense = draft.pick(TENSES)
    adverb = adverb_for(draft, tense) if draft.chance() < 0.25 else ("", "")
    return clause(draft, draft.pick(pool), tense, adverb=adverb).main()


def separable(draft: Draft) -> str:
    """The woman opens the window."""
    return statement(draft, SEPARABLE)


def giving(draft: Draft) -> str:
    """The man gives the child a book."""
    return statement(draft, verbs("give"))


def moving(draft: Draft) -> str:
    """The child runs into the garden."""
    return statement(draft, verbs("go put stay join"))


def description(draft: Draft) -> str:
    """The old house is very beautiful."""
    return clause(draft, BE, draft.pick(PLAIN), negated=draft.chance() < 0.2).main()


def denial(draft: Draft) -> str:
    """The man does not read the book."""
    return clause(draft, draft.pick(ACTIONS), draft.pick(DENIED), negated=True).main()


def fronted(draft: Draft) -> str:
    """Today the man reads a book."""
    tense = draft.pick(TENSES)
    english, german = adverb_for(draft, tense)
    draft.say(english)
    return clause(draft, draft.pick(ACTIONS), tense, negated=tense in DENIED and draft.chance() < 0.1).main(german)


def fronted_place(draft: Draft) -> str:
    """In the garden a bird sings."""
    verb = draft.pick(verbs("stay join"))
    place = draft.prepositional(lexicon.PLACES[verb.frame])
    return clause(draft, verb, draft.pick(TENSES), gap=True).main(place)


def linked(draft: Draft) -> tuple[str, str, str, str]:
    """A conjunction in both languages, the tense of the main clause and that of the other."""
    english, german, tenses = draft.pick(lexicon.CONJUNCTIONS)
    tense = draft.pick(tenses.split())
    if english == "when":
        german = "als" if tense == "past" else "wenn"
    loose = english in ("because", "although") and tense == "present"
    return english, german, tense, draft.pick(("present", "perfect", "can", "must", "want")) if loose else tense


def subordinate(draft: Draft, english: str, german: str, tense: str) -> str:
    """Say a subordinate clause and return its German, verb last."""
    draft.say(english)
    verb = BE if draft.chance() < 0.25 and tense in PLAIN else draft.pick(ACTIONS)
    return clause(draft, verb, tense, negated=tense in DENIED and draft.chance() < 0.15).last(german)


def reason(draft: Draft) -> str:
    """The cat sleeps because the dog is not hungry."""
    english, german, tense, other = linked(draft)
    main = clause(draft, draft.pick(ACTIONS), tense).main()
    return f"{main}, {subordinate(draft, english, german, other)}"


def condition(draft: Draft) -> str:
    """When the man came back, the child was asleep."""
    english, german, tense, other = linked(draft)
    front = subordinate(draft, english, german, other)
    draft.comma()
    return clause(draft, draft.pick(ACTIONS), tense).main(f"{front},")


def reported(draft: Draft) -> str:
    """The teacher says that the man is reading."""
    tense = draft.pick(PLAIN)
    main = clause(draft, draft.pick(verbs("that")), tense).main()
    return f"{main}, {subordinate(draft, 'that', 'dass', draft.pick(TENSES) if tense == 'present' else 'past')}"


def infinitive(draft: Draft, english: str, german: str) -> str:
    """Say an infinitive with its complement and return the German one."""
    verb = draft.pick(EXTENDED)
    draft.say(english)
    draft.verb = draft.say(verb.base)
    draft.say(verb.particle)
    end = f"{verb.prefix}zu{verb.infinitive}" if verb.prefix else f"zu {verb.infinitive}"
    return _join(german, *complement(draft, verb, "person"), end)


def attempt(draft: Draft) -> str:
    """The woman tries to open the door."""
    main = clause(draft, draft.pick(verbs("to")), draft.pick(PLAIN)).main()
    return f"{main}, {infinitive(draft, 'to', '')}"


def purpose(draft: Draft) -> str:
    """The man goes to the station in order to help the woman."""
    verb = draft.pick(verbs("go alone", "person"))
    main = clause(draft, verb, draft.pick(PLAIN), subject=draft.phrase("person")).main()
    return f"{main}, {infinitive(draft, 'in order to', 'um')}"


def relative(draft: Draft, phrase: Phrase, head: int) -> str:
    """Say a relative clause whose subject is the phrase at `head`, and return the German one."""
    draft.link("relative-noun", draft.say("who" if phrase.sort == "person" else "that"), head)
    verb = draft.pick(verbs("stay go put acc for dat give", phrase.sort))
    tense = "perfect" if ambiguous(verb) else draft.pick(("present", "past", "past", "perfect"))
    return clause(draft, verb, tense, subject=phrase, said=head).last(RELATIVES["nom"][phrase.gender])


def subject_relative(draft: Draft) -> str:
    """The man who bought the car is happy."""
    still = draft.chance() < 0.5
    phrase = draft.phrase(draft.pick(("person", "animal")), described=0.0 if still else 0.3)
    head = draft.put(phrase)
    front = f"{phrase.german['nom']}, {relative(draft, phrase, head)},"
    verb = BE if still else draft.pick(verbs("stay join alone go acc", phrase.sort))
    tense = "future" if ambiguous(verb) else draft.pick(PLAIN)
    return clause(draft, verb, tense, subject=phrase, said=head).main(front)


def object_relative(draft: Draft) -> str:
    """The car that the man bought is red."""
    verb = draft.pick(TRANSITIVE)
    phrase = draft.phrase(verb.objects, described=0.0, definite=True)
    head = draft.put(phrase)
    draft.link("relative-noun", draft.say("whom" if phrase.sort == "person" else "that"), head)
    case = "dat" if verb.frame == "dat" else "acc"
    inner = clause(draft, verb, draft.pick(("past", "past", "perfect")), gap=True)
    front = f"{phrase.german['nom']}, {inner.last(RELATIVES[case][phrase.gender])},"
    return clause(draft, BE, draft.pick(PLAIN), subject=phrase, said=head).main(front)


def trailing_relative(draft: Draft) -> str:
    """The child sees the dog that chased the cat."""
    verb = draft.pick(TRANSITIVE)
    kinds = [kind for kind in ("person", "animal") if kind in verb.objects.split()]
    if not kinds:
        return trailing_relative(draft)
    draft.object = phrase = draft.phrase(draft.pick(kinds), definite=True)
    main = clause(draft, verb, draft.pick(TENSES)).main()
    return f"{main}, {relative(draft, phrase, len(draft.words) - 1)}"


def counting(draft: Draft) -> str:
    """The farmer has twenty-three cows."""
    if draft.chance() < 0.4:
        verb = draft.pick(ACTIONS)
        tense = "future" if ambiguous(verb) else draft.pick(TENSES)
        return clause(draft, verb, tense, subject=draft.counted(verb.subjects)).main()
    verb = draft.pick(verbs("acc for dat give own own"))
    draft.object = draft.counted(verb.objects)
    return clause(draft, verb, draft.pick(PLAIN)).main()


def age(draft: Draft) -> str:
    """My aunt is forty-two years old."""
    phrase = draft.phrase("person animal", plurals=0.2, described=0.0)
    english, german = draft.pick(NUMBER_PAIRS)
    predicate(draft, BE, tense := draft.pick(PLAIN), phrase.plural, draft.put(phrase), False)
    draft.say(f"{english} years old")
    return f"{phrase.german['nom']} {german_verb(BE, tense, phrase.plural)[0]} {german} Jahre alt"


def comparison(draft: Draft) -> str:
    """The dog is as big as the horse."""
    kinds = draft.pick(("person", "animal", "vehicle", "furniture"))
    first, second = draft.phrase(kinds, described=0.0), draft.phrase(kinds, described=0.2, definite=True)
    adjective = draft.pick(lexicon.PREDICATES[first.sort])
    predicate(draft, BE, tense := draft.pick(PLAIN), first.plural, draft.put(first), False)
    draft.say(f"as {adjective} as")
    draft.put(second)
    finite = german_verb(BE, tense, first.plural)[0]
    return f"{first.german['nom']} {finite} so {ADJECTIVES[adjective]} wie {second.german['nom']}"


def passive(draft: Draft) -> str:
    """The letter was written by the teacher."""
    verb = draft.pick(PASSIVES)
    phrase, tense = draft.phrase(verb.objects), draft.pick(PLAIN)
    head = draft.put(phrase)
    draft.say(english_verb(BE, tense, phrase.plural, False)[1])
    draft.link("subject-verb", head, draft.say(verb.participle))
    draft.say(_join(verb.particle, "by"))
    agent = draft.phrase(verb.subjects)
    draft.put(agent)
    finite = {"present": ("wird", "werden"), "past": ("wurde", "wurden")}[tense][phrase.plural]
    return _join(phrase.german["nom"], finite, contract("von", agent.german["dat"]), verb.german_participle)


def question(draft: Draft) -> str:
    """Why does the man read the book?"""
    draft.mark = "?"
    why = draft.chance() < 0.4
    draft.say("why" if why else "")
    asked = clause(draft, draft.pick(ACTIONS), draft.pick(ASKED), asked=True)
    return asked.main("warum") if why else asked.asked()


def coordination(draft: Draft) -> str:
    """The man reads a book and the woman sleeps."""
    tense, contrast = draft.pick(PLAIN), draft.chance() < 0.4
    first = clause(draft, draft.pick(ACTIONS), tense).main()
    if contrast:
        draft.comma()
    draft.say("but" if contrast else "and")
    second = clause(draft, draft.pick(ACTIONS), tense, negated=contrast and draft.chance() < 0.5).main()
    return first + (", aber " if contrast else " und ") + second


PASSIVES = tuple(verb for verb in verbs("acc for", "person") if verb.particle not in ("for", "at"))
NUMBER_PAIRS = tuple(NUMBERS.items())
PATTERNS: tuple[tuple[Callable[[Draft], str], int], ...] = (
    (statement, 12),
    (giving, 8),
    (moving, 8),
    (separable, 8),
    (description, 3),
    (denial, 7),
    (fronted, 9),
    (fronted_place, 3),
    (reason, 8),
    (condition, 5),
    (reported, 6),
    (attempt, 4),
    (purpose, 3),
    (subject_relative, 5),
    (object_relative, 4),
    (trailing_relative, 4),
    (counting, 10),
    (age, 1),
    (comparison, 2),
    (passive, 4),
    (question, 5),
    (coordination, 3),
)
WEIGHTED = tuple(pattern for pattern, weight in PATTERNS for _ in range(weight))

# --- pronoun sentences ----------------------------------------------------------------------------------------------

Choice = tuple[Noun, Noun, tuple[str, ...]]  # subject, object, the adjectives that may follow


def digest(text: str) -> int:
    """A hash of the text that is the same on every machine and in every run."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def held_out(triple: tuple[str, str, str]) -> bool:
    """Whether the (subject, object, adjective) triple is kept from the train split: one in ten is."""
    return digest("|".join(triple)) % 10 == 0


@cache
def choices(frame: Frame, referent: str, held: bool) -> tuple[Choice, ...]:
    """The noun pairs of a frame, differing in gender, with the adjectives that point to the referent."""
    adjectives = frame.subject_adjectives if referent == "subject" else frame.object_adjectives
    found = []
    for subject in nouns(frame.subjects):
        for other in nouns(frame.objects):
            if subject.gender == other.gender:
                continue
            fit = tuple(a for a in adjectives if held_out((subject.english, other.english, a)) == held)
            if fit:
                found.append((subject, other, fit))
    return tuple(found)


@cache
def frame_verbs(frame: Frame) -> tuple[Verb, ...]:
    """The verbs of a frame; where one fits people only, the other of that name is meant (fressen, not essen)."""
    return tuple(v for v in VERBS if v.base in frame.verbs and v.subjects != "person")


def pronoun(draft: Draft, held: bool) -> str:
    """The animal did not cross the street because it was too tired."""
    frame = draft.pick(FRAMES)
    draft.referent = draft.pick(("subject", "object"))
    subject, other, adjectives = draft.pick(choices(frame, draft.referent, held))
    adjective = draft.pick(adjectives)
    draft.triple = (subject.english, other.english, adjective)
    verb = draft.pick(frame_verbs(frame))
    tense = draft.pick(PLAIN if verb.base == "want" else ("present", "past", "can", "could"))
    front = adverb_for(draft, tense) if draft.chance() < 0.3 else ("", "")
    draft.say(front[0])
    first, second = neutral(draft, subject, ("the", "the", "this", "my")), neutral(draft, other, ("the", "the", "this"))
    heads = {"subject": draft.put(first)}
    predicate(draft, verb, tense, False, heads["subject"], True)
    draft.say(frame.preposition[0] if frame.preposition else "")
    heads["object"] = draft.put(second)
    draft.link("verb-object", draft.verb, heads["object"])
    where = f"nicht {contract(frame.preposition[1], second.german['acc'])}" if frame.preposition else (
        f"{second.german['acc']} nicht")
    main = Clause(first.german["nom"], where, *german_verb(verb, tense, False)).main(front[1])
    then = "past" if tense in ("past", "could") else "present"
    conjunction = draft.pick((("because", "weil"), ("because", "weil"), ("since", "da")))
    degree = draft.pick((("too", "zu"), ("too", "zu"), ("much too", "viel zu"), ("so", "so")))
    draft.say(conjunction[0])
    it = draft.say("it")
    draft.link("pronoun-referent", it, heads[draft.referent])
    predicate(draft, BE, then, False, it, False)
    draft.say(f"{degree[0]} {adjective}")
    german = IT[(subject if draft.referent == "subject" else other).gender]
    finite = german_verb(BE, then, False)[0]
    return f"{main}, {conjunction[1]} {german} {degree[1]} {ADJECTIVES[adjective]} {finite}"


def neutral(draft: Draft, noun: Noun, determiners: Sequence[str]) -> Phrase:
    """The noun with a determiner, and perhaps an adjective, that tell nothing about the pronoun to come."""
    determiner = draft.pick(determiners)
    if determiner == "my" and "unowned" in noun.kinds:
        determiner = "the"
    return noun_phrase(noun, determiner, draft.pick(lexicon.NEUTRAL) if draft.chance() < 0.25 else "")


# --- streams --------------------------------------------------------------------------------------------------------


def sentences(split: str, *, seed: int = 0, pronouns: bool = False) -> Iterator[Sentence]:
    """An endless stream of different sentences of a split, the same for the same seed; `pronouns` for those alone.

    A hash of the English decides the split. Pronoun sentences of valid and test use only held-out triples, which
    train never sees.
    """
    if split not in SPLITS:
        raise SettingError(f"there is no split {split!r} in the built-in language", did_you_mean(split, SPLITS))
    return _stream(split, random.Random(f"{split} {seed} {pronouns}"), pronouns)


def _stream(split: str, rng: random.Random, pronouns: bool) -> Iterator[Sentence]:
    seen: set[int] = set()
    while True:
        resolve = pronouns or rng.random() < PRONOUN_SHARE
        yield _fresh(split, rng.random, resolve, seen)


def _fresh(split: str, chance: Callable[[], float], resolve: bool, seen: set[int]) -> Sentence:
    for _ in range(TRIES):
        draft = Draft(chance)
        german = pronoun(draft, split != "train") if resolve else draft.pick(WEIGHTED)(draft)
        english = " ".join(draft.words)
        source = english[0].upper() + english[1:] + draft.mark
        key = digest(source)
        if key in seen or not 4 <= len(draft.words) <= 20 or not _belongs(split, key, resolve):
            continue
        seen.add(key)
        target = german[0].upper() + german[1:] + draft.mark
        links = tuple(Link(*link) for link in draft.links)
        return Sentence(source, target, links, draft.triple, draft.referent)
    raise DataError(
        f"the built-in language has no more than {len(seen)} such sentences for {split!r}", "ask for fewer lines"
    )


def _belongs(split: str, key: int, resolve: bool) -> bool:
    if resolve:  # the triple has already chosen between train and the others
        return split == "train" or (split == "test") == bool(key % 2)
    place = key % 100
    return split == ("test" if place < HELD_PERCENT else "valid" if place < 2 * HELD_PERCENT else "train")


def write_tsv(out: TextIO, split: str, lines: int, *, seed: int = 0, pronouns: bool = False) -> None:
    """Write that many lines of `source`, a tab and `target`."""
    for sentence in islice(sentences(split, seed=seed, pronouns=pronouns), lines):
        out.write(f"{sentence.source}\t{sentence.target}\n")
