"""What makes a text safe to show: it stands at every door to a terminal and to the report.

Hosts, their users, files and records may hold anything; a terminal obeys control characters, and
bidirectional ones change the order in which a reader sees the rest.
"""

from __future__ import annotations

import unicodedata
from typing import Any

OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of characters that are not shown but obeyed, and of halves of characters."""


def printable(text: str, keep: str = "\n\t") -> str:
    r"""Return a text with each character that is obeyed, not shown, as its escape: ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character in keep or unicodedata.category(character) not in OBEYED
        else character.encode("unicode_escape").decode()
        for character in text
    )


def all_printable(data: Any) -> Any:
    """Return plain data with every text in it printable."""
    if isinstance(data, str):
        return printable(data)
    if isinstance(data, dict):
        return {key: all_printable(value) for key, value in data.items()}
    return [all_printable(item) for item in data] if isinstance(data, (list, tuple)) else data
