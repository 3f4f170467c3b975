"""Selects the engine that places cells: Dask in this process, or a scheduler.

Validates the address of a scheduler. Imports Dask late, since only campaigns need it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from shlex import quote
from typing import TYPE_CHECKING

from udpbench.errors import InputError, Problem
from udpbench.installation import how_to_add

if TYPE_CHECKING:
    from udpbench.campaign.conduct import CellEngine

PORT = 8786
"""Dask's own default."""
PACKAGES = ("dask", "distributed")
_ADDRESS = re.compile(
    r"(?:(?P<scheme>[a-z]+)://)?(?:\[(?P<bracketed>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+))"
    r"(?::(?P<port>[0-9]{1,5}))?\Z"
)


def scheduler_address(text: str) -> str:
    """Return the complete address of a scheduler; InputError if it is remote without TLS.

    Anyone who reaches a scheduler can run anything as its workers' users, so beyond this machine
    both ends authenticate (TLS).
    """
    parts = _ADDRESS.match(text)
    if parts is None:
        step = "write for example tls://control.example:8786"
        raise InputError([Problem("not a scheduler address", "--scheduler", text, "", step)])
    host, port = parts["bracketed"] or parts["host"], parts["port"] or PORT
    shown = f"[{host}]" if parts["bracketed"] else host
    scheme = parts["scheme"] or "tcp"
    if scheme == "tls" or (scheme == "tcp" and _is_loopback(host)):
        return f"{scheme}://{shown}:{port}"
    what = "a scheduler on another machine requires TLS"
    if scheme != "tcp":
        what = f"{scheme} is neither tls nor tcp"
    step = f"start it with certificates (docs/campaigns.md), then type --scheduler {quote(f'tls://{shown}:{port}')}"
    raise InputError([Problem(what, "--scheduler", text, "tcp:// on loopback, else tls://", step)])


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


@contextmanager
def open_engine(
    scheduler: str | None, pairs: int, warn: Callable[[str], None]
) -> Iterator[CellEngine]:
    """Yield the engine: workers in this process, one for each pair, or those of a scheduler.

    Raises InputError if Dask is not installed, and ConnectError if no scheduler answers.
    """
    address = None if scheduler is None else scheduler_address(scheduler)
    try:
        from udpbench.campaign.dask_engine import DaskEngine
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        step = how_to_add("campaign")
        problem = Problem("campaigns need the package distributed", "udpbench", None, "", step)
        raise InputError([problem]) from error
    engine = DaskEngine(address, pairs, warn)
    try:
        yield engine
    finally:
        engine.close()
