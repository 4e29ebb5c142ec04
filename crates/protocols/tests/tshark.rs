//! tshark takes what the protocols send for what it is, and has nothing to complain of.

use std::io::Write;
use std::process::{Command, Stdio};

use packet::Time;
use protocols::bfd::{Session, source_port};
use protocols::cfm::MaintenancePoint;
use protocols::lacp::{Aggregator, MemberId, MemberSettings};
use protocols::options::Options;
use protocols::{bfd, cfm, lacp, lldp, rstp, stp};

fn options(pairs: &[(&str, &str)]) -> Options {
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn at(millis: u64) -> Time {
    Time(millis * 1_000_000)
}

/// The fields of each frame, which is sound: no field is malformed, and no expert has more than a note on it.
fn dissect(frames: &[Vec<u8>], fields: &[&str]) -> Vec<Vec<String>> {
    testing::tools(&["tshark"]);
    // A capture file of Ethernet frames (pcap 2.4).
    let mut capture = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1] {
        capture.extend(word.to_ne_bytes());
    }
    for frame in frames {
        let len = frame.len() as u32;
        [0, 0, len, len].iter().for_each(|word| capture.extend(word.to_ne_bytes()));
        capture.extend(frame);
    }
    let checked = ["_ws.malformed", "_ws.expert.severity", "ip.checksum.status", "udp.checksum.status"];
    let asked = fields.iter().chain(&checked).flat_map(|field| ["-e", field]);
    let checks = ["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"];
    let mut tshark = Command::new("tshark")
        .args(["-r", "-", "-T", "fields", "-E", "separator=|"])
        .args(checks)
        .args(asked)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    tshark.stdin.take().unwrap().write_all(&capture).unwrap();
    let output = tshark.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<String>> = text.lines().map(|line| line.split('|').map(String::from).collect()).collect();
    assert_eq!(lines.len(), frames.len(), "{text}");
    for line in &lines {
        let [malformed, severities, checksums @ ..] = &line[fields.len()..] else { panic!("{line:?}") };
        assert_eq!(malformed, "", "{line:?}");
        // Chat (0x200000) and notes (0x400000) are no complaints.
        let is_complaint = |severity: &str| severity.parse::<u32>().is_ok_and(|severity| severity > 0x40_0000);
        assert!(!severities.split(',').any(is_complaint), "{line:?}");
        assert!(checksums.iter().all(|status| matches!(status.as_str(), "" | "1")), "{line:?}");
    }
    lines.into_iter().map(|mut line| line.drain(..fields.len()).collect()).collect()
}

#[test]
fn lacp_is_understood() {
    let [mut near, mut far] = [("near", 1), ("far", 2)].map(|(name, n)| {
        let other_config = options(&[("lacp-time", "fast"), ("lacp-system-priority", "77")]);
        let (lacp, bridge) = (Some("active"), [2, 0, 0, 0, 0, n]);
        let row = lacp::options::PortRow { name, lacp, other_config: &other_config, interfaces: 1, bridge };
        let mut bond = Aggregator::new(lacp::Settings::from_row(&row).0.unwrap());
        let (member, _) = MemberSettings::from_row(name, [2, 0, 0, 0, 1, n], 5, &Options::new());
        bond.set_member(at(0), MemberId(0), member, true);
        bond
    });
    let mut frames = Vec::new();
    for millis in (0..3_000).step_by(100) {
        for (_, frame) in near.run(at(millis)).frames {
            far.receive(at(millis), MemberId(0), &frame).unwrap();
            frames.push(frame.to_vec());
        }
        for (_, frame) in far.run(at(millis)).frames {
            near.receive(at(millis), MemberId(0), &frame).unwrap();
        }
    }
    let fields = [
        "eth.dst",
        "lacp.version",
        "lacp.actor.sys_priority",
        "lacp.actor.sysid",
        "lacp.actor.key",
        "lacp.actor.port",
        "lacp.actor.state",
        "lacp.partner.sysid",
        "lacp.partner.state",
    ];
    let lines = dissect(&frames, &fields);
    let near_is_up =
        ["01:80:c2:00:00:02", "0x01", "77", "02:00:00:00:00:01", "5", "5", "0x3b", "02:00:00:00:00:02", "0x3b"];
    assert_eq!(lines.last().unwrap(), &near_is_up);
}

#[test]
fn bfd_is_understood() {
    let [mut near, mut far] = [1, 2].map(|n| {
        let column = options(&[("enable", "true"), ("min_rx", "100"), ("mult", "5")]);
        let settings = bfd::Settings::from_column(&column).0.unwrap();
        Session::new("p0", [2, 0, 0, 0, 0, n], settings, n.into(), source_port(n.into()), n.into())
    });
    let mut frames = Vec::new();
    for millis in 0..4_000 {
        if millis == 3_000 {
            let column = options(&[("enable", "true"), ("min_rx", "150"), ("mult", "5")]);
            near.configure(at(millis), 0, bfd::Settings::from_column(&column).0.unwrap());
        }
        if let Some(frame) = near.run(at(millis), 0).frame {
            far.receive(at(millis), &frame).unwrap();
            frames.push(frame);
        }
        if let Some(frame) = far.run(at(millis), 0).frame {
            near.receive(at(millis), &frame).unwrap();
            frames.push(frame);
        }
    }
    let fields = [
        "eth.dst",
        "ip.ttl",
        "udp.dstport",
        "bfd.version",
        "bfd.sta",
        "bfd.flags.p",
        "bfd.flags.f",
        "bfd.my_discriminator",
        "bfd.your_discriminator",
        "bfd.detect_time_multiplier",
        "bfd.required_min_rx_interval",
    ];
    let lines = dissect(&frames, &fields);
    assert!(lines.iter().all(|line| line[..4] == ["00:23:20:00:00:01", "255", "3784", "1"]));
    let flags: Vec<(&str, &str)> = lines.iter().map(|line| (line[5].as_str(), line[6].as_str())).collect();
    let set = |flag: &str| matches!(flag, "1" | "True");
    assert_eq!(flags.iter().filter(|(poll, _)| set(poll)).count(), 1, "{flags:?}");
    assert_eq!(flags.iter().filter(|(_, answer)| set(answer)).count(), 1, "{flags:?}");
    let last = lines.iter().rfind(|line| line[7] == "0x00000001").unwrap();
    assert_eq!(last[8..].iter().map(String::as_str).collect::<Vec<_>>()[1..], ["5", "150000"], "{last:?}");
}

#[test]
fn cfm_is_understood() {
    let mut frames = Vec::new();
    for pairs in
        [&[("cfm_interval", "100")][..], &[("cfm_interval", "100"), ("cfm_ccm_vlan", "7"), ("cfm_ccm_pcp", "6")]]
    {
        let settings = cfm::Settings::from_row(Some(300), &options(pairs), false).0.unwrap();
        let mut point = MaintenancePoint::new(at(0), "p0", [2; 6], settings, 0, 1);
        frames.extend((0..=400).filter_map(|millis| point.run(at(millis), 0).frame));
    }
    let fields =
        ["eth.dst", "vlan.id", "vlan.priority", "cfm.opcode", "cfm.ccm.seq.num", "cfm.ccm.ma.ep.id", "cfm.flags.rdi"];
    let lines = dissect(&frames, &fields);
    assert_eq!(lines.len(), 10);
    assert_eq!(lines[0], ["01:80:c2:00:00:30", "", "", "1", "1", "300", "0"]);
    // Nobody was heard for a fault interval.
    assert_eq!(lines[9], ["01:80:c2:00:00:30", "7", "6", "1", "5", "300", "1"]);
}

#[test]
fn lldp_is_understood() {
    let mappings = [(10_000, 100), (10_001, 101)].into();
    let auto_attach = lldp::AutoAttach { system_name: "rack7".into(), system_description: "a switch".into(), mappings };
    let mut agent = lldp::Agent::new(at(0), "eth1", [2; 6], auto_attach.into());
    let frames: Vec<_> = (0..20).filter_map(|seconds| agent.run(at(1000 * seconds))).collect();
    let fields = [
        "eth.dst",
        "lldp.chassis.id.mac",
        "lldp.port.id",
        "lldp.time_to_live",
        "lldp.tlv.system.name",
        "lldp.tlv.system.desc",
        "lldp.extreme_avaya_ap.vlan",
        "lldp.extreme_avaya_ap.i_sid",
    ];
    let lines = dissect(&frames, &fields);
    assert_eq!(lines.len(), 4);
    let expected =
        ["01:80:c2:00:00:0e", "02:02:02:02:02:02", "eth1", "120", "rack7", "a switch", "100,101", "10000,10001"];
    assert_eq!(lines[3], expected);
}

#[test]
fn spanning_trees_are_understood() {
    let mut rapid = rstp::Bridge::new(rstp::Settings::new([2, 0, 0, 0, 0, 1]), at(0));
    let mut plain = stp::Bridge::new(stp::Settings::new([2, 0, 0, 0, 0, 2]), at(0));
    for port in ["p1", "p2"] {
        let number = rapid.add_port(rstp::PortSettings::new(port, [2, 0, 0, 0, 1, 1])).unwrap();
        rapid.set_link(number, rstp::Link::up(1000));
        let number = plain.add_port(at(0), stp::PortSettings::new(port, [2, 0, 0, 0, 1, 2])).unwrap();
        plain.set_link(number, true, 1000);
    }
    // Port 1 of both are neighbours; nobody is behind ports 2.
    let mut frames = Vec::new();
    for seconds in 0..60 {
        let now = at(1000 * seconds);
        let (mut from_rapid, mut from_plain) = (rstp::Output::default(), stp::Output::default());
        rapid.run(now, &mut from_rapid);
        plain.run(now, &mut from_plain);
        for (port, frame) in from_rapid.frames {
            if port == 1 {
                plain.receive(now, 1, &frame);
            }
            frames.push(frame.to_vec());
        }
        for (port, frame) in from_plain.frames {
            if port == 1 {
                rapid.receive(1, &frame);
            }
            frames.push(frame.to_vec());
        }
    }
    let lines = dissect(&frames, &["eth.dst", "stp.protocol", "stp.version", "stp.type", "stp.root.hw"]);
    assert!(lines.iter().all(|line| line[..2] == ["01:80:c2:00:00:00", "0x0000"]), "{lines:?}");
    // Configuration, notifications and RST, all of them.
    for kind in [["0", "0x00"], ["0", "0x80"], ["2", "0x02"]] {
        assert!(lines.iter().any(|line| line[2..4] == kind), "no BPDU of type {kind:?}: {lines:?}");
    }
    assert_eq!(lines.iter().rfind(|line| line[3] == "0x00").unwrap()[4], "02:00:00:00:00:01");
}
