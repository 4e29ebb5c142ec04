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
use packet::wire::ip_proto;

use crate::headers::{Headers, Upper};
use crate::helpers::sequence::Shift;
use crate::helpers::{Expectation, Expectations, Helper, announced, ftp};
use crate::nat::{Nat, Translation};
use crate::protocol::tcp::Segment;
use crate::protocol::{Invalid, Update};
use crate::state::CtState;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::table::slot::{Brief, Contents, Skew, flags};
use crate::table::{Found, Refused, Table, first_state};
use crate::timeout::has_policy;
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
    /// The timeout policy that a new connection gets, by its number; one whose protocol [has none](has_policy), the default.
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
    /// How the segment's numbers are shifted, since a helper has changed the length of what was sent.
    pub sequence: Option<Shift>,
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

    /// What [`set_liberal`](Tracker::set_liberal) was told.
    pub fn is_liberal(&self) -> bool {
        self.has_option(LIBERAL)
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
    #[inline]
    pub fn track(&self, packet: &Headers, before: &Metadata, request: &Request, now: Time) -> Verdict {
        let mut verdict = Verdict::default();
        self.track_hashed(packet, self.table.hash(&packet.tuple), before, request, now, &mut verdict);
        verdict
    }

    /// As [`track`](Tracker::track), for a packet the hash of whose tuple is known; the verdict goes where the caller wants it, over
    /// whatever is there.
    ///
    /// For a batch: [`Table::prefetch`] for the hashes of all, then [`Table::prefetch_connection`] for all, then this.
    pub fn track_hashed(
        &self,
        packet: &Headers,
        hash: u64,
        before: &Metadata,
        request: &Request,
        now: Time,
        verdict: &mut Verdict,
    ) {
        *verdict = Verdict::default();
        // 1.
        let state = if before.zone == request.zone { before.state } else { CtState::NONE };
        // 2.
        let mut found = if state.any(CtState::SNAT | CtState::DNAT) {
            self.find_translated(packet, before, request, now)
        } else {
            self.table.find_hashed(&packet.tuple, hash, now)
        };
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
            let step = match &found {
                Some(found) => self.known(packet, state, found, request, now, verdict),
                None => self.unknown(packet, request, now, verdict),
            };
            match step {
                Ok(()) => return,
                Err(again) => found = again,
            }
        }
        verdict.metadata = self.malformed(request.zone);
    }

    /// The connection of a packet that was translated: its answer would come to the tuple that it has now.
    #[inline(never)]
    fn find_translated(&self, packet: &Headers, before: &Metadata, request: &Request, now: Time) -> Option<Found> {
        let other_way = |found: Found| Found { reply: !found.reply, ..found };
        let translated = self.table.find(&packet.tuple.reverse(), now).map(other_way);
        if translated.is_some() || request.nat.is_some() {
            return translated;
        }
        before.orig.and_then(|orig| self.table.find(&orig, now))
    }

    /// A packet of a connection.
    #[inline(always)]
    fn known(
        &self,
        packet: &Headers,
        state: CtState,
        found: &Found,
        request: &Request,
        now: Time,
        verdict: &mut Verdict,
    ) -> Step {
        let Some(connection) = self.table.brief(found.connection) else { return Err(None) };
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
            let update = match (&packet.upper, &connection.skew) {
                (Upper::Tcp(segment), None) => self.table.step_tcp(found, segment, liberal, now),
                (Upper::Tcp(segment), Some(skew)) => {
                    self.table.step_tcp(found, &skewed(segment, found.reply, &{ *skew }), liberal, now)
                }
                _ => self.table.step_simple(&packet.tuple, found, now),
            };
            if connection.flags & flags::RELATED != 0 {
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
        verdict.connection = Some(*found);
        verdict.invalid = invalid;
        self.finish(packet, state, &connection, request, now, verdict);
        Ok(())
    }

    /// A packet without a connection.
    #[inline(never)]
    fn unknown(&self, packet: &Headers, request: &Request, now: Time, verdict: &mut Verdict) -> Step {
        // 5.
        let first = match packet.upper {
            Upper::Error(_) => Err(Invalid::NoConnection),
            _ => first_state(&packet.tuple, packet.segment()),
        };
        let (protocol, timeout) = match first {
            Ok(first) => first,
            Err(why) => {
                // As in Open vSwitch, its own tuple stands for that of the connection which it does not have.
                verdict.metadata = Metadata { orig: Some(packet.tuple), ..self.malformed(request.zone) };
                verdict.invalid = Some(why);
                return Ok(());
            }
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
        verdict.metadata = metadata;
        if !(request.commit || request.force) {
            return Ok(());
        }
        let helper = match (request.helper, packet.tuple.proto()) {
            (Some(Helper::Ftp), ip_proto::TCP) => flags::FTP,
            (Some(Helper::Tftp), ip_proto::UDP) => flags::TFTP,
            _ => 0,
        };
        let new = Contents {
            mark: metadata.mark,
            label: metadata.label,
            flags: helper | if expected.is_some() { flags::RELATED } else { 0 },
            policy: if has_policy(packet.tuple.proto()) { request.policy } else { 0 },
            parent: expected.map(|expected| expected.parent),
            ..Contents::new(packet.tuple, protocol)
        };
        match self.make(new, request, expected.as_ref(), timeout, now) {
            Ok((connection, contents)) => {
                verdict.connection = Some(Found::new(connection));
                self.finish(packet, state, &Brief::from(&contents), request, now, verdict);
                Ok(())
            }
            Err(Refused::Exists(found)) => Err(Some(found)),
            Err(why) => {
                verdict.refused = Some(why);
                Ok(())
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
    #[inline(always)]
    fn finish(
        &self,
        packet: &Headers,
        mut state: CtState,
        connection: &Brief,
        request: &Request,
        now: Time,
        verdict: &mut Verdict,
    ) {
        let Some(found) = verdict.connection else { return };
        let translated = state.any(CtState::SNAT | CtState::DNAT);
        if request.nat.is_some() && !translated && verdict.invalid.is_none() {
            let bits = match (connection.flags & (flags::SNAT | flags::DNAT), found.reply) {
                (flags::SNAT, false) | (flags::DNAT, true) => CtState::SNAT,
                (flags::DNAT, false) | (flags::SNAT, true) => CtState::DNAT,
                _ => CtState::NONE,
            };
            state |= bits;
            verdict.translation = connection
                .translated
                .and_then(|replies| translation(packet, &{ connection.orig }, &{ replies }, found.reply));
        }
        let sets = request.mark.is_some() || request.label.is_some();
        let set = || self.table.mark(found.connection, request.mark, request.label);
        let (mark, label) = sets.then(set).flatten().unwrap_or((connection.mark, connection.label));
        if verdict.invalid.is_none() && !matches!(packet.upper, Upper::Error(_)) {
            verdict.helper = match connection.flags {
                bits if bits & flags::FTP != 0 => Some(Helper::Ftp),
                bits if bits & flags::TFTP != 0 && !found.reply => Some(Helper::Tftp),
                _ => None,
            };
            if let (Upper::Tcp(segment), Some(skew), true) = (&packet.upper, &connection.skew, request.nat.is_some()) {
                verdict.sequence = Shift::of(segment, found.reply, skew);
            }
        }
        if verdict.helper == Some(Helper::Tftp) {
            // A copy, so that the connection stays in registers otherwise.
            self.expect_tftp(&{ *connection }, found, now);
        }
        verdict.metadata = Metadata {
            state: state | CtState::TRK,
            zone: request.zone,
            mark,
            label,
            orig: Some(match connection.parent {
                None => connection.orig,
                Some(parent) => parent,
            }),
        };
    }
}

impl Tracker {
    /// The answer to a TFTP request comes from another port of the server (RFC 1350 section 4).
    fn expect_tftp(&self, connection: &Brief, found: Found, now: Time) {
        let ports = (connection.reply().port(Side::Dst), connection.orig.port(Side::Src));
        self.expect(connection, found, ports, now);
    }

    /// Expects a connection to the end that sent the packet: to a port as the other end sees it, and as the sender has it.
    fn expect(&self, connection: &Brief, found: Found, (seen, own): (u16, u16), now: Time) {
        let (tuple, replacement) = announced(&connection.orig, &connection.reply(), found.reply, seen, own);
        let Brief { mark, label, .. } = *connection;
        let expectation = Expectation { parent: connection.orig, mark, label, replacement };
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
        let Some(connection) = self.table.brief(found.connection) else { return Ok(None) };
        let Some(announcement) = ftp::parse(data, found.reply, connection.orig.is_v6())? else { return Ok(None) };
        let reply = connection.reply();
        // The address of the one who announces, and that under which the other end knows it.
        let (own, seen) = match found.reply {
            false => (connection.orig.src(), reply.dst()),
            true => (reply.src(), connection.orig.dst()),
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
        self.expect(&connection, *found, (announcement.port, announcement.port), now);
        if let Some(edit) = &edit
            && edit.added() != 0
        {
            let end = segment.seq.wrapping_add(segment.len);
            self.table.change_skew(found, edit.added(), end);
        }
        Ok(edit)
    }
}

/// The verdict is there; or what to go on with where the connection has ended meanwhile, or another packet has made it.
type Step = Result<(), Option<Found>>;

/// A segment with the acknowledgement number of the bytes that the other end has sent, before a helper changed their
/// length.
fn skewed(segment: &Segment, reply: bool, skew: &[Skew; 2]) -> Segment {
    Segment { ack: skew[usize::from(!reply)].as_sent(segment.ack), ..*segment }
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
fn translation(
    packet: &Headers,
    orig: &Tuple,
    replies: &Tuple,
    reply: bool,
) -> Option<(Translation, Option<Translation>)> {
    let (from, to) = match reply {
        false => (*orig, replies.reverse()),
        true => (*replies, orig.reverse()),
    };
    let outside = Translation::between(&from, &to)?;
    let inside = match packet.upper {
        Upper::Error(_) => Translation::between(&from.reverse(), &to.reverse()),
        _ => None,
    };
    Some((outside, inside))
}
