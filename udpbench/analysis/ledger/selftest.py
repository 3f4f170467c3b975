"""What losing packets on purpose proves of the ledger: from the trials' records to a SelfTest.

Pure. Compares what was lost at each stage with what the ledger says of it, and names every counter
that moved by exactly that number, known to the ledger or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from udpbench.analysis.ledger.ledger import make_ledger
from udpbench.analysis.ledger.stages import STAGES
from udpbench.analysis.readings import NO_PHASE, Readings, readings_of
from udpbench.errors import CANNOT_TELL, NO, YES, CannotTell
from udpbench.model.host import KERNEL_BUILD
from udpbench.model.limits import FORWARDING_STAGES, LEDGER_STAGES, stage_of
from udpbench.model.record import SelfTest, StageProof, TrialRecord
from udpbench.model.result import LedgerEntry

COUNTED_AT = {"fwd_netfilter": "fwd_prerouting"}
"""Stage → the one that has its packets where it is not observable: before Linux 6.8."""
COUNTERS = (
    "conntrack",
    "ethtool",
    "firewall",
    "link",
    "netstat",
    "qdisc",
    "reason",
    "rt_cache",
    "snmp",
    "snmp6",
    "socket",
    "softnet",
    "xfrm",
)
"""Blocks of counters of packets; the others are of time, interrupts and the like."""
REASON = "reason."
SOCKET = re.compile(r"\Asocket\.\d+")
"""By its inode number, which says nothing after the trial."""


def selftest_of(records: Sequence[TrialRecord], tested_at: str, version: str) -> SelfTest:
    """Return what the records of trials with losses prove, by stage and IP version.

    CannotTell if none of them has facts of a host.
    """
    facts = next((host for record in records for host in record.facts.values()), None)
    if facts is None:
        errors = [r.error.message if r.error is not None else r.status for r in records]
        raise CannotTell(f"nothing was tried: {'; '.join(dict.fromkeys(errors)) or 'no trial'}")
    proofs = [proof for record in records for proof in _proofs(record)]
    absent = () if any(record.exits for record in records) else FORWARDING_STAGES
    unprovoked = [stage for stage in STAGES if stage.unprovoked and stage.name not in absent]
    proofs += [StageProof(stage.name, None, None, why=stage.unprovoked) for stage in unprovoked]
    proofs.sort(key=lambda proof: (LEDGER_STAGES.index(proof.stage), proof.family or 0))
    return SelfTest(
        kernel=facts.kernel,
        build=facts.environment.get(KERNEL_BUILD, ""),
        tested_at=tested_at,
        udpbench=version,
        proofs=tuple(proofs),
        unexplained=next(filter(None, map(_unexplained, records)), None),
    )


def _proofs(record: TrialRecord) -> Iterator[StageProof]:
    """Yield what one trial proves of each stage at which it was to lose packets."""
    measured, family = readings_of(record), record.trial.traffic.family
    if record.status != "done" or measured is None:
        why = (record.error or NO_PHASE).message
        failed = record.status != "skipped"
        for stage in record.trial.losses:
            yield StageProof(stage, family, None, why=why, failed=failed)
        return
    ledger = make_ledger(measured)
    # Of several nodes the one that counted most: what another has is unaccounted for in the proof.
    by_packets = sorted(ledger.entries, key=lambda entry: entry.packets or 0)
    entries = {stage_of(entry.stage): entry for entry in by_packets}
    elsewhere = {
        stage: at
        for stage, at in COUNTED_AT.items()
        if stage in record.trial.losses and entries[stage].packets is None
    }
    for stage, packets in record.trial.losses.items():
        if stage in elsewhere:
            why = f"{elsewhere[stage]} has its packets on this kernel"
            yield StageProof(stage, family, None, why=why)
            continue
        others = sum(record.trial.losses[each] for each, at in elsewhere.items() if at == stage)
        yield StageProof(
            stage,
            family,
            packets,
            counted=_counted(entries[stage], packets, others),
            unaccounted=ledger.unaccounted,
            counters=tuple(_moved_by(measured, packets)),
            driver=next(iter(record.facts.values())).driver,
        )


def _counted(entry: LedgerEntry, lost: int, others: int) -> int | None:
    """Return a stage's packets; of an interval the number that is nearest to what was lost.

    ``others`` were lost at stages that are counted with it.
    """
    if entry.packets is None:
        return None
    if entry.at_most is None:
        return entry.packets - others
    return min(max(lost, entry.packets - others), entry.at_most - others)


def _moved_by(readings: Readings, packets: int) -> Iterator[str]:
    """Yield each counter that moved by a number, with its host's part of the path."""
    parts = {host: part for part, hosts in readings.nodes.items() for host in hosts}
    for host, delta in sorted(readings.deltas.items()):
        for name, moved in sorted(delta.values.items()):
            if moved == packets and name.partition(".")[0] in COUNTERS:
                yield f"{parts.get(host, 'machine')} {SOCKET.sub('socket.*', name)}"


def _unexplained(record: TrialRecord) -> str | None:
    """Return why the kernel's reasons were not counted in a trial that asked for them."""
    changes = [change for changes in record.changes.values() for change in changes]
    refusals = [change.refusal for change in changes if change.setting.kind == "explain"]
    return next(filter(None, refusals), None)


def reasons(proof: StageProof) -> tuple[str, ...]:
    """Return the kernel's drop reasons that counted every packet of a proof."""
    names = (counter.partition(" ")[2] for counter in proof.counters)
    return tuple(dict.fromkeys(n.removeprefix(REASON) for n in names if n.startswith(REASON)))


def missing(selftest: SelfTest) -> tuple[StageProof, ...]:
    """Return the stages that should have been tried and were not, since their trials failed."""
    return tuple(proof for proof in selftest.proofs if proof.failed)


def is_complete(selftest: SelfTest) -> bool:
    """Return whether all was tried that could be, and anything could."""
    tried = any(proof.packets is not None for proof in selftest.proofs)
    return tried and not missing(selftest)


def exit_code(selftest: SelfTest) -> int:
    """Return NO if a packet was not counted where it was lost, CANNOT_TELL if a try is missing."""
    if not all(proof.holds for proof in selftest.proofs if proof.packets is not None):
        return NO
    return YES if is_complete(selftest) else CANNOT_TELL


def is_believable(selftest: SelfTest) -> bool:
    """Return whether all was tried that could be, and counted where it was lost."""
    return exit_code(selftest) == YES
