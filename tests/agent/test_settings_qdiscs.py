"""The queueing disciplines that the kernel chose: kept before changes, restored after all of them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from golden import Golden
from network_card import CardHost

from udpbench.agent.settings.engine import Engine
from udpbench.agent.settings.journal import Journal
from udpbench.agent.settings.qdisc import REBUILDING
from udpbench.errors import RestoreError, SettingRefused
from udpbench.model.host import Setting

PFIFO = Setting("qdisc", "eth3", {"pfifo": {"limit_packets": 9}})
DEFAULT = "proc/sys/net/core/default_qdisc"


@pytest.fixture
def card(tmp_path: Path) -> CardHost:
    """Return a host with a card of eight queues, each with fq_codel."""
    return CardHost(tmp_path)


def engine(card: CardHost, run: str = "run") -> Engine:
    """Return an engine of the namespace."""
    return Engine(card, Journal(card, run), ["namespace"])


def reopened(card: CardHost) -> Engine:
    """Return the engine of another process, after the first one was killed."""
    return Engine(card, Journal.open(card, Journal(card, "run").path, wait=True), ())


def killed_after(card: CardHost, *applied: Setting) -> None:
    """Apply settings, and close the journal as the kernel does."""
    journal = Journal(card, "run")
    Engine(card, journal, ["namespace"]).apply(applied)
    journal.close()


@pytest.mark.parametrize(
    "other",
    [
        Setting("channels", "eth3", 2),
        Setting("mtu", "eth3", 1600),
        Setting("txqueuelen", "eth3", 77),
    ],
    ids=lambda setting: setting.kind,
)
@pytest.mark.parametrize("last", [True, False])
def test_each_queue_gets_back_its_qdisc_and_its_quantum(
    card: CardHost, other: Setting, last: bool
) -> None:
    """Removing the root qdisc alone has it built with the queues and the MTU of that moment."""
    before = card.qdiscs("eth3")
    own = engine(card)
    own.apply([other, PFIFO] if last else [PFIFO, other])
    assert before != card.qdiscs("eth3")
    own.restore()
    assert sorted(before) == sorted(card.qdiscs("eth3"))
    assert [("fq_codel", 0, 1514)] * 8 == card.leaves


def test_they_are_restored_once_nothing_alters_them_any_more(card: CardHost) -> None:
    """In two trials with another root qdisc the second does not change the link again."""
    own = engine(card)
    own.apply([Setting("channels", "eth3", 2), PFIFO])
    requests = list(card.requests)
    own.apply(
        [Setting("channels", "eth3", 2), Setting("qdisc", "eth3", {"pfifo": {"limit_packets": 10}})]
    )
    assert requests == card.requests
    own.apply([])
    assert [("fq_codel", 0, 1514)] * 8 == card.leaves


@pytest.mark.parametrize("up", [True, False])
def test_an_interface_that_was_never_up_has_none_again(card: CardHost, up: bool) -> None:
    """Going down does not take away what the first time up gave it."""
    card.up, card.root_qdisc, card.leaves = False, None, []
    own = engine(card)
    own.apply([Setting("up", "eth3", True), *([PFIFO] if up else [])])
    assert card.root_qdisc is not None
    own.restore()
    assert (False, None) == (card.up, card.root_qdisc)


def test_an_interface_that_is_down_keeps_those_of_its_last_time_up(card: CardHost) -> None:
    """It is up for a moment, as only then the kernel builds them."""
    card.up = False
    own = engine(card)
    own.apply([Setting("mtu", "eth3", 1600), Setting("up", "eth3", True), PFIFO])
    own.restore()
    assert (False, [("fq_codel", 0, 1514)] * 8) == (card.up, card.leaves)


def test_what_was_restored_is_said(card: CardHost) -> None:
    """Beside the settings themselves, which is not where they were not altered."""
    own = engine(card)
    own.apply([Setting("mtu", "eth3", 1600)])
    assert ["mtu"] == [change.setting.kind for change in own.restore()]
    own.apply([Setting("mtu", "eth3", 1600), PFIFO])
    assert ["qdisc", "mtu", "qdisc_tree"] == [change.setting.kind for change in own.restore()]


def test_a_restore_that_was_killed_under_way_is_finished(card: CardHost) -> None:
    """A qdisc that stands in for a moment is known by its handle."""
    killed_after(card, Setting("mtu", "eth3", 1600), PFIFO)
    card.mtu, card.root_qdisc = 1500, ("pfifo", REBUILDING, 1000)
    reopened(card).restore()
    assert (("mq", 0, 0), [("fq_codel", 0, 1514)] * 8) == (card.root_qdisc, card.leaves)


@pytest.mark.parametrize("force", [False, True])
def test_what_somebody_sets_meanwhile_stays(card: CardHost, force: bool) -> None:
    """The run set no root qdisc, so that it has none to remove."""
    own = engine(card)
    own.apply([Setting("mtu", "eth3", 1600)])
    card.root_qdisc = ("htb", 0x10000, 0)
    own.restore(force)
    assert (1500, ("htb", 0x10000, 0)) == (card.mtu, card.root_qdisc)


def leaves(kind: str, number: int) -> list[Any]:
    """Return the leaves of eight queues."""
    return [(kind, 0, number)] * 8


@pytest.mark.parametrize(
    ("there", "default"),
    [(leaves("fq_codel", 9014), "fq_codel"), (leaves("pfifo_fast", 0), "fq_codel")],
    ids=["another MTU", "another default"],
)
@pytest.mark.parametrize("setting", [PFIFO, Setting("trap", "eth3", True)], ids=lambda s: s.kind)
def test_what_the_kernel_would_not_build_again_is_not_destroyed(
    card: CardHost, there: list[Any], default: str, setting: Setting, golden: Golden
) -> None:
    """A dry run says so, too; other settings keep it."""
    card.leaves = list(there)
    card._file(DEFAULT, default)
    own = engine(card)
    own.apply([Setting("mtu", "eth3", 1600)])
    with golden.raises(SettingRefused):
        own.apply([Setting("mtu", "eth3", 1600), setting])
    assert own.plan([setting])[0].refusal is not None
    own.restore()
    assert there == card.leaves


@pytest.mark.parametrize(("layer", "refused"), [(1, True), (65534, False)])
def test_a_quantum_is_only_judged_where_the_header_is_known(
    card: CardHost, layer: int, refused: bool
) -> None:
    """ARPHRD_ETHER, and ARPHRD_NONE of a tun device."""
    card.layer, card.leaves = layer, leaves("fq_codel", 9014)
    assert refused == (engine(card).plan([PFIFO])[0].refusal is not None)


def test_what_the_kernel_did_not_build_again_is_reported(card: CardHost, golden: Golden) -> None:
    """Somebody changed the default meanwhile; both are named, and what to do."""
    own = engine(card)
    own.apply([PFIFO])
    card.default_qdisc = "fq"
    with golden.raises(RestoreError):
        own.restore()
    card.default_qdisc = "fq_codel"
    own.restore()
    assert leaves("fq_codel", 1514) == card.leaves


@pytest.mark.parametrize(("code", "refused"), [(errno.EOPNOTSUPP, False), (errno.EPERM, True)])
def test_a_kernel_without_traffic_control_has_none(
    card: CardHost, code: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else keeps them from being read is a refusal of what would alter them."""

    def fail(_: Any, interface: str) -> list[bytes]:
        raise OSError(code, os.strerror(code), interface)

    monkeypatch.setattr(CardHost, "qdiscs", fail)
    (change,) = engine(card).apply([Setting("mtu", "eth3", 1600, optional=True)])
    assert refused == (change.refusal is not None)
    assert (1500 if refused else 1600) == card.mtu
