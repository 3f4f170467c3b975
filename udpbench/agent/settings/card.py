"""Kinds set by ethtool: ``rings``, ``pause``, ``coalesce``, ``feature``, ``channels``."""

from __future__ import annotations

import errno
import shlex
from collections.abc import Mapping
from typing import Any, Union

from udpbench.agent.host import ethtool
from udpbench.agent.host.files import names
from udpbench.agent.host.interrupts import affinity_files
from udpbench.agent.host.system import Host
from udpbench.agent.settings.kind import Command, Kind, echo
from udpbench.agent.settings.queue_polling import NapiState
from udpbench.agent.settings.steering import Indirection, words_for


class Parameters(Kind):
    """Named numbers that one ethtool option sets, all or some of them."""

    option = ""
    switches: tuple[str, ...] = ()
    """Names of on/off parameters, which are 1 or 0 in a value."""

    def steps(self, value: dict[str, int]) -> list[dict[str, int]]:
        """Return the values that each command sets."""
        return [value] if value else []

    def write(self, host: Host, target: str, value: dict[str, int]) -> None:
        """Set the values that differ; the link may flap."""
        for step in self.steps(ethtool.differing(value, self.read(host, target))):
            ethtool.change(host, self.option, target, ethtool.words_of(step, self.switches))

    def same(self, requested: dict[str, int], got: dict[str, int]) -> bool:
        """Compare the requested keys only; true equals 1."""
        return all(got.get(key) == int(value) for key, value in requested.items())

    def by_hand(self, target: str, value: dict[str, int]) -> Command:
        """Return the commands that set it."""
        return "; ".join(
            shlex.join(["ethtool", self.option, target, *ethtool.words_of(step, self.switches)])
            for step in self.steps(value)
        )


class RingSizes(Parameters):
    """Descriptors per ring of an interface, {rx, tx, rx-mini, rx-jumbo}.

    A driver may round up, as to a power of two or a multiple of eight.
    """

    option = "-G"
    disruptive = flaps = True
    alters = ("napi_state",)
    instead: Mapping[int, str] = {
        errno.EOPNOTSUPP: "the device's ring sizes are fixed; see ethtool -g",
        0: "the driver chose other sizes; see ethtool -g",
    }
    otherwise = "the maximums are in `ethtool -g {interface}`"

    def read(self, host: Host, target: str) -> dict[str, int]:
        """Return descriptors per ring of the device."""
        return ethtool.parse_current(ethtool.show(host, "-g", target), ethtool.RING_KEYS)

    def rounded(self, requested: dict[str, int], got: Any) -> bool:
        """Return whether the driver rounded up by less than a factor of two."""
        return all(value <= got.get(key, -1) < 2 * value for key, value in requested.items())


class FlowControl(Parameters):
    """Ethernet flow control of an interface, {autoneg, rx, tx}, each 0 or 1."""

    option = "-A"
    switches = tuple(ethtool.PAUSE_KEYS.values())
    disruptive = flaps = True
    instead: Mapping[int, str] = {
        errno.EOPNOTSUPP: "the device has no flow control; leave it out",
        0: "the driver keeps its flow control; leave it out",
    }
    otherwise = "some cards set rx and tx only together, or with autoneg off; leave it out"

    def read(self, host: Host, target: str) -> dict[str, int]:
        """Return the configured values, not the result of autonegotiation."""
        return ethtool.parse_pause(ethtool.show(host, "-a", target))


TIMER_USECS = 8
"""Coarsest timer accepted as rounding: sfc counts in steps of about 6 µs, i40e of 2 µs."""


def _close(key: str, requested: int, got: object) -> bool:
    if not isinstance(got, int) or "usecs" not in key:
        return got == requested
    return bool(requested) == bool(got) and abs(got - requested) <= TIMER_USECS


class Coalesce(Parameters):
    """Interrupt coalescing of an interface, {rx-usecs, rx-frames, adaptive-rx, ...}.

    Names and units as in ethtool -C (µs, packets); adaptive-rx and adaptive-tx are 0 or 1. A
    driver may round times to the resolution of its timer.
    """

    option = "-C"
    switches = ("adaptive-rx", "adaptive-tx")
    instead: Mapping[int, str] = {
        errno.EOPNOTSUPP: "use napi: {defer-hard-irqs, gro-flush-timeout}",
        0: "the driver chose other values; see ethtool -c",
    }
    otherwise = "some cards accept only some values; read `ethtool -c {interface}`"

    def read(self, host: Host, target: str) -> dict[str, int]:
        """Return every parameter that the driver supports."""
        return ethtool.parse_coalesce(ethtool.show(host, "-c", target))

    def steps(self, value: dict[str, int]) -> list[dict[str, int]]:
        """Return two steps: numbers with adaptive off, then adaptive on.

        i40e, ice, iavf and idpf refuse (EINVAL) to change a number while adaptive is or goes on.
        """
        first = {key: value[key] for key in self.switches if value.get(key) == 0}
        first.update((key, number) for key, number in value.items() if key not in self.switches)
        last = {key: value[key] for key in self.switches if value.get(key)}
        return [step for step in (first, last) if step]

    def same(self, requested: dict[str, int], got: dict[str, int]) -> bool:
        """Compare the requested keys only, without values that adaptive mode controls."""
        adapting = {
            f"{direction}-{unit}"
            for direction in ("rx", "tx")
            for unit in ("usecs", "frames")
            if requested.get(f"adaptive-{direction}") and got.get(f"adaptive-{direction}")
        }
        return all(got.get(key) == value for key, value in requested.items() if key not in adapting)

    def rounded(self, requested: dict[str, int], got: dict[str, int]) -> bool:
        """Return whether only times differ, by the timer's resolution; 0 is never rounded."""
        return all(_close(key, value, got.get(key)) for key, value in requested.items())

    def by_hand(self, target: str, value: dict[str, int]) -> Command:
        """Return the commands that set the numbers with adaptive off, then adaptive."""
        adapting = {key: 1 for key in self.switches if value.get(key)}
        still = super().by_hand(target, {**value, **dict.fromkeys(adapting, 0)})
        return f"{still}; {super().by_hand(target, adapting)}" if adapting else still


NTUPLE = "rx-ntuple-filter"


class Feature(Kind):
    """An offload feature of an interface, ``send0/rx-gro``; the kernel's names.

    The kernel refuses a fixed feature or silently keeps it; only reading back shows which.
    """

    disruptive = flaps = True
    alters = ("napi_state",)
    instead: Mapping[int, str] = {
        errno.EOPNOTSUPP: "the feature is fixed ([fixed] in ethtool -k); leave it out",
        errno.EEXIST: "delete them (ethtool -N ... delete), or leave it out",
        0: "the kernel or the driver keeps it; other features may require that; see ethtool -k",
    }
    otherwise = "it may depend on another feature; see `ethtool -k {interface}`"

    def read(self, host: Host, target: str) -> bool:
        """Return whether the feature is active."""
        interface, _, name = target.partition("/")
        features = host.features(interface)
        if name not in features:
            raise OSError(errno.EINVAL, f"{interface} has no feature {name}")
        return features[name]

    def write(self, host: Host, target: str, value: bool) -> None:
        """Switch the feature on or off."""
        interface, _, name = target.partition("/")
        host.set_feature(interface, name, value)

    def may_flap(self, host: Host, interface: str) -> bool:
        """Return whether a card has it, or is below what has it: not of a veth.

        To read what a flapping link would lose took most of the time of a built-in lab's settings.
        """
        there = names(host, f"/sys/class/net/{interface}")
        return not there or any(name.startswith(("device", "lower_")) for name in there)

    def check(self, host: Host, target: str, value: bool, now: bool) -> None:
        """Refuse to switch off steering while rules exist: i40e, ice and bnxt delete them."""
        del now
        interface, _, name = target.partition("/")
        if name != NTUPLE or value:
            return
        try:
            rules = ethtool.parse_ntuple(ethtool.show(host, "-n", interface))
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:  # no rules to list
                return
            raise
        if rules:
            listed = ", ".join(str(rule.location) for rule in rules)
            raise OSError(errno.EEXIST, f"{interface} would lose its steering rules: {listed}")

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that sets it."""
        interface, _, name = target.partition("/")
        return ["ethtool", "-K", interface, name, "on" if value else "off"]


QUEUE_FILES = {"rx": ("rps_cpus", "rps_flow_cnt"), "tx": ("xps_cpus", "xps_rxqs")}
MANAGED = (errno.EIO, errno.EPERM)
"""Errors for interrupts managed by the kernel, which ethtool -L does not move either."""
Counts = Union[int, dict[str, Any]]


def _queues(host: Host, interface: str) -> dict[str, str]:
    texts = {}
    folder = f"/sys/class/net/{interface}/queues"
    for queue in host.listdir(folder):
        for name in QUEUE_FILES.get(queue[:2], ()):
            try:
                texts[f"{queue}/{name}"] = host.read_text(f"{folder}/{queue}/{name}")
            except OSError:  # a device with one TX queue has no XPS
                continue
    return texts


def _indirection(host: Host, interface: str) -> Any:
    try:
        return Indirection().read(host, interface)
    except OSError:  # no RSS
        return None


def _interrupts(host: Host, interface: str) -> dict[str, str]:
    """Return interrupt name → CPUs; its number may change with the channels."""
    cpus = {}
    for name, path in affinity_files(host, interface).items():
        try:
            cpus[name] = host.read_text(path)
        except OSError:  # removed in the meantime
            continue
    return cpus


def _pin(host: Host, interface: str, interrupts: dict[str, str]) -> None:
    """Restore the CPUs of interrupts that exist and that the kernel does not manage."""
    there = _interrupts(host, interface)
    for name, path in affinity_files(host, interface).items():
        if name in interrupts and interrupts[name] != there.get(name):
            try:
                host.write_text(path, interrupts[name])
            except OSError as error:
                if error.errno not in MANAGED:
                    raise


def _put_back(host: Host, interface: str, table: Any, queues: dict[str, str]) -> None:
    if table is not None and not Indirection().same(table, Indirection().read(host, interface)):
        Indirection().write(host, interface, table)
    there = _queues(host, interface)
    for name, text in queues.items():
        if name in there and there[name] != text:
            host.write_text(f"/sys/class/net/{interface}/queues/{name}", text)


def counts_of(value: Counts, now: dict[str, Any]) -> dict[str, int]:
    """Return the counts that a value means on a device with these current counts."""
    if isinstance(value, int):
        combined = now.get("combined") or "rx" not in now
        return {"combined": value} if combined else {"rx": value, "tx": value}
    return _counts(value)


def _counts(value: dict[str, Any]) -> dict[str, int]:
    return {key: value[key] for key in ethtool.CHANNEL_KEYS if key in value}


def _same_part(key: str, requested: Any, got: Any) -> bool:
    if key == "napi_cpus":  # in a journal of an earlier version
        return True
    if key == "interrupts":
        return all(got.get(name, cpus) == cpus for name, cpus in requested.items())
    return bool(requested == got)


class Channels(Kind):
    """Channels of an interface; a number, or {combined} or {rx, tx}.

    A number means combined channels, or RX and TX each if the device has them separate. A change
    makes the driver drop the CPUs of queues and interrupts and the indirection table, so all of
    these are read and restored as well.
    """

    disruptive = flaps = True
    alters = ("napi_state", "qdisc_tree")
    instead: Mapping[int, str] = {
        errno.EOPNOTSUPP: "the device has a fixed number of queues; use rps",
        0: "the driver chose another number; see ethtool -l",
    }
    otherwise = (
        "the maximums are in `ethtool -l {interface}`; tables, rules and AF_XDP sockets may need "
        "the queues there are; use rps"
    )

    def read(self, host: Host, target: str) -> dict[str, Any]:
        """Return the counts and, under further keys, the values that depend on them."""
        counts = ethtool.parse_current(ethtool.show(host, "-l", target), ethtool.CHANNEL_KEYS)
        return {
            **counts,
            "queues": _queues(host, target),
            "indirection": _indirection(host, target),
            "interrupts": _interrupts(host, target),
        }

    def write(self, host: Host, target: str, value: Counts) -> None:
        """Set the counts; a value from ``read`` is restored with all that depends on it."""
        now, napis = self.read(host, target), NapiState().read(host, target)
        requested = counts_of(value, now)
        missing = ethtool.differing(requested, _counts(now))
        if missing and now["indirection"] is not None:
            # A driver refuses to remove queues that the table refers to.
            Indirection().write(host, target, "default")
        if missing:
            ethtool.change(host, "-L", target, ethtool.words_of(missing))
        before = value if isinstance(value, dict) else {}
        kept = {key: {**now[key], **before.get(key, {})} for key in ("queues", "interrupts")}
        _put_back(host, target, before.get("indirection"), kept["queues"])
        _pin(host, target, kept["interrupts"])
        NapiState().write(host, target, napis)

    def same(self, requested: Counts, got: dict[str, Any]) -> bool:
        """Compare the requested keys, and of dependent values those that exist."""
        if isinstance(requested, int):
            requested = counts_of(requested, got)
        return all(_same_part(key, item, got.get(key)) for key, item in requested.items())

    def alike(self, requested: Counts, got: dict[str, Any]) -> bool:
        """Compare without interrupts, which irqbalance or the kernel move."""
        if isinstance(requested, dict):
            requested = {key: item for key, item in requested.items() if key != "interrupts"}
        return self.same(requested, got)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the commands that set the counts, then the dependent values."""
        counts = ethtool.words_of(counts_of(value, value))
        commands = [shlex.join(["ethtool", "-L", target, *counts])]
        table = value.get("indirection")
        words = words_for(table) if table is not None else None
        if words is not None:
            commands.append(shlex.join(["ethtool", "-X", target, *words.split()]))
        for name, text in value.get("queues", {}).items():
            if text.strip("0,"):
                commands.append(echo(text, f"/sys/class/net/{target}/queues/{name}"))
        for name, cpus in value.get("interrupts", {}).items():
            number = f"$(grep -lxF {shlex.quote(name)} /sys/kernel/irq/*/actions | cut -d/ -f5)"
            commands.append(f"echo {shlex.quote(cpus)} > /proc/irq/{number}/smp_affinity_list")
        return "; ".join(commands)


KINDS: Mapping[str, Kind] = {
    "rings": RingSizes(),
    "pause": FlowControl(),
    "coalesce": Coalesce(),
    "feature": Feature(),
    "channels": Channels(),
}
