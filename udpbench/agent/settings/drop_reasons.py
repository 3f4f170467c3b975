"""Kind ``explain``: count the kernel's reasons for what it drops here."""

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


class Explain(Kind):
    """Count the kernel's reasons for what it drops here, target ``drops``; or null.

    The value are UDP ports; datagrams to them are counted apart. The program hangs on its
    tracepoint while this agent holds it, so it ends with the agent, however that ends; to any other
    process there is nothing to undo.
    """

    def read(self, host: Host, target: str) -> Optional[list[int]]:
        """Return the ports while this agent counts reasons."""
        _check(target)
        return host.drops.ports if host.drops is not None else None

    def write(self, host: Host, target: str, value: Optional[list[int]]) -> None:
        """Begin to count, or end it; OSError if the kernel does not let us."""
        _check(target)
        if host.drops is not None:
            host.drops.close()
            host.drops = None
        if value:
            try:
                host.drops = DropReasons(host, value)
            except (KeyError, ValueError) as error:
                raise OSError(f"this kernel does not say why it drops: {error}") from error


KINDS: Mapping[str, Kind] = {"explain": Explain()}
