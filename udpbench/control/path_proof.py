"""The proof that packets end at the lab's receivers, hop by hop over the nodes in the middle.

Each node tells what it would do with packets of the traffic now; the proof follows them from the
senders on, and refuses whatever it cannot follow. Afterwards ``PathWatch`` asks every node whether
anything was changed.

Long, because routes, bridges, tunnels, rewritten packets and replies are followed by the same walk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from udpbench.control.agent_client import AgentClient
from udpbench.control.agents import Agents
from udpbench.errors import SafetyError
from udpbench.model.host import Facts
from udpbench.model.lab import Lab, Node
from udpbench.model.limits import Part
from udpbench.model.work import WorkerSpec, replies
from udpbench.protocol import EVERY_PORT, Hop, Passage

Pair = tuple[str, str]
Sent = tuple[dict[str, set[Pair]], tuple[int, ...], str]
"""What each host sends, to which ports of all, and how."""
Wire = tuple[int, int] | None
"""Index of an end of a veth pair and that of the other; None: it is none."""
SHOWN = 8
"""Problems that a message lists; there may be one for each flow."""
WATCHED = (
    *("routes", "redirects", "addresses", "neighbours", "links", "filters", "programs"),
    *("policies", "firewall", "unknown"),
)
"""What decides where packets go, as ``changed.*`` counts it; unknown: notifications were lost."""


NOTHING = "nothing"
"""How much was sent, before the first proof."""
ENDING = ("none", "blackhole", "unreachable", "prohibit")
"""Kinds of route at which packets end: they leave by no interface, and the ledger counts them."""


@dataclass(frozen=True)
class Stop:
    """A node of the path, as its neighbours must know it."""

    name: str
    addresses: frozenset[str]
    """Addresses of the interface by which packets come in, without the prefix length."""
    mac: str | None


def prove_path(
    lab: Lab,
    agents: Agents,
    facts: Mapping[str, Facts],
    workers: Iterable[WorkerSpec],
    how_much: str = NOTHING,
) -> bool:
    """Prove for every flow that each node would hand it to the next, and the last to a receiver.

    Return whether veth pairs alone join them. Raises SafetyError with every problem, which says
    how much was sent.
    """
    left: dict[str, Sequence[Pair]] = {}
    wired = _prove(lab, agents, facts, _sent(workers), how_much, left)
    back = replies(workers)
    if back:
        _prove(_turned(lab), agents, facts, _sent(back), how_much, {}, left)
    return wired


def _prove(
    lab: Lab,
    agents: Agents,
    facts: Mapping[str, Facts],
    sent_by: Sent,
    how_much: str,
    left: dict[str, Sequence[Pair]],
    came: Mapping[str, Sequence[Pair]] | None = None,
) -> bool:
    """Prove one direction, and note with which pairs packets may have ``left`` each node.

    Of replies, which go back, with which those that they reply to ``came``.
    """
    flows, ports, protocol = sent_by
    back = came is not None
    senders, takers = agents.senders, agents.receivers
    if back:
        senders, takers = takers, senders
    receivers = [
        Stop(host.name, facts[host.name].destinations, facts[host.name].mac)
        for host in lab.receivers
    ]
    returning = {name: [(to, source) for source, to in own] for name, own in (came or {}).items()}
    came_last = returning[lab.outside[0].name] if back else []
    pairs = sorted({pair for own in flows.values() for pair in own})
    published = _published(lab, facts, pairs, receivers)
    begins: list[Way] = []
    for client in senders:
        own = {pair for pair in came_last if pair[0] in facts[client.name].destinations}
        sent = sorted({*flows.get(client.name, ()), *own})
        passage = client.passage("", client.interface, sent, ports, protocol)
        begins.append((client.name, client.interface, passage))
        pairs = sorted({*pairs, *_after(sent, passage)})
    clients = {client.name: client for client in agents.middle}
    problems: list[str] = []
    if back:
        pairs = []  # each node has its own
    ways = _follow(
        *(lab, clients, lab.outside, begins, receivers, pairs, ports, problems),
        *(left, returning, protocol, {} if back else published),
    )
    if how_much != NOTHING:  # what was sent has made known where the next ones are
        problems += [f"{way[0]}: {why}" for way in (*begins, *ways) for why in _flooded(way[2])]
    wires = {name: (passage.pair, passage.out_pair) for name, _, passage in ways}
    inner = {name: passage for name, _, passage in ways}
    for first, between, last in lab.tunnels:
        problems += _through(lab, clients, first, between, last, inner[first.name], wires)
    if problems:
        listed = list(dict.fromkeys(problems))
        more = f"; and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
        what = "replies" if back else "packets"
        raise SafetyError(
            f"{how_much} was sent, as {what} might leave the lab: "
            f"{'; '.join(listed[:SHOWN])}{more}; "
            "every hop must lead to the next node of the lab: see docs/path.md",
            lab.name,
        )
    ends = [client.passage(client.interface, client.interface, (), ()) for client in takers]
    return len({facts[name].boot_id for name in facts}) == 1 and _is_wired(
        [passage.out_pair for _, _, passage in begins],
        [wires[node.name] for node in lab.middle],
        [passage.pair for passage in ends],
    )


def _turned(lab: Lab) -> Lab:
    """Return a lab as packets that go back see it, whose receivers send."""
    parts: dict[Part, Part] = {"sender": "receiver", "receiver": "sender"}
    hosts = []
    for host in reversed(lab.hosts):
        if host.part in parts:
            hosts.append(replace(host, part=parts[host.part]))
        elif host.bridges:
            hosts.append(replace(host, interface=host.out, out=host.interface))
        else:
            whole = replace(host, interface=host.out, out=host.entry, bridge="", bridged="in")
            hosts.append(whole)
    return replace(lab, hosts=tuple(hosts))


Way = tuple[str, str, Passage]
"""A node's name, the interface by which packets leave it, and what it says of them."""


def _follow(
    lab: Lab,
    clients: Mapping[str, AgentClient],
    nodes: Sequence[Node],
    begins: Sequence[Way],
    ends: Sequence[Stop],
    pairs: Sequence[Pair],
    ports: Sequence[int],
    problems: list[str],
    left: dict[str, Sequence[Pair]],
    returning: Mapping[str, Sequence[Pair]],
    protocol: str = "udp",
    published: Mapping[str, Collection[str]] | None = None,
) -> list[Way]:
    """Return what nodes say that follow each other; append why one would not hand on packets.

    ``published``: addresses of each node's own to which packets are sent, for its rules to rewrite.
    """
    ways: list[Way] = []
    for node in nodes:
        inner = node.bridges or node.tunnel
        comes, leaves = lab.ports(node) if inner else (node.interface, node.exit)
        asked = sorted({*pairs, *returning.get(node.name, ())})
        client, own = clients[node.name], (published or {}).get(node.name, ())
        passage = client.passage(comes, leaves, asked, ports, protocol)
        rewritten = _rewritten(asked, passage)
        if rewritten:
            # They are routed as what rules make of them.
            more = client.passage(comes, leaves, rewritten, (*ports, *passage.ports), protocol)
            passage = _with(passage, more)
        problems += _elsewhere(node.name, passage, ends)
        problems += _misread(node, passage)
        problems += _kept_here(node.name, passage, own)
        ports = tuple(dict.fromkeys([*ports, *passage.ports]))
        left[node.name] = pairs = [pair for pair in _after(asked, passage) if pair[1] not in own]
        passage = replace(passage, hops=tuple(h for h in passage.hops if not _stays(h, own)))
        if returning:
            # What comes back to an address that a node gave is given its own before it is routed.
            passage = replace(passage, hops=tuple(h for h in passage.hops if h.kind != "local"))
            pairs = [pair for pair in pairs if pair not in asked]
        if node.bridged == "out":  # its pair is that of the bridge's only port
            passage = replace(passage, out_pair=client.passage("", node.out, (), ()).out_pair)
        ways.append((node.name, leaves, passage))
    routing = [way for way in ways if not _forwards_frames(way[2])]
    stops = [Stop(name, _bare(passage.addresses), passage.mac) for name, _, passage in routing]
    for way in begins:
        problems += _strays(way, stops[:1] or ends, by_tunnel=False)
    for n, way in enumerate(routing):
        by_tunnel = way[2].tunnel is not None
        problems += _strays(way, stops[n + 1 : n + 2] or ends, by_tunnel=by_tunnel)
    return ways


def _through(
    lab: Lab,
    clients: Mapping[str, AgentClient],
    first: Node,
    between: Sequence[Node],
    last: Node,
    inner: Passage,
    wires: dict[str, tuple[Wire, Wire]],
) -> list[str]:
    """Return why outer packets would not get from one end of a tunnel to the other.

    With the wires of both ends and of what is between them.
    """
    problems: list[str] = []
    tunnel = inner.tunnel
    if tunnel is None or tunnel.local is None or tunnel.remote is None:
        kind = "VXLAN" if first.bridge else "WireGuard"
        step = f"without {first.name} and {last.name} in the lab file what is between is link"
        return [f"{first.name}: {first.tunnel} is no {kind} interface with both ends; {step}"]
    pairs, ports = [(tunnel.local, tunnel.remote)], (tunnel.port,)
    begins = clients[first.name].passage("", first.out, pairs, ports)
    ends = clients[last.name].passage(last.interface, last.interface, pairs, ports)
    stop = Stop(last.name, _bare(ends.addresses), ends.mac)
    for node, passage in ((first, begins), (last, ends)):
        problems += _elsewhere(node.name, passage, [stop])
    if begins.tunnel is not None or begins.outer:
        problems.append(f"{first.name}: {first.out}, another tunnel, may lead packets elsewhere")
    if not first.bridge:
        taken = clients[last.name].passage("", last.tunnel, (), ()).tunnel
        if taken is None or taken.listens != tunnel.port:
            what = f"{last.tunnel} does not listen on port {tunnel.port}"
            problems.append(f"{last.name}: {what}, to which {first.tunnel} of {first.name} sends")
    way = (first.name, first.out, begins)
    ways = _follow(lab, clients, between, [way], [stop], pairs, ports, problems, {}, {})
    problems += [
        f"{last.name}: {tunnel.remote}, where the tunnel of {first.name} ends, is {hop.kind} there"
        for hop in ends.hops
        if hop.kind != "local"
    ]
    wires |= {name: (passage.pair, passage.out_pair) for name, _, passage in ways}
    wires[first.name] = wires[first.name][0], begins.out_pair
    wires[last.name] = ends.pair, wires[last.name][1]
    return problems


def _sent(workers: Iterable[WorkerSpec]) -> Sent:
    """Return what each host sends, as sources and destinations, to which ports, and how."""
    senders = [spec for spec in workers if spec.role == "sender"]
    flows: dict[str, set[Pair]] = {}
    for spec in senders:
        own = flows.setdefault(spec.host, set())
        own |= {(flow.source, flow.destination) for flow in spec.flows}
    ports = tuple(sorted({flow.destination_port for spec in senders for flow in spec.flows}))
    return flows, ports, next((spec.traffic.protocol for spec in senders), "udp")


def _published(
    lab: Lab, facts: Mapping[str, Facts], pairs: Iterable[Pair], receivers: Iterable[Stop]
) -> dict[str, frozenset[str]]:
    """Return which addresses of each node's own, and of no receiver's, packets are sent to."""
    ends = {address for stop in receivers for address in stop.addresses}
    sent = {to for _, to in pairs} - ends
    nodes = lab.middle if sent else ()
    return {node.name: facts[node.name].destinations & sent for node in nodes}


def _stays(hop: Hop, own: Collection[str]) -> bool:
    """Return whether packets for a node's own address end there unless a rule rewrites them."""
    return hop.kind == "local" and hop.destination in own


def _kept_here(name: str, passage: Passage, own: Collection[str]) -> list[str]:
    """Return why what is sent to a node's own address may get to nobody, or to a program there."""
    staying = sorted({hop.destination for hop in passage.hops if _stays(hop, own)})
    if staying and not passage.rewrites:
        return [f"{name}: no rule rewrites packets to its own address {', '.join(staying)} (DNAT)"]
    listens = ", ".join(map(str, passage.listens)) if staying else ""
    step = "stop it; docker's proxy is off with userland-proxy: false"
    why = "would get what rules leave"
    return [f"{name}: a program that listens at port {listens} {why}: {step}"] if listens else []


def _rewritten(pairs: Collection[Pair], passage: Passage) -> list[Pair]:
    """Return sources and destinations with which packets are routed that a rule has rewritten."""
    rewritten = {
        (source, to)
        for source, _ in pairs
        for to in passage.rewrites
        if (":" in source) == (":" in to)
    }
    return sorted(rewritten - {*pairs})


def _with(passage: Passage, more: Passage) -> Passage:
    """Return a passage with what is true of other packets as well."""
    hops = {(hop.source, hop.destination): hop for hop in (*more.hops, *passage.hops)}

    def both(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*first, *second]))

    return replace(
        passage,
        hops=tuple(hops.values()),
        rewrites=both(passage.rewrites, more.rewrites),
        sources=both(passage.sources, more.sources),
        unread=both(passage.unread, more.unread),
        stations=tuple(dict.fromkeys([*passage.stations, *more.stations])),
        ports=tuple({*passage.ports, *more.ports}),
    )


def _forwards_frames(passage: Passage) -> bool:
    """Return whether both interfaces of a node are ports of a bridge."""
    return len(passage.bridge) == len(("bridge", "in", "out"))


def _misread(node: Node, passage: Passage) -> list[str]:
    """Return what the lab file says of a node's bridge and tunnel, if that is not so."""
    there = passage.bridge[0] if _forwards_frames(passage) else ""
    tunnel = passage.tunnel.name if passage.tunnel is not None else ""
    problems = []
    if tunnel not in ("", node.tunnel):
        what = "another tunnel" if node.tunnel else "a tunnel"
        problems.append(f"{node.name}: {tunnel}, {what}, may lead packets elsewhere")
    if node.bridges and not there:
        what = "its interfaces are not both ports"
        step = f"where it routes, leave bridge out, and write {node.bridge} in interfaces"
        problems.append(f"{node.name}: {what} of {node.bridge} (bridge); {step}")
    elif there and there != (node.bridge if node.bridges else ""):
        what = f"its interfaces are ports of {there}"
        problems.append(f"{node.name}: {what}; write bridge: {there} in the lab file")
    return problems


def _is_wired(
    begins: Sequence[Wire], between: Sequence[tuple[Wire, Wire]], ends: Sequence[Wire]
) -> bool:
    """Return whether each two neighbours have the two ends of a veth pair."""
    if len(begins) > 1 or len(ends) > 1:
        return False
    leaving = [*begins, *(out for _, out in between)]
    coming = [*(come for come, _ in between), *ends]
    return all(
        left is not None and right is not None and left == right[::-1]
        for left, right in zip(leaving, coming, strict=True)
    )


def _after(pairs: Sequence[Pair], passage: Passage) -> list[Pair]:
    """Return the sources and destinations with which packets may leave a node."""
    sources = {*(source for source, _ in pairs), *passage.sources}
    destinations = {*(to for _, to in pairs), *passage.rewrites}
    rewritten = {
        (source, to)
        for source in sources
        for to in destinations
        if (":" in source) == (":" in to)
        and not {source, to}.isdisjoint({*passage.sources, *passage.rewrites})
    }
    return sorted({*pairs, *rewritten})


def _bare(addresses: Sequence[str]) -> frozenset[str]:
    return frozenset(address.partition("/")[0] for address in addresses)


def _elsewhere(name: str, passage: Passage, receivers: Sequence[Stop]) -> list[str]:
    """Return what a node's rules and programs may do, other than routing to the receivers."""
    known = frozenset(address for stop in receivers for address in stop.addresses)
    names = " or ".join(stop.name for stop in receivers)
    problems = [f"{name}: {what} may lead packets elsewhere" for what in passage.unread]
    return problems + [
        f"{name}: a rule may send packets to {address}, no address of {names}"
        for address in passage.rewrites
        if address not in known
    ]


def _strays(way: Way, following: Sequence[Stop], by_tunnel: bool) -> list[str]:
    """Return why a node would not hand packets to one of those that follow on the path."""
    name, out, passage = way
    return [
        f"{name}: {hop.source} → {hop.destination}: {why}"
        for hop in passage.hops
        if (why := _stray(hop, out, following, by_tunnel))
    ]


def _flooded(way: Passage) -> list[str]:
    """Return the next hops whose packets a bridge sends to all of its ports."""
    return [
        f"a bridge on the way out does not know where {mac} is, and floods every packet to its "
        f"other ports; let it answer (ping), or name its port: bridge fdb add {mac} dev PORT "
        "master static"
        for mac, port in way.stations
        if port == EVERY_PORT
    ]


def _stray(hop: Hop, out: str, following: Sequence[Stop], by_tunnel: bool) -> str:
    names = " or ".join(stop.name for stop in following)
    if hop.kind in ENDING:
        return ""
    if hop.kind != "unicast":
        return hop.kind if hop.kind.startswith("a route") else f"{hop.kind} address"
    if hop.interface != out:
        return f"would leave by {hop.interface or 'no interface'}, not by {out}"
    if by_tunnel:
        return ""  # it has a single other end, to which its outer packets are followed
    to = hop.gateway or hop.destination
    there = [stop for stop in following if to in stop.addresses]
    if not there:
        return f"its next hop {to} is no address of {names}"
    if hop.mac is not None and all(stop.mac not in (None, hop.mac) for stop in there):
        return f"{to} has the MAC {hop.mac} there, not that of {names}"
    return ""


@dataclass
class PathWatch:
    """Whether anything was changed on the path since it was proven."""

    clients: Sequence[AgentClient]
    prove_again: Callable[[], object] | None = None
    """The proof with the MACs that were not known before a packet asked for them."""
    _first: dict[str, dict[str, int]] = field(default_factory=dict)

    def begin(self) -> None:
        """Learn what each node counts as changed so far; before the proof."""
        for client in self.clients:
            self._first[client.name] = client.changed()

    def learn(self) -> None:
        """Learn before a phase what earlier packets have made known; SafetyError as the proof."""
        if self.prove_again is not None:
            self.prove_again()

    def check(self) -> None:
        """Raise SafetyError, naming what was changed, so that the senders are stopped."""
        for client in self.clients:
            first, now = self._first.get(client.name, {}), client.changed()
            names = [
                name for name in (*WATCHED, "stations") if _moved(first, now, f"changed.{name}")
            ]
            if names and not self._permits(client, now):
                raise SafetyError(
                    f"{', '.join(names)} were changed there while packets were sent: the path is "
                    "no longer proven, so the senders were stopped; find out who changes that "
                    "host, then repeat",
                    client.name,
                )

    def _permits(self, client: AgentClient, now: dict[str, int]) -> bool:
        """Return whether packets take the same way after a change: of stations alone, if proven."""
        first = self._first.get(client.name, {})
        if any(_moved(first, now, f"changed.{name}") for name in WATCHED):
            return False
        self.learn()
        self._first[client.name] = now
        return True


class SenderWatch(PathWatch):
    """The same of senders alone, where no node is known: whatever leaves their packets alone goes.

    Their hosts are used by others, too, whose routes, rules and neighbours may change.
    """

    def __init__(self, senders: Iterable[AgentClient], workers: Collection[WorkerSpec]) -> None:
        flows, self._ports, self._protocol = _sent(workers)
        self._flows = {name: sorted(pairs) for name, pairs in flows.items()}
        super().__init__([client for client in senders if client.name in flows])
        self._ways: dict[str, Passage] = {}

    def begin(self) -> None:
        """Learn the way that packets take as well."""
        super().begin()
        self._ways = {client.name: self._way(client) for client in self.clients}

    def learn(self) -> None:
        """Learn the MACs that earlier packets have asked for."""
        for client in self.clients:
            way = self._ways[client.name]
            flooded = EVERY_PORT in [port for _, port in way.stations]
            if flooded or not all(hop.mac for hop in (*way.hops, *way.outer)):
                self._permits(client, self._first[client.name])
            for why in _flooded(self._ways[client.name]):
                text = f"no more was sent, as packets might leave the lab: {why}"
                raise SafetyError(text, client.name)

    def _way(self, client: AgentClient) -> Passage:
        flows = self._flows[client.name]
        return client.passage("", client.interface, flows, self._ports, self._protocol)

    def _permits(self, client: AgentClient, now: dict[str, int]) -> bool:
        before, way = self._ways[client.name], self._way(client)
        known = before.as_now(way)
        if known is None:
            return False
        self._first[client.name], self._ways[client.name] = now, known
        return True


def _moved(first: Mapping[str, int], now: Mapping[str, int], name: str) -> bool:
    return now.get(name, 0) != first.get(name, 0)
