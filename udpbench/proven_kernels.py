"""Where the results of ``selftest`` are kept: a file for each build of the kernel.

Root's are in /var/lib/udpbench/selftest, a user's in their cache. Nothing is believed that anybody
but root and the user could have written; one that is damaged or distrusted is none.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from udpbench.agent.install import distrust, home
from udpbench.errors import RecordError
from udpbench.folder import Folder
from udpbench.json_lines import open_regular
from udpbench.model import KERNEL_BUILD, Facts, SelfTest

SYSTEM = "/var/lib/udpbench/selftest"
SIZE_BYTES = 2**20
"""Many times what a result takes."""
_SELFTEST: TypeAdapter[SelfTest] = TypeAdapter(SelfTest)


def place() -> Path:
    """Return the folder of this user's results; with sudo root's, whatever HOME is."""
    if os.geteuid() == 0:
        return Path(SYSTEM)
    given = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(given) if given.startswith("/") else Path(home()) / ".cache"
    return cache / "udpbench" / "selftest"


def file_name(kernel: str, build: str) -> str:
    """Return a readable name that no other build of a kernel has."""
    digest = hashlib.sha256(f"{kernel}\n{build}".encode()).hexdigest()[:16]
    return f"{re.sub(r'[^A-Za-z0-9._+-]', '_', kernel)[:100].lstrip('.')}-{digest}.json"


def keep(selftest: SelfTest) -> Path:
    """Store a result in place of an earlier one of the same build; RecordError if it cannot be."""
    folder = place()
    path = folder / file_name(selftest.kernel, selftest.build)
    try:
        with Folder.open(folder, make=True) as held:
            held.write(path.name, _SELFTEST.dump_json(selftest, indent=1))
        why = distrust(str(path), os.geteuid())
    except OSError as error:
        why = error.strerror
    if why is not None:
        step = "make that folder writable for its owner alone, then try again"
        raise RecordError(f"{folder}: the result cannot be kept for later runs: {why}; {step}")
    return path


def kept(facts: Facts) -> SelfTest | None:
    """Return what was proven of a host's kernel; None if it was never tried."""
    build = facts.environment.get(KERNEL_BUILD, "")
    path = place() / file_name(facts.kernel, build)
    with suppress(OSError, ValidationError):
        if distrust(str(path), os.geteuid()) is None:
            with open_regular(path) as file:
                selftest = _SELFTEST.validate_json(file.read(SIZE_BYTES))
            if (selftest.kernel, selftest.build) == (facts.kernel, build):
                return selftest
    return None
