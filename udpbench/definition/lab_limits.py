"""Contradictions between an experiment and the lab file, found before any host is contacted.

Every rule is a generator over one point and the lab; ``bind`` checks what depends on the hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from udpbench.cpu_lists import format_cpu_list
from udpbench.definition import overrides, yaml_reader
from udpbench.definition.binding.bind import flow_count
from udpbench.definition.binding.host_block import DEFAULT_MTU_BYTES, block_of
from udpbench.definition.endpoints import parse_cpus, parse_ports, parse_to
from udpbench.definition.problems import Place, Tree
from udpbench.definition.shipped import shown_as
from udpbench.definition.values import CPU_RELATIONS
from udpbench.errors import InputError, Problem
from udpbench.model.experiment import Experiment, Trial
from udpbench.model.lab import Lab
from udpbench.units import plural
from udpbench.ways import way_to_receive

FEW_POINTS = 3
SOURCES_EACH = 8
"""Source ports for each socket of a group in an example: a hash spreads few flows unevenly."""
SYMBOLS = ("lab", "any", *CPU_RELATIONS)


def beyond_lab(experiment: Experiment, lab: Lab) -> Iterator[Problem]:
    """Yield everything in the points of an experiment that the lab file contradicts.

    Points that will be skipped for their ``needs`` are left out.
    """
    name = shown_as(Path(experiment.path))
    if next(_contradictions(experiment, lab, name, {}), None) is not None:
        yield from _contradictions(experiment, lab, name, _trees(experiment, name))


def _contradictions(
    experiment: Experiment, lab: Lab, name: str, trees: Mapping[str, Tree]
) -> Iterator[Problem]:
    """Yield all problems, with line numbers of those points of which there are trees."""
    nowhere = Tree({}, Place(name))
    for trial in experiment.points:
        if trial.needs.lab not in (None, lab.built_in) or _needs_more_cpus(trial, lab):
            continue
        for rule in (_addresses, _cpus, _size, _attached):
            yield from rule(trees.get(trial.point, nowhere), trial, lab)


def idle_readers(experiments: Iterable[Experiment], lab: Lab) -> Iterator[str]:
    """Yield the points with more sockets of a group than flows, each of which reaches one socket.

    The kernel's hash covers source addresses and ports, and the port of the group (udp(7)).
    """
    points: dict[tuple[str, str], list[str]] = {}
    for experiment in experiments:
        for trial in experiment.points:
            text = _idle(trial, len(lab.senders))
            if text:
                points.setdefault((experiment.name, text), []).append(trial.point)
    for (name, text), named in points.items():
        few = ", ".join(named[:FEW_POINTS])
        few += f" and {len(named) - FEW_POINTS} more" if len(named) > FEW_POINTS else ""
        yield f"{name}{f'[{few}]' if few else ''}: {text}"


def _idle(trial: Trial, senders: int) -> str:
    """Return how many readers of a point cannot get a packet; empty if all may."""
    receive, flows = trial.receive, trial.traffic.flows
    if receive.sockets == "shared" or way_to_receive(receive).takes != "sockets":
        return ""
    sources, ports = len(parse_ports(flows.source_ports)), len(parse_to(flows.to).ports)
    most = senders * (sources * ports if receive.sockets == "reuseport" else flow_count(trial))
    if most >= receive.workers:
        return ""
    what = f"{plural(most, 'flow')} cannot fill {receive.workers} {receive.sockets} workers"
    wide = min(SOURCES_EACH * receive.workers, 65535)
    first = min(int(flows.source_ports.partition("-")[0]), 65536 - wide)
    return (
        f"{what}: {receive.workers - most} will read nothing; widen traffic.flows.from, "
        f"for example to {first}-{first + wide - 1}"
    )


def _trees(experiment: Experiment, name: str) -> dict[str, Tree]:
    """Return point → its tree, with line numbers if the file alone defines it."""
    tree = yaml_reader.survey(experiment.text, name)[0]
    try:
        in_file = yaml_reader.read_text(Path(experiment.path), name) == experiment.text
    except InputError:
        in_file = False
    # With extends or --set, line numbers of the text match no file.
    tree = tree if in_file else Tree(tree.data, Place(name))
    return {point.name: point.tree for point in overrides.points(tree)[0]}


def _needs_more_cpus(trial: Trial, lab: Lab) -> bool:
    return any(
        host.cpus is not None and (getattr(trial.needs, host.part).cpus or 0) > len(host.cpus)
        for host in lab.ends
    )


def _attached(tree: Tree, trial: Trial, lab: Lab) -> Iterator[Problem]:
    if trial.receive.attach is not None and lab.built_in:
        what = f"lab {lab.name} is created for the run: no process runs in it before"
        limit = "a process of another machine"
        step = (
            "watch it with udpbench watch; to load it from another machine, name a lab with --lab"
        )
        yield tree.problem(("receive", "attach"), what, limit, step)


def _addresses(tree: Tree, trial: Trial, lab: Lab) -> Iterator[Problem]:
    """Yield addresses that a receiver lacks; ``bind`` checks labs without that family."""
    last, family = parse_to(trial.traffic.flows.to).members[-1], trial.traffic.family
    for host in lab.receivers:
        own = [text for text in host.addresses if (":" in text) == (family == 6)]
        if 0 < len(own) < last:
            what = f"{host.name} of lab {lab.name} has no IPv{family} address {last}"
            step = "use fewer, or add addresses to the lab"
            yield tree.problem(("traffic", "flows", "to"), what, f"1 to {len(own)}", step)


def _cpus(tree: Tree, trial: Trial, lab: Lab) -> Iterator[Problem]:
    for host in lab.ends:
        key, block = ("send", trial.send) if host.sends else ("receive", trial.receive)
        if host.cpus is None or block.cpus in SYMBOLS:
            continue
        lacking = [str(cpu) for cpu in parse_cpus(block.cpus) if cpu not in host.cpus]
        if lacking:
            what = f"{host.name} of lab {lab.name} has no CPU {', '.join(lacking)}"
            limit = f"CPU {format_cpu_list(host.cpus)}"
            yield tree.problem((key, "cpus"), what, limit, "name those, or lab")


def _size(tree: Tree, trial: Trial, lab: Lab) -> Iterator[Problem]:
    """Yield datagrams larger than the MTU that lab or experiment set, or a built-in lab has."""
    if trial.traffic.protocol != "udp" or trial.traffic.fragment:
        return
    longest, needed = trial.traffic.datagrams.longest_bytes, trial.traffic.longest_packet_bytes
    for host in lab.hosts:
        mtu = block_of(lab, trial, host).mtu_bytes
        if mtu is None and lab.built_in:
            mtu = DEFAULT_MTU_BYTES
        if mtu is not None and needed > mtu:
            what = f"a datagram of {longest}B needs an MTU of {needed}"
            limit = f"at most {mtu}, the MTU of {host.interface} of {host.name} in lab {lab.name}"
            step = f"raise settings.{host.part}.mtu, or set fragment"
            yield tree.problem(("traffic", "size"), what, limit, step)
