"""Attention from scratch in numpy: scores, softmax, mixture, for the sentence "The cat sat on the
mat".

Run it: python examples/attention_numpy.py
"""

from __future__ import annotations

import numpy as np

WORDS = ["The", "cat", "sat", "on", "the", "mat"]
QUERY = np.array([0.9, 0.1, 0.2, 0.3])  # of the decoder, about to write "chat"
KEYS = np.array(
    [[0, 0, 0, 1], [1, 0, 0.3, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
)  # what each word offers
VALUES = np.array(
    [
        [0.1, 0, 0, 0.8],
        [0.9, 0, 0.1, 0.7],
        [0, 0.9, 0, 0.3],
        [0, 0, 0.5, 0],
        [0, 0, 0, 0.9],
        [0, 0, 0.9, 0.6],
    ]
)  # what each word gives


def attention(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """softmax(Q Kᵀ / √d_k) V and the weights: equation 1 of the paper."""
    scores = queries @ keys.T / np.sqrt(keys.shape[-1])
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = raised / raised.sum(axis=-1, keepdims=True)
    return weights @ values, weights


if __name__ == "__main__":
    output, weights = attention(QUERY[None], KEYS, VALUES)
    for word, score, weight in zip(WORDS, KEYS @ QUERY, weights[0], strict=True):
        print(f"{word:4} score {score:4.2f}  weight {weight:.2f}  {'█' * round(40 * weight)}")
    print("output", " ".join(f"{x:.2f}" for x in output[0]))
