"""Makes text safe to show; used wherever text reaches a terminal or the report.

Text from hosts, users, files and records may contain anything. A terminal obeys control characters,
and bidirectional controls change the order in which a reader sees the rest.
"""

from __future__ import annotations

import unicodedata
from typing import Any

OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of control and format characters, and of lone surrogates."""
NOT_IN_XML = "\ufffe\uffff"
"""Characters that no figure may have; the others that XML has not are among these categories."""


def printable(text: str, keep: str = "\n\t") -> str:
    r"""Return a text with each control character as its escape, such as ``\x1b``."""
    if text.isprintable():
        return text
    # By each different character: 8 MiB took 240 MiB one by one.
    escapes = {
        ord(character): character.encode("unicode_escape").decode()
        for character in set(text)
        if character not in keep
        and (unicodedata.category(character) in OBEYED or character in NOT_IN_XML)
    }
    return text.translate(escapes)


def all_printable(data: Any, keep: str = "\n\t") -> Any:
    """Return plain data with all of its text printable, that of keys included."""
    if isinstance(data, str):
        return printable(data, keep)
    if data is None or isinstance(data, int):
        return data
    if isinstance(data, dict):
        return {
            printable(key, keep) if isinstance(key, str) else key: (
                value if type(value) is int else all_printable(value, keep)
            )
            for key, value in data.items()
        }
    if isinstance(data, (list, tuple)):
        return [item if type(item) is int else all_printable(item, keep) for item in data]
    return data
