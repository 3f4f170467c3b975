"""Feed ten million inputs to what parses the text of iperf3 clients, which may be anybody's.

``fuzz_talk.py [INPUTS]``: pieces of a client's texts are changed, repeated, left out or nested, and
each input is parsed as parameters and as results. It is understood within the limits, or refused;
anything else is a fault. Blocks that have ended are lines of a file named by what is tested, and
are not run again: the command goes on where it was interrupted.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from udpbench import json_lines
from udpbench.agent.iperf3 import talk
from udpbench.agent.iperf3.talk import Unserved, parse_parameters, parse_results
from udpbench.model.limits import MAX_PAYLOAD_BYTES, STREAMS_MAX

OF_3_1 = (
    b'{"udp":true,"omit":0,"time":10,"parallel":1,"len":8192,"bandwidth":1048576,'
    b'"client_version":"3.1.3"}'
)
"""What a client of 3.1 asks for, as far as the protocol's description goes."""
OF_3_12 = (
    b'{"udp":true,"omit":1,"time":0,"num":1e+06,"blockcount":0,"parallel":4,"window":262144,'
    b'"len":1448,"bandwidth":1000000000,"pacing_timer":1000,"TOS":16,"get_server_output":1,'
    b'"udp_counters_64bit":1,"dont_fragment":1,"gsro":1,"skip_rx_copy":1,'
    b'"client_version":"3.18"}'
)
RESULTS = (
    b'{"cpu_util_total":1.5,"cpu_util_user":0.5,"cpu_util_system":1,"sender_has_retransmits":0,'
    b'"streams":[{"id":1,"bytes":1000,"retransmits":-1,"jitter":0,"errors":0,"packets":10,'
    b'"omitted_packets":2,"start_time":0,"end_time":1.000041},{"id":3,"bytes":0,"packets":7}]}'
)
TEXTS = (OF_3_1, OF_3_12, RESULTS)
PIECES = (
    *(b'"', b"[", b"{", b"}", b"]", b",", b":", b"\\", b"\\ud800", b"\0", b"\xff", b"\x1b[2J"),
    *(b"1e9", b"1e400", b"-", b"NaN", b"9" * 400, b"[" * 70, b'{"a":' * 40, b"true", b"null"),
    *(b'"parallel":129,', b'"len":65508,', b'"reverse":1,', b'"streams":[],', b'{"id":1},' * 140),
)
INPUTS, BLOCK = 10_000_000, 50_000
LATE_S = 0.5
"""CPU time for an input of at most 8 KiB."""
ASKED_MAX_BYTES, REFUSAL_MAX = 2**18, 1000
FOLDER = Path(__file__).parents[2] / ".nox" / "fuzz"


def fuzzed(draw: random.Random, text: bytes) -> bytes:
    """Return a text with some bytes of it changed, left out, or repeated."""
    chance, data = draw.random, text
    for _ in range(1 + int(chance() * 6)):
        place = int(chance() * (len(data) + 1))
        kind = chance()
        if kind < 0.4:
            piece = PIECES[int(chance() * len(PIECES))]
        elif kind < 0.6:
            piece = bytes((int(chance() * 256),))
        elif kind < 0.8:
            begin = int(chance() * len(data))
            piece = data[begin : begin + int(chance() * 40)]
        else:
            piece = b""
        data = data[:place] + piece + data[place + int(chance() * chance() * 30) :]
    return data[: talk.PARAMETERS_MAX_BYTES]


def outcome(text: bytes) -> str:
    """Return what becomes of an input; AssertionError if it is beyond the limits."""
    named, refusals = "refused", []
    try:
        asked = parse_parameters(text)
    except Unserved as error:
        refusals.append(str(error))
    else:
        named = "parameters"
        assert 1 <= asked.streams <= STREAMS_MAX, asked
        assert talk.HEADER_BYTES <= asked.size_bytes <= MAX_PAYLOAD_BYTES, asked
        assert (asked.buffer_bytes or 0) <= 2**30, asked
        assert asked.asked.keys() <= {*talk.NUMBERS, *talk.TEXTS}, asked
        assert len(asked.ignored) <= STREAMS_MAX, asked
        assert len(json.dumps([dict(asked.asked), asked.ignored])) < ASKED_MAX_BYTES, asked
    try:
        streams = parse_results(text)
    except Unserved as error:
        refusals.append(str(error))
    else:
        named = "results"
        assert 1 <= len(streams) <= STREAMS_MAX, streams
        assert all(0 <= (each.packets or 0) <= talk.ENDLESS for each in streams), streams
    assert all(len(text) < REFUSAL_MAX for text in refusals), refusals
    return named


def block(inputs: int, number: int) -> dict[str, int]:
    """Return what became of a block of inputs; the same for the same number."""
    draw, counts = random.Random(number), Counter[str]()
    for _ in range(inputs):
        text = fuzzed(draw, TEXTS[int(draw.random() * len(TEXTS))])
        begun_s = time.thread_time()
        try:
            counts[outcome(text)] += 1
        except Exception as error:
            raise AssertionError(f"block {number}: {error!r} of {text!r}") from error
        if time.thread_time() - begun_s > LATE_S:
            counts["late"] += 1
    return dict(counts)


def tested() -> str:
    """Return a name for what is tested, and for the inputs."""
    files = (Path(__file__), Path(talk.__file__), Path(json_lines.__file__))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def main(inputs: int) -> int:
    """Run the blocks that are missing, and print how many inputs there were."""
    file = FOLDER / f"{tested()}.jsonl"
    FOLDER.mkdir(parents=True, exist_ok=True)
    lines = file.read_text().splitlines() if file.exists() else []
    done = {each["block"]: each["counts"] for each in map(json.loads, lines)}
    wanted_blocks = range(-(-inputs // BLOCK))
    missing = [number for number in wanted_blocks if number not in done]
    print(f"{len(wanted_blocks) - len(missing)} of {len(wanted_blocks)} blocks are in {file}")
    with ProcessPoolExecutor() as pool, file.open("a") as ended:
        for number, counts in zip(missing, pool.map(partial(block, BLOCK), missing)):
            done[number] = counts
            ended.write(json.dumps({"block": number, "counts": counts}) + "\n")
            ended.flush()
    total = sum((Counter(done[number]) for number in wanted_blocks), Counter())
    late = total.pop("late", 0)
    print(f"{sum(total.values())} inputs, none without an answer: {dict(total)}, {late} late")
    return 1 if late else 0


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else INPUTS))
    except KeyboardInterrupt:
        sys.exit("interrupted: repeat the command to go on")
