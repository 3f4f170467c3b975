"""What is known of a watched host after some looks: its sockets, and the threads that read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from udpbench.analysis.delta import since_u32
from udpbench.model.limits import THREADS_MAX
from udpbench.model.record import (
    HostLook,
    OtherNamespace,
    Snapshot,
    SocketCount,
    ThreadUse,
    UdpSocket,
)

LOOKS_KEPT, PROCESSES_KEPT = 10, 64
"""Kept of readers: the latest looks at which a socket had dropped packets, and processes."""


@dataclass(frozen=True)
class HostState:
    """What is known of a host after some looks."""

    snapshot: Snapshot
    interfaces: tuple[str, ...]
    sockets: Mapping[int, UdpSocket] = field(default_factory=dict)
    """By cookie, those that are open."""
    watched: frozenset[int] | None = None
    """Cookies of open sockets that ever belonged to what is watched; None: all do."""
    counts: Mapping[int, SocketCount] | None = None
    """By cookie, of open sockets; None: not counted."""
    names_reasons: bool = False
    opened_drops: Mapping[int, int] = field(default_factory=dict)
    """Cookie → drops that the socket had before it was watched."""
    lately_ended: frozenset[int] = frozenset()
    """Cookies of sockets that closed before this look, which the next may still count."""
    ended: int = 0
    """How many watched sockets have closed."""
    ended_dropped: int = 0
    """What these had dropped, as far as it was seen."""
    ended_at: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Port → how many watched sockets have closed there, and what they had dropped."""
    namespaces: tuple[OtherNamespace, ...] = ()
    threads: Mapping[str, tuple[tuple[ThreadUse, ...], ...]] = field(default_factory=dict)
    """Process → its threads between two looks, of the latest in which its sockets had drops."""
    by_root: bool = False


def after(state: HostState | None, look: HostLook) -> HostState:
    """Return what is known after another look; None: it is the first.

    Of closed sockets nothing stays but their sums: a resolver opens one for each query.
    """
    known = dict(state.sockets) if state is not None else {}
    listed = {each.cookie: each for each in look.sockets}
    opened = dict(state.opened_drops) if state is not None else {}
    for cookie, each in listed.items():
        # What a socket lost that was opened under way, it lost while it was watched.
        opened.setdefault(cookie, (each.drops or 0) if state is None else 0)
    ever = _ever(state, look)
    ended: dict[int, int] = {}
    ended_at = dict(state.ended_at) if state is not None else {}
    for cookie in look.ended:
        closed, before = known.pop(cookie, None), opened.pop(cookie, 0)
        if closed is not None and (ever is None or cookie in ever):
            ended[cookie] = since_u32(before, closed.drops or 0)
            number, dropped = ended_at.get(closed.port, (0, 0))
            ended_at[closed.port] = number + 1, dropped + ended[cookie]
    counts = None
    if look.counts is not None:
        counted = {int(cookie): count for cookie, count in look.counts.items()}
        for cookie in counted.keys() - known.keys() - listed.keys() - _lately_ended(state, look):
            # It lived between two looks. Whose it was is not known.
            if ever is None:
                ended[cookie] = sum(counted[cookie].dropped.values())
        counts = {**((state.counts if state is not None else None) or {}), **counted}
        counts = {key: count for key, count in counts.items() if key in known or key in listed}
    is_same = state is not None and not listed and not look.ended
    return HostState(
        snapshot=look.snapshot,
        interfaces=look.interfaces,
        sockets=state.sockets if state is not None and is_same else known | listed,
        watched=ever.intersection(known.keys() | listed.keys()) if ever is not None else None,
        counts=counts,
        names_reasons=look.names_reasons,
        opened_drops=opened,
        lately_ended=frozenset(look.ended) | ended.keys(),
        ended=(state.ended if state is not None else 0) + len(ended),
        ended_dropped=(state.ended_dropped if state is not None else 0) + sum(ended.values()),
        ended_at=ended_at,
        namespaces=look.namespaces,
        threads=_threads(state, look),
        by_root=look.by_root,
    )


def _threads(
    state: HostState | None, look: HostLook
) -> Mapping[str, tuple[tuple[ThreadUse, ...], ...]]:
    before = dict(state.threads) if state is not None else {}
    for process, threads in look.threads.items():
        earlier = before.pop(process, ())
        before[process] = (*earlier[1 - LOOKS_KEPT :], threads[:THREADS_MAX])
    return dict([*before.items()][-PROCESSES_KEPT:])


def _lately_ended(state: HostState | None, look: HostLook) -> frozenset[int]:
    before = state.lately_ended if state is not None else frozenset()
    return before | frozenset(look.ended)


def _ever(state: HostState | None, look: HostLook) -> frozenset[int] | None:
    if look.watched is None:
        return None
    before = (state.watched if state is not None else None) or frozenset()
    return before | frozenset(look.watched)
