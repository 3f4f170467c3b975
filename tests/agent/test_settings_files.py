"""The kinds that are files, on a host that is a folder; and the words for what failed."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from golden import Golden
from settings_world import fake_host

from udpbench.agent.host.reading import Done
from udpbench.agent.host.system import Host, NapiInstance
from udpbench.agent.settings import iptables, refusal, sysctl
from udpbench.agent.settings.engine import Engine
from udpbench.agent.settings.handlers import KINDS
from udpbench.agent.settings.journal import Journal
from udpbench.agent.settings.rules import parse
from udpbench.errors import RestoreError, SettingRefused
from udpbench.model.host import Setting
from udpbench.model.limits import sysctl_refusal
from udpbench.setting_kinds import SETTING_KINDS, TRAITS


class Threaded(Host):
    """A host on which NAPI threads poll send0, and no other interface."""

    def queue_napis(self, interface: str, way: str = "rx") -> dict[int, NapiInstance]:  # noqa: ARG002 - Host's signature
        """Return two, with their pids."""
        if interface != "send0":
            return {}
        return {queue: NapiInstance(8 + queue, None, 812 + queue) for queue in range(2)}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host that is a folder."""
    return fake_host(tmp_path)


@pytest.mark.parametrize(
    ("kind", "target", "before", "value", "written"),
    [
        ("sysctl", "net.core.rmem_max", 212992, 4194304, "4194304"),
        ("sysctl", "net.ipv4.udp_mem", "100 200 300", "1 2 3", "1 2 3"),
        ("sysctl", "net/ipv4/conf/eth0.100/rp_filter", 0, 2, "2"),
        ("device", "send0/threaded", 0, 1, "1"),
        ("xps", "send0/tx-0", [], [0, 33], "2,00000001"),
        ("rps", "send0/rx-0", [0, 1, 2, 3, 32], [1], "2"),
        ("rps_default", "queues", [1], [0, 33], "2,00000001"),
    ],
)
def test_a_file_is_read_written_and_restored(
    host: Host, kind: str, target: str, before: Any, value: Any, written: str
) -> None:
    """The file holds what the kernel wants to read, and afterwards what it held before."""
    engine = Engine(host, Journal(host, "run"), ["namespace"])
    files = {path: path.read_text() for path in host.root.rglob("*") if path.is_file()}
    (change,) = engine.apply([Setting(kind, target, value)])
    assert (before, value) == (change.before, change.after)
    changed = [path.read_text().strip() for path, text in files.items() if path.read_text() != text]
    assert [written] == changed
    (undone,) = engine.restore()
    assert (value, before) == (undone.before, undone.after)
    assert before == KINDS[kind].read(host, target)


@pytest.mark.parametrize("name", ["kernel.core_pattern", "kernel/modprobe", "fs.suid_dumpable"])
def test_a_parameter_outside_the_list_is_refused(host: Host, name: str, golden: Golden) -> None:
    """By the agent itself, whatever its controller is told: some name a program that root runs."""
    path = host.root / "proc/sys" / name.replace(".", "/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("core\n")
    engine = Engine(host, Journal(host, "run"), ["namespace"])
    setting = Setting("sysctl", name, "|/tmp/x")
    with golden.raises(SettingRefused):
        engine.apply([setting])
    (planned,) = engine.plan([setting])
    assert "it must not be set here" in (planned.refusal or "")
    assert "core\n" == path.read_text()


def test_a_kernel_without_ipv6_has_it_disabled(host: Host) -> None:
    """As after ``ipv6.disable=1``: nothing is refused and nothing written; it cannot be enabled."""
    name = "net/ipv6/conf/receive0/disable_ipv6"
    engine = Engine(host, Journal(host, "run"), ["namespace"])
    (change,) = engine.apply([Setting("sysctl", name, 1, optional=True)])
    assert (1, 1, None) == (change.before, change.after, change.refusal)
    engine.restore()
    (enabled,) = engine.apply([Setting("sysctl", name, 0, optional=True)])
    assert "no such parameter" in (enabled.refusal or "")
    assert not (host.root / "proc/sys/net/ipv6").exists()


def test_what_is_written_along_may_be_set() -> None:
    """Each parameter that writes others, and these, are on the list."""
    names = {*sysctl.ALONG, *(parameter for along in sysctl.ALONG.values() for parameter in along)}
    assert set() == {name for name in names if sysctl_refusal(name) is not None}


def test_a_congestion_control_that_everybody_may_use_by_then_is_taken_back(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel allows users whatever was the machine's own choice once."""
    chosen, allowed = (
        host.root / f"proc/sys/net/ipv4/tcp_{name}congestion_control" for name in ("", "allowed_")
    )
    chosen.write_text("cubic\n")
    allowed.write_text("reno cubic\n")
    plain = host.write_text

    def write_text(path: str, text: str) -> None:
        plain(path, text)
        if path.endswith("/tcp_congestion_control"):
            allowed.write_text(f"{allowed.read_text().strip()} {text}")

    monkeypatch.setattr(host, "write_text", write_text)
    engine = Engine(host, Journal(host, "run"), ["namespace"])
    engine.apply([Setting("sysctl", "net.ipv4.tcp_congestion_control", "bbr")])
    assert ("bbr\n", "reno cubic bbr\n") == (chosen.read_text(), allowed.read_text())
    engine.restore()
    assert ("cubic\n", "reno cubic\n") == (chosen.read_text(), allowed.read_text())


def test_a_parameter_outside_the_list_is_put_back(host: Host) -> None:
    """A journal may be of a version that set it."""
    path = host.root / "proc/sys/kernel/pid_max"
    path.write_text("100\n")
    journal = Journal(host, "run")
    journal.applied(journal.begin(Setting("sysctl", "kernel.pid_max", 100), 99, None), 100)
    Engine(host, journal, ["namespace"]).restore()
    assert "99\n" == path.read_text()


def paired(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one of vm.dirty_bytes and vm.dirty_ratio clear the other, and refuse to be cleared."""
    names = ["/proc/sys/vm/dirty_bytes", "/proc/sys/vm/dirty_ratio"]
    plain = host.write_text

    def write_text(path: str, text: str) -> None:
        if text == "0\n":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        plain(path, text)
        plain(names[path == names[0]], "0\n")

    monkeypatch.setattr(host, "write_text", write_text)


def test_a_parameter_is_put_back_by_the_other_one_of_its_pair(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes no 0 for vm.dirty_bytes: its ratio does that."""
    paired(host, monkeypatch)
    engine = Engine(host, Journal(host, "run"), ["namespace"])
    (change,) = engine.apply([Setting("sysctl", "vm.dirty_bytes", 8192)])
    before, after = [{"vm/dirty_bytes": b, "vm/dirty_ratio": r} for b, r in ((0, 20), (8192, 0))]
    assert (before, after) == (change.before, change.after)
    engine.restore()
    assert before == KINDS["sysctl"].read(host, "vm.dirty_bytes")


def test_a_parameter_that_cannot_be_put_back_is_reported(
    host: Host, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Neither by itself nor by the other one of its pair."""
    engine = Engine(host, Journal(host, "run"), ["namespace"])
    engine.apply([Setting("sysctl", "vm.dirty_bytes", 8192)])

    def write_text(path: str, text: str) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(host, "write_text", write_text)
    with golden.raises(RestoreError):
        engine.restore()


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("sysctl", "net..rmem_max"),
        ("sysctl", "net/../../etc/passwd"),
        ("sysctl", "net.core/rmem_max"),
        ("sysctl", "net.core.no_such"),
        ("device", "send0/uevent"),
        ("device", "../threaded"),
        ("device", "absent0/threaded"),
        ("rps", "send0/tx-0/x"),
        ("rps", "../rx-0"),
        ("rps_default", "send0"),
        ("xps", "send0/tx-7"),
    ],
)
def test_a_target_that_is_none_is_refused(
    host: Host, kind: str, target: str, golden: Golden
) -> None:
    """Nothing outside the kind's own files can be named, and what is absent is not created."""
    engine = Engine(host, Journal(host, "run"), ["namespace"])
    with golden.raises(SettingRefused):
        engine.apply([Setting(kind, target, [0])])


def test_a_file_that_is_absent_is_not_created(host: Host) -> None:
    """Writing wants the file to be there, as in /proc."""
    with pytest.raises(FileNotFoundError):
        host.write_text("/proc/sys/net/core/no_such", "1")


@pytest.mark.parametrize(
    ("kind", "target", "value", "command"),
    [
        ("link", "receive0", None, "ip link del receive0"),
        ("bridge", "bridge0", None, "ip link del bridge0"),
        ("port", "port1", None, "ip link set port1 nomaster"),
        ("vxlan", "vxlan0", None, "ip link del vxlan0"),
        ("wireguard", "wg0", None, "ip link del wg0"),
        (
            "tunnel_counts",
            "wg0",
            None,
            (
                "nft delete table inet udpbench_sent_data; "
                "nft delete table inet udpbench_came_data; nft delete table inet udpbench_inner"
            ),
        ),
        ("astray", "vxlan0/02:00:00:00:00:09", None, "bridge fdb del 02:00:00:00:00:09 dev vxlan0"),
        ("up", "send0", False, "ip link set send0 down"),
        ("mtu", "send0", 1500, "ip link set send0 mtu 1500"),
        ("txqueuelen", "send0", 1000, "ip link set send0 txqueuelen 1000"),
        ("address", "send0/10.0.0.1/24", None, "ip address del 10.0.0.1/24 dev send0"),
        ("neighbour", "send0/10.0.0.1", None, "ip neighbour del 10.0.0.1 dev send0"),
        (
            "neighbour",
            "send0/10.0.0.1",
            "02:00:00:00:00:01",
            "ip neighbour replace 10.0.0.1 lladdr 02:00:00:00:00:01 dev send0",
        ),
        ("qdisc", "send0", None, "tc qdisc del dev send0 root"),
        (
            "qdisc",
            "send0",
            {"pfifo": {"limit_packets": 9}},
            "tc qdisc replace dev send0 root pfifo limit 9",
        ),
        (
            "qdisc",
            "send0",
            {"tbf": {"rate_bps": 800, "burst_bytes": 2, "limit_bytes": 3}},
            "tc qdisc replace dev send0 root tbf rate 800bit burst 2 limit 3",
        ),
        (
            "qdisc",
            "send0",
            {"bfifo": {"limit_bytes": 9000}},
            "tc qdisc replace dev send0 root bfifo limit 9000",
        ),
        ("feature", "send0/rx-gro", False, "ethtool -K send0 rx-gro off"),
        ("device", "send0/threaded", 0, "echo 0 > /sys/class/net/send0/threaded"),
        (
            "napi_cpus",
            "send0",
            [[0, 1], [0, 1]],
            "taskset -cp 0,1 812; taskset -cp 0,1 813",
        ),
        ("napi_cpus", "send0", [[0], [1]], "taskset -cp 0 812; taskset -cp 1 813"),
        ("napi_cpus", "eth3", [[0]], "change napi_cpus eth3 back to rx-0=0"),
        (
            "napi_state",
            "send0",
            {
                "rx-0": {"threaded": 1},
                "rx-1": {"cpus": [1], "policy": os.SCHED_FIFO, "priority": 10, "nice": -5},
            },
            (
                'ynl --family netdev --do napi-set --json \'{"id": 8, "threaded": 1}\'; '
                "taskset -cp 1 813; chrt -f -p 10 813; renice -n -5 -p 813"
            ),
        ),
        (
            "napi_state",
            "eth3",
            {"rx-0": {"threaded": 1}},
            "change napi_state eth3 back to rx-0=threaded=1",
        ),
        ("rps", "send0/rx-0", [0], "echo 1 > /sys/class/net/send0/queues/rx-0/rps_cpus"),
        ("xps", "send0/tx-0", [], "echo 0 > /sys/class/net/send0/queues/tx-0/xps_cpus"),
        ("rfs", "send0/rx-0", 0, "echo 0 > /sys/class/net/send0/queues/rx-0/rps_flow_cnt"),
        ("route", "send0/10.1.0.0/16", None, "ip route del 10.1.0.0/16 dev send0 proto static"),
        ("route", "send0/10.1.0.0/16", "link", "ip route add 10.1.0.0/16 dev send0 proto static"),
        (
            "route",
            "send0/::/0",
            "fe80::1",
            "ip route add ::/0 via fe80::1 dev send0 proto static metric 1024",
        ),
        (
            "qdisc_tree",
            "send0",
            {"frame_bytes": 1514, "qdiscs": {"root": "noqueue"}},
            "tc qdisc replace dev send0 root pfifo; tc qdisc del dev send0 root",
        ),
        ("firewall_tables", "ipv6", {}, "see nft list ruleset ip6"),
        (
            "interface_state",
            "send0",
            {},
            "see ip -d link show send0; ip address show send0; sysctl -a",
        ),
        (
            "firewall",
            "ipv4/prerouting/notrack/udp/4321",
            None,
            (
                "iptables -t raw -D PREROUTING -p udp -m udp --dport 4321 -m comment "
                "--comment udpbench:ipv4/prerouting/notrack/udp/4321 -j CT --notrack"
            ),
        ),
        (
            "firewall",
            "ipv6/input/drop/udp/9",
            True,
            (
                "ip6tables -t filter -I INPUT 1 -p udp -m udp --dport 9 -m comment "
                "--comment udpbench:ipv6/input/drop/udp/9 -j DROP"
            ),
        ),
        ("xdp", "eth3", None, "ip link set eth3 xdp off"),
        ("tc_drop", "eth3", None, "tc qdisc del dev eth3 clsact"),
        ("trap", "eth3", None, "tc qdisc del dev eth3 root"),
        ("rings", "eth3", {"rx": 256, "tx": 256}, "ethtool -G eth3 rx 256 tx 256"),
        (
            "coalesce",
            "eth3",
            {"adaptive-rx": 1, "rx-usecs": 3},
            "ethtool -C eth3 adaptive-rx off rx-usecs 3; ethtool -C eth3 adaptive-rx on",
        ),
        (
            "coalesce",
            "eth3",
            {"adaptive-rx": 0, "rx-usecs": 3},
            "ethtool -C eth3 adaptive-rx off rx-usecs 3",
        ),
        ("pause", "eth3", {"autoneg": 1, "rx": 0}, "ethtool -A eth3 autoneg on rx off"),
        ("flow_hash", "eth3/udp4", "sd", "ethtool -N eth3 rx-flow-hash udp4 sd"),
        ("indirection", "eth3", {"rings": 2, "table": [0, 1, 0, 1]}, "ethtool -X eth3 default"),
        (
            "indirection",
            "eth3",
            {"rings": 3, "table": [2, 0, 1, 0]},
            "change indirection eth3 back to queues 2,0-1,0 ×1",
        ),
        (
            "ntuple",
            "eth3/udp4/4321",
            None,
            "ethtool -n eth3, then ethtool -N eth3 delete NUMBER of udp4/4321",
        ),
        (
            "ntuple",
            "eth3/udp4/4321",
            2,
            "ethtool -N eth3 flow-type udp4 dst-port 4321 action 2",
        ),
        (
            "channels",
            "eth3",
            {
                "combined": 8,
                "queues": {"rx-0/rps_cpus": "00,00", "tx-0/xps_cpus": "3"},
                "indirection": {"rings": 8, "table": [0, 0, 0, 1]},
            },
            (
                "ethtool -L eth3 combined 8; ethtool -X eth3 weight 3 1; "
                "echo 3 > /sys/class/net/eth3/queues/tx-0/xps_cpus"
            ),
        ),
        ("channels", "eth3", {"rx": 2, "tx": 2}, "ethtool -L eth3 rx 2 tx 2"),
        (
            "channels",
            "eth3",
            {
                "combined": 2,
                "interrupts": {"eth3-TxRx-0": "0-7", "comp1@pci": "3"},
            },
            (
                "ethtool -L eth3 combined 2; "
                "echo 0-7 > /proc/irq/"
                "$(grep -lxF eth3-TxRx-0 /sys/kernel/irq/*/actions | cut -d/ -f5)/smp_affinity_list; "
                "echo 3 > /proc/irq/"
                "$(grep -lxF comp1@pci /sys/kernel/irq/*/actions | cut -d/ -f5)/smp_affinity_list"
            ),
        ),
        ("channels", "eth3", {"combined": 2}, "ethtool -L eth3 combined 2"),
        ("irqbalance", "irqbalance", True, "pkill -CONT -u 0 -x irqbalance"),
        (
            "governor",
            "cpus",
            {"policy0": "powersave"},
            "echo powersave > /sys/devices/system/cpu/cpufreq/policy0/scaling_governor",
        ),
        (
            "governor",
            "cpus",
            {"policy0": "powersave", "policy0/energy_performance_preference": "power"},
            (
                "echo powersave > /sys/devices/system/cpu/cpufreq/policy0/scaling_governor; "
                "echo power > /sys/devices/system/cpu/cpufreq/policy0/energy_performance_preference"
            ),
        ),
        (
            "irq",
            "eth3/rx-0",
            [0, 2],
            (
                "see the number of eth3's rx-0 in /proc/interrupts, "
                "then echo 0,2 > /proc/irq/NUMBER/smp_affinity_list"
            ),
        ),
        ("rps_default", "queues", [0], "echo 1 > /proc/sys/net/core/rps_default_mask"),
        (
            "turbo",
            "cpus",
            True,
            (
                "cd /sys/devices/system/cpu; "
                "if [ -e intel_pstate/no_turbo ]; then echo 0 > intel_pstate/no_turbo; "
                "else echo 1 > cpufreq/boost; fi"
            ),
        ),
        ("nat", "send0/udp", {}, "nft delete table inet udpbench_nat"),
        ("passed_rules", "input/9", {}, "nft delete table inet udpbench_passed"),
        ("path_guard", "send0", {}, "nft delete table inet udpbench_path"),
        ("published", "docker0", {}, "nft delete table inet udpbench_published"),
        ("cpu_latency", "cpus", None, "change cpu_latency cpus back to none"),
        ("explain", "drops", None, "change explain drops back to none"),
        ("unclaimed", "eth3/10.0.0.1", {}, "change unclaimed eth3/10.0.0.1 back to none"),
        ("sysctl", "net.core.rmem_max", 1, "sysctl -w net.core.rmem_max=1"),
        ("sysctl", "net.ipv4.udp_mem", "1 2 3", "sysctl -w 'net.ipv4.udp_mem=1 2 3'"),
        (
            "sysctl",
            "vm.dirty_bytes",
            {"vm/dirty_bytes": 0, "vm/dirty_ratio": 20},
            "sysctl -w vm/dirty_bytes=0 vm/dirty_ratio=20",
        ),
    ],
)
def test_every_kind_can_be_restored_by_hand(
    kind: str, target: str, value: Any, command: str
) -> None:
    """The command is one that an administrator can paste."""
    assert command == refusal.by_hand(Threaded(), Setting(kind, target, None), value)


def test_what_is_pasted_by_hand_is_quoted() -> None:
    """An interface, or a text that was read there, may be named like a command of a shell."""
    marks = test_every_kind_can_be_restored_by_hand.pytestmark  # type: ignore[attr-defined]
    unquoted = []
    for kind, target, value, _ in marks[0].args[1]:
        odd = refusal.by_hand(
            Threaded(),
            Setting(kind, target.replace("send0", "$(x)").replace("eth3", "$(x)"), None),
            json.loads(
                json.dumps(value).replace('"powersave"', '"$(x)"').replace('"0-7"', '"$(x)"')
            ),
        )
        if "$(x)" in re.sub(r"'[^']*'", "", odd) and not re.match("change|see", odd):
            unquoted.append(odd)
    assert [] == unquoted


def test_every_kind_has_a_command_by_hand() -> None:
    """A new kind needs its command above."""
    marks = test_every_kind_can_be_restored_by_hand.pytestmark  # type: ignore[attr-defined]
    assert set(KINDS) == {case[0] for case in marks[0].args[1]}


class WithoutNfTables(Host):
    """A kernel that has none."""

    def firewall_tables(self, family: str) -> list[Any]:
        """Fail as nfnetlink does."""
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), family)


def test_a_kernel_without_nf_tables_has_none_to_remove() -> None:
    """Rules of the legacy iptables are made and deleted all the same."""
    kind = KINDS["firewall_tables"]
    assert kind.read(WithoutNfTables(), "ipv4") is None
    assert kind.same(None, {"ip filter": {"uses": 0, "chains": {}}})


def test_every_kind_is_in_the_leaf_and_every_row_of_it_has_a_kind() -> None:
    """What the controller and the docs read is what the agent can do."""
    assert set(SETTING_KINDS) == set(KINDS)
    assert set(TRAITS) == {trait for kind in SETTING_KINDS.values() for trait in kind.traits}


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("rps", PermissionError(errno.EPERM, "no"), "the kernel says: no; without root, link"),
        ("mtu", PermissionError(errno.EACCES, "no"), "the kernel says: no; run as root"),
        (
            "cpu_latency",
            FileNotFoundError(errno.ENOENT, "no file"),
            "the kernel says: no file; this kernel has no /dev/cpu_dma_latency; omit it",
        ),
        ("mtu", OSError(errno.EINVAL, "bad"), "the kernel says: bad"),
        ("mtu", OSError("odd"), "the kernel says: odd"),
        ("link", KeyError("mac"), "the value lacks 'mac'"),
        ("mtu", ValueError("odd"), "odd"),
    ],
)
def test_a_refusal_is_explained(kind: str, error: Exception, words: str) -> None:
    """The kernel's text comes first, then what would do instead where that is known."""
    assert refusal.why(Setting(kind, "x", 1), error).startswith(words)


def test_only_a_missing_thing_is_gone() -> None:
    """A device or a thread that is no longer there needs no restoring; a refusal does."""
    gone = [refusal.is_gone(OSError(code, os.strerror(code))) for code in range(1, 30)]
    assert [errno.ENOENT, errno.ESRCH, errno.ENODEV] == [
        k for k, is_gone in enumerate(gone, 1) if is_gone
    ]
    assert not refusal.is_gone(ValueError("x"))


@pytest.mark.parametrize(
    ("kind", "target", "apart"),
    [
        ("sysctl", "net.core.rmem_max", True),
        ("sysctl", "net/ipv4/udp_mem", True),
        ("sysctl", "net.core.rps_default_mask", False),
        ("sysctl", "net.ipv4.conf.all.forwarding", False),
        ("rps", "receive0/rx-0", True),
        ("rps_default", "queues", False),
        ("explain", "drops", True),
        ("mtu", "send0", False),
    ],
)
def test_a_setting_is_apart_if_no_other_depends_on_it(kind: str, target: str, apart: bool) -> None:
    """It is changed by itself; of others all that follows is undone and applied again."""
    assert apart == KINDS[kind].is_apart(target)


class Tableless(Host):
    """A host with a variant of iptables for which its kernel has no tables."""

    says = ""

    def run(self, *command: str, stdin: str = "") -> Done:  # noqa: ARG002 - Host's signature
        """List no rule, and refuse to add any."""
        return Done(0, "", "") if "-c" in command else Done(4, "", self.says)


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (
            "iptables v1.8.13 (legacy): can't initialize iptables table `filter': Table does not exist",
            "this kernel has no table filter for iptables; load its module",
        ),
        (
            "iptables v1.8.13 (nf_tables):  TABLE_ADD failed (Operation not supported): table filter",
            "this kernel has no table filter for iptables; load its module",
        ),
        ("iptables: Permission denied", "iptables: Permission denied"),
    ],
)
def test_a_kernel_without_tables_for_iptables_is_named(says: str, words: str) -> None:
    """Whatever the program says of modules, with what to do; another refusal is in its own words."""
    host = Tableless()
    host.says = says
    with pytest.raises(OSError, match=words):
        iptables.insert(host, parse("ipv4/input/drop/udp/64110"))
