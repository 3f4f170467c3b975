"""A link with a delay: ``slow_link.py SECONDS COMMAND...`` holds back each byte in both directions."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import deque


def carry(source: int, sink: int, delay_s: float) -> None:
    """Write what was read, so much later, in its order; then close the sink."""
    held: deque[tuple[float, bytes]] = deque()
    come = threading.Semaphore(0)

    def write() -> None:
        while True:
            come.acquire()
            due, data = held.popleft()
            time.sleep(max(due - time.monotonic(), 0))
            if not data:
                os.close(sink)
                return
            os.write(sink, data)

    threading.Thread(target=write, daemon=True).start()
    while True:
        data = os.read(source, 65536)
        held.append((time.monotonic() + delay_s, data))
        come.release()
        if not data:
            return


def main(seconds: str, *command: str) -> int:
    """Run the command behind the link until it ends."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    ends = ((0, os.dup(process.stdin.fileno())), (process.stdout.fileno(), 1))
    process.stdin.close()
    for source, sink in ends:
        threading.Thread(target=carry, args=(source, sink, float(seconds)), daemon=True).start()
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
