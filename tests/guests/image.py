"""What the guests are made of: an image, its kernel, a QEMU with igb, wheels, and a key; made once.

All of it is in one folder. Installs nothing on this machine, and mounts nothing that others see.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from udpbench.control.deployment.wheels import Target, obtain

SUITE = "trixie"
"""Its QEMU has igb (since 8.0)."""
MIRROR = "http://deb.debian.org/debian"
IN_GUEST = ("openssh-server", "python3", "ethtool", "iproute2", "nftables")
KERNEL = ("linux-image-amd64",)
"""From the suite's backports: AF_XDP without copies needs Linux 6.11 on virtio_net, 6.14 on igb."""
IN_EMULATOR = ("qemu-system-x86",)
IMAGE_SIZE = "1200M"
INIT = Path(__file__).with_name("init")


def make(folder: Path) -> None:
    """Make what is missing in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    make_emulator(folder)
    make_key(folder)
    make_image(folder)
    keep_wheels(folder)


def make_emulator(folder: Path) -> None:
    """Make a tree that has QEMU and what it needs, to be entered by chroot."""
    if not (folder / "emulator").exists():
        bootstrap(folder / "emulator", IN_EMULATOR)


def make_key(folder: Path) -> None:
    """Make the key that logs in to the guests."""
    if not (folder / "key").exists():
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", folder / "key")


def make_image(folder: Path) -> None:
    """Make a file system with Debian, and take kernel, initial RAM disk and host key out of it."""
    image = folder / "image.ext4"
    inputs = INIT.read_text() + (folder / "key.pub").read_text() + repr(IN_GUEST + KERNEL)
    stamp = folder / "image.stamp"
    if image.exists() and stamp.exists() and stamp.read_text() == inputs:
        return
    tree = folder / "guest"
    shutil.rmtree(tree, ignore_errors=True)
    bootstrap(tree, IN_GUEST, KERNEL)
    shutil.rmtree(tree / "var/cache/apt", ignore_errors=True)
    shutil.copy(INIT, tree / "sbin/guest-init")
    (tree / "sbin/guest-init").chmod(0o755)
    keys = tree / "root/.ssh"
    keys.mkdir(mode=0o700, exist_ok=True)
    shutil.copy(folder / "key.pub", keys / "authorized_keys")
    shutil.copy(tree / "etc/ssh/ssh_host_ed25519_key.pub", folder / "host_key.pub")
    for name in ("vmlinuz", "initrd.img"):
        (kernel,) = (tree / "boot").glob(f"{name}-*")
        shutil.copy(kernel, folder / name)
    image.unlink(missing_ok=True)
    run("mkfs.ext4", "-q", "-d", tree, image, IMAGE_SIZE)
    stamp.write_text(inputs)


def keep_wheels(folder: Path) -> None:
    """Fetch what an agent imports there: beside the guests there is no internet."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    packages = (folder / "guest/var/lib/dpkg/status").read_text()
    python, libc = (version(packages, name) for name in ("python3-minimal", "libc6"))
    numbers = tuple(map(int, python.split(".")[:2]))
    obtain(Target((numbers[0], numbers[1]), os.uname().machine, "glibc", libc), None, print)


def version(packages: str, name: str) -> str:
    """Return the version of a package that dpkg has installed."""
    match = re.search(rf"^Package: {name}\n(?:.+\n)*?Version: ([0-9.]+)", packages, re.MULTILINE)
    assert match is not None, name
    return match[1]


def bootstrap(tree: Path, packages: tuple[str, ...], newer: tuple[str, ...] = ()) -> None:
    """Unpack and configure Debian in a folder, which appears when it is whole.

    ``newer`` are packages of the suite's backports.
    """
    unfinished = tree.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    print(f"unpacking Debian {SUITE} in {tree}", flush=True)
    include = f"--include={','.join(packages)}"
    # debootstrap mounts /proc in the tree.
    run(
        "unshare", "--mount", "debootstrap", "--variant=minbase", include, SUITE, unfinished, MIRROR
    )
    if newer:
        backports = f"{SUITE}-backports"
        source = unfinished / "etc/apt/sources.list.d/backports.list"
        source.write_text(f"deb {MIRROR} {backports} main\n")
        install = f"apt-get -q update && apt-get -qy --no-install-recommends -t {backports} install {' '.join(newer)}"
        inside = f"mount -t proc proc /proc && export DEBIAN_FRONTEND=noninteractive && {install}"
        run("unshare", "--mount", "chroot", unfinished, "sh", "-ec", inside)
    unfinished.rename(tree)


def run(*command: str | Path) -> None:
    """Run a command to its end; its output is printed if it fails."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}:\n{done.stdout[-2000:]}{done.stderr}")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
