"""A ProxyCommand: a program whose stdin and stdout carry an SSH connection.

paramiko has one, too, but without a shell, and in the terminal's process group, where Ctrl-C would
end the connection over which a host is still to be restored.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import tempfile

END_S = 2.0
"""For the program to end once its stdin has; ssh -W takes some milliseconds."""
WORDS_S = 0.2
WORDS_BYTES = 500


class Proxy:
    """One running ProxyCommand; ``socket`` is our end."""

    def __init__(self, command: str) -> None:
        self._command = command
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
        """Return what the program said on stderr, and how it ended, if it has."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(WORDS_S)  # its pipe ends a little before itself
        status = self._process.returncode
        self._errors.seek(0)
        words = self._errors.read()[-WORDS_BYTES:].decode(errors="replace").strip()
        how = "runs" if status is None else f"ended with status {status}"
        said = f" and said: {words}" if words else ""
        return f"ProxyCommand {self._command!r} {how}{said}"

    def close(self, limit_s: float = END_S) -> None:
        """End the program: its stdin ends, then by SIGTERM, then by SIGKILL."""
        self.socket.close()
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            self._process.send_signal(number)
            try:
                self._process.wait(limit_s)
            except subprocess.TimeoutExpired:
                continue
            break
        self._errors.close()
