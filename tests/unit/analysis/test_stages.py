"""Stages of the receiver's way, and what a lost skb is in packets; moves as real kernels make them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import pytest

from analysis import build
from analysis.test_ledger import entries
from udpbench.analysis.judge import judge
from udpbench.analysis.ledger.ledger import make_ledger
from udpbench.analysis.ledger.stages import BEFORE_PROGRAM, STAGES
from udpbench.analysis.readings import readings_of
from udpbench.drivers import DRIVERS
from udpbench.model.experiment import Fault, Receive, Send, Traffic
from udpbench.model.record import TrialRecord
from udpbench.model.result import LedgerEntry

Moves = Mapping[str, Mapping[str, int]]


def right(**moves: int) -> Moves:
    """Return moves of the receiver's counters, ``__`` for a dot."""
    return {"right": {name.replace("__", "."): value for name, value in moves.items()}}


def two_of_hundred_dropped(packets: int) -> Moves:
    """Return moves of 100 skbs with some packets, of which the socket dropped two."""
    return right(
        snmp__Ip__InReceives=100,
        netstat__IpExt__InNoECTPkts=packets,
        snmp__Ip__InDelivers=100,
        snmp__Udp__InErrors=2,
        snmp__Udp__RcvbufErrors=2,
        socket__77__drops=2,
    )


MEMORY = "snmp.Udp.MemErrors"
RECEIVED = {"snmp.Ip.InReceives": 1000, "netstat.IpExt.InNoECTPkts": 1000}
RULE = "firewall.ipv4/input/drop/udp/4321"
STAGE_MOVES = [
    ("rx_xdp", {"ethtool.receive0.rx_queue_0_xdp_drops": 7}),
    ("rx_tc", {"qdisc.receive0.ingress.drops": 7}),
    ("rx_ip", {**RECEIVED, "snmp.Ip.InDelivers": 993, "snmp.Ip.InHdrErrors": 7}),
    ("rx_ip", {**RECEIVED, "snmp.Ip.InDelivers": 993, "snmp.Ip.InAddrErrors": 7}),
    ("rx_ip", {**RECEIVED, "snmp.Ip.InDelivers": 993, "netstat.TcpExt.IPReversePathFilter": 7}),
    ("rx_ip", {"link.receive0.rx_otherhost_dropped": 7}),
    ("rx_netfilter", {**RECEIVED, "snmp.Ip.InDelivers": 993, RULE: 7}),
    ("rx_policy", {"snmp.Udp.InErrors": 7, "socket.77.drops": 7, "xfrm.XfrmInPolBlock": 7}),
    ("rx_policy", {"snmp.Udp.InErrors": 7, "xfrm.XfrmInNoPols": 3, "xfrm.XfrmInTmplMismatch": 9}),
    ("udp_filter", {"snmp.Udp.InErrors": 7, "socket.77.drops": 7}),
    ("udp_filter", {"snmp.Udp.InErrors": 7}),
    ("udp_memory", {"socket.77.drops": 7}),
    ("udp_memory", {"snmp.Udp.InErrors": 7, "snmp.Udp.MemErrors": 7, "socket.77.drops": 7}),
]


@pytest.mark.parametrize(("stage", "moves"), STAGE_MOVES)
def test_a_counter_explains_its_stage(stage: str, moves: dict[str, int]) -> None:
    """Seven packets lost at one place are seven at that stage, and the ledger closes."""
    assert {stage: 7} == entries(build.lossy(1000, {"right": moves}, 7))


@pytest.mark.parametrize(("ours", "theirs"), [(0, 50), (30, 20)])
def test_what_a_strangers_socket_dropped_is_others_in_the_lab_too(ours: int, theirs: int) -> None:
    """A full buffer of ours is counted at our socket; a program's sockets are not all known."""
    full = right(
        snmp__Udp__InErrors=ours + theirs,
        snmp__Udp__RcvbufErrors=ours + theirs,
        socket__77__drops=ours,
    )
    record = build.lossy(1000, full, ours)
    assert {"udp_rcvbuf": ours} == {"udp_rcvbuf": 0, **entries(record)}
    assert theirs == entry(record, "udp_rcvbuf").others_packets
    program = build.trial(receive=Receive(command=("unbound",)))
    record = build.lossy(1000, full, ours + theirs, of=program)
    assert ours + theirs == entries(record)["udp_rcvbuf"]


def test_a_tunnels_own_queue_is_its_backlog() -> None:
    """Its drops are in its own counter, and neither in softnet_stat nor under a reason."""
    moves = right(
        link__receive0__rx_dropped=7, reason__CPU_BACKLOG=0, reason_portless__CPU_BACKLOG=0
    )
    tunnel = build.driven("vxlan", build.lossy(1000, moves, 7, built_in_lab=False))
    assert 7 == entry(tunnel, "rx_backlog").at_most
    card = build.driven("mlx5_core", build.lossy(1000, moves, 7, built_in_lab=False))
    assert 0 == entry(card, "rx_backlog").packets
    assert entry(card, "rx_backlog").at_most is None


FRAMES = build.trial(receive=Receive(call="af_xdp", wait="spin"))


def taken(received: int, beside: int = 0, **counts: int) -> TrialRecord:
    """Return a record of 1000 packets, of which AF_XDP took so many, and UDP saw none.

    ``beside`` are what the backlogs of neighbours refused meanwhile.
    """
    socket = build.receiver_counts(received, xsk_ring_packets=0, xsk_fill_packets=0)
    workers = (
        build.worker("sender", build.sender_counts(1000)),
        build.worker("receiver", {**socket, **counts}, socket_inodes=(), buffer_bytes=None),
    )
    lost = counts.get("xsk_ring_packets", 0) + counts.get("xsk_fill_packets", 0)
    moves = right(
        ethtool__receive0__rx_queue_0_xdp_packets=1000,
        ethtool__receive0__rx_queue_0_drops=lost,
        link__receive0__rx_dropped=lost,
        snmp__Udp__InDatagrams=0,
    )
    moves["machine"] = {"softnet.cpu0.dropped": beside}
    return build.record(1000, received, of=FRAMES, workers=workers, moves=moves)


def test_what_a_socket_of_frames_refused_is_what_it_says() -> None:
    """A full ring, no buffer, and what stayed in the ring; the device's drops are the same ones."""
    record = taken(977, xsk_ring_packets=12, xsk_fill_packets=4, purged_packets=7)
    expected = {"xsk_ring": 12, "xsk_fill": 4, "udp_checksum": None, "udp_purged": 7}
    assert expected == entries(record)
    ring = entry(record, "xsk_ring")
    assert {"ethtool.receive0.rx_queue_N_drops": 16} == ring.also
    assert {"right.receiver0": 12} == ring.parts
    assert () == tuple(f for f in judge(record).findings if f.severity != "note")


def test_what_a_socket_of_frames_refused_is_no_neighbours_backlog() -> None:
    """The device counts both in rx_dropped, and the machine what its other devices refused."""
    record = taken(984, 9, xsk_ring_packets=12, xsk_fill_packets=4)
    assert {"xsk_ring": 12, "xsk_fill": 4, "udp_checksum": None} == entries(record)
    assert 0 == entry(record, "rx_backlog").packets


DRIVERS_DROPS = [
    ("virtio_net", False, {"rx_queue_0_xdp_drops": 16 + 5, "rx_queue_0_drops": 16 + 5 + 3}),
    ("virtio_net", True, {"rx_queue_0_xdp_drops": 5, "rx_queue_0_drops": 16 + 5 + 3}),
    ("mlx5_core", False, {"rx_xdp_drop": 16 + 5, "rx_out_of_buffer": 3}),
    ("mlx5_core", True, {"rx_xdp_drop": 5, "rx_out_of_buffer": 3}),
]
"""Driver, whether it writes frames without a copy, and its drops: 16 frames that a socket refused,
5 that a program dropped and 3 for which there was no descriptor."""


@pytest.mark.parametrize(("driver", "zerocopy", "drops"), DRIVERS_DROPS)
def test_what_a_socket_of_frames_refused_is_no_other_stage_as_well(
    driver: str, zerocopy: bool, drops: dict[str, int]
) -> None:
    """Wherever the card counts it again."""
    record = taken(976, xsk_ring_packets=12, xsk_fill_packets=4)
    (measured,) = (phase for phase in record.phases if phase.name == "measured")
    sender, receiver = sorted(measured.stats, key=lambda stats: stats.role == "receiver")
    workers = (sender, replace(receiver, zerocopy=zerocopy))
    moves = {f"ethtool.receive0.{name}": count for name, count in drops.items()}
    moved = build.record(1000, 976, of=FRAMES, workers=workers, moves={"right": moves})
    packets = entries(build.driven(driver, moved))
    expected = {"xsk_ring": 12, "xsk_fill": 4, "rx_xdp": 5, "rx_ring": 3}
    assert expected == {name: packets[name] for name in expected}


def test_of_frames_nobody_verifies_the_checksum() -> None:
    """They are taken before UDP looks at it, so that 0 of its counter says nothing of them."""
    assert entry(taken(1000), "udp_checksum").packets is None
    assert 0 == entry(build.record(), "udp_checksum").packets


def test_a_socket_of_frames_that_said_nothing_hides_its_stages() -> None:
    """A worker that died had no time to ask the kernel."""
    record = build.record(of=FRAMES)
    assert (None, None) == (entry(record, "xsk_ring").packets, entry(record, "xsk_fill").packets)


def lacking(name: str, record: TrialRecord) -> TrialRecord:
    """Return the record of a kernel without a counter."""
    (phase,) = record.phases
    before = {
        host: build.replace(
            snapshot, counters={k: v for k, v in snapshot.counters.items() if k != name}
        )
        for host, snapshot in phase.before.items()
    }
    return build.replace(record, phases=(build.replace(phase, before=before),))


OTHER_HOST = "link.receive0.rx_otherhost_dropped"
IP_ERRORS = {**RECEIVED, "snmp.Ip.InDelivers": 993, "snmp.Ip.InHdrErrors": 7}
BEFORE_5_19: list[tuple[dict[str, int], int, dict[str, int | None]]] = [
    ({}, 0, {"rx_ip": None}),
    ({"snmp.Udp.NoPorts": 7}, 7, {"rx_ip": None, "udp_no_port": 7}),
    (IP_ERRORS, 7, {"rx_ip": 7}),
    (IP_ERRORS, 9, {"rx_ip": 7, "unaccounted": 2}),
    ({}, 7, {"rx_ip": None, "unaccounted": 7}),
]
"""Counters that moved, packets lost, and what the ledger says."""


@pytest.mark.parametrize(("moves", "lost", "expected"), BEFORE_5_19)
def test_frames_to_another_mac_that_nothing_counts_hide_their_stage(
    moves: dict[str, int], lost: int, expected: dict[str, int | None]
) -> None:
    """Before Linux 5.19; what is lost elsewhere closes the ledger as ever."""
    record = lacking(OTHER_HOST, build.lossy(1000, {"right": moves}, lost))
    assert expected == entries(record)
    assert ("unaccounted" not in expected) == (judge(record).valid)


def interval(record: TrialRecord, stage: str) -> tuple[int | None, int | None]:
    """Return the least and, of an interval, the most of a stage."""
    return entry(record, stage).packets, entry(record, stage).at_most


@pytest.mark.parametrize(("lost", "unaccounted"), [(7, 0), (9, 2), (0, -7)])
def test_filter_and_memory_that_are_counted_together_are_two_intervals(
    lost: int, unaccounted: int
) -> None:
    """Before Linux 5.11 seven errors are seven packets at one of the two, or at both."""
    errors = right(snmp__Udp__InErrors=7, socket__77__drops=7)
    record = lacking(MEMORY, build.lossy(1000, errors, lost))
    assert ((0, 7), (0, 7)) == (interval(record, "udp_filter"), interval(record, "udp_memory"))
    assert unaccounted == entries(record).get("unaccounted", 0)
    assert (unaccounted == 0) == judge(record).valid


def test_without_an_error_there_is_none_for_memory() -> None:
    """A full buffer and a bad checksum have counters of their own on every kernel."""
    full = right(snmp__Udp__InErrors=7, snmp__Udp__RcvbufErrors=7, socket__77__drops=7)
    assert {"udp_rcvbuf": 7} == entries(lacking(MEMORY, build.lossy(1000, full, 7)))
    assert {} == entries(lacking(MEMORY, build.record()))


def test_a_martian_is_counted_by_the_machine_alone() -> None:
    """No more of those are ours than are missing between the IP layer's two ends."""
    moves = {
        "right": {**RECEIVED, "snmp.Ip.InDelivers": 993},
        "machine": {"rt_cache.in_martian_src": 9},
    }
    assert {"rx_ip": 7} == entries(build.lossy(1000, moves, 7))


def test_a_neighbours_martian_is_not_taken_for_a_drop_of_the_firewall() -> None:
    """Rules that count decide; else both stages together have it, and nothing remains."""
    moves = {
        "right": {**RECEIVED, "snmp.Ip.InDelivers": 993, "rules.input.drops": 7},
        "machine": {"rt_cache.in_martian_src": 2},
    }
    assert {"rx_netfilter": 7} == entries(build.lossy(1000, moves, 7))
    unknown = lacking("rules.input.drops", build.lossy(1000, moves, 7))
    assert ((0, 2), (5, 7)) == (interval(unknown, "rx_ip"), interval(unknown, "rx_netfilter"))
    assert 0 == entries(unknown).get("unaccounted", 0)


@pytest.mark.parametrize(("size_bytes", "stage"), [(32, "udp_memory"), (200, "udp_checksum")])
def test_a_late_checksum_is_the_sockets_drop_as_well(size_bytes: int, stage: str) -> None:
    """Long datagrams are verified when they are read: then the socket counts them, too."""
    moves = right(snmp__Udp__InCsumErrors=7, snmp__Udp__InErrors=7, socket__77__drops=7)
    of = build.trial(traffic=Traffic(size_bytes=size_bytes))
    packets = entries(build.lossy(1000, moves, 7, of=of))
    assert 7 == packets["udp_checksum"]
    assert (stage == "udp_memory") == ("udp_memory" in packets)


def test_all_sockets_stages_at_once_are_told_apart() -> None:
    """Buffer, memory, filter and an early checksum, as the sockets and SNMP count them together."""
    moves = right(
        snmp__Udp__InErrors=5 + 3 + 2,
        snmp__Udp__RcvbufErrors=5,
        snmp__Udp__InCsumErrors=3,
        socket__77__drops=5 + 2 + 4,
    )
    expected = {"udp_checksum": 3, "udp_filter": 2, "udp_rcvbuf": 5, "udp_memory": 4}
    assert expected == entries(build.lossy(1000, moves, 14))


def test_ipv6_has_counters_of_its_own() -> None:
    """The same stages, read from snmp6."""
    moves = right(
        snmp6__Ip6InReceives=1000,
        snmp6__Ip6InNoECTPkts=1000,
        snmp6__Ip6InDelivers=980,
        snmp6__Ip6InHdrErrors=8,
        snmp6__Udp6NoPorts=5,
        snmp6__Udp6InErrors=4,
        snmp6__Udp6RcvbufErrors=4,
        snmp6__Udp6InCsumErrors=0,
        socket__77__drops=4,
    )
    record = build.lossy(1000, moves, 29, of=build.trial(traffic=Traffic(family=6)))
    expected = {"rx_ip": 8, "rx_netfilter": 12, "udp_no_port": 5, "udp_rcvbuf": 4}
    assert expected == entries(record)
    measured = readings_of(record)
    assert measured is not None
    sources = {entry.stage: entry.source for entry in make_ledger(measured).entries}
    assert "Δ snmp6.Udp6NoPorts" == sources["udp_no_port"]


@pytest.mark.parametrize(("multicasts", "heard", "dropped"), [(3, 0, 9), (3, 2, 11), (0, 4, 12)])
def test_multicasts_that_nobody_listens_to_were_not_dropped_by_a_firewall(
    multicasts: int, heard: int, dropped: int
) -> None:
    """IPv6 hosts talk among themselves; what of it is heard was delivered as ICMPv6."""
    moves = right(
        snmp6__Ip6InReceives=1000 + heard,
        snmp6__Ip6InDelivers=988 + heard,
        snmp6__Ip6InMcastPkts=multicasts,
        snmp6__Icmp6InMsgs=heard,
        snmp6__Udp6NoPorts=0,
        snmp6__Udp6InErrors=0,
        snmp6__Udp6RcvbufErrors=0,
        snmp6__Udp6InCsumErrors=0,
    )
    of = build.trial(traffic=Traffic(family=6))
    record = build.lossy(1000, moves, dropped, of=of)
    assert {"rx_netfilter": dropped} == entries(record)
    heard_of = "over IPv6 also − (Δ snmp6.Ip6InMcastPkts − Δ snmp6.Icmp6InMsgs), if above 0"
    assert heard_of in entry(record, "rx_netfilter").source


def test_fragments_are_counted_as_the_datagrams_that_they_form() -> None:
    """Forty came in for twenty datagrams, all of which were dropped behind the reassembly."""
    fragments = {"snmp.Ip.ReasmReqds": 40, "snmp.Ip.ReasmOKs": 20}
    moves = {"snmp.Ip.InReceives": 1020, "snmp.Ip.InDelivers": 980, **fragments}
    record = build.lossy(1000, {"right": moves}, 20)
    assert {"rx_netfilter": 20} == entries(record)
    source = "Δ snmp.Ip.InReceives − Δ snmp.Ip.ReasmReqds + Δ snmp.Ip.ReasmOKs −"
    assert entry(record, "rx_netfilter").source.startswith(source)


@pytest.mark.parametrize(
    ("family", "ip", "forwarded"),
    [(4, "snmp.Ip.", "snmp.Ip.ForwDatagrams"), (6, "snmp6.Ip6", "snmp6.Ip6OutForwDatagrams")],
)
def test_what_a_receiver_forwards_was_not_dropped_by_its_firewall(
    family: Literal[4, 6], ip: str, forwarded: str
) -> None:
    """It comes into the IP layer and is not delivered: 30 of others, beside seven of ours."""
    moves = {"right": {f"{ip}InReceives": 1030, f"{ip}InDelivers": 993, forwarded: 30}}
    if family == 6:
        udp = ("NoPorts", "InErrors", "RcvbufErrors", "InCsumErrors")
        moves["right"] |= {f"snmp6.Udp6{name}": 0 for name in udp}
    of = build.trial(traffic=Traffic(family=family))
    record = build.lossy(1000, moves, 7, of=of)
    assert {"rx_netfilter": 7} == entries(record)
    assert f"− Δ {ip}*ForwDatagrams −" in entry(record, "rx_netfilter").source


def gso(
    sent: int, messages: int, moves: Moves, lost: int, *, gro: bool = False, segments: int = 50
) -> TrialRecord:
    """Return a trial whose sender made GSO messages."""
    workers = (
        build.worker("sender", build.sender_counts(sent, sent_messages=messages)),
        build.worker("receiver", build.receiver_counts(sent - lost)),
    )
    of = build.trial(send=Send(gso=segments), receive=Receive(gro=gro))
    return build.record(sent, sent - lost, of=of, workers=workers, moves=moves)


def test_a_skb_that_crosses_whole_is_as_many_packets_as_its_message() -> None:
    """Three skbs of 50 for which nobody listened are 150 packets."""
    moves = {
        "left": {"link.send0.tx_packets": 20},
        **right(
            snmp__Ip__InReceives=20,
            netstat__IpExt__InNoECTPkts=1000,
            snmp__Ip__InDelivers=20,
            snmp__Udp__NoPorts=3,
        ),
    }
    assert {"udp_no_port": 150} == entries(gso(1000, 20, moves, 150))


def test_a_message_that_the_device_cannot_segment_is_packets_at_once() -> None:
    """The device was given more skbs than there were messages."""
    moves = {
        "left": {"link.send0.tx_packets": 990, "link.send0.tx_dropped": 10},
        **right(snmp__Ip__InReceives=990, netstat__IpExt__InNoECTPkts=990),
    }
    moves = {**moves, "right": {**moves["right"], "snmp.Ip.InDelivers": 990}}
    assert {"tx_device": 10} == entries(gso(1000, 20, moves, 10))


def test_other_frames_of_the_device_do_not_make_messages_packets() -> None:
    """17 of 20 messages left with two frames of ARP: the three that were dropped were whole."""
    moves = {"left": {"link.send0.tx_packets": 17 + 2, "link.send0.tx_dropped": 3}}
    assert {"tx_device": 150} == entries(gso(1000, 20, moves, 150))


def test_a_plain_socket_counts_the_segments_of_a_whole_skb() -> None:
    """It is segmented before the socket; for one with UDP_GRO it is not."""
    moves = {
        "left": {"link.send0.tx_packets": 20},
        **right(
            snmp__Ip__InReceives=20,
            netstat__IpExt__InNoECTPkts=1000,
            snmp__Ip__InDelivers=20,
            snmp__Udp__InErrors=4,
            snmp__Udp__RcvbufErrors=4,
            socket__77__drops=4,
        ),
    }
    assert {"udp_rcvbuf": 4} == entries(gso(1000, 20, moves, 4))
    assert {"udp_rcvbuf": 200} == entries(gso(1000, 20, moves, 200, gro=True))


def entry(record: TrialRecord, stage: str) -> LedgerEntry:
    """Return one line of a record's ledger."""
    measured = readings_of(record)
    assert measured is not None
    (matching,) = [entry for entry in make_ledger(measured).entries if entry.stage == stage]
    return matching


def test_skbs_of_unequal_size_are_an_interval_and_said_so() -> None:
    """One message of 20 was short by 30 packets: three lost skbs were 120 to 150 packets."""
    moves = {
        "left": {"link.send0.tx_packets": 20},
        **right(
            snmp__Ip__InReceives=20,
            netstat__IpExt__InNoECTPkts=970,
            snmp__Ip__InDelivers=20,
            snmp__Udp__NoPorts=3,
        ),
    }
    record = gso(970, 20, moves, 120)
    assert (120, 150) == (
        entry(record, "udp_no_port").packets,
        entry(record, "udp_no_port").at_most,
    )
    assert "unaccounted" not in entries(record)
    assert 20 == entries(gso(970, 20, moves, 170))["unaccounted"]
    assert -10 == entries(gso(970, 20, moves, 110))["unaccounted"]


def test_what_gro_merged_is_an_interval_and_said_so() -> None:
    """A lost skb was at least one packet and at most what GRO merges."""
    moves = two_of_hundred_dropped(1000)
    record = build.lossy(1000, moves, 31, of=build.trial(receive=Receive(gro=True)))
    drops = entry(record, "udp_rcvbuf")
    assert (2, 128) == (drops.packets, drops.at_most)
    assert "unaccounted" not in entries(record)


def test_what_gro_merged_is_bounded_by_what_all_skbs_held() -> None:
    """98 of 100 skbs with 130 packets held at least one: two were no more than 32."""
    moves = two_of_hundred_dropped(130)
    drops = entry(
        build.lossy(130, moves, 31, of=build.trial(receive=Receive(gro=True))), "udp_rcvbuf"
    )
    assert (2, 32) == (drops.packets, drops.at_most)


def test_packets_lost_on_purpose_that_gro_merged_are_not_known_one_by_one() -> None:
    """Two skbs were dropped: of seven packets sent to end there, or of any others."""
    moves = two_of_hundred_dropped(1000)
    record = build.lossy(1000, moves, 0, of=build.trial(receive=Receive(gro=True)))
    loss = build.worker(
        "sender",
        {"attempted_packets": 2, "sent_packets": 2, "sent_messages": 2},
        worker="left.loss_udp_rcvbuf",
    )
    record = build.replace(record, phases=(build.replace(record.phases[0], losses=(loss,)),))
    drops = entry(record, "udp_rcvbuf")
    assert (2, 128) == (drops.packets, drops.at_most)


def test_a_message_that_the_queue_dropped_whole_is_its_packets() -> None:
    """What left the queue is counted in packets, and so what did not is exact."""
    moves = {"left": {"qdisc.send0.drops": 2, "qdisc.send0.packets": 900}}
    assert {"tx_qdisc": 100} == entries(gso(1000, 20, moves, 100))


def test_a_message_that_the_queue_segmented_is_counted_by_its_segments() -> None:
    """A tbf whose burst is smaller than the message: 53 of 64 segments dropped, one by one."""
    moves = {"left": {"qdisc.send0.drops": 53, "qdisc.send0.packets": 947}}
    assert {"tx_qdisc": 53} == entries(gso(1000, 20, moves, 53))


def test_without_the_queues_packets_its_drops_are_an_interval() -> None:
    """Two skbs dropped are at least two packets."""
    record = gso(1000, 20, {"left": {"qdisc.send0.drops": 2}}, 60)
    drops = entry(record, "tx_qdisc")
    assert (2, 100) == (drops.packets, drops.at_most)


def test_without_a_hook_nothing_is_lost_there_and_unknown_is_not_none() -> None:
    """That an interface has no XDP program is a fact; where it is not known, the stage is not."""
    record = build.record()
    bare = {
        name: build.replace(host_facts, environment={}, driver="ice")
        for name, host_facts in record.facts.items()
    }
    phase = record.phases[0]
    before = {
        host: build.replace(
            snapshot, counters={k: v for k, v in snapshot.counters.items() if "xdp_drops" not in k}
        )
        for host, snapshot in phase.before.items()
    }
    unknown = build.replace(record, facts=bare, phases=(build.replace(phase, before=before),))
    assert (0, 0) == (entry(record, "rx_xdp").packets, entry(record, "rx_tc").packets)
    assert (None, None) == (entry(unknown, "rx_xdp").packets, entry(unknown, "rx_tc").packets)


@pytest.mark.parametrize("name", ["rx{}_drops", "rx_queue_{}_drops"])
def test_what_a_virtual_nic_could_not_take_is_read_per_queue(name: str) -> None:
    """virtio_net's own names for it, since Linux 6.10 and before, and not its XDP drops."""
    moves = {f"ethtool.receive0.{name.format(0)}": 4, f"ethtool.receive0.{name.format(1)}": 3}
    record = build.driven("virtio_net", build.lossy(1000, {"right": moves}, 7))
    assert {"rx_ring": 7} == entries(record)
    assert moves == entry(record, "rx_ring").parts


@pytest.mark.parametrize("queue", ["0", "11", "111", "_queue_0", "_queue_11"])
def test_a_virtual_nic_counts_what_xdp_dropped_among_its_drops(queue: str) -> None:
    """Nine that a program dropped raise both counters, and seven more the driver's alone."""
    drops = {"drops": 9 + 7, "xdp_drops": 9}
    moves = {f"ethtool.receive0.rx{queue}_{name}": value for name, value in drops.items()}
    record = build.driven("virtio_net", build.lossy(1000, {"right": moves}, 16))
    assert {"rx_ring": 7, "rx_xdp": 9} == entries(record)


@pytest.mark.parametrize("drops", [{"rx0_drops": 0}, {"rx0_drops": 9, "rx0_xdp_drops": 9}])
def test_the_full_ring_of_a_virtual_nic_is_not_observable(drops: dict[str, int]) -> None:
    """The machine's host drops for it, and nothing that a guest can read moves."""
    moves = {f"ethtool.receive0.{name}": value for name, value in drops.items()}
    record = build.driven("virtio_net", build.lossy(1000, {"right": moves}, 9))
    assert entry(record, "rx_ring").packets is None


MISSED = "link.receive0.rx_missed_errors"
RING_MOVES: list[tuple[str, dict[str, int]]] = [
    ("atlantic", {"ethtool.receive0.InDroppedDma": 7, MISSED: 0}),
    ("bnxt_en", {MISSED: 7}),
    ("ena", {"link.receive0.rx_dropped": 7}),
    ("i40e", {"ethtool.receive0.rx_missed_errors": 7, MISSED: 7}),
    ("ice", {"ethtool.receive0.rx_dropped.nic": 7, MISSED: 7}),
    ("igb", {MISSED: 4, "ethtool.receive0.rx_queue_5_drops": 3}),
    ("igc", {MISSED: 4, "ethtool.receive0.rx_queue_0_drops": 3}),
    ("ixgbe", {MISSED: 4, "ethtool.receive0.rx_no_dma_resources": 3}),
    (
        "mlx5_core",
        {"ethtool.receive0.rx_out_of_buffer": 4, "ethtool.receive0.rx_discards_phy": 3, MISSED: 0},
    ),
    ("sfc", {"ethtool.receive0.port_rx_nodesc_drops": 7, MISSED: 0}),
    ("sfc", {"ethtool.receive0.rx_nodesc_drop_cnt": 7}),
    ("vmxnet3", {"ethtool.receive0.pkts rx OOB": 7, MISSED: 0}),
    ("e1000e", {MISSED: 7}),
    ("tg3", {MISSED: 7}),
    (
        "gve",
        {"ethtool.receive0.rx_queue_drop_cnt[0]": 3, "ethtool.receive0.rx_queue_drop_cnt[12]": 4},
    ),
    ("hv_netvsc", {"ethtool.receive0.rx_no_memory": 7}),
    ("mlx4_core", {MISSED: 7}),
    ("r8169", {MISSED: 7}),
]


@pytest.mark.parametrize(("driver", "moves"), RING_MOVES)
def test_a_full_ring_is_read_where_its_driver_counts_it(driver: str, moves: dict[str, int]) -> None:
    """Seven frames without a descriptor, by each driver's own counters."""
    assert {"rx_ring": 7} == entries(build.driven(driver, build.lossy(1000, {"right": moves}, 7)))


def test_every_drivers_ring_is_tried() -> None:
    """A row without a test is no fact; virtio_net has tests of its own."""
    with_ring = {name for name, row in DRIVERS.items() if row.full_ring}
    assert with_ring <= {driver for driver, _ in RING_MOVES} | {"virtio_net"}


@pytest.mark.parametrize("driver", ["mlx4_core", "r8169", "macb", None])
def test_a_ring_whose_driver_is_not_known_is_not_observable(driver: str | None) -> None:
    """That rx_missed_errors stood still proves nothing there, and what was lost has no stage."""
    packets = entries(
        build.driven(driver, build.lossy(1000, right(link__receive0__rx_missed_errors=0), 7))
    )
    assert {"rx_ring": None, "unaccounted": 7} == packets


def test_a_ring_is_not_read_from_a_counter_that_an_xdp_program_shares() -> None:
    """Ena drops for both reasons in one counter."""
    record = build.lossy(1000, right(link__receive0__rx_dropped=7), 7)
    nic = build.facts("right", "receive0", "10.0.0.1/24", driver="ena", environment={"xdp": "xdp"})
    packets = entries(build.replace(record, facts={**record.facts, "right": nic}))
    assert (None, 7) == (packets["rx_ring"], packets["unaccounted"])


def test_a_ring_that_shares_its_counter_with_the_backlog_is_told_apart() -> None:
    """What the CPU's backlog refused is in the device's drops, too."""
    moves = {**right(link__receive0__rx_dropped=7 + 5), "machine": {"softnet.cpu0.dropped": 5}}
    assert {"rx_ring": 7, "rx_backlog": 5} == entries(
        build.driven("ena", build.lossy(1000, moves, 12))
    )


def test_the_loopback_interface_has_no_ring() -> None:
    """Nothing is lost where there is nothing, driver or not."""
    record = build.record()
    lo = build.facts("right", "lo", "10.0.0.1/24", driver=None)
    record = build.replace(record, facts={**record.facts, "right": lo})
    assert 0 == entry(record, "rx_ring").packets


def test_without_a_receiver_that_is_known_there_is_no_ring() -> None:
    """Packets that went to an address of no host of the lab: nothing is 0 there."""
    record = build.record(workers=(build.worker("sender", build.sender_counts(1000)),))
    record = build.replace(record, facts={"left": record.facts["left"]})
    assert entry(record, "rx_ring").packets is None


def test_an_entry_says_on_which_cpu_and_by_which_worker() -> None:
    """Where the counter is one of a CPU, a queue or a socket, its parts stand beside the sum."""
    moves = {
        "right": {
            "link.receive0.rx_dropped": 12,
            "snmp.Udp.RcvbufErrors": 5,
            "snmp.Udp.InErrors": 5,
            "socket.77.drops": 5,
        },
        "left": {"link.send0.tx_dropped": 12},
        "machine": {"softnet.cpu0.dropped": 4, "softnet.cpu1.dropped": 8},
    }
    record = build.lossy(1000, moves, 17)
    assert {"softnet.cpu0.dropped": 4, "softnet.cpu1.dropped": 8} == entry(
        record, "rx_backlog"
    ).parts
    assert {"right.receiver0": 5} == entry(record, "udp_rcvbuf").parts
    assert {"softnet.*.dropped": 12, "link.receive0.rx_dropped": 12} == entry(
        record, "rx_backlog"
    ).also
    assert {} == entry(record, "udp_no_port").parts


def test_what_is_lost_on_purpose_is_intended_and_sent() -> None:
    """Packets beside the traffic belong to the same sum."""
    record = build.lossy(1000, right(snmp__Udp__NoPorts=7), 0)
    loss = build.worker(
        "sender",
        {"attempted_packets": 9, "sent_packets": 7, "sent_messages": 7, "eperm": 2},
        worker="left.losses",
    )
    record = build.replace(record, phases=(build.replace(record.phases[0], losses=(loss,)),))
    assert {"tx_netfilter": 2, "udp_no_port": 7} == entries(record)
    measured = readings_of(record)
    assert measured is not None
    assert 1009 == make_ledger(measured).intended_packets
    assert {"left.losses": 2} == entry(record, "tx_netfilter").parts


@pytest.mark.parametrize(("refused", "backlog"), [(7, 0), (11, 4)])
def test_what_was_sent_too_long_on_purpose_is_no_neighbours_backlog(
    refused: int, backlog: int
) -> None:
    """The receiver's device counts both alike, and the machine counts others' as well."""
    moves = {
        "left": {"link.send0.tx_dropped": refused},
        "right": {"link.receive0.rx_dropped": refused},
        "machine": {"softnet.cpu0.dropped": 9},
    }
    record = build.lossy(1000, moves, backlog)
    counts = {"attempted_packets": 7, "sent_packets": 7, "sent_messages": 7}
    loss = build.worker("sender", counts, worker="left.loss_tx_device")
    record = build.replace(record, phases=(build.replace(record.phases[0], losses=(loss,)),))
    known = {"tx_device": 7, "rx_backlog": backlog}
    assert {name: packets for name, packets in known.items() if packets} == entries(record)


def test_what_a_worker_with_a_fault_left_is_what_it_told() -> None:
    """A queue is counted before its socket is closed; without a word nothing is known of it."""
    of = build.trial(receive=Receive(fault=Fault(1, 0, "exit")))
    assert {"udp_purged": None} == entries(build.record(1000, of=of))
    counts = build.receiver_counts(990, purged_packets=10, purged_messages=10)
    workers = (
        build.worker("sender", build.sender_counts(1000)),
        build.worker("receiver", counts),
    )
    moves = right(snmp__Udp__InDatagrams=1000)
    record = build.record(1000, 990, of=of, workers=workers, moves=moves)
    assert {"udp_purged": 10} == entries(record)
    assert [] == [
        finding for finding in judge(record).findings if finding.what == "counters disagree"
    ]


def test_what_is_cut_off_is_unknown_where_nothing_is_copied() -> None:
    """It is None and not 0."""
    of = build.trial(receive=Receive(read="none"))
    assert {"app_truncated": None} == entries(build.record(1000, of=of))


def test_every_stage_says_what_it_means_and_what_helps() -> None:
    """The report and the documentation have it from here."""
    assert [] == [stage.name for stage in STAGES if not stage.means or not stage.helps]


def test_a_row_says_what_its_stage_is() -> None:
    """Whose counter alone explains it, is one counter, or is meant; and what others may change."""
    assert [
        "tx_policy",
        "tx_netfilter",
        "tx_ipsec",
        "fwd_xdp",
        "fwd_tc",
        "fwd_bridge",
        "fwd_encap",
        "fwd_ip",
        "fwd_prerouting",
        "fwd_conntrack",
        "fwd_rp_filter",
        "fwd_route",
        "fwd_local",
        "fwd_mtu",
        "fwd_netfilter",
        "fwd_decap",
        "fwd_ecn",
        "rx_xdp",
        "xsk_fill",
        "rx_tc",
        "rx_ip",
        "rx_netfilter",
        "udp_checksum",
        "udp_no_port",
        "rx_policy",
        "udp_filter",
        "udp_memory",
        "udp_purged",
        "app_truncated",
        "app_log",
    ] == [row.name for row in STAGES if row.refuses]
    assert [
        "rx_ring",
        "rx_xdp",
        "rx_backlog",
        "rx_tc",
        "udp_checksum",
        "udp_no_port",
        "udp_rcvbuf",
    ] == [row.name for row in STAGES if row.single_counter]
    assert {
        **dict.fromkeys(("rx_xdp", "rx_tc", "rx_netfilter", "rx_policy"), "rules"),
        "udp_no_port": "unbound",
        "udp_filter": "filter",
    } == {row.name: row.meant_by for row in STAGES if row.meant_by}
    assert {
        "unsent": ("routes", "neighbours", "addresses", "links", "queueing"),
        "tx_policy": ("policies",),
        "tx_netfilter": ("firewall",),
        "tx_ipsec": ("policies",),
        "tx_qdisc": ("queueing",),
        "tx_device": ("links", "neighbours", "queueing"),
        "link": ("links", "neighbours", "queueing"),
        "rx_tc": ("queueing",),
        "rx_ip": ("addresses", "routes", "neighbours", "links"),
        "rx_netfilter": ("firewall",),
        "udp_no_port": ("addresses",),
        "rx_policy": ("policies",),
    } == {row.name: row.changed_by for row in STAGES if row.changed_by}
    host = STAGES.index(next(row for row in STAGES if row.name == "rx_ring"))
    end = STAGES.index(next(row for row in STAGES if row.name == "app_truncated"))
    assert BEFORE_PROGRAM == tuple(row.name for row in STAGES[host:end])
