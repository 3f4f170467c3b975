"""What an exporter adds up, look after look: counters that never fall, by few labels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from analysis.build import facts
from analysis.test_watch import RCVBUF, ZERO, counted
from udpbench.analysis.watch import sums as module
from udpbench.analysis.watch.labels import GROUP_SETS, OTHER, USER_SETS
from udpbench.analysis.watch.sums import PATIENCE_NS, Sums
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import HostLook, Snapshot, SocketCount, ThreadUse, UdpSocket
from udpbench.model.survey import MachineLook, SpaceLook

DNS = UdpSocket(1, 11, 4, "0.0.0.0", 53, None, 0, 105, 0, 212992, 5, ("dns 9",))  # noqa: S104
FACTS = {"receive0": facts("right", "receive0", "10.0.0.1/24")}
HOST, POD = 1, 2


def look(
    second: int, *sockets: UdpSocket, moved: dict[str, int] | None = None, **also: object
) -> HostLook:
    """Return a look at a time, with the counters that are not 0."""
    counters = {**ZERO, "cpu.0.softirq_ns": second, **(moved or {})}
    snapshot = Snapshot("right", second * SECOND_NS, counters)
    return replace(HostLook(snapshot, ("receive0",), sockets), **also)  # type: ignore[arg-type]


def survey(own: HostLook, *others: SpaceLook, **also: object) -> MachineLook:
    """Return a survey of the host's namespace and others."""
    units = {process: "dns.service" for each in own.sockets for process in each.processes}
    whole = MachineLook(
        own.snapshot.clock_ns, (SpaceLook(HOST, "host", own), *others), units, (32768, 60999)
    )
    return replace(whole, **also)  # type: ignore[arg-type]


def added(surveys: Iterable[MachineLook], *, with_address: bool = False) -> Sums:
    """Return the sums after some surveys."""
    sums = Sums(with_address)
    for each in surveys:
        sums.add(each, FACTS)
    return sums


def dropped(sums: Sums) -> dict[tuple[str, str], int]:
    """Return stage and port → packets."""
    return {(stage, labels.port): packets for (stage, labels), packets in sums.dropped.items()}


def test_a_socket_has_its_labels_and_its_stage() -> None:
    """Process without number, unit, namespace, port and family; what it lost before is not its own."""
    full = replace(DNS, drops=25)
    sums = added(
        [survey(look(0, DNS)), survey(look(5, full, moved=counted(20, *RCVBUF)))], with_address=True
    )
    assert {("udp_rcvbuf", ("dns", "dns.service", "host", "53", "4", "0.0.0.0")): 20} == {  # noqa: S104
        (stage, tuple(labels)): packets for (stage, labels), packets in sums.dropped.items()
    }
    assert 20 == sums.stages["udp_rcvbuf", ""]
    assert 0 == sums.stages["udp_no_port", ""]
    assert {"udp_rcvbuf", "rx_backlog"} <= sums.observable
    assert {0: 5} == sums.softirq_ns


def test_what_may_be_either_has_both_names() -> None:
    """Without a character that a matcher of Prometheus would read as its own."""
    moved = {
        **counted(30, "snmp.Udp.InErrors"),
        "snmp.Udp.RcvbufErrors": 20,
        "snmp.Udp.MemErrors": 10,
    }
    sums = added([survey(look(0, DNS)), survey(look(5, replace(DNS, drops=35), moved=moved))])
    assert {("udp_rcvbuf_or_udp_memory", "53"): 30} == dropped(sums)


def test_a_closed_socket_stays_in_the_sum_and_a_counter_wraps() -> None:
    """No counter ever falls."""
    sums = Sums()
    course = [
        survey(look(0, replace(DNS, drops=2**32 - 10))),
        survey(look(5, replace(DNS, drops=20), moved=counted(30, *RCVBUF))),
        survey(look(10, moved=counted(30, *RCVBUF), ended=(1,))),
        survey(look(15, replace(DNS, cookie=3, drops=7), moved=counted(37, *RCVBUF))),
        survey(look(700, replace(DNS, cookie=3, drops=9), moved=counted(39, *RCVBUF))),
    ]
    seen = []
    for each in course:
        sums.add(each, FACTS)
        seen.append((sums.stages["udp_rcvbuf", ""], dropped(sums).get(("udp_rcvbuf", "53"), 0)))
    assert [(0, 0), (30, 30), (30, 30), (37, 37), (39, 39)] == seen


def test_an_interface_that_comes_back_begins_at_0() -> None:
    """What it had lost before stays."""
    course = ((5, 5), (5, 0), (8, 3))
    losses = [
        {"softnet.cpu0.dropped": whole, "link.receive0.rx_dropped": own} for whole, own in course
    ]
    looks = [look(0), *(look(5 * n, moved=lost) for n, lost in enumerate(losses, start=1))]
    sums, seen = Sums(), []
    for each in looks:
        sums.add(survey(each), FACTS)
        seen.append(sums.stages["rx_backlog", "receive0"])
    assert [0, 5, 5, 8] == seen


def test_other_namespaces_are_counted_from_when_they_came() -> None:
    """Not what was lost before the first survey, nor after a pause; gone ones stay in the sum."""
    web = replace(DNS, drops=100, port=443, processes=("web 3",))

    def pod(second: int, *sockets: UdpSocket, lost: int) -> SpaceLook:
        each = look(second, *sockets, moved=counted(lost, *RCVBUF))
        return SpaceLook(POD, "pod", replace(each, interfaces=()))

    old = [
        survey(look(0), pod(0, web, lost=100)),
        survey(look(5), pod(5, replace(web, drops=101), lost=101)),
        survey(look(10), SpaceLook(POD, "pod", None)),
        survey(look(15)),
        survey(look(20), pod(20, replace(web, drops=109), lost=109)),
        survey(look(25), pod(25, replace(web, drops=110), lost=110)),
    ]
    sums = added(old)
    assert {("udp_rcvbuf", "443"): 2} == dropped(sums)
    assert (2, {"host": True, "pod": True}) == (sums.stages["udp_rcvbuf", ""], sums.readable)
    new = added([survey(look(0)), survey(look(5), pod(5, web, lost=100)), survey(look(10))])
    assert {("udp_rcvbuf", "443"): 100} == dropped(new)
    assert 100 == new.stages["udp_rcvbuf", ""]
    many = added([survey(look(0), left_out=1), survey(look(5), pod(5, web, lost=100))])
    assert {} == dropped(many)


def test_a_namespace_that_cannot_be_seen_is_named() -> None:
    """An ordinary user knows of processes that there are others."""
    sums = added([survey(look(0), SpaceLook(POD, "pod", None), sees_all=False)])
    assert {"host": True, "pod": False, "unknown": False} == sums.readable


def test_ports_of_clients_are_one() -> None:
    """The kernel gives another one each time."""
    clients = [replace(DNS, cookie=n, port=40000 + n, drops=n) for n in range(1, 9)]
    sums = added([survey(look(0)), survey(look(5, *clients, moved=counted(36, *RCVBUF)))])
    assert {("udp_rcvbuf", OTHER): 36} == dropped(sums)
    assert 0 == sums.folded


def test_a_user_with_names_without_end_has_a_budget() -> None:
    """Beyond it sockets are summed, for good; other users keep their names."""
    names = [
        replace(DNS, cookie=n, uid=1000, drops=1, processes=(f"evil{n} {n}",))
        for n in range(10, 10 + 2 * USER_SETS)
    ]
    course = [survey(look(0)), survey(look(5, *names, moved=counted(len(names), *RCVBUF)))]
    again = [replace(each, drops=2) for each in names]
    mine = replace(DNS, cookie=9, drops=3, uid=105)
    course.append(survey(look(10, *again, mine, moved=counted(2 * len(names) + 3, *RCVBUF))))
    sums = added(course)
    shown = {labels.comm: packets for (_, labels), packets in sums.dropped.items()}
    assert USER_SETS + 2 == len(shown)
    assert (2 * USER_SETS, 3) == (shown[OTHER], shown["dns"])
    assert USER_SETS == sums.folded


def test_many_users_have_a_budget_together() -> None:
    """Which the system's own do not share."""
    names = [
        replace(DNS, cookie=n, uid=100_000 + n, drops=1, processes=(f"evil{n} {n}",))
        for n in range(10, 10 + 2 * GROUP_SETS)
    ]
    mine = replace(DNS, cookie=9, drops=3, uid=61200)
    moved = counted(len(names) + 3, *RCVBUF)
    sums = added([survey(look(0)), survey(look(5, *names, mine, moved=moved))])
    shown = {labels.comm: packets for (_, labels), packets in sums.dropped.items()}
    assert (GROUP_SETS + 2, 3) == (len(shown), shown["dns"])


def test_idle_sockets_take_half_of_the_room() -> None:
    """So that a socket that loses has a name, whoever was there before."""
    idle = [replace(DNS, cookie=n, port=n, drops=0) for n in range(100, 100 + 2 * USER_SETS)]
    late = replace(DNS, cookie=5, port=5, drops=8)
    sums = added(
        [
            survey(look(0)),
            survey(look(5, *idle)),
            survey(look(10)),
            survey(look(15, late, moved=counted(8, *RCVBUF))),
        ]
    )
    assert USER_SETS // 2 + 2 == len(sums.gauges)
    assert {("udp_rcvbuf", "5"): 8} == dropped(sums)


def test_an_idle_socket_that_loses_at_last_has_its_name_for_the_whole_loss() -> None:
    """By its own counter, and where BPF counts it: there was no room for it while it was idle."""
    idle = [replace(DNS, cookie=n, port=n, drops=0) for n in range(100, 100 + USER_SETS)]
    lossy = replace(idle[-1], drops=8)
    counts = {str(lossy.cookie): SocketCount(8, 0, {"SOCKET_RCVBUFF": 8})}
    for exact in ({}, {"counts": counts, "names_reasons": True}):
        begun = {"counts": {}} if exact else {}
        course = [
            survey(look(0, *idle, **begun)),
            survey(look(5, **begun)),
            survey(look(10, lossy, moved=counted(8, *RCVBUF), **exact)),
        ]
        assert {("udp_rcvbuf", str(lossy.port)): 8} == dropped(added(course))


def test_a_loss_waits_for_its_process() -> None:
    """A search for it may be due later; for a minute, or until the socket ends."""
    nobody = replace(DNS, processes=(), drops=5)
    moved = counted(5, *RCVBUF)
    course = [survey(look(0)), survey(look(5, nobody, moved=moved))]
    waiting = added(course)
    assert ({}, 5) == (waiting.dropped, waiting.stages["udp_rcvbuf", ""])
    known = added([*course, survey(look(10, replace(nobody, processes=("dns 9",)), moved=moved))])
    assert ["dns"] == [labels.comm for _, labels in known.dropped]
    late = added([*course, survey(look(6 + PATIENCE_NS // SECOND_NS, moved=moved))])
    ended = added([*course, survey(look(10, moved=moved, ended=(1,)))])
    assert ["unknown"] == [labels.comm for _, labels in late.dropped]
    assert ["unknown"] == [labels.comm for _, labels in ended.dropped]


def test_exact_counts_have_the_kernels_reasons_and_miss_no_socket() -> None:
    """Those that lived between two looks, too, and what a closed one had lost at last."""

    def counts(**of: SocketCount) -> dict[str, SocketCount]:
        return {key[1:]: count for key, count in of.items()}

    plain = replace(DNS, drops=0)
    exact = {"names_reasons": True}
    course = [
        survey(look(0, plain, counts={}, **exact)),
        survey(
            look(
                5,
                replace(plain, drops=6),
                counts=counts(_1=SocketCount(10, 4, {"SOCKET_RCVBUFF": 6})),
                **exact,
            )
        ),
        survey(look(10, counts=counts(_1=SocketCount(12, 6, {"SOCKET_RCVBUFF": 6})), **exact)),
        survey(
            look(15, ended=(1,), counts=counts(_7=SocketCount(3, 1, {"SOCKET_FILTER": 2})), **exact)
        ),
        survey(
            look(
                20,
                counts=counts(_1=SocketCount(20, 9, {"SOCKET_RCVBUFF": 10, "PROTO_MEM": 1})),
                **exact,
            )
        ),
        *(survey(look(25 + n, counts={}, **exact)) for n in range(4)),
    ]
    sums = added(course)
    assert {("udp_rcvbuf", "53"): 10, ("udp_memory", "53"): 1, ("udp_filter", OTHER): 2} == dropped(
        sums
    )
    assert [20, 3] == [*sums.arrived.values()]
    assert [9, 1] == [*sums.read.values()]
    assert 1 == sums.stages["udp_memory", ""]


def test_a_checksum_that_is_found_wrong_at_the_read_is_the_rest() -> None:
    """The kernel gives no reason for it; the socket has counted it."""
    exact = {"names_reasons": True}
    plain = replace(DNS, drops=0)
    named = {"1": SocketCount(10, 4, {"SOCKET_RCVBUFF": 6})}
    sums = added(
        [
            survey(look(0, plain, counts={}, **exact)),
            survey(look(5, replace(plain, drops=9), counts=named, **exact)),
            survey(look(10, counts={}, **exact)),
            survey(look(15, counts={}, **exact)),
        ]
    )
    assert {("udp_rcvbuf", "53"): 6, ("udp_checksum", "53"): 3} == dropped(sums)


def test_counts_without_reasons_leave_those_of_the_counters() -> None:
    """Before Linux 6.11."""
    named = {"1": SocketCount(10, 4, {})}
    full = replace(DNS, drops=25)
    sums = added(
        [
            survey(look(0, DNS, counts={})),
            survey(look(5, full, moved=counted(20, *RCVBUF), counts=named)),
            survey(look(10, counts={})),
        ]
    )
    assert ({("udp_rcvbuf", "53"): 20}, [10], [4]) == (
        dropped(sums),
        [*sums.arrived.values()],
        [*sums.read.values()],
    )


def test_queues_are_of_now_and_a_reader_that_stopped_is_dated() -> None:
    """By when the queue was last seen empty or shorter; sockets with the same labels are summed."""
    full = replace(DNS, queued_bytes=2000)
    two = replace(DNS, cookie=2, inode=12)
    sums = Sums()
    for second, sockets in (
        (0, [full, two]),
        (5, []),
        (10, [replace(full, queued_bytes=1000)]),
        (15, []),
        (20, []),
    ):
        sums.add(survey(look(second, *sockets)), FACTS)
    ((labels, gauges),) = sums.gauges.items()
    assert ("dns", 1000, 2 * 212992, 10 * SECOND_NS) == (
        labels.comm,
        gauges.queue_bytes,
        gauges.buffer_bytes,
        gauges.last_read_ns,
    )
    sums.add(survey(look(25, replace(full, queued_bytes=0))), FACTS)
    (gauges,) = sums.gauges.values()
    assert 25 * SECOND_NS == gauges.last_read_ns


def test_what_readers_did_is_told_by_socket() -> None:
    """Programs of the same name are not each other's; those of sockets without labels ``other``."""
    use = ThreadUse("dns", 3 * SECOND_NS, SECOND_NS, 5 * SECOND_NS, {"R": 3}, {"recvmsg": 1})
    idle = ThreadUse("dns", 0, 0, 5 * SECOND_NS, {"S": 3}, {"recvmsg": 1})
    seen = {"dns 9": (use,), "dns 10": (idle,), "else 7": (use,)}
    two = replace(DNS, cookie=2, inode=12, port=54, processes=("dns 10",))
    calm = replace(DNS, cookie=3, inode=13, port=55)
    begin = survey(look(0, DNS, two, calm))
    full = [replace(each, drops=25) for each in (DNS, two)]
    sums = added([begin, survey(look(5, *full, calm, moved=counted(40, *RCVBUF), threads=seen))])
    assert {
        ("running", "53"): 3 * SECOND_NS,
        ("runnable", "53"): SECOND_NS,
        ("sleeping", "53"): SECOND_NS,
        ("running", "54"): 0,
        ("runnable", "54"): 0,
        ("sleeping", "54"): 5 * SECOND_NS,
        ("running", OTHER): 3 * SECOND_NS,
        ("runnable", OTHER): SECOND_NS,
        ("sleeping", OTHER): SECOND_NS,
    } == {(state, labels.port): spent_ns for (state, labels), spent_ns in sums.reader_ns.items()}


def test_a_thread_that_waits_beside_a_full_queue_reads_another_socket() -> None:
    """From the third look on at which the queue was full; once it is emptied, it may wait for it."""
    busy = ThreadUse("dns", 4 * SECOND_NS, SECOND_NS, 5 * SECOND_NS, {"R": 3})
    idle = ThreadUse("dns/2", 0, 0, 5 * SECOND_NS, {"S": 3}, {"epoll_wait": 3})
    drops, queues = range(5, 31, 5), (0, *[DNS.buffer_bytes] * 4, 0)
    looks = [
        look(
            *(5 * number, replace(DNS, drops=each, queued_bytes=queued)),
            moved=counted(20 * number, *RCVBUF),
            threads={"dns 9": (busy, idle)} if number else {},
        )
        for number, (each, queued) in enumerate(zip(drops, queues, strict=True))
    ]
    seen, sums = [], Sums()
    for each in looks:
        sums.add(survey(each), FACTS)
        spent = {state: spent_ns // SECOND_NS for (state, _), spent_ns in sums.reader_ns.items()}
        seen.append([spent.get(state, 0) for state in ("running", "runnable", "sleeping")])
    assert [
        [0, 0, 0],
        [0, 0, 5],
        [0, 0, 10],
        [4, 1, 10],
        [8, 2, 10],
        [8, 2, 15],
    ] == seen


def test_many_interfaces_are_one() -> None:
    """Whoever has a namespace may make some; none changes its name, or a counter would fall."""
    sums = Sums()
    lost = {("rx_ring", f"eth{n}"): 1 for n in range(40)}
    few = sums._few_devices({**lost, ("rx_ip", ""): 9})
    assert module.MOST_DEVICES + 2 == len(few)
    assert (8, 9) == (few["rx_ring", OTHER], few["rx_ip", ""])
    later = sums._few_devices({("rx_ring", "veth1"): 0, **dict(reversed(lost.items()))})
    assert {**later, ("rx_ip", ""): 9} == few


def test_a_namespace_whose_number_is_anothers_by_now_has_its_own_name() -> None:
    """The kernel gives a number anew at once; of the one before only its sockets keep the name."""

    def space(second: int, name: str, *sockets: UdpSocket, lost: int = 0) -> SpaceLook:
        each = look(second, *sockets, moved=counted(lost, *RCVBUF))
        ended = (1,) if name != "dns" else ()
        return SpaceLook(POD, name, replace(each, interfaces=(), ended=ended))

    old = replace(DNS, processes=())
    evil = replace(DNS, cookie=2, drops=0, uid=4321, processes=("evil 9",))
    sums = added(
        [
            survey(look(0), space(0, "dns", replace(old, drops=0))),
            survey(look(5), space(5, "dns", replace(old, drops=3), lost=3)),
            survey(look(10), space(10, f"{POD}", evil, lost=3)),
            survey(look(15), space(15, f"{POD}", replace(evil, drops=8), lost=11)),
        ]
    )
    assert {("dns", 3), (f"{POD}", 8)} == {
        (labels.netns, packets) for (_, labels), packets in sums.dropped.items()
    }


def test_of_namespaces_that_are_gone_so_many_are_known() -> None:
    """A user may make some without end."""
    sums = Sums()
    for number in range(module.SEEN_KEPT + 10):
        sums.add(survey(look(number), SpaceLook(number + 5, "", None)), FACTS)
    assert module.SEEN_KEPT >= len(sums._seen) - 1


def test_of_a_namespace_so_many_sockets_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further ones are not counted; those that are known are."""
    monkeypatch.setattr(module, "MOST_SOCKETS", 2)
    many = [replace(DNS, cookie=n, port=n, drops=0) for n in range(1, 5)]
    more = [replace(each, drops=3) for each in many]
    sums = added([survey(look(0, *many)), survey(look(5, *more, moved=counted(12, *RCVBUF)))])
    assert {("udp_rcvbuf", "1"): 3, ("udp_rcvbuf", "2"): 3} == dropped(sums)
