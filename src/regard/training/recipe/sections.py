"""The sections of a recipe: every setting with its type, default, limits and help text.

Every key has a name of its own across the sections, so the flag `--batch-tokens` and the key
`batch_tokens` are the same thing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from regard.decode.length_penalty import parse_length_penalty
from regard.spec.validation import LARGEST_SIZE
from regard.training.recipe.options import (
    parse_generated_task,
    parse_initialization,
    parse_mixture_weights,
    parse_weights,
)

Beta = Annotated[float, Field(ge=0, lt=1)]
# `tokenizers` allocates a table for as many tokens at once, and aborts the process if it cannot.
LARGEST_VOCABULARY = 5_000_000


class Section(BaseModel):
    """A group of settings; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _fits_in_32_bits(cls, value: Any, info: ValidationInfo) -> Any:
        """Sizes and counts: beyond 32 bits they overflow in one library or another."""
        if isinstance(value, int) and value > LARGEST_SIZE and info.field_name != "seed":
            raise ValueError(f"cannot be more than {LARGEST_SIZE:,}")
        return value


class DataSettings(Section):
    """Where the data comes from. With no file named, the built-in parallel language is generated.

    Pairs are for translation, `images`, `sounds`, `series` and `graph` for models that read these;
    `text` is for all other objectives.
    """

    # Parallel text, for translation.
    source: str | None = Field(
        None,
        description="training text, source side; one sentence a line. Files may be .gz or .zst, "
        "Parquet or Arrow, a folder, a glob, remote (s3://…), and several with commas between",
    )
    target: str | None = Field(
        None, description="training text, target side; line by line its translation"
    )
    pairs: str | None = Field(
        None,
        description="both sides in one .tsv or .jsonl; or .parquet, .arrow, a saved dataset; - is "
        "standard input",
    )
    valid_source: str | None = Field(None, description="validation text, source side")
    valid_target: str | None = Field(None, description="validation text, target side")
    valid_pairs: str | None = Field(None, description="validation pairs in one .tsv or .jsonl")
    test_source: str | None = Field(None, description="scored once, after training")
    test_target: str | None = Field(None, description="scored once, after training")
    test_pairs: str | None = Field(None, description="test pairs in one .tsv or .jsonl")
    # Plain text, for the other objectives.
    text: str | None = Field(
        None,
        description="training text of all other objectives; files as for `source`",
    )
    valid_text: str | None = Field(
        None, description="validation text; without it the end of `text` is held out"
    )
    test_text: str | None = Field(
        None, description="classify, stories: scored once, after training"
    )
    text_column: str | None = Field(
        None, description="the column of tables, and the key of .jsonl, that `text` is in  [text]"
    )
    # Several corpora, with commas between.
    mixture_weights: str | None = Field(
        None,
        description="sampling weights of several corpora, with commas; a corpus that ends before "
        "the others begins again",
    )
    mixture_temperature: float | None = Field(
        None,
        gt=0,
        description="sampling temperature of several corpora: size^(1/T); 1 keeps their "
        "proportions, 5 is usual for many languages",
    )
    preprocessing_workers: int | None = Field(
        None, ge=1, le=4096, description="processes that tokenize  [one a core]"
    )
    # Images, with classes or captions.
    images: str | None = Field(
        None,
        description="a folder with a subfolder for each class, or a .tsv of captions; PNG or JPEG "
        "files. For image_text: image file, tab, caption, or .jsonl with image, text; a folder has "
        "captions generated from its classes",
    )
    valid_images: str | None = Field(
        None, description="images to validate with; without them a tenth of `images` is held out"
    )
    test_images: str | None = Field(None, description="scored once, after training")
    # Recordings with transcripts or classes.
    sounds: str | None = Field(
        None,
        description="a table of recordings: WAV or FLAC file, tab, transcript or class; or "
        ".jsonl with audio and text. For sounds also a folder with a subfolder for each class, for "
        "speech_contrastive any folder; files are relative to the table",
    )
    valid_sounds: str | None = Field(
        None, description="validation recordings; without them a tenth of `sounds` is held out"
    )
    test_sounds: str | None = Field(None, description="scored once, after training")
    # Time series.
    series: str | None = Field(
        None,
        description="time series: a CSV file; with a header and one row for each time step",
    )
    series_split: str = Field(
        "0.7:0.1:0.2",
        description="steps that train, validate and test, one after the other: shares, or numbers "
        "as 8640:2880:2880 (12, 4 and 4 months of hours)",
    )
    columns: str | None = Field(
        None, description="columns of `series`, with commas; without it all that are numbers"
    )
    # Graphs.
    graph: str | None = Field(
        None,
        description="graphs: a folder of tables; nodes.tsv (number, class, split, features) and "
        "edges.tsv (two numbers), or an .npz file of arrays",
    )
    test_lines: int | None = Field(
        None,
        ge=1,
        description="examples to validate and to test with, where they are generated",
    )
    held_out: float = Field(
        0.1, gt=0, lt=1, description="validation split: the share of `text`, its end"
    )
    context: int = Field(
        256,
        ge=8,
        description="context length: tokens of text seen at once; special tokens included; of time "
        "series, the steps that a forecast looks back  [256; series 336]",
    )
    languages: str | None = Field(
        None,
        description="source-target, e.g. en-de: for the model card and JSON Lines; the language of "
        "transcripts, e.g. en, where a model that knows several is fine-tuned",
    )
    # Generated data.
    generated: str | None = Field(
        None,
        description="a generated task instead of files, TASK[:MIN:MAX]; with its lengths: copying, "
        "reversing, sorting, addition, associative_recall, parity, dyck, listops",
    )
    builtin_lines: int = Field(
        60_000, ge=100, description="examples to train on, where they are generated"
    )
    max_length: int = Field(
        256, ge=2, description="longer sentences (in tokens) are left out of training, and counted"
    )

    @field_validator("mixture_weights")
    @classmethod
    def _mixture_weights(cls, value: str | None) -> str | None:
        if value is not None:
            parse_mixture_weights(value)
        return value

    @field_validator("generated")
    @classmethod
    def _generated(cls, value: str | None) -> str | None:
        if value is not None:
            parse_generated_task(value)
        return value


class TokenSettings(Section):
    """How text becomes tokens."""

    tokenizer: str = Field(
        "bpe",
        description="bpe, unigram, words, characters, or a tokenizer.json; "
        "for `text`, bpe (of bytes) and characters keep every character and space",
    )
    target_tokenizer: str | None = Field(
        None, description="a second tokenizer.json, for the target side"
    )
    # Small data wants a small vocabulary; the paper's 37,000 (Section 5.1) are for WMT.
    vocabulary: int = Field(
        8000,
        ge=8,
        le=LARGEST_VOCABULARY,
        description="vocabulary size: how many tokens to learn",
    )
    joint: bool = Field(True, description="shared vocabulary: one for both sides")
    tokenizer_examples: int | None = Field(
        None,
        ge=1,
        description="examples that a tokenizer is learnt from at most, evenly spaced  [all]",
    )


# Settings of Transformers, which recurrent and convolutional baselines do not have.
TRANSFORMER_ONLY = (
    "d_ff",
    "heads",
    "decoder_layers",
    "attention_dropout",
    "feedforward_dropout",
    "drop_path",
    "activation",
    "position",
    "attention",
    "decoder_attention",
    "residual",
    "norm",
    "kernel",
    "projection",
)


class ModelSettings(Section):
    """The architecture: a preset and what is changed in it."""

    model: str | None = Field(
        None,
        description="architecture and size, NAME[:SIZE]: gpt2:small, llama:tiny, …; see "
        "`regard show`. By objective: transformer:small, gpt:tiny, bert:tiny, …",
    )
    preset: str | None = Field(None, description="the SIZE of --model: tiny, small, base, …")
    spec: str | None = Field(
        None,
        description="instead of --model: a spec as a file; JSON or TOML, or a config.json of "
        "Hugging Face's",
    )
    # Sizes; None leaves that of the preset.
    d_model: int | None = Field(None, ge=1, description="hidden size")
    d_ff: int | None = Field(None, ge=1, description="width of the feed-forward")
    heads: int | None = Field(None, ge=1, description="attention heads of a layer")
    layers: int | None = Field(None, ge=1, description="layers; of each side")
    decoder_layers: int | None = Field(None, ge=1, description="if other than layers")
    image_size: int | None = Field(None, ge=1, description="side of the images, in pixels")
    patch: int | None = Field(
        None, ge=1, description="side of an image patch, in pixels, or steps of a patch over time"
    )
    stride: int | None = Field(None, ge=1, description="steps from a patch over time to the next")
    scales: str | None = Field(
        None, description="patches over time at several scales, LENGTH:STRIDE, as 16:8,48:24"
    )
    lags: str | None = Field(
        None,
        description="lagged values that a step of a time series reads, as 1,2,3,24,168 (steps)",
    )
    horizon: int | None = Field(None, ge=1, description="time steps that are forecast")
    forecast: str | None = Field(
        None,
        description="what is forecast for each step: points, quantiles:LEVEL:LEVEL…, or the "
        "parameters of a student_t, normal or negative_binomial distribution",
    )
    degrees: int | None = Field(None, ge=0, description="graphs: rows of the degree embedding")
    laplacian: int | None = Field(
        None, ge=0, description="graphs: eigenvectors of the Laplacian at the input"
    )
    distances: int | None = Field(
        None, ge=0, description="graphs: shortest paths up to this length have a bias each"
    )
    # Dropout, by where it is applied.
    dropout: float | None = Field(None, ge=0, lt=1, description="on residuals and embeddings")
    attention_dropout: float | None = Field(None, ge=0, lt=1, description="on attention weights")
    input_dropout: float | None = Field(None, ge=0, lt=1, description="graphs: on node features")
    feedforward_dropout: float | None = Field(
        None, ge=0, lt=1, description="inside the feed-forward"
    )
    drop_path: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="stochastic depth: P that training skips a sublayer for an example",
    )
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] | None = None
    # Positions and attention.
    position: (
        Literal[
            "sinusoidal",
            "interleaved",
            "learned",
            "none",
            "concatenated",
            "relative",
            "buckets",
            "alibi",
            "rope",
        ]
        | None
    ) = Field(
        None,
        description="position encoding; added to the embeddings (sinusoidal, interleaved, "
        "learned), concatenated, or inside attention: Shaw's (relative), T5's bias (buckets), "
        "ALiBi (alibi), rotary (rope)",
    )
    attention: str | None = Field(
        None,
        description="self-attention: softmax, window:N, linear, performer, …; all of them: "
        "softmax (the default), neighbours (of graphs), window:N, dilated:N:STEP, strided:N, "
        "blocks:N, global[:N], longformer[:N], bigbird[:N], topk:N, linear, performer[:FEATURES], "
        "linformer[:RANK], reformer[:BUCKETS[:CHUNK]]",
    )
    decoder_attention: str | None = Field(
        None, description="that of the decoder, if other than attention"
    )
    memory: int | None = Field(
        None,
        ge=1,
        description="causal: positions before each segment that layers remember (Transformer-XL)",
    )
    compressed: str | None = Field(
        None,
        description="with memory: POSITIONS:FACTOR[:mean|max|conv] for what leaves it, compressed "
        "FACTOR to one, by a convolution by default (Compressive Transformer)",
    )
    # Residual connections, initialization and embeddings.
    projection: Literal["apart", "tied_qkv", "tied_qk", "tied_kv"] | None = Field(
        None, description="self-attention: one matrix for q, k and v, or for two of them"
    )
    residual: Literal["post", "pre", "none"] | None = Field(
        None, description="post-norm (the paper), pre-norm, or none: no residual connections"
    )
    norm: Literal["layer", "rms", "batch"] | None = Field(
        None, description="normalization in the blocks; batch: over all tokens of a batch"
    )
    kernel: int | None = Field(
        None, ge=1, description="feed-forward as convolutions, the first over so many positions"
    )
    start: str | None = Field(
        None,
        description="initialization: xavier, normal:STD or scaled:STD; scaled is GPT-2's, with "
        "residual projections divided by √(2·layers). Unless given, xavier for translate, ctc and "
        "transcribe, scaled:0.02 for causal, normal:0.02 for the others",
    )
    share: Literal["all", "target", "none"] | None = Field(
        None, description="weight tying: which embeddings are one matrix"
    )
    vectors: str | None = Field(
        None, description="word vectors to start from (word2vec or GloVe text format)"
    )
    freeze_embeddings: bool = Field(False, description="frozen embeddings: they stay as they start")

    @field_validator("start")
    @classmethod
    def _start(cls, value: str | None) -> str | None:
        if value is not None:
            parse_initialization(value)
        return value

    @field_validator("forecast")
    @classmethod
    def _forecast(cls, value: str | None) -> str | None:
        if value is not None:
            # Imported late, as below: help does not wait for the classes of the spec.
            from regard.families.forecast_options import parse_forecast

            parse_forecast(value)
        return value

    @field_validator("lags")
    @classmethod
    def _lags(cls, value: str | None) -> str | None:
        """Checked like `forecast`."""
        if value is not None:
            from regard.families.forecast_options import parse_lags

            parse_lags(value)
        return value

    @field_validator("scales")
    @classmethod
    def _scales(cls, value: str | None) -> str | None:
        if value is not None:
            from regard.families.forecast_options import parse_scales

            parse_scales(value)
        return value

    @field_validator("compressed")
    @classmethod
    def _compressed(cls, value: str | None) -> str | None:
        if value is not None:
            from regard.families.attention_options import parse_compressed_memory

            parse_compressed_memory(value)
        return value

    @field_validator("attention", "decoder_attention")
    @classmethod
    def _attention(cls, value: str | None) -> str | None:
        if value is not None:
            from regard.families.attention_options import parse_attention

            parse_attention(value)
        return value


class TrainSettings(Section):
    """The objective and its optimization."""

    objective: str = Field(
        "translate",
        description="what is learnt: translate, causal, masked, classify, …; a translation, the "
        "next token (causal, GPT), masked tokens (masked, BERT), masked spans (span, T5), the text "
        "from a corrupted one (denoise, BART), which tokens were replaced (replaced, ELECTRA), the "
        "class of a text (classify; without --text, of ListOps expressions), the tags of its words "
        "(tag), the answer to a question (answer), a number (regress), which texts belong together "
        "(contrastive), the transcript of a recording (ctc, Wav2Vec2; transcribe, Whisper), its "
        "class (sounds), which latent was masked in it (speech_contrastive, wav2vec 2.0), the "
        "class of an image (images), its hidden patches (masked_images, MAE, SimMIM), which "
        "caption belongs to an image (image_text, CLIP), what "
        "follows in a time series (forecast), the classes of nodes or of graphs (nodes, graphs), "
        "the answer to a question about a story (stories; without --text, generated ones)  "
        "[that of the model]",
    )
    # Masked LM, span corruption and denoising.
    next_sentence: bool = Field(False, description="masked: learn next-sentence prediction too")
    hidden: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="mask ratio: share of the tokens that is masked  [0.15, denoise 0.3; of "
        "sound, of its positions, where overlaps count twice, 0.65; of the patches of images "
        "0.75, as mask tokens 0.6]",
    )
    span_length: float | None = Field(
        None, ge=1, description="mean length of a masked span (span, denoise)  [3; of sound 10]"
    )
    # Steps and batches.
    # Where no one names them, they follow from the size of the data.
    steps: int = Field(20_000, ge=1, description="updates  [30 epochs, 300 to 20000]")
    batch_tokens: int = Field(
        4096,
        ge=1,
        description="batch size in tokens, padding included (fewer for few pairs, unless given); "
        "for causal, rows × context; an image has as many as patches",
    )
    accumulate: int = Field(1, ge=1, description="gradient accumulation: batches of one update")
    # Adam and its learning-rate schedule; the defaults are those of Section 5.3.
    optimizer: Literal["adam", "adamw"] = Field("adam", description="Adam or AdamW")
    schedule: Literal["paper", "cosine", "constant", "linear"] = Field(
        "paper", description="learning rate after warm-up; paper: inverse square root"
    )
    learning_rate: float | None = Field(
        None, gt=0, description="peak learning rate; the paper's own if not given"
    )
    warmup: int = Field(
        4000,
        ge=1,
        description="warm-up steps, until the peak  [a tenth of the steps, at most 4000]",
    )
    floor: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="minimum learning rate, as a share of the peak; of the cosine schedule",
    )
    # Section 5.3; Adam's own β₂ is 0.999 (Kingma and Ba 2015).
    betas: tuple[Beta, Beta] = Field((0.9, 0.98), description="Adam's β₁,β₂")
    adam_eps: float = Field(1e-9, gt=0, description="Adam's ε")
    weight_decay: float = Field(0.0, ge=0, description="decoupled in AdamW, L2 in Adam")
    clip: float = Field(
        0.0, ge=0, description="gradient clipping: the maximum norm; 0 does not clip"
    )
    # Regularization (Section 5.4), R-Drop, and knowledge distillation.
    label_smoothing: float = Field(
        0.1, ge=0, lt=1, description="translation, transcription and classes"
    )
    agreement: float = Field(
        0.0,
        ge=0,
        description="R-Drop: weight of the agreement of two passes; which have other dropout, and "
        "in graphs agree on nodes without labels too",
    )
    crop_padding: int | None = Field(
        None,
        ge=0,
        description="images: pixels added on each side before a random crop  [side / 8]",
    )
    flip: float | None = Field(
        None,
        ge=0,
        le=1,
        description="images: share that is mirrored at random  [images 0.5; image_text 0]",
    )
    mixup: float = Field(
        0.0,
        ge=0,
        description="images: α of mixup, which blends two images and their labels by a weight "
        "from Beta(α, α); 0 blends none",
    )
    cutmix: float = Field(
        0.0,
        ge=0,
        description="images: α of CutMix, which puts a box of one image into another and mixes "
        "their labels by area; with mixup, batches take turns",
    )
    augment: Literal["none", "trivial"] = Field(
        "none",
        description="images: trivial is TrivialAugment, one random operation (rotation, shear, "
        "colour, contrast …) for each image",
    )
    speed_perturbation: float = Field(
        0.0,
        ge=0,
        le=0.5,
        description="sound: played at a speed between 1 − this and 1 + this; 0.1 is usual",
    )
    time_shift: float = Field(
        0.0, ge=0, description="sound: seconds of silence before a recording, at most"
    )
    noise_snr: float | None = Field(
        None,
        description="sound: white noise, at least so many dB below the recording, at most 30 more",
    )
    time_masks: int = Field(
        0, ge=0, description="sound: SpecAugment, so many stretches of time are masked"
    )
    time_mask_width: float = Field(
        0.1, gt=0, le=1, description="sound: the widest time mask, as a share of the recording"
    )
    frequency_masks: int = Field(
        0, ge=0, description="sound: SpecAugment, so many bands of frequencies are masked"
    )
    # Park et al. 2019, Table 1: up to 27 of 80 bands.
    frequency_mask_width: float = Field(
        0.33,
        gt=0,
        le=1,
        description="sound: the widest frequency mask, as a share of the mel scale",
    )
    teacher: str | None = Field(
        None,
        description="knowledge distillation: the folder of a finished model to learn from; "
        "the student takes its tokens",
    )
    teaching: float | None = Field(
        None,
        ge=0,
        le=1,
        description="distillation weight: the teacher's share in the loss; the rest is of the "
        "labels  [0.5]",
    )
    temperature: float | None = Field(
        None, gt=0, description="softens the distributions of teacher and student alike  [2]"
    )
    teacher_translates: bool = Field(
        False,
        description="translation: learn from the teacher's translations of the training text, "
        "by beam search",
    )
    # Precision, speed and memory.
    precision: Literal["float32", "tf32", "bf16", "fp16"] = Field(
        "float32", description="bf16 and fp16 are mixed precision"
    )
    multiple: int = Field(
        0, ge=0, description="pad to a multiple of this; 0: 8 on a GPU (few shapes), 1 on a CPU"
    )
    compile: bool = Field(
        False, description="on a GPU: torch.compile of the blocks; a slow start, then faster steps"
    )
    recompute: bool = Field(
        False, description="activation (gradient) checkpointing: less memory, a second forward"
    )
    # Loss spikes.
    spike_threshold: float = Field(
        0.0,
        ge=0,
        description="roll-back: a loss so many standard deviations above the last 100 is a spike; "
        "the run goes back to before it and skips those batches (PaLM); 0 never does",
    )
    rollback_steps: int = Field(
        100, ge=1, description="updates before a spike that are undone and their batches skipped"
    )
    # Validation, early stopping and checkpoints.
    weights: str = Field(
        "best",
        description="weights kept at the end: best, last, average:N or ema:DECAY; average:N is "
        "checkpoint averaging, over the last N validations",
    )
    validate_every: int = Field(
        500, ge=1, description="steps between validations; without `steps` at most a tenth of them"
    )
    metric: Literal[
        "loss",
        "bleu",
        "chrf",
        "exact_match",
        "accuracy",
        "f1",
        "mse",
        "mae",
        "pearson",
        "wer",
        "cer",
    ] = Field("loss", description="what best and patience look at")
    patience: int = Field(
        0,
        ge=0,
        description="early stopping: validations without improvement; 0 never stops the run",
    )
    save_every: int = Field(
        500, ge=1, description="steps between checkpoints; without `steps` at most a tenth of them"
    )
    keep_last: int = Field(2, ge=1, description="checkpoints kept: so many of the last")
    keep_best: int = Field(
        0,
        ge=0,
        description="checkpoints kept: so many of the best by `metric`; a new best is saved at "
        "once",
    )
    keep_every: int = Field(
        0, ge=0, description="checkpoints kept: the first of every so many steps; 0 keeps none"
    )
    log_every: int = Field(10, ge=1, description="steps between lines of metrics.jsonl")
    samples: int = Field(
        2, ge=0, description="validation sentences translated, or texts written, at each validation"
    )
    # Reproducibility and device.
    seed: int = Field(1, ge=0, lt=2**63, description="random seed")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    threads: int = Field(
        0, ge=0, le=4096, description="CPU threads; 0 takes what the machine offers"
    )
    tensorboard: bool = Field(False, description="write TensorBoard event files too")

    @field_validator("betas", mode="before")
    @classmethod
    def _betas(cls, value: Any) -> Any:
        """A flag has both with a comma between; pydantic parses the numbers."""
        return tuple(value.split(",")) if isinstance(value, str) else value

    @field_validator("teacher")
    @classmethod
    def _teacher(cls, value: str | None) -> str | None:
        if value is None:
            return None
        return str(Path(value).absolute())  # a run is resumed from anywhere

    @field_validator("weights")
    @classmethod
    def _weights(cls, value: str) -> str:
        parse_weights(value)
        return value


class DecodeSettings(Section):
    """Beam search for the final score."""

    beam: int = Field(4, ge=1, description="beam size")
    length_penalty: str = Field("gnmt:0.6", description="gnmt:ALPHA or power:ALPHA")
    tokenize: str = Field(
        "13a", description="sacreBLEU's tokenizer for the final score; none for tokenised text"
    )

    @field_validator("length_penalty")
    @classmethod
    def _penalty(cls, value: str) -> str:
        parse_length_penalty(value)
        return value


class TuneSettings(Section):
    """Fine-tuning: training that starts from the folder of a finished model."""

    base: str | None = Field(
        None, description="the model to start from, a folder; instead of --model"
    )
    # The data of `regard finetune`, in place of the section [data].
    task: str | None = Field(None, description="the objective, by the name of `regard finetune`")
    files: tuple[str, ...] = Field((), description="training data")
    prefixes: tuple[str, ...] = Field(
        (), description="put before the source texts of each of the files"
    )
    valid: str | None = Field(
        None, description="validation data; without it a tenth of the training data is held out"
    )
    test: str | None = Field(None, description="scored once, after training")
    # The steps follow from the epochs and the data.
    epochs: float | None = Field(
        None,
        gt=0,
        le=1_000_000,
        description="passes over the data, instead of steps  [3 in fine-tuning]",
    )
    # The warmup_proportion of BERT's fine-tuning scripts.
    warm_up: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="with epochs: share of the steps until the peak of the learning rate",
    )
    # What of the model is trained.
    freeze: int | None = Field(
        None, ge=0, description="frozen layers: embeddings and this many blocks"
    )
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="layer-wise learning-rate decay: a block's rate as a share of the next one's",
    )
    lora: int = Field(
        0,
        ge=0,
        le=65_536,
        description="rank of LoRA; 0 trains all of the model",
    )
    lora_alpha: float | None = Field(
        None, gt=0, description="LoRA is scaled by alpha / rank  [2 · rank]"
    )
    lora_dropout: float = Field(0.0, ge=0, lt=1, description="dropout before LoRA")
    # Hu et al. 2022, Section 7.1: several projections of attention, each of low rank.
    lora_in: str = Field("qkv,q,kv", description="the linear layers that get LoRA, by name, or all")

    @field_validator("base")
    @classmethod
    def _base(cls, value: str | None) -> str | None:
        if value is None:
            return None
        return str(Path(value).absolute())  # a run is resumed from anywhere


class ParallelSettings(Section):
    """Training on several processes: `torchrun … -m regard train`, or --processes N."""

    strategy: Literal["ddp", "fsdp", "tensor"] = Field(
        "ddp",
        description="what each rank holds: ddp all of the model, fsdp a part of every tensor; "
        "(FSDP2: parameters, gradients and optimizer), tensor some heads of every attention and "
        "as much of every feed-forward",
    )
    tensor_parallel_degree: int = Field(
        0,
        ge=0,
        description="with tensor: ranks that share a model; 0: all of them. Groups of so many "
        "ranks are data parallel",
    )
