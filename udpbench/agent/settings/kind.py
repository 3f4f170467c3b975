"""What a kind of setting is: how it is read, written and compared, and what to say of it.

Each module of this room that has kinds lists them by name in ``KINDS``; the engine restores.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Union

from udpbench.agent.host.system import Host

Command = Union[Sequence[str], str, None]
"""One command's words, or a line of the shell; None if only words can say it."""


class Kind:
    """One kind; ``host`` and ``target`` say where; the object itself has no state."""

    disruptive = False
    """It could cut a connection by its interface, the first part of the target."""
    needs = ""
    """Kind that may have to be set before it can even be read."""
    diverts = False
    """It routes packets to an address or network, the rest of the target, through its interface."""
    flaps = False
    """A driver may take the link down and up again for it."""
    stays = True
    """Its value can be read again later; false: it holds only for the moment it was read."""
    instead: Mapping[int, str] = {}
    """errno of a refusal → an alternative; 0 stands for a value that was not kept."""

    def read(self, host: Host, target: str) -> Any:
        """Return the value now."""
        raise NotImplementedError

    def write(self, host: Host, target: str, value: Any) -> None:
        """Set a value that was asked for, or read before."""
        raise NotImplementedError

    def same(self, requested: Any, got: Any) -> bool:
        """Say whether a value is the one that was asked for."""
        return bool(requested == got)

    def rounded(self, _wanted: Any, _got: Any) -> bool:
        """Say whether ``got`` is what the kernel or a driver makes of it."""
        return False

    def check(self, host: Host, target: str, value: Any, now: Any) -> None:
        """Raise OSError if a change would destroy what could not be restored.

        Also if what is there belongs to another program. A dry run calls it, too.
        """

    def alike(self, requested: Any, got: Any) -> bool:
        """Compare without what other programs or the kernel may change at any time.

        Used to find what another process changed, and to check what was restored.
        """
        return self.same(requested, got)

    def by_hand(self, _target: str, _value: Any) -> Command:
        """Return the command that sets a value that was read before."""
        return None

    def by_hand_here(self, _host: Host, target: str, value: Any) -> Command:
        """Return the same where only this host tells what to name; OSError if it cannot."""
        return self.by_hand(target, value)


def echo(text: Any, path: str) -> str:
    """Return the line of the shell that writes a file."""
    return f"echo {shlex.quote(str(text))} > {shlex.quote(path)}"
