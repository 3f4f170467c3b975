"""What a recording says: when a loss began, at which socket, and what had changed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from analysis.test_sums import DNS, FACTS, POD, look, survey
from analysis.test_watch import CHECKSUM, RCVBUF, counted
from udpbench.analysis.watch import incidents
from udpbench.analysis.watch.history import after
from udpbench.analysis.watch.host import live_host
from udpbench.analysis.watch.incidents import (
    Event,
    Flight,
    Loss,
    _CpuTimes,
    _Open,
    _Replay,
    course_of,
)
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import UdpSocket
from udpbench.model.survey import MachineLook, Moment, SpaceLook
from udpbench.report.flight_report import page, text

LOST = 50


def second(
    number: int, *sockets: UdpSocket, lost: int = 0, came: int = 0, **also: object
) -> MachineLook:
    """Return the survey of a second, with what was lost until then."""
    moved = {**counted(lost, *RCVBUF), **counted(came, "snmp.Ip.InReceives", "snmp.Ip.InDelivers")}
    names = ("settings", "changed", "processes", "cpu_time")
    given = {name: also.pop(name) for name in names if name in also}
    each = survey(look(number, *sockets, moved=moved, **also))  # type: ignore[arg-type]
    return replace(each, wall_ns=number * SECOND_NS, **given)  # type: ignore[arg-type]


def course(surveys: list[MachineLook], since: int = 0) -> Flight:
    """Return what they say."""
    given = (Moment(each, FACTS, whole=number == 0) for number, each in enumerate(surveys))
    return course_of(given, since * SECOND_NS)


def losing(first: int, last: int, whole: int) -> Iterator[MachineLook]:
    """Yield seconds in which a socket loses packets from one to another."""
    for number in range(whole):
        lost = LOST * min(max(number - first, 0), last - first)
        sockets = (replace(DNS, drops=5 + lost),) if number == 0 or first < number <= last else ()
        yield second(number, *sockets, lost=lost, came=1000 * number)


def test_a_loss_has_its_start_its_socket_and_its_end() -> None:
    """It began after the last look without it."""
    seen = course([*losing(20, 25, 60)])
    ((incident,), (loss,)) = (seen.incidents, seen.incidents[0].losses)
    assert (20 * SECOND_NS, 25 * SECOND_NS) == (incident.start_ns, incident.end_ns)
    assert ("dns 9 0.0.0.0:53", "host", ("udp_rcvbuf",)) == (loss.place, loss.netns, loss.stages)
    assert (5 * LOST, float(LOST)) == (loss.packets, loss.peak_pps)
    assert loss.helps
    assert (0, 59 * SECOND_NS, 59) == (seen.since_ns, seen.until_ns, len(seen.seconds))
    assert {LOST: 5} == {
        pps: len([s for s in seen.seconds if s.lost.get("udp_rcvbuf") == pps]) for pps in (LOST,)
    }


def test_a_pause_makes_it_another() -> None:
    """One that is short does not."""
    first = [*losing(20, 22, 40)]
    again = [
        second(n, replace(DNS, drops=5 + 2 * LOST + 7), lost=2 * LOST + 7)
        if n == 60
        else second(n, lost=2 * LOST)
        for n in range(40, 61)
    ]
    assert [20, 59] == [each.start_ns // SECOND_NS for each in course(first + again).incidents]
    soon = [second(n, replace(DNS, drops=5 + 3 * LOST), lost=3 * LOST) for n in (29,)]
    assert 1 == len(course([*first[:29], *soon]).incidents)


def test_what_vanishes_is_an_event() -> None:
    """An interface, or a network namespace; unless there are too many to read all."""
    pod = SpaceLook(POD, "pod", look(0))
    first = survey(look(0), pod)
    gone = survey(look(1, interfaces=("lo",)))
    events = [(each.what, each.netns) for each in course([first, gone, gone]).events]
    assert [
        ("receive0 is gone: its counters end there", ""),
        ("network namespace pod is gone", ""),
    ] == events
    assert () == course([first, replace(survey(look(1)), left_out=3)]).events


def test_what_had_changed_is_named() -> None:
    """Settings, buffers, sockets, the load, what is busy, rules: those about the start."""
    base = {
        "settings": {"net.core.rmem_max": "212992"},
        "changed": {"changed.firewall": 1, "changed.routes": 0},
    }
    new = {
        "settings": {"net.core.rmem_max": "4096"},
        "changed": {"changed.firewall": 2, "changed.routes": 0},
    }
    mine = replace(DNS, cookie=8, port=99, processes=("web 7",))
    small = replace(DNS, buffer_bytes=4096)
    days = [
        second(
            n,
            *([DNS, mine] if n == 0 else []),
            came=100 * n,
            **base,
            processes={"hog 5": 0, "web 7": 0},
        )
        for n in range(40)
    ]
    days.append(
        second(40, small, came=4000, **new, processes={"hog 5": SECOND_NS, "web 7": 0}, ended=(8,))
    )
    days.append(second(41, replace(small, drops=25), lost=20, came=9000, **new))
    days.append(second(42, replace(mine, cookie=9), lost=20, came=9100, **new))
    days.append(second(43, replace(mine, cookie=10), lost=20, came=9100, **new))
    days.append(second(44, lost=20, came=9100, **new, ended=(10,)))
    (incident,) = course(days).incidents
    assert [
        "net.core.rmem_max: 212992 → 4096",
        "firewall changed",
        "dns 9 0.0.0.0:53: receive buffer 104KiB → 2KiB",
        "web 7 closed 0.0.0.0:99",
        "hog 5 uses 100 % of a CPU",
        "packets that come: 100 pps → 5.0 kpps",
        "web 7 opened 0.0.0.0:99",
    ] == [event.what for event in incident.events]
    assert {40, 41, 42} == {event.at_ns // SECOND_NS for event in incident.events}


def test_facts_of_interfaces_are_settings() -> None:
    """By interface and key."""
    given = [
        Moment(second(0, DNS), FACTS, whole=True),
        Moment(second(1), {"receive0": replace(FACTS["receive0"], mtu=576)}),
    ]
    (event,) = course_of(given, 0).events
    assert event.what.startswith("receive0: mtu: ")
    assert event.what.endswith("→ 576")


def test_a_segment_that_begins_changes_nothing() -> None:
    """Its whole state is the state before; sockets that are gone have closed."""
    surveys = [*losing(20, 25, 60)]
    given = [
        Moment(
            replace(
                each,
                spaces=(
                    replace(
                        each.spaces[0],
                        look=replace(
                            each.spaces[0].look,
                            sockets=(replace(DNS, drops=5 + LOST * min(max(n - 20, 0), 5)),),
                        ),
                    ),
                ),
            ),  # type: ignore[type-var,arg-type]
            FACTS,
            whole=True,
        )
        for n, each in enumerate(surveys)
    ]
    whole = course_of(given, 0)
    assert course(surveys).incidents == whole.incidents
    assert () == whole.events


def test_where_nobody_looked_is_said() -> None:
    """What was lost meanwhile is not known, and nothing is made of it."""
    surveys = [second(n, *([DNS] if n in (0, 100) else [])) for n in (*range(5), *range(100, 105))]
    surveys[5] = second(100, replace(DNS, drops=999), lost=994)
    surveys[6:] = [second(n, lost=994) for n in range(101, 105)]
    seen = course(surveys)
    assert ((4 * SECOND_NS, 100 * SECOND_NS),) == seen.gaps
    assert () == seen.incidents


def test_what_was_before_is_not_told() -> None:
    """It only says what was there."""
    surveys = [*losing(20, 25, 60)]
    assert () == course(surveys, since=30).incidents
    (late,) = course(surveys, since=22).incidents
    assert 22 == late.start_ns // SECOND_NS


def test_what_a_rule_refuses_is_a_loss_if_it_is_more_than_usual() -> None:
    """Anybody may send what a firewall is to refuse; a rule that is new refuses more."""

    def refused(number: int) -> MachineLook:
        came = 10_000 * number
        lost = 10 * number + 5000 * max(number - 30, 0)
        moved = {"snmp.Ip.InReceives": came, "snmp.Ip.InDelivers": came - lost}
        return replace(survey(look(number, moved=moved)), wall_ns=number * SECOND_NS)

    assert () == course([refused(n) for n in range(30)]).incidents
    (incident,) = course([refused(n) for n in range(60)]).incidents
    ((loss,), first) = (incident.losses, incident.start_ns // SECOND_NS)
    assert ("rx_netfilter", 30) == (loss.place, first)


@pytest.mark.parametrize(
    ("name", "enter"),
    [
        ("blue", "ip netns exec blue "),
        ("my blue", "ip netns exec 'my blue' "),
        ("402", """nsenter -t "$(lsns -nt net -o NS,PID | awk '$1 == 402 {print $2}')" -n """),
    ],
)
def test_what_helps_in_another_namespace_enters_it(name: str, enter: str) -> None:
    """By its name, or by a process that is found when it is typed."""

    def pod(number: int) -> SpaceLook:
        lost = 10 * number + 5000 * max(number - 30, 0)
        came = 10_000 * number
        moved = {"snmp.Ip.InReceives": came, "snmp.Ip.InDelivers": came - lost}
        return SpaceLook(POD, name, replace(look(number, moved=moved), interfaces=()))

    surveys = [replace(survey(look(n), pod(n)), wall_ns=n * SECOND_NS) for n in range(60)]
    (incident,) = course(surveys).incidents
    (loss,) = incident.losses
    assert f"({enter}iptables -vnL, {enter}nft list ruleset)" in loss.helps


def test_a_stage_before_any_socket_is_a_place_and_another_namespace_has_its_name() -> None:
    """For a stage that sockets have, theirs are named."""

    def pod(number: int, drops: int) -> SpaceLook:
        each = look(number, replace(DNS, drops=drops), moved=counted(drops, *RCVBUF))
        return SpaceLook(POD, "blue", replace(each, interfaces=()))

    surveys = []
    for n in range(30):
        moved = counted(max(n - 10, 0), "softnet.cpu0.dropped", "link.receive0.rx_dropped")
        each = survey(look(n, moved=moved), pod(n, max(n - 20, 0)))
        surveys.append(replace(each, wall_ns=n * SECOND_NS))
    assert [[("rx_backlog receive0", "host", 10)], [("dns 9 0.0.0.0:53", "blue", 20)]] == [
        [(loss.place, loss.netns, loss.start_ns // SECOND_NS) for loss in incident.losses]
        for incident in course(surveys).incidents
    ]


def test_a_packet_is_lost_once() -> None:
    """What a socket says of a checksum is not said of the stage again."""
    surveys = []
    for n in range(30):
        lost = 7 * (n > 10)
        sockets = (replace(DNS, drops=5 + lost),) if n in (0, 11) else ()
        each = survey(look(n, *sockets, moved=counted(lost, *CHECKSUM)))
        surveys.append(replace(each, wall_ns=n * SECOND_NS))
    ((loss,),) = [incident.losses for incident in course(surveys).incidents]
    assert ("dns 9 0.0.0.0:53", ("udp_checksum",), 7) == (loss.place, loss.stages, loss.packets)


def test_what_changed_in_another_namespace_is_no_cause() -> None:
    """What the machine has, is."""

    def pod(number: int, *sockets: UdpSocket) -> SpaceLook:
        return SpaceLook(POD, "blue", replace(look(number, *sockets), interfaces=()))

    surveys = []
    for n, each in enumerate(losing(20, 25, 60)):
        sockets = [DNS] if n == 0 else [replace(DNS, buffer_bytes=1)] * (n == 15)
        settings = {"a": str(n > 16)}
        surveys.append(replace(each, spaces=(*each.spaces, pod(n, *sockets)), settings=settings))
    seen = course(surveys)
    (incident,) = seen.incidents
    assert ["a: False → True"] == [
        event.what for event in incident.events if event.what[:2] == "a:"
    ]
    assert ["blue"] == [event.netns for event in seen.events if "buffer" in event.what]
    assert not [event for event in incident.events if "buffer" in event.what]


def test_what_busy_cpus_did_is_said() -> None:
    """In the first minute of a loss, and how busy they had been in the minute before."""
    light = {"0 rx_udp": SECOND_NS // 10, "10 web": SECOND_NS // 10}
    full = {"0 rx_udp": 6 * SECOND_NS // 10, "0 dns": 3 * SECOND_NS // 10, "1 web": SECOND_NS}
    surveys = [
        replace(each, cpu_time=full if number > 20 else light if number else {})
        for number, each in enumerate(losing(20, 25, 40))
    ]
    (incident,) = course(surveys).incidents
    assert (
        "CPU 0: 90 % busy (rx_udp 60 %, dns 30 %); before 10 %",
        "CPU 1: 100 % busy (web 100 %)",
    ) == incident.cpus
    assert () == course([*losing(20, 25, 40)]).incidents[0].cpus


def test_sockets_that_come_and_go_all_the_time_hide_no_other_change() -> None:
    """Twenty a minute of a namespace are kept, the rest is counted; so is what is too many in all."""
    coming = [
        second(number, *(replace(DNS, cookie=100 * number + k, port=99) for k in range(30)))
        for number in range(1, 50)
    ]
    setting = second(50, settings={"net.core.rmem_max": "4096"})
    first = second(0, DNS, settings={"net.core.rmem_max": "212992"})
    surveys = [replace(each, settings=first.settings) for each in coming]
    seen = course([first, *surveys, setting])
    kinds = [event.what.split()[-2] for event in seen.events]
    assert (20, 1) == (kinds.count("opened"), len(kinds) - kinds.count("opened"))
    assert seen.left_out > 1000


def test_what_one_namespace_loses_in_plenty_hides_no_loss_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has room of its own, and all together have some."""
    plenty = Loss("a", "blue", ("udp_rcvbuf",), 0, SECOND_NS, 1, 1.0)

    def kept(losses: list[Loss]) -> tuple[Counter[str], int, int]:
        replayed = _Replay(0)
        for each in losses:
            replayed._extend(each)
        seen = replayed.course()
        netns = (loss.netns for incident in seen.incidents for loss in incident.losses)
        return Counter(netns), seen.left_out_losses, seen.left_out_packets

    losses = [replace(plenty, place=f"a {number}") for number in range(2500)]
    losses.append(replace(plenty, netns="green", packets=7))
    assert ({"blue": 1000, "green": 1}, 1500, 1500) == kept(losses)
    monkeypatch.setattr(incidents, "MOST_KEPT", 900)
    own = replace(plenty, netns="host")
    assert ({"blue": 899, "green": 1, "host": 1}, 1601, 1601) == kept([*losses, own])


def test_what_a_user_loses_in_plenty_hides_no_loss_of_another_nor_the_sum() -> None:
    """The user's largest losses stay, those of a thousand sockets do not push others' out."""
    replayed = _Replay(0)
    loss = Loss("", "host", ("udp_rcvbuf",), 0, SECOND_NS, 1, 1.0)
    for number in range(3000):
        replayed._extend(replace(loss, place=f"idle {number}"), 4321)
    large = replace(loss, place="web 7", packets=50)
    replayed._extend(large, 4321)
    replayed._extend(replace(large, start_ns=SECOND_NS, end_ns=2 * SECOND_NS), 4321)
    replayed._extend(replace(loss, place="dns 9"), 101)
    for user in range(2000, 19_000):
        replayed._extend(replace(loss, place=f"user {user}"), user)
    seen = replayed.course()
    ((first, *others),) = [incident.losses for incident in seen.incidents]
    assert ("web 7", 100) == (first.place, first.packets)
    assert "dns 9" in {each.place for each in others}
    listed = sum(each.packets for each in (first, *others))
    assert 3000 + 100 + 1 + 17_000 == listed + seen.left_out_packets
    assert len([first, *others]) <= incidents.MOST_KEPT + 1
    assert len(replayed.open) <= incidents.MOST_KEPT + 1


def test_what_a_user_changes_in_plenty_hides_no_change_of_another_nor_of_the_machine() -> None:
    """Busy processes, receive buffers and sockets that come and go have room of their own."""
    replayed = _Replay(0)
    replayed._use(Event(0, "early", kind="busy"), 0.2)
    for number in range(1500):
        replayed._use(Event(number, f"x {number}", kind="busy"), 0.4)
        replayed._event("buffer", number, "x: receive buffer", "host", 4321)
        replayed._coming(number, "x closed", "host", 4321)
    replayed._use(Event(1500, "backup 9 uses 99 % of a CPU", kind="busy"), 0.99)
    replayed._event("change", 0, "net.core.rmem_max: 1 → 2")
    replayed._event("buffer", 0, "dns: receive buffer", "host", 101)
    replayed._coming(0, "dns closed", "host", 101)
    assert ["net.core.rmem_max: 1 → 2", "dns: receive buffer", "dns closed"] == [
        event.what for event in replayed.events[-3:]
    ]
    assert 502 + 500 + 1480 == replayed.course().left_out
    assert "backup 9 uses 99 % of a CPU" in {event.what for event in replayed.events}
    assert "early" not in {event.what for event in replayed.events}


def test_what_had_changed_before_each_loss_of_an_incident_is_named() -> None:
    """Also before one that began while another went on."""
    other = replace(DNS, cookie=8, port=99, processes=("web 7",))
    surveys = []
    for number in range(120):
        dns, web = LOST * max(number - 5, 0), LOST * max(number - 100, 0)
        sockets = (replace(DNS, drops=5 + dns), replace(other, drops=web))
        value = "4096" if number >= 98 else "212992"
        surveys.append(
            second(number, *sockets, lost=dns + web, settings={"net.core.rmem_max": value})
        )
    (incident,) = course(surveys).incidents
    assert 2 == len(incident.losses)
    assert [98] == [event.at_ns // SECOND_NS for event in incident.events]


# --- recordings of anybody -------------------------------------------------------------------------


def strange(cookie: int) -> UdpSocket:
    """Return another socket at the same port."""
    return replace(DNS, cookie=cookie)


def test_many_incidents_are_told_soon() -> None:
    """However many events and looks at CPUs there are: neither is walked for each of them."""
    replayed = _Replay(0)
    begin_s = time.process_time()
    for number in range(8000):
        start_ns = number * 20 * SECOND_NS
        loss = Loss("dns", "host", ("udp_rcvbuf",), start_ns, start_ns + SECOND_NS, 1, 1.0)
        replayed.losses.setdefault("own", []).append(_Open(loss, loss.end_ns, None))
        replayed.events.append(Event(start_ns, "a changed"))
        replayed.events.append(Event(start_ns, "a came", "host", "coming"))
    for number in range(80_000):
        replayed.cpu_times.add(number * SECOND_NS, (number + 1) * SECOND_NS, {"0 a": SECOND_NS})
    seen = replayed.course()
    assert time.process_time() - begin_s < 20
    assert 8000 == len(seen.incidents)
    assert 8 == len(seen.incidents[100].events)
    assert ("CPU 0: 100 % busy (a 100 %); before 100 %",) == seen.incidents[100].cpus


def test_losses_that_overlap_are_told_soon() -> None:
    """As many of one namespace at the same time."""
    replayed = _Replay(0)
    for number in range(8000):
        loss = Loss(f"{number}", "host", (), number, SECOND_NS, 1, 1.0)
        replayed.losses.setdefault("own", []).append(_Open(loss, loss.end_ns, None))
    begin_s = time.process_time()
    (incident,) = replayed.course().incidents
    assert 8000 == len(incident.losses)
    assert time.process_time() - begin_s < 1


def test_many_sockets_are_compared_soon() -> None:
    """Those that were new at a look, with those that have ended at the next."""
    replayed = _Replay(0)
    begin_s = time.process_time()
    replayed._compare_sockets("host", {}, [strange(n) for n in range(20_000)], (), SECOND_NS)
    replayed._compare_sockets("host", {}, (), range(20_001, 200_000), 2 * SECOND_NS)
    replayed._compare_sockets("host", {}, [strange(n) for n in range(20_000)], (), 70 * SECOND_NS)
    replayed._compare_sockets("host", {}, (), (*range(20_001, 200_000),), 71 * SECOND_NS)
    assert time.process_time() - begin_s < 10


def test_many_interfaces_that_go_are_named_soon() -> None:
    """As many as there were before."""
    names = [tuple(f"{kind}{number}" for number in range(30_000)) for kind in "ab"]
    before, now = (after(None, look(0, interfaces=each)) for each in names)
    begin_s = time.process_time()
    assert names[0] == live_host(before, before, now, {}).gone
    assert time.process_time() - begin_s < 5


def test_what_an_incident_names_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all namespaces lose at the same time, each has the events of the machine."""
    monkeypatch.setattr(incidents, "MOST_NEAR", 5)
    monkeypatch.setattr(incidents, "MOST_NEAR_IN_ALL", 12)
    replayed = _Replay(0)
    for number in range(3):
        loss = Loss("dns", f"{number}", ("udp_rcvbuf",), SECOND_NS, 2 * SECOND_NS, 1, 1.0)
        replayed.losses.setdefault("namespaces", []).append(_Open(loss, loss.end_ns, None))
    for number in range(8):
        replayed.events.append(Event(SECOND_NS + number, f"{number} changed"))
    replayed.events.append(Event(SECOND_NS, "a came", "1", "coming"))
    seen = replayed.course()
    assert [(5, 3), (6, 3), (1, 7)] == [(len(e.events), e.more_events) for e in seen.incidents]
    assert ["a came", "3 changed"] == [event.what for event in seen.incidents[1].events][:2]
    assert "      and 7 more changes" in text(seen).splitlines()
    assert "7 more changes are not named" in page(seen)


def test_of_many_busy_cpus_the_first_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is what they did worked out of incidents without end."""
    monkeypatch.setattr(incidents, "MOST_CPUS", 1)
    monkeypatch.setattr(incidents, "MOST_CPU_SUMS", 2)
    replayed = _Replay(0)
    for number in (1, 100):
        start_ns = number * SECOND_NS
        loss = Loss("dns", "host", ("udp_rcvbuf",), start_ns, start_ns + SECOND_NS, 1, 1.0)
        replayed.losses.setdefault("own", []).append(_Open(loss, loss.end_ns, None))
        times = {"0 a": SECOND_NS, "1 a": SECOND_NS}
        replayed.cpu_times.add(start_ns, start_ns + SECOND_NS, times)
    first, last = replayed.course().incidents
    assert ("CPU 0: 100 % busy (a 100 %)", "and 1 more busy CPUs") == first.cpus
    assert ("what CPUs did is worked out of fewer incidents: ask for a shorter time",) == last.cpus


def test_cpu_time_is_of_its_time_although_the_clock_was_set_back() -> None:
    """Looks are not in the order of their times then."""
    known = _CpuTimes()
    for number, share in ((50, 0.5), (51, 0.7), (10, 0.1), (11, 0.3)):
        known.add(
            (number - 1) * SECOND_NS,
            number * SECOND_NS,
            {"0 a": round(share * SECOND_NS), "1 b": 0},
        )
    shares = known.sums()
    assert pytest.approx(0.2) == shares(9 * SECOND_NS, 11 * SECOND_NS)["0"]["a"]
    assert pytest.approx(0.7) == shares(50 * SECOND_NS, 99 * SECOND_NS)["0"]["a"]
    assert {} == shares(20 * SECOND_NS, 49 * SECOND_NS)
