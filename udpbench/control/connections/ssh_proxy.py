"""A ProxyCommand: a program whose stdin and stdout carry an SSH connection.

paramiko's own has no shell and runs in the terminal's process group, where Ctrl-C would end the
connection that restoring the host needs.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import tempfile

from udpbench.printable import printable

END_S = 2.0
"""For the program to end after its stdin has; ssh -W takes a few milliseconds."""
WORDS_S = 0.2
WORDS_BYTES = 500


class Proxy:
    """One running ProxyCommand; ``socket`` is our end."""

    def __init__(self, command: str) -> None:
        # Not its arguments: they may hold a secret, and messages go into records.
        self._program = command.split()[0]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self.socket, theirs = socket.socketpair()
        with theirs:
            # `exec` by the shell, as ssh_config(5) has it.
            self._process = subprocess.Popen(
                ("/bin/sh", "-c", f"exec {command}"),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._errors,
                start_new_session=True,
            )

    def last_words(self) -> str:
        """Return the end of the program's stderr, and its exit status if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(WORDS_S)  # its pipe closes a little before it ends
        status = self._process.returncode
        self._errors.seek(0)
        words = self._errors.read()[-WORDS_BYTES:].decode(errors="replace")
        words = printable(" | ".join(words.strip().split("\n")), keep="")
        state = "is running" if status is None else f"ended with status {status}"
        output = f" and printed: {words}" if words else ""
        return f"ProxyCommand {self._program} {state}{output}"

    def close(self, limit_s: float = END_S) -> None:
        """End the program by closing its stdin, then by SIGTERM, then by SIGKILL."""
        self.socket.close()
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            self._process.send_signal(number)
            try:
                self._process.wait(limit_s)
            except subprocess.TimeoutExpired:
                continue
            break
        self._errors.close()
