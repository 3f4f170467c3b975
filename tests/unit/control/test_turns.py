"""Whose turn it is: labs that share a host exclude each other, and the end of a user is seen."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection

import pytest

from udpbench.control import turns
from udpbench.control.turns import hosts_of, turn
from udpbench.definition.load import load_lab
from udpbench.errors import DeadlineExceeded
from udpbench.model import SECOND_NS, Connect, Lab

LONG_NS = 30 * SECOND_NS
SHORT_NS = 10**7


def lab(*hosts: str) -> Lab:
    """Return a lab of hosts of their own, the first of which sends."""
    built_in = load_lab("local")
    sender, receiver = built_in.senders[0], built_in.receivers[0]
    names = [f"{os.getpid()}-{host}" for host in hosts]
    return replace(
        built_in,
        name="+".join(hosts),
        senders=(replace(sender, connect=Connect("ssh", names[0])),),
        receivers=tuple(replace(receiver, connect=Connect("ssh", one)) for one in names[1:]),
    )


def hold(chosen: Lab, pipe: Connection) -> None:
    """Use a lab until told otherwise, in a process of its own."""
    with turn([chosen], LONG_NS):
        pipe.send("taken")
        pipe.recv()


@pytest.fixture
def held() -> Iterator[tuple[Lab, multiprocessing.Process, Connection]]:
    """Yield a lab that another process uses."""
    chosen = lab("a", "b")
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=hold, args=(chosen, theirs))
    process.start()
    assert "taken" == ours.recv()
    yield chosen, process, ours
    process.kill()
    process.join()


def test_a_lab_is_used_by_one_at_a_time() -> None:
    """Whoever holds it is named to whoever waited in vain; afterwards it is free."""
    with turn([lab("a", "b")], LONG_NS):
        with pytest.raises(DeadlineExceeded) as raised, turn([lab("a", "b")], SHORT_NS):
            pass
        assert (
            f"waited 10ms in vain until process {os.getpid()} no longer uses lab a+b; "
            "let it end, or raise udpbench_wait"
        ) == str(raised.value)
    with turn([lab("a", "b")], SHORT_NS) as free:
        assert "a+b" == free.name


def test_labs_that_share_a_host_exclude_each_other() -> None:
    """One busy host makes a lab busy, and nothing of the others is kept."""
    with turn([lab("b", "c")], LONG_NS):
        with pytest.raises(DeadlineExceeded), turn([lab("a", "b")], SHORT_NS):
            pass
        with turn([lab("a", "d")], SHORT_NS) as free:
            assert "a+d" == free.name


def test_the_first_free_lab_is_taken() -> None:
    """Of several pairs of hosts each session has its own."""
    pairs = [lab("a", "b"), lab("c", "d")]
    with ExitStack() as stack:
        taken = [stack.enter_context(turn(pairs, SHORT_NS)).name for _ in pairs]
        assert ["a+b", "c+d"] == taken
        with pytest.raises(DeadlineExceeded, match=r"uses lab a\+b or c\+d"), turn(pairs, SHORT_NS):
            pass


def test_all_built_in_labs_of_a_machine_are_one() -> None:
    """They would share its CPUs."""
    assert (turns.BUILT_IN,) == hosts_of(load_lab("local")) == hosts_of(load_lab("two-senders"))


@pytest.mark.parametrize("how", ["lets go", "dies"])
def test_the_end_of_a_user_is_seen(
    held: tuple[Lab, multiprocessing.Process, Connection], how: str
) -> None:
    """A wait ends when the lab becomes free, also when its user is killed."""
    chosen, process, pipe = held
    with pytest.raises(DeadlineExceeded, match=str(process.pid)), turn([chosen], SHORT_NS):
        pass
    if how == "dies":
        process.kill()
    else:
        pipe.send("let go")
    with turn([chosen], LONG_NS) as free:
        assert chosen.name == free.name


def test_a_name_of_any_length_is_a_turn() -> None:
    """What an abstract name has no room for is cut off."""
    with turn([lab("a" * 300, "b")], SHORT_NS) as free:
        assert "a" * 300 + "+b" == free.name


def test_what_is_no_name_is_no_turn() -> None:
    """A name that the kernel refuses is an error, and not an endless wait."""
    with ExitStack() as taken, pytest.raises(OSError, match="too long"):
        turns._take("a" * 300, taken)
