"""How many UDP packets per second a host can receive, and where the rest are lost."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from udpbench.report.data_frames import Frames, read_run
    from udpbench.store.dataset import read_runs, write_runs

__all__ = ["Frames", "read_run", "read_runs", "write_runs"]
_MODULES = {
    "Frames": "udpbench.report.data_frames",
    "read_run": "udpbench.report.data_frames",
    "read_runs": "udpbench.store.dataset",
    "write_runs": "udpbench.store.dataset",
}


def __getattr__(name: str) -> Any:
    """Return a public name, loaded when it is first asked for (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
