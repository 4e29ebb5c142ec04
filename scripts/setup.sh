#!/usr/bin/env bash
# Installs what is missing on Debian 12: packages, the Rust toolchain, the Python tools of the tests.
# usage: setup.sh build|demo|test|bench|nightly
#
# Quick when nothing is missing; changes nothing that is there already.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-test}
# The compiler of the checks that the stable one does not have, for scripts/nightly.sh.
nightly=nightly-2026-05-20
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo

# command or file : Debian package that provides it
needs="cc:gcc ld:binutils /usr/include/stdio.h:libc6-dev curl:curl /etc/ssl/certs/ca-certificates.crt:ca-certificates"
demo="ip:iproute2 ping:iputils-ping iperf3:iperf3 ovs-ofctl:openvswitch-common"
tests="$demo tmux:tmux nfcapd:nfdump sfcapd:nfdump-sflow sfacctd:pmacct tshark:tshark ss:iproute2 tcpdump:tcpdump ethtool:ethtool ovs-appctl:openvswitch-common ovs-vsctl:openvswitch-switch openssl:openssl
ovs-testcontroller:openvswitch-testcontroller
/usr/lib/python3/dist-packages/ensurepip/__init__.py:python3-venv
/usr/lib/python3.11/ensurepip/__init__.py:python3.11-venv
/usr/lib/python3/dist-packages/scapy/__init__.py:python3-scapy g++:g++ pkill:procps /lib/systemd/systemd:systemd
pkg-config:pkg-config /usr/include/dpdk/rte_vhost.h:libdpdk-dev dpdk-testpmd:dpdk-dev strace:strace qemu-system-x86_64:qemu-system-x86
/bin/busybox:busybox-static mmdebstrap:mmdebstrap /usr/lib/x86_64-linux-gnu/libpcap.so.0.8:libpcap0.8
man:man-db promtool:prometheus clang:clang traceroute:traceroute in.tftpd:tftpd-hpa
/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk:openvswitch-switch-dpdk
/usr/lib/python3/dist-packages/pyftpdlib/__init__.py:python3-pyftpdlib
chromium:chromium /usr/lib/python3/dist-packages/websocket/__init__.py:python3-websocket
/usr/include/python3.11/Python.h:libpython3.11-dev /usr/lib/frr/bfdd:frr lldpd:lldpd
ovn-nbctl:ovn-common ovn-northd:ovn-central ovn-controller:ovn-host"
for driver in af-xdp memif null pcap ring tap; do
    tests="$tests /usr/lib/x86_64-linux-gnu/librte_net_${driver/-/_}.so.23:librte-net-${driver}23"
done
# What callgrind counts is found in the source by addr2line (binutils).
bench="valgrind:valgrind addr2line:binutils"
case $what in
    build | nightly) ;;
    bench) needs="$needs $bench" ;;
    demo) needs="$needs $demo" ;;
    test) needs="$needs $tests" ;;
    *) echo "usage: setup.sh build|demo|test|bench|nightly" >&2; exit 2 ;;
esac

missing=
for need in $needs; do
    probe=${need%:*} package=${need##*:}
    case $probe in
        /usr/lib/python3/dist-packages/ensurepip/*) continue ;; # python3-venv holds no file of its own
        /*) [ -e "$probe" ] ;;
        *) PATH="$PATH:/usr/sbin:/sbin" command -v "$probe" >/dev/null ;;
    esac || missing="$missing $package"
done
if [ -n "$missing" ]; then
    echo "installing Debian packages:$missing"
    export DEBIAN_FRONTEND=noninteractive
    # Open vSwitch and OVN are wanted for their programs; their daemons are not to be started.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        trap '$sudo rm -f /usr/sbin/policy-rc.d' EXIT
        printf '#!/bin/sh\nexit 101\n' | $sudo tee $policy >/dev/null
        $sudo chmod 755 $policy
    fi
    $sudo apt-get -qq update
    # shellcheck disable=SC2086
    $sudo apt-get -qq install --no-install-recommends -y $missing >/dev/null
fi

export PATH="$HOME/.cargo/bin:$PATH"
channel=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
if ! command -v cargo >/dev/null; then
    echo "installing the Rust toolchain $channel"
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
        sh -s -- -y --quiet --profile minimal --default-toolchain "$channel" --component rustfmt --component clippy
elif command -v rustup >/dev/null && ! rustup toolchain list | grep -q "^$channel"; then
    rustup toolchain install "$channel" --profile minimal --component rustfmt --component clippy
fi

if [ "$what" = nightly ]; then
    if ! cargo "+$nightly" miri --version >/dev/null 2>&1; then
        echo "installing the Rust toolchain $nightly with Miri"
        rustup toolchain install "$nightly" --profile minimal --component miri --component rust-src || {
            echo "setup.sh: $nightly cannot be installed by rustup, so Miri cannot run here" >&2
            exit 1
        }
    fi
    if ! command -v cargo-deny >/dev/null; then
        echo "installing cargo-deny, which takes some minutes"
        cargo install --quiet --locked cargo-deny@0.20.2
    fi
fi

# Makes a virtual environment of a list of packages, anew where the list has changed.
python_tools() {
    local venv=$1 list=$2 wanted
    shift 2
    wanted=$(sha256sum "$list" | cut -d' ' -f1)
    [ "$(cat "$venv/requirements.sha256" 2>/dev/null)" != "$wanted" ] || return 0
    echo "installing the Python tools of $list into $venv"
    rm -rf "$venv"
    /usr/bin/python3 -m venv "$@" "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$list"
    echo "$wanted" >"$venv/requirements.sha256"
}

if [ "$what" = test ]; then
    scripts/guest-kernel.sh
    python_tools .venv tests/requirements.txt --system-site-packages
    # Faucet wants an os-ken older than the tests' own.
    python_tools .venv-faucet tests/faucet-requirements.txt
    # The tests of bare.sh run in a network of their own, from where it cannot be downloaded.
    scripts/bare.sh --prepare || echo "setup.sh: there is no pristine system, so the tests of scripts/bare.sh fail" >&2
fi
