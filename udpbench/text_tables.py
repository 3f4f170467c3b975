"""Tables that are written as text, ``name | cell``, and the <blanks> of their cells."""

from __future__ import annotations

import re
from collections.abc import Mapping

_BLANK = re.compile(r"<(\w+)>")


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of each row; a line that begins with two blanks continues the one above."""
    lines = text.replace("\n  ", " ").splitlines()
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def blanks_of(text: str) -> list[str]:
    """Return the words that a text leaves open, as ``<name>``."""
    return _BLANK.findall(text)


def filled(text: str, words: Mapping[str, object]) -> str:
    """Return a text with its blanks filled in; those without a word stay."""
    return _BLANK.sub(lambda blank: str(words.get(blank[1], blank[0])), text)
