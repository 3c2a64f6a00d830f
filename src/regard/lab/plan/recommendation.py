"""Recommendation of a wiring and a size for a task and an amount of data, with its reasons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from regard.system.errors import SettingError, did_you_mean
from regard.training.recipe.objectives import OBJECTIVES, TASKS


@dataclass(frozen=True)
class Wiring:
    """The architecture for a kind of task: models by size, from few examples to many."""

    tasks: tuple[str, ...]
    name: str
    why: str
    sizes: tuple[tuple[float, str], ...]  # (examples up to which it is the one, NAME:SIZE)
    few: str  # what to do with few examples
    least: int  # examples below which no Transformer is the tool
    instead: str  # what is, there
    enough: int  # examples from which training from scratch pays
    evidence: str
    prior: str  # what may be known of the data, and the model that has it built in


_TABLE = (
    Wiring(
        ("masked", "replaced", "classify", "tag", "answer", "regress", "contrastive"),
        "encoder (BERT's wiring)",
        "every position sees the whole input, and the output is a label, not a text",
        ((20_000, "bert:tiny"), (500_000, "bert:small"), (float("inf"), "bert:base")),
        "fine-tune a pretrained encoder: regard train --base FOLDER --objective {task} --text FILE",
        500,
        "logistic regression on word counts (TF-IDF) needs no GPU, and is hard to beat",
        100_000,
        "SST-2, 6,920 examples: a fine-tuned MiniLM reaches 86.9 % (docs/log); BERT, Table 1 and "
        "5: pretraining adds most where a task has few examples",
        "single words decide (topics, spam): a linear model on their counts needs no word order",
    ),
    Wiring(
        ("translate", "denoise", "span"),
        "encoder–decoder (the Transformer of 2017)",
        "the input is read both ways before the first output token, and the lengths differ",
        (
            (50_000, "transformer:tiny"),
            (1_000_000, "transformer:small"),
            (10_000_000, "transformer:base"),
            (float("inf"), "transformer:big"),
        ),
        "fine-tune a pretrained encoder–decoder (Marian, T5, BART), or train a tiny one with "
        "dropout 0.3 and R-Drop",
        5_000,
        "use a pretrained translator as it is, and keep the pairs to evaluate it",
        20_000,
        "Multi30k, 29,000 pairs: a tiny one reaches 41.4 BLEU (docs/log); WMT14, 4.5 M pairs: "
        "base 27.3, big 28.4 BLEU (Vaswani et al., Table 2)",
        "outputs follow rules (dates, units, templates): a grammar or a lookup makes no mistakes",
    ),
    Wiring(
        ("causal",),
        "decoder (GPT's wiring)",
        "text is continued from left to right, and every position is a training signal",
        (
            # About 20 tokens for each parameter.
            (300_000_000, "gpt2:tiny"),
            (4_000_000_000, "gpt2:small"),
            (30_000_000_000, "gpt2:medium"),
            (float("inf"), "llama:7b"),
        ),
        "fine-tune a pretrained language model, with LoRA if memory is short",
        100_000,
        "an n-gram model with smoothing learns more from so little text",
        1_000_000,
        "20 tokens per parameter are compute-optimal (Hoffmann et al. 2022); below that, more data "
        "helps more than more parameters. Examples are tokens here",
        "only the last few tokens matter: an n-gram model predicts as well, and is a table",
    ),
    Wiring(
        ("images",),
        "image encoder (ViT's wiring)",
        "an image is a sequence of patches, and its class is read from one token",
        ((50_000, "vit:tiny"), (1_500_000, "vit:small/16"), (float("inf"), "vit:base/16")),
        "fine-tune a pretrained ViT or CLIP; a ViT has no built-in notion of neighbouring patches",
        1_000,
        "a classifier on the vectors of a pretrained model, or a small convolutional network",
        100_000,
        "ViT, Figures 3 and 4: below about ten million images it is worse than convolutional "
        "networks; augmentation closes much of that (DeiT)",
        "objects look the same wherever they are: a convolutional network has that built in",
    ),
    Wiring(
        ("detect",),
        "encoder–decoder from an image to object queries (DETR's wiring)",
        "each query finds one object or none, so that no boxes are proposed or thrown away",
        ((100_000, "detr:small"), (float("inf"), "detr:r50")),
        "fine-tune a pretrained DETR",
        10_000,
        "a pretrained detector of convolutions: DETR learns slowly from few images",
        100_000,
        "DETR, Table 1: 42.0 AP on COCO's 118,000 images after 500 epochs (Carion et al. 2020)",
        "objects look the same wherever they are: a detector of convolutions has that built in",
    ),
    Wiring(
        ("segment",),
        "image encoder whose positions are scored (SegFormer's wiring)",
        "each position has a class; a pyramid sees both details and the whole",
        ((100_000, "segformer:tiny"), (float("inf"), "segformer:b0")),
        "fine-tune a pretrained SegFormer",
        1_000,
        "a pretrained segmenter, or a convolutional U-Net: so few masks teach no representation",
        100_000,
        "SegFormer, Table 1: encoders are pretrained on ImageNet first",
        "neighbouring pixels belong together: a convolutional network has that built in",
    ),
    Wiring(
        ("masked_images",),
        "masked autoencoder (MAE's wiring)",
        "the encoder reads the visible patches only, and a small decoder fills in the others",
        ((50_000, "vit-mae:tiny"), (float("inf"), "vit-mae:base/16")),
        "fine-tune a pretrained encoder for classes; pre-training pays where images are many and "
        "labels few",
        10_000,
        "a pretrained encoder: so few images teach no representation",
        100_000,
        "MAE, Figure 7: representations still improve after 800 epochs",
        "objects look the same wherever they are: a convolutional network has that built in",
    ),
    Wiring(
        ("image_text",),
        "dual encoder (CLIP's wiring)",
        "texts and images are compared as vectors, so that each is encoded once",
        ((1_000_000, "clip:tiny"), (float("inf"), "clip:vit-b/32")),
        "fine-tune a pretrained CLIP",
        10_000,
        "a pretrained CLIP as it is",
        1_000_000,
        "CLIP learnt from 400 M pairs (Radford et al. 2021)",
        "the images come with fixed classes: a classifier of images needs no texts",
    ),
    Wiring(
        ("caption",),
        "encoder–decoder from an image to a text (a ViT, and a GPT-2 with cross-attention)",
        "the caption is text with a language model's order, and its length is not fixed",
        ((100_000, "vit-gpt2:tiny"), (float("inf"), "vit-gpt2:base")),
        "fine-tune a pretrained captioner, or join a pretrained ViT and a pretrained GPT-2",
        5_000,
        "a pretrained CLIP that chooses among captions",
        100_000,
        "captioners learn from COCO's 118,000 images with five captions each",
        "the captions come from a small list: a classifier of images is enough",
    ),
    Wiring(
        ("vqa",),
        "encoder of one stream of text and image (ViLT's wiring)",
        "words and patches attend to each other in all layers, and the answer is one of a list",
        ((100_000, "vilt:tiny"), (1_000_000, "vilt:small"), (float("inf"), "vilt:b/32")),
        "fine-tune a pretrained ViLT",
        5_000,
        "a pretrained CLIP that chooses among answers written as captions",
        1_000_000,
        "ViLT: 71.3 % on VQAv2's million questions, after pretraining on 4 M images (Kim et al. "
        "2021)",
        "all questions ask the same: a classifier of images is enough",
    ),
    Wiring(
        ("clips",),
        "encoder of clips with divided space–time attention (TimeSformer's wiring)",
        "each patch sees itself in all frames, then the patches of its frame",
        ((100_000, "timesformer:tiny"), (float("inf"), "timesformer:base")),
        "fine-tune a pretrained TimeSformer or VideoMAE",
        1_000,
        "an image classifier on single frames: what happens is often seen in one of them",
        200_000,
        "TimeSformer begins from a ViT of ImageNet, for the 240,000 clips of Kinetics-400 "
        "(Bertasius et al. 2021)",
        "one frame shows the class: a classifier of images reads an eighth as much",
    ),
    Wiring(
        ("masked_clips",),
        "masked autoencoder of clips (VideoMAE's wiring)",
        "the encoder reads a tenth of the tubelets, and a small decoder fills in the others",
        ((50_000, "videomae:tiny"), (float("inf"), "videomae:base")),
        "fine-tune a pretrained encoder for classes",
        1_000,
        "a pretrained encoder: so few clips teach no representation",
        3_500,
        "VideoMAE learns from some 3,500 videos already (Tong et al. 2022)",
        "one frame shows the class: pre-train on images, of which there are more",
    ),
    Wiring(
        ("speak",),
        "text to speech without autoregression (FastSpeech 2's wiring)",
        "each letter or phoneme has a duration, so that no word is skipped or said twice",
        ((5_000, "fastspeech2:tiny"), (float("inf"), "fastspeech2:base")),
        "fine-tune a pretrained voice",
        100,
        "record what is to be said, or use a pretrained voice as it is",
        5_000,
        "FastSpeech 2: LJSpeech, 13,100 sentences of one speaker, 24 hours (Ren et al. 2021)",
        "the same few sentences are said: play recordings of them",
    ),
    Wiring(
        ("act",),
        "policy over trajectories (Decision Transformer's wiring)",
        "what is done follows from the return that is asked for, learnt without an environment",
        ((100_000, "decision-transformer:tiny"), (float("inf"), "decision-transformer:base")),
        "generate episodes in a simulator",
        100,
        "behaviour cloning of the best episodes, by a small network over single states",
        1_000,
        "Decision Transformer: a million steps of a thousand episodes (Chen et al. 2021)",
        "there is a simulator: reinforcement learning, or a controller by hand",
    ),
    Wiring(
        ("transcribe",),
        "encoder–decoder over spectrograms (Whisper's wiring)",
        "the transcript is text with a language model's order, and its length is not fixed",
        ((100_000, "whisper:tiny"), (float("inf"), "whisper:base")),
        "fine-tune a pretrained Whisper",
        1_000,
        "a pretrained Whisper as it is",
        100_000,
        "Whisper learnt from 680,000 hours (Radford et al. 2022)",
        "a few commands are spoken: a small classifier of sounds (--objective sounds) is enough",
    ),
    Wiring(
        ("ctc", "sounds", "speech_contrastive"),
        "encoder over waveforms with CTC (wav2vec 2.0's wiring)",
        "letters are in the same order as the audio frames (monotonic alignment)",
        ((100_000, "wav2vec2:tiny"), (float("inf"), "wav2vec2:base")),
        "fine-tune a pretrained wav2vec 2.0: ten minutes of labels give a usable recognizer",
        200,
        "a pretrained recognizer as it is",
        100_000,
        "wav2vec 2.0, Table 1: 4.8 % WER from ten minutes of labels after pretraining",
        "a few commands are spoken: a small classifier of sounds (--objective sounds) is enough",
    ),
    Wiring(
        ("draw",),
        "decoder over words and image tokens (DALL-E's wiring)",
        "an image is a text of patches behind its name, sampled token by token",
        ((float("inf"), "gpt2:tiny"),),
        "few pictures are learnt by heart, and new names get parts of them",
        2_000,
        "look the nearest name up, and show its picture",
        500,
        "DALL-E learnt from 250 million pictures with texts (Ramesh et al. 2021)",
        "pictures are larger than some hundred tokens: diffusion models draw them better",
    ),
    Wiring(
        ("stories",),
        "memory network",
        "a question is answered from a few sentences in hops",
        ((float("inf"), "memory:small"),),
        "generate more stories: the task is synthetic",
        100,
        "rules: there is too little to learn them from",
        1_000,
        "Sukhbaatar et al. 2015, Table 1",
        "the facts have a fixed form: a database answers questions without training",
    ),
    Wiring(
        ("forecast",),
        "encoder over patches of time (PatchTST's wiring)",
        "each channel is a sequence of patches, read by the same weights",
        ((20_000, "patchtst:tiny"), (float("inf"), "patchtst:base")),
        "compare with `--model dlinear`, which is hard to beat on short series",
        2_000,
        "a linear forecaster (--model dlinear), or the value of a season ago",
        2_000,
        "PatchTST, Table 3: 0.370 mean squared error on ETTh1 at 96 steps, 8,640 hours to train "
        "on; a linear model 0.375. Examples are time steps here",
        "trend and season explain the series: DLinear (--model dlinear) or exponential smoothing",
    ),
    Wiring(
        ("nodes",),
        "attention along the edges of a graph (GAT's wiring)",
        "a node is classified from itself and its neighbours",
        ((float("inf"), "graph:small"),),
        "a small one with much dropout and R-Drop, from scratch: the unlabelled nodes help too",
        20,
        "labels that spread along the edges (label propagation)",
        1,
        "Cora, 140 labelled papers: GAT 83.0 % (Veličković et al. 2018)",
        "neighbours mostly share their label: averaging over them (GCN) has that built in",
    ),
    Wiring(
        ("graphs",),
        "full attention with distances in the graph as biases (Graphormer's wiring)",
        "every node sees every other, and knows how far away it is",
        ((10_000, "graphormer:tiny"), (float("inf"), "graphormer:small")),
        "a tiny one, with dropout",
        500,
        "fingerprints of the graphs with a random forest",
        1,
        "Graphormer, Table 1: first on 3.8 M molecules (Ying et al. 2021)",
        "only edges carry information: message passing along them costs less than n² pairs",
    ),
)
_WIRINGS = {task: wiring for wiring in _TABLE for task in wiring.tasks}
# Words for tasks that a user may say, besides the names of objectives.
_OTHER_WORDS = {
    **TASKS,
    "translation": "translate",
    "summarization": "translate",
    "classification": "classify",
    "sentiment": "classify",
    "ner": "tag",
    "tagging": "tag",
    "qa": "answer",
    "language-model": "causal",
    "generate": "causal",
    "image": "images",
    "captioning": "caption",
    "speech": "transcribe",
    "retrieval": "contrastive",
    "forecasting": "forecast",
    "series": "forecast",
}


# When a Transformer is the wrong tool whatever the task is; `Wiring.prior` is the reason of one.
_NOT_IF = (
    "answers must come within milliseconds, or on a small device: `regard plan {model} "
    "--inference` says how long one takes; a smaller model can be distilled or quantized from it",
    "inputs have tens of thousands of positions and memory is short: attention compares all "
    "pairs; use windows (--attention window:128), or a recurrent model, whose state has one size",
    "each decision must be explained: attention weights are no reasons; use a linear model",
)


@dataclass(frozen=True)
class Recommendation:
    """A model for a task, and the reasons."""

    task: str
    examples: int
    wiring: str
    model: str
    pretrained: bool  # whether to start from a pretrained model
    why: tuple[str, ...]
    not_if: tuple[str, ...]  # when a Transformer is the wrong tool, and what is the right one
    command: str

    def lines(self) -> Iterator[str]:
        yield f"{self.task}, {self.examples:,} examples"
        yield f"  wiring   {self.wiring}"
        size = f"the size of {self.model}, pretrained" if self.pretrained else self.model
        yield f"  model    {size}"
        for reason in self.why:
            yield f"  because  {reason}"
        for reason in self.not_if:
            yield f"  not if   {reason}"
        yield f"  try      {self.command}"


def recommend(task: str, examples: int | None) -> Recommendation:
    """The wiring and the size for a task, by the rules of the table above."""
    name = _OTHER_WORDS.get(task.lower(), task.lower())
    if name not in _WIRINGS:
        words = [*OBJECTIVES, *_OTHER_WORDS]
        raise SettingError(f"unknown task {task!r}", did_you_mean(task, words))
    if examples is None or examples < 1:
        raise SettingError(
            "the recommended size depends on the number of examples", "set --examples N"
        )
    wiring = _WIRINGS[name]
    # The last limit is infinite: there is always one.
    model = next(model for limit, model in wiring.sizes if examples <= limit)
    # Decided apart from the size, which tells what pretrained model to look for, too.
    pretrained = examples < wiring.enough
    start = f"fewer than {wiring.enough:,} examples: {wiring.few.format(task=name)}"
    if not pretrained:
        start = f"{wiring.enough:,} examples or more are enough to train from scratch"
    why: tuple[str, ...] = (wiring.why, start, wiring.evidence)
    if examples < wiring.least:
        why = (
            f"a Transformer is seldom the right tool below {wiring.least:,}: {wiring.instead}",
            *why,
        )
    # The flag of `regard train` that takes this kind of data.
    kind = OBJECTIVES[name].data
    key = "text" if kind == "examples" else kind
    source = "--base FOLDER" if pretrained else f"--model {model}"
    command = f"regard train {source} --objective {name} --{key} FILE"
    not_if = (wiring.prior, *(reason.format(model=model) for reason in _NOT_IF))
    return Recommendation(name, examples, wiring.name, model, pretrained, why, not_if, command)
