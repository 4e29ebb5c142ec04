"""`--user`: the daemon gives up root and keeps what a switch needs of it."""

import os
import pwd



def status(pid):
    lines = open(f"/proc/{pid}/status").read().splitlines()
    return {key: value.split() for key, _, value in (line.partition(":") for line in lines)}


def test_runs_as_another_user_and_still_switches(ovs, net):
    nobody = pwd.getpwnam("nobody")
    os.chmod(ovs.dir, 0o755)
    for path in [ovs.dir, *ovs.dir.iterdir()]:
        os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)
    a, b = net.host("10.9.0.1/24"), net.host("10.9.0.2/24")
    ovs.start("--user=nobody")
    of_daemon = status(ovs.pid())
    assert set(of_daemon["Uid"]) == {str(nobody.pw_uid)} and set(of_daemon["Gid"]) == {str(nobody.pw_gid)}
    assert int(of_daemon["CapEff"][0], 16) & 1 << 21 == 0, "CAP_SYS_ADMIN is given up"
    # A TAP device for LOCAL, and interfaces of the kernel.
    ovs.vsctl("add-br", "brusr", "--", "set", "bridge", "brusr", "datapath_type=netdev")
    for host in (a, b):
        ovs.vsctl("add-port", "brusr", host.port)
        assert ovs.get("Interface", host.port, "error") == "[]"
    assert a.ping("10.9.0.2") == 3


def test_a_user_that_is_not_there_is_said(ovs):
    r = ovs.start("--user=no-such-user", check=False)
    assert r.returncode != 0 and "user no-such-user not found" in r.stderr
