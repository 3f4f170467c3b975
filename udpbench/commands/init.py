"""``udpbench init``: a lab file from two SSH destinations, or an experiment file to start from.

Asks on a terminal, and takes options otherwise. Overwrites no file. Questions to the hosts are in
``control.survey``, proposals in ``definition.lab_proposal``.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from udpbench.control.lab_lock import Surroundings
from udpbench.control.survey import Survey, surveyed
from udpbench.cpu_lists import format_cpu_list
from udpbench.definition.endpoints import parse_cpus
from udpbench.definition.lab_proposal import (
    EXISTING,
    EXPERIMENT,
    CablePair,
    HostSurvey,
    ProposedHost,
    addresses_in,
    common_network,
    described,
    free_network,
    joined_pairs,
    lab_text,
    names_of,
    proposed_cpus,
)
from udpbench.definition.lab_rules import OWN_AGENTS
from udpbench.definition.load import lab_of
from udpbench.errors import AgentError, InputError, Problem, SafetyError
from udpbench.folder import Folder
from udpbench.model.host import Facts
from udpbench.model.lab import SSH_CHARACTERS, SSH_SPEC, Connect
from udpbench.protocol import Interface

LOCAL = "local"
SIDES = ("left", "right")
WORD = re.compile(r"[^\s-]\S{0,255}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


class Dialog(Protocol):
    """The questions that a user can be asked on a terminal."""

    def ask(self, text: str, default: str | None, parse: Callable[[str], str]) -> str:
        """Return an answer, asked for again until ``parse`` raises no ValueError."""

    def confirm(self, text: str) -> bool:
        """Return whether the user agrees; the default is no."""


@dataclass(frozen=True)
class InitOptions:
    """The choices on the command line; None is one that was left out."""

    left: str
    right: str
    interfaces: tuple[str | None, str | None] = (None, None)
    addresses: str | None = None
    cpus: tuple[str | None, str | None] = (None, None)
    become: str | None = None
    python: str | None = None
    probe: bool = False
    out: Path = Path("lab.yaml")


def write_experiment(name: str) -> Path:
    """Write a commented experiment and return its path; raises InputError if there is a file."""
    path = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    _write_new(path, EXPERIMENT.format(path=path), "--experiment")
    return path


def write_lab(
    options: InitOptions,
    dialog: Dialog | None,
    say: Callable[[str], None],
    around: Surroundings,
) -> Path:
    """Write the lab file of two hosts and return its path.

    Without a dialog, every missing choice is a problem in the InputError. Also raises
    ConnectError, HelloRefused, SafetyError.
    """
    ways = _ways(options)
    names = _names(ways)
    with surveyed(names, ways, around) as survey:
        for host in (survey.left, survey.right):
            say(f"{host.name} ({host.role})")
            for interface in host.interfaces:
                say(f"  {described(interface)}")
        text = _Choosing(options, dialog, say, survey).text()
    lab_of(text, options.out)
    _write_new(options.out, text, "--out")
    return options.out


def _ways(options: InitOptions) -> tuple[Connect, Connect]:
    """Return how each host is reached; raises InputError with everything wrong in the options."""
    problems: list[Problem] = []
    for side, spec in zip(SIDES, (options.left, options.right), strict=True):
        if spec != LOCAL and SSH_SPEC.match(spec) is None:
            what, step = "not [user@]host[:port]", "write for example bench@left, or local"
            problems.append(Problem(what, side.upper(), spec, SSH_CHARACTERS, step))
    if options.left == options.right == LOCAL:
        step = "name one of them; namespaces of this machine are the shipped lab local"
        problems.append(Problem("both are this host", "LEFT RIGHT", LOCAL, "", step))
    for side, cpus in zip(SIDES, options.cpus, strict=True):
        problems += _refused(f"--{side}-cpus", cpus, parse_cpus)
    problems += _refused("--addresses", options.addresses, _addresses_of_all)
    problems += _refused("--become", options.become, _sudo)
    problems += _refused("--python", options.python, _word)
    problems += _unusable(options.out, "--out")
    if problems:
        raise InputError(problems)
    return _way(options.left, options), _way(options.right, options)


def _way(spec: str, options: InitOptions) -> Connect:
    if spec == LOCAL:
        return Connect("local")
    return Connect("ssh", spec, "sudo" if options.become is not None else None, options.python)


def _sudo(text: str) -> None:
    if text != "sudo":
        raise ValueError("only sudo is known; write --become sudo, or omit it")


def _word(text: str) -> None:
    if WORD.fullmatch(text) is None:
        raise ValueError("not a single word; write for example /usr/bin/python3")


def _addresses_of_all(text: str) -> str:
    """Return a network, or ``existing``, that has addresses for both hosts; raises ValueError."""
    addresses_in(text, "sender")
    addresses_in(text, "receiver")
    return text


def _refused(where: str, value: str | None, parse: Callable[[str], object]) -> list[Problem]:
    try:
        if value is not None:
            parse(value)
    except ValueError as error:
        return [Problem(str(error), where, value)]
    return []


def _names(ways: tuple[Connect, Connect]) -> tuple[str, str]:
    """Return the hosts' names: the first labels of their destinations, if these can be names."""
    labels = [_label(way) for way in ways]
    if len(set(labels)) < len(ways) or None in labels:
        return SIDES[0], SIDES[1]
    return labels[0] or "", labels[1] or ""


def _label(way: Connect) -> str | None:
    match = SSH_SPEC.match(way.ssh or LOCAL)
    host = (match["name"] or "") if match is not None else ""
    label = host.partition(".")[0]
    named = NAME.fullmatch(label) is not None and not label.isdigit() and label not in OWN_AGENTS
    return label if named else None


class _Choosing:
    """The choices for one lab, each from an option, a fact or an answer."""

    def __init__(
        self,
        options: InitOptions,
        dialog: Dialog | None,
        say: Callable[[str], None],
        survey: Survey,
    ) -> None:
        self._options = options
        self._dialog = dialog
        self._say = say
        self._survey = survey
        self._hosts = (survey.left, survey.right)

    def text(self) -> str:
        """Return the text of the lab file; raises InputError with all that is missing."""
        pair = self._pair()
        self._warn_of_shared(pair)
        facts = self._survey.facts(pair.left, pair.right)
        self._warn_of_rights(facts)
        addresses = self._addresses(pair)
        proposed = [
            ProposedHost(host, own, addresses_in(addresses, host.role), self._cpus(place, facts))
            for place, (host, own) in enumerate(zip(self._hosts, facts, strict=True))
        ]
        return lab_text(proposed[0], proposed[1], pair, str(self._options.out))

    def _pair(self) -> CablePair:
        """Return the interfaces to use, one of each host."""
        problems = [
            problem
            for side, host, name in zip(SIDES, self._hosts, self._options.interfaces, strict=True)
            for problem in _unknown(side, host, name)
        ]
        if problems:
            raise InputError(problems)
        left, right = self._options.interfaces
        pairs = joined_pairs(*self._hosts, self._proven())
        pairs = tuple(p for p in pairs if left in (None, p.left) and right in (None, p.right))
        for pair in pairs:
            self._say(f"  {pair}")
        only = pairs[0] if len(pairs) == 1 else None
        suggestions = (only.left, only.right) if only is not None else (None, None)
        chosen = [
            self._interface(place, named, suggested)
            for place, (named, suggested) in enumerate(zip((left, right), suggestions, strict=True))
        ]
        missing = [
            _missing_interface(side, host, self._options.probe)
            for side, host, name in zip(SIDES, self._hosts, chosen, strict=True)
            if name is None
        ]
        if missing:
            raise InputError([*missing, *self._command(chosen, pairs)])
        names = (chosen[0] or "", chosen[1] or "")
        known = {(pair.left, pair.right): pair for pair in pairs}
        near, far = (host.interface(name) for host, name in zip(self._hosts, names, strict=True))
        return known.get(names) or CablePair(*names, common_network(near, far), proven=False)

    def _command(
        self, chosen: Sequence[str | None], pairs: Sequence[CablePair]
    ) -> Iterator[Problem]:
        """Yield the command to type, with a proposal for each interface that is not chosen."""
        pair = next(iter(pairs), None)
        joined = (pair.left, pair.right) if pair is not None else (None, None)
        names = [
            own or proposed or _likeliest(host)
            for own, proposed, host in zip(chosen, joined, self._hosts, strict=True)
        ]
        if None not in names:
            options = replace(self._options, interfaces=(names[0], names[1]))
            yield Problem(f"type, with these interfaces or others: {_typed(options)}")

    def _proven(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs of interfaces whose link an ARP request proves, if one may be sent."""
        ends = [
            [
                interface
                for interface in host.usable
                if interface.link == "up" and named in (None, interface.name)
            ]
            for host, named in zip(self._hosts, self._options.interfaces, strict=True)
        ]
        for host, up in zip(self._hosts, ends, strict=True):
            if self._options.probe and not up:
                self._say(f"link not proven: {_none_up(host)}")
        if not all(ends) or not self._may_probe(ends[0]):
            return ()
        try:
            return tuple(self._survey.prove_links(*ends))
        except (AgentError, SafetyError) as error:
            self._say(f"link not proven: {error}")
            return ()

    def _may_probe(self, senders: Sequence[Interface]) -> bool:
        """Return whether the user named these interfaces, or agrees to one request from each."""
        if self._options.probe or self._dialog is None:
            return self._options.probe
        text = f"send one ARP request from {names_of(senders)} of {self._survey.left.name}"
        return self._options.interfaces[0] is not None or self._dialog.confirm(text)

    def _interface(self, place: int, named: str | None, suggested: str | None) -> str | None:
        """Return a host's interface; None if not named or answered, and not the only one."""
        host = self._hosts[place]
        if named is not None or self._dialog is None:
            return named or suggested

        def parse(text: str) -> str:
            if text not in [interface.name for interface in host.interfaces]:
                raise ValueError(f"{host.name} has {names_of(host.interfaces)}")
            return text

        return self._dialog.ask(f"interface of {host.name}", suggested, parse)

    def _warn_of_shared(self, pair: CablePair) -> None:
        """Say what measuring over an interface of SSH means; ask for consent on a terminal."""
        for host, name in zip(self._hosts, (pair.left, pair.right), strict=True):
            if host.interface(name).protected:
                self._say(f"{host.name}: {shared_means(name)}")
                if self._dialog is not None and not self._dialog.confirm(f"use {name}"):
                    step = "name another interface"
                    raise InputError([Problem("not confirmed", host.name, name, "", step)])

    def _warn_of_rights(self, facts: Sequence[Facts]) -> None:
        """Say which hosts would refuse the changes of a run."""
        for host, own in zip(self._hosts, facts, strict=True):
            if own.capabilities.get("net_admin") is False:
                step = (
                    "log in as root, or add --become sudo"
                    if host.connect.by == "ssh"
                    else "run udpbench with sudo"
                )
                self._say(f"{host.name}: its agent may not change network settings; {step}")

    def _addresses(self, pair: CablePair) -> str:
        """Return ``existing`` or a network."""
        named = self._options.addresses
        if named == EXISTING:
            self._refuse_bare(pair)
        if named is not None:
            return named
        proposed = EXISTING if pair.network is not None else free_network(self._hosts)
        if self._dialog is None:
            return proposed

        return self._dialog.ask("addresses: a network, or existing", proposed, _addresses_of_all)

    def _refuse_bare(self, pair: CablePair) -> None:
        """Refuse ``existing`` if an interface has no address."""
        bare = [
            f"{name} of {host.name}"
            for host, name in zip(self._hosts, (pair.left, pair.right), strict=True)
            if not host.interface(name).addresses
        ]
        if bare:
            what, step = f"no address on {', '.join(bare)}", "name a network"
            raise InputError([Problem(what, "--addresses", EXISTING, "", step)])

    def _cpus(self, place: int, facts: Sequence[Facts]) -> str:
        """Return a host's CPUs as the file has them."""
        named, own, host = self._options.cpus[place], facts[place], self._hosts[place]
        if named is not None:
            return named
        proposed = format_cpu_list(proposed_cpus(own, host.role, facts[1 - place]))
        if self._dialog is None:
            return proposed

        def parse(text: str) -> str:
            if lacking := [str(cpu) for cpu in parse_cpus(text) if cpu not in own.cpus]:
                raise ValueError(f"{host.name} has no CPU {', '.join(lacking)}")
            return text

        return self._dialog.ask(f"CPUs of {host.name}", proposed, parse)


def shared_means(interface: str) -> str:
    """Return what measuring over an interface that carries SSH means."""
    return (
        f"{interface} carries the SSH connection or the default route: a load there competes with "
        "control traffic, which every trial reports; settings that might cut the connection "
        "(MTU, rings, channels, link speed, flow control) are refused there"
    )


def _none_up(host: HostSurvey) -> str:
    """Return why no link of a host can be proven, and how to bring one up."""
    down = [interface.name for interface in host.usable if interface.link == "down"]
    step = f"; as root there: ip link set {shlex.quote(down[0])} up" if down else ""
    return f"no interface of {host.name} is up except those that carry SSH{step}"


def _unknown(side: str, host: HostSurvey, name: str | None) -> list[Problem]:
    if name is None or name in [interface.name for interface in host.interfaces]:
        return []
    limit = f"an interface of {host.name}: {names_of(host.interfaces)}"
    return [Problem("no such interface", f"--{side}-interface", name, limit)]


def _likeliest(host: HostSurvey) -> str | None:
    """Return the interface to propose: one that carries no SSH, with a link if there is one."""
    ranked = sorted(host.interfaces, key=lambda each: (each.protected, each.link != "up"))
    return ranked[0].name if ranked else None


def _typed(options: InitOptions) -> str:
    """Return these options as a command line."""
    words = ["udpbench", "init", options.left, options.right]
    values = {
        "--left-interface": options.interfaces[0],
        "--right-interface": options.interfaces[1],
        "--addresses": options.addresses,
        "--left-cpus": options.cpus[0],
        "--right-cpus": options.cpus[1],
        "--become": options.become,
        "--python": options.python,
        "--out": str(options.out) if options.out != InitOptions.out else None,
    }
    for option, value in values.items():
        words += [option, value] if value is not None else []
    return shlex.join([*words, *(["--probe"] if options.probe else [])])


def _missing_interface(side: str, host: HostSurvey, probed: bool) -> Problem:
    """Return the problem with an interface that the user has to name."""
    option = f"--{side}-interface"
    usable = host.usable
    if not usable and host.interfaces:
        name = host.interfaces[0].name
        step = f"to accept that, use {option} {shlex.quote(name)}"
        what = f"missing: {host.name} has no other interface; {shared_means(name)}"
        return Problem(what, option, None, "", step)
    limit = f"an interface of {host.name}: {names_of(usable)}"
    return Problem(
        "missing", option, None, limit, "name one" if probed else "name one, or try --probe"
    )


def _unusable(path: Path, option: str) -> list[Problem]:
    """Return the problem with a file that exists, or whose folder cannot be used."""
    try:
        folder = Folder.open(path.parent)
    except OSError as error:
        what = f"its folder cannot be used: {error.strerror}"
        return [Problem(what, option, str(path), "", "create it, or name a file elsewhere")]
    with folder:
        if path.name not in folder.names():
            return []
    step = "name another file, or move this one away"
    return [Problem("exists and is not overwritten", option, str(path), "", step)]


def _write_new(path: Path, text: str, option: str) -> None:
    """Write a file; raises InputError if there is one."""
    problems = _unusable(path, option)
    if problems:
        raise InputError(problems)
    with Folder.open(path.parent) as folder:
        descriptor = folder.file(path.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
