#!/usr/bin/env python3
"""Established connections of UDP that are tracked in one zone or in two, one after the other, on one worker: frames that a pcap port replays from memory end
at a null port.

usage: zones.py [--weir BINARY[,BINARY]] [--scenarios a,b,...] [--rounds N] [--seconds S] [--core C] [--traces DIR] [--list]

`Z-F`: Z zones, F connections in both directions, of which what is new is committed in each zone. How it is measured, and what is printed: see tunnels.py.
"""
import json

import tunnels


def configuration(what, trace, core):
    zones = what["zones"]
    further = lambda zone: "output:2" if zone == zones else f"ct(zone={zone + 1},table={zone + 1})"
    rules = ["table=0,in_port=1,ip,ct_state=-trk,actions=ct(zone=1,table=1)"]
    for zone in range(1, zones + 1):
        rules += [f"table={zone},ip,ct_state=+trk+new,actions=ct(commit,zone={zone}),{further(zone)}",
                  f"table={zone},ip,ct_state=+trk+est,actions={further(zone)}"]
    return tunnels.floor_configuration(trace, core).replace('["in_port=1,actions=output:2"]', json.dumps(rules)), []


if __name__ == "__main__":
    tunnels.SCENARIOS.clear()
    for zones in (1, 2):
        for flows in (1_000, 10_000):
            tunnels.SCENARIOS[f"{zones}-{flows // 1000}k"] = tunnels.scenario("encap", flows, 1, before="tracked") | {"zones": zones}
    tunnels.main(configuration, __doc__, False)
