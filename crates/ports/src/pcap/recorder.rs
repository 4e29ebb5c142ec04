//! Writing of capture files.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use packet::Time;
use parking_lot::Mutex;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::file::ClassicHeader;
use crate::sys::system;
use crate::{Error, files};

/// Where time stamps come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamps {
    /// The time of day: that of the first frame is read from the system, later ones follow the
    /// switch's clock.
    TimeOfDay,
    /// The switch's own clock, as it is.
    Clock,
}

/// Adds frames to a capture file in the classic format. Threads may share it: each call takes a lock.
///
/// A file that cannot be written to any more (disk full) ends the recording, never the traffic.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    header: ClassicHeader,
    stamps: Stamps,
    state: Mutex<Recording>,
}

#[derive(Debug)]
struct Recording {
    /// `None` after a failure.
    out: Option<BufWriter<File>>,
    /// Time since 1970 of `Time(0)`.
    epoch: Option<Duration>,
}

impl Recorder {
    /// Makes a new file, in place of an old recording, with time stamps in nanoseconds. A file that is no
    /// recording is left as it is.
    pub fn create(port: &str, path: &Path, stamps: Stamps) -> Result<Recorder, Error> {
        let (file, _) = open(port, path)?;
        file.set_len(0).map_err(|e| system(port, format!("empty {}", path.display()), e))?;
        Recorder::start(port, path, file, ClassicHeader::new(true), stamps, true)
    }

    /// Adds to a file, in its own format; a new one gets time stamps in microseconds, which is what
    /// OVS's dummy ports write.
    pub fn append(port: &str, path: &Path) -> Result<Recorder, Error> {
        let (file, found) = open(port, path)?;
        let (new, header) = (found.is_none(), found.unwrap_or(ClassicHeader::new(false)));
        Recorder::start(port, path, file, header, Stamps::TimeOfDay, new)
    }

    fn start(
        port: &str,
        path: &Path,
        file: File,
        header: ClassicHeader,
        stamps: Stamps,
        new: bool,
    ) -> Result<Recorder, Error> {
        let mut out = BufWriter::with_capacity(1 << 18, file);
        if new {
            out.write_all(&header.encode())
                .and_then(|()| out.flush())
                .map_err(|e| system(port, format!("write {}", path.display()), e))?;
        }
        let epoch = (stamps == Stamps::Clock).then_some(Duration::ZERO);
        Ok(Recorder { path: path.into(), header, stamps, state: Mutex::new(Recording { out: Some(out), epoch }) })
    }

    /// Adds a frame. `false` where the recording has ended after a failure.
    pub fn record(&self, frame: &[u8], now: Time) -> bool {
        let mut state = self.state.lock();
        let since_start = Duration::from_nanos(now.0);
        let epoch = *state.epoch.get_or_insert_with(|| {
            let today = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            today.saturating_sub(since_start)
        });
        debug_assert!(self.stamps == Stamps::TimeOfDay || epoch == Duration::ZERO);
        let record = self.header.encode_record(epoch + since_start, frame.len());
        let Some(out) = &mut state.out else { return false };
        let written = out.write_all(&record).and_then(|()| out.write_all(frame));
        self.check(&mut state, written)
    }

    /// Another one for the same file, where somebody has taken that away or put another in its place.
    pub fn replacement(&self, port: &str) -> Result<Option<Recorder>, Error> {
        let state = self.state.lock();
        let Some(out) = &state.out else { return Ok(None) };
        let identity = |found: std::io::Result<std::fs::Metadata>| found.ok().map(|found| (found.dev(), found.ino()));
        let is_there = identity(out.get_ref().metadata()) == identity(std::fs::metadata(&self.path));
        drop(state);
        if is_there { Ok(None) } else { Recorder::append(port, &self.path).map(Some) }
    }

    /// Hands everything to the system.
    pub fn flush(&self) {
        let mut state = self.state.lock();
        if let Some(out) = &mut state.out {
            let flushed = out.flush();
            self.check(&mut state, flushed);
        }
    }

    fn check(&self, state: &mut Recording, result: std::io::Result<()>) -> bool {
        if let Err(error) = &result {
            tracing::warn!("{}: {error}; the recording ends here", self.path.display());
            // Not flushed again: that would fail again.
            if let Some(out) = state.out.take() {
                let _ = out.into_parts();
            }
        }
        result.is_ok()
    }
}

/// Opens a file to record to, at its end. Also the header of the recording that is in it, if one is.
fn open(port: &str, path: &Path) -> Result<(File, Option<ClassicHeader>), Error> {
    let mut file = files::open_capture(path).map_err(|e| system(port, format!("open {}", path.display()), e))?;
    let mut start = Vec::new();
    let head = Read::by_ref(&mut file).take(ClassicHeader::LEN as u64).read_to_end(&mut start);
    let set_up = head.and_then(|_| {
        let appends = fcntl_getfl(&file)? | OFlags::APPEND;
        Ok(fcntl_setfl(&file, appends)?)
    });
    set_up.map_err(|e| system(port, format!("read {}", path.display()), e))?;
    if start.is_empty() {
        return Ok((file, None));
    }
    let wrong = |problem: String| Error::File { port: port.into(), path: path.display().to_string(), problem };
    let header = ClassicHeader::parse(&start).map_err(wrong)?;
    let header = header.ok_or_else(|| wrong("not a pcap file, so no frames are recorded to it".into()))?;
    Ok((file, Some(header)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcap::Capture;

    #[test]
    fn appends_in_the_format_that_it_finds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pcap");
        for nanoseconds in [false, true] {
            std::fs::write(&path, ClassicHeader::new(nanoseconds).encode()).unwrap();
            for frame in [b"first", b"later"] {
                assert!(Recorder::append("p0", &path).unwrap().record(frame, Time(1_000_000_000)));
            }
            let capture = Capture::parse(std::fs::read(&path).unwrap()).unwrap();
            assert_eq!((capture.len(), capture.frame(1)), (2, &b"later"[..]));
            assert!(capture.time(0) > Duration::from_secs(1_600_000_000), "the time of day");
        }
    }

    #[test]
    fn a_file_that_is_no_recording_is_not_emptied() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pcap");
        std::fs::write(&path, b"some text that is longer than a header").unwrap();
        for refused in [Recorder::append("p0", &path), Recorder::create("p0", &path, Stamps::Clock)] {
            assert!(refused.unwrap_err().to_string().contains("not a pcap file"));
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"some text that is longer than a header");
        std::fs::write(&path, ClassicHeader::new(false).encode()).unwrap();
        drop(Recorder::create("p0", &path, Stamps::Clock).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), ClassicHeader::new(true).encode(), "an old recording is replaced");
    }

    #[test]
    fn failure_ends_the_recording_only() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let header = ClassicHeader::new(true);
        let recorder = Recorder::start("p0", Path::new("/dev/full"), full, header, Stamps::Clock, false).unwrap();
        assert!(recorder.record(b"buffered", Time(0)));
        recorder.flush();
        assert!(!recorder.record(b"too late", Time(0)));
    }
}
