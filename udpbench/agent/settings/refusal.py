"""Why a setting was refused, in words: what, asked, got, the kernel's text, an alternative."""

from __future__ import annotations

import errno
import struct
from typing import Any

from udpbench.agent.settings.handlers import KINDS
from udpbench.model import Setting

# What a kind's read or write may raise: a refusal by the kernel, or an invalid value or target.
FAILURES = (OSError, ValueError, KeyError, TypeError, OverflowError, struct.error)
_GONE = (errno.ENODEV, errno.ENOENT, errno.ESRCH)
_UNPRIVILEGED = "run as root, or leave it out"


def is_gone(error: BaseException) -> bool:
    """Say whether an error means that the target, its device or its thread is gone."""
    return isinstance(error, OSError) and error.errno in _GONE


class Unrestored(Exception):
    """Why one change could not be undone, in words."""


def explain(setting: Setting, error: BaseException) -> str:
    """Return the kernel's text, and an alternative if one is known.

    An error outside ``FAILURES`` is a bug of udpbench: its class is named, too.
    """
    if isinstance(error, KeyError):
        return f"the value has no {error}"
    if not isinstance(error, (Unrestored, *FAILURES)):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, (TypeError, OverflowError, struct.error)):
        return f"it takes no such value ({error}); see docs/settings.md"
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
    """Return what to say of a write that succeeded and did not change the value as asked."""
    instead = _instead(setting, 0)
    return f"read back {got!r}" + (f"; {instead}" if instead else "")


def sentence(setting: Setting, why: str) -> str:
    """Return the whole message of a refused setting."""
    where = f"{setting.path}: " if setting.path else ""
    return f"{where}{setting.kind} {setting.target}: asked for {setting.value!r}: {why}"
