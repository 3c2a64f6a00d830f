"""Numbers that a caller gives as an array, a tensor or a list: recordings, and time series."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.system.errors import DataError


def as_array(values: Any, subject: str, repair: str) -> NDArray[Any]:
    """An array of numbers; a tensor may have a gradient, and be on any device.

    Anything else, such as rows of different lengths, is a `DataError` that names the `subject`.
    """
    if isinstance(values, Tensor):
        values = values.detach().to("cpu")
        # numpy has no bfloat16.
        if values.dtype == torch.bfloat16:
            values = values.float()
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError):  # rows of different lengths
        array = np.empty(0, dtype=object)
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool) or array.ndim == 0:
        raise DataError(f"{type(values).__name__} is not a {subject}", repair)
    return array
