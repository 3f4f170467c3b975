"""Whole hosts as files: what every recording in tests/fixtures/recorded says in each room.

A file that ``udpbench facts`` wrote becomes a case by lying there; ``noxfile.py messages`` writes
what is expected of it, to be read before it is committed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import shorten

import pytest
from control.fake import FakeAgent, World
from golden import Golden
from recorded_host import RecordedHost, read_recorded, recorded_files

from udpbench.agent.counters.snapshot import snapshot
from udpbench.agent.host.doctor import inspect_host
from udpbench.agent.host.facts import facts
from udpbench.agent.host.interrupts import rx_interrupts
from udpbench.agent.settings.engine import Engine
from udpbench.agent.settings.journal import Journal
from udpbench.analysis.doctor import assess
from udpbench.commands.recorded_hosts import write_recorded
from udpbench.control.agents import Reach
from udpbench.control.lab_lock import Surroundings
from udpbench.definition.binding.bind import bind, require_offers, settings_for
from udpbench.definition.binding.cpu_placement import Unavailable, UnmetNeeds
from udpbench.definition.binding.host_block import LabContext
from udpbench.definition.load import load_experiment_data, load_experiments, load_lab
from udpbench.definition.shipped import shipped_names
from udpbench.drivers import driver_of
from udpbench.errors import InputError
from udpbench.model.host import GSO_SEGMENTS, Facts
from udpbench.model.lab import Lab
from udpbench.model.record import Examined, Snapshot
from udpbench.protocol import RecordedTree

CARD = {
    "question": "What would be set?",
    "settings": {
        "receiver": {
            "sysctl": {"net.core.rmem_max": 8388608, "net.ipv4.udp_mem": "1 2 3"},
            "ethtool": {
                "channels": 2,
                "rings": {"rx": 4096},
                "coalesce": {"rx-usecs": 5},
                "pause": {"rx": False},
                "rx-flow-hash": {"udp4": "sdfn"},
                "indirection": "equal 2",
                "features": {"rx-gro": False},
            },
            "xps": {"cpus": "0-1"},
        }
    },
}
RIGHTS = {"net_admin": True, "rcvbuf_force": True, "real_time": True, "kernel_threads": True}


def cases() -> Iterator[tuple[Path, str]]:
    """Yield each host of each recording."""
    for file in recorded_files():
        for place in read_recorded(file)[1]:
            yield file, place


@pytest.fixture(params=cases(), ids=lambda case: f"{case[0].stem}-{case[1]}")
def tree(request: pytest.FixtureRequest) -> RecordedTree:
    """Return the tree of one host."""
    file, place = request.param
    return read_recorded(file)[1][place]


def facts_of(tree: RecordedTree) -> Facts:
    """Return the facts of a recorded host; older files lack what its kernel can do."""
    return facts(RecordedHost(tree), "right", tree.interface, tree.capabilities or RIGHTS)


def snapshot_of(tree: RecordedTree) -> Snapshot:
    """Return its counters."""
    host = RecordedHost(tree)
    return snapshot(host, "right", tree.interface, ("namespace", "machine"), (), dict)


def lab_of(tree: RecordedTree) -> Lab:
    """Return a lab in which the host receives."""
    lab = load_lab("two-hosts")
    receiver = replace(lab.receivers[0], interface=tree.interface, addresses=(), existing=True)
    return replace(lab, hosts=(*lab.senders, receiver))


def test_a_recorded_host_has_its_facts(tree: RecordedTree, golden: Golden) -> None:
    """Topology, card and environment; none is invented."""
    known = facts_of(tree)
    shown = replace(known, boot_id="", python="", siblings={}, cache_siblings={}, limits={})
    values = {key: getattr(shown, key) for key in vars(shown)}
    golden.check("\n".join(f"{key}: {values[key]}" for key in values if values[key]))
    assert len(known.siblings) == len(known.cpus)


def test_its_queues_have_interrupts_and_cpus(tree: RecordedTree, golden: Golden) -> None:
    """Each RX queue by itself, and which counter is its packets."""
    known = facts_of(tree)
    irqs = rx_interrupts(RecordedHost(tree), tree.interface)
    golden.check(
        "\n".join(
            f"queue {queue}: interrupt {irqs.get(queue)}, CPUs {known.queue_cpus.get(str(queue))}"
            for queue in range(known.rx_queues or 0)
        )
    )


def test_its_full_ring_is_counted_where_its_driver_counts_it(
    tree: RecordedTree, golden: Golden
) -> None:
    """By the names that the host has, and what the interrupts did."""
    counters, row = snapshot_of(tree).counters, driver_of(facts_of(tree))
    named = [pattern.replace("{interface}", tree.interface) for pattern in row.full_ring]
    counts = {name: counters[name] for name in counters if any(Path(name).match(n) for n in named)}
    golden.check(json.dumps(counts))
    interrupts = {name: counters[name] for name in counters if name.startswith("interrupt.")}
    golden.check(f"{len(interrupts)} counters of interrupts, {sum(interrupts.values())} in all")


def test_doctor_says_of_it_what_would_distort_a_measurement(
    tree: RecordedTree, golden: Golden
) -> None:
    """With its inspection; of a load, which takes two snapshots, nothing is known."""
    inspection = inspect_host(RecordedHost(tree), tree.interface)
    examined = Examined(facts_of(tree), inspection, after=snapshot_of(tree))
    results = assess((examined,), lab_of(tree))
    golden.check(
        "\n".join(
            f"{result.check}: {result.finding.brief}"
            if result.status == "spoils"
            else f"{result.check}: ?"
            for result in results
            if result.host == "right" and result.status != "ready"
        )
    )


def test_an_experiments_settings_are_planned_on_it(
    tree: RecordedTree, golden: Golden, tmp_path: Path
) -> None:
    """Each with the value now, or why it cannot be set; nothing is written."""
    lab = lab_of(tree)
    (trial,) = load_experiment_data(CARD, "card").points
    context = LabContext(facts={"right": facts_of(tree)})
    settings = settings_for(lab, trial, lab.receivers[0], context)
    host = RecordedHost(tree, tmp_path)
    engine = Engine(host, Journal(host, "run"), ("namespace", "machine"))
    planned = engine.plan(settings)
    golden.check(
        "\n".join(
            f"{plan.setting.kind} {plan.setting.target}: {shorten(str(plan.now), 70)}"
            f" → {plan.setting.value}" + (f": refused: {plan.refusal}" if plan.refusal else "")
            for plan in planned
        )
    )


KERNELS = {file: place for file, place in cases() if read_recorded(file)[1][place].capabilities}
"""A host of each file that says what its kernel can do; older files lack that."""


@pytest.mark.parametrize("file", KERNELS, ids=lambda file: file.stem)
@pytest.mark.parametrize("lab_name", ["local", "two-hosts"])
def test_shipped_experiments_are_bound_on_its_kernel_or_say_why_not(
    file: Path, lab_name: str, golden: Golden
) -> None:
    """Every point: what the kernel must offer, the settings of both hosts, and the workers."""
    tree = read_recorded(file)[1][KERNELS[file]]
    lab = load_lab(lab_name)
    # GSO is probed by sending, which a recording does not do.
    own = replace(facts_of(tree), limits={GSO_SEGMENTS: 64})
    context = LabContext({"sender": 7, "receiver": 8}, {host.name: own for host in lab.hosts})
    capabilities = {host.name: tree.capabilities for host in lab.hosts}
    outcomes: Counter[str] = Counter()
    for trial in (point for each in load_experiments(shipped_names()) for point in each.points):
        try:
            require_offers(trial, lab, context.facts, capabilities)
            kinds = [s.kind for host in lab.hosts for s in settings_for(lab, trial, host, context)]
            bind(trial, lab, context.facts)
            steered = lab.built_in and ("rps" in kinds, "napi_cpus" in kinds)
            outcomes[
                {(True, False): "bound, RPS", (False, True): "bound, NAPI"}.get(steered, "bound")
            ] += 1
        except (Unavailable, UnmetNeeds) as error:
            outcomes[str(error)] += 1
    golden.check("\n".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items())))


def test_every_recording_says_where_it_comes_from() -> None:
    """Recorded, or written by hand and from what."""
    sources = [read_recorded(file)[0] for file in recorded_files()]
    assert len(sources) >= 4
    assert all(source.startswith(("recorded by ", "written by hand")) for source in sources)


class Recording(FakeAgent):
    """A fake agent that has a tree."""

    def _record(self, interface: str) -> RecordedTree:
        return RecordedTree(interface, {"/proc/uptime": "1 2"}, {}, {}, {})


@pytest.fixture
def around() -> Surroundings:
    """Return a world whose agents can be recorded."""
    world = World(netns={"left": 1, "right": 2, "sender": 1, "receiver": 2, "machine": 3})
    ways = {way: lambda host, _: Recording(host, world) for way in ("ssh", "local", "namespace")}
    return Surroundings(
        Reach(ways, lambda host: Recording(host, world)), world.clock, world.interrupt
    )


@pytest.mark.parametrize(
    ("lab", "places"),
    [("two-hosts", {"sender0": "eth3", "receiver1": "eth2"}), ("local", {"machine0": ""})],
)
def test_a_lab_is_recorded_without_the_names_of_its_hosts(
    lab: str, places: dict[str, str], around: Surroundings, tmp_path: Path
) -> None:
    """In a built-in lab the machine alone; what is written can be read again."""
    file = write_recorded(load_lab(lab), tmp_path / "facts.json", around, "0.2.0")
    source, trees = read_recorded(file)
    assert "recorded by udpbench facts, version 0.2.0" == source
    assert places == {place: tree.interface for place, tree in trees.items()}
    assert "left" not in file.read_text()


def test_a_file_that_cannot_be_written_is_refused_before_any_host_is_asked(
    around: Surroundings, tmp_path: Path, golden: Golden
) -> None:
    """One that is there, or a folder that is not."""
    (tmp_path / "there").write_text("mine")
    for out in (tmp_path / "there", tmp_path / "nowhere" / "facts.json"):
        with golden.raises(InputError):
            write_recorded(load_lab("local"), out, around, "0.2.0")
    assert "mine" == (tmp_path / "there").read_text()
