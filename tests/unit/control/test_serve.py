"""Serving iperf3 clients: in which order a host is read, and what is kept of a test."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from golden import Golden

from control.fake import FakeAgent, World, facts
from udpbench.__main__ import main
from udpbench.analysis.judge import judge
from udpbench.analysis.served import answer, burst_text, own_number, served_findings
from udpbench.client_gate import ClientGate
from udpbench.commands.verbs import serve as verb
from udpbench.control.agents import Reach
from udpbench.control.lab_lock import Surroundings
from udpbench.control.serve import (
    LOOPBACK,
    REST_NS,
    ServeTerms,
    ServeView,
    addresses_of,
    next_folder,
    serve,
    store_test,
)
from udpbench.control.watch import lab_to_watch
from udpbench.errors import AgentError, AgentLost, InputError
from udpbench.model.experiment import Receive, Send, Traffic
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import (
    FlowStats,
    HostLook,
    Sample,
    Snapshot,
    TrialRecord,
    UdpSocket,
    WorkerStats,
)
from udpbench.model.served import ServedStream, ServedTest
from udpbench.model.work import FlowSpec, WorkerSpec
from udpbench.protocol import ClientEvent, SampleReply
from udpbench.records.reader import read_run

SOCKET = UdpSocket(1, 1, 4, "127.0.0.1", 5201, None, 0, 0, 0, 1, 0)
STREAM = ServedStream(1, 1000, 900, 900, 990, 0, 90, 1000)
ASKED: dict[str, int | str] = {"udp": 1, "time": 2, "len": 100, "client_version": "3.12"}
SERVED = ServedTest("10.0.0.2", 5201, "eth2", ASKED, ("gsro",), (STREAM,))


def spec(host: str) -> WorkerSpec:
    """Return the worker of a client's stream."""
    traffic = Traffic(size_bytes=100)
    flow = FlowSpec(0, "10.0.0.2", 40000, "10.0.0.1", 5201)
    receive = Receive(buffer_bytes=None, timestamps=True, wait="auto")
    return WorkerSpec(
        *("receiver", host, 0, None, (flow,), traffic),
        send=Send(),
        receive=receive,
        bind_ports=(5201,),
    )


def sampled(host: str, received: int = 900) -> SampleReply:
    """Return what the server counted."""
    counts = {
        "read_packets": received,
        "received_packets": received,
        "received_bytes": received * 100,
        "receive_calls": received,
        "first_ns": 5,
        "last_ns": 10**9 + 5,
        "errors": 0,
    }
    stats = WorkerStats(
        f"{host}.receiver0", "receiver", None, counts, socket_inodes=(77,), buffer_bytes=212992
    )
    return SampleReply("done", None, 0, (), (stats,), (FlowStats(0, received, 990),), 0)


def events_of(host: str, served: ServedTest = SERVED, drops: int = 60) -> list[ClientEvent]:
    """Return what happens in a test."""
    begun = replace(served, streams=())
    return [
        ClientEvent("prepared", test=1, served=begun, specs=(spec(host),)),
        ClientEvent("started", test=1, clock_ns=3),
        ClientEvent("ended", test=1, served=served, sampled=sampled(host), drops={"77": drops}),
        ClientEvent("closed", test=1),
    ]


class Observes(FakeAgent):
    """An observer, at which 60 datagrams find a full buffer during a test."""

    def _facts(self, interface: str) -> Any:
        return replace(facts(self.host, interface, ("10.0.0.1/24",)), environment=CLEAN)

    def _snapshot(self, interface: str, **_: Any) -> Snapshot:
        self.snapshots += 1
        after = self.snapshots > 1
        moved = {
            "RcvbufErrors": 60,
            "InErrors": 60,
            "InCsumErrors": 0,
            "NoPorts": 0,
            "MemErrors": 0,
        }
        counters = {f"snmp.Udp.{name}": number * after for name, number in moved.items()}
        ip = {"InReceives": 960, "InDelivers": 960, "ForwDatagrams": 0}
        counters |= {f"snmp.Ip.{name}": number * after for name, number in ip.items()}
        still = ("rx_dropped", "rx_otherhost_dropped", "tx_dropped", "rx_packets")
        counters |= {f"link.{interface}.{name}": 0 for name in still}
        counters["softnet.cpu0.dropped"] = 0
        return Snapshot(self.host, self.world.clock.now_ns(), counters)

    def _look(self, **_: Any) -> HostLook:
        return HostLook(Snapshot(self.host, self.world.clock.now_ns(), {}), ("eth2",), (SOCKET,))


CLEAN = {"xdp": "none", "tcx": "none"}


class Serves(FakeAgent):
    """A server, at which a client's test begins and ends once the controller lets it."""

    def __init__(self, host: str, world: World, events: Callable[[str], list[ClientEvent]]) -> None:
        super().__init__(host, world)
        self.waiting = [ClientEvent("listening", "127.0.0.1:5201"), *events(host)]
        self.shown: list[str | None] = []
        self.open = 2

    def _clients(self, since: int) -> list[ClientEvent]:
        return [] if since >= self.open else self.waiting[since : self.open]

    def _proceed(self, test: int, output: str | None) -> None:
        assert test == 1
        self.shown.append(output)
        self.open += 2 if len(self.shown) == 1 else 9


class Served(World):
    """A machine with both."""

    def __init__(self, events: Callable[[str], list[ClientEvent]] = events_of) -> None:
        super().__init__()
        self._make = events
        self.server: Serves | None = None
        self.lines: list[str] = []
        self.records: list[TrialRecord] = []
        self.shown: Callable[[Any], object] = lambda _: self.say("look shown")
        self.rested_ns: list[int] = []

    def observer(self, host: str, _connect: Any = None) -> FakeAgent:
        """Return a channel to the observer."""
        return Observes(host, self)

    def serving(self, host: str, _connect: Any = None) -> FakeAgent:
        """Return a channel to the server."""
        self.server = Serves(host, self, self._make)
        return self.server

    def run(self, terms: ServeTerms) -> int:
        """Serve."""
        around = Surroundings(
            Reach({"local": self.observer}, self.observer), self.clock, self.interrupt
        )
        view = ServeView(
            self.lines.append,
            lambda: nullcontext(self.shown),
            lambda record: answer(record, judge(record)),
            self.records.append,
            lambda: self.rested_ns.append(self.clock.now_ns()),
        )
        servers = Reach({"local": self.serving}, self.serving)
        return serve(lab_to_watch(None, None), terms, around, servers, view)


def words(world: World) -> list[str]:
    """Return what was asked of the host, without what is asked again and again."""
    host = lab_to_watch(None, None).hosts[0].name
    asked = [word.removesuffix(f" {host}") for word in world.words]
    return [word for word in asked if word not in ("clients", "hello", "end", "look")]


def test_a_host_is_read_before_a_test_begins_and_before_its_client_has_results() -> None:
    """In this order, whatever the client does; facts also as the server begins."""
    world = Served()
    assert 1 == world.run(ServeTerms(once=True))
    assert ["facts", "facts", "snapshot", "proceed", "snapshot", "proceed"] == words(world)


def test_what_can_wait_waits_until_no_client_has_come_for_a_while() -> None:
    """Clients that come one after the other wait for no report."""
    world = Served()
    begun_ns = world.clock.now_ns()
    assert 1 == world.run(ServeTerms(duration_ns=5 * SECOND_NS))
    (record,) = world.records
    ended_ns = record.phases[-1].after[lab_to_watch(None, None).hosts[0].name].clock_ns
    assert begun_ns <= ended_ns < world.rested_ns[0] - REST_NS
    assert len(world.rested_ns) > 1


def test_what_is_said_of_a_test(golden: Golden) -> None:
    """Where it listens, who comes with what, and what its client is shown."""
    world = Served()
    world.run(ServeTerms(once=True))
    golden.check(world.lines)
    assert world.server is not None
    first, shown = world.server.shown
    assert first is None
    golden.check(shown)


def test_of_several_clients_an_answer_names_its_own() -> None:
    """Before the answer, which the client itself gets without it."""
    world = Served()
    world.run(ServeTerms(once=True, clients=2))
    assert "test 1, client 10.0.0.2:" == world.lines[-1]
    assert world.server is not None
    assert "client 10.0.0.2" not in str(world.server.shown)


@pytest.mark.parametrize("is_stored", [False, True])
def test_only_a_stored_test_can_be_shown_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_stored: bool
) -> None:
    """Else ``show`` would show another run; its report is written when there is time."""
    world = Served()
    world.run(ServeTerms(once=True))
    out = tmp_path / "kept" if is_stored else None
    kept = verb._Kept(lab_to_watch(None, None), out, once=True)
    kept.answer(world.records[0])
    kept.keep(world.records[0])
    assert is_stored is ("udpbench show --all" in capsys.readouterr().out)
    assert [out] * is_stored == kept.unreported
    for _ in range(2):
        kept.report()
        assert is_stored is (tmp_path / "kept" / "report.html").exists()


def test_a_stored_test_may_have_no_report(tmp_path: Path) -> None:
    """Drawing takes a second of the CPU that the next client's packets need."""
    world = Served()
    world.run(ServeTerms(once=True))
    kept = verb._Kept(lab_to_watch(None, None), tmp_path / "kept", once=True, report=False)
    kept.keep(world.records[0])
    assert (True, []) == ((tmp_path / "kept" / "run.jsonl").exists(), kept.unreported)


@pytest.mark.parametrize("is_stored", [False, True])
def test_every_note_of_a_test_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_stored: bool
) -> None:
    """However many there are: what has no effect, the buffer of -w, and iperf3's own number."""
    world = Served(lambda host: events_of(host, replace(SERVED, asked={**ASKED, "window": 65536})))
    world.run(ServeTerms(once=True))
    kept = verb._Kept(lab_to_watch(None, None), tmp_path / "kept" if is_stored else None, once=True)
    kept.answer(world.records[0])
    kept.keep(world.records[0])
    shown = " ".join(capsys.readouterr().out.split())
    for note in ("no effect here", "gave each socket a receive buffer", "iperf3's own server"):
        assert note in shown


def test_a_test_is_a_trial_like_any_other(tmp_path: Path, golden: Golden) -> None:
    """What the client counted is sent; what this host explains is at its stages, the rest ahead."""
    world = Served()
    world.run(ServeTerms(once=True))
    store_test(world.records[0], lab_to_watch(None, None), tmp_path / "run", ("udpbench", "serve"))
    stored = read_run(tmp_path / "run")
    assert stored.header.watched
    (record,) = stored.records
    assert record == world.records[0]
    result = judge(record)
    assert (True, 1000, 900, 100) == (
        *(result.valid, result.sent_packets, result.received_packets, result.lost_packets),
    )
    assert result.ledger is not None
    ended = {each.stage: each.packets for each in result.ledger.entries if each.packets}
    assert {"before_host": 40, "udp_rcvbuf": 60} == ended
    assert 0 == result.ledger.unaccounted
    golden.check([str(finding) for finding in result.findings])


def vanished(host: str) -> list[ClientEvent]:
    """Return a test whose client left."""
    stream = replace(STREAM, sent_packets=None)
    left = replace(SERVED, streams=(stream,), ended="it closed its connection", ignored=())
    return events_of(host, left)


def test_of_a_client_that_vanished_is_kept_what_is_known(golden: Golden) -> None:
    """It sent as many as its highest counter says, at least."""
    world = Served(vanished)
    world.run(ServeTerms(once=True))
    result = judge(world.records[0])
    assert (990, 90) == (result.sent_packets, result.lost_packets)
    golden.check([str(finding) for finding in result.findings])


def test_a_client_that_vanished_has_sent_what_this_host_lost(tmp_path: Path) -> None:
    """Also behind the highest counter that arrived: 900 came, 60 found a full buffer."""
    stream = replace(STREAM, sent_packets=None, highest=930)
    left = replace(SERVED, streams=(stream,), ended="it closed its connection", ignored=())
    world = Served(lambda host: events_of(host, left))
    world.run(ServeTerms(once=True))
    result = judge(world.records[0])
    assert (960, 60, 0, True) == (
        *(result.sent_packets, result.lost_packets, result.unaccounted, result.valid),
    )


def test_a_client_with_a_small_buffer_is_not_advised_to_set_what_it_does_not_have() -> None:
    """An experiment has a key for that, iperf3 has not."""
    world = Served()
    world.run(ServeTerms(once=True))
    (record,) = world.records
    receive = replace(record.trial.receive, buffer_bytes=2**20)
    asked = replace(record, trial=replace(record.trial, receive=receive))
    steps = {finding.what: finding.next_step for finding in judge(asked).findings}
    assert "raise net.core.rmem_max" == steps["the socket buffer is smaller than requested"]


class Vanishing(Observes):
    """An observer of a host whose interface is removed once it was read so many times."""

    reads = 1

    def _snapshot(self, interface: str, **also: Any) -> Snapshot:
        if interface and self.snapshots >= self.reads:
            raise AgentError("No such device, while looking at the host", self.host)
        return super()._snapshot(interface, **also)


class VanishingAtOnce(Vanishing):
    """The same, before it was read at all."""

    reads = 0


@pytest.mark.parametrize("agent", [Vanishing, VanishingAtOnce])
def test_an_interface_that_vanishes_ends_neither_the_server_nor_a_test(
    agent: type[Observes], golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its counters stay as they were read last, and the test says so."""
    world = Served()
    monkeypatch.setattr(world, "observer", lambda host, _=None: agent(host, world))
    assert 1 == world.run(ServeTerms(once=True))
    (record,) = world.records
    assert ["done"] == [record.status]
    host = lab_to_watch(None, None).hosts[0].name
    golden.check(
        [each.replace(host, "HOST") for each in (*world.lines, *map(str, record.findings))]
    )


class Lasting(Serves):
    """A server at which a client sends for as long as it asked for."""

    asked_ns: list[int]
    lasts_s = 2

    def _clients(self, since: int) -> list[ClientEvent]:
        now_ns = self.world.clock.now_ns()
        if len(self.shown) == 1:
            self.asked_ns.append(now_ns)
            self.open = 5 if now_ns - self.asked_ns[0] >= self.lasts_s * SECOND_NS else 3
        return super()._clients(since)


class Both(Lasting):
    """A server with two clients at once, which both send for as long as they asked for."""

    def __init__(self, host: str, world: World, events: Callable[[str], list[ClientEvent]]) -> None:
        super().__init__(host, world, events)
        pairs = [(each, replace(each, test=2)) for each in events(host)]
        self.waiting = [self.waiting[0], *(each for pair in pairs for each in pair)]
        self.open = 3

    def _clients(self, since: int) -> list[ClientEvent]:
        if len(self.shown) == 2:
            self.asked_ns.append(self.world.clock.now_ns())
            lasted = self.asked_ns[-1] - self.asked_ns[0] >= 6 * SECOND_NS
            self.open = 7 if lasted else 5
        return super(Lasting, self)._clients(since)

    def _proceed(self, test: int, output: str | None) -> None:
        assert test in (1, 2)
        self.shown.append(output)
        self.open += 2 if len(self.shown) == 4 else 0


def test_clients_that_are_served_at_once_are_shown_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The view is of the port; each test keeps what moved meanwhile."""
    monkeypatch.setattr(Lasting, "asked_ns", [], raising=False)
    monkeypatch.setattr(sys.modules[__name__], "Serves", Both)
    world = Served()
    assert 2 == world.run(ServeTerms(once=True, clients=2))
    assert 1 == world.words.count("look shown")


class Losing(Observes):
    """An observer that finds a socket to have dropped a packet at its second look."""

    losing = (1,)
    looked = 0

    def _look(self, **_: Any) -> HostLook:
        self.looked += 1
        number = sum(self.looked > each for each in self.losing)
        look = super()._look()
        return replace(look, sockets=(replace(SOCKET, drops=number),))


class Missing(Lasting):
    """A server of whose client packets are missing in some seconds."""

    lasts_s = 13
    missing_s = (2, 9)

    def __init__(self, host: str, world: World, events: Callable[[str], list[ClientEvent]]) -> None:
        super().__init__(host, world, events)
        self.waiting[3:3] = [ClientEvent("missing", test=1) for _ in self.missing_s]

    def _clients(self, since: int) -> list[ClientEvent]:
        events = super()._clients(since)
        if len(self.shown) != 1:
            return events
        passed_ns = self.asked_ns[-1] - self.asked_ns[0]
        self.open = 3 + sum(passed_ns >= each * SECOND_NS for each in self.missing_s)
        self.open += 2 * (passed_ns >= self.lasts_s * SECOND_NS)
        return self.waiting[since : self.open]


def test_a_host_is_looked_at_while_packets_are_missing_and_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each look takes CPU time, and all counters as much again, which are read if it loses some."""
    monkeypatch.setattr(Lasting, "asked_ns", [], raising=False)
    monkeypatch.setattr(sys.modules[__name__], "Serves", Missing)
    world = Served()
    monkeypatch.setattr(world, "observer", lambda host, _=None: Losing(host, world))
    looked_ns: list[int] = []
    world.shown = lambda _: looked_ns.append(world.clock.now_ns())
    assert 1 == world.run(ServeTerms(once=True))
    (record,) = world.records
    begun_ns = next(iter(record.phases[0].before.values())).clock_ns
    assert [2, 3, 7, 9, 12] == [round((each - begun_ns) / SECOND_NS) for each in looked_ns]
    assert [2, 7, 12] == [round((each.clock_ns - begun_ns) / SECOND_NS) for each in record.motion]


def test_a_server_is_seldom_asked_while_its_client_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers take time of the process that receives; once the time is over it is asked often."""
    asked_ns: list[int] = []
    monkeypatch.setattr(Lasting, "asked_ns", asked_ns, raising=False)
    monkeypatch.setattr(Lasting, "lasts_s", 3)
    monkeypatch.setattr(sys.modules[__name__], "Serves", Lasting)
    Served().run(ServeTerms(once=True))
    pauses_ms = [(late - early) // 10**6 for early, late in pairwise(asked_ns)]
    assert [1000, 1000, 200] == pauses_ms[:3]
    assert {50} == set(pauses_ms[3:])


def test_without_a_client_it_ends_in_time() -> None:
    """And says how many tests there were."""
    world = Served(lambda _: [])
    begun_ns = world.clock.now_ns()
    assert 0 == world.run(ServeTerms(duration_ns=2 * SECOND_NS))
    assert 2 * SECOND_NS <= world.clock.now_ns() - begun_ns < 3 * SECOND_NS


def test_ctrl_c_ends_it() -> None:
    """Between two tests or in one."""
    world = Served(lambda _: [])
    world.interrupt.requested = True
    assert 0 == world.run(ServeTerms())


def beyond_64_bits(host: str) -> list[ClientEvent]:
    """Return a test whose streams have more packets together than a record may hold."""
    many = replace(STREAM, sent_packets=2**63)
    return events_of(host, replace(SERVED, streams=(many, many)))


def clients_beside(host: str) -> list[ClientEvent]:
    """Return the beginnings of two tests."""
    first = events_of(host)[0]
    return [first, replace(first, test=2)]


@pytest.mark.parametrize(
    "events",
    [
        lambda host: events_of(host)[1:],
        lambda host: events_of(host)[2:],
        lambda host: [events_of(host)[number] for number in (0, 2, 2)],
        clients_beside,
        beyond_64_bits,
    ],
)
def test_a_test_that_can_not_be_ends_it_with_the_hosts_name(
    events: Callable[[str], list[ClientEvent]],
) -> None:
    """One that was not prepared or has ended, one more than are served at a time, or no sum."""
    known = r"was not prepared|served at a time|more packets than 64 bits"
    with pytest.raises(AgentLost, match=known) as ended:
        Served(events).run(ServeTerms())
    assert lab_to_watch(None, None).hosts[0].name == ended.value.host


def test_it_listens_at_loopback_unless_an_address_is_named() -> None:
    """All addresses are two sockets, one for each IP version."""
    assert LOOPBACK == addresses_of(None)
    assert ("127.0.0.1", "::1") == LOOPBACK
    assert ("192.0.2.7",) == addresses_of("192.0.2.7")
    assert ("0.0.0.0", "::") == addresses_of("::")  # noqa: S104 - nothing is bound
    assert ("5201", "2", "192.0.2.7") == ServeTerms(("192.0.2.7",), clients=2).words
    with pytest.raises(InputError, match="not an address"):
        addresses_of("everywhere")


def run(*words: str) -> int:
    """Return the exit code of a command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["udpbench", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def stored(folder: Path) -> TrialRecord:
    """Store a test into a folder, and return it."""
    world = Served()
    world.run(ServeTerms(once=True))
    store_test(world.records[0], lab_to_watch(None, None), folder, ("udpbench", "serve"))
    return world.records[0]


def test_wrong_options_are_refused_before_a_client_comes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    golden: Golden,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All at once; a folder that cannot take a test, too: its client would have sent for nothing."""
    monkeypatch.chdir(tmp_path)
    stored(Path("run"))
    Path("file").touch()
    for words in (
        ("--listen", "everywhere", "--for", "long"),
        ("--for", "0s"),
        ("--for", "25h"),
        ("--once", "--out", "run"),
        ("--out", "file"),
    ):
        assert 2 == run("serve", *words)
        golden.check(capsys.readouterr().err.splitlines())
    with pytest.raises(InputError, match="port: 65536: out of range"):
        ClientGate(tmp_path, ("pytest",), Path.touch, port=2**16)


def test_a_server_that_is_started_again_stores_beside_what_is_there(tmp_path: Path) -> None:
    """It never ends because a number is taken."""
    assert tmp_path / "0001" == next_folder(tmp_path)
    stored(next_folder(tmp_path))
    assert tmp_path / "0002" == next_folder(tmp_path)


def test_of_clients_without_end_so_many_tests_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each further one says that it is not."""
    monkeypatch.setattr(verb, "STORED_MAX", 1)
    world = Served()
    world.run(ServeTerms(once=True))
    kept = verb._Kept(lab_to_watch(None, None), tmp_path, once=False)
    for _ in range(3):
        kept.keep(world.records[0])
    assert [tmp_path / "0001"] == [*tmp_path.iterdir()]
    printed = capsys.readouterr()
    assert 2 == (printed.out + printed.err).count("not stored: 1 tests are")


def test_a_test_that_cannot_be_stored_or_read_back_ends_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said in a line, and in the exit code; the next is stored."""
    world = Served()
    world.run(ServeTerms(once=True))
    (record,) = world.records
    kept = verb._Kept(lab_to_watch(None, None), tmp_path, once=False)
    kept.answer(record)
    many = replace(SERVED, streams=(replace(STREAM, sent_packets=2**64),))
    kept.keep(replace(record, served=many))
    kept.report()
    assert 1 == capsys.readouterr().err.count("not stored: ")
    assert 2 == kept.code
    blocked = monkeypatch.setattr
    blocked("udpbench.control.serve.next_folder", lambda _: tmp_path / "0001")
    kept.keep(record)
    assert "not stored: " in (printed := capsys.readouterr().err)
    assert "already holds a run" in printed
    assert 1 == printed.count("\n")
    blocked("udpbench.control.serve.next_folder", next_folder)
    kept.keep(record)
    assert f"run folder: {tmp_path / '0002'}" in capsys.readouterr().out


def test_stored_tests_have_a_history_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As runs have; only those who watch are left out. Packets were lost."""
    stored(tmp_path / "0001")
    assert 0 == run("history", str(tmp_path), "--json", "--metric", "lost_packets")
    history = json.loads(capsys.readouterr().out)
    assert "1 run folder" == history["read"]
    (point,) = history["points"]
    assert ("serve", "serve") == (point["pair"], point["experiment"])
    assert [100] == [day["median"] for day in point["days"]]
    assert 1 == run("show", str(tmp_path / "0001"), "--json")
    (trial,) = json.loads(capsys.readouterr().out)["trials"]
    assert (1000, 900) == (trial["sent_packets"], trial["received_packets"])


def test_the_buffer_that_a_client_got_is_shown(golden: Golden) -> None:
    """If it asked for some; half of what the kernel says is for payload."""
    world = Served()
    world.run(ServeTerms(once=True))
    (record,) = world.records
    asked = replace(SERVED, asked={**ASKED, "window": 65536}, ignored=())
    golden.check([str(each) for each in served_findings(replace(record, served=asked))])


def test_rates_of_a_test_are_those_of_arrival() -> None:
    """In whole seconds between first and last packet; none where milliseconds are not kept."""
    world = Served()
    world.run(ServeTerms(once=True))
    (record,) = world.records
    host = lab_to_watch(None, None).hosts[0].name
    per_second = (0, 7, 100, 120, 110, 9)
    counts = tuple(n for packets in per_second for n in (packets, *(0,) * 999))
    sample = Sample(f"{host}.receiver0", 3, {}, 0, counts)
    result = judge(replace(record, series=(sample,)))
    assert result.delivered_pps_spread == pytest.approx(10 / 110)
    unkept = replace(sample, first_ms=None, packets_per_ms=(), range_per_ms=(0, 1, 2))
    assert judge(replace(record, series=(unkept,))).delivered_pps_spread is None


def test_a_client_that_sends_in_bursts_is_named(golden: Golden) -> None:
    """By its milliseconds; who sends evenly, too little or too briefly is not."""
    world = Served()
    world.run(ServeTerms(once=True))
    (record,) = world.records
    assert record.served is not None
    lumps = (100, *(0,) * 99) * 10
    older = replace(record.served, asked={**ASKED, "client_version": "3.1.3"})
    for served, counts in (
        (record.served, lumps),
        (older, lumps),
        (older, (1,) * 1000),
        (older, (9, *(0,) * 990, 9)),
        (older, (500,) * 99),
    ):
        sample = Sample("receiver0", 0, {}, 0, counts)
        golden.check(burst_text(replace(record, served=served, series=(sample,))))


def test_iperf3s_own_number_has_its_causes(golden: Golden) -> None:
    """None if it is the same."""
    for stream in (
        replace(STREAM, sent_packets=990),
        replace(STREAM, sent_packets=990, gap_packets=80),
        replace(STREAM, sent_packets=990, omitted_packets=200),
    ):
        golden.check(own_number(replace(SERVED, streams=(stream,))))
    silent = replace(SERVED, streams=(replace(STREAM, sent_packets=None),), ignored=())
    world = Served(lambda host: events_of(host, silent))
    world.run(ServeTerms(once=True))
    golden.check([str(finding) for finding in judge(world.records[0]).findings])


def test_a_client_is_told_where_its_packets_ended(golden: Golden) -> None:
    """Also if that was nowhere, or is not known."""
    world = Served()
    world.run(ServeTerms(once=True))
    (record,) = world.records
    result = judge(record)
    assert result.ledger is not None
    ledger = result.ledger
    for known in (
        replace(ledger, intended_packets=0, received_packets=0, entries=()),
        replace(ledger, intended_packets=900, entries=()),
        replace(ledger, entries=ledger.entries[:1], unaccounted=60),
        None,
    ):
        golden.check(answer(record, replace(result, ledger=known)))
