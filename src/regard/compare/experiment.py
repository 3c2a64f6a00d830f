"""regard compare: the same data, as many parameters, the same budget; several models, several seeds.

Every run is an ordinary run folder, trained by `training.run`. A finished one is kept with its result, so that a comparison
that was interrupted goes on where it was.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from regard import disk
from regard.compare.contenders import Budget, Contender
from regard.compare.cost import Cost, cost
from regard.decode.batch_decoding import DecodingSettings
from regard.decode.strategy import BeamSearch
from regard.errors import SettingError
from regard.metrics.translation import TranslationScore, translation_score
from regard.models import Translator, load_translator
from regard.parameter_count import parameter_count
from regard.training.data.parallel_text import Pair, Prepared, prepared, test_sets
from regard.training.engine.logging import ProgressLog
from regard.training.recipe.schema import Recipe
from regard.training.run import describe, go_on, job, run
from regard.training.run_folder import RunFolder, begin, resume

BUCKETS = 5  # of sentences, by their length
Say = Callable[[str], None]


@dataclass(frozen=True)
class Bucket:
    """Test sentences of `shortest` to `longest` source tokens: −log p a token, BLEU and exact match."""

    shortest: int
    longest: int
    sentences: int
    loss: float
    bleu: float
    exact_match: float


@dataclass(frozen=True)
class Run:
    """One model with one seed, trained. `losses` are (step, validation loss)."""

    seed: int
    loss: float
    bleu: float
    exact_match: float
    train_rate: float  # target tokens a second
    decode_rate: float
    seconds: float
    losses: list[list[float]]
    buckets: list[Bucket]


@dataclass(frozen=True)
class Contestant:
    """A model that took part: its size, its price, and its runs."""

    word: str
    parameters: int
    d_model: int
    steps: int
    cost: Cost
    runs: list[Run]

    def mean(self, what: str) -> float:
        return statistics.mean(getattr(run, what) for run in self.runs)

    def spread(self, what: str) -> float:
        """The standard deviation over the seeds; 0 where there is one."""
        return (
            statistics.stdev(getattr(run, what) for run in self.runs) if len(self.runs) > 1 else 0.0
        )

    def by_length(self, what: str) -> list[tuple[float, float]]:
        """(middle of the lengths, mean over the seeds) of each bucket."""
        return [
            ((one[0].shortest + one[0].longest) / 2, statistics.mean(getattr(b, what) for b in one))
            for one in zip(*(run.buckets for run in self.runs), strict=True)
        ]


@dataclass(frozen=True)
class Comparison:
    name: str
    parameters: int
    budget: Budget
    contestants: list[Contestant]

    def data(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    base: Recipe,
    name: str,
    entrants: Sequence[Contender],
    budget: Budget,
    seeds: Sequence[int],
    out: Path,
    *,
    parameters: int | None = None,
    say: Say = lambda _: None,
) -> Comparison:
    """`parameters`: what all models have, about; as many as the recipe's own model unless said."""
    if base.train.objective != "translate":
        raise SettingError("only translators are compared", "give a recipe of pairs")
    data = _common(out / "data", base, name, say)
    words = len(data.source), len(data.target)
    wanted = parameters or parameter_count(describe(base, *words))
    # All are sized before the first is trained, so that what cannot take part is known at once.
    sized = [entrant.sized(base, wanted, lambda r: describe(r, *words)) for entrant in entrants]
    found = []
    for entrant, recipe in zip(entrants, sized, strict=True):
        description = describe(recipe, *words)
        price = _price(out / entrant.folder, out / "data", recipe, words[0])
        steps = budget.steps(lambda price=price: price.flops, lambda price=price: price.seconds)  # type: ignore[misc]
        count = parameter_count(description)
        say(f"{entrant.word}: {count:,} parameters, d_model {description.d_model}, {steps:,} steps")
        runs = []
        for seed in seeds:
            own = _planned(recipe, steps, seed)
            runs.append(_run(out / entrant.folder / str(seed), out / "data", own, name, say))
            say(f"{entrant.word}, seed {seed}: loss {runs[-1].loss:.3f}  BLEU {runs[-1].bleu:.2f}")
        found.append(Contestant(entrant.word, count, description.d_model, steps, price, runs))
    result = Comparison(name, wanted, budget, found)
    disk.write_json(out / "compare.json", result.data())
    return result


def _common(folder: Path, base: Recipe, name: str, say: Say) -> Prepared:
    """The data of all runs, made once; a folder that was begun with other data is refused."""
    if (folder / "state" / "recipe.json").exists():
        place, known, _ = resume(folder)
        if (known.data, known.tokens) != (base.data, base.tokens):
            raise SettingError(
                f"{folder.parent} holds a comparison on other data", "choose another --out"
            )
    else:
        place = begin(base, folder, name)
    return prepared(place, base, say)


def _planned(recipe: Recipe, steps: int, seed: int) -> Recipe:
    """As many updates as the budget buys; where these are fewer than the recipe's, the warm-up is shorter in proportion."""
    train = recipe.train
    often = max(1, min(train.validate_every, steps // 5))
    warmup = max(1, round(train.warmup * min(1.0, steps / train.steps)))
    changes = {
        "steps": steps, "seed": seed, "warmup": warmup, "validate_every": often,
        "save_every": max(1, min(train.save_every, steps)), "samples": 0,
    }  # fmt: skip
    return recipe.model_copy(update={"train": train.model_copy(update=changes)})


def _begun(folder: Path, data: Path, recipe: Recipe, name: str) -> RunFolder:
    """A run folder that shares the data of all."""
    place = begin(recipe, folder, name)
    shutil.copytree(data / "state" / "data", place.data, copy_function=os.link)
    for tokenizer in data.glob("*tokenizer.json"):
        shutil.copy(tokenizer, place.folder / tokenizer.name)
    return place


def _price(folder: Path, data: Path, recipe: Recipe, vocabulary: int) -> Cost:
    """Measured once, in a folder that is thrown away, and kept: a resumed comparison must buy as many steps."""
    kept = folder / "cost.json"
    known = {"model": recipe.model.model_dump(), "batch_tokens": recipe.train.batch_tokens}
    if kept.exists():
        said = json.loads(kept.read_text(encoding="utf-8"))
        if said["of"] != known:
            raise SettingError(f"{folder} was begun with another model", "choose another --out")
        return Cost(**said["cost"])
    trial = folder / "trial"
    shutil.rmtree(trial, ignore_errors=True)
    made = job(_begun(trial, data, recipe, "trial"), recipe, ProgressLog(1, quiet=True))
    found = cost(made.task, vocabulary, recipe.data.max_length, recipe.train.accumulate)
    shutil.rmtree(trial)
    disk.write_json(kept, {"of": known, "cost": asdict(found)})
    return found


def _run(folder: Path, data: Path, recipe: Recipe, name: str, say: Say) -> Run:
    kept = folder / "study.json"
    if (folder / "state" / "recipe.json").exists():
        _, begun, _ = resume(folder)
        if begun != recipe:
            raise SettingError(f"{folder} was begun with other settings", "choose another --out")
        if kept.exists():
            said = json.loads(kept.read_text(encoding="utf-8"))
            return Run(**said | {"buckets": [Bucket(**bucket) for bucket in said["buckets"]]})
        say(f"{folder}: going on")
        result = go_on(folder, quiet=True)
    else:
        # A folder without a recipe was left before it could be resumed.
        shutil.rmtree(folder, ignore_errors=True)
        result = run(_begun(folder, data, recipe, name), recipe, name, quiet=True)
    scores = next((s for s in result.scores.values() if isinstance(s, TranslationScore)), None)
    if scores is None:
        raise SettingError(
            "models are compared on a test set, and there is none",
            "give test_source and test_target",
        )
    said = [
        json.loads(line)
        for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    losses = [[line["step"], line["loss"]] for line in said if line.get("event") == "validation"]
    rates = [line["tokens_per_second"] for line in said if "tokens_per_second" in line]
    pairs = next(iter(test_sets(recipe).values()))
    buckets, rate = _by_length(
        load_translator(folder, device=recipe.train.device, say=lambda _: None), pairs, recipe
    )
    found = Run(
        recipe.train.seed, min(loss for _, loss in losses), scores.bleu, scores.exact_match,
        statistics.median(rates), rate, result.seconds, losses, buckets,
    )  # fmt: skip
    disk.write_json(kept, asdict(found))
    return found


def _by_length(
    translator: Translator, pairs: Sequence[Pair], recipe: Recipe
) -> tuple[list[Bucket], float]:
    """Quality by the length of the source, and how many tokens a second were decoded."""
    lengths = [len(ids) for ids in translator.encode([source for source, _ in pairs])]
    order = sorted(range(len(pairs)), key=lambda i: lengths[i])
    began = time.perf_counter()
    found = translator.hypotheses(
        [source for source, _ in pairs],
        DecodingSettings(BeamSearch(recipe.decode.beam, recipe.penalty)),
    )
    seconds = time.perf_counter() - began
    texts = [translator.text(h[0]) if h else "" for h in found]
    buckets = []
    for rows in _shared([(lengths[i], i) for i in order]):
        sources, targets = [pairs[i][0] for i in rows], [pairs[i][1] for i in rows]
        total, tokens = translator.nll(sources, targets)
        result = translation_score([texts[i] for i in rows], targets, recipe.decode.tokenize)
        ends = lengths[rows[0]], lengths[rows[-1]]
        buckets.append(Bucket(*ends, len(rows), total / tokens, result.bleu, result.exact_match))
    return buckets, sum(len(h[0].tokens) for h in found if h) / max(seconds, 1e-9)


def _shared(ordered: Sequence[tuple[int, int]]) -> list[list[int]]:
    """About equally many in each bucket, all of one length in the same."""
    buckets: list[list[int]] = []
    last = -1
    for length, i in ordered:
        full = not buckets or len(buckets[-1]) * BUCKETS >= len(ordered)
        if full and length != last and len(buckets) < BUCKETS:
            buckets.append([])
        buckets[-1].append(i)
        last = length
    return buckets
