//! TCP: states and sequence windows of both ends.
//!
//! The states and rules are those of Open vSwitch's userspace tracker, which has them from the BSD packet filter: the windows are tracked as
//! in G. van Rooij, "Real Stateful TCP Packet Filtering in IP Filter" (2001). For each end it is known up to where it has sent
//! (`sent`), up to where the other end lets it send (`limit`), and the largest window that it has offered. A segment is
//! valid where
//!
//! 1. its end lies within what the receiver lets the sender send,
//! 2. its start lies no more than one window behind what was sent: retransmissions,
//! 3. it acknowledges no more than was sent, and not much less, and
//! 4. if it resets, its sequence number is the expected one, give or take one (RFC 5961 has the reason).
//!
//! A connection that is picked up in the middle has no window scales; the largest is assumed then. Sequence numbers are
//! compared modulo 2^32 (RFC 9293 section 3.4).

use packet::wire::tcp::flags::{ACK, FIN, PSH, RST, SYN, URG};

use super::{Invalid, Update};
use crate::timeout::Timeout;

/// The state of one end, with the numbers and names that Open vSwitch prints. The tracker enters those only that are not
/// marked as unused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum State {
    /// Nothing was seen of this end.
    Closed,
    /// Unused.
    Listen,
    /// It has sent.
    SynSent,
    /// Unused.
    SynRecv,
    /// What it sent first was acknowledged.
    Established,
    /// Unused.
    CloseWait,
    /// Unused.
    FinWait1,
    /// It has sent FIN.
    Closing,
    /// Unused.
    LastAck,
    /// Its FIN was acknowledged.
    FinWait2,
    /// Reset.
    TimeWait,
}

impl State {
    /// States and the names in `dpctl/dump-conntrack`, by number.
    const ALL: [(State, &str); 11] = [
        (State::Closed, "CLOSED"),
        (State::Listen, "LISTEN"),
        (State::SynSent, "SYN_SENT"),
        (State::SynRecv, "SYN_RECV"),
        (State::Established, "ESTABLISHED"),
        (State::CloseWait, "CLOSE_WAIT"),
        (State::FinWait1, "FIN_WAIT_1"),
        (State::Closing, "CLOSING"),
        (State::LastAck, "LAST_ACK"),
        (State::FinWait2, "FIN_WAIT_2"),
        (State::TimeWait, "TIME_WAIT"),
    ];

    /// The name in `dpctl/dump-conntrack`.
    pub fn name(self) -> &'static str {
        State::ALL[self as usize].1
    }

    pub(crate) fn from_bits(bits: u8) -> State {
        State::ALL.get(usize::from(bits)).map_or(State::Closed, |(state, _)| *state)
    }
}

/// What tracking reads of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number, meaningful with ACK.
    pub ack: u32,
    /// Flags, see [`packet::wire::tcp::flags`].
    pub flags: u16,
    /// Window, as it stands in the header.
    pub window: u16,
    /// Bytes of data: those of the IP packet, without padding of the frame. A super-frame has many.
    pub len: u32,
    /// Window scale option (RFC 7323 section 2), at most 14.
    pub scale: Option<u8>,
}

/// The largest window scale (RFC 7323 section 2.3).
pub const MAX_SCALE: u8 = 14;

impl Segment {
    /// Sequence number behind the segment: SYN and FIN take one each.
    fn end(&self) -> u32 {
        let bits = u32::from(self.has(SYN)) + u32::from(self.has(FIN));
        self.seq.wrapping_add(self.len).wrapping_add(bits)
    }

    fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }

    /// Flags that no end sends together.
    fn has_invalid_flags(&self) -> bool {
        let first = self.has(SYN) && self.flags & (RST | FIN) != 0;
        let nothing = self.flags & (SYN | ACK | RST) == 0;
        let without_ack = !self.has(ACK) && self.flags & (FIN | PSH | URG) != 0;
        first || nothing || without_ack
    }
}

/// The window scale option among the options of a header; the last one counts.
pub fn window_scale(mut options: &[u8]) -> Option<u8> {
    const END: u8 = 0;
    const NOP: u8 = 1;
    const WINDOW_SCALE: u8 = 3;
    let mut scale = None;
    while let [kind, rest @ ..] = options {
        options = match *kind {
            END => return scale,
            NOP => rest,
            kind => {
                let &[len, value, ..] = rest else { return scale };
                if kind == WINDOW_SCALE {
                    scale = Some(value.min(MAX_SCALE));
                }
                options.get(usize::from(len.max(2))..).unwrap_or_default()
            }
        };
    }
    scale
}

/// What is known of an end's window scale.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scale {
    /// Its SYN had no option, or was not seen yet.
    #[default]
    None,
    /// Its SYN was not seen: the connection was picked up later.
    Unknown,
    /// The option of its SYN.
    Known(u8),
}

impl Scale {
    /// The bits that say which it is; none for [`Scale::None`]. Below is the shift.
    const IS: u32 = Scale::UNKNOWN | Scale::KNOWN;
    const UNKNOWN: u32 = 0x10;
    const KNOWN: u32 = 0x20;

    fn shift(self) -> u8 {
        match self {
            Scale::Known(shift) => shift,
            _ => 0,
        }
    }

    fn of(option: Option<u8>) -> Scale {
        option.map_or(Scale::None, |shift| Scale::Known(shift.min(MAX_SCALE)))
    }

    fn bits(self) -> u64 {
        match self {
            Scale::None => 0,
            Scale::Unknown => Scale::UNKNOWN.into(),
            Scale::Known(shift) => u64::from(Scale::KNOWN) | u64::from(shift),
        }
    }

    fn from_bits(bits: u64) -> Scale {
        match bits as u32 & Scale::IS {
            0 => Scale::None,
            Scale::UNKNOWN => Scale::Unknown,
            _ => Scale::Known(bits as u8 & 0xf),
        }
    }
}

/// One end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// Sequence number behind the last byte that it sent.
    pub sent: u32,
    /// Sequence number up to which the other end lets it send.
    pub limit: u32,
    /// The largest window that it has offered, before scaling; at least one.
    pub window: u16,
    /// Its window scale.
    pub scale: Scale,
    /// Its state.
    pub state: State,
}

/// Both ends: the one that sent the first packet, and the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends(pub [End; 2]);

/// Acknowledgements may lie so far behind or ahead: the largest unscaled window and a fragment's worth.
const ACK_SLACK: i32 = 0xffff + 1500;

/// Whether `a` is at or behind `b` in the order of sequence numbers.
fn at_least(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 >= 0
}

impl Ends {
    /// The connection that `segment` begins: a SYN, or any valid segment of a connection that began unseen (loose
    /// pick-up), but not the second packet of a handshake.
    pub fn begin(segment: &Segment) -> Result<Ends, Invalid> {
        if segment.has_invalid_flags() {
            return Err(Invalid::TcpFlags);
        }
        if segment.has(SYN | ACK) {
            return Err(Invalid::NotFirst);
        }
        let syn = segment.has(SYN);
        let scale = if syn { Scale::of(segment.scale) } else { Scale::Unknown };
        let first = End {
            sent: segment.seq,
            // One more than the segment's end: a SYN's window is not known yet.
            limit: segment.end().wrapping_add(1),
            // The window of a SYN is not scaled; it is kept as if it were.
            window: segment.window.max(1).div_ceil(1 << scale.shift()),
            scale,
            state: State::SynSent,
        };
        let other_scale = if syn { Scale::None } else { Scale::Unknown };
        let other = End { sent: 0, limit: 1, window: 1, scale: other_scale, state: State::Closed };
        Ok(Ends([first, other]))
    }

    /// The timeout of a connection that has just begun.
    pub const FIRST_TIMEOUT: Timeout = Timeout::TcpSynSent;

    /// A segment of the connection; `reply` says which end sent it. With `liberal`, numbers outside of the windows are no
    /// fault (`dpctl/ct-disable-tcp-seq-chk`).
    pub fn step(&mut self, reply: bool, segment: &Segment, liberal: bool) -> Update {
        if segment.has_invalid_flags() {
            return Update::Invalid(Invalid::TcpFlags);
        }
        let [from, to] = if reply { [1, 0] } else { [0, 1] };
        let (mut src, mut dst) = (self.0[from], self.0[to]);
        if segment.flags & (SYN | ACK) == SYN {
            if src.state >= State::FinWait2 && dst.state >= State::FinWait2 {
                (self.0[0].state, self.0[1].state) = (State::Closed, State::Closed);
                return Update::Reopened;
            }
            if src.state <= State::SynSent {
                self.0[from].state = State::SynSent;
                return Update::New { timeout: Some(Timeout::TcpSynSent) };
            }
        }
        let window = Window::of(&mut src, &mut dst, segment);
        let update = if window.contains(&src, &dst, segment) || liberal {
            window.slide(&mut src, &mut dst);
            advance(&mut src, &mut dst, segment);
            Update::Established { timeout: Some(timeout(src.state, dst.state)) }
        } else if window.is_close(&src, &dst) {
            window.slide(&mut src, &mut dst);
            if segment.has(FIN) && src.state < State::Closing {
                src.state = State::Closing;
            }
            if segment.has(RST) {
                (src.state, dst.state) = (State::TimeWait, State::TimeWait);
            }
            // A flood could keep the connection alive otherwise.
            Update::Established { timeout: None }
        } else {
            return Update::Invalid(Invalid::TcpWindow);
        };
        (self.0[from], self.0[to]) = (src, dst);
        update
    }

    /// What a segment makes of its sender's [`sent_bits`](Ends::sent_bits), where both ends are established; the words are those of
    /// [`state_bits`](Ends::state_bits) and of `sent_bits`, the sender's first, the shifts those of [`shifts`](Ends::shifts). `None` where
    /// the segment is not valid, or changes anything else: then [`step`](Ends::step) says what it is. No branch depends on who sends: in a
    /// mixed batch, half of its packets would be guessed wrong.
    #[inline(always)]
    pub(crate) fn pass(
        state: u64,
        [own, other]: [u64; 2],
        reply: bool,
        shifts: Shifts,
        segment: &Segment,
        liberal: bool,
    ) -> Option<u64> {
        if segment.flags & (SYN | FIN | RST | ACK) != ACK {
            return None;
        }
        // Where both ends are established, these are the rules of `Window`, on the words as they are.
        let ([src_sent, dst_sent], [src_limit, dst_limit]) =
            ([own, other].map(|word| (word >> 32) as u32), [other as u32, own as u32]);
        let windows = (state as u32).rotate_left(16 * u32::from(reply));
        let [src_window, dst_window] = [windows as u16, (windows >> 16) as u16];
        let shifts = shifts.both();
        let (seq, end) = match segment.len {
            0 => (src_sent, src_sent),
            len => (segment.seq, segment.seq.wrapping_add(len)),
        };
        let ack_lag = dst_sent.wrapping_sub(segment.ack) as i32;
        let is_inside = at_least(src_limit, end)
            & at_least(seq, src_sent.wrapping_sub(u32::from(dst_window) << shifts[1]))
            // From one slack ahead to one, scaled, behind, in one comparison.
            & (ack_lag.wrapping_add(ACK_SLACK) as u32 <= (ACK_SLACK + (ACK_SLACK << shifts[0])) as u32);
        if segment.window > src_window || !(is_inside | liberal) {
            return None;
        }
        let offered = u32::from(segment.window) << shifts[0];
        let sent = if at_least(end, src_sent) { end } else { src_sent };
        let opened = segment.ack.wrapping_add(offered);
        let limit = if at_least(opened, dst_limit) { opened.wrapping_add(u32::from(offered == 0)) } else { dst_limit };
        Some(u64::from(sent) << 32 | u64::from(limit))
    }

    /// The window scales that apply to the segments of a direction once neither is a SYN: of its sender, and of its receiver.
    pub(crate) fn shifts(&self, reply: bool) -> Shifts {
        let [src, dst] = if reply { [1, 0] } else { [0, 1] };
        let [src, dst] = shifts(self.0[src].scale, self.0[dst].scale);
        Shifts(src | dst << 4)
    }

    /// The state of both ends, and their windows and scales, in 52 bits: what changes seldom.
    pub(crate) fn state_bits(&self) -> u64 {
        let [a, b] = &self.0;
        u64::from(a.window)
            | u64::from(b.window) << 16
            | a.scale.bits() << 32
            | b.scale.bits() << 38
            | (a.state as u64) << 44
            | (b.state as u64) << 48
    }

    /// What segments from one end change: up to where it has sent, and up to where it lets the other end send.
    pub(crate) fn sent_bits(&self, reply: bool) -> u64 {
        let [from, to] = if reply { [1, 0] } else { [0, 1] };
        u64::from(self.0[from].sent) << 32 | u64::from(self.0[to].limit)
    }

    /// The ends that these words stand for.
    pub(crate) fn from_bits(state: u64, sent: [u64; 2]) -> Ends {
        Ends([0, 1].map(|from| {
            let number = (state >> (44 + 4 * from)) as u8 & 0xf;
            Ends::end(state, sent, from, State::from_bits(number))
        }))
    }

    fn end(words: u64, sent: [u64; 2], from: usize, state: State) -> End {
        End {
            sent: (sent[from] >> 32) as u32,
            limit: sent[1 - from] as u32,
            window: (words >> (16 * from)) as u16,
            scale: Scale::from_bits(words >> (32 + 6 * from)),
            state,
        }
    }

    /// Whether both ends are established, and neither has closed.
    pub(crate) fn are_established(&self) -> bool {
        self.0.iter().all(|end| end.state == State::Established)
    }
}

/// The scales that apply to segments, of the sender and the receiver, whose options were these.
fn shifts(src: Scale, dst: Scale) -> [u8; 2] {
    match (src, dst) {
        (Scale::Known(a), Scale::Known(b)) => [a, b],
        (Scale::Unknown, Scale::Unknown) => [MAX_SCALE; 2],
        _ => [0, 0],
    }
}

/// Two scales: that of the sender in the lower half, that of the receiver in the upper one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shifts(u8);

impl Shifts {
    #[inline(always)]
    fn both(self) -> [u32; 2] {
        [(self.0 & 0xf).into(), (self.0 >> 4).into()]
    }
}

/// Where a segment lies.
struct Window {
    seq: u32,
    end: u32,
    ack: u32,
    /// The window that the sender offers, as the segment says, without its scale.
    offered: u16,
    /// Scales of sender and receiver that apply to this segment.
    shifts: [u8; 2],
    /// How far the acknowledgement lies behind what the receiver has sent; negative ahead.
    ack_lag: i32,
}

impl Window {
    /// Also brings in what the first segment of an end tells about it.
    fn of(src: &mut End, dst: &mut End, segment: &Segment) -> Window {
        let mut shifts = if segment.has(SYN) { [0, 0] } else { shifts(src.scale, dst.scale) };
        let mut offered = segment.window;
        let (mut seq, mut end, mut ack) = (segment.seq, segment.end(), segment.ack);
        let mut check_ack = true;
        if src.state < State::SynSent {
            if segment.has(SYN)
                && let Scale::Known(other) = dst.scale
            {
                src.scale = Scale::of(segment.scale);
                if let Scale::Known(own) = src.scale {
                    shifts = [own, other];
                    offered = offered.div_ceil(1 << own);
                } else {
                    // Scaling needs the option from both ends (RFC 7323 section 2.2).
                    dst.window = (u32::from(dst.window) << other).min(0xffff) as u16;
                    dst.scale = Scale::None;
                }
            }
            (src.sent, src.state) = (seq, State::SynSent);
            let room = (u32::from(dst.window) << shifts[1]).max(1);
            let limit = end.wrapping_add(room);
            if src.limit == 1 || at_least(limit, src.limit) {
                src.limit = limit;
                check_ack = false;
            }
            src.window = src.window.max(offered);
        }
        // Some stacks send a reset with ACK and no number.
        if !segment.has(ACK) || ack == 0 && segment.has(RST) {
            ack = dst.sent;
        }
        if seq == end {
            (seq, end) = (src.sent, src.sent);
        }
        let ack_lag = if check_ack { dst.sent.wrapping_sub(ack) as i32 } else { 0 };
        Window { seq, end, ack, offered, shifts, ack_lag }
    }

    /// Whether the segment lies within the windows.
    fn contains(&self, src: &End, dst: &End, segment: &Segment) -> bool {
        let expected = segment.seq.wrapping_sub(src.sent).wrapping_add(1) <= 2;
        at_least(src.limit, self.end)
            && at_least(self.seq, src.sent.wrapping_sub(u32::from(dst.window) << self.shifts[1]))
            && self.ack_lag >= -ACK_SLACK
            && self.ack_lag <= ACK_SLACK << self.shifts[0]
            && (!segment.has(RST) || expected)
    }

    /// Whether a segment outside of the windows is let through: while the connection is picked up, or closes.
    fn is_close(&self, src: &End, dst: &End) -> bool {
        (dst.state < State::SynSent || dst.state >= State::FinWait2 || src.state >= State::FinWait2)
            && at_least(src.limit.wrapping_add(ACK_SLACK as u32), self.end)
            && at_least(self.seq, src.sent.wrapping_sub(ACK_SLACK as u32))
    }

    /// The windows after the segment.
    fn slide(&self, src: &mut End, dst: &mut End) {
        src.window = src.window.max(self.offered);
        if at_least(self.end, src.sent) {
            src.sent = self.end;
        }
        let offered = u32::from(self.offered) << self.shifts[0];
        if at_least(self.ack.wrapping_add(offered), dst.limit) {
            dst.limit = self.ack.wrapping_add(offered.max(1));
        }
    }
}

/// The states after a valid segment.
fn advance(src: &mut End, dst: &mut End, segment: &Segment) {
    if segment.has(FIN) && src.state < State::Closing {
        src.state = State::Closing;
    }
    if segment.has(ACK) {
        match dst.state {
            State::SynSent => dst.state = State::Established,
            State::Closing => dst.state = State::FinWait2,
            _ => {}
        }
    }
    if segment.has(RST) {
        (src.state, dst.state) = (State::TimeWait, State::TimeWait);
    }
}

fn timeout(src: State, dst: State) -> Timeout {
    let (least, most) = (src.min(dst), src.max(dst));
    if least >= State::FinWait2 {
        Timeout::TcpClose
    } else if least >= State::Closing {
        Timeout::TcpTimeWait
    } else if least < State::Established {
        Timeout::TcpSynRecv
    } else if most >= State::Closing {
        Timeout::TcpFinWait
    } else {
        Timeout::TcpEstablished
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ESTABLISHED: Update = Update::Established { timeout: Some(Timeout::TcpEstablished) };
    const WINDOW: Update = Update::Invalid(Invalid::TcpWindow);

    fn segment(flags: u16, seq: u32, ack: u32, len: u32) -> Segment {
        Segment { seq, ack, flags, window: 1000, len, scale: None }
    }

    fn valid(timeout: Timeout) -> Update {
        Update::Established { timeout: Some(timeout) }
    }

    /// A handshake whose ends begin at these numbers.
    fn established(a: u32, b: u32, scales: [Option<u8>; 2]) -> Ends {
        let mut ends = Ends::begin(&Segment { scale: scales[0], ..segment(SYN, a, 0, 0) }).unwrap();
        let answer = Segment { scale: scales[1], ..segment(SYN | ACK, b, a.wrapping_add(1), 0) };
        assert_eq!(ends.step(true, &answer, false), valid(Timeout::TcpSynRecv));
        let ack = segment(ACK, a.wrapping_add(1), b.wrapping_add(1), 0);
        assert_eq!(ends.step(false, &ack, false), ESTABLISHED);
        ends
    }

    #[test]
    fn life_of_a_connection() {
        let mut ends = established(100, 500, [None; 2]);
        assert_eq!(ends.step(false, &segment(ACK | PSH, 101, 501, 50), false), ESTABLISHED);
        assert_eq!(ends.step(true, &segment(ACK, 501, 151, 0), false), ESTABLISHED);
        assert_eq!(ends.step(false, &segment(FIN | ACK, 151, 501, 0), false), valid(Timeout::TcpFinWait));
        assert_eq!(ends.step(true, &segment(ACK, 501, 152, 0), false), valid(Timeout::TcpFinWait));
        assert_eq!(ends.0.map(|end| end.state), [State::FinWait2, State::Established]);
        assert_eq!(ends.step(true, &segment(FIN | ACK, 501, 152, 0), false), valid(Timeout::TcpTimeWait));
        assert_eq!(ends.step(false, &segment(ACK, 152, 502, 0), false), valid(Timeout::TcpClose));
        assert_eq!(ends.0.map(|end| end.state), [State::FinWait2; 2]);
        assert_eq!(ends.step(false, &segment(SYN, 9000, 0, 0), false), Update::Reopened);
    }

    #[test]
    fn a_repeated_syn_is_new() {
        let mut ends = Ends::begin(&segment(SYN, 1, 0, 0)).unwrap();
        let new = Update::New { timeout: Some(Timeout::TcpSynSent) };
        assert_eq!(ends.step(false, &segment(SYN, 1, 0, 0), false), new);
        // Both ends at once (RFC 9293 section 3.5).
        assert_eq!(ends.step(true, &segment(SYN, 70, 0, 0), false), new);
    }

    #[test]
    fn begins_with_a_syn_or_in_the_middle_but_not_with_its_answer() {
        assert_eq!(Ends::begin(&segment(SYN | ACK, 1, 1, 0)), Err(Invalid::NotFirst));
        for flags in [SYN | FIN, SYN | RST, 0, FIN, PSH, URG, PSH | RST, FIN | RST] {
            assert_eq!(Ends::begin(&segment(flags, 1, 1, 0)), Err(Invalid::TcpFlags), "{flags:#x}");
            let mut ends = established(1, 1, [None; 2]);
            assert_eq!(ends.step(false, &segment(flags, 2, 2, 0), true), Update::Invalid(Invalid::TcpFlags));
        }
        let mut ends = Ends::begin(&segment(ACK, 7000, 9000, 100)).unwrap();
        assert_eq!(ends.step(true, &segment(ACK, 9000, 7100, 100), false), valid(Timeout::TcpSynRecv));
        assert_eq!(ends.step(false, &segment(ACK, 7100, 9100, 100), false), ESTABLISHED);
    }

    #[test]
    fn segments_outside_of_the_windows_are_invalid_but_where_that_is_liberal() {
        let before = established(100, 500, [None; 2]);
        // The receiver's window is 1000 bytes: up to 1101 may be sent.
        for (seq, ack, len, update) in [
            (101, 501, 1000, ESTABLISHED),
            (101, 501, 1001, WINDOW),
            (1102, 501, 10, WINDOW),
            // A SYN counts as sent when data follow.
            (100 - 1001, 501, 10, WINDOW),
            (100 - 1000, 501, 10, ESTABLISHED),
            (101, 501 + 67036, 10, WINDOW),
            (101, 501 - 67036, 10, WINDOW),
            (101, 501 + 67035, 10, ESTABLISHED),
        ] {
            let segment = segment(ACK, seq as u32, ack as u32, len);
            let mut ends = before;
            assert_eq!(ends.step(false, &segment, false), update, "{segment:?}");
            assert!(ends == before || update != WINDOW, "an invalid segment changes nothing");
            assert!(matches!({ before }.step(false, &segment, true), Update::Established { .. }));
        }
    }

    #[test]
    fn a_reset_needs_the_expected_number() {
        for (seq, valid) in [(98, false), (99, true), (100, true), (101, true), (102, false)] {
            let mut ends = established(100, 500, [None; 2]);
            let reset = Segment { window: 0, ..segment(RST, seq, 0, 0) };
            let update = ends.step(false, &reset, false);
            assert_eq!(update == Update::Established { timeout: Some(Timeout::TcpClose) }, valid, "{seq}");
            assert_eq!(ends.0.iter().all(|end| end.state == State::TimeWait), valid);
        }
    }

    #[test]
    fn windows_are_scaled_where_both_ends_say_so() {
        // 1000 << 7 bytes may be in flight.
        let mut ends = established(0, 0, [Some(7); 2]);
        ends.step(true, &segment(ACK, 1, 1, 0), false);
        assert_eq!(ends.step(false, &segment(ACK, 1, 1, 60_000), false), ESTABLISHED);
        assert_eq!(ends.step(false, &segment(ACK, 60_001, 1, 60_000), false), ESTABLISHED);
        assert_eq!(ends.step(false, &segment(ACK, 120_001, 1, 60_000), false), WINDOW);
        // Only one end says so.
        let mut ends = established(0, 0, [Some(7), None]);
        assert_eq!(ends.0.map(|end| (end.scale, end.window)), [(Scale::None, 1024), (Scale::None, 1000)]);
        ends.step(true, &segment(ACK, 1, 1, 0), false);
        assert_eq!(ends.step(false, &segment(ACK, 1, 1, 60_000), false), WINDOW);
    }

    #[test]
    fn finds_the_window_scale_among_options() {
        assert_eq!(window_scale(&[2, 4, 5, 0xb4, 1, 3, 3, 7]), Some(7));
        assert_eq!(window_scale(&[3, 3, 200]), Some(MAX_SCALE));
        assert_eq!(window_scale(&[0, 3, 3, 7]), None);
        assert_eq!(window_scale(&[8, 0, 3, 3, 7, 0]), Some(7), "a length of zero counts as two");
        assert_eq!(window_scale(&[3, 3]), None);
        assert_eq!(window_scale(&[2, 200, 1, 3, 3, 7]), None);
    }

    fn any_segment() -> impl Strategy<Value = Segment> {
        let near = prop_oneof![any::<u32>(), 0u32..5000, (0u32..5000).prop_map(|n| n.wrapping_neg())];
        let flags = prop_oneof![Just(ACK), Just(SYN), Just(SYN | ACK), Just(FIN | ACK), Just(RST), 0u16..64];
        (near.clone(), near, flags, any::<u16>(), 0u32..3000, proptest::option::of(0u8..20))
            .prop_map(|(seq, ack, flags, window, len, scale)| Segment { seq, ack, flags, window, len, scale })
    }

    proptest! {
        #[test]
        fn words_come_back(first in any_segment(), more in proptest::collection::vec((any::<bool>(), any_segment()), 0..20)) {
            let first = Segment { flags: SYN, ..first };
            let mut ends = Ends::begin(&first).unwrap();
            for (reply, segment) in more {
                ends.step(reply, &segment, false);
                let words = [ends.sent_bits(false), ends.sent_bits(true)];
                prop_assert_eq!(Ends::from_bits(ends.state_bits(), words), ends);
                prop_assert!(ends.state_bits() < 1 << 52);
            }
        }

        /// What passes is what a step finds valid that changes nothing but what its own end has sent.
        #[test]
        fn passing_is_a_step(
            scales: [Option<u8>; 2],
            more in proptest::collection::vec((any::<bool>(), any_segment()), 0..20),
            liberal: bool,
        ) {
            let mut ends = established(0, 0, scales.map(|scale| scale.map(|scale| scale % 15)));
            for (reply, mut segment) in more {
                // The largest window is soon reached.
                segment.window |= 0xe000;
                let (state, sent) = (ends.state_bits(), [false, true].map(|reply| ends.sent_bits(reply)));
                let are_established = ends.are_established();
                let seen = if reply { [sent[1], sent[0]] } else { sent };
                let passed = Ends::pass(state, seen, reply, ends.shifts(reply), &segment, liberal);
                let update = ends.step(reply, &segment, liberal);
                if !are_established {
                    break;
                }
                let opens_or_closes = segment.flags & (SYN | FIN | RST) != 0;
                let same = ends.state_bits() == state && ends.sent_bits(!reply) == sent[usize::from(!reply)];
                let expected = (update == ESTABLISHED && same && !opens_or_closes).then_some(ends.sent_bits(reply));
                prop_assert_eq!(passed, expected);
            }
        }

        /// The machine knows differences of sequence numbers only: moving both ends' numbers changes no result, also
        /// where they wrap around.
        #[test]
        fn numbers_wrap_around(shift: (u32, u32), more in proptest::collection::vec((any::<bool>(), any_segment()), 0..20)) {
            let begin = |(a, b): (u32, u32)| established(1000u32.wrapping_add(a), 2000u32.wrapping_add(b), [Some(3), Some(5)]);
            let (mut here, mut there) = (begin((0, 0)), begin(shift));
            for (reply, segment) in more {
                let [own, other] = if reply { [shift.1, shift.0] } else { [shift.0, shift.1] };
                let moved = Segment {
                    seq: segment.seq.wrapping_add(own),
                    ack: segment.ack.wrapping_add(other),
                    ..segment
                };
                // An acknowledgement of zero in a reset has a meaning of its own, and so has a limit of one before an end has sent.
                let is_reset_of_nothing = segment.flags & RST != 0 && (segment.ack == 0 || moved.ack == 0);
                if is_reset_of_nothing || segment.flags & (SYN | ACK) == SYN {
                    continue;
                }
                prop_assert_eq!(here.step(reply, &segment, false), there.step(reply, &moved, false));
            }
        }
    }
}
