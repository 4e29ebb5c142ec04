"""OVN of the distribution over Weir: what ovn-controller asks of a switch is there, and does what OVN means by it."""

from collections import Counter

import pytest
from conftest import until
from lib.conntrack import connect, exchange, listen
from lib.ovn import Ovn
from lib.tunnel import cable, namespace


def port(switch, vm):
    """Commands that add a machine's port."""
    return f"lsp-add {switch} {vm.ns}\nlsp-set-addresses {vm.ns} \"{vm.mac} {vm.address}\""


def router(switch, address, mac):
    """Commands that join a switch to the router `r`."""
    return f"""
        lrp-add r r-{switch} {mac} {address}/24
        lsp-add {switch} {switch}-r
        lsp-set-type {switch}-r router
        lsp-set-addresses {switch}-r router
        lsp-set-options {switch}-r router-port=r-{switch}"""


def outside(lab, site):
    """A host in the network beyond a site, which OVN knows as `outside`."""
    host = namespace(lab.net)
    cable(host, "eth0", site.host, "eth1")
    host.run("ip", "addr", "add", "172.16.0.1/24", "dev", "eth0")
    site.vsctl("add-br", "br-ex", "--", "set", "bridge", "br-ex", "datapath_type=netdev", "--", "add-port", "br-ex", "eth1", "--",
               "set", "open", ".", "external_ids:ovn-bridge-mappings=outside:br-ex")
    return host


def test_switch_router_acl_nat_and_load_balancer_over_two_hosts(lab):
    one, two = lab.weir(), lab.weir()
    lab.join(one, two)
    host = outside(lab, one)
    ovn = Ovn(lab)
    ovn.join(one, two)
    a1, a2 = (ovn.machine(site, f"10.1.0.{site.number}", "10.1.0.254") for site in (one, two))
    b1, b2 = (ovn.machine(site, f"10.2.0.{site.number}", "10.2.0.254") for site in (one, two))
    ovn.commands(f"""
        ls-add a
        ls-add b
        ls-add x
        lr-add r
        {port("a", a1)}
        {port("a", a2)}
        {port("b", b1)}
        {port("b", b2)}
        {router("a", "10.1.0.254", "02:00:00:00:0b:01")}
        {router("b", "10.2.0.254", "02:00:00:00:0b:02")}
        {router("x", "172.16.0.254", "02:00:00:00:0b:03")}
        lrp-set-gateway-chassis r-x {one.host.ns}
        lsp-add x ln
        lsp-set-type ln localnet
        lsp-set-addresses ln unknown
        lsp-set-options ln network_name=outside
        lr-nat-add r snat 172.16.0.254 10.1.0.0/24
        lr-nat-add r dnat_and_snat 172.16.0.20 10.2.0.2
        lb-add lb 10.3.0.1:80 10.2.0.1:8080,10.2.0.2:8080
        ls-lb-add a lb
        acl-add b to-lport 1001 tcp.dst==8081 reject
        acl-add b to-lport 1000 ip4.src==10.1.0.1 allow-related
        """)
    until(lambda: a1.ping(a2.address, count=1, wait=1), what="the switch over two hosts")

    # The switch, in the tunnel and not, and the router, whose ports answer, too.
    for other in ("10.1.0.2", "10.2.0.1", "10.2.0.2", "10.1.0.254", "10.2.0.254"):
        assert a1.ping(other) == 3, other
    assert "From 10.1.0.254" in a1.run("ping", "-c1", "-W2", "-t1", "10.2.0.2", check=False).stdout
    with listen(b2, "10.2.0.2", 8080) as at2, listen(b1, "10.2.0.1", 8080) as at1:
        with connect(a1, "10.2.0.2", 8080) as client, at2.accept()[0] as server:
            exchange(client, server)
        # ovn-controller answers in the place of who listens.
        with listen(b2, "10.2.0.2", 8081), pytest.raises(ConnectionRefusedError):
            connect(a1, "10.2.0.2", 8081)
        # The load balancer, whose choice is the group's hash.
        chosen = Counter()
        for _ in range(30):
            with connect(a1, "10.3.0.1", 80) as client:
                at1.settimeout(0), at2.settimeout(0)
                server = until(lambda: accepted(at1) or accepted(at2), what="a connection")
                server.settimeout(3)
                with server:
                    exchange(client, server)
                    chosen[server.getsockname()[0]] += 1
        assert len(chosen) == 2, chosen
    # Outside, by the address of the router, from the site of the gateway and the other one; and in from there.
    with listen(host, "172.16.0.1", 80) as at:
        for vm, seen in ((a1, "172.16.0.254"), (a2, "172.16.0.254"), (b2, "172.16.0.20")):
            with connect(vm, "172.16.0.1", 80) as client:
                server, peer = at.accept()
                assert peer[0] == seen
                with server:
                    exchange(client, server)
    assert host.ping("172.16.0.20") == 3
    assert a2.ping("172.16.0.1") == 3

def accepted(server):
    try:
        return server.accept()[0]
    except BlockingIOError:
        return None
