"""What guests are made of: a QEMU with igb, a key, and images of Debian with their kernels; made once.

All of it is in one folder, an image in a folder of its name there. Installs nothing on this machine,
and mounts nothing that others see.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from udpbench.control.deployment.wheels import Target, obtain

ROOT = Path(__file__).parents[2]
MIRROR = "http://deb.debian.org/debian"
EMULATOR = ("trixie", ("qemu-system-x86", "qemu-utils"))
"""QEMU has igb since 8.0."""
BARE = ("openssh-server", "python3", "iproute2")
"""To log in, to run an agent, and to name the cards (init)."""
KERNEL, REALTIME = "linux-image-amd64", "linux-image-rt-amd64"
PROGRAM = "user-mode-linux"
"""The same source as a program: one CPU, cards that are taps alone, and no AF_XDP; it needs no KVM, and
is no slower than the machine but for system calls (CONTRIBUTING.md)."""
INIT = Path(__file__).with_name("init")
WHEELS = "opt/wheels"


@dataclass(frozen=True)
class Image:
    """A Debian that guests boot."""

    suite: str
    packages: tuple[str, ...] = ("ethtool", "iptables", "nftables", "wireguard-tools")
    """Beside those of ``BARE`` and the kernel."""
    kernel: str = PROGRAM
    backports: tuple[str, ...] = ()
    """Packages of the suite's backports; the kernel may be one of them."""
    later: tuple[str, ...] = ()
    """Packages that are there as files, because a guest has no network; and pip's, if any."""
    size: str = "1500M"


LATER = (
    *("gcc", "libc6-dev", "python3-venv", "python3-dev", "util-linux", "ethtool", "iptables"),
    *("openssh-server", "sudo", "nftables", "sockperf", "socat", "unbound"),
)
"""What sessions install where it is missing (noxfile.py), and programs of experiments/own."""
IMAGES = {
    # PREEMPT_RT: soft interrupts are tasks.
    "realtime": Image("trixie", kernel=REALTIME),
    # AF_XDP without copies needs Linux 6.11 on virtio_net, 6.14 on igb.
    "cards": Image("trixie", kernel=KERNEL, backports=(KERNEL,)),
    **{
        f"{suite}-hosts": Image(suite, kernel=KERNEL)
        for suite in ("bullseye", "bookworm", "trixie", "sid")
    },
    "bullseye": Image("bullseye"),
    **{
        suite: Image(suite, packages=(), later=LATER, size="8G")
        for suite in ("bookworm", "trixie", "sid")
    },
}
"""By name: two hosts with cards, or one on which the controller runs and which lacks all else."""


def make(folder: Path, name: str) -> None:
    """Make what an image needs, as far as it is missing in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if IMAGES[name].kernel != PROGRAM and not (folder / "emulator").exists():
        bootstrap(folder / "emulator", *EMULATOR)
    if not (folder / "key").exists():
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", folder / "key")
    make_image(folder, name)
    if not IMAGES[name].later:
        keep_wheels(folder, name)


def make_image(folder: Path, name: str) -> None:
    """Make a file system with Debian, and take kernel, initial RAM disk and host key out of it."""
    place, image = folder / name, IMAGES[name]
    inputs = INIT.read_text() + (folder / "key.pub").read_text() + repr(image)
    stamp = place / "stamp"
    if stamp.exists() and stamp.read_text() == inputs:
        return
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    tree = place / "tree"
    own = () if image.kernel in image.backports else (image.kernel, "kmod")
    bootstrap(tree, image.suite, (*BARE, *image.packages, *own), image.backports)
    shutil.rmtree(tree / "var/cache/apt", ignore_errors=True)
    if image.later:
        keep_packages(tree, image.later)
        keep_tools(tree)
    shutil.copy(INIT, tree / "sbin/guest-init")
    (tree / "sbin/guest-init").chmod(0o755)
    keys = tree / "root/.ssh"
    keys.mkdir(mode=0o700, exist_ok=True)
    shutil.copy(folder / "key.pub", keys / "authorized_keys")
    shutil.copy(tree / "etc/ssh/ssh_host_ed25519_key.pub", place / "host_key.pub")
    take_kernel(place, image)
    run("mkfs.ext4", "-q", "-d", tree, place / "image.ext4", image.size)
    shutil.rmtree(tree / WHEELS, ignore_errors=True)
    stamp.write_text(inputs)


LEGACY = "for name in iptables ip6tables; do update-alternatives --set $name /usr/sbin/$name-legacy; done"
"""Debian's kernel that is a program has no nf_tables for IP."""


def take_kernel(place: Path, image: Image) -> None:
    """Copy the kernel out of the tree, and write its release beside it."""
    tree = place / "tree"
    if image.kernel == PROGRAM:
        if "iptables" in image.packages:
            inside(tree, LEGACY)
        (modules,) = (tree / "usr/lib/uml/modules").iterdir()
        (tree / "lib/modules").mkdir(exist_ok=True)
        shutil.move(modules, tree / "lib/modules" / modules.name)
        (place / "release").write_text(modules.name)
        return
    for file in ("vmlinuz", "initrd.img"):
        (path,) = (tree / "boot").glob(f"{file}-*")
        shutil.copy(path, place / file)
        (place / "release").write_text(path.name.removeprefix(f"{file}-"))


def keep_packages(tree: Path, packages: tuple[str, ...]) -> None:
    """Download packages and what they need to where apt looks first."""
    # A copy of sid on a mirror may be older than its Release file allows.
    update = "apt-get -q update -o Acquire::Check-Valid-Until=false"
    inside(tree, f"{update} && {INSTALL} --download-only {' '.join(packages)}")


def keep_tools(tree: Path) -> None:
    """Download what udpbench, its tests and its build need of other projects; pip looks there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [
        *project["project"]["dependencies"],
        *project["build-system"]["requires"],
        "nox",
        "uv",
    ]
    needed += TEST_TOOLS
    python = python_of(tree)
    platforms = [word for tag in python.platforms for word in ("--platform", tag)]
    version = ".".join(map(str, python.python))
    fits = ("--only-binary=:all:", "--implementation", "cp", "--python-version", version)
    words = ("download", "--quiet", "--dest", tree / WHEELS, *fits, *platforms)
    run(sys.executable, "-m", "pip", *words, *(text.partition(";")[0] for text in needed))
    (tree / "etc/pip.conf").write_text(f"[global]\nno-index = true\nfind-links = /{WHEELS}\n")


def keep_wheels(folder: Path, name: str) -> None:
    """Fetch what an agent imports there: beside the guests there is no internet."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    obtain(python_of(folder / name / "tree"), None, print)


def python_of(tree: Path) -> Target:
    """Return what a wheel must fit to run in a Debian."""
    packages = (tree / "var/lib/dpkg/status").read_text()
    python, libc = (version(packages, name) for name in ("python3-minimal", "libc6"))
    major, minor = map(int, python.split(".")[:2])
    return Target((major, minor), os.uname().machine, "glibc", libc)


def version(packages: str, name: str) -> str:
    """Return the version of a package that dpkg has installed."""
    match = re.search(rf"^Package: {name}\n(?:.+\n)*?Version: ([0-9.]+)", packages, re.MULTILINE)
    assert match is not None, name
    return match[1]


TEST_TOOLS = ("hypothesis", "pypdf", "pytest", "pytest-timeout", "pytest-xdist")
"""What the lab tests need."""
INSTALL = "apt-get -qy --no-install-recommends install"


def bootstrap(
    tree: Path, suite: str, packages: Iterable[str], backports: tuple[str, ...] = ()
) -> None:
    """Unpack and configure Debian in a folder, which appears when it is whole."""
    unfinished = tree.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    print(f"unpacking Debian {suite} in {tree}", flush=True)
    words = ("--variant=minbase", f"--include={','.join(packages)}", suite, unfinished, MIRROR)
    # debootstrap mounts /proc in the tree.
    run("unshare", "--mount", "debootstrap", *words)
    if backports:
        source = unfinished / "etc/apt/sources.list.d/backports.list"
        source.write_text(f"deb {MIRROR} {suite}-backports main\n")
        newer = f"{INSTALL} -t {suite}-backports {' '.join(backports)}"
        inside(unfinished, f"apt-get -q update && {newer}")
    unfinished.rename(tree)


def inside(tree: Path, command: str) -> None:
    """Run a command in a Debian, with this machine's network."""
    prepared = f"mount -t proc proc /proc && export DEBIAN_FRONTEND=noninteractive && {command}"
    run("unshare", "--mount", "chroot", tree, "sh", "-ec", prepared)


def run(*command: str | Path) -> None:
    """Run a command to its end; its output is printed if it fails."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}:\n{done.stdout[-2000:]}{done.stderr}")


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2])
