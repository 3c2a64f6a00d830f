"""`/v1/embeddings`: vectors of texts, in OpenAI's form."""

from __future__ import annotations

import base64
from typing import Any, Literal

import numpy as np

from regard.evaluation.prediction import chosen_task
from regard.evaluation.task import PredictionOptions
from regard.serve.api import ApiError, ApiModel, Request, unsupported
from regard.serve.generation import input_list
from regard.serve.schema import Answer, Count, Inputs, Usage
from regard.serve.service import Call, Endpoint


class EmbeddingRequest(Request):
    """`POST /v1/embeddings`. With `dimensions`, a vector is cut there and scaled to length 1."""

    input: Inputs
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = None


class Embedding(ApiModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(Answer):
    object: Literal["list"] = "list"
    data: list[Embedding]
    usage: Usage


async def embed(call: Call) -> EmbeddingList:
    """The vectors of texts, or of texts as token ids."""
    request: EmbeddingRequest = call.request
    chosen_task(call.model, "embed", PredictionOptions())
    if call.model.medium is not None:
        raise unsupported("this model reads files: ask /v1/embed")
    rows = input_list(request.input, call.limits, "input")
    if "" in rows:
        raise ApiError("input: a text is empty", "input")
    if isinstance(rows[0], str):
        values = await call.ask("embed", rows)
        rows = [call.model.input_tokenizer.input_ids(one) for one in rows]
    else:
        values = await call.run(_of_ids, field="input", rows=rows)
    vectors = _cut(np.array(values, dtype=np.float32), request.dimensions)
    data = [
        Embedding(index=i, embedding=_written(vector, request.encoding_format))
        for i, vector in enumerate(vectors)
    ]
    usage = Usage(prompt_tokens=sum(map(len, rows)))
    return EmbeddingList(**call.head("embd"), data=data, usage=usage)


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


ENDPOINTS = (Endpoint("/v1/embeddings", embed, EmbeddingList, EmbeddingRequest),)
