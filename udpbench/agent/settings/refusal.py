"""Why a setting was refused, in words: what, asked, got, the kernel's text, an alternative."""

from __future__ import annotations

import errno
import struct
from typing import Any

from udpbench.model import Setting

# What a kind's read or write may raise: the kernel's refusal, or a value or target that is none.
FAILURES = (OSError, ValueError, KeyError, TypeError, OverflowError, struct.error)
_GONE = (errno.ENODEV, errno.ENOENT, errno.ESRCH)
_UNPRIVILEGED = "run as root, or leave it out"

# (kind, errno) → what else would do; errno 0 stands for a value that was not kept.
_ALTERNATIVES = {
    ("rps", errno.EPERM): "without root, link: {receive: inline} needs no RPS",
    ("rps", errno.EACCES): "without root, link: {receive: inline} needs no RPS",
    ("napi_cpus", errno.EPERM): "without root, use link: {receive: rps}",
    ("device", errno.EOPNOTSUPP): "threaded needs NAPI: on veth rx-gro on, then up, before it",
    ("xps", errno.ENOENT): "an interface with one TX queue has no XPS; make it with more queues",
    ("qdisc", errno.EEXIST): "remove the discipline that is there, or leave it out",
    ("qdisc", errno.ENOENT): "tbf and pfifo need the kernel's sch_tbf; see modprobe sch_tbf",
    ("link", errno.EEXIST): "remove that interface, or choose another name",
    ("sysctl", errno.ENOENT): "a host-wide parameter is set with scope machine",
    ("sysctl", errno.EACCES): "a host-wide parameter is set with scope machine",
    ("sysctl", errno.EPERM): "a host-wide parameter is set with scope machine",
    ("feature", errno.EOPNOTSUPP): "the driver fixes it ([fixed] in ethtool -k); leave it out",
    ("sysctl", 0): "the kernel limits it; ask for what it kept",
}


def is_gone(error: BaseException) -> bool:
    """Say whether an error means that the thing, its device or its thread, is no longer there."""
    return isinstance(error, OSError) and error.errno in _GONE


def explain(setting: Setting, error: BaseException) -> str:
    """Return the kernel's text, and what would do instead where that is known."""
    if isinstance(error, KeyError):
        return f"the value has no {error}"
    if not isinstance(error, OSError):
        return str(error)
    text = error.strerror or str(error)
    default = _UNPRIVILEGED if error.errno in (errno.EPERM, errno.EACCES) else ""
    instead = _ALTERNATIVES.get((setting.kind, error.errno or 0), default)
    return f"the kernel says: {text}" + (f"; {instead}" if instead else "")


def kept(setting: Setting, got: Any) -> str:
    """Return what to say of a write that succeeded and did not change the value as asked."""
    instead = _ALTERNATIVES.get((setting.kind, 0), "")
    return f"read back {got!r}" + (f"; {instead}" if instead else "")


def sentence(setting: Setting, why: str) -> str:
    """Return the whole message of a refused setting."""
    where = f"{setting.path}: " if setting.path else ""
    return f"{where}{setting.kind} {setting.target}: asked for {setting.value!r}: {why}"
