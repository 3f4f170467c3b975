"""Which CPUs a host's workers and queues run on.

Pure; what CPUs there are comes from the hosts' facts.
"""

from __future__ import annotations

from collections.abc import Mapping

from udpbench.definition.ranges import parse_cpus
from udpbench.errors import UdpbenchError
from udpbench.model import Facts, Finding, Host, Lab


class Unavailable(UdpbenchError):
    """These hosts cannot offer what a trial asks for; it is skipped, and this is the reason."""


def host_cpus(lab: Lab, host: Host, facts: Mapping[str, Facts]) -> tuple[int, ...]:
    """Return the CPUs that ``cpus: lab`` means on a host, in order; Unavailable if it lacks one.

    Hosts on one machine split its CPUs: receivers the lower half, and the middle one, since they
    are what is measured; senders the rest. With a single CPU both have it. Hosts of one role split
    what their role has, and share it where there are more of them.
    """
    there = facts[host.name].cpus if host.name in facts else ()
    if host.cpus is not None:
        require_cpus(host.cpus, there, host)
        return host.cpus
    if not there:
        raise Unavailable(f"{host.name}: no CPU is known there")
    if not lab.built_in:
        return there
    half = (len(there) + 1) // 2
    share = there[:half] if host.role == "receiver" else there[half:]
    return _split(share or there, lab.receivers if host.role == "receiver" else lab.senders, host)


def _split(cpus: tuple[int, ...], peers: tuple[Host, ...], host: Host) -> tuple[int, ...]:
    k, hosts = [peer.name for peer in peers].index(host.name), len(peers)
    if len(cpus) < hosts:
        return (cpus[k % len(cpus)],)
    return cpus[k * len(cpus) // hosts : (k + 1) * len(cpus) // hosts]


def require_cpus(wanted: tuple[int, ...], there: tuple[int, ...], host: Host) -> None:
    """Raise Unavailable where a CPU that is named is not there."""
    missing = [cpu for cpu in wanted if cpu not in there]
    if missing:
        known = ", ".join(str(cpu) for cpu in there) or "none"
        lacking = ", ".join(str(cpu) for cpu in missing)
        raise Unavailable(f"{host.name} has no CPU {lacking}; its agent may use {known}")


def worker_cpus(
    symbol: str, workers: int, lab: Lab, host: Host, facts: Mapping[str, Facts]
) -> tuple[tuple[int | None, ...], tuple[Finding, ...]]:
    """Return the CPU of each worker of a host, None where unpinned, and what a reader must know."""
    if symbol == "any" or workers == 0:
        return (None,) * workers, ()
    if symbol == "lab":
        listed = host_cpus(lab, host, facts)
    else:
        listed = parse_cpus(symbol)
        require_cpus(listed, facts[host.name].cpus, host)
    chosen = tuple(listed[k % len(listed)] for k in range(workers))
    return chosen, crowded(host, workers, len(listed))


def crowded(host: Host, workers: int, cpus: int) -> tuple[Finding, ...]:
    """Return what a reader must know where workers share CPUs."""
    if workers <= cpus:
        return ()
    finding = Finding(
        "warning",
        "workers share CPUs",
        where=host.name,
        value=f"{workers} workers on {cpus} CPU{'s' if cpus > 1 else ''}",
        limit="one worker per CPU",
        next_step=f"lower {'send' if host.role == 'sender' else 'receive'}.workers or name CPUs",
    )
    return (finding,)
