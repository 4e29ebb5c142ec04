#!/usr/bin/env bash
# A lab to try things in (docs/guide/lab.md): three hosts, which are network namespaces, joined by Weir.
#
# usage: lab.sh up|down
#
# up: the hosts h1, h2 and h3, with the addresses 10.0.0.1 to 10.0.0.3, are ports of the bridge br-lab. Its database and
# its sockets are in a run directory of their own, so nothing that runs already is disturbed.
# down: ends and removes all of it.
#
# The binary is $WEIR, or target/release/weir, or the weir of the PATH; the run directory is $WEIR_LAB, or /run/weir-lab.
# Needs root.
set -euo pipefail
weir=${WEIR:+$(realpath -s "$WEIR")}
cd "$(dirname "$0")/.."
. scripts/hosts.sh
export PATH="$PATH:/usr/sbin:/sbin"
run=${WEIR_LAB:-/run/weir-lab}
export OVS_RUNDIR=$run OVS_LOGDIR=$run OVS_DBDIR=$run
hosts="1 2 3"

fail() {
    echo "lab: $*" >&2
    exit 1
}

# end PIDFILE: ends a daemon, and waits for that.
end() {
    [ -s "$run/$1" ] || return 0
    pid=$(cat "$run/$1")
    kill "$pid" 2>/dev/null || return 0
    for _ in $(seq 100); do
        kill -0 "$pid" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null
    echo "lab: the daemon of $run/$1 did not end on SIGTERM" >&2
    return 1
}

down() {
    # Nothing is removed that another has made.
    [ -d "$run" ] || fail "there is no lab: $run is not there"
    status=0
    end ovs-vswitchd.pid || status=1
    end ovsdb-server.pid || status=1
    for n in $hosts; do
        # What still runs in a host would keep its namespace.
        ip netns pids "h$n" 2>/dev/null | xargs -r kill 2>/dev/null || true
        remove_host "h$n"
    done
    if grep -q panicked "$run/ovs-vswitchd.log" 2>/dev/null; then
        grep -A 20 panicked "$run/ovs-vswitchd.log" >&2
        status=1
    fi
    rm -rf "$run"
    return $status
}

up() {
    [ -n "$weir" ] || { [ -x target/release/weir ] && weir=$PWD/target/release/weir; } || weir=$(command -v weir) ||
        fail 'there is no weir; build it with "make build"'
    for program in ip ovsdb-server ovsdb-tool ovs-vsctl; do
        command -v "$program" >/dev/null || fail "$program is missing: apt install iproute2 openvswitch-switch"
    done
    [ ! -e "$run" ] || fail "$run exists: the lab is there already; \"scripts/lab.sh down\" removes it"
    for n in $hosts; do
        ! host_exists "h$n" || fail "a namespace or interface h$n exists already; this lab would be mixed with it"
    done

    trap 'down || true' EXIT
    mkdir -p "$run"
    for n in $hosts; do make_host "h$n" "10.0.0.$n/24"; done
    ovsdb-tool create "$run/conf.db" /usr/share/openvswitch/vswitch.ovsschema
    ovsdb-server -vconsole:off "$run/conf.db" --remote="punix:$run/db.sock" --detach --no-chdir --pidfile --log-file
    ovs-vsctl --no-wait init
    "$weir" vswitchd "unix:$run/db.sock" --detach --no-chdir --pidfile --log-file -vconsole:off
    set -- add-br br-lab -- set bridge br-lab datapath_type=netdev
    for n in $hosts; do set -- "$@" -- add-port br-lab "h$n" -- set interface "h$n" "ofport_request=$n"; done
    ovs-vsctl --timeout=20 "$@"
    trap - EXIT
    echo "h1 10.0.0.1, h2 10.0.0.2 and h3 10.0.0.3 are ports 1, 2 and 3 of br-lab. Tools find it after"
    echo "export OVS_RUNDIR=$run"
}

[ "$(id -u)" = 0 ] || fail "needs root: sudo scripts/lab.sh ${1:-up}"
case ${1:-} in
    up | down) "$1" ;;
    *) sed -n 's/^# \(usage: .*\)/\1/p' "$0" >&2; exit 2 ;;
esac
