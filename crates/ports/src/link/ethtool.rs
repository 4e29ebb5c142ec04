//! The ethtool ioctl (linux/ethtool.h): speed, driver and channels of an interface.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::Features;

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const SIOCGMIIPHY: libc::c_ulong = 0x8947;
const SIOCGMIIREG: libc::c_ulong = 0x8948;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GLINK: u32 = 0x0a;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_GLINKSETTINGS: u32 = 0x4c;

/// The status register, and its bit for a link.
const MII_BMSR: u16 = 1;
const BMSR_LSTATUS: u16 = 4;

const DUPLEX_FULL: u8 = 1;
/// Twisted pair.
const PORT_TP: u8 = 0;
/// Direct attach copper.
const PORT_DA: u8 = 5;
const AUTONEG_ENABLE: u8 = 1;

/// Queues in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// Receive queues.
    pub rx: u32,
    /// Transmit queues.
    pub tx: u32,
}

/// What a driver says of itself. Each is empty where the driver has nothing to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Driver {
    /// Its name: "veth", "ixgbe", "virtio_net".
    pub name: String,
    /// Its version.
    pub version: String,
    /// The version of the device's firmware.
    pub firmware: String,
}

impl Driver {
    /// As the column `status` has it; nothing of a driver without name.
    pub fn status(self) -> impl Iterator<Item = (&'static str, String)> {
        let facts = [("driver_name", self.name), ("driver_version", self.version), ("firmware_version", self.firmware)];
        let has_name = !facts[0].1.is_empty();
        facts.into_iter().filter(move |_| has_name)
    }
}

/// The socket that the ioctl wants. It fixes the network namespace.
pub(super) struct Socket(OwnedFd);

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    cmd: u32,
    driver: [u8; 32],
    version: [u8; 32],
    firmware: [u8; 32],
    bus: [u8; 32],
    expansion_rom: [u8; 32],
    reserved: [u8; 12],
    counts: [u32; 5],
}

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    cmd: u32,
    data: u32,
}

/// `struct mii_ioctl_data`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MiiData {
    phy_id: u16,
    register: u16,
    value_in: u16,
    value_out: u16,
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct ChannelInfo {
    cmd: u32,
    max: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// Words for each of the three bit maps: more than any kernel has (four in Linux 6.18).
const MAP_WORDS: usize = 127;

/// `struct ethtool_link_settings`, with room for its bit maps.
#[repr(C)]
struct LinkSettings {
    cmd: u32,
    speed: u32,
    duplex: u8,
    port: u8,
    phy_address: u8,
    autoneg: u8,
    mdio_support: u8,
    eth_tp_mdix: u8,
    eth_tp_mdix_ctrl: u8,
    map_words: i8,
    transceiver: u8,
    more: [u8; 3],
    reserved: [u32; 7],
    /// Supported modes, advertised modes, the partner's modes: `map_words` words each.
    maps: [u32; 3 * MAP_WORDS],
}

impl Socket {
    pub fn open() -> io::Result<Socket> {
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Socket(socket))
    }

    pub fn driver(&self, name: &str) -> io::Result<Driver> {
        let mut info = DriverInfo {
            cmd: ETHTOOL_GDRVINFO,
            driver: [0; 32],
            version: [0; 32],
            firmware: [0; 32],
            bus: [0; 32],
            expansion_rom: [0; 32],
            reserved: [0; 12],
            counts: [0; 5],
        };
        // SAFETY: `DriverInfo` is the structure of this command.
        unsafe { self.ioctl(name, &mut info)? };
        let text =
            |bytes: &[u8; 32]| String::from_utf8_lossy(bytes.split(|&b| b == 0).next().unwrap_or(bytes)).into_owned();
        Ok(Driver { name: text(&info.driver), version: text(&info.version), firmware: text(&info.firmware) })
    }

    pub fn channels(&self, name: &str) -> io::Result<Channels> {
        let mut info = ChannelInfo { cmd: ETHTOOL_GCHANNELS, ..ChannelInfo::default() };
        // SAFETY: `ChannelInfo` is the structure of this command.
        unsafe { self.ioctl(name, &mut info)? };
        let channels = Channels { rx: info.rx + info.combined, tx: info.tx + info.combined };
        if channels.rx == 0 || channels.tx == 0 {
            return Err(io::Error::other("the driver counts no channels"));
        }
        Ok(channels)
    }

    /// Whether the transceiver says that it has a link; where the driver does not let it be asked, whether the driver says so.
    pub fn link(&self, name: &str) -> io::Result<bool> {
        if let Ok(status) = self.mii_status(name) {
            return Ok(status & BMSR_LSTATUS != 0);
        }
        let mut value = Value { cmd: ETHTOOL_GLINK, data: 0 };
        // SAFETY: `Value` is the structure of this command.
        unsafe { self.ioctl(name, &mut value)? };
        Ok(value.data != 0)
    }

    /// The status register of the transceiver (IEEE 802.3 clause 22.2.4.2).
    fn mii_status(&self, name: &str) -> io::Result<u16> {
        let mut request = request(name)?;
        // What these requests read and write is in the request itself: `struct mii_ioctl_data` of linux/mii.h.
        let data = MiiData { phy_id: 0, register: 0, value_in: 0, value_out: 0 };
        for (what, register) in [(SIOCGMIIPHY, 0), (SIOCGMIIREG, MII_BMSR)] {
            // SAFETY: the union is larger than `MiiData`, and any bytes are one.
            let mii = unsafe { &mut *std::ptr::from_mut(&mut request.ifr_ifru).cast::<MiiData>() };
            *mii = MiiData { register, ..if register == 0 { data } else { *mii } };
            // SAFETY: the kernel writes to nothing but the request.
            if unsafe { libc::ioctl(self.0.as_raw_fd(), what as _, &mut request) } == -1 {
                return Err(io::Error::last_os_error());
            }
        }
        // SAFETY: as above.
        Ok(unsafe { *std::ptr::from_ref(&request.ifr_ifru).cast::<MiiData>() }.value_out)
    }

    pub fn features(&self, name: &str) -> io::Result<Features> {
        let mut info = LinkSettings {
            cmd: ETHTOOL_GLINKSETTINGS,
            speed: 0,
            duplex: 0,
            port: 0,
            phy_address: 0,
            autoneg: 0,
            mdio_support: 0,
            eth_tp_mdix: 0,
            eth_tp_mdix_ctrl: 0,
            map_words: 0,
            transceiver: 0,
            more: [0; 3],
            reserved: [0; 7],
            maps: [0; 3 * MAP_WORDS],
        };
        // Asked with a length that it dislikes, the kernel answers with the right one, negated.
        // SAFETY: `LinkSettings` is the structure of this command; with zero words the kernel writes
        // no map.
        unsafe { self.ioctl(name, &mut info)? };
        if info.map_words >= 0 {
            return Err(io::Error::other("the kernel names no length for link modes"));
        }
        info.map_words = info.map_words.wrapping_neg();
        let words = info.map_words as usize;
        if words > MAP_WORDS {
            return Err(io::Error::other("too many link modes"));
        }
        info.cmd = ETHTOOL_GLINKSETTINGS;
        // SAFETY: `LinkSettings` is the structure of this command, and `maps` has room for three maps of
        // `map_words` words.
        unsafe { self.ioctl(name, &mut info)? };
        // SPEED_UNKNOWN is all ones.
        let speed = if info.speed > i32::MAX as u32 { 0 } else { info.speed };
        Ok(Features {
            speed_mbps: speed,
            max_speed_mbps: max_speed(&info.maps[..words]),
            full_duplex: info.duplex == DUPLEX_FULL,
            copper: matches!(info.port, PORT_TP | PORT_DA),
            autonegotiation: info.autoneg == AUTONEG_ENABLE,
        })
    }

    /// # Safety
    /// `T` begins with the command, and is the structure that the kernel reads and writes for it.
    unsafe fn ioctl<T>(&self, name: &str, data: &mut T) -> io::Result<()> {
        let mut request = request(name)?;
        request.ifr_ifru.ifru_data = std::ptr::from_mut(data).cast();
        // SAFETY: the kernel writes to `data` as its command says (contract of this function), and to
        // nothing else.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), SIOCETHTOOL as _, &mut request) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

/// A request that is about an interface.
fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// The highest speed in Mbit/s among these link modes, by `enum ethtool_link_mode_bit_indices`; zero
/// where none is known. Bits that stand for something else than a speed are left out.
fn max_speed(modes: &[u32]) -> u32 {
    const SPEEDS: &[(u32, &[std::ops::RangeInclusive<usize>])] = &[
        (400_000, &[69..=73, 85..=89]),
        (200_000, &[62..=66, 80..=84]),
        (100_000, &[36..=39, 57..=61, 75..=79]),
        (56_000, &[27..=30]),
        (50_000, &[34..=35, 40..=40, 52..=56]),
        (40_000, &[23..=26]),
        (25_000, &[31..=33]),
        (20_000, &[21..=22]),
        (10_000, &[12..=12, 18..=20, 42..=46]),
        (5_000, &[48..=48]),
        (2_500, &[15..=15, 47..=47]),
        (1_000, &[4..=5, 17..=17, 41..=41, 68..=68]),
        (100, &[2..=3, 67..=67, 90..=91]),
        (10, &[0..=1, 92..=92]),
    ];
    let has = |bit: usize| modes.get(bit / 32).is_some_and(|word| word >> (bit % 32) & 1 == 1);
    SPEEDS.iter().find(|(_, ranges)| ranges.iter().cloned().flatten().any(has)).map_or(0, |&(speed, _)| speed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_sizes() {
        assert_eq!(size_of::<DriverInfo>(), 196);
        assert_eq!(size_of::<ChannelInfo>(), 36);
        assert_eq!(std::mem::offset_of!(LinkSettings, maps), 48);
    }

    #[test]
    fn highest_speed_wins() {
        assert_eq!(max_speed(&[0, 0, 0]), 0);
        // 10, 100 and 1000 Mbit/s, autonegotiation and twisted pair.
        assert_eq!(max_speed(&[0xff]), 1_000);
        assert_eq!(max_speed(&[1 << 12, 1 << 7]), 100_000);
        // Bits 49 to 51 are error correction, not speeds.
        assert_eq!(max_speed(&[1 << 6, 7 << 17]), 0);
    }
}
