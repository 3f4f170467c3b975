"""What a watch shows: a view, a line a second, JSON."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from control.fake import facts
from golden import Golden
from rich.console import Console

from udpbench.analysis.motion import CpuShare
from udpbench.analysis.queue_counters import QueueUse
from udpbench.analysis.reader_time import ReaderTime
from udpbench.analysis.watch.host import SOCKET_STAGES, LiveHost, StageLoss
from udpbench.analysis.watch.sockets import SocketLoss, SocketReader
from udpbench.control.watch import KeptLooks
from udpbench.judged_run import chapters_of
from udpbench.model.lab import Lab
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Finding, OtherNamespace, Snapshot, UdpSocket
from udpbench.records.reader import read_run
from udpbench.report.answers import answer
from udpbench.report.data_frames import frames
from udpbench.report.document import write
from udpbench.report.figure_data import timelines
from udpbench.report.sessions import to_type
from udpbench.report.sheets import ledger_rows
from udpbench.report.tables import closing
from udpbench.report.terminal import Terminal
from udpbench.report.watch import (
    READ_APART,
    line,
    live_json,
    losses,
    most_of,
    print_watched,
    sentence,
    sentences,
    served_line,
    view,
    watch_view,
)

DNS = UdpSocket(1, 1, 4, "0.0.0.0", 53, None, 0, 101, 90_000, 212_992, 5, ("unbound 812",))  # noqa: S104
WEB = UdpSocket(2, 2, 6, "::", 443, "2001:db8::1", 999, 33, 0, None, 5)
IDLE = UdpSocket(3, 3, 4, "127.0.0.1", 323, None, 0, 0, 0, 1024, 0, ("chronyd 1", "chronyd 2"))
LIVE = LiveHost(
    host="left",
    elapsed_ns=12 * 10**9,
    received_pps=512_000.0,
    read_pps=480_100.0,
    forwarded_pps=0.0,
    stages=(
        StageLoss("rx_ring", 1200.0, 14_000, "eth0"),
        StageLoss("udp_rcvbuf", 30_100.0, 361_200),
    ),
    sockets=(
        SocketLoss(DNS, 30_000.0, 360_000, stages=("udp_rcvbuf",), known=True),
        SocketLoss(WEB, 100.0, 1200, stages=("udp_filter", "udp_rcvbuf")),
        SocketLoss(IDLE, 0.0, 0),
    ),
    ended=3,
    ended_dropped=7,
    unlisted=12,
    queues=(QueueUse("eth0", "rx-0", 511_000, 1200, 9000, (0,)),),
    seconds=1.0,
    cpus={0: CpuShare(0.9, 0.6)},
    namespaces=(OtherNamespace(77, "dnsmasq 77", 2, 5),),
    exact=False,
    lost=True,
)


TIME = ReaderTime((), None, 0.1, 0.0, 0.6, 0.3, 0.0, 0, None, call="futex")
AT = "2026-11-24T03:00:00.000+00:00"
READERS = replace(
    LIVE,
    sockets=(
        replace(LIVE.sockets[0], reader=SocketReader(9, 8, 700, 2304, visible=True, time=TIME)),
        replace(LIVE.sockets[1], reader=SocketReader(9, 0, 700, 2304, visible=False)),
        replace(LIVE.sockets[2], dropped=1),
    ),
)


def test_what_a_host_forwards_is_shown_where_it_does() -> None:
    """With what it lost on the way through."""
    loss = StageLoss("fwd_device", 7.0, 70, "eth1")
    router = replace(LIVE, forwarded_pps=2000.0, stages=(loss,), sockets=(), ended_dropped=0)
    router = replace(router, unlisted=0)
    assert "; forwarded 2.0 kpps; lost: fwd_device eth1 7 pps" in line(router)
    assert 2000.0 == live_json(router, "", False)["forwarded_pps"]
    assert "70 packets were lost, all of them at fwd_device eth1, on the way" in sentence(router)
    assert "forwarded" not in line(LIVE)


def shown(live: LiveHost, rows: int = 9, width: int = 100) -> str:
    """Return the view as text."""
    console = Terminal(file=io.StringIO(), width=width)
    console.print(view(live, rows, width))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(row.rstrip() for row in console.file.getvalue().splitlines())


def test_a_single_socket_is_not_several() -> None:
    """Nor is its only drop, and large numbers are grouped."""
    single = shown(replace(LIVE, namespaces=(OtherNamespace(77, "dnsmasq 77", 1, 1),)))
    assert "1 UDP socket, 1 drop so far" in single
    many = shown(replace(LIVE, namespaces=(OtherNamespace(77, "dnsmasq 77", 2, 1402),)))
    assert "2 UDP sockets, 1 402 drops so far" in many


def test_of_many_namespaces_those_that_dropped_most_are_named() -> None:
    """On a machine of containers each would have a line, above the answer."""
    many = tuple(OtherNamespace(n, f"dns {n}", 2, n) for n in range(5))
    text = shown(replace(LIVE, namespaces=many))
    named = [f"another namespace: dns {n}: 2 UDP sockets" for n in range(5)]
    assert [False, False, True, True, True] == [each in text for each in named]
    assert text.index(named[4]) < text.index(named[2])
    assert text.endswith("and 2 more namespaces with UDP sockets; --json has all of them")
    assert "more namespace" not in shown(replace(LIVE, namespaces=many[:3]))


def test_the_view_says_which_socket_drops_and_why(golden: Golden) -> None:
    """With what helps, and what is beside it."""
    golden.check(shown(LIVE))


def test_what_a_reader_does_is_beside_the_stage_and_what_helps_it_below(golden: Golden) -> None:
    """In the view, in a line, among the findings, and in JSON with its shares."""
    golden.check(shown(READERS, width=140))
    golden.check(line(READERS))
    golden.check(losses([READERS]))
    golden.check(sentence(READERS))
    golden.check(sentence(replace(LIVE, stages=(), sockets=(), ended_dropped=0, unlisted=0)))
    late, unseen, idle = [each["reader"] for each in live_json(READERS, AT)["sockets"]]
    assert None is idle
    assert {
        "does": "sleeps 60 % of the time (in futex), waits for datagrams 30 % of the time",
        "helps": late["helps"],
        "wanted_bytes": 2**21,
        "running": 0.1,
        "stopped": 0.0,
        "runnable": 0.0,
        "asleep": 0.6,
        "waiting": 0.3,
        "call": "futex",
    } == late
    nothing = dict.fromkeys(late)
    assert {**nothing, "does": "not known (needs root or the same user)"} == unseen


def test_a_quiet_host_is_said_to_be_quiet(golden: Golden) -> None:
    """No table without a row."""
    golden.check(
        shown(
            replace(
                LIVE,
                stages=(),
                sockets=(),
                queues=(),
                namespaces=(),
                ended=0,
                unlisted=0,
                lost=False,
            )
        )
    )


def test_exact_counts_have_columns_and_the_rest_a_line(golden: Golden) -> None:
    """Sockets that do not fit are counted."""
    exact = tuple(replace(loss, arrived_pps=5.0) for loss in LIVE.sockets)
    golden.check(shown(replace(LIVE, sockets=exact, exact=True), rows=1))


def test_exact_counts_fit_into_80_columns(golden: Golden) -> None:
    """In two tables with the same sockets, so that no column is a letter wide."""
    exact = tuple(replace(loss, arrived_pps=48_211.0, read_pps=1e5) for loss in LIVE.sockets)
    golden.check(shown(replace(LIVE, sockets=exact, exact=True), width=80))


def test_packets_to_a_port_without_a_socket_are_a_finding(golden: Golden) -> None:
    """At a port that is watched, while nobody was bound to it."""
    nothing = replace(LIVE, stages=(), sockets=(), ended_dropped=0, unlisted=0)
    (finding,) = losses([replace(nothing, unbound_packets=1)])
    stage = StageLoss("udp_no_port", 1.0, 3)
    steps = [
        str(each.next_step)
        for each in losses([replace(nothing, unbound_packets=1, stages=(stage,))])
    ]
    begun = f"{finding.next_step}; 2 further packets came for other ports"
    assert any(step.startswith(begun) for step in steps)
    golden.check(finding)


def test_a_stage_and_its_socket_may_differ_by_what_came_between_their_readings() -> None:
    """Neither is adjusted; that they were read apart is said where it explains the difference."""
    drops = replace(LIVE.sockets[0], dropped=360_500)
    live = replace(LIVE, sockets=(drops,), ended_dropped=0, unlisted=0)
    text = shown(live)
    assert ("361 200" in text, "360 500" in text) == (True, True)
    assert READ_APART in " ".join(text.split())
    (note,) = (each for each in losses([live]) if each.what == READ_APART)
    assert ("note", "left", None) == (note.severity, note.where, note.value)
    for sockets in (
        (replace(drops, dropped=361_200),),  # as many
        (replace(drops, dropped=340_000),),  # too few of them
        (),
    ):
        other = replace(live, sockets=sockets)
        assert not other.read_apart
        assert READ_APART not in shown(other)
    assert not replace(live, unlisted=700).read_apart, "these are of sockets that no look listed"
    watched = replace(live, unwatched=SOCKET_STAGES, sockets=(replace(drops, dropped=361_300),))
    assert watched.read_apart, "one counted more than the stage of all"


def test_a_line_names_the_worst_sockets(golden: Golden) -> None:
    """And says when nothing is lost now."""
    golden.check(line(LIVE))
    golden.check(line(replace(LIVE, sockets=LIVE.sockets[:1] * 5)))
    golden.check(line(replace(LIVE, stages=(), sockets=())))
    assert "nothing lost" not in line(replace(LIVE, stages=()))


def test_while_clients_are_served_others_losses_are_named_as_theirs(golden: Golden) -> None:
    """Nothing is advised that ``serve`` does not have; what is lost before sockets may be anyone's.

    So may what a socket without a peer lost: there all clients greet.
    """
    port = replace(LIVE, unwatched=SOCKET_STAGES)
    golden.check(served_line(replace(port, sockets=()), clients=2))
    golden.check(served_line(replace(port, sockets=LIVE.sockets[1:], stages=LIVE.stages[1:])))
    golden.check(served_line(replace(port, sockets=LIVE.sockets[:1], stages=LIVE.stages[1:])))
    golden.check(served_line(replace(port, stages=(), gone=("eth0",), sockets=())))


def test_what_was_lost_between_two_readings_is_nobody_elses() -> None:
    """The host's counter is read a moment after the sockets: a part of a second's losses."""
    (socket,) = LIVE.sockets[:1]
    own = replace(socket, socket=replace(DNS, peer="192.0.2.9"), dropped_pps=10_000.0)
    for more, others in ((100.0, False), (300.0, True)):
        stage = StageLoss("udp_rcvbuf", 10_000 + more, 12_000)
        live = replace(LIVE, unwatched=SOCKET_STAGES, sockets=(own,), stages=(stage,))
        assert ("other sockets" in served_line(live)) is others


def test_json_has_the_same_numbers() -> None:
    """A socket without anything to tell is only counted."""
    data = live_json(LIVE, AT)
    assert data == json.loads(json.dumps(data))
    assert [53, 443] == [each["port"] for each in data["sockets"]]
    assert 3 == len(live_json(LIVE, AT, every_socket=True)["sockets"])
    assert AT == data["time"]
    assert (3, 3, 7, True) == (
        data["sockets_watched"],
        data["sockets_ended"],
        data["ended_dropped"],
        data["lost"],
    )
    assert {"rx_ring": "eth0", "udp_rcvbuf": None} == {
        each["stage"]: each["interface"] for each in data["stages"]
    }


def test_what_was_lost_is_a_finding_each(golden: Golden) -> None:
    """At a stage before the sockets, at each socket, and at those that have ended."""
    findings = losses([LIVE, replace(LIVE, stages=(), sockets=(), ended_dropped=0, unlisted=0)])
    golden.check(findings)
    golden.check(losses([replace(LIVE, unwatched=("rx_ring",), sockets=())]))


def test_a_kept_watch_has_the_report_of_a_run(tmp_path: Path, golden: Golden) -> None:
    """Its ledger, its losses and its seconds; what is of runs alone is left out."""
    folder = tmp_path / "kept"
    kept = KeptLooks.create(folder, Lab("watch", "", "", ()), ("udpbench", "watch", "left"))
    known = {name: facts("left", name, ()) for name in ("lo", "eth0")}
    for second in range(4):
        counters = {
            "snmp.Ip.InReceives": 1000 * second,
            "snmp.Udp.InDatagrams": 900 * second,
            "snmp.Udp.InErrors": 100 * second,
            "snmp.Udp.RcvbufErrors": 100 * second,
            "link.eth0.rx_packets": 1000 * second,
        }
        kept.add(Snapshot("left", second * SECOND_NS, counters), known)
    drops = replace(LIVE.sockets[0], dropped=361_000)
    apart = replace(LIVE, sockets=(drops,), ended_dropped=0, unlisted=0)
    kept.finish(losses([apart]))
    run = read_run(folder)
    (page,) = write([run], folder, ["html"])
    between = "Sockets are read up to 20 ms before their stages"
    assert between in page.read_text()
    assert sum(between in str(line) for line in closing(run, 80)) == 1
    assert "What helps: that depends on each socket" in page.read_text()
    (chapter,) = chapters_of(run)
    assert sentence(apart) == answer(chapter)
    rows = [(row.name, *row.cells) for row in ledger_rows(chapter.results)]
    assert [("udp_rcvbuf", "300"), ("received", "2 700")] == [r for r in rows if r[1] != "0"]
    assert not {"intended", "sent", "unaccounted"} & {name for name, _ in rows}
    assert "udpbench watch left" in page.read_text()
    assert "--seed" not in page.read_text()
    assert ["repeat it", "its tables and ledgers"] == [does for does, _ in to_type(run)]
    assert {"left": "eth0", "left lo": "lo"} == {
        name: each.interface for name, each in run.records[0].facts.items()
    }
    frame = frames([run])
    assert [300] == frame.ledger[frame.ledger.stage == "udp_rcvbuf"].packets.tolist()
    assert [2700] == frame.trials.received_packets.tolist()
    (line,) = timelines(chapter)
    assert [100.0] * 3 == [step.value for step in line.drops["udp_rcvbuf"]]
    assert {900} == {round(step.value) for step in line.delivered}


@pytest.mark.parametrize(
    ("addresses", "by_port"),
    [
        (("127.0.0.1:9126", "127.0.0.1:9126 ← 10.0.0.1:7"), "; outside containers --port 9126"),
        (("127.0.0.1:9126", "[::1]:53"), ")"),
        ((), ")"),
    ],
)
def test_a_watch_is_repeated_into_a_new_folder_and_not_by_a_pid_that_ended(
    addresses: tuple[str, ...], by_port: str, tmp_path: Path
) -> None:
    """A colleague, or tomorrow, has another process at that port."""
    folder = tmp_path / "night"
    words = ("udpbench", "watch", "--pid", "9052", "--for", "8s", "--out", str(folder))
    kept = KeptLooks.create(folder, Lab("watch", "", "", ()), words)
    for second in range(2):
        snapshot = Snapshot("left", second * SECOND_NS, {"snmp.Udp.InDatagrams": 900 * second})
        kept.add(snapshot, {"lo": facts("left", "lo", ())})
    for address in addresses:
        sock = replace(DNS, address=address.split(":")[0], port=9126)
        sock = replace(sock, address="::1", port=53) if "[" in address else sock
        sock = replace(sock, peer="10.0.0.1", peer_port=7) if "←" in address else sock
        live = replace(LIVE, sockets=(SocketLoss(sock, 100.0, 100),))
        assert live.losing[0].address == address
        kept.add_drops(live, Snapshot("left", 0, {}), snapshot)
    kept.finish([])
    does, line = next(to_type(read_run(folder)))
    assert does.startswith(f"repeat it (with the pid that its program then has{by_port}")
    assert f"udpbench watch --pid 9052 --for 8s --out {folder}-again" == line


def test_others_losses_are_beside_those_of_what_is_watched(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The rest of the same counters, never less than none; and ``show`` says what the watch said."""
    dns = replace(LIVE, unwatched=SOCKET_STAGES, sockets=LIVE.sockets[:1], unlisted=0)
    print_watched([dns])
    printed = capsys.readouterr().out
    assert "stages, of all sockets of this namespace" in printed
    assert "\nleft: other sockets: 1 193 packets\nleft: 374 007 packets were lost" in printed
    assert sentence(dns) == sentences(losses([dns]))
    assert 0 == replace(dns, stages=()).others_dropped == LIVE.others_dropped
    quiet = replace(dns, sockets=(), ended_dropped=0, stages=LIVE.stages[1:])
    assert "left: nothing was lost." == sentence(quiet) == sentences(losses([quiet]))
    assert "" == sentences(losses([replace(quiet, stages=())]))
    two = sentences(losses([dns, replace(dns, host="right")]))
    assert f"{sentence(dns)} {sentence(replace(dns, host='right'))}" == two


def test_losses_of_earlier_versions_name_the_socket() -> None:
    """Its place stood beside what had happened."""
    old = Finding("warning", "dropped: udp_rcvbuf", "left: unbound 812 0.0.0.0:53", "1 packet")
    assert "at left: unbound 812 0.0.0.0:53: dropped: udp_rcvbuf." == most_of([old], 1)


@pytest.mark.parametrize("as_json", [False, True])
def test_without_a_terminal_a_look_is_a_line(as_json: bool) -> None:
    """Plain, or JSON; control characters of a process's name are shown."""
    out = io.StringIO()
    evil = replace(
        LIVE, sockets=(replace(LIVE.sockets[0], socket=replace(DNS, processes=("\x1b[2J 1",))),)
    )
    with watch_view(out, as_json) as tell:
        tell(evil)
    (text,) = out.getvalue().splitlines()
    assert "\x1b" not in text
    assert text.startswith('{"schema"' if as_json else "left: 12 s; in 512.0 kpps")


def test_on_a_terminal_the_view_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """And taken away at the end, before the last one is printed."""
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    with watch_view(out, as_json=False) as tell:
        tell(LIVE)
    assert "unbound" in out.getvalue()


def test_the_last_view_has_every_socket(capsys: pytest.CaptureFixture[str]) -> None:
    """However many there are."""
    print_watched([replace(LIVE, sockets=LIVE.sockets * 30)])
    printed = capsys.readouterr().out
    assert (
        30 == printed.count(" unbound 812  ") == printed.count("unbound 812 0.0.0.0:53: udp_rcvbuf")
    )
