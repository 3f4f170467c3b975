"""Labs: what is accepted, and the message for what is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from definition_fixture import write

from udpbench.definition import load
from udpbench.errors import InputError

LAB = """
sender:
  - {connect: namespace, interface: s0, addresses: [10.0.0.9/24]}
receiver:
  - {name: right, connect: namespace, interface: r0, addresses: [10.0.0.1-2/24], cpus: 2-3}
settings: {receiver: {mtu: 9000}}
"""


def test_a_lab_has_hosts_by_role() -> None:
    """A host without a name is called after its role; ranges are spelled out."""
    write(Path.cwd(), LAB, "lab.yaml")
    lab = load.load_lab("lab.yaml")
    assert ["sender", "right"] == [host.name for host in lab.hosts]
    assert ("10.0.0.1/24", "10.0.0.2/24") == lab.receivers[0].addresses
    assert ((2, 3), None) == (lab.receivers[0].cpus, lab.senders[0].cpus)
    assert ({"receiver": {"mtu_bytes": 9000}}, True) == (lab.settings, lab.built_in)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "connect: namespace, interface: s0",
            "connect: {ssh: left, become: sudo, python: /opt/python}, interface: s0",
            "lab.yaml:3: sender[1].connect: not yet supported",
        ),
        (
            "connect: namespace, interface: r0",
            "connect: local, interface: r0",
            "lab.yaml:5: receiver[1].connect: local: not yet supported",
        ),
        ("connect: namespace, ", "", "lab.yaml:3: sender[1].connect: the key is missing; add conn"),
        (
            "connect: namespace, interface: s0",
            "connect: {shh: x}, interface: s0",
            "lab.yaml:3: sender[1].connect: unknown key shh; or namespace, local; did you mean",
        ),
        (
            "connect: namespace, interface: s0",
            "connect: {ssh: -oProxyCommand=x}, interface: s0",
            "lab.yaml:3: sender[1].connect: ssh is no single word; or namespace, local; write ssh",
        ),
        (
            "connect: namespace, interface: s0",
            "connect: {become: sudo}, interface: s0",
            "lab.yaml:3: sender[1].connect: ssh is missing; or namespace, local; add ssh: use",
        ),
        (
            "connect: namespace, interface: s0",
            "connect: {ssh: x, become: su}, interface: s0",
            "lab.yaml:3: sender[1].connect: become takes sudo; sudo, or namespace, local; or leave",
        ),
        (
            "connect: namespace, interface: s0",
            "connect: docker, interface: s0",
            "lab.yaml:3: sender[1].connect: docker: unknown value; namespace, local or {ssh: …}",
        ),
        ("interface: s0", "interface: a/b", "lab.yaml:3: sender[1].interface: a/b: not understood"),
        ("[10.0.0.9/24]", "existing", "lab.yaml:3: sender[1].addresses: existing: not yet supp"),
        ("[10.0.0.9/24]", "[]", "lab.yaml:3: sender[1].addresses: a host needs an address; add"),
        ("10.0.0.9/24", "10.0.0.1/24", "lab.yaml:5: receiver[1].addresses: 10.0.0.1 stands twice"),
        (
            "10.0.0.9/24",
            "10.0.1.9/24",
            (
                "lab.yaml:5: receiver[1].addresses: 10.0.0.1 is outside the sender's network; "
                "10.0.1.0/24; take addresses of one network"
            ),
        ),
        (
            "name: right",
            "name: sender",
            "lab.yaml:5: receiver[1].name: sender: sender stands twice",
        ),
        ("name: right", "name: 'a b'", "lab.yaml:5: receiver[1].name: a b: not understood; write"),
        ("{receiver: {mtu: 9000}}", "{sender: {link: {}}}", "lab.yaml:6: settings.sender.link: th"),
        (
            "{receiver: {mtu: 9000}}",
            "{sender: {irq: {cpus: 1}}}",
            "lab.yaml:6: settings.sender.irq",
        ),
        ("{receiver: {mtu: 9000}}", "{receiver: {link: {rate: 1Gbps}}}", "lab.yaml:6: settings.re"),
        ("cpus: 2-3", "settings: {cpu: {turbo: false}}", "lab.yaml:5: receiver[1].settings.cpu: n"),
        ("cpus: 2-3", "settings: {qdisc: {}}", "lab.yaml:5: receiver[1].settings.qdisc: a device"),
        (
            "cpus: 2-3",
            "colour: red",
            "lab.yaml:5: receiver[1].colour: red: unknown key; known: con",
        ),
    ],
)
def test_a_lab_that_cannot_be_is_refused_on_its_line(old: str, new: str, message: str) -> None:
    """Labs are as strict as experiments."""
    write(Path.cwd(), LAB.replace(old, new, 1), "lab.yaml")
    with pytest.raises(InputError) as caught:
        load.load_lab("lab.yaml")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_more_than_one_host_of_a_role_is_not_yet_supported(role: str) -> None:
    """They are understood, named by number, and refused."""
    more = f"{role}:\n  - {{connect: namespace, interface: x1, addresses: [10.0.0.77/24]}}"
    write(Path.cwd(), LAB.replace(f"{role}:", more, 1), "lab.yaml")
    with pytest.raises(InputError) as caught:
        load.load_lab("lab.yaml")
    assert f"{role}: not yet supported" in str(caught.value)


def test_a_lab_needs_both_roles() -> None:
    """A role without a host is an error with a next step."""
    write(Path.cwd(), "sender: []\nreceiver: []\n", "lab.yaml")
    with pytest.raises(InputError) as caught:
        load.load_lab("lab.yaml")
    assert [
        "lab.yaml:1: sender: a lab needs one host of each role; add a host",
        "lab.yaml:2: receiver: a lab needs one host of each role; add a host",
    ] == str(caught.value).splitlines()


def test_an_unknown_lab_is_refused_with_the_nearest_name() -> None:
    """A name is a path, else a shipped lab."""
    with pytest.raises(InputError) as caught:
        load.load_lab("locl")
    message = "locl: neither a file nor a shipped lab; did you mean local?"
    assert message == str(caught.value)
