"""Images by the one assembly line: classes of ViT, DeiT and CLIP's tower, captions of CLIP."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps
from safetensors.torch import load_file

import regard
from regard import spec
from regard.data.batching import Rows
from regard.data.image import image_processor, new_image_processor, read_image_processor
from regard.data.labelled import LabelledImage, read_captions, read_image_folders
from regard.evaluation.scores import Score, scored
from regard.system.errors import DataError, ModelError, SettingError, TrainingInterrupted
from regard.training.assembly import assemble
from regard.training.data import image_augmentation
from regard.training.data.image_augmentation import Augmentation, crop_and_flip
from regard.training.objectives.contrastive import MAX_SCALE
from regard.training.recipe import loading
from regard.training.run import resume
from regard.training.run_folder import RunFolder, begin
from regard.training.setup import Setup

QUICK: dict[str, Any] = {
    "steps": 4, "warmup_steps": 1, "batch_tokens": 400, "validate_every": 4, "save_every": 2,
    "schedule": "constant", "learning_rate": 2e-3, "threads": 1, "device": "cpu",
}  # fmt: skip
SIZES: dict[str, Any] = {
    "d_model": 16, "d_ff": 24, "heads": 2, "layers": 1, "image_size": 12, "patch": 4,
}  # fmt: skip
CONVOLUTIONS: dict[str, Any] = {
    "model": "resnet:tiny", "d_model": 8, "layers": 2, "image_size": 12,
}  # fmt: skip
COLOURS = {"red": 0, "green": 1, "blue": 2}


def write_images(folder: Path, colours: dict[str, int], count: int = 6) -> None:
    """Noise with more of one colour, in a folder for each colour, and a table of captions."""
    generator = np.random.default_rng(0)
    captions = []
    for name, channel in colours.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = generator.integers(0, 80, (15, 18, 3), dtype=np.uint8)
            pixels[..., channel] += 120
            Image.fromarray(pixels).save(folder / name / f"{i:03}.png")
            captions.append((f"{name}/{i:03}.png", f"a {name} square"))
    (folder / "captions.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in captions))
    records = [json.dumps({"image": a, "text": b}) for a, b in captions]
    (folder / "captions.jsonl").write_text("\n".join(records))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    write_images(folder, COLOURS)
    return folder


def masked_settings(images: Path) -> dict[str, Any]:
    return QUICK | SIZES | {"model": "vit-mae:tiny", "images": str(images), "decoder_layers": 1}


def mask_token_settings(images: Path, model: str = "vit:tiny") -> dict[str, Any]:
    """SimMIM on an encoder that has no decoder of pixels by itself."""
    return QUICK | SIZES | {"model": model, "images": str(images), "objective": "masked_images"}


def swin_mask_settings(images: Path) -> dict[str, Any]:
    """16 × 16 pixels are 8 × 8 patches, then 4 × 4 positions: units of 2 × 2 patches."""
    sizes = {"image_size": 16, "patch": 2, "layers": 2, "d_model": 16, "heads": 2}
    return mask_token_settings(images, "swin:tiny") | sizes


def settings_of(objective: str, images: Path) -> dict[str, Any]:
    if objective == "images":
        return QUICK | SIZES | {"model": "vit:tiny", "images": str(images), "mixup": 0.4}
    if objective == "augmented":
        more = {"cutmix": 1.0, "augment": "trivial", "final_weights": "ema:0.9", "drop_path": 0.3}
        return settings_of("images", images) | more
    if objective == "convolutions":  # whose running statistics are part of the state
        return QUICK | CONVOLUTIONS | {"images": str(images)}
    if objective == "masked_images":
        return masked_settings(images)
    if objective == "mask_tokens":
        return mask_token_settings(images)
    if objective == "swin_mask_tokens":
        return swin_mask_settings(images)
    table = str(images / "captions.tsv")
    return QUICK | SIZES | {"model": "clip:tiny", "images": table, "vocabulary": 300}


# ------------------------------------------------------------------ preprocessing


@pytest.mark.parametrize("kind", ["vit", "clip"])
def test_a_new_preprocessing_is_read_back_here_and_by_transformers(
    kind: str, images: Path, tmp_path: Path
) -> None:
    processor = new_image_processor(kind, 12)
    config = processor.to_config()
    assert image_processor(config, config["image_processor_type"]) == processor
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    from transformers import AutoImageProcessor

    theirs = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    path = images / "red" / "000.png"
    expected = theirs(Image.open(path), return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(processor(path), expected)
    assert processor(path).shape == (3, 12, 12)


def test_bytes_become_the_values_of_the_processor(images: Path, tmp_path: Path) -> None:
    """What is stored and normalized later is what the model is given in use."""
    plain = {"crop_padding": 0, "flip": 0.0, "mixup": 0.0}
    recipe = loading.load(None, settings_of("images", images) | plain)
    setup = Setup(begin(recipe, tmp_path / "run", "x"), recipe, lambda text: None)
    objective: Any = assemble(setup)
    batch = next(objective.evaluation_batches("train"))
    values = objective.source.pixel_values(batch.tensors)
    paths = sorted(images.glob("*/*.png"))
    expected = read_image_processor(setup.run_folder.folder).batch([*paths])
    assert values.equal(expected[batch.rows])


# ------------------------------------------------------------------ augmentation


def augmented(
    augmentation: Augmentation, images: NDArray[np.uint8], rows: Rows, epoch: int
) -> NDArray[np.uint8]:
    """Crops [B, H, W, 3] of these rows of images [N, H, W, 3]."""
    corner, mirrored = augmentation.crops(rows, epoch)
    pixels = torch.from_numpy(images[rows]).permute(0, 3, 1, 2)
    crops = crop_and_flip(pixels, torch.from_numpy(corner), torch.from_numpy(mirrored))
    return crops.permute(0, 2, 3, 1).numpy()


def test_a_crop_is_a_window_of_the_padded_image() -> None:
    generator = np.random.default_rng(1)
    images = generator.integers(1, 256, (30, 8, 6, 3), dtype=np.uint8)
    augmentation = Augmentation(rows=30, padding=2, flip=0.5, mixup=0.0, seed=3)
    rows = np.arange(30)
    crops = augmented(augmentation, images, rows, epoch=0)
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)))
    places = set()
    for image, crop in zip(padded, crops, strict=True):
        windows = {
            (y, x, mirrored): image[y : y + 8, x : x + 6][:, :: -1 if mirrored else 1]
            for y in range(5)
            for x in range(5)
            for mirrored in (False, True)
        }
        matches = [place for place, window in windows.items() if np.array_equal(window, crop)]
        assert len(matches) == 1
        places.add(matches[0])
    # All offsets and both directions occur.
    assert {y for y, _, _ in places} == {x for _, x, _ in places} == set(range(5))
    assert {mirrored for _, _, mirrored in places} == {False, True}


def test_what_a_row_becomes_follows_from_seed_epoch_and_row() -> None:
    images = np.random.default_rng(1).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    settings: dict[str, Any] = {"padding": 2, "flip": 0.5, "mixup": 1.0, "cutmix": 1.0}
    size = (8, 8)
    one = Augmentation(rows=20, seed=1, **settings)
    other = Augmentation(rows=20, seed=1, **settings)
    rows = np.arange(20)
    expected = augmented(one, images, rows, epoch=5)
    # In other batches, after another epoch.
    augmented(other, images, rows[:4], epoch=0)
    assert np.array_equal(augmented(other, images, rows[[7, 3]], epoch=5), expected[[7, 3]])
    for mine, same in zip(one.operations(rows, 5), other.operations(rows[[7, 3]], 5), strict=True):
        assert np.array_equal(mine[[7, 3]], np.asarray(same))
    for row in rows:
        assert np.array_equal(
            one.blend_weights(int(row), 5, size), other.blend_weights(int(row), 5, size)
        )
    assert not np.array_equal(augmented(one, images, rows, epoch=6), expected)
    assert not np.array_equal(
        augmented(Augmentation(rows=20, seed=2, **settings), images, rows, epoch=5), expected
    )
    plain = Augmentation(rows=20, padding=0, flip=0.0, mixup=0.0, seed=1)
    assert np.array_equal(augmented(plain, images, rows, epoch=5), images)
    assert plain.blend_weights(0, 5, size) == 1


def test_cutmix_takes_a_box_of_the_drawn_area() -> None:
    augmentation = Augmentation(rows=400, padding=0, flip=0.0, mixup=0.0, cutmix=1.0, seed=1)
    shares = []
    for row in range(400):
        weights = augmentation.blend_weights(row, 0, (32, 24))
        assert set(np.unique(weights)) <= {0.0, 1.0}
        # A box: each row of pixels is cut in the same columns or not at all.
        cut_rows = np.unique(weights[(weights == 0).any(axis=1)], axis=0)
        assert len(cut_rows) <= 1
        shares.append(1 - weights.mean())
    # Beta(1, 1) is uniform; borders cut boxes off, so that the mean is somewhat below one half.
    assert 0.25 < np.mean(shares) < 0.5
    both = Augmentation(rows=400, padding=0, flip=0.0, mixup=1.0, cutmix=1.0, seed=1)
    constant = [np.ptp(both.blend_weights(row, 0, (32, 24))) == 0 for row in range(400)]
    assert 150 < sum(constant) < 260


def test_mixup_blends_images_and_losses(images: Path, tmp_path: Path) -> None:
    recipe = loading.load(None, settings_of("images", images))
    setup = Setup(begin(recipe, tmp_path / "run", "x"), recipe, lambda text: None)
    objective: Any = assemble(setup)
    objective.model.eval()
    _, batch = next(objective.batches(0, 0))
    assert 0 < batch.tensors["mixup"] < 1
    tensors = dict(batch.tensors)
    plain = {name: tensor for name, tensor in tensors.items() if name != "mixup"}
    tensors["mixup"] = torch.tensor(1.0)
    torch.testing.assert_close(objective.loss(tensors), objective.loss(plain))
    # The weight 0 leaves the neighbours alone.
    tensors["mixup"] = torch.tensor(0.0)
    neighbours = {name: tensor.roll(1, dims=0) for name, tensor in plain.items()}
    torch.testing.assert_close(objective.loss(tensors), objective.loss(neighbours))


def pillow_result(name: str, image: Image.Image, magnitude: float) -> Image.Image:
    """The operation of TrivialAugment by Pillow."""
    factor = 1 + image_augmentation.MAX_BLEND * magnitude
    enhance = {
        "brightness": ImageEnhance.Brightness,
        "color": ImageEnhance.Color,
        "contrast": ImageEnhance.Contrast,
        "sharpness": ImageEnhance.Sharpness,
    }
    if name in enhance:
        return enhance[name](image).enhance(factor)
    if name == "posterize":
        return ImageOps.posterize(
            image, 8 - round(image_augmentation.MAX_LOST_BITS * abs(magnitude))
        )
    if name == "solarize":
        return ImageOps.solarize(image, round(256 * (1 - abs(magnitude))))
    if name == "autocontrast":
        return ImageOps.autocontrast(image)
    if name == "equalize":
        return ImageOps.equalize(image)
    return image


def pillow_affine(name: str, image: Image.Image, magnitude: float) -> Image.Image:
    """A geometric operation as Pillow does it, from output to input pixels."""
    width, height = image.size
    shear = image_augmentation.MAX_SHEAR * magnitude
    angle = image_augmentation.MAX_ANGLE * magnitude
    shift = image_augmentation.MAX_SHIFT * magnitude
    # Rows (a, b, c) and (d, e, f): x' = a·x + b·y + c, about the middle of a square image.
    matrix = {
        "shear_x": (1, shear, -shear * height / 2, 0, 1, 0),
        "shear_y": (1, 0, 0, shear, 1, -shear * width / 2),
        "translate_x": (1, 0, shift * width, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, shift * height),
        "rotate": (
            math.cos(angle), -math.sin(angle),
            width / 2 * (1 - math.cos(angle)) + height / 2 * math.sin(angle),
            math.sin(angle), math.cos(angle),
            height / 2 * (1 - math.cos(angle)) - width / 2 * math.sin(angle),
        ),
    }[name]  # fmt: skip
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR
    )


@pytest.mark.parametrize("magnitude", [-0.75, 0.5])
@pytest.mark.parametrize("name", image_augmentation.OPERATIONS)
def test_trivial_augment_does_what_pillow_does(name: str, magnitude: float) -> None:
    generator = np.random.default_rng(4)
    # Smooth, so that bilinear sampling differs little from one way of rounding to another.
    coarse = Image.fromarray(generator.integers(20, 230, (5, 5, 3), dtype=np.uint8))
    image = coarse.resize((24, 24), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    operation = torch.tensor([image_augmentation.OPERATIONS.index(name)])
    ours = image_augmentation.trivial_augment(pixels, operation, torch.tensor([magnitude]))[0]
    geometric = name in image_augmentation.GEOMETRIC
    apply = pillow_affine if geometric else pillow_result
    theirs = torch.from_numpy(np.array(apply(name, image, magnitude))).permute(2, 0, 1)
    distance = (ours.float() - theirs.float()).abs()
    if name == "sharpness":
        distance = distance[:, 1:-1, 1:-1]  # Pillow leaves the border as it is
    if geometric:
        # Pillow has no half pixels at its borders; inside both sample alike.
        assert distance.median() <= 1
        assert distance.mean() < 4
    else:
        assert distance.max() <= 1
    assert name == "identity" or not torch.equal(ours, pixels[0])


def test_trivial_augment_gives_each_image_its_own_operation() -> None:
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (14, 3, 9, 7), dtype=torch.uint8, generator=generator)
    operation = torch.arange(14)
    magnitude = torch.rand(14, generator=generator) * 2 - 1
    together = image_augmentation.trivial_augment(pixels, operation, magnitude)
    for i in range(14):
        row = slice(i, i + 1)
        alone = image_augmentation.trivial_augment(pixels[row], operation[row], magnitude[row])
        assert together[row].equal(alone)
    assert together[0].equal(pixels[0])


# ------------------------------------------------------------------ runs


@pytest.mark.parametrize(
    "objective",
    [
        "images",
        "augmented",
        "convolutions",
        "masked_images",
        "mask_tokens",
        "swin_mask_tokens",
        "image_text",
    ],
)
def test_a_run_resumes_bit_for_bit_without_its_files(
    objective: str, images: Path, tmp_path: Path, stop_at: Callable[[int], Any]
) -> None:
    settings = settings_of(objective, images)
    complete = regard.train(settings, out=tmp_path / "complete")
    with pytest.raises(TrainingInterrupted):
        regard.train(settings, out=tmp_path / "cut", on_step=stop_at(3))
    images.rename(tmp_path / "elsewhere")
    resumed = resume(tmp_path / "cut", quiet=True)
    expected = load_file(complete.folder / "model.safetensors")
    weights = load_file(resumed.folder / "model.safetensors")
    assert all(expected[name].equal(weights[name]) for name in expected)


@pytest.mark.parametrize(
    "model", [SIZES | {"model": "vit", "drop_path": 0.1}, CONVOLUTIONS], ids=["vit", "resnet"]
)
def test_colours_are_learnt_and_the_folder_opens_in_transformers(
    model: dict[str, Any], tmp_path: Path
) -> None:
    images = tmp_path / "many"
    write_images(images, COLOURS, count=34)
    settings = QUICK | model | {"steps": 40, "test_images": str(images)}
    result = regard.train(settings, data=images, out=tmp_path / "run", metrics=["top_k:2"])
    scores = result.scores["valid"]
    assert isinstance(scores, Score)
    assert scores.examples == 10  # every tenth of 102
    assert scores.accuracy > 80
    assert scores.top_5 == 100  # of three classes
    assert result.metrics["test"]["top_2"] >= result.metrics["valid"]["top_2"] > 80
    opened: Any = regard.load(result.folder)
    path = images / "green" / "003.png"
    predicted = opened.classify(str(path))
    assert next(iter(predicted)) == "green"
    evaluated = regard.evaluate(opened, str(images))
    tested = result.scores["test"]
    assert isinstance(tested, Score)
    assert evaluated.scores["accuracy"] == tested.accuracy
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    theirs = AutoModelForImageClassification.from_pretrained(result.folder)
    pixels = AutoImageProcessor.from_pretrained(result.folder, backend="pil")
    with torch.no_grad():
        logits = theirs(**pixels(Image.open(path), return_tensors="pt")).logits[0]
    for i, probability in enumerate(logits.softmax(-1).tolist()):
        assert predicted[theirs.config.id2label[i]] == pytest.approx(probability, abs=1e-4)


@pytest.mark.parametrize("model", ["deit", "clip-image", "resnet-cifar"])
def test_other_encoders_of_images_learn_classes(model: str, images: Path, tmp_path: Path) -> None:
    sizes = {"d_model": 8, "image_size": 12} if model == "resnet-cifar" else SIZES
    settings = QUICK | sizes | {"steps": 2, "images": str(images), "model": f"{model}:tiny"}
    result = regard.train(settings, out=tmp_path / "run")
    opened: Any = regard.load(result.folder)
    assert opened.labels == sorted(COLOURS)
    assert sum(opened.classify(str(images / "red" / "000.png")).values()) == pytest.approx(1)


def test_a_head_stays_where_the_classes_are_the_same(images: Path, tmp_path: Path) -> None:
    run = regard.train(settings_of("images", images), out=tmp_path / "run").folder
    still: dict[str, Any] = QUICK | {"steps": 1, "learning_rate": 1e-12, "base": str(run)}
    same = regard.train(still, objective="images", images=str(images), out=tmp_path / "same")
    before = load_file(run / "model.safetensors")
    after = load_file(same.folder / "model.safetensors")
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    write_images(tmp_path / "two", {"dark": 0, "light": 2})
    other = regard.finetune(
        run, "images", tmp_path / "two", out=tmp_path / "other", quiet=True, **QUICK
    )
    model: Any = regard.load(other.folder)
    assert model.labels == ["dark", "light"]
    assert isinstance(model.spec, spec.Encoder)
    assert model.image_processor == read_image_processor(run)
    changed = load_file(other.folder / "model.safetensors")
    assert changed["classifier.weight"].shape[0] == 2
    patches = "vit.embeddings.patch_embeddings.projection.weight"
    assert torch.allclose(before[patches], changed[patches], atol=0.05)


def test_an_encoder_without_classes_gets_a_head(images: Path, tmp_path: Path) -> None:
    from regard.families.vision import vit

    sizes = {"d_model": 16, "heads": 2, "layers": 1, "patch": 4}
    classifier = vit.preset("tiny", 5, 12, **sizes)
    bare = spec.Encoder(16, classifier.input, classifier.stack, (spec.Pool("first", "tanh"),))
    regard.models.ImageEncoder(regard.build(bare), bare).save(tmp_path / "bare")
    (tmp_path / "bare" / "preprocessor_config.json").write_text(
        json.dumps(new_image_processor("vit", 12).to_config())
    )
    result = regard.train(
        QUICK, base=str(tmp_path / "bare"), objective="images", images=str(images),
        out=tmp_path / "run",
    )  # fmt: skip
    model: Any = regard.load(result.folder)
    assert model.family == "vit"
    assert model.config["architectures"] == ["ViTForImageClassification"]
    assert model.labels == sorted(COLOURS)


# ------------------------------------------------------------------ captions


def test_the_loss_of_captions_is_that_of_transformers(images: Path, tmp_path: Path) -> None:
    result = regard.train(settings_of("image_text", images), out=tmp_path / "run")
    from transformers import CLIPModel

    theirs = CLIPModel.from_pretrained(result.folder)
    recipe = loading.load(None, settings_of("image_text", images))
    setup = Setup(RunFolder(result.folder), recipe, lambda text: None)
    objective: Any = assemble(setup)
    weights = regard.load(result.folder).model.state_dict()
    objective.model.load_state_dict(weights)
    objective.model.eval()
    _, batch = next(objective.batches(0, 0))
    with torch.no_grad():
        loss, _ = objective.loss(batch.tensors)
        expected = theirs(
            input_ids=batch.tensors["tokens"],
            attention_mask=batch.tensors["padding_mask"].long(),
            pixel_values=objective.source.pixel_values(batch.tensors),
            return_loss=True,
        ).loss
    assert loss.item() / batch.tokens == pytest.approx(expected.item(), rel=1e-4)


def test_the_temperature_has_a_limit(images: Path, tmp_path: Path) -> None:
    recipe = loading.load(None, settings_of("image_text", images))
    setup = Setup(begin(recipe, tmp_path / "run", "x"), recipe, lambda text: None)
    objective: Any = assemble(setup)
    scale = objective.model.scale
    scale.data.fill_(7.0)
    _, batch = next(objective.batches(0, 0))
    objective.model.train()
    loss, _ = objective.loss(batch.tensors)
    assert scale.item() == pytest.approx(MAX_SCALE)
    loss.backward()
    assert scale.grad is not None  # it can go down again


def test_captions_are_found_and_a_dual_encoder_is_trained_on(tmp_path: Path) -> None:
    images = tmp_path / "many"
    write_images(images, COLOURS, count=34)
    settings = settings_of("image_text", images) | {
        "steps": 40,
        "batch_tokens": 600,
        "validate_every": 40,
    }
    result = regard.train(settings | {"images": str(images / "captions.jsonl")}, out=tmp_path / "a")
    score = result.scores["valid"]
    assert isinstance(score, Score)
    assert score.accuracy > 80  # of three captions
    model: Any = regard.load(result.folder)
    captions = [f"a {name} square" for name in COLOURS]
    assert next(iter(model.classify(str(images / "blue" / "001.png"), captions))) == captions[2]
    evaluated = regard.evaluate(model, str(images / "captions.tsv"))
    assert evaluated.task == "image_text"
    assert evaluated.scores["accuracy"] > 80
    tuned = regard.train(
        QUICK, base=str(result.folder), objective="image_text",
        images=str(images / "captions.tsv"), out=tmp_path / "b",
    )  # fmt: skip
    assert isinstance(tuned.scores["valid"], Score)
    assert tuned.scores["valid"].accuracy >= score.accuracy
    again: Any = regard.load(tuned.folder)
    assert again.tokenizer.to_json() == model.tokenizer.to_json()
    assert again.image_processor == model.image_processor


def test_a_ranking_is_scored_by_its_first_and_its_first_five() -> None:
    rankings = [[0, 1, 2, 3, 4], [1, 0, 2, 3, 4], [5, 4, 3, 2, 1]]
    score = scored("images", rankings, [0, 0, 0], "ranking")
    assert score.accuracy == pytest.approx(100 / 3)
    assert score.top_5 == pytest.approx(200 / 3)


# ------------------------------------------------------------------ data from outside, errors


class Squares:
    """Images that are drawn, not read."""

    def splits(self) -> dict[str, Any]:
        def train() -> Any:
            for i in range(12):
                pixels = np.full((12, 12, 3), 40 + 150 * (i % 2), dtype=np.uint8)
                yield LabelledImage(pixels, ("dark", "light")[i % 2])

        return {"train": train}


def test_images_from_an_object(tmp_path: Path) -> None:
    result = regard.train(QUICK | SIZES, model="vit:tiny", data=Squares(), out=tmp_path / "run")
    model: Any = regard.load(result.folder)
    assert model.labels == ["dark", "light"]


def test_wrong_settings_are_refused(images: Path, tmp_path: Path) -> None:
    vit = {"model": "vit:tiny"}
    with pytest.raises(SettingError, match=r"learns from images\s.*--images"):
        loading.load(None, vit)
    with pytest.raises(SettingError, match="learns from images"):
        loading.load(None, vit | {"images": "x", "text": "y"})
    with pytest.raises(SettingError, match="not from `images`"):
        loading.load(None, {"model": "gpt2:tiny", "images": "x"})
    with pytest.raises(SettingError, match="mixup is not a setting"):
        loading.load(None, {"model": "clip:tiny", "images": "x", "mixup": 0.2})
    with pytest.raises(SettingError, match="flip is not a setting"):
        loading.load(None, {"model": "gpt2:tiny", "text": "x", "flip": 0.5})
    with pytest.raises(SettingError, match="patch is decided"):
        loading.load(None, {"base": "x", "objective": "images", "images": "x", "patch": 8})
    settings = QUICK | {"text": __file__, "model": "gpt2:tiny", "patch": 4}
    with pytest.raises(SettingError, match="no option 'patch'"):
        regard.train(settings, out=tmp_path / "run")
    with pytest.raises(SettingError, match=r"a patch of 16 pixels does not fit"):
        regard.train(QUICK | vit | {"images": str(images), "image_size": 8}, out=tmp_path / "run")


def test_captions_of_a_folder_name_its_classes(images: Path) -> None:
    classes = read_image_folders(images)
    captions = read_captions(images)
    assert [example.image for example in captions] == [example.image for example in classes]
    expected = [f"a photo of a {example.text}." for example in classes]
    assert [example.text for example in captions] == expected


def test_wrong_files_are_refused(images: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no images in subfolders"):
        read_image_folders(images / "red")
    (images / "bad.tsv").write_text("red/000.png\tred\nred/none.png\tred\n")
    with pytest.raises(DataError, match=r"names red/none\.png, which does not exist"):
        read_captions(images / "bad.tsv")
    (images / "bad.jsonl").write_text('{"image": "red/000.png", "caption": "red"}\n')
    with pytest.raises(DataError, match="line 1: 'text' is missing"):
        read_captions(images / "bad.jsonl")
    write_images(tmp_path / "other", {"grey": 0})
    settings = settings_of("images", images)
    with pytest.raises(DataError, match="'grey' is not in the training data"):
        regard.train(settings | {"valid_images": str(tmp_path / "other")}, out=tmp_path / "run")
    with pytest.raises(DataError, match="only one label"):
        regard.train(settings | {"images": str(tmp_path / "other")}, out=tmp_path / "run")
    (images / "red" / "000.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"000\.png cannot be read"):
        regard.train(settings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_of_text_is_refused(images: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("A dog sees a cat.\n" * 30)
    small = {"d_model": 16, "d_ff": 24, "heads": 2, "layers": 1, "context": 16}
    text = QUICK | small | {"text": str(tmp_path / "text.txt"), "tokenizer": "characters"}
    folder = regard.train(text, model="gpt2:tiny", out=tmp_path / "gpt").folder
    with pytest.raises(ModelError, match="such as ViT"):
        regard.train(
            QUICK, base=str(folder), objective="images", images=str(images), out=tmp_path / "run"
        )


# ------------------------------------------------------------------ masked autoencoders


def test_hidden_patches_follow_from_seed_epoch_and_row(images: Path, tmp_path: Path) -> None:
    recipe = loading.load(None, masked_settings(images) | {"mask_ratio": 0.5})
    setup = Setup(begin(recipe, tmp_path / "run", "x"), recipe, lambda text: None)
    objective: Any = assemble(setup)
    rows = np.array([4, 1, 7])
    one = objective.collate("train", rows, (3, 0)).tensors
    # 9 patches, of which int(9 · 0.5) stay visible: the same number in every image.
    assert one["visible"].shape == (3, 4)
    assert bool((one["masked"].sum(dim=1) == 5).all())
    again = objective.collate("train", rows[::-1].copy(), (3, 0)).tensors
    assert torch.equal(one["masked"], again["masked"].flip(0))
    other = objective.collate("train", rows, (4, 0)).tensors
    assert not torch.equal(one["masked"], other["masked"])
    # Every patch stands where `restore` says: visible ones first, in their order.
    for row, visible in enumerate(one["visible"]):
        assert one["restore"][row][visible].tolist() == [0, 1, 2, 3]


def test_a_masked_autoencoder_is_trained_and_its_encoder_becomes_a_vit(
    images: Path, tmp_path: Path
) -> None:
    import transformers

    run = tmp_path / "run"
    result = regard.train(masked_settings(images) | {"valid_images": str(images)}, out=run)
    score = result.scores["valid"]
    assert math.isfinite(vars(score)["mse"])
    model = regard.load(run)
    assert model.config["architectures"] == ["ViTMAEForPreTraining"]
    # What `regard evaluate` computes on the same images is what the run has scored.
    evaluated = regard.evaluate(run, str(images)).scores["mse"]
    assert evaluated == pytest.approx(vars(score)["mse"], rel=1e-5)
    # transformers opens the folder and fills in the same pixels.
    theirs = transformers.ViTMAEForPreTraining.from_pretrained(run).eval()
    pixels = torch.randn(2, 3, 12, 12)
    noise = torch.rand(2, 9)
    with torch.inference_mode():
        expected = theirs(pixels, noise=noise)
        torch.testing.assert_close(model(pixels, noise=noise).loss, expected.loss)
    tuned = tmp_path / "tuned"
    regard.train(
        QUICK | {"base": str(run), "objective": "images", "images": str(images)}, out=tuned
    )
    classifier = regard.load(tuned)
    assert classifier.config["architectures"] == ["ViTForImageClassification"]
    assert sorted(classifier.labels or ()) == sorted(COLOURS)
    their_classifier = transformers.ViTForImageClassification.from_pretrained(tuned).eval()
    with torch.inference_mode():
        torch.testing.assert_close(classifier(pixels).logits, their_classifier(pixels).logits)


def test_an_encoder_without_steps_of_its_own_is_that_of_the_autoencoder(
    images: Path, tmp_path: Path
) -> None:
    """Fine-tuning begins with all weights of the encoder, positions included."""
    run = tmp_path / "run"
    regard.train(masked_settings(images), out=run)
    changes = {"base": str(run), "objective": "images", "images": str(images)}
    recipe = loading.load(None, QUICK | changes)
    setup = Setup(begin(recipe, tmp_path / "tuned", "x"), recipe, lambda text: None)
    objective: Any = assemble(setup)
    before = dict(regard.load(run).model.named_parameters())
    after = dict(objective.model.named_parameters())
    assert after["input.position.table"].requires_grad
    for name, parameter in after.items():
        if not name.startswith("labels."):
            assert torch.equal(parameter, before[name]), name


@pytest.mark.parametrize(
    ("objective", "family"), [("mask_tokens", "ViT"), ("swin_mask_tokens", "Swin")]
)
def test_mask_tokens_are_trained_and_the_encoder_becomes_a_classifier(
    objective: str, family: str, images: Path, tmp_path: Path
) -> None:
    """SimMIM: the folder of the run is one of transformers, and so is that of its classifier."""
    import transformers

    run = tmp_path / "run"
    settings = settings_of(objective, images) | {"mask_ratio": 0.5, "valid_images": str(images)}
    result = regard.train(settings, out=run)
    model: Any = regard.load(run)
    assert model.config["architectures"] == [f"{family}ForMaskedImageModeling"]
    assert model.config["mask_ratio"] == 0.5
    evaluated = regard.evaluate(run, str(images)).scores
    assert evaluated["mae"] == pytest.approx(vars(result.scores["valid"])["mae"], rel=1e-5)
    kind = getattr(transformers, f"{family}ForMaskedImageModeling")
    theirs, report = kind.from_pretrained(run, output_loading_info=True)
    assert not any(report.values()), report
    size = model.spec.patches.size
    pixels = torch.randn(2, 3, size, size)
    masked = torch.rand(2, model.spec.patches.side**2) < 0.5
    with torch.inference_mode():
        expected = theirs.eval()(pixels, bool_masked_pos=masked)
        loss = model(pixels, bool_masked_pos=masked).loss
    torch.testing.assert_close(loss, expected.loss)
    tuned = tmp_path / "tuned"
    changes = {"base": str(run), "objective": "images", "images": str(images)}
    regard.train(QUICK | changes, out=tuned)
    classifier = regard.load(tuned)
    assert classifier.config["architectures"] == [f"{family}ForImageClassification"]
    kind = getattr(transformers, f"{family}ForImageClassification")
    their_classifier, report = kind.from_pretrained(tuned, output_loading_info=True)
    assert not any(report.values()), report
    with torch.inference_mode():
        torch.testing.assert_close(
            classifier(pixels).logits, their_classifier.eval()(pixels).logits
        )


@pytest.mark.slow
def test_what_mask_tokens_hide_is_learnt(tmp_path: Path) -> None:
    """The colour of an image fills in its hidden patches better than the mean of all colours."""
    folder = tmp_path / "images"
    write_images(folder, COLOURS, count=20)
    settings = mask_token_settings(folder) | {"valid_images": str(folder)}
    first = regard.train(settings | {"steps": 1}, out=tmp_path / "first")
    trained = regard.train(settings | {"steps": 120}, out=tmp_path / "trained")
    before = vars(first.scores["valid"])["mae"]
    after = vars(trained.scores["valid"])["mae"]
    assert after < 0.6 * before


def test_masking_needs_a_decoder_of_pixels_and_patches_to_see(images: Path, tmp_path: Path) -> None:
    settings = masked_settings(images)
    uneven = swin_mask_settings(images) | {"image_size": 18}
    with pytest.raises(ModelError, match="18 is not divisible by the patch size"):
        regard.train(uneven, out=tmp_path / "uneven")
    regard.train(settings_of("images", images), out=tmp_path / "classes")
    classes = {"base": str(tmp_path / "classes"), "images": str(images)}
    with pytest.raises(ModelError, match="no decoder"):
        regard.train(QUICK | classes | {"objective": "masked_images"}, out=tmp_path / "again")
    with pytest.raises(ModelError, match="patches"):  # a stem has none
        masked = QUICK | CONVOLUTIONS | {"objective": "masked_images", "images": str(images)}
        regard.train(masked, out=tmp_path / "stem")
    with pytest.raises(ModelError, match="none is left to see"):
        regard.train(settings | {"mask_ratio": 0.95}, out=tmp_path / "blind")
    with pytest.raises(SettingError, match="mixup"):
        regard.train(settings | {"mixup": 0.5}, out=tmp_path / "mixed")


def test_images_without_classes_are_enough_for_masking(images: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for i, path in enumerate(sorted(images.glob("*/*.png"))):
        path.rename(flat / f"{i}.png")
    regard.train(masked_settings(flat), out=tmp_path / "run")
    with pytest.raises(DataError, match="subfolder"):
        regard.train(settings_of("images", flat), out=tmp_path / "classes")


# ------------------------------------------------------------------ images of another size


@pytest.mark.parametrize(
    "model", [SIZES | {"model": "vit:tiny"}, CONVOLUTIONS], ids=["vit", "resnet"]
)
def test_a_run_is_fine_tuned_on_larger_images(
    model: dict[str, Any], images: Path, tmp_path: Path
) -> None:
    run = regard.train(QUICK | model, data=images, out=tmp_path / "run").folder
    still: dict[str, Any] = QUICK | {"steps": 1, "learning_rate": 1e-12, "base": str(run)}
    settings = still | {"objective": "images", "images": str(images), "image_size": 20}
    larger: Any = regard.load(regard.train(settings, out=tmp_path / "larger").folder)
    assert larger.image_processor.size == (20, 20)
    # The same as the smaller one computes of such images, with positions interpolated in the call.
    smaller: Any = regard.load(run)
    pixels = larger.image_processor.batch([images / "red" / "000.png"])
    with torch.no_grad():
        wanted = smaller(pixels, interpolate_pos_encoding=True).logits
    # A step moves running statistics, whatever its rate.
    moved = model is CONVOLUTIONS
    assert torch.allclose(larger(pixels).logits, wanted, atol=0.1 if moved else 1e-5)
    saved: Any = regard.load(smaller.with_image_size(20).save(tmp_path / "saved"))
    assert saved.image_processor == larger.image_processor
    assert torch.allclose(saved(pixels).logits, wanted, atol=1e-5)


def test_the_size_of_images_is_no_setting_of_texts(tmp_path: Path) -> None:
    (tmp_path / "labels.tsv").write_text("good dog\tgood\nbad dog\tbad\n" * 8)
    text: dict[str, Any] = {"model": "bert:tiny", "objective": "classify", "context": 16}
    text |= {"vocabulary": 60, "d_model": 8, "heads": 2, "layers": 1, "d_ff": 8}
    data = tmp_path / "labels.tsv"
    run = regard.train(QUICK | text, data=data, out=tmp_path / "run").folder
    with pytest.raises(SettingError, match="image"):
        regard.finetune(run, "classify", data, out=tmp_path / "tuned", quiet=True, image_size=20)
