"""Backdrops of overlays: the image, recording, time series or graph that positions stand on.

An overlay is a value for each position of the input (attention, rollout, gradient × input), drawn
on the input itself, as in the studio. Attention is drawn relative to even attention, by
`drawing.attention_shades`: what is attended to more than evenly is bright, dense or high.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, groupby, pairwise, repeat
from typing import Any, NamedTuple

import numpy as np

from regard.data.audio import frequency_ticks
from regard.look import drawing
from regard.look.drawing import (
    Array,
    Axis,
    Circle,
    Colours,
    Line,
    Mark,
    Marks,
    Panel,
    Pixels,
    Rect,
    Scale,
    Scene,
    Text,
)

VEIL = np.array([8, 10, 16])  # what is not attended to lies under it, as in the studio
DENSEST_VEIL = 0.8
IMAGE_SIDE = 208.0  # pixels of an image in a picture of several
CLIP_WIDTH = 560.0  # of all frames
SOUND_WIDTH = 720.0
FAINTEST_SOUND = 0.25  # the strength of moments that nobody attends to
SOUND_HEIGHT = 110.0
FREQUENCIES_WIDTH = 48.0  # of the names right of a spectrogram
STRIP = 44.0  # the height of the bars below a recording or a series
SERIES_HEIGHT = 150.0
SERIES_LEFT = 56.0  # where it begins, beside its levels
GRAPH_SIDE = 380.0
LAYOUT_STEPS = 150
MOST_NAMED = 40  # nodes that have their names written beside them


@dataclass(frozen=True, eq=False, kw_only=True)
class Backdrop(ABC):
    """What the positions of an input stand on; `answer` is what the model says to it."""

    answer: str = ""

    def holds(self, keys: int) -> bool:
        """Whether so many keys stand on it that are fewer than the positions of the input."""
        return False

    @property
    def query(self) -> int | None:
        """The position that stands for the whole input, such as the class token."""
        return None

    def position_name(self, label: str) -> str:
        """A position in a sentence, by its label."""
        return label

    def heading(self, title: str) -> str:
        """A title with what the model answers."""
        return f"{title} · {self.answer}" if self.answer else title

    @abstractmethod
    def _drawn(self, panel: Panel) -> Scene:
        """The input under a value for each of its positions [T]: weights, or signed values."""

    def overlay(self, panel: Panel) -> Scene:
        """The same under the name of the panel."""
        # Of the many places of an input most weights are small.
        return drawing.titled(panel.name, self._drawn(replace(panel, relative=True)))

    def table(self, panel: Panel, names: Sequence[str]) -> Scene:
        """The input under each row of a panel, with its name."""
        rows = [
            replace(panel.of_query(row), name=drawing.shown(name)) for row, name in enumerate(names)
        ]
        return drawing.tiles([*map(self.overlay, rows)], title=panel.name)

    def attended(self, panels: Sequence[Panel], *, title: str) -> Scene:
        """The input under each panel, side by side, with what the model answers."""
        scenes = drawing.tiles([*map(self.overlay, panels)], title=self.heading(title))
        return drawing.below([scenes, self.legend(panels[0].signed)], gap=6.0)

    def legend(self, signed: bool = False) -> Scene:
        """What the colours mean: of attention, or of what raises and lowers the answer's score."""
        marks = drawing.attention_scale(self._shades())
        if signed:
            strip = drawing.colours(np.linspace(-1.0, 1.0, 64)[None], signed=True, most=1.0)
            marks = drawing.colour_bar("lowers", strip, "raises the answer's score")
        return Scene(320, 18, tuple(marks))

    def _shades(self) -> Colours | None:
        """The colours of attention [1, N, 3], where they are not the usual ones."""
        return None


# ------------------------------------------------------------------ images


@dataclass(frozen=True, eq=False)
class ImageBackdrop(Backdrop):
    """An image of patches, row by row, after tokens that have no place in it."""

    picture: Colours  # [H, W, 3]
    patch: int  # the side of a patch, in pixels
    extras: int  # class and register tokens, before the patches

    @property
    def query(self) -> int | None:
        return 0 if self.extras else None

    def position_name(self, label: str) -> str:
        if label == "extra 0":
            return "the class token"
        return label if label.startswith("extra") else f"patch {label}"

    def _drawn(self, panel: Panel) -> Scene:
        height, width, _ = self.picture.shape
        grid = self._grid(len(panel.shades) - self.extras)
        assert grid is not None, "its keys are those of a grid"
        patch, rows, columns = grid
        # Attention is shared with the tokens that have no place; the scale of signs is not.
        values = panel.weights
        if panel.signed:
            values = np.where(np.arange(len(values)) < self.extras, 0.0, values)
        on_patches = replace(panel, weights=values).shades[self.extras :]
        shares = self._in_rows(on_patches, rows, columns).repeat(patch, 0).repeat(patch, 1)
        shares = shares[:height, :width]
        # The pixels of whole patches; those beyond are not read.
        picture = self.picture[: rows * patch, : columns * patch].astype(np.float64)
        height, width, _ = picture.shape
        if panel.signed:
            colours = drawing.colours(shares, signed=True, most=1.0).astype(np.float64)
            grey = picture.mean(axis=-1, keepdims=True)
            opacity = 0.75 * np.abs(shares)[..., None]
            painted = grey * (1 - opacity) + colours * opacity
        else:
            painted = _veiled(picture, shares)
        scale = self._scale(height, width)
        bottom = scale * height
        across = scale * width
        painted = self._with_answer(np.round(painted).astype(np.uint8))
        marks: Marks = [Pixels(0, 0, across, bottom, painted)]
        if self.extras and not panel.signed:
            share = float(values[: self.extras].sum())
            name = "class token" if self.extras == 1 else "extra tokens"
            marks.append(Text(0, bottom + 15, f"{name} {share:.0%}"))
            bottom += 20
        return Scene(across, bottom, tuple(marks))

    def holds(self, keys: int) -> bool:
        return self._grid(keys - self.extras) is not None

    def _grid(self, positions: int) -> tuple[int, int, int] | None:
        """Pixels from one position to the next, rows and columns: later stages, and keys that are
        reduced, have fewer of them. None where so many make no grid."""
        height, width, _ = self.picture.shape
        for patch in range(self.patch, max(height, width) + self.patch, self.patch):
            # Convolutions read what fills no patch, too; others do not.
            for grid in (
                (height // patch, width // patch),
                (-(-height // patch), -(-width // patch)),
            ):
                if math.prod(grid) == positions:
                    return patch, *grid
        return None

    def _with_answer(self, painted: Colours) -> Colours:
        """The picture [H, W, 3] with what is drawn on it besides attention."""
        return painted

    def _in_rows(self, on_patches: Array, rows: int, columns: int) -> Array:
        """The values of patches where they stand in the picture: [rows, columns]."""
        return on_patches.reshape(rows, columns)

    def _scale(self, height: int, width: int) -> float:
        """How large a pixel is drawn."""
        return IMAGE_SIDE / max(height, width)

    def _shades(self) -> Colours:
        """From the darkest patch to the brightest."""
        strip = _veiled(np.full((1, 64, 3), 255.0), np.linspace(0.0, 1.0, 64)[None])
        return strip.round().astype(np.uint8)


@dataclass(frozen=True, eq=False)
class ClipBackdrop(ImageBackdrop):
    """The frames of a clip side by side, one for each time."""

    times: int
    by_frame: bool  # patches of a frame follow each other, not the times of a patch

    def position_name(self, label: str) -> str:
        return super().position_name(label).replace(":", " at ")

    def _in_rows(self, on_patches: Array, rows: int, columns: int) -> Array:
        wide = columns // self.times
        if not self.by_frame:  # [rows, columns of a frame, times]
            return on_patches.reshape(rows, wide, self.times).swapaxes(1, 2).reshape(rows, columns)
        frames = on_patches.reshape(self.times, rows, wide)
        return frames.swapaxes(0, 1).reshape(rows, columns)

    def _scale(self, height: int, width: int) -> float:
        return CLIP_WIDTH / width


class QueryBox(NamedTuple):
    """What an object query has to say: its class and score, and its corners in pixels."""

    query: str  # its name
    label: str
    score: float
    corners: tuple[float, ...]

    @property
    def name(self) -> str:
        return f"{self.query}: {self.label} {self.score:.0%}"


@dataclass(frozen=True, eq=False)
class DetectionBackdrop(ImageBackdrop):
    """An image with the boxes of what is detected in it."""

    boxes: tuple[QueryBox, ...] = ()  # of all queries
    only: str | None = None  # the query whose box alone is drawn

    @property
    def detected(self) -> tuple[QueryBox, ...]:
        """The boxes that are more likely an object than none, or the likeliest one."""
        if self.only is not None:
            return tuple(box for box in self.boxes if box.query == self.only)
        likely = tuple(box for box in self.boxes if box.score > 0.5)
        return likely or tuple(sorted(self.boxes, key=lambda box: -box.score)[:1])

    def _drawn(self, panel: Panel) -> Scene:
        scene = super()._drawn(panel)
        scale = IMAGE_SIDE / max(self.picture.shape[:2])
        kinds = sorted({box.label for box in self.boxes})
        colours = dict(zip(kinds, cycle(drawing.LINES), strict=False))
        marks = list(scene.marks)
        for box in self.detected:
            left, top, right, bottom = (scale * corner for corner in box.corners)
            corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
            for (x1, y1), (x2, y2) in pairwise(corners):
                marks.append(Line(x1, y1, x2, y2, 2.0, colour=colours[box.label]))
            marks.append(Text(left, max(10.0, top - 3), box.label, colour=colours[box.label]))
        return replace(scene, marks=tuple(marks))

    def table(self, panel: Panel, names: Sequence[str]) -> Scene:
        """For each query that has detected something, its box, and where it looks."""
        boxes = {box.query: box for box in self.boxes}
        chosen = [box.query for box in self.detected if box.query in names] or names[:1]
        tiles = []
        for name in chosen:
            of_query = replace(panel.of_query(list(names).index(name)), name=boxes[name].name)
            tiles.append(replace(self, only=name).overlay(of_query))
        return drawing.below([drawing.tiles(tiles, title=self.heading(panel.name)), self.legend()])


@dataclass(frozen=True, eq=False)
class MaskBackdrop(ImageBackdrop):
    """An image with the outlines of what each pixel is said to be."""

    mask: Array  # [H, W], the class of each pixel
    labels: tuple[str, ...]

    def _with_answer(self, painted: Colours) -> Colours:
        height, width, _ = painted.shape
        mask = self.mask[:height, :width]
        # A pixel is on an outline if the class behind it, or below, is another one.
        across = np.diff(mask, axis=1, append=mask[:, -1:]) != 0
        down = np.diff(mask, axis=0, append=mask[-1:]) != 0
        edge = across | down
        inks = np.array([_rgb(colour) for colour in drawing.LINES], np.uint8)
        inside = np.maximum(mask, np.roll(mask, -1, axis=1))
        inside = np.maximum(inside, np.roll(mask, -1, axis=0))
        return np.where(edge[..., None], inks[inside % len(inks)], painted)

    def _drawn(self, panel: Panel) -> Scene:
        scene = super()._drawn(panel)
        marks = list(scene.marks)
        left = 0.0
        for number in np.unique(self.mask)[1:].tolist():
            colour = drawing.LINES[number % len(drawing.LINES)]
            name = self.labels[number]
            marks.append(Text(left, scene.height + 14, name, colour=colour))
            left += drawing.text_width([name]) + 10
        return Scene(max(scene.width, left), scene.height + 18, tuple(marks))


def _rgb(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _veiled(picture: Array, shades: Array) -> Array:
    """Pixels [H, W, 3] under a veil that is thinner where more is attended to [H, W]."""
    opacity = DENSEST_VEIL * (1 - np.sqrt(shades))[..., None]
    return np.asarray(picture * (1 - opacity) + VEIL * opacity)


# ------------------------------------------------------------------ sound


@dataclass(frozen=True, eq=False)
class SoundBackdrop(Backdrop):
    """The spectrogram of a recording, whose positions follow each other in time."""

    picture: Colours  # [mels, frames], low frequencies first; loud is 255
    seconds: float

    def _drawn(self, panel: Panel) -> Scene:
        base = SOUND_HEIGHT + STRIP
        bars = _bars(panel.shades, panel.weights, 0.0, SOUND_WIDTH, base)
        marks = (*self._spectrogram(np.abs(panel.shades)), *bars, *self._time_axis(base))
        return Scene(SOUND_WIDTH + FREQUENCIES_WIDTH, base + 22, marks)

    def table(self, panel: Panel, names: Sequence[str]) -> Scene:
        """The spectrogram above a row of cells for each name: when each token was heard."""
        names = [drawing.shown(name) for name in names]
        begin = SOUND_HEIGHT + 6
        base = begin + float(drawing.ROW * len(names))
        paint = drawing.colours(panel.weights, signed=panel.signed)
        if panel.even is not None:
            paint = drawing.colours(replace(panel, relative=True).shades, most=1.0)
        marks = self._spectrogram(np.ones(panel.weights.shape[1]))
        marks.append(Pixels(0, begin, SOUND_WIDTH, base - begin, paint))
        for row, name in enumerate(names):
            marks.append(Text(-6, begin + row * drawing.ROW + 13, name, "end"))
        marks += self._time_axis(base)
        if panel.even is not None:
            marks += drawing.moved(drawing.attention_scale(), 0.0, base + 28)
        left = drawing.text_width(names) + 10
        width = left + SOUND_WIDTH + FREQUENCIES_WIDTH
        scene = Scene(width, base + 50, tuple(drawing.moved(marks, left, 0.0)))
        return drawing.titled(self.heading(panel.name), scene)

    def _spectrogram(self, shade: Array) -> Marks:
        """Loud is dark; moments that are not attended to fade. Frequencies stand beside it."""
        loudness = self.picture[::-1].astype(np.float64) / 255  # low tones below
        frames = loudness.shape[1]
        positions = np.minimum(np.arange(frames) * len(shade) // frames, len(shade) - 1)
        strength = FAINTEST_SOUND + (1 - FAINTEST_SOUND) * shade[positions]  # [frames]
        paint = drawing.colours(loudness * strength, most=1.0)
        marks: Marks = [Pixels(0, 0, SOUND_WIDTH, SOUND_HEIGHT, paint)]
        for name, share in frequency_ticks(len(self.picture)).items():
            y = SOUND_HEIGHT * (1 - share)
            marks.append(Line(SOUND_WIDTH, y, SOUND_WIDTH + 4, y))
            marks.append(Text(SOUND_WIDTH + 7, y + 4, name))
        return marks

    def _time_axis(self, base: float) -> Marks:
        return drawing.x_ticks(Scale(Axis(""), 0.0, self.seconds, 0.0, SOUND_WIDTH), base, " s")


def _bars(shares: Array, values: Array, left: float, width: float, base: float) -> Marks:
    """A bar for each position, upward from `base`, as high as its share is large.

    Negative shares are in the other colour. The tooltip is the value.
    """
    each = width / max(1, len(shares))
    # Narrow bars overlap a little, so that no line stays between them.
    wide = each - 1.0 if each > 4 else each + 0.6
    marks: Marks = []
    for i, (share, value) in enumerate(zip(shares.tolist(), values.tolist(), strict=True)):
        height = max(0.5, (STRIP - 8) * abs(share))
        place = (left + i * each, base - height, wide, height + 0.5)
        marks.append(Rect(*place, drawing.sign_colour(share), f"{value:.4f}"))
    return [*marks, Line(left, base, left + width, base, opacity=0.4)]


# ------------------------------------------------------------------ time series


@dataclass(frozen=True, eq=False)
class SeriesBackdrop(Backdrop):
    """A window of a time series, cut into patches, and what is forecast after it."""

    values: Array  # [L], of the channel whose attention is shown
    spans: tuple[tuple[int, int], ...]  # of each position: first step, and the one after the last
    name: str  # of the channel
    forecast: Array = field(default_factory=lambda: np.zeros(0))  # [H]

    @property
    def query(self) -> int | None:
        # A class token has no span of its own.
        return 0 if self.spans and self.spans[0] == (0, 0) else None

    def _drawn(self, panel: Panel) -> Scene:
        top = 14.0
        left = SERIES_LEFT
        right = left + SOUND_WIDTH
        length = len(self.values)
        base = top + SERIES_HEIGHT
        # Steps are counted from the end of the window: what is forecast is positive.
        steps = Scale(Axis(""), -float(length), float(len(self.forecast)), left, right)
        everything = np.concatenate([self.values, self.forecast]).tolist()
        levels = Scale.over(Axis(""), everything, base, top)
        end = steps(0.0)
        shares = self._per_step(panel.shades)
        marks: Marks = []
        if self.spans:  # linear forecasters attend to nothing
            marks += self._bands(shares, left, top, end - left)
        marks += drawing.y_ticks(levels, left, right)
        marks += _polyline(self.values, -length, steps, levels, "ink")
        joined = np.concatenate([self.values[-1:], self.forecast])
        marks += _polyline(joined, -1, steps, levels, drawing.NEGATIVE)
        marks.append(Line(end, top, end, base, 1.0, 0.5))
        marks.append(Text(left + 4, top - 4, self.name))
        if len(self.forecast):
            marks.append(Text(end + 4, top - 4, "forecast", colour=drawing.NEGATIVE))
        below = base + STRIP + 6
        if self.spans:
            marks += _bars(shares, self._per_step(panel.weights), left, end - left, below)
        marks += drawing.x_ticks(steps, below)
        return Scene(right + 24, below + 24, tuple(marks))

    def table(self, panel: Panel, names: Sequence[str]) -> Scene:
        """The series under the mean of all rows, above a row of cells for each name: what each step
        that is forecast looks at."""
        chart = self.overlay(panel.of_query(None))
        first = min(begin for begin, _ in self.spans)
        shades = replace(panel, relative=True).shades
        cells = np.stack([self._per_step(row) for row in shades])[:, first:]  # [rows, steps]
        paint = drawing.colours(cells, signed=panel.signed, most=1.0)
        left = SERIES_LEFT
        each = SOUND_WIDTH / (len(self.values) + len(self.forecast))
        height = min(drawing.ROW, max(3.0, SERIES_HEIGHT / len(names)))
        marks: Marks = [
            Pixels(left + first * each, 0, cells.shape[1] * each, height * len(names), paint)
        ]
        # Rows that are lower than letters have a name now and then.
        for row in range(0, len(names), math.ceil(drawing.ROW / height)):
            y = row * height + height / 2 + 4
            marks.append(Text(left - 6, y, drawing.shown(names[row]), "end"))
        rows = Scene(chart.width, height * len(names) + 8, tuple(marks))
        return drawing.below([chart, rows, self.legend(panel.signed)], gap=6.0)

    def _per_step(self, values: Array) -> Array:
        """What each step gets, [L]: the mean of the patches that it is in."""
        total = np.zeros(len(self.values))
        count = np.zeros(len(self.values))
        for value, (begin, end) in zip(values, self.spans, strict=True):
            total[begin:end] += value
            count[begin:end] += 1
        return np.asarray(total / np.maximum(count, 1))

    def _bands(self, shares: Array, left: float, top: float, width: float) -> Marks:
        """Bands behind the line, denser where more is attended to; seen on white and on black."""
        each = width / len(shares)
        marks: Marks = []
        begin = 0
        # Steps of one patch have one value: one band.
        for value, steps in groupby(shares.tolist()):
            count = len(list(steps))
            x = left + (begin + count / 2) * each
            style = (count * each, 0.7 * abs(value), drawing.sign_colour(value))
            marks.append(Line(x, top, x, top + SERIES_HEIGHT, *style))
            begin += count
        return marks


def _polyline(
    values: Array, first: int, x_scale: Scale, y_scale: Scale, colour: str
) -> Iterator[Mark]:
    for (i, start), (j, end) in pairwise(enumerate(values.tolist(), first)):
        # A missing value leaves a gap.
        if math.isfinite(start) and math.isfinite(end):
            ends = (x_scale(i), y_scale(start), x_scale(j), y_scale(end))
            yield Line(*ends, width=1.6, colour=colour)


# ------------------------------------------------------------------ graphs


@dataclass(frozen=True, eq=False)
class GraphBackdrop(Backdrop):
    """A graph of named nodes, laid out by springs; `classes` are those that are predicted."""

    names: tuple[str, ...]
    edges: Array  # [E, 2], pairs of positions
    node: int | None = None  # the node that was asked for
    classes: tuple[str, ...] = ()

    @property
    def query(self) -> int | None:
        return self.node

    def position_name(self, label: str) -> str:
        return f"node {label.split(' ')[0]}"

    def _drawn(self, panel: Panel) -> Scene:
        values = panel.weights
        layout = spring_layout(len(self.names), self.edges) * (GRAPH_SIDE - 60) + 30
        places: list[list[float]] = layout.tolist()
        shade = np.abs(panel.shades)
        opacities = panel.opacities
        marks: Marks = []
        for one, other in self.edges.tolist():
            if one < other:
                marks.append(_link(places, one, other, 1.0, 0.18))
        node = self.node
        if node is not None:
            # A line to each that it looks at, as wide as the shade is dark.
            for i in np.flatnonzero(values).tolist():
                if i != node:
                    width = 1.0 + 5.0 * float(shade[i])
                    colour = drawing.sign_colour(values[i])
                    tooltip = f"{self.names[node]} → {self.names[i]}: {values[i]:.3f}"
                    marks.append(
                        _link(places, node, i, width, float(opacities[i]), colour, tooltip)
                    )
        kinds = sorted(set(self.classes))
        colours = dict(zip(kinds, cycle(drawing.LINES), strict=False))
        classes = self.classes or repeat("")
        for i, (name, kind) in enumerate(zip(self.names, classes, strict=False)):
            x, y = places[i]
            colour = colours.get(kind, drawing.POSITIVE)
            radius = 4.0 + 7.0 * float(shade[i])
            if i == node:
                marks.append(Circle(x, y, radius + 3.5, "ink", 0.9))
            marks.append(Circle(x, y, radius, colour, 1.0, f"{name}: {values[i]:.3f}"))
            if len(self.names) <= MOST_NAMED or i == node:
                marks.append(Text(x + radius + 3, y + 4, name.split(" ")[0]))
        y = 36.0
        if colours:
            marks.append(Text(GRAPH_SIDE + 4, 14, "predicted class"))
        for kind, colour in colours.items():
            marks.append(Circle(GRAPH_SIDE + 10, y - 4, 5, colour))
            marks.append(Text(GRAPH_SIDE + 20, y, kind))
            y += drawing.ROW
        return Scene(GRAPH_SIDE + 130, max(GRAPH_SIDE, y + 4), tuple(marks))


def _link(places: Sequence[Sequence[float]], one: int, other: int, *style: Any) -> Line:
    x1, y1 = places[one]
    x2, y2 = places[other]
    return Line(x1, y1, x2, y2, *style)


def spring_layout(nodes: int, edges: Array) -> Array:
    """Force-directed placement (Fruchterman and Reingold 1991): [nodes, 2], from 0 to 1."""
    generator = np.random.default_rng(0)  # the same graph looks the same each time
    places = generator.random((nodes, 2))
    joined = np.zeros((nodes, nodes))
    joined[edges[:, 0], edges[:, 1]] = 1.0
    ideal = 1.0 / np.sqrt(max(1, nodes))
    for step in range(LAYOUT_STEPS):
        difference = places[:, None] - places[None]  # [N, N, 2]
        distance = np.maximum(np.linalg.norm(difference, axis=-1), 1e-3)
        # All push each other away, and pull those that they are joined with.
        push = (ideal / distance) ** 2 - joined * distance / ideal
        force = np.einsum("ij,ijk->ik", push, difference)
        force -= 0.3 * (places - 0.5) * ideal  # what is not joined stays in the picture
        length = np.maximum(np.linalg.norm(force, axis=-1, keepdims=True), 1e-9)
        cooling = 0.1 * (1 - step / LAYOUT_STEPS)
        places = places + force / length * np.minimum(length, cooling)
    low = places.min(axis=0)
    extent = np.maximum((places - low).max(axis=0), 1e-9)
    return np.asarray((places - low) / extent)
