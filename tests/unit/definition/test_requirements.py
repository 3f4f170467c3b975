"""What hosts must offer for the ways of a trial, and what becomes of ways when they are bound."""

from __future__ import annotations

import pytest
from definition_fixture import both, trial
from golden import Golden

from udpbench.definition import load
from udpbench.definition.binding import requirements
from udpbench.definition.binding.bind import LabContext, Unavailable, bind, settings_for
from udpbench.definition.endpoints import addresses_of
from udpbench.model.experiment import Receive, Send
from udpbench.model.host import GSO_SEGMENTS
from udpbench.model.lab import Lab

ALL = dict.fromkeys(requirements.REQUIREMENTS, True)
NEEDING = {
    "udp_gso": {"send": {"gso": 2}},
    "udp_zerocopy": {"send": {"zerocopy": True}},
    "af_xdp": {"send": {"call": "af_xdp"}},
    "io_uring_send": {"send": {"call": "io_uring"}},
    "io_uring_receive": {"receive": {"call": "io_uring"}},
    "af_xdp_receive": {"receive": {"call": "af_xdp", "wait": "spin"}},
    "napi_threads": {"settings": {"receiver": {"link": {"receive": "napi"}}}},
    "rps": {"settings": {"receiver": {"link": {"receive": "rps"}}}},
    "rps of queues": {"settings": {"receiver": {"rps": {"cpus": "0"}}}},
    "rfs of queues": {"settings": {"receiver": {"rfs": 64}}},
    "udp_gro": {"receive": {"gro": True}},
    "reuseport_cbpf": {"receive": {"sockets": "reuseport-cpu"}},
    "reuseport_ebpf": {"receive": {"sockets": "reuseport-ebpf", "steering": "/sys/fs/bpf/x"}},
    "incoming_cpu": {"receive": {"sockets": "incoming-cpu"}},
    "busy_poll": {"receive": {"wait": "busy-poll 50us"}},
    "bpf": {"losses": {"rx_xdp": 1}},
}


@pytest.mark.parametrize("name", list(requirements.REQUIREMENTS))
def test_what_a_kernel_lacks_is_reported_with_since_when_it_exists(
    lab: Lab, name: str, golden: Golden
) -> None:
    """Only where it is asked for, and only of hosts of that role; unknown counts as there."""
    required = requirements.REQUIREMENTS[name]
    of_role, capability = required.role, required.capability or name
    needing = trial(**NEEDING[name])
    without = {host.name: {**ALL, capability: False} for host in lab.hosts}
    (message,) = requirements.lacking(needing, lab, without)
    assert message.startswith(f"{of_role}: {required.key}: this kernel has no ")
    golden.check(message)
    assert [] == list(requirements.lacking(trial(), lab, without))
    other = {host.name: {**ALL, capability: host.part == of_role} for host in lab.hosts}
    assert [] == list(requirements.lacking(needing, lab, other))
    assert [] == list(requirements.lacking(needing, lab, {host.name: {} for host in lab.hosts}))


def test_steering_that_is_optional_skips_no_trial(lab: Lab) -> None:
    """The kernel's refusal is a finding there."""
    chosen = trial(
        settings={"receiver": {"rps": {"cpus": "0"}, "rfs": 64, "optional": ["rps", "rfs"]}}
    )
    without = {host.name: {"rps": False} for host in lab.hosts}
    assert [] == list(requirements.lacking(chosen, lab, without))


def test_a_closed_port_needs_nothing_of_a_receiver(lab: Lab) -> None:
    """Nobody receives there."""
    closed = trial(receive={"workers": 0, "gro": True}, path_check="explained")
    without = {host.name: {"udp_gro": False} for host in lab.hosts}
    assert [] == list(requirements.lacking(closed, lab, without))


@pytest.mark.parametrize(
    ("gso", "size", "limit", "expected"),
    [
        ("max", "32B", 64, 64),
        ("max", "32B", 128, 128),
        ("max", "1400B", 128, 46),
        (8, "32B", 64, 8),
    ],
)
def test_segments_are_bound_to_what_the_kernel_takes(
    lab: Lab, gso: object, size: str, limit: int, expected: int
) -> None:
    """``max`` is what one message holds, for both roles: the receiver knows what reaches it."""
    facts = both(limits={GSO_SEGMENTS: limit})
    bound = bind(trial(send={"gso": gso}, traffic={"size": size}), lab, facts)
    assert [expected] * 2 == [
        worker.send.gso for worker in bound.workers if worker.send is not None
    ]


def test_segments_that_no_kernel_here_takes_skip_the_trial(lab: Lab, golden: Golden) -> None:
    """More than the limit, or a kernel whose limit nobody found, with the reason."""
    with pytest.raises(Unavailable) as caught:
        bind(trial(send={"gso": 128}), lab, both(limits={GSO_SEGMENTS: 64}))
    golden.check(str(caught.value))
    with pytest.raises(Unavailable) as caught:
        bind(trial(send={"gso": "max"}), lab, both())
    text = "send.gso: the kernel of a sender accepted no GSO message when probed"
    assert text == str(caught.value)


@pytest.mark.parametrize(
    ("workers", "device"),
    [(1, {"driver": "bond"}), (1, {"driver": "vlan"}), (2, {"tx_queues": 1})],
)
def test_frames_need_a_device_with_a_queue_for_each_worker(
    lab: Lab, golden: Golden, workers: int, device: dict[str, object]
) -> None:
    """A device that passes frames on has none; as many as workers are enough."""
    keys = {"send": {"call": "af_xdp", "workers": workers}}
    chosen = trial(**keys, traffic={"flows": {"from": "1-2"}})
    with golden.raises(Unavailable):
        bind(chosen, lab, both(**device))
    assert workers + 1 == len(bind(chosen, lab, both(driver="veth", tx_queues=2)).workers)


@pytest.mark.parametrize(
    ("workers", "device"),
    [(1, {"driver": "bond"}), (1, {"rx_queues": 2}), (2, {"rx_queues": 1})],
)
def test_frames_are_taken_of_queues_with_a_worker_each(
    lab: Lab, golden: Golden, workers: int, device: dict[str, object]
) -> None:
    """On another queue they would pass to the stack; each worker takes all ports of its own."""
    keys = {"receive": {"call": "af_xdp", "wait": "spin", "workers": workers}}
    to = {"flows": {"to": "receiver.addresses[1]:4321-4323"}}
    chosen = trial(**keys, traffic=to)
    with golden.raises(Unavailable):
        bind(chosen, lab, both(**device))
    bound = bind(chosen, lab, both(driver="veth", rx_queues=workers)).workers
    taking = [spec.bind_ports for spec in bound if spec.role == "receiver"]
    assert workers * [(4321, 4322, 4323)] == taking


@pytest.mark.parametrize(
    ("driver", "features"),
    [("r8169", ()), ("veth", ()), ("nfp", ("basic", "hw-offload")), (None, ("redirect",))],
)
def test_frames_are_taken_where_the_driver_has_native_xdp(
    lab: Lab, golden: Golden, driver: str | None, features: tuple[str, ...]
) -> None:
    """Where the kernel says that it has none, the trial is skipped; where it says nothing, not."""
    chosen = trial(receive={"call": "af_xdp", "wait": "spin"})
    with golden.raises(Unavailable):
        bind(chosen, lab, both(driver=driver, xdp_features=features))
    for known in (None, ("basic", "redirect", "ndo-xmit")):
        assert 2 == len(bind(chosen, lab, both(driver=driver, xdp_features=known)).workers)
    assert 2 == len(bind(trial(), lab, both(driver=driver, xdp_features=())).workers)


@pytest.mark.parametrize(
    ("send", "messages"),
    [
        (Send(), 1024),
        (Send(gso=64), 16),
        (Send(gso=100), 10),
        (Send(gso="max"), 1024),
        (Send(batch=7, gso=64), 7),
    ],
)
def test_a_send_batch_is_as_many_datagrams_with_segments_as_without(
    send: Send, messages: int
) -> None:
    """``auto`` divides by the segments; a number is taken as it is."""
    assert messages == send.messages


def test_a_receive_batch_is_smaller_where_messages_are_merged() -> None:
    """Each then has room for 64 KiB."""
    blocks = (Receive(), Receive(gro=True), Receive(gro=True, batch=3))
    assert [512, 16, 3] == [block.messages for block in blocks]


def test_only_fragments_and_streams_may_exceed_the_mtu(lab: Lab, golden: Golden) -> None:
    """IPv6 headers are 20 B longer."""
    assert 2 == len(bind(trial(traffic={"size": "4000B", "fragment": True}), lab, both()).workers)
    assert 2 == len(bind(trial(traffic={"size": "4000B", "protocol": "tcp"}), lab, both()).workers)
    six = load.load_lab("local")
    assert 2 == len(bind(trial(traffic={"size": "1452B", "family": 6}), six, both()).workers)
    with golden.raises(Unavailable):
        bind(trial(traffic={"size": "1453B", "family": 6}), six, both())


def test_a_worker_that_takes_turns_reads_several_ports(lab: Lab) -> None:
    """Three ports over two workers: the first has two of them."""
    chosen = trial(
        traffic={"flows": {"to": "receiver.addresses[1]:1-3"}},
        receive={"workers": 2, "wait": "epoll"},
    )
    bound = bind(chosen, lab, both())
    assert [(1, 3), (2,)] == [
        worker.bind_ports for worker in bound.workers if worker.role == "receiver"
    ]


def test_flows_have_addresses_of_the_traffics_family() -> None:
    """The same lab carries both; indexes count within the family."""
    lab = load.load_lab("local")
    flows = {"flows": {"to": "receiver.addresses[20]:4321"}}
    for family, ends in (
        (4, ("192.168.254.30", "192.168.254.20")),
        (6, ("fd75:6264::30", "fd75:6264::14")),
    ):
        (flow,) = bind(trial(traffic={"family": family, **flows}), lab, both()).workers[0].flows
        assert ends == (flow.source, flow.destination)


def test_a_host_without_an_address_of_the_family_is_reported(lab: Lab, golden: Golden) -> None:
    """The trial is skipped, with the reason."""
    with pytest.raises(Unavailable) as caught:
        bind(trial(traffic={"family": 6}), lab, both())
    golden.check(str(caught.value))


def test_a_built_in_lab_has_the_addresses_of_the_traffic_alone() -> None:
    """So that nothing else speaks there; IPv6 is silent, or it is off."""
    lab = load.load_lab("local")
    for family, address, quiet in (
        (4, "send0/192.168.254.30/24", {"disable_ipv6": 1}),
        (
            6,
            "send0/fd75:6264::30/64",
            {
                "disable_ipv6": 0,
                "addr_gen_mode": 1,
                "router_solicitations": 0,
                "mldv2_unsolicited_report_interval": 20,
            },
        ),
    ):
        chosen = trial(traffic={"family": family})
        settings = settings_for(lab, chosen, lab.senders[0], LabContext(facts=both()))
        assert [address] == [setting.target for setting in settings if setting.kind == "address"]
        assert 20 == len([setting for setting in settings if setting.kind == "neighbour"])
        prefix = "net/ipv6/conf/send0/"
        assert quiet == {
            setting.target.removeprefix(prefix): setting.value
            for setting in settings
            if prefix in setting.target
        }


def test_a_range_of_ipv6_addresses_is_hexadecimal(golden: Golden) -> None:
    """As the addresses themselves are."""
    assert ("fd00::9/64", "fd00::a/64") == addresses_of("fd00::9-a/64")
    with golden.raises(ValueError):
        addresses_of("fd00::a-9/64")
