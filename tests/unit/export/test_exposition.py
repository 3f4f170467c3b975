"""The page for Prometheus, read as Prometheus reads it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis.test_sums import DNS, FACTS, added, look, survey
from analysis.test_watch import RCVBUF, counted
from prometheus_client.parser import text_string_to_metric_families as families

from udpbench.analysis.watch.sums import Sums
from udpbench.export.exposition import FAMILIES, FILE_NS, Page
from udpbench.export.surveys import Own
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import SocketCount

OWN = Own("0.2.0", "abc", wall_ns=0)
DROPPED = "udpbench_socket_dropped_packets_total"


def losing(second: int, packets: int, name: str = "dns 9") -> Sums:
    """Return sums in which a socket has lost packets."""
    full = replace(DNS, drops=5 + packets, processes=(name,))
    first = survey(look(0, replace(DNS, processes=(name,))))
    return added([first, survey(look(second, full, moved=counted(packets, *RCVBUF)))])


def samples(text: bytes) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return metric → labels → number, as a client of Prometheus reads it."""
    read: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in families(text.decode()):
        for sample in family.samples:
            read.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return read


def test_a_new_counter_stands_at_0_until_a_client_has_it() -> None:
    """Prometheus ignores a first value."""
    page, sums = Page(), losing(5, 20)
    assert [0.0] == [*samples(page.text(sums, OWN))[DROPPED].values()]
    assert [0.0] == [*samples(page.text(sums, OWN))[DROPPED].values()]
    page.delivered = 2
    assert [20.0] == [*samples(page.text(sums, OWN))[DROPPED].values()]
    assert [20.0] == [*samples(page.text(sums, OWN))[DROPPED].values()]


def test_in_a_file_it_does_so_for_a_minute() -> None:
    """Nobody tells when it is read."""
    page, sums = Page(served=False, stored=True), losing(5, 20)
    seen = []
    for second in (0, 30, FILE_NS // SECOND_NS - 1, FILE_NS // SECOND_NS):
        text = page.text(sums, replace(OWN, wall_ns=second * SECOND_NS))
        seen += samples(text)[DROPPED].values()
    assert [0.0, 0.0, 0.0, 20.0] == seen


def test_every_metric_has_the_labels_that_are_promised() -> None:
    """No pid and no address; a stage that loses nothing is there, too."""
    exact = {"1": SocketCount(9, 4, {})}
    sums = losing(5, 20)
    sums.add(survey(look(10, counts=exact), left_out=3), FACTS)
    page = Page()
    read = samples(page.text(sums, OWN))
    socket = (("comm", "dns"), ("family", "4"), ("netns", "host"), ("port", "53"))
    unit = ("unit", "dns.service")
    assert {(*socket, ("stage", "udp_rcvbuf"), unit)} == read[DROPPED].keys()
    for name in ("arrived_packets_total", "read_packets_total", "receive_queue_bytes"):
        assert {(*socket, unit)} == read[f"udpbench_socket_{name}"].keys()
    assert 212992 == read["udpbench_socket_receive_buffer_bytes"][*socket, unit]
    assert 10 == read["udpbench_socket_last_read_timestamp_seconds"][*socket, unit]
    stages = read["udpbench_stage_dropped_packets_total"]
    assert not [labels for labels in stages if ("stage", "app_unanswered") in labels]
    assert {("device", ""), ("stage", "udp_no_port")} in [set(labels) for labels in stages]
    assert 1 == read["udpbench_stage_observable"][("stage", "udp_rcvbuf"),]
    assert 0 == read["udpbench_stage_observable"][("stage", "udp_purged"),]
    assert {(): 3.0} == read["udpbench_namespaces_left_out"]
    assert {(("netns", "host"),): 1.0} == read["udpbench_namespace_readable"]
    assert {(("build", "abc"), ("version", "0.2.0"))} == read["udpbench_exporter_build_info"].keys()
    assert {f"udpbench_{name}" for name in FAMILIES} - {
        "udpbench_reader_seconds_total"
    } == read.keys()


def test_an_address_is_a_label_if_it_is_asked_for() -> None:
    """Each metric of a socket."""
    full = replace(DNS, drops=25)
    sums = added(
        [survey(look(0, DNS)), survey(look(5, full, moved=counted(20, *RCVBUF)))], with_address=True
    )
    read = samples(Page(with_address=True).text(sums, OWN))
    for name in (DROPPED, "udpbench_socket_receive_queue_bytes"):
        (labels,) = read[name]
        assert "0.0.0.0" == dict(labels)["address"]  # noqa: S104


@pytest.mark.parametrize(
    "name", ['a"b', "a\\b", "a\udcff", "a\nb", "a{b}", 'x" 1\nudpbench_up 1', "\x1b[2J", "é‮"]
)
def test_a_hostile_name_is_one_label(name: str) -> None:
    """Whatever a process calls itself, the page has as many lines, and means the same."""
    text = Page().text(losing(5, 20, f"{name} 9"), OWN)
    plain = Page().text(losing(5, 20), OWN)
    assert plain.count(b"\n") == text.count(b"\n")
    (labels,) = samples(text)[DROPPED]
    comm = dict(labels)["comm"]
    assert comm.isprintable()
    assert "udpbench_up" not in samples(text)
