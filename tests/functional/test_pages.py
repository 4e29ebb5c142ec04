"""Every command line of docs/ beside the guide, which `test_guide` plays: each is run on a switch that has what the pages talk of, or
looked at where it needs what is not here."""

import re
import shutil
import tempfile
from pathlib import Path

import pytest
from conftest import ROOT, WEIR
from lib import commands, guide
from lib.daemon import scratch_database

PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]
WITH_COMMANDS = [page for page in PAGES if guide.typed(page.read_text())]

#: Why the command lines of these pages are not run.
NOT_RUN = {
    "CONTRIBUTING.md": "they are what runs these tests",
    "docs/dpdk.md": "hugepages and network cards",
    "docs/install.md": "they are run by test_install and test_guide",
    "docs/performance.md": "they measure, for minutes",
}

#: The switch of a page: a bridge with four ports, whose other ends send something that is dropped, and a capture of that.
SWITCH = """
ovsdb-tool create conf.db /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server conf.db --remote=punix:/run/openvswitch/db.sock --pidfile --detach --log-file=/dev/null
ovs-vsctl --no-wait init
weir vswitchd --detach --pidfile --log-file=weir.log
ovs-vsctl add-br br0 -- set bridge br0 datapath_type=netdev
for port in eth0 eth1 vm1 vm2 vm3; do
    ip link add $port type veth peer name peer-$port
    ip link set $port up
    ip link set peer-$port up
done
"""
PORTS = "ovs-vsctl" + "".join(f" -- add-port br0 {port}" for port in ("eth1", "vm1", "vm2", "vm3"))
TRAFFIC = """
ovs-ofctl add-flow br0 priority=9,in_port=eth1,udp,tp_dst=9,actions=drop
ip addr add 198.51.100.1/24 dev peer-eth1
ip neigh add 198.51.100.2 lladdr 02:00:00:00:00:02 dev peer-eth1
while sleep 0.02; do echo > /dev/udp/198.51.100.2/9; done 2>/dev/null &
weir tap -w lost.pcapng -c 5 --drops eth1
"""
#: What a page takes for granted beside that.
BEFORE = {
    "docs/bonds.md": "ovs-vsctl del-port br0 eth1",
    "docs/tunnels.md": "ovs-vsctl del-port br0 eth1",
    "docs/diff.md": """
        echo 'add priority=50,in_port=eth1,udp,actions=output:vm1' > new-acl.txt
        echo 'priority=50,in_port=eth1,udp,actions=output:vm1' > all.txt
        echo 'in_port=eth1,udp,tp_dst=9 -> drop' > reach.txt
        """,
    "docs/ingress.md": f"cp {ROOT}/tests/functional/ebpf/blocklist.c .",
    "docs/tap.md": "mkfifo pipe; cat pipe > piped &",
}
#: A command that goes on until it is interrupted.
ENDLESS = re.compile(r"weir( --json)? (tap|extcap .*--capture|top(?!.*--once)|stats --interval(?!.*--count)|drops --watch)")
#: Commands that tell something by an exit status of 1.
TELLS = re.compile(r"weir( --json)? (doctor|diff)")
#: What a page leaves out, and stands for what it cannot know.
MEANT = {
    "020000000002020000000001080045...": "020000000002020000000001080045000014000000004011000000000000000000000000",
    "br0/0:100:17": "br0/$(ovs-appctl weir/top rules most=1 bridge=br0 | grep -o '\"id\":\"[^\"]*' | cut -c7-)",
    "/tmp/pipe": "pipe",
}


def name(page):
    return str(page.relative_to(ROOT))


@pytest.fixture
def directory():
    directory = Path(tempfile.mkdtemp(prefix="weir-pages-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", [page for page in WITH_COMMANDS if name(page) not in NOT_RUN], ids=name)
def test_page(page, directory):
    (directory / "weir").symlink_to(WEIR)
    env = {"PATH": f"{directory}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(directory),
           "LANG": "C.UTF-8", "TERM": "xterm"}
    shell = guide.Shell.isolated(env, directory)
    try:
        for text in SWITCH, PORTS, TRAFFIC, BEFORE.get(name(page), ""):
            status, said = shell.run(f"set -e\n{text}\nset +e")
            assert status == 0, "\n".join(said)
        wrong = []
        for command in guide.typed(page.read_text()):
            where = f"{name(page)}:{command.line}: {command.text}\n"
            if command.output:
                guide.perform(command, shell, where)
                continue
            status, said = shell.run(run_as(command.text))
            # 130: it was interrupted.
            if status not in (0, 130) and not (status == 1 and TELLS.match(command.text)):
                wrong += [f"{where}ended with the exit status {status}:\n" + "\n".join(said)]
        assert not wrong, "\n".join(wrong)
    finally:
        shell.close()


def run_as(text):
    """A page's command line as it can be run by a test."""
    for on_page, meant in MEANT.items():
        text = text.replace(on_page, meant)
    if not ENDLESS.match(text):
        return text
    interrupted = f"timeout --foreground --preserve-status -s INT 2 {text}"
    # What is for a terminal gets one.
    return f"script -qec '{interrupted}' /dev/null" if "top" in text else interrupted


@pytest.mark.parametrize("page", [page for page in WITH_COMMANDS if name(page) in NOT_RUN], ids=name)
def test_what_is_not_run_is_right_as_far_as_can_be_seen(page, tmp_path):
    database = scratch_database(tmp_path)
    try:
        # What the pages take for granted.
        database.vsctl("--no-wait", "add-br", "br0")
        wrong = [f"{name(page)}:{command.line}: {command.text}: {found}" for command in guide.typed(page.read_text())
                 if (found := commands.look(command.text, NOT_RUN[name(page)], database))]
        assert not wrong, "\n".join(wrong)
    finally:
        database.stop_server()
