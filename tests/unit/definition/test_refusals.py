"""What an experiment cannot say, each with the message that names line, limit and next step."""

from __future__ import annotations

from pathlib import Path

import pytest
from definition_fixture import loaded, refused, write
from golden import Golden

from udpbench.definition import load
from udpbench.definition.file_keys import MAPS
from udpbench.errors import InputError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("send: {bach: 3}", "x.yaml:2: send.bach: 3: unknown key; did you mean batch?"),
        (
            "receve: {}",
            "x.yaml:2: receve: unknown key; did you mean receive?",
        ),
        (
            "send: 3",
            (
                "x.yaml:2: send: 3: not a map of keys; expected: workers, workers_as, cpus, call, batch, gso, "
                "tail, zerocopy, pace, bucket, buffer, force_buffer, priority; "
                "write for example send: {batch: 64}"
            ),
        ),
        (
            "traffic: {flows: 16}",
            (
                "x.yaml:2: traffic.flows: 16: not a map of keys; expected: from, to, queues, spread, published; "
                "for 16 flows write flows: {from: 20000-20015}"
            ),
        ),
        (
            "traffic: {flows: 1}",
            (
                "x.yaml:2: traffic.flows: 1: not a map of keys; expected: from, to, queues, spread, published; "
                "for 1 flow write flows: {from: 20000-20000}"
            ),
        ),
        (
            "sweep: {receive.buffer: 8KiB..64KiB}",
            (
                "x.yaml:2: sweep.receive.buffer: 8KiB..64KiB: not a list; "
                "write [8KiB, 16KiB, 32KiB, 64KiB]"
            ),
        ),
        (
            "receive: {buffer: 100kB-300kB}",
            (
                "x.yaml:2: receive.buffer: 100kB-300kB: a range instead of a single value; "
                "expected: 1B to 1GiB, or default; to try each, write [100000B, 200000B, 300kB] in a sweep"
            ),
        ),
        (
            "sweep: {traffic.rate: 100kpps to 400kpps}",
            (
                "x.yaml:2: sweep.traffic.rate: 100kpps to 400kpps: not a list; "
                "write [100kpps, 200kpps, 400kpps]"
            ),
        ),
        (
            "receive: {sockets: own}",
            (
                "x.yaml:2: receive.sockets: own: unknown value; expected: one of shared, reuseport, "
                "reuseport-cpu, reuseport-ebpf, incoming-cpu"
            ),
        ),
        ("expect: x > 3", "x.yaml:2: expect: x > 3: not a list; write [x > 3]"),
        ("expect: {a: b}", "x.yaml:2: expect: not a list"),
        (
            "sweep: {send.batch: 1-4}",
            "x.yaml:2: sweep.send.batch: 1-4: not a list; write [1, 2, 3, 4]",
        ),
        (
            "send: {batch: 4096}",
            "x.yaml:2: send.batch: 4096: above the range; expected: 1 to 1024, or auto",
        ),
        (
            "send: {batch: 0}",
            "x.yaml:2: send.batch: 0: below the range; expected: 1 to 1024, or auto",
        ),
        (
            "send: {batch: [1]}",
            "x.yaml:2: send.batch: a list instead of a single value; expected: 1 to 1024, or auto; write batch: 1",
        ),
        (
            "traffic: {size: [64B, 128B]}",
            (
                "x.yaml:2: traffic.size: a list instead of a single value; expected: 0B to 65507B; "
                "to try each, write sweep: {traffic.size: [64B, 128B]}"
            ),
        ),
        (
            "receive: {gro: [true, false]}",
            (
                "x.yaml:2: receive.gro: a list instead of a single value; "
                "to try each, write sweep: {receive.gro: [true, false]}"
            ),
        ),
        (
            "send: {call: [send, sendmmsg]}",
            (
                "x.yaml:2: send.call: a list instead of a single value; expected: one of send, sendmmsg, "
                "af_xdp, io_uring; to try each, write sweep: {send.call: [send, sendmmsg]}"
            ),
        ),
        (
            "repetitions: 10000\nsweep: {send.batch: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]}",
            (
                "x.yaml:2: repetitions: 110000 trials are too many; expected: at most 100000; "
                "repeat or sweep less, or run them in parts"
            ),
        ),
        (
            "repetitions: [3, 5]",
            "x.yaml:2: repetitions: a list instead of a single value; expected: 1 to 10k; write a single value",
        ),
        (
            "send: {batch: [[1], [2]]}",
            (
                "x.yaml:2: send.batch: a list instead of a single value; expected: 1 to 1024, or auto; "
                "write a single value"
            ),
        ),
        (
            "send: {batch: true}",
            "x.yaml:2: send.batch: true: true or false instead of another value; expected: 1 to 1024, or auto",
        ),
        (
            "settings: {receiver: {ethtool: {channels: {combined: 2}}}}",
            (
                "x.yaml:2: settings.receiver.ethtool.channels: a map instead of a single value; "
                "expected: 1 to 4096; write channels: 2"
            ),
        ),
        (
            "send: {cpus: [0, 1]}",
            (
                "x.yaml:2: send.cpus: a list instead of a single value; expected: lab, any, same-cpu, "
                "smt-sibling, same-node, other-node; write 0-1"
            ),
        ),
        (
            "send: {cpus: [0, 8]}",
            (
                "x.yaml:2: send.cpus: a list instead of a single value; expected: lab, any, same-cpu, "
                "smt-sibling, same-node, other-node; write 0,8"
            ),
        ),
        (
            "sweep: {send.batch: [1-4]}",
            (
                "x.yaml:2: send.batch: 1-4: a range instead of a single value; expected: 1 to 1024, or auto; "
                "to try each, write [1, 2, 3, 4] in a sweep"
            ),
        ),
        (
            "sweep: {send.batch: [1-100]}",
            (
                "x.yaml:2: send.batch: 1-100: a range instead of a single value; expected: 1 to 1024, or auto; "
                "to try each, write [1, 2, 3, 4, 5, 6, 7, 8, …, 100] in a sweep"
            ),
        ),
        (
            "send: {batch: 1.5}",
            "x.yaml:2: send.batch: 1.5: 1.5 is not a whole number of packets; expected: 1 to 1024, or auto",
        ),
        (
            "traffic: {size: 64}",
            (
                "x.yaml:2: traffic.size: 64: the unit is missing; expected: 0B to 65507B; known: "
                "B, kB, KiB, MB, MiB, GB or GiB; write for example 32B or 4MiB"
            ),
        ),
        (
            "duration: 5 parsecs",
            (
                "x.yaml:2: duration: 5 parsecs: unit 'parsecs' is unknown; expected: 100ms to 24h; "
                "known: ns, us, ms, s, min or h; write for example 10s or 200us"
            ),
        ),
        (
            "traffic: {rate: 3}",
            (
                "x.yaml:2: traffic.rate: 3: the unit is missing; expected: above 0, to 1Tpps or 1Tbps, or "
                "unlimited; known: pps, kpps, Mpps, kbps, Mbps or Gbps; "
                "write for example 40kpps or 100Mbps"
            ),
        ),
        (
            "traffic: {rate: 0pps}",
            "x.yaml:2: traffic.rate: 0pps: out of range; expected: above 0, to 1Tpps or 1Tbps, or unlimited",
        ),
        (
            "send: {call: sendmsg}",
            (
                "x.yaml:2: send.call: sendmsg: unknown value; "
                "expected: one of send, sendmmsg, af_xdp, io_uring; "
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
                "x.yaml:2: send.cpus: 3-1: not a range of CPUs; expected: lab, any, same-cpu, smt-sibling, "
                "same-node, other-node; lower number first, at most 4095"
            ),
        ),
        (
            "send: {cpus: '1,1'}",
            (
                "x.yaml:2: send.cpus: 1,1: CPU listed twice; expected: lab, any, same-cpu, smt-sibling, "
                "same-node, other-node; name each once"
            ),
        ),
        (
            "send: {cpus: first}",
            (
                "x.yaml:2: send.cpus: first: not a list of CPUs; expected: lab, any, same-cpu, smt-sibling, "
                "same-node, other-node; write for example 2 or 0-3,8"
            ),
        ),
        (
            "traffic: {flows: {from: 0}}",
            "x.yaml:2: traffic.flows.from: 0: not a range of ports; 1 to 65535, lower number first",
        ),
        (
            "traffic: {flows: {from: x}}",
            (
                "x.yaml:2: traffic.flows.from: x: not a port or range of ports; "
                "write for example 4321 or 4321-4324"
            ),
        ),
        (
            "traffic: {flows: {to: 10.0.0.1:4321}}",
            (
                "x.yaml:2: traffic.flows.to: 10.0.0.1:4321: not a destination; packets go only to the lab's "
                "receivers; write receiver.addresses[1]:4321"
            ),
        ),
        (
            'traffic: {flows: {to: "receiver.addresses[2-1]:4321"}}',
            (
                "x.yaml:2: traffic.flows.to: receiver.addresses[2-1]:4321: not a range of addresses; "
                "counted from 1, lower number first"
            ),
        ),
        (
            "receive: {wait: nap}",
            (
                "x.yaml:2: receive.wait: nap: unknown value; expected: block, epoll, spin, auto; "
                "or write for example nap 100us or busy-poll 50us"
            ),
        ),
        (
            "receive: {wait: nap 2s}",
            "x.yaml:2: receive.wait: nap 2s: out of range; expected: block, epoll, spin, auto; above 0s, to 1s",
        ),
        (
            "send: {priority: nice 20}",
            "x.yaml:2: send.priority: nice 20: out of range; expected: normal; nice takes -20 to 19",
        ),
        (
            "send: {priority: high}",
            (
                "x.yaml:2: send.priority: high: unknown value; expected: normal; "
                "or write nice -20 to 19, fifo 1 to 99"
            ),
        ),
        (
            "source: nowhere",
            "x.yaml:2: source: nowhere: not understood; write for example cloudflare-2015/naive",
        ),
        (
            "faults: {rx_xdp: 3}",
            "x.yaml:2: faults: this key is now called losses; rename it to losses",
        ),
        (
            "sweep: {faults.rx_xdp: [3]}",
            "x.yaml:2: faults: this key is now called losses; rename it to losses",
        ),
        (
            "losses: {rx_xpd: 3}",
            (
                "x.yaml:2: losses.rx_xpd: 3: unknown value; expected: one of unsent, tx_policy, tx_netfilter, "
                "tx_ipsec, tx_qdisc, tx_device, link, fwd_ring, fwd_xdp, fwd_backlog, fwd_tc, fwd_bridge, fwd_tun, fwd_encap, "
                "fwd_ip, fwd_prerouting, fwd_conntrack, fwd_rp_filter, fwd_route, fwd_local, fwd_mtu, fwd_netfilter, "
                "fwd_neighbour, fwd_rcvbuf, fwd_decap, fwd_ecn, fwd_cells, fwd_qdisc, fwd_device, rx_ring, rx_xdp, xsk_ring, xsk_fill, rx_backlog, rx_tc, rx_ip, "
                "rx_netfilter, udp_checksum, udp_no_port, rx_policy, udp_filter, udp_rcvbuf, udp_memory, "
                "udp_purged, app_truncated, app_log, app_unanswered, answer_lost; did you mean rx_xdp?"
            ),
        ),
    ],
)
def test_a_bad_key_or_value_is_named_with_its_limit(text: str, message: str) -> None:
    """File, line, key, value, limit and next step stand in one line."""
    assert [message] == refused(text)


@pytest.mark.parametrize(
    "block",
    [
        "mtu: 10",
        "addresses: [10.0.0.1]",
        "addresses: [x/24]",
        "addresses: [224.0.0.1/24]",
        "addresses: [10.0.0.0/24]",
        "addresses: [10.0.0.9-1/24]",
        "qdisc: {tbf: {rate: 1Gbps, burst: 1B}}",
        "qdisc: {tbf: {rate: 1kpps, burst: 1B, limit: 1B}}",
        "qdisc: {}",
        "qdisc: {pfifo: {limit: 1}, bfifo: {limit: 1B}}",
        "sysctl: {rmem: 3}",
        "sysctl: {kernel.core_pattern: '|/tmp/x'}",
        "sysctl: {net.ipv4.ip_forward: 0, vm/overcommit_memory: 1}",
        "sysctl: {net.core.x: '  '}",
        "ethtool: {features: {Gro: true}}",
        "ethtool: {features: {gro: 1}}",
        "napi: {cpus: lab}",
        "mtu: 1500\n    optional: [qdisc]",
        "mtu: 1500\n    optional: [mtu.x]",
    ],
)
def test_a_bad_setting_is_named_with_its_limit(block: str, golden: Golden) -> None:
    """The settings block is as strict as the rest."""
    messages = refused(f"settings:\n  receiver:\n    {block}")
    assert 1 == len(messages)
    golden.check(messages[0])


@pytest.mark.parametrize(
    "text",
    [
        "send: {call: send, batch: 4}",
        "receive: {call: recv, batch: 4}",
        "send: {tail: 9B}",
        "traffic: {size: 17B}",
        "traffic: {size: 8B, echo: 10}\nreceive: {read: copy}",
        "traffic: {echo: 10}\nsend: {zerocopy: true}",
        "receive: {read: none, timestamps: true}",
        "receive: {read: none, log: {path: /x}}",
        "traffic: {size: 1400B}\nsend: {gso: 64}",
        "receive: {gro: true, room: 2KiB}",
        "send: {workers: 2}",
        'traffic: {flows: {from: 1-65535, to: "receiver.addresses[1-2]:1"}}',
        'traffic: {flows: {to: "receiver.addresses[1]:1-2"}}\nreceive: {workers: 1}',
        "traffic: {size: 0B, rate: 1Mbps}\nreceive: {read: copy}",
        "traffic: {rate: 100bps}",
        "traffic: {count: 1, flows: {spread: each}}\nsend: {workers: 2}",
        "traffic: {count: 1M, rate: 10kpps}",
        "receive: {fault: {worker: 2, after: 1s, does: hang}}",
        "receive: {workers: 0}",
        "traffic: {protocol: tcp, flows: {queues: 2}}",
        "settings: {sender: {link: {queues: 2}}}",
    ],
)
def test_values_that_contradict_each_other_are_refused(text: str, golden: Golden) -> None:
    """Each rule of ``contradictions`` fires, with the line of the value to change."""
    golden.check(refused(text))


@pytest.mark.parametrize(
    "text",
    [
        "traffic: {size: 0B}\nsend: {gso: 2}\nreceive: {read: copy}",
        "traffic: {fragment: true}\nsend: {gso: max}",
        "traffic: {echo: 2}\nsend: {call: af_xdp}",
        "traffic: {fragment: true}\nsend: {call: af_xdp}",
        "send: {call: af_xdp, gso: 2}",
        "send: {call: af_xdp, zerocopy: true}",
        "traffic: {protocol: tcp}\nsend: {call: af_xdp}",
        "traffic: {protocol: tcp}\nsend: {call: io_uring}",
        "traffic: {protocol: tcp}\nreceive: {call: io_uring}",
        "traffic: {protocol: tcp}\nreceive: {call: af_xdp, wait: spin}",
        "traffic: {size: 4055B}\nsend: {call: af_xdp}",
        "traffic: {size: 4035B, family: 6}\nsend: {call: af_xdp}",
        "receive: {call: af_xdp}",
        "receive: {call: af_xdp, wait: busy-poll 50us}",
        "receive: {call: af_xdp, wait: spin, gro: true, sockets: shared, timestamps: false}",
        "receive: {call: af_xdp, wait: spin, buffer: 1MiB, force_buffer: true, room: auto}",
        "traffic: {fragment: true}\nreceive: {call: af_xdp, wait: spin}",
        "traffic: {echo: 2}\nreceive: {call: af_xdp, wait: spin}",
        "receive: {call: af_xdp, wait: spin, fault: {worker: 1, after: 1ms, does: exit}}",
        "traffic: {size: 3799B}\nreceive: {call: af_xdp, wait: spin}",
        "send: {gso: 2, tail: 33B}",
        "send: {gso: 2, tail: 17B}",
        "receive: {sockets: incoming-cpu, cpus: any}",
        "duration: 2s\nreceive: {fault: {worker: 1, after: 2s, does: hang}}",
        "traffic: {protocol: tcp}\nsend: {gso: 2}",
        "traffic: {protocol: tcp, size: 0B}",
        "traffic: {protocol: tcp, flows: {spread: each}}\nsend: {workers: 2}",
        "traffic: {protocol: tcp}\nreceive: {workers: 2}",
        "send: {call: io_uring, zerocopy: true}",
        "traffic: {echo: 10}\nreceive: {call: io_uring, gro: true, timestamps: true, wait: epoll}",
        "receive: {call: io_uring, wait: busy-poll 50us}",
        "receive: {sockets: reuseport-ebpf}",
        "receive: {steering: /sys/fs/bpf/x}",
        "receive: {sockets: reuseport-ebpf, steering: /tmp/x}",
        "receive: {sockets: reuseport-ebpf, steering: /sys/fs/bpf/../x}",
        pytest.param(
            'traffic: {flows: {to: "receiver.addresses[1]:1-2"}}\n'
            "receive: {sockets: reuseport-ebpf, steering: /sys/fs/bpf/x, workers: 2}",
            id="steering of two ports",
        ),
    ],
)
def test_ways_that_contradict_each_other_are_refused(text: str, golden: Golden) -> None:
    """Each rule of ``ways`` fires, with the line of the value to change."""
    golden.check(refused(text))


@pytest.mark.parametrize(
    "text",
    [
        "question: Why?\nextends: nothing.yaml\ntraffic: {payload: {file: no.bin}}\nsend: {bach: 3}",
        (
            "question: Why?\ntraffic: {payload: {file: no.bin}, raet: 3}\n"
            "variants: {a: {receive.bufer: 1B}}\nsweep: {send.batch: [0, 2]}\nexpect: [lost > 3]"
        ),
        "questoin: Why?\nsend: {bach: 3}\ndoes: it",
        "question: Why?\ntraffic: {payload: {file: no.bin}}\nsweep: 3\nsend: 4",
        "question: Why?\ncompare: {a: x}\nsweep: {send.bach: [3]}\nvariants: {x: {receive.wrok: 1us}}",
    ],
)
def test_what_is_missing_hides_nothing_else_that_is_wrong(text: str, golden: Golden) -> None:
    """A file that is not there, or no question: misspelt keys and values are reported with it."""
    write(Path.cwd(), text)
    with golden.raises(InputError):
        load.load_experiments(["x.yaml"])


def test_a_lab_named_as_an_experiment_is_reported_as_such_alone(golden: Golden) -> None:
    """Its keys are not misspelt."""
    write(Path.cwd(), "sender: [{connect: local}]\nreceiver: []\n")
    with golden.raises(InputError):
        load.load_experiments(["x.yaml"])


@pytest.mark.parametrize("key", MAPS)
def test_the_example_of_a_map_is_valid(key: str) -> None:
    """Whoever copies it from the message has an experiment that loads."""
    inner = f"traffic:\n  {key}: {MAPS[key]}" if key == "flows" else f"{key}: {MAPS[key]}"
    assert loaded(inner).points


def test_a_capture_as_a_payload_is_called_one(golden: Golden) -> None:
    """It is longer than a datagram, and begins as tcpdump's files do."""
    Path("x.pcap").write_bytes(bytes.fromhex("d4c3b2a1") + bytes(70000))
    golden.check(refused("traffic: {payload: {file: x.pcap}}"))


def test_everything_wrong_is_reported_at_once_over_all_files() -> None:
    """Two files with two problems each are four lines."""
    bad = "question: x\nsend: {batch: 0}\nduration: 1\n"
    write(Path.cwd(), bad, "a.yaml")
    write(Path.cwd(), bad, "b.yaml")
    with pytest.raises(InputError) as caught:
        load.load_experiments(["a.yaml", "b.yaml"])
    lines = [str(problem).split(": ")[0] for problem in caught.value.problems]
    assert ["a.yaml:2", "a.yaml:3", "b.yaml:2", "b.yaml:3"] == sorted(lines)


@pytest.mark.parametrize("name", ["a\x1b[2J.yaml", "a\u202elmay.yaml", "a\n.yaml"])
def test_a_file_whose_name_a_terminal_would_obey_is_refused(
    tmp_path: Path, name: str, golden: Golden
) -> None:
    """The experiment, or the lab, is called after it."""
    file = write(tmp_path, "question: Why?\n", name)
    for read in (load.load_lab, lambda file: load.load_experiments([file])):
        with golden.raises(InputError):
            read(file)


def test_a_text_that_a_terminal_would_obey_is_refused(tmp_path: Path, golden: Golden) -> None:
    """Keys and values, escaped in YAML or written as they are; a question may have lines."""
    (plain,) = load.load_experiments([write(tmp_path, "question: |\n  Why?\n  So.\n")])
    assert "Why?\nSo.\n" == plain.question
    text = 'question: "a\\e[2J"\n"x\\e": 3\nsend: {cpus: "any\\a"}\nexpect: [\u202e unsent == 0]\n'
    file = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load.load_experiments([file], ["receive.cpus=\u2066any"])
    message = str(caught.value)
    golden.check(message)
    with pytest.raises(InputError) as caught:
        load.load_experiments([file])
    message = str(caught.value)
    for line, what in enumerate(["question: a\x1b[2J", "x\x1b: the key", "send.cpus: any\a"], 1):
        assert f"x.yaml:{line}: {what}" in message
    golden.check(message)
    assert 4 == message.count("contains a control character")


def test_an_interface_of_control_characters_is_refused(tmp_path: Path, golden: Golden) -> None:
    """In a lab all names are texts of the file."""
    text = 'sender: [{connect: namespace, interface: "x\\e[2J", addresses: [10.0.0.9/24]}]\n'
    with golden.raises(InputError):
        load.load_lab(write(tmp_path, text))
