#!/bin/sh
# Prepares the kernel that guests of the lab boot, Debian 12's for virtual machines: unpacks its image and the modules that
# guests need into the cache, where `sluice lab` looks for them. Does nothing if they are there.
#
#   KERNEL_IMAGE_DEB=FILE scripts/guest-kernel.sh    use this linux-image package, not one from apt
set -eu

cd "$(dirname "$0")"
. ./common.sh
# crates/lab/src/guest.rs has the same path.
guest=$kernel_cache/guest
# In the order in which they are loaded.
modules="virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci failover net_failover virtio_net
	virtio_console"

if [ "$(cat "$guest/modules/order" 2>/dev/null)" = "$(printf '%s\n' $modules)" ]; then exit 0; fi
work=$(mktemp -d)
on_exit 'rm -rf "$work"'
deb=$(fetch_kernel_package guest-kernel) || exit 1
unpack_kernel_package "$deb" "$work/kernel" "$work/guest/modules" $modules
cp "$kernel" "$work/guest/vmlinuz"
for module in $modules; do echo $module; done >"$work/guest/modules/order"
# An earlier run may have ended in the middle.
rm -rf "$guest" "$guest.new"
mkdir -p "$kernel_cache"
# In one step: a lab must not see half of it. The working directory may be on another file system.
cp -r "$work/guest" "$guest.new"
mv "$guest.new" "$guest"
echo "guest-kernel: $(basename "$deb") is in $guest"
