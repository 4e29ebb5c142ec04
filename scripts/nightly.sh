#!/usr/bin/env bash
# Checks that take a compiler or a tool of their own, and more time than `make test` should:
#
#   loom  what threads share without a lock, in every order of their steps
#   miri  undefined behaviour in the code without system calls: packets, flow keys, classification, reclamation
#   deny  licences, sources and known faults of the dependencies
#
# usage: nightly.sh [loom] [miri] [deny]       without arguments: all of them
#
# What they need is installed by `scripts/setup.sh nightly`. Each compiles into a directory of its own under target/.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$HOME/.cargo/bin:$PATH"
target=${CARGO_TARGET_DIR:-$PWD/target}
# The compiler that has Miri; setup.sh installs this one.
nightly=$(sed -n 's/^nightly=//p' scripts/setup.sh)

loom() {
    # Most faults of this kind show with two unwanted changes of threads; three are tried.
    RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$target/loom" LOOM_MAX_PREEMPTIONS=3 \
        cargo test --locked --quiet --release -p weir-datapath -p weir-conntrack --lib loom_tests
}

miri() {
    # Pools live as long as the process. Packets of the heap keep an address as a number. A clock is read.
    export MIRIFLAGS="-Zmiri-ignore-leaks -Zmiri-permissive-provenance -Zmiri-disable-isolation"
    export CARGO_TARGET_DIR="$target/miri" PROPTEST_CASES=4
    if [ "$(uname -m)" = x86_64 ]; then
        # Miri has those instructions of the processor that it compiles for: with these, all that classify/cpu/mod.rs looks for.
        export RUSTFLAGS="-C target-feature=+bmi1,+bmi2,+lzcnt,+popcnt,+avx2,+avx512f,+avx512bw,+avx512dq,+avx512vl"
    fi
    # Miri takes one core, so that one crate runs beside the other.
    local packet status=0 log="$target/miri-packet.log"
    mkdir -p "$target"
    cargo "+$nightly" miri test --locked --quiet -p weir-packet --lib >"$log" 2>&1 &
    packet=$!
    # What is left out has no unsafe code of its own: text, and threads, which wait for events in a way that Miri lacks.
    cargo "+$nightly" miri test --locked --quiet -p weir-datapath --lib -- \
        --skip control:: --skip text:: --skip worker:: || status=$?
    wait "$packet" || status=$?
    cat "$log"
    return "$status"
}

deny() {
    cargo deny --log-level error check licenses bans sources
    # The list of known faults is a repository on GitHub, which not every machine reaches.
    local out=0
    cargo deny --log-level error check advisories 2>"$target/deny.log" || out=$?
    cat "$target/deny.log" >&2
    if [ "$out" != 0 ] && grep -q "failed to fetch advisory database" "$target/deny.log"; then
        echo "nightly.sh: the list of known faults cannot be had from here: NOT checked against it" >&2
    elif [ "$out" != 0 ]; then
        return "$out"
    fi
}

[ $# -gt 0 ] || set -- loom miri deny
for check; do
    case $check in
        loom | miri | deny) ;;
        *) echo "usage: nightly.sh [loom] [miri] [deny]" >&2; exit 2 ;;
    esac
    echo "nightly: $check"
    SECONDS=0
    $check
    echo "nightly: $check passed in $SECONDS s"
done
