"""Watching hosts: which ones, for how long, and that nothing is taken or changed there."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from golden import Golden

from control.fake import FakeAgent, World, facts, lab
from udpbench.analysis.judge import judge
from udpbench.analysis.verdicts import exit_code
from udpbench.analysis.watch.host import LiveHost, live_host
from udpbench.commands.resume import ResumeOptions, reopen_run
from udpbench.control.agents import Reach
from udpbench.control.lab_lock import Surroundings
from udpbench.control.watch import KeptLooks, Watched, lab_to_watch, watch
from udpbench.definition.load import load_lab
from udpbench.errors import AgentError, DeadlineExceeded, InputError, NothingToWatch
from udpbench.model.lab import Connect
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import (
    Finding,
    HostLook,
    RecordedError,
    Snapshot,
    UdpSocket,
)
from udpbench.records.reader import read_run
from udpbench.report.watch import line, losses

LAB = """\
sender: [{name: left, connect: {ssh: left}, interface: eth3, addresses: [10.0.0.30/24]}]
receiver: [{name: right, connect: {ssh: right}, interface: eth2, addresses: existing}]
"""
SOCKET = UdpSocket(1, 1, 4, "127.0.0.1", 53, None, 0, 0, 0, 1, 0)


class Seen(FakeAgent):
    """An agent that can be looked at, and at which as many packets drop."""

    looks = 0

    def _look(self, **args: Any) -> HostLook:
        self.world.say(f"asked {args}")
        self.looks += 1
        counters = {"snmp.Udp.RcvbufErrors": self.looks, "snmp.Udp.InErrors": self.looks}
        counters["snmp.Udp.InDatagrams"] = 10 * self.looks
        snapshot = Snapshot(self.host, self.world.clock.now_ns(), counters)
        return HostLook(snapshot, ("eth2",), (SOCKET,) if self.looks == 1 else ())

    def _facts(self, interface: str) -> Any:
        return facts(self.host, interface, ())


class Watchable(World):
    """One machine, reached without SSH."""

    agent = Seen

    def open(self, host: str, _connect: Connect | None = None) -> FakeAgent:
        """Return a channel to its agent."""
        self.agents[host] = self.agent(host, self)
        return self.agents[host]

    def surroundings(self) -> Surroundings:
        """Return what a watch takes in place of the real thing."""
        return Surroundings(Reach({"local": self.open}, self.open), self.clock, self.interrupt)


def watch_machine(
    world: World, watched: Watched, duration_ns: int | None, tell: Callable[[LiveHost], None]
) -> list[LiveHost]:
    """Watch this machine."""
    return watch(lab_to_watch(None, None), watched, duration_ns, world.surroundings(), tell)


def test_a_look_a_second_and_one_at_the_end() -> None:
    """Each is told; nothing but looking is asked of the host, which nobody takes."""
    world, states = Watchable(), []
    (last,) = watch_machine(world, Watched(), 5 * SECOND_NS // 2, states.append)
    assert [SECOND_NS, 2 * SECOND_NS, 5 * SECOND_NS // 2] == [each.elapsed_ns for each in states]
    assert last is states[-1]
    assert [("udp_rcvbuf", 3)] == [(loss.stage, loss.packets) for loss in last.stages]
    verbs = {word.split()[0] for word in world.words}
    assert {"hello", "ping", "look", "asked", "facts", "end"} >= verbs
    assert "asked {'pid': None, 'unit': None, 'exact': False}" in world.words


def test_what_is_advised_enters_the_namespace_of_the_watched_process() -> None:
    """By its number, which whoever types it needs."""
    for pid, enter in ((7, "nsenter -t 7 -n "), (None, "")):
        (last,) = watch_machine(Watchable(), Watched(pid=pid), SECOND_NS, lambda _: None)
        assert enter == last.enter


def test_the_time_of_a_watch_begins_with_its_first_look() -> None:
    """The facts of many interfaces take seconds; those belong to what is watched."""

    class Slow(Seen):
        def _facts(self, interface: str) -> Any:
            self.world.clock.sleep_ns(3 * SECOND_NS // 2)
            return super()._facts(interface)

    world, states = Watchable(), []
    world.agent = Slow
    watch_machine(world, Watched(), 5 * SECOND_NS // 2, states.append)
    seconds = [each.elapsed_ns / SECOND_NS for each in states]
    assert [1.5, 2.0, 2.5] == seconds


class Vanishing(Seen):
    """A host with an interface that loses packets, and is gone from the third look on."""

    def _look(self, **args: Any) -> HostLook:
        look = super()._look(**args)
        counters = {**look.snapshot.counters, "snmp.Ip.ForwDatagrams": self.looks}
        there = self.looks < 3
        counters |= {"link.eth3.tx_dropped": 7 * self.looks} if there else {}
        snapshot = replace(look.snapshot, counters=counters)
        return replace(look, interfaces=("eth2", "eth3")[: 1 + there], snapshot=snapshot)


class Raced(Vanishing):
    """The same, of which the facts cannot be read any more."""

    def _facts(self, interface: str) -> Any:
        if interface == "eth3":
            raise AgentError("No such device, while looking at the host", self.host)
        return super()._facts(interface)


@pytest.mark.parametrize("agent", [Vanishing, Raced])
def test_an_interface_that_vanishes_ends_no_watch(
    tmp_path: Path, agent: type[Seen], golden: Golden
) -> None:
    """It is named, also in what is kept; what was lost there stays lost."""
    world, states = Watchable(), []
    world.agent = agent
    kept = KeptLooks.create(tmp_path / "run", lab_to_watch(None, None), ())
    around = world.surroundings()
    lab_here = lab_to_watch(None, None)
    hosts = watch(lab_here, Watched(), 4 * SECOND_NS, around, states.append, kept)
    kept.finish(losses(hosts))
    assert [(), ("eth3",), ("eth3",), ("eth3",)] == [each.gone for each in states]
    lost = [{e.stage: (e.packets, e.pps) for e in s.stages if e.where == "eth3"} for s in states]
    assert [{"fwd_device": (7, 7.0)}, *[{"fwd_device": (7, 0.0)}] * 3] == lost
    (record,) = read_run(tmp_path / "run").records
    host = hosts[0].host
    golden.check(
        [text.replace(host, "HOST") for text in (line(states[-1]), *map(str, record.findings))]
    )


@pytest.mark.parametrize("kept_most", [2, 1000])
def test_what_is_seen_is_kept_as_the_one_trial_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_most: int
) -> None:
    """Stages have what their counters say, nothing balances, and a loss ends ``show`` with 1."""
    monkeypatch.setattr("udpbench.control.watch.KEPT_MAX", kept_most)
    world, here = Watchable(), lab_to_watch(None, None)
    kept = KeptLooks.create(tmp_path / "run", here, ("udpbench", "watch"))
    surroundings = world.surroundings()
    watch(here, Watched(), 5 * SECOND_NS // 2, surroundings, lambda _: None, kept)
    kept.finish([Finding("warning", "dropped", "here", "3 packets")])
    run = read_run(tmp_path / "run")
    (record,) = run.records
    assert (True, "complete") == (run.header.watched, run.ending.status if run.ending else None)
    assert [0, SECOND_NS, 2 * SECOND_NS, 5 * SECOND_NS // 2] == [
        sample.clock_ns - record.phases[0].start_ns[socket.gethostname()]
        for sample in record.series
    ]
    assert 3 == len(record.motion)
    result = judge(record)
    assert result.ledger is not None
    assert {"udp_rcvbuf": 3} == {e.stage: e.packets for e in result.ledger.entries if e.packets}
    assert (30, 12.0, None, None) == (
        result.received_packets,
        result.delivered_pps,
        result.sent_packets,
        result.unaccounted,
    )
    assert (0, 1) == (exit_code([replace(result, findings=())], []), exit_code([result], []))


def test_a_watch_that_fails_says_so_and_none_is_resumed(tmp_path: Path, golden: Golden) -> None:
    """It has no trial that another session could run."""
    kept = KeptLooks.create(tmp_path / "run", lab_to_watch(None, None), ("udpbench", "watch"))
    kept.fail(NothingToWatch("there is no process 7", "here"))
    run = read_run(tmp_path / "run")
    assert run.ending is not None
    assert ("failed", ()) == (run.ending.status, run.records)
    assert "NothingToWatch" == (run.ending.error or RecordedError()).kind
    with golden.raises(InputError):
        reopen_run(tmp_path / "run", ResumeOptions())


def test_ctrl_c_ends_a_watch_with_a_last_look() -> None:
    """However long it was to be."""
    world, states = Watchable(), []

    def interrupt(live: LiveHost) -> None:
        states.append(live.elapsed_ns)
        world.interrupt.requested = True

    watch_machine(world, Watched(), None, interrupt)
    assert 2 == len(states)


def test_a_port_that_nobody_has_is_an_error(golden: Golden) -> None:
    """It names those that are bound."""
    with golden.raises(NothingToWatch, host=socket.gethostname()):
        watch_machine(Watchable(), Watched(port=54), None, lambda _: None)
    watch_machine(Watchable(), Watched(port=53), SECOND_NS, lambda _: None)


def test_a_port_of_a_service_that_is_down_is_watched_for_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until a socket is bound to it; a port to which nothing is bound or sent is an error then."""
    look = Seen._look

    def later(self: Seen, **args: Any) -> HostLook:
        seen = look(self, **args)
        back = replace(SOCKET, port=54)
        counters = {**seen.snapshot.counters, "snmp.Udp.NoPorts": 5 * self.looks * self.sent}
        snapshot = replace(seen.snapshot, counters=counters)
        return replace(seen, snapshot=snapshot, sockets=(back,) if self.looks == self.comes else ())

    monkeypatch.setattr(Seen, "_look", later)
    for comes, sent in ((3, 0), (0, 1)):
        monkeypatch.setattr(Seen, "comes", comes, raising=False)
        monkeypatch.setattr(Seen, "sent", sent, raising=False)
        (live,) = watch_machine(Watchable(), Watched(port=54), 4 * SECOND_NS, lambda _: None)
        assert (comes > 0, sent > 0) == (bool(live.sockets), live.unbound_packets > 0)
    monkeypatch.setattr(Seen, "sent", 0)
    with pytest.raises(NothingToWatch, match="nor did any packet come to it"):
        watch_machine(Watchable(), Watched(port=54), 4 * SECOND_NS, lambda _: None)


def test_a_host_that_has_ever_more_interfaces_is_given_up(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Each is asked about, and each of these answers takes its time."""
    world = Watchable()
    look = Seen._look

    def slow(self: Seen, interface: str) -> Any:
        world.clock.time_ns += 9 * SECOND_NS
        return facts(self.host, interface, ())

    def many(self: Seen, **args: Any) -> HostLook:
        return replace(look(self, **args), interfaces=tuple(f"eth{n}" for n in range(1000)))

    monkeypatch.setattr(Seen, "_facts", slow)
    monkeypatch.setattr(Seen, "_look", many)
    with pytest.raises(DeadlineExceeded) as caught:
        watch_machine(world, Watched(), SECOND_NS, lambda _: None)
    golden.check(caught.value.message)


def test_a_host_whose_sockets_never_close_is_given_up(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Each look lists others."""
    look = Seen._look

    def others(self: Seen, **args: Any) -> HostLook:
        seen = look(self, **args)
        cookies = range(1000 * self.looks, 1000 * self.looks + 1000)
        return replace(seen, sockets=tuple(replace(SOCKET, cookie=each) for each in cookies))

    monkeypatch.setattr(Seen, "_look", others)
    monkeypatch.setattr("udpbench.control.watch.MOST_SOCKETS", 5000)
    with golden.raises(AgentError, host=socket.gethostname()):
        watch_machine(Watchable(), Watched(), None, lambda _: None)


def test_facts_of_interfaces_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host may name another with each look."""
    look, asked, kept = Seen._look, [], []

    def another(self: Seen, **args: Any) -> HostLook:
        return replace(look(self, **args), interfaces=(f"eth{self.looks}",))

    def told(self: Seen, interface: str) -> Any:
        asked.append(interface)
        return facts(self.host, interface, ())

    def live(first: Any, before: Any, now: Any, known: Any, *rest: Any) -> LiveHost:
        kept.append(set(known))
        return live_host(first, before, now, known, *rest)

    monkeypatch.setattr(Seen, "_look", another)
    monkeypatch.setattr(Seen, "_facts", told)
    monkeypatch.setattr("udpbench.control.watch.live_host", live)
    watch_machine(Watchable(), Watched(), 5 * SECOND_NS, lambda _: None)
    assert len(asked) > 4
    assert [{name} for name in asked[1:]] == kept


def test_a_destination_or_a_labs_receivers_are_watched(tmp_path: Any) -> None:
    """By its name without the user."""
    path = tmp_path / "lab.yaml"
    path.write_text(LAB)
    assert ["right"] == [host.name for host in lab_to_watch(None, load_lab(str(path))).hosts]
    (host,) = lab_to_watch("root@[fe80::1]:22", None).hosts
    assert ("fe80::1", Connect("ssh", "root@[fe80::1]:22")) == (host.name, host.connect)


def test_what_cannot_be_a_host_is_an_error(golden: Golden) -> None:
    """Not a destination, two of them, and a lab without a process."""
    for destination, chosen in (("-oProxyCommand=x", None), ("left", lab()), (None, lab())):
        with golden.raises(InputError):
            lab_to_watch(destination, chosen)
