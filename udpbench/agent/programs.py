"""What a program of the host prints, or its refusal as the OSError that its words stand for."""

from __future__ import annotations

import errno
import os

from udpbench.agent.host import Host

_BY_TEXT = {os.strerror(code): code for code in errno.errorcode}


def output(host: Host, *command: str, stdin: str = "") -> str:
    """Return what a program prints; OSError with its own words where it fails.

    The errno is that of the kernel's text in those words, so that a device that is gone is told
    from a refusal; EIO where there is none.
    """
    done = host.run(*command, stdin=stdin)
    if done.status != 0:
        words = " ".join((done.err.strip() or done.out.strip()).split())
        raise OSError(code_of(words), words or f"{command[0]} ended with status {done.status}")
    return done.out


def code_of(words: str) -> int:
    """Return the errno whose text is in a program's words; EIO where none is."""
    found = [text for text in _BY_TEXT if text in words]
    # "Operation not supported" must not be taken for a shorter text within another.
    return _BY_TEXT[max(found, key=len)] if found else errno.EIO
