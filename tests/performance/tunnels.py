#!/usr/bin/env python3
"""Tunnels of one worker: frames that a pcap port replays from memory enter them or leave them, and end at a null port.

usage: tunnels.py [--weir BINARY[,BINARY]] [--scenarios a,b,...] [--rounds N] [--seconds S] [--core C] [--traces DIR] [--list]

Each scenario runs alone, in a namespace of its own, N times, interleaved with the others and with the other binary. Printed are cycles of
the worker thread's own time on a processor at the TSC's frequency, for each packet, and those over `floor`: the same frames, passed on
without a look at them. Medians and the least of all rounds: other load on the machine can only make a figure greater.

`encap-F-R` puts F flows into tunnels to R other ends. With `flow`, one port has `remote_ip=flow`, and a rule for each end sets `tun_dst`;
with `ports`, each end has a port. `decap-F-R` takes F flows out, with one port for all of R ends, or with a port for each. All ends
are neighbours with an address of their own. `routed` packets get addresses of Ethernet and a lower TTL before they enter; `tracked` ones are those of F
connections in both directions, of which what is new is committed. `ovn`: tracked ones whose rules look at what OVN's look at, an option of Geneve among it.
"""
import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import traces  # noqa: E402
from ended import clean_up_when_ended  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
TAG = f"wt{os.getpid() % 100000:x}"


def scenario(way, flows, remotes, kind="vxlan", by="flow", before=""):
    return {"way": way, "flows": flows, "remotes": remotes, "kind": kind, "by": by, "before": before}


SCENARIOS = {
    f"{way}-{flows // 1000}k-{remotes}{'' if by == 'flow' else '-ports'}": scenario(way, flows, remotes, by=by)
    for way in ("encap", "decap")
    for flows, remotes, by in ((1_000, 1, "flow"), (1_000, 1_000, "flow"), (100_000, 1, "flow"), (100_000, 1_000, "flow"),
                               (100_000, 1_000, "ports"))
}
SCENARIOS |= {f"{way}-{flows // 1000}k-{remotes}-{before}": scenario(way, flows, remotes, before=before)
              for way, before in (("encap", "routed"), ("encap", "tracked"), ("decap", "tracked"))
              for flows, remotes in ((1_000, 1), (10_000, 1_000), (100_000, 1_000))}
SCENARIOS["decap-1k-1-ovn"] = scenario("decap", 1_000, 1, "geneve-options", before="ovn")
SCENARIOS |= {f"decap-1k-{kind}": scenario("decap", 1_000, 1, kind) for kind in ("geneve", "geneve-options", "vxlan6", "vxlan-csum")}


# What OVN's tables look at in packets from other chassis: both ports of the logical network in an option, and addresses of Ethernet.
OVN_OPTION = "{class=0x102,type=0x80,len=4}->tun_metadata0"
OVN_RULES = [
    "table=0,tun_id=7,in_port=10,actions=move:NXM_NX_TUN_METADATA0[16..30]->NXM_NX_REG14[0..14],"
    "move:NXM_NX_TUN_METADATA0[0..15]->NXM_NX_REG15[0..15],move:NXM_NX_TUN_ID[0..23]->OXM_OF_METADATA[0..23],resubmit(,1)",
    "table=1,ip,reg15=2,metadata=7,dl_dst=02:00:00:00:00:02,dl_src=02:00:00:00:00:01,ct_state=-trk,actions=ct(table=2,zone=5)",
    "table=2,ip,reg15=2,ct_state=+trk+new,actions=ct(commit,zone=5),output:2",
    "table=2,ip,reg15=2,ct_state=+trk+est,actions=output:2",
]


def sh(*cmd, check=True, **kw):
    r = subprocess.run([str(c) for c in cmd], capture_output=True, text=True, timeout=60, **kw)
    if check and r.returncode:
        raise SystemExit(f"{' '.join(map(str, cmd))}: exit {r.returncode}\n{r.stdout}{r.stderr}")
    return r.stdout


def rpc(path, calls):
    """Calls of the control socket, over one connection."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(path))
        reader = json.JSONDecoder()
        data = ""
        for number, (method, *params) in enumerate(calls):
            s.sendall(json.dumps({"id": number, "method": method, "params": params}).encode())
            while True:
                try:
                    answer, end = reader.raw_decode(data)
                    break
                except ValueError:
                    more = s.recv(65536)
                    assert more, "the control socket is closed"
                    data += more.decode()
            data = data[end:].lstrip()
            assert answer.get("error") is None, (method, params, answer)


def configuration(what, trace, core):
    """A TOML file, without what is different for the floor."""
    kind, six = what["kind"].split("-")[0].rstrip("6"), what["kind"].endswith("6")
    address = lambda i: f"fd31::{traces.remote(i) >> 16:x}:{traces.remote(i) & 65535:x}" if six else traces.address(traces.remote(i))
    per_port = what["by"] == "ports"
    remotes, encap = range(what["remotes"]), what["way"] == "encap"
    ports = [(f"t{i}", address(i), 10 + i) for i in remotes] if per_port else [("t", "flow", 10)]
    # The rules tell ends by the low bits of the source address.
    low = (1 << (len(remotes) - 1).bit_length()) - 1
    routed = "mod_dl_src:02:00:00:00:99:01,mod_dl_dst:02:00:00:00:99:02,dec_ttl,"
    before = routed if what["before"] == "routed" else ""
    action = lambda i: before + (f"output:{10 + i}" if per_port else f"set_field:{address(i)}->tun_dst,output:10")
    by_end = lambda match, first="": [
        f"{match}in_port=1,ip,nw_src={traces.address(i)}/{traces.address(low)},actions={first}{action(i % len(remotes))}"
        for i in range(low + 1)]
    rules = by_end("")
    if what["before"] == "tracked":
        rules = ["table=0,in_port=1,ip,ct_state=-trk,actions=ct(table=1)"]
        rules += by_end("table=1,ct_state=+trk+new,", "ct(commit),") + by_end("table=1,ct_state=+trk+est,")
    inside = rules if encap else ["tun_id=7,actions=output:2"]
    if not encap and what["before"] == "tracked":
        inside = ["table=0,tun_id=7,ip,ct_state=-trk,actions=ct(table=1)", "table=1,ip,ct_state=+trk+new,actions=ct(commit),output:2",
                  "table=1,ip,ct_state=+trk+est,actions=output:2"]
    if what["before"] == "ovn":
        inside = []
    options = f'options = {{ rx_pcap = "{trace}", loop = "true" }}'
    source = f'[[bridge.port]]\nname = "source"\ntype = "pcap"\nofport = 1\n{options}\n'
    sink = '[[bridge.port]]\nname = "sink"\ntype = "null"\nofport = 2\n'
    text = f'[workers]\ncores = [{core}]\n'
    text += f'[[bridge]]\nname = "br-int"\nlocal = false\nfail_mode = "secure"\nflows = {json.dumps(inside)}\n{source if encap else sink}'
    text += "".join(f'[[bridge.port]]\nname = "{name}"\ntype = "{kind}"\nofport = {number}\n'
                    f'options = {{ remote_ip = "{remote}", key = "7" }}\n' for name, remote, number in ports)
    outside = ["in_port=LOCAL,actions=output:2"] if encap else ["in_port=1,actions=LOCAL"]
    text += (f'[[bridge]]\nname = "br-phy"\nhwaddr = "02:00:00:00:31:01"\nfail_mode = "secure"\nflows = {json.dumps(outside)}\n'
             f'{sink if encap else source}')
    return text, [(address(i), f"02:00:00:01:{i >> 8:02x}:{i & 255:02x}") for i in remotes] if encap else []


def floor_configuration(trace, core):
    options = f'options = {{ rx_pcap = "{trace}", loop = "true" }}'
    return (f'[workers]\ncores = [{core}]\n[[bridge]]\nname = "br0"\nlocal = false\nfail_mode = "secure"\n'
            f'flows = ["in_port=1,actions=output:2"]\n[[bridge.port]]\nname = "source"\ntype = "pcap"\nofport = 1\n{options}\n'
            '[[bridge.port]]\nname = "sink"\ntype = "null"\nofport = 2\n')


def tsc_hz():
    log = subprocess.run(["dmesg"], capture_output=True, text=True).stdout
    found = re.search(r"tsc: (?:Refined TSC clocksource calibration|Detected): ([\d.]+) MHz", log)
    found = found or re.search(r"cpu MHz\s*: ([\d.]+)", Path("/proc/cpuinfo").read_text())
    return float(found[1]) * 1e6


def worker_time(pid):
    """Seconds that the worker has run."""
    tasks = [task for task in Path(f"/proc/{pid}/task").iterdir() if (task / "comm").read_text().startswith("worker")]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def measure(args, weir, text, neighbours, underlay, commands=()):
    with tempfile.TemporaryDirectory(prefix="weir-tunnels-") as folder:
        folder = Path(folder)
        (folder / "weir.toml").write_text(text)
        env = dict(os.environ, OVS_RUNDIR=str(folder))
        sh("ip", "netns", "add", TAG)
        inside = ["ip", "netns", "exec", TAG]
        with open(folder / "log", "wb") as log:
            daemon = subprocess.Popen([*inside, weir, "run", folder / "weir.toml"], env=env, stderr=log, stdout=log)
        try:
            end = time.monotonic() + 60
            while subprocess.run([weir, "stats", "--json"], env=env, capture_output=True).returncode:
                assert daemon.poll() is None and time.monotonic() < end, (folder / "log").read_text()
                time.sleep(0.1)
            if underlay:
                sh(*inside, "ip", "addr", "add", "172.31.0.1/16", "dev", "br-phy")
                sh(*inside, "ip", "-6", "addr", "add", "fd31::1/64", "dev", "br-phy", "nodad")
                sh(*inside, "ip", "link", "set", "br-phy", "up")
                time.sleep(1)
                [control] = folder.glob("*.ctl")
                rpc(control, [("tnl/neigh/set", "br-phy", ip, mac) for ip, mac in neighbours])
            for command, rule in commands:
                [socket_of_bridge] = [path for path in folder.glob("*.mgmt") if path.stem != "br-phy"]
                sh("ovs-ofctl", "-OOpenFlow15", command, f"unix:{socket_of_bridge}", rule)
            time.sleep(args.settle)
            stats = lambda: json.loads(sh(weir, "stats", "--json", env=env))["workers"][0]
            before, time_before = stats(), worker_time(daemon.pid)
            time.sleep(args.seconds)
            after, took = stats(), worker_time(daemon.pid) - time_before
            daemon.terminate()
            daemon.wait(30)
        finally:
            daemon.kill()
            daemon.wait()
            sh("ip", "netns", "del", TAG, check=False)
    rise = {key: after[key] - before[key] for key in after if isinstance(after[key], int)}
    received = rise["received"] if "received" in rise else rise["packets"]
    if rise.get("sent", received) < 0.95 * received:
        print(f"  only {rise['sent'] / received:.0%} of what came in was sent", file=sys.stderr)
    return took * tsc_hz() / max(1, received)


def commands(what):
    """What is to be told the bridge when it runs."""
    return [("add-tlv-map", OVN_OPTION), *(("add-flow", rule) for rule in OVN_RULES)] if what["before"] == "ovn" else []


def main(configuration=configuration, description=__doc__, underlay=True, commands=commands):
    clean_up_when_ended()
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--weir", default=str(ROOT / "target/release/weir"))
    p.add_argument("--scenarios", default=",".join(SCENARIOS))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=2)
    p.add_argument("--settle", type=float, default=3)
    p.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    p.add_argument("--traces", default="/tmp/weir-performance")
    p.add_argument("--list", action="store_true")
    args = p.parse_args()
    if args.list:
        return print("\n".join(SCENARIOS))
    folder, binaries = Path(args.traces), args.weir.split(",")
    folder.mkdir(parents=True, exist_ok=True)
    names = args.scenarios.split(",")
    results = {name: {binary: [] for binary in ("floor", *binaries)} for name in names}
    for _ in range(args.rounds):
        for name in names:
            what = SCENARIOS[name]
            kind, flows, remotes = what["kind"], what["flows"], what["remotes"]
            if what["way"] == "decap":
                trace = traces.tunnelled(folder, kind, flows, remotes, what["before"] in ("tracked", "ovn"))
            else:
                trace = (traces.conversations if what["before"] == "tracked" else traces.flows)(folder, flows)
            results[name]["floor"].append(measure(args, binaries[0], floor_configuration(trace, args.core), [], False))
            for binary in binaries:
                text, neighbours = configuration(what, trace, args.core)
                results[name][binary].append(measure(args, binary, text, neighbours, underlay, commands(what)))
            print(f"  {name}: " + " ".join(f"{figures[-1]:.0f}" for figures in results[name].values()), file=sys.stderr, flush=True)
    print("\n| scenario | binary | cycles per packet, median | least | over the floor, median | least |")
    print("|---|---|---:|---:|---:|---:|")
    for name in names:
        floor = results[name]["floor"]
        for binary in binaries:
            figures = results[name][binary]
            middle, least = statistics.median(figures), min(figures)
            print(f"| {name} | {Path(binary).name} | {middle:.0f} | {least:.0f} | {middle - statistics.median(floor):.0f} "
                  f"| {least - min(floor):.0f} |")


if __name__ == "__main__":
    main()
