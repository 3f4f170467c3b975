"""Where the results of ``selftest`` are kept: a file for each build of the kernel.

Root's are in /var/lib/udpbench/selftest, a user's in their cache. A file is trusted only if nobody
but root and the user could have written it; damaged and untrusted files are ignored.
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
from udpbench.model.host import KERNEL_BUILD, Facts
from udpbench.model.record import SelfTest

SYSTEM = "/var/lib/udpbench/selftest"
SIZE_BYTES = 2**20
"""Many times the size of a result."""
_SELFTEST: TypeAdapter[SelfTest] = TypeAdapter(SelfTest)


def place() -> Path:
    """Return the folder of this user's results; with sudo, root's, whatever HOME is."""
    if os.geteuid() == 0:
        return Path(SYSTEM)
    given = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(given) if given.startswith("/") else Path(home()) / ".cache"
    return cache / "udpbench" / "selftest"


def file_name(kernel: str, build: str) -> str:
    """Return a readable name, unique to one build of a kernel."""
    digest = hashlib.sha256(f"{kernel}\n{build}".encode()).hexdigest()[:16]
    return f"{re.sub(r'[^A-Za-z0-9._+-]', '_', kernel)[:100].lstrip('.')}-{digest}.json"


def keep(selftest: SelfTest) -> Path:
    """Store a result, replacing an earlier one of the same build; raises RecordError."""
    folder = place()
    path = folder / file_name(selftest.kernel, selftest.build)
    try:
        with Folder.open(folder, make=True, give=False) as held:
            held.write(path.name, _SELFTEST.dump_json(selftest, indent=1))
        why = distrust(str(path), os.geteuid())
    except OSError as error:
        why = error.strerror
    if why is not None:
        step = "make that folder writable by its owner only, then try again"
        raise RecordError(f"{folder}: cannot keep the result for later runs: {why}; {step}")
    return path


def kept(facts: Facts) -> SelfTest | None:
    """Return what was proven for a host's kernel; None if it was never tested."""
    build = facts.environment.get(KERNEL_BUILD, "")
    path = place() / file_name(facts.kernel, build)
    with suppress(OSError, ValidationError):
        if distrust(str(path), os.geteuid()) is None:
            with open_regular(path) as file:
                selftest = _SELFTEST.validate_json(file.read(SIZE_BYTES))
            if (selftest.kernel, selftest.build) == (facts.kernel, build):
                return selftest
    return None
