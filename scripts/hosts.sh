# Hosts for a switch to join, made of network namespaces. Sourced by demo.sh and lab.sh.

# make_host NAME ADDRESS/PREFIX: a namespace of that name, whose interface eth0 is joined to the interface NAME here.
make_host() {
    ip netns add "$1"
    ip link add "$1" type veth peer name eth0 netns "$1"
    # What IPv6 says by itself would be in every picture of the traffic.
    sysctl -qw "net.ipv6.conf.$1.disable_ipv6=1" 2>/dev/null || true
    ip netns exec "$1" sysctl -qw net.ipv6.conf.all.disable_ipv6=1 2>/dev/null || true
    ip netns exec "$1" ip addr add "$2" dev eth0
    ip netns exec "$1" ip link set lo up
    ip netns exec "$1" ip link set eth0 up
    ip link set "$1" up
}

# host_exists NAME: whether there is such a namespace or interface.
host_exists() {
    ip netns list | grep -qw "$1" || ip link show "$1" >/dev/null 2>&1
}

# remove_host NAME: removes both; no error where they are gone.
remove_host() {
    ip link del "$1" 2>/dev/null || true
    ip netns del "$1" 2>/dev/null || true
}
