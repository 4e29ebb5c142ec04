#!/usr/bin/env python3
"""Run the benchmarks and print a table: nanoseconds and TSC cycles for each element (packet, look-up).

usage: bench.py [--table-only] [FILTER]

The figures are criterion's medians with their 95 % confidence interval. Machines are noisy: compare
figures of one run only. Without FILTER, instructions for each packet follow, by the stages of a packet's way: they are
counted by callgrind, which `gungraun-runner` runs; it is installed below the target directory.
"""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

# Groups that crates/packet/benches/extract.rs measures in TSC cycles rather than nanoseconds.
IN_CYCLES = ("extract", "simple_mark", "hash_key", "hash_masked")

# The benchmarks that callgrind counts, and by crate.
COUNTED = {"instructions": "datapath"}

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()


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


def install_runner():
    """The runner of exactly the version that the benchmarks are built with. Returns where it is."""
    version = re.search(r'name = "gungraun"\nversion = "(.*)"', (ROOT / "Cargo.lock").read_text())[1]
    root = TARGET / "gungraun-runner" / version
    if not (root / "bin" / "gungraun-runner").exists():
        print(f"installing gungraun-runner {version} into {root}")
        how = ["--quiet", "--locked", "--version", version, "--root", root, "--target-dir", root / "build"]
        subprocess.run(["cargo", "install", *how, "gungraun-runner"], check=True)
    return root / "bin"


def instructions():
    """Count instructions, and print in which stages they are."""
    env = os.environ | {"PATH": f"{install_runner()}:{os.environ['PATH']}", "GUNGRAUN_HOME": str(TARGET / "gungraun")}
    for bench, crate in COUNTED.items():
        run = ["cargo", "bench", "--locked", f"-pweir-{crate}", f"--bench={bench}"]
        subprocess.run(run, cwd=ROOT, env=env, check=True)
        subprocess.run([ROOT / "scripts" / "stages.py", TARGET / "gungraun" / f"weir-{crate}" / bench], check=True)


def main():
    args = [a for a in sys.argv[1:] if a != "--table-only"]
    if "--table-only" not in sys.argv:
        packages = [f"-pweir-{crate}" for crate in ("packet", "datapath", "ingress", "ofproto")]
        names = [path.stem for path in sorted(ROOT.glob("crates/*/benches/*.rs"))]
        benches = [f"--bench={name}" for name in names if name not in COUNTED]
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
    if not sys.argv[1:]:
        instructions()


if __name__ == "__main__":
    main()
