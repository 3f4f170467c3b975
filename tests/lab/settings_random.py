"""Random settings in random order with failures at random points, inside a namespace of the test.

Runs in the process that ``settings_fixture`` starts there; a round that leaves a trace is returned.
"""

from __future__ import annotations

import difflib
import errno
import os
import random
from typing import Any

from settings_fixture import COUNTED, QUEUE_FILES, shell

from udpbench.agent.host.system import Done, Host
from udpbench.agent.settings.engine import Engine
from udpbench.agent.settings.journal import Journal
from udpbench.errors import RestoreError, SettingRefused
from udpbench.model.host import Setting

LIGHT_STATE = f"""
ip -d link; ip address; ip route show table all; ip -6 route show table all
ip neighbour show nud permanent; tc qdisc; ethtool -l receive0; ethtool -k receive0
iptables-save | grep -v '^#'; ip6tables-save | grep -v '^#'; nft list ruleset
grep . {QUEUE_FILES} /sys/class/net/*/gro_flush_timeout
sysctl net.ipv4.ip_local_port_range net.ipv4.conf.receive0
"""
POOL = (
    ("mtu", "receive0", (1400, 2000, 9000)),
    ("txqueuelen", "receive0", (500, 77)),
    ("channels", "receive0", (1, 2, 3, {"rx": 2})),
    ("feature", "receive0/rx-gro", (True,)),
    ("feature", "receive0/tx-udp-segmentation", (False,)),
    ("device", "receive0/gro_flush_timeout", (200_000,)),
    ("device", "receive0/threaded", (1,)),
    ("rps", "receive0/rx-0", ([0], [])),
    ("rps", "receive0/rx-3", ([0],)),
    ("rfs", "receive0/rx-0", (4096, 100)),
    ("xps", "receive0/tx-1", ([0],)),
    ("address", "receive0/192.168.254.1/24", (True,)),
    ("address", "receive0/fd00::1/64", (True,)),
    ("route", "receive0/10.77.0.0/16", ("link", "192.168.254.30")),
    ("neighbour", "receive0/192.168.254.30", ("02:00:00:00:00:0a",)),
    ("firewall", "ipv4/input/accept/udp/4321", (True,)),
    ("firewall", "ipv4/prerouting/notrack/udp/4321", (True,)),
    ("firewall", "ipv6/input/drop/udp/4321", (True,)),
    ("qdisc", "receive0", ({"pfifo": {"limit_packets": 10}},)),
    ("sysctl", "net.ipv4.conf.receive0.rp_filter", (2,)),
    ("sysctl", "net.ipv4.ip_local_port_range", ("20000 30000",)),
)


class FailingHost(Host):
    """The real host, on which the effects of these numbers fail, before or after they happened."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: dict[int, bool] = {}
        """Number of an effect, counted from here → whether it happens all the same."""

    def _effect(self, do: Any) -> Any:
        self.failing = {number - 1: happens for number, happens in self.failing.items()}
        happens = self.failing.pop(0, None)
        result = do() if happens is not False else None
        if happens is not None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return result

    def write_text(self, path: str, text: str) -> None:
        """Write, or fail."""
        self._effect(lambda: Host.write_text(self, path, text))

    def run(self, *command: str, stdin: str = "") -> Done:
        """Run, or fail."""
        done: Done = self._effect(lambda: Host.run(self, *command, stdin=stdin))
        return done

    def rtnl(self, noun: str, verb: str, **fields: Any) -> list[Any]:
        """Ask or change, or fail."""
        messages: list[Any] = self._effect(lambda: Host.rtnl(self, noun, verb, **fields))
        return messages

    def set_feature(self, interface: str, name: str, enabled: bool) -> None:
        """Set, or fail."""
        self._effect(lambda: Host.set_feature(self, interface, name, enabled))


def rounds_that_left_a_trace(seed: int, rounds: int) -> list[str]:
    """Return what went wrong, round by round; nothing where every state was restored."""
    chance = random.Random(seed)
    host = FailingHost()
    before = COUNTED.sub("", shell(LIGHT_STATE))
    traces = []
    for number in range(rounds):
        batches = _batches(chance)
        journal = Journal(host, f"round{number}")
        points = {
            chance.randrange(1, 120): chance.random() < 0.5 for _ in range(chance.choice((0, 1, 2)))
        }
        _round(host, Engine(host, journal, ["namespace"]), batches, points)
        after = COUNTED.sub("", shell(LIGHT_STATE))
        if after != before or journal.path.exists():
            differ = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0)
            traces.append(f"round {number}: {batches} failing at {points}: {list(differ)}")
            before = after
    return traces


def _batches(chance: random.Random) -> list[list[Setting]]:
    """Return one or two lists to apply, one after the other."""
    lists = []
    for _ in range(chance.choice((1, 2))):
        picked = chance.sample(POOL, chance.randrange(1, 8))
        lists.append(
            [
                Setting(kind, target, chance.choice(values), optional=chance.random() < 0.5)
                for kind, target, values in picked
            ]
        )
    return lists


def _round(
    host: FailingHost, engine: Engine, batches: list[list[Setting]], points: dict[int, bool]
) -> None:
    host.failing = dict(points)
    for settings in batches:
        try:
            engine.apply(settings)
        except (SettingRefused, RestoreError):
            continue
    host.failing = {}
    engine.restore(force=True)
