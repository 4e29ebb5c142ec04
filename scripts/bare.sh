#!/usr/bin/env bash
# Runs a command in a clean clone of this project on a pristine Debian 12: a chroot with no more than apt and git, and
# mounts and processes of its own. What works there has no set-up step missing.
#
# usage: bare.sh [--without-rust] COMMAND...        e.g.  scripts/bare.sh make demo
#        bare.sh --prepare                          has the pristine system there, for when there is no network
#
# The clone is of what is committed. How this machine reaches registries is carried in: proxies, certificates,
# apt's sources (where this is Debian 12 too), and the configuration of pip and cargo. So are, if the Rust toolchain that
# the project wants is installed by rustup, that toolchain and cargo's downloads, unless --without-rust is given; then
# they are downloaded. The network is this machine's.
#
# Needs root and mmdebstrap, which is installed if it is missing. The pristine system is kept for a day in
# /var/cache/weir-bare. Exit status: the command's. Leaves nothing else behind, whatever happens.
set -euo pipefail
usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 2; }
rust=yes prepare=
while :; do
    case ${1:-} in
        --without-rust) rust= ;;
        --prepare) prepare=yes; shift; break ;;
        --) shift; break ;;
        -* | '') usage ;;
        *) break ;;
    esac
    shift
done
repository=$(cd "$(dirname "$0")/.." && pwd)
if [ "$(id -u)" != 0 ]; then
    [ -n "$rust" ] || set -- --without-rust "$@"
    [ -z "$prepare" ] || set -- --prepare
    exec sudo -E env "PATH=$PATH" "$0" "$@"
fi
cargo_home=${CARGO_HOME:-$HOME/.cargo}
rustup_home=${RUSTUP_HOME:-$HOME/.rustup}
channel=$(sed -n 's/^channel = "\(.*\)"/\1/p' "$repository/rust-toolchain.toml")
cache=/var/cache/weir-bare
parent=${TMPDIR:-/var/tmp}

# Which processes and directory are to be gone at the end.
root= child=
cleanup() {
    status=$?
    trap '' INT TERM HUP
    if [ -n "$child" ]; then
        # The first process of the namespace dies with this one, and with it all the others.
        kill -KILL "$child" 2>/dev/null || true
        wait "$child" 2>/dev/null || true
    fi
    # All mounts below it were in a namespace that has ended; should its last process still be ending, once more.
    if [ -n "$root" ]; then
        for _ in $(seq 100); do
            rm -rf --one-file-system "$root" 2>/dev/null && break
            sleep 0.1
        done
    fi
    exit "$status"
}
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# pristine: has the system of the day in $cache.
pristine() {
    [ -z "$(find $cache/bookworm.tar -mmin -1440 2>/dev/null)" ] || return 0
    command -v mmdebstrap >/dev/null || {
        apt-get -qq update
        DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends -y mmdebstrap >/dev/null
    }
    install -d -m 755 $cache
    mmdebstrap --quiet --variant=apt --include=make,git --aptopt="$root/apt.conf" bookworm "$root/new.tar" "${mirrors[@]}"
    mv "$root/new.tar" $cache/bookworm.tar
}

# carry FILE...: has the same files in the chroot, where there are such.
carry() {
    for file; do
        [ -e "$file" ] || continue
        mkdir -p "$root/system$(dirname "$file")"
        cp -rL "$file" "$root/system$(dirname "$file")/"
    done
}

root=$(mktemp -d "$parent/weir-bare.XXXXXX")
# Where apt gets things from, as far as that is this machine's business and not a choice of its packages.
apt-config dump 2>/dev/null | grep -E '^Acquire::(https?|ftp|socks|ForceIPv|Retries|Check-)' >"$root/apt.conf" || true
mirrors=()
if [ "$(. /etc/os-release && echo "${ID:-}-${VERSION_ID:-}")" = debian-12 ]; then
    while read -r sources; do
        mirrors+=("$sources")
    done < <(grep -lsE 'https?://[^ ]*debian' /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources)
fi
pristine
[ -z "$prepare" ] || exit 0
mkdir "$root/system"
tar -C "$root/system" -xf $cache/bookworm.tar
carry /etc/resolv.conf /etc/hosts /etc/pip.conf
# Certificates of this machine's own; the bundle is made again whenever ca-certificates is installed.
if [ -s /etc/ssl/certs/ca-certificates.crt ]; then
    install -D -m 644 /etc/ssl/certs/ca-certificates.crt "$root/system/usr/local/share/ca-certificates/host.crt"
fi
mkdir -p "$root/system/root/.cargo" "$root/system/src"
for file in config config.toml; do
    [ ! -e "$cargo_home/$file" ] || cp -L "$cargo_home/$file" "$root/system/root/.cargo/"
done
git clone --quiet "$repository" "$root/system/src/weir"

# What is seen there of this machine: SOURCE TARGET ro|rw.
seen=()
if [ -n "$rust" ] && [ -x "$cargo_home/bin/rustup" ] && ls -d "$rustup_home/toolchains/$channel"-* >/dev/null 2>&1; then
    mkdir -p "$cargo_home/registry"
    seen+=("$cargo_home/bin" /root/.cargo/bin ro "$rustup_home" /root/.rustup ro "$cargo_home/registry" /root/.cargo/registry rw)
fi
# A directory of packages that pip is told of.
for path in ${PIP_FIND_LINKS:-}; do
    [ ! -d "$path" ] || seen+=("$path" "$path" ro)
done
environment=(HOME=/root "TERM=${TERM:-dumb}"
    PATH=/root/.cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
while IFS= read -r -d '' setting; do
    case $setting in
        http_proxy=* | https_proxy=* | no_proxy=* | HTTP_PROXY=* | HTTPS_PROXY=* | NO_PROXY=* | ALL_PROXY=* | \
            PIP_* | RUSTUP_DIST_SERVER=* | RUSTUP_UPDATE_ROOT=* | \
            CARGO_HTTP_PROXY=* | CARGO_HTTP_TIMEOUT=* | CARGO_NET_* | CARGO_REGISTR* | CARGO_SOURCE_*) environment+=("$setting") ;;
    esac
done < <(env -0)

export root carried="${seen[*]}"
# shellcheck disable=SC2016
unshare --mount --propagation private --pid --fork --kill-child -- bash -euc '
    system=$root/system
    mount --bind "$system" "$system"
    mount -t proc proc "$system/proc"
    mount --rbind /sys "$system/sys"
    mount --rbind /dev "$system/dev"
    mount -t tmpfs tmpfs "$system/run"
    mkdir "$system/run/lock"
    mount -t tmpfs tmpfs "$system/tmp"
    set -- $carried -- "$@"
    while [ "$1" != -- ]; do
        mkdir -p "$system$2"
        mount --bind "$1" "$system$2"
        mount -o "remount,bind,$3" "$system$2"
        shift 3
    done
    shift
    count=$1
    shift
    # Commands that a shell starts in the background ignore these.
    exec chroot "$system" /usr/bin/env --default-signal=INT,QUIT -i "${@:1:count}" bash -c "cd /src/weir && exec \"\$@\"" bare "${@:count + 1}"
' bare "${#environment[@]}" "${environment[@]}" "$@" <&0 &
child=$!
status=0
wait "$child" || status=$?
child=
exit "$status"
