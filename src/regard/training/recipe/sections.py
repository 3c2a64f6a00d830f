"""The sections of a recipe: every setting with its type, default, limits and help text.

Every key has a name of its own across the sections, so the flag `--batch-tokens` and the key
`batch_tokens` are the same thing.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
)

from regard.system.arguments import LARGEST_SIZE

Fraction = Annotated[float, Field(ge=0, lt=1)]
Probability = Annotated[float, Field(ge=0, le=1)]
# `tokenizers` allocates a table for as many tokens at once, and aborts the process if it cannot.
LARGEST_VOCABULARY = 5_000_000


# What reads a setting that is one word with options, and refuses any other. By name: help does not
# wait for the classes of the spec.
_PARSERS = {
    "mixture_weights": "training.recipe.options:parse_mixture_weights",
    "generated": "training.recipe.options:parse_generated_task",
    "image_tokens": "training.recipe.options:parse_image_tokens",
    "init": "training.recipe.options:parse_initialization",
    "final_weights": "training.recipe.options:parse_weights",
    "length_penalty": "decode.strategy:parse_length_penalty",
    "forecast": "families.series.forecast_options:parse_forecast",
    "lags": "families.series.forecast_options:parse_lags",
    "scales": "families.series.forecast_options:parse_scales",
    "compressed": "families.attention_options:parse_compressed_memory",
    "attention": "families.attention_options:parse_attention",
    "decoder_attention": "families.attention_options:parse_attention",
}
# Of a trajectory that a policy reads at once: as in the Gym experiments of Chen et al. 2021.
STEPS_READ = 20
# Made absolute: a run is resumed from anywhere.
_PATHS = ("base", "teacher", "aligner", "files", "valid", "test")


class Section(BaseModel):
    """A group of settings; unknown keys are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for field in cls.model_fields.values():
            # The docstrings are help texts, which are wrapped where they are shown.
            field.description = (field.description or "").replace("\n", " ")

    @field_validator("*")
    @classmethod
    def _check(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.field_name
        # Sizes and counts: beyond 32 bits they overflow in one library or another.
        if isinstance(value, int) and value > LARGEST_SIZE and name != "seed":
            raise ValueError(f"cannot be more than {LARGEST_SIZE:,}")
        if value and name in _PATHS:
            return tuple(map(_absolute, value)) if isinstance(value, tuple) else _absolute(value)
        if isinstance(value, str) and value.startswith("~/"):
            return str(Path(value).expanduser())
        if value is not None and name in _PARSERS:
            module, _, function = _PARSERS[name].partition(":")
            getattr(import_module(f"regard.{module}"), function)(value)
        return value


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute()) if path else path


class DataSettings(Section):
    """Where the data comes from. Without files, the built-in parallel language is generated.

    Pairs are for translation; `images`, `sounds`, `series`, `trajectories` and `graph` for models
    that read these; `text` for all other objectives.
    """

    # Parallel text, for translation.
    source: str | None = None
    """training text, source side; one sentence per line. May be .gz or .zst, Parquet or Arrow, a
    folder, a glob or remote (s3://…); separate several with commas"""
    target: str | None = None
    """training text, target side; line n translates line n of the source"""
    pairs: str | None = None
    """both sides in one .tsv or .jsonl; or .parquet, .arrow, a saved dataset; - for standard
    input"""
    valid_source: str | None = None
    """validation text, source side"""
    valid_target: str | None = None
    """validation text, target side"""
    valid_pairs: str | None = None
    """validation pairs in one .tsv or .jsonl"""
    test_source: str | None = None
    """scored once, after training"""
    test_target: str | None = None
    """scored once, after training"""
    test_pairs: str | None = None
    """test pairs in one .tsv or .jsonl"""
    # Plain text, for the other objectives.
    text: str | None = None
    """training text for all other objectives; file types as for `source`"""
    valid_text: str | None = None
    """validation text; without it, the end of `text` is held out"""
    test_text: str | None = None
    """classify, stories: scored once, after training"""
    text_column: str | None = None
    """text column in tables, or key in .jsonl  [text]"""
    # Several corpora, with commas between.
    mixture_weights: str | None = None
    """sampling weights of several corpora, separated by commas; a corpus that runs out is
    repeated"""
    mixture_temperature: PositiveFloat | None = None
    """sampling temperature for several corpora: size^(1/T); 1 is proportional to size, 5 is common
    for multilingual data"""
    preprocessing_workers: int | None = Field(None, ge=1, le=4096)
    """number of tokenizer processes  [one per core]"""
    # Images, with classes or captions.
    images: str | None = None
    """a folder of class folders, or a .tsv of captions; PNG or JPEG files. For
    image_text: image file, tab, caption, or .jsonl with image, text; for a folder, captions are
    generated from the class names"""
    valid_images: str | None = None
    """validation images; without them, a tenth of `images` is held out"""
    test_images: str | None = None
    """scored once, after training"""
    # Recordings with transcripts or classes.
    sounds: str | None = None
    """a table of recordings: file, tab, transcript; WAV or FLAC files, classes in the place of
    transcripts, or .jsonl with audio and text. For sounds also a folder with one subfolder per
    class, for speech_contrastive any folder; paths are relative to the table"""
    aligner: str | None = None
    """speak: a run of the objective ctc, whose forced alignment says how long each letter lasts; by
    default all letters of a recording last alike"""
    valid_sounds: str | None = None
    """validation recordings; without them, a tenth of `sounds` is held out"""
    test_sounds: str | None = None
    """scored once, after training"""
    # Time series.
    series: str | None = None
    """time series: a CSV file; with a header and one row per time step"""
    series_split: str = "0.7:0.1:0.2"
    """train:valid:test split along time, as fractions or as numbers of steps, e.g. 8640:2880:2880
    (12, 4 and 4 months of hours)"""
    columns: str | None = None
    """columns of `series`, separated by commas; by default all numeric ones"""
    # Trajectories.
    trajectories: str | None = None
    """episodes of states, actions and rewards: .npz files of the imitation library (obs, acts,
    rews, indices), separated by commas"""
    environment: Literal["cartpole", "pendulum"] | None = None
    """where a policy is tried out; generates `builtin_lines` episodes by policies of every grade,
    beside files only if that is set  [cartpole without files; 400]"""
    condition_on_returns: bool = True
    """policies read the return-to-go; without it they clone behaviour"""
    # Graphs.
    graph: str | None = None
    """graphs: a folder of tables; nodes.tsv (number, class, split, features) and edges.tsv (two
    node numbers), or an .npz file of arrays"""
    test_lines: PositiveInt | None = None
    """number of validation and test examples, for generated data"""
    held_out: float = Field(0.1, gt=0, lt=1)
    """validation split: the fraction at the end of `text`"""
    context: int = Field(256, ge=8)
    """context length in tokens; including special tokens. For time series, the number of past steps
    a forecast or an action is based on  [256; series 336, trajectories 20]"""
    languages: str | None = None
    """source-target, e.g. en-de, for the model card and JSON Lines; or the language of the
    transcripts, e.g. en, when fine-tuning a multilingual model"""
    # Generated data.
    generated: str | None = None
    """a synthetic task instead of files, TASK[:MIN:MAX]; lengths MIN to MAX of copying, reversing,
    sorting, addition, associative_recall, parity, dyck, listops, smiles"""
    builtin_lines: int = Field(60_000, ge=100)
    """number of training examples, for generated data"""
    max_length: int = Field(256, ge=2)
    """maximum sentence length in tokens; longer ones are dropped from training and counted"""


class TokenSettings(Section):
    """Tokenization."""

    tokenizer: str = "bpe"
    """bpe, unigram, words, whitespace, characters, or a tokenizer.json; for `text`, bpe and
    characters preserve every character and space"""
    target_tokenizer: str | None = None
    """a second tokenizer.json, for the target side"""
    # Small data wants a small vocabulary; the paper's 37,000 (Section 5.1) are for WMT.
    vocabulary: int = Field(8000, ge=8, le=LARGEST_VOCABULARY)
    """vocabulary size of the tokenizer to train"""
    joint: bool = True
    """one shared vocabulary for source and target"""
    image_tokens: str = "48:4:512"
    """draw: SIZE:PATCH:CODES; side of an image and of its patches in pixels, and size of the
    codebook of patches"""
    tokenizer_examples: PositiveInt | None = None
    """maximum number of examples to train the tokenizer on, evenly spaced  [all]"""


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
    "feedforward_kernel_size",
    "projection",
)


class ModelSettings(Section):
    """The architecture: a preset and changes to it."""

    model: str | None = None
    """architecture and size, NAME[:SIZE]: gpt2:small, llama:tiny, …; see `regard show`. The default
    depends on the objective: transformer:small, gpt2:tiny, bert:tiny, …"""
    preset: str | None = None
    """SIZE of --model: tiny, small, base, …"""
    spec: str | None = None
    """a spec file instead of --model; JSON, TOML or a Hugging Face config.json"""
    # Sizes; None leaves that of the preset.
    d_model: PositiveInt | None = None
    """hidden size"""
    d_ff: PositiveInt | None = None
    """feed-forward size"""
    heads: PositiveInt | None = None
    """attention heads per layer"""
    layers: PositiveInt | None = None
    """number of layers; of each side in an encoder–decoder"""
    decoder_layers: PositiveInt | None = None
    """decoder layers, if different from `layers`"""
    image_size: PositiveInt | None = None
    """image side length in pixels"""
    patch: PositiveInt | None = None
    """side of an image patch in pixels, or length of a time-series patch in steps"""
    stem: Literal["linear", "convolutional"] | None = None
    """patches of images: by one linear map, or by 3 × 3 convolutions of stride 2 before it"""
    frames: PositiveInt | None = None
    """frames of a clip"""
    tubelet: PositiveInt | None = None
    """frames of a tubelet, the patch of a clip"""
    stride: PositiveInt | None = None
    """stride between time-series patches, in steps"""
    scales: str | None = None
    """several time scales, LENGTH:STRIDE: of series (16:8,48:24) or sound (10,100)"""
    lags: str | None = None
    """lags of a time series used as inputs at each step, e.g. 1,2,3,24,168"""
    horizon: PositiveInt | None = None
    """forecast horizon in time steps"""
    forecast: str | None = None
    """forecast for each step: points, quantiles:LEVEL:LEVEL…, or the parameters of a student_t,
    normal or negative_binomial distribution"""
    degrees: NonNegativeInt | None = None
    """graphs: size of the degree embedding table"""
    laplacian: NonNegativeInt | None = None
    """graphs: number of Laplacian eigenvectors added to the input"""
    distances: NonNegativeInt | None = None
    """graphs: attention bias for shortest-path distances up to this one"""
    # Dropout, by where it is applied.
    dropout: Fraction | None = None
    """dropout on residuals and embeddings"""
    attention_dropout: Fraction | None = None
    """dropout on attention weights"""
    input_dropout: Fraction | None = None
    """graphs: dropout on node features"""
    feedforward_dropout: Fraction | None = None
    """dropout inside the feed-forward"""
    drop_path: Fraction | None = None
    """stochastic depth: probability of skipping a sublayer for an example in training"""
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
    ) = None
    """position encoding; added to the embeddings (sinusoidal, interleaved, learned), concatenated,
    or inside attention: Shaw et al. (relative), T5 bias (buckets), ALiBi (alibi), rotary (rope)"""
    attention: str | None = None
    """self-attention: softmax, window:N, linear, performer, …; full list: softmax (the default),
    neighbours (graphs), window:N, dilated:N:STEP, strided:N, blocks:N, global[:N], longformer[:N],
    bigbird[:N], topk:N, linear, performer[:FEATURES], linformer[:RANK],
    reformer[:BUCKETS[:CHUNK]]"""
    decoder_attention: str | None = None
    """decoder self-attention, if different from `attention`"""
    memory: PositiveInt | None = None
    """causal: length of the memory before each segment (Transformer-XL)"""
    compressed: str | None = None
    """with memory: POSITIONS:FACTOR[:mean|max|conv], compresses what leaves the memory by FACTOR,
    with a convolution by default (Compressive Transformer)"""
    # Residual connections, initialization and embeddings.
    projection: Literal["apart", "tied_qkv", "tied_qk", "tied_kv"] | None = None
    """self-attention: share one projection matrix between q, k and v, or two of them"""
    residual: Literal["post", "pre", "none"] | None = None
    """post-norm (the paper), pre-norm, or none; none: no residual connections"""
    norm: Literal["layer", "rms", "batch", "instance"] | None = None
    """normalization in the blocks; batch is over all tokens of a batch, instance over the
    positions of each sequence (encoders only)"""
    feedforward_kernel_size: PositiveInt | None = None
    """convolutional feed-forward; kernel size of its first convolution"""
    init: str | None = None
    """initialization: xavier, normal:STD or scaled:STD; scaled is GPT-2's, with residual
    projections divided by √(2·layers). Default: xavier for translate, ctc and transcribe,
    scaled:0.02 for causal, normal:0.02 for the others"""
    tie_embeddings: Literal["all", "target", "none"] | None = None
    """weight tying: which embeddings share one matrix"""
    pretrained_embeddings: str | None = None
    """pretrained word vectors to initialize from (word2vec or GloVe text format)"""
    freeze_embeddings: bool = False
    """keep the embeddings frozen"""


class TrainSettings(Section):
    """The objective and its optimization."""

    objective: str = "translate"
    """training objective: translate, causal, masked, classify, …; translation (translate), next
    token (causal, GPT), masked tokens (masked, BERT), masked spans (span, T5), denoising (denoise,
    BART), replaced token detection (replaced, ELECTRA), text classification (classify; ListOps
    without --text), tagging (tag), extractive QA (answer), regression (regress), sentence
    embeddings (contrastive), speech recognition (ctc, Wav2Vec2; transcribe, Whisper), audio
    classification (sounds), contrastive speech pretraining (speech_contrastive, wav2vec 2.0), image
    classification (images), masked image modeling (masked_images, MAE, SimMIM), video
    classification (clips, TimeSformer) and masked video (masked_clips, VideoMAE; moving shapes
    without --images), image–text contrastive (image_text, CLIP), images
    drawn of texts (draw, DALL-E; scenes without --images), object detection (detect, DETR;
    scenes without --images), semantic segmentation (segment, SegFormer; scenes without --images),
    time-series forecasting (forecast), node or graph classification (nodes, graphs), questions
    about stories (stories; generated without --text)  [by model]"""
    # Masked LM, span corruption and denoising.
    next_sentence: bool = False
    """masked: add next-sentence prediction"""
    mask_ratio: float | None = Field(None, gt=0, lt=1)
    """mask ratio: fraction of tokens to mask  [0.15; denoise 0.3; speech_contrastive 0.65 of
    positions, overlaps counted twice; masked_images 0.75 of patches, SimMIM 0.6,
    masked_clips 0.9]"""
    span_length: float | None = Field(None, ge=1)
    """mean length of a masked span (span, denoise)  [3; audio 10]"""
    # Steps and batches.
    # Where no one names them, they follow from the size of the data.
    steps: PositiveInt = 20_000
    """number of updates  [30 epochs, 300 to 20000]"""
    batch_tokens: PositiveInt = 4096
    """batch size in tokens, with padding; reduced for small datasets unless given. For causal, rows
    × context; an image counts its patches"""
    accumulate: PositiveInt = 1
    """gradient accumulation: batches per update"""
    # Adam and its learning-rate schedule; the defaults are those of Section 5.3.
    optimizer: Literal["adam", "adamw", "muon"] = "adam"
    """Adam, AdamW, or Muon for matrices of blocks"""
    schedule: Literal["paper", "cosine", "constant", "linear"] = "paper"
    """learning-rate schedule; after warm-up, paper is inverse square root"""
    learning_rate: PositiveFloat | None = None
    """peak learning rate; by default the paper's"""
    warmup_steps: PositiveInt = 4000
    """warm-up steps  [a tenth of the steps, at most 4000]"""
    min_lr_ratio: Fraction = 0.0
    """minimum learning rate of the cosine schedule, as a fraction of the peak"""
    # Section 5.3; Adam's own β₂ is 0.999 (Kingma and Ba 2015).
    betas: tuple[Fraction, Fraction] = (0.9, 0.98)
    """Adam's β₁,β₂"""
    adam_eps: PositiveFloat = 1e-9
    """Adam's ε"""
    weight_decay: NonNegativeFloat = 0.0
    """decoupled in AdamW, L2 in Adam"""
    max_grad_norm: NonNegativeFloat = 0.0
    """gradient clipping: maximum norm; 0 disables it"""
    # Regularization (Section 5.4), R-Drop, and knowledge distillation.
    label_smoothing: Fraction = 0.1
    """label smoothing; for translation, transcription and classification"""
    r_drop: NonNegativeFloat = 0.0
    """R-Drop: weight of the consistency loss between two forward passes; with different dropout
    masks; for graphs, also on unlabelled nodes"""
    crop_padding: NonNegativeInt | None = None
    """images: padding in pixels before the random crop  [side / 8]"""
    flip: Probability | None = None
    """images: probability of a horizontal flip  [images 0.5; image_text 0]"""
    zoom: Fraction = 0.0
    """images: random zoom; a crop has a side between 1 − this and 1 + this of the image's"""
    mixup: NonNegativeFloat = 0.0
    """images: α of mixup, which blends two images and their labels with a weight drawn from Beta(α,
    α); 0 disables it"""
    cutmix: NonNegativeFloat = 0.0
    """images: α of CutMix, which pastes a box of one image into another and mixes their labels by
    area; with mixup, the two alternate between batches"""
    augment: Literal["none", "trivial"] = "none"
    """images: trivial is TrivialAugment, one random operation (rotation, shear, colour, contrast …)
    per image"""
    speed_perturbation: float = Field(0.0, ge=0, le=0.5)
    """audio: speed perturbation by a factor between 1 − this and 1 + this; 0.1 is typical"""
    time_shift: NonNegativeFloat = 0.0
    """audio: maximum silence inserted before a recording, in seconds"""
    noise_snr: float | None = None
    """audio: add white noise at an SNR between this many dB and 30 dB more"""
    time_masks: NonNegativeInt = 0
    """audio: number of SpecAugment time masks"""
    time_mask_width: float = Field(0.1, gt=0, le=1)
    """audio: maximum width of a time mask, as a fraction of the recording"""
    frequency_masks: NonNegativeInt = 0
    """audio: number of SpecAugment frequency masks"""
    # Park et al. 2019, Table 1: up to 27 of 80 bands.
    frequency_mask_width: float = Field(0.33, gt=0, le=1)
    """audio: maximum width of a frequency mask, as a fraction of the mel scale"""
    teacher: str | None = None
    """knowledge distillation: folder of the teacher model; the student uses its tokenizer"""
    distillation_weight: Probability | None = None
    """distillation weight: the teacher's fraction of the loss; the labels get the rest  [0.5]"""
    temperature: PositiveFloat | None = None
    """distillation temperature, for teacher and student  [2]"""
    teacher_translates: bool = False
    """translation: sequence-level distillation, on the teacher's beam-search translations of the
    training text"""
    # Precision, speed and memory.
    precision: Literal["float32", "tf32", "bf16", "fp16"] = "float32"
    """bf16 and fp16 are mixed precision"""
    pad_to_multiple_of: NonNegativeInt = 0
    """pad to a multiple of this; 0 means 8 on a GPU (fewer shapes), 1 on a CPU"""
    compile: bool = False
    """torch.compile the blocks (GPU only); slower start, faster steps"""
    gradient_checkpointing: bool = False
    """activation (gradient) checkpointing: less memory, a second forward pass"""
    # Loss spikes.
    spike_threshold: NonNegativeFloat = 0.0
    """roll back on loss spikes: a loss this many standard deviations above the last 100; the run
    returns to before the spike and skips those batches (PaLM); 0 disables it"""
    rollback_steps: PositiveInt = 100
    """updates before a spike to undo, skipping their batches"""
    # Validation, early stopping and checkpoints.
    final_weights: str = "best"
    """final weights: best, last, average:N or ema:DECAY; average:N is checkpoint averaging over the
    last N validations"""
    validate_every: PositiveInt = 500
    """steps between validations; if `steps` is not set, at most a tenth of them"""
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
        "spearman",
        "wer",
        "cer",
        "ap",
        "ap50",
        "miou",
        "pixel_accuracy",
    ] = "loss"
    """validation metric for best weights and early stopping"""
    patience: NonNegativeInt = 0
    """early stopping: patience in validations; 0 disables it"""
    save_every: PositiveInt = 500
    """steps between checkpoints; if `steps` is not set, at most a tenth of them"""
    keep_last: PositiveInt = 2
    """number of most recent checkpoints to keep"""
    keep_best: NonNegativeInt = 0
    """number of best checkpoints to keep, by `metric`; a new best is saved immediately"""
    keep_every: NonNegativeInt = 0
    """also keep the first checkpoint of every this many steps; 0 keeps none"""
    log_every: PositiveInt = 10
    """steps between log lines in metrics.jsonl"""
    samples: NonNegativeInt = 2
    """sample translations or generated texts to show at each validation"""
    # Reproducibility and device.
    seed: int = Field(1, ge=0, lt=2**63)
    """random seed"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    threads: int = Field(0, ge=0, le=4096)
    """CPU threads; 0 uses all available"""
    tensorboard: bool = False
    """also write TensorBoard event files"""

    @field_validator("betas", mode="before")
    @classmethod
    def _betas(cls, value: Any) -> Any:
        """A flag has both with a comma between; pydantic parses the numbers."""
        return tuple(value.split(",")) if isinstance(value, str) else value


class DecodeSettings(Section):
    """Beam search for the final score."""

    beam: PositiveInt = 4
    """beam size"""
    length_penalty: str = "gnmt:0.6"
    """gnmt:ALPHA or power:ALPHA"""
    tokenize: str = "13a"
    """sacreBLEU tokenizer for the final score; none for tokenized text"""


class TuneSettings(Section):
    """Fine-tuning: training that starts from a pretrained model."""

    base: str | None = None
    """folder of the pretrained model; instead of --model"""
    # The data of `regard finetune`, in place of the section [data].
    task: str | None = None
    """the objective, by its `regard finetune` name"""
    files: tuple[str, ...] = ()
    """training data"""
    prefixes: tuple[str, ...] = ()
    """prefix for the source texts, one per file"""
    valid: str | None = None
    """validation data; without it, a tenth of the training data is held out"""
    test: str | None = None
    """scored once, after training"""
    # The steps follow from the epochs and the data.
    epochs: float | None = Field(None, gt=0, le=1_000_000)
    """epochs, instead of steps  [3 when fine-tuning]"""
    # The steps follow from the measured time of one; stored, so that a resumed run has as many.
    minutes: float | None = Field(None, gt=0, le=1_000_000)
    """minutes, instead of steps: the run has as many as fit into them"""
    # The warmup_proportion of BERT's fine-tuning scripts.
    warmup_ratio: Fraction = 0.1
    """with epochs: warm-up, as a fraction of the steps"""
    # What of the model is trained.
    freeze: NonNegativeInt | None = None
    """freeze the embeddings and this many blocks"""
    layer_decay: float = Field(1.0, gt=0, le=1)
    """layer-wise learning-rate decay: ratio of a block's rate to the next block's"""
    lora: int = Field(0, ge=0, le=65_536)
    """LoRA rank; 0 trains the full model"""
    lora_alpha: PositiveFloat | None = None
    """LoRA scaling: alpha / rank  [2 · rank]"""
    lora_dropout: Fraction = 0.0
    """dropout before LoRA"""
    # Hu et al. 2022, Section 7.1: several projections of attention, each of low rank.
    lora_in: str = "qkv,q,kv"
    """linear layers to adapt with LoRA, by name, or all"""


class ParallelSettings(Section):
    """Training on several processes: `torchrun … -m regard train`, or --processes N."""

    strategy: Literal["ddp", "fsdp", "tensor"] = "ddp"
    """parallelism: ddp, fsdp or tensor; ddp keeps a full copy per rank, fsdp (FSDP2) shards
    parameters, gradients and optimizer state, tensor splits attention heads and feed-forwards"""
    tensor_parallel_degree: NonNegativeInt = 0
    """with tensor: ranks per model replica; 0 means all. Replicas are data parallel"""
