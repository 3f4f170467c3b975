"""What can be said of a program of the user's: what it read, and nothing it alone would know."""

from __future__ import annotations

from dataclasses import replace

from analysis.build import lossy, record
from udpbench.analysis.judge import judge
from udpbench.analysis.remedies import PROGRAM_REMEDIES, REMEDIES, helps_at, remedy_text
from udpbench.model.experiment import Receive
from udpbench.model.record import TrialRecord

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


def test_a_diagnosis_of_a_program_names_no_key_of_our_receiver() -> None:
    """Whatever overflowed, it cannot be mended by a key that is refused."""
    diagnosis = judge(of_program(lossy(1000, LOST, 250))).diagnosis
    assert diagnosis
    assert [] == [each.remedy for each in diagnosis if "receive." in each.remedy]
