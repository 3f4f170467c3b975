"""Kind ``channels``: queues of an interface; a number, or {combined} or {rx, tx}.

A number is that of combined queues, or of RX and TX each where the device has them apart. Changing
it makes the driver forget CPUs of queues and the indirection table, so both are part of what is
read, and of what is put back.
"""

from __future__ import annotations

from typing import Any, Union

from udpbench.agent import ethtool
from udpbench.agent.host import Host
from udpbench.agent.settings import indirection

QUEUE_FILES = {"rx": ("rps_cpus", "rps_flow_cnt"), "tx": ("xps_cpus",)}
Value = Union[int, dict[str, Any]]


def read(host: Host, target: str) -> dict[str, Any]:
    """Return the counts, and under ``queues`` and ``indirection`` what depends on them."""
    counts = ethtool.parse_current(ethtool.show(host, "-l", target), ethtool.CHANNEL_KEYS)
    return {**counts, "queues": _queues(host, target), "indirection": _table(host, target)}


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
    queues = {**now["queues"], **before.get("queues", {})}
    _put_back(host, target, before.get("indirection"), queues)


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
    """Compare as far as something was asked for."""
    if isinstance(wanted, int):
        wanted = counts_of(wanted, got)
    return all(got.get(key) == item for key, item in wanted.items())
