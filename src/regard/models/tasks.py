"""The tasks that a loaded model may perform, declared for all kinds of models.

`regard.load` cannot know before it reads a folder which kind of model is in it. Each method here
has the signature that the models with this task share, so that a type checker accepts
`regard.load(folder).translate(...)`; a model without the task raises `ModelError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Unpack, overload

from torch import Tensor

from regard.errors import ModelError

if TYPE_CHECKING:
    from regard.decode.strategy import DecodingOptions, Strategy

# Every task, with the model that has it, for the repair of an error.
TASKS = {
    # text to text
    "translate": "an encoder–decoder over text, such as Marian",
    "generate": "a language model, such as GPT-2",
    "perplexity": "a language model or a translator",
    # vectors
    "embed": "an encoder, such as BERT or ViT",
    "embed_text": "a dual encoder, such as CLIP",
    "embed_image": "a dual encoder, such as CLIP",
    # heads of encoders
    "classify": "an encoder with a classification head, a dual encoder or a language model",
    "follows": "an encoder with a next-sentence head, such as BERT",
    "tag": "an encoder with a token-classification head",
    "entities": "an encoder with a token-classification head",
    "detect": "an encoder with a replaced-token head, such as ELECTRA",
    "fill": "an encoder with a masked-language-model head, such as BERT",
    "answer": "an encoder with a question-answering head",
    # time series
    "forecast": "a forecaster of time series, such as PatchTST",
    # speech
    "transcribe": "a speech model, such as Whisper or Wav2Vec2",
}


class Tasks:
    """Base class that declares all task methods; each kind of model overrides its own."""

    @property
    def tasks(self) -> list[str]:
        """The names of the task methods that this model has."""
        return [name for name in TASKS if getattr(type(self), name) is not getattr(Tasks, name)]

    def _no_task(self, task: str) -> NoReturn:
        # A model of a kind without tasks can still be called.
        able = ", ".join(self.tasks) or "be called with tensors"
        raise ModelError(
            f"this model ({self!r}) cannot `{task}`", f"it can: {able}; load {TASKS[task]}"
        )

    # --- text to text ---

    @overload
    def translate(
        self,
        text: str,
        strategy: Strategy | None = None,
        *,
        language: str | None = None,
        max_new_tokens: int | None = None,
        **options: Unpack[DecodingOptions],
    ) -> str: ...
    @overload
    def translate(
        self,
        text: list[str],
        strategy: Strategy | None = None,
        *,
        language: str | None = None,
        max_new_tokens: int | None = None,
        **options: Unpack[DecodingOptions],
    ) -> list[str]: ...
    def translate(
        self,
        text: str | list[str],
        strategy: Strategy | None = None,
        *,
        language: str | None = None,
        max_new_tokens: int | None = None,
        **options: Unpack[DecodingOptions],
    ) -> str | list[str]:
        """Translates one text or a list; see `Translator.translate`."""
        self._no_task("translate")

    @overload
    def generate(
        self,
        text: str,
        strategy: Strategy | None = None,
        *,
        max_new_tokens: int | None = None,
        stream: Callable[[str], None] | None = None,
        draft: Any = None,  # a LanguageModel
        **options: Unpack[DecodingOptions],
    ) -> str: ...
    @overload
    def generate(
        self,
        text: list[str],
        strategy: Strategy | None = None,
        *,
        max_new_tokens: int | None = None,
        stream: Callable[[str], None] | None = None,
        draft: Any = None,  # a LanguageModel
        **options: Unpack[DecodingOptions],
    ) -> list[str]: ...
    def generate(
        self,
        text: str | list[str],
        strategy: Strategy | None = None,
        *,
        max_new_tokens: int | None = None,
        stream: Callable[[str], None] | None = None,
        draft: Any = None,  # a LanguageModel
        **options: Unpack[DecodingOptions],
    ) -> str | list[str]:
        """Continues one text or a list; see `LanguageModel.generate`."""
        self._no_task("generate")

    # --- tasks whose arguments differ between kinds of models ---
    # `*args: Any, **kwargs: Any` stands for any further parameters in an override.

    def perplexity(self, *args: Any, **kwargs: Any) -> float:
        """exp(−log p per token) of texts; see `LanguageModel` and `Translator`."""
        self._no_task("perplexity")

    def embed(self, *args: Any, **kwargs: Any) -> Tensor:
        """One vector for a text or an image, [D], or [N, D] for a list."""
        self._no_task("embed")

    def embed_text(self, *args: Any, **kwargs: Any) -> Tensor:
        """The vector of a text in the space shared with images; see `DualEncoderModel`."""
        self._no_task("embed_text")

    def embed_image(self, *args: Any, **kwargs: Any) -> Tensor:
        """The vector of an image in the space shared with texts; see `DualEncoderModel`."""
        self._no_task("embed_image")

    def classify(self, *args: Any, **kwargs: Any) -> Any:
        """Label → probability, likeliest first, for one input or each of a list."""
        self._no_task("classify")

    def follows(self, *args: Any, **kwargs: Any) -> Any:
        """The probability that a second text follows the first; see `TextEncoder.follows`."""
        self._no_task("follows")

    def tag(self, *args: Any, **kwargs: Any) -> Any:
        """A label for each word; see `TextEncoder.tag`."""
        self._no_task("tag")

    def entities(self, *args: Any, **kwargs: Any) -> Any:
        """Named entities; see `TextEncoder.entities`."""
        self._no_task("entities")

    def detect(self, *args: Any, **kwargs: Any) -> Any:
        """Tokens that were replaced; see `TextEncoder.detect`."""
        self._no_task("detect")

    def fill(self, *args: Any, **kwargs: Any) -> Any:
        """The likeliest tokens for a mask; see `TextEncoder.fill`."""
        self._no_task("fill")

    def answer(self, *args: Any, **kwargs: Any) -> Any:
        """The answer to a question about a context; see `TextEncoder.answer`."""
        self._no_task("answer")

    def transcribe(self, *args: Any, **kwargs: Any) -> Any:
        """The text of a recording, or of each of a list; see `SpeechToText.transcribe`."""
        self._no_task("transcribe")

    # --- time series ---

    def forecast(self, series: Any) -> Any:
        """Forecasts the steps after a series; see `SeriesModel.forecast`."""
        self._no_task("forecast")
