"""How verbs reach hosts: agents, observers, prompts and leases."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import typer

from udpbench.commands.verbs.output import say
from udpbench.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from udpbench.control.agents import Reach
    from udpbench.control.deployment.deployer import Deployer
    from udpbench.model.lab import Lab


def real_path(path: str | Path) -> str:
    """Return a path without links, as far as there are any; Path.resolve() fails at a loop."""
    return os.path.realpath(path)


class Prompts:
    """The dialog of ``init`` at a terminal."""

    def ask(self, text: str, default: str | None, parse: Callable[[str], str]) -> str:
        """Return an answer that ``parse`` accepts."""

        def read(answer: str) -> str:
            try:
                return parse(answer)
            except ValueError as error:
                raise typer.BadParameter(str(error)) from error

        with _answered():
            return str(typer.prompt(text, default, value_proc=read))

    def confirm(self, text: str) -> bool:
        """Return whether the user agrees."""
        with _answered():
            return typer.confirm(text)


@contextmanager
def _answered() -> Iterator[None]:
    """Raise InputError where the terminal gives no answer."""
    try:
        yield
    except typer.Abort as error:
        raise InputError([Problem("no answer", "init")]) from error


def say_of_host(host: str, text: str) -> None:
    """Print a line about a host, on stderr."""
    say(f"{host}: {text}", sys.stderr)


def reach_hosts(
    lab: Lab,
    no_deploy: bool,
    wheels: Path | None,
    say: Callable[[str, str], None] = say_of_host,
) -> Reach:
    """Return the ways to a lab's hosts; ``say`` reports files sent to one."""
    from udpbench.control.agents import real

    deploys = any(node.connect.by == "ssh" for node in lab.nodes)
    return real(deployer_of(lab, no_deploy, wheels, say) if deploys else None)


def watch_words(
    pid: int | None,
    unit: str | None,
    exact: bool,
    cpu_time: bool = False,
    port: int | None = None,
) -> tuple[str, ...]:
    """Return what an observer is started with; it gives up the right to it before it answers."""
    named = [f"pid:{pid}"] * (pid is not None) + [f"unit:{unit}"] * (unit is not None)
    counted = ["exact", *([f"reasons:{port}"] if port is not None else [])] if exact else []
    return (*named, *counted, *(["cpu-time"] if cpu_time else []))


def reach_observers(lab: Lab, no_deploy: bool, wheels: Path | None, *words: str) -> Reach:
    """Return the ways to a lab's hosts for who only looks."""
    from udpbench.control.agents import observing

    return observing(words, deployer_of(lab, no_deploy, wheels))


def deployer_of(
    lab: Lab,
    no_deploy: bool,
    wheels: Path | None,
    say: Callable[[str, str], None] = say_of_host,
) -> Deployer:
    """Return what installs agents on hosts where they are missing."""
    from udpbench.control.deployment.deployer import Deployer

    step = f"send it: udpbench deploy --lab {quote(lab.path)}, or omit --no-deploy"
    return Deployer(say, wheels, step if no_deploy else None)


def parse_lease(text: str) -> int:
    """Return a lease in ns; raises InputError."""
    from udpbench.units import parse_duration

    try:
        lease_ns = parse_duration(text)
    except ValueError as error:
        raise InputError([Problem(str(error), "--lease", text)]) from error
    if not 10**9 <= lease_ns <= 3600 * 10**9:
        raise InputError([Problem("out of range", "--lease", text, "1s to 1h")])
    return lease_ns
