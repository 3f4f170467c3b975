"""A flight recorder's folder for ``show`` and ``report``: which time of it is asked for."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path

from udpbench.analysis.watch.incidents import BEFORE_NS, Flight, course_of
from udpbench.errors import InputError, Problem, RecordError, in_words
from udpbench.flight import is_flight, moments, span_ns
from udpbench.model.limits import SECOND_NS

DEFAULT_NS = 3600 * SECOND_NS
"""Up to the end of the recording, if nothing is asked for: reading an hour takes some seconds."""
TIME = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")
TIME_LIMIT = "03:00, 03:00:30 or 2026-11-24T03:00, in this machine's zone"


def flight_folder(path: str | Path | None, since: str | None, until: str | None) -> Path | None:
    """Return the folder if it holds a recording; raises InputError where only one has times."""
    if path is not None and is_flight(Path(path)):
        return Path(path)
    for name, value in (("--since", since), ("--until", until)):
        if value is not None:
            what = "only a recording of udpbench export --record has times"
            raise InputError([Problem(what, name, value)])
    return None


def read_flight(path: Path, since: str | None, until: str | None) -> Flight:
    """Return what happened in some time of a recording; raises InputError, RecordError."""
    try:
        first_ns, last_ns = span_ns(path)
        until_ns = last_ns if until is None else _time_ns("--until", until, first_ns, last_ns)
        since_ns = max(first_ns, until_ns - DEFAULT_NS)
        if since is not None:
            since_ns = _time_ns("--since", since, 0, until_ns)
        if since_ns > until_ns:
            raise InputError([Problem("is after --until", "--since", since)])
        return course_of(moments(path, since_ns - BEFORE_NS, until_ns), since_ns)
    except OSError as error:
        raise RecordError(in_words(error)) from error
    except ValueError as error:
        raise RecordError(f"{error}; use the version that recorded it") from error


def _time_ns(option: str, text: str, first_ns: int, latest_ns: int) -> int:
    """Return a time: of a clock, its last one before another time, unless that is too early."""
    latest = datetime.fromtimestamp(latest_ns / SECOND_NS).astimezone()
    try:
        if TIME.fullmatch(text) is None:
            return int(datetime.fromisoformat(text).astimezone().timestamp() * SECOND_NS)
        parts = [int(part) for part in text.split(":")]
        at = latest.replace(
            hour=parts[0], minute=parts[1], second=parts[2] if parts[2:] else 0, microsecond=0
        )
    except (ValueError, OverflowError):
        raise InputError([Problem("not a time", option, text, TIME_LIMIT)]) from None
    day_before = at - timedelta(days=1)
    is_later = at > latest and day_before.timestamp() * SECOND_NS >= first_ns
    return int((day_before if is_later else at).timestamp()) * SECOND_NS
