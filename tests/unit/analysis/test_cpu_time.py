"""The ledger of CPU time: whose each sample is, that it adds up, and what is said where it does not."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from analysis import sampled
from analysis.build import MS, NAPI, READER, hog
from analysis.sampled import (
    AGENT_PID,
    HOG_PID,
    IDLE,
    QUIET,
    READS,
    SENDER_PID,
    SENDS,
    SOFTIRQ,
    SYSCALL,
    WALL_NS,
    Seen,
)
from udpbench.analysis.checks import cpu_checks
from udpbench.analysis.cpu_time import wilson
from udpbench.analysis.diagnosis import _costs, _saving
from udpbench.analysis.evidence import Evidence
from udpbench.analysis.judge import judge
from udpbench.analysis.ledger.ledger import make_ledger
from udpbench.analysis.reader_time import LoadedCpu
from udpbench.analysis.readings import readings_of
from udpbench.model.record import CpuSamples, TrialRecord
from udpbench.model.result import CpuTime


def known(record: TrialRecord) -> CpuTime:
    """Return where the CPU time of a record went."""
    cpu_time = judge(record).cpu_time
    assert cpu_time is not None
    return cpu_time


def stages(record: TrialRecord, cpu: int = 0) -> dict[str, int]:
    """Return stage → its milliseconds on a CPU, as sampled."""
    times: dict[str, int] = {}
    for entry in known(record).entries:
        if entry.cpu == cpu:
            times[entry.stage] = times.get(entry.stage, 0) + entry.sampled_ns // MS
    return times


def with_sample(*chain: str, pid: int = READER.pid) -> str:
    """Return the stage of a sample that is added to a quiet machine."""
    before, after = (stages(each) for each in (sampled.record(), sampled.record(more(chain, pid))))
    (stage,) = (s for s in after if after[s] != before.get(s, 0))
    return stage


def more(chain: tuple[str, ...], pid: int) -> Seen:
    """Return a sample on CPU 0."""
    return Seen(0, pid, chain, 1)


def test_every_nanosecond_of_a_cpu_has_an_entry() -> None:
    """Wall time = stages + idle + hypervisor + unattributed, scaled to what the kernel counted."""
    cpu_time = known(sampled.record())
    assert {"rx_poll": 100, "rx_ip": 200, "rx_read": 300, "rx_application": 200} == stages(
        sampled.record()
    )
    for balance in cpu_time.balances:
        spent = sum(e.time_ns for e in cpu_time.entries if e.cpu == balance.cpu)
        assert WALL_NS == pytest.approx(spent + balance.idle_ns)
        assert "" == balance.struck


def test_a_packet_costs_what_its_stages_cost_together() -> None:
    """The receiver's CPU by packets received, the sender's by packets sent."""
    costs = known(sampled.record()).costs
    for end, busy_ms in (("sender", 100), ("receiver", 800)):
        each = [cost.ns_per_packet or 0 for cost in costs if cost.end == end]
        assert busy_ms * MS / 1000 == pytest.approx(sum(each))
    (read,) = (cost for cost in costs if cost.stage == "rx_read")
    assert 300_000 == pytest.approx(read.ns_per_packet)
    assert (read.low_ns or 0) < 300_000 < (read.high_ns or 0)
    assert 0.375 == pytest.approx(read.share)


@pytest.mark.parametrize(
    ("chain", "pid", "stage"),
    [
        (("nft_do_chain", "nf_hook_slow", "ip_local_deliver"), READER.pid, "rx_netfilter"),
        (("nft_do_chain", "nf_hook_slow", "__ip_local_out", *SENDS), READER.pid, "tx_netfilter"),
        (("nf_conntrack_in", "nf_hook_slow", "ip_rcv", *SOFTIRQ), HOG_PID, "rx_conntrack"),
        (("ip_rcv", *SOFTIRQ, "do_softirq", "__dev_queue_xmit", *SENDS), SENDER_PID, "rx_ip"),
        (("ip_rcv", *SOFTIRQ, "run_ksoftirqd", "kthread"), HOG_PID, "rx_ip"),
        (("veth_poll", "__napi_poll", *SOFTIRQ), 0, "rx_poll"),
        (("bpf_prog_6deef7357e7b4530_drop", "veth_poll", "__napi_poll"), NAPI.pid, "rx_xdp"),
        (("kfree", "kfree_skb", "udp_queue_rcv_skb"), NAPI.pid, "rx_memory"),
        (("__schedule", "schedule", "do_idle"), 0, "schedule"),
        (("__schedule", "schedule", *READS), READER.pid, "rx_schedule"),
        (("try_to_wake_up", "hrtimer_interrupt", "sysvec_apic_timer_interrupt"), 0, "interrupts"),
        (("rcu_core", "handle_softirqs", *READS), READER.pid, "interrupts"),
        (("asm_exc_page_fault",), READER.pid, "rx_application"),
        (("asm_exc_page_fault", "_copy_to_iter", *READS), READER.pid, "rx_copy"),
        (SYSCALL, READER.pid, "rx_syscall"),
        (SENDS, AGENT_PID, "own"),
        (SENDS, HOG_PID, "[hog]"),
        (("tcp_v4_rcv", "ip_protocol_deliver_rcu", *SOFTIRQ), READER.pid, "others_softirq"),
    ],
)
def test_whose_a_sample_is(chain: tuple[str, ...], pid: int, stage: str) -> None:
    """The innermost anchor wins; soft interrupts are by their chain, whatever they run on."""
    assert stage == with_sample(*chain, pid=pid)


def test_threads_of_the_kernel_are_named_without_their_numbers() -> None:
    """Every worker of a work queue has another name, and would have a row of its own."""
    programs = {"88": "kworker/1:2-events", "89": "kworker/u4:0", "90": "migration/0", "91": ""}
    seen = [Seen(0, int(pid), ("work",), 1) for pid in programs]
    record = sampled.record(*seen, changes={"programs": programs})
    assert {"[kworker]": 2, "[migration]": 1, "[ended]": 1} == {
        stage: ms for stage, ms in stages(record).items() if stage[0] == "["
    }


def test_a_cpu_that_the_samples_do_not_explain_is_struck() -> None:
    """Idle in half of the samples where the kernel counted a tenth: no number of it is shown."""
    record = sampled.record(busy_ms=1800)
    balance, other = known(record).balances
    assert ("samples say 40 % busy, the kernel 90 %", "") == (balance.struck, other.struck)
    costs = known(record).costs
    assert [None] == list({cost.ns_per_packet for cost in costs if cost.end == "receiver"})
    assert None not in {cost.ns_per_packet for cost in costs if cost.end == "sender"}


def test_a_cpu_whose_idle_time_is_not_known_is_struck() -> None:
    """Nothing says then whether its samples add up."""
    record = sampled.record()
    (phase,) = record.phases
    after = phase.after["machine"]
    rest = {name: ns for name, ns in after.counters.items() if name != "cpu.0.idle_ns"}
    phase = replace(phase, after={**phase.after, "machine": replace(after, counters=rest)})
    balances = known(replace(record, phases=(phase,))).balances
    assert ["its idle time was not read", ""] == [each.struck for each in balances]


def test_too_much_that_is_unattributed_strikes_a_cpu() -> None:
    """2 % of its busy time, and what may be missing at the edges."""
    strange = Seen(0, READER.pid, ("what", "is", "this"), 19)
    most = sampled.record(strange, busy_ms=819)
    assert "" == known(most).balances[0].struck
    beyond = sampled.record(strange._replace(count=20), busy_ms=820)
    assert "2 % of its busy time is unattributed" == known(beyond).balances[0].struck


def test_samples_that_were_not_taken_are_the_hypervisors_as_far_as_it_took_the_time() -> None:
    """The rest of them is nobody's: the machine, or the kernel, lost them."""
    seen = [
        each._replace(count=1100) if each.chain == IDLE and not each.cpu else each for each in QUIET
    ]
    record = sampled.record(seen=seen, busy_ms=840, steal_ms=60)
    balance, _ = known(record).balances
    assert (60, 40) == tuple(stages(record)[part] for part in ("hypervisor", "unattributed"))
    assert "4 % of its busy time is unattributed" == balance.struck


def test_a_cpu_without_samples_for_long_may_have_been_offline() -> None:
    """Its events end when it leaves, and do not come back with it."""
    seen = [each._replace(count=1) if not each.cpu else each for each in QUIET]
    balance, other = known(sampled.record(seen=seen, busy_ms=840)).balances
    assert balance.struck.endswith(
        "; no sample in 100 % of the time: it was offline, or its timers were late"
    )
    assert "" == other.struck


def test_a_cpu_whose_timer_sleeps_while_it_is_idle_gives_no_samples_then() -> None:
    """What was not sampled is idle time, unless samples were lost."""
    seen = [each for each in QUIET if each.chain != IDLE or each.cpu]
    whole, silent = (known(sampled.record(seen=each)).balances[0] for each in (QUIET, seen))
    assert ("", whole.sampled_idle_ns) == (silent.struck, silent.sampled_idle_ns)
    hidden = known(sampled.record(seen=seen, busy_ms=1000)).balances[0].struck
    assert hidden.startswith(
        "samples say 40 % busy, the kernel 50 %: none was taken in its idle task"
    )
    lost = sampled.record(seen=seen, changes={"lost_samples": {"0": 3, "1": 0}})
    assert 0 == known(lost).balances[0].sampled_idle_ns


def test_a_cpu_of_nobodys_is_a_cpu_of_the_load_if_it_serves_packets() -> None:
    """RPS may pick another CPU; one that only idles is left out."""
    steered = Seen(2, 0, ("ip_rcv", *SOFTIRQ), 40)
    record = sampled.record(steered, Seen(2, 0, IDLE, 1960), Seen(3, 0, IDLE, 2000))
    (phase,) = record.phases
    counters = {**phase.after["machine"].counters, "cpu.2.idle_ns": 1960 * MS}
    before = {**phase.before["machine"].counters, "cpu.2.idle_ns": 0}
    phase = replace(
        phase,
        before={**phase.before, "machine": replace(phase.before["machine"], counters=before)},
        after={**phase.after, "machine": replace(phase.after["machine"], counters=counters)},
    )
    balances = known(replace(record, phases=(phase,))).balances
    assert [(0, ""), (1, ""), (2, "")] == [(each.cpu, each.struck) for each in balances]


def test_packets_that_entered_a_stage() -> None:
    """Per packet that came to it, which may have been lost there or behind it."""
    (read,) = (c for c in known(sampled.record()).costs if c.stage == "rx_ip")
    assert (1000, pytest.approx(200_000)) == (read.entered_packets, read.ns_per_entered)


def test_without_samples_there_is_no_ledger_of_time() -> None:
    """A trial without ``cpu_time``, and a host that forbids it."""
    plain = sampled.record()
    (phase,) = plain.phases
    assert judge(replace(plain, phases=(replace(phase, cpu_samples={}),))).cpu_time is None
    forbidden = {"machine": CpuSamples(why="not permitted; run as root")}
    assert judge(replace(plain, phases=(replace(phase, cpu_samples=forbidden),))).cpu_time is None


def test_a_tree_that_is_none_is_read_without_harm() -> None:
    """A record may be anybody's: callers behind their callee, and numbers of nothing."""
    broken = {"callers": (5, 0, 1), "called": (99, 0, 0), "sampled_nodes": (7,) * 9}
    assert known(sampled.record(changes=broken)).balances


@pytest.mark.parametrize("seed", range(20))
def test_stages_are_what_was_planted(seed: int) -> None:
    """Random times at random stages: each is returned as it was put in, and the sum is the whole."""
    chosen = random.Random(seed)
    planted = {
        "rx_ip": ("ip_rcv", *SOFTIRQ),
        "rx_netfilter": ("nft_do_chain", "nf_hook_slow", "ip_rcv", *SOFTIRQ),
        "rx_udp": ("udp_rcv", "ip_local_deliver", *SOFTIRQ),
        "rx_copy": ("_copy_to_iter", *READS),
    }
    times = {stage: chosen.randrange(1, 300) for stage in planted}
    tasks = (0, READER.pid, NAPI.pid, HOG_PID, SENDER_PID)
    seen = [
        Seen(0, READER.pid if s == "rx_copy" else chosen.choice(tasks), chain, times[s])
        for s, chain in planted.items()
    ]
    busy_ms = sum(times.values())
    idle = (Seen(0, 0, IDLE, 2000 - busy_ms), *QUIET[-2:])
    assert times == stages(sampled.record(seen=(*seen, *idle), busy_ms=busy_ms))


def test_intervals_hold_what_was_drawn_from() -> None:
    """In a thousand draws of a share, 95 % have it within their interval; nothing drawn: all of it."""
    chosen = random.Random(7)
    for share in (0.01, 0.05, 0.5, 0.97):
        held = 0
        for _ in range(1000):
            low, high = wilson(sum(chosen.random() < share for _ in range(500)), 500)
            held += low <= share <= high
        assert held >= 920
    assert (0.0, 1.0) == wilson(0, 0)


def test_what_is_not_observable_is_told_with_its_reason() -> None:
    """And which functions a kernel lacks, whose time its callers have."""
    plain = sampled.record(changes={"missing_anchors": ("ip_rcv",)})
    (phase,) = plain.phases
    forbidden = {"machine": CpuSamples(why="not permitted; run as root")}
    for record, expected in (
        (plain, ("note", "machine", "ip_rcv", "", "")),
        (
            replace(plain, phases=(replace(phase, cpu_samples=forbidden),)),
            ("warning", "machine", "not permitted", "run as root", "cpu_time"),
        ),
    ):
        readings = readings_of(record)
        assert readings is not None
        (each,) = cpu_checks.cpu_time_unknown(readings)
        assert expected == (each.severity, each.where, each.value, each.next_step, each.kind)


@pytest.mark.parametrize(("samples", "notes"), [(50, []), (250, ["21.74 % of the CPU time"])])
def test_a_large_part_that_a_timer_samples_late_is_named(samples: int, notes: list[str]) -> None:
    """From a tenth of the time of the load's CPUs on."""
    switching = Seen(0, 0, ("schedule", "irqentry_exit_to_user_mode"), samples)
    seen = (*QUIET[:4], QUIET[4]._replace(count=1200 - samples), *QUIET[5:], switching)
    readings = readings_of(sampled.record(seen=seen, busy_ms=800 + samples))
    assert readings is not None
    assert notes == [each.value for each in cpu_checks.cpu_time_unknown(readings)]


def test_each_stage_is_a_metric() -> None:
    """By its name in brackets, and all of them together; unknown as a whole if any is struck."""
    numbers = judge(sampled.record()).numbers
    assert 300_000 == pytest.approx(numbers["cpu_ns[stage=rx_read]"])
    assert 900_000 == pytest.approx(numbers["cpu_ns"])
    idle = Seen(0, 0, IDLE, 1200)
    half = [each._replace(count=each.count // 2) for each in QUIET[:4]]
    struck = judge(sampled.record(seen=(*half, idle._replace(count=1600), *QUIET[5:]))).numbers
    assert (None, True, False) == (
        struck["cpu_ns"],
        "cpu_ns[stage=tx_udp]" in struck,
        "cpu_ns[stage=rx_read]" in struck,
    )
    loud = judge(sampled.record(processes=(hog(300),), busy_ms=1100))
    assert (True, []) == (bool(loud.struck), [name for name in loud.numbers if "cpu_ns" in name])


def test_a_diagnosis_says_what_fills_a_cpu_and_what_its_remedy_saves() -> None:
    """In nanoseconds per packet; a gain in rate no larger than the next CPU has time for."""
    readings = readings_of(
        sampled.record(
            Seen(0, NAPI.pid, ("nft_do_chain", "nf_hook_slow", "ip_rcv", "__napi_poll"), 1000),
            seen=(*QUIET[:4], Seen(0, 0, IDLE, 200), *QUIET[5:]),
            busy_ms=1800,
        )
    )
    assert readings is not None
    ledger = make_ledger(readings)
    case = Evidence(readings, ledger, "", 0)
    full = LoadedCpu("receiver", "machine", 0, 0.9, 0.1, 0.1)
    assert "1 800 000 ns per packet: 56 % rx_netfilter, 17 % rx_read, 11 % rx_ip" == (
        _costs(case, full).replace("\u202f", " ").replace(",000", " 000")
    )
    text, numbers = _saving(case, "firewall", full)
    assert 1_000_000 == pytest.approx(numbers["saved_ns"])
    assert 1.25 == pytest.approx(numbers["gain"])
    assert "more packets)" in text
    idle, numbers = _saving(case, "firewall", replace(full, busy=0.4))
    assert idle.endswith(", but no more packets)")
    assert "gain" not in numbers
    assert ("", {}) == _saving(case, "inline", full)
    assert ("", {}) == _saving(case, "firewall", replace(full, cpu=None))
