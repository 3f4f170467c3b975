"""The agent: ``python -m udpbench.agent.serve [NETNS]`` speaks ``protocol`` on stdin and stdout.

One thread, one loop over requests, workers, signals and timers. Whatever ends it (end of stdin,
the lease, SIGTERM, SIGHUP), it ends its workers and restores settings; the exit status is 0 if
everything was restored, else 4. Stray prints go to stderr. An agent with a door treats the end of
stdin as a lost connection and runs until its controller reconnects or its lease expires.
"""

from __future__ import annotations

import contextlib
import sys

from udpbench.agent.host.namespace import enter_named, settle
from udpbench.agent.host.system import Host
from udpbench.agent.loop import STDIN_ENDED, Loop, open_pipes
from udpbench.agent.session import Session
from udpbench.errors import HostError, RestoreError, in_words


def end(session: Session, why: str) -> int:
    """End the workers, restore settings, print the reason and return the exit status.

    The end of stdin is not printed, because every run ends that way.
    """
    status, result = 0, "restored"
    try:
        if session.verbs is not None:
            session.verbs.end()
    except RestoreError as error:
        status, result = RestoreError.exit_code, f"not restored: {error}"
    except Exception as error:  # noqa: BLE001 - after a bug, settings may still be in force
        what = f"{type(error).__name__}: {error}"
        result = f"settings may not be restored: {what}; type: udpbench restore"
        status = RestoreError.exit_code
    if why != STDIN_ENDED or status != 0:
        # If the controller died, nobody reads stderr.
        with contextlib.suppress(OSError):
            print(f"udpbench agent: {why}; {result}", file=sys.stderr, flush=True)
    return status


def main(settled: bool = False, name: str = "") -> int:
    """Run the agent until something ends it; ``settled``: in namespaces that are set up.

    ``name``: in a namespace that ``ip netns`` lists.
    """
    replies = open_pipes()
    host = Host()
    try:
        if name:
            enter_named(host, name)
        elif not settled:
            settle(host)
    except OSError as error:
        print(f"udpbench agent: not started: {in_words(error)}", file=sys.stderr)
        return HostError.exit_code
    session = Session(host)
    why = "a bug"
    try:
        why = Loop(session, 0, replies).run()
    except HostError as error:
        why = str(error)
    finally:
        status = end(session, why)
        if session.door is not None:
            session.door.close(status)
    return status


if __name__ == "__main__":
    sys.exit(main(name="".join(sys.argv[1:2])))
