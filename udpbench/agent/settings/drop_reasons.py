"""Kind ``explain``: count the kernel's drop reasons in this namespace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from udpbench.agent.host.bpf.kfree_skb import DropReasons
from udpbench.agent.host.system import Host
from udpbench.agent.settings.kind import Kind

TARGET = "drops"


def _check(target: str) -> None:
    if target != TARGET:
        raise ValueError(f"{target} is not {TARGET}")


class NamedReasons(Kind):
    """Count the kernel's drop reasons in this namespace, target ``drops``; UDP ports, or null.

    Datagrams to the ports are counted separately. The program stays attached while this agent
    holds it, so it ends with the agent, however that ends; nothing is left to undo.
    """

    def is_apart(self, _target: str) -> bool:
        """Return True: it only counts."""
        return True

    def read(self, host: Host, target: str) -> Optional[list[int]]:
        """Return the ports while this agent counts drop reasons; else None."""
        _check(target)
        return host.drops.ports if host.drops is not None else None

    def write(self, host: Host, target: str, value: Optional[list[int]]) -> None:
        """Start or stop counting; OSError if the kernel refuses."""
        _check(target)
        if host.drops is not None:
            host.drops.close()
            host.drops = None
        if value:
            try:
                host.drops = DropReasons(host, value)
            except (KeyError, ValueError) as error:
                # Reasons are in the tracepoint since Linux 5.17.
                raise OSError(f"this kernel does not report drop reasons: {error}") from error


KINDS: Mapping[str, Kind] = {"explain": NamedReasons()}
