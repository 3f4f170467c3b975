"""Output of ``udpbench watch``: a live view, plain lines, or JSON lines.

Draws ``LiveHost`` and decides nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TextIO

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from udpbench.analysis.motion import SKEW_NS
from udpbench.analysis.watch.host import FORWARDING, GONE, SOCKET_STAGES, LiveHost
from udpbench.analysis.watch.sockets import NOT_KNOWN, NOT_YET_KNOWN, SocketLoss
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Finding
from udpbench.model.result import Result
from udpbench.printable import all_printable, printable
from udpbench.records.run import now_utc
from udpbench.report.live_rates import queue_rate
from udpbench.report.screen import MOST_ROWS, busiest_first, cpu_cells, queue_row
from udpbench.report.summary import MEANT
from udpbench.report.terminal import Terminal, drawn
from udpbench.units import counted, format_bytes, plural, show_count, show_percent, show_pps

SCHEMA = 1
"""Form of ``watch --json``. History: 1 — the first form."""
LOST = "lost "
"""What a finding of a loss begins with."""
LOST_BEFORE = "dropped: "
"""The same in folders of earlier versions."""
OTHERS = "other sockets"
"""What a finding of the packets that sockets lost which were not watched is called."""
READ_APART = (
    f"sockets are read up to {SKEW_NS // 10**6} ms before their stages: what is lost in between "
    "is in only one of both numbers"
)
"""Why a stage and its sockets have different numbers."""
LOSING_IN_LINE = 3
"""Maximum sockets in a plain line."""
NAMESPACES = 3
"""Maximum other namespaces that are listed."""
WIDE = 100
"""Terminal columns from which on a socket's reason stands in its row, and all its counts."""
OF_LOSS = ("dropped_pps", "dropped", "arrived_pps", "read_pps", "stages", "known")
Tell = Callable[[LiveHost], None]


@contextmanager
def watch_view(out: TextIO, as_json: bool, every_socket: bool = False) -> Iterator[Tell]:
    """Yield the callback for the type of output; ``every_socket`` of JSON: uneventful ones, too."""
    console = Terminal(file=out)
    if as_json:
        yield lambda live: _write(
            out, json.dumps(live_json(live, now_utc(), every_socket), allow_nan=False)
        )
    elif console.is_terminal and not console.is_dumb_terminal:
        views: dict[str, RenderableType] = {}
        with Live(console=console, auto_refresh=False, transient=True, screen=False) as screen:

            def draw(live: LiveHost) -> None:
                rows = max((console.size.height - 12) // max(len(views), 1), 5)
                views[live.host] = view(live, rows, console.width)
                screen.update(Group(*views.values()), refresh=True)

            yield draw
    else:
        yield lambda live: _write(out, printable(line(live), keep=""))


def _write(out: TextIO, text: str) -> None:
    out.write(text + "\n")
    out.flush()


def print_watched(hosts: Sequence[LiveHost]) -> None:
    """Print what was seen of each host at the end, and the answer last."""
    console = Terminal(file=sys.stdout)
    for live in hosts:
        console.print(view(live, len(live.sockets), console.width))
    for live in hosts:
        for other in filter(None, (live.others_dropped,)):
            console.print(Text(f"{live.host}: {OTHERS}: {_packets(other)}"))
        console.print(Text(sentence(live), style="bold"))


def sentence(live: LiveHost) -> str:
    """Return what a host lost, where most of it, and what would help."""
    return sentences(losses([live])) or f"{live.host}: nothing was lost."


def sentences(findings: Sequence[Finding]) -> str:
    """Return the same of a watch's findings, for each host; empty if they are of no loss."""
    lost = [each for each in findings if each.what.startswith((LOST, LOST_BEFORE))]
    hosts: dict[str, list[Finding]] = {}
    for each in lost:
        hosts.setdefault(each.where if each.what.startswith(LOST) else "", []).append(each)
    texts = []
    for host, of_host in hosts.items():
        packets = sum(map(packets_of, of_host))
        verb = "was" if packets == 1 else "were"
        name = f"{host}: " if host else ""
        texts.append(f"{name}{_packets(packets)} {verb} lost, {most_of(of_host, packets)}")
    beside = {f.where for f in findings if f.what == OTHERS} - hosts.keys()
    texts += [f"{host}: nothing was lost." for host in sorted(beside)]
    return " ".join(texts)


def most_of(lost: Sequence[Finding], packets: int) -> str:
    """Return where most of the packets were lost, why, and what would help; whatever helps last."""
    first = max(lost, key=packets_of)
    helps = f" {first.next_step[:1].upper()}{first.next_step[1:]}." if first.next_step else ""
    many = "all of them" if packets_of(first) >= packets else f"most of them ({first.value})"
    where = first.what.removeprefix(LOST)
    if where == first.what:  # a folder of an earlier version
        where = f"at {first.where}: {first.what}"
    return f"{f'{many} ' * (packets > 1)}{where}.{helps}"


def packets_of(finding: Finding) -> int:
    """Return how many packets a loss is of."""
    return int("".join(c for c in finding.value or "" if c.isdigit()) or 0)


def losses(hosts: Sequence[LiveHost]) -> list[Finding]:
    """Return losses as findings, most packets first; and interfaces that went."""
    return [
        *(
            Finding(
                "warning", f"{LOST}{each.where}", live.host, _packets(each.packets), "", each.helps
            )
            for live in hosts
            for each in sorted(_lost(live), key=lambda each: -each.packets)
        ),
        *(
            Finding("note", f"an interface {GONE}", f"{live.host}: {name}")
            for live in hosts
            for name in live.gone
        ),
        *(
            Finding("note", OTHERS, live.host, _packets(live.others_dropped))
            for live in hosts
            if live.others_dropped
        ),
        *(Finding("note", READ_APART, live.host) for live in hosts if live.read_apart),
    ]


def read_apart(results: Sequence[Result]) -> list[str]:
    """Return why the ledger of a watch and its answer have different numbers; empty if not so."""
    apart = any(each.what == READ_APART for result in results for each in result.findings)
    return [f"{READ_APART[:1].upper()}{READ_APART[1:]}."] if apart else []


def _packets(number: int) -> str:
    return counted(number, "packet")


class Lost(NamedTuple):
    """Packets that a host lost at one place."""

    where: str
    """With the reason, as far as it is known: ``at udp_rcvbuf of the socket of …``."""
    packets: int
    helps: str = ""


def _lost(live: LiveHost) -> Iterator[Lost]:
    """Yield each place at which packets were lost."""
    for loss in live.stages:
        if loss.stage not in (*SOCKET_STAGES, *live.unwatched):
            part = "before any socket" if loss.stage not in FORWARDING else "on the way through"
            where = f"at {_placed(loss.stage, loss.where)}, {part}"
            yield Lost(where, loss.packets, live.helps_at(loss.stage.split(" or ")))
    for each in live.sockets:
        if each.dropped:
            step = each.reader_helps or live.helps_at(each.stages)
            yield Lost(_at_socket(each), each.dropped, step)
    if live.unbound_packets:
        step = "find out why no socket was bound to it"
        every = sum(loss.packets for loss in live.stages if loss.stage == "udp_no_port")
        if every > live.unbound_packets:
            more = counted(every - live.unbound_packets, "further packet")
            step += f"; {more} came for other ports, or while it was bound at one of two looks"
        yield Lost("at udp_no_port", live.unbound_packets, step)
    ended = live.ended_dropped + live.unlisted
    if ended:
        yield Lost("at sockets that are closed", ended)


def _at_socket(loss: SocketLoss) -> str:
    """Return at which stage of which socket packets were lost, what that means, and its reader."""
    socket = f"the socket of {loss.owner.removeprefix('of ')} on {loss.address}"
    does = f", and {_reader(loss.reader.does)}" if loss.reader and loss.reader.does else ""
    if not loss.stages:
        return f"at {socket}, at which stage is not known{does}"
    if not loss.known:
        return f"at {' or '.join(loss.stages)} of {socket} (--exact shows which){does}"
    (first, *others) = (MEANT[stage].means.partition(":")[0].rstrip(".") for stage in loss.stages)
    meant = f": {first[:1].lower()}{first[1:]}".replace("the socket's", "its") * (not others)
    return f"at {' and '.join(loss.stages)} of {socket}{meant}{does}"


def _reader(does: str) -> str:
    """Return what a reader does as a clause."""
    if does in (NOT_KNOWN, NOT_YET_KNOWN):
        return f"what its reader does is {does}"
    return f"its reader {'is ' * does.startswith(('stopped', 'bound'))}{does}"


def line(live: LiveHost) -> str:
    """Return one look as a line: received, read and lost packets."""
    seconds = live.elapsed_ns / SECOND_NS
    parts = [f"{live.host}: {seconds:.0f} s", f"in {show_pps(live.received_pps)}"]
    parts.append(f"read {show_pps(live.read_pps)}")
    parts += [f"forwarded {show_pps(live.forwarded_pps)}"] if live.forwarded_pps else []
    parts += [f"{name} {GONE}" for name in live.gone]
    lost = [
        f"{_placed(loss.stage, loss.where)} {show_pps(loss.pps)}"
        for loss in live.stages
        if loss.pps
    ]
    if lost or not live.losing:
        parts.append(f"lost: {', '.join(lost)}" if lost else "nothing lost")
    parts += [
        f"{loss.owner} {loss.address} {show_pps(loss.dropped_pps)}: {why(loss)}"
        for loss in live.losing[:LOSING_IN_LINE]
    ]
    if len(live.losing) > LOSING_IN_LINE:
        parts.append(f"and {len(live.losing) - LOSING_IN_LINE} more sockets")
    return "; ".join(parts)


def served_line(live: LiveHost, clients: int = 1) -> str:
    """Return one look while clients are served: what their sockets lost, apart from all others."""
    tests = "the test" if clients == 1 else "the tests"
    streams = [loss for loss in live.losing if loss.socket.peer is not None]  # not where all greet
    own = sum(loss.dropped_pps for loss in streams)
    stages = dict.fromkeys(stage for loss in streams for stage in loss.stages)
    at = f" at {' or '.join(stages)}" if stages else ""
    parts = [f"{tests} lost {show_pps(own)}{at}" if own else f"{tests} lost nothing now"]
    before = (each for each in live.stages if each.pps and each.stage not in live.unwatched)
    parts += [
        f"this host lost {show_pps(each.pps)} at {_placed(each.stage, each.where)}, whoever sent it"
        for each in before
    ]
    all_sockets = sum(each.pps for each in live.stages if each.stage in SOCKET_STAGES)
    at_once = own * SKEW_NS / SECOND_NS  # lost between the readings of sockets and of counters
    if all_sockets - own >= 1 + at_once:
        parts.append(f"other sockets of this host lost {show_pps(all_sockets - own)}")
    parts += [f"{name} {GONE}" for name in live.gone]
    return f"{live.host}: {live.elapsed_ns / SECOND_NS:.0f} s; {'; '.join(parts)}"


def view(live: LiveHost, rows: int, width: int = WIDE) -> RenderableType:
    """Return a host with at most so many sockets, for a terminal of ``width`` columns."""
    seconds = live.elapsed_ns / SECOND_NS
    head = (
        f"{live.host}  {seconds:.0f} s  in {show_pps(live.received_pps)}  "
        f"UDP read {show_pps(live.read_pps)}"
    )
    if live.forwarded_pps:
        head += f"  forwarded {show_pps(live.forwarded_pps)}"
    parts: list[RenderableType] = [Text(head, style="bold")]
    if live.stages:
        parts.append(_stages(live))
    if live.sockets:
        parts += _sockets(live, rows, width)
        lost = [loss for loss in live.sockets[:rows] if loss.dropped and width < WIDE]
        parts += [Text(f"{loss.owner} {loss.address}: {why(loss)}") for loss in lost]
    if not live.lost:
        parts.append(Text("nothing lost"))
    if live.read_apart:
        parts.append(Text(READ_APART, style="dim"))
    parts += [Text(f"{name} {GONE}") for name in live.gone]
    for stage, helps in live.helps.items():
        parts.append(Text(f"{stage}: {helps}"))
    parts += [
        Text(f"{loss.owner} {loss.address}: {loss.reader_helps}")
        for loss in live.sockets[:rows]
        if loss.reader_helps
    ]
    if live.ended:
        dropped = f", which dropped {show_count(live.ended_dropped)}" * bool(live.ended_dropped)
        parts.append(Text(f"closed sockets: {live.ended}{dropped}"))
    if live.unlisted:
        missed = f"sockets open only between two looks dropped {show_count(live.unlisted)}"
        parts.append(Text(missed + "; --exact counts them" * (not live.exact)))
    parts += [Text(row, no_wrap=True, overflow="ellipsis") for row in _load(live)]
    return Group(*parts, *map(Text, _namespaces(live)))


def _namespaces(live: LiveHost) -> Iterator[str]:
    """Yield the other namespaces in which sockets dropped most, and how many more there are."""
    ranked = sorted(live.namespaces, key=lambda each: -each.drops)
    for each in ranked[:NAMESPACES]:
        yield (
            f"another namespace: {each.process}: {'' if each.all_read else 'at least '}"
            f"{plural(each.sockets, 'UDP socket')}, "
            f"{counted(each.drops, 'drop')} so far; udpbench watch --pid {each.pid}"
        )
    if (more := len(ranked) - NAMESPACES) > 0:
        yield f"and {plural(more, 'more namespace')} with UDP sockets; --json has all of them"


def _stages(live: LiveHost) -> Table:
    rows = (
        (_placed(loss.stage, loss.where), show_pps(loss.pps), show_count(loss.packets))
        for loss in live.stages
    )
    title = "stages, of all sockets of this namespace" if live.chosen else "stages"
    return drawn(("lost at", "now", "so far"), rows, title, (1, 2))


def _sockets(live: LiveHost, rows: int, width: int) -> Iterator[Table]:
    """Yield the sockets in a table; on a narrow terminal without reasons, and rates in another."""
    state, drops, rates = ("queue", "buffer"), ("dropped/s", "so far"), ("arrived/s", "read/s")
    groups: list[tuple[str, ...]] = [(*state, *drops, *(rates if live.exact else ()), "why")]
    if width < WIDE:
        groups = [(*state, *drops), rates] if live.exact else [(*state, *drops)]
    rest = live.sockets[rows:]
    title = "sockets"
    for names in groups:
        numbers = [place for place, name in enumerate(names, start=2) if name != "why"]
        cells = [
            [
                Text(cell, style="red" if loss.dropped_pps else "")
                for cell in (loss.owner, loss.address, *(socket_cell(loss, n) for n in names))
            ]
            for loss in live.sockets[:rows]
        ]
        if rest:
            losing = sum(1 for loss in rest if loss.dropped)
            more = f"and {len(rest)} more, {losing or 'none'} of which lost packets"
            cells.append([Text(more)])
        yield drawn(("process", "address", *names), cells, title, numbers)
        title = "sockets, continued"


def socket_cell(loss: SocketLoss, name: str) -> str:
    """Return what a socket has in a column; a dash where that is not known."""
    if name == "why":
        return why(loss)
    if name == "queue":
        return show_percent(loss.filled) if loss.filled is not None else "–"
    if name == "buffer":
        size_bytes = loss.socket.buffer_bytes  # twice what was asked for
        return format_bytes(size_bytes // 2) if size_bytes is not None else "–"
    number = {
        "dropped/s": loss.dropped_pps,
        "so far": loss.dropped,
        "arrived/s": loss.arrived_pps,
        "read/s": loss.read_pps,
    }[name]
    return show_count(number) if number is not None else "–"


def why(loss: SocketLoss) -> str:
    """Return where a socket's packets ended, marked if not certain, and what its reader does."""
    if not loss.dropped:
        return ""
    does = loss.reader.does if loss.reader is not None else ""
    reader = f"; its reader: {does}" if does else ""
    if loss.known:
        return ", ".join(loss.stages) + reader
    stages = f"{' or '.join(loss.stages)}: --exact shows which" if loss.stages else "unknown"
    return stages + reader


def _placed(stage: str, where: str) -> str:
    return f"{stage} {where}" if where else stage


def _load(live: LiveHost) -> Iterator[str]:
    """Yield the busiest queues and CPUs."""
    rates = [queue_rate(use, live.seconds) for use in live.queues]
    fastest = sorted(rates, key=lambda rate: -(rate.pps or 0))
    for rate in fastest[:MOST_ROWS]:
        yield f"queue {'  '.join(filter(None, queue_row(rate)))}"
    named = {str(cpu): share for cpu, share in live.cpus.items()}
    for cpu, share in busiest_first(named)[:MOST_ROWS]:
        yield f"CPU {cpu}  {'  '.join(cpu_cells(share))}"


def live_json(live: LiveHost, time: str, every_socket: bool = False) -> dict[str, Any]:
    """Return a look at a time as JSON data, with the sockets that have anything to report."""
    telling = [
        loss
        for loss in live.sockets
        if every_socket or loss.dropped or loss.socket.queued_bytes or loss.arrived_pps
    ]
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "time": time,
        "host": live.host,
        "elapsed_ns": live.elapsed_ns,
        "received_pps": live.received_pps,
        "read_pps": live.read_pps,
        "forwarded_pps": live.forwarded_pps,
        "lost": live.lost,
        "stages": [
            {
                "stage": loss.stage,
                "interface": loss.where or None,
                "pps": loss.pps,
                "packets": loss.packets,
            }
            for loss in live.stages
        ],
        "helps": live.helps,
        "sockets": [_socket_json(loss) for loss in telling],
        "sockets_watched": len(live.sockets),
        "sockets_ended": live.ended,
        "ended_dropped": live.ended_dropped,
        "unlisted_dropped": live.unlisted,
        "unbound_packets": live.unbound_packets,
        "interfaces_gone": list(live.gone),
        "queues": [
            {"interface": use.host, "queue": use.queue, "packets": use.packets, "drops": use.drops}
            for use in live.queues
        ],
        "cpus": {
            str(cpu): {"busy": share.busy, "softirq": share.softirq}
            for cpu, share in live.cpus.items()
        },
        "namespaces": [
            {name: getattr(each, name) for name in ("pid", "process", "sockets", "drops")}
            for each in live.namespaces
        ],
    }
    return dict(all_printable(data))


def _socket_json(loss: SocketLoss) -> dict[str, Any]:
    each = loss.socket
    return {
        **{name: getattr(each, name) for name in ("processes", "uid", "address", "port", "peer")},
        "peer_port": each.peer_port if each.peer is not None else None,
        "queued_bytes": each.queued_bytes,
        "buffer_bytes": each.buffer_bytes,
        **{name: getattr(loss, name) for name in OF_LOSS},
        "reader": _reader_json(loss),
    }


def _reader_json(loss: SocketLoss) -> dict[str, Any] | None:
    """Return what a socket's reader does, in words and as shares of the time."""
    reader = loss.reader
    if reader is None:
        return None
    time = reader.time
    shares = ("running", "stopped", "runnable", "asleep", "waiting")
    return {
        "does": reader.does or None,
        "helps": loss.reader_helps or None,
        "wanted_bytes": reader.wanted_bytes(loss.socket.buffer_bytes),
        **{name: getattr(time, name, None) for name in shares},
        "call": (time.call or None) if time is not None else None,
    }
