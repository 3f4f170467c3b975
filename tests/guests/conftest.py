"""No test leaves a run to the next one, which would wait for the guests."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import STARTED

sys.path.append(str(Path(__file__).parents[1] / "lab"))


@pytest.fixture(autouse=True)
def _no_run_is_left() -> Iterator[None]:
    """Interrupt what still runs, and wait until it has restored the guests."""
    yield
    while STARTED:
        run = STARTED.pop()
        if run.poll() is None:
            run.send_signal(signal.SIGINT)
            run.communicate()
