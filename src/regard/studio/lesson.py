"""Lessons: Markdown files that lead through the studio, a state of its pages at each step.

# Title
for: translate

One line about it.

## Title of a step
state: look?text=The cat sat.&at=decoder.1.cross&head=2
point: Attention, Answer

A sentence or two, with **bold** and `code`.

- [ ] an answer
- [x] the right answer

What is said once the question is answered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from regard.models import Model
from regard.studio.answers import task_of
from regard.system import disk
from regard.system.errors import DataError, SettingError, did_you_mean

FOLDER = Path(__file__).parent / "lessons"
PAGES = ("look", "decode", "learn")

_CHOICE = re.compile(r"^- \[([ xX])\] (.+)$")
_SETTING = re.compile(r"^(for|state|point): *(.+)$")


@dataclass(frozen=True)
class Step:
    """One step: what is said, and what the studio shows.

    With `choices` it asks first: what `state` shows and `reveal` says comes once one is chosen.
    `right` is the number of the right one. `point` names the cards to look at; none: all.
    """

    title: str
    text: str
    state: str
    point: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    right: int | None = None
    reveal: str = ""


@dataclass(frozen=True)
class Lesson:
    """A lesson for models of one task, or of any (`task` is None)."""

    name: str
    title: str
    summary: str
    task: str | None
    steps: tuple[Step, ...]

    def require_fit(self, model: Model) -> None:
        """Refuses a model that does something else."""
        task = task_of(model)
        if self.task not in (None, task):
            raise SettingError(
                f"the lesson {self.name} is for models that {self.task}; this one can {task}",
                "choose another model, or leave it out: the packaged model translates",
            )


# ------------------------------------------------------------------ which there are


def packaged() -> dict[str, Path]:
    """The lessons that come with the package, in the order of their numbers."""
    files = sorted(FOLDER.glob("*.md"))
    return {file.stem.partition("-")[2]: file for file in files}


def open_lesson(name: str) -> Lesson:
    """A packaged lesson by its name, or one's own by the path of its file."""
    if name.endswith(".md"):
        path = Path(name)
        return parse(disk.read_text(path, DataError), path.stem)
    files = packaged()
    if name not in files:
        repair = did_you_mean(name, files) + "; or pass a Markdown file"
        raise SettingError(f"there is no lesson {name!r}", repair)
    return parse(disk.read_text(files[name], DataError), name)


# ------------------------------------------------------------------ reading


def parse(text: str, name: str) -> Lesson:
    """The lesson in a Markdown text."""
    head, *parts = re.split(r"^## +", text, flags=re.MULTILINE)
    title, _, rest = head.strip().partition("\n")
    if not title.startswith("# ") or not parts:
        raise DataError(
            f"{name} is no lesson: it needs a title and steps",
            "begin with `# Title`, and each step with `## Title`",
        )
    settings, summary = _settings(rest)
    steps = tuple(_step(part, name) for part in parts)
    return Lesson(name, title[2:].strip(), summary, settings.get("for"), steps)


def _settings(text: str) -> tuple[dict[str, str], str]:
    """Lines such as `state: …`, and the text below them."""
    settings = {}
    lines = []
    for line in text.splitlines():
        match = _SETTING.match(line)
        if match:
            settings[match[1]] = match[2].strip()
        else:
            lines.append(line)
    return settings, "\n".join(lines).strip()


def _step(part: str, name: str) -> Step:
    title, _, rest = part.partition("\n")
    where = f"{name}, step {title.strip()!r}"
    settings, body = _settings(rest)
    state = settings.get("state", "")
    if state.partition("?")[0] not in PAGES:
        raise DataError(
            f"{where}: the state {state!r} is no address of the studio",
            f"write `state: PAGE?…`, where the page is {', '.join(PAGES)}: what follows #/ in "
            "the address",
        )
    lines = body.splitlines()
    choices = list(_choices(lines))
    right = [i for i, (_, is_right) in enumerate(choices) if is_right]
    if choices and len(right) != 1:
        raise DataError(
            f"{where}: {len(right)} of its answers are right", "mark one of them by `- [x]`"
        )
    first = next((i for i, line in enumerate(lines) if _CHOICE.match(line)), len(lines))
    after = [line for line in lines[first:] if not _CHOICE.match(line)]
    points = settings.get("point", "").split(",")
    return Step(
        title.strip(),
        "\n".join(lines[:first]).strip(),
        state,
        tuple(point.strip() for point in points if point.strip()),
        tuple(choice for choice, _ in choices),
        right[0] if right else None,
        "\n".join(after).strip(),
    )


def _choices(lines: list[str]) -> Iterator[tuple[str, bool]]:
    """The answers of a question, each with whether it is right."""
    for line in lines:
        match = _CHOICE.match(line)
        if match:
            yield match[2].strip(), match[1] != " "
