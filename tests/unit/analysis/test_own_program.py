"""What can be said of a program of the user's: what it read, and nothing it alone would know."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.build import START_NS, lossy, record
from analysis.test_diagnosis import changed
from udpbench.analysis.judge import judge
from udpbench.analysis.remedies import PROGRAM_REMEDIES, REMEDIES, helps_at, remedy_text
from udpbench.model.experiment import Attach, Receive
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import TrialRecord
from udpbench.model.result import Bottleneck

PROGRAM = Receive(command=("./server",))
LOST = {"right": {"snmp.Udp.RcvbufErrors": 250, "snmp.Udp.InErrors": 250}}
COUNTED = ("read_packets", "received_packets", "first_ns", "last_ns", "first_packets")


def of_program(known: TrialRecord) -> TrialRecord:
    """Return a record as if a program had received, which counts little."""
    workers = tuple(
        replace(spec, receive=PROGRAM) if spec.role == "receiver" else spec
        for spec in known.workers
    )
    phases = tuple(
        replace(
            phase,
            stats=tuple(
                replace(
                    stats,
                    counts={k: v for k, v in stats.counts.items() if k in COUNTED},
                    histograms={},
                )
                if stats.role == "receiver"
                else stats
                for stats in phase.stats
            ),
        )
        for phase in known.phases
    )
    return replace(
        known, trial=replace(known.trial, receive=PROGRAM), workers=workers, phases=phases
    )


def test_what_only_a_program_knows_is_not_observable() -> None:
    """Whether it cut datagrams off or lost them later; what it read and the kernel dropped is."""
    result = judge(of_program(record()))
    assert result.ledger is not None
    unknown = [entry.stage for entry in result.ledger.entries if entry.packets is None]
    assert ["app_truncated", "app_log"] == unknown
    assert (0, True) == (result.unaccounted, result.valid)
    assert None is result.delivered_mib_s
    assert None is result.skbs_per_packet
    assert result.delivered_pps is not None


def test_a_program_that_reads_on_after_the_load_is_late_by_all_of_that() -> None:
    """It is looked at a tenth of a second after its first packet, which came with the load."""
    known = of_program(record())
    (phase,) = known.phases
    times = {"sender": (0, SECOND_NS), "receiver": (SECOND_NS // 10, 11 * SECOND_NS // 10)}
    stats = tuple(
        replace(
            each,
            counts={
                **each.counts,
                **{
                    name: START_NS + time_ns
                    for name, time_ns in zip(("first_ns", "last_ns"), times[each.role], strict=True)
                },
            },
        )
        for each in phase.stats
    )
    result = judge(replace(known, phases=(replace(phase, stats=stats),)))
    assert pytest.approx(0.1) == result.lag


def test_what_a_closed_socket_held_is_not_observable() -> None:
    """A program may close a socket under way, and its drops and its queue are gone with it."""
    known = of_program(record())
    phases = tuple(
        replace(
            phase,
            after={
                host: replace(
                    taken,
                    counters={k: v for k, v in taken.counters.items() if k != "socket.77.drops"},
                )
                for host, taken in phase.after.items()
            },
        )
        for phase in known.phases
    )
    result = judge(replace(known, phases=phases))
    assert result.ledger is not None
    unknown = [entry.stage for entry in result.ledger.entries if entry.packets is None]
    assert ["udp_purged", "app_truncated", "app_log"] == unknown


def test_a_program_may_run_on_several_cpus() -> None:
    """Their time is what its packets cost."""
    known = of_program(record())
    phases = tuple(
        replace(
            phase,
            stats=tuple(
                replace(stats, cpu=None) if stats.role == "receiver" else stats
                for stats in phase.stats
            ),
        )
        for phase in known.phases
    )
    several = tuple(
        replace(spec, cpu=None, cpus=(0,)) if spec.role == "receiver" else spec
        for spec in known.workers
    )
    result = judge(replace(known, phases=phases, workers=several))
    assert judge(known).receive_cpu_ns_per_packet == result.receive_cpu_ns_per_packet
    assert None is not result.receive_cpu_ns_per_packet


def test_what_helps_a_program_names_no_key_of_our_receiver() -> None:
    """Those are refused for it; what it can do itself, or the host's default, is named."""
    assert "receive.buffer" in remedy_text("small_buffer", of_program=False)
    ours = {name for name, remedy in REMEDIES.items() if "receive." in remedy.text}
    assert ours <= set(PROGRAM_REMEDIES) <= set(REMEDIES)
    for name in REMEDIES:
        assert "receive." not in remedy_text(name, of_program=True)
    text = helps_at("link or udp_rcvbuf", of_program=True)
    assert "setsockopt SO_RCVBUF" in text
    assert "settings.receiver.sysctl" in text


def with_buffer(size_bytes: int | None, receive: Receive = PROGRAM) -> Bottleneck:
    """Return why the buffer of that size of a program was full, which has time otherwise."""
    known = of_program(changed("burst"))
    limits = {"net.core.rmem_default": 212992, "net.core.rmem_max": 4194304}
    (phase,) = known.phases
    stats = tuple(
        replace(each, buffer_bytes=size_bytes) if each.role == "receiver" else each
        for each in phase.stats
    )
    hosts = {name: replace(each, limits=limits) for name, each in known.facts.items()}
    workers = tuple(
        replace(spec, receive=receive) if spec.role == "receiver" else spec
        for spec in known.workers
    )
    run = replace(known.trial, receive=receive)
    again = replace(
        known, trial=run, workers=workers, facts=hosts, phases=(replace(phase, stats=stats),)
    )
    first = judge(again).diagnosis[0]
    assert "small_buffer" == first.name
    return first


def test_what_a_program_with_a_small_buffer_can_do_depends_on_who_chose_its_size() -> None:
    """The host's default and its limit are settings that can be tried; its own choice is not."""
    default = with_buffer(212992)
    assert default.remedy.startswith("set net.core.rmem_default to ")
    assert default.sets == (
        f"settings.receiver.sysctl.net.core.rmem_default={default.words['default']}",
    )
    clamped = with_buffer(2 * 4194304)
    assert clamped.remedy.startswith("raise net.core.rmem_max to ")
    assert clamped.sets == (f"settings.receiver.sysctl.net.core.rmem_max={clamped.words['limit']}",)
    own = with_buffer(16384)
    assert own.remedy.startswith("have the program ask for ")
    assert own.remedy.endswith("it sets its size itself, which no setting changes")
    assert "the receive buffer of 8KiB is too small for the burst" in own.what
    attached = with_buffer(212992, Receive(attach=Attach(port=53)))
    assert attached.remedy.endswith("no setting reaches a socket that is open already")
    assert ((), ()) == (own.sets, attached.sets)
    assert "setsockopt SO_RCVBUF" in with_buffer(None).remedy


def test_the_buffer_of_a_program_is_not_compared_with_a_key_of_ours() -> None:
    """It was never asked to have that size."""
    known = of_program(record())
    (phase,) = known.phases
    small = replace(phase, stats=tuple(replace(each, buffer_bytes=4096) for each in phase.stats))
    findings = judge(replace(known, phases=(small,))).findings
    assert "the socket buffer is smaller than requested" not in [each.what for each in findings]


def test_a_diagnosis_of_a_program_names_no_key_of_our_receiver() -> None:
    """Whatever overflowed, it cannot be mended by a key that is refused."""
    diagnosis = judge(of_program(lossy(1000, LOST, 250))).diagnosis
    assert diagnosis
    assert [] == [each.remedy for each in diagnosis if "receive." in each.remedy]
