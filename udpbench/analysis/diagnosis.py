"""What limits a trial: a table of named causes, each a function of the evidence that it needs.

Pure, from the record alone, also of a trial whose rates are struck out. A cause returns nothing
where the evidence refutes it; ``certain`` is only what no other cause of the same loss is left
beside. They speak in the order of the table; ``remedies`` says what helps. Long, because each cause
has to be read beside those before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from udpbench.analysis.cpu_time import costs_of_cpu
from udpbench.analysis.cpu_use import CpuGroup, has_spare_cpu, machine_cpus, main_user
from udpbench.analysis.evidence import LITTLE, MOST_OF_IT, Evidence
from udpbench.analysis.ledger import skbs
from udpbench.analysis.ledger.before_ip import NAPI_PACKETS
from udpbench.analysis.ledger.between import AHEAD
from udpbench.analysis.ledger.intended_load import intended_packets, unsent_packets
from udpbench.analysis.ledger.ledger import OR, intervals, lost_by_place, packets_at, worst_place
from udpbench.analysis.ledger.skbs import Span
from udpbench.analysis.ledger.stages import STAGES
from udpbench.analysis.queue_counters import by_receiver
from udpbench.analysis.reader_time import MUCH, LoadedCpu, ReaderTime
from udpbench.analysis.readings import Readings
from udpbench.analysis.remedies import (
    OTHER_CPUS,
    REMEDY_STEPS,
    SAVED_STAGES,
    helps_at,
    remedy_text,
    sets_against,
)
from udpbench.model.host import SOCKET_MEMORY, Facts
from udpbench.model.limits import SECOND_NS, stage_of
from udpbench.model.record import OTHER_CALL, WorkerStats
from udpbench.model.result import MISSING, UNKNOWN, Bottleneck, Certainty, Ledger
from udpbench.text_tables import filled
from udpbench.units import counted, format_bytes, plural, show_count, show_percent, show_pps

CERTAIN: Certainty = "certain"
LIKELY: Certainty = "likely"
TO_BE_TESTED: Certainty = "to be tested"
LEAST_FIRST = (TO_BE_TESTED, LIKELY, CERTAIN)
LEAST_GAIN = 0.01
"""The least part of packets; less is none."""
COSTS_NAMED = 3
"""Stages of a CPU that are named, those with most of its time."""
TAKEN = 0.1
"""Share of a CPU that others must have taken to be a reason."""
ONE_OF_MANY = 0.75
"""Share of the packets from which on one of several queues has most of them."""
UNSENT = 0.005
"""Part of the intended load that a sender may leave out (RFC 2285 3.5)."""
RULE_NS = 5
"""A firewall rule that does not match takes so long at least (measured: 7 ns, nf_tables, 6.18)."""
UDP_MEMORY, BACKLOG = "net.ipv4.udp_mem", "net.core.netdev_max_backlog"
CONNTRACK = "net.netfilter.nf_conntrack_max"
DEFAULT_BUFFER, LARGEST_BUFFER = "net.core.rmem_default", "net.core.rmem_max"
BACKLOG_PACKETS = 1000
"""The kernel's default (net/core/hotdata.c: max_backlog): no less is worth a try."""
SYSCTL_NUMBERS = re.compile(r"\s*[0-9]{1,19}(\s+[0-9]{1,19})*\s*")
PAGE_BYTES = 4096
"""The smallest page of any CPU; larger ones make of a number of pages more memory."""
MOST_QUEUE_PACKETS = 2**20
"""Gigabytes of packets that wait."""
MOST_BUFFER_BYTES = 256 * 2**20
"""No burst needs more: it holds 100,000 datagrams of the largest MTU that cards have."""
ROWS = {stage.name: stage for stage in (AHEAD, *STAGES)}
REASONS_RELEASE = (5, 17)
"""Before it the kernel names no drop reasons (include/trace/events/skb.h: kfree_skb)."""
REFUSING = tuple(stage.name for stage in STAGES if stage.refuses)
SEND_ERRORS = ("econnrefused", "emsgsize", "other_errors")
OTHER_END = "the receiver's ring was full; a veth pair counts that at its sending end"


def diagnose(
    readings: Readings, ledger: Ledger | None, valid: bool = True
) -> tuple[Bottleneck, ...]:
    """Return what limits a trial; empty if nothing can be said.

    First the causes with a share of the loss, most packets first, then what else was seen. A
    stream has no ledger, and a trial without a packet no limit.
    """
    if ledger is None or not ledger.intended_packets:
        return ()
    lost = sum(lost_by_place(ledger).values()) + abs(ledger.unaccounted or 0)
    main: list[Bottleneck] = []
    beside: list[Bottleneck] = []
    for number, evidence in enumerate(_places(readings, ledger, valid)):
        causes = CAUSES if number == 0 else CAUSES_OF_A_PLACE
        limits = [bottleneck for cause in causes for bottleneck in cause(evidence)]
        if evidence.stage and not any(each.stage == evidence.stage for each in limits):
            limits += unexplained(evidence)
        limits += power_saving(evidence) if number == 0 else ()
        shared = [each for each in limits if each.share is not None]
        if not shared and limits and lost and limits[0].packets:
            limits[0] = replace(limits[0], share=limits[0].packets / lost)
        main += [each for each in limits if each.share is not None]
        beside += [each for each in limits if each.share is None]
    main.sort(key=lambda each: -each.packets)
    if any(each.stage == "unsent" for each in main) and len({each.stage for each in main}) > 1:
        main = [replace(each, whole=MISSING) for each in main]
    return (*main, *beside)


def _places(readings: Readings, ledger: Ledger, valid: bool) -> list[Evidence]:
    """Return the evidence for each place of the loss, most packets first; one without a loss."""
    ended = lost_by_place(ledger)
    if unsent_packets(readings) <= UNSENT * intended_packets(readings):
        ended.pop("unsent", None)
    known = {place: packets for place, packets in ended.items() if OR not in place}
    stage, place = worst_place(known), worst_place(ended)
    least = LITTLE * sum(ended.values())
    others = sorted((n for n in known if n != stage and known[n] >= least), key=lambda n: -known[n])
    shared = place if place != stage else ""
    first = Evidence(readings, ledger, stage, known.get(stage, 0), shared, valid)
    return [first, *(Evidence(readings, ledger, each, known[each], "", valid) for each in others)]


def _bottleneck(
    case: Evidence,
    name: str,
    certainty: Certainty,
    what: str,
    cpu: LoadedCpu | None = None,
    *,
    test: str = "",
    remedy: str = "",
    words: Mapping[str, str] | None = None,
    numbers: Mapping[str, float] | None = None,
    too_small: bool = False,
) -> Bottleneck:
    """Return a bottleneck; behind ``what`` stands how busy a CPU is, if one speaks for it.

    ``too_small`` of what overflows although that CPU has time, which is no cause of it.
    """
    behind = "the receiver falls behind" if case.falls_behind and case.behind else ""
    if too_small and cpu is not None:
        what += f"{', and' if cpu.full else ';'} {cpu.beside}"
    busy = cpu.text if cpu is not None and not too_small else ""
    text = ": ".join(filter(None, (behind, what, busy)))
    text = "; ".join(filter(None, (text, _costs(case, cpu) if cpu is not None else "")))
    fill = {**words_of(case), **(words or {})}
    saving, saved = _saving(case, name, cpu) if cpu is not None else ("", {})
    of_program = case.readings.receiving.takes == "program"
    helps = _on_node(case, remedy or name, remedy_text(remedy or name, of_program))
    helps = filled(helps, fill) + saving
    evidence = {**(numbers or {}), **(cpu.shares if cpu is not None else {}), **saved}
    return Bottleneck(
        *(name, certainty, case.stage, case.packets, text, helps, test, evidence, fill),
        sets=sets_against(name, fill, of_program),
        aside=OTHER_END if case.stage == "tx_device" and case.readings.one_pair else "",
    )


def _on_node(case: Evidence, name: str, text: str) -> str:
    """Return what helps at a node in the middle, by its name, and whether udpbench may try it."""
    of_node = (stage_of(case.node_stage), "ring_of_veth", "node_cpu")
    if not case.node or stage_of(name) not in of_node:
        return text
    text, fixed = text.replace("the node", case.node), case.readings.record.read_only
    if stage_of(case.node_stage) not in REMEDY_STEPS or not fixed:
        return text
    if case.node in fixed:
        return f"{text}; udpbench may not change {case.node}: its lab would say `change: true`"
    return f"{text}; settings.middle is for all nodes, and {', '.join(fixed)} is read only"


def _costs(case: Evidence, cpu: LoadedCpu) -> str:
    """Return what a packet costs on a CPU, and where most of it goes; empty if it is not known."""
    if cpu.cpu is None:
        return ""
    costs = costs_of_cpu(case.readings, case.ledger, cpu.machine, cpu.cpu)
    whole_ns = sum(costs.values())
    parts = [
        f"{show_percent(ns / whole_ns)} {stage}"
        for stage, ns in list(costs.items())[:COSTS_NAMED]
        if ns >= LITTLE * whole_ns
    ]
    return f"{show_count(round(whole_ns))} ns per packet: {', '.join(parts)}" if parts else ""


def _saving(case: Evidence, name: str, cpu: LoadedCpu) -> tuple[str, dict[str, float]]:
    """Return what a remedy saves on a CPU at most, in words and numbers; nothing if not known.

    More packets only where that CPU is full, and no more than the next one has time for.
    """
    stages = SAVED_STAGES.get(name, ())
    if cpu.cpu is None:
        return "", {}
    costs = costs_of_cpu(case.readings, case.ledger, cpu.machine, cpu.cpu)
    whole_ns, saved_ns = sum(costs.values()), sum(costs.get(stage, 0.0) for stage in stages)
    if not saved_ns or saved_ns >= whole_ns:
        return "", {}
    numbers = {"saved_ns": saved_ns, "cost_ns": whole_ns}
    text = f" (saves at most {show_count(round(saved_ns))} of {show_count(round(whole_ns))} ns"
    loaded = (each for each in (case.sending, case.reading, case.polling) if each is not None)
    others = (o.busy for o in loaded if (o.machine, o.cpu) != (cpu.machine, cpu.cpu))
    room = 1 / max(*others, LITTLE, LITTLE)
    more = min(whole_ns / (whole_ns - saved_ns), room) - 1
    if not cpu.full or more < LEAST_GAIN:
        return f"{text}, but no more packets)", numbers
    return f"{text}: at most {show_percent(more)} more packets)", {**numbers, "gain": more}


def _packets(number: int) -> str:
    return counted(number, "packet")


def _meaning(stage: str) -> str:
    """Return what a stage means, in one clause."""
    text = ROWS[stage_of(stage)].means.split(". ")[0].rstrip(".").split(": ")[0]
    return text[:1].lower() + text[1:]


# --- what remedies and their steps are filled with -----------------------------------------------


def words_of(case: Evidence) -> dict[str, str]:
    """Return what fills the <angles> of remedies and of their steps, as far as it is known."""
    record = case.readings.record
    hosts = case.readings.receiver.facts
    ports = [port for spec in record.workers for port in spec.bind_ports]
    # What accepts the port before rules that others change meanwhile may not be before the next.
    words = {"port": str(min(ports))} if ports and not case.firewall_changed else {}
    late = case.late
    if late is not None:
        words["late"] = "send" if late.sends else "receive"
    return {**words, **_of_memory(case, hosts), **_of_cpus(case, hosts), **_of_node(case, words)}


def _of_memory(case: Evidence, hosts: Sequence[Facts]) -> dict[str, str]:
    """Return sizes of buffers, backlog, ring and UDP's memory that would hold what came."""
    words: dict[str, str] = {}
    sizes = _buffers(case.readings.receiver.workers)
    if sizes and case.stage == "udp_rcvbuf":
        wanted_bytes = _with_room(case, min(sizes))
        sysctl = _bound_of_buffer(case, hosts, 2 * min(sizes))
        for size, size_bytes in (("", wanted_bytes), ("large_", 4 * wanted_bytes)):
            if size_bytes <= MOST_BUFFER_BYTES:
                words[f"{size}buffer"] = format_bytes(size_bytes)
                # The kernel doubles what a program asks for, not what it gets by default.
                word = {DEFAULT_BUFFER: f"{size}default", LARGEST_BUFFER: f"{size}limit"}
                doubled = {DEFAULT_BUFFER: 2 * size_bytes, LARGEST_BUFFER: size_bytes}
                words |= {word[sysctl]: str(doubled[sysctl])} if sysctl else {}
    backlogs = [int(text.split()[0]) for text in _in_force(case, hosts, BACKLOG)]
    if any(backlogs):
        backlog_packets = max(_with_room(case, min(filter(None, backlogs))), BACKLOG_PACKETS)
        words |= {"backlog": str(backlog_packets), "large_backlog": str(8 * backlog_packets)}
    rings = [facts.rings for facts in hosts if facts.rings.get("rx-max")]
    longest = min((each["rx-max"] for each in rings), default=0)
    if any(each.get("rx", 0) < longest for each in rings):
        words["ring"] = str(longest)
    pages = _udp_pages(case, hosts)
    if pages is not None:
        words |= {"udp_pages": str(pages), "udp_mem": f"{pages} {pages} {2 * pages}"}
    return words


def _of_node(case: Evidence, words: Mapping[str, str]) -> dict[str, str]:
    """Return what would hold at a node in the middle what came, its CPUs, and the load's port.

    Nothing where a node is read only: the settings of an experiment are for all nodes. Where rules
    may translate addresses, packets are left to be tracked.
    """
    record = case.readings.record
    facts = record.facts.get(case.node)
    if facts is None or record.read_only:
        return {}
    changes = record.changes.get(case.node, ())
    own = {f"node_{word}": words[word] for word in words.keys() & {"port"}}
    if own and facts.firewall_rules:
        own["rules_port"] = own["node_port"]
    if own and record.built_in_lab and not any(each.setting.kind == "nat" for each in changes):
        own["untracked_port"] = own["node_port"]
    if not _is_set_elsewhere(case, BACKLOG):
        backlogs = [int(text.split()[0]) for text in _in_force(case, [facts], BACKLOG)]
        own |= _lengths(case, "node_backlog", min(filter(None, backlogs), default=0))
    pfifos = [each.after.get("pfifo") for each in changes
              if each.setting.kind == "qdisc" and isinstance(each.after, dict)]  # fmt: skip
    own |= _lengths(case, "node_queue", min((p["limit_packets"] for p in pfifos if p), default=0))
    if facts.rings.get("rx", 0) < facts.rings.get("rx-max", 0):
        own["node_ring"] = str(facts.rings["rx-max"])
    if len(facts.cpus) > 1:
        own["node_cpus"] = ",".join(map(str, facts.cpus))
        own |= {"irq_cpus": own["node_cpus"]} if facts.queue_irqs else {}
    tables = [int(text) for text in _in_force(case, [facts], CONNTRACK) if text.isdigit()]
    if any(tables) and not _is_set_elsewhere(case, CONNTRACK):
        flows = sum(len(spec.flows) for spec in record.workers if spec.role == "sender")
        own["node_table"] = str(1 << (max(tables) + 2 * flows).bit_length())
    return own


def _is_set_elsewhere(case: Evidence, sysctl: str) -> bool:
    """Return whether the experiment sets the machine's parameter for an end on the same machine."""
    record = case.readings.record
    ends = [block for part, block in record.trial.settings.items() if part != "middle"]
    return record.built_in_lab and any(sysctl in (block.sysctl or {}) for block in ends)


def _lengths(case: Evidence, word: str, held: int) -> dict[str, str]:
    """Return two lengths of a queue of packets: no load needs more than itself."""
    packets = max(held, BACKLOG_PACKETS)
    whole = 1 << max(case.ledger.intended_packets, packets).bit_length()
    first = min(_with_room(case, packets), whole, MOST_QUEUE_PACKETS)
    return {word: str(first), f"large_{word}": str(min(8 * first, MOST_QUEUE_PACKETS))}


def _bound_of_buffer(case: Evidence, hosts: Sequence[Facts], now_bytes: int) -> str:
    """Return the sysctl that bounds a program's buffer; empty if it sets the size itself.

    Without a size of its own it has the default; of more than is allowed it gets what is allowed.
    """
    receive = case.readings.record.trial.receive
    if receive.command is None:
        return ""
    for sysctl, size_bytes in ((DEFAULT_BUFFER, now_bytes), (LARGEST_BUFFER, now_bytes // 2)):
        if str(size_bytes) in _in_force(case, hosts, sysctl):
            return sysctl
    return ""


def _udp_pages(case: Evidence, hosts: Sequence[Facts]) -> int | None:
    """Return pages that hold all receive buffers full, and as many as UDP may take now, if known.

    None if neither is known; a network namespace of its own does not show what UDP may take.
    """
    sockets = _held_bytes(case)
    bounds = _in_force(case, hosts, UDP_MEMORY)
    now = max((int(text.split()[-1]) for text in bounds), default=0)
    pages = max(2 * sum(sockets.values()) // PAGE_BYTES, now)
    return 1 << (pages - 1).bit_length() if pages else None


def _held_bytes(case: Evidence) -> dict[int, int]:
    """Return the size of each buffer of the receivers, by inode."""
    return {
        inode: stats.buffer_bytes or 0
        for stats in case.readings.receiver.workers
        for inode in stats.socket_inodes
    }


def _in_force(case: Evidence, hosts: Sequence[Facts], sysctl: str) -> list[str]:
    """Return a sysctl of the machines as the trial set it, else as hosts show it; may be empty.

    A network namespace of its own shows none that its machine shares.
    """
    changes = chain.from_iterable(case.readings.record.changes.values())
    texts = [str(each.after) for each in changes if each.setting.target == sysctl]
    shown = (each.environment.get(sysctl, each.limits.get(sysctl, "")) for each in hosts)
    return [text for text in texts or map(str, shown) if SYSCTL_NUMBERS.fullmatch(text)]


def _of_cpus(case: Evidence, hosts: Sequence[Facts]) -> dict[str, str]:
    """Return how many CPUs each role may use, and which have no worker; none of a single one.

    Hosts of a built-in lab split the machine's.
    """
    shared = case.readings.record.built_in_lab
    words: dict[str, str] = {}
    receiving = min((len(facts.cpus) for facts in hosts), default=0)
    sending = min((len(facts.cpus) for facts in case.readings.sender.facts), default=0)
    for word, cpus in (
        ("cpus", (receiving + 1) // 2 if shared else receiving),
        ("sender_cpus", sending // 2 if shared else sending),
    ):
        words |= {word: str(cpus)} if cpus > 1 else {}
    if len(hosts) == 1 and not shared:
        (facts,) = hosts
        used = {stats.cpu for stats in case.readings.receiver.workers}
        others = [str(cpu) for cpu in facts.cpus if cpu not in used]
        words |= {"other_cpus": ",".join(others)} if others else {}
        words["all_cpus"] = ",".join(map(str, facts.cpus))
    return words


def _buffers(workers: Iterable[WorkerStats]) -> list[int]:
    """Return the bytes that were asked for each socket's buffer; the kernel doubles them."""
    return [stats.buffer_bytes // 2 for stats in workers if stats.buffer_bytes]


def _with_room(case: Evidence, held: int) -> int:
    """Return a power of two with room for twice as much as came, for what ``held`` has held."""
    received = max(case.ledger.received_packets, 1)
    room = 2 * held * (received + case.packets) // received
    return 1 << (room - 1).bit_length()


# --- out of the ordinary -------------------------------------------------------------------------


def unaccounted(case: Evidence) -> Iterator[Bottleneck]:
    """Find more packets that no stage explains, or counters that contradict what was received."""
    remainder, lost = case.ledger.unaccounted or 0, lost_by_place(case.ledger)
    what = f"no stage explains {_packets(remainder)} of the loss"
    if remainder < 0:
        what = f"stages count {_packets(-remainder)} more than were lost"
    unplaced = not case.stage and not case.shared
    if remainder > lost.get(worst_place(lost), 0) or (remainder and unplaced):
        nowhere = replace(case, stage="unaccounted", packets=max(remainder, 0))
        name, test = "unaccounted", ""
        strangers = [each for texts in case.readings.phase.strangers.values() for each in texts]
        rules = case.firewall_rules
        if remainder > 0 and strangers:
            name, what = "stranger", f"{what}; {strangers[0]} may have taken them"
        elif remainder > 0 and (meanwhile := _meanwhile(case, ANYTHING)):
            name, what, test = "changed", what + meanwhile, "explain: true"
        elif remainder > 0 and rules:
            test, name = "explain: true", "unseen_rules"
            what += (
                f"; a host has {plural(rules, 'firewall rule')}, and of an ingress or egress hook"
            )
            what += " no counter shows what they drop"
        sure = LIKELY if test else CERTAIN
        yield _bottleneck(nowhere, name, sure, what, test=test)


def bounded_loss(case: Evidence) -> Iterator[Bottleneck]:
    """Find a loss of which the ledger knows how large it is, and not at which of several stages."""
    if not case.shared:
        return
    packets = packets_at(lost_by_place(case.ledger), case.shared)
    spans = intervals(case.ledger, case.shared)
    parts = [f"{stage} {show_count(s.low)} to {show_count(s.high)}" for stage, s in spans.items()]
    what = f"{_packets(packets)}, {', '.join(parts)}"
    evidence = {f"{stage}_at_least": s.low for stage, s in spans.items()}
    evidence |= {f"{stage}_at_most": s.high for stage, s in spans.items()}
    shared = replace(case, stage=case.shared, packets=packets)
    named = _explainable(case, spans, packets)
    if named:
        words, test = {"explained": ", ".join(named)}, "explain: true"
        yield _bottleneck(
            shared, "bounded_loss", CERTAIN, what, test=test, words=words, numbers=evidence
        )
        return
    explained = case.readings.record.trial.explain
    nothing_does = "neither counters nor drop reasons tell" if explained else "no counter tells"
    what = f"{what}; {nothing_does} them apart"
    plain = _bottleneck(shared, "bounded_loss", CERTAIN, what, numbers=evidence)
    yield replace(plain, remedy=helps_at(case.shared, case.readings.receiving.takes == "program"))


def _explainable(case: Evidence, spans: Mapping[str, Span], packets: int) -> list[str]:
    """Return the stages whose drops ``explain`` would count, if that may make all of them exact.

    Not if two or more others share a part of the loss that no reason can have.
    """
    record = case.readings.record
    if record.trial.explain or record.built_in_lab:
        return []
    named = [
        stage for stage in spans if ROWS[stage_of(stage)].reasons and _names_reasons(case, stage)
    ]
    most = sum(span.high if stage in named else span.low for stage, span in spans.items())
    return named if len(spans) - len(named) <= 1 or most >= packets else []


def _names_reasons(case: Evidence, stage: str) -> bool:
    """Return whether the kernels at a stage name drop reasons, as far as that is known."""
    for facts in case.readings.at(ROWS[stage_of(stage)].part).facts:
        selftest = case.readings.record.selftests.get(facts.host)
        release = re.match(r"(\d+)\.(\d+)", facts.kernel)
        if selftest is not None and selftest.unexplained is not None:
            return False
        if release is not None and tuple(map(int, release.groups())) < REASONS_RELEASE:
            return False
    return True


def refused(case: Evidence) -> Iterator[Bottleneck]:
    """Find a stage that drops by a rule or a bound, however fast anybody is.

    A filter is refuted where no socket has any.
    """
    limits = _memory_limits(case) if case.stage == "udp_memory" else []
    if limits:
        sure = CERTAIN if not _may_exceed_udp_mem(case) else LIKELY
        yield _bottleneck(case, "cgroup_memory", sure, limits[0])
        if sure == CERTAIN:
            return
    filters = [stats.filtered for stats in case.readings.receiver.workers]
    if case.stage == "udp_filter" and filters and not any(each is not False for each in filters):
        return
    if stage_of(case.stage) in REFUSING:
        what = _meaning(case.stage) + _meanwhile(case, CHANGES.get(case.stage, ()))
        what = what.replace("the node", case.node or "the node")
        yield _bottleneck(case, case.stage, LIKELY if limits else CERTAIN, what)


def _memory_limits(case: Evidence) -> list[str]:
    """Return in words the limits of cgroups that the receivers' full buffers exceed."""
    limits = [each.environment.get(SOCKET_MEMORY, "") for each in case.readings.receiver.facts]
    held_bytes = sum(_held_bytes(case).values())
    known = (re.fullmatch(r"([0-9]{1,19}) bytes of (.+)", limit) for limit in limits)
    return [
        f"sockets of {match[2]} may hold {format_bytes(int(match[1]))} together"
        for match in known
        if match and int(match[1]) < held_bytes
    ]


def _may_exceed_udp_mem(case: Evidence) -> bool:
    """Return whether the receivers' full buffers exceed what UDP may take, as far as known."""
    bounds = _in_force(case, case.readings.receiver.facts, UDP_MEMORY)
    pages = [int(text.split()[-1]) for text in bounds]
    return not pages or sum(_held_bytes(case).values()) >= min(pages) * PAGE_BYTES


ANYTHING = ("firewall", "queueing", "links", "routes", "addresses", "neighbours", "policies")
CHANGES = {stage.name: stage.changed_by for stage in STAGES}


def _meanwhile(case: Evidence, subjects: Iterable[str]) -> str:
    """Return what others changed meanwhile, as the end of a sentence; empty if nothing."""
    changes = case.changes
    parts = [f"{name} of {' and '.join(changes[name])}" for name in subjects if name in changes]
    return f"; meanwhile others changed {', '.join(parts)}" if parts else ""


def changed(case: Evidence) -> Iterator[Bottleneck]:
    """Find what others changed while nothing arrived, or the polling CPU or the sender had time."""
    cpu = case.polling
    has_time = case.goes_dark or (cpu is not None and not cpu.full)
    waits = case.stage == "unsent" and (case.sender_waits or case.stalls_explain)
    if waits or (case.stage in ("tx_device", "link") and has_time):
        what = _meanwhile(case, CHANGES[case.stage]).removeprefix("; meanwhile ")
        if what:
            sure = CERTAIN if case.goes_dark and not waits else LIKELY
            yield _bottleneck(case, "changed", sure, f"{what} during the measured phase")


def failing_calls(case: Evidence) -> Iterator[Bottleneck]:
    """Find calls of the sender that failed rather than came too late."""
    failed = {name: case.readings.sender.count(name) for name in SEND_ERRORS}
    if case.stage == "unsent" and 2 * sum(failed.values()) > case.packets:
        most = max(failed, key=lambda name: failed[name])
        what = f"calls of the sender failed, most by {most} ({show_count(failed[most])})"
        what += _meanwhile(case, CHANGES["unsent"])
        yield _bottleneck(case, "failing_calls", CERTAIN, what, numbers=failed)


def others_cpu(case: Evidence) -> Iterator[Bottleneck]:
    """Find other programs, or a hypervisor, on the CPU that should have been faster.

    Not certain where the work alone would take more than the CPU. A sender that is robbed makes up
    for it in bursts, for which a receiver that has time is late.
    """
    cpu, certainty = case.late, CERTAIN
    interrupted = case.interrupted_polling or case.interrupted_sender
    if interrupted is not None:
        # A hypervisor rarely takes a CPU for so long at once.
        by_steal = max(interrupted.others, interrupted.kept_off) < TAKEN
        yield from () if case.stopped_sender and by_steal else _had(case, interrupted)
        return
    if case.in_ring and cpu is not None and not cpu.full and case.is_interrupted(cpu):
        yield from _had(case, cpu)
        return
    if case.stage == "udp_rcvbuf":
        return  # late_reader's
    if case.in_ring and cpu is not None and case.keeps_from_polling(cpu):
        return  # over_polling's: an ordinary program has nothing of a real-time reader's CPU
    if case.stage and cpu is not None and not (cpu.sends or cpu.full):
        cpu, certainty = case.sending, LIKELY
    if cpu is None or not cpu.full or case.stopped_sender or case.goes_dark:
        return
    if cpu.sends and case.sent_on_all_of(cpu) < LITTLE * case.packets:
        return
    if not cpu.sends and case.falls_behind and case.alone(cpu) > 1:
        return  # its own work takes longer than the load, whoever else has its CPU
    if not cpu.sends and case.receiving_need(cpu) > 1:
        certainty = LIKELY
    yield from _had_by_others(case, cpu, certainty)


def _had(case: Evidence, cpu: LoadedCpu) -> Iterator[Bottleneck]:
    """Find who had a CPU for a while; if nobody is known to, for how long it was missed."""
    if cpu.kept_off >= max(cpu.others, cpu.steal, LITTLE):
        seconds = cpu.kept_off * case.load_ns / SECOND_NS
        what = f"others had {cpu.name} for {seconds:.3f} s or more while its NAPI thread waited"
        yield _others_cpu(case, cpu, CERTAIN, what)
        return
    taken = list(_had_by_others(case, cpu, CERTAIN))
    sure, seconds = CERTAIN, case.stalled_ns / SECOND_NS
    what = f"others had {cpu.name} for {seconds:.3f} s in which packets were due"
    if not seconds:
        sure, seconds = LIKELY, case.others_share(cpu) * case.load_ns / SECOND_NS
        what = f"others had {cpu.name} for up to {seconds:.3f} s"
    yield from taken or [_others_cpu(case, cpu, sure, what)]


def _others_cpu(
    case: Evidence,
    cpu: LoadedCpu,
    certainty: Certainty,
    what: str,
    numbers: Mapping[str, float] | None = None,
) -> Bottleneck:
    """Return that others had a CPU; to use another one helps only where there is one."""
    cause = _bottleneck(case, "others_cpu", certainty, what, remedy="busy", numbers=numbers)
    beside = OTHER_CPUS * has_spare_cpu(case.readings, cpu.machine)
    return replace(cause, remedy=cause.remedy + beside)


def _had_by_others(
    case: Evidence, cpu: LoadedCpu, certainty: Certainty, robbed: float = 1.0
) -> Iterator[Bottleneck]:
    """Find who took a tenth of a CPU or more; ``robbed``: at most so much of it mattered."""
    if cpu.others >= TAKEN:
        whose, cpus = "the machine's CPUs", machine_cpus(case.readings, cpu.machine)
        if cpu.cpu is not None:
            whose, cpus = cpu.name, frozenset({cpu.cpu})
        group = CpuGroup(cpu.machine, cpus)
        used_ns = int(cpu.others * case.readings.deltas[cpu.machine].elapsed_ns)
        user = main_user(case.readings, group, "other", used_ns)
        what = f"other programs took {show_percent(cpu.others)} of {whose}"
        if robbed < cpu.others - LITTLE:
            what += f", which kept its reader waiting {show_percent(robbed)} of the time"
        sure = certainty if cpu.others >= MUCH else LIKELY
        what += f" ({user})" if user else ""
        yield _others_cpu(case, cpu, sure, what, cpu.shares)
    if cpu.steal >= TAKEN:
        what = f"the hypervisor took {show_percent(cpu.steal)} of {cpu.name}"
        sure = certainty if cpu.steal >= MUCH and cpu.others < LITTLE else LIKELY
        yield _bottleneck(case, "steal", sure, what, numbers=cpu.shares)


def inline(case: Evidence) -> Iterator[Bottleneck]:
    """Find receive work on the sender's CPU, as in a pair without NAPI and RPS."""
    readings, cpu = case.readings, case.sending
    elsewhere = readings.receiver.counter(NAPI_PACKETS) or case.served
    if readings.all_veth and not elsewhere and case.limited_by_sender and cpu and cpu.full:
        what = "the sender's system calls do the receive work"
        yield _bottleneck(case, "inline", CERTAIN, what, cpu)


def sender_queue(case: Evidence) -> Iterator[Bottleneck]:
    """Find a queue of the sender that drops, or for which a sender waits that never sleeps."""
    if case.stage == "tx_qdisc":
        what = "the sender's queueing discipline drops what exceeds its rate or its limit"
        yield _bottleneck(case, "sender_queue", CERTAIN, what)
    elif case.sender_waits and not case.held_up and not case.stopped_sender:
        what = "the sender waits for its queue"
        yield _bottleneck(case, "sender_queue", LIKELY, what, case.sending)


def node_cpu(case: Evidence) -> Iterator[Bottleneck]:
    """Find a full CPU that a node in the middle has for itself, behind its ring or its backlog.

    Others on that CPU are the cause where the node would do without them.
    """
    devices = ("tx_device", "fwd_device") if case.readings.wired else ()
    if stage_of(case.stage) not in (*devices, "fwd_ring", "fwd_backlog"):
        return
    cpu = case.forwarding(case.node) if case.node else None
    if cpu is None or not cpu.full:
        return
    if max(cpu.others, cpu.steal) >= TAKEN and case.receiving_need(cpu) <= 1:
        yield from _had_by_others(case, cpu, LIKELY)
        return
    yield _bottleneck(case, "node_cpu", LIKELY, "", cpu, words={"node": case.node})


def small_backlog(case: Evidence) -> Iterator[Bottleneck]:
    """Find a backlog too small for what comes at once, before a CPU that has time."""
    cpu = case.polling
    if case.goes_dark:
        return
    if case.stage == "rx_backlog" and cpu is not None and case.behind is None:
        what = "the CPU's backlog is too small for the bursts"
        sure = LIKELY if cpu.full else CERTAIN
        yield _bottleneck(
            case, "small_backlog", sure, what, cpu, remedy="rx_backlog", too_small=True
        )


def short_ring(case: Evidence) -> Iterator[Bottleneck]:
    """Find a ring that overflows although the CPU that polls it has time."""
    cpu = case.polling
    if case.goes_dark:
        return
    if case.in_ring and case.stage != "rx_backlog" and cpu is not None and case.behind is None:
        what = "the receiver's ring is too short for the bursts"
        yield _bottleneck(case, "short_ring", LIKELY, what, cpu, too_small=True)


FULL_OF_NODES = ("fwd_ring", "fwd_backlog", "fwd_tun", "fwd_rcvbuf", "fwd_cells", "fwd_qdisc")


def full_node(case: Evidence) -> Iterator[Bottleneck]:
    """Find a queue of a node in the middle that was full.

    A queueing discipline drops by its rate or its limit; of others a CPU may have been too slow.
    """
    cpu = case.forwarding(case.node) if case.node else None
    by_cpu = stage_of(case.node_stage) in ("fwd_ring", "fwd_backlog") and cpu and cpu.full
    if case.node and stage_of(case.node_stage) in FULL_OF_NODES and not by_cpu:
        by_peer = case.node_stage != case.stage
        what = _meaning(case.node_stage).replace("the node", case.node)
        what = f"{case.node} did not empty its ring in time" if by_peer else what
        sure = CERTAIN if stage_of(case.stage) == "fwd_qdisc" else LIKELY
        full = _bottleneck(
            case, case.node_stage, sure, what, remedy="ring_of_veth" if by_peer else ""
        )
        aside = f"the ring of {case.node} was full; a veth pair counts that at its sending end"
        yield replace(full, aside=aside if by_peer else full.aside)


def late_reader(case: Evidence) -> Iterator[Bottleneck]:
    """Find why a socket's buffer was full, each cause with the packets that it cost.

    A reader that stood still, or sleeps by itself; other programs on its CPU; a burst. What is left
    is work for which its CPU does not suffice: the causes below say which.
    """
    if case.stage != "udp_rcvbuf" or not case.packets:
        return
    shares = {cause: packets / case.packets for cause, packets in case.late_packets.items()}
    reader = max(case.readers, key=lambda each: each.dropped_packets or 0, default=None)
    for cause in sorted(LATE, key=lambda name: -shares[name]):
        share = shares[cause]
        if reader is None or share < LITTLE:
            continue
        known = case.knows_readers or not case.lasts
        # Of a short load it is not known whether others had the CPU just when it came.
        known = known and (case.lasts or cause != "robbed")
        sure = CERTAIN if share > 1 - LITTLE and known else LIKELY
        packets = round(share * case.packets)
        for number, bottleneck in enumerate(LATE[cause](case, reader, sure)):
            part = share * case.packets / case.lost_packets if number == 0 else None
            yield replace(bottleneck, packets=packets, share=part)


def _standstill(case: Evidence, reader: ReaderTime, sure: Certainty) -> Iterator[Bottleneck]:
    """Return readers that made no call while packets waited."""
    still = [each for each in case.readers if each.stopped or not each.read_packets]
    worst = max(still, key=lambda each: each.dropped_packets or 0, default=reader)
    name = worst.workers[0].worker
    what = f"{name} read nothing: it hung, or was stopped"
    if worst.read_packets:
        seconds = worst.stopped * case.load_ns / SECOND_NS
        what = f"{name} stood still for {seconds:.3f} s while packets waited"
    numbers = {"stopped": worst.stopped}
    yield _bottleneck(case, "standstill", sure, what, numbers=numbers)


def _sleeps(case: Evidence, reader: ReaderTime, sure: Certainty) -> Iterator[Bottleneck]:
    """Return a program that sleeps although datagrams wait."""
    asleep = reader.asleep or 0.0
    where = f" (in {reader.call})" if reader.call not in ("", OTHER_CALL) else ""
    served = reader.read_packets * SECOND_NS / max(case.load_ns, 1)
    came = (reader.read_packets + (reader.dropped_packets or 0)) * SECOND_NS / max(case.load_ns, 1)
    what = f"{show_pps(served)} of {show_pps(came)}"
    what += f": the program sleeps {show_percent(asleep)} of the time{where}"
    remedy = "reader_pauses" if reader.emptied else ""
    numbers = {"asleep": asleep, "running": reader.running, "needed_cpus": reader.needed_cpus()}
    yield _bottleneck(case, "reader_sleeps", sure, what, remedy=remedy, numbers=numbers)


def _robbed(case: Evidence, reader: ReaderTime, sure: Certainty) -> Iterator[Bottleneck]:
    """Return who took the CPU of a reader that could have run."""
    worst = max(case.readers, key=lambda each: each.robbed, default=reader)
    if worst.cpu is not None:
        yield from _had_by_others(case, worst.cpu, sure, worst.robbed)


def _throttled(case: Evidence, reader: ReaderTime, sure: Certainty) -> Iterator[Bottleneck]:
    """Return a reader that waited for a CPU although that was idle."""
    worst = max(case.readers, key=lambda each: each.throttled, default=reader)
    what = (
        f"the reader was kept off its CPU {show_percent(worst.throttled)} of the time, which idled"
    )
    numbers = {"throttled": worst.throttled, "needed_cpus": worst.needed_cpus()}
    yield _bottleneck(case, "cpu_quota", sure, what, numbers=numbers)


def _small_buffer(case: Evidence, reader: ReaderTime, sure: Certainty) -> Iterator[Bottleneck]:
    """Return a buffer that is too small for a burst, since the reader has time otherwise."""
    sizes = _buffers(reader.workers)
    now = f" of {format_bytes(min(sizes))}" if sizes else ""
    what = f"the receive buffer{now} is too small for the burst"
    of_program = case.readings.receiving.takes == "program"
    if case.lasts and case.robbed_sender is not None:
        for each in _had_by_others(case, case.robbed_sender, LIKELY):
            yield replace(each, what=f"{each.what}; what it sends late comes in bursts")
        sure = LIKELY
    bounded = case.readings.record.trial.traffic.count_packets is not None
    if not case.lasts and not bounded:
        sure = LIKELY
    words = words_of(case)
    remedy = "small_buffer" if of_program or "buffer" in words else "late_readers"
    if of_program and "buffer" in words:
        attached = case.readings.record.trial.receive.attach is not None
        bounds = {"default": "default_buffer", "limit": "clamped_buffer"}
        own = "attached_buffer" if attached else "own_buffer"
        remedy = next((bounds[word] for word in bounds if word in words), own)
    shown = reader.cpu if case.lasts else None
    numbers = reader.cpu.shares if reader.cpu is not None else {}
    yield _bottleneck(
        case, "small_buffer", sure, what, shown, remedy=remedy, numbers=numbers, too_small=True
    )


def _capacity(case: Evidence, _reader: ReaderTime, sure: Certainty) -> Iterator[Bottleneck]:
    """Return what work takes more than a CPU; no more certain than that it does.

    First the reader's own, if that alone takes more: then nothing else would suffice.
    """
    limits = list(chain.from_iterable(cause(case) for cause in WORK))
    cpu = case.behind
    if cpu is not None and case.alone(cpu) > 1:
        limits.sort(key=lambda each: each.name != "reader_work")
    for bottleneck in limits:
        both = {bottleneck.certainty, sure}
        yield replace(bottleneck, certainty=next(each for each in LEAST_FIRST if each in both))


LATE: dict[str, Callable[[Evidence, ReaderTime, Certainty], Iterator[Bottleneck]]] = {
    "stopped": _standstill,
    "asleep": _sleeps,
    "robbed": _robbed,
    "throttled": _throttled,
    "capacity": _capacity,
    "buffer": _small_buffer,
}
"""Why a socket's buffer was full → how that is said."""


# --- a full receiving CPU: what of it could be spared ---------------------------------------------


def firewall(case: Evidence) -> Iterator[Bottleneck]:
    """Find rules that take a part of the receive work, if each packet passes all of them.

    One that a rule of udpbench's accepts passes no others of that hook: it is at the head of their
    chains.
    """
    cpu, readings = case.behind, case.readings
    rules = case.firewall_rules
    accepted = readings.receiver.counter("firewall.*/input/accept/*") or 0
    delivered = readings.receiver.counter("{ip}InDelivers") or 0  # fragments reassembled
    share = 1 - min(accepted / delivered, 1.0) if delivered else 1.0
    passed_ns = share * rules * RULE_NS * (skbs.received_skbs(readings) or 0)
    if cpu is None or not rules or passed_ns < MUCH * cpu.receiving * case.load_ns:
        return
    port = min((port for spec in readings.record.workers for port in spec.bind_ports), default=0)
    what = f"packets pass up to {show_count(rules)} firewall rules"
    test = f"settings.receiver.firewall: {{udp: {port}, accept: true, notrack: true}}"
    yield _bottleneck(case, "firewall", LIKELY, what, cpu, test=test, numbers={"rules": rules})


def shared_socket(case: Evidence) -> Iterator[Bottleneck]:
    """Find several readers of one socket, more than CPUs or with one lock."""
    cpu = case.behind
    readers: dict[int, list[WorkerStats]] = {}
    for stats in case.readings.receiver.workers:
        for inode in stats.socket_inodes:
            readers.setdefault(inode, []).append(stats)
    most = max(readers.values(), key=len, default=[])
    cpus = len({stats.cpu for stats in most})
    if cpu is None or len(most) < 2:
        return
    packets = max(sum(stats.counts.get("read_packets", 0) for stats in most), 1)
    switches = sum(stats.counts.get("voluntary_switches", 0) for stats in most)
    numbers = {"readers": len(most), "cpus": cpus, "switches_per_packet": switches / packets}
    place = f" and {cpus} CPU{'s' if cpus > 1 else ''}" if len(most) > cpus else ""
    what = f"{len(most)} readers share one socket{place}"
    sure = LIKELY if place else TO_BE_TESTED
    test = "receive.workers: 1" if cpus == 1 else "receive.sockets: reuseport"
    yield _bottleneck(case, "shared_socket", sure, what, cpu, test=test, numbers=numbers)


def unmerged(case: Evidence) -> Iterator[Bottleneck]:
    """Find skbs of many packets that the kernel takes apart for a reader without UDP_GRO."""
    cpu, readings = case.behind, case.readings
    received, segments = skbs.received_skbs(readings), skbs.received_segments(readings)
    if cpu is None or readings.record.trial.receive.gro or not received or not segments:
        return
    each = segments / received
    if each >= 2:
        what = f"{each:.0f} datagrams arrive in one skb and are read one by one"
        numbers = {"packets_per_skb": each}
        yield _bottleneck(
            case, "unmerged", LIKELY, what, cpu, test="receive.gro: true", numbers=numbers
        )


def remote_node(case: Evidence) -> Iterator[Bottleneck]:
    """Find a reader on another NUMA node than the card."""
    cpu = case.behind
    for facts in case.readings.receiver.facts:
        if cpu is None or not cpu.workers or facts.interface_node is None:
            continue
        near = facts.numa_nodes.get(str(facts.interface_node), ())
        if near and cpu.cpu is not None and cpu.cpu not in near:
            what = f"the reader is not on the card's NUMA node {facts.interface_node}"
            test = "receive.cpus: same-node"
            yield _bottleneck(
                case, "remote_node", TO_BE_TESTED, what, cpu, test=test, remedy="worker_nodes"
            )
            return


def one_queue(case: Evidence) -> Iterator[Bottleneck]:
    """Find one of several RX queues with most packets, whose CPU is full."""
    cpu = case.behind
    for packets in by_receiver(case.readings).values() if cpu is not None else ():
        most = max(packets, key=lambda queue: packets[queue])
        share = packets[most] / max(sum(packets.values()), 1)
        if cpu and len(packets) > 1 and share >= ONE_OF_MANY and str(most) in cpu.queues:
            what = f"queue {most} of {len(packets)} has {show_percent(share)} of the packets"
            numbers = {"share": share}
            yield _bottleneck(case, "one_queue", CERTAIN, what, cpu, numbers=numbers)


def full_cpu(case: Evidence) -> Iterator[Bottleneck]:
    """Find what a full CPU does: the reader's work, the system's for it, or receiving.

    First what it does most; but the reader's work, if it is much, where a CPU without anything
    else would not do it at the rate that was asked for.
    """
    cpu = case.behind
    if cpu is None:
        return
    parts = {"reader_work": cpu.user, "shared_cpu": cpu.receiving, "reader_system": cpu.system}
    if not cpu.workers:
        parts = {"receive_cpu": cpu.receiving}
    much = {name for name in parts if parts[name] >= MUCH * cpu.busy}
    rated = case.readings.record.trial.traffic.rate is not None and case.is_behind(cpu)
    alone = case.alone(cpu) if rated and "reader_work" in much else 0.0
    lacking = f"the reader's own work at this rate would take {alone:.1f} CPUs"
    whats = {"reader_work": lacking} if alone > 1 else {}
    ordered = sorted(parts, key=lambda name: (name not in whats, -parts[name]))
    for name in ordered:
        if name == ordered[0] or name in much:
            sure = CERTAIN if name == ordered[0] else LIKELY
            if name == "receive_cpu" and cpu.receiving < MOST_OF_IT * cpu.busy:
                sure = LIKELY  # the rest may be readers that are not pinned
            yield _bottleneck(case, name, sure, whats.get(name, ""), cpu)


def over_polling(case: Evidence) -> Iterator[Bottleneck]:
    """Find readers of a real-time priority on the CPU whose queue they keep from being polled."""
    priority, cpu = case.readings.record.trial.receive.priority, case.polling
    if (case.in_ring or case.held_up) and cpu is not None and case.keeps_from_polling(cpu):
        what = f"the reader's priority, {priority}, keeps the queue's NAPI thread off the CPU"
        sure = CERTAIN if case.in_ring else LIKELY
        yield _bottleneck(case, "shared_cpu", sure, what, cpu)


WORK = (over_polling, firewall, shared_socket, unmerged, remote_node, one_queue, full_cpu)
"""What of a full CPU could be spared."""


def full_receiver(case: Evidence) -> Iterator[Bottleneck]:
    """Find what fills a receiving CPU, other than that of a reader whose buffer was full."""
    if case.stage != "udp_rcvbuf":
        yield from chain.from_iterable(cause(case) for cause in WORK)


# --- what is left --------------------------------------------------------------------------------


def stopped_sender(case: Evidence) -> Iterator[Bottleneck]:
    """Find a sender that stood still now and then, and was on time otherwise."""
    if case.stopped_sender:
        stalls = case.long_stalls
        seconds = sum(stall.until_ns - stall.from_ns for stall in stalls) / SECOND_NS
        what = f"the sender stood still for {seconds:.3f} s in all"
        numbers = {"stalls": len(stalls), "packets": sum(stall.packets for stall in stalls)}
        others = case.interrupted_polling or _meanwhile(case, CHANGES["unsent"])
        sure = LIKELY if others else CERTAIN
        yield _bottleneck(case, "stopped_sender", sure, what, numbers=numbers)


def sender_cpu(case: Evidence) -> Iterator[Bottleneck]:
    """Find a sender that offers no more.

    One that spins between packets fills its CPU in any case: likely if it was late now and then.
    """
    cpu = case.sending
    if case.limited_by_sender and cpu is not None and cpu.full and not case.stopped_sender:
        sure = LIKELY if case.sends_late is False else CERTAIN
        yield _bottleneck(case, "sender_cpu", sure, "", cpu)


def nothing(case: Evidence) -> Iterator[Bottleneck]:
    """Find that all that was offered arrived."""
    if case.valid and case.lossless and case.offered_all and case.behind is None:
        what, remedy = "the receiver keeps up with this load, and may take more", ""
        if case.readings.record.trial.traffic.is_burst:
            # How fast readers empty the buffers afterwards is no rate that they can take.
            what, remedy = "the receive buffers held the whole burst", "longer_burst"
        yield _bottleneck(case, "nothing", CERTAIN, what, remedy=remedy)


def unexplained(case: Evidence) -> Iterator[Bottleneck]:
    """Return that the evidence leaves no cause standing, with what the stage means."""
    what = f"udpbench does not know why; {_meaning(case.stage)}"
    yield _bottleneck(case, UNKNOWN, LIKELY, what, remedy=case.stage)


def power_saving(case: Evidence) -> Iterator[Bottleneck]:
    """Find a clock that follows the load, where a receiving CPU is full or comes late."""
    cpu = case.late
    for facts in case.readings.receiver.facts if cpu and not cpu.sends else ():
        governor = facts.environment.get("governor")
        if governor not in (None, "performance"):
            what = f"the governor of the receiver's CPUs is {governor}"
            test = "settings.receiver.cpu: {governor: performance}"
            yield _bottleneck(case, "governor", TO_BE_TESTED, what, test=test)
            return


CAUSES_OF_A_PLACE: tuple[Callable[[Evidence], Iterator[Bottleneck]], ...] = (
    refused,
    failing_calls,
    changed,
    others_cpu,
    inline,
    sender_queue,
    node_cpu,
    small_backlog,
    short_ring,
    full_node,
    late_reader,
    full_receiver,
    stopped_sender,
    sender_cpu,
)
"""In the order in which they speak of each place at which packets ended."""
CAUSES = (unaccounted, bounded_loss, *CAUSES_OF_A_PLACE, nothing)
"""Rules for a trial as a whole."""
