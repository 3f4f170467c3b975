"""Try udpbench on the kernels and Pythons of Debian's releases, and say of each what passed.

``kernels.py FOLDER [NAME]... [--again] [--no-cards]``, as root: bullseye (Linux 5.10), bookworm
(6.1), trixie (6.12) and sid, or those named. It goes on where it was interrupted, step by step, as
long as the code is the same; ``--again`` forgets what passed; ``--no-cards`` leaves out the guests
of QEMU, which take hours without KVM. Exits with 1 if a step failed.

Where the release has a Python for the controller, it runs in a guest that has that and nothing
else; otherwise two guests are hosts over SSH. The kernel of these is a program (image.PROGRAM); cards
have guests of QEMU, whose kernels are the release's usual ones.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import image
from runs import LAB, on

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PATIENT = HERE / "patient.py"
NAMES = ("bullseye", "bookworm", "trixie", "sid")
APART = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
STEP_S = 7200
CODE = ("udpbench", "native", "experiments", "tests", "noxfile.py", "pyproject.toml", "setup.py")
"""What is tried in the guests."""
PYTHON = "/srv/udpbench/.nox/udpbench/bin/python"
LAB_TESTS = (
    *("test_ledger.py", "test_ledger_quirks.py", "test_settings_random.py"),
    *("test_unprivileged.py", "test_watch.py", "test_ways.py"),
)
"""The sample of the lab tests: ledger, ordinary users, watching, and every way.

Each kind of setting has its trial (``trials``) and its pairs (``hosts_settings``).
"""
PATIENT_LAB = "PYTHONPATH=/srv/udpbench/tests/guests/patient_agents:/srv/udpbench/tests/guests"
"""Longer deadlines of local agents and their controller."""
PATIENT_COMMAND = f"{PATIENT_LAB} {PYTHON} /srv/udpbench/tests/guests/patient.py"
KIND = "vector"
"""The card of guests whose kernel is a program."""
NEEDS_NEWER = re.compile(r"needs Linux [\d.]+")


@dataclass(frozen=True)
class Result:
    """How a step ended: ``skipped`` are what it left out, each with its reason."""

    passed: bool
    summary: str
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Done:
    """A command's exit code and output."""

    code: int
    text: str


def in_guest(command: str) -> Done:
    """Run a command on the lone guest as a user would in a terminal."""
    return beside([*on_words("alone"), command])


def on_words(guest: str) -> list[str]:
    """Return the command that runs another one on a guest."""
    ssh = Path.home() / ".ssh"
    known = f"UserKnownHostsFile={ssh / 'known_hosts'}"
    return ["ssh", "-F", str(ssh / "config"), "-o", known, guest]


def beside(words: list[str], folder: Path | None = None) -> Done:
    """Run a command on this machine, print its output as it comes, and return it whole."""
    lines = []
    with subprocess.Popen(
        words,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as run:
        ended = threading.Timer(STEP_S, run.kill)
        ended.start()
        for line in run.stdout or ():
            print(f"    {line}", end="", flush=True)
            lines.append(line)
        ended.cancel()
    return Done(run.returncode, "".join(lines))


def judged(done: Done, good: tuple[int, ...] = (0,), words: str = "") -> Result:
    """Return a step's result from a command that must end so, and print so."""
    last = next((line for line in reversed(done.text.splitlines()) if line.strip()), "")
    skipped = [line for line in done.text.splitlines() if re.search(r"\bskipped: |^SKIPPED", line)]
    passed = done.code in good and words in done.text
    return Result(passed, f"exit {done.code}: {last.strip()}", tuple(dict.fromkeys(skipped)))


# --- a lone guest, on which the controller runs --------------------------------------------------


def bring_code() -> None:
    """Copy the code into the guest."""
    pack = ["tar", "-c", "--exclude=*.so", "--exclude=*.pyc", "-C", str(ROOT), *CODE, "README.md"]
    unpack = [*on_words("alone"), "mkdir -p /srv/udpbench && tar -x -C /srv/udpbench"]
    with subprocess.Popen([*pack, "docs", "benchmarks"], stdout=subprocess.PIPE) as packed:
        subprocess.run(unpack, stdin=packed.stdout, check=True)


def demo(_: Path) -> tuple[Done, Result]:
    """Run README's first command on a machine without anything of ours."""
    bring_code()
    patience = "PYTHONPATH=/srv/udpbench/tests/guests/patient_agents"
    done = in_guest(f"cd /srv/udpbench && {patience} python3 noxfile.py demo")
    in_guest(image.LEGACY)
    return done, judged(done, words="report: ")


def selftest(_: Path) -> tuple[Done, Result]:
    """Lose packets at every stage of the ledger."""
    done = in_guest(f"{PATIENT_COMMAND} selftest --json")
    return done, reliable(done)


NO_TABLES = "this kernel has no table"
"""What is the matter where a kernel that is a program has no iptables of either variant (7.2)."""


def reliable(done: Done) -> Result:
    """Return a passed step if each loss that this kernel can have was counted where it was."""
    with suppress(ValueError):
        answer, _ = json.JSONDecoder().raw_decode(done.text[done.text.index("{") :])
        answer = answer.get("right", answer)
        tables = [proof for proof in answer["missing"] if NO_TABLES in proof["why"]]
        stages = ", ".join(f"{proof['stage']} (IPv{proof['family']})" for proof in tables)
        tried = [proof for proof in answer["proofs"] if proof["packets"] is not None]
        good = all((p["counted"], p["unaccounted"]) == (p["packets"], 0) for p in tried)
        lacks = (f"selftest: {tables[0]['why']}: {stages}",) if tables else ()
        summary = f"exit {done.code}: {len(tried)} losses counted, {len(answer['missing'])} missing"
        passed = bool(tried) and good and tables == answer["missing"]
        return Result(passed and done.code == (5 if tables else 0), summary, lacks)
    return judged(done, words="no JSON")


def trials(_: Path) -> tuple[Done, Result]:
    """Run smoke, every way, every setting, and a point of every shipped experiment."""
    in_guest(f"{image.INSTALL} sockperf socat unbound")
    done = in_guest(f"{PATIENT_LAB} {PYTHON} /srv/udpbench/tests/guests/trials.py")
    return done, judged(done)


def watch(_: Path) -> tuple[Done, Result]:
    """Watch a live host, with and without the packets of each socket."""
    return watched(lambda words: in_guest(f"{PATIENT_COMMAND} watch --for 3s {words}"))


def watched(look: Callable[[str], Done]) -> tuple[Done, Result]:
    """Return what two looks at a host say; an exact one may need a newer kernel."""
    plain, exact = look(""), look("--exact")
    text = f"{plain.text}\n--- --exact ---\n{exact.text}"
    result = judged(plain, (0, 1))
    if exact.code in (0, 1):
        return Done(plain.code, text), result
    needs = NEEDS_NEWER.search(exact.text)
    skipped = (f"watch --exact: {needs[0]}",) if needs else ()
    return Done(exact.code, text), Result(result.passed and needs is not None, text[-200:], skipped)


def lab_tests(_: Path) -> tuple[Done, Result]:
    """Run a sample of the lab tests."""
    in_guest(f"modprobe tun; {image.INSTALL} sudo nftables")
    in_guest(f"{PYTHON} -m pip install -q {' '.join(image.TEST_TOOLS)}")
    files = " ".join(f"tests/lab/{name}" for name in LAB_TESTS)
    words = f"-m 'not long' -p patient -p lacking -rs -v --timeout=1200 -p no:cacheprovider {files}"
    # The tests' own networks may be those of this connection, which no setting may divert.
    terminal = f"env -u SSH_CONNECTION -u SSH_CLIENT UDPBENCH_REQUIRE_LAB=1 {PATIENT_LAB}"
    done = in_guest(f"cd /srv/udpbench && {terminal} .nox/udpbench/bin/pytest {words}")
    return done, judged(done)


# --- two guests, hosts over SSH ------------------------------------------------------------------


def command(folder: Path, *words: str) -> Done:
    """Run udpbench beside the guests, with their lab."""
    (folder / "lab.yaml").write_text(LAB.format(kind=KIND))
    return beside([sys.executable, str(PATIENT), *words], folder)


def facts(folder: Path) -> tuple[Done, Result]:
    """Record a host with either card, as a file for tests/fixtures/recorded."""
    (folder / "facts.json").unlink(missing_ok=True)
    igb, virtio = LAB.format(kind="igb"), LAB.format(kind="virtio")
    (folder / "cards.yaml").write_text(
        igb.partition("receiver:")[0] + "receiver:" + virtio.partition("receiver:")[2]
    )
    done = command(folder, "facts", "--lab", "cards.yaml", "--out", "facts.json")
    return done, judged(done)


def hosts_selftest(folder: Path) -> tuple[Done, Result]:
    """Lose packets at every stage of the ledger, in a private lab on one of the hosts."""
    text = LAB.format(kind=KIND).replace("ssh: left", "ssh: right")
    (folder / "one.yaml").write_text(text)
    done = command(folder, "selftest", "--lab", "one.yaml", "--json")
    return done, reliable(done)


def hosts_trials(folder: Path) -> tuple[Done, Result]:
    """Run smoke and every way."""
    (folder / "lab.yaml").write_text(LAB.format(kind=KIND))
    done = beside([sys.executable, str(HERE / "trials.py"), "--lab", "lab.yaml"], folder)
    return done, judged(done)


def hosts_settings(_: Path) -> tuple[Done, Result]:
    """Set all kinds in pairs on igb and virtio cards; nothing is left after ends and deaths."""
    name = "all_that_programs_show"
    words = ("-rs", "-v", "-p", "no:cacheprovider", "-k", name, str(HERE / "test_settings.py"))
    done = beside([str(Path(sys.executable).with_name("pytest")), *words], ROOT)
    return done, judged(done)


def hosts_watch(folder: Path) -> tuple[Done, Result]:
    """Watch a live host over SSH."""
    return watched(lambda words: command(folder, "watch", "right", "--for", "3s", *words.split()))


Step = Callable[[Path], tuple[Done, Result]]
CONTROLLER: tuple[Step, ...] = (demo, selftest, trials, watch, lab_tests)
CARDS: tuple[Step, ...] = (facts, hosts_settings)
HOSTS: tuple[Step, ...] = (hosts_trials, hosts_watch, hosts_selftest)
"""Where the release's Python is too old for the controller."""


@dataclass(frozen=True)
class Boot:
    """Guests of an image, and the steps beside them."""

    image: str
    guests: str
    steps: tuple[Step, ...]


def boots(name: str, *, cards: bool = True) -> Iterator[Boot]:
    """Yield what is booted of a release; emulated cards last, if at all."""
    if image.IMAGES[name].later:
        yield Boot(name, "alone", CONTROLLER)
    else:
        yield Boot(name, "left,right", HOSTS)
    if cards:
        yield Boot(f"{name}-hosts", "left,right", CARDS)


# --- going on ------------------------------------------------------------------------------------


def code_digest() -> str:
    """Return a digest of what is tried."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *CODE],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    digest = hashlib.sha256()
    for path in map(ROOT.joinpath, listed.stdout.splitlines()):
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


@dataclass
class Log:
    """What is known of a release: its kernel, and the result of each step."""

    folder: Path

    @property
    def file(self) -> Path:
        """Where it is kept."""
        return self.folder / "results.json"

    def read(self, code: str) -> dict[str, Result]:
        """Return step → its result with this code."""
        try:
            kept = json.loads(self.file.read_text())
        except FileNotFoundError:
            kept = {"code": ""}
        if kept["code"] != code:
            return {}
        return {
            step: Result(result["passed"], result["summary"], tuple(result["skipped"]))
            for step, result in kept["steps"].items()
        }

    def forget_disk(self) -> None:
        """Let the guest begin anew: nothing on its disk belongs to a step that passed."""
        for name in ("disk.qcow2", "disk.cow"):
            (self.folder / name).unlink(missing_ok=True)

    def write(self, code: str, results: dict[str, Result]) -> None:
        """Keep the results."""
        steps = {step: asdict(result) for step, result in results.items()}
        self.file.write_text(json.dumps({"code": code, "steps": steps}, indent=1))


def try_image(folder: Path, boot: Boot, code: str) -> None:
    """Run the missing steps of an image, beside its guests."""
    log = Log(folder / boot.image)
    results = log.read(code)
    for step in boot.steps:
        name = step.__name__
        if name in results and results[name].passed:
            continue
        print(f"{boot.image}: {name}", flush=True)
        done, results[name] = step(log.folder)
        (log.folder / f"{name}.txt").write_text(done.text)
        state = "passed" if results[name].passed else "FAILED"
        print(f"{boot.image}: {name}: {state}: {results[name].summary}", flush=True)
        if boot.guests == "alone":
            on("alone", "sync")
        log.write(code, results)
        if step is demo and not results[name].passed:
            return


def boot_images(folder: Path, booted: list[Boot], code: str) -> None:
    """Boot the guests for which steps are missing; emulated ones, the slowest, last."""
    for boot in sorted(booted, key=lambda boot: boot.steps is CARDS):
        image.make(folder, boot.image)
        log = Log(folder / boot.image)
        results = log.read(code)
        if all(step.__name__ in results and results[step.__name__].passed for step in boot.steps):
            continue
        if not results:
            log.forget_disk()
        own = [sys.executable, str(HERE / "kernels.py"), str(folder), "--beside", boot.image]
        pair = [sys.executable, str(HERE / "pair.py"), str(folder), boot.image, boot.guests]
        subprocess.run(["unshare", *APART, *pair, *own, "--code", code], check=False)


def table(folder: Path, booted: list[Boot], code: str) -> bool:
    """Print release × step, with what was skipped; return whether everything passed."""
    good = True
    for boot in booted:
        results = Log(folder / boot.image).read(code)
        print(f"\n{boot.image}: Linux {(folder / boot.image / 'release').read_text()}")
        for name in (step.__name__ for step in boot.steps):
            result = results.get(name, Result(False, "not run"))
            good = good and result.passed
            state = "passed" if result.passed else "FAILED"
            print(f"  {name:16} {state}  {result.summary}")
            for text in result.skipped:
                print(f"  {'':16} - {text}")
    return good


def main(words: list[str]) -> int:
    """Try everything that is missing, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--no-cards", action="store_true")
    parser.add_argument("--beside")
    parser.add_argument("--code")
    asked = parser.parse_args(words)
    if asked.beside:
        (boot,) = (b for name in NAMES for b in boots(name) if b.image == asked.beside)
        try_image(asked.folder, boot, asked.code)
        return 0
    folder, code = asked.folder.absolute(), code_digest()
    booted = [boot for name in asked.names for boot in boots(name, cards=not asked.no_cards)]
    for boot in booted if asked.again else ():
        Log(folder / boot.image).file.unlink(missing_ok=True)
    boot_images(folder, booted, code)
    return 0 if table(folder, booted, code) else 1


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT / "tests/fixtures"), str(HERE)))
    sys.exit(main(sys.argv[1:]))
