"""The command that restores a value by hand after a failed restore."""

from __future__ import annotations

import shlex
from typing import Any

from udpbench.agent.host.system import Host
from udpbench.agent.settings.handlers import KINDS
from udpbench.model import Setting
from udpbench.setting_kinds import show_value


def command(host: Host, setting: Setting, value: Any) -> str:
    """Return a shell command that sets ``value`` at the setting's target, or a description."""
    words = None
    try:
        words = KINDS[setting.kind].by_hand_here(host, setting.target, value)
    except Exception:  # noqa: BLE001 - called while restoring, which must continue
        words = None
    if words is None:
        return f"change {setting.kind} {setting.target} back to {show_value(setting.kind, value)}"
    return words if isinstance(words, str) else shlex.join(words)
