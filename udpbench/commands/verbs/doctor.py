"""The verb ``doctor``."""

from __future__ import annotations

from typing import Annotated

import typer

from udpbench.commands.verbs.options import LabName, NoDeploy, Wheels
from udpbench.commands.verbs.output import open_console, print_json, reader_may_leave
from udpbench.commands.verbs.reach import reach_observers
from udpbench.errors import NO, YES


def doctor(
    lab: LabName = "local",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON with stable keys")] = False,
    no_deploy: NoDeploy = False,
    wheels: Wheels = None,
) -> None:
    """List what would distort a measurement on the hosts.

    Changes nothing there except that it installs the agent (not with --no-deploy).
    """
    from udpbench.analysis.doctor import assess
    from udpbench.control.doctor import examine
    from udpbench.control.lab_lock import Surroundings
    from udpbench.definition.load import load_lab
    from udpbench.report.doctor import is_ready, print_readiness, readiness_json

    chosen_lab = load_lab(lab)
    around = Surroundings(reach_observers(chosen_lab, no_deploy, wheels, "firewall"))
    results = assess(examine(chosen_lab, around), chosen_lab)
    with reader_may_leave():
        if as_json:
            print_json(readiness_json(results, chosen_lab))
        else:
            print_readiness(open_console(), results)
    raise typer.Exit(YES if is_ready(results) else NO)
