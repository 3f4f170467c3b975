"""Rules of udpbench by each program that can make them, in namespaces of the tests' own."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator

import pytest
from settings_fixture import Inside, Refused, setting

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo pytest tests/lab"),
]
ACCEPT = setting("firewall", "ipv4/input/accept/udp/4321", True)
RULES = (
    ACCEPT,
    setting("firewall", "ipv4/prerouting/notrack/udp/4321", True),
    setting("firewall", "ipv4/output/notrack/udp/4321", True),
    setting("firewall", "ipv4/input/drop/udp/4322", True),
    setting("firewall", "ipv4/output/drop/udp/4323", True),
    setting("firewall", "ipv4/prerouting/drop/udp/4324", True),
    setting("firewall", "ipv6/input/accept/udp/4321", True),
    setting("firewall", "ipv6/prerouting/notrack/udp/4321", True),
)
BACKENDS = {
    "nf_tables": {"iptables": "xtables-nft-multi", "nft": "nft"},
    "nf_tables without nft": {"iptables": "xtables-nft-multi"},
    "legacy": {"iptables": "xtables-legacy-multi"},
    "nft": {"nft": "nft"},
}


@pytest.fixture(params=BACKENDS)
def inside(request: pytest.FixtureRequest) -> Iterator[tuple[Inside, str]]:
    """Yield a namespace with one way of making rules, and that way's name."""
    links = {}
    for name, program in BACKENDS[request.param].items():
        path = shutil.which(program)
        if path is None:
            pytest.skip(f"{program} is not installed")
        links[name] = path
        if name == "iptables":
            links |= dict.fromkeys(("ip6tables", "iptables_save", "ip6tables_save"), path)
    namespace = Inside()
    namespace.call("open", run="test")
    namespace.call("programs", **links)
    yield namespace, request.param
    namespace.close()


FOREIGN = {
    "nf_tables": "iptables -A INPUT -p udp --dport 4321 -j DROP",
    "nf_tables without nft": "iptables -A INPUT -p udp --dport 4321 -j DROP",
    "legacy": "iptables -A INPUT -p udp --dport 4321 -j DROP",
    "nft": "nft 'table inet site { chain in { type filter hook input priority 0; policy accept; "
    "udp dport 4321 drop; }; }'",
}


def rules_of(inside: Inside, backend: str) -> str:
    """Return every rule there is."""
    return inside.shell("nft list ruleset" if backend == "nft" else "iptables-save; ip6tables-save")


def test_rules_come_and_go_and_foreign_ones_stay(inside: tuple[Inside, str]) -> None:
    """Each is read back; afterwards the host's own rule is there as it was, and nothing else."""
    host, backend = inside
    host.shell(FOREIGN[backend])
    before = host.call("visible")
    changes = host.apply(*RULES)
    assert [True] * len(RULES) == [change["after"] for change in changes]
    assert [False, None] == sorted({bool(c["before"]) or None for c in changes} | {False}, key=str)
    assert len(RULES) == rules_of(host, backend).count("udpbench:")
    host.call("restore")
    after = host.call("visible")
    if backend == "legacy":  # a table that was once asked for stays until its namespace ends
        before, after = before["iptables"], after["iptables"]
        after = "\n".join(line for line in after.splitlines() if line.startswith("-A"))
        before = "\n".join(line for line in before.splitlines() if line.startswith("-A"))
    assert before == after


NFT = shutil.which("nft") or "nft"
RULESET = f"{NFT} list ruleset"
OF_ANOTHER = f"{NFT} add rule {{}} udp dport 9 drop"
CHAINS = {"nft": "inet udpbench input_filter"}
"""Backend → a chain that it makes; of all others the next."""
CHAIN = "ip filter INPUT"


def of_nf_tables(inside: tuple[Inside, str]) -> tuple[Inside, str]:
    """Return the namespace and a chain that its backend makes there; skipped for legacy ones."""
    host, backend = inside
    if backend == "legacy":
        pytest.skip("a table that was once asked for stays until its namespace ends")
    return host, CHAINS.get(backend, CHAIN)


def test_no_table_stays_that_was_not_there(inside: tuple[Inside, str]) -> None:
    """Nor a chain, whichever program made it; and what was restored is said."""
    host, chain = of_nf_tables(inside)
    assert "" == host.shell(RULESET)
    host.apply(*RULES)
    assert "4321" in host.shell(RULESET)
    table = chain.rpartition(" ")[0]
    tables = [
        item["after"] for item in host.call("restore") if item["setting"]["kind"] != "firewall"
    ]
    assert ("", [{}] * len(tables)) == (host.shell(RULESET), tables)
    host.shell(f"{NFT} add table {table}")
    host.apply(*RULES)
    host.call("restore")
    assert f"table {table} {{\n}}\n" == host.shell(RULESET)


def test_what_is_not_empty_by_then_stays(inside: tuple[Inside, str]) -> None:
    """Another process has a rule there, or a policy; its other chains and tables are its own."""
    host, chain = of_nf_tables(inside)
    host.apply(*RULES)
    host.shell(OF_ANOTHER.format(chain))
    host.call("restore")
    table, _, name = chain.rpartition(" ")
    listed = host.shell(RULESET)
    assert (1, 1, 1) == (listed.count("table"), listed.count("chain"), listed.count("dport"))
    host.shell(f"{NFT} flush chain {chain} && {NFT} add chain {chain} '{{ policy drop; }}'")
    host.call("open", run="second")
    host.apply(*RULES)
    host.call("restore")
    assert f"table {table} {{\n\tchain {name} {{" in host.shell(RULESET)


REMOVE = (
    f"{sys.executable} -c 'from udpbench.agent.host.system import Host; "
    'Host().remove_from_firewall("ip", "filter", {}, {})\''
)


def test_the_kernel_itself_keeps_what_is_not_empty(both: Inside) -> None:
    """A rule that comes after the look is not lost, nor the table with one of two chains."""
    both.shell(f"{NFT} add table ip filter && {NFT} add chain ip filter INPUT")
    both.shell(f"{NFT} add chain ip filter OUTPUT && {OF_ANOTHER.format(CHAIN)}")
    before = both.shell(RULESET)
    for chains, with_table in ((["INPUT"], False), (["OUTPUT"], True), ([], True)):
        asked = REMOVE.format(str(chains).replace("'", '"'), with_table)
        with pytest.raises(Refused, match="Device or resource busy"):
            both.shell(asked)
        assert before == both.shell(RULESET)


def test_tables_go_whose_rules_are_gone(inside: tuple[Inside, str]) -> None:
    """As after a kill between the two; and so do all chains that iptables makes at once (1.8.2)."""
    host, chain = of_nf_tables(inside)
    host.apply(*RULES)
    table = chain.rpartition(" ")[0]
    host.shell(f"{NFT} flush table {table}")
    hook = "'{ type filter hook forward priority 0; policy accept; }'"
    host.shell(f"{NFT} add chain {table} FORWARD {hook}")
    host.call("restore")
    assert "" == host.shell(RULESET)


def test_an_accept_rule_wins_over_the_hosts_own_drop(inside: tuple[Inside, str]) -> None:
    """It stands before it, and its packets are counted."""
    host, backend = inside
    host.shell(FOREIGN[backend])
    host.shell("ip link set lo up")
    host.apply(*RULES)
    assert [4321] == host.call("arriving", ports=[4321, 4322, 4324])
    counted = host.call("counted")
    assert {setting["target"] for setting in RULES} == set(counted)
    assert (1, 1, 1, 1) == tuple(
        counted[f"ipv4/{place}/udp/{port}"]
        for place, port in (
            ("input/accept", 4321),
            ("prerouting/notrack", 4321),
            ("input/drop", 4322),
            ("prerouting/drop", 4324),
        )
    )


@pytest.fixture
def both() -> Iterator[Inside]:
    """Yield a namespace whose own firewall is nft's, on a host with iptables as well."""
    if shutil.which("iptables") is None or shutil.which("nft") is None:
        pytest.skip("iptables and nft are not both installed")
    namespace = Inside()
    namespace.shell("ip link set lo up")
    namespace.shell(
        "nft 'table inet site { chain in { type filter hook input priority 0; policy drop; }; }'"
    )
    yield namespace
    namespace.close()


def test_an_accept_rule_of_iptables_wins_over_a_drop_of_nft(both: Inside) -> None:
    """Each base chain of the hook decides for itself, so each has the rule, until the end."""
    before = both.call("visible")
    assert [] == both.call("arriving", ports=[4321])
    (change,) = both.apply(ACCEPT)
    assert True is change["after"]
    assert [4321] == both.call("arriving", ports=[4321, 4322])
    assert {ACCEPT["target"]: 1} == both.call("counted")
    both.call("restore")
    assert before == both.call("visible")


def test_a_rule_that_is_left_in_chains_of_nft_alone_is_not_taken_for_gone(both: Inside) -> None:
    """Somebody deleted the one of iptables; with force the rest goes, too."""
    before = both.call("visible")
    both.apply(ACCEPT)
    both.shell("iptables -F INPUT")
    with pytest.raises(Refused, match="now it is in nft chains, not in iptables"):
        both.call("restore")
    both.call("restore", force=True)
    assert before["nft"].split("table ip ")[0] == both.call("visible")["nft"].split("table ip ")[0]


def test_the_same_rule_is_not_made_twice(inside: tuple[Inside, str]) -> None:
    """A rule that a dead run left behind is in force, and not ours to delete."""
    host, backend = inside
    host.apply(*RULES)
    once = rules_of(host, backend).count("udpbench:")
    host.call("open", run="second")
    host.apply(*RULES)
    host.call("restore")
    assert once == rules_of(host, backend).count("udpbench:")


def test_a_dry_run_makes_no_table(inside: tuple[Inside, str]) -> None:
    """Asking the legacy program for a table by name would make it."""
    host, _ = inside
    before = host.call("visible")
    planned = host.call("plan", settings=list(RULES))
    assert [None] * len(RULES) == [entry["refusal"] for entry in planned]
    assert before == host.call("visible")


def test_an_altered_rule_is_not_taken_for_ours(inside: tuple[Inside, str]) -> None:
    """Somebody who changed it is told, and it is left alone."""
    host, backend = inside
    if backend == "nft":
        pytest.skip("nft has no words to alter a rule in place")
    host.apply(ACCEPT)
    comment = "-m comment --comment udpbench:ipv4/input/accept/udp/4321"
    host.shell(f"iptables -R INPUT 1 -p udp --dport 9999 {comment} -j ACCEPT")
    with pytest.raises(Refused, match="another process changed it"):
        host.call("restore")
    assert "--dport 9999" in rules_of(host, backend)


def test_without_a_program_it_is_refused() -> None:
    """The message names both."""
    inside = Inside()
    try:
        inside.call("open", run="test")
        inside.call("programs")
        with pytest.raises(Refused, match="neither iptables nor nft is installed; install one"):
            inside.apply(ACCEPT)
        assert {} == inside.call("counted")
    finally:
        inside.close()


def test_addresses_are_of_ipv4_or_ipv6_alone(inside: tuple[Inside, str]) -> None:
    """A rule for IPv6 leaves IPv4 packets alone."""
    host, _ = inside
    host.shell("ip link set lo up")
    host.apply(setting("firewall", "ipv6/input/drop/udp/4321", True))
    assert [4321] == host.call("arriving", ports=[4321])


def test_rules_that_decide_nothing_come_and_go(both: Inside) -> None:
    """Datagrams to the port pass all of them, those to other ports none, and none is lost there."""
    both.shell("nft flush ruleset")
    before = both.call("visible")
    passed = setting("passed_rules", "input/4321", {"rules": 100, "track": True})
    (change,) = both.apply(passed)
    assert (None, {"rules": 100, "track": True}) == (change["before"], change["after"])
    listed = both.shell(RULESET)
    assert (1, 1, 100) == tuple(map(listed.count, ("!= 4321 accept", "ct state", "dport 0")))
    assert [4321, 4322] == both.call("arriving", ports=[4321, 4322])
    both.call("restore")
    assert before == both.call("visible")


@pytest.mark.parametrize(
    "value", [{"8080": "172.17.0.2:4321", "81": "172.17.0.2:80"}, {"8080": "[fd00::2]:4321"}]
)
def test_a_published_port_comes_and_goes(both: Inside, value: dict[str, str]) -> None:
    """As docker's: what is for any other port, or comes in where packets leave, is left alone."""
    both.shell("nft flush ruleset")
    before = both.call("visible")
    (change,) = both.apply(setting("published", "docker0", value))
    assert (None, value) == (change["before"], change["after"])
    listed = both.shell("nft list table inet udpbench_published")
    assert len(value) == listed.count('iifname != "docker0" fib daddr type local udp dport')
    both.call("restore")
    assert before == both.call("visible")


def test_without_nft_rules_to_pass_are_refused() -> None:
    """The message names it."""
    inside = Inside()
    try:
        inside.call("open", run="test")
        inside.call("programs")
        with pytest.raises(Refused, match="nft is not installed; install it"):
            inside.apply(setting("passed_rules", "output/9", {"rules": 1, "track": False}))
    finally:
        inside.close()
