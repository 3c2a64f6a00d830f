"""The built-in language: correct German, one translation per sentence, fair pronouns and disjoint
splits.
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.generated import builtin, grammar, lexicon
from regard.data.generated.builtin import Sentence, sentences, write_tsv
from regard.data.generated.grammar import BE, Draft, noun_phrase
from regard.system.errors import DataError, SettingError

NOUN = {noun.english: noun for noun in lexicon.NOUNS}
IT = {"m": "er", "f": "sie", "n": "es"}
ROLES = ("subject", "object")


@pytest.fixture(scope="module")
def streams() -> dict[str, list[Sentence]]:
    """Sixty thousand train sentences and a few thousand of the others, a part of them with pronouns
    only.
    """
    sizes = {"train": (60_000, 2_000), "valid": (1_000, 2_500), "test": (1_000, 2_500)}
    return {
        split: [
            *islice(sentences(split), mixed),
            *islice(sentences(split, seed=1, pronouns=True), alone),
        ]
        for split, (mixed, alone) in sizes.items()
    }


def words(text: str) -> list[str]:
    return [word.strip(".,?") for word in text.split()]


def possible_triples() -> dict[tuple[str, str, str], tuple[str, bool]]:
    """Every triple of the grammar, with its referent and whether it is held out."""
    return {
        (subject.english, other.english, adjective): (referent, held)
        for frame in lexicon.FRAMES
        for referent in ROLES
        for held in (False, True)
        for subject, other, adjectives in builtin.choices(frame, referent, held)
        for adjective in adjectives
    }


# --- streams and splits
# ---------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10**9), split=st.sampled_from(builtin.SPLITS), pronouns=st.booleans())
@settings(max_examples=15, deadline=None)
def test_a_seed_gives_the_same_sentences_again(seed: int, split: str, pronouns: bool) -> None:
    first = list(islice(sentences(split, seed=seed, pronouns=pronouns), 20))
    assert first == list(islice(sentences(split, seed=seed, pronouns=pronouns), 20))
    assert len({sentence.source for sentence in first}) == 20


def test_seeds_differ() -> None:
    assert list(islice(sentences("train", seed=1), 20)) != list(
        islice(sentences("train", seed=2), 20)
    )


def test_unknown_split_is_a_setting_error() -> None:
    with pytest.raises(SettingError, match="did you mean 'train'"):
        sentences("trian")


def test_an_exhausted_stream_says_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "TRIES", 2_000)
    monkeypatch.setattr(builtin, "PRONOUN_SHARE", 0.0)
    for pool in ("WEIGHTED", "TRAIN_WEIGHTED"):
        monkeypatch.setattr(
            builtin, pool, (lambda draft: f"W{draft.say(draft.pick('abcde') + ' b c d')}",)
        )
    monkeypatch.setattr(builtin, "HELD_PERCENT", 0)
    with pytest.raises(DataError, match="no more than about 5 "):
        list(sentences("train"))


def test_splits_share_no_sentence(streams: dict[str, list[Sentence]]) -> None:
    seen = [{sentence.source for sentence in part} for part in streams.values()]
    assert not seen[0] & seen[1]
    assert not seen[0] & seen[2]
    assert not seen[1] & seen[2]


def test_a_stream_repeats_nothing_and_mixes_in_pronouns() -> None:
    for split, count in (("train", 10_000), ("valid", 1_000), ("test", 1_000)):
        part = list(islice(sentences(split), count))
        assert len({sentence.source for sentence in part}) == count
        assert 0.18 < sum(sentence.triple is not None for sentence in part) / count < 0.26


def test_english_decides_german(streams: dict[str, list[Sentence]]) -> None:
    german: dict[str, str] = {}
    for part in (*streams.values(), list(islice(sentences("train", seed=5), 10_000))):
        for sentence in part:
            assert german.setdefault(sentence.source, sentence.target) == sentence.target
    assert len(german) > 60_000


def test_tsv_has_one_pair_per_line() -> None:
    out = io.StringIO()
    write_tsv(out, "test", 50, seed=3)
    lines = [line.split("\t") for line in out.getvalue().splitlines()]
    assert lines == [[s.source, s.target] for s in islice(sentences("test", seed=3), 50)]


# --- pronouns -------------------------------------------------------------------------------------
# ------------------


def test_a_tenth_of_the_triples_is_held_out() -> None:
    triples = possible_triples()
    held = [triple for triple, (_, kept) in triples.items() if kept]
    assert 0.08 < len(held) / len(triples) < 0.12
    assert len(held) > 300
    assert all(builtin.held_out(*triple) for triple in held)


def test_train_never_sees_a_held_out_triple_and_the_others_see_nothing_else(
    streams: dict[str, list[Sentence]],
) -> None:
    triples = possible_triples()
    for split, part in streams.items():
        kept = {triples[sentence.triple][1] for sentence in part if sentence.triple}
        assert kept == {split != "train"}


def test_valid_and_test_have_enough_pronoun_sentences() -> None:
    for split in ("valid", "test"):
        part = islice(sentences(split, pronouns=True), 2_000)
        assert len({sentence.source for sentence in part}) == 2_000


def test_every_pair_occurs_with_both_referents_in_train_and_differs_in_gender() -> None:
    pairs = defaultdict(set)
    for (subject, other, _), (referent, held) in possible_triples().items():
        assert NOUN[subject].gender != NOUN[other].gender
        if not held:
            pairs[subject, other].add(referent)
    assert all(referents == set(ROLES) for referents in pairs.values())


def test_genders_are_balanced_in_every_frame() -> None:
    for frame in lexicon.FRAMES:
        for kinds in (frame.subjects, frame.objects):
            counts = Counter(noun.gender for noun in grammar.nouns(kinds))
            assert counts["m"] == counts["f"] == counts["n"] > 0
        assert min(len(frame.subject_adjectives), len(frame.object_adjectives)) >= 6


def test_subject_and_object_are_meant_equally_often(streams: dict[str, list[Sentence]]) -> None:
    for part in streams.values():
        chosen = [sentence for sentence in part if sentence.triple]
        assert (
            abs(sum(sentence.referent == "subject" for sentence in chosen) / len(chosen) - 0.5)
            < 0.03
        )
        genders = Counter(
            (sentence.referent, NOUN[sentence.triple[ROLES.index(sentence.referent or "")]].gender)
            for sentence in chosen
            if sentence.triple
        )
        assert len(genders) == 6
        assert min(genders.values()) > 0.13 * len(chosen)


def test_words_of_pronoun_sentences_are_well_covered_in_train(
    streams: dict[str, list[Sentence]],
) -> None:
    seen = Counter(word for sentence in streams["train"] for word in sentence.triple or ())
    assert set(seen) == {word for triple in possible_triples() for word in triple}
    assert min(seen.values()) >= 30


def test_the_german_pronoun_has_the_gender_of_the_referent(
    streams: dict[str, list[Sentence]],
) -> None:
    for sentence in (sentence for part in streams.values() for sentence in part if sentence.triple):
        assert sentence.triple
        noun = NOUN[sentence.triple[ROLES.index(sentence.referent or "")]]
        clause = sentence.target.rpartition(", ")[2].split()
        assert clause[0] in ("weil", "da")
        assert clause[1] == IT[noun.gender]


# --- links ----------------------------------------------------------------------------------------
# ------------------


def test_links_join_the_right_words(streams: dict[str, list[Sentence]]) -> None:
    nouns = {form for noun in lexicon.NOUNS for form in (noun.english, noun.plural) if form}
    forms = {
        form
        for verb in lexicon.VERBS
        for form in (verb.base, verb.third, verb.past, verb.participle)
    }
    subjects, verb_words = nouns | {"he", "she", "they", "it"}, forms | {"are", "were"}
    allowed = {
        "subject-verb": (subjects, verb_words),
        "verb-object": (verb_words, nouns),
        "adjective-noun": (set(lexicon.ADJECTIVES), nouns),
        "relative-noun": ({"who", "whom", "that"}, nouns),
        "pronoun-referent": ({"it"}, nouns),
    }
    for sentence in streams["train"][:10_000] + streams["test"]:
        tokens = [word.lower() for word in words(sentence.source)]
        kinds = Counter(link.kind for link in sentence.links)
        assert kinds["subject-verb"] >= 1
        assert kinds["pronoun-referent"] == (sentence.triple is not None)
        for link in sentence.links:
            starts, ends = allowed[link.kind]
            assert tokens[link.start] in starts
            assert tokens[link.end] in ends
            if link.kind == "pronoun-referent" and sentence.triple:
                assert tokens[link.end] == sentence.triple[ROLES.index(sentence.referent or "")]


# --- the German -----------------------------------------------------------------------------------
# ------------------


def german_number(number: int) -> str:
    """An independent count, to compare with."""
    small = [
        "null",
        "ein",
        "zwei",
        "drei",
        "vier",
        "fünf",
        "sechs",
        "sieben",
        "acht",
        "neun",
        "zehn",
        "elf",
        "zwölf",
    ]
    teens = {16: "sechzehn", 17: "siebzehn"}
    tens = {2: "zwanzig", 3: "dreißig", 6: "sechzig", 7: "siebzig"}
    if number <= 12:
        return small[number]
    ten, unit = divmod(number, 10)
    if ten == 1:
        return teens.get(number, small[unit] + "zehn")
    name = tens.get(ten, small[ten] + "zig")
    return f"{small[unit]}und{name}" if unit else name


def test_numbers_from_two_to_ninety_nine() -> None:
    tens = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
    units = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    teens = [
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
    ]
    english = units[1:] + teens
    for ten in tens:
        english += [ten, *(f"{ten}-{unit}" for unit in units)]
    assert {
        word: german_number(number) for number, word in enumerate(english, 2)
    } == lexicon.NUMBERS
    spot = {
        "sixteen": "sechzehn",
        "seventeen": "siebzehn",
        "twenty-one": "einundzwanzig",
        "thirty": "dreißig",
    }
    assert spot.items() <= lexicon.NUMBERS.items()


@given(
    noun=st.sampled_from([noun for noun in lexicon.NOUNS if noun.plural]),
    determiner=st.sampled_from([*grammar.ARTICLES, "seven", "forty-two"]),
    adjective=st.sampled_from(["", "old", "tired"]),
    plural=st.booleans(),
)
def test_phrases_agree(noun: lexicon.Noun, determiner: str, adjective: str, plural: bool) -> None:
    plural = plural or determiner in lexicon.NUMBERS
    phrase = noun_phrase(noun, determiner, adjective, plural)
    nominative, accusative, dative = (phrase.german[case].split() for case in ("nom", "acc", "dat"))
    assert (
        len(nominative) == len(accusative) == len(dative) == len(phrase.words)
        or determiner == "not a"
    )
    assert (nominative == accusative) == (plural or noun.gender != "m")
    assert dative[-1][0].isupper()
    if plural:
        assert dative[-1][-1] in "ns"
    if adjective and (determiner != "a" or not plural):
        assert dative[-2].endswith("en")
    if adjective and not plural and determiner in ("a", "my", "not a"):
        assert nominative[-2].endswith({"m": "er", "f": "e", "n": "es"}[noun.gender])


def test_sentences_look_like_sentences(streams: dict[str, list[Sentence]]) -> None:
    for sentence in streams["train"]:
        for text in (sentence.source, sentence.target):
            assert text[0].isupper()
            assert text[-1] in ".?"
            assert "  " not in text
        assert 4 <= len(sentence.source.split()) <= 20
        assert "you" not in words(sentence.source.lower())


def test_the_verb_closes_subordinate_clauses(streams: dict[str, list[Sentence]]) -> None:
    tenses = ("present", "past", "perfect", *grammar.AUXILIARIES)
    closing = {
        grammar.german_verb(verb, tense, plural)[2].split()[-1]
        for verb in lexicon.VERBS
        for tense in tenses
        for plural in (False, True)
    }
    trailing = [
        s.target for s in streams["train"] if ", weil " in s.target or ", dass " in s.target
    ]
    assert len(trailing) > 5_000
    assert all(target[:-1].split()[-1] in closing for target in trailing)


# --- a parser: the grammar run backwards by trying every choice that can still yield the wanted
# English -------------


class DeadEnd(Exception):
    """The choices so far do not lead to the wanted sentence."""


class Guided(Draft):
    """A draft that takes its choices from a path and gives up as soon as the English differs from
    what is wanted.
    """

    def __init__(self, wanted: list[str], path: list[int]) -> None:
        super().__init__(self.toss)
        self.wanted, self.path, self.widths = wanted, path, list[int]()

    def branch(self, width: int) -> int:
        at = len(self.widths)
        self.widths.append(width)
        if at == len(self.path):
            self.path.append(0)
        return self.path[at]

    def toss(self) -> float:
        return (0.0, 0.999)[self.branch(2)]

    def pick(self, options: Sequence[Any]) -> Any:
        useful: list[Any] = []
        for option in options:
            if self.useful(option) and option not in useful:
                useful.append(option)
        if not useful:
            raise DeadEnd
        return useful[self.branch(len(useful))]

    def useful(self, option: Any) -> bool:
        match option:
            case lexicon.Noun():
                return option.english in self.wanted or option.plural in self.wanted
            case lexicon.Verb():
                forms = (option.base, option.third, option.past, option.participle)
                return option is BE or not set(forms).isdisjoint(self.wanted)
            case lexicon.Frame():
                return not set(option.verbs).isdisjoint(self.wanted)
            case grammar.Phrase():
                return option.words[0] in self.wanted
            case (lexicon.Noun() as subject, lexicon.Noun() as other, _):
                return self.useful(subject) and self.useful(other)
            case (str(english), str(), *_):
                return set(english.split()) <= set(self.wanted)
            case str() if (
                option in lexicon.ADJECTIVES or option in lexicon.NUMBERS or option in ("the", "my")
            ):
                return option in self.wanted
        return True

    def noun(self, kinds: str) -> lexicon.Noun:
        noun = self.pick([noun for noun in grammar.nouns(kinds) if noun not in self.used])
        self.used.add(noun)
        return noun

    def check(self, index: int) -> int:
        if [word.strip(",") for word in self.words] != self.wanted[: len(self.words)]:
            raise DeadEnd
        return index

    def say(self, text: str) -> int:
        return self.check(super().say(text))

    def put(self, phrase: grammar.Phrase) -> int:
        return self.check(super().put(phrase))


def translations(english: str) -> set[str]:
    """Every German sentence that the grammar has for the English one."""
    wanted = [word.strip(".,?") for word in (english[0].lower() + english[1:]).split()]
    patterns = [pattern for pattern, _ in builtin.PATTERNS]
    patterns += [
        lambda draft: builtin.pronoun(draft, False),
        lambda draft: builtin.pronoun(draft, True),
    ]
    found = set()
    for pattern in patterns:
        path: list[int] = []
        while True:
            draft = Guided(wanted, path)
            try:
                german = pattern(draft)
                if " ".join(draft.words) + draft.mark == english[0].lower() + english[1:]:
                    found.add(german[0].upper() + german[1:] + draft.mark)
            except DeadEnd:
                pass
            del path[len(draft.widths) :]
            while path and path[-1] + 1 == draft.widths[len(path) - 1]:
                path.pop()
            if not path:
                break
            path[-1] += 1
    return found


GOLDEN = """
The old dog sees a small cat. | Der alte Hund sieht eine kleine Katze.
The woman opens the window. | Die Frau macht das Fenster auf.
Today the man reads a book. | Heute liest der Mann ein Buch.
The father gives a long letter to the small child. | Der Vater gibt dem kleinen Kind einen langen Brief.
My friendly aunt has helped these tired horses. | Meine freundliche Tante hat diesen müden Pferden geholfen.
The cat sleeps under the table. | Die Katze schläft unter dem Tisch.
The children run into the garden. | Die Kinder laufen in den Garten.
The girl puts the doll on a chair. | Das Mädchen legt die Puppe auf einen Stuhl.
She goes to the station. | Sie geht zum Bahnhof.
In the evening the duck will fall asleep behind the barn. | Am Abend wird die Ente hinter der Scheune einschlafen.
The man who bought the car is happy. | Der Mann, der das Auto kaufte, ist glücklich.
The apple that the boy ate was sour. | Der Apfel, den der Junge aß, war sauer.
The child sees the dog that chased the cat. | Das Kind sieht den Hund, der die Katze jagte.
The dog sleeps in the house because the woman opens the window. | Der Hund schläft im Haus, weil die Frau das Fenster aufmacht.
When the doctor came back, the boys sat in the kitchen. | Als der Arzt zurückkam, saßen die Jungen in der Küche.
The teacher says that the farmer must repair the tractor. | Der Lehrer sagt, dass der Bauer den Traktor reparieren muss.
The queen tries to switch off an oven. | Die Königin versucht, einen Ofen auszuschalten.
The boy comes back in order to tidy the room. | Der Junge kommt zurück, um das Zimmer aufzuräumen.
The brother does not eat an egg. | Der Bruder isst kein Ei.
The horses could not follow the farmer. | Die Pferde konnten dem Bauern nicht folgen.
The man reads the message, but the dog does not wait. | Der Mann liest die Nachricht, aber der Hund wartet nicht.
Twenty-three dogs chase a fox. | Dreiundzwanzig Hunde jagen einen Fuchs.
The sister helps sixty-six small birds. | Die Schwester hilft sechsundsechzig kleinen Vögeln.
The letter was written by the teacher. | Der Brief wurde vom Lehrer geschrieben.
Why does the mother invite the doctors? | Warum lädt die Mutter die Ärzte ein?
The animal did not cross the street because it was too tired. | Das Tier überquerte die Straße nicht, weil es zu müde war.
The animal did not cross the street because it was too wide. | Das Tier überquerte die Straße nicht, weil sie zu breit war.
The table did not fit through the door because it was too big. | Der Tisch passte nicht durch die Tür, weil er zu groß war.
The table did not fit through the door because it was too narrow. | Der Tisch passte nicht durch die Tür, weil sie zu schmal war.
Yesterday my blanket could not cover the bed since it was much too wide. | Gestern konnte meine Decke das Bett nicht bedecken, da es viel zu breit war.
The fence does not stop the black car because it is so low. | Der Zaun hält das schwarze Auto nicht auf, weil er so niedrig ist.
"""  # noqa: E501


@pytest.mark.parametrize("line", GOLDEN.strip().splitlines())
def test_golden_sentences_have_exactly_this_translation(line: str) -> None:
    english, german = line.split(" | ")
    assert translations(english) == {german}
