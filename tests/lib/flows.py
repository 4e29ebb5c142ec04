"""Flows with every field of ovs-fields(7) and every action of ovs-actions(7), as text for ovs-ofctl; groups and meters, too."""

from dataclasses import dataclass


@dataclass
class Field:
    """A field: what has to be matched with it, a value of it, a mask (where it takes any bits), and whether actions write it."""

    needs: str
    value: str
    mask: str = None
    writable: bool = False
    #: Other values whose text is special.
    more: tuple = ()


def _registers():
    found = {f"reg{n}": Field("", f"{n + 1:#x}", "0xff0", True) for n in range(16)}
    found |= {f"xreg{n}": Field("", f"{n + 1:#x}00000001", "0xff000000ff", True) for n in range(8)}
    found |= {f"xxreg{n}": Field("", f"{n + 1:#x}0000000000000001", "0xff00000000000000ff", True) for n in range(4)}
    return found


#: A tunnel's options have names where the bridge's map gives them.
TLV_MAP = ",".join(f"{{class={0xff00 + n:#x},type={n + 1},len=4}}->tun_metadata{n}" for n in (0, 1, 30, 61, 63)) + \
    ",{class=0xffff,type=0x80,len=8}->tun_metadata62"
MAC, MAC_MASK = "02:00:00:00:00:01", "ff:ff:ff:00:00:00"
IP6, IP6_MASK = "fd00::1", "ffff:ffff::ff"
CT, CT6 = "ct_state=+trk+est,ip", "ct_state=+trk+est,ipv6"
NSH = "dl_type=0x894f"

FIELDS = _registers() | {
    "conj_id": Field("", "5"),
    "tun_id": Field("", "0x5", "0xff", True),
    "tun_src": Field("", "10.0.0.1", "255.0.0.255", True, ("10.0.0.0/8",)),
    "tun_dst": Field("", "10.0.0.1", "255.0.0.255", True),
    "tun_ipv6_src": Field("", IP6, IP6_MASK, True, ("fd00::/64",)),
    "tun_ipv6_dst": Field("", IP6, IP6_MASK, True),
    "tun_gbp_id": Field("", "7", "0xff", True),
    "tun_gbp_flags": Field("", "0x8", "0x48", True),
    "tun_erspan_ver": Field("", "2", "0x3", True),
    "tun_erspan_idx": Field("", "0x7", "0xff", True),
    "tun_erspan_dir": Field("", "1", None, True),
    "tun_erspan_hwid": Field("", "0x5", "0xf", True),
    "tun_gtpu_flags": Field("", "0x30", "0x30"),
    "tun_gtpu_msgtype": Field("", "255", "0xf0"),
    "tun_flags": Field("", "+oam", None, False, ("-oam",)),
    "in_port": Field("", "1", None, True, ("LOCAL", "CONTROLLER")),
    "in_port_oxm": Field("", "1"),
    "pkt_mark": Field("", "0x5", "0xff", True),
    "actset_output": Field("", "2", None, False, ("LOCAL",)),
    "packet_type": Field("", "(1,0x800)", None, False, ("(0,0)", "(1,0x894f)", "(1,0x8847)")),
    "ct_state": Field("", "+trk+est", None, False, ("+trk-new", "-trk", "+trk+rpl-inv", "+trk+dnat", "+trk+snat+rel")),
    "ct_zone": Field("", "0x7", None, False),
    "ct_mark": Field("", "0x5", "0xff"),
    "ct_label": Field("", "0x50000000000000001", "0xff00000000000000ff"),
    "ct_nw_src": Field(CT, "10.0.0.1", "255.0.0.255"),
    "ct_nw_dst": Field(CT, "10.0.0.1", "255.255.0.0"),
    "ct_ipv6_src": Field(CT6, IP6, IP6_MASK),
    "ct_ipv6_dst": Field(CT6, IP6, IP6_MASK),
    "ct_nw_proto": Field(CT, "6"),
    "ct_tp_src": Field(CT + ",ct_nw_proto=6", "80", "0xff00"),
    "ct_tp_dst": Field(CT6 + ",ct_nw_proto=17", "80", "0xff00"),
    "metadata": Field("", "0x5", "0xff", True),
    "eth_src": Field("", MAC, MAC_MASK, True),
    "eth_dst": Field("", MAC, "01:00:00:00:00:00", True),
    "eth_type": Field("", "0x88b5", None, False, ("0x800", "0x86dd", "0x806", "0x8035", "0x8847", "0x8848", "0x894f", "0x5ff")),
    "vlan_vid": Field("", "0x1005", "0x100f", False, ("0", "0x1000/0x1000", "5")),
    "vlan_pcp": Field("dl_vlan=5", "3", None, True, ("0",)),
    "vlan_tci": Field("", "0x7005", "0xf00f", True, ("0", "0x1123/0x1fff", "0xf000/0xf000")),
    "dl_vlan": Field("", "9", None, False, ("0xffff",)),
    "mpls_label": Field("mpls", "100", None, True),
    "mpls_tc": Field("mpls", "3", None, True),
    "mpls_bos": Field("mplsm", "1"),
    "mpls_ttl": Field("mpls", "64", None, True),
    "ip_src": Field("ip", "10.0.0.1", "255.0.0.255", True, ("10.0.0.0/8", "0.0.0.1/0.0.0.255")),
    "ip_dst": Field("ip", "10.0.0.1", "255.0.0.255", True),
    "ipv6_src": Field("ipv6", IP6, IP6_MASK, True, ("fd00::/13", "::ffff:1.2.3.4")),
    "ipv6_dst": Field("ipv6", IP6, IP6_MASK, True, ("::/1",)),
    "ipv6_label": Field("ipv6", "0x12345", "0xf000f", True),
    "nw_proto": Field("ip", "50", None, False, ("1", "6", "17", "132", "58", "2")),
    "nw_ttl": Field("ipv6", "64", None, True),
    "ip_frag": Field("ip", "yes", None, False, ("no", "first", "later", "not_later")),
    "nw_tos": Field("ip", "184", None, True),
    "ip_dscp": Field("ipv6", "46", None, True),
    "nw_ecn": Field("ip", "1", None, True),
    "arp_op": Field("arp", "2", None, True),
    "arp_spa": Field("arp", "10.0.0.1", "255.0.0.255", True),
    "arp_tpa": Field("rarp", "10.0.0.1", "255.255.0.0", True),
    "arp_sha": Field("arp", MAC, MAC_MASK, True),
    "arp_tha": Field("arp", MAC, MAC_MASK, True),
    "nsh_flags": Field(NSH, "2", "0x2", True),
    "nsh_ttl": Field(NSH, "63", None, True),
    "nsh_mdtype": Field(NSH, "1"),
    "nsh_np": Field(NSH, "3"),
    "nsh_spi": Field(NSH, "0x123456", None, True),
    "nsh_si": Field(NSH, "255", None, True),
    **{f"nsh_c{n}": Field(NSH, f"{n:#x}", "0xff", True) for n in range(1, 5)},
    "tcp_src": Field("tcp", "80", "0xff00", True),
    "tcp_dst": Field("tcp6", "80", "0xfff0", True),
    "tcp_flags": Field("tcp", "+syn-ack", None, False, ("0x12", "0x2/0x7", "+ns+cwr+ece", "-fin-rst+psh+urg")),
    "udp_src": Field("udp6", "53", "0xff00", True),
    "udp_dst": Field("udp", "53", "0xfff0", True),
    "sctp_src": Field("sctp", "1", "0xff00", True),
    "sctp_dst": Field("sctp6", "1", "0xfff0", True),
    "icmp_type": Field("icmp", "8", None, True),
    "icmp_code": Field("icmp", "1", None, True),
    "icmpv6_type": Field("icmp6", "128", None, True),
    "icmpv6_code": Field("icmp6", "1", None, True),
    "nd_target": Field("icmp6,icmp_type=135,icmp_code=0", IP6, IP6_MASK, True),
    "nd_sll": Field("icmp6,icmp_type=135,icmp_code=0", MAC, MAC_MASK, True),
    "nd_tll": Field("icmp6,icmp_type=136,icmp_code=0", MAC, MAC_MASK, True),
    "nd_reserved": Field("icmp6,icmp_type=136,icmp_code=0", "5", None, True),
    "nd_options_type": Field("icmp6,icmp_type=135,icmp_code=0", "1", None, True),
    **{f"tun_metadata{n}": Field("", "0x5", "0xff", True, ("",)) for n in (0, 1, 30, 61, 63)},
    # An option of eight bytes.
    "tun_metadata62": Field("", "0x123456789abc", None, True, ("0x1/0xff000000ff",)),
}
#: Actions and instructions: text with what has to be matched for them.
ACTIONS = [
    "output:2", "output:LOCAL", "output:65279", "2,LOCAL", "output:reg0[0..15]", "output:reg1[]", "output(port=2,max_len=100)",
    "output(port=LOCAL,max_len=65535)", "in_port", "all", "flood", "normal", "local", "table", "drop",
    "controller", "controller:100", "controller(reason=invalid_ttl)", "controller(reason=action,id=7)",
    "controller(max_len=20,reason=no_match,id=3)", "controller(userdata=01.02.ff)", "controller(pause)",
    "controller(max_len=9,reason=group,id=1,userdata=00,pause)", "controller(meter_id=3)",
    "enqueue(2,7)", "enqueue:2:7",
    "bundle(eth_src,50,hrw,ofport,members:1,2)", "bundle(symmetric_l4,60,active_backup,ofport,members:1,LOCAL)",
    "bundle(nw_dst,0,hrw,ofport,members:)", "bundle_load(symmetric_l3l4+udp,0,hrw,ofport,reg0[],members:1,2)",
    "bundle_load(nw_src,5,hrw,ofport,reg1[3..18],members:3)", "group:7",
    "dl_vlan=5 strip_vlan", "dl_vlan=5 pop_vlan", "push_vlan:0x8100", "push_vlan:0x88a8,set_field:4101->vlan_vid",
    "mod_vlan_vid:7", "mod_vlan_pcp:3", "dl_vlan=5 set_field:0x1005->vlan_vid", "dl_vlan=5 set_field:0x1005/0x100f->vlan_vid",
    "dl_vlan=5 move:vlan_vid[]->reg0[0..11]", "dl_vlan=5 mod_vlan_vid:7,mod_vlan_pcp:1",
    "push_mpls:0x8847", "ip push_mpls:0x8848,set_mpls_label:10,set_mpls_tc:3,set_mpls_ttl:9", "mpls set_mpls_label:100",
    "mpls set_mpls_tc:7", "mpls set_mpls_ttl:64", "mpls dec_mpls_ttl", "mpls pop_mpls:0x0800,dec_ttl", "mplsm pop_mpls:0x8847,dec_mpls_ttl",
    "encap(nsh)", "encap(nsh(md_type=1))", "encap(nsh(md_type=2,tlv(0x1000,10,0x12345678),tlv(0x2000,20,0xfedcba98)))",
    "packet_type=(1,0x894f) encap(ethernet)", "encap(mpls)", "encap(mpls_mc)", "encap(nsh),set_field:0x1234->nsh_spi,encap(ethernet)",
    "decap", "packet_type=(1,0x894f) decap()", "decap(packet_type(ns=0,type=0))", "packet_type=(1,0x894f) decap(packet_type(ns=1,type=0x894f)),1",
    "packet_type=(1,0x894f) dec_nsh_ttl",
    "move:reg0[0..15]->reg1[16..31]", "ip move:nw_src[]->reg0[]", "arp move:arp_sha[]->eth_dst[],move:arp_spa[]->arp_tpa[]", "tcp move:tcp_src[]->tcp_dst[]",
    "load:5->reg0[]", "load:0xff->reg1[8..15]", "load:1->vlan_tci[12]", "load:0x12345678->xreg1[4..40]",
    "mod_dl_src:" + MAC, "mod_dl_dst:" + MAC, "ip mod_nw_src:10.0.0.1", "ip mod_nw_dst:10.0.0.1", "ip mod_nw_tos:184", "ip mod_nw_ecn:1",
    "ipv6 mod_nw_ttl:9", "ip mod_nw_ttl:9", "tcp mod_tp_src:80", "udp6 mod_tp_dst:53", "sctp mod_tp_dst:1",
    "ip dec_ttl", "ipv6 dec_ttl(1,2,3)", "check_pkt_larger(1500)->reg0[0]", "check_pkt_larger(9000)->xreg1[40]", "delete_field:tun_metadata0",
    "set_tunnel:5", "set_tunnel64:0x123456789a", "set_queue:7,2", "set_queue:7,pop_queue,2",
    "ip ct()", "ip ct(commit)", "ip ct(commit,force,zone=5,table=3)", "ip ct(zone=reg0[0..15],table=9)", "tcp ct(commit,alg=ftp,zone=1)",
    "udp ct(commit,alg=tftp)", "ip ct(commit,exec(set_field:0x5->ct_mark))", "ip ct(commit,exec(load:1->ct_label[0..7],move:reg0[]->ct_mark[]))",
    "ip ct(nat)", "ip ct(commit,nat(src=10.0.0.1))", "ip ct(commit,nat(dst=10.0.0.1-10.0.0.9:80-90,random))",
    "ip ct(commit,nat(src=10.0.0.1:5000-6000,hash,persistent),zone=7,table=2)", "ipv6 ct(commit,nat(dst=fd00::1))",
    "ipv6 ct(commit,nat(src=[fd00::1]-[fd00::9]:80))", "ip ct(commit,nat(src=0.0.0.0))", "ct_clear",
    "learn(table=1)", "learn(table=1,idle_timeout=10,hard_timeout=20,priority=7,cookie=0x5,send_flow_rem,fin_idle_timeout=3,fin_hard_timeout=4)",
    "learn(table=1,limit=5,result_dst=reg0[0])", "learn(table=1,delete_learned,eth_dst=eth_src)",
    "learn(table=1,NXM_OF_VLAN_TCI[0..11],NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[])",
    "tcp learn(table=1,eth_type=0x800,nw_proto=6,NXM_OF_IP_SRC[]=NXM_OF_IP_DST[],load:0x5->NXM_NX_REG0[0..7],load:NXM_OF_IN_PORT[]->NXM_NX_REG1[0..15])",
    "tcp fin_timeout(idle_timeout=5)", "tcp fin_timeout(idle_timeout=5,hard_timeout=10)", "tcp fin_timeout(hard_timeout=10)",
    "resubmit:2", "resubmit(,3)", "resubmit(2,3)", "resubmit(LOCAL,)", "ct_state=+trk+est,ip resubmit(,3,ct)", "resubmit(in_port,4)",
    "clone(output:2)", "clone(set_field:5->reg0,clone(push_vlan:0x8100,2)),1", "clone()",
    "push:reg0[],pop:reg1[]", "push:eth_src[],push:xxreg1[0..64],pop:xxreg2[0..64],pop:eth_dst[]",
    "exit", "output:2,exit", "multipath(eth_src,50,modulo_n,1,0,reg0[])", "multipath(symmetric_l4,1024,hash_threshold,8,0,reg1[0..4])",
    "multipath(symmetric_l3l4+udp,0,hrw,16,5,xreg0[0..15])", "multipath(nw_src,0,iter_hash,4,1,reg2[])", "multipath(symmetric_l3,0,hrw,4,0,reg2[])",
    "conjunction(5,1/2)", "conjunction(5,1/2),conjunction(4294967295,64/64)", "note:01.02.03", "note:01.02.03.04.05.06.07.08", "note:",
    "sample(probability=12345)", "sample(probability=1,collector_set_id=2,obs_domain_id=3,obs_point_id=4)",
    "sample(probability=9,collector_set_id=1,obs_domain_id=2,obs_point_id=3,sampling_port=2)",
    "sample(probability=9,collector_set_id=1,obs_domain_id=2,obs_point_id=3,sampling_port=1,ingress)",
    "sample(probability=9,collector_set_id=1,obs_domain_id=2,obs_point_id=3,sampling_port=1,egress)",
    "meter:3,2", "meter:3,goto_table:9", "clear_actions", "clear_actions,goto_table:9", "write_actions(output:2)",
    "write_actions(set_field:" + MAC + "->eth_dst,group:7)", "write_actions(push_vlan:0x8100,set_field:4101->vlan_vid,output:2),goto_table:9",
    "write_metadata:0x5", "write_metadata:0x500/0xff00,goto_table:9", "goto_table:9", "output:1,clear_actions,write_actions(output:2),write_metadata:1,goto_table:9",
    "set_field:0x5/0xf->reg0", "ip set_field:10.0.0.0/255.0.0.0->ip_src", "set_field:" + MAC + "/" + MAC + "->eth_src",
]

#: What OpenFlow 1.5 does not carry, and OpenFlow 1.0 does.
NOT_IN_15 = {"ip,actions=load:1->nw_tos[0]"}

#: What a flow has besides match and actions.
SETTINGS = [
    "cookie=0x123456789abcdef0", "idle_timeout=10", "hard_timeout=20,idle_timeout=65535", "send_flow_rem", "importance=7", "no_packet_counts",
    "no_byte_counts,no_packet_counts", "send_flow_rem,idle_timeout=5,cookie=1",
]

GROUPS = [
    "group_id=1,type=all,bucket=bucket_id:0,actions=output:1,bucket=bucket_id:1,actions=output:2",
    "group_id=2,type=indirect,bucket=bucket_id:0,actions=set_field:0x5->reg0,output:1",
    "group_id=3,type=select,bucket=bucket_id:3,weight:7,actions=output:1,bucket=bucket_id:2,weight:0,actions=output:2",
    "group_id=4,type=ff,bucket=bucket_id:0,watch_port:1,actions=output:1,bucket=bucket_id:1,watch_group:1,actions=output:2",
    "group_id=5,type=all", "group_id=6,type=all,bucket=bucket_id:0,actions=group:1",
    "group_id=7,type=select,bucket=bucket_id:0,weight:2,actions=drop",
    "group_id=8,type=select,bucket=bucket_id:0,weight:5,watch_port:2,actions=push_vlan:0x8100,output:2",
]
#: With properties that OpenFlow 1.5 alone has room for; before, an experimenter's property carries them.
GROUPS_15 = [
    "group_id=11,type=select,selection_method=hash,fields(ip_src,ip_dst=255.255.0.0),bucket=bucket_id:0,weight:7,actions=output:1",
    "group_id=12,type=select,selection_method=dp_hash,selection_method_param=5,bucket=bucket_id:0,weight:7,actions=output:1",
    "group_id=13,type=select,selection_method=hash,selection_method_param=7,fields(eth_dst,tcp_dst),bucket=bucket_id:0,weight:7,actions=output:1",
]

METERS = [
    "meter=1 pktps bands=type=drop rate=10", "meter=2 kbps burst stats bands=type=drop rate=1000 burst_size=100",
    "meter=3 pktps burst stats bands=type=dscp_remark rate=10 burst_size=20 prec_level=1",
    "meter=4 kbps stats bands=type=drop rate=10 type=dscp_remark rate=5 prec_level=2", "meter=controller pktps bands=type=drop rate=1000",
    "meter=slowpath kbps stats bands=type=drop rate=100000",
]


def matches():
    """The text of a match for each field: a value, one with a mask, and special values."""
    for name, field in FIELDS.items():
        values = [field.value, *([f"{field.value}/{field.mask}"] if field.mask else []), *field.more]
        for value in values:
            yield name, ",".join(filter(None, [field.needs, f"{name}={value}" if value else name]))


def writes():
    """For each field that actions write: set whole and in part, loaded, copied, pushed, popped and sent to."""
    for name, field in FIELDS.items():
        if not field.writable:
            continue
        yield name, field.needs, f"set_field:{field.value}->{name}"
        if field.mask:
            # OXM has no value outside of its mask.
            yield name, field.needs, f"set_field:{field.value}/{field.value}->{name}"
        # Of a field of one bit, that bit is all; ovs-ofctl shows a mask of all its bits.
        if name != "tun_erspan_dir":
            yield name, field.needs, f"load:1->{name}[0]"
        yield name, field.needs, f"move:{name}[0]->reg15[3]"
        # ovs-ofctl does not ask how long the bridge's map says an option is.
        bits = "0..31" if name.startswith("tun_metadata") else ""
        yield name, field.needs, f"push:{name}[{bits}],pop:{name}[{bits}]"


def action(text):
    """Match and actions of an entry of `ACTIONS`."""
    match, _, actions = text.rpartition(" ")
    return match, actions
