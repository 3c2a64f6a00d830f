"""Serialization of specs to JSON values, with a closed schema."""

from __future__ import annotations

import dataclasses
import itertools
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from regard.spec.validation import Depth, Part, check_field, describe, type_hints
from regard.system.errors import ModelError, did_you_mean


def _subclasses(kind: type) -> Iterator[type]:
    subclasses: list[type] = kind.__subclasses__()
    for subclass in subclasses:
        yield from (subclass, *_subclasses(subclass))


# The `kind` written to JSON → its class: all parts, which the package imports before this file.
_KINDS = {kind.__name__: kind for kind in _subclasses(Part) if dataclasses.is_dataclass(kind)}


_REGISTERED: dict[str, type] = {}  # of `register`


def register(kind: type) -> None:
    """Makes a dataclass from outside the package known to every spec that is read from now on.

    It is for a program that its user has asked for this class: no file can name code to import.
    """
    _refuse_known_name(kind.__name__)
    _REGISTERED[kind.__name__] = kind


def to_dict(part: Any) -> Any:
    """Serializes a spec to JSON values; every part has its class name under `kind`.

    So does a part from outside the package; `from_dict` reads it when it is given the class.
    """
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        name = type(part).__name__
        if _KINDS.get(name) is not type(part):
            _refuse_known_name(name)
        fields = {f.name: to_dict(getattr(part, f.name)) for f in dataclasses.fields(part)}
        return {"kind": name, **fields}
    if isinstance(part, tuple):
        runs = [(item, len(list(run))) for item, run in itertools.groupby(part)]
        if any(dataclasses.is_dataclass(item) for item in part):  # equal blocks once
            return [to_dict(item) | {"repeat": n} if n > 1 else to_dict(item) for item, n in runs]
        return [to_dict(item) for item in part]
    if part is None or isinstance(part, bool | int | float | str):
        return part
    raise ModelError(
        f"{part!r} cannot be written to JSON",
        "make the part a frozen dataclass of numbers, texts, tuples and other such parts",
    )


def from_dict(data: Any, kinds: Iterable[type] = ()) -> Any:
    """Deserializes what `to_dict` wrote; unknown kinds or keys and wrong types are errors.

    `kinds` are the dataclasses of parts from outside the package: no file can name code to import.
    """
    custom = {}
    for kind in kinds:
        _refuse_known_name(kind.__name__)
        custom[kind.__name__] = kind
    try:
        return _read(data, _KINDS | _REGISTERED | custom)
    except RecursionError:
        raise ModelError(
            "the serialized spec is nested too deeply", "use fewer levels of parts"
        ) from None


def own_kinds(part: Any) -> tuple[type, ...]:
    """The dataclasses of a spec that are from outside the package, for `from_dict`."""
    if isinstance(part, tuple):
        return tuple(kind for item in part for kind in own_kinds(item))
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return ()
    values = tuple(getattr(part, field.name) for field in dataclasses.fields(part))
    inner = own_kinds(values)
    if _KINDS.get(type(part).__name__) is type(part):
        return inner
    return (type(part), *inner)


def _refuse_known_name(name: str) -> None:
    """A part from outside must not be mistaken for one of the package."""
    if name in _KINDS:
        raise ModelError(f"{name} is the name of a part of regard.spec", "rename your class")


def _read(data: Any, kinds: Mapping[str, type]) -> Any:
    # JSON has no tuples: every list of a spec was one.
    if isinstance(data, list):
        return tuple(item for value in data for item in _read_run(value, kinds))
    if not isinstance(data, dict):
        return data
    name = data.get("kind")
    if not isinstance(name, str):
        raise ModelError(
            f"a part of the serialized spec has no kind: {reprlib.repr(data)}",
            'add its class name, as in {"kind": "FeedForward", "d_ff": 2048}',
        )
    if name not in kinds:
        raise ModelError(
            f"the serialized spec has an unknown kind {name!r}",
            f"if it is a class of yours, pass kinds=[{name}], in the shell --extend FILE.py; "
            + did_you_mean(str(name), kinds),
        )
    kind = kinds[name]
    hints = type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    missing = dataclasses.MISSING
    values = {}
    for key, value in data.items():
        if key == "kind":
            continue
        if key not in fields:
            raise ModelError(f"{name} has no option {key!r}", did_you_mean(key, fields))
        values[key] = _read(value, kinds)
        # Here and not only in the part: those from outside the package do not ask.
        check_field(name, key, values[key], hints[key])
    for key, field in fields.items():
        if key not in values and missing is field.default is field.default_factory:
            problem = f"{name} is incomplete: it has no {key!r}"
            raise ModelError(problem, f"add it: {describe(hints[key])}")
    return kind(**values)


def _read_run(data: Any, kinds: Mapping[str, type]) -> tuple[Any, ...]:
    """An item of a list, as often as it says."""
    if not isinstance(data, dict) or "repeat" not in data:
        return (_read(data, kinds),)
    check_field("a part of a list", "repeat", data["repeat"], Depth)
    part = _read({key: value for key, value in data.items() if key != "repeat"}, kinds)
    return (part,) * data["repeat"]
