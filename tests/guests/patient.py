"""udpbench's command line with longer deadlines: a guest without KVM is some thirty times slower than a host."""

import sys
from dataclasses import replace

from udpbench import protocol
from udpbench.__main__ import main
from udpbench.control import phase

TIMES = 12

for name, verb in protocol.VERBS.items():
    protocol.VERBS[name] = replace(verb, limit_s=TIMES * verb.limit_s)
for name in ("STALL_NS", "SENDERS_GRACE_NS", "STOP_NS", "PATH_LIMIT_NS"):
    setattr(phase, name, TIMES * getattr(phase, name))

if __name__ == "__main__":
    sys.exit(main())
