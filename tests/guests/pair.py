"""Boot guests from an image, joined by one switch for each kind of card, and run a command beside them.

To be started in network, mount and process namespaces of its own (`noxfile.py guests` does): taps, switches and
guests are in there, and all of them end with this process. ``pair.py FOLDER IMAGE NAME,... COMMAND...``, where the
names are left and right, or alone: a guest on which the controller runs, which keeps what it writes to its disk; or
path: a guest whose cards are joined in pairs, so that its namespaces are a chain with a real driver at each hop.

    guest 1 ── control0 ──┬── control0 ── guest 2      SSH, from this namespace's 10.77.1.254
            ── igb0 ───── igb switch ──── igb0
            ── virtio0 ── virtio switch ─ virtio0

    path ── hop1a ── hop1 switch ── hop1b ── path    igb; hop2 has virtio, hop3 igb, hop4 virtio

A guest is a machine of QEMU, or a kernel that is a program (image.PROGRAM): that has one CPU, and in place of the two
cards vector0, the end of a veth pair that it opens as a packet socket.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

NUMBERS = {"left": 1, "right": 2, "alone": 3, "path": 4}
HOPS = tuple(f"hop{hop}{end}" for hop in range(1, 5) for end in "ab")
CARDS = {"control": 1, "igb": 2, "virtio": 3, "vector": 4} | {
    kind: 16 + number for number, kind in enumerate(HOPS)
}
"""Kind → the fifth byte of its address, by which the guest names it (init)."""
OF_QEMU = ("control", "igb", "virtio")
OF_PROGRAM = ("control", "vector")
OF_PATH = ("control", *HOPS)
"""Kinds of cards, by what boots."""
CONTROLLER = "10.77.1.254/24"
MACHINE = """
-machine q35 -cpu max,vendor=GenuineIntel -accel tcg,thread=multi -nodefaults -display none -serial stdio
-device virtio-blk-pci,drive=disk,bus=pcie.0 -kernel /mnt/{image}/vmlinuz -initrd /mnt/{image}/initrd.img
"""
"""Only Intel's CPUs have threads in QEMU without further ado."""
FORGOTTEN = "-drive file=/mnt/{image}/image.ext4,format=raw,if=none,id=disk,snapshot=on"
FAST = "mitigations=off"
"""Emulated system calls take a tenth of the time without page-table isolation, and starts of programs two thirds
(medians of three, side by side)."""
KEPT = "-drive file=/mnt/{image}/disk.qcow2,format=qcow2,if=none,id=disk,cache=unsafe"
OWN = {
    "left": f"-m 512 -smp 2,cores=1,threads=2 {FORGOTTEN}",
    "right": f"-m 512 -smp 2,cores=1,threads=2 {FORGOTTEN}",
    "alone": f"-m 3072 -smp 2 {KEPT}",
    "path": f"-m 1024 -smp 2,cores=1,threads=2 {FORGOTTEN}",
}
PROGRAM = "usr/bin/linux.uml"
PROGRAM_MEMORY = {"left": "512M", "right": "512M", "alone": "3G"}
TWO_NODES = f"""
-m 512 -smp 12,sockets=2,cores=3,threads=2 {FORGOTTEN}
-object memory-backend-ram,id=memory0,size=256M -numa node,nodeid=0,cpus=0-5,memdev=memory0
-object memory-backend-ram,id=memory1,size=256M -numa node,nodeid=1,cpus=6-11,memdev=memory1
-device pxb-pcie,id=node1,bus_nr=16,numa_node=1,bus=pcie.0 -device pcie-root-port,id=port1,bus=node1,chassis=1
"""
"""The receiver for the tests of cards: two nodes, each with three cores of two threads; its igb card is on the
second. Twelve CPUs boot slowly, so other receivers have two."""
CARD_TESTS = "cards"
VIRTIO_QUEUES = 2
BOOT_S = 600
"""Without KVM, on CPUs that others use."""
CONFIG = """Host {name}
  HostName 10.77.1.{number}
  User root
  IdentityFile {key}
"""


def main(folder: Path, image: str, names: list[str], *command: str) -> int:
    """Boot the guests, run the command, and return how it ended."""
    is_program = (folder / image / "tree" / PROGRAM).exists()
    make_switches(names, OF_PROGRAM if is_program else kinds_of(names[0]))
    if is_program:
        enter(folder / image / "tree", folder / image)
        guests = [boot_program(folder / image, name) for name in names]
    else:
        enter(folder / "emulator", folder)
        if "alone" in names:
            make_disk(folder / image)
        guests = [boot(folder, image, name) for name in names]
    try:
        environment = {**os.environ, **write_home(folder, image)}
        environment["UDPBENCH_GUESTS"] = ",".join(str(guest.pid) for guest in guests)
        environment["UDPBENCH_GUEST_NAMES"] = ",".join(names)
        wait_for_ssh(environment, dict(zip(names, guests, strict=True)))
        return subprocess.run(command, env=environment).returncode
    finally:
        for guest in guests:
            guest.kill()
            guest.wait()


def enter(tree: Path, folder: Path) -> None:
    """Show a tree this machine's devices and what is booted, in this mount namespace alone."""
    for shown in ("/dev", "/proc"):
        run("mount", "--rbind", shown, tree / shown[1:])
    run("mount", "--bind", folder, tree / "mnt")


def make_disk(image: Path) -> None:
    """Make a disk that keeps what a guest writes, beside an image that stays as it is."""
    if not (image / "disk.qcow2").exists():
        inside = ("chroot", image.parent / "emulator")
        backing = ("-b", f"/mnt/{image.name}/image.ext4", "-F", "raw")
        run(*inside, "qemu-img", "create", "-f", "qcow2", *backing, f"/mnt/{image.name}/disk.qcow2")


def kinds_of(name: str) -> tuple[str, ...]:
    """Return the kinds of cards of a machine of QEMU."""
    return OF_PATH if name == "path" else OF_QEMU


def is_igb(kind: str) -> bool:
    """Return whether a kind of card is Intel's; of a path every second pair is virtio."""
    return kind == "igb" or (kind in HOPS and int(kind[3]) % 2 == 1)


def make_switches(names: list[str], kinds: Sequence[str]) -> None:
    """Make a switch for each kind of card, with a tap or a program's end of a cable for each guest."""
    run("ip", "link", "set", "lo", "up")
    for kind in kinds:
        switch = f"{kind[:-1] if kind in HOPS else kind}-switch"
        if kind not in HOPS or kind.endswith("a"):
            run("ip", "link", "add", switch, "type", "bridge", "mcast_snooping", "0")
        for name in names:
            port = tap = f"{kind}-{name}"
            queues = ("multi_queue",) if kind == "virtio" else ()
            if kinds == OF_PROGRAM:
                port = f"p-{tap}"
                run("ip", "link", "add", port, "type", "veth", "peer", "name", tap)
                Path(f"/proc/sys/net/ipv6/conf/{tap}/disable_ipv6").write_text("1")
                run("ip", "link", "set", tap, "up")
            else:
                run("ip", "tuntap", "add", tap, "mode", "tap", *queues)
            run("ip", "link", "set", port, "master", switch, "up")
        run("ip", "link", "set", switch, "up")
    run("ip", "address", "add", CONTROLLER, "dev", "control-switch")


def boot(folder: Path, image: str, name: str) -> subprocess.Popen[bytes]:
    """Start a guest; unless it is alone, what it writes to its disk is forgotten when it ends."""
    number = NUMBERS[name]
    kernel = f"root=/dev/vda rw console=ttyS0 quiet {FAST} init=/sbin/guest-init guest={number}"
    far = (image, name) == (CARD_TESTS, "right")
    machine = f"{MACHINE} {TWO_NODES if far else OWN[name]}".format(image=image)
    words = [*machine.split(), "-append", kernel]
    kinds = kinds_of(name)
    words += [word for kind in kinds for word in card(kind, name, far=far and kind == "igb")]
    with (folder / image / f"{name}.log").open("wb") as log:
        command = ["chroot", folder / "emulator", "qemu-system-x86_64", *words]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )


def boot_program(place: Path, name: str) -> subprocess.Popen[bytes]:
    """Start a guest whose kernel is a program; what is written to disks of a pair is forgotten."""
    number = NUMBERS[name]
    # Of a guest that was killed: the number of its process may be that of another one here.
    shutil.rmtree(place / name, ignore_errors=True)
    disk = "disk.cow" if name == "alone" else f"{name}.cow"
    if name != "alone":
        (place / disk).unlink(missing_ok=True)
    words = [f"mem={PROGRAM_MEMORY[name]}", f"ubd0=/mnt/{disk},/mnt/image.ext4"]
    words += ["root=/dev/ubda", "rw", "quiet", "init=/sbin/guest-init", f"guest={number}"]
    words += ["con=null", "con0=null,fd:1", "uml_dir=/mnt", f"umid={name}"]
    for device, kind in enumerate(OF_PROGRAM):
        address = f"52:54:00:00:{CARDS[kind]:02x}:{number:02x}"
        # Of a tap the driver dies when it is asked for its rings (5.10 to 7.2).
        words.append(f"vec{device}:transport=raw,ifname={kind}-{name},depth=64,gro=1,mac={address}")
    # A system call is a switch between two processes: on one CPU all takes a third less time.
    cpu = str(max(os.sched_getaffinity(0)))
    with (place / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            ["taskset", "-c", cpu, "chroot", place / "tree", f"/{PROGRAM}", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def card(kind: str, name: str, *, far: bool) -> list[str]:
    """Return QEMU's options for a guest's card of a kind, which may be on the second node."""
    tap = f"tap,id={kind},ifname={kind}-{name},script=no,downscript=no"
    address = f"52:54:00:00:{CARDS[kind]:02x}:{NUMBERS[name]:02x}"
    model = "igb" if is_igb(kind) else "virtio-net-pci"
    if kind == "virtio":
        tap += f",queues={VIRTIO_QUEUES},vhost=off"
        model += f",mq=on,vectors={2 * VIRTIO_QUEUES + 2}"
        # The driver uses the DMA API then, without which AF_XDP copies.
        model += ",iommu_platform=on,disable-legacy=on"
    port = ()
    if kind in HOPS:
        # The virtual functions of several igb cards would meet on one bus.
        number = 1 + HOPS.index(kind)
        port = (
            "-device",
            f"pcie-root-port,id=port{kind},bus=pcie.0,chassis={number},slot={number}",
        )
    model += f",bus=port{kind}" if port else ",bus=port1" if far else ",bus=pcie.0"
    return [*port, "-netdev", tap, "-device", f"{model},netdev={kind},mac={address},romfile="]


def write_home(folder: Path, image: str) -> dict[str, str]:
    """Return the environment of a user who can log in to the guests."""
    ssh = folder / image / "home/.ssh"
    ssh.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = folder / "key"
    hosts = [CONFIG.format(name=name, number=n, key=key) for name, n in NUMBERS.items()]
    (ssh / "config").write_text("".join(hosts))
    public = " ".join((folder / image / "host_key.pub").read_text().split()[:2])
    known = [f"{name},10.77.1.{number} {public}\n" for name, number in NUMBERS.items()]
    (ssh / "known_hosts").write_text("".join(known))
    return {"HOME": str(folder / image / "home"), "XDG_CACHE_HOME": str(folder / "cache")}


def wait_for_ssh(environment: dict[str, str], guests: dict[str, subprocess.Popen[bytes]]) -> None:
    """Return once all guests let the user in; SystemExit if one does not in time."""
    deadline = time.monotonic() + BOOT_S
    for name in guests:
        config = Path(environment["HOME"]) / ".ssh"
        options = ("-F", config / "config", "-o", f"UserKnownHostsFile={config / 'known_hosts'}")
        attempt = ["ssh", *options, "-o", "ConnectTimeout=5", name, "true"]
        while subprocess.run(attempt, capture_output=True).returncode != 0:
            if any(guest.poll() is not None for guest in guests.values()):
                raise SystemExit("a guest has ended; its .log says why")
            if time.monotonic() > deadline:
                raise SystemExit(f"{name} did not boot in {BOOT_S} s")
            time.sleep(1)


def run(*words: str | Path) -> None:
    """Run a command, which must succeed."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{shlex.join(map(str, words))}: {done.stderr}")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(","), *sys.argv[4:]))
