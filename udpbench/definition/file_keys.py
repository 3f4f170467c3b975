"""Keys that no type of ``model`` has: those of hosts, and of the two files themselves.

Declarations only, read by ``file_schema`` like the dataclasses of ``model``: a key is the field's
name without its unit; a field whose default is None may be left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from udpbench.host_settings import Settings
from udpbench.model.experiment import CompareSpec, Needs, Receive, Search, Send, Traffic
from udpbench.model.lab import Connect, Reserve
from udpbench.model.limits import DAY_NS, SECOND_NS, Part
from udpbench.units import Count, Named, Nanoseconds

__all__ = ["ExperimentFile", "HostFile", "LabFile", "WholeKeys"]

RENAMED = {"faults": "losses"}
"""Former name of a key → its current name."""
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "search": {
        "rfc2544": {
            "loss": "0%",
            "exceed": "0%",
            "trial": "60s",
            "time": "60s",
            "within": "1h",
        },
        "csit": {
            "loss": ["0%", "0.5%"],
            "precision": "0.5%",
            "time": "21s",
            "within": "20min",
        },
        "quick": {
            "loss": "0.1%",
            "precision": "2%",
            "trial": "500ms",
            "time": "2500ms",
            "within": "2min",
        },
    }
}
"""Key of a map → word that may replace the map → the keys that the word means."""
MAPS = {
    "traffic": "{size: 64B, rate: 40kpps}",
    "flows": "{from: 65400-65403}",
    "send": "{batch: 64}",
    "receive": "{workers: 2}",
    "settings": "{receiver: {mtu: 9000}}",
    "sweep": "{receive.workers: [1, 2, 4]}",
    "variants": "{narrow: {receive.workers: 1}, wide: {receive.workers: 4}}",
    "needs": "{receiver: {cpus: 2}}",
    "losses": "{udp_rcvbuf: 100}",
}
"""Key → an example of the map that is expected there."""
FIRST_PORT, FLOWS_SHOWN = 20000, 1024
"""Source ports in an example with as many flows as a user names: the first, and how many."""
DURATION_NS = 5 * SECOND_NS
DURATION_WITH_COUNT_NS = 60 * SECOND_NS


@dataclass(frozen=True)
class RoleSettings:
    """Settings by role."""

    sender: Settings = field(default_factory=Settings)
    receiver: Settings = field(default_factory=Settings)
    middle: Settings = field(default_factory=Settings)


@dataclass(frozen=True, kw_only=True)
class WholeKeys:
    """The keys that apply to all points of an experiment at once."""

    sweep: dict[str, list[Any]] | None = None
    variants: dict[str, dict[str, Any]] | None = None
    expect: list[Annotated[str, Named("expectation")]] = field(default_factory=list)
    compare: list[CompareSpec] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ExperimentFile(WholeKeys):
    """What to measure: one question."""

    question: str
    source: str | None = None
    extends: str | None = None
    needs: Needs = field(default_factory=Needs)
    traffic: Traffic = field(default_factory=Traffic)
    send: Send = field(default_factory=Send)
    receive: Receive = field(default_factory=Receive)
    settings: RoleSettings = field(default_factory=RoleSettings)
    losses: dict[Annotated[str, Named("stage")], Annotated[int, Count(1, 10**9)]] = field(
        default_factory=dict
    )
    search: Search | None = None
    duration_ns: Annotated[int, Nanoseconds(10**8, DAY_NS)] | None = None
    warmup_ns: Literal["auto"] | Annotated[int, Nanoseconds(0, 3600 * SECOND_NS)] = SECOND_NS
    repetitions: Annotated[int, Count(1, 10000)] = 7
    path_check: Literal["arrive", "explained"] = "arrive"
    explain: bool = False
    fresh: bool = False
    cpu_time: bool = False


@dataclass(frozen=True)
class HostFile:
    """One host of a lab."""

    connect: Annotated[Connect, Named("connect")]
    interface: str
    addresses: Literal["existing"] | list[Annotated[str, Named("address")]]
    name: str | None = None
    cpus: Annotated[tuple[int, ...], Named("cpu_tuple")] | None = None
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True)
class NodeFile:
    """A host in the middle, which forwards from one interface to the other."""

    name: str
    connect: Annotated[Connect, Named("connect")]
    interfaces: Annotated[tuple[str, str], Named("interfaces")]
    addresses: (
        Annotated[tuple[tuple[str, ...], tuple[str, ...]], Named("node_addresses")] | None
    ) = None
    change: bool = False
    cpus: Annotated[tuple[int, ...], Named("cpu_tuple")] | None = None
    settings: Settings = field(default_factory=Settings)
    bridge: Annotated[str, Named("interface")] | None = None
    bridged: Literal["in", "out"] = "in"
    tunnel: Annotated[str, Named("interface")] | None = None


@dataclass(frozen=True)
class LabFile:
    """Where to measure: the hosts by role."""

    sender: list[HostFile]
    receiver: list[HostFile]
    settings: RoleSettings = field(default_factory=RoleSettings)
    reserve: Reserve | None = None
    middle: list[NodeFile] = field(default_factory=list)

    @property
    def ends(self) -> dict[Part, list[HostFile]]:
        """The hosts with workers by their part of the path."""
        return {"sender": self.sender, "receiver": self.receiver}
