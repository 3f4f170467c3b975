"""``udpbench init``: what it writes loads, what is missing is named, and no file is overwritten."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from control.fake import FakeClock
from control.fake import facts as host_facts
from golden import Golden

from udpbench.__main__ import run_command_line
from udpbench.commands.init import InitOptions, write_experiment, write_lab
from udpbench.commands.verbs.reach import Prompts
from udpbench.control.agents import Reach
from udpbench.control.lab_lock import Surroundings
from udpbench.control.plan import rehearse
from udpbench.definition.load import load_experiments, load_lab
from udpbench.errors import (
    AgentError,
    AgentLost,
    ConnectError,
    HostError,
    InputError,
    SafetyError,
)
from udpbench.model.host import Facts
from udpbench.model.lab import Connect
from udpbench.protocol import HeardArp, Hello, Interface, Interfaces, Taken, encode

SSH = Interface("eth0", "igb", "02:00:00:00:00:01", "up", ("10.7.0.2/24",), protected=True)
ETH1 = Interface("eth1", "ixgbe", "02:00:00:00:00:02", "up")
ETH2 = Interface("eth2", "ixgbe", "02:00:00:00:00:03", "down")
UP2 = replace(ETH2, link="up")
BOTH = InitOptions("bench@left.example", "bench@right.example")


@dataclass
class Wire:
    """What joins two hosts, and the requests on their way."""

    cables: dict[str, str] = field(default_factory=dict)
    """Interface of the left host → that of the right one."""
    sent: list[str] = field(default_factory=list)
    arriving: list[HeardArp] = field(default_factory=list)
    refusal: HostError | None = None
    is_root: bool = True


class PaperHost:
    """A channel to a host that has interfaces and changes nothing."""

    def __init__(self, host: str, netns: int, interfaces: Interfaces, wire: Wire) -> None:
        self.host = host
        self.wire = wire
        self.netns = netns
        self.known = interfaces
        self.offset_ns = 0
        self.round_trip_ns: int | None = 1000
        self.absences_ns: list[int] = []
        self.notice: Callable[[str], None] = lambda _: None
        self.pid: int | None = None
        self.verbs: list[str] = []

    def begin(self, verb: str, deadline_ns: int, **args: Any) -> Callable[[], Any]:  # noqa: ARG002
        """Answer as an agent does."""
        self.verbs.append(verb)
        answer = encode(getattr(self, f"_{verb}", lambda **_: None)(**args))
        return lambda: answer

    def _hello(self, build: str, **_: Any) -> Hello:
        return Hello(1, self.netns, f"boot {self.netns}", build, "3.11", {"net_admin": True})

    def _take(self, use: str) -> Taken:
        assert "none" == use
        return Taken()

    def _interfaces(self) -> Interfaces:
        return self.known

    def _hear_arp(self, interfaces: list[str]) -> list[HeardArp]:
        frames = [arp for arp in self.wire.arriving if arp.interface in interfaces]
        self.wire.arriving.clear()
        return frames

    def _send_arp(self, interface: str) -> None:
        if self.wire.refusal is not None:
            raise self.wire.refusal
        self.wire.sent.append(interface)
        macs = {card.name: card.mac or "" for card in self.known.listed}
        if interface in self.wire.cables:
            self.wire.arriving.append(HeardArp(self.wire.cables[interface], macs[interface]))
        self.wire.arriving.append(HeardArp("eth1", "02:00:00:00:00:99"))

    def _facts(self, interface: str) -> Facts:
        named = {card.name: card for card in self.known.listed}[interface]
        return replace(
            host_facts(self.host, interface, named.addresses),
            boot_id=f"boot {self.netns}",
            cpus=(0, 1, 2, 3),
            numa_nodes={"0": (0, 1, 2, 3)},
            interface_node=0,
            queue_cpus={"0": (0,), "1": (1,)},
            capabilities={"net_admin": self.wire.is_root},
        )

    def _plan(self, settings: list[Any]) -> list[Any]:
        return [{"setting": setting, "now": None} for setting in settings]

    def ping(self) -> None:
        """Renew no lease."""

    def outlast(self, run: str, lease_ns: int) -> None:
        """Reconnect never."""

    def lose(self, why: str) -> None:
        """Be lost."""

    def not_started(self, loss: AgentLost) -> ConnectError:
        """Say so."""
        return ConnectError(loss.message, self.host)

    def close(self) -> int | None:
        """End."""
        return 0


class World:
    """Two hosts, and what init says."""

    def __init__(self, left: tuple[Interface, ...], right: tuple[Interface, ...]) -> None:
        self.interfaces = [Interfaces(left, "10.7.0.1"), Interfaces(right, "10.7.0.1")]
        self.channels: list[PaperHost] = []
        self.wire = Wire()
        self.lines: list[str] = []

    def _open(self, host: str, _: Connect | None = None) -> PaperHost:
        place = len(self.channels) % 2
        self.channels.append(PaperHost(host, place, self.interfaces[place], self.wire))
        return self.channels[-1]

    def around(self) -> Surroundings:
        """Return how these hosts are reached."""
        return Surroundings(
            Reach({"ssh": self._open, "local": self._open}, self._open), FakeClock()
        )

    def init(self, options: InitOptions, dialog: Answers | None = None) -> Path:
        """Write a lab file."""
        return write_lab(options, dialog, self.lines.append, self.around())


class Answers:
    """A user at a terminal; ``None`` takes what is proposed."""

    def __init__(self, *answers: str | None, agrees: bool = True) -> None:
        self.answers = list(answers)
        self.agrees = agrees
        self.prompts: list[str] = []

    def ask(self, text: str, default: str | None, parse: Callable[[str], str]) -> str:
        """Answer, again if the answer is refused."""
        while True:
            self.prompts.append(f"{text} [{default}]")
            answer = self.answers.pop(0)
            try:
                return parse(answer if answer is not None else default or "")
            except ValueError as error:
                self.prompts.append(str(error))

    def confirm(self, text: str) -> bool:
        """Agree, or not."""
        self.prompts.append(text)
        return self.agrees


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write files in a folder of the test."""
    monkeypatch.chdir(tmp_path)


def addressed(interface: Interface, *addresses: str) -> Interface:
    """Return an interface with these addresses."""
    return replace(interface, addresses=addresses)


def joined() -> World:
    """Return two hosts with one network in common, besides that of SSH."""
    left = (SSH, addressed(ETH1, "10.0.0.1/24"), ETH2)
    return World(left, (SSH, ETH1, addressed(ETH2, "10.0.0.2/24")))


def test_the_only_pair_in_one_network_needs_no_option(golden: Golden) -> None:
    """The file loads, says why, and plan takes it."""
    world = joined()
    path = world.init(BOTH)
    golden.check([*world.lines, path.read_text()])
    lab = load_lab(str(path))
    assert [
        ("left", "sender", "eth1", True, (2, 3, 0, 1)),
        ("right", "receiver", "eth2", True, (2, 3, 0, 1)),
    ] == [(h.name, h.part, h.interface, h.existing, h.cpus) for h in lab.hosts]
    (rehearsed,) = rehearse(load_experiments(["smoke"]), lab, world.around().reach)
    assert ("smoke",) == rehearsed.trials
    assert {} == rehearsed.skipped


def test_options_decide(golden: Golden) -> None:
    """Interfaces that share nothing get addresses of a free network, for the run alone."""
    world = World((SSH, ETH1), (SSH, ETH2))
    options = replace(
        BOTH,
        interfaces=("eth1", "eth2"),
        cpus=("0", "1-2"),
        become="sudo",
        python="/srv/py",
        out=Path("my.yaml"),
    )
    golden.check(world.init(options).read_text())
    lab = load_lab("my.yaml")
    assert [("192.168.254.30/24",), (0,)] == [lab.senders[0].addresses, lab.senders[0].cpus]
    assert (20, (1, 2)) == (len(lab.receivers[0].addresses), lab.receivers[0].cpus)
    assert Connect("ssh", "bench@left.example", "sudo", "/srv/py") == lab.senders[0].connect
    (rehearsed,) = rehearse(load_experiments(["smoke"]), lab, world.around().reach)
    assert ("smoke",) == rehearsed.trials


def test_a_named_network_is_taken() -> None:
    """Also where both hosts have addresses already."""
    options = replace(BOTH, addresses="10.1.0.0/16")
    lab = load_lab(str(joined().init(options)))
    assert ("10.1.0.30/16",) == lab.senders[0].addresses


def test_everything_missing_is_named_with_its_option(golden: Golden) -> None:
    """Without a terminal nothing is chosen that the facts leave open."""
    with golden.raises(InputError) as caught:
        World((SSH, ETH1, ETH2), (SSH, ETH1)).init(BOTH)
    places = [problem.where for problem in caught.value.problems]
    assert ["--left-interface", "--right-interface", ""] == places
    assert not Path("lab.yaml").exists()


def test_an_unclear_choice_ends_with_the_command_to_type(golden: Golden) -> None:
    """With every option that was given, and interfaces with a link before others."""
    options = replace(BOTH, cpus=("0", None), become="sudo", probe=True, out=Path("my lab.yaml"))
    twice = [
        (SSH, addressed(ETH1, f"10.0.0.{n}/24"), addressed(UP2, f"10.1.0.{n}/24")) for n in (1, 2)
    ]
    for left, right, given in (
        ((SSH, replace(ETH1, link="down"), UP2), (SSH, ETH1, ETH2), options),
        ((SSH, ETH1, UP2), (SSH, ETH1), replace(BOTH, interfaces=("eth2", None))),
        (*twice, BOTH),
        ((SSH,), (), BOTH),
    ):
        with pytest.raises(InputError) as caught:
            World(left, right).init(given)
        golden.check(str(caught.value).splitlines()[-1])


def test_a_single_interface_is_never_taken_silently(golden: Golden) -> None:
    """It says what it means, and takes it only if it is named."""
    world = World((SSH,), (SSH, ETH1))
    with golden.raises(InputError):
        world.init(BOTH)
    world = World((SSH,), (addressed(SSH, "10.7.0.3/24"),))
    world.init(replace(BOTH, interfaces=("eth0", "eth0")))
    golden.check(world.lines)
    assert load_lab("lab.yaml").senders[0].existing


def test_a_shared_interface_must_be_confirmed_at_a_terminal(golden: Golden) -> None:
    """Else nothing is written."""
    world = World((SSH,), (SSH, ETH1))
    with golden.raises(InputError):
        world.init(BOTH, Answers("eth0", "eth1", agrees=False))
    assert not Path("lab.yaml").exists()


def test_a_terminal_is_asked_for_every_choice(golden: Golden) -> None:
    """With what is proposed; a wrong answer is asked for again."""
    user = Answers("eth9", "eth2", None, "10.1.0.0/30", "10.1.0.0/24", "9", "0-1", None)
    path = joined().init(BOTH, user)
    golden.check(user.prompts)
    lab = load_lab(str(path))
    assert ("eth2", (0, 1)) == (lab.senders[0].interface, lab.senders[0].cpus)


@pytest.mark.parametrize(
    "options",
    [
        InitOptions("-bad", "right example", addresses="x", cpus=("a", None)),
        InitOptions("local", "local"),
        replace(BOTH, become="su", python="two words"),
    ],
)
def test_wrong_options_are_refused_before_a_host_is_asked(
    options: InitOptions, golden: Golden
) -> None:
    """All at once."""
    world = joined()
    with golden.raises(InputError):
        world.init(options)
    assert [] == world.channels


def test_an_interface_that_is_not_there_is_refused(golden: Golden) -> None:
    """With those that are."""
    with golden.raises(InputError):
        joined().init(replace(BOTH, interfaces=("eth7", "eth8")))


def test_hosts_whose_agents_may_change_nothing_are_named(golden: Golden) -> None:
    """With what gives each the right to."""
    world = joined()
    world.wire.is_root = False
    world.init(replace(BOTH, right="local"))
    golden.check(world.lines[-2:])


def test_an_address_that_is_none_is_a_malformed_reply(golden: Golden) -> None:
    """Whatever an agent says."""
    world = World((SSH, addressed(ETH1, "here")), (SSH, ETH1))
    with golden.raises(AgentError):
        world.init(BOTH)


def test_existing_addresses_must_exist(golden: Golden) -> None:
    """On both interfaces."""
    with golden.raises(InputError):
        joined().init(replace(BOTH, addresses="existing", interfaces=("eth2", "eth1")))


def test_a_link_is_proven_by_one_request_at_a_time(golden: Golden) -> None:
    """By each interface that is up and carries no SSH; the pair with the link is chosen."""
    world = World((SSH, ETH1, UP2, replace(ETH2, name="eth3")), (SSH, ETH1, UP2))
    world.wire.cables["eth2"] = "eth1"
    golden.check(world.init(replace(BOTH, probe=True)).read_text())
    assert ["eth1", "eth2"] == world.wire.sent
    assert ["eth2", "eth1"] == [host.interface for host in load_lab("lab.yaml").hosts]


def test_a_link_that_is_not_proven_is_not_guessed() -> None:
    """A named interface is the only one that sends; without a cable nothing is chosen."""
    world = World((SSH, ETH1, UP2), (SSH, ETH1, UP2))
    with pytest.raises(InputError) as caught:
        world.init(replace(BOTH, probe=True, interfaces=("eth2", None)))
    assert ["--right-interface", ""] == [problem.where for problem in caught.value.problems]
    assert ["eth2"] == world.wire.sent


@pytest.mark.parametrize(
    "refusal",
    [AgentError("ARP probes need CAP_NET_RAW", "left"), SafetyError("eth1 has no link", "left")],
)
def test_without_the_right_to_send_it_says_so(refusal: HostError, golden: Golden) -> None:
    """And goes on with what is known besides."""
    world = World((SSH, ETH1), (SSH, ETH1))
    world.wire.refusal = refusal
    world.init(replace(BOTH, probe=True, interfaces=("eth1", "eth1")))
    golden.check(world.lines[-1])
    assert "# eth1 – eth1: link not proven" in Path("lab.yaml").read_text()


@pytest.mark.parametrize(
    "right",
    [(SSH,), (SSH, ETH2), (SSH, replace(ETH2, name="x;reboot"))],
    ids=["none", "down", "odd"],
)
def test_a_link_that_is_down_cannot_be_proven(right: tuple[Interface, ...], golden: Golden) -> None:
    """It says what would bring it up, if anything."""
    world = World((SSH, ETH1), right)
    with pytest.raises(InputError):
        world.init(replace(BOTH, probe=True))
    golden.check(world.lines[-1])
    assert [] == world.wire.sent


@pytest.mark.parametrize(
    ("probe", "named", "agrees", "sent"),
    [
        (False, None, True, ["eth1"]),
        (False, None, False, []),
        (False, "eth1", False, ["eth1"]),
        (True, None, False, ["eth1"]),
    ],
)
def test_nothing_is_sent_before_it_is_named_or_confirmed(
    probe: bool, named: str | None, agrees: bool, sent: list[str]
) -> None:
    """At a terminal; without one ``--probe`` alone confirms it."""
    world = World((SSH, ETH1), (SSH, ETH1))
    user = Answers(*["eth1"] * (2 - (named is not None)), None, None, None, agrees=agrees)
    world.init(replace(BOTH, probe=probe, interfaces=(named, None)), user)
    assert sent == world.wire.sent


@pytest.mark.parametrize("there", ["file", "link"])
def test_no_file_is_overwritten(there: str, golden: Golden) -> None:
    """Neither a file nor what a link names, and no host is asked before."""
    for name in ("lab.yaml", "mine.yaml"):
        if there == "file":
            Path(name).write_text("kept")
        else:
            Path(name).symlink_to("nowhere")
    world = joined()
    with golden.raises(InputError):
        world.init(BOTH)
    with golden.raises(InputError):
        write_experiment("mine")
    assert [] == world.channels
    assert there == "link" or "kept" == Path("lab.yaml").read_text()


def test_a_folder_that_cannot_be_used_is_refused(golden: Golden, tmp_path: Path) -> None:
    """One that is not there, or is a file; no host is asked."""
    world = joined()
    (tmp_path / "file").write_text("")
    for name in ("nowhere/nowhere", "file/lab.yaml"):
        with golden.raises(InputError):
            world.init(replace(BOTH, out=Path(name)))
    assert [] == world.channels


def test_the_local_interface_by_which_the_other_host_is_controlled_carries_ssh() -> None:
    """Although the agent of this host was not reached by it."""
    world = joined()
    mine = (Interface("eth5", "igb", None, "up", ("10.7.0.1/24",)), addressed(ETH1, "10.0.0.1/24"))
    world.interfaces[0] = Interfaces(mine)
    world.init(replace(BOTH, left="local"))
    assert any("eth5" in line and "carries SSH" in line for line in world.lines)
    lab = load_lab("lab.yaml")
    assert [("local", Connect("local"))] == [(h.name, h.connect) for h in lab.senders]


@pytest.mark.parametrize(
    ("left", "right", "names"),
    [
        ("a@one.example", "two:2222", ("one", "two")),
        ("10.0.0.1", "10.0.0.2", ("left", "right")),
        ("[fd00::1]:22", "two", ("left", "right")),
        ("one.here", "one.there", ("left", "right")),
        ("machine", "two", ("left", "right")),
    ],
)
def test_hosts_are_named_after_their_destinations(
    left: str, right: str, names: tuple[str, str]
) -> None:
    """If these can be names, and differ."""
    path = joined().init(replace(BOTH, left=left, right=right))
    assert list(names) == [host.name for host in load_lab(str(path)).hosts]


def test_an_experiment_to_start_from_loads(golden: Golden) -> None:
    """Under its name, with or without the suffix."""
    path = write_experiment("mine")
    golden.check(path.read_text())
    assert Path("other.yml") == write_experiment("other.yml")
    for name in ("mine.yaml", "other.yml"):
        (experiment,) = load_experiments([name])
        assert 2 == len(experiment.points)
    head, _, own = path.read_text().partition("# traffic: ")
    head = head.partition("# What is sent.")[0]
    path.write_text(f"{head}traffic: {own.replace('# ', '')}")
    (experiment,) = load_experiments(["mine.yaml"])
    assert ("python3", "server.py", "4321") == experiment.points[0].receive.command
    assert experiment.searched


def test_destinations_that_are_missing_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """Both, or the one; an experiment needs none."""
    for words in (["init"], ["init", "left"]):
        monkeypatch.setattr(sys, "argv", ["udpbench", *words])
        assert 2 == run_command_line()
        golden.check(capsys.readouterr().err)
    monkeypatch.setattr(sys, "argv", ["udpbench", "init", "--experiment", "mine"])
    assert 0 == run_command_line()
    assert "experiment: mine.yaml\n" == capsys.readouterr().out


def test_a_terminal_prompts_until_an_answer_is_accepted(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """A wrong one is asked for again, an empty one is the default; without any it ends."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\n7\n\ny\n"))
    prompts = Prompts()
    assert "7" == prompts.ask("number", "5", lambda text: str(int(text)))
    assert "5" == prompts.ask("number", "5", lambda text: str(int(text)))
    assert prompts.confirm("really")
    with golden.raises(InputError):
        prompts.confirm("really")


def test_it_waits_for_no_other_run_and_takes_no_host() -> None:
    """An agent is only asked what there is."""
    world = joined()
    world.init(BOTH)
    assert {"hello", "ping", "take", "interfaces", "facts"} == {
        verb for channel in world.channels for verb in channel.verbs
    }
    assert ["lab.yaml"] == [file.name for file in Path().iterdir()]
