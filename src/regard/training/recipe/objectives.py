"""The objectives by name: what each learns from, its default model and its metrics.

No torch here: the class of an objective is imported once a run is assembled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.system.errors import SettingError, did_you_mean

# What a source of data yields: pairs of texts, one long text, labelled examples, images with labels
# or captions, recordings, time series, trajectories, or graphs.
DataKind = Literal[
    "pairs", "text", "examples", "images", "sounds", "series", "trajectories", "graph"
]
# The key of a recipe that names a file, or a folder, of each kind.
DATA_KEYS: dict[DataKind, str] = {
    "pairs": "pairs",
    "text": "text",
    "examples": "text",
    "images": "images",
    "sounds": "sounds",
    "series": "series",
    "trajectories": "trajectories",
    "graph": "graph",
}

# What an objective learns from, in the words of an error, and the flag that names it.
DATA_WORDS: dict[DataKind, tuple[str, str]] = {
    "pairs": ("pairs of texts", "--pairs FILE, or --source and --target"),
    "text": ("one text", "--text FILE"),
    "examples": ("one text of labelled examples", "--text FILE"),
    "images": ("images", "--images DIR"),
    "sounds": ("recordings", "--sounds TABLE of FILE<TAB>TRANSCRIPT or FILE<TAB>CLASS"),
    "series": ("time series", "--series FILE.csv"),
    "trajectories": ("trajectories", "--trajectories FILE.npz"),
    "graph": ("graphs", "--graph DIR"),
}

_CLASSIFICATION_METRICS = ("loss", "accuracy", "f1")
_TRANSLATION_METRICS = ("loss", "bleu", "chrf", "exact_match")
_BERT_INITIALIZATION = "normal:0.02"
_ENCODER_DECODER = ("encoder-decoder",)
_TEXT_READERS = ("encoder", "decoder", "encoder-decoder")
# Error rates are 100 for a while: the loss says earlier which weights are the best.
_TRANSCRIPTION_METRICS = ("loss", "wer", "cer")


@dataclass(frozen=True)
class ObjectiveSettings:
    """What a recipe must know of an objective."""

    implementation: str  # module:class, below regard.training.objectives
    data: DataKind
    model: str  # the default of --model
    kinds: tuple[str, ...]  # of models, as `families.preset_settings` calls them
    size: str = "tiny"  # the default of --preset
    metrics: tuple[str, ...] = ("loss",)  # that early stopping can look at
    finetuning_metric: str = "loss"  # the default of --metric in fine-tuning
    initialization: str = _BERT_INITIALIZATION
    generates: bool = False  # whether examples are generated where no file is named
    corrupts: bool = False  # whether it masks or corrupts a share of the tokens


OBJECTIVES: dict[str, ObjectiveSettings] = {
    "translate": ObjectiveSettings(
        "sequence_to_sequence:SequenceToSequence",
        "pairs",
        "transformer",
        _ENCODER_DECODER,
        size="small",
        metrics=_TRANSLATION_METRICS,
        initialization="xavier",  # Glorot and Bengio's
        generates=True,
    ),
    "causal": ObjectiveSettings(
        "causal_lm:CausalLM",
        "text",
        "gpt2",
        ("decoder",),
        initialization="scaled:0.02",  # GPT-2's: smaller in residual branches
    ),
    "masked": ObjectiveSettings(
        "corrupted_text:MaskedLM", "text", "bert", ("encoder",), corrupts=True
    ),
    "replaced": ObjectiveSettings(
        "replaced_token_detection:ReplacedTokenDetection",
        "text",
        "electra",
        ("encoder",),
        corrupts=True,
    ),
    "denoise": ObjectiveSettings(
        "corrupted_text:Denoising", "text", "bart", _ENCODER_DECODER, corrupts=True
    ),
    "span": ObjectiveSettings(
        "corrupted_text:SpanCorruption", "text", "t5", _ENCODER_DECODER, corrupts=True
    ),
    "classify": ObjectiveSettings(
        "classification:TextClassification",
        "examples",
        "bert",
        _TEXT_READERS,
        metrics=_CLASSIFICATION_METRICS,
        finetuning_metric="accuracy",
        generates=True,
    ),
    "tag": ObjectiveSettings(
        "head_objective:TokenClassification",
        "examples",
        "bert",
        _TEXT_READERS,
        metrics=_CLASSIFICATION_METRICS,
        finetuning_metric="f1",
    ),
    "answer": ObjectiveSettings(
        "head_objective:QuestionAnswering",
        "examples",
        "bert",
        _TEXT_READERS,
        metrics=("loss", "exact_match", "f1"),
        finetuning_metric="f1",
    ),
    "regress": ObjectiveSettings(
        "head_objective:Regression",
        "examples",
        "bert",
        _TEXT_READERS,
        metrics=("loss", "mse", "mae", "pearson", "spearman"),
    ),
    "contrastive": ObjectiveSettings(
        "contrastive:ContrastivePairs",
        "examples",
        "bert",
        _TEXT_READERS,
        metrics=("loss", "accuracy"),
    ),
    "ctc": ObjectiveSettings(
        "speech:ConnectionistTemporalClassification",
        "sounds",
        "wav2vec2",
        ("ctc",),
        metrics=_TRANSCRIPTION_METRICS,
        initialization="xavier",  # normal:0.02 began more slowly on small models
    ),
    "transcribe": ObjectiveSettings(
        "speech:Transcription",
        "sounds",
        "whisper",
        ("speech",),
        metrics=_TRANSCRIPTION_METRICS,
        initialization="xavier",  # as of ctc
    ),
    "speak": ObjectiveSettings(
        "speaking:Speaking",
        "sounds",
        "fastspeech2",
        ("speaker",),
        initialization="xavier",  # as of ctc
    ),
    "sounds": ObjectiveSettings(
        "classification:SoundClassification",
        "sounds",
        "wav2vec2",
        ("ctc", "speech"),
        metrics=_CLASSIFICATION_METRICS,
        finetuning_metric="accuracy",
        initialization="xavier",  # as of ctc
    ),
    "speech_contrastive": ObjectiveSettings(
        "speech:SpeechContrastive",
        "sounds",
        "wav2vec2",
        ("ctc",),
        metrics=("loss", "accuracy"),
        initialization="xavier",  # as of ctc
        corrupts=True,
    ),
    "stories": ObjectiveSettings(
        "classification:StoryQuestions",
        "examples",
        "memory",
        ("memory network",),
        metrics=_CLASSIFICATION_METRICS,
        initialization="xavier",
        generates=True,
    ),
    "images": ObjectiveSettings(
        "classification:ImageClassification",
        "images",
        "vit",
        ("image",),
        metrics=_CLASSIFICATION_METRICS,
        finetuning_metric="accuracy",
    ),
    "masked_images": ObjectiveSettings(
        "masked_images:MaskedImages",
        "images",
        "vit-mae",
        ("image",),
        initialization="xavier",  # the authors'; the decoder is narrow
        corrupts=True,
    ),
    "clips": ObjectiveSettings(
        "classification:ClipClassification",
        "images",
        "timesformer",
        ("video",),
        metrics=_CLASSIFICATION_METRICS,
        finetuning_metric="accuracy",
        initialization="xavier",  # models are small: with 0.02, nothing was learnt for long
        generates=True,
    ),
    "masked_clips": ObjectiveSettings(
        "masked_images:MaskedClips",
        "images",
        "videomae",
        ("video",),
        initialization="xavier",  # as of masked_images
        generates=True,
        corrupts=True,
    ),
    "image_text": ObjectiveSettings(
        "contrastive:ImageTextContrastive",
        "images",
        "clip",
        ("dual encoder",),
        metrics=_CLASSIFICATION_METRICS,
        finetuning_metric="accuracy",
        # CLIP's deviations shrink with the width, as these do: with 0.02 the vectors of a narrow
        # model begin all alike.
        initialization="xavier",
    ),
    "caption": ObjectiveSettings(
        "medium_to_text:Captioning",
        "images",
        "vit-gpt2",
        ("captioner",),
        metrics=("loss", "bleu", "chrf", "exact_match"),
        initialization="xavier",
        generates=True,
    ),
    "draw": ObjectiveSettings(
        "drawing:Drawing",
        "images",
        "gpt2",
        ("decoder",),
        metrics=("loss", "perplexity"),
        initialization="scaled:0.02",  # as of causal
        generates=True,
    ),
    "vqa": ObjectiveSettings(
        "classification:VisualQuestions",
        "images",
        "vilt",
        ("image and text",),
        metrics=_CLASSIFICATION_METRICS,
        finetuning_metric="accuracy",
        initialization="xavier",
        generates=True,
    ),
    "detect": ObjectiveSettings(
        "detection:Detection",
        "images",
        "detr",
        ("detector",),
        metrics=("loss", "ap", "ap50"),
        finetuning_metric="ap50",
        initialization="xavier",  # the paper's (Section A.4)
        generates=True,
    ),
    "segment": ObjectiveSettings(
        "segmentation:Segmentation",
        "images",
        "segformer",
        ("image",),
        metrics=("loss", "miou", "pixel_accuracy"),
        finetuning_metric="miou",
        initialization="xavier",
        generates=True,
    ),
    "forecast": ObjectiveSettings(
        "forecasting:Forecasting",
        "series",
        "patchtst",
        ("series",),
        metrics=("loss", "mse", "mae"),
        initialization="xavier",  # models are small, and their maps of one patch narrow
    ),
    "act": ObjectiveSettings(
        "acting:Acting",
        "trajectories",
        "decision-transformer",
        ("policy",),
        metrics=("loss", "mae", "spearman", "mean_return"),
        generates=True,
    ),
    "nodes": ObjectiveSettings(
        "classification:NodeClassification",
        "graph",
        "graph",
        ("graph",),
        metrics=_CLASSIFICATION_METRICS,
        finetuning_metric="accuracy",
        initialization="xavier",  # with 0.02, few labels take long to be heard
    ),
    "graphs": ObjectiveSettings(
        "classification:GraphClassification",
        "graph",
        "graph",
        ("graph",),
        metrics=_CLASSIFICATION_METRICS,
        finetuning_metric="accuracy",
        initialization="xavier",
    ),
}
# Tasks that are learnt by an objective of another name.
TASKS = {"lm": "causal", "summarize": "translate", "pronounce": "translate"}
# What a kind of model learns, unless its family is named below.
_OF_KIND = {
    "encoder": "masked",
    "decoder": "causal",
    "encoder-decoder": "denoise",
    "memory network": "stories",
    "image": "images",
    "video": "clips",
    "dual encoder": "image_text",
    "detector": "detect",
    "captioner": "caption",
    "image and text": "vqa",
    "speech": "transcribe",
    "speaker": "speak",
    "ctc": "ctc",
    "series": "forecast",
    "policy": "act",
    "graph": "nodes",
}
_FAMILY_OBJECTIVES = {
    "electra": "replaced",
    "t5": "span",
    "t5-v1.1": "span",
    "mt5": "span",
    "vit-mae": "masked_images",
    "segformer": "segment",
    "videomae": "masked_clips",
}
# Each is a language model, or both sides of a translator.
CELLS = ("rnn", "rnn_relu", "gru", "lstm")


def objective_of(name: str, kind: str, has_text: bool) -> str:
    """The objective of a run that names none: that of its model and of its data.

    `name` is that of the model without its size, `kind` that of `families.preset_settings`.
    """
    if kind == "encoder-decoder" and not has_text:
        return "translate"
    if name in CELLS:
        return "causal"
    return _FAMILY_OBJECTIVES.get(name) or _OF_KIND[kind]


def objective_settings(name: str) -> ObjectiveSettings:
    """The settings of an objective; an unknown name is answered by the nearest."""
    if name not in OBJECTIVES:
        raise SettingError(f"there is no objective {name!r}", did_you_mean(name, OBJECTIVES))
    return OBJECTIVES[name]
