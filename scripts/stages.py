#!/usr/bin/env python3
"""Say in which stage of a packet's way its instructions, or its cycles, are.

usage: stages.py [--lines STAGE] FILE_OR_DIRECTORY...

Reads what callgrind has written for `cargo bench --bench instructions` (directories are searched for
callgrind.*.out), and the samples that `SAMPLES=directory cargo bench --bench forward` writes, and prints a table of
instructions, or cycles, for each packet. `--lines` lists the source lines of one stage instead.

Inlining hides functions, so each address is looked up with all that is inlined there (addr2line): it belongs to the
innermost place that STAGES names. A helper that several stages use belongs to the one that it is inlined into.
"""
import bisect
import re
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The order of the columns.
ORDER = ["poll", "receive", "turn", "scan", "hash", "tags", "entry", "epoch", "statistics", "extraction", "action", "output"]

# Source file: what its lines belong to from the first one on that has the given text; None: to what they are inlined
# into.
DATAPATH = "crates/datapath/src/"
STAGES = {
    "crates/datapath/benches/common/mod.rs": {"": "receive", "impl TxQueue for Sink": "output", "impl Loop": "receive"},
    "crates/datapath/benches/forward.rs": {"": "poll"},
    "crates/datapath/benches/instructions.rs": {"": "poll"},
    DATAPATH + "datapath/": {"": "poll"},
    DATAPATH + "control/": {"": "poll"},
    DATAPATH + "worker/": {"": "turn"},
    DATAPATH + "pipeline/forward.rs": {
        "": "turn",
        "/// 1. Receive": "receive",
        "/// 2. Classify": "scan",
        "/// 3 to 5": "action",
        "// 5. Account": "statistics",
        "// The frequent case": "action",
        "/// 6. Recirculate": "turn",
        "fn count(": "statistics",
        "fn hold_back(": "action",
    },
    DATAPATH + "pipeline/batch.rs": {"": None, "fn start_key(": "extraction", "fn is_extracted(": None},
    DATAPATH + "pipeline/tx.rs": {"": "output"},
    DATAPATH + "pipeline/retire.rs": {"": "output"},
    DATAPATH + "classify/scan.rs": {"": "scan"},
    DATAPATH + "classify/batch.rs": {"": "scan"},
    DATAPATH + "classify/cache/headers.rs": {
        "": "entry",
        "pub fn hash<": "hash",
        "pub fn candidate<": "tags",
        "pub fn read<": "entry",
        "// 1. Hash all": "hash",
        "// 2. Compare the tags": "tags",
        "// 3. Compare the lines": "entry",
        "// 4. Compare the epochs": "epoch",
        "/// The members that a look-up needs.": "entry",
    },
    DATAPATH + "classify/mixed.rs": {
        "": "scan",
        "probes.hashes[i] = if CORE": "hash",
        "headers.longest = longest": "scan",
        "// 1. Hash all": "hash",
        "/// Makes the lines of packets": "scan",
        "fn look_up<": "entry",
        "// 2. Compare the tags": "tags",
        "// 3. Compare the lines": "entry",
        "// 4. Compare the epochs": "epoch",
        "flow_counters.add(": "statistics",
    },
    DATAPATH + "classify/table/flow_counters.rs": {
        "": None,
        "pub fn add(": "statistics",
        "fn totals(": None,
    },
    DATAPATH + "actions/": {"": "action"},
    "crates/packet/src/flow/extract": {"": "extraction"},
}
# Helpers, where they are not inlined into any of those.
ALONE = {
    "crates/packet/src/flow/template.rs": "scan",
    "crates/packet/src/flow/outline.rs": "scan",
    "crates/packet/src/buffer/": "output",
    "crates/datapath/src/": "turn",
}


@cache
def steps(name):
    """Where the stages of a source file begin: lines, and the stages."""
    marks = STAGES[name]
    path = ROOT / name
    if not path.is_file():
        return [0], [marks[""]]
    lines = path.read_text().splitlines()
    begin = []
    for text, stage in marks.items():
        found = [n for n, line in enumerate(lines, 1) if text in line] if text else [0]
        if not found:
            sys.exit(f"{name} has no line with {text!r}: bring STAGES of {Path(__file__).name} up to date")
        begin.append((found[0], stage))
    begin.sort()
    return [at for at, _ in begin], [stage for _, stage in begin]


def stage_of(places):
    """The stage of an address, given its places in the source, the innermost first."""
    for path, line in places:
        for name in STAGES:
            if name in path:
                at, stages = steps(name)
                if stage := stages[bisect.bisect_right(at, line) - 1]:
                    return stage
    for path, _ in places:
        for name, stage in ALONE.items():
            if name in path:
                return stage
    return "other"


def places(profile):
    """For each address, its places in the source."""
    binary, addresses = profile.binary, profile.costs
    if Path(binary).stat().st_mtime > profile.path.stat().st_mtime:
        sys.exit(f"{binary} was built after {profile.path} was written: run the benchmark again")
    asked = "\n".join(f"{a:#x}" for a in addresses)
    run = ["addr2line", "-a", "-i", "-e", binary]
    told = subprocess.run(run, input=asked, capture_output=True, text=True, check=True).stdout
    found, here = {}, []
    for text in told.splitlines():
        if text.startswith("0x"):
            here = found.setdefault(int(text, 16), [])
        else:
            path, _, line = text.split(" ")[0].rpartition(":")
            here.append((path, int(line) if line.isdigit() else 0))
    return found


class Profile:
    """What one scenario has cost, by address of the binary."""

    def __init__(self, path, name, unit, binary):
        self.path, self.name, self.unit, self.binary = path, name, unit, binary
        self.costs = Counter()
        self.scale = 1.0


def callgrind(path):
    """A file of callgrind's with --dump-instr=yes. What other objects do counts where they are called."""
    profile = Profile(path, path.parent.name.split(".")[-1], "instructions", None)
    names, sites = {}, set()
    here, called, calls = None, None, None
    last, own = [0], Counter()

    def name(kind, text):
        number, _, rest = text.partition(" ")
        if not number.startswith("("):
            return text
        if rest:
            names[kind, number] = rest
        return names[kind, number]

    def position(text):
        """Of an address: absolute, or from the one before."""
        if text == "*":
            return last[0]
        return last[0] + int(text, 0) if text[0] in "+-" else int(text, 0)

    for line in path.read_text().splitlines():
        if line.startswith("cmd:"):
            profile.binary = line.split()[1]
        elif m := re.match(r"(ob|cob|fl|fi|fe|cfi|cfl|fn|cfn)=(.*)", line):
            kind = {"cob": "ob", "fi": "fl", "fe": "fl", "cfi": "fl", "cfl": "fl", "cfn": "fn"}.get(m[1], m[1])
            value = name(kind, m[2])
            if m[1] == "ob":
                here = called = value
            elif m[1] == "cob":
                called = value
            elif m[1] == "cfn":
                callee = value
        elif line.startswith("calls="):
            calls = int(line[6:].split()[0])
        elif re.match(r"[0-9+*-]", line):
            at, _, cost, *_ = line.split()
            last[0] = position(at)
            if calls is not None:
                if re.search(r"Source as .*RxQueue>::receive", callee):
                    sites.add(last[0])
                # All of the program is called by libc, which is called by its first instructions.
                if here == profile.binary and called != here and "main" not in callee:
                    profile.costs[last[0]] += int(cost)
                calls, called = None, here
            elif here == profile.binary:
                own[last[0]] += int(cost)
    # How often an instruction was executed while callgrind counted. Its own count of calls knows no pause.
    batches = sum(own[site] for site in sites)
    profile.costs.update(own)
    if not batches:
        sys.exit(f"{path}: nothing was received")
    profile.scale = 1 / (32 * batches)
    return profile


def samples(path):
    """A file of samples: what was sampled, cycles for each packet, and an address with its number in each line."""
    binary, cycles, *rest = path.read_text().splitlines()
    profile = Profile(path, path.stem, "cycles", binary)
    for line in rest:
        address, count = line.split()
        profile.costs[int(address, 16)] += int(count)
    profile.scale = float(cycles) / sum(profile.costs.values())
    return profile


def table(profiles, unit):
    rows, columns = [], Counter()
    for profile in profiles:
        found = places(profile)
        row = Counter()
        for address, cost in profile.costs.items():
            row[stage_of(found[address])] += cost * profile.scale
        columns.update(row)
        rows.append((profile.name, row))
    stages = [s for s in [*ORDER, "other"] if columns[s]]
    print(f"\n| {unit} for each packet | all | " + " | ".join(stages) + " |")
    print("|---|" + "---:|" * (len(stages) + 1))
    for name, row in rows:
        cells = [f"{row[s]:.1f}" if row[s] else "" for s in stages]
        print(f"| {name} | {sum(row.values()):.1f} | " + " | ".join(cells) + " |")


def by_line(profiles, stage):
    for profile in profiles:
        found = places(profile)
        lines = defaultdict(float)
        for address, cost in profile.costs.items():
            if stage_of(found[address]) == stage:
                way = " < ".join(f"{'/'.join(p.split('/')[-2:])}:{n}" for p, n in found[address][:4])
                lines[way] += cost * profile.scale
        print(f"\n{profile.name}: {profile.unit} for each packet, {stage}")
        for way, cost in sorted(lines.items(), key=lambda kv: -kv[1])[:40]:
            print(f"{cost:8.2f} {way}")


def main():
    args = sys.argv[1:]
    stage = None
    if args[:1] == ["--lines"]:
        stage, args = args[1], args[2:]
    if not args or args[0].startswith("-"):
        sys.exit(__doc__)
    files = []
    for path in map(Path, args):
        files += sorted([*path.rglob("callgrind.*.out"), *path.rglob("*.samples")]) if path.is_dir() else [path]
    profiles = [samples(p) if p.suffix == ".samples" else callgrind(p) for p in files]
    if stage:
        return by_line(profiles, stage)
    for unit in ("instructions", "cycles"):
        if of_unit := [p for p in profiles if p.unit == unit]:
            table(of_unit, unit)


if __name__ == "__main__":
    main()
