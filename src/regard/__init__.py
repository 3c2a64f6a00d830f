"""regard: one readable, fast system for the whole Transformer family."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard import extend, look, spec
    from regard.builder import build
    from regard.evaluation import ray
    from regard.evaluation.prediction import predict
    from regard.families.presets import preset
    from regard.lab import doctor, study
    from regard.lab.compare.entry_point import compare
    from regard.lab.plan.planner import plan
    from regard.models import (
        CTCModel,
        DualEncoderModel,
        GraphModel,
        ImageCaptioner,
        ImageEncoder,
        ImageGenerator,
        LanguageModel,
        MemoryNetworkModel,
        Model,
        ObjectDetector,
        Policy,
        SeriesModel,
        SoundClassifier,
        SpectrogramClassifier,
        SpeechToText,
        TextEncoder,
        Translator,
        VisualQuestionModel,
        WaveformModel,
        load,
    )
    from regard.training.entry_points import finetune, train
    from regard.training.run import resume
    from regard.training.run_evaluation import evaluate

__version__ = "0.1.0"

__all__ = [
    "CTCModel",
    "DualEncoderModel",
    "GraphModel",
    "ImageCaptioner",
    "ImageEncoder",
    "ImageGenerator",
    "LanguageModel",
    "MemoryNetworkModel",
    "Model",
    "ObjectDetector",
    "Policy",
    "SeriesModel",
    "SoundClassifier",
    "SpectrogramClassifier",
    "SpeechSynthesizer",
    "SpeechToText",
    "TextEncoder",
    "Translator",
    "VisualQuestionModel",
    "WaveformModel",
    "build",
    "compare",
    "doctor",
    "evaluate",
    "extend",
    "finetune",
    "load",
    "look",
    "plan",
    "predict",
    "preset",
    "ray",
    "resume",
    "spec",
    "study",
    "train",
]

# Public names are imported when they are first used (PEP 562), so that `import regard` and
# `regard --help` do not wait for torch.
_MODULES = {
    "doctor": "regard.lab.doctor",
    "extend": "regard.extend",
    "look": "regard.look",
    "ray": "regard.evaluation.ray",
    "spec": "regard.spec",
    "study": "regard.lab.study",
}
_FUNCTIONS = {
    "build": "regard.builder",
    "compare": "regard.lab.compare.entry_point",
    "evaluate": "regard.training.run_evaluation",
    "finetune": "regard.training.entry_points",
    "plan": "regard.lab.plan.planner",
    "predict": "regard.evaluation.prediction",
    "preset": "regard.families.presets",
    "resume": "regard.training.run",
    "train": "regard.training.entry_points",
}


if not TYPE_CHECKING:
    # Hidden from type checkers, which would otherwise accept any name.
    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'regard' has no attribute {name!r}")
        if name in _MODULES:
            return importlib.import_module(_MODULES[name])
        # What is neither a module nor a function listed above is a model class or its loader.
        module = importlib.import_module(_FUNCTIONS.get(name, "regard.models"))
        return getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
