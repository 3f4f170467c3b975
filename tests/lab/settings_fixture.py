"""A process inside network namespaces of its own that applies settings as an agent does.

``Inside`` starts this very file there and talks to it in JSON lines; whatever it changes is in
namespaces that end with it. Kept apart from the real agent so that settings can fail on their own.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

DEADLINE_S = 20.0
ROOT = Path(__file__).parents[2]
ENTER = ["unshare", "--net", "--mount"]
MAC, PEER_MAC = "02:00:00:00:00:01", "02:00:00:00:00:02"


class Refused(Exception):
    """What the process inside answered instead of a result: the error's class and its message."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class Inside:
    """One process in a network and mount namespace, with its own /sys and an empty /run."""

    def __init__(self, enter: list[str] | None = None) -> None:
        command = [*(enter or ENTER), sys.executable, __file__]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        self.pid = self.call("pid", mount=enter is None)

    def call(self, verb: str, **args: Any) -> Any:
        """Return the result of one call, within the deadline; Refused where it raised."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"verb": verb, **args}).encode() + b"\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
        assert ready, f"no answer to {verb} within {DEADLINE_S:g} s"
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise Refused(answer["error"], answer["message"])
        return answer["result"]

    def apply(self, *settings: dict[str, Any]) -> list[dict[str, Any]]:
        """Apply settings and return the changes."""
        return self.call("apply", settings=list(settings))

    def shell(self, command: str) -> str:
        """Return what a command prints inside; Refused where it fails."""
        return self.call("shell", command=command)

    def kill(self) -> None:
        """End the process by SIGKILL."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End the process and its pipes."""
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def setting(kind: str, target: str, value: Any, **more: Any) -> dict[str, Any]:
    """Return one setting as it crosses the wire."""
    return {"kind": kind, "target": target, "value": value, **more}


def link(peer_pid: int, queues: int = 2) -> dict[str, Any]:
    """Return the setting of the lab's veth pair."""
    value = {
        "peer": "send0",
        "peer_pid": peer_pid,
        "peer_mac": PEER_MAC,
        "mac": MAC,
        "queues": queues,
    }
    return setting("link", "receive0", value)


# --- inside --------------------------------------------------------------------------------------

QUEUE_FILES = "/sys/class/net/*/queues/*/*_cpus /sys/class/net/*/threaded"
DEVICE_FILES = "/sys/class/net/*/napi_defer_hard_irqs /sys/class/net/*/gro_flush_timeout"
STATE = {
    "links": "ip -j link",
    "addresses": "ip -j address",
    "neighbours": "ip -j neighbour show nud permanent",
    "qdiscs": "tc qdisc",
    "queues": f"grep . {QUEUE_FILES} 2>/dev/null; true",
    "devices": f"grep . {DEVICE_FILES}",
    "sysctls": "sysctl -a --pattern '^net' 2>/dev/null",
    "threads": "for p in $(pgrep '^napi/receive0-'); do taskset -cp $p | sed s/.*list//; done",
    "features": "for i in $(ls /sys/class/net); do ethtool -k $i; done",
}


def shell(command: str) -> str:
    """Return what a command prints; RuntimeError where it fails."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr or done.stdout}")
    return done.stdout


def visible() -> dict[str, str]:
    """Return everything an administrator would look at, word by word."""
    commands = {name: text for name, text in STATE.items() if shutil.which(text.split()[0])}
    if not shutil.which("ethtool"):
        del commands["features"]
    return {name: shell(command) for name, command in commands.items()}


class Server:
    """The calls of the process inside."""

    def __init__(self) -> None:
        self.engine: Any = None
        self.guardian: Any = None

    def pid(self, mount: bool) -> int:
        """Get a /sys and a /run of its own."""
        if mount:
            shell("mount --make-rprivate / && mount -t sysfs sysfs /sys && mount -t tmpfs t /run")
        return os.getpid()

    def open(self, run: str, guarded: bool = False) -> dict[str, Any]:
        """Make an engine, and a guardian if asked."""
        from udpbench.agent.guardian import Guardian
        from udpbench.agent.host import Host
        from udpbench.agent.journal import Journal
        from udpbench.agent.settings.engine import Engine

        host = Host()
        journal = Journal(host, run)
        if guarded:
            self.guardian = Guardian.start(host, journal)
        self.engine = Engine(host, journal, ["namespace"])
        pid = self.guardian.process.pid if guarded else None
        return {"journal": str(journal.path), "guardian": pid}

    def apply(self, settings: list[dict[str, Any]]) -> Any:
        """Apply."""
        from udpbench.model import Setting
        from udpbench.protocol import encode

        if self.engine is None:
            self.open("test")
        return encode(self.engine.apply([Setting(**plain) for plain in settings]))

    def restore(self) -> Any:
        """Restore."""
        from udpbench.protocol import encode

        return encode(self.engine.restore())

    def by_hand(self, settings: list[dict[str, Any]], values: list[Any]) -> list[str]:
        """Return the commands that would set values by hand."""
        from udpbench.agent.settings import by_hand
        from udpbench.model import Setting

        pairs = zip(settings, values, strict=True)
        return [by_hand.command(Setting(**plain), value) for plain, value in pairs]

    def shell(self, command: str) -> str:
        """Run a command."""
        return shell(command)

    def visible(self) -> dict[str, str]:
        """Return the whole visible state."""
        return visible()


def serve() -> None:
    """Answer calls until stdin ends."""
    server = Server()
    for line in sys.stdin:
        call = json.loads(line)
        try:
            answer = {"result": getattr(server, call.pop("verb"))(**call)}
        except Exception as error:  # noqa: BLE001 - every error is the test's to judge
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
