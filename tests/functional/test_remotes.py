"""The database over TCP and TLS, with the daemon as the client."""

import pytest
from conftest import until
from lib.net import run


def certificates(folder):
    """A CA, and what it has signed for a server and a client."""
    ssl = lambda *args: run("openssl", *args, cwd=folder)
    ssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        ssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr",
            "-subj", f"/CN={name}")
        ssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", f"{name}.pem", "-extfile", "extensions")


def listening(ovs, kind):  # noqa: F811
    """Has ovsdb-server listen on a port of the system's choice, and returns it."""
    appctl = lambda *args: run("ovs-appctl", "-t", ovs.dir / "ovsdb.ctl", *args, env=ovs.env).stdout
    appctl("ovsdb-server/add-remote", f"p{kind}:0:127.0.0.1")

    def ports():
        out = run("ss", "-Hltnp").stdout.splitlines()
        return [line.split()[3].rsplit(":", 1)[1] for line in out if f"pid={ovs.server.pid}," in line]

    until(lambda: ports(), what="ovsdb-server listening")
    return ports()[0]


@pytest.mark.parametrize("kind", ["tcp", "ssl"])
def test_the_database_is_elsewhere(ovs, tmp_path, kind):  # noqa: F811
    options = []
    if kind == "ssl":
        certificates(tmp_path)
        ovs.stop_server()
        files = [f"--private-key={tmp_path}/server.key", f"--certificate={tmp_path}/server.pem",
                 f"--ca-cert={tmp_path}/ca.pem"]
        (ovs.dir / "db.sock").unlink(missing_ok=True)
        ovs.start_server(*files)
        options = [f"--private-key={tmp_path}/client.key", f"--certificate={tmp_path}/client.pem",
                   f"--ca-cert={tmp_path}/ca.pem"]
    port = listening(ovs, kind)
    local, ovs.db = ovs.db, f"{kind}:127.0.0.1:{port}"
    try:
        ovs.start("--enable-dummy", *options)
    finally:
        ovs.db = local
    ovs.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy")
    assert ovs.get("Open_vSwitch", ".", "cur_cfg") == ovs.get("Open_vSwitch", ".", "next_cfg")
    assert "br0" in ovs.appctl("ofproto/list")
