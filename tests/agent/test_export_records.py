"""The exporter's recorder runs as a service does: by the oldest Python, with nothing but a build."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 60
START = "from udpbench.export.service import main; main('1')"


def test_it_records_and_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    """With whole lines, the first of which is the whole state."""
    folder = tmp_path / "flight"
    command = (sys.executable, "-c", START, "--record", str(folder), "--at-most", "16MiB")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        end_s = time.monotonic() + LIMIT_S
        while not any(b"whole" in file.read_bytes() for file in folder.glob("looks-*")):
            assert time.monotonic() < end_s
            assert process.poll() is None, process.communicate()[1]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert (0, "") == (process.returncode, errors)
    (segment,) = folder.glob("looks-*")
    lines = [json.loads(line) for line in segment.read_text().splitlines()]
    assert ["schema", "version", "build"] == [*lines[0]]
    assert all({"whole", "look"} & line.keys() for line in lines[1:])
