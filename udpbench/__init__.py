"""How many UDP packets per second a host can receive, and where the others are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from udpbench.report.data_frames import Frames, read_run

__all__ = ["Frames", "read_run"]


def __getattr__(name: str) -> Any:
    """Return a public name, loaded when it is first asked for (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from udpbench.report import data_frames

    return getattr(data_frames, name)
