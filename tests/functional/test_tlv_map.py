"""Fields for options of tunnels (tun_metadata0 to 63) and their table, through Debian's ovs-ofctl and ovs-appctl."""

import re
import subprocess

import pytest
from lib.net import run
from lib.wait import until

VERSIONS = ["OpenFlow10", "OpenFlow13", "OpenFlow15"]


@pytest.fixture
def ovs(ovs):
    """A daemon with br0, which has two dummy ports."""
    ovs.start("--enable-dummy=override")
    ovs.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath-type=dummy", "fail-mode=secure",
              "protocols=OpenFlow10,OpenFlow13,OpenFlow15",
              *[word for n in (1, 2) for word in ("--", "add-port", "br0", f"p{n}", "--", "set", "interface", f"p{n}",
                                                  "type=dummy", f"ofport_request={n}")])
    return ovs


def option(kind, length, field):
    return f"{{class=0xffff,type={kind},len={length}}}->tun_metadata{field}"


def table(ovs):
    """The entries of the table: type, length, field."""
    text = ovs.ofctl("dump-tlv-map", "br0")
    assert "max option space=256 max fields=64" in text
    return [(int(kind, 0), int(length), field) for kind, length, field in
            re.findall(r"^ *0xffff +(\S+) +(\d+) +tun_metadata(\d+)$", text, re.M)]


def error(ovs, *args, **kw):
    """The name of the error that a message is refused with."""
    return re.search(r"OFPT_ERROR.*: (\w+)", ovs.refusal("ofctl", *args, **kw))[1]


def flows(ovs, version="OpenFlow10"):
    text = ovs.ofctl("-O", version, "--no-stats", "dump-flows", "br0")
    return sorted(line.strip() for line in text.splitlines() if "actions=" in line)


def trace(ovs, *args):
    """Megaflow and datapath actions."""
    lines = ovs.appctl("ofproto/trace", *args).splitlines()
    return [next(line for line in lines if line.startswith(start)) for start in ("Megaflow", "Datapath")]


def test_the_table_is_changed_and_listed(ovs):
    assert table(ovs) == []
    ovs.ofctl("add-tlv-map", "br0", f"{option(0, 4, 0)},{option(1, 8, 1)},{option(2, 0, 63)}")
    assert table(ovs) == [(0, 4, "0"), (1, 8, "1"), (2, 0, "63")]
    add = lambda *options: error(ovs, "add-tlv-map", "br0", ",".join(options))
    assert add(option(7, 4, 7), option(8, 4, 0)) == "NXTTMFC_ALREADY_MAPPED"
    assert add(option(7, 4, 7), option(1, 4, 8)) == "NXTTMFC_DUP_ENTRY"
    assert add(option(7, 124, 7), option(8, 124, 8)) == "NXTTMFC_TABLE_FULL"
    assert add(option(7, 5, 7)) == "NXTTMFC_BAD_OPT_LEN"
    assert add(option(7, 128, 7)) == "NXTTMFC_BAD_OPT_LEN"
    assert table(ovs) == [(0, 4, "0"), (1, 8, "1"), (2, 0, "63")], "what is refused changes nothing"
    ovs.ofctl("del-tlv-map", "br0", option(9, 4, 1))
    assert table(ovs) == [(0, 4, "0"), (2, 0, "63")]
    ovs.ofctl("del-tlv-map", "br0")
    assert table(ovs) == []


def test_gaps_between_fields_are_used(ovs):
    ovs.ofctl("add-tlv-map", "br0", f"{option(0, 4, 0)},{option(1, 8, 1)}")
    for kind, length in ((2, 124), (3, 4), (4, 112)):
        ovs.ofctl("add-tlv-map", "br0", option(kind, length, kind))
    ovs.ofctl("del-tlv-map", "br0", option(3, 4, 3))
    ovs.ofctl("add-tlv-map", "br0", option(3, 8, 3))
    ovs.ofctl("add-flow", "br0", "tun_metadata3=0x1234567890abcdef,actions=2")
    assert flows(ovs) == ["tun_metadata3=0x1234567890abcdef actions=output:2"]
    packet = ("recirc_id(0),tunnel(tun_id=0x0,src=1.1.1.1,dst=1.1.1.2,ttl=64,"
              "geneve({class=0xffff,type=3,len=8,0x1234567890abcdef}),flags(df|key)),in_port(p1),"
              "eth(src=50:54:00:00:00:05,dst=50:54:00:00:00:07),eth_type(0x0800),ipv4(frag=no)")
    megaflow, actions = trace(ovs, packet, "--names")
    assert "tun_metadata3=0x1234567890abcdef," in megaflow
    assert actions == "Datapath actions: p2"


@pytest.mark.parametrize("version", VERSIONS)
def test_flows_are_listed_as_they_were_given(ovs, version):
    ovs.ofctl("-O", version, "add-tlv-map", "br0", f"{option(0, 4, 0)},{option(1, 8, 1)},{option(2, 0, 2)},{option(3, 40, 3)}")
    given = [
        "priority=1,tun_metadata0 actions=output:2",
        "priority=2,tun_metadata2 actions=IN_PORT",
        "priority=3,tun_metadata0=0 actions=drop",
        "priority=4,tun_metadata0=0xabcd,tun_metadata1=0x2e/0x3f actions=drop",
        "priority=5,tun_metadata3=0x1234567890abcdef1234567890abcdef1234567890abcdef actions=drop",
        "priority=6,in_port=1 actions=set_field:0xa->tun_metadata0,set_field:0x10/0xf0->tun_metadata1,delete_field:tun_metadata3",
        "priority=7,in_port=1 actions=move:NXM_NX_TUN_METADATA3[4..303]->NXM_NX_TUN_METADATA3[20..319],"
        "move:NXM_NX_TUN_METADATA0[0..31]->NXM_NX_REG0[]",
        "priority=8,in_port=1 actions=push:NXM_NX_TUN_METADATA3[0..199],pop:NXM_NX_TUN_METADATA1[3],"
        "output:NXM_NX_TUN_METADATA0[0..15]",
        "priority=9,in_port=1 actions=check_pkt_larger(100)->NXM_NX_TUN_METADATA1[5],output:2",
        "priority=10,in_port=1 actions=learn(table=1,NXM_NX_TUN_METADATA0[0..31]=NXM_NX_REG1[],"
        "load:NXM_NX_REG1[]->NXM_NX_TUN_METADATA1[0..31])",
    ]
    ovs.ofctl("-O", version, "add-flows", "br0", "-", input="\n".join(given) + "\n")
    assert flows(ovs, version) == sorted(given)
    ovs.ofctl("-O", version, "del-flows", "br0", "tun_metadata0=0xabcd,tun_metadata1=0x2e/0x3f")
    assert len(flows(ovs)) == len(given) - 1
    assert "n_packets=0" in ovs.ofctl("-O", version, "dump-flows", "br0", "tun_metadata3")


def test_the_header_of_a_field_has_its_length(ovs):
    ovs.ofctl("add-tlv-map", "br0", option(0, 4, 0))
    ovs.ofctl("add-flow", "br0", "in_port=1 actions=move:tun_metadata0[0..31]->NXM_NX_REG0[]")
    lines = ovs.ofctl("dump-flows", "br0", "-mmmm").splitlines()
    assert "00000050  ff ff 00 18 00 00 23 20-00 06 00 20 00 00 00 00 |......# ... ....|" in lines
    assert "00000060  00 01 50 04 00 01 00 04-                        |..P.....        |" in lines


ACTIONS = [
    "move:tun_metadata{}[{}]->NXM_NX_REG0[]", "push:tun_metadata{}[{}]", "pop:tun_metadata{}[{}]",
    "output:tun_metadata{}[{}]", "multipath(eth_src,50,modulo_n,1,0,tun_metadata{}[{}])",
    "bundle_load(eth_src,50,hrw,ofport,tun_metadata{}[{}], members:4,8)", "learn(tun_metadata{}[{}]=reg0[0..31])",
    "clone(move:tun_metadata{}[{}]->reg0[0..31])", "ct(commit,zone=1,exec(move:tun_metadata{}[{}]->ct_mark))",
]


@pytest.mark.parametrize("action", ACTIONS)
def test_fields_and_bits_that_there_are_not_are_refused(ovs, action):
    ovs.ofctl("add-tlv-map", "br0", option(0, 4, 0))
    add = lambda *part: error(ovs, "add-flow", "br0", f"ip,actions={action.format(*part)}")
    assert add(1, "0..31") == "NXFMFC_INVALID_TLV_FIELD"
    assert add(0, "32..63") == "OFPBAC_BAD_SET_LEN"
    ovs.ofctl("add-flow", "br0", f"ip,actions={action.format(0, '0..31')}")
    assert error(ovs, "del-tlv-map", "br0") == "NXTTMFC_INVALID_TLV_DEL"
    ovs.ofctl("del-flows", "br0")
    ovs.ofctl("del-tlv-map", "br0")


def test_more_that_there_is_not(ovs):
    ovs.ofctl("add-tlv-map", "br0", option(0, 4, 0))
    add = lambda flow: error(ovs, "add-flow", "br0", flow)
    assert add("tun_metadata1=0x11223344 actions=output:2") == "NXFMFC_INVALID_TLV_FIELD"
    assert add("in_port=3, actions=load:0x11223344->tun_metadata1") == "NXFMFC_INVALID_TLV_FIELD"
    assert add("actions=delete_field:tun_metadata1") == "NXFMFC_INVALID_TLV_FIELD"
    assert add("ip actions=ct(commit,zone=tun_metadata1[0..15],exec(set_field:1->ct_mark))") == "NXFMFC_INVALID_TLV_FIELD"
    assert add("ip actions=ct(commit,zone=tun_metadata0[32..47],exec(set_field:1->ct_mark))") == "OFPBAC_BAD_SET_LEN"
    assert "NXFMFC_INVALID_TLV_FIELD" in ovs.ofctl("dump-flows", "br0", "tun_metadata1")
    assert error(ovs, "del-flows", "br0", "tun_metadata1") == "NXFMFC_INVALID_TLV_FIELD"
    # OVS cuts off its lowest bytes.
    too_wide = "tun_metadata0=0x1122334455 actions=output:2"
    assert error(ovs, "-O", "OpenFlow13", "add-flow", "br0", too_wide) == "OFPBMC_BAD_LEN"
    assert flows(ovs) == []


def test_flows_differ_by_their_fields(ovs):
    ovs.ofctl("add-tlv-map", "br0", f"{option(0, 4, 0)},{option(1, 8, 1)}")
    ovs.ofctl("add-flows", "br0", "-", input="""
        priority=0,tun_metadata0=0,actions=drop
        priority=1,tun_metadata1=0xef/0xff,tun_metadata0=0xabcd,actions=drop
        priority=2,tun_metadata0=0xffffffff,actions=drop
        """)
    other = ovs.dir / "flows2.txt"
    other.write_text("priority=2,tun_metadata0=0xffffffff,actions=drop\npriority=0,tun_metadata0=0,actions=drop\n")
    r = run("ovs-ofctl", "diff-flows", "br0", other, env=ovs.env, check=False)
    assert r.returncode == 2
    assert r.stdout == "-priority=1,tun_metadata0=0xabcd,tun_metadata1=0xef/0xff actions=drop\n"


def test_fields_stay_as_long_as_a_flow_uses_them(ovs):
    maps = [option(n + 1, 4, n) for n in range(3)]
    for one in maps:
        ovs.ofctl("add-tlv-map", "br0", one)
    ovs.ofctl("add-flow", "br0", "in_port=1 actions=multipath(eth_src,50,modulo_n,1,0,tun_metadata0[0..31])")
    ovs.ofctl("add-flow", "br0",
              "in_port=2 actions=push:tun_metadata1[0..31],clone(move:tun_metadata2[0..31]->reg0[0..31])")
    ovs.ofctl("add-flow", "br0", "in_port=1 actions=output:4")
    ovs.ofctl("del-tlv-map", "br0", maps[0])
    ovs.ofctl("add-flow", "br0", "in_port=2 actions=push:tun_metadata2[0..31]")
    ovs.ofctl("del-tlv-map", "br0", maps[1])
    assert error(ovs, "del-tlv-map", "br0", maps[2]) == "NXTTMFC_INVALID_TLV_DEL"
    ovs.ofctl("del-flows", "br0")
    ovs.ofctl("del-tlv-map", "br0")
    # So do fields of flows that were learnt.
    for one in maps[1:]:
        ovs.ofctl("add-tlv-map", "br0", one)
    ovs.ofctl("add-flow", "br0", "in_port=2,eth_src=00:00:00:00:00:01 "
                                 "actions=learn(tun_metadata1[0..31]=reg1, output:NXM_OF_IN_PORT[])")
    ovs.ofctl("add-flow", "br0", "in_port=2,eth_src=00:00:00:00:00:02 "
                                 "actions=learn(reg1[0..31]=0xFF, load:reg1->tun_metadata2[0..31])")
    for n in (1, 2):
        packet = f"in_port(p2),eth(src=00:00:00:00:00:0{n},dst=ff:ff:ff:ff:ff:ff),eth_type(0x0800)"
        ovs.appctl("ofproto/trace", packet, "-generate")
    ovs.ofctl("del-flows", "br0", "in_port=2")
    assert flows(ovs) == ["table=1, reg1=0xff actions=set_field:0->tun_metadata2",
                          "table=1, tun_metadata1=0 actions=output:2"]
    assert error(ovs, "del-tlv-map", "br0", maps[1]) == "NXTTMFC_INVALID_TLV_DEL"
    ovs.ofctl("del-flows", "br0", "tun_metadata1")
    ovs.ofctl("del-tlv-map", "br0", maps[1])
    assert error(ovs, "del-tlv-map", "br0", maps[2]) == "NXTTMFC_INVALID_TLV_DEL"
    ovs.ofctl("del-flows", "br0", "reg1=0xFF")
    ovs.ofctl("del-tlv-map", "br0")


def packet(options):
    """A packet that has left a tunnel, with these options, as the datapath has it."""
    return (f"recirc_id(0),tunnel(tun_id=0x0,src=1.1.1.1,dst=1.1.1.2,ttl=64,geneve({options}),flags(df|key)),in_port(p1),"
            "skb_mark(0),eth(src=50:54:00:00:00:05,dst=50:54:00:00:00:07),eth_type(0x0800),ipv4(frag=no)")


def test_packets_match_by_their_options(ovs):
    ovs.ofctl("add-tlv-map", "br0", f"{option(0, 4, 0)},{option(1, 0, 1)},{option(2, 4, 2)}")
    ovs.ofctl("add-flows", "br0", "-", input="""
        priority=1,tun_metadata0,actions=2
        priority=2,tun_metadata1=0,actions=IN_PORT
        priority=3,tun_metadata2=0,actions=drop
        """)
    assert flows(ovs) == ["priority=1,tun_metadata0 actions=output:2", "priority=2,tun_metadata1 actions=IN_PORT",
                          "priority=3,tun_metadata2=0 actions=drop"]

    def treated(options):
        megaflow, actions = trace(ovs, packet(options), "--names")
        fields = ",".join(item for item in megaflow.split(",") if item.startswith("tun_metadata"))
        return fields, actions.removeprefix("Datapath actions: ")

    assert treated("{class=0xffff,type=0,len=4,0x12345678}") == ("tun_metadata0,tun_metadata1=NP,tun_metadata2=NP", "p2")
    assert treated("{class=0xffff,type=1,len=0}") == ("tun_metadata1,tun_metadata2=NP", "p1")
    unknown = "{class=0xffff,type=9,len=4,0xc}{class=0xffff,type=0,len=4,0x1}"
    assert treated(unknown) == ("tun_metadata0,tun_metadata1=NP,tun_metadata2=NP", "p2")
    for wrong in ("{class=0xffff,type=0x89,len=4,0xc}", "{class=0xffff,type=0,len=8,0x1}"):
        assert "Failed to parse Geneve options" in ovs.refusal("appctl", "ofproto/trace", packet(wrong))
    assert "tun_metadata0=0x7" in ovs.appctl("ofproto/trace", "br0", "in_port=1,tun_metadata0=7,tun_dst=1.1.1.1")


def test_controllers_see_and_give_fields(ovs):
    ovs.ofctl("add-tlv-map", "br0", f"{option(0, 8, 2)},{option(1, 4, 3)}")
    ovs.ofctl("add-flow", "br0", "table=0,tun_metadata3=0x11 actions=controller", version=15)
    log = ovs.dir / "monitor.log"
    with open(log, "wb") as out:
        monitor = subprocess.Popen(["ovs-ofctl", "-O", "OpenFlow15", "monitor", "br0", "65534"], env=ovs.env, stdout=out,
                                   stderr=out, stdin=subprocess.DEVNULL)
    try:
        def send(fields, eth_type="3333"):
            ovs.ofctl("packet-out", "br0", f"in_port=2,{fields} packet=000102030405001020304050{eth_type} actions=table", version=15)

        def seen():
            send("tun_metadata2=0x22,tun_metadata3=0x11")
            return "PACKET_IN" in log.read_text()

        until(seen, what="a packet-in")
        assert "total_len=14 tun_metadata2=0x22,tun_metadata3=0x11,in_port=2 (via" in log.read_text()
        send("tun_metadata3=0x12", eth_type="4444")
        send("tun_metadata9=0x11", eth_type="4444")
        send("tun_metadata3=0x11", eth_type="5555")
        until(lambda: "dl_type=0x5555" in log.read_text(), what="the last packet-in")
        assert "dl_type=0x4444" not in log.read_text()
    finally:
        monitor.kill()
        monitor.wait()


def test_tables_tell_that_they_have_the_fields(ovs):
    text = ovs.ofctl("dump-table-features", "br0", version=13)
    assert text.count("gtpu_{flags,msgtype},metadata0...metadata63}") == 1, "to be matched with a mask"
    assert text.count("erspan_{idx,ver,dir,hwid},metadata0...metadata63}") == 1, "to be set"
