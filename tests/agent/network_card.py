"""A network card that only ``ethtool`` text shows: it rounds, refuses, keeps quiet and forgets.

For what no virtual device of a test's kernel has. The words are those of ethtool 6.1 (tests/
fixtures/ethtool); what the card does is what real ones do (docs/kernel.md, Refused changes that
report success).
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

from recorded_host import Message

from udpbench.agent.host import genetlink
from udpbench.agent.host.interrupts import affinity_files
from udpbench.agent.host.system import Done, Host, NapiInstance
from udpbench.agent.settings.steering import table_of

TABLE_SIZE = 16
QUEUES = 8
ROOT = 0xFFFFFFFF
Qdisc = tuple[str, int, int]
"""Kind, handle, and quantum or limit."""
FIELDS = {
    "s": "IP SA",
    "d": "IP DA",
    "f": "L4 bytes 0 & 1 [TCP/UDP src port]",
    "n": "L4 bytes 2 & 3 [TCP/UDP dst port]",
}
UDP4_RULE = """Filter: {location}
\tRule Type: UDP over IPv4
\tSrc IP addr: 0.0.0.0 mask: 255.255.255.255
\tDest IP addr: 0.0.0.0 mask: 255.255.255.255
\tTOS: 0x0 mask: 0xff
\tSrc port: 0 mask: 0xffff
\tDest port: {port} mask: 0x0
\tAction: Direct to queue {queue}
"""


class CardHost(Host):
    """A folder as root, and eth3 as its only card."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.combined = 8
        self.rings = {"rx": 256, "tx": 256}
        self.coalesce = {"rx-usecs": 3, "tx-usecs": 3}
        self.adaptive = 0
        self.pause = {"autoneg": 0, "rx": 1, "tx": 1}
        self.hash = {"udp4": "sd", "udp6": "sd"}
        self.table = table_of("default", 8, TABLE_SIZE)
        self.configured = False
        """The table is the user's: then the kernel refuses fewer queues than it leads to."""
        self.rules: dict[int, tuple[int, int]] = {}
        self.offloads = {"rx-ntuple-filter": True}
        self.refusing: set[str] = set()
        """Options that end with "Operation not supported"."""
        self.refusing_changes = ""
        """What it says of every change; empty if it makes them."""
        self.silent: set[str] = set()
        """Options that end with status 0 and change nothing."""
        self.first_irq = 40
        """It moves with each change of the channels."""
        self.threaded = False
        self.managed: set[str] = set()
        """Files that cannot be written."""
        self.requests: list[str] = []
        """Every change that was asked for."""
        self.failing: dict[int, bool] = {}
        """Number of a change or write, counted from here → whether it happens all the same."""
        self.mtu, self.txqueuelen, self.up = 1500, 1000, True
        self.layer = 1  # ARPHRD_ETHER
        self.default_qdisc = "fq_codel"
        self.root_qdisc: Optional[Qdisc] = ("mq", 0, 0)
        """None: noop, before it is first up."""
        self.leaves: list[Qdisc] = []
        """Each queue that there could be; queues that are off are not shown."""
        self._attach()
        for queue in range(8):
            self._queue(queue)
        for cpu in range(2):
            self._file(f"sys/devices/system/cpu/cpufreq/policy{cpu}/scaling_governor", "powersave")
        self._file("sys/devices/system/cpu/intel_pstate/no_turbo", "0")
        self._file("proc/sys/kernel/random/boot_id", "6ab1c5d0-0000-4000-8000-000000000001")
        self._file("proc/self/ns/net", "")
        self._interrupts()

    def _file(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def _queue(self, queue: int) -> None:
        for name in (f"rx-{queue}/rps_cpus", f"rx-{queue}/rps_flow_cnt", f"tx-{queue}/xps_cpus"):
            self._file(f"sys/class/net/eth3/queues/{name}", "0")

    def _interrupts(self) -> None:
        """Ask for an interrupt and make a NAPI thread for each queue, all on every CPU."""
        for folder in ("sys/class/net/eth3/device", "sys/kernel/irq", "proc/irq"):
            shutil.rmtree(self.root / folder, ignore_errors=True)
        for queue in range(self.combined):
            number = self.first_irq + queue
            self._file(f"sys/class/net/eth3/device/msi_irqs/{number}", "msix")
            self._file(f"sys/kernel/irq/{number}/actions", f"eth3-TxRx-{queue}")
            self._file(f"proc/irq/{number}/smp_affinity_list", "0,1,2,3,4,5,6,7")
        self.threads = {900 + queue: list(range(8)) for queue in range(self.combined)}
        self.policies = dict.fromkeys(self.threads, (0, 0, 0))

    def affinity(self, pid: int) -> list[int]:
        """Return where a NAPI thread may run."""
        return self.threads[pid]

    def set_affinity(self, pid: int, cpus: Iterable[int]) -> None:
        """Pin a NAPI thread."""
        with self._effect() as happens:
            if happens:
                self.threads[pid] = sorted(cpus)

    def scheduling(self, pid: int) -> tuple[int, int, int]:
        """Return the policy, priority and nice value of a NAPI thread."""
        return self.policies[pid]

    def set_scheduling(self, pid: int, policy: int, priority: int, nice: int) -> None:
        """Set these."""
        with self._effect() as happens:
            if happens:
                self.policies[pid] = (policy, priority, nice)

    def index(self, interface: str) -> int:
        """Return the card's index; there is no other."""
        if interface != "eth3":
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), interface)
        return 3

    def name_of(self, index: int) -> Optional[str]:
        """Return the card's name by its index."""
        return "eth3" if index == 3 else None

    def link(self, interface: str) -> Any:
        """Return a message of a link without a carrier, so that nothing is waited for."""
        fields = {"flags": int(self.up), "index": self.index(interface), "ifi_type": self.layer}
        numbers = [["IFLA_MTU", self.mtu], ["IFLA_TXQLEN", self.txqueuelen]]
        return Message(fields, numbers)

    def rtnl(self, noun: str, verb: str, **fields: Any) -> list[Any]:
        """Change the link or its root qdisc, or list that; there are no addresses and routes."""
        if (noun, verb) == ("tc", "dump"):
            return self._listed_root()
        if verb != "dump":
            with self._effect() as happens:
                if happens and noun == "tc":
                    self._change_root(verb, fields)
                elif happens:
                    self._change_link(fields)
        return []

    # --- queueing disciplines, as in net/sched/sch_generic.c and sch_mq.c ------------------------

    def qdiscs(self, interface: str) -> list[bytes]:
        """Return what a dump has: the root, and under mq the queues that are on, last one first."""
        self.index(interface)
        if self.root_qdisc is None:
            return []
        shown = [_qdisc(ROOT, *self.root_qdisc)]
        leaves = self.leaves[: self.combined] if self.root_qdisc[0] == "mq" else []
        return shown + [_qdisc(n, *leaf) for n, leaf in reversed([*enumerate(leaves, 1)])]

    def _attach(self) -> None:
        """Give each queue a qdisc; those of queues that are off are no default ones."""
        self.root_qdisc = ("mq", 0, 0)
        default = (self.default_qdisc, 0, self.mtu + 14)
        off = [("pfifo_fast", 0, 0)] * (QUEUES - self.combined)
        self.leaves = [default] * self.combined + off

    def _listed_root(self) -> list[Any]:
        if self.root_qdisc is None:
            return []
        kind, handle, number = self.root_qdisc
        words = [["TCA_KIND", kind], ["TCA_OPTIONS", {"is": "dict", "items": [["limit", number]]}]]
        return [Message({"parent": ROOT, "handle": handle}, words)]

    def _change_root(self, verb: str, fields: dict[str, Any]) -> None:
        self.leaves = []
        if verb == "add":
            self.root_qdisc = (fields["kind"], fields.get("handle", 0x80010000), fields["limit"])
        elif self.up:
            self._attach()
        else:
            self.root_qdisc = None

    def _change_link(self, fields: dict[str, Any]) -> None:
        self.mtu = fields.get("mtu", self.mtu)
        self.txqueuelen = fields.get("txqlen", self.txqueuelen)
        self.up = fields.get("state", "up" if self.up else "down") == "up"
        if self.up and self.root_qdisc is None:
            self._attach()

    def queue_napis(self, interface: str, way: str = "rx") -> dict[int, NapiInstance]:  # noqa: ARG002 - both share one
        """Return an interrupt for each queue, and a thread where it is threaded."""
        self.index(interface)
        return {
            queue: NapiInstance(
                queue, self.first_irq + queue, 900 + queue if self.threaded else None
            )
            for queue in range(self.combined)
        }

    def features(self, interface: str) -> dict[str, bool]:
        """Return the switches."""
        self.index(interface)
        return dict(self.offloads)

    def set_feature(self, interface: str, name: str, enabled: bool) -> None:
        """Switch, and forget all rules where they are switched off, as i40e_set_ntuple() does."""
        self.index(interface)
        if self.refusing_changes:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        with self._effect() as happens:
            if happens:
                self.offloads[name] = enabled
                if not enabled:
                    self.rules.clear()

    def program(self, name: str) -> Optional[Path]:
        """Have ethtool alone."""
        return Path("/usr/sbin/ethtool") if name == "ethtool" else None

    def write_text(self, path: str, text: str) -> None:
        """Write, or fail as the test wants it; the kernel manages what is among ``managed``."""
        if path in self.managed:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        with self._effect() as happens:
            if happens:
                Host.write_text(self, path, text)

    @contextmanager
    def _effect(self) -> Iterator[bool]:
        self.failing = {number - 1: happens for number, happens in self.failing.items()}
        happens = self.failing.pop(0, None)
        yield happens is not False
        if happens is not None:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    def run(self, *command: str, stdin: str = "") -> Done:  # noqa: ARG002 - Host's signature
        """Be ethtool."""
        program, option, interface, *words = command
        if program != "ethtool":
            raise OSError(errno.ENOPKG, f"{program} is not installed")
        if interface != "eth3":
            return Done(1, "", "netlink error: No such device")
        if option in self.refusing:
            return Done(1, "", "netlink error: Operation not supported")
        if option in ("-l", "-g", "-c", "-a", "-x", "-n"):
            return Done(0, self._show(option, words), "")
        if self.refusing_changes:
            return Done(1, "", self.refusing_changes)
        self.requests.append(" ".join([option, *words]))
        with self._effect() as happens:
            if option in self.silent or not happens:
                return Done(0, "", "")
            return self._change(option, words)

    # --- showing -------------------------------------------------------------------------------

    def _show(self, option: str, words: list[str]) -> str:
        if words[:1] == ["rx-flow-hash"]:
            return "\n".join(FIELDS[letter] for letter in self.hash[words[1]])
        return {
            "-l": f"Current hardware settings:\nRX:\t\tn/a\nCombined:\t{self.combined}\n",
            "-g": f"Current hardware settings:\nRX:\t{self.rings['rx']}\nTX:\t{self.rings['tx']}\n",
            "-c": f"Adaptive RX: {_on(self.adaptive)}  TX: n/a\n"
            + "".join(f"{key}:\t{value}\n" for key, value in self.coalesce.items()),
            "-a": "Autonegotiate:\t{autoneg}\nRX:\t{rx}\nTX:\t{tx}\n".format(
                **{key: _on(value) for key, value in self.pause.items()}
            ),
            "-x": self._table(),
            "-n": f"{self.combined} RX rings available\nTotal {len(self.rules)} rules\n\n"
            + "".join(
                UDP4_RULE.format(location=location, port=port, queue=queue)
                for location, (port, queue) in self.rules.items()
            ),
        }[option]

    def _table(self) -> str:
        head = f"RX flow hash indirection table for eth3 with {self.combined} RX ring(s):\n"
        rows = [self.table[start : start + 8] for start in range(0, TABLE_SIZE, 8)]
        return head + "".join(
            f"{8 * k:5}:" + "".join(f"{queue:6}" for queue in row) + "\n"
            for k, row in enumerate(rows)
        )

    # --- changing ------------------------------------------------------------------------------

    def _change(self, option: str, words: list[str]) -> Done:
        if option == "-N":
            return self._steer(words)
        if option == "-X":
            self.table = table_of(" ".join(words), self.combined, TABLE_SIZE)
            self.configured = words != ["default"]
            return Done(0, "", "")
        values = {key: _number(value) for key, value in zip(words[::2], words[1::2])}
        if option == "-L":
            return self._channels(values["combined"])
        if option == "-G":
            self.rings.update({key: -(-value // 8) * 8 for key, value in values.items()})
        elif option == "-A":
            self.pause.update(values)
        else:
            return self._coalesce(values)
        return Done(0, "", "")

    def _coalesce(self, values: dict[str, int]) -> Done:
        """Take no other time of RX with adaptive on, as i40e_set_coalesce() does."""
        adaptive = values.pop("adaptive-rx", self.adaptive)
        now_usecs = self.coalesce["rx-usecs"]
        if adaptive and values.get("rx-usecs", now_usecs) != now_usecs:
            return Done(1, "", "netlink error: Invalid argument")
        self.adaptive = adaptive
        self.coalesce.update({key: value // 2 * 2 + 1 for key, value in values.items()})
        return Done(0, "", "")

    def _channels(self, combined: int) -> Done:
        if self.configured and max(self.table) >= combined:
            return Done(1, "", "netlink error: requested channel counts are too low for existing")
        for folder in (self.root / "sys/class/net/eth3/queues").iterdir():
            shutil.rmtree(folder)
        for queue in range(combined):  # all that hung on queues is forgotten
            self._queue(queue)
        self.combined = combined
        self.table = table_of("default", combined, TABLE_SIZE)
        self.first_irq = 90 - self.first_irq
        self._interrupts()
        return Done(0, "", "")

    def _steer(self, words: list[str]) -> Done:
        if words[0] == "rx-flow-hash":
            self.hash[words[1]] = words[2]
            return Done(0, "", "")
        if words[0] == "delete":
            del self.rules[int(words[1])]
            return Done(0, "", "")
        location = 1023 - len(self.rules)
        self.rules[location] = (int(words[3]), int(words[5]))
        return Done(0, f"Added rule with ID {location}\n", "")

    def state(self) -> dict[str, Any]:
        """Return everything that a setting could have left behind."""
        files = {
            path.relative_to(self.root): path.read_text().strip()
            for path in self.root.rglob("*")
            if path.is_file() and "irq" not in path.parts
        }
        cpus = {name: self.read_text(path) for name, path in affinity_files(self, "eth3").items()}
        values = {key: value for key, value in vars(self).items() if key[0] != "_"}
        for key in ("root", "requests", "failing", "configured", "first_irq", "ssh"):
            del values[key]
        return {**{str(path): text for path, text in files.items()}, **cpus, **repr_of(values)}


def _qdisc(parent: int, kind: str, handle: int, number: int) -> bytes:
    """Return a qdisc from tcm_handle on; attribute 6 is fq_codel's quantum."""
    name = genetlink.attribute(1, kind.encode() + b"\0")
    options = genetlink.attribute(2, genetlink.number(6, number) if number else b"")
    return struct.pack("=III", handle, parent, 2) + name + options


def repr_of(values: dict[str, Any]) -> dict[str, str]:
    """Return values frozen, so that a later change does not reach them."""
    return {key: repr(value) for key, value in values.items()}


def _on(value: int) -> str:
    return "on" if value else "off"


def _number(text: str) -> int:
    return {"on": 1, "off": 0}[text] if text in ("on", "off") else int(text)
