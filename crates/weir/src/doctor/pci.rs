//! Network cards on the PCI bus, and what DPDK needs to drive them.

use super::{Finding, Machine};

const DEVICES: &str = "/sys/bus/pci/devices";

/// Drivers that give a device to user space.
const USER_SPACE: &[&str] = &["vfio-pci", "uio_pci_generic", "igb_uio"];

/// Drivers of the kernel beside which DPDK's work.
const BIFURCATED: &[&str] = &["mlx4_core", "mlx5_core"];

struct Nic {
    address: String,
    driver: Option<String>,
    interfaces: Vec<String>,
}

/// The network controllers (class 02). Virtio's are bound as children of theirs.
fn nics(machine: &Machine) -> Vec<Nic> {
    let is_nic = |address: &String| {
        machine.read(&format!("{DEVICES}/{address}/class")).is_some_and(|class| class.starts_with("0x02"))
    };
    let nic = |address: String| {
        let device = format!("{DEVICES}/{address}");
        let mut interfaces = machine.list(&format!("{device}/net"));
        for child in machine.list(&device).iter().filter(|name| name.starts_with("virtio")) {
            interfaces.extend(machine.list(&format!("{device}/{child}/net")));
        }
        Nic { driver: machine.link_name(&format!("{device}/driver")), interfaces, address }
    };
    machine.list(DEVICES).into_iter().filter(is_nic).map(nic).collect()
}

/// Is there an IOMMU between devices and memory? Only asked where there is a card to protect from.
pub fn iommu(machine: &Machine) -> Vec<Finding> {
    if nics(machine).is_empty() {
        return vec![];
    }
    let groups = machine.list("/sys/kernel/iommu_groups").len();
    if groups > 0 {
        return vec![Finding::ok("IOMMU", format!("on, with {groups} groups"))];
    }
    let vendor = machine.field("/proc/cpuinfo", "vendor_id").unwrap_or_default();
    let option = if vendor == "AuthenticAMD" { "amd_iommu=on iommu=pt" } else { "intel_iommu=on iommu=pt" };
    let edit = format!("sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{option} /' /etc/default/grub && update-grub && reboot");
    vec![Finding::advice(
        "IOMMU",
        "off: a card that DPDK drives could write anywhere in memory, and vfio-pci takes it only in its unsafe mode \
         (turn it on in the firmware, too)",
        &[
            &edit,
            "echo 1 > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode   # instead, e.g. in a virtual machine",
        ],
    )]
}

/// Which driver has each card?
pub fn drivers(machine: &Machine) -> Vec<Finding> {
    let nics = nics(machine);
    let mut findings: Vec<Finding> = nics.iter().map(card).collect();
    let has_vfio = machine.has("/sys/bus/pci/drivers/vfio-pci");
    if !nics.is_empty() && !has_vfio {
        findings.push(Finding::advice(
            "vfio-pci",
            "not loaded: no card can be given to DPDK",
            &["modprobe vfio-pci", "echo vfio-pci > /etc/modules-load.d/vfio-pci.conf"],
        ));
    }
    findings
}

fn card(nic: &Nic) -> Finding {
    let Nic { address, driver, interfaces } = nic;
    let driver = driver.as_deref().unwrap_or("no driver");
    let found = if USER_SPACE.contains(&driver) || BIFURCATED.contains(&driver) {
        format!("{address} with {driver}: type=dpdk options:dpdk-devargs={address}")
    } else if interfaces.is_empty() {
        format!("{address} with {driver}; for DPDK: dpdk-devbind.py --bind=vfio-pci {address}")
    } else {
        let names = interfaces.join(", ");
        format!(
            "{address} with {driver} is {names}: type=afxdp; for DPDK, which takes {names} away from the kernel: \
                 dpdk-devbind.py --bind=vfio-pci {address}"
        )
    };
    Finding::ok("network card", found)
}

/// Can this program drive DPDK's devices?
pub fn dpdk(machine: &Machine) -> Vec<Finding> {
    if ports::dpdk::version().is_none() {
        let found = "this program was compiled without it; afxdp, afpacket and tap ports need none";
        return vec![Finding::ok("DPDK", found)];
    }
    let directories = machine.list("/usr/lib/x86_64-linux-gnu/dpdk");
    let drivers = directories.iter().filter(|name| name.starts_with("pmds-"));
    let drivers = drivers.flat_map(|name| machine.list(&format!("/usr/lib/x86_64-linux-gnu/dpdk/{name}")));
    let mut names: Vec<String> = drivers
        .filter_map(|file| {
            let name = file.strip_prefix("librte_net_")?;
            Some(name.split('.').next()?.to_owned())
        })
        .collect();
    names.sort();
    names.dedup();
    vec![if names.is_empty() {
        Finding::ok(
            "DPDK",
            "its drivers are not installed; without them: afxdp, afpacket and tap ports (apt install dpdk)",
        )
    } else {
        Finding::ok("DPDK", format!("network drivers: {}", names.join(" ")))
    }]
}
