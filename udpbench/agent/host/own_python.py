"""Commands for further processes of this agent: the same Python, with the same modules.

Isolated, so that neither the current folder nor the environment adds modules: it may be root.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import udpbench
from udpbench.agent.install import HELD, RUN


def own_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with this process's ``sys.path``, udpbench first."""
    package = str(Path(udpbench.__file__).resolve().parents[1])
    folders = [os.path.abspath(part) for part in sys.path if part]  # noqa: PTH100 - of a zip, too
    path = os.pathsep.join(dict.fromkeys((package, *folders)))
    return [sys.executable, "-I", "-S", "-c", RUN, path, module, *arguments]


def build_lock() -> tuple[int, ...]:
    """Return the descriptor that keeps a deployed agent's build from being removed; else ().

    A process that outlives the agent inherits it.
    """
    held = os.environ.get(HELD, "")
    return (int(held),) if held.isdigit() else ()
