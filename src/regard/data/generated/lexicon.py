"""The words of the built-in English–German language, as plain tables.

A table is text: its entries are divided by line ends or `;`, their columns by `|`, so that a reader
(or a German teacher) can check it at a glance. `grammar.py` inflects these words and `builtin.py`
makes sentences of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Columns = tuple[str, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Noun:
    """A noun in both languages.

    `kinds` says which verbs and places it fits; the first one is its sort.
    """

    english: str
    plural: str  # empty: used in the singular only, and never with "a"
    german: str
    german_plural: str
    oblique: str  # accusative and dative singular: differs for weak nouns only (den Jungen)
    gender: str  # "m", "f" or "n"
    kinds: frozenset[str]
    sort: str


@dataclass(frozen=True, eq=False, slots=True)
class Verb:
    """A verb in both languages, with its frame and the kinds of subject and object it takes."""

    base: str
    third: str
    past: str
    participle: str
    particle: str  # English: throw … away
    prefix: str  # German separable prefix: weg|werfen
    infinitive: str
    german_third: str
    german_past: str
    auxiliary: str  # of the perfect: "hat" or "ist"
    german_participle: str
    frame: str
    subjects: str
    objects: str


@dataclass(frozen=True, slots=True)
class Frame:
    """A kind of pronoun sentence: SUBJECT did not VERB OBJECT because it was too ADJECTIVE."""

    verbs: tuple[str, ...]
    # English and German, or empty; the German one takes the accusative.
    preposition: tuple[str, str]
    subjects: str  # kinds of nouns, as for verbs
    objects: str
    subject_adjectives: tuple[str, ...]  # "it" is then the subject
    object_adjectives: tuple[str, ...]  # "it" is then the object


def _rows(table: str) -> Iterator[list[str]]:
    for entry in table.strip().replace(";", "\n").splitlines():
        yield [cell.strip() for cell in entry.split("|")]


def _pairs(table: str) -> dict[str, str]:
    return dict(pair.split() for pair in table.split(","))


def _table(rows: str) -> tuple[Columns, ...]:
    return tuple(tuple(cells) for cells in _rows(rows))


def _words(table: str) -> dict[str, Columns]:
    return {name: tuple(words.split()) for name, words in _rows(table)}


def _frame(cells: list[str]) -> Frame:
    verbs, prepositions, subjects, objects, of_subject, of_object = cells
    english, _, german = prepositions.partition(" ")
    return Frame(
        tuple(verbs.split()),
        (english, german),
        subjects,
        objects,
        tuple(of_subject.split()),
        tuple(of_object.split()),
    )


def _noun(cells: list[str]) -> Noun:
    english, german, gender, kinds = cells
    # Columns at the end may be missing.
    singular, plural = [*english.split(), ""][:2]
    nominative, german_plural, oblique = [*german.split(), "", ""][:3]
    names = kinds.split()
    return Noun(
        singular,
        plural,
        nominative,
        german_plural,
        oblique or nominative,
        gender,
        frozenset(names),
        names[0],
    )


def _verb(cells: list[str]) -> Verb:
    english, german, frame, subjects, objects = cells
    infinitive, *german_forms = german.split()
    prefix, _, stem = infinitive.rpartition("+")  # weg+werfen; no prefix without a "+"
    english_forms = [*english.split(), ""][:5]  # most have no particle
    columns = (*english_forms, prefix, stem, *german_forms, frame, subjects, objects)
    return Verb(*columns)


# English singular and plural | German singular, plural and, for weak nouns, accusative
# | gender | kinds
_NOUNS = """
    man men | Mann Männer | m | person unowned ; woman women | Frau Frauen | f | person unowned
    child children | Kind Kinder | n | person kid
    girl girls | Mädchen Mädchen | n | person kid unowned
    boy boys | Junge Jungen Jungen | m | person kid unowned
    teacher teachers | Lehrer Lehrer | m | person
    doctor doctors | Arzt Ärzte | m | person
    farmer farmers | Bauer Bauern Bauern | m | person unowned
    queen queens | Königin Königinnen | f | person unowned ; father | Vater | m | person
    mother | Mutter | f | person
    brother brothers | Bruder Brüder | m | person
    sister sisters | Schwester Schwestern | f | person
    aunt aunts | Tante Tanten | f | person
    dog dogs | Hund Hunde | m | animal ; bird birds | Vogel Vögel | m | animal
    fox foxes | Fuchs Füchse | m | animal
    donkey donkeys | Esel Esel | m | animal ; wolf wolves | Wolf Wölfe | m | animal
    cow cows | Kuh Kühe | f | animal
    cat cats | Katze Katzen | f | animal ; mouse mice | Maus Mäuse | f | animal
    goat goats | Ziege Ziegen | f | animal
    duck ducks | Ente Enten | f | animal ; animal animals | Tier Tiere | n | animal
    horse horses | Pferd Pferde | n | animal ; lamb lambs | Lamm Lämmer | n | animal
    pig pigs | Schwein Schweine | n | animal ; rabbit rabbits | Kaninchen Kaninchen | n | animal
    path | Weg | m | place way ; square | Platz | m | place way open
    yard | Hof | m | place way open indoors
    street streets | Straße Straßen | f | place way open ; meadow | Wiese | f | place way open
    bridge bridges | Brücke Brücken | f | place way open support built
    field | Feld | n | place way open
    valley | Tal | n | place way unowned ; terrain | Gelände | n | place way unowned
    stable stables | Stall Ställe | m | place indoors room built
    cellar | Keller | m | place indoors room
    tower towers | Turm Türme | m | place indoors room built goal
    kitchen | Küche | f | place indoors room
    barn barns | Scheune Scheunen | f | place indoors room built
    room rooms | Zimmer Zimmer | n | place indoors room
    church churches | Kirche Kirchen | f | place indoors room built goal
    forest | Wald | m | place indoors passage
    house houses | Haus Häuser | n | place indoors room built
    tent tents | Zelt Zelte | n | place indoors room
    garden gardens | Garten Gärten | m | place indoors passage ; station | Bahnhof | m | place goal
    city | Stadt | f | place indoors passage
    school schools | Schule Schulen | f | place indoors goal built
    village | Dorf | n | place indoors passage
    apple apples | Apfel Äpfel | m | food ; cake cakes | Kuchen Kuchen | m | food
    cheese | Käse | m | food
    mushroom mushrooms | Pilz Pilze | m | food ; sausage sausages | Wurst Würste | f | food
    bread | Brot | n | food
    pear pears | Birne Birnen | f | food ; potato potatoes | Kartoffel Kartoffeln | f | food
    meat | Fleisch | n | food
    nut nuts | Nuss Nüsse | f | food ; egg eggs | Ei Eier | n | food
    roll rolls | Brötchen Brötchen | n | food
    letter letters | Brief Briefe | m | text written laid
    message messages | Nachricht Nachrichten | f | text written laid
    story stories | Geschichte Geschichten | f | text written
    song songs | Lied Lieder | n | text written
    book books | Buch Bücher | n | text goods laid written
    ball balls | Ball Bälle | m | thing goods laid ; hat hats | Hut Hüte | m | thing goods laid
    pot pots | Topf Töpfe | m | thing goods ; stick sticks | Stock Stöcke | m | thing goods laid
    bottle bottles | Flasche Flaschen | f | thing goods lid
    doll dolls | Puppe Puppen | f | thing goods laid
    vase vases | Vase Vasen | f | thing goods ; lamp lamps | Lampe Lampen | f | thing goods device
    pillow pillows | Kissen Kissen | n | thing goods laid
    parcel parcels | Paket Pakete | n | thing goods laid
    picture pictures | Bild Bilder | n | thing goods laid
    suitcase suitcases | Koffer Koffer | m | thing container lid
    basket baskets | Korb Körbe | m | thing container
    bucket buckets | Eimer Eimer | m | thing container
    bag bags | Tasche Taschen | f | thing container lid
    crate crates | Kiste Kisten | f | thing container
    drawer drawers | Schublade Schubladen | f | thing container lid
    compartment | Fach | n | thing container
    net nets | Netz Netze | n | thing container cover barrier
    barrel barrels | Fass Fässer | n | thing container load
    table tables | Tisch Tische | m | thing furniture surface support covered
    chair chairs | Stuhl Stühle | m | thing furniture surface support
    mattress | Matratze | f | thing furniture
    cupboard cupboards | Schrank Schränke | m | thing furniture lid
    mirror mirrors | Spiegel Spiegel | m | thing furniture covered
    bench benches | Bank Bänke | f | thing furniture surface support covered
    chest chests | Truhe Truhen | f | thing furniture surface covered lid
    ladder ladders | Leiter Leitern | f | thing furniture support
    sofa sofas | Sofa Sofas | n | thing furniture surface
    bed beds | Bett Betten | n | thing furniture surface covered
    piano pianos | Klavier Klaviere | n | thing furniture surface covered load
    shelf shelves | Regal Regale | n | thing furniture support
    entrance | Eingang | m | thing opening ; tunnel | Tunnel | m | thing opening passage
    hallway | Flur | m | thing opening passage
    door doors | Tür Türen | f | thing opening passage lid
    opening | Öffnung | f | thing opening ; gap | Lücke | f | thing opening
    hole | Loch | n | thing opening
    gate gates | Tor Tore | n | thing opening passage lid barrier
    window windows | Fenster Fenster | n | thing opening lid covered
    bus buses | Bus Busse | m | thing vehicle ; train trains | Zug Züge | m | thing vehicle
    tractor tractors | Traktor Traktoren | m | thing vehicle
    carriage carriages | Kutsche Kutschen | f | thing vehicle
    tram trams | Straßenbahn Straßenbahnen | f | thing vehicle
    car cars | Auto Autos | n | thing vehicle
    locomotive locomotives | Lokomotive Lokomotiven | f | thing vehicle
    motorcycle motorcycles | Motorrad Motorräder | n | thing vehicle
    bicycle bicycles | Fahrrad Fahrräder | n | thing vehicle
    beam | Balken | m | thing support barrier ; board | Brett | n | thing support
    roof | Dach | n | thing support
    oven ovens | Ofen Öfen | m | thing load covered device
    engine engines | Motor Motoren | m | thing load device
    rock | Felsen | m | thing load ; statue | Statue | f | thing load
    bell | Glocke | f | thing load
    machine machines | Maschine Maschinen | f | thing load covered device
    monument | Denkmal | n | thing load
    carpet | Teppich | m | thing cover ; curtain | Vorhang | m | thing cover
    coat | Mantel | m | thing cover
    blanket | Decke | f | thing cover ; tarp | Plane | f | thing cover
    mat | Matte | f | thing cover
    cloth | Tuch | n | thing cover ; towel | Handtuch | n | thing cover
    fence | Zaun | m | thing barrier ; dam | Damm | m | thing barrier
    hedge | Hecke | f | thing barrier
    wall walls | Mauer Mauern | f | thing barrier built ; barrier | Schranke | f | thing barrier
    rope | Seil | n | thing barrier
"""
NOUNS = tuple(_noun(cells) for cells in _rows(_NOUNS))

# English forms and particle | German infinitive, 3rd person, past, perfect
# | frame | subjects | objects
_VERBS = """
    sleep sleeps slept slept | schlafen schläft schlief hat geschlafen | stay | person animal |
    sit sits sat sat | sitzen sitzt saß hat gesessen | stay | person animal |
    stand stands stood stood | stehen steht stand hat gestanden | stay | person animal |
    fall falls fell fallen asleep | ein+schlafen schläft schlief ist eingeschlafen | stay \
        | person animal |
    wait waits waited waited | warten wartet wartete hat gewartet | join | person animal |
    play plays played played | spielen spielt spielte hat gespielt | join | person animal |
    work works worked worked | arbeiten arbeitet arbeitete hat gearbeitet | join | person |
    sing sings sang sung | singen singt sang hat gesungen | join | person |
    dance dances danced danced | tanzen tanzt tanzte hat getanzt | join | person |
    get gets got got up | auf+stehen steht stand ist aufgestanden | alone | person animal |
    come comes came come back | zurück+kommen kommt kam ist zurückgekommen | alone | person animal |
    arrive arrives arrived arrived | an+kommen kommt kam ist angekommen | alone | person |
    run runs ran run | laufen läuft lief ist gelaufen | go | person animal |
    go goes went gone | gehen geht ging ist gegangen | go | person |
    come comes came come | kommen kommt kam ist gekommen | go | person animal |
    put puts put put | legen legt legte hat gelegt | put | person | laid
    see sees saw seen | sehen sieht sah hat gesehen | acc | person animal \
        | person animal vehicle goods
    buy buys bought bought | kaufen kauft kaufte hat gekauft | for | person \
        | goods food vehicle furniture
    find finds found found | finden findet fand hat gefunden | acc | person animal \
        | goods animal food
    look looks looked looked for | suchen sucht suchte hat gesucht | acc | person animal \
        | person animal goods
    read reads read read | lesen liest las hat gelesen | acc | person | text
    write writes wrote written | schreiben schreibt schrieb hat geschrieben | for | person | written
    eat eats ate eaten | essen isst aß hat gegessen | acc | person | food
    eat eats ate eaten | fressen frisst fraß hat gefressen | acc | animal | food
    visit visits visited visited | besuchen besucht besuchte hat besucht | acc | person | person
    repair repairs repaired repaired | reparieren repariert reparierte hat repariert | acc \
        | person | vehicle furniture
    build builds built built | bauen baut baute hat gebaut | for | person | built
    wash washes washed washed | waschen wäscht wusch hat gewaschen | acc | person | vehicle animal
    chase chases chased chased | jagen jagt jagte hat gejagt | acc | animal | animal
    carry carries carried carried | tragen trägt trug hat getragen | acc | person animal | goods
    open opens opened opened | auf+machen macht machte hat aufgemacht | acc | person | lid
    close closes closed closed | zu+machen macht machte hat zugemacht | acc | person | lid
    call calls called called | an+rufen ruft rief hat angerufen | acc | person | person
    invite invites invited invited | ein+laden lädt lud hat eingeladen | acc | person | person
    pick picks picked picked up | ab+holen holt holte hat abgeholt | acc | person | person
    throw throws threw thrown away | weg+werfen wirft warf hat weggeworfen | acc | person \
        | goods food
    look looks looked looked at | an+sehen sieht sah hat angesehen | acc | person animal \
        | goods person animal vehicle
    bring brings brought brought back | zurück+bringen bringt brachte hat zurückgebracht | acc \
        | person | goods animal
    take takes took taken along | mit+nehmen nimmt nahm hat mitgenommen | acc | person \
        | goods animal
    tidy tidies tidied tidied | auf+räumen räumt räumte hat aufgeräumt | acc | person | room
    switch switches switched switched on | ein+schalten schaltet schaltete hat eingeschaltet \
        | acc | person | device
    switch switches switched switched off | aus+schalten schaltet schaltete hat ausgeschaltet \
        | acc | person | device
    help helps helped helped | helfen hilft half hat geholfen | dat | person | person animal
    follow follows followed followed | folgen folgt folgte ist gefolgt | dat | person animal \
        | person animal
    thank thanks thanked thanked | danken dankt dankte hat gedankt | dat | person | person
    listen listens listened listened to | zu+hören hört hörte hat zugehört | dat | person animal \
        | person
    give gives gave given | geben gibt gab hat gegeben | give | person | goods food laid
    show shows showed shown | zeigen zeigt zeigte hat gezeigt | give | person \
        | goods animal text vehicle
    send sends sent sent | schicken schickt schickte hat geschickt | give | person | goods laid
    bring brings brought brought | bringen bringt brachte hat gebracht | give | person | goods food
    give gives gave given back | zurück+geben gibt gab hat zurückgegeben | give | person \
        | goods vehicle
    have has had had | haben hat hatte hat gehabt | own | person | animal vehicle goods
    be is was been | sein ist war ist gewesen | be | person animal goods vehicle furniture |
    say says said said | sagen sagt sagte hat gesagt | that | person |
    believe believes believed believed | glauben glaubt glaubte hat geglaubt | that | person |
    know knows knew known | wissen weiß wusste hat gewusst | that | person |
    hope hopes hoped hoped | hoffen hofft hoffte hat gehofft | that | person |
    try tries tried tried | versuchen versucht versuchte hat versucht | to | person |
    hope hopes hoped hoped | hoffen hofft hoffte hat gehofft | to | person |
    forget forgets forgot forgotten | vergessen vergisst vergaß hat vergessen | to | person |
    promise promises promised promised | versprechen verspricht versprach hat versprochen | to \
        | person |
    cross crosses crossed crossed | überqueren überquert überquerte hat überquert | it | |
    want wants wanted wanted | wollen will wollte hat gewollt | it | |
    fetch fetches fetched fetched | holen holt holte hat geholt | it | |
    enter enters entered entered | betreten betritt betrat hat betreten | it | |
    fit fits fit fit | passen passt passte hat gepasst | it | |
    support supports supported supported | tragen trägt trug hat getragen | it | |
    overtake overtakes overtook overtaken | überholen überholt überholte hat überholt | it | |
    cover covers covered covered | bedecken bedeckt bedeckte hat bedeckt | it | |
    stop stops stopped stopped | auf+halten hält hielt hat aufgehalten | it | |
"""
VERBS = tuple(_verb(cells) for cells in _rows(_VERBS))

ADJECTIVES = _pairs("""
    old alt, young jung, new neu, small klein, big groß, long lang, short kurz, wide breit,
    narrow schmal, tall hoch,
    low niedrig, thick dick, thin dünn, flat flach, tiny winzig, enormous riesig, massive massiv,
    heavy schwer,
    weak schwach, soft weich, stiff steif, full voll, tight eng, bulky sperrig,
    unwieldy unhandlich, smooth glatt,
    slow langsam, fast schnell, powerful stark, agile wendig, nimble flink, sluggish träge,
    rusty rostig,
    unstable instabil, rotten morsch, steep steil, uneven uneben, stony steinig, bumpy holprig,
    cramped eng, dusty staubig, empty leer, crowded überfüllt, dilapidated baufällig, modern modern,
    salty salzig, bitter bitter, sour sauer, spicy scharf, dry trocken, tough zäh, fresh frisch,
    tired müde, lazy faul, sick krank, sleepy schläfrig, nervous nervös, exhausted erschöpft,
    anxious ängstlich,
    hungry hungrig, thirsty durstig, sated satt, clumsy ungeschickt, happy glücklich,
    friendly freundlich,
    red rot, blue blau, black schwarz, white weiß, brown braun, strange seltsam, beautiful schön
""")

# Adjectives before a noun, and after "is", by the sort of the noun.
ATTRIBUTES = _words("""
    person | old young friendly tired happy strange
    kid | small friendly tired happy strange
    animal | old young small big black white brown hungry tired beautiful
    food | small big fresh
    text | old new long short beautiful
    place | old new small big beautiful
    thing | old new small big red blue black white heavy beautiful
""")
PREDICATES = _words("""
    person | tired happy sick hungry old young nervous lazy friendly
    animal | tired hungry thirsty sick old young lazy black white
    food | fresh big small salty sour
    text | old new long short beautiful
    place | old new big small beautiful
    thing | old new heavy beautiful red blue black white small big
""")

COLOURS = ("red", "blue", "black", "white", "brown")  # nothing is "very" any of these

# Adjectives that may stand before either noun of a pronoun sentence: they say nothing about why
# something failed.
NEUTRAL = ("strange", "beautiful", "brown", "white", "black")

# Prepositions: English, German, its case, the kinds of noun that follow.
# German "in", "auf" and their like: dative for a place, accusative for a direction.
_BESIDE = """
    behind | hinter | dat | surface vehicle built
    next to | neben | dat | surface vehicle built
    in front of | vor | dat | vehicle built
"""
# Repeated entries are likelier.
_IN = "in | in | dat | indoors ; in | in | dat | indoors ; in | in | dat | indoors"
_ON = "on | auf | dat | surface ; under | unter | dat | surface"
PLACES = {"join": _table(_IN + _BESIDE), "stay": _table(_IN + _BESIDE + _ON)}
DIRECTIONS = _table("""
    into | in | acc | indoors
    to | zu | dat | goal
    to | zu | dat | person
    through | durch | acc | passage
    across | über | acc | open
""")
TARGETS = _table("""
    on | auf | acc | surface
    under | unter | acc | surface
    behind | hinter | acc | surface
    next to | neben | acc | surface
    into | in | acc | container
""")
WITH = _table("with | mit | dat | person animal")
FOR = _table("for | für | acc | person")
CONTRACTIONS = {"in dem": "im", "in das": "ins", "zu dem": "zum", "zu der": "zur", "von dem": "vom"}

# Conjunctions and the tenses of the main clause; "when" is "wenn" or "als".
CONJUNCTIONS = _table("""
    because | weil | present past
    because | weil | present past
    although | obwohl | present past
    while | während | present past
    before | bevor | present past
    when | | present past
    if | wenn | present
""")

# Adverbs of time and the tenses they go with.
ADVERBS = _table("""
    today | heute | present past perfect future can must should want could
    now | jetzt | present can must should want
    sometimes | manchmal | present past can
    every day | jeden Tag | present past must should
    in the evening | am Abend | present past future can must should could
    yesterday | gestern | past could
    last week | letzte Woche | past could
    tomorrow | morgen | future can must should want
    next week | nächste Woche | future can must should want
""")

# Adverbs that suit a single failure.
ONCE = ("today", "now", "in the evening", "yesterday", "last week")

# Verbs | English and German preposition | subjects | objects | adjectives of the subject
# | adjectives of the object. In the first four an adjective fits one sort of noun only. In the
# others both nouns are things, most adjectives could be said of either, and what the verb says
# about the two decides: "wide" is the table before a door, the bed under a blanket.
_FRAMES = """
    cross | | animal | way | tired sick sleepy nervous exhausted anxious lazy hungry thirsty \
        | wide long steep uneven stony bumpy
    eat want | | animal | food | tired sick sleepy nervous exhausted anxious sated \
        | salty bitter sour spicy dry tough
    enter | | animal | room | tired sick sleepy nervous exhausted anxious lazy \
        | cramped dusty empty crowded dilapidated modern
    carry fetch | | animal | goods | tired sick sleepy nervous exhausted anxious lazy clumsy \
        | heavy bulky unwieldy smooth thick wide
    fit | through durch | furniture | opening | big wide bulky tall thick long \
        | narrow small low tight tiny cramped
    fit | into in | goods | container | big wide bulky unwieldy thick long \
        | narrow small full tight tiny flat
    support | | support | load | weak thin old unstable rotten soft \
        | heavy big massive bulky enormous wide
    overtake | | vehicle | vehicle | slow weak old heavy rusty sluggish \
        | fast long wide agile nimble powerful
    cover | | cover | covered | small short narrow thin tiny stiff \
        | big long wide tall enormous bulky
    stop | | barrier | vehicle | low weak old short soft unstable \
        | fast heavy powerful big massive enormous
"""
FRAMES = tuple(_frame(cells) for cells in _rows(_FRAMES))

_UNITS = _pairs(
    "one ein, two zwei, three drei, four vier, five fünf, "
    "six sechs, seven sieben, eight acht, nine neun"
)
_TEENS = _pairs("""
    ten zehn, eleven elf, twelve zwölf, thirteen dreizehn, fourteen vierzehn, fifteen fünfzehn,
    sixteen sechzehn, seventeen siebzehn, eighteen achtzehn, nineteen neunzehn
""")
_TENS = _pairs("""
    twenty zwanzig, thirty dreißig, forty vierzig, fifty fünfzig,
    sixty sechzig, seventy siebzig, eighty achtzig, ninety neunzig
""")

# Two to ninety-nine, for use before plural nouns; from twenty-one on German says the unit first.
NUMBERS: dict[str, str] = _UNITS | _TEENS | _TENS
del NUMBERS["one"]  # no plural noun follows it
NUMBERS |= {f"{ten}-{unit}": f"{_UNITS[unit]}und{_TENS[ten]}" for ten in _TENS for unit in _UNITS}
NUMBER_WORDS = tuple(NUMBERS)
