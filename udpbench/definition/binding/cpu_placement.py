"""The CPUs on which a host's workers and queues run.

Pure; which CPUs exist comes from the hosts' facts.
"""

from __future__ import annotations

from collections.abc import Mapping

from udpbench.cpu_lists import format_cpu_list
from udpbench.definition.endpoints import parse_cpus
from udpbench.errors import UdpbenchError
from udpbench.model.host import Facts
from udpbench.model.lab import Lab, Node
from udpbench.model.record import Finding


class Unavailable(UdpbenchError):
    """These hosts cannot offer what a trial requires; it is skipped for this reason."""


class UnmetNeeds(Unavailable):
    """The trial's ``needs`` rule these hosts out."""


def host_cpus(lab: Lab, host: Node, facts: Mapping[str, Facts]) -> tuple[int, ...]:
    """Return the CPUs that ``cpus: lab`` means on a host, in order; Unavailable if it lacks one.

    Hosts on one machine split its CPUs: receivers, which are measured, take the lower half and the
    middle one; senders take the rest. A single CPU is shared. Hosts of one role split the CPUs of
    their role, and share them if there are more hosts than CPUs.
    """
    present = facts[host.name].cpus if host.name in facts else ()
    if host.cpus is not None:
        require_cpus(host.cpus, present, host)
        return host.cpus
    if not present:
        raise Unavailable(f"{host.name}: its CPUs are unknown")
    if not lab.built_in:
        return present
    half = (len(present) + 1) // 2
    share = present[:half] if host.receives else present[half:]
    return _split(share or present, lab.at(host.part), host)


def _split(cpus: tuple[int, ...], peers: tuple[Node, ...], host: Node) -> tuple[int, ...]:
    k, hosts = [peer.name for peer in peers].index(host.name), len(peers)
    if len(cpus) < hosts:
        return (cpus[k % len(cpus)],)
    return cpus[k * len(cpus) // hosts : (k + 1) * len(cpus) // hosts]


def require_cpus(named: tuple[int, ...], present: tuple[int, ...], host: Node) -> None:
    """Raise Unavailable if a named CPU does not exist on the host."""
    missing = [cpu for cpu in named if cpu not in present]
    if missing:
        known = format_cpu_list(present) or "none"
        lacking = format_cpu_list(missing)
        raise Unavailable(f"{host.name} has no CPU {lacking}; its agent may use {known}")


def listed_cpus(symbol: str, lab: Lab, host: Node, facts: Mapping[str, Facts]) -> tuple[int, ...]:
    """Return the CPUs of a list, or those that ``lab`` means; Unavailable if the host lacks one."""
    if symbol == "lab":
        return host_cpus(lab, host, facts)
    listed = parse_cpus(symbol)
    require_cpus(listed, facts[host.name].cpus, host)
    return listed


def worker_cpus(
    symbol: str, workers: int, lab: Lab, host: Node, facts: Mapping[str, Facts]
) -> tuple[tuple[int | None, ...], tuple[Finding, ...]]:
    """Return the CPU of each worker of a host, None if unpinned, and findings about sharing."""
    if symbol == "any" or workers == 0:
        return (None,) * workers, ()
    listed = listed_cpus(symbol, lab, host, facts)
    chosen = tuple(listed[k % len(listed)] for k in range(workers))
    return chosen, crowded(host, workers, len(listed))


def crowded(host: Node, workers: int, cpus: int) -> tuple[Finding, ...]:
    """Return a finding if workers share CPUs."""
    if workers <= cpus:
        return ()
    finding = Finding(
        "warning",
        "workers share CPUs",
        where=host.name,
        value=f"{workers} workers on {cpus} CPU{'s' if cpus > 1 else ''}",
        limit="one worker per CPU",
        next_step=f"lower {'send' if host.sends else 'receive'}.workers or name CPUs",
    )
    return (finding,)
