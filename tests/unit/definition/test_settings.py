"""The settings of each host of a lab as literal lists: their values and their order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from definition_fixture import both, trial
from golden import Golden

from udpbench.definition.binding.bind import LabContext, machine_settings_for, settings_for
from udpbench.definition.binding.card import TSO_FEATURES
from udpbench.definition.binding.setting_order import is_machine_wide
from udpbench.errors import InputError
from udpbench.host_settings import Qdisc, Settings, Tbf, VethPair, merged
from udpbench.model.experiment import Trial
from udpbench.model.host import Setting
from udpbench.model.lab import Lab

SENDER_MAC = "02:75:62:01:00:01"
RECEIVER_MAC = "02:75:62:02:00:01"


def listed(
    lab: Lab, host: int, chosen: Trial | None, cpus: tuple[int, ...] = (0, 1)
) -> list[tuple[str, str, Any]]:
    """Return (kind, target, value) of a host's settings, 0 the sender and 1 the receiver."""
    context = LabContext({"sender": 7, "receiver": 8}, both(cpus))
    settings = settings_for(lab, chosen, lab.hosts[host], context)
    return [(setting.kind, setting.target, setting.value) for setting in settings]


RECEIVER_UP_ADDRESSES_NEIGHBOUR = [
    ("up", "receive0", True),
    ("address", "receive0/10.0.0.1/24", True),
    ("address", "receive0/10.0.0.2/24", True),
    ("neighbour", "receive0/10.0.0.30", SENDER_MAC),
]
SENDER_UP_ADDRESS_NEIGHBOURS = [
    ("up", "send0", True),
    ("address", "send0/10.0.0.30/24", True),
    ("neighbour", "send0/10.0.0.1", RECEIVER_MAC),
    ("neighbour", "send0/10.0.0.2", RECEIVER_MAC),
]


def link(queues: int) -> tuple[str, str, Any]:
    """Return the pair as the receiver asks for it."""
    value = {
        "peer": "send0",
        "peer_pid": 7,
        "peer_mac": SENDER_MAC,
        "mac": RECEIVER_MAC,
        "queues": queues,
    }
    return ("link", "receive0", value)


def test_by_default_the_receiver_polls_in_threads_on_its_own_cpus(lab: Lab) -> None:
    """``napi``: GRO on before the link is up, threads after it, one queue for each CPU."""
    assert [
        link(2),
        ("sysctl", "net/ipv6/conf/receive0/disable_ipv6", 1),
        ("feature", "receive0/rx-gro", True),
        *RECEIVER_UP_ADDRESSES_NEIGHBOUR,
        ("device", "receive0/threaded", 1),
        ("napi_cpus", "receive0", [[0], [1]]),
    ] == listed(lab, 1, None, (0, 1, 2, 3))


def test_by_default_the_sender_has_no_tso(lab: Lab) -> None:
    """Veth takes UDP into NAPI only where the peer has every TSO feature off."""
    assert [
        ("sysctl", "net/ipv6/conf/send0/disable_ipv6", 1),
        *[("feature", f"send0/{name}", False) for name in TSO_FEATURES],
        *SENDER_UP_ADDRESS_NEIGHBOURS,
    ] == listed(lab, 0, None)


def test_rps_gives_every_queue_all_of_the_receivers_cpus(lab: Lab) -> None:
    """The flow hash chooses, because veth's queue numbers are one too high for get_rps_cpu."""
    chosen = trial(settings={"receiver": {"link": {"receive": "rps"}}})
    assert [
        link(2),
        ("sysctl", "net/ipv6/conf/receive0/disable_ipv6", 1),
        *RECEIVER_UP_ADDRESSES_NEIGHBOUR,
        ("rps", "receive0/rx-0", [0, 1]),
        ("rps", "receive0/rx-1", [0, 1]),
    ] == listed(lab, 1, chosen, (0, 1, 2, 3))
    assert [
        ("sysctl", "net/ipv6/conf/send0/disable_ipv6", 1),
        *SENDER_UP_ADDRESS_NEIGHBOURS,
    ] == listed(lab, 0, chosen)


WITHOUT_ROOT = both((0, 1, 2, 3), capabilities={"kernel_threads": False})


@pytest.mark.parametrize("named", [{}, {"settings": {"receiver": {"link": {"receive": "rps"}}}}])
def test_without_root_queues_are_made_with_their_rps(lab: Lab, named: dict[str, Any]) -> None:
    """No thread can be pinned and no queue's file written, so the namespace's mask comes first."""
    context = LabContext(pids={"sender": 7}, facts=WITHOUT_ROOT)
    settings = settings_for(lab, trial(**named), lab.receivers[0], context)
    assert [
        ("rps_default", "queues", [0, 1]),
        link(2),
        ("sysctl", "net/ipv6/conf/receive0/disable_ipv6", 1),
        *RECEIVER_UP_ADDRESSES_NEIGHBOUR,
    ] == [(setting.kind, setting.target, setting.value) for setting in settings]


def test_without_root_what_is_named_is_asked_for(lab: Lab) -> None:
    """``receive: napi`` is not exchanged for something else: the agent refuses it, with a reason."""
    context = LabContext(pids={"sender": 7}, facts=WITHOUT_ROOT)
    chosen = trial(settings={"receiver": {"link": {"receive": "napi"}}})
    kinds = [setting.kind for setting in settings_for(lab, chosen, lab.receivers[0], context)]
    assert "napi_cpus" in kinds
    assert "rps_default" not in kinds


WITHOUT_NAMES = both((0, 1, 2, 3), capabilities={"napi_threads": False})


def test_threads_that_cannot_be_told_apart_are_replaced_by_rps(lab: Lab) -> None:
    """As before Linux 5.17; root writes the queues' files."""
    context = LabContext(pids={"sender": 7}, facts=WITHOUT_NAMES)
    settings = settings_for(lab, trial(), lab.receivers[0], context)
    polled = [s for s in settings if s.kind in ("feature", "device", "napi_cpus", "rps")]
    assert [("rps", "receive0/rx-0", [0, 1]), ("rps", "receive0/rx-1", [0, 1])] == [
        (setting.kind, setting.target, setting.value) for setting in polled
    ]


def test_without_threads_and_rps_the_sender_does_the_work(lab: Lab) -> None:
    """As on a kernel for one CPU before Linux 5.12."""
    lacking = {"napi_threads": False, "rps": False}
    context = LabContext({"sender": 7}, both((0,), capabilities=lacking))
    kinds = {setting.kind for setting in settings_for(lab, trial(), lab.receivers[0], context)}
    assert set() == kinds & {"rps", "device", "feature", "napi_cpus"}


def test_without_root_and_without_a_default_for_rps_the_sender_does_the_work(lab: Lab) -> None:
    """As before Linux 6.3, also where NAPI's threads could be told apart by root."""
    lacking = {"kernel_threads": False, "rps_default": False}
    context = LabContext({"sender": 7}, both((0, 1, 2, 3), capabilities=lacking))
    kinds = [setting.kind for setting in settings_for(lab, trial(), lab.receivers[0], context)]
    assert [] == [kind for kind in kinds if kind.startswith("rps") or kind in ("device", "feature")]


@pytest.mark.parametrize(("cpus", "optional"), [(None, True), ("0-1", False)])
def test_only_cpus_that_a_user_names_must_be_those_of_napi(
    lab: Lab, cpus: str | None, *, optional: bool
) -> None:
    """By default threads that cannot be pinned are a finding, not a failed trial."""
    chosen = trial(settings={"receiver": {"link": {"cpus": cpus} if cpus else {}}})
    context = LabContext(pids={"sender": 7}, facts=both((0, 1, 2, 3)))
    settings = settings_for(lab, chosen, lab.receivers[0], context)
    assert [optional] == [s.optional for s in settings if s.kind == "napi_cpus"]


def test_inline_leaves_the_pair_as_it_is(lab: Lab) -> None:
    """The sender's CPU does the receive work, as veth does by default."""
    chosen = trial(settings={"receiver": {"link": {"receive": "inline", "queues": 1}}})
    assert [
        link(1),
        ("sysctl", "net/ipv6/conf/receive0/disable_ipv6", 1),
        *RECEIVER_UP_ADDRESSES_NEIGHBOUR,
    ] == listed(lab, 1, chosen)


def test_every_supported_setting_has_its_place_in_the_order(lab: Lab) -> None:
    """Features and sizes before ``up``, polling and steering after it, the queue last."""
    chosen = trial(
        settings={
            "receiver": {
                "link": {"queues": 2, "cpus": "1"},
                "addresses": ["10.0.0.3-4/24"],
                "mtu": 9000,
                "txqueuelen": 10,
                "qdisc": {"pfifo": {"limit": 20}},
                "sysctl": {"net.ipv4.ip_forward": 0, "net.core.rmem_max": "1MiB"},
                "ethtool": {"features": {"gro": False, "gso": True, "rx-udp-gro-forwarding": True}},
                "napi": {
                    "threaded": False,
                    "cpus": "0-1",
                    "defer-hard-irqs": 2,
                    "gro-flush-timeout": "200us",
                },
                "rps": {"cpus": "1"},
                "xps": {"cpus": "0-1"},
            }
        }
    )
    up = RECEIVER_UP_ADDRESSES_NEIGHBOUR
    assert [
        link(2),
        ("sysctl", "net/ipv6/conf/receive0/disable_ipv6", 1),
        ("sysctl", "net.ipv4.ip_forward", 0),
        ("feature", "receive0/rx-gro", False),
        ("feature", "receive0/tx-generic-segmentation", True),
        ("feature", "receive0/rx-udp-gro-forwarding", True),
        ("mtu", "receive0", 9000),
        ("txqueuelen", "receive0", 10),
        *up[:3],
        ("address", "receive0/10.0.0.3/24", True),
        ("address", "receive0/10.0.0.4/24", True),
        *up[3:],
        ("device", "receive0/threaded", 0),
        ("device", "receive0/napi_defer_hard_irqs", 2),
        ("device", "receive0/gro_flush_timeout", 200000),
        ("napi_cpus", "receive0", [[0], [1]]),
        ("rps", "receive0/rx-0", [1]),
        ("rps", "receive0/rx-1", [1]),
        ("xps", "receive0/tx-0", [0]),
        ("xps", "receive0/tx-1", [1]),
        ("qdisc", "receive0", {"pfifo": {"limit_packets": 20}}),
    ] == listed(lab, 1, chosen)


def test_the_experiments_value_wins_over_the_labs(lab: Lab) -> None:
    """Maps merge key by key; the root queue is replaced; a host's own beat the role's."""
    tbf = {"tbf": {"rate_bps": 1, "burst_bytes": 1, "limit_bytes": 1}}
    token_bucket = Qdisc(tbf=Tbf(1, 1, 1))
    lab = replace(
        lab,
        settings={"sender": Settings(mtu_bytes=1000, qdisc=token_bucket, txqueuelen_packets=1)},
        hosts=(replace(lab.senders[0], settings=Settings(mtu_bytes=2000)), *lab.receivers),
    )
    chosen = trial(settings={"sender": {"mtu": 3000, "qdisc": {"bfifo": {"limit": "1KiB"}}}})
    sizes = ("mtu", "txqueuelen", "qdisc")
    assert [("mtu", "send0", 2000), ("txqueuelen", "send0", 1), ("qdisc", "send0", tbf)] == [
        item for item in listed(lab, 0, None) if item[0] in sizes
    ]
    assert [
        ("mtu", "send0", 3000),
        ("txqueuelen", "send0", 1),
        ("qdisc", "send0", {"bfifo": {"limit_bytes": 1024}}),
    ] == [item for item in listed(lab, 0, chosen) if item[0] in sizes]


def test_none_takes_a_rate_of_the_lab_away(lab: Lab) -> None:
    """A key that was left out keeps it."""
    lab = replace(lab, settings={"receiver": Settings(link=VethPair(queues=2, rate_bps=10**9))})
    kept = trial(settings={"receiver": {"link": {"queues": 1}}})
    gone = trial(settings={"receiver": {"link": {"rate": "none"}}})
    assert [1, 0] == [
        sum(kind == "qdisc" for kind, _, _ in listed(lab, 0, variant)) for variant in (kept, gone)
    ]


def test_optional_paths_of_lab_and_experiment_add_up() -> None:
    """Maps and blocks merge, lists are replaced."""
    below = Settings(routes=["a"], sysctl={"x": 1, "y": 1}, optional=["mtu"])
    above = Settings(routes=["b"], sysctl={"y": 2}, optional=["sysctl.y"])
    assert (
        Settings(routes=["b"], sysctl={"x": 1, "y": 2}, optional=["mtu", "sysctl.y"])
    ) == merged(below, above)


def test_an_optional_path_marks_its_setting_and_says_where_it_came_from(lab: Lab) -> None:
    """A refusal of it becomes a finding, not an error."""
    chosen = trial(
        settings={
            "receiver": {
                "mtu": 9000,
                "ethtool": {"features": {"gro": True}},
                "optional": ["ethtool.features"],
            }
        }
    )
    context = LabContext({}, both())
    settings = settings_for(lab, chosen, lab.receivers[0], context)
    assert [
        Setting(
            "feature",
            "receive0/rx-gro",
            True,
            path="settings.receiver.ethtool.features.gro",
            optional=True,
        ),
        Setting("mtu", "receive0", 9000, path="settings.receiver.mtu"),
    ] == [setting for setting in settings if setting.kind in ("mtu", "feature")]


def test_what_the_machine_shares_goes_to_the_machine(lab: Lab) -> None:
    """In a built-in lab no namespace may write it."""
    chosen = trial(
        settings={
            "receiver": {"sysctl": {"net.core.rmem_max": "1MiB", "net.core.somaxconn": 1}},
            "sender": {"sysctl": {"net.core.rmem_max": "1MiB", "net.ipv4.udp_mem": "1 2 3"}},
        }
    )
    assert (
        Setting(
            "sysctl",
            "net.core.rmem_max",
            2**20,
            "machine",
            "settings.sender.sysctl.net.core.rmem_max",
        ),
        Setting(
            "sysctl",
            "net.ipv4.udp_mem",
            "1\t2\t3",
            "machine",
            "settings.sender.sysctl.net.ipv4.udp_mem",
        ),
    ) == machine_settings_for(lab, chosen, LabContext())
    assert () == machine_settings_for(lab, None, LabContext())
    assert ("sysctl", "net.core.somaxconn", 1) in listed(lab, 1, chosen)


def test_two_roles_cannot_set_one_machine_differently(lab: Lab, golden: Golden) -> None:
    """Both namespaces see the same value, so one wish would be lost."""
    chosen = trial(
        settings={
            "receiver": {"sysctl": {"net.core.rmem_max": 1}},
            "sender": {"sysctl": {"net.core.rmem_max": 2}},
        }
    )
    with pytest.raises(InputError) as caught:
        machine_settings_for(lab, chosen, LabContext())
    golden.check(str(caught.value))


@pytest.mark.parametrize(
    ("name", "wide"),
    [
        ("net.core.rmem_max", True),
        ("net.core.netdev_max_backlog", True),
        ("net.core.somaxconn", False),
        ("net.ipv4.udp_mem", True),
        ("net.ipv4.udp_rmem_min", False),
        ("net.ipv4.conf.all.rp_filter", False),
        ("net.ipv6.conf.x.disable_ipv6", False),
        ("net/ipv4/conf/eth0.100/rp_filter", False),
        ("net/core/rmem_max", True),
        ("net.core", True),
        ("net.netfilter.nf_conntrack_max", True),
        ("net.netfilter.nf_conntrack_udp_timeout", False),
        ("kernel.sched_rt_runtime_us", True),
    ],
)
def test_sysctls_are_the_machines_or_a_namespaces(name: str, wide: bool) -> None:
    """As found on Linux 6.18 by what a child namespace may write."""
    assert wide == is_machine_wide(name)
