"""`/v1/embeddings`: vectors of texts, in OpenAI's form."""

from __future__ import annotations

import base64
import time
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request as HttpRequest

from regard.evaluation.prediction import chosen_task
from regard.evaluation.task import PredictionOptions
from regard.serve.api import ApiError
from regard.serve.generation import input_list
from regard.serve.openai_schema import Embedding, EmbeddingList, EmbeddingRequest, Usage
from regard.serve.service import Endpoint, Service, answer_id, ask

# ------------------------------------------------------------------ vectors


async def embed(service: Service, request: EmbeddingRequest, http: HttpRequest) -> EmbeddingList:
    """The vectors of texts, or of texts as token ids."""
    engine = await service.engine(request.model)
    model = engine.model
    chosen_task(model, "embed", PredictionOptions())
    if model.medium is not None:
        raise ApiError(
            "this model reads files: ask /v1/embed", "model", code="unsupported_by_model"
        )
    inputs = input_list(request.input, service.limits, "input")
    if "" in inputs:
        raise ApiError("input: a text is empty", "input")
    rows: list[Any] = inputs
    if isinstance(inputs[0], str):
        texts: list[Any] = inputs
        rows = [model.input_tokenizer.input_ids(one) for one in texts]
        values = await ask(http, engine.ask("embed", texts, PredictionOptions()))
    else:
        values = await ask(http, engine.call(partial(_of_ids, rows=rows)))
    vectors = np.array(values)
    vectors = _cut(vectors.astype(np.float32), request.dimensions)
    tokens = sum(map(len, rows))
    return EmbeddingList(
        id=answer_id("embd"),
        created=int(time.time()),
        model=request.model,
        data=[
            Embedding(index=i, embedding=_written(vector, request.encoding_format))
            for i, vector in enumerate(vectors)
        ],
        usage=Usage(prompt_tokens=tokens, completion_tokens=0, total_tokens=tokens),
    )


def _of_ids(model: Any, rows: list[list[int]]) -> list[Any]:
    return model.embed_ids(rows).tolist()


def _cut(vectors: Any, dimensions: int | None) -> Any:
    """The first dimensions of vectors [N, D], at length 1, as OpenAI shortens them."""
    width = vectors.shape[-1]
    if dimensions is None or dimensions == width:
        return vectors
    if dimensions > width:
        raise ApiError(
            f"dimensions: {dimensions:,} are more than the {width:,} of this model", "dimensions"
        )
    vectors = vectors[:, :dimensions]
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def _written(vector: Any, encoding: str) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()


ENDPOINTS = (Endpoint("/v1/embeddings", embed, "Embed texts", EmbeddingList, EmbeddingRequest),)
