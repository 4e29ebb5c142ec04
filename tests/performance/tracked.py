#!/usr/bin/env python3
"""Established connections of UDP, and what is done with their packets beside tracking them, on one worker: frames that a pcap port replays from memory end
at a null port.

usage: tracked.py [--weir BINARY[,BINARY]] [--scenarios a,b,...] [--rounds N] [--seconds S] [--core C] [--traces DIR] [--list]

`Z-F`: Z zones, one after the other, and F connections in both directions, of which what is new is committed in each zone. Behind that may stand what else is
done: `sflow` takes samples of what comes in, 1 of 1000; `mirror` sends a copy of what comes in to another null port; `meter` meters what comes in, and `behind`
what is sent; `routed` packets get addresses of Ethernet and a lower TTL between the first zone and what comes then; a select group of four buckets
(`group`) sends them. How it is measured, and what is printed: see tunnels.py.
"""
import json

import tunnels

GROUP = "group_id=1,type=select,selection_method=dp_hash," + ",".join(["bucket=output:2"] * 4)
METER = "meter=1,kbps,band=type=drop,rate=1000000000"
ROUTED = "mod_dl_src:02:00:00:00:99:01,mod_dl_dst:02:00:00:00:99:02,dec_ttl,"


def rules(zones, extra):
    first = {"mirror": "output:3,", "meter": "meter:1,"}.get(extra, "")
    last = {"behind": "resubmit(,10)", "group": "group:1"}.get(extra, "output:2")
    routed = lambda zone: ROUTED if extra == "routed" and zone == 1 else ""
    further = lambda zone: routed(zone) + (last if zone == zones else f"ct(zone={zone + 1},table={zone + 1})")
    # A meter comes before other actions of a rule.
    all_rules = ["table=10,actions=meter:1,output:2"] if extra == "behind" else []
    all_rules += [f"table=0,in_port=1,ip,ct_state=-trk,actions={first}ct(zone=1,table=1)"]
    for zone in range(1, zones + 1):
        all_rules += [f"table={zone},ip,ct_state=+trk+new,actions=ct(commit,zone={zone}),{further(zone)}",
                      f"table={zone},ip,ct_state=+trk+est,actions={further(zone)}"]
    return all_rules


def configuration(what, trace, core):
    text = tunnels.floor_configuration(trace, core).replace('["in_port=1,actions=output:2"]', json.dumps(rules(what["zones"], what["extra"])))
    if what["extra"] == "sflow":
        text = text.replace("[[bridge.port]]", '[bridge.sflow]\ntargets = ["127.0.0.1:6343"]\nsampling = 1000\n[[bridge.port]]', 1)
    if what["extra"] == "mirror":
        text += '[[bridge.port]]\nname = "copies"\ntype = "null"\nofport = 3\n'
    if what["extra"] in ("meter", "behind", "group"):
        # The rules come when there is what they refer to.
        text = text.replace(json.dumps(rules(what["zones"], what["extra"])), "[]")
    return text, []


def commands(what):
    """What is to be told the bridge then."""
    before = {"meter": [("add-meter", METER)], "behind": [("add-meter", METER)], "group": [("add-group", GROUP)]}.get(what["extra"])
    return before + [("add-flow", rule) for rule in rules(what["zones"], what["extra"])] if before else []


if __name__ == "__main__":
    tunnels.SCENARIOS.clear()
    several = [(zones, flows, "") for zones in (1, 2) for flows in (1_000, 10_000)] + [(3, 1_000, "")]
    several += [(1, 1_000, extra) for extra in ("sflow", "mirror", "meter", "behind", "routed", "group")] + [(2, 1_000, "routed")]
    for zones, flows, extra in several:
        name = f"{zones}-{flows // 1000}k" + (f"-{extra}" if extra else "")
        tunnels.SCENARIOS[name] = tunnels.scenario("encap", flows, 1, before="tracked") | {"zones": zones, "extra": extra}
    tunnels.main(configuration, __doc__, False, commands)
