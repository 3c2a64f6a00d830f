"""Clips: generated ones, and reading them from folders, animations, video files and arrays."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from regard.data.clips import ClipProcessor, read_clips
from regard.data.generated.clips import CLASSES, ORDERS, WAYS, clip, write_clips
from regard.data.image import ImageProcessor
from regard.system.errors import DataError

PROCESSOR = ClipProcessor.of(ImageProcessor((8, 8)), 3)


def centers(images: Any) -> Any:
    """Where the shape of each frame is: the middle of what is unlike the corners."""
    values = images.astype(float)
    behind = np.median(values.reshape(-1, 3), axis=0)
    places = []
    for frame in values:
        rows, columns = np.nonzero(abs(frame - behind).sum(axis=-1) > 60)
        places.append((columns.mean(), rows.mean()))
    return np.array(places)


@pytest.mark.parametrize("number", range(30))
def test_a_clip_shows_its_class_and_follows_from_its_number(number: int) -> None:
    images, kind = clip(0, number, size=32, frames=8)
    again, _ = clip(0, number, size=32, frames=8)
    assert images.shape == (8, 32, 32, 3)
    assert np.array_equal(images, again)
    assert not np.array_equal(images, clip(1, number, size=32, frames=8)[0])
    moved = np.diff(centers(images), axis=0)  # (x, y) of each step
    if kind in WAYS:
        assert (moved @ np.array(WAYS[kind]) > 0).all()
        across = moved @ np.array(WAYS[kind])[::-1]
        assert abs(across).max() < 0.7
    else:
        # It stands still, but for the one time when another takes its place.
        assert (abs(moved).max(axis=1) > 0.7).sum() <= 1
        assert kind in ORDERS


def test_a_folder_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_clips(tmp_path, {"train": 6, "test": 2}, seed=3, size=16, frames=4)
    examples = {example.image: example.text for example in read_clips(tmp_path / "train")}
    assert len(examples) == 6
    written = {number: clip(3, number, 16, 4) for number in range(6)}
    for folder, kind in examples.items():
        images, own = written[int(Path(str(folder)).name)]
        assert own == kind
        same = ClipProcessor.of(ImageProcessor((16, 16)), 4)
        assert np.array_equal(same.resized(folder), images)
    # A clip of another split is another one.
    assert {int(Path(str(one.image)).name) for one in read_clips(tmp_path / "test")} == {0, 1}
    assert not np.array_equal(clip(3, 6, 16, 4)[0], clip(3, 0, 16, 4)[0])


def test_frames_are_evenly_spaced_whatever_a_clip_is(tmp_path: Path) -> None:
    greys = np.arange(0, 90, 10, dtype=np.uint8)  # nine frames, one for each ten
    frames = np.broadcast_to(greys[:, None, None, None], (9, 8, 8, 3))
    pictures = [Image.fromarray(np.ascontiguousarray(frame)) for frame in frames]
    (tmp_path / "clip").mkdir()
    for i, picture in enumerate(pictures):
        picture.save(tmp_path / "clip" / f"{i}.png")
    (tmp_path / "clip" / "notes.txt").write_text("no frame")
    pictures[0].save(
        tmp_path / "clip.webp", save_all=True, append_images=pictures[1:], lossless=True
    )
    contents = (tmp_path / "clip.webp").read_bytes()
    for one in (frames.copy(), pictures, tmp_path / "clip", str(tmp_path / "clip.webp"), contents):
        assert PROCESSOR.resized(one)[:, 0, 0, 0].tolist() == [0, 40, 80]
    still = PROCESSOR.resized(pictures[5])
    assert still[:, 0, 0, 0].tolist() == [50, 50, 50]
    pixels = PROCESSOR(frames.copy())
    assert pixels.shape == (3, 3, 8, 8)
    strip = PROCESSOR.to_image(pixels)
    assert strip[0, ::8, 0].tolist() == [0, 40, 80]
    assert torch.equal(PROCESSOR.batch([frames.copy()] * 2)[1], pixels)


def test_a_gif_is_read_from_its_contents() -> None:
    pictures = [Image.new("RGB", (8, 8), (grey, 0, 0)) for grey in (0, 100, 200)]
    file = io.BytesIO()
    pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:])
    assert PROCESSOR.resized(file.getvalue())[:, 0, 0, 0].tolist() == [0, 100, 200]


def test_a_video_file_is_read_by_pyav(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for grey in range(0, 180, 20):
            picture = np.full((32, 32, 3), grey, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    for one in (path, path.read_bytes()):
        values = PROCESSOR.resized(one)[:, 4, 4, 0].astype(int)
        assert abs(values - [0, 80, 160]).max() < 12  # it is compressed
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match="cannot be read"):
        PROCESSOR.resized(path)


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"no picture"])
def test_what_is_no_clip_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "clip.gif"
    path.write_bytes(content)
    for one in (path, content):
        with pytest.raises(DataError, match="cannot be read"):
            PROCESSOR.resized(one)


def test_folders_without_clips_are_refused(tmp_path: Path) -> None:
    (tmp_path / "left").mkdir()
    with pytest.raises(DataError, match="no clips"):
        read_clips(tmp_path)
    (tmp_path / "left" / "empty").mkdir()
    (empty,) = read_clips(tmp_path)
    with pytest.raises(DataError, match="no frames"):
        PROCESSOR.resized(empty.image)


def test_all_classes_occur() -> None:
    assert {clip(0, number, 16, 4)[1] for number in range(120)} == set(CLASSES)
