"""What others do to a host of the built-in lab while it is measured, and what a trial says then."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from others_programs import OthersProgram
from test_readers import once_measured
from test_ways import conducted

from udpbench.agent.host.changes import CHANGED as COUNTED
from udpbench.analysis.checks.host_checks import CHANGED
from udpbench.analysis.judge import judge
from udpbench.analysis.ledger.ledger import lost_by_place
from udpbench.definition.losses import LOSS_PORTS
from udpbench.model.record import TrialRecord
from udpbench.model.result import Ledger, Progress

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

SENDER, RECEIVER = "192.168.254.30/32", "192.168.254.1/32"
KEYS = {"traffic": {"rate": "1kpps", "count": 500}, "duration": "2s"}


def inside(host: str, *commands: str) -> Callable[[dict[str, int]], None]:
    """Return what runs commands in the network namespace of a host's agent."""

    def act(pids: dict[str, int]) -> None:
        for command in commands:
            enter = ["nsenter", f"--target={pids[host]}", "--net", *command.split()]
            subprocess.run(enter, check=True, timeout=10)

    return act


def meanwhile(act: Callable[[dict[str, int]], None]) -> Callable[[Progress], None]:
    """Return a listener that acts between the first and the last reading of measured packets."""
    pids: dict[str, int] = {}

    def tell(progress: Progress) -> None:
        name, _, rest = progress.text.partition(": agent ")
        if progress.event == "host":
            pids[name] = int(rest.partition(" ")[0])
        if progress.event == "sample" and progress.text == "measured" and pids:
            act(pids)
            pids.clear()

    return tell


def ledger_of(record: TrialRecord) -> Ledger:
    """Return the ledger of a trial that has one."""
    ledger = judge(record).ledger
    assert ledger is not None, record.error
    return ledger


@pytest.mark.parametrize(
    ("host", "way", "stage"), [("sender", "out", "tx_policy"), ("receiver", "in", "rx_policy")]
)
def test_what_a_policy_of_ipsec_blocks_has_a_stage(
    tmp_path: Path, host: str, way: str, stage: str
) -> None:
    """Neither the firewall nor a filter of the application is blamed for it."""
    policy = f"ip xfrm policy add src {SENDER} dst {RECEIVER} dir {way} action block"
    (record,) = conducted(tmp_path / "run", KEYS, tell=once_measured(inside(host, policy)))
    ledger = ledger_of(record)
    lost = {entry.stage: entry.packets for entry in ledger.entries if entry.packets}
    assert ({stage: ledger.intended_packets}, 0) == (lost, ledger.unaccounted)
    assert ledger.intended_packets > 0


@contextmanager
def own_cgroup() -> Iterator[Path]:
    """Yield a cgroup for this process, and for all that it has started or starts meanwhile."""
    trees = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
    tree = next(tree for tree in trees if (tree / "cgroup.controllers").exists())
    _, _, path = next(
        row for row in Path("/proc/self/cgroup").read_text().splitlines() if row.startswith("0::")
    ).partition("::")
    before, group = tree / path.lstrip("/"), tree / f"udpbench-test-{os.getpid()}"
    group.mkdir()
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        (group / "cgroup.procs").write_text(str(process.pid))
    try:
        yield group
    finally:
        (before / "cgroup.procs").write_text(str(os.getpid()))
        for pid in map(int, (group / "cgroup.procs").read_text().split()):
            with suppress(ProcessLookupError):
                (before / "cgroup.procs").write_text(str(pid))
        group.rmdir()


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("host", "at", "first", "last"),
    [
        ("sender", "cgroup", "step warmup", "sample measured"),
        ("sender", "send0", "sample measured", "step verify"),
        ("receiver", "receive0", "step warmup", "sample measured"),
    ],
)
def test_programs_that_others_attach_meanwhile_strike_a_trial_out(
    tmp_path: Path, host: str, at: str, first: str, last: str
) -> None:
    """Although the kernel tells nobody, before the measured phase and in it."""
    pids: dict[str, int] = {}
    attached: list[OthersProgram] = []

    def tell(progress: Progress) -> None:
        name, _, rest = progress.text.partition(": agent ")
        if progress.event == "host":
            pids[name] = int(rest.partition(" ")[0])
        if f"{progress.event} {progress.text}" == first and not attached:
            attached.append(OthersProgram(pids[host], str(group) if at == "cgroup" else at))
        if f"{progress.event} {progress.text}" == last:
            attached[0].end()

    with own_cgroup() as group:
        (record,) = conducted(tmp_path / "run", KEYS, tell=tell)
    what = "BPF programs of tcx, or of its cgroup, were changed during the trial"
    there = [(each.severity, each.where) for each in judge(record).findings if each.what == what]
    both = ["receiver", "sender"] if at == "cgroup" else [host]
    assert ([("struck", each) for each in both], 1) == (there, len(attached)), record.error


STRANGE = """
import socket
stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
stranger.bind(("", 4321))
print("bound", flush=True)
input()
"""


def test_a_strangers_socket_at_the_port_makes_a_trial_invalid(tmp_path: Path) -> None:
    """It is named with its process, before and after the measured phase."""
    strangers: list[subprocess.Popen[str]] = []

    def bind(pids: dict[str, int]) -> None:
        command = [
            "nsenter",
            f"--target={pids['receiver']}",
            "--net",
            sys.executable,
            "-c",
            STRANGE,
        ]
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        strangers.append(subprocess.Popen(command, text=True, **pipes))
        assert strangers[0].stdout is not None
        assert "bound\n" == strangers[0].stdout.readline()

    try:
        keys = {**KEYS, "receive": {"sockets": "reuseport"}}
        (record,) = conducted(tmp_path / "run", keys, tell=once_measured(bind))
    finally:
        for stranger in strangers:
            stranger.communicate("\n", timeout=10)
    (at,) = record.phases[-1].strangers["receiver"]
    assert f" {strangers[0].pid} (user 0) at 0.0.0.0:4321" in at
    what = "another program's socket may have taken packets of the traffic"
    (finding,) = (each for each in judge(record).findings if each.what == what)
    assert ("invalid", "receiver") == (finding.severity, finding.where)
    assert (finding.value or "").startswith(at)


FULL = """
import socket
stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
stranger.bind(("", 9999))
for _ in range(100):
    stranger.sendto(b"full", ("192.168.254.1", 9999))
"""


def test_what_a_strangers_socket_drops_is_not_charged_to_the_reader(tmp_path: Path) -> None:
    """RcvbufErrors of the namespace are its, and the socket that lost nothing says so."""

    def fill(pids: dict[str, int]) -> None:
        enter = ["nsenter", f"--target={pids['receiver']}", "--net", "sh", "-c"]
        command = f"ip link set lo up; {sys.executable} -"
        subprocess.run([*enter, command], input=FULL, text=True, check=True, timeout=10)

    (record,) = conducted(tmp_path / "run", KEYS, tell=meanwhile(fill))
    entries = {entry.stage: entry for entry in ledger_of(record).entries}
    result, full = judge(record), entries["udp_rcvbuf"]
    assert (0, True, 0) == (result.unaccounted, result.valid, full.packets), result.findings
    assert 50 < full.others_packets < 100


def test_what_a_policy_without_keys_takes_has_a_stage(tmp_path: Path) -> None:
    """The kernel says of each packet that it was sent."""
    transport = "tmpl proto esp mode transport"
    policy = f"ip xfrm policy add src {SENDER} dst {RECEIVER} dir out {transport}"
    (record,) = conducted(tmp_path / "run", KEYS, tell=once_measured(inside("sender", policy)))
    ledger = ledger_of(record)
    assert {"tx_ipsec": ledger.intended_packets} == lost_by_place(ledger)
    assert (0, 0) == (ledger.unaccounted, ledger.received_packets)


LOSSES = tuple(stage for stage in LOSS_PORTS if stage != "rx_backlog")
"""That stage needs a pair without NAPI."""
CHANGES = (
    *("nft add table inet theirs", "nft delete table inet theirs"),
    *("ip route add 198.51.100.0/24 dev {0}", "ip route del 198.51.100.0/24 dev {0}"),
    *("ip addr add 198.51.100.1/32 dev {0}", "ip addr del 198.51.100.1/32 dev {0}"),
    *("ip link set {0} mtu 1400", "ip link set {0} mtu 1500"),
    *("tc qdisc add dev {0} ingress", "tc qdisc del dev {0} ingress"),
    "ip neigh add 192.168.254.77 lladdr 02:00:00:00:00:77 dev {0}",
    "ip neigh del 192.168.254.77 dev {0}",
    *("ip xfrm policy add src 198.51.100.9 dir in", "ip xfrm policy flush"),
)
"""Each put back at once; none concerns the traffic."""


def test_what_was_changed_meanwhile_is_reported_although_it_was_put_back(tmp_path: Path) -> None:
    """At the host where it was, and of each kind; counts hold, rates do not."""
    act = inside("receiver", *(command.format("receive0") for command in CHANGES))
    (record,) = conducted(tmp_path / "run", KEYS, tell=meanwhile(act))
    findings = judge(record).findings
    changed = [each for each in findings if each.what.endswith("during the measured phase")]
    expected = [text for name, text in CHANGED.items() if name != "unknown"]
    assert [f"{text} during the measured phase" for text in expected] == [
        each.what for each in changed
    ]
    assert {("struck", "receiver")} == {(each.severity, each.where) for each in changed}


def test_what_a_trial_does_itself_is_no_change(tmp_path: Path) -> None:
    """Programs of AF_XDP, packets lost on purpose, a worker that leaves, settings of each point."""
    variants = {
        "frames": {"receive": {"call": "af_xdp", "wait": "epoll"}, "send.call": "af_xdp"},
        "losses": {"losses": dict.fromkeys(LOSSES, 20), "explain": True},
        "fault": {"receive.fault": {"worker": 1, "after": "100ms", "does": "exit"}},
        "settings": {"settings.receiver.firewall": {"udp": 9, "drop": "input"}},
    }
    records = conducted(tmp_path / "run", {**KEYS, "variants": variants})
    assert ["done"] * 4 == [record.status for record in records], [r.error for r in records]
    for record in records:
        for phase in record.phases:
            for host in ("sender", "receiver"):
                before, after = (at[host].counters for at in (phase.before, phase.after))
                moved = {k: n - before[k] for k, n in after.items() if k.startswith("changed.")}
                assert dict.fromkeys(f"changed.{name}" for name in ("firewall", *COUNTED)) == {
                    name: None if count == 0 else count for name, count in moved.items()
                }, (record.trial.point, phase.name, host)


def test_rules_that_were_added_and_left_there_are_reported(tmp_path: Path) -> None:
    """Also if that was before the measured phase, of which its counters say nothing then."""
    act = inside(
        "receiver",
        "nft add table inet theirs",
        "nft add chain inet theirs in { type filter hook input priority 0; }",
        *("nft add rule inet theirs in udp dport 9 drop",) * 3,
    )
    (record,) = conducted(tmp_path / "run", KEYS, tell=once_measured(act))
    what = "the firewall was changed during the trial"
    changed = [(f.severity, f.where, f.value) for f in record.findings if f.what == what]
    assert [("struck", "receiver", "0 → 3 rules")] == changed
