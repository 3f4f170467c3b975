"""The verb ``facts``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from udpbench.commands.verbs.options import LabName, NoDeploy, Wheels
from udpbench.commands.verbs.output import own_version, say
from udpbench.commands.verbs.reach import reach_observers


def facts(
    lab: LabName = "local",
    out: Annotated[Path, typer.Option(help="file to write")] = Path("facts.json"),
    no_deploy: NoDeploy = False,
    wheels: Wheels = None,
) -> None:
    """Write what the hosts report about themselves to an anonymized file, for a bug report."""
    from udpbench.commands.recorded_hosts import write_recorded
    from udpbench.control.lab_lock import Surroundings
    from udpbench.definition.load import load_lab

    chosen_lab = load_lab(lab)
    around = Surroundings(reach_observers(chosen_lab, no_deploy, wheels, "firewall"))
    path = write_recorded(chosen_lab, out, around, own_version())
    say(f"recorded: {path}; names and addresses are replaced; read it before you send it")
