"""What ``show`` and ``report`` say of a flight recorder's time: when, which socket, what changed.

Draws ``Flight`` and decides nothing. Times are of this machine's zone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from udpbench.analysis.watch.incidents import CHANGE, Event, Flight, Incident, Loss
from udpbench.errors import InputError, Problem
from udpbench.folder import Folder
from udpbench.model.limits import SECOND_NS
from udpbench.printable import all_printable, printable
from udpbench.protocol import encode
from udpbench.report.document import refuse_shared, wrong_formats
from udpbench.units import counted, format_duration, show_count, show_pps, unbroken

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
"""Form of ``show --json`` of a recording. History: 1 — the first form."""
FORMATS = ("html", "csv", "parquet")
TEMPLATE = "flight.html.jinja"
TENTH_NS = SECOND_NS // 10
LISTED_LOSSES, LISTED_EVENTS = 10, 20
"""What is listed of one incident: changes of the machine, and as many other events."""


def clock_of(at_ns: int) -> str:
    """Return a time of day with its tenth of a second."""
    return datetime.fromtimestamp(at_ns / SECOND_NS).astimezone().strftime("%H:%M:%S.%f")[:-5]


def _day_of(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / SECOND_NS).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def text(course: Flight) -> str:
    """Return what happened, in lines."""
    return "\n".join(printable(line, keep="") for line in _lines(course))


def _lines(course: Flight) -> Iterator[str]:
    yield f"{course.host}: {_day_of(course.since_ns)} to {_day_of(course.until_ns)}"
    yield answer(course)
    for number, incident in enumerate(course.incidents, start=1):
        yield f"{number}. {title_of(incident)}"
        for loss in incident.losses[:LISTED_LOSSES]:
            yield f"   {_loss(loss)}"
            if loss.helps:
                yield f"      what helps: {loss.helps}"
        yield from _more(len(incident.losses) - LISTED_LOSSES, "   ", "places")
        yield from (f"   {line}" for line in incident.cpus)
        yield (
            "   what had changed:"
            if incident.events or incident.more_events
            else "   nothing that is recorded had changed"
        )
        listed = _listed(incident.events)
        for event in listed:
            yield f"      {clock_of(event.at_ns)}  {event.what}"
        more = len(incident.events) - len(listed) + incident.more_events
        yield from _more(more, "      ", "changes")
    for first_ns, last_ns in course.gaps:
        yield f"nothing is recorded from {clock_of(first_ns)} to {clock_of(last_ns)}"
    if course.left_out:
        yield f"{course.left_out} further events are left out: ask for a shorter time"
    yield from _unrecorded(course)


def _listed(events: Sequence[Event]) -> list[Event]:
    """Return the latest changes of the machine, and as many of what anybody may bring about."""
    changes = [event for event in events if event.kind == CHANGE][-LISTED_EVENTS:]
    others = [event for event in events if event.kind != CHANGE][-LISTED_EVENTS:]
    return sorted([*changes, *others], key=lambda event: event.at_ns)


def _unrecorded(course: Flight) -> Iterator[str]:
    """Yield whose sockets are not all recorded, the user with most of them first."""
    for user, count in sorted(course.unrecorded.items(), key=lambda each: (-each[1], each[0])):
        yield (
            f"of user {user} {count} sockets are left out, or recorded late: so many were open, or "
            "came and went, that they would shorten the recording"
        )


def _more(count: int, before: str, what: str) -> Iterator[str]:
    if count > 0:
        yield f"{before}and {count} more {what}"


def answer(course: Flight) -> str:
    """Return the answer in a sentence."""
    if not course.seconds:
        return "Nothing is recorded of this time."
    if not course.incidents:
        return "Nothing was lost."
    packets = sum(loss.packets for each in course.incidents for loss in each.losses)
    times = "once" if len(course.incidents) == 1 else f"{len(course.incidents)} times"
    if not course.left_out_losses:
        return f"Packets were lost {times}: {show_count(packets)} in all."
    left, losses = course.left_out_packets, show_count(course.left_out_losses)
    return (
        f"Packets were lost at least {times}: {show_count(packets + left)} in all; "
        f"{show_count(left)} of these, in {losses} smaller losses, are not listed."
    )


def title_of(incident: Incident) -> str:
    """Return when it was, and how much was lost."""
    lasted_ns = incident.end_ns - incident.start_ns
    unit_ns = TENTH_NS if lasted_ns < 10 * SECOND_NS else SECOND_NS
    lasted = format_duration(round(lasted_ns / unit_ns) * unit_ns)
    packets = counted(sum(loss.packets for loss in incident.losses), "packet")
    span = f"{clock_of(incident.start_ns)} to {clock_of(incident.end_ns)}"
    return f"{span} ({lasted}): {packets}"


def _loss(loss: Loss) -> str:
    where = "" if loss.netns == "host" else f" (namespace {loss.netns})"
    stages = " or ".join(loss.stages) or "an unknown stage"
    reader = f"; its reader: {loss.reader}" if loss.reader else ""
    count = f"{counted(loss.packets, 'packet')}, at most {show_pps(loss.peak_pps)}"
    at = "" if loss.place.startswith(stages) else f" at {stages}"
    return f"{clock_of(loss.start_ns)}  {loss.place}{where}: {count}{at}{reader}"


def flight_json(course: Flight) -> dict[str, Any]:
    """Return all of it as JSON data, but for each second."""
    data = {key: value for key, value in encode(course).items() if key != "seconds"}
    return dict(all_printable({"schema": SCHEMA, **data}))


def write_flight(course: Flight, folder: Path, formats: Sequence[str], named: bool) -> list[Path]:
    """Write the page and the data into a folder, and return the files; raises InputError."""
    if problems := wrong_formats(formats, FORMATS, "no format of a recording"):
        raise InputError(problems)
    files = []
    try:
        with Folder.open(folder, make=True) as out:
            if not named:
                refuse_shared(out)
            if "html" in formats:
                files.append(out.write("flight.html", page(course).encode()))
            for form in ("csv", "parquet"):
                for name, frame in frames(course).items() if form in formats else ():
                    is_csv = form == "csv"
                    content = _csv(frame) if is_csv else bytes(frame.to_parquet(index=False))
                    files.append(out.write(f"flight_{name}.{form}", content))
    except OSError as error:
        what, step = f"cannot write: {error.strerror}", "name another with --out"
        raise InputError([Problem(what, "--out", str(folder), next_step=step)]) from error
    return files


def _csv(frame: pd.DataFrame) -> bytes:
    from udpbench.report.data_frames import unobeyed

    return unobeyed(frame.convert_dtypes()).to_csv(index=False).encode()


def frames(course: Flight) -> dict[str, pd.DataFrame]:
    """Return each second, loss and event as tidy frames; times in UTC."""
    import pandas as pd

    seconds = [
        {
            "at_ns": each.at_ns,
            "netns": each.netns,
            "stage": stage,
            "lost_pps": pps,
            "received_pps": each.received_pps,
            "read_pps": each.read_pps,
        }
        for each in course.seconds
        for stage, pps in (each.lost or {"": 0.0}).items()
    ]
    losses = [
        {**encode(loss), "stages": " or ".join(loss.stages), "incident": number}
        for number, incident in enumerate(course.incidents, start=1)
        for loss in incident.losses
    ]
    events = [encode(event) for event in course.events]
    whole = {"seconds": seconds, "losses": losses, "events": events}
    return {name: _timed(pd.DataFrame(all_printable(rows))) for name, rows in whole.items()}


def _timed(frame: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    times = {
        name.removesuffix("_ns"): pd.to_datetime(frame[name], unit="ns", utc=True)
        for name in frame.columns
        if name.endswith("_ns")
    }
    return frame.drop(columns=[f"{name}_ns" for name in times]).assign(**times)


def page(course: Flight) -> str:
    """Return the page for a browser."""
    from udpbench.report.figures.inline_svg import InlineFigures
    from udpbench.report.html_page import filled

    data = {
        "title": f"What {course.host} lost",
        "span": f"{_day_of(course.since_ns)} to {_day_of(course.until_ns)}",
        "answer": unbroken(answer(course)),
        "incidents": [
            {
                "title": title_of(each),
                "losses": [_cells(loss) for loss in each.losses],
                "events": [_event_cells(event) for event in each.events],
                "more_events": each.more_events,
                "cpus": each.cpus,
            }
            for each in course.incidents
        ],
        "gaps": [[clock_of(first), clock_of(last)] for first, last in course.gaps],
        "events": [_event_cells(event) for event in course.events],
        "left_out": course.left_out,
        "unrecorded": [*_unrecorded(course)],
    }
    return filled(TEMPLATE, InlineFigures(), all_printable(data))


def _event_cells(event: Event) -> list[str]:
    return [clock_of(event.at_ns), event.what, event.netns]


def _cells(loss: Loss) -> list[str]:
    return [
        loss.place,
        loss.netns,
        clock_of(loss.start_ns),
        clock_of(loss.end_ns),
        show_count(loss.packets),
        show_pps(loss.peak_pps),
        " or ".join(loss.stages),
        loss.reader,
        loss.helps,
    ]
