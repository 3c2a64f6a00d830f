"""The graphs of a run: read once, stored as arrays without pickle in the run folder."""

from __future__ import annotations

from zipfile import BadZipFile

import numpy as np

from regard.data.graphs import GraphData, Level, read_graphs
from regard.system import disk
from regard.system.errors import DataError, SettingError
from regard.training.recipe.schema import Recipe
from regard.training.run_folder import RunFolder
from regard.training.setup import Setup

_FILE = "graphs.npz"


def stored_graphs(setup: Setup, level: Level) -> GraphData:
    """The graphs of a run, stored in its folder on the first call."""
    path = setup.run_folder.data / _FILE
    if not path.exists():
        data = _read(setup)
        if data.level != level:
            raise SettingError(
                f"the data has labels for {data.level}, but the objective is for {level}",
                f"use --objective {data.level}",
            )
        if not data.rows("train"):
            raise DataError("the split 'train' is empty", "write it into the split column")
        # Once, with all splits in it: a resumed run needs no other file.
        path.parent.mkdir(parents=True, exist_ok=True)
        with disk.disk_errors(str(path)), disk.atomic_file(path) as temporary:
            _write(temporary, data)
    data = open_graphs(setup.run_folder)
    counts = ", ".join(f"{len(data.rows(name)):,} {name}" for name in data.split_names())
    # Edges are stored in both directions, with a loop at each node: neither counts for a reader.
    edges = (len(data.edges) - len(data.features)) // 2
    setup.say(f"data: {len(data.features):,} nodes, {edges:,} edges; {data.level}: {counts}")
    return data


def _read(setup: Setup) -> GraphData:
    """The graphs of the source, as one `GraphData` in a split of any name, or of the recipe."""
    if setup.source is not None:
        # The splits of a graph are marks on its nodes: all of it is one example.
        for split in setup.source.splits().values():
            for data in split():
                if isinstance(data, GraphData):
                    return data
        raise DataError("the source has no GraphData", "yield one, with the splits in it")
    return read_graphs(_folder(setup.recipe))


def _folder(recipe: Recipe) -> str:
    tune = recipe.tune
    if not tune.files:
        assert recipe.data.graph is not None, "the recipe has checked that"
        return recipe.data.graph
    if len(tune.files) != 1 or tune.prefixes or tune.valid or tune.test:
        raise SettingError(
            f"{recipe.task} learns from one folder, which has all splits in it",
            "give one --data, and nothing else",
        )
    return tune.files[0]


def _write(path: object, data: GraphData) -> None:
    with open(str(path), "wb") as file:
        np.savez_compressed(
            file,
            features=data.features,
            edges=data.edges,
            graph=data.graph,
            # Fixed-width strings: an object array could only be stored as a pickle.
            labels=np.array(data.labels, dtype=np.str_),
            splits=np.array(data.splits, dtype=np.str_),
            level=np.array(data.level),
        )


def open_graphs(run_folder: RunFolder) -> GraphData:
    """The graphs that a run has stored."""
    path = run_folder.data / _FILE
    try:
        # A run folder may come from anywhere, and a pickle in it could run code.
        with np.load(path, allow_pickle=False) as arrays:
            level: Level = "nodes" if str(arrays["level"]) == "nodes" else "graphs"
            return GraphData(
                arrays["features"],
                arrays["edges"],
                arrays["graph"],
                tuple(map(str, arrays["labels"])),
                tuple(map(str, arrays["splits"])),
                level,
            )
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}", "start a new run") from None
