"""Setting up AF_XDP sockets of a card that copies frames, one that does not, and one that refuses."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest

SOCKET = 10_000
"""A number that no file of the test has."""
XDP_COPY, XDP_USE_NEED_WAKEUP = 1 << 1, 1 << 3  # include/uapi/linux/if_xdp.h
UMEM_REG, RX_RING, TX_RING, FILL_RING, COMPLETION_RING, OPTIONS = 4, 2, 3, 5, 6, 8
MMAP_OFFSETS, MAX_TX_SKB_BUDGET, BIND = 1, 9, 0


class Card:
    """A driver's answers, and a socket that is set up on its queue."""

    def __init__(self, scripted: tuple[Any, Any]) -> None:
        self.ffi, self.lib = scripted
        self.xsk = self.ffi.new("struct ub_xsk *")
        self.kicks = 0

    def answers(
        self, *, zerocopy: bool = False, refuses: int = -1, error: int = 0, kick: int = 0
    ) -> None:
        """Say what the card can, which option is refused with which errno, and a kick's result."""

        def kicked() -> int:
            self.kicks += 1
            return kick

        self._callback = self.ffi.callback("int(void)", kicked)
        self.lib.fake_kick(self._callback)
        self.lib.fake_card(SOCKET, zerocopy, refuses, error)

    def send(self, copy: bool = False) -> int:
        """Open the socket of a sender."""
        return int(self.lib.ub_xsk_open(self.xsk, SOCKET, 2, 0, 74, copy))

    def receive(self) -> int:
        """Open the socket of a receiver."""
        return int(self.lib.ub_xsk_open_receiver(self.xsk, SOCKET, 2, 0, 74))


@pytest.fixture
def card(scripted: tuple[Any, Any]) -> Iterator[Card]:
    """Play a card, and give its memory back."""
    fake = Card(scripted)
    yield fake
    fake.lib.ub_xsk_close(fake.xsk)
    fake.lib.fake_card(-1, 0, 0, 0)


@pytest.mark.parametrize("zerocopy", [False, True])
def test_what_the_kernel_says_of_copies_is_read_back(card: Card, zerocopy: bool) -> None:
    """By XDP_OPTIONS, of senders and receivers; none asks for either."""
    card.answers(zerocopy=zerocopy)
    assert (0, zerocopy) == (card.send(), card.xsk.zerocopy)
    assert XDP_USE_NEED_WAKEUP == card.lib.fake_card_flags()
    card.lib.ub_xsk_close(card.xsk)
    assert (0, zerocopy) == (card.receive(), card.xsk.zerocopy)
    assert XDP_USE_NEED_WAKEUP == card.lib.fake_card_flags()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENXIO])
def test_a_driver_that_wants_a_program_says_so_when_it_is_opened(card: Card, number: int) -> None:
    """By its first wake-up, before a frame is lost by it; by copy it is never asked."""
    card.answers(zerocopy=True, kick=-number)
    assert (-number, 1) == (card.send(), card.kicks)
    assert (-1, card.ffi.NULL) == (card.xsk.socket, card.xsk.memory)
    assert (0, 0, 1) == (card.send(copy=True), card.xsk.zerocopy, card.kicks)
    assert XDP_USE_NEED_WAKEUP | XDP_COPY == card.lib.fake_card_flags()


@pytest.mark.parametrize("option", [UMEM_REG, FILL_RING, COMPLETION_RING, TX_RING, MMAP_OFFSETS,
                                    BIND, OPTIONS])  # fmt: skip
@pytest.mark.parametrize("number", [errno.ENOBUFS, errno.EBUSY, errno.EOPNOTSUPP])
def test_a_refusal_leaves_no_sender(card: Card, option: int, number: int) -> None:
    """Whatever the kernel refuses is returned, and nothing stays mapped."""
    card.answers(refuses=option, error=number)
    assert (-number, -1) == (card.send(), card.xsk.socket)
    assert card.ffi.NULL == card.xsk.memory == card.xsk.send.mapped


@pytest.mark.parametrize("option", [UMEM_REG, FILL_RING, COMPLETION_RING, RX_RING, MMAP_OFFSETS,
                                    BIND, OPTIONS])  # fmt: skip
def test_a_refusal_leaves_no_receiver(card: Card, option: int) -> None:
    """The same."""
    card.answers(refuses=option, error=errno.EBUSY)
    assert (-errno.EBUSY, -1) == (card.receive(), card.xsk.socket)
    assert card.ffi.NULL == card.xsk.memory == card.xsk.receive.mapped


def test_a_kernel_without_a_budget_to_raise_sends_all_the_same(card: Card) -> None:
    """Before Linux 6.17 a call takes 32 frames."""
    card.answers(refuses=MAX_TX_SKB_BUDGET, error=errno.ENOPROTOOPT)
    assert 0 == card.send()
