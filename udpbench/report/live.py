"""What a run says while it works: plain lines, one a second while packets flow.

Draws ``Progress`` and decides nothing. The line of a second is that of the tools whose experiments
udpbench reproduces: packets, MiB of payload, Mbit of payload.
"""

from __future__ import annotations

from typing import TextIO

from udpbench.model import SECOND_NS, Progress, Sample

SHOWN_EVENTS = ("run", "host", "phase", "trial", "restore")


class LiveLines:
    """A progress callback that writes to a stream; a terminal, a pipe and a file look alike."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._trial = ""
        self._forget()

    def _forget(self) -> None:
        self._latest: dict[str, Sample] = {}
        self._last_clock_ns: int | None = None
        self._last_totals = (0, 0)

    def __call__(self, progress: Progress) -> None:
        """Write what happened."""
        if progress.event == "sample":
            self._sampled(progress.samples)
        elif progress.event in SHOWN_EVENTS:
            self._forget()
            self._out.write(f"{head(progress)}{progress.text}\n")
        self._out.flush()

    def _sampled(self, samples: tuple[Sample, ...]) -> None:
        for sample in samples:
            if sample.worker.rpartition(".")[2].startswith("receiver"):
                self._latest[sample.worker] = sample
        if not self._latest:
            return
        # Receivers of one host share a clock; of several, the first one's paces the lines.
        clock_ns = self._latest[min(self._latest)].clock_ns
        if self._last_clock_ns is None:
            self._last_clock_ns, self._last_totals = clock_ns, self._totals()
        elapsed_ns = clock_ns - self._last_clock_ns
        if elapsed_ns >= SECOND_NS:
            packets, size = (
                now - then for now, then in zip(self._totals(), self._last_totals, strict=True)
            )
            self._out.write(f"  {second_line(packets, size, elapsed_ns)}\n")
            self._last_clock_ns, self._last_totals = clock_ns, self._totals()

    def _totals(self) -> tuple[int, int]:
        counts = [sample.counts for sample in self._latest.values()]
        return (
            sum(one.get("received_packets", 0) for one in counts),
            sum(one.get("received_bytes", 0) for one in counts),
        )


def head(progress: Progress) -> str:
    """Return ``[3/12] `` where the event is one of many, else nothing."""
    return f"[{progress.index}/{progress.total}] " if progress.total else ""


def second_line(packets: int, size_bytes: int, elapsed_ns: int) -> str:
    """Return for example ``0.352M pps 10.730MiB / 90.010Mb``, each per second of payload."""
    seconds = elapsed_ns / SECOND_NS
    pps = packets / seconds / 1e6
    mib = size_bytes / seconds / 2**20
    mbit = size_bytes * 8 / seconds / 1e6
    return f"{pps:.3f}M pps {mib:.3f}MiB / {mbit:.3f}Mb"
