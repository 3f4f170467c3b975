"""Ports that no other test, and no socket of the kernel's own choice, takes meanwhile."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Iterator

import pytest

PORTS_EACH = 1000
"""More than one process of the tests ever asks for."""
FIRST_PORT = 10_000
"""With 20 processes still below 32768, where the kernel begins to choose from."""


def _ports() -> Iterator[int]:
    """Yield ports that are free, apart from those of the other processes that test."""
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = FIRST_PORT + process % 20 * PORTS_EACH
    for number in itertools.cycle(range(first, first + PORTS_EACH)):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("", number))
            except OSError:
                continue
        yield number


_FREE = _ports()


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Find UDP ports that are free and stay so until the test takes them."""
    return lambda: next(_FREE)


@pytest.fixture
def port(free_port: Callable[[], int]) -> int:
    """Find one such port."""
    return free_port()
