"""udpbench's command line with longer deadlines: a guest without KVM is some thirty times slower than a host."""

import sys
from dataclasses import replace

from udpbench import protocol
from udpbench.__main__ import main
from udpbench.control import drain, phase
from udpbench.control.deployment import bundle

TIMES = 12
AGENTS = f"""
from udpbench.agent.settings import guardian
from udpbench.agent.workers.process_client import Limits
guardian.START_TIMEOUT_S *= {TIMES}
Limits.__init__.__defaults__ = tuple({TIMES} * limit for limit in Limits.__init__.__defaults__)
"""
"""Behind the package's first file, which agents of any build may differ in."""

for name, verb in protocol.VERBS.items():
    protocol.VERBS[name] = replace(verb, limit_s=TIMES * verb.limit_s)
drain.STALL_NS *= TIMES
for name in ("SENDERS_GRACE_NS", "STOP_NS", "PATH_LIMIT_NS"):
    setattr(phase, name, TIMES * getattr(phase, name))
own_files = bundle._own_files
first = "udpbench/__init__.py"
bundle._own_files = lambda: own_files() | {first: own_files()[first] + AGENTS.encode()}

if __name__ == "__main__":
    sys.exit(main())
