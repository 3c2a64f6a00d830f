"""A model as a stage of Ray Data: batch inference on one machine or on a cluster.

    import ray, regard.evaluation.ray

    texts = ray.data.read_parquet("s3://bucket/texts/")
    answers = regard.ray.predict(texts, "runs/builtin", task="translate", concurrency=8)
    answers.write_parquet("s3://bucket/answers/")

`predict` is `dataset.map_batches(Predictor, …)` with the settings that batch work needs: rows keep
their order, and what a lost worker was computing is computed again, so that each row comes out
once. Nothing here starts Ray: `ray.init()`, or the cluster that a job runs on, decides where.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.evaluation.prediction import PredictionOptions, chosen_task
from regard.evaluation.prediction import predict as model_predict
from regard.models import Model, load
from regard.system.errors import DataError, SettingError, did_you_mean

if TYPE_CHECKING:
    from ray.data import Dataset

ROWS_PER_BATCH = 1000  # enough to sort by length, little enough to lose with a worker
DECODING_TASKS = ("translate", "generate")  # whose options are those of decoding: beam, max_…


class Predictor:
    """A callable class for `map_batches`: it loads a model once and answers batches of texts.

    `task` is what the model is asked for, its own by default. Answers go to the column `output`:
    texts, label → probability, spans, or vectors; for a row without a text None, or an empty text
    where texts are decoded. `options` are those of the task: `beam=8` or `temperature=0.7` of
    decoding, `labels`, `context` and `top` of the others.
    """

    def __init__(
        self,
        model: str,
        task: str | None = None,
        *,
        column: str = "text",
        output: str = "prediction",
        device: str = "auto",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.column = column
        self.output = output
        self.options = dict(options or {})
        # Once for each worker, which then answers many batches.
        self.model: Model = load(model, device=device)
        names = PredictionOptions.__dataclass_fields__
        prediction = {name: value for name, value in self.options.items() if name in names}
        self.task = chosen_task(self.model, task, PredictionOptions(**prediction))
        # Refused before any row; the options of decoding are checked by the model's method.
        for name in self.options.keys() - prediction.keys():
            if self.task not in DECODING_TASKS:
                raise SettingError(
                    f"`{self.task}` of this model has no option {name!r}",
                    did_you_mean(name, names),
                )

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        if self.column not in batch:
            raise DataError(
                f"these rows have no column {self.column!r}",
                f"say column=; they have: {', '.join(batch)}",
            )
        # Rows without a text count as blank; pandas has NaN for them, which is not itself.
        texts = ["" if row is None or row != row else row for row in batch[self.column]]
        answers = iter(self._answers([text for text in texts if text.strip()]))
        column = np.empty(len(texts), dtype=object)
        for row, text in enumerate(texts):
            column[row] = next(answers) if text.strip() else None
        if self.task in DECODING_TASKS:
            column[column == None] = ""  # noqa: E711 (elementwise)
        return {**batch, self.output: column}

    def _answers(self, texts: list[str]) -> list[Any]:
        if not texts:
            return []
        if self.task in DECODING_TASKS:
            method = getattr(self.model, self.task)
            return list(method(texts, **self.options))
        predictions = model_predict(self.model, texts, self.task, **self.options)
        return [prediction.answer for prediction in predictions]


def predict(
    dataset: Dataset,
    model: str,
    task: str | None = None,
    *,
    concurrency: int | tuple[int, int] = 1,
    batch_size: int = ROWS_PER_BATCH,
    gpus: float = 0,
    **settings: Any,
) -> Dataset:
    """The rows of a dataset with the answers of a model, in the order of the rows.

    `concurrency` is the number of workers, at most, or its bounds; each holds the model, on one CPU
    or on `gpus` (a share of) GPUs. `settings` are those of `Predictor`. The model's folder must be
    readable on every machine. Rows are computed once the result is read or written.
    """
    try:
        from ray.data import ActorPoolStrategy
    except ImportError:
        raise SettingError("Ray Data is not installed", "pip install 'regard[ray]'") from None
    # From one worker on: if all of them took every CPU at once, none would be left to read the
    # rows that they wait for.
    least, most = concurrency if isinstance(concurrency, tuple) else (1, concurrency)
    # Of this dataset alone. Blocks come out in their order, though workers finish in another.
    dataset.context.execution_options.preserve_order = True
    resources: dict[str, float] = {"num_gpus": gpus} if gpus else {"num_cpus": 1}
    return dataset.map_batches(
        Predictor,
        fn_constructor_args=(model, task),
        fn_constructor_kwargs={"device": "cuda" if gpus else "cpu", **settings},
        batch_size=batch_size,
        batch_format="numpy",
        compute=ActorPoolStrategy(min_size=least, max_size=most),
        **resources,
    )
