"""What a trial requires of its lab and of the hosts' kernels; checked before anything is set.

Pure: an agent has tried each one (agent/host/capabilities.py); one that it could not try counts as
present.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from udpbench.definition.binding.cpu_placement import Unavailable, UnmetNeeds
from udpbench.definition.binding.host_block import block_of
from udpbench.definition.losses import PROGRAMS
from udpbench.host_settings import VethPair
from udpbench.model.experiment import Trial
from udpbench.model.lab import Lab
from udpbench.model.limits import Role
from udpbench.ways import WAITS, WAYS, Wait, Way, wait_of, ways_of


@dataclass(frozen=True)
class Requirement:
    """Something a trial may need and a kernel may lack."""

    role: Role
    needed: Callable[[Trial], bool]
    key: str
    what: str
    since: str
    capability: str = ""
    """What the kernel has or lacks, if several parts of a trial need the same."""


def _goes(way: Way, trial: Trial) -> bool:
    return way in ways_of(trial)


def _insists(key: str, attribute: str, trial: Trial) -> bool:
    """Return whether a key of the receiver's settings is there, and a refusal of it an error."""
    block = trial.settings.get("receiver")
    return (
        block is not None
        and getattr(block, attribute) is not None
        and not any(f"{name}.".startswith(f"{key}.") for name in block.optional or ())
    )


def _waits(wait: Wait, trial: Trial) -> bool:
    return wait == wait_of(trial.receive)


REQUIREMENTS: Mapping[str, Requirement] = {
    "udp_gso": Requirement(
        "sender",
        lambda trial: trial.send.gso != "off",
        "send.gso",
        "segmentation of UDP messages (UDP_SEGMENT)",
        "available since Linux 4.18",
    ),
    "udp_zerocopy": Requirement(
        "sender",
        lambda trial: trial.send.zerocopy,
        "send.zerocopy",
        "zero copy for UDP (SO_ZEROCOPY)",
        "available since Linux 5.0",
    ),
    **{
        way.need.capability: Requirement(
            way.role, partial(_goes, way), way.key, way.need.what, way.need.since
        )
        for way in WAYS
        if way.need is not None
    },
    "napi_threads": Requirement(
        "receiver",
        lambda trial: _link(trial).receive == "napi",
        "settings.receiver.link.receive: napi",
        "NAPI threads that can be told apart",
        "available since Linux 5.17; use rps",
    ),
    "rps": Requirement(
        "receiver",
        lambda trial: _link(trial).receive == "rps",
        "settings.receiver.link.receive: rps",
        "RPS",
        "it is built for one CPU (CONFIG_RPS); use inline",
    ),
    **{
        f"{key} of queues": Requirement(
            "receiver",
            partial(_insists, key, attribute),
            f"settings.receiver.{key}",
            "RPS",
            f"it is built for one CPU (CONFIG_RPS); omit it, or add it to optional: [{key}]",
            "rps",
        )
        for key, attribute in (("rps", "rps"), ("rfs", "rfs_flows"))
    },
    "udp_gro": Requirement(
        "receiver",
        lambda trial: trial.receive.gro,
        "receive.gro",
        "merged datagrams (UDP_GRO)",
        "available since Linux 5.0",
    ),
    "reuseport_cbpf": Requirement(
        "receiver",
        lambda trial: trial.receive.sockets == "reuseport-cpu",
        "receive.sockets: reuseport-cpu",
        "programs that choose a socket (SO_ATTACH_REUSEPORT_CBPF)",
        "available since Linux 4.5",
    ),
    "reuseport_ebpf": Requirement(
        "receiver",
        lambda trial: trial.receive.sockets == "reuseport-ebpf",
        "receive.sockets: reuseport-ebpf",
        "array of sockets for this user (BPF_MAP_TYPE_REUSEPORT_SOCKARRAY)",
        "available since Linux 4.19; it needs root, or CAP_BPF and CAP_SYS_ADMIN",
    ),
    "incoming_cpu": Requirement(
        "receiver",
        lambda trial: trial.receive.sockets == "incoming-cpu",
        "receive.sockets: incoming-cpu",
        "choice of UDP sockets by SO_INCOMING_CPU",
        "available since Linux 6.2",
    ),
    **{
        wait.need.capability: Requirement(
            *("receiver", partial(_waits, wait), f"receive.wait: {wait.name}"),
            *(wait.need.what, wait.need.since),
        )
        for wait in WAITS
        if wait.need is not None
    },
    "bpf": Requirement(
        "receiver",
        lambda trial: bool(set(PROGRAMS) & set(trial.losses)),
        f"losses: {', '.join(PROGRAMS)}",
        "BPF program for this user (bpf(2))",
        "available since Linux 4.8; it needs root or CAP_BPF; run as root",
    ),
}
"""Capability, or what is chosen that needs it → what requires it."""


def _link(trial: Trial) -> VethPair:
    block = trial.settings.get("receiver")
    return (block.link if block is not None else None) or VethPair()


def require_kernels(trial: Trial, lab: Lab, capabilities: Mapping[str, Mapping[str, bool]]) -> None:
    """Raise Unavailable with everything that the hosts' kernels lack; ``capabilities`` are by host.

    Raises UnmetNeeds if the trial is for another kind of lab.
    """
    other_lab = list(unmet_lab(trial, lab))
    if other_lab:
        raise UnmetNeeds("; ".join(other_lab))
    missing = list(lacking(trial, lab, capabilities))
    if missing:
        raise Unavailable("; ".join(missing))


def unmet_lab(trial: Trial, lab: Lab) -> Iterator[str]:
    """Yield why a trial is not for this kind of lab."""
    if trial.needs.lab is not None and trial.needs.lab != lab.built_in:
        kind = "a built-in lab" if trial.needs.lab else "real hosts, not a built-in lab"
        yield f"needs {kind}; --lab is {lab.name}"
    if "middle" in trial.settings:
        fixed = [node.name for node in lab.middle if not node.change]
        if not lab.middle:
            yield f"settings.middle: lab {lab.name} has no node in the middle; try --lab router"
        if fixed:
            yield f"settings.middle: {', '.join(fixed)} of lab {lab.name} is read only"


def lacking(
    trial: Trial, lab: Lab, capabilities: Mapping[str, Mapping[str, bool]]
) -> Iterator[str]:
    """Yield what the hosts' kernels lack for a trial; ``capabilities`` are by host."""
    missing = {
        name for host in lab.hosts for name, able in capabilities[host.name].items() if not able
    }
    concerned = {n: r for n, r in REQUIREMENTS.items() if (r.capability or n) in missing}
    if not concerned:
        return
    blocks = {host.part: block_of(lab, trial, host) for host in lab.hosts}
    merged = replace(trial, settings=blocks)
    required = {
        name: requirement
        for name, requirement in concerned.items()
        if requirement.needed(merged)
        and (requirement.role == "sender" or trial.receive.workers > 0)
    }
    for host in lab.hosts:
        known = capabilities[host.name]
        for name, requirement in required.items():
            lacks = known.get(requirement.capability or name) is False
            if requirement.role == host.part and lacks:
                lack = f"this kernel has no {requirement.what}; {requirement.since}"
                yield f"{host.name}: {requirement.key}: {lack}"
