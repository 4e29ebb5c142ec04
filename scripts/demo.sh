#!/usr/bin/env bash
# Shows Weir switching real traffic: three network namespaces joined by Weir, pings between all of them,
# iperf3, a rule that blocks one pair. Removes everything it made, whatever happens.
#
# usage: demo.sh      (the binary is $WEIR, or target/release/weir; needs root)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/hosts.sh
WEIR=${WEIR:-target/release/weir}
SECONDS_TCP=${DEMO_SECONDS:-2}
if [ "$(id -u)" != 0 ]; then
    exec sudo -E env "PATH=$PATH" "WEIR=$WEIR" "$0" "$@"
fi
export PATH="$PATH:/usr/sbin:/sbin"

hosts="1 2 3"
run=$(mktemp -d /tmp/weir-demo.XXXXXX)
export OVS_RUNDIR=$run
weir_pid=
iperf_pid=
trouble=

cleanup() {
    status=$?
    trap - EXIT INT TERM
    if [ -n "$iperf_pid" ]; then kill "$iperf_pid" 2>/dev/null || true; fi
    if [ -n "$weir_pid" ] && kill "$weir_pid" 2>/dev/null; then
        for _ in $(seq 100); do
            kill -0 "$weir_pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -9 "$weir_pid" 2>/dev/null && trouble="weir did not end on SIGTERM"
        wait "$weir_pid" 2>/dev/null || true
    fi
    for n in $hosts; do remove_host "weir-demo-$n"; done
    if [ "$status" != 0 ] && [ -s "$run/weir.log" ]; then
        echo "--- log of weir" >&2
        tail -30 "$run/weir.log" >&2
    fi
    left=$(find "$run" \( -name '*.ctl' -o -name '*.mgmt' -o -name '*.pid' \) | head -3)
    [ -z "$left" ] || trouble="${trouble:-weir left files behind: $left}"
    rm -rf "$run"
    if [ "$status" = 0 ] && [ -n "$trouble" ]; then
        echo "demo: $trouble" >&2
        status=1
    fi
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
    echo "demo: FAILED: $*" >&2
    exit 1
}

# step TEXT: ends the step before it and starts one; the time that each took is printed.
step_text= step_start=
step() {
    now=$(date +%s%N)
    [ -z "$step_text" ] || printf '  ok, %d.%02d s\n' $(((now - step_start) / 1000000000)) $(((now - step_start) / 10000000 % 100))
    step_text=${1:-} step_start=$now
    [ -z "$step_text" ] || printf '== %s\n' "$step_text"
}

in_host() {
    n=$1
    shift
    ip netns exec "weir-demo-$n" "$@"
}

# answers FROM TO: how many of three pings are answered.
answers() {
    in_host "$1" ping -n -q -c 3 -i 0.3 -W 1 "10.111.0.$2" | sed -n 's/.* \([0-9]*\) received.*/\1/p' || true
}

all_pairs="1-2 1-3 2-3 2-1 3-1 3-2"

[ -x "$WEIR" ] || fail "$WEIR: no such program; build it with \"make build\""
for n in $hosts; do
    if host_exists "weir-demo-$n"; then
        hosts=
        fail "weir-demo-$n exists already; is another demo running? (remove it: ip link del weir-demo-$n; ip netns del weir-demo-$n)"
    fi
done

step "make three network namespaces, each with one end of a veth pair (offloads on)"
for n in $hosts; do
    make_host "weir-demo-$n" "10.111.0.$n/24"
    echo "  weir-demo-$n: 10.111.0.$n"
done

step "start weir run examples/demo.toml"
"$WEIR" check examples/demo.toml
"$WEIR" run examples/demo.toml 2>"$run/weir.log" &
weir_pid=$!
for _ in $(seq 100); do
    "$WEIR" show >/dev/null 2>&1 && break
    kill -0 "$weir_pid" 2>/dev/null || fail "weir ended at its start"
    sleep 0.1
done
errors=$("$WEIR" show --json | grep '"error":' | grep -v null || true)
[ -z "$errors" ] || fail "a port is not in service: $errors"

step "ping between every pair"
for pair in $all_pairs; do
    got=$(answers "${pair%-*}" "${pair#*-}")
    echo "  10.111.0.${pair%-*} -> 10.111.0.${pair#*-}: ${got:-0} of 3 answered"
    [ "$got" = 3 ] || fail "packets were lost"
done

# iperf WHAT ARGS...: one run from host 1 to host 2; prints what the receiver saw.
iperf() {
    what=$1
    shift
    in_host 2 iperf3 -s -1 -B 10.111.0.2 >"$run/iperf-server" 2>&1 &
    iperf_pid=$!
    for _ in $(seq 50); do
        in_host 2 ss -Hltn | grep -q 10.111.0.2:5201 && break
        sleep 0.1
    done
    in_host 1 timeout 60 iperf3 -c 10.111.0.2 -t "$SECONDS_TCP" -f m "$@" >"$run/iperf" || {
        cat "$run/iperf" >&2
        fail "iperf3 $what"
    }
    wait "$iperf_pid" || fail "the iperf3 server ($what)"
    iperf_pid=
    grep receiver "$run/iperf" | sed "s/^/  $what: /"
    rate=$(sed -n 's/.* \([0-9.]*\) Mbits.sec.*receiver.*/\1/p' "$run/iperf")
    awk -v rate="${rate:-0}" 'BEGIN { exit !(rate > 1) }' || fail "iperf3 $what: the receiver got ${rate:-nothing}"
}
step "iperf3 from host 1 to host 2"
iperf TCP
iperf UDP -u -b 100M -l 1200

step "block host 1 from host 3 by a rule of Debian's ovs-ofctl; only that pair stops"
ovs-ofctl add-flow br-demo "priority=100,ip,nw_src=10.111.0.1,nw_dst=10.111.0.3,actions=drop"
ovs-ofctl dump-flows br-demo | sed 's/^/ /'
for pair in $all_pairs; do
    got=$(answers "${pair%-*}" "${pair#*-}")
    echo "  10.111.0.${pair%-*} -> 10.111.0.${pair#*-}: ${got:-0} of 3 answered"
    case $pair in
        1-3 | 3-1) [ "${got:-0}" = 0 ] || fail "the rule does not block" ;;
        *) [ "$got" = 3 ] || fail "the rule blocks another pair" ;;
    esac
done

step "remove the rule; the pair is back"
ovs-ofctl --strict del-flows br-demo "priority=100,ip,nw_src=10.111.0.1,nw_dst=10.111.0.3"
[ "$(answers 1 3)" = 3 ] || fail "the pair stays blocked"

step "weir show"
"$WEIR" show
step "weir flows"
"$WEIR" flows
step "weir stats"
"$WEIR" stats

step "end weir and remove everything"
kill "$weir_pid"
wait "$weir_pid" || fail "weir ended with an error"
weir_pid=
for n in $hosts; do
    ip link del "weir-demo-$n"
    ip netns del "weir-demo-$n"
done
hosts=
step
echo "demo: all of it worked"
