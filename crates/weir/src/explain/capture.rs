//! A packet of a capture file as an argument: `FILE` or `FILE:N`.

use std::fs;
use std::path::Path;

use packet::put;
use ports::pcap::Capture;

/// Longest file that is read, in bytes.
const MAX_FILE: u64 = 1 << 30;

/// Why no packet can be taken from a file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("{0}: {1}")]
    Read(String, std::io::Error),
    /// It is too long.
    #[error("{0}: {1} bytes; a capture file of at most {MAX_FILE} bytes can be read")]
    TooLong(String, u64),
    /// It is no capture file.
    #[error("{0}: {1}")]
    Parse(String, String),
    /// It has no such packet.
    #[error("{file}: there is no packet {number}; the file has {count}")]
    NoPacket {
        /// The file.
        file: String,
        /// Which packet was asked for, from 1.
        number: usize,
        /// How many there are.
        count: usize,
    },
    /// The packet was on its way out.
    #[error(
        "{0}: packet {1} was on its way out of the switch; name one that came in (pcapng has the direction of each)"
    )]
    Outbound(String, usize),
}

/// Puts a frame in hexadecimal in the place of an argument that names a packet of a capture file. Returns the name of the
/// interface that the packet was seen at, if the file tells it. An argument that names no file stays as it is.
///
/// # Errors
/// The file cannot be read, or has no such packet.
pub fn resolve(argument: &mut String) -> Result<Option<String>, Error> {
    let Some((file, number)) = split(argument, |path| Path::new(path).is_file()) else { return Ok(None) };
    let file = file.to_owned();
    let length = fs::metadata(&file).map_err(|e| Error::Read(file.clone(), e))?.len();
    if length > MAX_FILE {
        return Err(Error::TooLong(file, length));
    }
    let bytes = fs::read(&file).map_err(|e| Error::Read(file.clone(), e))?;
    let capture = Capture::parse(bytes).map_err(|e| Error::Parse(file.clone(), e))?;
    let count = capture.len();
    let Some(index) = number.checked_sub(1).filter(|index| *index < count) else {
        return Err(Error::NoPacket { file, number, count });
    };
    if capture.is_outbound(index) {
        return Err(Error::Outbound(file, number));
    }
    argument.clear();
    capture.frame(index).iter().for_each(|byte| put!(argument, "{byte:02x}"));
    Ok(capture.interface(index).map(str::to_owned))
}

/// The file and the number of the packet, from 1, that an argument names.
fn split(argument: &str, is_file: impl Fn(&str) -> bool) -> Option<(&str, usize)> {
    let numbered = argument.rsplit_once(':').and_then(|(file, number)| Some((file, number.parse().ok()?)));
    if is_file(argument) { Some((argument, 1)) } else { numbered.filter(|(file, _)| is_file(file)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_and_without_numbers() {
        let is_file = |path: &str| ["a.pcapng", "b:3"].contains(&path);
        assert_eq!(split("a.pcapng", is_file), Some(("a.pcapng", 1)));
        assert_eq!(split("a.pcapng:7", is_file), Some(("a.pcapng", 7)));
        assert_eq!(split("b:3", is_file), Some(("b:3", 1)));
        assert_eq!(split("b:3:2", is_file), Some(("b:3", 2)));
        for other in ["a.pcapng:x", "a.pcapng:-1", "in_port=1,udp", "c:1", ""] {
            assert_eq!(split(other, is_file), None, "{other}");
        }
    }

    #[test]
    fn a_packet_becomes_hexadecimal() {
        let path = std::env::temp_dir().join(format!("weir-capture-{}", std::process::id()));
        let mut bytes = Vec::new();
        crate::tap::pcapng::section_header(&mut bytes, "test");
        crate::tap::pcapng::interface(&mut bytes, "p7", 0, "");
        for direction in [crate::tap::pcapng::Direction::Inbound, crate::tap::pcapng::Direction::Outbound] {
            let (time, length) = (packet::Time(1), 3);
            let packet = crate::tap::pcapng::PacketBlock { interface: 0, time, length, direction, comment: "" };
            crate::tap::pcapng::packet(&mut bytes, &packet, &[0x0a, 0xff, 7]);
        }
        fs::write(&path, &bytes).unwrap();
        let resolved = |suffix: &str| {
            let mut argument = format!("{}{suffix}", path.display());
            resolve(&mut argument).map(|port| (argument, port)).map_err(|error| error.to_string())
        };
        assert_eq!(resolved(""), Ok(("0aff07".into(), Some("p7".into()))));
        assert!(resolved(":2").unwrap_err().contains("packet 2 was on its way out"));
        assert!(resolved(":3").unwrap_err().ends_with("there is no packet 3; the file has 2"));
        assert!(resolved(":0").unwrap_err().contains("there is no packet 0"));
        fs::write(&path, "no capture").unwrap();
        assert!(resolved("").unwrap_err().contains("not a capture file"));
        fs::remove_file(&path).unwrap();
    }
}
