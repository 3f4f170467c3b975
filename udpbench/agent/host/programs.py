"""Output of host programs, with failures as OSError."""

from __future__ import annotations

import errno
import json
import os
from typing import Any

from udpbench.agent.host.reading import ReadingHost as Host

RULESET = ("nft", "-j", "list", "ruleset")
_BY_TEXT = {os.strerror(code): code for code in errno.errorcode}


def output(host: Host, *command: str, stdin: str = "") -> str:
    """Return a program's output; OSError with its error text if it fails.

    The errno is derived from the kernel's text in the output, which distinguishes a missing device
    from a refusal; EIO if there is none.
    """
    done = host.run(*command, stdin=stdin)
    if done.status != 0:
        words = " ".join((done.err.strip() or done.out.strip()).split())
        raise OSError(code_of(words), words or f"{command[0]} ended with status {done.status}")
    return done.out


def ruleset(host: Host) -> list[dict[str, Any]]:
    """Return all items of nf_tables as nft lists them; OSError, ValueError if it does not."""
    try:
        items: list[dict[str, Any]] = json.loads(output(host, *RULESET))["nftables"]
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise OSError(errno.EFBIG, "more rules than are read") from error
        raise
    return items


def code_of(words: str) -> int:
    """Return the errno whose text is in a program's output; EIO if none is."""
    texts = [text for text in _BY_TEXT if text in words]
    # Longest first: one text may be part of another ("Operation not supported").
    return _BY_TEXT[max(texts, key=len)] if texts else errno.EIO
