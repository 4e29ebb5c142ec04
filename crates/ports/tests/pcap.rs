//! Replay and recording through pcap ports.

use std::path::Path;

use packet::{Batch, Time};
use ports::{Env, PortSpec, registry};

/// A capture with nanoseconds, little endian: `count` frames, one every 1.5 ms, from 100 s after 1970.
fn capture(count: u64) -> Vec<u8> {
    let mut file = [0xa1b2_3c4du32, 0x0004_0002, 0, 0, 262_144, 1].map(u32::to_le_bytes).concat();
    for i in 0..count {
        let frame: Vec<u8> = (0..60 + i).map(|b| (b + i) as u8).collect();
        let nanos = i * 1_500_001;
        let record = [
            100 + (nanos / 1_000_000_000) as u32,
            (nanos % 1_000_000_000) as u32,
            frame.len() as u32,
            frame.len() as u32,
        ];
        file.extend(record.map(u32::to_le_bytes).concat());
        file.extend(frame);
    }
    file
}

fn spec(input: &Path, output: &Path, options: &[(&str, &str)]) -> PortSpec {
    let paths = [("rx_pcap", input.to_str().unwrap()), ("tx_pcap", output.to_str().unwrap())];
    PortSpec::new("pcap0", "pcap").with(&paths).with(options)
}

#[test]
fn replay_and_record_give_identical_files() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.pcap"), dir.path().join("out.pcap"));
    std::fs::write(&input, capture(100)).unwrap();
    let spec = spec(&input, &output, &[("timing", "original"), ("stamps", "clock")]);
    let port = registry::open(&spec, &Env::default()).unwrap();
    let (mut rx, mut tx) = (port.take_rx_queues(), port.tx_queue(0).unwrap());
    let mut now = Time(100_000_000_000);
    let mut batch = Batch::new();
    for i in 0..100 {
        assert_eq!(rx[0].receive(&mut batch, now), 1, "frame {i}");
        assert_eq!(tx.transmit(&mut batch, now), 1);
        assert_eq!(rx[0].receive(&mut batch, now), 0, "not before it is due");
        now = rx[0].next_due().unwrap();
    }
    assert_eq!(now, Time(u64::MAX), "at the end nothing is due");
    drop((rx, tx));
    assert!(std::fs::read(&output).unwrap() == capture(100), "the files differ");
    assert_eq!((port.stats().rx_packets, port.stats().tx_packets), (100, 100));
}

#[test]
fn loops_and_rates() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.pcap"), dir.path().join("out.pcap"));
    std::fs::write(&input, capture(5)).unwrap();
    let received = |options: &[(&str, &str)], seconds: u64, step: u64| {
        let port = registry::open(&spec(&input, &output, options), &Env::default()).unwrap();
        let mut rx = port.take_rx_queues();
        let mut count = 0;
        for turn in 0..seconds * 1_000_000_000 / step {
            let mut batch = Batch::new();
            count += rx[0].receive(&mut batch, Time(turn * step));
        }
        count
    };
    assert_eq!(received(&[], 1, 100_000_000), 5, "once");
    assert_eq!(received(&[("loop", "true")], 1, 100_000_000), 320, "full batches from memory");
    assert_eq!(received(&[("loop", "true"), ("rate", "700")], 2, 1_000_000), 1399 + 1);
    assert_eq!(received(&[("rate", "700")], 2, 1_000_000), 5);
    // A lap takes 4 intervals of 1.500001 ms and one more: 1 s holds 667 intervals.
    assert_eq!(received(&[("loop", "true"), ("timing", "original")], 1, 10_000), 667);
}

#[test]
fn errors_name_the_file_and_the_place() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.pcap"), dir.path().join("no-such-dir/out.pcap"));
    let error = |options: &[(&str, &str)]| {
        registry::open(&spec(&input, &output, options), &Env::default()).unwrap_err().to_string()
    };
    assert!(error(&[]).contains("cannot read ") && error(&[]).contains("in.pcap: No such file"), "{}", error(&[]));
    let file = capture(2);
    std::fs::write(&input, &file[..file.len() - 1]).unwrap();
    assert!(
        error(&[]).ends_with("in.pcap: record 2 at byte 100: cut short: 60 of 61 bytes of frame"),
        "{}",
        error(&[])
    );
    std::fs::write(&input, &file).unwrap();
    assert!(error(&[]).contains("cannot open ") && error(&[]).contains("out.pcap: No such file"), "{}", error(&[]));
    assert!(error(&[("rate", "5"), ("timing", "original")]).contains("does not go together"));
    let nothing = registry::open(&PortSpec::new("p", "pcap"), &Env::default()).unwrap_err().to_string();
    assert!(nothing.contains("needs rx_pcap, tx_pcap or both"));
}
