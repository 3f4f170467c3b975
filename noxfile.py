"""Every check of the project by name, and the two commands that do everything.

    python3 noxfile.py demo     set up everything and run a demonstration in the built-in lab
    python3 noxfile.py test     set up everything and run every test

Needs only python3: nox is installed into a private environment if it is missing (Debian's pip
refuses to install), and missing system packages are installed if root on an apt system; otherwise
the command to type is printed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent
NOX = "nox>=2025.5"
UV = "uv>=0.5"
"""It spares CPU time; where it has no wheel, pip does all."""
PATH_OF_ROOT = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
"""Debian's folders for root's programs; other users' PATH lacks them."""
PACKAGES = {
    "gcc": lambda: shutil.which("gcc") is not None,
    "libc6-dev": lambda: Path("/usr/include/stdio.h").exists(),
    "python3-venv": lambda: importlib.util.find_spec("ensurepip") is not None,
    "python3-dev": lambda: (Path(sysconfig.get_path("include")) / "Python.h").exists(),
    "util-linux": lambda: shutil.which("unshare") is not None,
    "ethtool": lambda: shutil.which("ethtool", path=PATH_OF_ROOT) is not None,
    "iptables": lambda: shutil.which("iptables", path=PATH_OF_ROOT) is not None,
}
"""Debian package → whether its contents are already present."""
LAB_PACKAGES = {
    "openssh-server": lambda: Path("/usr/sbin/sshd").exists(),
    "sudo": lambda: shutil.which("sudo") is not None,
    "nftables": lambda: shutil.which("nft") is not None,
    "iperf3": lambda: shutil.which("iperf3") is not None,
    "sockperf": lambda: shutil.which("sockperf") is not None,
    "wireguard-go": lambda: shutil.which("wireguard-go") is not None,
}
"""Further packages for the lab tests."""
SERVER_PACKAGES = {
    "unbound": lambda: shutil.which("unbound", path=PATH_OF_ROOT) is not None,
    "prometheus": lambda: shutil.which("promtool") is not None,
    "prometheus-node-exporter": lambda: shutil.which("prometheus-node-exporter") is not None,
}
"""Third-party servers that are measured; none is started as a service."""
GUEST_PACKAGES = {
    "debootstrap": lambda: shutil.which("debootstrap", path=PATH_OF_ROOT) is not None,
    "e2fsprogs": lambda: shutil.which("mkfs.ext4", path=PATH_OF_ROOT) is not None,
    "iproute2": lambda: shutil.which("ip", path=PATH_OF_ROOT) is not None,
    "nftables": lambda: shutil.which("nft", path=PATH_OF_ROOT) is not None,
    "openssh-client": lambda: shutil.which("ssh-keygen") is not None,
}
"""For guests and their switches; QEMU and the guests' own packages go to .nox/guests."""
BROWSER_PACKAGES = {
    "chromium": lambda: shutil.which("chromium") is not None,
    "fonts-dejavu-core": lambda: Path("/usr/share/fonts/truetype/dejavu").exists(),
}
"""The browser that opens the report; 300 MB."""
BENCH_PACKAGES = {
    name: lambda name=name: shutil.which(name) is not None for name in ("iperf3", "sockperf")
}
"""Other tools for comparison; udpbench does not need them."""
SERVICE_POLICY = Path("/usr/sbin/policy-rc.d")
"""Debian packages ask this script whether to start services; 101 is no (invoke-rc.d(8))."""


def install_system_packages(packages=PACKAGES) -> None:
    """Install missing packages with apt if root, else print the command to type and exit with 2.

    No service is started: a test that needs one starts its own.
    """
    missing = [name for name, present in packages.items() if not present()]
    if not missing:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"missing system packages; type this, then try again:\n    sudo {' '.join(command)}")
        raise SystemExit(2)
    print(f"installing system packages: {' '.join(missing)}", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "--quiet", "update"], env=quiet, stdout=subprocess.DEVNULL)
    has_policy = SERVICE_POLICY.exists()
    if not has_policy:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the policy would stay
        SERVICE_POLICY.write_text("#!/bin/sh\nexit 101\n")
        SERVICE_POLICY.chmod(0o755)
    try:
        done = subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL)
    finally:
        if not has_policy:
            SERVICE_POLICY.unlink()
    if done.returncode != 0:
        print(f"installation failed; type this, then try again:\n    {' '.join(command)}")
        raise SystemExit(2)


def enter_private_nox() -> None:
    """Continue in a private environment that has nox; does not return."""
    install_system_packages()
    home = ROOT / ".nox" / "bootstrap"
    python = home / "bin" / "python"
    # -P: files in the current folder must not shadow what is imported, perhaps by root.
    command = [python, "-P", "-c", "import nox"]
    if not python.exists() or subprocess.run(command, capture_output=True).returncode != 0:
        print("preparing nox in .nox/bootstrap", flush=True)
        subprocess.run([sys.executable, "-P", "-m", "venv", "--clear", home], check=True)
        pip = [python, "-P", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, NOX], check=True)
        subprocess.run([*pip, "--only-binary=:all:", UV], stderr=subprocess.DEVNULL)
    os.execv(python, [str(python), __file__, *sys.argv[1:]])


if sys.version_info < (3, 11):
    raise SystemExit("udpbench's controller needs Python 3.11 or later; run noxfile.py with that")
try:
    import nox
except ModuleNotFoundError:
    enter_private_nox()

STRICT = "-Wall -Wextra -Werror"
"""Warnings are errors here, but never in a user's installation with another compiler."""

HOME = ROOT / ".nox" / "udpbench"
"""The environment shared by all sessions; nox would create one for each."""

nox.options.sessions = ["test"]
nox.options.default_venv_backend = "none"
SAMPLE = "not long"
MEMORY, NEEDED_BYTES = "/dev/shm", 2 * 2**30  # noqa: S108 - pytest makes a folder of its own there
"""Marker for one test of each mechanism; session ``whole`` runs all."""
NO_TEST = 5
"""pytest's exit code if no test is selected."""
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
"""Set by Python container images: each process would recompile its imports, a third of the time."""
WAITING = f"--numprocesses={1 + len(os.sched_getaffinity(0))}"
"""One process more than CPUs, for tests that wait half of their time."""
TOOLS = ("lint", "types", "test")
"""Dependency groups of pyproject.toml, 400 MB, which a demonstration does not need."""
CHECKS = ("quick", "agent", "native", "docs", "lab")
BESIDE = "UDPBENCH_LAB_BESIDE"
"""Set by ``test``: tests that wait for half of their time run beside others: lab tests not marked
quiet beside all, native and docs beside agent."""
LAB_PARTS = {
    "not apart and not quiet": (),
    "apart": ("--numprocesses=3", "--dist=loadfile"),
    "quiet": (),
}
"""Which lab tests run one after the other, which three at a time, which without any other."""
LAB, BUILT, SANITIZED, DOCS = "lab", "native", "sanitized", "docs"
NICE = ("nice", "-n19")
"""Hardly any CPU time that lab tests need: they have deadlines, and with 5 some missed theirs."""
BESIDES = ThreadPoolExecutor()
running: dict[str, Future[int]] = {}
"""What runs beside, by name: from its begin until its session has its result."""


def prepare(session: nox.Session, tools: tuple[str, ...] = TOOLS) -> None:
    """Install the working tree and test tools, again whenever a built file changes."""
    install_system_packages()
    built_from = [
        ROOT / "pyproject.toml",
        ROOT / "setup.py",
        *sorted((ROOT / "native").glob("*.py")),
        *sorted((ROOT / "native").rglob("*.[ch]")),
    ]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in built_from)).hexdigest()
    stamp = HOME / "udpbench.stamp"
    installed = stamp.read_text().split() if stamp.exists() else []
    if installed[:1] == [digest] and set(tools) <= set(installed[1:]):
        return
    if not (HOME / "bin" / "python").exists():
        make_environment(session, sys.executable, HOME)
    project = nox.project.load_toml(ROOT / "pyproject.toml")
    groups = nox.project.dependency_groups(project, *tools)
    tree = ".[store]" if tools else "."
    words = ("--upgrade", "--editable", tree, *groups)
    install(session, HOME, *words, env={"CFLAGS": STRICT})
    stamp.write_text(" ".join((digest, *tools)))


def make_environment(session: nox.Session, python: str, home: Path) -> None:
    """Make an empty environment for an interpreter."""
    if not uv("venv", "--clear", "--seed", "--python", python, str(home)):
        session.run(python, "-m", "venv", "--clear", str(home), external=True)


def install(
    session: nox.Session, home: Path, *words: str, env: dict[str, str] | None = None
) -> None:
    """Install into an environment: by uv in a fifth of pip's CPU time, or by pip where uv fails.

    uv compiles nothing in advance, and does not know pip's settings: there, indexes may be missing.
    """
    if not uv("pip", "install", "--python", str(home / "bin" / "python"), *words, env=env):
        pip = str(home / "bin" / "pip")
        session.run(pip, "install", "--quiet", *words, env=env, external=True)


def uv(verb: str, *words: str, env: dict[str, str] | None = None) -> bool:
    """Run uv as nox's environment has it; return whether it did what was asked."""
    command = [sys.executable, "-P", "-m", "uv", verb, *words, "--quiet"]
    print(shlex.join(command), flush=True)
    return subprocess.run(command, env={**os.environ, **(env or {})}, cwd=ROOT).returncode == 0


def run(
    session: nox.Session,
    program: str,
    *args: str,
    env: dict[str, str] | None = None,
    codes: tuple[int, ...] = (0,),
) -> None:
    """Run a program of the shared environment; it must exit with one of the given codes."""
    words = (*after_lab_tests(), str(HOME / "bin" / program), *args)
    session.run(*words, env=env, external=True, success_codes=codes)


def after_lab_tests() -> tuple[str, ...]:
    """Return what gives a program the CPU time that lab tests beside leave: they have deadlines."""
    return NICE if LAB in running else ()


def in_memory() -> dict[str, str]:
    """Return the environment with which tests keep their files in memory, where it suffices.

    On a slow disk, most of the time of the agent's tests is for files that are removed at once. Not
    for lab tests, whose hosts lack this place.
    """
    try:
        place = os.statvfs(MEMORY)
    except OSError:
        return {}
    ample = place.f_bavail * place.f_frsize >= NEEDED_BYTES
    return {"TMPDIR": MEMORY} if ample and not place.f_flag & os.ST_NOEXEC else {}


def tests_in(session: nox.Session, *places: str) -> tuple[str, ...]:
    """Return pytest's words: the session's places, or those that its user names instead."""
    named = any(word.startswith("tests/") for word in session.posargs)
    return (*(() if named else places), *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """Measure how many packets a second one thread receives, then lose packets and locate them."""
    prepare(session, tools=())
    experiments = ("throughput/quick", "drops/small-buffer")
    # 5: other programs use the CPUs, so no rate can be given.
    run(session, "udpbench", "run", *experiments, *session.posargs, codes=(0, 5))


@nox.session
def test(session: nox.Session) -> None:
    """Run every check, with a sample of the lab tests; about ten minutes on two CPUs."""
    for name in CHECKS:
        session.notify(name)


@nox.session
def quick(session: nox.Session) -> None:
    """Run lint, types and unit, the last two in parallel; about five minutes."""
    lint(session)
    begin_lab_tests()
    types = [*NICE, HOME / "bin" / "mypy"]
    with subprocess.Popen(types, text=True, stdout=subprocess.PIPE) as mypy:
        try:
            unit(session)
        finally:
            print(mypy.communicate()[0])
    if mypy.returncode != 0:
        session.error("types: see above")


@nox.session
def lint(session: nox.Session) -> None:
    """Check the style of Python and C."""
    prepare(session)
    run(session, "ruff", "check", ".")
    run(session, "ruff", "format", "--check", ".")
    sources = sorted(str(file) for file in (ROOT / "native").rglob("*.[ch]"))
    run(session, "clang-format", "--dry-run", "-Werror", *sources)


@nox.session
def types(session: nox.Session) -> None:
    """Check types with mypy, strictly."""
    prepare(session)
    run(session, "mypy")


@nox.session
def unit(session: nox.Session) -> None:
    """Run the tests that need neither root nor network."""
    prepare(session)
    # Each process begins with a half of the files, so that what a file shares is made once.
    spread = ("--numprocesses=auto", "--dist=worksteal")
    words = (*spread, "-m", SAMPLE, *tests_in(session, "tests/unit"))
    run(session, "pytest", *words, env=in_memory())


@nox.session
def agent(session: nox.Session) -> None:
    """Test the agent from the wheel on the oldest installed Python, 3.9 or later."""
    test_agent(session, dict(list(interpreters().items())[:1]))


@nox.session
def pythons(session: nox.Session) -> None:
    """Test the agent from the wheel on every installed Python, 3.9 or later."""
    test_agent(session, interpreters())


def test_agent(session: nox.Session, pythons: dict[str, str]) -> None:
    """Test the agent on several interpreters, each in its own environment."""
    prepare(session)
    wheels = Path(session.create_tmp()) / "wheels"
    for stale in (wheels, ROOT / "build"):
        shutil.rmtree(stale, ignore_errors=True)
    if os.environ.get(BESIDE):
        begin_native_tests(session)
        begin_docs_tests()
    build = ("wheel", "-qq", "--no-deps", "--no-build-isolation")
    run(session, "pip", *build, "--wheel-dir", str(wheels), ".")
    (wheel,) = wheels.glob("udpbench-*-cp39-abi3-*.whl")
    for name, python in pythons.items():
        home = ROOT / ".nox" / f"agent-{name}"
        if not (home / "bin" / "pytest").exists():
            make_environment(session, python, home)
            needed = ("cffi", "psutil", "pyroute2", "hypothesis")
            install(session, home, *needed, "pytest", "pytest-timeout", "pytest-xdist")
        install(session, home, "--no-deps", "--force-reinstall", str(wheel))
        arguments = (WAITING, "-m", SAMPLE, *tests_in(session, "tests/agent"))
        pytest = str(home / "bin" / "pytest")
        session.run(pytest, *arguments, env=in_memory(), external=True)


@nox.session
def native(session: nox.Session) -> None:
    """Test the C loops as built and, at the same time, under AddressSanitizer and UBSan.

    By name this runs the whole of each family, of which ``test`` draws some.
    """
    prepare(session)
    if BUILT not in running:
        begin_native_tests(session)
    if any([end(BUILT), end(SANITIZED)]):
        session.error("native tests failed: see above")


def begin_native_tests(session: nox.Session) -> None:
    """Begin the tests of the C loops in both ways."""
    sample = ("-m", SAMPLE) if os.environ.get(BESIDE) else ()
    words = (WAITING, *sample, *tests_in(session, "tests/native"))
    begin(BUILT, (pytest_beside(BUILT, *words), in_memory()))
    build = ROOT / ".nox" / SANITIZED
    shutil.rmtree(build, ignore_errors=True)
    sanitized = {"UDPBENCH_SANITIZE": "address,undefined", "CFLAGS": STRICT}
    places = ("--build-base", str(build / "base"), "--build-lib", str(build / "lib"))
    python = str(HOME / "bin" / "python")
    asan = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True)
    loaded = {
        **sanitized,
        "LD_PRELOAD": asan.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",  # CPython keeps allocations until it exits
        "PYTHONPATH": str(build / "lib"),
    }
    begin(
        SANITIZED,
        ((python, "setup.py", "--quiet", "build", *places), sanitized),
        (pytest_beside(SANITIZED, *words), loaded),
    )


@nox.session
def lab(session: nox.Session) -> None:
    """Test one of each mechanism in real namespaces; needs root, else skipped."""
    run_lab_tests(session, "tests/lab", sample=f" and {SAMPLE}")


@nox.session
def whole(session: nox.Session) -> None:
    """Run every lab test, documented command and long simulation; half an hour."""
    packages = {**LAB_PACKAGES, **SERVER_PACKAGES}
    run_lab_tests(session, "tests/lab", "tests/docs", packages=packages)
    run(session, "pytest", "--numprocesses=auto", "-m", "long", "tests/unit", "tests/agent")


@nox.session
def deaths(session: nox.Session) -> None:
    """Kill each process at each step of a trial, in each kind of lab."""
    run_lab_tests(session, "tests/lab/test_deaths.py")


def runs_lab_tests() -> bool:
    """Return whether lab tests run here: elsewhere they are skipped."""
    return os.geteuid() == 0 or bool(os.environ.get("UDPBENCH_REQUIRE_LAB"))


def begin_lab_tests() -> None:
    """Begin the lab tests that may run beside others, if ``test`` asks for it."""
    if not os.environ.get(BESIDE) or not runs_lab_tests():
        return
    install_system_packages(LAB_PACKAGES)
    parts = [
        (pytest_beside(LAB, "-m", f"{part} and {SAMPLE}", *workers, "tests/lab"), {})
        for part, workers in LAB_PARTS.items()
        if part != "quiet"
    ]
    begin(LAB, *parts, to_the_end=True)


def cache_of(name: str) -> Path:
    """Return where pytest keeps which tests failed of what runs beside."""
    return ROOT / ".nox" / f"{name}-cache"


def pytest_beside(name: str, *words: str) -> tuple[str, ...]:
    """Return the command of tests that run beside others."""
    pytest = str(HOME / "bin" / "pytest")
    return (pytest, "-o", f"cache_dir={cache_of(name)}", *words)


def begin(
    name: str, *commands: tuple[tuple[str, ...], dict[str, str]], to_the_end: bool = False
) -> None:
    """Begin commands, each with what its environment has beyond ours, until one fails."""

    def run_all() -> int:
        with output_of(name).open("wb") as output:
            both = {"stdout": output, "stderr": subprocess.STDOUT, "cwd": ROOT}
            ended = (subprocess.run(w, env={**os.environ, **e}, **both) for w, e in commands)
            codes = (each.returncode for each in ended if each.returncode not in (0, NO_TEST))
            return max(codes, default=0) if to_the_end else next(codes, 0)

    running[name] = BESIDES.submit(run_all)
    if name == LAB:
        running[name].add_done_callback(stop_giving_way)


def stop_giving_way(_: Future[int]) -> None:
    """Let what ran behind the lab tests be like others: a busy machine leaves it no time else."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PGRP, 0, os.getpriority(os.PRIO_PROCESS, 0))


def end(name: str) -> int:
    """Wait for what runs beside, print its output and return its exit code."""
    print(f"waiting for the {name} tests that run beside", flush=True)
    code = running.pop(name).result()
    print(output_of(name).read_text(errors="replace"), flush=True)
    return code


def output_of(name: str) -> Path:
    """Return the file of what is printed beside."""
    return ROOT / ".nox" / f"{name}.txt"


def run_lab_tests(
    session: nox.Session, *places: str, sample: str = "", packages=LAB_PACKAGES
) -> None:
    """Run lab tests: those marked apart three at a time, each in its own lab."""
    prepare(session)
    if not runs_lab_tests():
        session.skip(f"the lab tests need root: sudo python3 noxfile.py {session.name}")
    install_system_packages(packages)
    code = end(LAB) if LAB in running else None
    for part, workers in LAB_PARTS.items():
        if code is None or part == "quiet":
            words = ("-m", part + sample, *workers, *tests_in(session, *places))
            run(session, "pytest", *words, codes=(0, NO_TEST))
    if code:
        session.error("lab tests that ran beside others failed: see above")


@nox.session
def balance(session: nox.Session) -> None:
    """Lose packets at random in a hundred trials; ledgers must balance (posargs: seed, trials)."""
    measure_in_lab(session)


def measure_in_lab(session: nox.Session, room: str = "lab") -> None:
    """Run the program with the session's name in a room of tests, as root."""
    prepare(session)
    if os.geteuid() != 0:
        session.skip(f"the lab needs root: sudo python3 noxfile.py {session.name}")
    install_system_packages(LAB_PACKAGES)
    shared = {"PYTHONPATH": str(ROOT / "tests" / "fixtures")}
    run(session, "python", f"tests/{room}/{session.name}.py", *session.posargs, env=shared)


@nox.session
def served(session: nox.Session) -> None:
    """Serve each iperf3 of Debian, and lose packets in a hundred tests (posargs: seed, tests)."""
    prepare(session)
    if os.geteuid() != 0:
        session.skip("the lab needs root: sudo python3 noxfile.py served")
    install_system_packages(LAB_PACKAGES)
    run(session, "python", "tests/lab/iperf3_releases.py")
    run(session, "pytest", "tests/lab/test_serve.py")
    measure_in_lab(session)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Feed ten million inputs to each parser of what iperf3 clients send (posargs: inputs)."""
    prepare(session)
    inputs = session.posargs[0] if session.posargs else "10000000"
    run(session, "pytest", "tests/native/test_iperf3.py", env={"UDPBENCH_FUZZ": inputs})
    run(session, "python", "tests/agent/fuzz_talk.py", inputs)


@nox.session
def verdicts(session: nox.Session) -> None:
    """Compare equal points forty times, and different points (posargs: parts, --times N)."""
    measure_in_lab(session)


@nox.session
def mixtures(session: nox.Session) -> None:
    """Lose packets of ours and of others in 200 trials over SSH (posargs: seed, trials)."""
    measure_in_lab(session)


@nox.session
def diagnoses(session: nox.Session) -> None:
    """Plant bottlenecks; each must be diagnosed first (posargs: plants, --times N, --store)."""
    measure_in_lab(session)


@nox.session
def ablation(session: nox.Session) -> None:
    """Switch things off: was their CPU time attributed? (posargs: things, --mutants N)."""
    measure_in_lab(session)


@nox.session
def referee(session: nox.Session) -> None:
    """Plant causes from outside in 200 trials, and score what is said (posargs: seed, --only …)."""
    measure_in_lab(session, "referee")


@nox.session
def tunes(session: nox.Session) -> None:
    """Plant faults that a setting repairs; a tune must find it (posargs: plants, --times N)."""
    measure_in_lab(session)


@nox.session
def searches(session: nox.Session) -> None:
    """Search for rates that are known otherwise (posargs: parts, --times N)."""
    measure_in_lab(session)


@nox.session
def monitoring(session: nox.Session) -> None:
    """Plant incidents, keep quiet, hold an exporter for an hour (posargs: parts, --minutes N)."""
    install_system_packages(SERVER_PACKAGES)
    measure_in_lab(session)


@nox.session
def campaigns(session: nox.Session) -> None:
    """Run campaigns on Dask workers and kill each process once (posargs: parts, --times N)."""
    prepare(session)
    if os.geteuid() != 0:
        session.skip("the lab needs root: sudo python3 noxfile.py campaigns")
    project = nox.project.load_toml(ROOT / "pyproject.toml")["project"]
    install(session, HOME, *project["optional-dependencies"]["campaign"])
    run(session, "pytest", "tests/unit/campaign", "tests/lab/test_open_ports.py")
    paths = {"PYTHONPATH": str(ROOT / "tests" / "fixtures")}
    run(session, "python", "tests/lab/campaigns.py", *session.posargs, env=paths)


@nox.session
def guests(session: nox.Session) -> None:
    """Run between two QEMU guests with igb and virtio cards; downloads 1 GB of Debian once."""
    prepare(session)
    if os.geteuid() != 0:
        session.skip("the guests need root: sudo python3 noxfile.py guests")
    install_system_packages(GUEST_PACKAGES)
    folder = ROOT / ".nox" / "guests"
    run(session, "python", "tests/guests/image.py", str(folder), "cards")
    apart = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    python, pytest = (str(HOME / "bin" / name) for name in ("python", "pytest"))
    beside = (pytest, "tests/guests", *session.posargs)
    pair = (python, "tests/guests/pair.py", str(folder), "cards", "left,right", *beside)
    session.run("unshare", *apart, *pair, external=True)


@nox.session
def middle(session: nox.Session) -> None:
    """Lose packets at routers with real drivers and WireGuard (posargs: images of guests)."""
    prepare(session)
    if os.geteuid() != 0:
        session.skip("the guest needs root: sudo python3 noxfile.py middle")
    install_system_packages(GUEST_PACKAGES)
    folder = ROOT / ".nox" / "guests"
    apart = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    python, pytest = (str(HOME / "bin" / name) for name in ("python", "pytest"))
    for image in session.posargs or ("trixie-hosts",):
        run(session, "python", "tests/guests/image.py", str(folder), image)
        pair = (python, "tests/guests/pair.py", str(folder), image, "path")
        words = ("unshare", *apart, *pair, pytest, "-s", "tests/guests/test_nodes.py")
        session.run(*words, external=True)


@nox.session
def kernels(session: nox.Session) -> None:
    """Try Debian's kernels in guests, for hours (posargs: names, --again, --no-cards)."""
    prepare(session)
    if os.geteuid() != 0:
        session.skip("the guests need root: sudo python3 noxfile.py kernels")
    install_system_packages(GUEST_PACKAGES)
    paths = {"PYTHONPATH": str(ROOT / "tests" / "fixtures")}
    words = ("tests/guests/kernels.py", str(ROOT / ".nox" / "guests"), *session.posargs)
    run(session, "python", *words, env=paths)


@nox.session
def docs(session: nox.Session) -> None:
    """Check the documentation, and run its first commands."""
    prepare(session)
    if os.geteuid() == 0:
        install_system_packages(LAB_PACKAGES)
    if DOCS not in running:
        run(session, "pytest", "-m", SAMPLE, *tests_in(session, "tests/docs"))
    elif end(DOCS):
        session.error("documentation tests failed: see above")


def begin_docs_tests() -> None:
    """Begin the tests of the documentation, one after the other: the CPUs have time for more."""
    begin(DOCS, ((*after_lab_tests(), *pytest_beside(DOCS, "-m", SAMPLE, "tests/docs")), {}))


@nox.session
def browser(session: nox.Session) -> None:
    """Open the HTML report in Debian's Chromium: checks requests, width and contrast."""
    prepare(session)
    install_system_packages(BROWSER_PACKAGES)
    install_group(session, "browser")
    paths = ("-o", "pythonpath=tests/fixtures tests/unit")
    run(session, "pytest", *paths, "tests/browser", *session.posargs)


@nox.session
def s3(session: nox.Session) -> None:
    """Write runs to a store in S3, on moto's server, including interrupted uploads."""
    prepare(session)
    install_group(session, "s3")
    paths = ("-o", "pythonpath=tests/fixtures tests/unit")
    run(session, "pytest", *paths, "tests/s3", *session.posargs)


@nox.session
def portable(session: nox.Session) -> None:
    """Build the C extension for hosts with another CPU architecture or with musl."""
    prepare(session)
    install_group(session, "portable")
    run(session, "python", "native/portable.py")


@nox.session
def wheels(session: nox.Session) -> None:
    """Build what can be published into dist/: the source, and a wheel for each portable target."""
    prepare(session)
    install_group(session, "portable")
    run(session, "python", "native/portable.py")
    run(session, "python", "native/wheels.py")


@nox.session
def installs(session: nox.Session) -> None:
    """Install a checkout and a wheel by pipx and uv, each in a line, and run what they install."""
    prepare(session)
    install_group(session, "installs")
    run(session, "pytest", *tests_in(session, "tests/installs"))


@nox.session
def site(session: nox.Session) -> None:
    """Build the documentation as a site in site/, with a search that needs no network; check it."""
    prepare(session)
    install_group(session, "site")
    pages = ROOT / ".nox" / "site" / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy2(ROOT / name, pages.mkdir(parents=True, exist_ok=True) or pages / name)
    for folder in ("docs", "experiments"):
        shutil.copytree(ROOT / folder, pages / folder)
    run(session, "mkdocs", "build", "--quiet", env={"NO_MKDOCS_2_WARNING": "1"})
    run(session, "pytest", *tests_in(session, "tests/site"))


def install_group(session: nox.Session, group: str) -> None:
    """Install a dependency group of pyproject.toml into the shared environment."""
    project = nox.project.load_toml(ROOT / "pyproject.toml")
    install(session, HOME, *nox.project.dependency_groups(project, group))


@nox.session
def lock(session: nox.Session) -> None:
    """Write the versions and digests of the wheels that are sent to hosts: the newest of PyPI."""
    prepare(session)
    project = nox.project.load_toml(ROOT / "pyproject.toml")
    install_group(session, "lock")
    asked = Path(session.create_tmp()) / "agent.in"
    of_agent = [text for text in project["project"]["dependencies"] if ";" not in text]
    of_exporter = project["project"]["optional-dependencies"]["export"]
    asked.write_text("\n".join([*of_agent, *of_exporter]))
    deployment = ROOT / "udpbench" / "control" / "deployment"
    words = (
        "--universal",
        "--python-version",
        "3.9",
        "--no-deps",
        "--generate-hashes",
        "--upgrade",
    )
    short = ("--quiet", "--no-annotate", "--no-header", "--output-file")
    run(
        session, "uv", "pip", "compile", *words, *short, str(deployment / "wheels.lock"), str(asked)
    )


@nox.session
def hostile(session: nox.Session) -> None:
    """Read the whole corpus of hostile files, each within its memory; ``unit`` reads a sample."""
    prepare(session)
    run(session, "pytest", "--numprocesses=auto", "tests/unit/hostile", *session.posargs)


@nox.session
def messages(session: nox.Session) -> None:
    """Rewrite the golden messages of all tests, or of those given as posargs."""
    prepare(session)
    rooms = [f"tests/{room}" for room in ("unit", "agent", "native", "lab")]
    if os.geteuid() == 0:
        install_system_packages(LAB_PACKAGES)
    run(session, "pytest", "--rewrite-messages", *(session.posargs or rooms))


@nox.session
def bench(session: nox.Session) -> None:
    """Measure udpbench itself, as ratios in one run."""
    prepare(session)
    install_system_packages(BENCH_PACKAGES)
    for program in sorted((ROOT / "benchmarks").glob("*.py")):
        run(session, "python", str(program), *session.posargs)


@nox.session
def studies(session: nox.Session) -> None:
    """Run ``million``, ``loss`` and ``gso``, or those named, in the built-in lab; half an hour."""
    prepare(session)
    results = Path(session.create_tmp())
    for study in session.posargs or ("million", "loss", "gso"):
        folder = results / study
        shutil.rmtree(folder, ignore_errors=True)
        # 1: an expectation failed; 5: one could not be judged here. Both are answers.
        arguments = ("run", study, "--out", str(folder))
        session.run(
            str(HOME / "bin" / "udpbench"), *arguments, success_codes=[0, 1, 5], external=True
        )


@nox.session
def soak(session: nox.Session) -> None:
    """Hold a load, by default for two hours (``soak -- 20m``); memory must stay constant."""
    prepare(session)
    run(session, "python", "benchmarks/soak/hold.py", *session.posargs)


@nox.session
def growth(session: nox.Session) -> None:
    """Double one thing at a time and fit how cost grows (posargs: things, such as ``trials``)."""
    prepare(session)
    if os.geteuid() != 0:
        session.skip("the hosts that grow need root: sudo python3 noxfile.py growth")
    install_system_packages(LAB_PACKAGES)
    run(session, "python", "benchmarks/growth/measure.py", *session.posargs)


def interpreters() -> dict[str, str]:
    """Return minor version → interpreter, for every working Python from 3.9 on."""
    places = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    places += sorted(Path.home().glob(".pyenv/versions/*/bin"))
    python_paths: dict[str, str] = {}
    for minor in range(9, 15):
        name = f"python3.{minor}"
        for candidate in (folder / name for folder in places):
            if name not in python_paths and candidate.exists() and _answers(candidate):
                python_paths[name] = str(candidate)
    return python_paths


def _answers(python: Path) -> bool:
    """Return whether the interpreter can create environments; pyenv's shims often cannot."""
    command = [python, "-c", "import ensurepip, sys; sys.exit(sys.version_info < (3, 9))"]
    return subprocess.run(command, capture_output=True).returncode == 0


REPORT = ROOT / ".nox" / "report.json"
CACHES = (ROOT / ".pytest_cache", *map(cache_of, (LAB, BUILT, SANITIZED, DOCS)))
FAILED_TESTS = tuple(cache / "v/cache/lastfailed" for cache in CACHES)
"""pytest's own lists, of all its runs here."""
ROOMS = {name: f"tests/{'unit' if name == 'quick' else name}/" for name in CHECKS}
MOST_NAMED = 12


def last_line() -> str:
    """Return which sessions failed and what repeats just that; empty if all passed."""
    sessions = json.loads(REPORT.read_text())["sessions"] if REPORT.exists() else []
    failed = [ran["name"] for ran in sessions if ran["result"] in ("failed", "aborted")]
    tests = [
        test for file in FAILED_TESTS if file.exists() for test in json.loads(file.read_text())
    ]
    commands = []
    for name in failed:
        named = [test for test in dict.fromkeys(tests) if test.startswith(ROOMS.get(name, "?"))]
        few = ["--", *named] if 0 < len(named) <= MOST_NAMED else []
        commands.append(shlex.join(["python3", "noxfile.py", name, *few]))
    return f"failed: {', '.join(failed)}; to repeat: {' && '.join(commands)}" if failed else ""


def main() -> None:
    """Run the sessions that the command line names; the last line says what failed."""
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.unlink(missing_ok=True)
    asked = sys.argv[1:2]
    if asked == ["test"]:  # its sessions alone, since by itself it can only succeed
        asked = list(CHECKS)
        os.environ[BESIDE] = "1"
        for file in FAILED_TESTS:
            file.unlink(missing_ok=True)
    # nox takes a session's name only behind --session.
    sys.argv[1:2] = ["--report", str(REPORT), "--session", *asked]
    try:
        nox.main()
    finally:
        if line := last_line():
            print(line, flush=True)


if __name__ == "__main__":
    main()
