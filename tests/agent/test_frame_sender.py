"""A sender of frames over drivers that refuse: by copy where that helps, else the kernel's word."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest
from test_workers import sender

from udpbench.agent.workers import frame_sender
from udpbench.agent.workers.frame_sender import FrameSender
from udpbench.model.experiment import Send

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="AF_XDP sockets need root")
MACS = {"127.0.0.1": "02:00:00:00:00:01"}


class Driver:
    """What the driver of the interface answers, call by call."""

    def __init__(self, *answers: int, zerocopy: bool = False) -> None:
        self.answers, self.zerocopy = list(answers), zerocopy
        self.copies: list[bool] = []

    def ub_xsk_open(self, shared: Any, *words: Any) -> int:
        """Answer one call, and say whether it is without a copy."""
        self.copies.append(words[-1])
        shared.zerocopy = self.zerocopy and not words[-1]
        return -self.answers.pop(0)


def opened(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> FrameSender:
    """Open a sender over a driver."""
    monkeypatch.setattr(frame_sender, "lib", SimpleNamespace(ub_xsk_open=driver.ub_xsk_open))
    af_xdp_sender = FrameSender.open(sender(send=Send(call="af_xdp")), "lo", MACS)
    af_xdp_sender.socket.close()
    return af_xdp_sender


@pytest.mark.parametrize("zerocopy", [False, True])
def test_a_sender_says_what_it_got(monkeypatch: pytest.MonkeyPatch, zerocopy: bool) -> None:
    """As the kernel said it of the socket; one attempt is enough."""
    driver = Driver(0, zerocopy=zerocopy)
    assert zerocopy is opened(monkeypatch, driver).zerocopy
    assert [False] == driver.copies


@pytest.mark.parametrize("number", frame_sender.WANT_PROGRAM)
def test_a_driver_that_wants_a_program_gets_copies(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """i40e, ice, ixgbe, igb and igc send without a copy only beside an XDP program."""
    driver = Driver(number, 0, zerocopy=True)
    assert opened(monkeypatch, driver).zerocopy is False
    assert [False, True] == driver.copies


@pytest.mark.parametrize("answers", [(errno.EPERM,), (errno.EINVAL, errno.EOPNOTSUPP)])
def test_a_refusal_names_the_queue(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[int, ...]
) -> None:
    """With the kernel's last word."""
    with pytest.raises(OSError, match="AF_XDP socket on TX queue 0 of lo: ") as caught:
        opened(monkeypatch, Driver(*answers))
    assert answers[-1] == caught.value.errno
