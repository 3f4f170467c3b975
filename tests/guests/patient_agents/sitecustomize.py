"""Longer deadlines in guests; Python imports it at its start, or an agent with its package."""

import sys
from contextlib import suppress
from dataclasses import replace

TIMES = 12

with suppress(ImportError):  # of a Python without udpbench, such as that of a user's program
    from udpbench.agent.settings import guardian
    from udpbench.agent.workers.process_client import Limits

    guardian.START_TIMEOUT_S *= TIMES
    Limits.__init__.__defaults__ = tuple(TIMES * limit for limit in Limits.__init__.__defaults__)

    started_as = getattr(sys, "orig_argv", ())  # from Python 3.10 on, as the controller is
    if any(word.endswith(("/udpbench", ".py", "/pytest")) for word in started_as):
        from udpbench import protocol
        from udpbench.control import drain, phase

        for name, verb in protocol.VERBS.items():
            protocol.VERBS[name] = replace(verb, limit_s=TIMES * verb.limit_s)
        drain.STALL_NS *= TIMES
        for name in ("SENDERS_GRACE_NS", "STOP_NS", "PATH_LIMIT_NS"):
            setattr(phase, name, TIMES * getattr(phase, name))
