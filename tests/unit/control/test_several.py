"""Several hosts of a role: the way of a run with a bridge, and whom a path check misses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from control.fake import (
    PACKETS,
    RECEIVING,
    SENDING,
    FakeAgent,
    World,
    experiment,
    facts,
    header,
)
from udpbench.control.run import Outcome, RunOptions, run
from udpbench.definition.load import load_lab
from udpbench.model.host import Facts
from udpbench.model.lab import Connect
from udpbench.model.limits import Role
from udpbench.model.record import RecordedError, Snapshot
from udpbench.protocol import SampleReply
from udpbench.records.reader import read_run
from udpbench.records.run import Run
from udpbench.records.writer import RunWriter


class Member(FakeAgent):
    """A fake agent of a lab with a bridge; names of senders begin with ``s``, of receivers with ``r``.

    What is sent comes to each receiver in equal parts.
    """

    def _facts(self, interface: str) -> Facts:
        bridged = bool(self.world.agents["bridge"].in_force)
        mine = [setting["target"] for setting in self.in_force if setting["kind"] == "address"]
        addresses = tuple(target.partition("/")[2] for target in mine)
        return replace(facts(self.host, interface, addresses), mtu=1500 if bridged else None)

    @property
    def sends(self) -> bool:
        """Tell the role by the name."""
        return self.host.startswith("s")

    def _sent(self) -> int:
        count = self.phase.get("count")
        return PACKETS if count is None else int(count)

    def _counts(self) -> tuple[dict[str, int], int]:
        if self.sends:
            sent = self._sent() if self._over() else 0
            return dict.fromkeys(SENDING, 0) | {"attempted_packets": sent, "sent_packets": sent}, 0
        receivers = [name for name in self.world.agents if name.startswith("r")]
        silent = isinstance(self.world, Bridged) and self.host in self.world.silent
        packets = 0 if silent or not self.phase else self._sent() // len(receivers)
        return dict.fromkeys(RECEIVING, 0) | {
            "read_packets": packets,
            "received_packets": packets,
        }, 0

    def _over(self) -> bool:
        """End a sender's loop when its time has come, and tell whether it has."""
        if self.phase and self.state == "running":
            since_ns = self.world.clock.now_ns() - self.phase["at_ns"]
            limit_ns = 0 if self.phase["count"] is not None else self.phase["duration_ns"]
            self.state = "done" if since_ns >= limit_ns else "running"
        return self.state == "done"

    def _sample(self, since: int) -> SampleReply:
        reply = super()._sample(since)
        role: Role = "sender" if self.sends else "receiver"
        stats = replace(reply.stats[0], role=role, worker=f"{self.host}.{role}0")
        samples = (replace(reply.samples[0], worker=stats.worker),)
        queued = 0 if role == "receiver" else None
        return replace(reply, stats=(stats,), samples=samples, queued_bytes=queued)

    def _snapshot(self, interface: str, **_args: Any) -> Snapshot:
        assert (interface == "bridge0") == (self.host == "bridge")
        return Snapshot(self.host, self.world.clock.now_ns(), {})


class Bridged(World):
    """Fake agents of a lab with a bridge."""

    silent: tuple[str, ...] = ()

    def open(self, host: str, _connect: Connect | None = None) -> FakeAgent:
        """Return a channel to a fake agent."""
        self.say(f"open {host}")
        self.agents[host] = Member(host, self)
        return self.agents[host]


def go(world: World, folder: Path, lab_name: str, **keys: Any) -> tuple[Outcome, Run]:
    """Run one experiment in a shipped lab whose hosts are s1, s2 … and r1, r2 …."""
    lab = load_lab(lab_name)
    senders = tuple(replace(host, name=f"s{n}") for n, host in enumerate(lab.senders, 1))
    receivers = tuple(replace(host, name=f"r{n}") for n, host in enumerate(lab.receivers, 1))
    lab = replace(lab, hosts=senders + receivers)
    chosen = experiment(**keys)
    writer = RunWriter.create(folder, header(chosen))
    options = RunOptions(seed=1)
    outcome = run([chosen], lab, writer, world.progress.append, options, world.surroundings())
    return outcome, read_run(folder)


def test_the_bridge_comes_before_the_hosts_and_is_undone_after_them(tmp_path: Path) -> None:
    """The whole way of a trial of two senders and one receiver, in one list."""
    world = Bridged()
    outcome, run = go(world, tmp_path, "two-senders", warmup="0s")
    everyone = ("s1", "s2", "r1", "bridge", "machine")
    hosts, working = everyone[:3], ("r1", "s1", "s2")
    snapshots = [f"snapshot {name}" for name in everyone]
    phases = [
        [*snapshots, *(f"start {name} {phase}" for name in working), "stop r1", *snapshots]
        for phase in ("path", "measured")
    ]
    assert [
        *(f"{word} machine" for word in ("open", "hello", "take")),
        *(f"{word} {name}" for word in ("open", "hello", "take") for name in everyone[:-1]),
        *(f"facts {name}" for name in hosts),
        "apply machine nothing",
        "apply bridge",
        "apply r1",
        "apply s1",
        "apply s2",
        *(f"facts {name}" for name in hosts),
        *(f"prepare {name}" for name in working),
        *phases[0],
        *phases[1],
        *(f"verify {name}" for name in ("bridge", *working)),
        *(f"facts {name}" for name in hosts),
        "others machine",
        *(f"close {name}" for name in working),
        *(f"restore {name}" for name in everyone),
        *(f"end {name}" for name in everyone),
    ] == world.words
    assert (0, None) == (outcome.exit_code, run.records[0].error)


def test_a_record_keeps_hosts_apart(tmp_path: Path) -> None:
    """Facts, changes, snapshots, starts and workers are told by host."""
    world = Bridged()
    record = go(world, tmp_path, "two-receivers")[1].records[0]
    assert {"s1", "r1", "r2"} == set(record.facts)
    assert {"s1", "r1", "r2", "bridge", "machine"} == set(record.changes)
    assert ["s1.sender0", "r1.receiver0", "r2.receiver0"] == [
        worker.name for worker in record.workers
    ]
    measured = record.phases[-1]
    assert {"s1", "r1", "r2", "bridge", "machine"} == set(measured.before)
    assert {"s1", "r1", "r2"} == set(measured.start_ns) == set(measured.clocks)
    assert ["r1.receiver0", "r2.receiver0", "s1.sender0"] == [
        stats.worker for stats in measured.stats
    ]


def test_before_a_pair_changes_every_host_lets_go_of_it(tmp_path: Path) -> None:
    """The bridge's agent makes all pairs, so none of the hosts keeps anything on its end."""
    world = Bridged()
    variants = {
        "one": {"settings.receiver.link": {"queues": 1}},
        "two": {"settings.receiver.link": {"queues": 2}},
    }
    go(world, tmp_path, "two-senders", variants=variants, warmup="0s")
    second = len(world.words) - 1 - world.words[::-1].index("apply machine nothing")
    assert [
        *(f"apply {name} nothing" for name in ("s1", "s2", "r1")),
        "apply machine nothing",
        "apply bridge",
        "apply r1",
        "apply s1",
        "apply s2",
    ] == world.words[second - 3 : second + 5]


def test_a_receiver_that_no_packet_reaches_is_named(tmp_path: Path) -> None:
    """That another one is reached does not hide it."""
    world = Bridged()
    world.silent = ("r2",)
    record = go(world, tmp_path, "two-receivers")[1].records[0]
    assert (
        RecordedError(
            "PathError",
            "no packet of the path check arrived at r2; fix the path, or write "
            "`path_check: explained` if packets are meant to be dropped",
            "",
        )
        == record.error
    )


def test_what_the_ledger_cannot_explain_is_reported_with_the_receiver(tmp_path: Path) -> None:
    """``path_check: explained`` asks for an explanation of every receiver's packets."""
    world = Bridged()
    world.silent = ("r1",)
    keys = {"path_check": "explained"}
    record = go(world, tmp_path, "two-receivers", **keys)[1].records[0]
    assert record.error is not None
    assert (
        "no packet of the path check arrived at r1, and the ledger does not show why"
    ) == record.error.message
