"""Whether this machine may run the lab tests: skipped with the reason, or required."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import pytest

from udpbench.analysis.checks import cpu_checks
from udpbench.control.connections.forks import ForkClient, LocalAgents

REQUIRED = "UDPBENCH_REQUIRE_LAB"
CLONE_NEWNS = 0x20000  # include/uapi/linux/sched.h
LOCKS = "/run/udpbench"
FORKED = LocalAgents.forked


def lacking(user_id: int) -> str | None:
    """Return why the lab tests cannot run as a user; None where they can."""
    if user_id == 0:
        return None
    return "the lab tests make network namespaces and need root: sudo python3 noxfile.py lab"


def required(environment: Mapping[str, str]) -> bool:
    """Return whether a lab test that cannot run is a failure here."""
    return bool(environment.get(REQUIRED))


def pytest_configure() -> None:
    """Give each of several workers locks of its own, so that each has a built-in lab of its own."""
    if "PYTEST_XDIST_WORKER" not in os.environ or lacking(os.geteuid()) is not None:
        return
    assert ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0
    os.makedirs(LOCKS, mode=0o700, exist_ok=True)  # noqa: PTH103
    own = ("-t", "tmpfs", "-o", "mode=700", "udpbench", LOCKS)
    for words in (("--make-rprivate", "/"), own):
        subprocess.run(("mount", *words), check=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip every lab test where they cannot run, or stop where they must."""
    why = lacking(os.geteuid())
    if why is None:
        return
    if required(os.environ):
        raise pytest.UsageError(f"{REQUIRED} is set, but {why}")
    for item in items:
        if item.get_closest_marker("lab"):
            item.add_marker(pytest.mark.skip(reason=why))


@contextmanager
def agents_by_one_process() -> Iterator[None]:
    """Let one process fork the agents of all runs that begin meanwhile, and outlive each."""
    agents = LocalAgents()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForkClient, "bury", lambda _: None)
        # Else Python 3.14 would give it the instance, as of any method.
        patch.setattr(LocalAgents, "forked", staticmethod(partial(FORKED, agents)))
        yield
    if agents._server is not None:
        agents._server.close()


@pytest.fixture(autouse=True, scope="session")
def forking() -> Iterator[None]:
    """Start few processes for many tests."""
    with agents_by_one_process():
        yield


@pytest.fixture
def forking_anew(forking: None) -> Iterator[None]:
    """Let the agents of a test be forked from a process that has the test's environment."""
    with agents_by_one_process():
        yield


@pytest.fixture(autouse=True)
def shared_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believe rates and times whoever else uses the CPUs: tests are about something else.

    Only where a test judges what it measured in its own process; test_cpus.py has the real limits.
    """
    monkeypatch.setattr(cpu_checks, "STRUCK", 1.0)
