"""A flight recorder: what is written, kept and read again, and what a death costs."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from analysis.test_sums import DNS, FACTS, POD, look, survey
from analysis.test_watch import RCVBUF, counted
from golden import Golden

from udpbench import flight as module
from udpbench.commands import flight as commands
from udpbench.commands.flight import flight_folder, read_flight
from udpbench.errors import InputError, RecordError
from udpbench.flight import (
    LEAST_BYTES,
    LEAST_SOCKETS,
    NAME,
    SOCKET_BYTES,
    USER_PART,
    Recorder,
    is_flight,
    moments,
    segments,
    span_ns,
)
from udpbench.folder import LOCK_FILE
from udpbench.json_lines import Room
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import SocketCount, ThreadUse, UdpSocket
from udpbench.model.survey import MachineLook, Moment, SpaceLook
from udpbench.report.flight_report import flight_json, text

MIDNIGHT_NS = 1_764_115_200 * SECOND_NS
"""2025-11-26 in UTC."""
ALWAYS = 0, 2**62


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return sorted(file.name for file in folder.iterdir() if file.name != LOCK_FILE)


def at(second: int, *sockets: object, **also: object) -> MachineLook:
    """Return a survey at a time of day in UTC."""
    each = survey(look(second, *sockets, **also))  # type: ignore[arg-type]
    return replace(each, wall_ns=MIDNIGHT_NS + second * SECOND_NS)


def recorded(folder: Path, surveys: list[MachineLook], lost: int = 0) -> None:
    """Write them."""
    recorder = Recorder(folder, LEAST_BYTES, {"version": "1"})
    for each in surveys:
        recorder.add(each, FACTS, lost)
    recorder.close()


def test_what_was_recorded_is_read_again(tmp_path: Path) -> None:
    """Counters are whole at each look; sockets as they changed, and whole where a segment begins."""
    looks = [
        at(0, DNS),
        at(1),
        at(2, replace(DNS, drops=9), moved=counted(4, *RCVBUF)),
        at(3, ended=(1,)),
    ]
    recorded(tmp_path / "a", looks)
    read = [*moments(tmp_path / "a", *ALWAYS)]
    assert [True, False, False, False] == [each.whole for each in read]
    for written, each in zip(looks, read, strict=True):
        assert written.spaces[0].look is not None
        assert each.survey.spaces[0].look is not None
        assert written.spaces[0].look.snapshot == each.survey.spaces[0].look.snapshot
        assert written.spaces[0].look.sockets == each.survey.spaces[0].look.sockets
        assert FACTS == each.facts
    assert (MIDNIGHT_NS, MIDNIGHT_NS + 3 * SECOND_NS) == span_ns(tmp_path / "a")
    assert is_flight(tmp_path / "a")
    assert not is_flight(tmp_path)
    assert not is_flight(tmp_path / "b")


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    """A quiet second takes some hundred bytes."""
    recorded(tmp_path, [at(second) for second in range(20)])
    (file,) = tmp_path.glob("*.jsonl")
    lines = file.read_bytes().split(b"\n")
    assert max(map(len, lines[2:])) < 1000


def test_the_next_recorder_begins_a_segment_and_a_second_is_refused(tmp_path: Path) -> None:
    """Nothing is appended to what another has written."""
    recorded(tmp_path, [at(0, DNS)])
    recorded(tmp_path, [at(5, DNS)])
    names = names_in(tmp_path)
    assert [1, 2] == [number for _, number, _ in segments(names)]
    recorder = Recorder(tmp_path, LEAST_BYTES, {})
    with pytest.raises(OSError, match="another process records into this folder"):
        Recorder(tmp_path, LEAST_BYTES, {})
    recorder.close()


def test_who_may_read_the_folder_neither_stops_a_recorder_nor_reads_what_it_writes(
    tmp_path: Path,
) -> None:
    """A lock of the folder is nobody's business, and the recorder's own is its alone."""
    tmp_path.chmod(0o755)
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)
    recorded(tmp_path, [at(0, DNS)])
    os.close(held)
    assert {0o600} == {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}


@pytest.mark.skipif(os.getuid() != 0, reason="gives a file to another user")
def test_a_lock_of_another_user_is_no_recorders(tmp_path: Path) -> None:
    """Who owns it could hold it for ever."""
    (tmp_path / LOCK_FILE).write_text("")
    os.chown(tmp_path / LOCK_FILE, 1234, 1234)
    with pytest.raises(PermissionError, match="belongs to user 1234"):
        Recorder(tmp_path, LEAST_BYTES, {})


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder to another user")
def test_nothing_is_recorded_into_a_folder_of_others(tmp_path: Path) -> None:
    """Whoever may name its segments decides what is removed, and how much it takes."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(0o777)
    os.chown(theirs, 1234, 1234)
    program = (
        "import os, sys; from pathlib import Path; from udpbench.flight import Recorder;"
        "os.chdir(sys.argv[1]); os.setuid(4242); Recorder(Path('theirs'), 2**24, {})"
    )
    os.chmod(tmp_path, 0o755)  # noqa: S103, PTH101
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True
    )
    assert "belongs to user 1234; choose a folder of your own" in done.stderr
    assert [] == [*theirs.iterdir()]


def test_the_oldest_are_removed_and_those_with_a_loss_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder stays as small as it is to be; what others put there is left alone."""
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "looks-1-2.jsonl.gz").write_text("mine")
    recorder = Recorder(tmp_path, 2**18, {})
    sizes = []
    for second in range(1200):
        sockets = [replace(DNS, cookie=n, queued_bytes=second) for n in range(4)]
        recorder.add(at(second, *sockets), FACTS, 100 if second == 300 else 0)
        names = [name for name in names_in(tmp_path) if NAME.fullmatch(name)]
        sizes.append(sum((tmp_path / name).stat().st_size for name in names))
    recorder.close()
    assert max(sizes) <= 2**18
    kept = [name for name in names_in(tmp_path) if name.startswith("loss")]
    times = [begin // SECOND_NS - MIDNIGHT_NS // SECOND_NS for _, _, begin in segments(kept)]
    assert min(times) <= 300
    assert max(times) >= 345
    read = [
        each.survey.wall_ns // SECOND_NS - MIDNIGHT_NS // SECOND_NS
        for each in moments(tmp_path, *ALWAYS)
    ]
    assert {*range(290, 361), 1199} <= {*read}
    assert 0 not in read
    assert {"notes.txt", "looks-1-2.jsonl.gz"} <= {*names_in(tmp_path)}


def test_where_all_is_loss_the_oldest_go(tmp_path: Path) -> None:
    """Half of the room is for what lost nothing, but not for what is not there."""
    recorder = Recorder(tmp_path, 2**18, {})
    for second in range(600):
        sockets = [replace(DNS, cookie=n, queued_bytes=second) for n in range(4)]
        recorder.add(at(second, *sockets), FACTS, 100)
    recorder.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 2**18
    (*_, last) = moments(tmp_path, *ALWAYS)
    assert 599 == (last.survey.wall_ns - MIDNIGHT_NS) // SECOND_NS


def strange(number: int, uid: int = 1000, queued_bytes: int = 0) -> UdpSocket:
    """Return a socket of an ordinary user."""
    also = {"uid": uid, "queued_bytes": queued_bytes, "processes": ("theirs 77",)}
    return replace(DNS, cookie=number, port=number % 60000, drops=0, **also)  # type: ignore[arg-type]


def test_a_user_with_sockets_without_end_shortens_no_recording(tmp_path: Path) -> None:
    """Their number is in the recording, and what the user of another lost is, by name."""
    recorder = Recorder(tmp_path, LEAST_BYTES, {})
    opened, seconds = 600, 400
    for second in range(seconds):
        first = 10 + opened * second
        theirs = [strange(n) for n in range(first, first + opened)]
        lost = 30 if second >= 100 else 0
        own = [replace(DNS, drops=5 + lost)] if second in (0, 100) else []
        gone = range(first - opened, first) if second else ()
        moved = counted(lost, *RCVBUF)
        recorder.add(at(second, *theirs, *own, moved=moved, ended=tuple(gone)), FACTS, 0)
    recorder.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < LEAST_BYTES // 2
    assert MIDNIGHT_NS == span_ns(tmp_path)[0]
    course = read_flight(tmp_path, None, None)
    ((loss,),) = [each.losses for each in course.incidents]
    assert ("dns 9", 30) == (loss.place.partition(":")[0][:5], loss.packets)
    left = course.unrecorded["1000"]
    assert opened * seconds * 0.9 < left < opened * seconds
    assert f"of user 1000 {left} sockets are left out, or recorded late" in text(course)


def test_open_sockets_of_a_user_take_a_part_of_each_segment(tmp_path: Path) -> None:
    """All users together that are not the system's have two parts; the system's own have theirs."""
    recorder = Recorder(tmp_path, LEAST_BYTES, {})
    theirs = [strange(n, uid=1000 + n % 5) for n in range(10, 3010)]
    for second in range(200):
        recorder.add(at(second, *(theirs if second == 0 else [DNS])), FACTS, 0)
    recorder.close()
    looks = [each.survey.spaces[0].look for each in moments(tmp_path, *ALWAYS)]
    users = [socket.uid for each in looks if each is not None for socket in each.sockets]
    part = LEAST_BYTES // 32 // USER_PART // SOCKET_BYTES
    assert (2 * part, True) == (sum(uid != 105 for uid in users), 105 in users)


def test_what_has_no_room_is_written_later_and_a_loss_at_once(tmp_path: Path) -> None:
    """With its unit; in its latest state, in the order in which it came."""
    recorder = Recorder(tmp_path, 2**18, {})
    some = [strange(n) for n in range(10, 10 + LEAST_SOCKETS)]
    more = [strange(n, queued_bytes=n) for n in range(10, 10 + LEAST_SOCKETS)]
    recorder.add(at(0, *some), FACTS, 0)
    recorder.add(at(1, *more), FACTS, 0)
    loses = replace(some[-1], drops=3)
    recorder.add(at(2, loses), FACTS, 0)
    recorder.close()
    looks = [each.survey.spaces[0].look for each in moments(tmp_path, *ALWAYS)]
    numbers = [[socket.cookie - 10 for socket in each.sockets] for each in looks if each]
    assert [[*range(16)], [*range(8)], [15, *range(8, 15)]] == numbers
    assert looks[2] is not None
    assert (3, 18) == (looks[2].sockets[0].drops, looks[2].sockets[1].queued_bytes)


KILLED = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from analysis.test_sums import DNS, FACTS
from test_flight import at, replace
from udpbench.flight import LEAST_BYTES, Recorder
recorder = Recorder(Path(sys.argv[1]), 2**18, {})
second = 0
while True:
    recorder.add(at(second, replace(DNS, queued_bytes=second)), FACTS, 0)
    print(second, flush=True)
    second += 1
"""


@pytest.mark.parametrize("seconds", [1, 40, 400])
def test_a_killed_recorder_loses_a_torn_line(tmp_path: Path, seconds: int) -> None:
    """Whatever it did; it leaves its segments and nothing else, and the next goes on."""
    here = Path(__file__).parent
    paths = [str(here), str(here.parent / "fixtures")]
    with subprocess.Popen(
        (sys.executable, "-c", KILLED, str(tmp_path / "a"), *paths),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= seconds:
                break
        process.send_signal(signal.SIGKILL)
        process.stdout.read()
    assert all(NAME.fullmatch(name) for name in names_in(tmp_path / "a"))
    (*_, last) = moments(tmp_path / "a", *ALWAYS)
    assert last.survey.wall_ns >= MIDNIGHT_NS + seconds * SECOND_NS
    recorded(tmp_path / "a", [at(90_000)])


def test_a_torn_line_is_not_read(tmp_path: Path) -> None:
    """A damaged one ends in an error that names it."""
    recorded(tmp_path, [at(0, DNS), at(1), at(2)])
    (file,) = tmp_path.glob("*.jsonl")
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    assert 2 == len([*moments(tmp_path, *ALWAYS)])
    lines = whole.split(b"\n")
    file.write_bytes(b"\n".join([*lines[:2], b'{"look": 3, "facts": {}}', *lines[3:]]))
    with pytest.raises(ValueError, match=r"jsonl:3: not a look of this version"):
        [*moments(tmp_path, *ALWAYS)]
    with pytest.raises(RecordError):
        read_flight(tmp_path, None, None)


def test_a_full_disk_is_an_error_and_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a segment without its beginning."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    recorder = Recorder(tmp_path, LEAST_BYTES, {})
    with monkeypatch.context() as patched:
        patched.setattr(module, "append", full)
        with pytest.raises(OSError, match="No space left"):
            recorder.add(at(0, DNS), FACTS, 0)
    assert [] == names_in(tmp_path)
    recorder.add(at(1), FACTS, 0)
    recorder.close()
    (moment,) = moments(tmp_path, *ALWAYS)
    assert moment.survey.spaces[0].look is not None
    assert (DNS,) == moment.survey.spaces[0].look.sockets


def test_other_namespaces_are_recorded_too(tmp_path: Path) -> None:
    """From when they come; one that cannot be read is there without a look."""
    pod = SpaceLook(POD, "pod", replace(look(1, DNS), interfaces=()))
    looks = [at(0), at(1), at(2)]
    looks[1] = replace(looks[1], spaces=(*looks[1].spaces, pod))
    looks[2] = replace(looks[2], spaces=(*looks[2].spaces, SpaceLook(POD, "pod", None)))
    recorded(tmp_path, looks)
    read: list[Moment] = [*moments(tmp_path, *ALWAYS)]
    assert pod == read[1].survey.spaces[1]
    assert None is read[2].survey.spaces[1].look


def test_times_are_of_a_clock(
    tmp_path: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one before the end of the recording; only a recording has times."""
    monkeypatch.setenv("TZ", "UTC")
    recorded(tmp_path, [at(3600 * hour) for hour in range(30)])
    spans = {
        (None, None): (5, 29),
        ("03:00", None): (27, 29),
        ("23:00", "01:30"): (23, 25),
        ("02:00:00", "2025-11-26T04:00"): (2, 4),
    }
    for (since, until), hours in spans.items():
        course = read_flight(tmp_path, since, until)
        if since is not None:
            assert MIDNIGHT_NS + hours[0] * 3600 * SECOND_NS == course.since_ns
        assert MIDNIGHT_NS + hours[1] * 3600 * SECOND_NS == course.until_ns
    for since, until in (("25:00", None), ("soon", None), ("2025-11-26T05:00", "2025-11-26T01:00")):
        with golden.raises(InputError):
            read_flight(tmp_path, since, until)
    with golden.raises(InputError):
        flight_folder("/no/such", "03:00", None)
    assert None is flight_folder(None, None, None)
    assert tmp_path == flight_folder(tmp_path, "03:00", None)


def test_the_form_of_a_segment_is_known(tmp_path: Path) -> None:
    """Its first line says by whom it was written."""
    recorded(tmp_path, [at(0)])
    (file,) = tmp_path.glob("*.jsonl")
    assert {"schema": 1, "version": "1"} == json.loads(file.read_text().split("\n")[0])


@pytest.mark.parametrize(("limit", "most"), [("HELD_MAX", 3), ("ENTRIES_MAX", 600)])
def test_what_stands_for_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    """However short each look is; the time that is asked for is what can be less."""
    looks = [at(second, DNS, moved=counted(4, *RCVBUF)) for second in range(9)]
    recorded(tmp_path, looks)
    assert 9 == len([*moments(tmp_path, *ALWAYS)])
    monkeypatch.setattr(module, limit, most)
    with pytest.raises(RecordError, match=f"more than {most} counters"):
        read_flight(tmp_path, None, None)
    assert MIDNIGHT_NS + 8 * SECOND_NS == span_ns(tmp_path)[1]


def test_a_recording_without_end_is_not_read_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither looks that say nothing in one segment, nor segments without one, as links are."""
    recorded(tmp_path, [at(second, DNS) for second in range(9)])
    (written,) = tmp_path.glob("*.jsonl")
    monkeypatch.setattr(module, "LOOK_ENTRIES", 2**22)
    with pytest.raises(OSError, match="more than 16777216 counters"):
        span_ns(tmp_path)
    written.write_text(written.read_text().splitlines(keepends=True)[0])
    for number in range(2, 12):
        (tmp_path / f"looks-{number:010d}-{10**12 + number}.jsonl").hardlink_to(written)
    with pytest.raises(ValueError, match="its last 8 segments have no look"):
        span_ns(tmp_path)


def test_of_a_hundred_thousand_segments_those_of_a_time_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking for them takes time that grows as their number, and reading has a limit."""
    recorded(tmp_path, [at(0, DNS)])
    (name,) = names_in(tmp_path)
    strange = [f"looks-{number:010d}-{number:013d}.jsonl" for number in range(100_000)]
    begin_s = time.process_time()
    monkeypatch.setattr(os, "listdir", lambda _: [*strange, name.replace("00001-", "99999-")])
    monkeypatch.setattr(module, "_moments", lambda path, _: [path.name])
    monkeypatch.setattr(commands, "span_ns", lambda _: (0, 2**60))
    with pytest.raises(RecordError, match="this time has more than 65536 segments; ask for a sh"):
        read_flight(tmp_path, "1970-01-01", None)
    monkeypatch.setattr(module, "_moments", lambda *_: iter(()))
    assert [] == [*moments(tmp_path, 10**10, 2 * 10**10)]
    assert time.process_time() - begin_s < 10


def test_a_look_has_a_namespace_once(tmp_path: Path) -> None:
    """Each time it would be compared with all that is known of it."""
    recorded(tmp_path, [at(0, DNS)])
    (file,) = tmp_path.glob("*.jsonl")
    first, whole = file.read_text().splitlines()
    line = json.loads(whole)
    line["whole"]["spaces"] *= 2
    file.write_text("\n".join([first, json.dumps(line), ""]))
    with pytest.raises(RecordError, match="a look has a namespace twice; use the version"):
        read_flight(tmp_path, None, None)


def test_what_a_look_costs_is_counted(tmp_path: Path) -> None:
    """Each namespace, and each queue of a card, is asked at each look; what is gone is not."""
    queues = {f"{number}": number for number in range(500)}
    cards = {"receive0": replace(FACTS["receive0"], queue_irqs=queues)}
    recorder = Recorder(tmp_path, LEAST_BYTES, {})
    pods = [SpaceLook(number, f"{number}", look(0)) for number in range(2, 12)]
    for number, others in enumerate(((), pods, ())):
        known = at(number)
        recorder.add(replace(known, spaces=(*known.spaces, *others)), cards, 0)
    recorder.close()
    (file,) = tmp_path.glob("*.jsonl")
    alone, many, again = (held for _, held in module._moments(file, Room()))
    assert alone == again > 500
    assert many > alone + 10 * module.SPACE_ENTRIES


STRANGE = (None, -1, 2**63, 2**64, 1e300, "", "x\n\x1b", [], {}, [[]], {"a": None}, True)


def mangled(plain: object, random: Random, chance: float) -> object:
    """Return JSON data some of whose values are others."""
    if random.random() < chance:
        return random.choice(STRANGE)
    if isinstance(plain, dict):
        return {key: mangled(part, random, chance) for key, part in plain.items()}
    return [mangled(part, random, chance) for part in plain] if isinstance(plain, list) else plain


@pytest.mark.parametrize("seed", range(40))
def test_whatever_a_segment_holds_ends_in_a_text_or_in_words(tmp_path: Path, seed: int) -> None:
    """A folder may be anybody's."""
    use = {"dns 9": (ThreadUse("dns", 1, 1, 5, {"R": 3}, {"recvmsg": 1}),)}
    counts = {"1": SocketCount(9, 4, {"SOCKET_RCVBUFF": 3})}
    lossy = at(1, replace(DNS, drops=9), moved=counted(4, *RCVBUF), threads=use, counts=counts)
    busy = replace(
        at(2), processes={"dns 9": 5}, settings={"a": "1"}, changed={"changed.routes": 1}
    )
    recorded(tmp_path, [at(0, DNS), lossy, busy, at(3, ended=(1,))])
    (file,) = tmp_path.glob("*.jsonl")
    first, *lines = file.read_text().split("\n")[:-1]
    random = Random(seed)
    texts = [json.dumps(mangled(json.loads(line), random, 0.002 * (seed % 8))) for line in lines]
    file.write_text("\n".join([first, *texts, ""]))
    try:
        course = read_flight(tmp_path, None, None)
    except (InputError, RecordError):
        return
    assert "\x1b" not in text(course)
    assert json.dumps(flight_json(course))


def test_a_segment_that_is_renamed_or_removed_while_it_is_read_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A living recorder does: it keeps longer what lost packets, and removes the oldest."""
    recorder = Recorder(tmp_path, 2**20, {})
    recorder.add(at(0, DNS), FACTS, 0)
    recorder.close()
    (name,) = names_in(tmp_path)
    now = name.replace("looks", "loss")
    names = os.listdir

    def listed(path: Path) -> list[str]:
        before = names(path)
        if (tmp_path / name).exists():
            (tmp_path / name).rename(tmp_path / now)
        return before

    monkeypatch.setattr(os, "listdir", listed)
    assert 1 == len([*moments(tmp_path, *ALWAYS)])
    (tmp_path / now).rename(tmp_path / name)
    assert (MIDNIGHT_NS, MIDNIGHT_NS) == span_ns(tmp_path)
    listings = [[name], []]
    monkeypatch.setattr(os, "listdir", lambda _: listings.pop(0))
    assert [] == [*moments(tmp_path, *ALWAYS)]
