"""The ledger of hosts that others use, too: what is ours is right, or within what is printed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from golden import Golden

from analysis import build
from analysis.test_stages import lacking
from udpbench.analysis.checks import ledger_checks
from udpbench.analysis.judge import judge
from udpbench.analysis.ledger.ledger import is_explained, lost_at_any, make_ledger, occupied_stages
from udpbench.analysis.ledger.skbs import Span, narrowed
from udpbench.analysis.ledger.stages import STAGES
from udpbench.analysis.readings import readings_of
from udpbench.drivers import DRIVERS
from udpbench.model.experiment import Receive, Send, Traffic
from udpbench.model.limits import LEDGER_STAGES
from udpbench.model.record import Snapshot, TrialRecord
from udpbench.model.result import Ledger, Result

IP = ("right snmp.Ip.InReceives", "right netstat.IpExt.InNoECTPkts")
UDP = (*IP, "right snmp.Ip.InDelivers")
ERROR = (*UDP, "right snmp.Udp.InErrors")
OURS = "right socket.77.drops"
COUNTED = {
    "tx_qdisc": ("left qdisc.send0.drops",),
    "tx_device": ("left link.send0.tx_dropped",),
    "link": (),
    "rx_ring": ("right link.receive0.rx_missed_errors",),
    "rx_xdp": ("right ethtool.receive0.rx_xdp_drop",),
    "rx_backlog": ("right link.receive0.rx_dropped", "machine softnet.cpu0.dropped"),
    "rx_tc": ("right qdisc.receive0.ingress.drops",),
    "rx_ip": (*IP, "right snmp.Ip.InHdrErrors"),
    "rx_netfilter": IP,
    "udp_checksum": (*ERROR, "right snmp.Udp.InCsumErrors"),
    "udp_no_port": (*UDP, "right snmp.Udp.NoPorts"),
    "rx_policy": (*ERROR, "right xfrm.XfrmInPolBlock"),
    "udp_filter": ERROR,
    "udp_rcvbuf": (*ERROR, "right snmp.Udp.RcvbufErrors"),
    "udp_memory": (*ERROR, "right snmp.Udp.MemErrors"),
}
"""Stage → what one lost packet moves, whoever sent it."""
MLX5_RING = "right ethtool.receive0.rx_out_of_buffer"
MACS = {
    "standard": (
        "left eth-mac.send0.FramesTransmittedOK",
        "right eth-mac.receive0.FramesReceivedOK",
        "right eth-mac.receive0.BroadcastFramesReceivedOK",
    ),
    "own": (
        "left ethtool.send0.tx_packets",
        "right ethtool.receive0.rx_packets",
        "right ethtool.receive0.rx_broadcast",
    ),
}
"""What two cards count at their MACs: frames sent, received, and broadcasts among them."""
HANDED = "left qdisc.send0.packets"
AFTER_MAC = LEDGER_STAGES[LEDGER_STAGES.index("rx_ring") :]
AT_SOCKETS = ("rx_policy", "udp_filter", "udp_rcvbuf", "udp_memory")
SEGMENTS = 20


REASONS = {stage.name: (stage.part, stage.reasons) for stage in STAGES}


def _reason(stage: str, group: str) -> str:
    """Return a host and its counter of the drops at a stage."""
    role, names = REASONS[stage]
    host = "left" if role == "sender" else "right"
    return f"{host} reason{group}.{next(iter(names), 'NOT_SPECIFIED')}"


class Mixture:
    """A trial of 9000 packets, and what of it and of others' packets ended where."""

    def __init__(
        self,
        segments: int = 1,
        size_bytes: int = 32,
        driver: str = "igb",
        mac: str | None = None,
        explain: bool = False,
    ) -> None:
        """Begin without a loss; ``segments`` packets go as one skb as far as the sockets.

        With ``explain`` the kernel says why it drops an skb, and whose it is by its port.
        """
        self.segments, self.size_bytes, self.driver = segments, size_bytes, driver
        self.mac, self.virtual_machine = mac, "no"
        self.rings: dict[str, int] = {}
        self.ours: Counter[str] = Counter()
        self.theirs: Counter[str] = Counter()
        self.broadcasts = 0
        self.moves: Counter[str] = Counter(dict.fromkeys((*COUNTED["rx_ring"], MLX5_RING, OURS), 0))
        self.counts: Counter[str] = Counter()
        self.explain = explain
        if explain:
            groups = ("", "_portless", "_others")
            self.moves.update({_reason(s, group): 0 for s in COUNTED for group in groups})

    def lose(
        self, stage: str, packets: int, *, snmp: bool = True, portless: bool = False
    ) -> Mixture:
        """Lose packets of the traffic; Linux 6.18 counts some drops at their socket alone."""
        self.ours[stage] += packets
        whole = stage in (*AT_SOCKETS, "udp_checksum", "rx_ring")
        skbs = packets if whole else packets // self.segments
        self._count(COUNTED[stage] if snmp else UDP, skbs)
        self._explain(stage, "_portless" if portless else "", skbs)
        if stage in AT_SOCKETS or (stage == "udp_checksum" and self.size_bytes > 68):
            self.moves[OURS] += packets
        return self

    def lose_in_application(self, packets: int) -> Mixture:
        """Lose packets of the traffic that were read; the worker itself counts them."""
        self.ours["app_truncated"] += packets
        self.counts["truncated_packets"] += packets
        return self

    def lose_in_card(self, packets: int) -> Mixture:
        """Lose packets of the traffic that the sender's card took, and neither sent nor counted."""
        self.ours["tx_device"] += packets
        return self

    def lose_others(
        self, stage: str, packets: int, *, snmp: bool = True, broadcast: bool = False
    ) -> Mixture:
        """Lose packets of somebody else at the same stage."""
        self.theirs[stage] += packets
        self.broadcasts += packets if broadcast else 0
        self._explain(stage, "_others", packets)
        return self._count(COUNTED[stage] if snmp else UDP, packets)

    def _explain(self, stage: str, group: str, skbs: int) -> None:
        if self.explain:
            self.moves[_reason(stage, group)] += skbs

    def _count(self, names: tuple[str, ...], number: int) -> Mixture:
        if names == COUNTED["rx_ring"] and self.driver == "mlx5_core":
            names = (MLX5_RING,)
        self.moves.update(dict.fromkeys(names, number))
        return self

    def _count_frames(self) -> None:
        """Count at the MACs what reaches them, and before them what the queue let through."""
        if self.mac is None:
            return
        handed = 9000 - self.ours["tx_qdisc"]
        sent = handed - self.ours["tx_device"]
        came = sent - self.ours["link"]
        theirs = sum(self.theirs[stage] for stage in AFTER_MAC)
        if self.driver != "mlx5_core":
            came -= self.ours["rx_ring"]
            theirs -= self.theirs["rx_ring"]
        numbers = (sent, came + theirs, self.broadcasts)
        self.moves.update(dict(zip(MACS[self.mac], numbers, strict=True)))
        self.moves[HANDED] += handed + self.theirs["tx_device"]

    def record(self) -> TrialRecord:
        """Return the trial as hosts of their own counted it."""
        self._count_frames()
        received = 9000 - sum(self.ours.values())
        self._count((*UDP, "right snmp.Udp.InDatagrams"), received // self.segments)
        moves: dict[str, Counter[str]] = {"left": Counter(), "right": Counter()}
        for name, number in self.moves.items():
            host, _, counter = name.partition(" ")
            moves.setdefault(host, Counter())[counter] += number
        moves["right"]["snmp.Udp.InDatagrams"] = received
        sender = build.sender_counts(9000, sent_messages=9000 // self.segments)
        receiver = build.receiver_counts(received, **self.counts)
        workers = (build.worker("sender", sender), build.worker("receiver", receiver))
        of = build.trial(
            traffic=Traffic(size_bytes=self.size_bytes),
            send=Send(gso=self.segments if self.segments > 1 else "off"),
        )
        trial_record = build.record(
            9000, received, of=of, moves=moves, workers=workers, built_in_lab=False
        )
        machine = {"virtual_machine": self.virtual_machine}
        facts = {
            host: replace(
                host_facts,
                driver=self.driver,
                rings=self.rings,
                environment={**host_facts.environment, **machine},
            )
            for host, host_facts in trial_record.facts.items()
        }
        return replace(trial_record, facts=facts)

    def result(self) -> Result:
        """Return what is derived of it."""
        return judge(self.record())


def ledger_of(result: Result) -> Ledger:
    """Return the ledger that a result has."""
    assert result.ledger is not None
    return result.ledger


def spans(of: Result | Ledger) -> dict[str, tuple[int, int]]:
    """Return stage → the least and the most that ended there, where that is not 0."""
    ledger = of if isinstance(of, Ledger) else ledger_of(of)
    by_stage = {
        entry.stage: (
            entry.packets or 0,
            entry.packets or 0 if entry.at_most is None else entry.at_most,
        )
        for entry in ledger.entries
    }
    return {stage: span for stage, span in by_stage.items() if span != (0, 0)}


def others(result: Result) -> dict[str, int]:
    """Return stage → others' packets."""
    entries = ledger_of(result).entries
    return {entry.stage: entry.others_packets for entry in entries if entry.others_packets}


def wrong(mixture: Mixture) -> list[str]:
    """Return what the ledger of a mixture says that is not so."""
    measured = readings_of(mixture.record())
    assert measured is not None
    ledger = make_ledger(measured)
    checks = (ledger_checks.unaccounted, ledger_checks.counter_backwards)
    amiss = [str(finding) for check in checks for finding in check(measured)]
    if (ledger.unaccounted, ledger.received_packets) != (0, 9000 - sum(mixture.ours.values())):
        amiss.append(f"{ledger.unaccounted} unaccounted, {ledger.received_packets} received")
    by_stage = spans(ledger)
    for entry in ledger.entries:
        low, high = by_stage.get(entry.stage, (0, 0))
        if not low <= mixture.ours[entry.stage] <= high:
            amiss.append(f"{entry.stage} {mixture.ours[entry.stage]}: {low} to {high}")
    return amiss


def random_mixture(seed: int) -> Mixture:
    """Return losses of ours and of others at some stages each, often at the same ones."""
    chosen = random.Random(seed)
    mixture = Mixture(
        segments=chosen.choice((1, 1, SEGMENTS)),
        size_bytes=chosen.choice((32, 200)),
        driver=chosen.choice(("igb", "virtio_net", "mlx5_core", "a driver")),
        mac=chosen.choice((None, "standard", "own")),
        explain=chosen.random() < 0.5,
    )
    mixture.virtual_machine = chosen.choice(("yes", "no"))
    snmp = chosen.random() < 0.5
    for stage in chosen.sample(sorted(COUNTED), chosen.randint(0, 5)):
        packets = SEGMENTS * chosen.randint(1, 30)
        memory = stage == "udp_memory"
        mixture.lose(stage, packets, snmp=snmp or not memory, portless=chosen.random() < 0.2)
    for stage in chosen.sample(sorted(COUNTED), chosen.randint(0, 5)):
        mixture.lose_others(stage, chosen.randint(1, 900), snmp=snmp or stage != "udp_memory")
    if chosen.random() < 0.3 and mixture.mac == "standard":
        mixture.lose_in_card(SEGMENTS * chosen.randint(1, 30))
    if chosen.random() < 0.3:
        mixture.lose_in_application(chosen.randint(1, 50))
    return mixture


def test_what_is_ours_lies_within_what_is_printed() -> None:
    """None of 200 mixtures is invalid, and none names a number that is not so."""
    amiss = {seed: wrong(random_mixture(seed)) for seed in range(200)}
    assert {} == {seed: texts for seed, texts in amiss.items() if texts}


@pytest.mark.parametrize("stage", sorted(COUNTED))
def test_each_stage_lost_by_us_by_others_and_by_both(stage: str) -> None:
    """Others' packets alone lose nothing and are all counted as theirs."""
    theirs = Mixture().lose_others(stage, 190)
    assert [] == wrong(theirs)
    assert ({}, {} if stage == "link" else {stage: 190}) == (
        spans(theirs.result()),
        others(theirs.result()),
    )
    for mixture in (Mixture().lose(stage, 70), Mixture().lose(stage, 70).lose_others(stage, 190)):
        assert [] == wrong(mixture)
        assert 70 == spans(mixture.result())[stage][1]
    assert {} == others(Mixture().lose(stage, 70).result())


def test_drops_of_our_own_sockets_are_exact() -> None:
    """However much an unobservable cable may have lost, this was not lost there."""
    assert {"udp_rcvbuf": (70, 70)} == spans(Mixture().lose("udp_rcvbuf", 70).result())
    hidden = Mixture().lose("udp_memory", 70, snmp=False)
    assert {"udp_memory": (70, 70)} == spans(hidden.result())


def test_what_a_full_socket_of_another_program_lost_is_theirs() -> None:
    """Ours dropped nothing, so nothing of ours ended at a socket."""
    mixture = Mixture().lose_others("udp_rcvbuf", 190).lose("link", 70)
    assert ({"link": (70, 70)}, {"udp_rcvbuf": 190}) == (
        spans(mixture.result()),
        others(mixture.result()),
    )


def test_ours_and_others_at_sockets_are_an_interval_that_adds_up() -> None:
    """Whether memory or a buffer was full is not known, but of how many packets is."""
    mixture = Mixture().lose("udp_rcvbuf", 70).lose_others("udp_rcvbuf", 190)
    result = mixture.result()
    assert {"udp_rcvbuf": (0, 70), "udp_memory": (0, 70)} == spans(result)
    assert Span(70, 70) == lost_at_any(ledger_of(result), ("udp_rcvbuf", "udp_memory"))


def test_drop_reasons_say_that_memory_was_never_full() -> None:
    """With ``explain`` a stage that others blur is exact again."""
    mixture = Mixture(explain=True).lose("udp_rcvbuf", 70).lose_others("udp_rcvbuf", 190)
    assert {"udp_rcvbuf": (70, 70)} == spans(mixture.result())


@pytest.mark.parametrize("stage", ["rx_backlog", "udp_no_port", "udp_rcvbuf", "udp_memory"])
def test_drop_reasons_tell_ours_from_others(stage: str) -> None:
    """To the packet, also where others' at the same stage have counted more than we lost."""
    mixture = Mixture(explain=True).lose(stage, 70).lose("link", 40).lose_others(stage, 190)
    result = mixture.result()
    assert {stage: (70, 70), "link": (40, 40)} == spans(result)
    assert {stage: 190} == others(result)
    blurred = Mixture().lose(stage, 70).lose("link", 40).lose_others(stage, 190)
    # Refused for memory, ours are known by our sockets' drops, whatever others lost.
    assert (stage == "udp_memory") == ((70, 70) == spans(blurred.result())[stage])


def test_what_may_be_ours_is_between() -> None:
    """A drop whose port cannot be read is at most of the traffic."""
    mixture = Mixture(explain=True).lose("udp_no_port", 70).lose("link", 40)
    mixture.lose("udp_no_port", 20, portless=True)
    assert {"udp_no_port": (70, 90), "link": (40, 60)} == spans(mixture.result())


def test_others_drops_that_no_counter_has_are_theirs() -> None:
    """Linux 6.18 counts what was refused for memory at its socket alone."""
    mixture = Mixture(explain=True).lose_others("udp_memory", 73, snmp=False)
    assert ({}, {"udp_memory": 73}) == (spans(mixture.result()), others(mixture.result()))


def test_what_a_policy_is_known_to_refuse_no_filter_did() -> None:
    """Also where a bad checksum is noticed at the read, for which the kernel gives no reason."""
    mixture = Mixture(explain=True, size_bytes=100).lose("rx_policy", 10).lose("udp_checksum", 7)
    mixture.moves["right reason.UDP_CSUM"] = 0
    assert {"rx_policy": (10, 10), "udp_checksum": (7, 7)} == spans(mixture.result())


def test_a_counter_that_is_gone_with_its_rule_limits_nothing() -> None:
    """The kernel's reasons have seen what it counted, of ours or of others."""
    mixture = Mixture(explain=True).lose("rx_tc", 70, portless=True).lose("link", 40)
    mixture.moves[COUNTED["rx_tc"][0]] = 0
    assert {"link": (40, 110), "rx_tc": (0, 70)} == spans(mixture.result())


def test_drop_reasons_beyond_the_loss_are_a_contradiction() -> None:
    """More of the traffic's own packets were dropped than were lost: somebody sends to its port."""
    mixture = Mixture(explain=True).lose("udp_no_port", 70)
    for name in (*COUNTED["udp_no_port"], "right reason.NO_SOCKET"):
        mixture.moves[name] += 20
    assert -20 == ledger_of(mixture.result()).unaccounted


def test_another_socket_on_the_same_port_makes_no_stage_negative() -> None:
    """Drop reasons have its drops, too; what our socket dropped is all that can be ours."""
    mixture = Mixture(explain=True).lose("udp_rcvbuf", 10)
    for name in (*COUNTED["udp_rcvbuf"], "right reason.SOCKET_RCVBUFF"):
        mixture.moves[name] += 20
    result = mixture.result()
    assert ({"udp_rcvbuf": (10, 10)}, 0) == (spans(result), ledger_of(result).unaccounted)
    assert {"udp_rcvbuf": 20} == others(result)


def test_decrypted_packets_that_are_delivered_twice_hide_no_loss() -> None:
    """A firewall dropped 70 of ours, while IPsec delivered 300 of others' twice."""
    mixture = Mixture().lose("rx_netfilter", 70)
    mixture.moves["right snmp.Ip.InReceives"] += 300
    mixture.moves["right snmp.Ip.InDelivers"] += 600
    result = mixture.result()
    assert {"link": (0, 70), "rx_netfilter": (0, 70)} == spans(result)
    assert (True, 0) == (result.valid, ledger_of(result).unaccounted)


HOOKS = [
    ({"tcx": "1"}, "right qdisc.receive0.ingress.drops", "rx_tc"),
    ({"xdp": "program 7, generic"}, "right ethtool.receive0.rx_xdp_drop", "rx_xdp"),
]


@pytest.mark.parametrize(("environment", "counter", "stage"), HOOKS)
def test_a_program_whose_drops_nothing_counts_hides_its_stage(
    environment: dict[str, str], counter: str, stage: str
) -> None:
    """TCX drops before the qdisc that counts, and generic XDP behind the driver that does."""
    mixture = Mixture(driver="mlx5_core").lose("link", 70)
    mixture.moves[counter] = 0
    record = mixture.record()
    right = record.facts["right"]
    here = replace(right, environment={**right.environment, **environment})
    with_program = judge(replace(record, facts={**record.facts, "right": here}))
    assert {"link": (0, 70), stage: (0, 70)} == spans(with_program)
    assert {"link": (70, 70)} == spans(judge(record))


def test_what_a_driver_counts_holds_beside_generic_xdp() -> None:
    """Its drops by XDP are of another program, and its other drops are of no program."""
    mixture = Mixture(driver="virtio_net").lose("rx_xdp", 30)
    mixture.moves["right ethtool.receive0.rx0_xdp_drops"] = 30
    mixture.moves["right ethtool.receive0.rx_xdp_drop"] = 0
    mixture.moves["right ethtool.receive0.rx0_drops"] = 100
    mixture.ours["rx_ring"] = 70
    record = mixture.record()
    right = record.facts["right"]
    here = replace(right, environment={**right.environment, "xdp": "program 7, generic"})
    of_one = replace(record, facts={**record.facts, "right": here}, built_in_lab=True)
    assert {"rx_xdp": (30, 30), "rx_ring": (70, 70)} == spans(judge(of_one))


def test_a_counter_of_sixteen_bits_that_wraps_makes_no_trial_invalid() -> None:
    """What r8169 missed is then not known; of another card it means a reset."""
    missed = "link.receive0.rx_missed_errors"
    for driver, valid in (("r8169", True), ("tg3", False)):
        record = Mixture(driver=driver).lose("rx_ring", 70).record()
        (phase,) = record.phases
        counters = {**phase.after["right"].counters, missed: 3}
        after = {**phase.after, "right": replace(phase.after["right"], counters=counters)}
        result = judge(replace(record, phases=(replace(phase, after=after),)))
        assert (valid, 70) == (result.valid, spans(result)["rx_ring"][1])


def test_a_cable_that_loses_is_one_entry_with_what_else_cannot_be_seen() -> None:
    """Valid, and explained by no counter."""
    result = Mixture(driver="virtio_net").lose("link", 7865).result()
    ledger = ledger_of(result)
    assert (True, 0) == (result.valid, ledger.unaccounted)
    assert {"link": (0, 7865), "rx_ring": (0, 7865)} == spans(result)
    assert "link or rx_ring 7865 (not observable)" == occupied_stages(ledger)
    assert not is_explained(ledger)
    assert is_explained(ledger_of(Mixture().lose("udp_no_port", 9000).result()))


def test_a_rule_of_our_own_is_exact_and_one_of_others_is_not() -> None:
    """It counts what was sent to the traffic's port alone."""
    mixture = Mixture().lose("rx_netfilter", 70).lose_others("rx_netfilter", 5)
    assert (0, 70) == spans(mixture.result())["rx_netfilter"]
    mixture.moves["right firewall.ipv4/input/drop/udp/4321"] = 70
    assert {"rx_netfilter": (70, 70)} == spans(mixture.result())


def test_counters_of_our_own_beyond_the_loss_are_a_contradiction(golden: Golden) -> None:
    """Our socket dropped 90 of 70 that were lost: invalid, and both numbers are printed."""
    mixture = Mixture().lose("udp_rcvbuf", 70)
    for name in (OURS, *COUNTED["udp_rcvbuf"]):
        mixture.moves[name] += 20
    result = mixture.result()
    ledger = ledger_of(result)
    assert ({"udp_rcvbuf": (90, 90)}, -20) == (spans(result), ledger.unaccounted)
    (reason,) = (finding for finding in result.findings if finding.severity == "invalid")
    golden.check(reason)


def test_drops_of_a_socket_that_was_closed_are_not_known() -> None:
    """They went with it: SNMP is an upper bound, and memory has none."""
    record = Mixture().lose("udp_rcvbuf", 70).record()
    (phase,) = record.phases
    counters = dict(phase.after["right"].counters)
    del counters["socket.77.drops"]
    after = {**phase.after, "right": replace(phase.after["right"], counters=counters)}
    result = judge(replace(record, phases=(replace(phase, after=after),)))
    assert dict.fromkeys(("link", "udp_rcvbuf", "udp_memory"), (0, 70)) == spans(result)


def test_multicasts_that_are_delivered_hide_no_loss() -> None:
    """Over IPv6 undelivered multicasts are taken away only from what is counted as others'."""
    record = Mixture().lose("rx_netfilter", 70).record()
    (phase,) = record.phases
    traffic = replace(record.trial.traffic, family=6)
    snapshots = []
    for taken in (phase.before, phase.after):
        right = {
            name.replace("snmp.Ip.", "snmp6.Ip6").replace("snmp.Udp.", "snmp6.Udp6"): value
            for name, value in taken["right"].counters.items()
        }
        moved = 300 if taken is phase.after else 0
        for name in ("InMcastPkts", "InReceives", "InDelivers"):
            right[f"snmp6.Ip6{name}"] = right.get(f"snmp6.Ip6{name}", 0) + moved
        right["snmp6.Icmp6InMsgs"] = 0
        snapshots.append({**taken, "right": replace(taken["right"], counters=right)})
    phase = replace(phase, before=snapshots[0], after=snapshots[1])
    six = replace(record, trial=replace(record.trial, traffic=traffic), phases=(phase,))
    assert (0, 70) == spans(judge(six))["rx_netfilter"]


def test_merged_packets_at_a_socket_are_bounded_by_what_gro_merges() -> None:
    """With UDP_GRO a drop of the socket is one skb of up to 64 packets."""
    record = Mixture().lose("udp_rcvbuf", 70).record()
    trial = replace(record.trial, receive=Receive(gro=True))
    assert (70, 70) == spans(judge(replace(record, trial=trial)))["udp_rcvbuf"]
    mixture = Mixture().lose("udp_rcvbuf", 70)
    for name in (OURS, *COUNTED["udp_rcvbuf"]):
        mixture.moves[name] -= 60
    merged = replace(mixture.record(), trial=trial)
    assert (10, 70) == spans(judge(merged))["udp_rcvbuf"]
    forwarding = mixture.record()
    offloads = {"offloads": "rx-gro rx-udp-gro-forwarding", "xdp": "none", "tcx": "none"}
    right = replace(forwarding.facts["right"], environment=offloads)
    forwarding = replace(forwarding, facts={**forwarding.facts, "right": right})
    assert [] == [
        finding for finding in judge(forwarding).findings if finding.severity == "invalid"
    ]


BEFORE_5_19: list[tuple[Mixture, dict[str, tuple[int, int]], str]] = [
    (Mixture(), {}, ""),
    (Mixture().lose("udp_rcvbuf", 70), {"udp_rcvbuf": (70, 70)}, "udp_rcvbuf 70"),
    (
        Mixture().lose("link", 70),
        {"link": (0, 70), "rx_ip": (0, 70)},
        "link or rx_ip 70 (not observable)",
    ),
    (Mixture(mac="standard").lose("link", 70), {"link": (70, 70)}, "link 70"),
]


@pytest.mark.parametrize(("mixture", "expected", "text"), BEFORE_5_19)
def test_frames_to_another_mac_that_nothing_counts_may_be_what_no_other_stage_has(
    mixture: Mixture, expected: dict[str, tuple[int, int]], text: str
) -> None:
    """Before Linux 5.19; where the loss is known to be elsewhere it hides nothing."""
    result = judge(lacking("link.receive0.rx_otherhost_dropped", mixture.record()))
    assert expected == spans(result)
    assert text == occupied_stages(ledger_of(result))
    assert [] == [finding for finding in result.findings if finding.severity == "invalid"]


@pytest.mark.parametrize("stage", ["udp_filter", "udp_memory"])
def test_filter_and_memory_that_are_counted_together_add_up(stage: str) -> None:
    """Before Linux 5.11 InErrors has both; that no other stage lost them is known all the same."""
    mixture = Mixture().lose(stage, 70).lose("udp_rcvbuf", 30)
    result = judge(lacking("snmp.Udp.MemErrors", mixture.record()))
    either = ("udp_filter", "udp_memory")
    assert dict.fromkeys(either, (0, 70)) == {stage: spans(result)[stage] for stage in either}
    assert {*either, "udp_rcvbuf"} == set(spans(result))
    assert Span(100, 100) == lost_at_any(ledger_of(result), (*either, "udp_rcvbuf"))
    quiet = judge(lacking("snmp.Udp.MemErrors", Mixture().lose("udp_rcvbuf", 30).record()))
    assert {"udp_rcvbuf": (30, 30)} == spans(quiet)


@pytest.mark.parametrize("mac", ["standard", "own"])
def test_macs_prove_what_a_cable_lost(mac: str) -> None:
    """Broadcasts to closed ports, as in any office, were not in the way; others' unicasts were."""
    mixture = Mixture(mac=mac).lose("link", 7865)
    office = mixture.lose_others("udp_no_port", 190, broadcast=True).result()
    assert {"link": (7865, 7865)} == spans(office)
    assert {"udp_no_port": 190} == others(office)
    (link,) = (entry for entry in ledger_of(office).entries if entry.stage == "link")
    assert [9000, 1135] == list(link.also.values())
    assert is_explained(ledger_of(office))
    assert "link 7865" == occupied_stages(ledger_of(office))
    unicasts = Mixture(mac=mac).lose("link", 7865).lose_others("udp_no_port", 190)
    assert {"link": (7675, 7865), "udp_no_port": (0, 190)} == spans(unicasts.result())


@pytest.mark.parametrize("driver", ["igb", "mlx5_core"])
def test_a_full_ring_is_not_the_links(driver: str) -> None:
    """Whether a driver's count at the MAC has frames that found no descriptor, or not.

    That others' found none, and 30 more of ours were lost before, would look the same.
    """
    mixture = Mixture(mac="standard", driver=driver).lose("link", 70).lose("rx_ring", 30)
    assert {"link": (70, 100), "rx_ring": (0, 30)} == spans(mixture.result())
    full = Mixture(mac="standard", driver=driver).lose("rx_ring", 30)
    assert {"rx_ring": (0, 30), "link": (0, 30)} == spans(full.result())


def test_in_a_virtual_machine_a_full_ring_of_an_emulated_card_is_not_observable() -> None:
    """QEMU's igb counts a frame only once it has a descriptor, and drops without a counter."""
    mixture = Mixture(mac="own").lose("link", 7865)
    mixture.virtual_machine = "yes"
    result = mixture.result()
    assert (True, {"link": (0, 7865), "rx_ring": (0, 7865)}) == (result.valid, spans(result))
    assert "link or rx_ring 7865 (not observable)" == occupied_stages(ledger_of(result))


@pytest.mark.parametrize(("ring", "is_proven"), [(1298, True), (1297, False), (None, False)])
def test_an_emulated_ring_that_holds_all_frames_that_came_was_never_full(
    ring: int | None, is_proven: bool
) -> None:
    """1135 frames came, and an eighth of a ring may not be ready: what is missing, the link lost."""
    mixture = Mixture(mac="own").lose("link", 7865)
    mixture.virtual_machine, mixture.rings = "yes", {} if ring is None else {"rx": ring}
    expected = {"link": (7865, 7865)} if is_proven else {"link": (0, 7865), "rx_ring": (0, 7865)}
    result = mixture.result()
    assert (True, expected) == (result.valid, spans(result))


def test_frames_longer_than_a_descriptor_prove_nothing_of_an_emulated_ring() -> None:
    """Each may take several, so that fewer frames fill the ring."""
    mixture = Mixture(mac="own").lose("link", 7865)
    mixture.virtual_machine, mixture.rings = "yes", {"rx": 4096}
    record = mixture.record()
    right = replace(record.facts["right"], mtu=9000)
    result = judge(replace(record, facts={**record.facts, "right": right}))
    assert {"link": (0, 7865), "rx_ring": (0, 7865)} == spans(result)


def test_what_the_card_took_and_did_not_send_is_the_senders_device() -> None:
    """No counter of a drop moved, but the queue handed over more than left the MAC."""
    result = Mixture(mac="standard").lose_in_card(70).lose("link", 30).result()
    assert {"tx_device": (70, 70), "link": (30, 30)} == spans(result)
    assert [] == wrong(Mixture(mac="standard").lose_in_card(70).lose_others("tx_device", 9))


PORTS = ("left ethtool.send0.tx_packets_phy", "right ethtool.receive0.rx_packets_phy", HANDED)


PASSED_BY = [
    ("rx_ring", 0, 0),
    ("rx_ring", 0, 5),
    ("rx_ring", 10, 0),
    ("rx_ring", 10, 5),
    ("udp_no_port", 9000, 0),
    ("udp_rcvbuf", 9000, 0),
]
"""A stage, what ended there, and the port's frames."""


@pytest.mark.parametrize(("stage", "lost", "frames"), PASSED_BY)
def test_a_port_that_the_packets_did_not_pass_proves_nothing(
    stage: str, lost: int, frames: int
) -> None:
    """A virtual function of mlx5 has the port's counters, and they stay 0; another's may move."""
    mixture = Mixture(driver="mlx5_core").lose(stage, lost)
    mixture.moves.update(dict(zip(PORTS, (frames, frames, 9000), strict=True)))
    record = mixture.record()
    (phase,) = record.phases
    names = {name.partition(" ")[2] for name in PORTS[:2]}

    def counted(snapshots: Mapping[str, Snapshot], number: int) -> dict[str, Snapshot]:
        return {
            host: replace(
                seen, counters={k: number if k in names else n for k, n in seen.counters.items()}
            )
            for host, seen in snapshots.items()
        }

    phase = replace(phase, before=counted(phase.before, 0), after=counted(phase.after, frames))
    result = judge(replace(record, phases=(phase,)))
    assert (0, {}) == (ledger_of(result).unaccounted, others(result))
    assert [] == [finding for finding in result.findings if finding.severity == "invalid"]
    assert lost == spans(result).get(stage, (0, 0))[1]
    assert "tx_device" not in spans(result)


def test_frames_are_not_counted_by_some_of_their_kinds() -> None:
    """Unicasts are missing here, and without them the sum proves nothing."""
    mixture = Mixture(driver="i40e")
    mixture.moves.update({"left ethtool.send0.port.tx_multicast": 0, HANDED: 9000})
    result = mixture.result()
    assert (True, {}) == (result.valid, spans(result))


def test_a_quiet_cable_with_macs_has_lost_nothing() -> None:
    """And nobody else's packets are anywhere."""
    for mac in (None, "standard", "own"):
        result = Mixture(mac=mac).result()
        assert ({}, {}) == (spans(result), others(result))


@pytest.mark.parametrize("driver", sorted(DRIVERS))
@pytest.mark.parametrize("stage", ["", "link", "rx_ring", "rx_xdp", "udp_rcvbuf"])
def test_on_a_quiet_host_no_counter_of_a_driver_moves_for_others(driver: str, stage: str) -> None:
    """Its row adds no counter that sees the same frame twice."""
    lossy = Mixture(driver=driver, mac="standard")
    if stage == "rx_ring":
        (ring, *_) = (*DRIVERS[driver].full_ring, "")
        lossy.ours[stage] = 30 if ring else 0
        lossy.moves[f"right {ring.format(interface='receive0').replace('[[]*]', '[0]')}"] = 30
    elif stage == "rx_xdp":
        lossy.lose(stage, 30)
        if "rx_xdp" in DRIVERS[driver].ring_includes:
            (ring, *_) = DRIVERS[driver].full_ring
            lossy.moves[f"right {ring.format(interface='receive0').replace('[0-9]', '0')}"] = 30
    elif stage:
        lossy.lose(stage, 30)
    result = lossy.result()
    assert {} == others(result)
    assert [] == [finding for finding in result.findings if finding.severity == "invalid"]


def test_damaged_frames_are_named_beneath_the_link() -> None:
    """By the standard statistics, or else by the device's; never both."""
    by_device = {"right link.receive0.rx_crc_errors": 7}
    standard = {"right eth-mac.receive0.FrameCheckSequenceErrors": 7}
    standard["right rmon.receive0.etherStatsJabbers"] = 2
    for moves, expected in (
        (by_device, by_device),
        ({**by_device, **standard}, standard),
    ):
        mixture = Mixture(mac="standard").lose("link", 7)
        mixture.moves.update(moves)
        (link,) = (entry for entry in ledger_of(mixture.result()).entries if entry.stage == "link")
        assert {name.partition(" ")[2]: value for name, value in expected.items()} == link.parts


@pytest.mark.parametrize(
    ("total", "parts", "expected"),
    [
        (Span(7, 7), {"a": Span(0, 9), "b": Span(0, 0)}, {"a": Span(7, 7), "b": Span(0, 0)}),
        (Span(7, 7), {"a": Span(0, 9), "b": Span(0, 4)}, {"a": Span(3, 7), "b": Span(0, 4)}),
        (Span(7, 7), {"a": Span(5, 9), "b": Span(0, 4)}, {"a": Span(5, 7), "b": Span(0, 2)}),
        (Span(5, 7), {"a": Span(0, 9), "b": Span(1, 2)}, {"a": Span(3, 6), "b": Span(1, 2)}),
        # Out of reach on either side.
        (Span(7, 7), {"a": Span(0, 3), "b": Span(0, 2)}, {"a": Span(3, 3), "b": Span(2, 2)}),
        (Span(1, 1), {"a": Span(4, 6), "b": Span(0, 2)}, {"a": Span(4, 4), "b": Span(0, 0)}),
    ],
)
def test_a_sum_narrows_its_parts(
    total: Span, parts: dict[str, Span], expected: dict[str, Span]
) -> None:
    """Each is at least what the others leave, and at most."""
    assert expected == narrowed(total, parts)
