"""udpbench's command line, which also prints the phases of each trial, for a test waits for them.

Its deadlines are longer, and CPUs are sampled less often: a guest without KVM is some thirty times slower than a host.
"""

import runpy
import sys
from pathlib import Path

from udpbench.__main__ import main
from udpbench.control import phase
from udpbench.control.deployment import bundle
from udpbench.report import live

AGENTS = Path(__file__).with_name("patient_agents") / "sitecustomize.py"
"""Behind the package's first file, which agents of any build may differ in; local agents find it themselves."""

if not hasattr(sys.modules.get("sitecustomize"), "TIMES"):
    runpy.run_path(str(AGENTS))
phase.CPU_FREQUENCY = 97
live.SHOWN_EVENTS += ("phase",)
own_files = bundle._own_files
first = "udpbench/__init__.py"
bundle._own_files = lambda: own_files() | {first: own_files()[first] + AGENTS.read_bytes()}

if __name__ == "__main__":
    sys.exit(main())
