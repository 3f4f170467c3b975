"""The interface of a kind of setting: how it is read, written, compared and described.

Each module of this room with kinds lists them by name in ``KINDS``; the engine restores.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Union

from udpbench.agent.host.system import Host
from udpbench.model.host import Setting

EVERY = "all"
"""In place of an interface; none can have this name (net/ipv4/devinet.c)."""
Command = Union[Sequence[str], str, None]
"""A command as words, or a shell line; None if there is no command."""


class Kind:
    """One kind of setting, without state; ``host`` and ``target`` give the place."""

    disruptive = False
    """It could cut a connection over its interface, the first part of the target."""
    needs = ""
    """Kind that may have to be set before this one can be read."""
    diverts = False
    """It routes packets to an address or network, the rest of the target, over its interface."""
    flaps = False
    """A driver may take the link down and up for it."""
    alters: tuple[str, ...] = ()
    """Kinds whose values on the same interface change along: journalled first, restored last."""
    destroys = False
    """It destroys what ``alters`` names, which must be such that it can be restored."""
    is_witness = False
    """It sets nothing: read before the first change of an interface, compared after the last."""
    stays = True
    """Its value can be read again later; false: it is valid only at the moment of reading."""
    instead: Mapping[int, str] = {}
    """errno of a refusal → an alternative; 0 for a value that reads back differently."""
    otherwise = ""
    """The alternative if a write is refused with any other errno; may name ``{interface}``."""

    def interface(self, target: str) -> str:
        """Return the interface that a target names, if any."""
        return target.partition("/")[0]

    def renamed(self, target: str, before: Any, name: str) -> tuple[str, Any]:
        """Return a target and the value before, now that its interface has another name."""
        return name + target[len(self.interface(target)) :], before

    def disturbed(self, target: str) -> str:
        """Return the interface whose connections it could cut; EVERY one, or none if empty."""
        return self.interface(target) if self.disruptive else ""

    def may_flap(self, _host: Host, _interface: str) -> bool:
        """Return whether a driver may take this interface's link down and up for it."""
        return self.flaps

    def is_apart(self, _target: str) -> bool:
        """Return whether no other setting depends on it, nor it on others of the same target.

        It is then changed by itself, while others stay in force.
        """
        return False

    def read(self, host: Host, target: str) -> Any:
        """Return the current value."""
        raise NotImplementedError

    def write(self, host: Host, target: str, value: Any) -> None:
        """Set a requested value, or one read before."""
        raise NotImplementedError

    def same(self, requested: Any, got: Any) -> bool:
        """Return whether a value is the requested one."""
        return bool(requested == got)

    def rounded(self, _requested: Any, _got: Any) -> bool:
        """Return whether the kernel or a driver rounds ``requested`` to ``got``."""
        return False

    def check(self, host: Host, target: str, value: Any, now: Any) -> None:
        """Raise OSError if a change would destroy something that cannot be restored.

        Also if the current value belongs to another program. A dry run calls it, too.
        """

    def resets(self, _host: Host, _target: str, _value: Any, _now: Any) -> Sequence[Setting]:
        """Return other settings, with the text of the value that a change and its undoing give."""
        return ()

    def alike(self, requested: Any, got: Any) -> bool:
        """Compare without parts that other programs or the kernel may change at any time.

        Used to detect changes by other processes and to check a restore.
        """
        return self.same(requested, got)

    def lost(self, _before: Any, _now: Any) -> list[str]:
        """Return what is missing or different afterwards, of a kind that is a witness."""
        return []

    def by_hand(self, _target: str, _value: Any) -> Command:
        """Return the command that sets a value read before."""
        return None

    def by_hand_here(self, _host: Host, target: str, value: Any) -> Command:
        """Return the command if it depends on this host's state; OSError if unknown."""
        return self.by_hand(target, value)


def echo(text: Any, path: str) -> str:
    """Return the shell line that writes a file."""
    return f"echo {shlex.quote(str(text))} > {shlex.quote(path)}"
