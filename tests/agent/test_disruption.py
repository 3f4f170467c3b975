"""What a flapping link takes along, given back whatever else fails; requests to no kernel."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from golden import Golden
from settings_world import fake_host

from udpbench.agent.host.system import Host
from udpbench.agent.settings import link_flap
from udpbench.agent.settings.engine import Engine
from udpbench.agent.settings.journal import Journal
from udpbench.agent.settings.kind import Kind
from udpbench.agent.settings.link_flap import Request, restore_missing, restored_link
from udpbench.errors import RestoreError
from udpbench.model.host import Setting

ADDRESS: Request = ("addr", (("address", "fd00::1"), ("index", 7)))
LINK_LOCAL: Request = ("addr", (("address", "fe80::1"), ("index", 7)))
NEIGHBOUR: Request = ("neigh", (("dst", "10.1.0.9"), ("lladdr", "02:00:00:00:00:09")))
DEFAULT: Request = ("route", (("dst", "default"), ("gateway", "10.1.0.1")))
NETWORK: Request = ("route", (("dst", "10.1.0.0/16"), ("oif", 7)))


class Flapping(Host):
    """A host with one interface, eth3, that can be asked to refuse what is added to it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.has: list[Request] = []
        self.refused: dict[Request, int] = {}
        self.needs: dict[Request, Request] = {}
        """What is refused as long as something else is not there."""
        self.carrier = True
        self.size = 1500

    def name_of(self, _: int) -> str:
        """Return its name."""
        return "eth3"

    def index(self, _: str) -> int:
        """Return its index."""
        return 7

    def link(self, _: str) -> Any:
        """Return its flags."""
        return {"flags": link_flap.IFF_LOWER_UP if self.carrier else 0}

    def rtnl(self, noun: str, verb: str, **fields: Any) -> list[Any]:
        """Add what is not refused."""
        assert verb == {"addr": "add", "neigh": "replace", "route": "append"}[noun]
        request = (noun, tuple(fields.items()))
        code = self.refused.get(request, 0)
        if request in self.needs and self.needs[request] not in self.has:
            code = errno.ENETUNREACH
        if code:
            raise OSError(code, os.strerror(code))
        self.has.append(request)
        return []


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flapping:
    """Return a host whose interface has two things."""
    fake_host(tmp_path)
    host = Flapping(tmp_path)
    host.has = [ADDRESS, NETWORK]
    monkeypatch.setattr(link_flap, "_flapping", lambda *_: {3: ""})
    monkeypatch.setattr(link_flap, "_nexthops", lambda *_: [])
    monkeypatch.setattr(link_flap, "state", lambda *_: [(request, []) for request in host.has])
    monkeypatch.setattr(link_flap, "CARRIER_DEADLINE_S", 0)
    return host


def unplugged(host: Flapping) -> None:
    """Lose everything, and the carrier for good."""
    with restored_link(host, "eth3"):
        host.has, host.carrier = [], False


def test_what_a_link_loses_is_given_back_without_a_carrier(host: Flapping, golden: Golden) -> None:
    """The carrier that does not come back is told after that."""
    with golden.raises(OSError):
        unplugged(host)
    assert [ADDRESS, NETWORK] == host.has


def test_what_cannot_be_given_back_is_reported_before_the_carrier(
    host: Flapping, golden: Golden
) -> None:
    """It is what the host has lost; the carrier is the error's context."""
    host.refused[NETWORK] = errno.EINVAL
    with golden.raises(OSError) as caught:
        unplugged(host)
    assert "has no carrier" in str(caught.value.__context__)
    assert [ADDRESS] == host.has


def test_one_refusal_keeps_nothing_else_away(host: Flapping) -> None:
    """All that can be made again is, and each that cannot is named with the kernel's words."""
    host.has = []
    host.refused = {ADDRESS: errno.EACCES, DEFAULT: errno.EINVAL}
    with pytest.raises(PermissionError) as caught:
        restore_missing(host, [ADDRESS, NEIGHBOUR, DEFAULT, NETWORK], [])
    assert (
        "could not be recreated: addr fd00::1: Permission denied; "
        "route default: Invalid argument" == caught.value.strerror
    )
    assert [NEIGHBOUR, NETWORK] == host.has


def test_what_hangs_on_a_later_one_is_made_after_it(host: Flapping) -> None:
    """The kernel lists a default route before the network of its gateway."""
    host.has = []
    host.needs = {DEFAULT: NETWORK}
    restore_missing(host, [DEFAULT, NETWORK], [])
    assert [NETWORK, DEFAULT] == host.has


def test_what_is_there_or_the_kernels_own_is_no_failure(host: Flapping) -> None:
    """Somebody may have made it meanwhile; a link-local address comes by itself."""
    host.refused = {DEFAULT: errno.EEXIST, LINK_LOCAL: errno.EACCES}
    restore_missing(host, [ADDRESS, LINK_LOCAL, DEFAULT], [ADDRESS])
    assert [ADDRESS, NETWORK] == host.has


SIZE = Setting("size", "eth3", 9000)


class Size(Kind):
    """A size that a host has; setting it may take its link down."""

    flaps = True

    def read(self, host: Any, _: str) -> int:
        """Return it."""
        return int(host.size)

    def write(self, host: Any, _: str, value: int) -> None:
        """Set it."""
        host.size = value


SIZES = {"size": Size()}


def killed(host: Flapping, during: str) -> Engine:
    """Return the guardian's engine after an agent was killed while the link was down."""
    journal = Journal(host, "run")

    class Copied(Size):
        def write(self, host: Any, _: str, value: int) -> None:
            host.size = value
            if (value == 9000) == (during == "apply"):
                host.path("/copy").write_bytes(journal.path.read_bytes())

    engine = Engine(host, journal, ["namespace"], {"size": Copied()})
    engine.apply([SIZE])
    engine.restore()
    journal.path.write_bytes(host.path("/copy").read_bytes())
    host.has = []
    host.size = 9000
    return Engine(host, Journal.open(host, journal.path), (), SIZES)


@pytest.mark.parametrize("during", ["apply", "restore"])
@pytest.mark.parametrize("size", [1500, 9000])
def test_what_a_link_had_is_given_back_for_a_killed_agent(
    host: Flapping, during: str, size: int
) -> None:
    """Whether the driver had set the value by then or not."""
    guardian = killed(host, during)
    host.size = size
    guardian.restore()
    assert (1500, [ADDRESS, NETWORK]) == (host.size, host.has)
    assert [] == host.listdir("/run/udpbench")


@pytest.mark.parametrize("size", [1500, 9000])
def test_what_cannot_be_given_back_for_a_killed_agent_is_reported(
    host: Flapping, size: int, golden: Golden
) -> None:
    """The value is put back all the same, and force does without the rest."""
    guardian = killed(host, "apply")
    host.size = size
    host.refused[NETWORK] = errno.ESRCH
    with golden.raises(RestoreError):
        guardian.restore()
    assert (1500, [ADDRESS]) == (host.size, host.has)
    guardian.restore(force=True)
    assert [] == host.listdir("/run/udpbench")


def test_what_is_there_again_is_not_given_back_later(host: Flapping) -> None:
    """What somebody takes away after a change is not the change's to give back."""
    journal = Journal(host, "run")
    engine = Engine(host, journal, ["namespace"], SIZES)
    engine.apply([SIZE])
    assert [()] == [entry.along for entry in journal.pending]
    host.has = [ADDRESS]
    engine.restore()
    assert [ADDRESS] == host.has
