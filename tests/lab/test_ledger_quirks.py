"""What the kernel counts otherwise than one would think, and the ledger has to know.

Each quirk is provoked in a trial of its own and read from its raw counters, so that a kernel that
mends one shows itself here and not as a ledger that does not close.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from udpbench.analysis.judge import judge
from udpbench.analysis.ledger.ledger import make_ledger
from udpbench.analysis.readings import Readings, readings_of
from udpbench.control.run import RunOptions, run
from udpbench.definition import losses
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.records.reader import read_run
from udpbench.records.run import RunHeader, now_utc
from udpbench.records.writer import RunWriter

pytestmark = pytest.mark.lab

LOST = 20
PACKETS = 200
"""With those that are lost fewer than a ring or a socket buffer holds, however long a CPU stands still."""
REASONS = {
    "tx_netfilter": "NETFILTER_DROP",
    "tx_qdisc": "QDISC_DROP",
    "rx_tc": "TC_INGRESS",
    "rx_ip": "IP_CSUM",
    "rx_netfilter": "NETFILTER_DROP",
    "udp_checksum": "UDP_CSUM",
    "udp_no_port": "NO_SOCKET",
    "udp_filter": "SOCKET_FILTER",
    "udp_rcvbuf": "SOCKET_RCVBUFF",
    "udp_memory": "PROTO_MEM",
}
"""Stage → why the kernel says it drops there."""
PACKET_BY_PACKET = ("rx_ip", "udp_checksum", "udp_filter", "udp_rcvbuf", "udp_memory")
"""Here a skb is one packet, also where messages have ten."""
QUIRKS: dict[str, Any] = {
    "question": "What does the kernel count?",
    "traffic": {"size": "32B", "rate": "1kpps", "count": PACKETS},
    "send": {"bucket": "200ms"},
    "duration": "5s",
    "warmup": "0s",
    "repetitions": 1,
    "variants": {
        "early": {"losses": {"udp_checksum": LOST}},
        "late": {"losses": {"udp_checksum": LOST}, "traffic.size": "200B"},
        "memory": {"losses": {"udp_memory": LOST}},
        "purged": {"losses": {"udp_purged": LOST}},
        "gso": {"send.gso": 50},
        "explained": {
            "explain": True,
            "send.gso": 10,
            "losses": dict.fromkeys(REASONS, LOST),
        },
        # A send blocks 50 ms, and a frame takes 97 ms to leave once the qdisc has passed its burst of
        # eight. About ten fit into the send buffer.
        "slow": {
            "traffic.count": 25,
            "traffic.size": "200B",
            "traffic.rate": "unlimited",
            "send.buffer": "4KiB",
            "settings.sender.qdisc": {
                "tbf": {"rate": "20kbps", "burst": "2000B", "limit": "64KiB"}
            },
            "duration": "20s",
        },
    },
}


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Readings]:
    """Return variant → the measured phase of its one trial, whose ledger closes."""
    return measured(tmp_path_factory.mktemp("quirks"), QUIRKS)


def measured(folder: Path, text: dict[str, Any]) -> dict[str, Readings]:
    """Return the same of an experiment."""
    experiment, lab = load_experiment_data(text, "quirks"), load_lab("local")
    header = RunHeader("test", now_utc(), (), 1, lab.name, lab.text, (experiment,))
    writer = RunWriter.create(folder, header)
    outcome = run([experiment], lab, writer, lambda _: None, RunOptions(seed=1))
    assert (0, None) == (outcome.exit_code, outcome.error)
    by_name = {}
    for record in read_run(folder).records:
        phase, result = readings_of(record), judge(record)
        assert phase is not None
        assert (0, True) == (result.unaccounted, result.valid), result.findings
        by_name[record.trial.point] = phase
    return by_name


def moved(trial: Readings, role: Any, *names: str) -> list[int | None]:
    """Return how far counters of a role's host moved."""
    return [trial.at(role).counter(name) for name in names]


def test_a_short_datagrams_checksum_is_verified_before_the_socket(
    trials: dict[str, Readings],
) -> None:
    """SNMP counts it, and no socket does."""
    names = ("snmp.Udp.InCsumErrors", "snmp.Udp.InErrors", "socket.*.drops")
    assert [LOST, LOST, 0] == moved(trials["early"], "receiver", *names)


def test_a_long_datagrams_checksum_is_verified_when_it_is_read(
    trials: dict[str, Readings],
) -> None:
    """It was queued, and the socket counts it among its drops, too."""
    names = ("snmp.Udp.InCsumErrors", "snmp.Udp.InErrors", "socket.*.drops")
    assert [LOST, LOST, LOST] == moved(trials["late"], "receiver", *names)


def test_what_exceeds_udps_memory_may_be_counted_at_the_socket_alone(
    trials: dict[str, Readings],
) -> None:
    """Linux 6.18 has no SNMP counter for it; kernels that have count it in both."""
    errors, memory, drops = moved(
        trials["memory"], "receiver", "snmp.Udp.InErrors", "snmp.Udp.MemErrors", "socket.*.drops"
    )
    assert LOST == drops
    assert (errors, memory) in ((0, 0), (LOST, LOST))


def test_a_closed_sockets_queue_is_counted_nowhere(trials: dict[str, Readings]) -> None:
    """It was delivered to UDP, and after that no counter knows of it."""
    trial = trials["purged"]
    names = ("snmp.Udp.InErrors", "snmp.Udp.NoPorts", "socket.*.drops")
    assert [0, 0, 0] == moved(trial, "receiver", *names)
    assert [PACKETS + LOST] == moved(trial, "receiver", "snmp.Ip.InDelivers")


def test_what_a_closed_socket_dropped_is_read_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where another program of the machine takes all memory meanwhile: no other counter has it."""
    monkeypatch.setitem(losses.MOMENTARY, "udp_purged", losses.MOMENTARY["udp_memory"])
    variants = {"variants": {"purged": QUIRKS["variants"]["purged"]}}
    ((_, trial),) = measured(tmp_path, {**QUIRKS, **variants}).items()
    entries = {entry.stage: entry.packets for entry in make_ledger(trial).entries}
    assert (LOST, 0) == (entries["udp_memory"], entries["udp_purged"])


def test_in_datagrams_counts_what_was_read_and_not_what_was_queued(
    trials: dict[str, Readings],
) -> None:
    """What nobody read is not among them."""
    assert [PACKETS] == moved(trials["purged"], "receiver", "snmp.Udp.InDatagrams")


def test_out_datagrams_counts_a_gso_message_once(trials: dict[str, Readings]) -> None:
    """50 packets are one call for the kernel's own statistics, and IP counts segments."""
    assert [PACKETS // 50] == moved(trials["gso"], "sender", "snmp.Udp.OutDatagrams")
    assert [PACKETS // 50, PACKETS] == moved(
        trials["gso"], "receiver", "snmp.Ip.InReceives", "netstat.IpExt.InNoECTPkts"
    )


def test_sndbuf_errors_count_calls_that_lost_nothing(trials: dict[str, Readings]) -> None:
    """A full send buffer makes a call wait or return EAGAIN; every packet arrived all the same."""
    trial = trials["slow"]
    (errors,) = moved(trial, "sender", "snmp.Udp.SndbufErrors")
    assert errors is not None
    assert errors > 0
    # Of sendmmsg the error of a later message is not returned: the call is a partial one.
    assert errors == trial.sender.count("eagain") + trial.sender.count("partial_calls")
    assert 25 == trial.receiver.count("received_packets")


def test_the_kernels_own_reasons_are_those_of_the_stages(trials: dict[str, Readings]) -> None:
    """As many skbs as were lost there, in the namespace in which they were lost."""
    entries = {entry.stage: entry for entry in make_ledger(trials["explained"]).entries}
    expected = {
        stage: {f"reason.{why}": LOST if stage in PACKET_BY_PACKET else LOST // 10}
        for stage, why in REASONS.items()
    }
    reasons = {
        stage: {name: n for name, n in entries[stage].also.items() if name.startswith("reason.")}
        for stage in REASONS
    }
    assert expected == reasons
    assert {LOST} == {entries[stage].packets for stage in REASONS}
