"""Commands as an ordinary user, who can reach this very interpreter and package wherever they lie.

A checkout or an interpreter below a folder that is closed to others, such as /root, is shown to the
user through an open folder laid over it, in a mount namespace that ends with the command.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import udpbench

USER = 65534
"""nobody, who owns nothing."""
ROOT = Path(udpbench.__file__).parents[1]


def closed_above(path: Path) -> Path | None:
    """Return the topmost folder on the way to a path that others may not pass; None if open."""
    for folder in reversed(path.parents):
        if not folder.stat().st_mode & 0o001:
            return folder
    return None


def opening(aside: Path) -> list[str]:
    """Return the shell commands that open the way; ``aside`` is a folder to keep things in."""
    needed = {Path(place).resolve() for place in (sys.prefix, sys.base_prefix, ROOT)}
    closed: dict[Path, list[Path]] = {}
    for path in sorted(needed):
        above = closed_above(path)
        if above is not None:
            closed.setdefault(above, []).append(path)
    words = []
    for number, (folder, paths) in enumerate(closed.items()):
        for k, path in enumerate(paths):
            words.append(shlex.join(["mkdir", "-p", f"{aside}/{number}-{k}"]))
            words.append(shlex.join(["mount", "--bind", str(path), f"{aside}/{number}-{k}"]))
        words.append(shlex.join(["mount", "-t", "tmpfs", "-o", "mode=0755", "none", str(folder)]))
        for k, path in enumerate(paths):
            words.append(shlex.join(["mkdir", "-p", str(path)]))
            words.append(shlex.join(["mount", "--bind", f"{aside}/{number}-{k}", str(path)]))
    return words


def run_as_user(
    command: list[str], home: Path, timeout_s: float = 120, changed_root: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command in ``home`` as an ordinary user.

    ``changed_root``: behind chroot(2), to the same files. There the kernel lets no user make a user
    namespace (user_namespaces(7)).
    """
    home.mkdir(parents=True, exist_ok=True)
    for folder in (home, *home.parents):
        if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o111)
    os.chown(home, USER, USER)
    aside = home.parent / f"{home.name}-aside"
    steps = opening(aside)
    words = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *command]
    if changed_root:
        root = aside / "root"
        steps += [f"mkdir -p {root}", f"mount --rbind / {root}"]
        words = ["chroot", str(root), "env", f"--chdir={home}", *words]
    return subprocess.run(
        (
            *("unshare", "--mount", "--propagation", "private", "sh", "-ec"),
            "\n".join([*steps, f"exec {shlex.join(words)}"]),
        ),
        cwd=home,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "MPLCONFIGDIR": str(home),
            "NO_COLOR": "1",
            "COLUMNS": "120",
        },
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
