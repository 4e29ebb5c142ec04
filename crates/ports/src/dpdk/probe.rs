//! From `options:dpdk-devargs` to a device: found among those that DPDK knows, or made known to it.
//!
//! What DPDK says when it cannot is seldom what an operator needs; [`explain`] looks for the reason.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::path::Path;

use dpdk_sys::rte_dev_iterator;

use super::{eal, log};
use crate::Mac;

/// A device of DPDK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its number.
    pub id: u16,
    /// Whether it was made known for this, and is to be forgotten afterwards.
    pub attached: bool,
}

/// The device that `devargs` names: a PCI address or the name of a software device with its parameters, or
/// `class=eth,mac=ADDRESS`. The caller holds the lock of devices.
///
/// # Errors
/// What is wrong, and what would help.
pub fn find_or_attach(devargs: &str) -> Result<Found, String> {
    if let Some(mac) = devargs.strip_prefix("class=eth,mac=") {
        let mac = parse_mac(mac).ok_or_else(|| format!("{mac:?} is not an Ethernet address"))?;
        let id = by_mac(mac).ok_or("no device that DPDK knows has this address; name it by its PCI address")?;
        return Ok(Found { id, attached: false });
    }
    let text = CString::new(devargs).map_err(|_| "a zero byte is in it".to_owned())?;
    if let Some(id) = find(&text) {
        return Ok(Found { id, attached: false });
    }
    // SAFETY: EAL is initialised, and `text` is a string.
    let (code, complaints) = log::listen(|| unsafe { dpdk_sys::rte_dev_probe(text.as_ptr()) });
    match find(&text) {
        Some(id) if code == 0 => {
            tracing::info!(target: "dpdk", "Device '{devargs}' attached to DPDK");
            Ok(Found { id, attached: true })
        }
        _ => {
            let said = log::cause(&complaints).map_or_else(|| eal::error_text(code), str::to_owned);
            Err(explain(devargs, code, &complaints, said, Path::new("/sys/bus/pci/devices")))
        }
    }
}

/// The first device that `devargs` names among those that DPDK knows.
pub fn find(devargs: &CStr) -> Option<u16> {
    // SAFETY: all zero is a value of this structure of pointers.
    let mut iterator: rte_dev_iterator = unsafe { std::mem::zeroed() };
    // SAFETY: EAL is initialised; the iterator is cleaned up below, which is harmless at its end.
    unsafe {
        log::hush(|| dpdk_sys::rte_eth_iterator_init(&mut iterator, devargs.as_ptr()));
        let id = dpdk_sys::rte_eth_iterator_next(&mut iterator);
        if u32::from(id) >= dpdk_sys::RTE_MAX_ETHPORTS {
            return None;
        }
        dpdk_sys::rte_eth_iterator_cleanup(&mut iterator);
        Some(id)
    }
}

/// All devices that DPDK knows.
pub fn all() -> impl Iterator<Item = u16> {
    // SAFETY: EAL is initialised.
    let next = |from: u16| unsafe { dpdk_sys::rte_eth_find_next(from) };
    let valid = |id: &u16| u32::from(*id) < dpdk_sys::RTE_MAX_ETHPORTS;
    std::iter::successors(Some(next(0)).filter(valid), move |&id| Some(next(id + 1)).filter(valid))
}

fn by_mac(mac: Mac) -> Option<u16> {
    all().find(|&id| {
        let mut address = dpdk_sys::rte_ether_addr { addr_bytes: [0; 6] };
        // SAFETY: the device is there, since the caller holds the lock of devices.
        unsafe { dpdk_sys::rte_eth_macaddr_get(id, &mut address) == 0 && address.addr_bytes == mac }
    })
}

fn parse_mac(text: &str) -> Option<Mac> {
    let bytes: Option<Vec<u8>> = text.split(':').map(|part| u8::from_str_radix(part, 16).ok()).collect();
    bytes?.try_into().ok()
}

/// Software devices, and what Debian's package of the driver is called.
const DRIVERS: &[(&str, &str)] = &[
    ("net_af_packet", "librte-net-af-packet23"),
    ("net_af_xdp", "librte-net-af-xdp23"),
    ("net_bonding", "librte-net-bond23"),
    ("net_memif", "librte-net-memif23"),
    ("net_null", "librte-net-null23"),
    ("net_pcap", "librte-net-pcap23"),
    ("net_ring", "librte-net-ring23"),
    ("net_tap", "librte-net-tap23"),
    ("net_vdev_netvsc", "librte-net-vdev-netvsc23"),
    ("net_vhost", "librte-net-vhost23"),
    ("net_virtio_user", "librte-net-virtio23"),
];

/// Why a device could not be had; `said` is what DPDK says of it.
fn explain(devargs: &str, code: i32, complaints: &[String], said: String, pci: &Path) -> String {
    let name = devargs.split(',').next().unwrap_or_default();
    let name = name.strip_prefix("pci:").unwrap_or(name);
    if let Some(address) = pci_address(name) {
        return explain_pci(&address, &said, pci);
    }
    let unknown = complaints.iter().any(|line| line.contains("failed to parse device"));
    match DRIVERS.iter().find(|(driver, _)| name.starts_with(driver)) {
        Some((driver, package)) if unknown => {
            format!("there is no driver {driver}; install the Debian package {package}, and start again")
        }
        None if unknown => {
            let known: Vec<_> = DRIVERS.iter().map(|(driver, _)| *driver).collect();
            format!(
                "{name:?} is neither a PCI address, such as 0000:01:00.0, nor a software device, such as {}",
                known.join(", ")
            )
        }
        _ if code == -libc::EEXIST => format!("{name} exists already, with other parameters"),
        _ => said,
    }
}

fn explain_pci(address: &str, said: &str, pci: &Path) -> String {
    let device = pci.join(address);
    if !device.exists() {
        return format!("no PCI device {address}; \"lspci -D\" lists those that there are");
    }
    let driver = std::fs::read_link(device.join("driver")).ok();
    let driver = driver.as_deref().and_then(|path| path.file_name()).and_then(|name| name.to_str());
    let bind = format!("dpdk-devbind.py -b vfio-pci {address}");
    match driver {
        Some("vfio-pci" | "uio_pci_generic" | "igb_uio") => {
            format!("{said}; another process may have the device, or --no-pci is in dpdk-extra")
        }
        // Drivers that share the device with the kernel's.
        Some(driver @ ("mlx5_core" | "mlx4_core" | "mana")) => format!("{said} (the kernel's driver is {driver})"),
        Some(driver) => format!("{said}; the kernel's driver {driver} has the device: {bind}"),
        None => format!("{said}; the device has no driver: {bind}"),
    }
}

/// A PCI address with its domain.
fn pci_address(name: &str) -> Option<String> {
    let hex = |text: &str, most: usize| {
        (1..=most).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_hexdigit())
    };
    let (rest, function) = name.split_once('.')?;
    let parts: Vec<_> = rest.split(':').collect();
    let (domain, bus, device) = match parts[..] {
        [bus, device] => ("0000", bus, device),
        [domain, bus, device] => (domain, bus, device),
        _ => return None,
    };
    let right = hex(domain, 8) && hex(bus, 2) && hex(device, 2) && hex(function, 1);
    right.then(|| format!("{domain}:{bus}:{device}.{function}").to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_found() {
        let pci = tempfile::tempdir().unwrap();
        let add = |address: &str, driver: &str| {
            let device = pci.path().join(address);
            std::fs::create_dir(&device).unwrap();
            if !driver.is_empty() {
                std::os::unix::fs::symlink(format!("../../drivers/{driver}"), device.join("driver")).unwrap();
            }
        };
        add("0000:01:00.0", "ixgbe");
        add("0000:01:00.1", "vfio-pci");
        add("0000:01:00.2", "");
        let unknown = ["EAL: failed to parse device \"net_x\"".to_owned()];
        for (devargs, complaints, part) in [
            ("net_pcap0,rx_pcap=x", &unknown[..], "install the Debian package librte-net-pcap23"),
            ("nonsense", &unknown, "neither a PCI address"),
            ("net_pcap0,rx_pcap=x", &["Couldn't open x".to_owned()], "Couldn't open x"),
            ("0000:02:00.0", &unknown, "no PCI device 0000:02:00.0"),
            ("01:00.0", &[], "driver ixgbe has the device: dpdk-devbind.py -b vfio-pci 0000:01:00.0"),
            ("pci:0000:01:00.1", &[], "another process may have the device"),
            ("0000:01:00.2,arg=1", &[], "has no driver"),
        ] {
            let said = log::cause(complaints).unwrap_or("No such device").to_owned();
            let why = explain(devargs, -libc::ENODEV, complaints, said, pci.path());
            assert!(why.contains(part), "{devargs}: {why}");
        }
    }

    #[test]
    fn addresses() {
        assert_eq!(pci_address("0000:AF:00.1").as_deref(), Some("0000:af:00.1"));
        assert_eq!(pci_address("01:00.0").as_deref(), Some("0000:01:00.0"));
        assert!(["net_pcap0", "1.0", "0:1:2:3.4", "01:00.x", ""].iter().all(|text| pci_address(text).is_none()));
        assert_eq!(parse_mac("02:00:00:00:00:1f"), Some([2, 0, 0, 0, 0, 0x1f]));
        assert!(parse_mac("02:00").is_none() && parse_mac("x").is_none());
    }
}
