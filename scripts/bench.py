#!/usr/bin/env python3
"""Run the benchmarks and print a table: nanoseconds and TSC cycles for each element (packet, look-up).

usage: bench.py [--table-only] [FILTER]

The figures are criterion's medians with their 95 % confidence interval. Machines are noisy: compare
figures of one run only.
"""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

# Groups that crates/packet/benches/extract.rs measures in TSC cycles rather than nanoseconds.
IN_CYCLES = ("extract", "simple_mark", "hash_key", "hash_masked")

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def tsc_ghz():
    """The TSC's rate: the kernel's calibration where it can be read, else the processor's nominal rate."""
    dmesg = subprocess.run(["dmesg"], capture_output=True, text=True).stdout
    m = re.search(r"tsc: (?:Refined TSC clocksource calibration|Detected): ([\d.]+) MHz", dmesg)
    m = m or re.search(r"cpu MHz\s*: ([\d.]+)", Path("/proc/cpuinfo").read_text())
    return float(m[1]) / 1000


def machine():
    info = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", info)[1]
    vectors = [f for f in ("avx2", "avx512bw", "avx512_vbmi") if re.search(rf"\b{f}\b", info)]
    return f"{model}, {os.cpu_count()} cores, {' '.join(vectors)}, Linux {os.uname().release}"


def main():
    args = [a for a in sys.argv[1:] if a != "--table-only"]
    if "--table-only" not in sys.argv:
        packages = [f"-pweir-{crate}" for crate in ("packet", "datapath", "ofproto")]
        benches = [f"--bench={path.stem}" for path in sorted(ROOT.glob("crates/*/benches/*.rs"))]
        subprocess.run(["cargo", "bench", "--locked", *packages, *benches, "--", *args], cwd=ROOT, check=True)
    ghz = tsc_ghz()
    print(f"\n{machine()}, TSC {ghz:.2f} GHz\n")
    print("| benchmark | ns | cycles | 95 % interval, ns |\n|---|---:|---:|---|")
    rows = []
    for estimates in (TARGET / "criterion").glob("**/new/estimates.json"):
        bench = json.loads((estimates.parent / "benchmark.json").read_text())
        throughput = bench.get("throughput") or {}
        n = throughput.get("Elements") or 1
        median = json.loads(estimates.read_text())["median"]
        scale = 1 / n / (ghz if bench["full_id"].startswith(IN_CYCLES) else 1)
        low, high = (median["confidence_interval"][b] * scale for b in ("lower_bound", "upper_bound"))
        rows.append((bench["full_id"], median["point_estimate"] * scale, low, high))
    number = lambda text: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", text)]
    for name, ns, low, high in sorted(rows, key=lambda r: number(r[0])):
        print(f"| {name} | {ns:.2f} | {ns * ghz:.0f} | {low:.2f}–{high:.2f} |")


if __name__ == "__main__":
    main()
