"""Which trials have the workers of the one before, and what they still prove."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from control.fake import World, experiment, go
from udpbench.control.kept_workers import may_stay
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.errors import SafetyError, WorkerFailed
from udpbench.model.host import Change, Setting
from udpbench.model.record import RecordedError

FURTHER = ("take over", "path", "warmup", "measured", "verify", "close")


def prepared(world: World, folder: Path, **keys: Any) -> int:
    """Return how often the sender's workers are made in a run; keys as in YAML."""
    outcome, stored = go(world, folder, experiment(**{"repetitions": 2, **keys}))
    assert None is outcome.error
    assert ["done"] * len(stored.records) == [record.status for record in stored.records]
    assert world.words.count("prepare sender") == world.words.count("close sender")
    return world.words.count("prepare sender")


def test_a_further_trial_of_a_point_has_the_workers_of_the_first(tmp_path: Path) -> None:
    """It has all phases of its own, and looks at workers, routes, settings and facts."""
    world = World()
    _, stored = go(world, tmp_path, experiment(repetitions=3))
    first, *further = stored.records
    assert [FURTHER] * 2 == [tuple(record.overhead_ns) for record in further]
    assert [["path", "warmup", "measured"]] * 3 == [
        [phase.name for phase in record.phases] for record in stored.records
    ]
    assert 9 == len({phase.tag for record in stored.records for phase in record.phases})
    words = world.words[world.words.index("confirm sender") - 1 :]
    assert ["others machine", "confirm sender", "confirm receiver", "snapshot sender"] == words[:4]
    counts = {word: world.words.count(word) for word in ("prepare sender", "confirm receiver")}
    assert {"prepare sender": 1, "confirm receiver": 2} == counts
    assert (3, 3) == tuple(map(world.words.count, ("verify receiver", "start sender path")))
    assert (1, 1) == tuple(map(world.words.count, ("apply sender", "close sender")))
    assert {(first.workers, first.findings)} == {(r.workers, r.findings) for r in stored.records}


@pytest.mark.parametrize(
    "keys",
    [
        {"warmup": "0s"},
        {"fresh": True},
        {"traffic": {"protocol": "tcp", "rate": "unlimited"}},
        {"receive": {"log": {"path": "/tmp/udpbench.log"}}},
        {"receive": {"command": ["./server"]}},
        {"receive": {"fault": {"worker": 1, "after": "100ms", "does": "hang"}}},
        {"send": {"cpus": "any"}},
        {"path_check": "explained"},
        {"losses": {"rx_xdp": 10}},
    ],
    ids=lambda keys: "-".join(map(str, next(iter(keys.items())))),
)
def test_points_start_fresh_where_keeping_would_change_a_result(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    """Each trial has workers of its own."""
    assert 2 == prepared(World(), tmp_path, **keys)


def test_sockets_that_draw_their_queue_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender with several TX queues has another one in each trial."""
    monkeypatch.setattr("control.fake.TX_QUEUES", 2)
    assert 2 == prepared(World(), tmp_path)


def test_sockets_that_draw_their_cpu_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without root, RPS spreads the flows of a queue over all of the receiver's CPUs."""
    monkeypatch.setattr("control.fake.CAPABILITIES", {"kernel_threads": False})
    link = {"settings": {"receiver": {"link": {"queues": 1, "cpus": "0-1"}}}}
    assert 2 == prepared(World(), tmp_path, **link)


def test_a_path_with_hosts_in_the_middle_is_proven_anew() -> None:
    """By the steps of a fresh trial."""
    (point,) = experiment().points
    attempt: Any = SimpleNamespace(trial=point, bench=SimpleNamespace(lab=load_lab("router")))
    assert not may_stay(attempt)


def test_a_search_that_asks_for_it_has_fresh_workers(tmp_path: Path) -> None:
    """In every trial."""
    world = World(capacity_pps=300_000)
    plain = {"question": "How many?", "warmup": "0s", "search": "quick", "fresh": True}
    _, stored = go(world, tmp_path, load_experiment_data(plain, "one"))
    assert world.words.count("prepare sender") == len(stored.records) > 5


def test_another_rate_is_set_by_the_start(tmp_path: Path) -> None:
    """Workers stay, if each sender's share is a whole number; from and to no rate they do not."""
    world, rates = World(), list[int | None]()
    note = lambda: rates.append(world.agents["sender"]._rate())  # noqa: E731
    start = world.say

    def say(word: str) -> None:
        start(word)
        if word == "stop receiver":
            note()

    world.say = say  # type: ignore[method-assign]
    assert 1 == prepared(world, tmp_path / "1", repetitions=1, sweep={"traffic.rate": RATES})
    assert {1000, 2000} == set(rates[1::3]) == set(rates[2::3])
    each = {"flows": {"spread": "each"}}
    odd = {"send": {"workers": 2}, "repetitions": 1, "traffic": each}
    assert 2 == prepared(
        World(), tmp_path / "2", **odd, sweep={"traffic.rate": ["1001pps", "2001pps"]}
    )
    none = ["1kpps", "unlimited"]
    assert 2 == prepared(World(), tmp_path / "3", repetitions=1, sweep={"traffic.rate": none})


RATES = ["1kpps", "2kpps"]


def test_another_point_has_workers_of_its_own(tmp_path: Path) -> None:
    """What is not a rate is the workers'."""
    assert 2 == prepared(World(), tmp_path, repetitions=1, sweep={"send.batch": [1, 2]})


def test_a_trial_without_a_warmup_takes_over_no_workers(tmp_path: Path) -> None:
    """Those of the trial before are warm; of another length, of any phase, they stay."""
    for warmup, duration, prepares in (("0s", "1s", 2), ("100ms", "2s", 1)):
        world = World()
        further = experiment("further", warmup=warmup, duration=duration)
        outcome, _ = go(world, tmp_path / warmup, experiment(), further)
        assert None is outcome.error
        assert prepares == world.words.count("prepare sender")


def test_workers_that_are_not_as_they_were_are_made_anew(tmp_path: Path) -> None:
    """One that died, moved or lost its socket."""
    assert 2 == prepared(World(unsteady=("receiver",)), tmp_path)


def test_a_host_that_is_not_as_it_was_has_fresh_workers(tmp_path: Path) -> None:
    """Whatever its facts say differently at the end of the trial before."""
    world = World()
    world.hooks["verify receiver"] = lambda: world.environment.update(governor="powersave")
    assert 2 == prepared(world, tmp_path)


def test_an_invalid_trial_leaves_no_workers(tmp_path: Path) -> None:
    """The next one begins as the first did."""
    change = Change(Setting("sysctl", "net.core.rmem_max", 1), 1, 2)
    assert 2 == prepared(World(altered={"receiver": (change,)}), tmp_path)


def test_a_route_that_leads_elsewhere_fails_the_further_trial(tmp_path: Path) -> None:
    """As it fails the first, before anything is sent."""
    world = World()
    world.raises("confirm sender", SafetyError("it leaves by eth0", "sender"))
    _, stored = go(world, tmp_path, experiment(repetitions=2))
    assert ("done", "failed") == tuple(record.status for record in stored.records)
    assert RecordedError("SafetyError", "it leaves by eth0", "sender") == (stored.records[1].error)
    assert 1 == world.words.count("start sender measured")


@pytest.mark.parametrize("fresh", [False, True])
def test_a_link_that_was_taken_down_between_trials_is_named(tmp_path: Path, fresh: bool) -> None:
    """Facts of the trial before do not show it: they are read again where nothing arrives."""
    world = World()

    def take_down() -> None:
        world.arriving, world.links["receiver"] = 0, ["down"]

    world.hooks["prepare sender" if fresh else "confirm sender"] = take_down
    keys = {"repetitions": 1 if fresh else 2, "fresh": fresh}
    _, stored = go(world, tmp_path, experiment(**keys))
    expected = "receive0 is down, although it was taken up: find out what did it"
    assert RecordedError("HostError", expected, "receiver") == (stored.records[-1].error)


def test_a_further_trial_that_fails_leaves_no_workers(tmp_path: Path) -> None:
    """They are closed, and the next trial makes its own."""
    world = World()
    fail = lambda: world.raises("start sender measured", WorkerFailed("it died", "sender"))  # noqa: E731
    world.hooks["confirm sender"] = fail
    _, stored = go(world, tmp_path, experiment(repetitions=3))
    assert ["done", "failed", "done"] == [record.status for record in stored.records]
    assert "prepare" in stored.records[2].overhead_ns


def test_facts_are_read_where_they_can_have_changed(tmp_path: Path) -> None:
    """After settings were changed, and at the end of each trial, which is the beginning of the next."""
    world = World()
    go(world, tmp_path / "same", experiment(repetitions=3, fresh=True))
    assert 2 + 3 == world.words.count("facts sender")
    world = World()
    sysctl = {"settings.receiver.sysctl": {"net.core.rmem_max": 10**6}}
    variants = {"a": {}, "b": sysctl}
    go(world, tmp_path / "other", experiment(repetitions=1, variants=variants))
    assert 2 + 1 + 2 == world.words.count("facts sender")
