"""The channel, with real processes of a few lines at its other end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from golden import Golden

from udpbench.control.agents import Lease
from udpbench.control.connections import channel as channel_module
from udpbench.control.connections.channel import Channel
from udpbench.control.connections.local_agent import open_local
from udpbench.errors import AgentError, AgentLost, ConnectError, DeadlineExceeded, SettingRefused
from udpbench.model.limits import SECOND_NS

ECHO = """
import json, sys, time
for line in sys.stdin:
    request = json.loads(line)
    verb, args = request["verb"], request["args"]
    reply = {"id": request["id"], "clock_ns": time.monotonic_ns() + 3600 * 10**9}
    if verb == "fail":
        reply["error"] = {"kind": "SettingRefused", "message": "no", "host": ""}
    elif verb == "die":
        sys.exit("spoken last")
    elif verb == "date":
        reply["clock_ns"] = args["clock_ns"]
    elif verb == "wail":
        reply["error"] = args["error"]
    elif verb == "endless":
        while True:
            sys.stdout.write("x" * 2**16)
    elif verb == "babble":
        print("not json", flush=True)
    elif verb == "later":
        held = reply
        continue
    elif verb == "now":
        print(json.dumps(held), flush=True)
    reply["result"] = args
    print(json.dumps(reply), flush=True)
"""

IMPORTS_FROM = """
import json, sys
request = json.loads(sys.stdin.readline())
print(json.dumps({"id": request["id"], "clock_ns": 0, "result": sys.path[1:]}), flush=True)
"""

Opened = Callable[[str], Channel]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Yield a function that opens a channel to a program; all are closed afterwards."""
    channels: list[Channel] = []

    def opening(program: str = ECHO) -> Channel:
        channels.append(open_local("left", (sys.executable, "-c", program)))
        return channels[-1]

    yield opening
    for channel in channels:
        channel.close()


def test_a_request_has_its_reply(opened: Opened) -> None:
    """Arguments go out as plain data and come back."""
    assert {"a": [1, 2]} == opened(ECHO).request("echo", SECOND_NS * 10, a=(1, 2))


def test_a_failure_is_raised_as_the_same_class(opened: Opened, golden: Golden) -> None:
    """What the agent failed with is raised here, named after its host."""
    with golden.raises(SettingRefused):
        opened(ECHO).request("fail", SECOND_NS * 10)


def test_a_failure_is_of_the_host_that_the_channel_leads_to(opened: Opened) -> None:
    """Whoever it says it is, and however many lines that name has."""
    name = "right: all right\nudpbench: every host is restored\nright"
    error = {"kind": "AgentError", "message": "no", "host": name}
    with pytest.raises(AgentError) as caught:
        opened(ECHO).request("wail", SECOND_NS * 10, error=error)
    assert ("left", "left: no") == (caught.value.host, str(caught.value))


def test_an_agent_that_ends_is_lost_with_its_last_words(opened: Opened, golden: Golden) -> None:
    """The error tells at which verb, how it ended, and what it said last."""
    channel = opened(ECHO)
    with pytest.raises(AgentLost) as caught:
        channel.request("die", SECOND_NS * 10)
    expected = "agent lost during die: it ended (exit 1); its last output: spoken last"
    assert expected == caught.value.message
    with golden.raises(AgentLost):
        channel.request("echo", SECOND_NS * 10)


def test_last_words_are_shown_and_not_obeyed(opened: Opened) -> None:
    """They are in an error, and in the record of a trial."""
    channel = opened(r"import sys; sys.exit('\x1b[2J\rleft: all right')")
    with pytest.raises(AgentLost) as caught:
        channel.request("echo", SECOND_NS * 10)
    assert caught.value.message.endswith(r"its last output: \x1b[2J\rleft: all right")


def test_an_agent_that_is_killed_is_lost(opened: Opened) -> None:
    """The signal is told, whether the request could still be written or not."""
    channel = opened(ECHO)
    assert channel.pid is not None
    os.kill(channel.pid, signal.SIGKILL)
    with pytest.raises(AgentLost, match="signal 9"):
        channel.request("echo", SECOND_NS * 10)


def test_an_agent_that_babbles_is_lost(opened: Opened, golden: Golden) -> None:
    """A line that is no reply breaks the channel: nothing after it could be trusted."""
    with golden.raises(AgentLost):
        opened(ECHO).request("babble", SECOND_NS * 10)


def test_a_line_without_end_is_no_reply(opened: Opened, golden: Golden) -> None:
    """No more of it is read than a line may have."""
    channel = opened(ECHO)
    channel._pipes.replies.limit_bytes = 2**20
    with golden.raises(AgentLost):
        channel.request("endless", SECOND_NS * 10)
    assert channel.pid is not None
    os.kill(channel.pid, signal.SIGKILL)  # it still writes, and would be waited for


@pytest.mark.parametrize("clock_ns", ["5", -1, 2**64, 1.5, [], True])
def test_a_clock_that_can_not_be_is_the_agents_error(
    opened: Opened, clock_ns: object, golden: Golden
) -> None:
    """Its start would be told in it."""
    with golden.raises(AgentError):
        opened(ECHO).request("date", SECOND_NS * 10, clock_ns=clock_ns)


@pytest.mark.parametrize("error", ["no", {"kind": []}, {"message": 5}, 7])
def test_an_error_that_is_none_is_the_agents_error(
    opened: Opened, error: object, golden: Golden
) -> None:
    """Whatever it was that failed."""
    with golden.raises(AgentError):
        opened(ECHO).request("wail", SECOND_NS * 10, error=error)


def test_a_late_reply_is_dropped_and_the_channel_stays_usable(
    opened: Opened, golden: Golden
) -> None:
    """After a deadline the next request gets its own reply, not the late one."""
    channel = opened(ECHO)
    channel.request("echo", SECOND_NS * 10)
    with golden.raises(DeadlineExceeded):
        channel.request("later", 10**6)
    assert {"b": 2} == channel.request("now", SECOND_NS * 10, b=2)


def test_a_request_may_follow_before_the_answer_to_another_is_waited_for(
    opened: Opened,
) -> None:
    """Each gets its own."""
    channel = opened(ECHO)
    finishes = [channel.begin("echo", SECOND_NS * 10, n=n) for n in range(3)]
    assert [0, 1, 2] == [finish()["n"] for finish in finishes]


def test_the_clock_offset_is_that_of_the_least_round_trip(opened: Opened) -> None:
    """An agent whose clock is an hour ahead is found to be, to within half the round trip."""
    channel = opened(ECHO)
    for _ in range(5):
        channel.request("echo", SECOND_NS * 10)
    assert channel.round_trip_ns is not None
    assert abs(channel.offset_ns - 3600 * SECOND_NS) <= channel.round_trip_ns / 2


FLOOD = "import sys\nwhile True: sys.stdout.write('{}\\n')"
PADDED = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"id": 0, "result": "x" * 2**16}), flush=True)
"""
NOISY = "import sys\nwhile True: sys.stderr.write('x' * 1999 + '\\n')"


def killed(channel: Channel) -> None:
    """End an agent that still writes, and would be waited for."""
    assert channel.pid is not None
    os.kill(channel.pid, signal.SIGKILL)


def test_replies_that_nobody_asked_for_end_the_agent(opened: Opened, golden: Golden) -> None:
    """They would come for ever; it needs no request to see that."""
    channel = opened(FLOOD)
    channel._threads[0].join(10)
    assert not channel._threads[0].is_alive()
    killed(channel)
    with pytest.raises(AgentLost) as caught:
        channel.request("echo", SECOND_NS * 10)
    golden.check(caught.value.message.partition(" (")[0])


def test_answers_to_pings_that_are_too_long_end_the_agent(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are as many as the pings, and nobody waits for them."""
    monkeypatch.setattr(channel_module, "UNASKED_BYTES", 2**18)
    channel = opened(PADDED)
    for _ in range(5):
        channel.ping()
    with pytest.raises(AgentLost, match="more than 10 replies or 256KiB that nobody asked for"):
        channel.request("echo", SECOND_NS * 10)
    killed(channel)


def test_many_pings_of_a_slow_agent_may_be_answered_at_once(opened: Opened) -> None:
    """It answers each of them, when it comes to it."""
    channel = opened(ECHO)
    for _ in range(5 * channel_module.UNASKED_REPLIES):
        channel.ping()
    assert {} == channel.request("echo", SECOND_NS * 10)


def test_an_agent_that_prints_errors_without_end_is_lost(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Reading them costs CPU time."""
    monkeypatch.setattr(channel_module, "STDERR_BYTES", 2**18)
    channel = opened(NOISY)
    channel._threads[1].join(10)
    assert not channel._threads[1].is_alive()
    killed(channel)
    with pytest.raises(AgentLost) as caught:
        channel.request("echo", SECOND_NS * 10)
    golden.check(caught.value.message.partition(" (")[0])


def test_two_threads_share_a_channel(opened: Opened) -> None:
    """Each gets its own replies."""
    channel = opened(ECHO)
    replies: dict[int, list[int]] = {}

    def ask(base: int) -> None:
        replies[base] = [
            channel.request("echo", SECOND_NS * 10, n=base + n)["n"] for n in range(50)
        ]

    threads = [threading.Thread(target=ask, args=(base,)) for base in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {0: list(range(50)), 100: list(range(100, 150))} == replies


def test_a_ping_waits_for_nothing(opened: Opened) -> None:
    """Its reply is dropped; also a lost agent can be pinged."""
    channel = opened(ECHO)
    channel.ping()
    assert {} == channel.request("echo", SECOND_NS * 10)
    with pytest.raises(AgentLost):
        channel.request("die", SECOND_NS * 10)
    channel.ping()


def test_closing_ends_the_agent(opened: Opened) -> None:
    """End of stdin is the sign to end, and the exit status comes back."""
    channel = opened("import sys\nsys.stdin.read()\nsys.exit(4)")
    assert 4 == channel.close()


def test_an_agent_that_does_not_end_is_killed(opened: Opened) -> None:
    """After the deadline comes SIGKILL; its guardian restores."""
    channel = opened("import signal\nwhile True: signal.pause()")
    assert -signal.SIGKILL == channel.close(SECOND_NS // 20)


def test_an_agent_has_a_session_of_its_own(opened: Opened) -> None:
    """Ctrl-C in the terminal reaches the controller alone."""
    channel = opened(ECHO)
    assert channel.pid is not None
    assert channel.pid == os.getsid(channel.pid)


def test_an_agent_that_did_not_start_is_reported_with_what_to_do(opened: Opened) -> None:
    """A loss before the first reply is no loss but a failed start."""
    channel = opened("import sys\nsys.exit('no pyroute2')")
    with pytest.raises(AgentLost) as caught:
        channel.request("hello", SECOND_NS * 10)
    error = channel.not_started(caught.value)
    assert isinstance(error, ConnectError)
    assert error.message.startswith("the agent did not start: it ")
    assert error.message.endswith("its last output: no pyroute2; run udpbench as root")


def test_a_server_that_cannot_listen_says_itself_what_to_do(opened: Opened) -> None:
    """To be root would not help."""
    channel = opened("import sys\nsys.exit('udpbench server: not started: it is taken; end it')")
    with pytest.raises(AgentLost) as caught:
        channel.request("hello", SECOND_NS * 10)
    assert "nothing listens: it is taken; end it" == channel.not_started(caught.value).message


def test_a_program_that_is_not_there_is_reported(golden: Golden) -> None:
    """The error names it and what to do."""
    with golden.raises(ConnectError):
        open_local("left", ("no-such-program",))


def test_nothing_is_imported_from_the_current_folder(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not by an empty part of PYTHONPATH either; its others count."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ":/opt/own:")
    folders = opened(IMPORTS_FROM).request("path", SECOND_NS * 10)
    assert [True, False, False] == [each in folders for each in ("/opt/own", "", str(tmp_path))]


class Pinged:
    """Counts pings and tells when three came."""

    def __init__(self) -> None:
        self.three = threading.Event()
        self.count = 0

    def ping(self) -> None:
        """Count."""
        self.count += 1
        if self.count >= 3:
            self.three.set()


def test_a_lease_pings_every_channel_until_it_ends() -> None:
    """Three pings in a lease's time; none after the end."""
    channels = [Pinged(), Pinged()]
    with closing(Lease(30 * 10**6)) as lease:
        for channel in channels:
            lease.keep(channel)
        assert all(channel.three.wait(10) for channel in channels)
    assert "lease" not in {thread.name for thread in threading.enumerate()}
