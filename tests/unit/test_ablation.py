"""The arithmetic of the ablations, without a lab: what holds, what is missed, and what a mutant does."""

from __future__ import annotations

import os
import struct
import sys
import time
from array import array
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from analysis import sampled
from analysis.build import MS, READER, trial
from analysis.sampled import QUIET, Seen
from analysis.test_cpu_time_of_nodes import between

from udpbench.agent.host.bpf.instructions import IPV4, IPV4_WITHOUT_OPTIONS, TIMES, UDP
from udpbench.cpu_stages import anchor_of
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import CpuSamples, TrialRecord
from udpbench.model.result import Progress

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("lab", "agent")]

import ablation
import bpf_machine
import planted_xdp

POLL = ("__napi_poll", "napi_threaded_poll")
RULES = ("nft_do_chain", "nf_hook_slow", "ip_rcv", *POLL)


def soaked(records: Iterable[TrialRecord], taken_ms: Iterable[int]) -> ablation.Run:
    """Return records one after the other, in each of which others took so much of CPU 0."""
    later, moments, taken = [], [0], [0]
    for place, (record, ms) in enumerate(zip(records, taken_ms, strict=True)):
        (phase,) = record.phases
        start_ns, end_ns = (10 * place + 5) * SECOND_NS, (10 * place + 7) * SECOND_NS
        edges = [
            {host: replace(snapshot, clock_ns=at_ns) for host, snapshot in edge.items()}
            for edge, at_ns in ((phase.before, start_ns), (phase.after, end_ns))
        ]
        moved = replace(phase, before=edges[0], after=edges[1])
        later.append(replace(record, phases=(moved,)))
        moments += [start_ns, end_ns]
        taken += [taken[-1], taken[-1] + ms * MS]
    rows = (
        [*moments, moments[-1] + 1],
        [*taken, taken[-1]],
        [0] * (len(moments) + 1),
        [0] * (len(moments) + 1),
    )
    return ablation.Run(tuple(later), ablation.Soaked({0: rows}))


def blocks(extra: Iterable[Seen], busy_ms: int, thing: str = "rules-100") -> ablation.Run:
    """Return seven blocks of both arms; with the thing a CPU is busy so much longer."""
    records, taken = [], []
    idle = QUIET[4]._replace(count=1200 - busy_ms)
    for repetition in range(1, 8):
        for point, seen, busy in (
            ("without", QUIET, 800),
            ("with", (*QUIET[:4], idle, *QUIET[5:], *extra), 800 + busy_ms),
        ):
            plain = sampled.record(seen=seen, busy_ms=busy)
            records.append(replace(plain, trial=trial(point, repetition)))
            taken.append(busy)
    assert thing in ablation.THINGS
    return soaked(records, taken)


def test_what_was_attributed_is_what_was_saved() -> None:
    """In ns per packet; what changes besides is told apart, and counts."""
    extra = (Seen(0, 30, RULES, 100), Seen(0, 0, ("__schedule", "schedule", "do_idle"), 20))
    outcome = ablation.outcome_of("rules-100", blocks(extra, 120))
    assert outcome is not None
    numbers = outcome.saved, outcome.attributed, outcome.elsewhere, outcome.error
    assert (120_000, 100_000, 20_000, 0) == pytest.approx(numbers, abs=50)
    assert (True, 7) == (outcome.holds, outcome.blocks)


def test_time_at_another_stage_is_missed() -> None:
    """Rules whose time appears in the look-up of the socket are attributed wrongly."""
    outcome = ablation.outcome_of("rules-100", blocks([Seen(0, 30, ("udp_rcv", *POLL), 100)], 100))
    assert outcome is not None
    assert (-100_000, False) == (pytest.approx(outcome.error, abs=50), outcome.holds)


def test_what_a_node_forwards_on_an_ends_cpu_counts() -> None:
    """The other end's does not."""
    forwarded = Seen(0, 30, ("nft_do_chain", "nf_hook_slow", "ip_forward", *POLL), 100)
    both = blocks([forwarded], 100)
    arm = ablation.arm_of(between(both.records[1], "router1"), both.soaked, "receiver")
    assert isinstance(arm, ablation.Arm)
    assert 100_000 == pytest.approx(arm.stages["fwd_netfilter"])
    assert ablation.THINGS["forward-rules"].stages == ("fwd_netfilter",)


def test_of_few_blocks_nothing_is_told() -> None:
    """Nor of trials that are struck, or lost packets."""
    whole = blocks([Seen(0, 30, RULES, 100)], 100)
    few = replace(whole, records=whole.records[:8])
    assert ablation.outcome_of("rules-100", few) is None
    struck = blocks([Seen(0, 30, RULES, 100)], 900)
    assert ablation.outcome_of("rules-100", struck) is None


def test_each_trial_that_does_not_count_says_why() -> None:
    """Struck, with both of its sums; not sampled, with what forbids it; failed."""
    plain = sampled.record()
    (phase,) = plain.phases
    forbidden = {"machine": CpuSamples(why="not permitted; run as root")}
    silent = replace(plain, phases=(replace(phase, cpu_samples=forbidden),))
    lossy = replace(phase, stats=tuple(s for s in phase.stats if s.role == "sender"))
    for record, expected in (
        (sampled.record(busy_ms=1800), "CPU 0: samples say 40 % busy, the kernel 90 %"),
        (silent, "not permitted; run as root"),
        (replace(plain, phases=(lossy,)), "0 of 1000 packets received"),
        (replace(plain, status="failed"), "failed"),
    ):
        assert expected == ablation.arm_of(record, ablation.Soaked({}), "receiver")
    soaked = ablation.Soaked({0: ([], [], [], [])})
    assert "the soaker of CPU 0 did not run at 5000000000" == ablation.arm_of(
        plain, soaked, "receiver"
    )


@pytest.mark.parametrize("words", [["work", "--blocks", "3"], ["--seconds", "0"], ["dance"]])
def test_what_cannot_be_measured_is_refused_in_words(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is measured."""
    with pytest.raises(SystemExit) as ended:
        ablation.main(words)
    assert 2 == ended.value.code
    text = capsys.readouterr().err
    assert any(each in text for each in ("6 to 200", "100ms to 24h", "unknown: dance"))


def test_a_mutant_is_seen() -> None:
    """With the rules' anchor swapped for another the sum is wrong; afterwards the table is whole."""
    runs = {"rules-100": blocks([Seen(0, 30, RULES, 100)], 100)}
    swaps = ablation.swaps_of("rules-100", runs["rules-100"])
    assert {"nft_do_chain"} == {first for first, _ in swaps}
    for first, second in swaps:
        anchor = anchor_of(second)
        assert anchor is not None
        assert anchor.stage != "?_netfilter"
        assert "rules-100" == ablation.failing_of("rules-100", first, second, runs)
    assert anchor_of("nft_do_chain") == anchor_of("ipt_do_table")


@pytest.mark.parametrize(
    ("thing", "seen", "code", "end"),
    [
        ("rules-100", Seen(0, 30, RULES, 100), 0, "mutants: 2 of 2 are seen"),
        ("work", Seen(0, READER.pid, None, 100), 5, "nothing holds whose time a swap moves"),
        ("rules-100", Seen(0, 30, ("udp_rcv", *POLL), 100), 1, "nothing holds whose time"),
    ],
)
def test_the_exit_code_says_what_held(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    thing: str,
    seen: Seen,
    code: int,
    end: str,
) -> None:
    """With its mutants; beside it stands what a program said that planted it."""
    monkeypatch.setattr(ablation, "measured", lambda *_: blocks([seen], 100, thing))
    ablation.says_of(tmp_path / thing).write_text("it takes 5 ns\n")
    assert code == ablation.main([thing, "--mutants", "2", "--out", str(tmp_path)])
    _, line, says, *_, last = capsys.readouterr().out.splitlines()
    assert ("  it takes 5 ns", True) == (says, end in last)
    assert line.startswith(f"{thing}: 100000 = ")


def test_a_thing_is_planted_once_in_the_namespace_of_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When settings have been applied, before the first packets: not again in the next trial."""
    planted: list[tuple[list[str], str]] = []

    def command(words: list[str], **keys: Any) -> None:
        planted.append((words, keys["input"]))

    monkeypatch.setattr(ablation.subprocess, "run", command)
    plant = ablation.Plant(("tc", "-batch", "-"), "text", "sender")
    tell = ablation.planting(plant, tmp_path / "says")
    for event, text in (
        ("host", "receiver: agent 11 is up"),
        ("host", "sender: agent 12 is up"),
        *(("step", "apply"), ("step", "facts again"), ("step", "facts again")),
    ):
        tell(Progress(event, text))
    assert [(["nsenter", "--target=12", "--net", "tc", "-batch", "-"], "text")] == planted


def test_only_the_datagrams_of_one_arm_pass_what_is_planted() -> None:
    """The first filter is for the other port; a chain is for the port of this arm."""
    other, *rest = ablation.filters("receive0", "ingress", 2).text.splitlines()[1:]
    assert f"dport {ablation.PORT} " in other
    assert 2 == len(rest)
    for plant in (ablation.drops("input", 2), ablation.iptables(2)):
        assert f"dport {ablation.PLANTED} j" in plant.text.replace("-j", "j")
        assert 2 == plant.text.lower().count("drop")


@pytest.mark.parametrize(("port", "turns"), [(4322, 3), (4321, 0)])
def test_the_planted_program_takes_its_turns_for_one_port(
    port: int, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And lets every packet pass; of what is cut short it reads nothing."""
    multiplied: list[int] = []
    monkeypatch.setitem(bpf_machine.ARITHMETIC, TIMES, lambda to, _: multiplied.append(to) or to)
    program = planted_xdp.takes_time(4322, 3)
    packet = planted_xdp.HEADERS.pack(IPV4, IPV4_WITHOUT_OPTIONS, UDP, port)
    for length, expected in ((len(packet), 8 * turns), (len(packet) - 1, 0)):
        multiplied.clear()
        memory = {8: struct.pack("=II", 4096, 4096 + length), 4096: packet[:length]}
        assert planted_xdp.XDP_PASS == bpf_machine.Machine(memory).run(program, 8)
        assert expected == len(multiplied)


def test_nothing_is_swapped_where_no_anchor_decides() -> None:
    """A program's own time is moved by no swap; nor is any by that of two anchors of one stage."""
    work = blocks([Seen(0, READER.pid, None, 100)], 100, "work")
    assert [] == ablation.swaps_of("work", work)
    program = blocks([Seen(0, 30, ("bpf_prog_a_planted", *POLL), 100)], 100, "xdp")
    swaps = ablation.swaps_of("xdp", program)
    assert {"__napi_poll"} == {first for first, _ in swaps}
    assert "napi_threaded_poll" not in {second for _, second in swaps}


def test_what_a_soaker_lost_is_known_between_its_rows(tmp_path: Path) -> None:
    """As a straight line; of a moment at which it did not run nothing is known."""
    rows = (100, 0, 5, 0, 200, 40, 5, 8, 300, 40, 25, 8, 0, 0, 0, 0)
    (tmp_path / "cpu1").write_bytes(array("Q", rows).tobytes())
    soaker = ablation.read_soaked(tmp_path)
    assert ((20, 10, 4), (30, 5, 6)) == (soaker.lost(1, 150, 250), soaker.lost(1, 125, 225))
    with pytest.raises(ValueError, match="the soaker of CPU 1 did not run at 301"):
        soaker.lost(1, 150, 301)


def test_interrupts_of_the_soaker_are_the_soakers_to_say() -> None:
    """Those that the thing leaves it less of changed elsewhere: no sample has them."""
    whole = blocks([Seen(0, 30, RULES, 100)], 100)
    moments, tasks, _, yields = whole.soaked.cpus[0]
    interrupts, more = [0], 20 * MS
    for place in range(1, len(moments)):
        # Each arm has two rows; a thing that was switched on spares half of 20 ms.
        spared = (place - 1) // 2 % 2
        interrupts.append(interrupts[-1] + (more >> spared) * ((place - 1) % 2))
    spoilt = replace(whole, soaked=ablation.Soaked({0: (moments, tasks, interrupts, yields)}))
    outcome = ablation.outcome_of("rules-100", spoilt)
    assert outcome is not None
    numbers = outcome.saved, outcome.attributed, outcome.elsewhere, outcome.error
    assert (90_000, 100_000, -10_000, 0) == pytest.approx(numbers, abs=50)


def test_calls_to_yield_are_the_soakers_own_time() -> None:
    """Samples find them among what others took; the soaker says how long they were."""
    yielding = Seen(0, 31, ("schedule", "__x64_sys_sched_yield"), 100)
    whole = blocks([Seen(0, 30, RULES, 100), yielding], 200)
    records = tuple(_named(record, {"31": ablation.SOAKER}) for record in whole.records)
    moments, tasks, interrupts, _ = whole.soaked.cpus[0]
    yields = [0]
    for place in range(1, len(moments)):
        yields.append(yields[-1] + 100 * MS * ((place - 1) // 2 % 2) * ((place - 1) % 2))
    known = ablation.Soaked({0: (moments, tasks, interrupts, yields)})
    for soaked, elsewhere in ((known, 0), (whole.soaked, 100_000)):
        outcome = ablation.outcome_of("rules-100", replace(whole, records=records, soaked=soaked))
        assert outcome is not None
        assert elsewhere == pytest.approx(outcome.elsewhere, abs=50)


def _named(record: TrialRecord, names: dict[str, str]) -> TrialRecord:
    (phase,) = record.phases
    samples = {
        machine: replace(each, programs={**each.programs, **names})
        for machine, each in phase.cpu_samples.items()
    }
    return replace(record, phases=(replace(phase, cpu_samples=samples),))


def test_a_soaker_says_what_others_take_of_its_cpu(tmp_path: Path) -> None:
    """Beside a program that spins it gets nothing of the time that this gets."""
    cpus = os.sched_getaffinity(0)
    used = time.CLOCK_PROCESS_CPUTIME_ID
    with ablation.soaking(tmp_path / "soaked"):
        try:
            os.sched_setaffinity(0, {min(cpus)})
            start_ns, due_ns = time.monotonic_ns(), time.clock_gettime_ns(used) + 100 * MS
            while time.clock_gettime_ns(used) < due_ns:
                pass
            end_ns = time.monotonic_ns()
        finally:
            os.sched_setaffinity(0, cpus)
        lost = None
        while lost is None:  # until it runs again, and writes a row
            os.sched_yield()
            with suppress(KeyError, ValueError):
                soaked = ablation.read_soaked(tmp_path / "soaked")
                lost = soaked.lost(min(cpus), start_ns, end_ns)
    assert 95 * MS < lost.tasks_ns <= end_ns - start_ns + MS
