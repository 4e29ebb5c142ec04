//! The ct action on one packet: look-up, the protocol's state machine, creation, translation, mark and label.
//!
//! The steps of a packet, as in [`Tracker::track`]:
//!
//! 1. What the packet was in another zone is forgotten.
//! 2. Its connection is looked up, by the tuple that it had before it was translated, where it was.
//! 3. `force` ends a connection that the packet would be a reply of.
//! 4. The protocol's state machine says what the packet is to the connection.
//! 5. A packet without a connection is new, if its protocol lets a connection begin with it. `commit` makes the connection.
//! 6. The packet gets the translation of its direction.
//! 7. Mark and label are set, and the metadata are those of the connection.

use std::net::IpAddr;

use packet::Time;

use crate::headers::{Headers, Upper};
use crate::helpers::{Expectation, Expectations, Helper, announced, ftp};
use crate::nat::{Nat, Translation};
use crate::protocol::tcp::Segment;
use crate::protocol::{Invalid, Update};
use crate::state::CtState;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::table::slot::{Contents, Skew, flags};
use crate::table::{Found, Refused, Table, first_state};
use crate::tuple::{Side, Tuple};

/// What the ct action asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Request {
    /// The zone. The packet's tuple is of this zone, too.
    pub zone: u16,
    /// Make a connection that is not there.
    pub commit: bool,
    /// End a connection whose reply the packet would be. Implies `commit`.
    pub force: bool,
    /// Translate.
    pub nat: Option<Translate>,
    /// Bits of the mark: value and mask.
    pub mark: Option<(u32, u32)>,
    /// Bits of the label: value and mask.
    pub label: Option<(u128, u128)>,
    /// The helper that a new connection gets.
    pub helper: Option<Helper>,
    /// The timeout policy that a new connection gets, by its number.
    pub policy: u16,
}

/// The argument `nat` of the ct action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Translate {
    /// As the connection was translated when it was made: `nat` without arguments.
    AsBefore,
    /// New connections by this rule, others as before.
    New(Nat),
}

/// What is known of a packet that has been tracked: the fields of the flow key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Metadata {
    /// ct_state.
    pub state: CtState,
    /// ct_zone.
    pub zone: u16,
    /// ct_mark.
    pub mark: u32,
    /// ct_label.
    pub label: u128,
    /// The original direction of the connection, or of its parent: ct_nw_src and so on.
    pub orig: Option<Tuple>,
}

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// The packet's metadata.
    pub metadata: Metadata,
    /// Its connection.
    pub connection: Option<Found>,
    /// What changes in the packet, and of an ICMP error in what it quotes.
    pub translation: Option<(Translation, Option<Translation>)>,
    /// What is added to sequence and acknowledgement number, since a helper has changed the length of what was sent.
    pub sequence: Option<(i32, i32)>,
    /// The helper of the connection. That of FTP has to look at the packet, with [`Tracker::ftp`].
    pub helper: Option<Helper>,
    /// Why the packet is `inv`.
    pub invalid: Option<Invalid>,
    /// Why there is no connection, though `commit` asks for one.
    pub refused: Option<Refused>,
}

/// A connection tracker.
pub struct Tracker {
    /// The connections.
    pub table: Table,
    /// The connections that helpers expect.
    pub expectations: Expectations,
    options: AtomicU32,
    random: AtomicU64,
}

const LIBERAL: u32 = 1;
const EARLY_DROP: u32 = 1 << 1;

impl Tracker {
    /// A tracker for so many connections. The secret is 128 random bits.
    pub fn new(limit: u32, secret: [u64; 2]) -> Tracker {
        Tracker {
            table: Table::new(limit, secret),
            expectations: Expectations::new(),
            options: AtomicU32::new(0),
            random: AtomicU64::new(0),
        }
    }

    /// Whether TCP sequence numbers may lie outside of the windows (`dpctl/ct-disable-tcp-seq-chk`).
    pub fn set_liberal(&self, on: bool) {
        self.set_option(LIBERAL, on);
    }

    /// Whether the limit makes room by ending unanswered connections. Off by default, as Open vSwitch has no such thing.
    pub fn set_early_drop(&self, on: bool) {
        self.set_option(EARLY_DROP, on);
    }

    fn set_option(&self, bit: u32, on: bool) {
        let change = if on { AtomicU32::fetch_or } else { |o: &AtomicU32, b: u32, order| o.fetch_and(!b, order) };
        change(&self.options, bit, Ordering::Relaxed);
    }

    fn has_option(&self, bit: u32) -> bool {
        self.options.load(Ordering::Relaxed) & bit != 0
    }

    /// The metadata of a packet that cannot be tracked.
    pub fn malformed(&self, zone: u16) -> Metadata {
        Metadata { state: CtState::INV | CtState::TRK, zone, ..Metadata::default() }
    }

    /// Tracks a packet. `before` are its metadata from an earlier ct action.
    pub fn track(&self, packet: &Headers, before: &Metadata, request: &Request, now: Time) -> Verdict {
        // 1.
        let state = if before.zone == request.zone { before.state } else { CtState::NONE };
        // 2.
        let mut found = self.find(packet, state, before, request, now);
        // 3.
        if let Some(there) = &found
            && request.force
            && there.reply
        {
            self.table.remove(there.connection);
            found = None;
        }
        // A connection may end, or another packet may make it, in between.
        for _ in 0..4 {
            let verdict = match &found {
                Some(found) => self.known(packet, state, found, request, now),
                None => self.unknown(packet, request, now),
            };
            match verdict {
                Ok(verdict) => return verdict,
                Err(again) => found = again,
            }
        }
        Verdict { metadata: self.malformed(request.zone), ..Verdict::default() }
    }

    fn find(&self, packet: &Headers, state: CtState, before: &Metadata, request: &Request, now: Time) -> Option<Found> {
        if !state.any(CtState::SNAT | CtState::DNAT) {
            return self.table.find(&packet.tuple, now);
        }
        // The packet was translated: its answer would come to the tuple that it has now.
        let other_way = |found: Found| Found { reply: !found.reply, ..found };
        let translated = self.table.find(&packet.tuple.reverse(), now).map(other_way);
        if translated.is_some() || request.nat.is_some() {
            return translated;
        }
        before.orig.and_then(|orig| self.table.find(&orig, now))
    }

    /// A packet of a connection.
    fn known(&self, packet: &Headers, state: CtState, found: &Found, request: &Request, now: Time) -> Step {
        let Some((contents, _)) = self.table.read(found.connection) else { return Err(None) };
        let mut state = state;
        let mut invalid = None;
        // 4.
        if matches!(packet.upper, Upper::Error(_)) {
            state |= CtState::REL;
            if found.reply {
                state |= CtState::RPL;
            }
        } else {
            let liberal = self.has_option(LIBERAL);
            let tuple = if found.reply { &contents.reply } else { &contents.orig };
            let update = match &packet.upper {
                Upper::Tcp(segment) => {
                    let segment = skewed(segment, found.reply, &contents.skew);
                    self.table.step_tcp(tuple, found, &segment, liberal, now)
                }
                _ => self.table.step_simple(tuple, found, now),
            };
            if contents.flags & flags::RELATED != 0 {
                state |= CtState::REL;
            }
            match update {
                None => return Err(None),
                Some(Update::New { .. }) => state |= CtState::NEW,
                Some(Update::Established { .. }) => {
                    state = state.without(CtState::NEW) | CtState::EST;
                    if found.reply {
                        state |= CtState::RPL;
                    }
                }
                Some(Update::Reopened) => {
                    self.table.remove(found.connection);
                    return Err(None);
                }
                Some(Update::Invalid(why)) => {
                    state = CtState::INV;
                    invalid = Some(why);
                }
            }
        }
        let verdict = Verdict { connection: Some(*found), invalid, ..Verdict::default() };
        Ok(self.finish(packet, state, &contents, request, verdict, now))
    }

    /// A packet without a connection.
    fn unknown(&self, packet: &Headers, request: &Request, now: Time) -> Step {
        let invalid = |why| {
            let metadata = self.malformed(request.zone);
            Ok(Verdict { metadata, invalid: Some(why), ..Verdict::default() })
        };
        if matches!(packet.upper, Upper::Error(_)) {
            return invalid(Invalid::NoConnection);
        }
        // 5.
        let (protocol, timeout) = match first_state(&packet.tuple, packet.segment()) {
            Ok(first) => first,
            Err(why) => return invalid(why),
        };
        let expected = self.expectations.find(&packet.tuple, now, |parent| self.table.read(parent).is_some());
        let mut state = CtState::NEW;
        if expected.is_some() {
            state |= CtState::REL;
        }
        let metadata = Metadata {
            state: state | CtState::TRK,
            zone: request.zone,
            mark: expected.map_or(0, |expected| expected.mark),
            label: expected.map_or(0, |expected| expected.label),
            orig: Some(expected.map_or(packet.tuple, |expected| expected.parent)),
        };
        let mut verdict = Verdict { metadata, ..Verdict::default() };
        if !(request.commit || request.force) {
            return Ok(verdict);
        }
        let helper = request.helper.map_or(0, |helper| match helper {
            Helper::Ftp => flags::FTP,
            Helper::Tftp => flags::TFTP,
        });
        let new = Contents {
            orig: packet.tuple,
            reply: packet.tuple.reverse(),
            protocol,
            mark: metadata.mark,
            label: metadata.label,
            flags: helper | if expected.is_some() { flags::RELATED } else { 0 },
            policy: request.policy,
            parent: expected.map(|expected| expected.parent),
            skew: Default::default(),
        };
        match self.make(new, request, expected.as_ref(), timeout, now) {
            Ok((connection, contents)) => {
                verdict.connection = self.table.read(connection).map(|(_, found)| found);
                Ok(self.finish(packet, state, &contents, request, verdict, now))
            }
            Err(Refused::Exists(found)) => Err(Some(found)),
            Err(why) => {
                verdict.refused = Some(why);
                Ok(verdict)
            }
        }
    }

    /// Makes a connection with the first translation that nobody has.
    fn make(
        &self,
        new: Contents,
        request: &Request,
        expected: Option<&Expectation>,
        timeout: crate::timeout::Timeout,
        now: Time,
    ) -> Result<(crate::table::Reference, Contents), Refused> {
        let try_insert = |contents: Contents| {
            let mut made = self.table.insert(&contents, timeout, now);
            if made == Err(Refused::Full)
                && self.has_option(EARLY_DROP)
                && self.table.drop_early(self.table.hash(&contents.orig))
            {
                made = self.table.insert(&contents, timeout, now);
            }
            made.map(|connection| (connection, contents))
        };
        match (request.nat, expected) {
            (Some(_), Some(Expectation { replacement: Some(replacement), .. })) => {
                try_insert(replaced(new, replacement))
            }
            (Some(Translate::New(nat)), None) => {
                let flag = if nat.side == Side::Src { flags::SNAT } else { flags::DNAT };
                let random = self.random.fetch_add(1, Ordering::Relaxed);
                let random = self.table.hasher().pair([random, now.0], 0);
                for reply in nat.candidates(&new.orig, self.table.hasher(), random) {
                    if self.table.find(&reply, now).is_some() {
                        continue;
                    }
                    match try_insert(Contents { reply, flags: new.flags | flag, ..new }) {
                        Err(Refused::ReplyTaken) => {}
                        made => return made,
                    }
                }
                Err(Refused::ReplyTaken)
            }
            _ => try_insert(new),
        }
    }

    /// Steps 6 and 7.
    fn finish(
        &self,
        packet: &Headers,
        mut state: CtState,
        contents: &Contents,
        request: &Request,
        mut verdict: Verdict,
        now: Time,
    ) -> Verdict {
        let Some(found) = verdict.connection else { return verdict };
        let translated = state.any(CtState::SNAT | CtState::DNAT);
        if request.nat.is_some() && !translated && verdict.invalid.is_none() {
            let bits = match (contents.flags & (flags::SNAT | flags::DNAT), found.reply) {
                (flags::SNAT, false) | (flags::DNAT, true) => CtState::SNAT,
                (flags::DNAT, false) | (flags::SNAT, true) => CtState::DNAT,
                _ => CtState::NONE,
            };
            state |= bits;
            verdict.translation = translation(packet, contents, found.reply);
        }
        let (mark, label) = match self.table.mark(found.connection, request.mark, request.label) {
            Some(now) => now,
            None => (contents.mark, contents.label),
        };
        if verdict.invalid.is_none() && !matches!(packet.upper, Upper::Error(_)) {
            verdict.helper = match contents.flags {
                bits if bits & flags::FTP != 0 => Some(Helper::Ftp),
                bits if bits & flags::TFTP != 0 && !found.reply => Some(Helper::Tftp),
                _ => None,
            };
            let [own, other] = if found.reply { [1, 0] } else { [0, 1] };
            if let (Upper::Tcp(segment), true) = (&packet.upper, request.nat.is_some()) {
                let seq = contents.skew[own].of_sequence(segment.seq);
                let ack = -contents.skew[other].of_acknowledgement(segment.ack);
                verdict.sequence = (seq != 0 || ack != 0).then_some((seq, ack));
            }
        }
        if verdict.helper == Some(Helper::Tftp) {
            self.expect_tftp(contents, found, now);
        }
        verdict.metadata = Metadata {
            state: state | CtState::TRK,
            zone: request.zone,
            mark,
            label,
            orig: Some(contents.parent.unwrap_or(contents.orig)),
        };
        verdict
    }
}

impl Tracker {
    /// The answer to a TFTP request comes from another port of the server (RFC 1350 section 4).
    fn expect_tftp(&self, contents: &Contents, found: Found, now: Time) {
        let ports = (contents.reply.port(Side::Dst), contents.orig.port(Side::Src));
        self.expect(contents, found, ports, now);
    }

    /// Expects a connection to the end that sent the packet: to a port as the other end sees it, and as the sender has it.
    fn expect(&self, contents: &Contents, found: Found, (seen, own): (u16, u16), now: Time) {
        let (tuple, replacement) = announced(&contents.orig, &contents.reply, found.reply, seen, own);
        let Contents { mark, label, .. } = *contents;
        let expectation = Expectation { parent: contents.orig, mark, label, replacement };
        self.expectations.expect(&tuple, found.connection, expectation, now);
    }

    /// Looks at the data of a segment of an FTP control connection: expects what it announces, and tells how its text has to
    /// change where `translate` is set. A segment that is not what it begins as is invalid.
    pub fn ftp(
        &self,
        found: &Found,
        segment: &Segment,
        data: &[u8],
        translate: bool,
        now: Time,
    ) -> Result<Option<ftp::Edit>, ftp::Malformed> {
        let Some((contents, _)) = self.table.read(found.connection) else { return Ok(None) };
        let Some(announcement) = ftp::parse(data, found.reply, contents.orig.is_v6())? else { return Ok(None) };
        // The address of the one who announces, and that under which the other end knows it.
        let (own, seen) = match found.reply {
            false => (contents.orig.src(), contents.reply.dst()),
            true => (contents.reply.src(), contents.orig.dst()),
        };
        let mut edit = None;
        if let Some((address, range)) = &announcement.address {
            if *address != own && *address != seen {
                return Err(ftp::Malformed);
            }
            if translate && *address != seen {
                edit = Some(announcement.edit(range.clone(), seen));
            }
        }
        self.expect(&contents, *found, (announcement.port, announcement.port), now);
        if let Some(edit) = &edit
            && edit.added() != 0
        {
            let end = segment.seq.wrapping_add(segment.len);
            self.table.change_skew(found, edit.added(), end);
        }
        Ok(edit)
    }
}

/// A packet's verdict, or what to go on with where the connection has ended meanwhile, or another packet has made it.
type Step = Result<Verdict, Option<Found>>;

/// A segment with the acknowledgement number of the bytes that the other end has sent, before a helper changed their
/// length.
fn skewed(segment: &Segment, reply: bool, skew: &[Skew; 2]) -> Segment {
    let acknowledged = skew[usize::from(!reply)].of_acknowledgement(segment.ack);
    Segment { ack: segment.ack.wrapping_add_signed(-acknowledged), ..*segment }
}

/// The connection with an end of its replies replaced.
fn replaced(new: Contents, (side, address, port): &(Side, IpAddr, u16)) -> Contents {
    let mut reply = new.reply;
    reply.set_address(*side, *address);
    if *port != 0 {
        reply.set_port(*side, *port);
    }
    // Who receives replies is the source.
    let flag = if *side == Side::Dst { flags::SNAT } else { flags::DNAT };
    Contents { reply, flags: new.flags | flag, ..new }
}

/// What a packet of a direction becomes, and what an ICMP error quotes.
fn translation(packet: &Headers, contents: &Contents, reply: bool) -> Option<(Translation, Option<Translation>)> {
    let (from, to) = match reply {
        false => (contents.orig, contents.reply.reverse()),
        true => (contents.reply, contents.orig.reverse()),
    };
    let outside = Translation::between(&from, &to)?;
    let inside = match packet.upper {
        Upper::Error(_) => Translation::between(&from.reverse(), &to.reverse()),
        _ => None,
    };
    Some((outside, inside))
}
