"""Longer deadlines of agents in guests; Python imports it at its start, or an agent with its package."""

from contextlib import suppress

TIMES = 12

with suppress(ImportError):  # of a Python without udpbench, such as that of a user's program
    from udpbench.agent.settings import guardian
    from udpbench.agent.workers.process_client import Limits

    guardian.START_TIMEOUT_S *= TIMES
    Limits.__init__.__defaults__ = tuple(TIMES * limit for limit in Limits.__init__.__defaults__)
