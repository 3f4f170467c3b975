"""Locks as abstract sockets: in this test's own namespace, under names of their own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from udpbench.agent.host import Host
from udpbench.agent.locks import Held, Locks

NUMBERS = itertools.count()


@pytest.fixture
def two() -> Iterator[tuple[Locks, Locks]]:
    """Two runs' locks, apart from those of any run that goes on beside this test."""
    prefix = f"udpbench-test/{os.getpid()}/{next(NUMBERS)}/"
    first, second = Locks(Host(), "first", prefix), Locks(Host(), "second", prefix)
    yield first, second
    first.close()
    second.close()


def test_a_namespace_is_one_runs(two: tuple[Locks, Locks]) -> None:
    """The second run is refused and told who holds it, until the first lets go."""
    first, second = two
    first.exclude_namespace()

    with pytest.raises(Held) as caught:
        second.exclude_namespace()
    assert f"run first (pid {os.getpid()})" == caught.value.holder

    first.close()
    second.exclude_namespace()


def test_a_machine_is_shared_until_it_is_to_change(two: tuple[Locks, Locks]) -> None:
    """Two runs share a machine; neither may change it then, and the one left over may."""
    first, second = two
    first.share_machine()
    second.share_machine()

    with pytest.raises(Held) as caught:
        first.exclude_machine()
    assert f"the machine is held by run second (pid {os.getpid()})" == str(caught.value)

    second.close()
    first.exclude_machine()
    first.exclude_machine()


def test_a_changed_machine_is_not_shared(two: tuple[Locks, Locks]) -> None:
    """While one run changes machine scope, another is refused, and leaves no trace of its try."""
    first, second = two
    first.share_machine()
    first.exclude_machine()

    with pytest.raises(Held) as caught:
        second.share_machine()
    assert f"run first (pid {os.getpid()})" == caught.value.holder

    first.close()
    second.share_machine()


def test_runs_are_known_by_their_agents_notes(two: tuple[Locks, Locks]) -> None:
    """Whichever lock they hold or share, for as long as they do; a long name is as it is noted."""
    first, second = two
    assert frozenset() == first.runs()
    first.share_machine()
    second.exclude_namespace()
    assert {"first", "second"} == first.runs()
    second.close()
    assert {"first"} == first.runs()
    assert f"x{'ü' * 19}" == Locks.short("x" + "ü" * 100)


def test_a_long_run_name_is_cut(two: tuple[Locks, Locks]) -> None:
    """An abstract name has 107 bytes; of a run's name its first 40 are shown, in whole letters."""
    first, _ = two
    first.exclude_namespace()
    long = Locks(Host(), "x" + "ü" * 100, first.prefix)
    first.close()
    long.exclude_namespace()

    with pytest.raises(Held) as caught:
        first.exclude_namespace()
    long.close()

    assert f"run x{'ü' * 19} (pid {os.getpid()})" == caught.value.holder
