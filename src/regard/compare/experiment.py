"""regard compare: the same data, as many parameters, the same budget; models and seeds.

Every run is an ordinary run folder, trained by `training.run`. A finished one is kept with its
result, so that an interrupted comparison goes on where it was.
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
from regard.compare.cost import Cost, step_cost
from regard.decode.batch_decoding import DecodingSettings
from regard.decode.strategy import BeamSearch
from regard.errors import SettingError
from regard.metrics.bleu import TranslationScore, translation_score
from regard.models import Translator, load_translator
from regard.parameter_count import parameter_count
from regard.training.assembly import assemble
from regard.training.data.parallel_text import Pair, ParallelCorpora, parallel_corpora, test_sets
from regard.training.model_spec import describe
from regard.training.recipe.schema import Recipe
from regard.training.run import go_on, run
from regard.training.run_folder import RunFolder, begin, resume
from regard.training.setup import Setup

BUCKETS = 5  # groups of test sentences of similar length
Say = Callable[[str], None]


# ------------------------------------------------------------------ results
#
# The names of these fields are the keys of compare.json, and of study.json in each run.


@dataclass(frozen=True)
class Bucket:
    """Test sentences of `shortest` to `longest` source tokens, and how well they are translated.

    `loss` is −log p for each token.
    """

    shortest: int
    longest: int
    sentences: int
    loss: float
    bleu: float
    exact_match: float


@dataclass(frozen=True)
class Run:
    """One model with one seed, trained. `losses` are pairs of step and validation loss."""

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
class ContenderResult:
    """A model that took part: its size, the cost of a step, and its runs."""

    word: str
    parameters: int
    d_model: int
    steps: int
    cost: Cost
    runs: list[Run]

    def mean(self, measure: str) -> float:
        """The mean over the seeds of a measure, such as `bleu`."""
        return statistics.mean(getattr(one, measure) for one in self.runs)

    def stdev(self, measure: str) -> float:
        """The standard deviation over the seeds; 0 where there is one."""
        if len(self.runs) == 1:
            return 0.0
        return statistics.stdev(getattr(one, measure) for one in self.runs)

    def by_length(self, measure: str) -> list[tuple[float, float]]:
        """For each bucket the middle of its lengths, and the mean of a measure over the seeds."""
        points = []
        for buckets in zip(*(one.buckets for one in self.runs), strict=True):
            first = buckets[0]  # the same sentences with every seed
            middle = (first.shortest + first.longest) / 2
            points.append((middle, statistics.mean(getattr(b, measure) for b in buckets)))
        return points


@dataclass(frozen=True)
class Comparison:
    """The result of `regard compare`."""

    name: str
    parameters: int
    budget: Budget
    contestants: list[ContenderResult]

    def data(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        return asdict(self)


# ------------------------------------------------------------------ the experiment


def compare(
    base: Recipe,
    name: str,
    contenders: Sequence[Contender],
    budget: Budget,
    seeds: Sequence[int],
    out: Path,
    *,
    parameters: int | None = None,
    say: Say = lambda _: None,
) -> Comparison:
    """Trains every contender with every seed, and evaluates it on the recipe's test set.

    All models have about as many `parameters`: by default those of the recipe's own model.
    """
    if base.train.objective != "translate":
        raise SettingError("only translators are compared", "give a recipe of pairs")
    data = _shared_data(out / "data", base, name, say)
    vocabularies = (len(data.source_tokenizer), len(data.target_tokenizer))
    if not parameters:
        parameters = parameter_count(describe(base, *vocabularies))
    # All are sized before the first is trained, so that one that cannot be is refused at once.
    recipes = [
        contender.sized(base, parameters, lambda recipe: describe(recipe, *vocabularies))
        for contender in contenders
    ]
    results = []
    for contender, recipe in zip(contenders, recipes, strict=True):
        model_spec = describe(recipe, *vocabularies)
        folder = out / contender.folder
        cost = _measured_cost(folder, out / "data", recipe, vocabularies[0])
        steps = budget.steps(cost.flops, cost.seconds)
        count = parameter_count(model_spec)
        d_model = model_spec.d_model
        say(f"{contender.word}: {count:,} parameters, d_model {d_model}, {steps:,} steps")
        runs = []
        for seed in seeds:
            # The data are the same for all seeds; weights, order and dropout differ.
            seeded = _with_steps(recipe, steps, seed)
            one = _train(folder / str(seed), out / "data", seeded, name, say)
            say(f"{contender.word}, seed {seed}: loss {one.loss:.3f}  BLEU {one.bleu:.2f}")
            runs.append(one)
        results.append(ContenderResult(contender.word, count, d_model, steps, cost, runs))
    comparison = Comparison(name, parameters, budget, results)
    disk.write_json(out / "compare.json", comparison.data())
    return comparison


def _shared_data(folder: Path, base: Recipe, name: str, say: Say) -> ParallelCorpora:
    """The data of all runs, prepared once; a folder that was begun with other data is refused."""
    if (folder / "state" / "recipe.json").exists():
        run_folder, recipe, _ = resume(folder)
        if (recipe.data, recipe.tokens) != (base.data, base.tokens):
            raise SettingError(
                f"{folder.parent} holds a comparison on other data", "choose another --out"
            )
    else:
        run_folder = begin(base, folder, name)
    return parallel_corpora(Setup(run_folder, base, say))


def _new_run_folder(folder: Path, data: Path, recipe: Recipe, name: str) -> RunFolder:
    """A run folder with the shared data, as hard links to the same files."""
    run_folder = begin(recipe, folder, name)
    shutil.copytree(data / "state" / "data", run_folder.data, copy_function=os.link)
    for tokenizer in data.glob("*tokenizer.json"):
        shutil.copy(tokenizer, run_folder.folder / tokenizer.name)
    return run_folder


def _with_steps(recipe: Recipe, steps: int, seed: int) -> Recipe:
    """The recipe with as many steps as the budget allows.

    Where these are fewer than the recipe's, the warm-up is shorter in proportion.
    """
    train = recipe.train
    warmup = round(train.warmup * min(1.0, steps / train.steps))
    changes = {
        "steps": steps,
        "seed": seed,
        "warmup": max(1, warmup),
        "validate_every": max(1, min(train.validate_every, steps // 5)),
        "save_every": max(1, min(train.save_every, steps)),
        "samples": 0,  # sample translations that training prints
    }
    return recipe.model_copy(update={"train": train.model_copy(update=changes)})


def _measured_cost(folder: Path, data: Path, recipe: Recipe, vocabulary: int) -> Cost:
    """The cost of a step, measured in a folder that is thrown away.

    It is kept, because a resumed comparison must train for as many steps as before.
    """
    file = folder / "cost.json"
    settings = {"model": recipe.model.model_dump(), "batch_tokens": recipe.train.batch_tokens}
    if file.exists():
        saved = json.loads(file.read_text(encoding="utf-8"))
        if saved["of"] != settings:
            raise SettingError(f"{folder} was begun with another model", "choose another --out")
        return Cost(**saved["cost"])
    trial = folder / "trial"
    shutil.rmtree(trial, ignore_errors=True)
    run_folder = _new_run_folder(trial, data, recipe, "trial")
    objective = assemble(Setup(run_folder, recipe, lambda _: None))
    longest = recipe.data.max_length
    cost = step_cost(objective, vocabulary, longest, recipe.train.accumulate)
    shutil.rmtree(trial)
    # "of" are the settings that the cost depends on: a folder with others is refused.
    disk.write_json(file, {"of": settings, "cost": asdict(cost)})
    return cost


# ------------------------------------------------------------------ one run


def _train(folder: Path, data: Path, recipe: Recipe, name: str, say: Say) -> Run:
    """Trains a model, or goes on with it, or reads the result of its finished run."""
    file = folder / "study.json"
    if (folder / "state" / "recipe.json").exists():
        _, begun_with, _ = resume(folder)
        if begun_with != recipe:
            raise SettingError(f"{folder} was begun with other settings", "choose another --out")
        if file.exists():
            return _read_run(file)
        say(f"{folder}: going on")
        result = go_on(folder, quiet=True)
    else:
        # A folder without a recipe was left before it could be resumed.
        shutil.rmtree(folder, ignore_errors=True)
        result = run(_new_run_folder(folder, data, recipe, name), recipe, name, quiet=True)
    scores = [score for score in result.scores.values() if isinstance(score, TranslationScore)]
    if not scores:
        raise SettingError(
            "models are compared on a test set, and there is none",
            "give test_source and test_target",
        )
    metrics = _read_metrics(folder)
    # metrics.jsonl has records of validations, and of training between them.
    losses = [[m["step"], m["loss"]] for m in metrics if m.get("event") == "validation"]
    rates = [m["tokens_per_second"] for m in metrics if "tokens_per_second" in m]
    translator = load_translator(folder, device=recipe.train.device, say=lambda _: None)
    pairs = next(iter(test_sets(Setup(RunFolder(folder), recipe, say)).values()))
    buckets, decode_rate = _evaluate_by_length(translator, pairs, recipe)
    finished = Run(
        seed=recipe.train.seed,
        loss=min(loss for _, loss in losses),  # the best validation
        bleu=scores[0].bleu,
        exact_match=scores[0].exact_match,
        train_rate=statistics.median(rates),
        decode_rate=decode_rate,
        seconds=result.seconds,
        losses=losses,
        buckets=buckets,
    )
    disk.write_json(file, asdict(finished))
    return finished


def _read_run(file: Path) -> Run:
    values = json.loads(file.read_text(encoding="utf-8"))
    values["buckets"] = [Bucket(**bucket) for bucket in values["buckets"]]
    return Run(**values)


def _read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The records of metrics.jsonl, one object a line."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


# ------------------------------------------------------------------ quality by length


def _evaluate_by_length(
    translator: Translator, pairs: Sequence[Pair], recipe: Recipe
) -> tuple[list[Bucket], float]:
    """Quality by the length of the source, and how many tokens a second were decoded."""
    sources = [source for source, _ in pairs]
    references = [reference for _, reference in pairs]
    lengths = [len(token_ids) for token_ids in translator.encode(sources)]
    settings = DecodingSettings(BeamSearch(recipe.decode.beam, recipe.length_penalty))
    start = time.perf_counter()
    results = translator.hypotheses(sources, settings)
    seconds = time.perf_counter() - start
    # A sentence may have no hypothesis, where none ends within the length limit.
    translations = [translator.text(h[0]) if h else "" for h in results]
    tokens = sum(len(h[0].tokens) for h in results if h)
    buckets = []
    for rows in _length_buckets(lengths):
        row_references = [references[i] for i in rows]
        nll, count = translator.nll([sources[i] for i in rows], row_references)
        score = translation_score(
            [translations[i] for i in rows], row_references, recipe.decode.tokenize
        )
        bucket = Bucket(
            shortest=lengths[rows[0]],
            longest=lengths[rows[-1]],
            sentences=len(rows),
            loss=nll / count,  # a token
            bleu=score.bleu,
            exact_match=score.exact_match,
        )
        buckets.append(bucket)
    return buckets, tokens / max(seconds, 1e-9)


def _length_buckets(lengths: Sequence[int]) -> list[list[int]]:
    """Rows in the order of their lengths, in at most BUCKETS groups of about equal size.

    All rows of one length are in the same group.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    buckets: list[list[int]] = []
    last = -1
    for i in order:
        full = not buckets or len(buckets[-1]) * BUCKETS >= len(order)
        if full and lengths[i] != last and len(buckets) < BUCKETS:
            buckets.append([])
        buckets[-1].append(i)
        last = lengths[i]
    return buckets
