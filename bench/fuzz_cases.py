"""Originals and mutations for bench/fuzz.py: model folders, run folders and recipes."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import json
import os
import pickle
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import regard
from regard.data.generated import builtin
from regard.data.text.tokenizer_training import train_tokenizer
from regard.families.folder import read, write_model
from regard.system.errors import TrainingInterrupted
from regard.training.engine.loop import Loop
from regard.training.recipe import loading, schema

TESTS = Path(__file__).parents[1] / "tests"
DEEP = 100_000  # brackets in brackets
SMALL: dict[str, Any] = {
    "d_model": 16, "d_ff": 24, "heads": 2, "layers": 1, "vocabulary": 300, "batch_tokens": 128,
    "steps": 6, "warmup_steps": 2, "save_every": 2, "validate_every": 2, "log_every": 1, "samples": 0,
    "threads": 1, "device": "cpu", "beam": 1, "preset": "tiny",
}  # fmt: skip


# --- originals ------------------------------------------------------------------------------------


def make_originals(folder: Path, *, zoo: bool = True) -> None:
    """Valid folders and recipes, in the subfolders `models`, `runs` and `recipes`.

    With `zoo`, the models are also one of every family, as transformers writes it.
    """
    for name in ("models", "runs", "recipes"):
        (folder / name).mkdir(parents=True)
    _make_runs(folder)
    _make_models(folder / "models", folder / "runs", zoo)
    for name, path in loading.packaged().items():
        shutil.copyfile(path, folder / "recipes" / f"{name}.toml")
    for name, text in _small_recipes(folder).items():
        (folder / "recipes" / f"small_{name}.toml").write_text(text)


def _make_runs(folder: Path) -> None:
    pairs = list(itertools.islice(builtin.sentences("train"), 60))
    files = {
        "pairs": "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs),
        "text": "".join(f"{pair.source}\n" for pair in pairs),
        "classes": "".join(f"{pair.source}\t{len(pair.source) % 2}\n" for pair in pairs),
    }
    paths = {name: folder / f"{name}.tsv" for name in files}
    for name, text in files.items():
        paths[name].write_text(text)
    runs: dict[str, dict[str, Any]] = {
        "translate": {"pairs": str(paths["pairs"]), "final_weights": "average:2"},
        "causal": {"text": str(paths["text"]), "objective": "causal", "context": 16},
        "classify": {
            "text": str(paths["classes"]), "objective": "classify", "final_weights": "ema:0.9",
            "keep_best": 1,
        },
        "recurrent": {"text": str(paths["text"]), "model": "lstm", "context": 16},
    }  # fmt: skip

    def stop(loop: Loop) -> None:
        if loop.progress.step == 5:
            loop.request_stop()

    for name, changes in runs.items():
        settings = {**SMALL, **changes}
        if "model" in changes:
            settings = {k: v for k, v in settings.items() if k not in ("d_ff", "heads", "preset")}
        with contextlib.suppress(TrainingInterrupted):
            regard.train(settings, out=folder / "runs" / name, on_step=stop)


def _make_models(models: Path, runs: Path, with_zoo: bool) -> None:
    # Those with tokenizers: the folders of runs, without what only training needs.
    for run in runs.iterdir():
        shutil.copytree(run, models / f"run_{run.name}", ignore=shutil.ignore_patterns("state"))
    sharded = models / "sharded"
    sharded.mkdir()
    write_model(sharded, read(models / "run_causal"), shard_size=5000)
    if with_zoo:
        _make_zoo(models)


def _make_zoo(models: Path) -> None:
    sys.path.insert(0, str(TESTS))
    import zoo  # a module of the tests, which needs transformers

    for name in zoo.ZOO:
        zoo.save(name, models / name.replace(", ", "_"))
    texts = [pair.source for pair in itertools.islice(builtin.sentences("train"), 60)]
    tokenizer = train_tokenizer(texts, "words", 50)
    for name in ("gpt2", "bert", "roberta"):
        (models / name / "tokenizer.json").write_text(tokenizer.to_json())
    (models / "sharded_llama").mkdir()
    write_model(models / "sharded_llama", read(models / "llama"), shard_size=20_000)


def _small_recipes(folder: Path) -> dict[str, str]:
    train = "\n".join(
        f"{key} = {json.dumps(SMALL[key])}"
        for key in ("steps", "warmup_steps", "save_every", "validate_every", "log_every", "samples")
    )
    model = '[model]\nd_model = 16\nd_ff = 24\nheads = 2\nlayers = 1\npreset = "tiny"\n'
    tokens = '[tokens]\nvocabulary = 300\ntokenizer = "bpe"\n'
    return {
        "pairs": f'[data]\npairs = "{folder}/pairs.tsv"\n{tokens}{model}[train]\n{train}\n',
        "text": f'[data]\ntext = "{folder}/text.tsv"\ncontext = 16\n{tokens}{model}'
        f'[train]\nobjective = "causal"\n{train}\n',
        "masked": f'[data]\ntext = "{folder}/text.tsv"\ncontext = 16\n{tokens}{model}'
        f'[train]\nobjective = "masked"\n{train}\nfinal_weights = "average:2"\n',
        "generated": f'[data]\ngenerated = "copying:1:5"\nbuiltin_lines = 100\n{model}'
        f"[train]\n{train}\n",
        "finetune": f'[tune]\nbase = "{folder}/models/run_causal"\nlora = 2\n'
        f'[data]\ntext = "{folder}/text.tsv"\ncontext = 16\n[train]\nobjective = "causal"\n{train}',
    }


# --- values ---------------------------------------------------------------------------------------


def strange_value(chance: random.Random, value: Any) -> Any:
    """Something in the place of `value`: of its type, or of another."""
    near: list[Any] = []
    if isinstance(value, bool):
        near = [not value, int(value), str(value)]
    elif isinstance(value, int | float):
        near = [value + 1, value - 1, -value, value * 2, value // 2, value * 1000, str(value),
                0.5 + value % 10**9, [value], value * 10**9]  # fmt: skip
    elif isinstance(value, str):
        near = [value + "x", value[:-1], value.upper(), value * 500, "../" + value, [value],
                {value: value}, value.encode().hex(), "\ud800", value + "\0", value + "\n"]  # fmt: skip
    elif isinstance(value, list):
        near = [value[:-1], value * 2, value[::-1], dict.fromkeys(map(str, value), 1), [value],
                [None, *value], [*value, {}]]  # fmt: skip
    elif isinstance(value, dict):
        near = [list(value), {**value, "x": 1}, {str(k): None for k in value}, str(value)]
    anything: list[Any] = [
        None, True, False, 0, 1, -1, 2, 3, 7, 255, 65536, 2**31 - 1, 2**31, 2**63, -(2**63), 10**30,
        0.0, -0.0, 0.1, 1.5, 1e308, 5e-324, float("nan"), float("inf"), "", "a", "é", "null", "0",
        "1e9", "relu", "gelu", "float16", "x" * 10_000, "/etc/passwd", "../../x", "\0", [], [[]],
        [0], [1, 2, 3], [None], {}, {"a": {}}, {"0": "x"}, {"type": "linear", "factor": 0},
    ]  # fmt: skip
    return chance.choice(near if near and chance.random() < 0.5 else anything)


def mutate_json(chance: random.Random, value: Any) -> Any:
    """A changed copy: a value somewhere in it replaced, removed, added, renamed or exchanged."""
    places = list(_places(value))
    if not places:
        return strange_value(chance, value)
    container, key = chance.choice(places)
    action = chance.random()
    if action < 0.6:
        container[key] = strange_value(chance, container[key])
    elif action < 0.75:
        del container[key]
    elif action < 0.85:
        other, other_key = chance.choice(places)
        with contextlib.suppress(KeyError, IndexError):
            other[other_key] = copy.deepcopy(container[key])  # a part of itself makes no cycle
    elif isinstance(container, dict):
        new_key = chance.choice([f"{key}s", key.upper(), "x", "auto_map", "_name_or_path", ""])
        container[new_key] = strange_value(chance, container[key])
    else:
        container.append(strange_value(chance, container[key]))
    return value


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    if depth > 8:
        return
    if isinstance(value, dict):
        items: Any = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))[:50]
    else:
        return
    for key, child in items:
        yield value, key
        yield from _places(child, depth + 1)


# --- files ----------------------------------------------------------------------------------------


def mutate_json_file(chance: random.Random, path: Path) -> None:
    try:
        value = json.loads(path.read_bytes())
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            value = mutate_json(chance, value)
        text = json.dumps(value)
    except (ValueError, RecursionError, OSError):
        return mutate_bytes(chance, path)
    path.write_bytes(text.encode(errors="surrogatepass"))


def mutate_bytes(chance: random.Random, path: Path) -> None:
    """Bytes flipped, cut, doubled or put in."""
    content = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 1, 2, 8))):
        if not content:
            break
        place = chance.randrange(len(content))
        match chance.randrange(5):
            case 0:
                content[place] ^= 1 << chance.randrange(8)
            case 1:
                del content[place:]
            case 2:
                end = place + chance.randrange(64)
                content[place:end] = content[place:end] * 2
            case 3:
                content[place:place] = chance.randbytes(chance.randrange(1, 16))
            case 4:
                del content[place : place + chance.randrange(1, 16)]
    path.write_bytes(content)


def mutate_tensors(chance: random.Random, path: Path) -> None:
    """A safetensors file whose header says something else."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + length])
    except (ValueError, RecursionError):
        return mutate_bytes(chance, path)
    data = content[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    name = chance.choice(names) if names else "x"
    match chance.randrange(9):
        case 0:
            header = mutate_json(chance, header)
        case 1:
            new_length = chance.choice((0, 1, length - 1, length + 1, 2**31, 2**63 - 1, 2**64 - 1))
            path.write_bytes(new_length.to_bytes(8, "little") + content[8:])
            return
        case 2 if name in header:
            header[name]["dtype"] = chance.choice(("F64", "F16", "I64", "BOOL", "F8_E4M3", "X", 3))
        case 3 if name in header:
            header[name]["shape"] = [
                chance.choice((0, 1, -1, 2**40, 3, 2**63)) for _ in header[name]["shape"]
            ]
        case 4 if name in header:
            header[name]["data_offsets"] = chance.sample((0, 4, 8, len(data), 2**40, -4), 2)
        case 5 if name in header:
            header[chance.choice(("x", name + "x", "", name.upper()))] = header.pop(name)
        case 6:
            header["__metadata__"] = chance.choice(({}, {"format": "tf"}, [], {"sha256": "0" * 64}))
        case 7:
            # Numbers that are none, or far too large.
            word = chance.choice((b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\xff\xff\x7f\x7f"))
            data = word * (len(data) // 4)
        case _:
            return mutate_bytes(chance, path)
    text = json.dumps(header).encode(errors="surrogatepass")
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def replace_file(chance: random.Random, path: Path) -> None:
    """Something that is no file, or no file of this kind, under the same name."""
    path.unlink()
    replacements: list[Callable[[], Any]] = [
        lambda: None,  # missing
        path.mkdir,
        lambda: path.symlink_to("/etc/passwd"),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to(path),
        lambda: path.symlink_to("/nowhere/at/all"),
        lambda: os.mkfifo(path),
        lambda: path.write_bytes(b""),
        lambda: path.write_bytes(b"[" * DEEP + b"]" * DEEP),
        lambda: path.write_bytes(b'{"a":' * DEEP + b"1" + b"}" * DEEP),
        lambda: path.write_text('{"a": 1}', encoding="utf-16"),
        lambda: path.write_bytes(b"9" * 5000),
        lambda: _write_sparse(path, 2**33),
        lambda: path.write_bytes(chance.randbytes(chance.randrange(1, 4096))),
    ]
    chance.choice(replacements)()


def _write_sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)  # zeros that take no space


class Payload:
    """What an unpickled file would do."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, ("code-from-a-pickle-was-run",)


def add_code(chance: random.Random, folder: Path) -> None:
    """Pickles and Python files, and a config.json that refers to them."""
    code = "import os\nos.mkdir('code-from-the-folder-was-run')\n"
    name = chance.choice(("modeling.py", "tokenization.py", "__init__.py", "torch.py", "json.py"))
    (folder / name).write_text(code)
    pickled = pickle.dumps(Payload())
    for file in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "vocab.pkl"):
        if chance.random() < 0.5:
            (folder / file).write_bytes(pickled)
    if chance.random() < 0.3:
        for weights in folder.glob("*.safetensors*"):
            if (
                not weights.is_dir() or weights.is_symlink()
            ):  # an earlier mutation may have made one
                weights.unlink()
    config = folder / "config.json"
    if config.is_file() and chance.random() < 0.6:
        with contextlib.suppress(ValueError, RecursionError):
            values = json.loads(config.read_bytes())
            values["auto_map"] = {"AutoModel": f"{name[:-3]}.Model", "AutoConfig": "x--y.Config"}
            values["trust_remote_code"] = True
            config.write_text(json.dumps(values))


# --- whole cases ----------------------------------------------------------------------------------


def mutate_folder(chance: random.Random, folder: Path) -> None:
    """One to three mutations of the files of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    # JSON decides most: what is in it is read by us and not by a library.
    weights = [4 if path.suffix in (".json", ".jsonl") else 1 for path in files]
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        path = chance.choices(files, weights)[0]
        # What an earlier mutation made may be no file any more, or a huge one.
        if not path.is_file() or path.is_symlink() or path.stat().st_size > 10**8:
            continue
        _mutate_file(chance, folder, path)


def _mutate_file(chance: random.Random, folder: Path, path: Path) -> None:
    kind = chance.random()
    if kind < 0.06:
        replace_file(chance, path)
    elif kind < 0.1:
        add_code(chance, folder)
    elif path.suffix == ".safetensors":
        mutate_tensors(chance, path)
    elif path.suffix == ".json" and kind < 0.9:
        mutate_json_file(chance, path)
    elif path.suffix == ".jsonl" and kind < 0.9:
        mutate_lines(chance, path)
    else:
        mutate_bytes(chance, path)
    if path.parent.name.startswith("step-") and chance.random() < 0.7:
        rewrite_hashes(path.parent)


def mutate_lines(chance: random.Random, path: Path) -> None:
    lines = path.read_bytes().splitlines()
    number = chance.randrange(len(lines)) if lines else 0
    with contextlib.suppress(ValueError, IndexError, RecursionError):
        value = mutate_json(chance, json.loads(lines[number]))
        lines[number] = json.dumps(value).encode(errors="surrogatepass")
    if chance.random() < 0.3:
        lines.insert(number, chance.choice((b"", b"{", b"null", b"[1]", b"\xff", *lines[:1])))
    path.write_bytes(b"\n".join(lines))


def rewrite_hashes(checkpoint: Path) -> None:
    """Hashes that agree with the mutated files: whoever reads on meets what is in them."""
    hashes = {}
    for path in checkpoint.iterdir():
        is_plain = path.is_file() and not path.is_symlink() and path.name != "hashes.json"
        if is_plain and path.stat().st_size < 10**7:
            hashes[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    target = checkpoint / "hashes.json"
    if target.is_file() and not target.is_symlink():
        target.write_text(json.dumps(hashes))


def mutate_recipe(chance: random.Random, path: Path) -> None:
    """A TOML file with other values, keys, sections or bytes."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        if chance.random() < 0.15:
            mutate_bytes(chance, path)
            continue
        lines = path.read_text(errors="surrogateescape").split("\n")
        number = chance.randrange(len(lines))
        key, equals, old = lines[number].partition("=")
        match chance.randrange(6):
            case 0 | 1 | 2 if equals:
                lines[number] = f"{key}= {_toml(chance, old)}"
            case 3:
                keys = list(schema.KEYS)
                lines.insert(number, f"{chance.choice(keys)} = {_toml(chance, old)}")
            case 4:
                sections = [*schema.SECTIONS, "x", "train.train", "[data]", ""]
                lines.insert(number, f"[{chance.choice(sections)}]")
            case _:
                lines[number] = ""
        path.write_text("\n".join(lines), errors="surrogateescape")


def _toml(chance: random.Random, old: str) -> str:
    with contextlib.suppress(ValueError, RecursionError):
        value = strange_value(chance, json.loads(old))
        if isinstance(value, bool | int | float | str | list):
            return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")
    return chance.choice(
        ("nan", "inf", "-1", "0", "1979-05-27", "{ a = 1 }", "[1, [2]]", '""', "0x10", "'''", "1_0",
         '"best"', '"paper"', '"average:0"', '"average:-1"', '"ema:2"', '"window:0"', '"causal"',
         '"classify"', '"window:99999999999"', '"words"', '"gpt2:tiny"', '"-"', '"/dev/zero"',
         '"copying:9:1"', '"0.7:0.1"', '"xavier:3"', '"16:0"', '"cuda:99"', "1e400")
    )  # fmt: skip
