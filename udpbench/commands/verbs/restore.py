"""The verb ``restore``."""

from __future__ import annotations

from typing import Annotated

import typer

from udpbench.commands.verbs.options import LabName, NoDeploy, Wheels
from udpbench.commands.verbs.output import say
from udpbench.commands.verbs.reach import reach_hosts


def restore(
    lab: LabName = "local",
    force: Annotated[
        bool, typer.Option("--force", help="also overwrite what others have changed since")
    ] = False,
    no_deploy: NoDeploy = False,
    wheels: Wheels = None,
) -> None:
    """Undo the changes that a killed run left on the hosts."""
    from udpbench.control.lab_lock import Surroundings
    from udpbench.control.run import restore_lab
    from udpbench.definition.load import load_lab
    from udpbench.report.live import tell_wait
    from udpbench.setting_kinds import show_values

    chosen_lab = load_lab(lab)
    around = Surroundings(reach_hosts(chosen_lab, no_deploy, wheels))
    restored = restore_lab(chosen_lab, force, around, tell_wait)
    for host, changes in restored.undone.items():
        for change in changes:
            setting = change.setting
            values = " → ".join(show_values(setting.kind, change.before, change.after))
            say(f"{host}: {setting.kind} {setting.target}: {values}")
    for note in restored.unseen:
        say(note)
    if not any(restored.undone.values()):
        print(f"nothing {'of this user ' if restored.unseen else ''}was left behind")
