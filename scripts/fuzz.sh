#!/usr/bin/env bash
# Builds the fuzz targets and runs each for a bounded time.
# usage: fuzz.sh [SECONDS] [TARGET...]
#
# With FUZZ_QUICK=yes, all is optimised less, what takes longest to compile and is not what is looked for faults in not at
# all, and crates are compiled in several parts.
#
# Coverage instrumentation without a sanitizer works on the stable compiler; these are the flags that
# `cargo fuzz -s none` passes, so that tool need not be installed.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:-10}
shift || true
host=$(rustc -vV | sed -n 's/^host: //p')
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
options=()
if [ "${FUZZ_QUICK:-no}" = yes ]; then
    export CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_DEBUG=0
    for package in cranelift-codegen netlink-packet-route clap_builder tokio; do
        options+=(--config "profile.release.package.$package.opt-level=0")
    done
else
    RUSTFLAGS+=" -Ccodegen-units=1"
fi
# --target keeps the flags away from build scripts and procedural macros.
cargo build --release --quiet --target "$host" "${options[@]}"
[ $# -gt 0 ] || set -- $(sed -n 's/^name = "\([a-z_]*\)"$/\1/p' Cargo.toml | grep -v '^weir')
export seconds host
run() {
    target=$1
    corpus=$(mktemp -d)
    seeds=seeds/$target
    [ -d "$seeds" ] || seeds=
    if ! "${CARGO_TARGET_DIR:-target}/$host/release/$target" "$corpus" $seeds -max_total_time="$seconds" \
        -max_len=4096 -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 -verbosity=0 >"$corpus.log" 2>&1; then
        tail -40 "$corpus.log"
        echo "fuzz $target: FAILED (input above and in fuzz/)" >&2
        return 1
    fi
    echo "fuzz $target: $seconds s, $(sed -n 's/^stat::number_of_executed_units: *//p' "$corpus.log") runs"
    rm -rf "$corpus" "$corpus.log"
}
export -f run
# One on each core. What fails ends the script when the others are through.
printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} bash -euo pipefail -c 'run {}'
