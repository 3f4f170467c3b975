"""What limits a trial: of recorded trials with a planted bottleneck, and of what is derived from them.

``diagnoses.json.xz`` has a record of each plant of ``tests/lab/diagnoses.py``, by its ``--store``; what
needs more CPUs, or a card, is one of these with other counts.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from golden import Golden
from pydantic import TypeAdapter

from analysis.build import hog, lossy, record, trial
from analysis.test_shared_hosts import Mixture
from udpbench.analysis.doctor import READINESS
from udpbench.analysis.judge import judge
from udpbench.analysis.remedies import REMEDIES
from udpbench.control.setting_findings import rules_changed
from udpbench.model.experiment import Traffic
from udpbench.model.host import Change, Setting
from udpbench.model.limits import BEFORE_HOST, LEDGER_STAGES, SECOND_NS
from udpbench.model.record import SelfTest, Snapshot, TrialRecord, WorkerStats
from udpbench.units import Rate

STORED = Path(__file__).parents[2] / "fixtures" / "diagnoses.json.xz"
RECORDS: TypeAdapter[dict[str, TrialRecord]] = TypeAdapter(dict[str, TrialRecord])
PLANTED = {
    "slow-work": "reader_work",
    "burst": "small_buffer",
    "lasting-load": "reader_work",
    "inline": "inline",
    "gro-off": "unmerged",
    "busy-sender": "others_cpu",
    "tbf": "sender_queue",
    "udp-mem": "udp_memory",
    "backlog": "small_backlog",
    "firewall": "firewall",
    "busy-reader": "others_cpu",
    "twenty-threads": "shared_socket",
    "healthy": "nothing",
}
BOTTLENECKS = {
    *("failing_calls", "inline", "sender_queue", "sender_cpu", "small_buffer", "short_ring"),
    *("shared_socket", "unmerged", "one_queue", "shared_cpu", "reader_work", "reader_system"),
    *("receive_cpu", "late_readers", "nothing", "bounded_loss", "unaccounted", "standstill"),
    *("reader_sleeps", "reader_pauses", "stopped_sender"),
    *("default_buffer", "clamped_buffer", "own_buffer", "attached_buffer"),
    "longer_burst",
    *("cpu_quota", "cgroup_memory", "changed", "stranger", "unseen_rules", "node_cpu"),
    "ring_of_veth",
}
"""Those that are neither a stage nor a readiness check; ``late_readers`` is of a search alone."""


@cache
def stored() -> dict[str, TrialRecord]:
    """Return the record of each plant."""
    return RECORDS.validate_python(json.loads(lzma.decompress(STORED.read_bytes())))


def names(of: TrialRecord) -> list[str]:
    """Return what limits a trial, by name."""
    return [bottleneck.name for bottleneck in judge(of).diagnosis]


def first(of: TrialRecord) -> tuple[str, str]:
    """Return the first diagnosis and how sure it is."""
    return judge(of).diagnosis[0].name, judge(of).diagnosis[0].certainty


def changed(
    plant: str,
    *,
    readers: Mapping[str, Any] | None = None,
    senders: Mapping[str, Any] | None = None,
    counters: Mapping[str, Mapping[str, int]] | None = None,
    napi_ns: int | None = None,
    facts: Mapping[str, Any] | None = None,
    receive: Mapping[str, Any] | None = None,
) -> TrialRecord:
    """Return a stored record with other counts.

    ``counters`` are by how much those of a host moved, ``facts`` those of the receiver; ``cpu`` among
    the counts of workers is their CPU.
    """
    plain = stored()[plant]
    (phase,) = plain.phases
    other = {"receiver": readers or {}, "sender": senders or {}}
    stats = tuple(_counted(each, other[each.role]) for each in phase.stats)
    before, after = dict(phase.before), dict(phase.after)
    for host, moves in (counters or {}).items():
        begun = {**before[host].counters, **dict.fromkeys(moves, 0)}
        ended = {**after[host].counters, **moves}
        before[host] = replace(before[host], counters=begun)
        after[host] = replace(after[host], counters=ended)
    if napi_ns is not None:
        for host, snapshot in after.items():
            processes = (
                replace(each, cpu_ns=napi_ns) if each.whose == "interface" else each
                for each in snapshot.processes
            )
            after[host] = replace(snapshot, processes=tuple(processes))
    known = {**plain.facts, "receiver": replace(plain.facts["receiver"], **(facts or {}))}
    trial = replace(plain.trial, receive=replace(plain.trial.receive, **(receive or {})))
    measured = replace(phase, before=before, after=after, stats=stats)
    return replace(plain, trial=trial, facts=known, phases=(measured,))


def _counted(stats: WorkerStats, counts: Mapping[str, Any]) -> WorkerStats:
    own = {name: value for name, value in counts.items() if name != "cpu"}
    return replace(stats, counts={**stats.counts, **own}, cpu=counts.get("cpu", stats.cpu))


def idle(cpu: int, idle_ns: int) -> dict[str, dict[str, int]]:
    """Return for how long a CPU idled, as counters of the machine; nothing else ran there."""
    times = {"idle": idle_ns, **dict.fromkeys(("iowait", "softirq", "steal", "irq"), 0)}
    return {"machine": {f"cpu.{cpu}.{time}_ns": ns for time, ns in times.items()}}


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_bottleneck_is_named_first(plant: str, golden: Golden) -> None:
    """In a sentence with place, reason, evidence and remedy."""
    bottlenecks = judge(stored()[plant]).diagnosis
    golden.check([bottleneck.sentence for bottleneck in bottlenecks])
    assert PLANTED[plant] == bottlenecks[0].name


def test_all_plants_are_stored() -> None:
    """And no other record, and nothing that says where they were recorded."""
    assert set(PLANTED) == set(stored())
    hosts = {facts.hostname for each in stored().values() for facts in each.facts.values()}
    assert {"bench"} == hosts
    assert STORED.stat().st_size < 40_000


def test_a_trial_whose_rates_are_struck_out_is_diagnosed() -> None:
    """The program that struck them out is the reason."""
    result = judge(stored()["busy-reader"])
    assert result.struck
    assert ("others_cpu", "certain") == first(stored()["busy-reader"])
    assert result.diagnosis[0].evidence["others"] > 0.1


# --- derived from recorded trials ----------------------------------------------------------------


def test_the_queues_work_on_the_readers_cpu() -> None:
    """A NAPI thread's time, or soft interrupts where RPS steers onto the reader."""
    small = {"user_ns": 10**8, "system_ns": 10**8}
    thread = changed("slow-work", readers=small, napi_ns=8 * 10**8)
    assert ("shared_cpu", "certain") == first(thread)
    assert "of it the NAPI thread of queue 0" in judge(thread).diagnosis[0].what
    steered = changed(
        "slow-work",
        readers=small,
        napi_ns=0,
        counters={"machine": {"cpu.0.softirq_ns": 8 * 10**8}},
    )
    assert ("shared_cpu", "certain") == first(steered)
    assert "of it soft interrupts" in judge(steered).diagnosis[0].what


def test_work_that_a_whole_cpu_could_not_do_comes_first() -> None:
    """However much of the CPU receiving takes: without it the reader would be too slow, too."""
    received = judge(stored()["slow-work"])
    assert received.intended_packets > 1.2 * received.received_packets
    enough, little = ({"user_ns": ns, "system_ns": 10**8} for ns in (9 * 10**8, 10**8))
    assert ("reader_work", "certain") == first(
        changed("slow-work", readers=enough, napi_ns=95 * 10**7)
    )
    assert ("shared_cpu", "certain") == first(
        changed("slow-work", readers=little, napi_ns=95 * 10**7)
    )


def test_the_systems_work_for_a_reader() -> None:
    """Named where it is most, with what else is much."""
    spent = {"user_ns": 3 * 10**8, "system_ns": 6 * 10**8}
    calls = changed("slow-work", readers=spent, receive={"work_ns": 0})
    assert ["reader_system", "reader_work"] == names(calls)[:2]


def elsewhere(**changes: Any) -> TrialRecord:
    """Return a flood whose reader has a CPU of its own, which idles."""
    full = {"machine": {**idle(2, 2 * SECOND_NS)["machine"], **changes.pop("machine", {})}}
    facts = {"firewall_rules": None, **changes.pop("facts", {})}
    counters = {**full, **changes.pop("counters", {})}
    napi_ns = 2 * SECOND_NS
    readers = {"cpu": 2}
    return changed(
        "firewall", readers=readers, counters=counters, facts=facts, napi_ns=napi_ns, **changes
    )


def test_a_cpu_that_only_receives() -> None:
    """The reader has its own, and would have time."""
    assert ("receive_cpu", "certain") == first(elsewhere())


def test_a_ring_is_too_short_for_a_cpu_that_has_time() -> None:
    """It is full for a moment only."""
    assert ("short_ring", "likely") == first(elsewhere(machine={"cpu.0.idle_ns": SECOND_NS}))


def test_one_flow_over_four_queues() -> None:
    """All of it on one queue, whose CPU is full, while three have nothing to do."""
    queues = {f"ethtool.receive0.rx_queue_{queue}_xdp_packets": 0 for queue in range(4)}
    queues["ethtool.receive0.rx_queue_0_xdp_packets"] = 60_000
    cpus = {str(queue): (queue if queue < 2 else queue + 1,) for queue in range(4)}
    trial_record = elsewhere(
        counters={"receiver": queues}, facts={"queue_cpus": cpus, "rx_queues": 4}
    )
    assert ["one_queue", "receive_cpu"] == names(trial_record)
    queues |= {f"ethtool.receive0.rx_queue_{queue}_xdp_packets": 60_000 for queue in range(4)}
    assert ["receive_cpu"] == names(
        elsewhere(counters={"receiver": queues}, facts={"queue_cpus": cpus})
    )


def test_a_real_time_reader_keeps_its_queue_from_being_polled() -> None:
    """Where both have one CPU; it is full of the reader then, and the ring overflows."""
    urgent = changed("firewall", facts={"firewall_rules": 0}, receive={"priority": "fifo 50"})
    assert ("shared_cpu", "certain") == first(urgent)
    assert "fifo 50, keeps the queue's NAPI thread off the CPU" in judge(urgent).diagnosis[0].what


def test_a_real_time_reader_is_not_robbed_by_ordinary_programs() -> None:
    """Others had a part of its CPU, but the ring overflowed for its priority."""
    times = {"user_ns": 10**8, "system_ns": 10**8}
    urgent = changed(
        "firewall",
        facts={"firewall_rules": 0},
        receive={"priority": "fifo 50"},
        readers=times,
        counters={"machine": {"cpu.0.idle_ns": 0}},
    )
    (phase,) = urgent.phases
    after = {
        name: replace(taken, processes=(*taken.processes, hog(300)))
        for name, taken in phase.after.items()
    }
    robbed = replace(urgent, phases=(replace(phase, after=after),))
    assert {"shared_cpu"} == set(names(robbed))


def test_a_reader_on_another_node() -> None:
    """Not certain: only moving it tells what the way to the other node costs."""
    nodes = {"numa_nodes": {"0": (0, 1), "1": (2, 3)}, "interface_node": 1}
    far = changed("slow-work", facts=nodes)
    own, beside, *_ = judge(far).diagnosis
    assert ["reader_work", "remote_node"] == [own.name, beside.name]
    assert "to be tested" == beside.certainty
    assert "To test it: receive.cpus: same-node." in beside.sentence
    assert "remote_node" not in names(changed("slow-work", facts={**nodes, "interface_node": 0}))


def test_a_backlog_overflows_before_programs_matter() -> None:
    """Soft interrupts come first, unless they have much to do themselves."""
    full = idle(0, 0)
    assert ("small_backlog", "certain") == first(changed("backlog"))
    assert ("small_backlog", "likely") == first(changed("backlog", counters=full))
    full["machine"]["cpu.0.softirq_ns"] = 9 * 10**8
    assert "small_backlog" not in names(changed("backlog", counters=full))


def test_memory_is_raised_from_what_is_in_force() -> None:
    """As the trial set it; a network namespace of its own does not show what its machine has."""
    words = judge(stored()["backlog"]).diagnosis[0].words
    assert ("1000", "8000") == (words["backlog"], words["large_backlog"])
    assert "32768 32768 65536" == judge(stored()["udp-mem"]).diagnosis[0].words["udp_mem"]
    assert "backlog" not in judge(stored()["burst"]).diagnosis[0].words
    shown = {"limits": {"net.core.netdev_max_backlog": 1000}}
    assert "8192" == judge(changed("burst", facts=shown)).diagnosis[0].words["backlog"]


def test_rules_that_others_change_meanwhile_have_no_step() -> None:
    """What accepts the port before them may not come before the next."""
    plain = judge(changed("firewall")).diagnosis[0]
    assert ("firewall", True) == (plain.name, "port" in plain.words)
    record = changed("firewall")
    after_it = next(known for known in record.facts.values() if known.firewall_rules)
    moved = rules_changed(replace(after_it, firewall_rules=0), after_it)
    after = judge(replace(record, findings=(*record.findings, *moved))).diagnosis[0]
    assert ("firewall", False) == (after.name, "port" in after.words)


def limited_memory(limit: str, pages: str = "") -> list[tuple[str, str]]:
    """Return what drops for lack of memory where a cgroup has this limit, and UDP these pages."""
    environment = {"socket_memory": limit, **({"net.ipv4.udp_mem": pages} if pages else {})}
    plain = changed("udp-mem", facts={"environment": environment})
    record = replace(plain, changes={}) if pages else plain
    causes = judge(record).diagnosis
    return [(each.name, each.certainty) for each in causes if each.stage == "udp_memory"]


def test_a_limit_of_a_cgroup_is_blamed_before_one_that_buffers_cannot_reach() -> None:
    """Certainly if UDP may take more than all of them; not if they could not reach it, either."""
    assert [("udp_memory", "certain")] == limited_memory("")
    assert [("udp_memory", "certain")] == limited_memory(f"{2**40} bytes of cgroup /x", "1 2 3")
    both = [("cgroup_memory", "likely"), ("udp_memory", "likely")]
    assert both == limited_memory("65536 bytes of cgroup /x", "1 2 3")
    assert [("cgroup_memory", "certain")] == limited_memory(
        "65536 bytes of cgroup /x", "1 2 9999999"
    )


@pytest.mark.parametrize("text", ["9" * 5000, "1 2 3", "²", "", "x"])
def test_sysctls_that_are_no_numbers_are_none(text: str) -> None:
    """As an agent that is none may say them."""
    names = ("net.core.netdev_max_backlog", "net.ipv4.udp_mem")
    shown = {"environment": dict.fromkeys(names, text)}
    assert judge(changed("burst", facts=shown)).diagnosis


def test_few_rules_are_not_the_reason() -> None:
    """Nor are many that few packets pass."""
    assert "firewall" not in names(changed("firewall", facts={"firewall_rules": 20}))
    assert "firewall" not in names(changed("slow-work", facts={"firewall_rules": 20}))


def test_rules_behind_one_that_accepts_are_not_the_reason() -> None:
    """They may be as many as before; the packets that it accepted do not pass them."""
    accepted = {"receiver": {"firewall.ipv4/input/accept/udp/4321": 10**7}}
    assert "firewall" in names(stored()["firewall"])
    assert "firewall" not in names(changed("firewall", counters=accepted))
    fragments = {"snmp.Ip.InReceives": 7 * 10**7, "snmp.Ip.InDelivers": 10**7}
    assert "firewall" not in names(
        changed("firewall", counters={"receiver": {**accepted["receiver"], **fragments}})
    )


def test_several_readers_with_a_cpu_each_share_a_lock() -> None:
    """What that costs, only sockets of their own tell."""
    plain = changed("slow-work")
    (phase,) = plain.phases
    (reader,) = (each for each in phase.stats if each.role == "receiver")
    second = _counted(reader, {"received_packets": 0, "cpu": 2})
    second = replace(second, worker="receiver.receiver1")
    more = replace(phase, stats=(*phase.stats, second))
    own, beside, *_ = judge(replace(plain, phases=(more,))).diagnosis
    assert ["reader_work", "shared_socket"] == [own.name, beside.name]
    assert "to be tested" == beside.certainty


def test_a_reader_that_never_sleeps_is_judged_by_its_calls() -> None:
    """Its CPU is full in any case; if most calls come back empty it has time."""
    calls = {"receive_calls": 1000, "empty_calls": 900}
    spinning = changed("slow-work", readers=calls, receive={"wait": "spin"})
    assert ("small_buffer", "certain") == first(spinning)
    working = changed(
        "slow-work", readers={**calls, "empty_calls": 1}, receive={"wait": "nap 100us"}
    )
    assert "reader_work" == names(working)[0]


def test_a_reader_that_adapts_is_judged_by_its_cpu() -> None:
    """It sleeps when there is nothing to read, and its calls return datagrams in any case."""
    waits = {"receive": {"wait": "auto"}}
    assert "reader_work" == names(changed("slow-work", **waits))[0]
    calls = {"receive_calls": 1000, "empty_calls": 0}
    idle = {"machine": dict.fromkeys(("cpu.0.idle_ns", "cpu.1.idle_ns"), 10 * SECOND_NS)}
    readers = {**calls, "user_ns": 0, "system_ns": SECOND_NS // 10}
    resting = changed("slow-work", readers=readers, counters=idle, **waits)
    assert ("small_buffer", "certain") == first(resting)


def test_a_reader_without_a_cpu_of_its_own() -> None:
    """Its thread's time says how busy it is."""
    anywhere = changed("slow-work", readers={"cpu": None, "user_ns": SECOND_NS})
    assert "reader_work" == names(anywhere)[0]
    assert "the reader's thread is full (100 %" in judge(anywhere).diagnosis[0].what


def test_a_governor_is_to_be_tested() -> None:
    """Behind what is sure; not where the sender limits."""
    saving: dict[str, Any] = {"environment": {"governor": "powersave"}}
    assert "governor" == names(changed("slow-work", facts=saving))[-1]
    assert "governor" not in names(changed("inline", facts=saving))


def test_a_sender_that_offers_no_more() -> None:
    """Its CPU is full, and receive work is elsewhere; or it waits, and has time."""
    busy = changed("inline", facts={"queue_cpus": {"0": (0,)}})
    assert ["sender_cpu"] == names(busy)
    waiting = changed("inline", counters={"machine": {"cpu.1.idle_ns": SECOND_NS}})
    assert ("sender_queue", "likely") == first(waiting)


def without_loss(tx_bytes: int = 0, **changes: Any) -> TrialRecord:
    """Return a trial whose sender offered what was received, and idled half of the time."""
    (phase,) = stored()["firewall"].phases
    reader = next(stats for stats in phase.stats if stats.role == "receiver")
    counters = {
        "sender": {"link.send0.tx_dropped": 0, "link.send0.tx_bytes": tx_bytes},
        "machine": {"cpu.1.idle_ns": SECOND_NS, "cpu.0.idle_ns": 0},
    }
    sent = {"sent_packets": reader.counts["received_packets"]}
    return changed("firewall", senders=sent, counters=counters, **changes)


def test_a_sender_that_a_full_cpu_of_the_receiver_holds_up() -> None:
    """A pair's packets fill its send buffer until they are taken up; nothing is lost."""
    held = without_loss()
    assert 0 == judge(held).lost_packets
    assert ("firewall", "likely") == first(held)


def test_a_full_cpu_that_holds_nobody_up() -> None:
    """It polls in vain, or the sender's line is full: then the sender waits for its own queue."""
    polls = {"receive_calls": 100, "empty_calls": 90}
    idle = without_loss(readers=polls, receive={"wait": "spin"})
    bucket = Setting("qdisc", "send0", {"tbf": {"rate_bps": 10**6}})
    change = Change(bucket, {}, bucket.value)
    shaped = replace(without_loss(tx_bytes=10**6), changes={"sender": (change,)})
    assert [("sender_queue", "likely")] * 2 == [first(idle), first(shaped)]


def test_a_real_time_reader_that_spins_holds_a_sender_up() -> None:
    """However idle it is: the queue's thread does not come to take up what the sender waits for."""
    polls = {"receive_calls": 100, "empty_calls": 90}
    receive = {"wait": "spin", "priority": "fifo 26"}
    assert ("shared_cpu", "likely") == first(
        without_loss(readers=polls, receive=receive, facts={"firewall_rules": 0})
    )


def test_calls_that_fail_are_no_lack_of_cpu() -> None:
    """Not sent, since the kernel refused."""
    refused = changed("healthy", senders={"sent_packets": 10, "econnrefused": 10**4})
    bottleneck = judge(refused).diagnosis[0]
    assert ("failing_calls", "unsent") == (bottleneck.name, bottleneck.stage)
    assert "most by econnrefused (10 000)" in bottleneck.what


def test_whose_own_work_takes_longer_than_the_load_is_late_whoever_else_runs() -> None:
    """Others took a part of its CPU, but without them it would be late as well."""
    stats = stored()["healthy"].phases[-1].stats
    (reader,) = (each for each in stats if each.role == "receiver")
    last_ns = reader.counts["last_ns"]
    late_ns = last_ns + (last_ns - reader.counts["first_ns"]) // 2
    known: dict[str, str] = {}
    for user_ns in (SECOND_NS // 2, 5 * SECOND_NS):
        counts = {"last_ns": late_ns, "user_ns": user_ns, "system_ns": 0}
        idle = {"machine": {"cpu.0.idle_ns": 0}}
        known[str(user_ns)] = names(changed("healthy", readers=counts, counters=idle, napi_ns=0))[0]
    assert ["steal", "reader_work"] == list(known.values())


def test_a_receiver_that_falls_behind_limits_though_nothing_is_lost() -> None:
    """Its buffer holds what a longer load would lose; but not if it has time."""
    (phase,) = stored()["healthy"].phases
    (reader,) = (each for each in phase.stats if each.role == "receiver")
    late = {"last_ns": reader.counts["last_ns"] + 10**8, "user_ns": 2 * SECOND_NS}
    behind = changed("healthy", readers=late, counters={"machine": {"cpu.0.idle_ns": 0}}, napi_ns=0)
    bottlenecks = judge(behind).diagnosis
    assert any(
        each.what.startswith("the receiver falls behind: ") and "the reader's CPU 0" in each.what
        for each in bottlenecks
    )
    assert ["nothing"] == names(changed("healthy", readers=late))


def test_a_burst_that_fits_into_its_buffers_has_no_rate() -> None:
    """However fast it is read afterwards; packets at a rate do."""
    whole = record(1000, 1000, of=trial(traffic=Traffic(count_packets=1000)))
    sentence = "Nothing was lost: the receive buffers held the whole burst. Send a longer burst to "
    assert judge(whole).diagnosis[0].sentence.startswith(sentence)
    rated = Traffic(count_packets=1000, rate=Rate(packets_per_s=1000))
    at_rate = record(1000, 1000, of=trial(traffic=rated))
    assert "keeps up with this load, and may take more" in judge(at_rate).diagnosis[0].sentence


def test_a_stage_is_told_where_nothing_is_known_of_cpus(golden: Golden) -> None:
    """With its meaning and its remedy."""
    moves = {
        "right": {"snmp.Udp.RcvbufErrors": 250, "socket.77.drops": 250, "snmp.Udp.InErrors": 250}
    }
    unknown = lossy(1000, moves, 250)
    assert ("unknown", "likely") == first(unknown)
    golden.check(judge(unknown).diagnosis[0].sentence)


# --- losses that the ledger only bounds ----------------------------------------------------------


def paced(mixture: Mixture, kernel: str = "6.1.0-28-amd64", **trial: Any) -> TrialRecord:
    """Return a trial at a rate on hosts that others use, too."""
    plain = mixture.record()
    traffic = replace(plain.trial.traffic, rate=Rate(packets_per_s=9000))
    facts = {host: replace(each, kernel=kernel) for host, each in plain.facts.items()}
    return replace(plain, trial=replace(plain.trial, traffic=traffic, **trial), facts=facts)


def hidden(driver: str = "virtio_net", explain: bool = False) -> Mixture:
    """Return a trial in which neither a loss on the cable nor one in the ring is counted."""
    return Mixture(driver=driver, explain=explain)


def test_a_loss_that_a_drop_reason_may_tell(golden: Golden) -> None:
    """Others may have moved the firewall's counters, so that all of it may have been the cable's."""
    bounded = paced(hidden().lose("rx_netfilter", 1000))
    (bottleneck,) = judge(bounded).diagnosis
    place = "link or rx_ring or rx_netfilter"
    assert ("bounded_loss", place, 1000) == (
        bottleneck.name,
        bottleneck.stage,
        bottleneck.packets,
    )
    spans = [bottleneck.evidence[f"{stage}_at_{end}"] for stage in place.split(" or ")
             for end in ("least", "most")]  # fmt: skip
    assert ([0, 1000] * 3, "explain: true") == (spans, bottleneck.test)
    golden.check(bottleneck.sentence)
    exact = paced(hidden(explain=True).lose("rx_netfilter", 1000), explain=True)
    assert ("rx_netfilter", "certain") == first(exact)


def test_a_loss_that_nothing_tells(golden: Golden) -> None:
    """Each of its stages may have lost none; no drop reason would count either's."""
    pairs = [
        paced(hidden().lose("link", 700)),
        paced(hidden(explain=True).lose("link", 700), explain=True),
        paced(hidden().lose("link", 1)),
    ]
    for each in pairs:
        (bottleneck,) = judge(each).diagnosis
        assert ("bounded_loss", "link or rx_ring") == (bottleneck.name, bottleneck.stage)
        assert ("", judge(each).lost_packets) == (bottleneck.test, bottleneck.packets)
    golden.check([judge(each).diagnosis[0].sentence for each in pairs])


def test_few_packets_that_reasons_would_count_make_nothing_exact() -> None:
    """Three that may have met no socket leave the others where they are."""
    few = paced(hidden().lose("link", 700).lose_others("udp_no_port", 3))
    (bottleneck,) = judge(few).diagnosis
    assert ("link or rx_ring or udp_no_port", "") == (bottleneck.stage, bottleneck.test)
    many = paced(hidden().lose("link", 700).lose_others("udp_no_port", 700))
    assert "explain: true" == judge(many).diagnosis[0].test


@pytest.mark.parametrize("kernel", ["5.10.0-33-amd64", "5.16.20", "4.18.0"])
def test_a_kernel_without_drop_reasons_is_not_asked(kernel: str) -> None:
    """They came with Linux 5.17."""
    lost = hidden().lose("rx_netfilter", 1000)
    assert ["", "explain: true", "explain: true"] == [
        judge(paced(lost, each)).diagnosis[0].test for each in (kernel, "5.17.0", "unreadable")
    ]


def test_a_kernel_on_which_drop_reasons_were_refused_is_not_asked() -> None:
    """As its self-test found."""
    plain = paced(hidden().lose("rx_netfilter", 1000))
    refused = SelfTest("6.1.0", "b", "", "", (), unexplained="bpf(2) is not permitted")
    assert ["", "explain: true"] == [
        judge(replace(plain, selftests={"right": each})).diagnosis[0].test
        for each in (refused, replace(refused, unexplained=None))
    ]


def test_a_bounded_loss_beside_an_exact_one() -> None:
    """The larger is named first; a stage that certainly lost most is not in doubt."""
    shared = paced(hidden().lose("udp_rcvbuf", 400).lose("link", 600))
    assert [("bounded_loss", "link or rx_ring", 600), ("unknown", "udp_rcvbuf", 400)] == [
        (each.name, each.stage, each.packets) for each in judge(shared).diagnosis
    ]
    assert ["unknown"] == names(paced(hidden().lose("udp_rcvbuf", 600).lose("link", 400)))
    cable = Mixture(mac="standard").lose("link", 70).lose("rx_ring", 30)
    assert [("link", 70)] == [
        (each.stage, each.packets) for each in judge(paced(cable)).diagnosis
    ]  # fmt: skip


def test_a_bounded_loss_of_an_unlimited_load_is_not_the_senders() -> None:
    """It did offer more than arrived."""
    assert ["bounded_loss"] == names(hidden().lose("link", 700).record())


def test_a_bounded_loss_over_ipv6() -> None:
    """Its counters have other names."""
    plain = paced(hidden().lose("rx_netfilter", 1000))
    (phase,) = plain.phases

    def renamed(snapshots: Mapping[str, Snapshot]) -> dict[str, Snapshot]:
        right = {
            name.replace("snmp.Ip.", "snmp6.Ip6").replace("snmp.Udp.", "snmp6.Udp6"): value
            for name, value in snapshots["right"].counters.items()
        }
        right |= {"snmp6.Ip6InMcastPkts": 0, "snmp6.Icmp6InMsgs": 0}
        return {**snapshots, "right": replace(snapshots["right"], counters=right)}

    phase = replace(phase, before=renamed(phase.before), after=renamed(phase.after))
    traffic = replace(plain.trial.traffic, family=6)
    six = replace(plain, trial=replace(plain.trial, traffic=traffic), phases=(phase,))
    (bottleneck,) = judge(six).diagnosis
    assert ("bounded_loss", 1000) == (bottleneck.name, bottleneck.packets)
    assert {"link", "rx_ring", "rx_netfilter"} <= set(bottleneck.stage.split(" or "))


def test_a_bounded_loss_of_a_trial_whose_rates_are_struck_out() -> None:
    """Counts hold."""
    mixture = hidden().lose("link", 700)
    mixture.moves["machine cpu.0.steal_ns"] = SECOND_NS
    mixture.moves["machine cpu.0.idle_ns"] = SECOND_NS
    result = judge(paced(mixture))
    assert (True, True) == (result.valid, bool(result.struck))
    assert ["bounded_loss"] == [each.name for each in result.diagnosis]


def test_packets_that_no_stage_explains(golden: Golden) -> None:
    """Lost all the same; named first unless a stage is known to have lost more."""
    udp = {"snmp.Udp.RcvbufErrors": 100, "socket.77.drops": 100, "snmp.Udp.InErrors": 100}
    missing, most, least = (
        judge(lossy(1000, moves, lost)).diagnosis
        for moves, lost in (({}, 300), ({"right": udp}, 300), ({"right": udp}, 130))
    )
    assert [["unaccounted"], ["unaccounted", "unknown"], ["unknown"]] == [
        [each.name for each in limits] for limits in (missing, most, least)
    ]
    assert ("unaccounted", 300) == (missing[0].stage, missing[0].packets)
    golden.check([missing[0].sentence, most[0].sentence])


def test_counters_that_move_although_nothing_was_lost(golden: Golden) -> None:
    """Neither was anything lost there, nor does the ledger say that nothing was."""
    moves = {"right": {"snmp.Udp.NoPorts": 5}}
    (bottleneck,) = judge(lossy(1000, moves, 0)).diagnosis
    assert ("unaccounted", 0) == (bottleneck.name, bottleneck.packets)
    golden.check(bottleneck.sentence)


def test_nothing_is_said_of_a_trial_without_packets() -> None:
    """Nor of one that failed."""
    assert () == judge(record(0)).diagnosis
    assert () == judge(record(status="failed")).diagnosis


@pytest.mark.parametrize(("cpus", "other"), [((0, 1), False), ((0, 1, 2), True)])
def test_other_cpus_are_advised_where_the_load_has_left_some(
    cpus: tuple[int, ...], other: bool
) -> None:
    """Where every CPU takes part, who uses them can only be stopped."""
    busy = stored()["busy-reader"]
    known = {name: replace(each, cpus=cpus) for name, each in busy.facts.items()}
    result = judge(replace(busy, facts=known))
    helps = [each.helps for each in result.diagnosis if each.name == "others_cpu"]
    steps = [each.next_step for each in result.findings if "other programs used" in each.what]
    assert [other] * len(helps) == ["list other CPUs" in text for text in helps] != []
    assert [other] * len(steps) == ["keep them on other CPUs" in text for text in steps] != []


def test_every_remedy_is_that_of_something() -> None:
    """A remedy of a stage, a readiness check or a bottleneck; a full stop is set by who shows it."""
    checks = {check.name for check in READINESS}
    assert {*LEDGER_STAGES, BEFORE_HOST, *checks, *BOTTLENECKS} == set(REMEDIES)
    assert [] == [name for name, remedy in REMEDIES.items() if remedy.text.endswith(".")]


def test_a_reader_that_naps_had_no_time_on_a_cpu_that_never_idled() -> None:
    """However many of its calls return nothing."""
    calls = {"receive_calls": 1000, "empty_calls": 900}
    napping = changed("slow-work", receive={"wait": "nap 100us"}, readers=calls)
    assert ("reader_work", "certain") == first(napping)
    assert "small_buffer" not in names(napping)
