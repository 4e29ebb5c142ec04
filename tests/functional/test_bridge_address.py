"""The Ethernet address of a bridge, and its datapath id: those of its network cards."""

import socket
from pathlib import Path

from conftest import until
from lib.daemon import Ovs, dummy_bridge
from lib.net import run

CARD = "00:1b:21:00:00:{:02x}"


def address(ovs):
    """As controllers see it and as the database has it: address, datapath id."""
    local = [line for line in ovs.ofctl("show", "br0").splitlines() if line.startswith(" LOCAL")][0]
    return local.split("addr:")[1], ovs.get("bridge", "br0", "datapath_id")


def of(card):
    mac = CARD.format(card)
    return mac, "0000" + mac.replace(":", "")


def card(ovs, port, number):
    ovs.vsctl("set", "interface", port, f'mac="{CARD.format(number)}"')


def test_the_lowest_address_of_a_card(ovs):
    ovs.start()
    dummy_bridge(ovs, "p1", "p2", "p3")
    made_up = address(ovs)
    assert int(made_up[0][:2], 16) & 3 == 2
    card(ovs, "p1", 5)
    assert address(ovs) == of(5)
    card(ovs, "p2", 3)
    assert address(ovs) == of(3)
    ovs.vsctl("set", "interface", "p3", 'mac="02:00:00:00:00:01"')
    assert address(ovs) == of(3), "what is administered locally is of no card"
    ovs.vsctl("--", "--id=@p2", "get", "port", "p2", "--", "--id=@m", "create", "mirror", "name=m", "select-all=true",
              "output-port=@p2", "--", "set", "bridge", "br0", "mirrors=@m")
    assert address(ovs) == of(5), "a port that copies go to"
    ovs.vsctl("clear", "bridge", "br0", "mirrors")
    assert address(ovs) == of(3)
    ovs.vsctl("set", "port", "p3", f'mac="{CARD.format(1)}"')
    assert address(ovs) == of(1)
    ovs.vsctl("clear", "port", "p3", "mac")
    ovs.vsctl("del-port", "p2")
    assert address(ovs) == of(5)
    # What is configured counts more.
    ovs.vsctl("set", "bridge", "br0", "other_config:datapath-id=00000000000000ab")
    assert address(ovs) == (of(5)[0], "00000000000000ab")
    ovs.vsctl("set", "bridge", "br0", "other_config:hwaddr=02:00:00:00:00:07")
    assert address(ovs) == ("02:00:00:00:00:07", "00000000000000ab")
    ovs.vsctl("remove", "bridge", "br0", "other_config", "hwaddr", "--", "remove", "bridge", "br0", "other_config", "datapath-id")
    assert address(ovs) == of(5)
    ovs.vsctl("clear", "interface", "p1", "mac")
    assert address(ovs) == made_up
    assert [line.split()[-1] for line in ovs.log().splitlines() if "using datapath ID" in line][:3] == \
        [made_up[1], of(5)[1], of(3)[1]], "each once"


def test_a_controller_connects_again_with_another_datapath_id(ovs):
    """It cannot be told of it otherwise. One that is there from the start sees the right one at once."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(ovs.dir / "controller"))
        server.listen()
        server.settimeout(20)

        def datapath_id():
            """What the next connection says, and its socket."""
            s, _ = server.accept()
            s.settimeout(20)
            s.sendall(bytes.fromhex("0400000800000001" "0405000800000002"))
            data = b""
            while len(data) < 16 or not (reply := data[int.from_bytes(data[2:4], "big"):])[16:]:
                piece = s.recv(4096)
                assert piece
                data += piece
            assert reply[1] == 6
            return reply[8:16].hex(), s

        ovs.vsctl("--no-wait", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "--", "set-controller",
                  "br0", f"unix:{ovs.dir}/controller", "--", "add-port", "br0", "p1", "--", "set", "interface", "p1",
                  "type=dummy", f'mac="{CARD.format(9)}"')
        ovs.start()
        first, old = datapath_id()
        assert first == of(9)[1]
        ovs.vsctl("add-port", "br0", "p2", "--", "set", "interface", "p2", "type=dummy", f'mac="{CARD.format(8)}"')
        second, new = datapath_id()
        assert second == of(8)[1]
        assert address(ovs) == of(8)
        ovs.vsctl("set", "bridge", "br0", "other_config:datapath-id=00000000000000ab")
        third, last = datapath_id()
        assert third == "00000000000000ab"
        for s in (old, new, last):
            s.close()


def test_switches_of_one_machine_have_different_addresses(ovs):
    """Bridges of one name, of two databases, may meet on one segment. Each keeps its address when its switch starts again."""
    other = Ovs()
    try:
        addresses = []
        for switch in (ovs, other):
            switch.start()
            dummy_bridge(switch, "p1")
            addresses.append(address(switch)[0])
        assert addresses[0] != addresses[1]
        ovs.stop()
        ovs.start()
        assert address(ovs)[0] == addresses[0]
    finally:
        other.close()


def test_who_listens_goes_on_with_another_datapath_id(ovs):
    """At the same addresses, each time."""
    ovs.start()
    dummy_bridge(ovs, "p1")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ovs.vsctl("set-controller", "br0", f"ptcp:{port}:127.0.0.1", f"punix:{ovs.dir}/br0.controller")
    for n in range(1, 10):
        ovs.vsctl("set", "bridge", "br0", f"other_config:datapath-id={n:016x}")
        for target in (f"tcp:127.0.0.1:{port}", f"unix:{ovs.dir}/br0.controller"):
            assert f"dpid:{n:016x}" in run("ovs-ofctl", "show", target).stdout


def test_a_host_keeps_its_address(ovs, net):
    """Its card goes into a bridge, and its IP address to the bridge's LOCAL port: its peer notices nothing."""
    peer = net.host("10.0.0.1/24")
    run("ip", "link", "set", peer.port, "address", CARD.format(7))
    ovs.start()
    ovs.vsctl("add-br", "br0", "--", "add-port", "br0", peer.port)
    device = Path("/sys/class/net/br0/address")
    assert device.read_text().strip() == CARD.format(7) and address(ovs) == of(7)
    run("ip", "addr", "add", "10.0.0.2/24", "dev", "br0")
    run("ip", "link", "set", "br0", "up")
    peer.run("ip", "neigh", "replace", "10.0.0.2", "lladdr", CARD.format(7), "dev", "eth0", "nud", "permanent")
    until(lambda: "1 received" in peer.run("ping", "-n", "-c", 1, "-W", 1, "10.0.0.2", check=False).stdout, what="an answer")
    # The device comes back after it was deleted, with the same address.
    run("ip", "link", "del", "br0")
    until(lambda: device.exists() and device.read_text().strip() == CARD.format(7), what="the device")
    ovs.vsctl("del-port", peer.port)
    assert int(device.read_text()[:2], 16) & 3 == 2
