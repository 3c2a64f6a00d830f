"""The views: one function for each endpoint, from a request to an answer.

Numbers come from `regard.look`; nothing is computed a second way here.
"""

from __future__ import annotations

from regard.studio.views import analyses, models, tensors  # each adds its views
from regard.studio.views.inputs import VIEWS, Answer, Packed

__all__ = ["VIEWS", "Answer", "Packed"]
