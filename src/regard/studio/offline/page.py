"""The exported page: the studio's own pages in one file, with a model that computes in them."""

from __future__ import annotations

import base64
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from regard.data.text.tokenizer import Tokenizer
from regard.models import Model
from regard.studio.model_store import ModelStore
from regard.studio.offline.model_data import Data, check_tokenizer, model_data
from regard.studio.requests import PositionsRequest, StackRequest
from regard.studio.views import VIEWS
from regard.system import disk
from regard.system.errors import ModelError, RegardError

WEB = Path(__file__).parents[1] / "web"
ENGINE = Path(__file__).parent
ENTRY = "offline.js"
PAGES = ("look", "decode", "learn")  # without Train, which follows runs
# The further analyses that the engine computes, or that were computed before.
ANALYSES = ("entropy", "roles", "angles", "lens", "rollout", "patching")
MAX_PARAMETERS = 8_000_000
POSITIONS = 32  # of position encodings, as many as the page asks for

# Nothing is loaded from anywhere: scripts and pictures are inside the page.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; "
    "img-src data: blob:; media-src blob:; base-uri 'none'; form-action 'none'"
)
_IMPORT = re.compile(r"""(from |import |import\()"(?:\./|\.\./web/)([\w.]+)\"""")
# Left as they are in the address of a script; quotes and < end what they stand in.
_SAFE = " !$&'()*+,/:;=?@[]{}|^`~-_."


def export(store: ModelStore, path: Path) -> None:
    """Writes the studio with the first model of a store as one HTML file."""
    disk.write_file(path, page(store))


def page(store: ModelStore) -> str:
    """The studio with the first model of a store as one HTML page."""
    name = next(iter(store.models()), None)
    if name is None:
        raise ModelError("there is no model to export", "give a folder with config.json")
    data = offline_data(store, name)
    document = (WEB / "index.html").read_text(encoding="utf-8")
    icon = base64.b64encode((WEB / "icon.svg").read_bytes()).decode()
    style = (WEB / "style.css").read_text(encoding="utf-8")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    scripts = (
        f'<script type="importmap">{_inside_script({"imports": modules()})}</script>\n'
        f'<script type="application/json" id="regard-model">{_inside_script(data)}</script>\n'
        f'<script type="module">import "regard/{ENTRY}";</script>'
    )
    for place, content in (
        ('<meta charset="utf-8">', f'<meta charset="utf-8">\n  {policy}'),
        ('<link rel="stylesheet" href="style.css">', f"<style>{style}</style>"),
        ('<script type="module" src="main.js"></script>', scripts),
        ("icon.svg", f"data:image/svg+xml;base64,{icon}"),
    ):
        assert place in document, place
        document = document.replace(place, content)
    return document


def _inside_script(value: Any) -> str:
    """JSON that ends no element it stands in."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def modules() -> dict[str, str]:
    """The scripts by the names under which they import each other, as addresses of data."""
    addresses = {}
    for file in sorted([*WEB.glob("*.js"), *ENGINE.glob("*.js")]):
        source = file.read_text(encoding="utf-8")
        named = _IMPORT.sub(r'\1"regard/\2"', source)
        addresses[f"regard/{file.name}"] = f"data:text/javascript,{quote(named, safe=_SAFE)}"
    return addresses


# ------------------------------------------------------------------ what the page knows


def offline_data(store: ModelStore, name: str) -> Data:
    """A model, its tokenizers, and the answers that no input changes."""
    model = store.model(name).model
    count = sum(parameter.numel() for parameter in model.model.parameters())
    if count > MAX_PARAMETERS:
        raise ModelError(
            f"this model has {count:,} parameters, too many for a page (at most "
            f"{MAX_PARAMETERS:,})",
            "export a smaller one, or use `regard studio`",
        )
    network = model_data(model)
    tokenizers = (model.input_tokenizer, model.output_tokenizer)
    vocabularies: list[Data] = []
    framings = [_tokenizer(tokenizer, vocabularies) for tokenizer in tokenizers]
    return {
        "network": network,
        "tokenizers": framings,
        "vocabularies": vocabularies,
        "coverage": _coverage(model),
        "stored": _stored(store, name, network["stacks"]),
    }


def _tokenizer(tokenizer: Tokenizer, vocabularies: list[Data]) -> Data:
    """A tokenizer, and which of the vocabularies it has."""
    described = json.loads(tokenizer.to_json())
    check_tokenizer(described)
    if described not in vocabularies:
        vocabularies.append(described)
    return {"json": vocabularies.index(described), **tokenizer_data(tokenizer)}


def tokenizer_data(tokenizer: Tokenizer) -> Data:
    """What a tokenizer adds to its tokenizer.json: framing, and roles of special tokens."""
    before, after = tokenizer.frame_ids
    return {
        "before": before,
        "after": after,
        "dropped": sorted(tokenizer.dropped_ids),
        "special": sorted(tokenizer.special_ids),
        "roles": tokenizer.special_tokens,
        "plain": tokenizer.reads_special_tokens_as_text,
    }


def _coverage(model: Model) -> Data:
    coverage = model.coverage
    spellings = coverage.spellings
    differences = None
    if spellings is not None:
        ordered = sorted(spellings)
        differences = [b - a for a, b in zip([0, *ordered], ordered, strict=False)]
    return {
        "longest_source": coverage.longest_source,
        "unseen_tokens": sorted(coverage.unseen_tokens),
        "spellings": differences,
    }


def _stored(store: ModelStore, name: str, stacks: list[Data]) -> Data:
    """The answers of the studio's own views to questions without an input."""

    def ask(view: str, request: Any) -> Data:
        answer = VIEWS[view][1](store, request)
        assert isinstance(answer, dict)
        return answer

    request = StackRequest(model=name)
    described = ask("model", request)
    roles = None
    with suppress(RegardError):  # its sentences may be longer than the model's positions
        roles = ask("roles", request)
    described["analyses"] = [
        each
        for each in described["analyses"]
        if each in ANALYSES and (roles is not None or each != "roles")
    ]
    positions = {}
    for stack in stacks:
        asked = PositionsRequest(model=name, stack=stack["name"], length=POSITIONS)
        encodings = ask("positions", asked)
        if stack["embedding"]["position"] is not None:
            encodings = _short(encodings)
        positions[stack["name"]] = encodings
    shelf = {"models": [name], "runs": [], "pages": PAGES, "opens": False, "recent": []}
    return {
        "shelf": {**shelf, "lesson": store.lesson},
        "model": described,
        "positions": positions,
        "circuit": ask("circuit", request),
        "roles": roles,
    }


def _short(positions: Data) -> Data:
    """Position encodings at the input, without the numbers, which the page computes."""
    count = len(positions["encodings"])  # a model may have fewer
    return {**positions, "encodings": None, "products": None, "count": count}
