//! What another program reads in the frames.

use std::fs;
use std::process::Command;
use std::time::Duration;

use packet::Time;
use protocols::{rstp, stp};

use crate::network::{Faults, Network};

/// A capture file of these frames (pcap, version 2.4, Ethernet).
fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 1u32] {
        file.extend(word.to_le_bytes());
    }
    for (number, frame) in frames.iter().enumerate() {
        for word in [number, 0, frame.len(), frame.len()] {
            file.extend((word as u32).to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

#[test]
fn tshark_has_no_complaint() {
    if Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("skipped: tshark is not installed; scripts/setup.sh test installs it");
        return;
    }
    let mut network = Network::new(1, Faults::default());
    let address = |id| [2, 0, 0, 0, 0, id];
    network.add(Box::new(rstp::Bridge::new(rstp::Settings::new(address(1)), Time(0))));
    network.add(Box::new(rstp::Bridge::new(rstp::Settings::new(address(2)), Time(0))));
    network.add(Box::new(stp::Bridge::new(stp::Settings::new(address(3)), Time(0))));
    for (bridge, link) in [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (0, 2)] {
        network.connect(bridge, link);
    }
    network.run(Duration::from_secs(60));
    let end = network.port(0, 0);
    network.set_up(end, false);
    network.run(Duration::from_secs(60));

    let file = std::env::temp_dir().join(format!("weir-spanning-tree-{}.pcap", std::process::id()));
    fs::write(&file, pcap(&network.capture)).unwrap();
    let fields = ["stp.type", "stp.version", "_ws.expert.message", "_ws.malformed"];
    let fields = fields.iter().flat_map(|field| ["-e", *field]);
    let output = Command::new("tshark").arg("-r").arg(&file).args(["-T", "fields"]).args(fields).output().unwrap();
    fs::remove_file(&file).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.lines().count() == network.capture.len());
    for line in text.lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        assert_eq!(columns[2..], ["", ""], "tshark complains: {line}");
    }
    // Configuration, notifications and RST, all of them.
    for kind in ["0x00\t0", "0x80\t0", "0x02\t2"] {
        assert!(text.lines().any(|line| line.starts_with(kind)), "no BPDU of type {kind}");
    }
}
