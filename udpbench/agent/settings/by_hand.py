"""The command that sets a value by hand, for a restore that failed."""

from __future__ import annotations

import shlex
from typing import Any

from udpbench.agent.host.system import Host
from udpbench.agent.settings.handlers import KINDS
from udpbench.model import Setting


def command(host: Host, setting: Setting, value: Any) -> str:
    """Return a shell command that sets ``value`` at the target of ``setting``, else plain words."""
    words = None
    try:
        words = KINDS[setting.kind].by_hand_here(host, setting.target, value)
    except Exception:  # noqa: BLE001 - it is asked for while restoring, which has to go on
        words = None
    if words is None:
        return f"put {setting.kind} {setting.target} back to {value}"
    return words if isinstance(words, str) else shlex.join(words)
