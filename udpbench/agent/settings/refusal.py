"""Messages for refused settings: setting, requested and actual value, kernel text, alternative."""

from __future__ import annotations

import errno
import struct
from typing import Any

from udpbench.agent.settings.handlers import KINDS
from udpbench.model import Setting

# What a kind's read or write may raise: refused by the kernel, or an invalid value or target.
FAILURES = (OSError, ValueError, KeyError, TypeError, OverflowError, struct.error)
_GONE = (errno.ENODEV, errno.ENOENT, errno.ESRCH)
_UNPRIVILEGED = "run as root, or leave it out"


def is_gone(error: BaseException) -> bool:
    """Return whether an error means that the target, its device or its thread is gone."""
    return isinstance(error, OSError) and error.errno in _GONE


class Unrestored(Exception):
    """Why one change could not be undone, as text."""


def explain(setting: Setting, error: BaseException) -> str:
    """Return the kernel's text, with an alternative if known.

    An error outside ``FAILURES`` is a bug in udpbench and includes its class.
    """
    if isinstance(error, KeyError):
        return f"the value lacks {error}"
    if not isinstance(error, (Unrestored, *FAILURES)):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, (TypeError, OverflowError, struct.error)):
        return f"invalid value ({error}); see docs/settings.md"
    if not isinstance(error, OSError):
        return str(error)
    text = error.strerror or str(error)
    default = _UNPRIVILEGED if error.errno in (errno.EPERM, errno.EACCES) else ""
    instead = _instead(setting, error.errno or 0) or default
    return f"the kernel says: {text}" + (f"; {instead}" if instead else "")


def _instead(setting: Setting, code: int) -> str:
    kind = KINDS.get(setting.kind)
    return kind.instead.get(code, "") if kind is not None else ""


def unchanged_message(setting: Setting, got: Any) -> str:
    """Return the message for a write that succeeded without setting the requested value."""
    instead = _instead(setting, 0)
    return f"read back {got!r}" + (f"; {instead}" if instead else "")


def sentence(setting: Setting, why: str) -> str:
    """Return the complete message for a refused setting."""
    where = f"{setting.path}: " if setting.path else ""
    return f"{where}{setting.kind} {setting.target}: asked for {setting.value!r}: {why}"
