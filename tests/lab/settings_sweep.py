"""Every sysctl of a network namespace set to another value and restored, and what differs then.

Runs in the process that ``settings_fixture`` starts there.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from settings_fixture import shell

from udpbench.agent.host.system import Host
from udpbench.agent.settings.engine import Engine
from udpbench.agent.settings.journal import Journal
from udpbench.definition.binding.setting_order import is_machine_wide
from udpbench.errors import SettingRefused
from udpbench.model.host import Setting

ROOT = Path("/proc/sys/net")
GROUP = 16
"""Parameters between two looks at all of them, which take 30 ms."""
OTHERS_NAMES = ("/conf/lo/", "/neigh/lo/")
ADDED = "ip -o address; ip route show table all; ip -6 route show table all | sort; ip neigh"


def differences_after_restoring() -> tuple[int, list[str]]:
    """Return how many parameters took another value, and what differs after their restore."""
    host = Host()
    engine = Engine(host, Journal(host, "sweep"), ["namespace"])
    names = [name for name in _readable() if not any(other in name for other in OTHERS_NAMES)]
    names = [name for name in names if not is_machine_wide(name)]
    before, taken, differing = _looked(), 0, []
    for _, numbered in groupby(enumerate(names), lambda pair: pair[0] // GROUP):
        group = [name for _, name in numbered]
        taken += sum(_is_changed(engine, name) for name in group)
        now = _looked()
        differing += [
            f"{name}: {before.get(name)} -> {now.get(name)} in {group[0]}..{group[-1]}"
            for name in sorted({*before, *now})
            if before.get(name) != now.get(name)
        ]
        before = now
    return taken, differing


def _is_changed(engine: Engine, name: str) -> bool:
    """Set a parameter to the next value that the kernel takes, and restore it."""
    text = (ROOT.parent / name).read_text().strip()
    if not text.lstrip("-").isdigit():
        return False
    value = int(text)
    for other in (1 - value,) if value in (0, 1) else (value - 1, value + 1, value * 2):
        try:
            engine.apply([Setting("sysctl", name, other)])
        except SettingRefused:
            continue
        engine.restore()
        return True
    return False


def _readable() -> list[str]:
    names = []
    for path in sorted(ROOT.rglob("*")):
        if path.is_file() and path.stat().st_mode & 0o600 == 0o600:
            try:
                path.read_text()
            except OSError:  # net.ipv6.conf.*.stable_secret before it is set
                continue
            names.append(str(path.relative_to(ROOT.parent)))
    return names


def _looked() -> dict[str, str]:
    values = {name: (ROOT.parent / name).read_text() for name in _readable()}
    return {**values, **{f"ip:{line}": "" for line in shell(ADDED).splitlines()}}
