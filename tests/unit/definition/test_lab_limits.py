"""What the lab file alone contradicts: an error of the experiment's file, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from definition_fixture import loaded, write
from golden import Golden

from udpbench.definition.lab_limits import idle_readers
from udpbench.definition.lab_rules import refuse_together
from udpbench.definition.load import load_experiment_data, load_experiments, load_lab
from udpbench.errors import InputError
from udpbench.model.lab import Lab

FAR = """\
sender:
  - {name: left, connect: {ssh: left}, interface: eth3, addresses: [10.0.0.30/24], cpus: 0-3}
receiver:
  - {name: right, connect: {ssh: right}, interface: eth2, addresses: [10.0.0.1-20/24], cpus: "0,2"}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


def refusals(lab: str, *texts: str) -> list[str]:
    """Return the messages by which a lab of this text, or of this name, refuses an experiment."""
    place = load_lab(write_lab(lab) if "\n" in lab else lab)
    try:
        refuse_together([loaded(*texts)], place)
    except InputError as error:
        return str(error).splitlines()
    return []


def write_lab(text: str) -> str:
    """Write a lab file and return its path."""
    return write(Path.cwd(), text, "far.yaml")


@pytest.mark.parametrize(
    ("lab", "texts", "messages"),
    [
        (
            "local",
            ["traffic:", '  flows: {to: "receiver.addresses[1-40]:9"}'],
            [
                (
                    "x.yaml:3: traffic.flows.to: receiver.addresses[1-40]:9: receiver of lab local has "
                    "no IPv4 address 40; expected: 1 to 20; use fewer, or add addresses to the lab"
                )
            ],
        ),
        ("local", ['traffic: {flows: {to: "receiver.addresses[1-20]:9"}}'], []),
        (
            "local",
            ["variants:", "  all: {}", "  large: {traffic.size: 4000B}"],
            [
                f"x.yaml:4: traffic.size: 4000B: a datagram of 4000B needs an MTU of 4028; "
                f"expected: at most 1500, the MTU of {interface} of {host} in lab local; raise settings.{host}.mtu, or set "
                "fragment"
                for host, interface in (("sender", "send0"), ("receiver", "receive0"))
            ],
        ),
        ("local", ["traffic: {size: 4000B, fragment: true}"], []),
        ("local", ["traffic: {size: 1472B}"], []),
        ("local", ["traffic: {size: 4000B, protocol: tcp}"], []),
        (
            "local",
            ["traffic: {size: 4000B}", "settings: {sender: {mtu: 9000}, receiver: {mtu: 9000}}"],
            [],
        ),
        ("local", ["receive: {cpus: 7}"], []),
        (
            FAR,
            ["send: {cpus: 4}", "receive: {cpus: 0-3}"],
            [
                (
                    "x.yaml:2: send.cpus: 4: left of lab far has no CPU 4; expected: CPU 0-3; name "
                    "those, or lab"
                ),
                (
                    "x.yaml:3: receive.cpus: 0-3: right of lab far has no CPU 1, 3; expected: CPU 0,2; "
                    "name those, or lab"
                ),
            ],
        ),
        (FAR, ["receive: {cpus: 2}"], []),
        (FAR, ["receive: {cpus: same-cpu}"], []),
        # The MTU of a host of its own is the host's to tell, unless somebody writes it.
        (FAR, ["traffic: {size: 4000B}"], []),
        (
            f"{FAR}settings: {{receiver: {{mtu: 1400}}}}\n",
            ["traffic: {size: 1400B}"],
            [
                (
                    "x.yaml:2: traffic.size: 1400B: a datagram of 1400B needs an MTU of 1428; expected: at "
                    "most 1400, the MTU of eth2 of right in lab far; raise settings.receiver.mtu, or set fragment"
                )
            ],
        ),
        (
            FAR.replace("[10.0.0.1-20/24]", "existing"),
            ['traffic: {flows: {to: "receiver.addresses[40]:9"}}'],
            [],
        ),
        # What is not for this lab, or not for so few CPUs, is skipped and no error.
        (FAR, ["needs: {lab: true}", "receive: {cpus: 7}"], []),
        (FAR, ["needs: {receiver: {cpus: 3}}", "receive: {cpus: 7}"], []),
        (FAR, ["traffic: {family: 6}"], []),
    ],
)
def test_what_a_lab_file_contradicts_is_an_error_of_the_experiment(
    lab: str, texts: list[str], messages: list[str]
) -> None:
    """All of it at once; what only a host can tell is not."""
    assert messages == refusals(lab, *texts)


def test_a_line_is_reported_only_of_a_file_that_has_it(golden: Golden) -> None:
    """With --set, or from a dict, the text has lines of its own."""
    local = load_lab("local")
    loaded()
    changed = load_experiments(["x.yaml"], ["traffic.size=4000B"])
    with golden.raises(InputError):
        refuse_together(changed, local)
    data = load_experiment_data({"question": "?", "traffic": {"size": "4000B"}}, "mine")
    with golden.raises(InputError):
        refuse_together([data], local)


@pytest.mark.parametrize(
    ("text", "idle"),
    [
        ("receive: {workers: 2}", []),
        ("receive: {workers: 2, sockets: reuseport}\ntraffic: {flows: {from: 1-2}}", []),
        (
            "receive: {workers: 2, sockets: reuseport}",
            [
                (
                    "x: 1 flow cannot fill 2 reuseport workers: 1 will read nothing; widen "
                    "traffic.flows.from, for example to 65400-65415"
                )
            ],
        ),
        (
            # The hash covers no destination address.
            (
                "receive: {workers: 4, sockets: reuseport}\n"
                'traffic: {flows: {from: 65533-65535, to: "receiver.addresses[1-2]:1"}}'
            ),
            [
                (
                    "x: 3 flows cannot fill 4 reuseport workers: 1 will read nothing; widen "
                    "traffic.flows.from, for example to 65504-65535"
                )
            ],
        ),
        (
            "receive: {sockets: incoming-cpu}\nsweep: {receive.workers: [1, 2, 3, 4, 5]}",
            [
                f"x[workers={n}]: 1 flow cannot fill {n} incoming-cpu workers: {n - 1} will read "
                f"nothing; widen traffic.flows.from, for example to 65400-{65399 + 8 * n}"
                for n in (2, 3, 4, 5)
            ],
        ),
        (
            "receive: {sockets: reuseport, workers: 2}\nsweep: {receive.batch: [1, 2, 3, 4, 5]}",
            [
                (
                    "x[batch=1, batch=2, batch=3 and 2 more]: 1 flow cannot fill 2 reuseport workers: "
                    "1 will read nothing; widen traffic.flows.from, for example to 65400-65415"
                )
            ],
        ),
    ],
)
def test_a_plan_names_readers_that_no_flow_can_reach(text: str, idle: list[str], lab: Lab) -> None:
    """Before any host is contacted: a flow reaches one socket of a group."""
    assert idle == list(idle_readers([loaded(text)], lab))
