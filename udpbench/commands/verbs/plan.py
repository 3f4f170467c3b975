"""The verb ``plan``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from udpbench.commands.verbs.options import AllowRead, LabName, Names, NoDeploy, Sets, Wheels
from udpbench.commands.verbs.output import open_console
from udpbench.commands.verbs.reach import reach_hosts
from udpbench.commands.verbs.run import launch_early, load_definitions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from udpbench.control.plan import Rehearsed


def plan(
    names: Names,
    lab: LabName = "local",
    sets: Sets = None,
    allow_read: AllowRead = None,
    no_deploy: NoDeploy = False,
    wheels: Wheels = None,
) -> None:
    """Show what would run, be skipped, and change on the hosts."""
    launch_early(None if lab == "local" else lab, None)
    experiments, chosen_lab = load_definitions(names, lab, sets, allow_read)
    from udpbench.commands.resume import acts_on_receivers
    from udpbench.control.plan import rehearse
    from udpbench.definition.lab_limits import idle_readers
    from udpbench.report.plan import print_rehearsal, print_skips, print_trials

    console = open_console()
    print_trials(console, experiments, chosen_lab.built_in)
    acts = dict.fromkeys(acts_on_receivers(experiments, chosen_lab))
    for line in (*acts, *idle_readers(experiments, chosen_lab)):
        console.print(line, markup=False, highlight=False)
    rehearsals: Sequence[Rehearsed] = rehearse(
        experiments, chosen_lab, reach_hosts(chosen_lab, no_deploy, wheels)
    )
    print_rehearsal(console, [rehearsal for rehearsal in rehearsals if rehearsal.trials])
    print_skips(
        console, {name: why for rehearsal in rehearsals for name, why in rehearsal.skipped.items()}
    )
