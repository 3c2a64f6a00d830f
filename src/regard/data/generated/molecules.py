"""Molecules in SMILES (Weininger 1988): random ones, and whether a text is one.

Atoms are those of organic chemistry without charges: B, C, N, O, P, S, F, Cl, Br, I and [nH].
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

# The bonds that an atom may have; the others, up to the next of these, are to hydrogen.
VALENCES = {
    "B": (3,),
    "C": (4,),
    "N": (3,),
    "O": (2,),
    "P": (3, 5),
    "S": (2, 4, 6),
    **dict.fromkeys(("F", "Cl", "Br", "I"), (1,)),
}
ORDERS = {"-": 1, "=": 2, "#": 3}
_TOKEN = re.compile(r"\[nH\]|Cl|Br|[BCNOPSFI]|[bcnops]|[-=#()]|[1-9]|%[1-9][0-9]")
_MOST_STEPS = 20_000  # of the search for double bonds


@dataclass
class Molecule:
    """Atoms by their symbols, lower case where aromatic, and the orders of the bonds between
    them; a bond of an aromatic ring has the order 0, for it is single or double."""

    atoms: list[str] = field(default_factory=list)
    # Of each atom: those that it is bound to, and the orders of the bonds.
    neighbours: list[dict[int, int]] = field(default_factory=list)

    def add(self, symbol: str) -> int:
        self.atoms.append(symbol)
        self.neighbours.append({})
        return len(self.atoms) - 1

    def bind(self, first: int, second: int, order: int) -> bool:
        """Makes a bond; False where there is one, or both are the same atom."""
        if first == second or second in self.neighbours[first]:
            return False
        self.neighbours[first][second] = order
        self.neighbours[second][first] = order
        return True

    def bonds(self) -> list[tuple[int, int]]:
        """All pairs of atoms that are bound, the first one first."""
        return [
            (atom, other)
            for atom, others in enumerate(self.neighbours)
            for other in others
            if atom < other
        ]

    def is_aromatic(self, atom: int) -> bool:
        return self.atoms[atom][0] == "[" or self.atoms[atom].islower()

    def free(self, atom: int) -> int:
        """How many more bonds an atom may have, at the least of its valences; negative where it
        has too many at the largest."""
        orders = self.neighbours[atom].values()
        if self.atoms[atom] in ("[nH]", "o", "s"):
            return 2 - len(orders)
        count = sum(max(1, order) for order in orders)
        symbol = self.atoms[atom].capitalize()
        # A carbon of an aromatic ring has one more bond there; others may have it or not.
        count += self.atoms[atom] == "c" and all(order < 2 for order in orders)
        valences = VALENCES[symbol]
        return next((most - count for most in valences if most >= count), valences[-1] - count)


# ------------------------------------------------------------------ reading


def read(text: str) -> Molecule | None:
    """The molecule of a SMILES; None where it is none by its grammar."""
    tokens = _TOKEN.findall(text)
    if not text or "".join(tokens) != text:
        return None
    molecule = Molecule()
    branches: list[int] = []
    rings: dict[str, tuple[int, int | None]] = {}  # open ones: the atom and the order
    last: int | None = None
    order: int | None = None
    before = ""
    for token in tokens:
        if token in ORDERS:
            if last is None or order is not None:
                return None
            order = ORDERS[token]
        elif token == "(":
            if last is None or order is not None or before == "(":
                return None
            branches.append(last)
        elif token == ")":
            if not branches or order is not None or before == "(":
                return None
            last = branches.pop()
        elif token[-1].isdigit():
            if last is None or before == "(" or not _close(molecule, rings, token, last, order):
                return None
            order = None
        else:
            atom = molecule.add(token)
            if last is not None:
                molecule.bind(last, atom, _order(molecule, last, atom, order))
            last = atom
            order = None
        before = token
    complete = not branches and not rings and order is None
    return molecule if complete else None


def _order(molecule: Molecule, first: int, second: int, order: int | None) -> int:
    """The order of a bond that may not be written."""
    if order is not None:
        return order
    aromatic = molecule.is_aromatic(first) and molecule.is_aromatic(second)
    return 0 if aromatic else 1


def _close(
    molecule: Molecule,
    rings: dict[str, tuple[int, int | None]],
    number: str,
    atom: int,
    order: int | None,
) -> bool:
    """Opens a ring of this number, or closes it; False where that cannot be."""
    if number not in rings:
        rings[number] = (atom, order)
        return True
    first, written = rings.pop(number)
    if written is not None and order is not None and written != order:
        return False
    return molecule.bind(first, atom, _order(molecule, first, atom, written or order))


# ------------------------------------------------------------------ chemistry


def is_valid(text: str) -> bool:
    """Whether a text is the SMILES of a molecule: its grammar, its valences, and double bonds that
    can be placed in its aromatic rings."""
    molecule = read(text)
    if molecule is None:
        return False
    atoms = range(len(molecule.atoms))
    in_rings = _ring_bonds(molecule)
    for first, second in molecule.bonds():
        if molecule.neighbours[first][second] == 0 and (first, second) not in in_rings:
            # Between two rings.
            molecule.neighbours[first][second] = molecule.neighbours[second][first] = 1
    if any(molecule.free(atom) < 0 for atom in atoms):
        return False
    ring_atoms = {atom for pair in in_rings for atom in pair}
    aromatic = [atom for atom in atoms if molecule.is_aromatic(atom)]
    if any(atom not in ring_atoms for atom in aromatic):
        return False
    return _has_double_bonds(molecule, aromatic)


def _ring_bonds(molecule: Molecule) -> set[tuple[int, int]]:
    """The bonds that are part of a ring: those without which their atoms stay connected."""
    in_rings = set()
    for first, second in molecule.bonds():
        reached = {first}
        todo = [first]
        while todo:
            atom = todo.pop()
            for other in molecule.neighbours[atom].keys() - reached:
                if (atom, other) != (first, second):
                    reached.add(other)
                    todo.append(other)
        if second in reached:
            in_rings.add((first, second))
    return in_rings


def _has_double_bonds(molecule: Molecule, aromatic: list[int]) -> bool:
    """Whether each aromatic atom that needs one has a double bond to another one that does."""
    needs = {atom for atom in aromatic if _needs_double_bond(molecule, atom)}
    partners = {
        atom: [
            other
            for other, order in molecule.neighbours[atom].items()
            if order == 0 and other in needs
        ]
        for atom in needs
    }
    steps = 0

    def place(rest: frozenset[int]) -> bool:
        nonlocal steps
        steps += 1
        if not rest:
            return True
        if steps > _MOST_STEPS:
            return False
        atom = min(rest, key=lambda one: sum(other in rest for other in partners[one]))
        return any(place(rest - {atom, other}) for other in partners[atom] if other in rest)

    return place(frozenset(needs))


def _needs_double_bond(molecule: Molecule, atom: int) -> bool:
    """Whether an aromatic atom has exactly one double bond in its rings."""
    orders = molecule.neighbours[atom].values()
    match molecule.atoms[atom]:
        case "c":
            return all(order < 2 for order in orders)
        case "n" | "p":
            return len(orders) == 2  # with three, or [nH], it gives a pair of electrons
        case _:
            return False


# ------------------------------------------------------------------ writing


def write(molecule: Molecule, rng: random.Random) -> str:
    """A SMILES of a molecule, from a random atom."""
    symbols = {1: "", 0: "", 2: "=", 3: "#"}
    start = rng.randrange(len(molecule.atoms))
    children: dict[int, list[int]] = {}
    closures: dict[int, list[tuple[int, int]]] = {}  # numbered pairs, of both atoms
    reached = {start}
    ring_ends: set[tuple[int, int]] = set()

    def visit(atom: int, parent: int | None) -> None:
        children[atom] = []
        others = list(molecule.neighbours[atom])
        rng.shuffle(others)
        for other in others:
            pair = (min(atom, other), max(atom, other))
            if other == parent or pair in ring_ends:
                continue
            if other in reached:
                ring_ends.add(pair)
                for end in pair:
                    closures.setdefault(end, []).append(pair)
            else:
                reached.add(other)
                children[atom].append(other)
                visit(other, atom)

    def bond(first: int, second: int) -> str:
        order = molecule.neighbours[first][second]
        aromatic = molecule.is_aromatic(first) and molecule.is_aromatic(second)
        return "-" if aromatic and order == 1 else symbols[order]

    numbers: dict[tuple[int, int], int] = {}

    def written(atom: int) -> str:
        text = molecule.atoms[atom]
        for pair in closures.get(atom, ()):
            if pair in numbers:
                text += str(numbers.pop(pair))
            else:
                number = next(n for n in range(1, 10) if n not in numbers.values())
                numbers[pair] = number
                text += bond(*pair) + str(number)
        branches = [bond(atom, child) + written(child) for child in children[atom]]
        return text + "".join(f"({branch})" for branch in branches[:-1]) + "".join(branches[-1:])

    visit(start, None)
    return written(start)


# ------------------------------------------------------------------ random molecules

# Rings by the symbols of their atoms: aromatic ones, and others.
RINGS = (
    *("cccccc", "cccccc", "ccccnc", "cncncc", "cccoc", "cccsc", "ccc[nH]c"),
    *("CCCCCC", "CCCCC", "CCOCC", "CCNCCC", "CCOCCN", "CCC"),
)
ATOMS = ("C",) * 10 + ("N",) * 3 + ("O",) * 3 + ("S", "F", "F", "Cl", "Cl", "Br")


def grown(rng: random.Random, size: int) -> Molecule:
    """A random molecule of so many atoms besides hydrogen.

    It grows by atoms and rings, each bound to a random atom that has a bond left.
    """
    molecule = Molecule()
    while len(molecule.atoms) < size:
        open_atoms = [atom for atom in range(len(molecule.atoms)) if _is_open(molecule, atom)]
        if molecule.atoms and not open_atoms:
            molecule = Molecule()  # full: begun anew
            continue
        symbols = _TOKEN.findall(rng.choice(RINGS)) if rng.random() < 0.15 else [rng.choice(ATOMS)]
        if len(molecule.atoms) + len(symbols) > size:
            symbols = ["C"]
        new = [molecule.add(symbol) for symbol in symbols]
        for first, second in zip(new, new[1:] + new[:1], strict=True):
            molecule.bind(first, second, 0 if molecule.is_aromatic(first) else 1)
        if open_atoms:
            here = rng.choice(open_atoms)
            there = rng.choice([atom for atom in new if _is_open(molecule, atom)])
            most = min(3, molecule.free(here), molecule.free(there))
            single = len(new) > 1 or molecule.is_aromatic(here)
            order = 1 if single else min(most, rng.choices((1, 2, 3), (85, 12, 3))[0])
            molecule.bind(here, there, order)
    return molecule


def _is_open(molecule: Molecule, atom: int) -> bool:
    """Whether a grown molecule may have one more bond here: of aromatic atoms, at carbon only."""
    fits = molecule.atoms[atom] == "c" or not molecule.is_aromatic(atom)
    return fits and molecule.free(atom) > 0
