"""What ``doctor`` and ``facts`` read of a lab's hosts; changes nothing, and judges nothing.

Of a built-in lab it reads the machine alone: a run makes the interfaces.
"""

from __future__ import annotations

from dataclasses import replace

from udpbench.control.agent_client import AgentClient
from udpbench.control.lab_lock import Surroundings, Terms, take_lab
from udpbench.control.run import RunOptions, run_name
from udpbench.model.lab import Lab
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Examined
from udpbench.protocol import RecordedTree

QUIET_NS = SECOND_NS
"""Between two snapshots without load: 1 % of it is a tick of /proc/stat."""


def examine(lab: Lab, surroundings: Surroundings | None = None) -> tuple[Examined, ...]:
    """Return what was read of each host.

    Raises ConnectError or HelloRefused where a host does not answer or a run uses it.
    """
    around = surroundings or Surroundings()
    terms = Terms("none", looks=True)
    with take_lab([lab], run_name(), RunOptions.lease_ns, around, terms) as (_, agents):
        machine = () if agents.machine is None else (agents.machine,)
        clients = machine if lab.built_in else agents.hosts
        read = [_described(client, around) for client in clients]
        before = [client.snapshot() for client in clients]
        around.clock.sleep_ns(QUIET_NS)
        after = [client.snapshot() for client in clients]
    return tuple(
        replace(examined, before=first, after=second)
        for examined, first, second in zip(read, before, after, strict=True)
    )


def record_hosts(lab: Lab, surroundings: Surroundings | None = None) -> dict[str, RecordedTree]:
    """Return what each host answers about itself, by its place in the lab; raises as ``examine``.

    Names of hosts are left out, as all that a tree would tell of a user.
    """
    around = surroundings or Surroundings()
    with take_lab([lab], run_name(), RunOptions.lease_ns, around, Terms("none", looks=True)) as (
        _,
        agents,
    ):
        clients = [agents.machine] if lab.built_in and agents.machine else agents.hosts
        return {f"{client.part}{place}": client.record() for place, client in enumerate(clients)}


def _described(client: AgentClient, around: Surroundings) -> Examined:
    client.learn_clock()
    clock = client.clock(around.clock.now_ns())
    inspection = client.inspect()
    ahead_ns = inspection.wall_ns - inspection.clock_ns + clock.offset_ns
    return Examined(
        facts=client.facts(),
        inspection=inspection,
        wall_offset_ns=ahead_ns,
        wall_bound_ns=clock.bound_ns,
    )
