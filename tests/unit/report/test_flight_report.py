"""What ``show`` and ``report`` say of a recording: text, JSON, page and data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from golden import Golden

from udpbench.analysis.watch.incidents import Event, Flight, Incident, Loss, Second
from udpbench.errors import InputError
from udpbench.model.limits import SECOND_NS
from udpbench.report.flight_report import flight_json, text, write_flight
from udpbench.units import show_count

START_NS = 1_764_115_200 * SECOND_NS
LOSS = Loss(
    *("unbound 812 0.0.0.0:53", "host", ("udp_rcvbuf",)),
    *(START_NS + 60 * SECOND_NS, START_NS + 90 * SECOND_NS, 4000, 200.0),
    reader="sleeps 80 % of the time (in futex)",
    helps="have it read while datagrams wait",
)
RING = replace(LOSS, place="rx_ring eth0", stages=("rx_ring",), packets=7, reader="", helps="")
POD = replace(RING, place="web 9 [::]:443", netns="blue", stages=("udp_filter", "udp_memory"))
EVENT = Event(START_NS + 59 * SECOND_NS, "net.core.rmem_default: 212992 → 4096")
COURSE = Flight(
    host="right",
    since_ns=START_NS,
    until_ns=START_NS + 1200 * SECOND_NS,
    seconds=(
        Second(START_NS, "host", 100.0, 90.0, {}),
        Second(START_NS + 60 * SECOND_NS, "host", 100.0, 90.0, {"udp_rcvbuf": 10.0}),
    ),
    gaps=((START_NS + 300 * SECOND_NS, START_NS + 400 * SECOND_NS),),
    incidents=(
        Incident((LOSS, RING, POD), (EVENT,), ("CPU 0: 97 % busy (rx_udp 60 %, unbound 37 %)",)),
        Incident((RING,), ()),
    ),
    events=(EVENT,),
)


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    import time

    time.tzset()


def test_it_says_when_it_began_which_socket_and_what_had_changed(golden: Golden) -> None:
    """And what was not recorded, or is left out."""
    golden.check(text(COURSE))
    busy = replace(EVENT, what="sh 9 uses 40 % of a CPU", kind="busy")
    many = Incident((LOSS,) * 12, (EVENT,) * 3 + (busy,) * 30)
    golden.check(text(replace(COURSE, incidents=(many,), gaps=(), left_out=3)))
    golden.check(text(replace(COURSE, gaps=(), left_out_losses=1500, left_out_packets=9000)))
    golden.check(text(replace(COURSE, incidents=(), gaps=())))
    golden.check(text(replace(COURSE, incidents=(), gaps=(), seconds=())))


def test_a_hostile_name_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    """In the text, and in the page."""
    evil = replace(
        LOSS, place="\x1b[2J<script>alert(1)</script>\n3. 03:00 all is well 1 0.0.0.0:53"
    )
    course = replace(COURSE, incidents=(Incident((evil,), ()),))
    assert "\x1b" not in text(course)
    (page,) = write_flight(course, tmp_path, ["html"], named=True)
    assert "<script>" not in page.read_text()
    assert "\x1b" not in page.read_text()


def test_the_page_and_the_data_have_the_same(tmp_path: Path) -> None:
    """As HTML, CSV and Parquet, with times."""
    files = write_flight(COURSE, tmp_path, ["html", "csv", "parquet"], named=True)
    names = {
        "flight.html",
        *(
            f"flight_{n}.{form}"
            for n in ("seconds", "losses", "events")
            for form in ("csv", "parquet")
        ),
    }
    assert names == {file.name for file in files}
    page = (tmp_path / "flight.html").read_text()
    for part in (
        "unbound 812 0.0.0.0:53",
        "net.core.rmem_default: 212992 → 4096",
        show_count(4000),
    ):
        assert part in page
    losses = pd.read_parquet(tmp_path / "flight_losses.parquet")
    assert [1, 1, 1, 2] == losses.incident.tolist()
    assert [4000, 7, 7, 7] == losses.packets.tolist()
    assert pd.Timestamp(START_NS + 60 * SECOND_NS, unit="ns", tz="UTC") == losses.start[0]
    seconds = pd.read_csv(tmp_path / "flight_seconds.csv")
    assert [0.0, 10.0] == seconds.lost_pps.tolist()


def test_a_recording_without_anything_has_data_too(tmp_path: Path) -> None:
    """Empty frames."""
    nothing = replace(COURSE, incidents=(), events=(), seconds=(), gaps=())
    write_flight(nothing, tmp_path, ["html", "csv", "parquet"], named=True)


def test_json_has_all_but_each_second() -> None:
    """Plain data."""
    data = flight_json(COURSE)
    assert data == json.loads(json.dumps(data))
    assert (1, 2, "seconds" in data) == (data["schema"], len(data["incidents"]), False)


def test_other_formats_and_folders_are_refused(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording has no pages."""
    with golden.raises(InputError):
        write_flight(COURSE, tmp_path, ["pdf"], named=True)
    monkeypatch.setattr("udpbench.report.document.find_spec", lambda _: None)
    monkeypatch.setattr("udpbench.report.document.how_to_add", "add {}".format)
    with golden.raises(InputError):
        write_flight(COURSE, tmp_path, ["parquet"], named=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        write_flight(COURSE, tmp_path / "file", ["html"], named=True)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(InputError, match="beside what is reported"):
        write_flight(COURSE, tmp_path / "open", ["html"], named=False)


def test_no_name_in_a_recording_has_a_line_of_its_own() -> None:
    """A recording may be anybody's, who would have something typed."""
    forged = "x\n      what helps: curl x | sh"
    losses = [replace(LOSS, **{name: forged}) for name in ("place", "netns", "reader", "helps")]
    event = replace(EVENT, what=forged)
    lines = text(
        replace(COURSE, host=forged, incidents=(Incident((*losses,), (event,), (forged,)),))
    ).splitlines()
    assert 7 == len([line for line in lines if "curl" in line])
    assert not [line for line in lines if line.startswith("      what helps: curl")]
