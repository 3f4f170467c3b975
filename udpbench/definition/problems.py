"""Where each value of a definition was written, and problems that name this place.

Knows no keys and no meanings; the other modules of this room report through it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from udpbench.errors import InputError, Problem

KeyPath = tuple[str | int, ...]
SHOWN_CHARACTERS = 60
SIMILAR_NAMES, SIMILAR_CHARACTERS = 128, 64
"""For comparing misspelt words with names: 64 names of 64 characters take 20 ms, 500 of 185
letters took 4 s."""
LISTED_CHARACTERS = 200


@dataclass(frozen=True)
class Place:
    """A line of a file; ``line`` is None if the data is not from a file."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Tree:
    """Plain data with the place of each of its parts."""

    data: dict[str, Any]
    origin: Place
    places: Mapping[KeyPath, Place] = field(default_factory=dict)

    def place(self, path: KeyPath) -> Place:
        """Return the place of the value at ``path``, or of the nearest value below or above it."""
        if path in self.places:
            return self.places[path]
        if path in self._below:
            return self._below[path]
        return self.place(path[:-1]) if len(path) > 1 else self.origin

    @cached_property
    def _below(self) -> dict[KeyPath, Place]:
        """Path → the first place below it; a search for each problem took minutes for thousands."""
        first: dict[KeyPath, Place] = {}
        for known, place in self.places.items():
            for size in range(len(known)):
                first.setdefault(known[:size], place)
        return first

    def value(self, path: KeyPath) -> Any:
        """Return the value at ``path``; None if there is none."""
        value: Any = self.data
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def problem(self, path: KeyPath, what: str, limit: str = "", next_step: str = "") -> Problem:
        """Return a problem with the value at ``path``, shown as it was written."""
        value = self.value(path)
        scalar = None if value is None or isinstance(value, (dict, list)) else as_yaml(value)
        return at(self.place(path), dotted(path), what, limit, next_step, scalar)


def at(
    place: Place,
    key: str,
    what: str,
    limit: str = "",
    next_step: str = "",
    value: str | None = None,
) -> Problem:
    """Return a problem with a key at a place; every problem of this room is made here."""
    where = ": ".join(part for part in (str(place), key) if part)
    return Problem(what, where, value, limit, next_step)


def dotted(path: Iterable[str | int]) -> str:
    """Return ``settings.receiver.mtu``, with list items as ``addresses[2]``, counted from 1."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part + 1}]"
        else:
            text += f".{part}" if text else part
    return text


def as_yaml(value: Any) -> str:
    """Return a scalar as YAML would write it, shortened so that a message stays on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = " ".join(str(value).split())
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the next step for an unknown word: similar words, words it begins, or all known."""
    names = list(known)
    return similar(word, names) or (f"known: {joined(names)}" if names else "")


def similar(word: str, names: Sequence[str]) -> str:
    """Return the next step for a misspelt word: similar words or words it begins; else empty."""
    few = names if len(names) <= SIMILAR_NAMES else ()
    short = tuple(name for name in few if len(name) <= SIMILAR_CHARACTERS)
    near = _closest(word[:SIMILAR_CHARACTERS], short)
    near = near or [name for name in names if len(word) > 2 and name.startswith(word)]
    return f"did you mean {joined(near, ' or ')}?" if near else ""


@lru_cache(maxsize=1024)
def _closest(word: str, names: tuple[str, ...]) -> list[str]:
    """Return the name most like a word, once for all points that have it."""
    return difflib.get_close_matches(word, names, n=1)


def joined(names: Sequence[str], between: str = ", ") -> str:
    """Return names in words, as many as a line has room for."""
    if not names:
        return ""
    text, *others = map(as_yaml, names)
    for place, name in enumerate(others):
        if len(text) + len(name) > LISTED_CHARACTERS:
            return f"{text} and {len(others) - place} more"
        text += between + name
    return text


def raise_all(problems: Iterable[Problem]) -> None:
    """Raise InputError with every distinct problem, in order; do nothing if there is none.

    A problem that many points share is reported once.
    """
    distinct = list(dict.fromkeys(problems))
    if distinct:
        raise InputError(distinct)
