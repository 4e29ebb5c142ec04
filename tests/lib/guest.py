"""A virtual machine for tests: QEMU, Debian's cloud kernel, and an initramfs made here.

The guest has busybox and iperf3 and its network cards, `eth0` and so on, are virtio-net over vhost-user.
Commands are given to it over its serial console. Software emulation serves where there is no KVM.
"""

import itertools
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from .net import run

#: Where scripts/guest-kernel.sh puts the kernel and its modules.
KERNEL = Path(os.environ.get("WEIR_GUEST_KERNEL", Path(__file__).resolve().parents[2] / "target/guest-kernel"))
#: In the order in which they have to be loaded.
MODULES = ["virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "failover",
           "net_failover", "virtio_net"]
BUSYBOX = Path("/bin/busybox")
READY = "guest is ready"
END = "end of command"

INIT = f"""#!/bin/sh
export PATH=/bin HOME=/
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
for module in {" ".join(MODULES)}; do insmod /modules/$module.ko; done
ip link set lo up
stty -F /dev/ttyS0 -echo -onlcr
echo '{READY}'
while read -r line; do
    (eval "$line") </dev/null 2>&1
    echo "{END} $?"
done
poweroff -f
"""


def missing():
    """Why there can be no guest, in words; None where there can."""
    for program in ["qemu-system-x86_64", "iperf3"]:
        if not shutil.which(program):
            return f"{program} is not installed; run scripts/setup.sh test"
    if not BUSYBOX.exists():
        return "busybox-static is not installed; run scripts/setup.sh test"
    wanted = [KERNEL / "vmlinuz", *(KERNEL / f"{m}.ko" for m in MODULES)]
    absent = [f for f in wanted if not f.exists()]
    return f"{absent[0]} is not there; run scripts/guest-kernel.sh" if absent else None


def has_kvm():
    """Whether the processor runs virtual machines. The device alone may be there without that, and crawl."""
    if not {"vmx", "svm"} & set(Path("/proc/cpuinfo").read_text().split()):
        return False
    try:
        os.close(os.open("/dev/kvm", os.O_RDWR))
        return True
    except OSError:
        return False


def cpio(entries):
    """An archive in the format "newc" from (name, mode, content)."""
    out = bytearray()
    for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        name = name.encode() + b"\0"
        fields = [number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0]
        out += b"070701" + b"".join(b"%08x" % f for f in fields) + name
        out += bytes(-len(out) % 4)
        out += content
        out += bytes(-len(out) % 4)
    return bytes(out)


def initramfs():
    """The guest's root file system."""
    folder, file, link = 0o040755, 0o100755, 0o120777
    iperf3 = Path(shutil.which("iperf3")).resolve()
    words = run("ldd", iperf3).stdout.split()
    libraries = {Path(w) for w in words if w.startswith("/")}
    folders = {p for lib in libraries for p in lib.parents} | {Path("/bin"), Path("/modules"), Path("/proc"),
                                                               Path("/sys"), Path("/dev"), Path("/tmp")}
    entries = [(str(p)[1:], folder, b"") for p in sorted(folders) if p != Path("/")]
    entries += [(str(lib)[1:], file, lib.resolve().read_bytes()) for lib in sorted(libraries)]
    entries += [("bin/iperf3", file, iperf3.read_bytes()), ("bin/busybox", file, BUSYBOX.read_bytes())]
    applets = run(BUSYBOX, "--list").stdout.split()
    entries += [(f"bin/{name}", link, b"busybox") for name in applets if name != "busybox"]
    entries += [(f"modules/{m}.ko", file, (KERNEL / f"{m}.ko").read_bytes()) for m in MODULES]
    return cpio([*entries, ("init", file, INIT.encode())])


class Guest:
    """A running guest with a card for each of `sockets`.

    `server`: QEMU makes the sockets and waits for the switch, as with dpdkvhostuserclient. `card` are further
    properties of the cards ("packed=on", "host_mtu=9000"). `iommu`: what the switch may access of the guest's
    memory is up to a virtual IOMMU.
    """

    count = itertools.count(1)

    def __init__(self, sockets, server=True, queues=1, card="", memory=256, iommu=False):
        self.dir = Path(tempfile.mkdtemp(prefix="weir-guest-"))
        self.proc = None
        try:
            (self.dir / "initramfs").write_bytes(initramfs())
            self.proc = self.launch(sockets, server, queues, card, memory, iommu)
            self.pending = b""
            self.console = self.read_until(READY.encode() + b"\n", 120)
        except BaseException:
            self.close()
            raise

    def launch(self, sockets, server, queues, card, memory, iommu):
        kvm = has_kvm()
        card += ",disable-legacy=on,iommu_platform=on,ats=on" if iommu else ""
        cmd = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
               "-machine", f"q35,memory-backend=mem,accel={'kvm' if kvm else 'tcg'}",
               "-cpu", "host" if kvm else "max", "-m", f"{memory}",
               "-object", f"memory-backend-memfd,id=mem,size={memory}M,share=on",
               "-kernel", KERNEL / "vmlinuz", "-initrd", self.dir / "initramfs",
               "-append", "console=ttyS0 quiet panic=-1 mitigations=off cryptomgr.notests random.trust_cpu=on"
               + (" intel_iommu=on iommu=pt" if iommu else ""), "-serial", "stdio"]
        cmd += ["-device", "intel-iommu,device-iotlb=on"] if iommu else []
        for i, socket in enumerate(sockets):
            mode = ",server=on,wait=off" if server else ""
            # Without MSI-X: QEMU 7.2 without KVM crashes when it starts vhost with it.
            multi = ",vectors=0" + (",mq=on" if queues > 1 else "")
            more = f",{card.strip(',')}" if card else ""
            cmd += ["-chardev", f"socket,id=char{i},path={socket}{mode}",
                    "-netdev", f"type=vhost-user,id=net{i},chardev=char{i},queues={queues}",
                    "-device", f"virtio-net-pci,netdev=net{i},mac={self.mac()}{multi}{more},romfile="]
        self.errors = open(self.dir / "qemu.log", "wb")
        return subprocess.Popen([str(c) for c in cmd], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=self.errors, bufsize=0)

    @classmethod
    def mac(cls):
        return f"52:54:00:00:01:{next(cls.count):02x}"

    def read_until(self, end, seconds):
        """What the console says until `end`, without it."""
        deadline = time.monotonic() + seconds
        while end not in self.pending:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self.proc.stdout], [], [], left)[0]
            more = os.read(self.proc.stdout.fileno(), 65536) if ready else b""
            if not more:
                qemu = (self.dir / "qemu.log").read_text()
                what = "said nothing more" if ready else f"did not say {end!r} within {seconds} s"
                raise AssertionError(f"the guest {what}:\n{self.pending.decode(errors='replace')}\n{qemu}")
            self.pending += more.replace(b"\r", b"")
        text, self.pending = self.pending.split(end, 1)
        return text.decode(errors="replace")

    def run(self, command, check=True, timeout=60):
        """Run a command of the guest's shell; what it printed."""
        self.start(command)
        return self.finish(command, check, timeout)

    def start(self, command):
        """Give a command without waiting for its end, which finish() does."""
        self.proc.stdin.write(command.encode() + b"\n")

    def finish(self, command="", check=True, timeout=60):
        output = self.read_until(END.encode(), timeout)
        code = int(self.read_until(b"\n", 10))
        assert not check or code == 0, f"{command}: exit {code} in the guest\n{output}"
        return output

    def up(self, address, card="eth0", mtu=None):
        """Give a card an address ("10.0.0.1/24") and enable it."""
        self.run(f"ip addr add {address} dev {card}")
        if mtu:
            self.run(f"ip link set {card} mtu {mtu}")
        self.run(f"ip link set {card} up")

    def ping(self, address, count=3):
        """How many of `count` pings were answered."""
        output = self.run(f"ping -c {count} -W 5 {address}", check=False)
        line = next(line for line in output.splitlines() if "packets received" in line)
        return int(line.split(",")[1].split()[0])

    def kill(self):
        """End it at once, as a crash does."""
        self.proc.kill()
        self.proc.wait()

    def close(self):
        if self.proc:
            self.kill()
            self.proc.stdin.close()
            self.proc.stdout.close()
            self.errors.close()
        shutil.rmtree(self.dir, ignore_errors=True)
