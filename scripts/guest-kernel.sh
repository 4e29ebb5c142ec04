#!/usr/bin/env bash
# Fetches the kernel of the tests' virtual machine: Debian's cloud kernel and its virtio modules, taken out of
# the package without installing it.
# usage: guest-kernel.sh [DIRECTORY]     target/guest-kernel by default
set -euo pipefail
cd "$(dirname "$0")/.."
to=${1:-target/guest-kernel}
[ ! -e "$to/complete" ] || exit 0

package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/ *Depends: //p' | head -1)
[ -n "$package" ] || { echo "apt knows no linux-image-cloud-amd64; run apt-get update" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
echo "fetching $package for the tests' virtual machine"
(cd "$work" && apt-get -qq download "$package" 2>/dev/null)
dpkg-deb --extract "$work"/*.deb "$work/tree"
mkdir -p "$to"
cp "$work"/tree/boot/vmlinuz-* "$to/vmlinuz"
for module in virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci failover net_failover \
    virtio_net; do
    find "$work/tree/lib/modules" -name "$module.ko" -exec cp {} "$to/" \;
done
touch "$to/complete"
