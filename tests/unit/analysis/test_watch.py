"""A host that nobody loads, from looks at it: what is lost where, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from analysis import build
from analysis.build import facts
from analysis.test_stages import lacking
from udpbench.analysis.ledger.ledger import lost_by_place
from udpbench.analysis.reader_time import RECEIVING_CALLS
from udpbench.analysis.readings import readings_of
from udpbench.analysis.watch.history import LOOKS_KEPT, PROCESSES_KEPT, HostState, after
from udpbench.analysis.watch.host import COMMANDS, HELPS, LiveHost, live_host, watched_ledger
from udpbench.analysis.watch.sockets import LEAST_LOOKS, SocketReader
from udpbench.model.limits import THREADS_MAX
from udpbench.model.record import (
    UNBOUND,
    HostLook,
    OtherNamespace,
    Snapshot,
    SocketCount,
    ThreadUse,
    UdpSocket,
)

V4 = UdpSocket(1, 11, 4, "0.0.0.0", 53, None, 0, 0, 0, 212992, 5, ("dns 9",))  # noqa: S104
V6 = UdpSocket(2, 12, 6, "::", 443, None, 0, 0, 0, 212992, 0)
UDP = dict.fromkeys(("InErrors", "RcvbufErrors", "InCsumErrors", "MemErrors", "NoPorts"), 0)
ZERO = {
    **{f"snmp.Udp.{name}": 0 for name in (*UDP, "InDatagrams")},
    **{f"snmp6.Udp6{name}": 0 for name in (*UDP, "InDatagrams")},
    **{f"snmp.Ip.{name}": 0 for name in ("InReceives", "InDelivers", "ForwDatagrams")},
    "softnet.cpu0.dropped": 0,
    "link.receive0.rx_dropped": 0,
    "link.receive0.rx_packets": 0,
}
RCVBUF = ("snmp.Udp.InErrors", "snmp.Udp.RcvbufErrors")
CHECKSUM = ("snmp.Udp.InErrors", "snmp.Udp.InCsumErrors")


def look(second: int, *sockets: UdpSocket, moved: dict[str, int] | None = None) -> HostLook:
    """Return a look at a time, with the counters that are not 0."""
    snapshot = Snapshot("right", second * 10**9, {**ZERO, **(moved or {})})
    return HostLook(snapshot, ("receive0",), sockets)


def watched(*looks: HostLook, port: int | None = None, enter: str = "") -> LiveHost:
    """Return what is said after these looks."""
    states: list[HostState] = []
    live: LiveHost | None = None
    for each in looks:
        states.append(after(states[-1] if states else None, each))
        if len(states) > 1:
            known = {"receive0": facts("right", "receive0", "10.0.0.1/24")}
            live = live_host(states[0], states[-2], states[-1], known, live, port, enter)
    assert live is not None
    return live


def reasons(live: LiveHost) -> dict[int, tuple[int, tuple[str, ...], bool]]:
    """Return port → packets, stages, and whether they are certain."""
    return {loss.socket.port: (loss.dropped, loss.stages, loss.known) for loss in live.sockets}


def counted(packets: int, *names: str) -> dict[str, int]:
    """Return counters that moved by so many."""
    return dict.fromkeys(names, packets)


def test_the_only_counter_that_moved_is_the_reason() -> None:
    """And it stays so while nothing contradicts it."""
    full = replace(V4, drops=25, queued_bytes=200_000)
    looks = look(0, V4, V6), look(1, full, moved=counted(20, *RCVBUF))
    live = watched(*looks, look(2, moved=counted(20, *RCVBUF)))
    assert {53: (20, ("udp_rcvbuf",), True), 443: (0, (), False)} == reasons(live)
    assert [("udp_rcvbuf", 0.0, 20)] == [(e.stage, e.pps, e.packets) for e in live.stages]
    assert [loss.reader_helps for loss in live.sockets if loss.dropped] != [""]
    assert {} == live.helps, "its reader has its own"
    assert live.lost


def test_a_reader_in_front_of_an_empty_queue_is_not_said_to_stand_still() -> None:
    """Nothing got into the queue: the socket's own filter refused it, or a full buffer did."""
    moved = {**counted(20, *RCVBUF), **counted(40, "snmp.Udp.InErrors")}
    full = replace(V4, drops=25)
    for queued_bytes, never in ((0, False), (200_000, True)):
        late = replace(full, queued_bytes=queued_bytes)
        (loss,) = watched(look(0, V4), look(1, late, moved=moved)).losing
        assert ("udp_filter", "udp_rcvbuf") == loss.stages
        assert loss.reader is not None
        assert never is (loss.reader.does == "never reads")


def test_counters_that_moved_together_leave_several_reasons() -> None:
    """The IPv4 socket has nothing to do with IPv6's counters; the IPv6 one may with both."""
    moved = {**counted(5, *RCVBUF), **counted(7, "snmp6.Udp6InErrors")}
    live = watched(
        look(0, V4, V6), look(1, replace(V4, drops=10), replace(V6, drops=7), moved=moved)
    )
    assert {
        53: (5, ("udp_rcvbuf",), True),
        443: (7, ("udp_filter", "udp_rcvbuf"), False),
    } == reasons(live)


def test_what_no_counter_explains_is_memory() -> None:
    """Linux 6.18 counts it at the socket alone; a little more is what came between the readings."""
    live = watched(look(0, V4), look(1, replace(V4, drops=105)))
    assert {53: (100, ("udp_memory",), True)} == reasons(live)
    assert [("udp_memory", 100)] == [(loss.stage, loss.packets) for loss in live.stages]
    late = look(1, replace(V4, drops=106), moved=counted(100, *RCVBUF))
    assert {53: (101, ("udp_rcvbuf",), True)} == reasons(watched(look(0, V4), late))


def test_a_kernel_that_counts_filter_and_memory_together_leaves_both() -> None:
    """Before Linux 5.11, which has no MemErrors; what was lost is known, and so is its rate."""
    looks = (look(0, V4), look(1, replace(V4, drops=105), moved=counted(100, "snmp.Udp.InErrors")))
    old = [
        replace(each, snapshot=replace(each.snapshot, counters=before_5_11(each))) for each in looks
    ]
    live = watched(*old)
    assert {53: (100, ("udp_filter", "udp_memory"), False)} == reasons(live)
    assert [("udp_filter or udp_memory", 100.0, 100)] == [
        (loss.stage, loss.pps, loss.packets) for loss in live.stages
    ]
    assert ["udp_filter", "udp_memory"] == list(live.helps)
    assert (True, 0) == (live.lost, live.unlisted)
    unlisted = watched(replace(old[0], sockets=()), replace(old[1], sockets=()))
    assert (True, 100) == (unlisted.lost, unlisted.unlisted)
    full = counted(100, *RCVBUF)
    known = replace(
        old[1], snapshot=replace(old[1].snapshot, counters={**before_5_11(old[1]), **full})
    )
    assert {53: (100, ("udp_rcvbuf",), True)} == reasons(watched(old[0], known))


def test_a_kept_watch_has_both_as_intervals() -> None:
    """And what was lost once."""
    errors = build.lossy(1000, {"right": {"snmp.Udp.InErrors": 7}}, 7)
    measured = readings_of(lacking("snmp.Udp.MemErrors", errors))
    assert measured is not None
    ledger = watched_ledger(measured)
    entries = {entry.stage: (entry.packets, entry.at_most) for entry in ledger.entries}
    assert ((0, 7), (0, 7)) == (entries["udp_filter"], entries["udp_memory"])
    assert (7, 0) == (ledger.intended_packets - ledger.received_packets, entries["udp_rcvbuf"][0])
    assert {"udp_filter or udp_memory": 7} == lost_by_place(ledger)


def before_5_11(each: HostLook) -> dict[str, int]:
    """Return the counters of a look without those that came with Linux 5.11."""
    counters = each.snapshot.counters
    return {name: value for name, value in counters.items() if "MemErrors" not in name}


def test_a_reason_is_replaced_when_it_is_contradicted() -> None:
    """By what the latest drops were."""
    first = look(1, replace(V4, drops=15), moved=counted(10, *RCVBUF))
    moved = {"snmp.Udp.RcvbufErrors": 10, "snmp.Udp.InErrors": 14, "snmp.Udp.InCsumErrors": 4}
    second = look(2, replace(V4, drops=19), moved=moved)
    assert {53: (14, ("udp_checksum",), True)} == reasons(watched(look(0, V4), first, second))


def test_the_kernels_own_reasons_are_believed() -> None:
    """What they do not name was found at the read; arrivals and reads are rates."""
    counts = {"1": SocketCount(40, 10, {"SOCKET_RCVBUFF": 20, "PROTO_MEM": 3})}
    begun = replace(look(0, V4), counts={}, names_reasons=True)
    then = replace(look(2, replace(V4, drops=35)), counts=counts, names_reasons=True)
    live = watched(begun, then)
    assert {53: (30, ("udp_rcvbuf", "udp_checksum", "udp_memory"), True)} == reasons(live)
    assert (20.0, 5.0) == (live.sockets[0].arrived_pps, live.sockets[0].read_pps)


def test_what_is_said_of_sockets_stays_until_one_changes() -> None:
    """Without a change it is the same object; a rate of drops ends with the next look."""
    looks = look(0, V4, V6), look(1), look(2)
    quiet = watched(*looks)
    assert (quiet.sockets, ()) == (watched(*looks, look(3)).sockets, quiet.losing)
    full = look(3, replace(V4, drops=9), moved=counted(4, *RCVBUF))
    assert [(53, 4.0)] == [(e.socket.port, e.dropped_pps) for e in watched(*looks, full).losing]
    after_it = watched(*looks, full, look(4, moved=counted(4, *RCVBUF)))
    assert ((), {53: (4, ("udp_rcvbuf",), True), 443: (0, (), False)}) == (
        after_it.losing,
        reasons(after_it),
    )


def test_sockets_come_and_go() -> None:
    """One that opens loses all that it has lost; one that closed is told, and so is its loss."""
    opened = replace(V6, drops=3)
    closed = replace(look(2), ended=(1,))
    live = watched(look(0, V4), look(1, replace(V4, drops=9), opened), closed)
    assert {443: 3} == {port: row[0] for port, row in reasons(live).items()}
    assert (1, 4) == (live.ended, live.ended_dropped)


def test_a_socket_between_two_looks_is_reported_by_its_count() -> None:
    """It was never listed."""
    begun = replace(look(0, V4), counts={})
    then = replace(look(1), counts={"99": SocketCount(8, 2, {"SOCKET_RCVBUFF": 6})})
    live = watched(begun, then)
    assert (1, 6, True) == (live.ended, live.ended_dropped, live.lost)


def test_of_closed_sockets_nothing_stays_but_their_sums() -> None:
    """A resolver opens one for each query; what the kernel counts late is of one that is known."""
    state = after(None, replace(look(0), counts={}, watched=()))
    for n in range(1, 100):
        opened = replace(V4, cookie=n, drops=2)
        counts = {
            str(each): SocketCount(8, 2, {"SOCKET_RCVBUFF": 2}) for each in {n, max(n - 1, 1)}
        }
        seen = replace(look(n, opened), counts=counts, watched=(n,))
        state = after(state, replace(seen, ended=(n - 1,) if n > 1 else ()))
    assert (98, 98 * 2) == (state.ended, state.ended_dropped)
    assert {99} == set(state.sockets) == state.watched == set(state.counts or ())
    assert {99} == set(state.opened_drops)


def test_what_no_listed_socket_dropped_is_reported() -> None:
    """Unless it may have come between the readings, or only some sockets are watched."""
    moved = counted(25, *RCVBUF)
    full = look(1, replace(V4, drops=25), moved=moved)
    assert 5 == watched(look(0, V4), full).unlisted
    assert 0 == watched(look(0, V4), look(1, replace(V4, drops=30), moved=moved)).unlisted
    assert 0 == watched(look(0, V4), full, port=53).unlisted
    many = look(1, replace(V4, drops=1005), moved=counted(1005, *RCVBUF))
    assert 0 == watched(look(0, V4), many).unlisted


@pytest.mark.parametrize(
    ("moved", "port", "only", "lost"),
    [
        ({}, None, None, False),
        ({"snmp.Udp.NoPorts": 5}, None, None, False),
        ({"snmp.Udp.NoPorts": 5}, 53, None, False),
        (counted(5, *RCVBUF), None, None, True),
        (counted(5, *RCVBUF), 53, None, False),
        (counted(5, *RCVBUF), None, (1,), False),
        (counted(5, *CHECKSUM), None, (1,), True),
        (counted(5, "softnet.cpu0.dropped", "link.receive0.rx_dropped"), 53, None, True),
    ],
)
def test_stages_before_a_watched_socket_count(
    moved: dict[str, int], port: int | None, only: tuple[int, ...] | None, lost: bool
) -> None:
    """At sockets only what the watched sockets dropped; packets to a port of nobody never."""
    looks = [replace(each, watched=only) for each in (look(0, V4, V6), look(1, moved=moved))]
    assert lost == watched(*looks, port=port).lost


def test_a_port_that_nobody_is_bound_to_loses_packets() -> None:
    """Between two looks at neither of which a socket was bound; before and after it is another's."""
    missed = {"snmp.Udp.NoPorts": 5}
    more = {"snmp.Udp.NoPorts": 12}
    closed = replace(look(2, moved=missed), ended=(1,))
    gone = watched(look(0, V4), look(1, moved=missed), closed, port=53)
    assert (0, False) == (gone.unbound_packets, gone.lost)
    still = look(3, moved=more)
    looks = (look(0, V4), look(1, moved=missed), closed, still)
    assert (7, True) == (watched(*looks, port=53).unbound_packets, watched(*looks, port=53).lost)
    back = watched(*looks, look(4, replace(V4, cookie=9), moved={"snmp.Udp.NoPorts": 20}), port=53)
    assert (7, True) == (back.unbound_packets, back.lost)
    assert not watched(*looks).lost


def test_what_came_to_the_watched_port_alone_is_counted_by_the_kernels_reason() -> None:
    """Whether or not a socket is bound at a look, and whatever came to other closed ports."""
    begin = look(0, V4, moved={UNBOUND: 3})
    for counted_packets, lost in ((7, 4), (3, 0)):
        now = look(1, V4, moved={UNBOUND: counted_packets, "snmp.Udp.NoPorts": 50})
        live = watched(begin, now, port=53)
        assert (lost, lost > 0) == (live.unbound_packets, live.lost)


def test_what_closed_at_the_watched_port_had_dropped_stays_lost() -> None:
    """A server that crashed, or was restarted; what closed at other ports is not watched."""
    moved = counted(9, *RCVBUF)
    full, closed = look(1, replace(V4, drops=9), V6, moved=moved), look(2, moved=moved)
    ended = replace(closed, ended=(V4.cookie, V6.cookie))
    port = watched(look(0, V4, V6), full, ended, port=53)
    assert (1, 4, True) == (port.ended, port.ended_dropped, port.lost)
    other = watched(look(0, V4, V6), full, ended, port=443)
    assert (1, 0, False) == (other.ended, other.ended_dropped, other.lost)


def test_stages_before_ip_name_their_interface() -> None:
    """The others do not have any."""
    moved = counted(5, "softnet.cpu0.dropped", "link.receive0.rx_dropped", "snmp.Udp.NoPorts")
    live = watched(look(0), look(1, moved=moved))
    assert [("rx_backlog", "receive0"), ("udp_no_port", "")] == [
        (loss.stage, loss.where) for loss in live.stages
    ]


def test_a_difference_of_counters_counts_beyond_what_passes_meanwhile() -> None:
    """Two of the packets that came may have been between two counters."""
    for missing, stages in ((2, []), (30, ["rx_netfilter"])):
        moved = {"snmp.Ip.InReceives": 1000, "snmp.Ip.InDelivers": 1000 - missing}
        moved["link.receive0.rx_packets"] = 1000
        live = watched(look(0), look(1, moved=moved))
        assert stages == [loss.stage for loss in live.stages]
        assert 1000.0 == live.received_pps


ROUTED = {
    "snmp.Ip.InReceives": 1000,
    "snmp.Ip.ForwDatagrams": 1000,
    "snmp.Ip.OutTransmits": 930,
    "snmp.Ip.FragFails": 20,
    "link.receive0.tx_dropped": 7,
    "qdisc.receive0.drops": 5,
    "link.receive0.rx_packets": 1000,
}


def test_a_host_that_forwards_loses_packets_on_the_way_through() -> None:
    """In FORWARD, by the MTU, and by interface in the queue and the device of the way out."""
    first = look(0, moved=dict.fromkeys(ROUTED, 0))
    live = watched(first, look(1, moved=ROUTED))
    assert 1000.0 == live.forwarded_pps
    assert {
        ("fwd_mtu", ""): (20, 20.0),
        ("fwd_netfilter", ""): (50, 50.0),
        ("fwd_qdisc", "receive0"): (5, 5.0),
        ("fwd_device", "receive0"): (7, 7.0),
    } == {(loss.stage, loss.where): (loss.packets, loss.pps) for loss in live.stages}
    assert live.lost
    assert not watched(look(0, V4), look(1, V4, moved=ROUTED), port=53).lost, "of a port's sockets"
    own = {name: moved for name, moved in ROUTED.items() if not name.endswith("ForwDatagrams")}
    own |= {"snmp.Ip.InDelivers": 1000}
    assert () == watched(first, look(1, moved=own)).stages, "a host that forwards nothing"


def test_how_to_find_the_port_that_nobody_is_bound_to_is_said() -> None:
    """The kernel's counter has all of them in one number."""
    live = watched(look(0), look(1, moved={"snmp.Udp.NoPorts": 51}))
    assert "tcpdump -nni any" in live.helps_at(["udp_no_port"])


def test_commands_of_advice_enter_the_namespace_that_is_watched() -> None:
    """Typed as they stand on the host, they would list another's rules."""
    moved = {"snmp.Ip.InReceives": 1000, "snmp.Ip.InDelivers": 900, "snmp.Udp.NoPorts": 51}
    looks = look(0), look(1, moved=moved)
    own = watched(*looks).helps_at(["rx_netfilter"])
    assert own.startswith("change the rule that counts it (iptables -vnL, nft list ruleset); ")
    inside = watched(*looks, enter="nsenter -t 9 -n ")
    assert inside.helps_at(["rx_netfilter"]).startswith(
        "change the rule that counts it (nsenter -t 9 -n iptables -vnL, nsenter -t 9 -n nft list "
    )
    assert "ICMP, nsenter -t 9 -n tcpdump -nni any" in inside.helps_at(["udp_no_port"])


def test_every_command_of_advice_is_known_as_such() -> None:
    """Also that of an interface's program, and of an IPsec policy."""
    begun = {stage: COMMANDS.sub("HERE ", helps) for stage, helps in HELPS.items()}
    assert "which HERE ip link show names" in begun["rx_xdp"]
    assert "that HERE ip -s xfrm policy lists" in begun["rx_policy"]
    assert "that HERE tc filter show dev" in begun["rx_tc"]
    assert "HERE" not in begun["udp_rcvbuf"]


def test_other_namespaces_are_named() -> None:
    """As the latest look knows them."""
    other = OtherNamespace(7, "dns 7", 3, 4)
    live = watched(look(0), replace(look(1), namespaces=(other,)))
    assert (other,) == live.namespaces


def thread(running: int, runnable: int = 0, states: str = "", **calls: int) -> ThreadUse:
    """Return a thread by percent of the time; it was seen asleep in each call so often."""
    looks = {state: states.count(state) for state in states}
    return ThreadUse("reader", running, runnable, 100, looks, calls)


SLEEPER, WAITER = thread(20, clock_nanosleep=8), thread(2, epoll_wait=9)
FULL_QUEUE = 212992


def reader(
    *threads: ThreadUse,
    queued: int = FULL_QUEUE,
    looks: int = LEAST_LOOKS,
    lost: int = 100,
    socket: UdpSocket = V4,
    counted_read: int | None = None,
    read: int = 1000,
) -> tuple[SocketReader, str]:
    """Return what is said of the reader of a socket that drops in each look, and what helps."""
    given = [look(0, socket)]
    if counted_read is not None:
        given = [replace(given[0], counts={"1": SocketCount()})]
    for second in range(1, looks + 1):
        drops = (socket.drops or 0) + second * lost
        moved = counted(second * lost, *RCVBUF) | {"snmp.Udp.InDatagrams": second * read}
        now = look(second, replace(socket, drops=drops, queued_bytes=queued), moved=moved)
        counts = {"1": SocketCount(second * lost, counted_read, {"SOCKET_RCVBUFF": second * lost})}
        seen = {"dns 9": threads} if threads else {}
        now = replace(now, threads=seen, counts=counts if counted_read is not None else None)
        given.append(now)
    (loss,) = watched(*given).sockets
    assert loss.reader is not None
    return loss.reader, loss.reader_helps


def test_a_reader_whose_own_work_takes_more_than_a_cpu_needs_more_than_peace() -> None:
    """It waits for a CPU, but with all of it, it would lose most as well."""
    late, helps = reader(thread(44, 54), lost=4400, read=600, counted_read=None)
    assert "waits for a CPU 54 % of the time" == late.does
    assert helps.startswith("use faster readers, or more of them")
    assert helps.endswith("all that comes would take a thread 3.7 CPUs or more")


@pytest.mark.parametrize(
    ("threads", "queued", "does", "helps"),
    [
        ((SLEEPER,), FULL_QUEUE, "sleeps 80 % of the time (in clock_nanosleep)", "have it read "),
        ((thread(20, other=8),), FULL_QUEUE, "sleeps 80 % of the time", "have it read while"),
        ((thread(20),), FULL_QUEUE, "sleeps 80 % of the time (root sees in which call)", "have it"),
        ((SLEEPER,), 0, "sleeps 80 % of the time (in clock_nanosleep)", "have it read more often"),
        ((thread(97, 3),), FULL_QUEUE, "bound by its CPU (97 %)", "use faster readers"),
        ((thread(85, 5, futex=1),), FULL_QUEUE, "bound by its CPU (85 %)", "use faster readers"),
        ((thread(97),), 0, "empties its queue, and never sleeps (97 %)", ""),
        ((thread(64, 19, futex=9),), FULL_QUEUE, "waits for a CPU 19 % of the time", "stop what"),
        ((thread(60, 40),), FULL_QUEUE, "waits for a CPU 40 % of the time", "stop what uses CPUs"),
        ((thread(20, 0, "TTTTS", futex=1),), FULL_QUEUE, "stopped 80 % of the time", "check what"),
        (
            (WAITER,),
            FULL_QUEUE,
            "waits for datagrams of other sockets 98 % of the time (in epoll_wait)",
            "have it read this socket, too",
        ),
        (
            (WAITER, SLEEPER),
            FULL_QUEUE,
            "sleeps 80 % of the time (in clock_nanosleep)",
            "have it read while",
        ),
        (
            (thread(97, recvmsg=1), thread(0, recvmsg=8)),
            0,
            "empties its queue, and never sleeps (97 %)",
            "",
        ),
        (
            (thread(30, 0, recvmsg=6, futex=3),),
            0,
            "waits for datagrams 47 % of the time, sleeps 23 % of the time (in futex)",
            "a larger SO_RCVBUF, 208KiB first (net.core.rmem_max allows no more): up to 100 packets ",
        ),
    ],
)
def test_a_reader_is_named_by_what_it_does(
    threads: tuple[ThreadUse, ...], queued: int, does: str, helps: str
) -> None:
    """A buffer is advised only to one that waits for datagrams, and empties its queue."""
    late, helping = reader(*threads, queued=queued)
    assert (does, True) == (late.does, helping.startswith(helps) and bool(helps) is bool(helping))
    assert ("SO_RCVBUF" in helping) is (late.wanted_bytes(V4.buffer_bytes) is not None)


@pytest.mark.parametrize("call", sorted(RECEIVING_CALLS))
@pytest.mark.parametrize("looks", range(1, LEAST_LOOKS))
def test_a_reader_whose_queue_is_full_at_a_look_or_two_waits_for_datagrams(
    call: str, looks: int
) -> None:
    """A burst had just come: it neither sleeps nor forgets the socket."""
    late, helping = reader(thread(1, **{call: 9}), looks=looks)
    assert ("waits for datagrams 99 % of the time", "") == (late.does, helping)


def test_a_buffer_has_room_for_twice_the_largest_burst() -> None:
    """What the kernel doubles; no size is large enough for a load, or the size is not known."""
    waits = thread(30, recvmsg=7)
    late = replace(reader(waits, queued=0)[0], limit_bytes=None)
    needed = V4.buffer_bytes + 2 * 100 * late.datagram_bytes  # type: ignore[operator]
    size_bytes = late.wanted_bytes(V4.buffer_bytes)
    assert size_bytes is not None
    assert size_bytes < needed <= 2 * size_bytes
    assert None is late.wanted_bytes(None)
    assert None is reader(waits, queued=0, lost=10**6)[0].wanted_bytes(V4.buffer_bytes)


@pytest.mark.parametrize(
    ("limit_bytes", "wanted_bytes", "says"),
    [
        (None, 2**19, "208KiB first, 512KiB at most (raise net.core.rmem_max if it allows less)"),
        (2**20, 2**19, "208KiB first, 512KiB at most (net.core.rmem_max allows 1MiB)"),
        (2**18, 2**18, "208KiB first, 256KiB at most (net.core.rmem_max allows no more)"),
        (106496, 2**19, "512KiB at most (raise net.core.rmem_max first, which is 104KiB)"),
    ],
)
def test_no_larger_buffer_is_advised_than_a_program_gets(
    limit_bytes: int | None, wanted_bytes: int, says: str
) -> None:
    """Above the limit setsockopt gives less, and says nothing."""
    late = replace(reader(thread(30, recvmsg=7), queued=0)[0], limit_bytes=limit_bytes)
    assert wanted_bytes == late.wanted_bytes(V4.buffer_bytes)
    assert says in late.helps(V4.buffer_bytes)


def test_a_datagram_over_loopback_takes_no_room_of_a_driver() -> None:
    """What comes by a card lies in a buffer of its driver's, of 2 KiB at least."""
    for name, datagram_bytes in (("receive0", 256 + 2048), ("lo", 256 + 512)):
        came = {f"link.{name}.rx_packets": 100, f"link.{name}.rx_bytes": 12800}
        late = replace(V4, drops=9)
        last = look(1, late, moved=counted(9, *RCVBUF) | came)
        first = look(0, V4, moved=dict.fromkeys(came, 0))
        (loss,) = watched(first, last).sockets
        assert loss.reader is not None
        assert datagram_bytes == loss.reader.datagram_bytes


def test_a_queue_that_was_empty_when_the_load_ended_is_no_burst() -> None:
    """A reader that was behind as long as it went on is then ahead, once."""
    first, waits = look(0, V4), thread(30, recvmsg=7)
    looks = [first]
    for second, queued in ((1, FULL_QUEUE), (2, FULL_QUEUE), (3, 0)):
        late = replace(V4, drops=5 + 9 * second, queued_bytes=queued)
        moved = counted(9 * second, *RCVBUF) | {"snmp.Udp.InDatagrams": second}
        looks.append(replace(look(second, late, moved=moved), threads={"dns 9": (waits,)}))
    (loss,) = watched(*looks).sockets
    assert loss.reader is not None
    assert (False, None) == (loss.reader.bursts, loss.reader.wanted_bytes(FULL_QUEUE))


@pytest.mark.parametrize(
    ("threads", "more", "never"),
    [
        ((), {"read": 0}, True),
        ((thread(0, futex=9),), {}, True),
        ((thread(0, futex=9),), {"looks": LEAST_LOOKS - 1}, False),
        ((thread(0, futex=9), thread(1, futex=9)), {}, False),
        ((thread(0, futex=9),) * THREADS_MAX, {}, False),
        ((thread(0, futex=9),), {"socket": replace(V4, processes=("dns 9", "dns 10"))}, False),
        ((thread(50),), {"counted_read": 0}, True),
        ((thread(0, futex=9),), {"counted_read": 1}, False),
    ],
)
def test_a_socket_is_never_read_if_nobody_can_have_read_it(
    threads: tuple[ThreadUse, ...], more: dict[str, Any], never: bool
) -> None:
    """By its own count, as nothing was read in the namespace, or as its program never ran."""
    late, helps = reader(*threads, **more)
    assert never is (late.does == "never reads")
    stopped = "check what stopped it (a signal, a debugger, a frozen cgroup, a lock), or "
    assert never is (helps == f"{stopped}whether it forgot the socket")


def test_who_may_not_see_threads_says_so() -> None:
    """Sockets of other users; without a look at threads nothing is said yet."""
    others, helps = reader(socket=replace(V4, processes=()))
    assert ("not known (needs root or the same user)", "") == (others.does, helps)
    assert ("", "") == (reader()[0].does, reader()[1])


def test_root_is_not_asked_to_be_root() -> None:
    """A socket whose process has just begun is known to nobody at first."""
    unowned = replace(V4, processes=())
    late = replace(unowned, drops=9, queued_bytes=FULL_QUEUE)
    second = look(1, late, moved=counted(4, *RCVBUF) | {"snmp.Udp.InDatagrams": 5})
    (loss,) = watched(look(0, unowned), replace(second, by_root=True)).sockets
    assert loss.reader is not None
    assert "not known yet (its process was not seen)" == loss.reader.does


def test_a_reader_is_not_blamed_for_what_a_filter_drops() -> None:
    """Nor is what was said of it forgotten when its socket drops nothing."""
    seen = {"dns 9": (SLEEPER,)}
    filtered = look(1, replace(V4, drops=9), moved=counted(4, "snmp.Udp.InErrors"))
    (loss,) = watched(look(0, V4), replace(filtered, threads=seen)).sockets
    assert (None, "") == (loss.reader, loss.reader_helps)
    moved = counted(4, *RCVBUF) | {"snmp.Udp.InDatagrams": 5}
    late = replace(look(1, replace(V4, drops=9), moved=moved), threads=seen)
    for counts in (None, {"1": SocketCount(9, 5)}):
        later = [replace(each, counts=counts) for each in (look(0, V4), late, look(2))]
        later[2] = replace(later[2], snapshot=replace(late.snapshot, clock_ns=2 * 10**9))
        (loss,) = watched(*later).sockets
        assert loss.reader is not None
        assert loss.reader.does.startswith("sleeps 80 %")


def test_what_threads_did_is_kept_for_some_looks_and_processes() -> None:
    """However many a host says it has."""
    state = None
    for number in range(2 * PROCESSES_KEPT):
        names = {f"dns {number}": (SLEEPER,) * 2 * THREADS_MAX, "always": (SLEEPER,)}
        state = after(state, replace(look(number), threads=names))
    assert state is not None
    assert (PROCESSES_KEPT, LOOKS_KEPT) == (len(state.threads), len(state.threads["always"]))
    assert {1, THREADS_MAX} == {len(w) for kept in state.threads.values() for w in kept}
