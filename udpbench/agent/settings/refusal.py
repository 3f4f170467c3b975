"""What is said of a refused setting: requested and actual value, kernel text, alternative, command.

The command restores a value by hand where udpbench could not.
"""

from __future__ import annotations

import errno
import shlex
import struct
from typing import Any

from udpbench.agent.host.system import Host
from udpbench.agent.settings.handlers import KINDS
from udpbench.model.host import Setting
from udpbench.setting_kinds import asked_for, requested_part, show_value, show_values

# What a kind's read or write may raise: refused by the kernel, or an invalid value or target.
FAILURES = (OSError, ValueError, KeyError, TypeError, OverflowError, struct.error)
_GONE = (errno.ENODEV, errno.ENOENT, errno.ESRCH)
_UNREAD = object()
"""In place of a value in force: nothing was written."""
_UNPRIVILEGED = "run as root, or leave it out"


def is_gone(error: BaseException) -> bool:
    """Return whether an error means that the target, its device or its thread is gone."""
    return isinstance(error, OSError) and error.errno in _GONE


class Unrestored(Exception):
    """Why one change could not be undone, as text."""


def why(setting: Setting, error: BaseException, now: Any = _UNREAD) -> str:
    """Return the kernel's text, with an alternative; ``now`` is in force if a write was refused.

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
    instead = _instead(setting, error.errno or 0)
    if not instead and error.errno in (errno.EPERM, errno.EACCES):
        instead = _UNPRIVILEGED
    elif not instead and now is not _UNREAD and not is_gone(error):
        instead = _otherwise(setting, now)
    return f"the kernel says: {text}" + (f"; {instead}" if instead else "")


def _instead(setting: Setting, code: int) -> str:
    kind = KINDS.get(setting.kind)
    return kind.instead.get(code, "") if kind is not None else ""


def _otherwise(setting: Setting, now: Any) -> str:
    """Return what is in force, and what to try instead of a value that was refused."""
    kind = KINDS.get(setting.kind)
    if kind is None or not kind.otherwise:
        return ""
    in_force = show_value(setting.kind, requested_part(setting.value, now))
    step = kind.otherwise.format(interface=setting.target.partition("/")[0])
    optional = "" if setting.optional else ", or list it under `optional` to go on without it"
    return f"in force: {in_force}; {step}{optional}"


def unchanged_message(setting: Setting, got: Any) -> str:
    """Return the message for a write that succeeded without setting the requested value."""
    instead = _instead(setting, 0)
    part = requested_part(setting.value, got)
    shown, _ = show_values(setting.kind, part, setting.value)
    return f"read back {shown}" + (f"; {instead}" if instead else "")


def sentence(setting: Setting, why: str) -> str:
    """Return the complete message for a refused setting."""
    where = f"{setting.path}: " if setting.path else ""
    return f"{where}{setting.kind} {setting.target}: {asked_for(setting)}: {why}"


def by_hand(host: Host, setting: Setting, value: Any) -> str:
    """Return a shell command that sets ``value`` at the setting's target, or a description."""
    words = None
    try:
        words = KINDS[setting.kind].by_hand_here(host, setting.target, value)
    except Exception:  # noqa: BLE001 - called while restoring, which must continue
        words = None
    if words is None:
        return f"change {setting.kind} {setting.target} back to {show_value(setting.kind, value)}"
    return words if isinstance(words, str) else shlex.join(words)
