"""The data of a report inside its page: the output of ``show --json`` of each run, compressed.

It is in a download link, for readers without udpbench. Reading it back trusts nothing: a page may
come from anybody.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import zlib
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from udpbench.errors import RecordError
from udpbench.json_lines import open_regular
from udpbench.records import Run
from udpbench.report.json_output import SCHEMA, as_json

LINK = "udpbench-data"
"""The id of the link."""
HEAD = "data:application/gzip;base64,"
MOST_BYTES = 2**30
"""Limit of the uncompressed data."""


def packed(runs: Sequence[Run]) -> str:
    """Return the data of some runs as a data URL (RFC 2397)."""
    plain = json.dumps([as_json(run) for run in runs], allow_nan=False, separators=(",", ":"))
    return HEAD + base64.b64encode(gzip.compress(plain.encode(), mtime=0)).decode()


def read_report(path: Path) -> list[dict[str, Any]]:
    """Return the data of each run in a page; RecordError if it cannot be read."""
    try:
        with open_regular(path) as file:
            text = file.read().decode(errors="replace")
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from error
    link = _Link()
    link.feed(text)
    if not link.address.startswith(HEAD):
        raise RecordError(f"{path}: not a udpbench report; give its report.html or the run folder")
    try:
        plain = base64.b64decode(link.address.removeprefix(HEAD), validate=True)
        runs = json.loads(_unpacked(plain))
        schemas = {run["schema"] for run in runs}
    except (binascii.Error, zlib.error, ValueError, TypeError, KeyError) as error:
        raise RecordError(f"{path}: the data in it is damaged; read the run folder") from error
    if schemas - {SCHEMA}:
        known = f"this udpbench reads {SCHEMA}"
        raise RecordError(f"{path}: data of another schema, {known}; read the run folder")
    return list(runs)


def _unpacked(data: bytes) -> bytes:
    unpacking = zlib.decompressobj(wbits=31)
    plain = unpacking.decompress(data, MOST_BYTES)
    if not unpacking.eof:
        raise ValueError("longer than a report, or truncated")
    return plain


class _Link(HTMLParser):
    """Finds the URL of the link."""

    address = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the URL if this is the link."""
        values = dict(attrs)
        if tag == "a" and values.get("id") == LINK:
            self.address = values.get("href") or ""
