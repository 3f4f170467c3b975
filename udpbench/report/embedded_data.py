"""The data of a report inside its page: the output of ``show --json`` of each run, compressed.

It is in a download link, for readers without udpbench. Reading it back trusts nothing: a page may
come from anybody.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from udpbench.errors import RecordError
from udpbench.json_lines import open_regular, parse_json
from udpbench.records.run import Run
from udpbench.report.json_output import SCHEMA, as_json

LINK = "udpbench-data"
"""The id of the link."""
HEAD = "data:application/gzip;base64,"
MOST_BYTES = 2**27
"""Limit of the uncompressed data."""
MOST_PAGE_BYTES = 2**27
TAG = re.compile(rb"<a\s[^<>]*?\bid\s*=\s*[\"']?" + LINK.encode() + rb"\b")
ADDRESS = re.compile(rb"\shref\s*=\s*[\"']?([^\"'\s>]*)")


def packed(runs: Sequence[Run]) -> str:
    """Return the data of some runs as a data URL (RFC 2397)."""
    plain = json.dumps([as_json(run) for run in runs], allow_nan=False, separators=(",", ":"))
    return HEAD + base64.b64encode(gzip.compress(plain.encode(), mtime=0)).decode()


def read_report(path: Path) -> list[dict[str, Any]]:
    """Return the data of each run in a page; RecordError if it cannot be read."""
    try:
        runs = parse_json(_unpacked(_encoded(path)))
        schemas = {run["schema"] for run in runs}
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from error
    except (binascii.Error, zlib.error, ValueError, TypeError, KeyError) as error:
        raise RecordError(f"{path}: the data in it is damaged; read the run folder") from error
    if schemas - {SCHEMA}:
        known = f"this udpbench reads {SCHEMA}"
        raise RecordError(f"{path}: data of another schema, {known}; read the run folder")
    return list(runs)


def _encoded(path: Path) -> bytes:
    """Return the compressed data of a page as base64."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > MOST_PAGE_BYTES:
            limit = f"at most {MOST_PAGE_BYTES // 2**20}MiB"
            raise RecordError(f"{path}: too large for a report, {limit}; read the run folder")
        page = file.read(MOST_PAGE_BYTES)
    address = next(_addresses(page), b"")
    if not address.startswith(HEAD.encode()):
        raise RecordError(f"{path}: not a udpbench report; give its report.html or the run folder")
    return address[len(HEAD) :]


def _addresses(page: bytes) -> Iterator[bytes]:
    """Yield the URL of each tag with the link's id; an HTML parser kept the page three times."""
    end = 0
    while (place := page.find(LINK.encode(), end)) >= 0:
        begin = page.rfind(b"<", end, place)
        end = page.find(b">", place)
        if end < 0:
            return
        if begin < 0 or TAG.match(page, begin, end) is None:
            continue
        if (address := ADDRESS.search(page, begin, end)) is not None:
            yield address[1]


def _unpacked(encoded: bytes) -> bytes:
    unpacking = zlib.decompressobj(wbits=31)
    plain = unpacking.decompress(base64.b64decode(encoded, validate=True), MOST_BYTES)
    if not unpacking.eof:
        raise ValueError("longer than a report, or truncated")
    return plain
