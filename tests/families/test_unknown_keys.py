"""Config keys that nobody knows are ignored with a warning; those of transformers are refused."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.families import folder as folders
from regard.families.config_schema import COMMON_UNSUPPORTED, ConfigSchema
from regard.families.registry import FILES
from regard.system.errors import ModelError, UnknownKeyError, UnknownKeyWarning
from zoo import save

transformers = pytest.importorskip("transformers")
TYPES = [name for name in folders.FAMILIES if name != "regard"]


def known_keys(model_type: str) -> set[str]:
    """The keys that transformers' own class declares, renames or reads, by its source."""
    config_class = transformers.CONFIG_MAPPING[model_type]
    keys = {*config_class().to_dict(), *config_class.attribute_map}
    keys |= {field.name for field in dataclasses.fields(config_class)}
    module = sys.modules[config_class.__module__]
    if model_type.startswith(
        ("clip", "siglip", "gemma3", "fastspeech2", "blip", "idefics")
    ):  # one file has several classes, each with keys of its own
        return keys
    keys |= {*re.findall(r'kwargs\.(?:pop|get)\(\s*"(\w+)"', inspect.getsource(module))}
    for path in Path(str(module.__file__)).parent.glob("modeling_*.py"):
        if path.stem == "modeling_esmfold":  # a model of its own, which is refused
            continue
        source = path.read_text(encoding="utf-8")
        # Not those of a side, whose config is its own family's.
        keys |= {
            *re.findall(r"(?<!\.encoder\.)(?<!\.decoder\.)\bconfig\.([a-z]\w*)\b(?!\()", source)
        }
        keys |= {*re.findall(r'getattr\(\s*(?:self\.)?config,\s*"(\w+)"', source)}
    return keys


def refused_as_unknown(model_type: str, keys: set[str]) -> Iterator[str]:
    """Those of the keys that no schema of the family lists, whatever their value is."""
    for key in sorted(keys):
        try:
            folders.FAMILIES[model_type].to_spec({"model_type": model_type, key: "?"})
        except UnknownKeyError as error:
            if error.key == key:
                yield key
        except ModelError:
            pass  # understood, and "?" is no value of it


@pytest.mark.parametrize("model_type", TYPES)
def test_every_key_of_transformers_is_understood_or_listed(model_type: str) -> None:
    known = known_keys(model_type)
    assert list(refused_as_unknown(model_type, known)) == []
    # And nothing is listed that transformers does not know, or that is understood by now.
    for key in unsupported(model_type):
        assert key in known
        with pytest.raises(ModelError, match=f"unsupported key: {key}"):
            folders.FAMILIES[model_type].to_spec({"model_type": model_type, key: "?"})


def unsupported(model_type: str) -> set[str]:
    """The keys that the schemas of a file list as transformers' own, for its first family."""
    file = next(file for file, families in FILES.items() if model_type in families)
    first, name = next(iter(FILES[file].items()))
    if model_type != first:
        return set()
    module = importlib.import_module(f"regard.families.{file}")
    parts = [*vars(module).values(), getattr(vars(module).get(name), "schema", None)]
    schemas = [part for part in parts if isinstance(part, ConfigSchema)]
    return {key for schema in schemas for key in schema.unsupported}


def test_code_of_a_folder_is_unsupported() -> None:
    assert "auto_map" in COMMON_UNSUPPORTED


def change(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("name", ["bart", "llama", "vit", "clip"])
def test_a_key_that_nobody_knows_changes_nothing(name: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    before = folders.read(tmp_path)
    assert before.unknown_keys == ()
    changes: dict[str, Any] = {"grapheme_chars": "abc", "my_note": {"by": "me"}}
    if name == "clip":  # in the config of a tower, too
        changes["text_config"] = {**before.config["text_config"], "grapheme_chars": "abc"}
    change(tmp_path, **changes)
    with pytest.warns(UnknownKeyWarning, match="grapheme_chars, my_note") as caught:
        after = folders.read(tmp_path)
    assert len(caught) == 1
    assert set(after.unknown_keys) == {"grapheme_chars", "my_note"}
    assert after.spec == before.spec
    assert all(torch.equal(after.weights[key], before.weights[key]) for key in before.weights)


def test_load_reports_them_once(tmp_path: Path) -> None:
    """To the caller who listens, and otherwise as a warning."""
    save("bart", tmp_path)
    change(tmp_path, grapheme_chars="abc")
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        regard.load(tmp_path, say=messages.append)
    assert [text for text in messages if "grapheme_chars" in text] == messages[:1]
    assert not [one for one in caught if issubclass(one.category, UnknownKeyWarning)]
    with pytest.warns(UnknownKeyWarning, match="grapheme_chars"):
        regard.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("bart", "auto_map", {"AutoModel": "evil.Model"}),
        ("bert", "quantization_config", {"load_in_8bit": True}),
        ("vit", "head_dim", 7),
        ("bert", "rope_theta", 10000.0),
        ("clip", "auto_map", {}),
    ],
)
def test_a_key_of_transformers_stays_an_error(
    name: str, key: str, value: Any, tmp_path: Path
) -> None:
    save(name, tmp_path)
    change(tmp_path, **{key: value})
    with pytest.raises(ModelError, match=key):
        folders.open_model(tmp_path)
