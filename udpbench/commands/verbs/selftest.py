"""The verb ``selftest``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from udpbench.commands.verbs.options import LabName, NoDeploy, Wheels
from udpbench.commands.verbs.output import open_console, print_json, reader_may_leave, say
from udpbench.commands.verbs.reach import deployer_of
from udpbench.errors import UdpbenchError, worst_code

if TYPE_CHECKING:
    from udpbench.model.record import SelfTest


def selftest(
    lab: LabName = "local",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON with stable keys")] = False,
    no_deploy: NoDeploy = False,
    wheels: Wheels = None,
) -> None:
    """Test the ledger on each kernel of a lab: lose packets on purpose at each stage."""
    from udpbench.analysis.ledger.selftest import exit_code
    from udpbench.commands.selftest import THIS_MACHINE, try_hosts
    from udpbench.definition.load import load_lab
    from udpbench.report.live import tell_wait
    from udpbench.report.selftest import failure_json, print_selftest, selftest_json

    chosen_lab = load_lab(lab)
    by_host, proven, codes = {}, [], []
    deployer = deployer_of(chosen_lab, no_deploy, wheels)
    for host, tried in try_hosts(chosen_lab, tell_wait, deployer):
        name = "" if host == THIS_MACHINE else host
        if isinstance(tried, UdpbenchError):
            by_host[host] = failure_json(tried)
            codes.append(tried.exit_code)
            named = not name or str(tried).startswith(f"{name}: ")
            say(tried if named else f"{name}: {tried}", sys.stderr)
            continue
        by_host[host] = selftest_json(tried)
        codes.append(exit_code(tried))
        if as_json:
            proven.append(tried)
            continue
        with reader_may_leave():
            print_selftest(open_console(), tried, name)
        _keep_proof(tried)
    if as_json:
        shown = by_host.get(THIS_MACHINE) if set(by_host) == {THIS_MACHINE} else by_host
        with reader_may_leave():
            print_json(shown)
        for tried in proven:
            _keep_proof(tried)
    raise typer.Exit(worst_code(codes))


def _keep_proof(tried: SelfTest) -> None:
    """Keep a complete result for later runs, and say where, or why not."""
    from udpbench.proven_kernels import keep
    from udpbench.report.selftest import not_kept

    why_not = not_kept(tried)
    say(why_not if why_not is not None else f"kept for later runs: {keep(tried)}", sys.stderr)
