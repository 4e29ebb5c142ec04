"""What plays the guide's pages (`lib.guide`) and looks at commands that cannot be run (`lib.commands`): mistakes on a page are seen."""

import os

import pytest
from lib import commands, guide
from lib.daemon import scratch_database

PAGE = """
Save this as `hosts`:

```text
one
```

<!-- exit 1 -->
```console
$ grep -c one hosts; \\
    echo `date +%T` done; cat hosts
1
09:12:33 done
...
# cat > other <<EOF
two
EOF
$ grep three other
```

<!-- not run: needs a NIC -->
```console
# touch never
```
"""


def play(text, directory):
    shell = guide.Shell(["bash"], dict(os.environ), directory)
    try:
        guide.play(text, shell, "page")
    finally:
        shell.close()


def test_a_page_is_played(tmp_path):
    play(PAGE, tmp_path)
    assert (tmp_path / "other").read_text() == "two\n"
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("before, after", [
    ("\none\n", "\nthree\n"), ("\n1\n", "\n2\n"), ("done\n...", "dome\n..."), ("exit 1", "exit 0"), ("09:12:33", "nine"),
    ("done\n...", "done"), ("done\n...", "done\n...\ntwo"),
], ids=["file", "count", "word", "status", "time", "less", "more"])
def test_a_page_that_says_something_else_is_told(before, after, tmp_path, monkeypatch):
    monkeypatch.setattr(guide, "PATIENCE", 0)
    assert before in PAGE
    with pytest.raises(AssertionError, match="page:"):
        play(PAGE.replace(before, after, 1), tmp_path)


def test_a_command_that_does_not_end_is_told():
    shell = guide.Shell(["bash"], dict(os.environ), "/")
    try:
        with pytest.raises(AssertionError, match="has not ended"):
            shell.run("sleep 100", seconds=0.2)
    finally:
        shell.close()


@pytest.fixture
def database(tmp_path):
    database = scratch_database(tmp_path)
    database.vsctl("--no-wait", "add-br", "br0")
    yield database
    database.stop_server()


@pytest.mark.parametrize("command, says", [
    ("ovs-vsctl add-br", "requires at least 1 argument"),
    ("ovs-vsctl set bridge br0 fail_mdoe=secure", "fail_mdoe"),
    ("ovs-vsctl set Open_vSwitch . other_config:pmd-cpu-maks=1", "pmd-cpu-maks"),
    ("weir drops --wach", "--wach"),
    ("n=$(weir drops --wach)", "--wach"),
    ("ovs-ofctl --now dump-flows br0", "--now"),
    ("nosuchprogram --now", "not installed"),
    ("echo 'a", "unexpected EOF"),
], ids=str)
def test_mistakes_of_commands_that_are_not_run_are_seen(command, says, database):
    assert says in (commands.look(command, "needs a NIC", database) or "")


@pytest.mark.parametrize("command", [
    "ovs-vsctl add-port br0 p0 -- set interface p0 type=dpdk options:dpdk-devargs=0000:01:00.0",
    "OVS_RUNDIR=/run/x weir drops --watch", "qemu-system-x86_64 -m 1024 -netdev user,id=n1",
])
def test_what_is_right_is_left_alone(command, database):
    assert commands.look(command, "needs a NIC", database) is None
