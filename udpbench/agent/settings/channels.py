"""Kind ``channels``: queues of an interface; a number, or {combined} or {rx, tx}.

A number is that of combined queues, or of RX and TX each where the device has them apart. Changing
it makes the driver forget CPUs of queues, of interrupts and of NAPI threads, and the indirection
table, so all of them are part of what is read, and of what is put back.
"""

from __future__ import annotations

import errno
from typing import Any, Optional, Union

from udpbench.agent import ethtool
from udpbench.agent.host import Host
from udpbench.agent.interrupts import affinity_files
from udpbench.agent.settings import indirection, napi_cpus

QUEUE_FILES = {"rx": ("rps_cpus", "rps_flow_cnt"), "tx": ("xps_cpus",)}
MANAGED = (errno.EIO, errno.EPERM)
"""Of an interrupt whose CPUs are the kernel's own choice: no -L has moved it either."""
RESTLESS = ("interrupts", "napi_cpus")
Value = Union[int, dict[str, Any]]


def read(host: Host, target: str) -> dict[str, Any]:
    """Return the counts, and by further keys what depends on them."""
    counts = ethtool.parse_current(ethtool.show(host, "-l", target), ethtool.CHANNEL_KEYS)
    return {
        **counts,
        "queues": _queues(host, target),
        "indirection": _table(host, target),
        "interrupts": _interrupts(host, target),
        "napi_cpus": _threads(host, target),
    }


def _queues(host: Host, interface: str) -> dict[str, str]:
    found = {}
    folder = f"/sys/class/net/{interface}/queues"
    for queue in host.listdir(folder):
        for name in QUEUE_FILES.get(queue[:2], ()):
            try:
                found[f"{queue}/{name}"] = host.read_text(f"{folder}/{queue}/{name}")
            except OSError:  # a device with one TX queue has no XPS to read
                continue
    return found


def _table(host: Host, interface: str) -> Any:
    try:
        return indirection.read(host, interface)
    except OSError:  # no RSS, nothing to keep
        return None


def _interrupts(host: Host, interface: str) -> dict[str, str]:
    """Return interrupt's name → its CPUs; its number may change with the channels."""
    found = {}
    for name, path in affinity_files(host, interface).items():
        try:
            found[name] = host.read_text(path)
        except OSError:  # it went in between
            continue
    return found


def _threads(host: Host, interface: str) -> Optional[list[list[int]]]:
    try:
        return napi_cpus.read(host, interface)
    except OSError:  # none, or a kernel that does not tell
        return None


def write(host: Host, target: str, value: Value) -> None:
    """Ask for the counts; a value that was read is put back with all that depends on it."""
    now = read(host, target)
    wanted = counts_of(value, now)
    missing = ethtool.differing(wanted, _counts(now))
    if missing and now["indirection"] is not None:
        # A driver refuses fewer queues while the table leads to those that would go.
        indirection.write(host, target, "default")
    if missing:
        ethtool.change(host, "-L", target, ethtool.words_of(missing))
    before = value if isinstance(value, dict) else {}
    kept = {key: {**now[key], **before.get(key, {})} for key in ("queues", "interrupts")}
    _put_back(host, target, before.get("indirection"), kept["queues"])
    _pin(host, target, kept["interrupts"])
    threads, there = before.get("napi_cpus") or now["napi_cpus"], _threads(host, target)
    if threads and there and threads[: len(there)] != there[: len(threads)]:
        napi_cpus.write(host, target, threads[: len(there)])


def _pin(host: Host, interface: str, interrupts: dict[str, str]) -> None:
    """Give interrupts their CPUs back, as far as they are there and the kernel lets us."""
    there = _interrupts(host, interface)
    for name, path in affinity_files(host, interface).items():
        if name in interrupts and interrupts[name] != there.get(name):
            try:
                host.write_text(path, interrupts[name])
            except OSError as error:
                if error.errno not in MANAGED:
                    raise


def _put_back(host: Host, interface: str, table: Any, queues: dict[str, str]) -> None:
    if table is not None and not indirection.same(table, indirection.read(host, interface)):
        indirection.write(host, interface, table)
    there = _queues(host, interface)
    for name, text in queues.items():
        if name in there and there[name] != text:
            host.write_text(f"/sys/class/net/{interface}/queues/{name}", text)


def counts_of(value: Value, now: dict[str, Any]) -> dict[str, int]:
    """Return the counts that a value means on a device that now has these."""
    if isinstance(value, int):
        combined = now.get("combined") or "rx" not in now
        return {"combined": value} if combined else {"rx": value, "tx": value}
    return _counts(value)


def _counts(value: dict[str, Any]) -> dict[str, int]:
    return {key: value[key] for key in ethtool.CHANNEL_KEYS if key in value}


def same(wanted: Value, got: dict[str, Any]) -> bool:
    """Compare as far as something was asked for, and of what depends on it what is there."""
    if isinstance(wanted, int):
        wanted = counts_of(wanted, got)
    return all(_same(key, item, got.get(key)) for key, item in wanted.items())


def _same(key: str, wanted: Any, got: Any) -> bool:
    if key == "interrupts":
        return all(got.get(name, cpus) == cpus for name, cpus in wanted.items())
    if key == "napi_cpus":
        return wanted is None or got is None or napi_cpus.same(wanted, got)
    return bool(wanted == got)


def alike(wanted: Value, got: dict[str, Any]) -> bool:
    """Compare without what irqbalance moves, or the kernel keeps, and NAPI that is switched."""
    if isinstance(wanted, dict):
        wanted = {key: item for key, item in wanted.items() if key not in RESTLESS}
    return same(wanted, got)
