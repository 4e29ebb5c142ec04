"""Every field of ovs-fields(7) and every action of ovs-actions(7), groups and meters: Debian's ovs-ofctl writes them in each version
of OpenFlow that can carry them, Weir keeps them, and ovs-ofctl reads the same text again.

What is the same is told by ovs-ofctl alone: `parse-flow` writes a message, reads it and prints it, without a switch. What a version
cannot carry it refuses there; what no version carries is a mistake of `lib.flows`.
"""

import gzip
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from lib import flows
from lib.daemon import dummy_bridge
from lib.net import run

#: The options of ovs-ofctl for each way to speak of flows: OpenFlow 1.0 has matches of its own, and Nicira's.
WAYS = {"10": ["-O", "OpenFlow10", "-F", "OpenFlow10+table_id"], "10 with NXM": ["-O", "OpenFlow10", "-F", "NXM+table_id"],
        **{version: ["-O", f"OpenFlow{version}"] for version in ("11", "12", "13", "14", "15")}}
#: How many of the flows each carries at least.
LEAST = {"10": 100, "11": 100, "12": 130, "14": 130}


@pytest.fixture
def switch(ovs):
    ovs.start()
    dummy_bridge(ovs, "p1", "p2", "p3")
    ovs.vsctl("set", "bridge", "br0", "protocols=OpenFlow10,OpenFlow11,OpenFlow12,OpenFlow13,OpenFlow14,OpenFlow15")
    ovs.ofctl("del-flows", "br0")
    ovs.ofctl("add-tlv-map", "br0", flows.TLV_MAP)
    ovs.ofctl("add-meter", "br0", "meter=3,pktps,bands=type=drop,rate=1000", version=13)
    ovs.ofctl("add-group", "br0", "group_id=7,type=all,bucket=output:2", version=15)
    return ovs


def parsed(way, flow):
    """What ovs-ofctl reads in the message that it writes of a flow; None where this way cannot carry it."""
    r = subprocess.run(["ovs-ofctl", *WAYS[way], "parse-flow", flow], capture_output=True, text=True, timeout=20)
    found = re.search(r"^(?:OFPT|NXT)_FLOW_MOD.*? ADD (.*)$", r.stdout, re.M)
    # What it can write, and not read, no switch should have to.
    return found[1] if found and not r.returncode and "actions=" in found[1] else None


def carried(way, texts):
    """The flows that this way carries, each as ovs-ofctl reads it, by number."""
    with ThreadPoolExecutor(2) as threads:
        found = threads.map(lambda numbered: parsed(way, f"priority={numbered[0]},{numbered[1]}"), enumerate(texts, 1))
        return {n: text for n, text in enumerate(found, 1) if text is not None}


def kept(switch, way, texts):
    """What ovs-ofctl reads of the flows that it has added, by number. OpenFlow 1.5 adds them by one bundle."""
    ofctl = lambda *args, **kw: run("ovs-ofctl", *WAYS[way], "--no-names", *args, env=switch.env, **kw).stdout
    ofctl(*["--bundle"] * (way == "15"), "add-flows", "br0", "-", input="".join(f"priority={n},{text}\n" for n, text in texts.items()))
    found = {}
    for line in switch.ofctl("--no-names", "--no-stats", "dump-flows", "br0", version=WAYS[way][1][-2:]).splitlines():
        if "actions=" in line:
            found[int(re.search(r"priority=(\d+)", line)[1])] = line.strip()
    return found


def numbered(text):
    """Match and actions of what parse-flow or dump-flows print."""
    return re.search(r"priority=\d+.*", text)[0]


def all_texts():
    texts = [text + ",actions=drop" for _, text in flows.matches()]
    texts += [f"{needs},actions={write}" for _, needs, write in flows.writes()]
    texts += [f"{match},actions={actions}" for match, actions in map(flows.action, flows.ACTIONS)]
    return [text.lstrip(",") for text in texts]


@pytest.mark.parametrize("way", WAYS)
def test_fields_and_actions(switch, way):
    texts = all_texts()
    if way in ("12", "14"):
        # Their matches are those of the next version.
        texts = texts[-len(flows.ACTIONS):]
    want = carried(way, texts)
    assert len(want) > LEAST.get(way, 700)
    got = kept(switch, way, {n: texts[n - 1] for n in want})
    wrong = [f"{texts[n - 1]}: {got.get(n)!r} is not {text!r}" for n, text in want.items()
             if n not in got or numbered(got[n]) != numbered(text)]
    assert not wrong, f"{len(wrong)}\n" + "\n".join(wrong)
    assert got.keys() == want.keys()
    # What is in no version is a mistake of the lists.
    missing = {text for n, text in enumerate(texts, 1) if n not in want}
    if way == "15":
        assert missing == flows.NOT_IN_15
    elif way == "10 with NXM":
        assert not missing & flows.NOT_IN_15


def test_the_lists_have_all_fields_and_actions_of_the_manuals():
    """ovs-fields(7) and ovs-actions(7), as Debian's packages have them."""
    manual = lambda name: gzip.open(f"/usr/share/man/man7/{name}.7.gz", "rt").read()
    fields = set(re.findall(r"^Name:;\\fB(\w+)\\fR", manual("ovs-fields"), re.M))
    assert len(fields) > 80 and fields - flows.FIELDS.keys() == {"skb_priority"}, "which is in no message"
    titles = re.findall(r"^\.SS The (.*) (?:action|instruction)", manual("ovs-actions"), re.M)
    actions = {name for title in titles for name in re.findall(r"\\fB(\w+)\\fP", title)}
    texts = " ".join(flows.ACTIONS) + " set_field move push pop "
    assert len(actions) > 50 and not {name for name in actions if name not in texts}


def test_settings_of_flows(switch):
    """Cookies, timeouts and flags; what a version does not have comes back as nothing, as ovs-ofctl itself reads it."""
    words = lambda text: sorted("".join(found) for found in re.findall(
        r"(cookie|importance|idle|hard)(?:_timeout)?[:=](\w+)|(send_flow_rem|no_packet_counts|no_byte_counts)", text))
    seen = 0
    for version in ("10", "13", "14", "15"):
        for text in flows.SETTINGS:
            said = parsed(version, text + ",actions=drop")
            if said is None:
                continue
            switch.ofctl("--no-names", "del-flows", "br0", version=version)
            switch.ofctl("--no-names", "add-flow", "br0", text + ",actions=drop", version=version)
            dump = switch.ofctl("--no-names", "--no-stats", "dump-flows", "br0", version=version)
            [line] = [line for line in dump.splitlines() if "actions=" in line]
            # Statistics of OpenFlow 1.0 have no flags.
            said = re.sub("send_flow_rem|no_packet_counts|no_byte_counts", "", said) if version == "10" else said
            assert words(line) == words(said), (version, text, line, said)
            seen += len(words(line))
    assert seen > 30, seen


def test_groups_and_meters(switch):
    """Each comes back as it was written, but for what OpenFlow 1.5 alone has: numbers of buckets."""
    for version in ("11", "12", "13", "14", "15"):
        switch.ofctl("del-groups", "br0", version=version)
        texts = flows.GROUPS + (flows.GROUPS_15 if version == "15" else [])
        # OpenFlow 1.1 has no registers.
        texts = [text for text in texts if version != "11" or "reg0" not in text]
        switch.ofctl("--no-names", "add-groups", "br0", "-", version=version, input="\n".join(texts) + "\n")
        found = re.findall(r"^ (group_id=.*)$", switch.ofctl("--no-names", "dump-groups", "br0", version=version), re.M)
        plain = lambda text: text if version == "15" else re.sub(r"bucket_id:\d+,", "", text)
        assert sorted(map(plain, texts)) == sorted(found), version
    for version in ("13", "14", "15"):
        switch.ofctl("del-meters", "br0", version=version)
        for text in flows.METERS:
            switch.ofctl("add-meter", "br0", text.replace(" ", ","), version=version)
        found = re.sub(r"\s*\n(?=type=)", " ", switch.ofctl("dump-meters", "br0", version=version)).replace("bands= ", "bands=")
        assert sorted(re.findall(r"^meter=.*", found, re.M)) == sorted(flows.METERS), version
