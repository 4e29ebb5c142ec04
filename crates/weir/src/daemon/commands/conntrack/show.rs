//! Connections and counts of them, as text: OVS's own format.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ::conntrack::protocol::tcp::{End, Scale, State};
use ::conntrack::table::BUCKETS;
use ::conntrack::table::slot::{Contents, Protocol, flags};
use packet::wire::ip_proto;

/// How much is shown of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// `-m`: the states of both ends, and the parent of a connection that a helper expected.
    pub more: bool,
    /// `-s`: the time that it has left.
    pub statistics: bool,
}

/// Protocols that have a name, in the order in which they are counted: that in lines, and that of their count.
const NAMES: [(u8, &str, &str); 8] = [
    (ip_proto::TCP, "tcp", "TCP"),
    (ip_proto::UDP, "udp", "UDP"),
    (136, "udplite", "UDPLITE"),
    (ip_proto::SCTP, "sctp", "SCTP"),
    (ip_proto::ICMP, "icmp", "ICMP"),
    (ip_proto::ICMPV6, "icmpv6", "ICMPv6"),
    (33, "dccp", "DCCP"),
    (ip_proto::IGMP, "igmp", "IGMP"),
];

/// The line of a connection that has so many seconds left.
pub fn connection(text: &mut String, connection: &Contents, seconds: u32, style: Style) {
    let Contents { orig, reply, mark, label, parent, .. } = connection;
    match NAMES.iter().find(|(proto, ..)| *proto == orig.proto()) {
        Some((_, name, _)) => text.push_str(name),
        None => text.push_str(&orig.proto().to_string()),
    }
    let _ = write!(text, ",orig=({orig}),reply=({reply})");
    if style.more {
        text.push_str(",id=0");
    }
    if orig.zone() != 0 {
        let _ = write!(text, ",zone={}", orig.zone());
    }
    if style.more {
        text.push_str(",status=0");
    }
    if style.statistics {
        let _ = write!(text, ",timeout={seconds}");
    }
    if *mark != 0 {
        let _ = write!(text, ",mark={mark}");
    }
    if *label != 0 {
        let _ = write!(text, ",labels={label:#x}");
    }
    if let Protocol::Tcp(ends) = &connection.protocol {
        let _ = match style.more {
            true => write!(text, ",protoinfo=({})", both_ends(&ends.0)),
            false => write!(text, ",protoinfo=(state={})", state(&ends.0).name()),
        };
    }
    let helper = [(flags::FTP, ",helper=ftp"), (flags::TFTP, ",helper=tftp")];
    helper.iter().filter(|(flag, _)| connection.flags & flag != 0).for_each(|(_, name)| text.push_str(name));
    if let (true, Some(parent)) = (style.more, parent) {
        let _ = write!(text, ",parent=({parent})");
    }
    text.push('\n');
}

/// The state of a TCP connection: that of the end that is farther on, where some count as one.
fn state(ends: &[End; 2]) -> State {
    match ends[0].state.max(ends[1].state) {
        State::FinWait2 => State::TimeWait,
        State::SynRecv => State::Established,
        other => other,
    }
}

fn both_ends(ends: &[End; 2]) -> String {
    let [orig, reply] = ends;
    let shift = |end: &End| if let Scale::Known(shift) = end.scale { shift } else { 0 };
    let flags = |end: &End| match end.scale {
        Scale::None => "0",
        Scale::Unknown => "BE_LIBERAL",
        Scale::Known(_) => "WINDOW_SCALE",
    };
    let mut text = format!("state_orig={},state_reply={}", orig.state.name(), reply.state.name());
    if shift(orig) != 0 || shift(reply) != 0 {
        let _ = write!(text, ",wscale_orig={},wscale_reply={}", shift(orig), shift(reply));
    }
    let _ = write!(text, ",flags_orig={},flags_reply={}", flags(orig), flags(reply));
    text
}

/// Counts by protocol (`dpctl/ct-stats-show`).
#[derive(Debug, Default)]
pub struct Counts {
    total: u64,
    named: [u64; NAMES.len()],
    other: u64,
    tcp: BTreeMap<State, u64>,
}

impl Counts {
    /// Counts a connection.
    pub fn add(&mut self, connection: &Contents) {
        self.total += 1;
        match NAMES.iter().position(|(proto, ..)| *proto == connection.orig.proto()) {
            Some(place) => self.named[place] += 1,
            None => self.other += 1,
        }
        if let Protocol::Tcp(ends) = &connection.protocol {
            *self.tcp.entry(state(&ends.0)).or_default() += 1;
        }
    }

    /// The counts that are not zero.
    pub fn text(&self, verbose: bool) -> String {
        let mut text = format!("Connections Stats:\n    Total: {}\n", self.total);
        for ((proto, _, title), count) in NAMES.iter().zip(self.named).filter(|(_, count)| *count > 0) {
            let _ = writeln!(text, "  {title}: {count}");
            if *proto == ip_proto::TCP && verbose {
                text.push_str("    Conn per TCP states:\n");
                for (state, count) in &self.tcp {
                    let _ = writeln!(text, "\t  [{}]={count}", state.name());
                }
            }
        }
        if self.other > 0 {
            let _ = writeln!(text, "  Other: {}", self.other);
        }
        text
    }
}

/// Counts by bucket (`dpctl/ct-bkts`).
#[derive(Debug)]
pub struct Buckets([u64; BUCKETS]);

impl Default for Buckets {
    fn default() -> Buckets {
        Buckets([0; BUCKETS])
    }
}

impl Buckets {
    /// Counts a connection of a bucket.
    pub fn add(&mut self, bucket: usize) {
        self.0[bucket] += 1;
    }

    /// A table of the buckets; a dot for each that has no more connections than `above`.
    pub fn text(&self, above: u16) -> String {
        const ROW: usize = 8;
        let total: u64 = self.0.iter().sum();
        let mut text = format!("Total Buckets: {BUCKETS}\nCurrent Connections: {total}\n\n");
        if total == 0 {
            return text;
        }
        let rule = "+-----------+-----------------------------------------+";
        let _ = write!(text, "{rule}\n|  Buckets  |         Connections per Buckets         |\n{rule}");
        for (i, count) in self.0.iter().enumerate() {
            if i % ROW == 0 {
                let _ = write!(text, "\n {i:3}..{:3}   | ", i + ROW - 1);
            }
            let _ = match *count > above.into() {
                true => write!(text, "{count:5}"),
                false => write!(text, "{:>5}", "."),
            };
        }
        text.push_str("\n\n");
        text
    }
}

#[cfg(test)]
mod tests {
    use ::conntrack::Tuple;
    use ::conntrack::protocol::simple::Seen;
    use ::conntrack::protocol::tcp::Ends;

    use super::*;

    fn tuple(proto: u8, ports: (u16, u16)) -> Tuple {
        Tuple::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), proto, ports, 5).unwrap()
    }

    fn simple(orig: Tuple) -> Contents {
        Contents::new(orig, Protocol::Simple(Seen::First))
    }

    fn tcp(states: [State; 2], scales: [Scale; 2]) -> Contents {
        let end = |i: usize| End { sent: 1, limit: 2, window: 3, scale: scales[i], state: states[i] };
        let orig = tuple(6, (40000, 80));
        Contents { protocol: Protocol::Tcp(Ends([end(0), end(1)])), mark: 3, label: 0xab << 64, ..simple(orig) }
    }

    fn line(of: &Contents, more: bool, statistics: bool) -> String {
        let mut text = String::new();
        connection(&mut text, of, 29, Style { more, statistics });
        text
    }

    #[test]
    fn lines_are_those_of_ovs() {
        let established = tcp([State::Established; 2], [Scale::Known(7), Scale::Known(6)]);
        let tuples = "orig=(src=10.0.0.1,dst=10.0.0.2,sport=40000,dport=80),\
                      reply=(src=10.0.0.2,dst=10.0.0.1,sport=80,dport=40000)";
        let labels = "labels=0xab0000000000000000";
        assert_eq!(
            line(&established, false, false),
            format!("tcp,{tuples},zone=5,mark=3,{labels},protoinfo=(state=ESTABLISHED)\n")
        );
        assert_eq!(
            line(&Contents { flags: flags::FTP, parent: Some(tuple(47, (0, 0))), ..established }, true, true),
            format!(
                "tcp,{tuples},id=0,zone=5,status=0,timeout=29,mark=3,{labels},protoinfo=(state_orig=ESTABLISHED,\
                 state_reply=ESTABLISHED,wscale_orig=7,wscale_reply=6,flags_orig=WINDOW_SCALE,\
                 flags_reply=WINDOW_SCALE),helper=ftp,parent=(src=10.0.0.1,dst=10.0.0.2,sport=0,dport=0)\n"
            )
        );
        let half = tcp([State::SynSent, State::Closed], [Scale::Unknown, Scale::None]);
        assert!(line(&half, false, false).ends_with("protoinfo=(state=SYN_SENT)\n"));
        assert!(
            line(&half, true, false)
                .ends_with("(state_orig=SYN_SENT,state_reply=CLOSED,flags_orig=BE_LIBERAL,flags_reply=0)\n")
        );
        let icmp = simple(tuple(1, (9, 8)).in_zone(0));
        assert_eq!(
            line(&icmp, false, true),
            "icmp,orig=(src=10.0.0.1,dst=10.0.0.2,id=9,type=8,code=0),\
             reply=(src=10.0.0.2,dst=10.0.0.1,id=9,type=0,code=0),timeout=29\n"
        );
        assert!(line(&simple(tuple(47, (0, 0))), false, false).starts_with("47,orig=(src="));
    }

    #[test]
    fn counts_by_protocol_and_state() {
        let mut counts = Counts::default();
        counts.add(&tcp([State::FinWait2, State::Closing], [Scale::None; 2]));
        counts.add(&tcp([State::TimeWait; 2], [Scale::None; 2]));
        counts.add(&tcp([State::SynSent, State::Closed], [Scale::None; 2]));
        counts.add(&simple(tuple(17, (1, 2))));
        counts.add(&simple(tuple(47, (1, 2))));
        assert_eq!(counts.text(false), "Connections Stats:\n    Total: 5\n  TCP: 3\n  UDP: 1\n  Other: 1\n");
        assert!(
            counts.text(true).contains("  TCP: 3\n    Conn per TCP states:\n\t  [SYN_SENT]=1\n\t  [TIME_WAIT]=2\n")
        );
        assert_eq!(Counts::default().text(true), "Connections Stats:\n    Total: 0\n");
    }

    #[test]
    fn buckets_in_rows() {
        let mut buckets = Buckets::default();
        assert_eq!(buckets.text(0), format!("Total Buckets: {BUCKETS}\nCurrent Connections: 0\n\n"));
        (0..12).for_each(|_| buckets.add(1));
        buckets.add(9);
        let text = buckets.text(0);
        assert!(text.contains("\n   0..  7   |     .   12    .    .    .    .    .    .\n"), "{text}");
        assert!(text.contains("\n   8.. 15   |     .    1    ."), "{text}");
        assert!(!buckets.text(12).contains("   12 "));
    }
}
