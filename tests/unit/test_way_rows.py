"""Ways to send and to receive: each row names what there is, and what it excludes is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import udpbench
from udpbench._native import lib
from udpbench.definition import load
from udpbench.definition.binding.requirements import REQUIREMENTS
from udpbench.errors import InputError
from udpbench.model.experiment import ReadName, Receive, Send, Traffic
from udpbench.model.limits import LEDGER_STAGES, Role
from udpbench.model.work import WorkerSpec
from udpbench.ways import READS, WAITS, WAYS, Refusal, Way, wait_ns, wait_of, way_of

PROGRAMS: dict[str, Any] = {"command": ["./a"], "attach": {"port": 4321}}
VALUES: dict[str, Any] = {
    "send.batch": 1,
    "send.gso": 2,
    "send.zerocopy": True,
    "traffic.fragment": True,
    "traffic.echo": 2,
    "traffic.answers": "count",
    "traffic.payload": {"hex": "00"},
    "traffic.protocol": "tcp",
    "receive": {"log": "none"},
    "receive.batch": 1,
    "receive.gro": True,
    "receive.sockets": "shared",
    "receive.timestamps": True,
    "receive.buffer": "4MiB",
    "receive.force_buffer": True,
    "receive.room": "auto",
    "receive.wait": "busy-poll 50us",
    "receive.fault": {"worker": 1, "after": "1ms", "does": "exit"},
    "receive.ready": "serving",
    "receive.user": "nobody",
    "receive.folder": "/opt",
}
"""Key → a value that is not its default, or is refused wherever it is written."""
REFUSALS = [(way, refusal) for way in WAYS for refusal in way.refuses]


def problems(way: Way, key: str = "", value: Any = None) -> list[str]:
    """Return what is wrong with an experiment that goes a way, with one key beside it."""
    data: dict[str, Any] = {"question": "x", "send": {}, "receive": {}, "traffic": {}}
    if way.role == "sender":
        data["send"]["call"] = way.name
    else:
        name = way.name if way.takes == "program" else "call"
        data["receive"][name] = PROGRAMS.get(way.name, way.name)
        if way.takes == "frames":
            data["receive"]["wait"] = "spin"
    block, _, inner = key.partition(".")
    if key:
        data[block].update({inner: value} if inner else value)
    try:
        load.load_experiment_data(data, "x")
    except InputError as error:
        return [problem.what for problem in error.problems]
    return []


def test_only_rows_know_a_way_by_its_name() -> None:
    """Else a new way would have to be named wherever one is compared."""
    files = Path(udpbench.__file__).parent.rglob("*.py")
    text = {file.name: file.read_text() for file in files if file.name != "ways.py"}
    names = "|".join(row.name for row in (*WAITS, *READS))
    forms = (
        r"\b(?:send|receive|work|block)\.call(?:\]| [!=i])",
        r"\breceive\.(?:wait|read)(?: (?:[!=]=|in|not in) |\.)",
        rf"\b(?:wait|read) (?:[!=]=|in|not in) \(?\"(?:{names})\"",
    )
    compared = re.compile("|".join(forms))
    assert [] == [name for name, content in text.items() if compared.search(content)]


def test_each_wait_and_each_read_has_a_row() -> None:
    """As the file accepts them, and with a constant of the C loops."""
    assert sorted(get_args(ReadName)) == sorted(row.name for row in READS)
    for wait in WAITS:
        receive = Receive(wait=f"{wait.name} {wait.example}".strip())
        data = {"question": "x", "receive": {"wait": receive.wait}}
        written = load.load_experiment_data(data, "x")
        assert (wait, receive.wait) == (wait_of(receive), written.points[0].receive.wait)
        assert (wait_ns(receive) != 0) == (wait.example != "")
    rows = (*WAITS, *READS, *(way for way in WAYS if way.constant))
    assert [] == [row.constant for row in rows if not hasattr(lib, row.constant)]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.key)
def test_a_way_goes_without_options(way: Way) -> None:
    """Its row excludes nothing that nobody wrote."""
    assert [] == problems(way)


@pytest.mark.parametrize(
    ("way", "refusal"), REFUSALS, ids=[f"{way.key}-{refusal.key}" for way, refusal in REFUSALS]
)
def test_what_a_way_excludes_is_refused(way: Way, refusal: Refusal) -> None:
    """Every row of every way fires."""
    assert refusal.what in problems(way, refusal.key, VALUES[refusal.key])


@pytest.mark.parametrize(("role", "block"), [("sender", Send), ("receiver", Receive)])
def test_each_call_has_a_row(role: Role, block: type) -> None:
    """A call of the YAML that has none could not be asked for anything."""
    calls = get_args(get_type_hints(block)["call"])
    assert sorted(calls) == sorted(w.name for w in WAYS if w.role == role and w.constant)


def test_rows_name_stages_and_requirements_that_exist() -> None:
    """A stage by its name in the ledger; what a kernel may lack is required of that role."""
    named = {stage for way in WAYS for stage in (*way.adds, *way.hides)}
    assert set() == named - set(LEDGER_STAGES)
    needs = {way.need.capability: way.role for way in WAYS if way.need is not None}
    assert needs == {name: REQUIREMENTS[name].role for name in needs}


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({"role": "sender", "send": Send(call="send")}, "send"),
        ({"role": "receiver", "send": Send(), "receive": Receive(call="recv")}, "recv"),
        ({"role": "receiver", "receive": Receive(command=("a",))}, "command"),
        ({"role": "sender"}, "sendmmsg"),
        ({"role": "receiver"}, "recvmmsg"),
    ],
)
def test_a_worker_goes_the_way_of_its_role(spec: dict[str, Any], name: str) -> None:
    """A receiver knows how the senders send, which is not its own way."""
    role = spec.pop("role")
    worker = WorkerSpec(role, "left", 0, None, (), Traffic(), **spec)
    assert name == way_of(worker).name
