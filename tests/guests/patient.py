"""udpbench's command line with longer deadlines: a guest without KVM is some thirty times slower than a host."""

import sys
from dataclasses import replace
from pathlib import Path

from udpbench import protocol
from udpbench.__main__ import main
from udpbench.control import drain, phase
from udpbench.control.deployment import bundle

AGENTS = Path(__file__).with_name("patient_agents") / "sitecustomize.py"
"""Behind the package's first file, which agents of any build may differ in; local agents find it themselves."""
TIMES = 12

for name, verb in protocol.VERBS.items():
    protocol.VERBS[name] = replace(verb, limit_s=TIMES * verb.limit_s)
drain.STALL_NS *= TIMES
for name in ("SENDERS_GRACE_NS", "STOP_NS", "PATH_LIMIT_NS"):
    setattr(phase, name, TIMES * getattr(phase, name))
own_files = bundle._own_files
first = "udpbench/__init__.py"
bundle._own_files = lambda: own_files() | {first: own_files()[first] + AGENTS.read_bytes()}

if __name__ == "__main__":
    sys.exit(main())
