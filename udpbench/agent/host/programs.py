"""What a program of the host prints, or its refusal as the OSError that its words stand for."""

from __future__ import annotations

import errno
import os

from udpbench.agent.host.system import Host

_BY_TEXT = {os.strerror(code): code for code in errno.errorcode}


def output(host: Host, *command: str, stdin: str = "") -> str:
    """Return what a program prints; OSError with its own words where it fails.

    The errno is that of the kernel's text in those words, which tells a missing device
    from a refusal; EIO if there is none.
    """
    done = host.run(*command, stdin=stdin)
    if done.status != 0:
        words = " ".join((done.err.strip() or done.out.strip()).split())
        raise OSError(code_of(words), words or f"{command[0]} ended with status {done.status}")
    return done.out


def code_of(words: str) -> int:
    """Return the errno whose text is in a program's words; EIO where none is."""
    texts = [text for text in _BY_TEXT if text in words]
    # "Operation not supported" must not be taken for a shorter text within another.
    return _BY_TEXT[max(texts, key=len)] if texts else errno.EIO
