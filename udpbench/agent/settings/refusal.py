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
    ("up", errno.ENODEV): "see `ip link` there, and mend `interface` in the lab's file",
    ("link", errno.EEXIST): "remove that interface, or choose another name",
    ("sysctl", errno.ENOENT): (
        "this kernel has none of that name, or none in a namespace of its own (see sysctl -a); "
        "a name that holds dots is written with slashes: net/ipv4/conf/eth0.100/rp_filter"
    ),
    ("sysctl", errno.EACCES): "it may only be read here; set it for the machine, as its root",
    ("sysctl", errno.EPERM): "it may only be read here; set it for the machine, as its root",
    ("feature", errno.EOPNOTSUPP): "the driver fixes it ([fixed] in ethtool -k); leave it out",
    ("feature", errno.EEXIST): "delete them (ethtool -N ... delete), or leave it out",
    ("rfs", errno.EPERM): "flow steering needs root of the machine; leave it out",
    ("route", errno.EEXIST): "remove that route, or leave it out",
    ("address", errno.EADDRINUSE): "choose an address that nobody uses",
    ("unclaimed", errno.EADDRINUSE): "choose addresses that nobody uses, or `existing`",
    ("mtu", errno.EBUSY): "or choose another interface",
    ("flow_hash", errno.EOPNOTSUPP): "spread over addresses instead of ports, or use rps or ntuple",
    ("flow_hash", 0): "the driver hashes other fields; spread over addresses, or use rps or ntuple",
    ("indirection", errno.EOPNOTSUPP): "use ethtool.channels, ntuple or rps to choose queues",
    ("indirection", errno.EBUSY): "set it with `ethtool -X ... default` before the run",
    ("ntuple", errno.EOPNOTSUPP): "the feature rx-ntuple-filter must be on; else use rx-flow-hash",
    ("ntuple", errno.EEXIST): "delete that rule (ethtool -N ... delete), or leave it out",
    ("ntuple", 0): "the driver did not take the rule; use rx-flow-hash or rps",
    ("channels", errno.EOPNOTSUPP): "the device has a fixed number of queues; use rps",
    ("rings", errno.EOPNOTSUPP): "the device has fixed rings; see ethtool -g",
    ("rings", 0): "the driver has other sizes; see ethtool -g",
    ("coalesce", errno.EOPNOTSUPP): "use napi: {defer-hard-irqs, gro-flush-timeout}",
    ("coalesce", 0): "the driver has other values; see ethtool -c",
    ("pause", errno.EOPNOTSUPP): "the device has no flow control; leave it out",
    ("irq", errno.EIO): "the kernel manages this interrupt; use rps, or napi: {threaded, cpus}",
    ("irq", errno.EPERM): "the kernel manages this interrupt; use rps, or napi: {threaded, cpus}",
    ("irq", errno.ENXIO): "a virtual device has none; use rps, or napi: {threaded, cpus}",
    ("governor", errno.EOPNOTSUPP): "a virtual machine has none; set it on its host",
    ("governor", errno.EINVAL): "see scaling_available_governors",
    ("turbo", errno.EOPNOTSUPP): "a virtual machine has none; set it on its host",
    ("sysctl", 0): "the kernel limits it; ask for what it kept",
}


def is_gone(error: BaseException) -> bool:
    """Say whether an error means that the thing, its device or its thread, is no longer there."""
    return isinstance(error, OSError) and error.errno in _GONE


class Unrestored(Exception):
    """Why one change could not be undone, in words."""


def explain(setting: Setting, error: BaseException) -> str:
    """Return the kernel's text, and what would do instead where that is known.

    What is none of ``FAILURES`` is a fault of udpbench: its class is told, too.
    """
    if isinstance(error, KeyError):
        return f"the value has no {error}"
    if not isinstance(error, (Unrestored, *FAILURES)):
        return f"{type(error).__name__}: {error}"
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
