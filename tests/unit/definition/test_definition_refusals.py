"""What an experiment cannot say, each with the message that names line, limit and next step."""

from __future__ import annotations

from pathlib import Path

import pytest
from definition_fixture import refused, write

from udpbench.definition import load
from udpbench.errors import InputError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("send: {bach: 3}", "x.yaml:2: send.bach: 3: unknown key; did you mean batch?"),
        (
            "receve: {}",
            "x.yaml:2: receve: unknown key; did you mean receive?",
        ),
        ("send: 3", "x.yaml:2: send: 3: a map of keys is expected"),
        ("expect: x > 3", "x.yaml:2: expect: x > 3: a list is expected"),
        ("send: {batch: 4096}", "x.yaml:2: send.batch: 4096: above the range; 1 to 1024, or auto"),
        ("send: {batch: 0}", "x.yaml:2: send.batch: 0: below the range; 1 to 1024, or auto"),
        (
            "send: {batch: [1]}",
            "x.yaml:2: send.batch: not a text; 1 to 1024, or auto; write a single value",
        ),
        (
            "send: {batch: 1.5}",
            "x.yaml:2: send.batch: 1.5: 1.5 is no whole number of packets; 1 to 1024, or auto",
        ),
        (
            "traffic: {size: 64}",
            (
                "x.yaml:2: traffic.size: 64: the unit is missing; 0B to 65507B; known: "
                "B, kB, KiB, MB, MiB, GB or GiB; write for example 32B or 4MiB"
            ),
        ),
        (
            "duration: 5 parsecs",
            (
                "x.yaml:2: duration: 5 parsecs: unit 'parsecs' is unknown; 100ms to 24h; "
                "known: ns, us, ms, s, min or h; write for example 10s or 200us"
            ),
        ),
        (
            "traffic: {rate: 3}",
            (
                "x.yaml:2: traffic.rate: 3: the unit is missing; above 0, to 1Tpps or 1Tbps, or "
                "unlimited; known: pps, kpps, Mpps, kbps, Mbps or Gbps; "
                "write for example 40kpps or 100Mbps"
            ),
        ),
        (
            "traffic: {rate: 0pps}",
            "x.yaml:2: traffic.rate: 0pps: out of range; above 0, to 1Tpps or 1Tbps, or unlimited",
        ),
        (
            "send: {call: sendmsg}",
            (
                "x.yaml:2: send.call: sendmsg: unknown value; one of send, sendmmsg; "
                "did you mean sendmmsg?"
            ),
        ),
        (
            "receive: {gro: yes}",
            "x.yaml:2: receive.gro: yes: neither true nor false; write true or false",
        ),
        (
            "send: {cpus: 3-1}",
            (
                "x.yaml:2: send.cpus: 3-1: no range of CPUs; or lab, any, same-cpu, smt-sibling, "
                "same-node, other-node; write it upwards, at most 4095"
            ),
        ),
        (
            "send: {cpus: '1,1'}",
            (
                "x.yaml:2: send.cpus: 1,1: a CPU stands twice; or lab, any, same-cpu, smt-sibling, "
                "same-node, other-node; name each once"
            ),
        ),
        (
            "send: {cpus: first}",
            (
                "x.yaml:2: send.cpus: first: no CPU numbers; or lab, any, same-cpu, smt-sibling, "
                "same-node, other-node; write for example 2 or 0-3,8"
            ),
        ),
        (
            "traffic: {flows: {from: 0}}",
            "x.yaml:2: traffic.flows.from: 0: no range of ports; 1 to 65535, written upwards",
        ),
        (
            "traffic: {flows: {from: x}}",
            (
                "x.yaml:2: traffic.flows.from: x: no port or range of ports; "
                "write for example 4321 or 4321-4324"
            ),
        ),
        (
            "traffic: {flows: {to: 10.0.0.1:4321}}",
            (
                "x.yaml:2: traffic.flows.to: 10.0.0.1:4321: no destination; "
                "write for example receiver.addresses[1-4]:4321"
            ),
        ),
        (
            'traffic: {flows: {to: "receiver.addresses[2-1]:4321"}}',
            (
                "x.yaml:2: traffic.flows.to: receiver.addresses[2-1]:4321: no range of addresses; "
                "counted from 1, written upwards"
            ),
        ),
        (
            "receive: {wait: nap}",
            (
                "x.yaml:2: receive.wait: nap: unknown value; or block, epoll, spin; "
                "write block, epoll, spin, nap 100us or busy-poll 50us"
            ),
        ),
        (
            "receive: {wait: nap 2s}",
            "x.yaml:2: receive.wait: nap 2s: out of range; or block, epoll, spin; above 0s, to 1s",
        ),
        (
            "send: {priority: nice 20}",
            "x.yaml:2: send.priority: nice 20: out of range; or normal; nice takes -20 to 19",
        ),
        (
            "send: {priority: high}",
            (
                "x.yaml:2: send.priority: high: unknown value; or normal; "
                "write normal, nice -20 to 19, fifo 1 to 99"
            ),
        ),
        (
            "source: nowhere",
            "x.yaml:2: source: nowhere: not understood; write for example cloudflare-2015/naive",
        ),
        (
            "faults: {rx_xpd: 3}",
            (
                "x.yaml:2: faults.rx_xpd: 3: unknown value; one of unsent, tx_netfilter, tx_qdisc, "
                "tx_device, link, rx_ring, rx_xdp, rx_backlog, rx_tc, rx_ip, rx_netfilter, "
                "udp_checksum, udp_no_port, udp_filter, udp_rcvbuf, udp_memory, udp_purged, "
                "app_truncated, app_log; did you mean rx_xdp?"
            ),
        ),
    ],
)
def test_a_bad_key_or_value_is_named_with_its_limit(text: str, message: str) -> None:
    """File, line, key, value, limit and next step stand in one line."""
    assert [message] == refused(text)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("mtu: 10", "mtu: 10: below the range; 68 to 65535"),
        ("addresses: [10.0.0.1]", "addresses[1]: 10.0.0.1: the prefix length is missing; write"),
        ("addresses: [x/24]", "addresses[1]: x/24: no address with a prefix; write for example"),
        ("addresses: [224.0.0.1/24]", "addresses[1]: 224.0.0.1/24: no address of one host; take"),
        ("addresses: [10.0.0.0/24]", "addresses[1]: 10.0.0.0/24: the network's own or its broad"),
        ("addresses: [10.0.0.9-1/24]", "addresses[1]: 10.0.0.9-1/24: no range of addresses; wr"),
        (
            "qdisc: {tbf: {rate: 1Gbps, burst: 1B}}",
            "qdisc.tbf.limit: the key is missing; add limit",
        ),
        (
            "qdisc: {tbf: {rate: 1kpps, burst: 1B, limit: 1B}}",
            "qdisc.tbf.rate: 1kpps: a device's rate is in bits per second; write for example 1Gbps",
        ),
        ("qdisc: {}", "qdisc: a device has one root queue; one of tbf, pfifo, bfifo"),
        (
            "qdisc: {pfifo: {limit: 1}, bfifo: {limit: 1B}}",
            "qdisc: a device has one root queue; one of tbf, pfifo, bfifo",
        ),
        ("sysctl: {rmem: 3}", "sysctl.rmem: 3: no name of a sysctl; write for example net.core.rm"),
        ("sysctl: {net.core.x: '  '}", "sysctl.net.core.x: : no value; write what the kernel woul"),
        ("ethtool: {features: {Gro: true}}", "ethtool.features.Gro: true: not understood; write f"),
        ("ethtool: {features: {gro: 1}}", "ethtool.features.gro: 1: neither true nor false; write"),
        ("napi: {cpus: lab}", "napi.cpus: lab: no CPU numbers; write for example 2 or 0-3,8"),
        ("mtu: 1500\n    optional: [qdisc]", "optional[1]: qdisc: nothing is set there; name a pa"),
        (
            "mtu: 1500\n    optional: [mtu.x]",
            "optional[1]: mtu.x: nothing is set there; name a path that is set beside it",
        ),
    ],
)
def test_a_bad_setting_is_named_with_its_limit(block: str, message: str) -> None:
    """The settings block is as strict as the rest."""
    found = refused(f"settings:\n  receiver:\n    {block}")
    assert 1 == len(found)
    assert message in found[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "send: {call: send, batch: 4}",
            (
                "x.yaml:2: send.batch: 4: call send moves one message a call; "
                "remove it, or call sendmmsg"
            ),
        ),
        (
            "receive: {call: recv, batch: 4}",
            (
                "x.yaml:2: receive.batch: 4: call recv moves one message a call; "
                "remove it, or call recvmmsg"
            ),
        ),
        (
            "send: {tail: 9B}",
            "x.yaml:2: send.tail: 9B: only a GSO message has a tail; set send.gso",
        ),
        (
            "traffic: {size: 17B}",
            (
                "x.yaml:2: traffic.size: 17B: no room for the header; at least 18B with "
                "read: header; set receive.read: copy or none"
            ),
        ),
        (
            "traffic: {size: 8B, echo: 10}\nreceive: {read: copy}",
            (
                "x.yaml:2: traffic.echo: 10: no header, no echo; a datagram's header is read: read: "
                "header or verify, protocol: udp; change receive.read, or leave echo out"
            ),
        ),
        (
            "traffic: {echo: 10}\nsend: {zerocopy: true}",
            (
                "x.yaml:2: traffic.echo: 10: completions of zerocopy would keep the "
                "listener for echoes awake; leave echo or send.zerocopy out"
            ),
        ),
        (
            "receive: {read: none, timestamps: true}",
            (
                "x.yaml:2: receive.timestamps: true: no header, no delay to split; a datagram's "
                "header is read: read: header or verify, protocol: udp; change receive.read, or leave "
                "timestamps out"
            ),
        ),
        (
            "receive: {read: none, log: {path: /x}}",
            (
                "x.yaml:2: receive.log: nothing that could be logged; datagrams are copied: read: "
                "header, verify or copy, protocol: udp; change receive.read, or leave log out"
            ),
        ),
        (
            "traffic: {size: 1400B}\nsend: {gso: 64}",
            (
                "x.yaml:3: send.gso: 64: the message is too long; size times gso at most 65507B; "
                "lower one of them"
            ),
        ),
        (
            "receive: {gro: true, room: 2KiB}",
            (
                "x.yaml:2: receive.room: 2KiB: would truncate a merged datagram; "
                "at least 65535B with gro; leave room out"
            ),
        ),
        (
            "send: {workers: 2}",
            (
                "x.yaml:2: send.workers: 2: 2 workers cannot split 1 flow; a flow for each worker; "
                "widen from or to, lower it, or set spread: each"
            ),
        ),
        (
            'traffic: {flows: {from: 1-65535, to: "receiver.addresses[1-2]:1"}}',
            (
                "x.yaml:2: traffic.flows.to: receiver.addresses[1-2]:1: 131070 flows are too many; "
                "65536; narrow from or to"
            ),
        ),
        (
            'traffic: {flows: {to: "receiver.addresses[1]:1-2"}}\nreceive: {workers: 1}',
            (
                "x.yaml:3: receive.workers: 1: too few receiving workers; at least 2, one for each "
                "port of traffic.flows.to; raise it, narrow the ports, or wait by epoll, spin or nap"
            ),
        ),
        (
            "traffic: {size: 0B, rate: 1Mbps}\nreceive: {read: copy}",
            (
                "x.yaml:2: traffic.rate: 1Mbps: a size of 0B has no bits to count; "
                "give a rate in pps, or a size"
            ),
        ),
        (
            "traffic: {rate: 100bps}",
            (
                "x.yaml:2: traffic.rate: 100bps: 0 packets a second; "
                "at least one packet a second for each worker; raise it"
            ),
        ),
        (
            "traffic: {count: 1, flows: {spread: each}}\nsend: {workers: 2}",
            (
                "x.yaml:2: traffic.count: 1: fewer packets than workers; "
                "at least 2, one for each worker; raise it"
            ),
        ),
        (
            "traffic: {count: 1M, rate: 10kpps}",
            (
                "x.yaml:2: traffic.count: 1M: takes 100s at 10000 packets a second; "
                "the deadline is duration: 1min; raise duration, or lower count"
            ),
        ),
        (
            "receive: {fault: {worker: 2, after: 1s, does: hang}}",
            "x.yaml:2: receive.fault.worker: 2: no such worker; receive.workers is 1; lower it",
        ),
        (
            "receive: {workers: 0}",
            (
                "x.yaml:2: receive.workers: 0: nothing can arrive at a closed port; "
                "set path_check: explained"
            ),
        ),
        (
            "traffic: {protocol: tcp, flows: {queues: 2}}",
            (
                "x.yaml:2: traffic.flows.queues: 2: a TCP stream does not survive that its worker is "
                "prepared anew; queues and relations are for udp; take any queue, and cpus of the lab"
            ),
        ),
        (
            "settings: {sender: {link: {queues: 2}}}",
            (
                "x.yaml:2: settings.sender.link: the receiver makes the link; "
                "write it under the receiver's settings"
            ),
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(text: str, message: str) -> None:
    """Each rule of ``contradictions`` fires, with the line of the value to change."""
    assert message in refused(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "traffic: {size: 0B}\nsend: {gso: 2}\nreceive: {read: copy}",
            "x.yaml:3: send.gso: 2: a message of empty datagrams has no segments; set size",
        ),
        (
            "traffic: {fragment: true}\nsend: {gso: max}",
            (
                "x.yaml:3: send.gso: max: segments are never fragmented (udp(7)); "
                "set one of them alone"
            ),
        ),
        (
            "send: {gso: 2, tail: 33B}",
            "x.yaml:2: send.tail: 33B: longer than the others; at most 32B; lower it",
        ),
        (
            "send: {gso: 2, tail: 17B}",
            "x.yaml:2: send.tail: 17B: no room for the header; at least 18B; raise it",
        ),
        (
            "receive: {sockets: incoming-cpu, cpus: any}",
            (
                "x.yaml:2: receive.sockets: incoming-cpu: a worker without a CPU has none to "
                "prefer; set receive.cpus"
            ),
        ),
        (
            "duration: 2s\nreceive: {fault: {worker: 1, after: 2s, does: hang}}",
            ("x.yaml:3: receive.fault.after: 2s: it would never happen; duration is 2s; lower it"),
        ),
        (
            "traffic: {protocol: tcp}\nsend: {gso: 2}",
            "x.yaml:3: send.gso: 2: a TCP stream has no datagrams; leave it out with tcp",
        ),
        (
            "traffic: {protocol: tcp, size: 0B}",
            "x.yaml:2: traffic.size: 0B: a write of 0B moves nothing; raise it",
        ),
        (
            "traffic: {protocol: tcp, flows: {spread: each}}\nsend: {workers: 2}",
            (
                "x.yaml:2: traffic.flows.spread: each: two streams cannot have the same addresses "
                "and ports; set spread: split"
            ),
        ),
        (
            "traffic: {protocol: tcp}\nreceive: {workers: 2}",
            (
                "x.yaml:3: receive.workers: 2: more workers than streams; 1, a stream for each; "
                "lower it"
            ),
        ),
    ],
)
def test_ways_that_contradict_each_other_are_refused(text: str, message: str) -> None:
    """Each rule of ``ways`` fires, with the line of the value to change."""
    assert message in refused(text)


def test_everything_wrong_is_said_at_once_over_all_files() -> None:
    """Two files with two problems each are four lines."""
    bad = "question: x\nsend: {batch: 0}\nduration: 1\n"
    write(Path.cwd(), bad, "a.yaml")
    write(Path.cwd(), bad, "b.yaml")
    with pytest.raises(InputError) as caught:
        load.load_experiments(["a.yaml", "b.yaml"])
    lines = [str(problem).split(": ")[0] for problem in caught.value.problems]
    assert ["a.yaml:2", "a.yaml:3", "b.yaml:2", "b.yaml:3"] == sorted(lines)
