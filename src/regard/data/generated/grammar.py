"""The grammar of the built-in language: noun phrases, verbs and clauses in English and German.

A synchronous grammar: a `Draft` collects the English words of one sentence as they are said; the
functions here return the German for them. The patterns in `builtin.py` combine clauses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

from regard.data.generated import lexicon
from regard.data.generated.lexicon import ADJECTIVES, NOUNS, NUMBERS, VERBS, Columns, Noun, Verb

T = TypeVar("T")


def join(*parts: str) -> str:
    """The parts that are not empty, with spaces between them."""
    return " ".join([part for part in parts if part])


# --- noun phrases: columns are masculine, feminine, neuter, plural ---


def _cases(forms: str) -> dict[str, list[str]]:
    cells = [form.replace("-", "") for form in forms.split()]
    return {"nom": cells[:4], "acc": cells[4:8], "dat": cells[8:]}


GENDERS = "mfn"
PLURAL = 3
ARTICLES = {
    "the": _cases("der die das die  den die das die  dem der dem den"),
    "this": _cases(
        "dieser diese dieses diese  diesen diese dieses diese  diesem dieser diesem diesen"
    ),
    "a": _cases("ein eine ein -  einen eine ein -  einem einer einem -"),
    "my": _cases("mein meine mein meine  meinen meine mein meine  meinem meiner meinem meinen"),
    "not a": _cases("kein keine kein keine  keinen keine kein keine  keinem keiner keinem keinen"),
}
WEAK = _cases("e e e en  en e e en  en en en en")  # after der and dieser
MIXED = _cases("er e es en  en e es en  en en en en")  # after ein, mein, kein
STRONG = _cases("er e es e  en e es e  em er em en")  # after a number or nothing
ENDINGS = {"the": WEAK, "this": WEAK, "a": MIXED, "my": MIXED, "not a": MIXED}
RELATIVES = _cases("der die das die  den die das die  dem der dem denen")

# Determiners to pick from; repeated entries are likelier.
ANY = ("the", "the", "the", "the", "a", "a", "a", "this", "my", "my")
# Negation turns "a" into "not a" (kein) and leaves the others to "nicht".
DENIED = tuple("not a" if word == "a" else word for word in ANY)
OWNED = ("the", "the", "the", "this", "my")
POINTED = ("the", "the", "this")


class Phrase(NamedTuple):
    """A noun phrase: the English words, noun last, and the German in three cases."""

    words: tuple[str, ...]
    german: dict[str, str]
    gender: int  # the column of the tables above
    sort: str
    described: bool = False

    @property
    def plural(self) -> bool:
        """Whether its verb must be plural."""
        return self.gender == PLURAL


PEOPLE = (
    Phrase(("he",), {"nom": "er"}, 0, "person"),
    Phrase(("she",), {"nom": "sie"}, 1, "person"),
    Phrase(("they",), {"nom": "sie"}, PLURAL, "person"),
)


@cache
def noun_phrase(noun: Noun, determiner: str, adjective: str = "", plural: bool = False) -> Phrase:
    """The phrase in both languages.

    `determiner` is one of `ARTICLES`, or a number word if `plural`.
    """
    english_noun = noun.plural if plural else noun.english
    words = [word for word in (adjective, english_noun) if word]
    if determiner not in ("a", "not a"):
        words.insert(0, "these" if plural and determiner == "this" else determiner)
    elif not plural:
        words.insert(0, "an" if words[0][0] in "aeiou" else "a")
    column = PLURAL if plural else GENDERS.index(noun.gender)
    # "a" has no plural: the adjective alone shows case and number.
    endings = STRONG if plural and determiner == "a" else ENDINGS.get(determiner, STRONG)
    german = {}
    for case in ("nom", "acc", "dat"):
        article = NUMBERS.get(determiner) or ARTICLES[determiner][case][column]
        inflected = ""
        if adjective:
            inflected = ADJECTIVES[adjective].removesuffix("e") + endings[case][column]
        form = noun.german if case == "nom" else noun.oblique
        if plural:
            # The dative plural ends in -n, except after -n and -s.
            needs_n = case == "dat" and noun.german_plural[-1] not in "ns"
            form = noun.german_plural + ("n" if needs_n else "")
        german[case] = join(article, inflected, form)
    return Phrase(tuple(words), german, column, noun.sort, bool(adjective))


def contract(preposition: str, phrase: str) -> str:
    """Preposition and phrase, with "in dem" and the like contracted ("im")."""
    article, _, rest = phrase.partition(" ")
    short = lexicon.CONTRACTIONS.get(f"{preposition} {article}")
    if short:
        return f"{short} {rest}"  # im Haus, zum Bahnhof
    return f"{preposition} {phrase}"


@cache
def nouns(kinds: str) -> tuple[Noun, ...]:
    """All nouns of any of the kinds, which are divided by spaces."""
    return tuple(noun for noun in NOUNS if noun.kinds.intersection(kinds.split()))


@cache
def verbs(frames: str, subject: str = "") -> tuple[Verb, ...]:
    """All verbs of any of the frames, or those of them that take a subject of this kind."""
    chosen = [verb for verb in VERBS if verb.frame in frames.split()]
    return tuple(verb for verb in chosen if not subject or subject in verb.subjects.split())


# --- verbs ---

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


def ambiguous(verb: Verb) -> bool:
    """Whether its English plural has one form for two tenses ("they read"), German does not."""
    return verb.base == verb.past


@cache
def english_verb(verb: Verb, tense: str, plural: bool, support: bool) -> tuple[str, str]:
    """Auxiliary and main verb; `support` asks for do-support, as questions and "not" do."""
    if tense == "perfect":
        return ("have" if plural else "has"), verb.participle
    if tense in AUXILIARIES:
        return AUXILIARIES[tense][plural], verb.base
    if verb is BE:
        return "", {"present": ("is", "are"), "past": ("was", "were")}[tense][plural]
    if support:
        forms = {"present": ("does", "do"), "past": ("did", "did")}
        return forms[tense][plural], verb.base
    if tense == "past":
        return "", verb.past
    return "", verb.base if plural else verb.third


@cache
def german_verb(verb: Verb, tense: str, plural: bool) -> tuple[str, str, str]:
    """The finite verb, what closes a main clause, and what closes a subordinate clause."""
    if tense in PLAIN:
        # A separable prefix goes to the end of a main clause.
        finite = verb.german_past if tense == "past" else verb.german_third
        if plural and tense == "past":
            finite += "n" if finite[-1] == "e" else "en"  # wartete → warteten, schlief → schliefen
        elif plural:  # as the infinitive is
            finite = "sind" if verb is BE else verb.infinitive
        return finite, verb.prefix, verb.prefix + finite
    if tense == "perfect":
        plurals = {"hat": "haben", "ist": "sind"}
        finite = plurals[verb.auxiliary] if plural else verb.auxiliary
        end = verb.german_participle
    else:
        finite = AUXILIARIES[tense][3 if plural else 2]
        end = verb.prefix + verb.infinitive
    return finite, end, f"{end} {finite}"


class Clause(NamedTuple):
    """The German of a clause in the fields that its word orders arrange."""

    subject: str
    middle: str
    finite: str
    end: str  # closes a main clause
    joined: str  # closes a subordinate clause

    def main(self, front: str = "") -> str:
        """Verb second: after the subject, or after what is fronted."""
        if front:
            return join(front, self.finite, self.subject, self.middle, self.end)
        return join(self.subject, self.finite, self.middle, self.end)

    def asked(self) -> str:
        """Verb first."""
        return join(self.finite, self.subject, self.middle, self.end)

    def last(self, opening: str) -> str:
        """Verb last, after a conjunction or a relative pronoun."""
        return join(opening, self.subject, self.middle, self.joined)


# --- saying it ---


class Draft:
    """One sentence in the making: its English words and parse so far, and the nouns used."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self.chance = chance
        self.words: list[str] = []  # of the English sentence so far
        self.links: list[tuple[str, int, int]] = []
        self.used: set[Noun] = set()
        self.mark = "."
        self.verb = 0  # where the last main verb stands
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

    def link(self, kind: str, start: int, end: int) -> None:
        """Add an edge of the parse."""
        self.links.append((kind, start, end))

    def put(self, phrase: Phrase) -> int:
        """Say a noun phrase and return the index of its noun."""
        self.words += phrase.words
        head = len(self.words) - 1
        if phrase.described:
            self.link("adjective-noun", head - 1, head)
        return head

    def noun(self, kinds: str) -> Noun:
        """A noun that this sentence has not used yet."""
        while (noun := self.pick(nouns(kinds))) in self.used:
            pass
        self.used.add(noun)
        return noun

    def attribute(self, noun: Noun, share: float) -> str:
        """An adjective to stand before the noun, or nothing."""
        sort = "kid" if "kid" in noun.kinds else noun.sort  # no "old child"
        if self.chance() < share:
            return self.pick(lexicon.ATTRIBUTES[sort])
        return ""

    def phrase(
        self,
        kinds: str,
        determiners: Sequence[str] = ANY,
        *,
        plurals: float = 0.3,
        described: float = 0.4,
    ) -> Phrase:
        """A noun phrase of some kind with a random determiner, adjective and number."""
        noun = self.noun(kinds)
        determiner = self.pick(determiners)
        uncountable = not noun.plural and determiner in ("a", "not a")
        unowned = determiner == "my" and "unowned" in noun.kinds
        if uncountable or unowned:
            determiner = "the"
        plural = bool(noun.plural) and self.chance() < plurals
        return noun_phrase(noun, determiner, self.attribute(noun, described), plural)

    def counted(self, kinds: str) -> Phrase:
        """A noun phrase with a number word."""
        while not (noun := self.noun(kinds)).plural:
            pass
        return noun_phrase(
            noun, self.pick(lexicon.NUMBER_WORDS), self.attribute(noun, 0.3), plural=True
        )

    def prepositional(self, options: Sequence[Columns], determiners: Sequence[str] = ANY) -> str:
        """Say a prepositional phrase and return its German."""
        english, german, case, kinds = self.pick(options)
        self.say(english)
        plurals = 0.3 if kinds.startswith("person") else 0.0
        phrase = self.phrase(kinds, determiners, plurals=plurals, described=0.25)
        self.put(phrase)
        return contract(german, phrase.german[case])


class Antecedent(NamedTuple):
    """The noun phrase before a relative clause, and where its noun stands."""

    phrase: Phrase
    position: int


def subject_of(draft: Draft, verb: Verb) -> Phrase:
    """A random subject that the verb can take.

    "she" and the like only where no noun could be meant by it.
    """
    if not draft.used and "person" in verb.subjects and draft.chance() < 0.1:
        # "they put" may be present or past; "he puts" may not.
        return draft.pick(PEOPLE[:2] if ambiguous(verb) else PEOPLE)
    plurals = 0.0 if ambiguous(verb) else 0.3
    return draft.phrase(verb.subjects, plurals=plurals, described=0.0 if verb is BE else 0.4)


def predicate(
    draft: Draft,
    verb: Verb,
    tense: str,
    plural: bool,
    subject: int,
    *,
    negated: bool = False,
    asked: bool = False,
) -> None:
    """Say the English verb; in a question its auxiliary has been said before the subject."""
    auxiliary, main = english_verb(verb, tense, plural, negated or asked)
    if not asked:
        draft.say("cannot" if negated and auxiliary == "can" else auxiliary)
    if negated and auxiliary not in ("", "can"):
        draft.say("not")
    draft.verb = draft.say(main)
    draft.link("subject-verb", subject, draft.verb)
    draft.say("not" if negated and not auxiliary else verb.particle)


def complement(draft: Draft, verb: Verb, sort: str, negated: bool = False) -> tuple[str, str]:
    """Say what follows the verb; return its German, divided where "nicht" goes."""
    around = OWNED if negated else ANY
    thing = ""
    if verb.objects:
        phrase = draft.object or draft.phrase(verb.objects, DENIED if negated else ANY)
        draft.object = None
        draft.link("verb-object", draft.verb, draft.put(phrase))
        thing = phrase.german["dat" if verb.frame == "dat" else "acc"]
    match verb.frame:
        case "be":
            adjective = draft.pick(lexicon.PREDICATES[sort])
            strong = adjective not in lexicon.COLOURS and draft.chance() < 0.3
            draft.say(f"very {adjective}" if strong else adjective)
            return "", join("sehr" if strong else "", ADJECTIVES[adjective])
        case "stay" | "join":
            stay = verb.frame == "stay"
            company = ""
            place = ""
            if not stay and draft.chance() >= 0.6:
                company = draft.prepositional(lexicon.WITH, around)
            if stay or draft.chance() < 0.7:
                place = draft.prepositional(lexicon.PLACES[verb.frame], around)
            return "", join(company, place)
        case "go":
            return "", draft.prepositional(lexicon.DIRECTIONS, around)
        case "put":
            return thing, draft.prepositional(lexicon.TARGETS, around)
        case "for" if not negated and draft.chance() < 0.3:
            return thing, draft.prepositional(lexicon.FOR)
        case "give":
            draft.say("to")
            recipient = draft.phrase("person", around)
            draft.put(recipient)
            # German has the recipient first: er gibt dem Mann das Buch.
            return f"{recipient.german['dat']} {thing}", ""
    return thing, ""


def clause(
    draft: Draft,
    verb: Verb,
    tense: str,
    *,
    subject: Phrase | Antecedent | None = None,
    negated: bool = False,
    asked: bool = False,
    gap: bool = False,  # leave out what follows the verb
    adverb: tuple[str, str] = ("", ""),
) -> Clause:
    """Say an English clause and return its German.

    An `Antecedent` as the subject has been said already, in both languages.
    """
    if isinstance(subject, Antecedent):
        phrase, position = subject
        german_subject = ""
    else:
        phrase = subject or subject_of(draft, verb)
        german_subject = phrase.german["nom"]
        if asked:  # the auxiliary comes before the subject
            draft.say(english_verb(verb, tense, phrase.plural, True)[0])
        position = draft.put(phrase)
    predicate(draft, verb, tense, phrase.plural, position, negated=negated, asked=asked)
    before = after = ""
    if not gap:
        before, after = complement(draft, verb, phrase.sort, negated)
    draft.say(adverb[0])
    # One negation is enough: "kein" is one already. "nicht" stands after the object.
    nicht = "nicht" if negated and "kein" not in before else ""
    middle = join(adverb[1], before, nicht, after)
    return Clause(german_subject, middle, *german_verb(verb, tense, phrase.plural))
