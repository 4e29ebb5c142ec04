//! A bond whose members speak LACP.

pub mod selection;

use std::collections::BTreeMap;
use std::time::Duration;

use weir_time::Time;

use super::pdu::{FRAME_LEN, Info, Lacpdu, SlowPdu, State};
use crate::ethernet::Mac;
use crate::registry::Session;

/// Fast_Periodic_Time (5.4.4).
pub const FAST_PERIODIC: Duration = Duration::from_secs(1);
/// Slow_Periodic_Time (5.4.4).
pub const SLOW_PERIODIC: Duration = Duration::from_secs(30);
/// How many periods without a PDU a partner's information stands.
pub const TIMEOUT_PERIODS: u32 = 3;
/// Most PDUs of a member in one [`FAST_PERIODIC`] (5.4.16).
pub const TX_LIMIT: usize = 3;

/// What of a bond is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Name of the port.
    pub name: String,
    /// `lacp-system-id`, or the bridge's address; not zero.
    pub system_id: Mac,
    /// `lacp-system-priority`.
    pub system_priority: u16,
    /// `lacp=active`: members send also to partners that have not sent.
    pub active: bool,
    /// `lacp-time=fast`: a partner is to send each second.
    pub fast: bool,
    /// `lacp-fallback-ab`: members without a partner may carry traffic while no member has one.
    pub fallback_ab: bool,
    /// Several members are configured. They come one after the other, and the first one's first PDU says that it can be aggregated.
    pub aggregates: bool,
}

/// A member, by a number of the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u32);

/// What of a member is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberSettings {
    /// Name of the interface.
    pub name: String,
    /// Source address of its PDUs.
    pub mac: Mac,
    /// `lacp-port-id`.
    pub port_id: u16,
    /// `lacp-port-priority`.
    pub port_priority: u16,
    /// `lacp-aggregation-key`; 0 for the default, the port id of the bond's first member.
    pub key: u16,
}

/// What is known of a member's partner: state of the receive machine (5.4.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The partner has sent in time.
    Current,
    /// It has not; what is known of it is out of date.
    Expired,
    /// There is none.
    Defaulted,
}

/// Counters of a member, with the names that `lacp/show-stats` has for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// dot3adAggPortStatsLACPDUsTx.
    pub tx_pdus: u64,
    /// Frames received, of all kinds.
    pub rx_pdus: u64,
    /// dot3adAggPortStatsIllegalRx.
    pub rx_bad_pdus: u64,
    /// dot3adAggPortStatsMarkerPDUsRx.
    pub rx_marker_pdus: u64,
    /// How often the partner's information went out of date.
    pub link_expired: u64,
    /// How often it was given up after that.
    pub link_defaulted: u64,
    /// How often the carrier went or came.
    pub carrier_changed: u64,
}

/// What has become of a member in a [`Aggregator::run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// No PDU came in time.
    Expired(MemberId),
    /// None came after that, either.
    Defaulted(MemberId),
    /// The member is connected to its own bond: its partner has the bond's system id. Said when that begins.
    Loopback(MemberId),
    /// [`Aggregator::may_enable`] has another answer now.
    MayEnable(MemberId, bool),
    /// [`Aggregator::negotiated`] has another answer now.
    Negotiated(bool),
}

/// What a [`Aggregator::run`] asks of its caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Frames to send by members.
    pub frames: Vec<(MemberId, [u8; FRAME_LEN])>,
    /// What has changed.
    pub events: Vec<Event>,
}

/// Why a frame changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// No member has this number.
    #[error("LACP: no member {0} in this bond")]
    NoMember(u32),
    /// The frame is no LACPDU.
    #[error("{0}")]
    Malformed(#[from] packet::wire::Error),
    /// The frame is of the marker protocol, which has no answer here.
    #[error("LACP: a PDU of the marker protocol, which is counted and not answered")]
    Marker,
    /// The carrier is thought to be down: the caller should look at the device again.
    #[error("LACP: a PDU by a member whose carrier is down")]
    NoCarrier,
}

/// A bond.
#[derive(Debug)]
pub struct Aggregator {
    pub(super) settings: Settings,
    pub(super) members: BTreeMap<MemberId, Member>,
    /// The member whose key all members have.
    pub(super) key_member: Option<MemberId>,
    pub(super) negotiated: bool,
    /// System and key of the partner that the attached members had when they were selected last.
    pub(super) partner: Option<(Mac, u16)>,
    /// Whether something has changed that selection looks at.
    update: bool,
}

/// A link of the bond.
#[derive(Debug)]
pub(super) struct Member {
    pub settings: MemberSettings,
    pub status: Status,
    pub attached: bool,
    pub loopback: bool,
    pub carrier: bool,
    /// The partner's end, as it said last.
    pub partner: Info,
    /// This end, as the partner knows it or will know it by the last PDU.
    told: Info,
    /// When `status` changes for want of a PDU, unless it is `Defaulted`.
    rx_deadline: Time,
    /// When the last PDUs were sent, the latest first.
    sent: [Option<Time>; TX_LIMIT],
    /// What the last event said.
    may_enable_said: bool,
    pub counters: Counters,
}

impl Aggregator {
    /// A bond without members.
    pub fn new(settings: Settings) -> Aggregator {
        Aggregator {
            settings,
            members: BTreeMap::new(),
            key_member: None,
            negotiated: false,
            partner: None,
            update: false,
        }
    }

    /// Changes the settings. Members that have other settings now say so with the next [`Aggregator::run`].
    pub fn configure(&mut self, settings: Settings) {
        self.update |= self.settings != settings;
        self.settings = settings;
    }

    /// What is configured.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Adds a member, with the state of its carrier, or changes its settings.
    pub fn set_member(&mut self, now: Time, id: MemberId, settings: MemberSettings, carrier: bool) {
        let (active, negotiated) = (self.settings.active, self.negotiated);
        self.key_member.get_or_insert(id);
        let identity = |settings: &MemberSettings| (settings.port_id, settings.port_priority, settings.key);
        let is_new = self.members.get(&id).is_none_or(|member| identity(&member.settings) != identity(&settings));
        let member = self.members.entry(id).or_insert_with(|| Member::new(settings.clone(), carrier));
        member.settings = settings;
        if is_new {
            if active || negotiated {
                member.set_expired(now);
            }
            self.update = true;
        }
        self.set_carrier(now, id, carrier);
    }

    /// Takes a member away.
    pub fn remove_member(&mut self, id: MemberId) {
        self.update |= self.members.remove(&id).is_some();
        if self.key_member == Some(id) {
            self.key_member = self.members.keys().next().copied();
        }
    }

    /// Says that a member's carrier has come or gone.
    pub fn set_carrier(&mut self, now: Time, id: MemberId, up: bool) {
        let Some(member) = self.members.get_mut(&id).filter(|member| member.carrier != up) else { return };
        member.carrier = up;
        member.counters.carrier_changed += 1;
        if member.status == Status::Current || self.settings.active {
            member.set_expired(now);
        }
        self.update = true;
    }

    /// Takes a frame of type [`super::pdu::ETHERTYPE`] that a member has received. Returns whether that member may
    /// carry traffic: the caller need not wait for [`Aggregator::run`] to let traffic in.
    pub fn receive(&mut self, now: Time, id: MemberId, frame: &[u8]) -> Result<bool, ReceiveError> {
        let fallback_ab = self.settings.fallback_ab;
        let member = self.members.get_mut(&id).ok_or(ReceiveError::NoMember(id.0))?;
        member.counters.rx_pdus += 1;
        let pdu = match SlowPdu::new_checked(frame) {
            Ok(SlowPdu::Lacp(pdu)) => pdu,
            Ok(SlowPdu::Marker) => {
                member.counters.rx_marker_pdus += 1;
                return Err(ReceiveError::Marker);
            }
            Err(error) => {
                member.counters.rx_bad_pdus += 1;
                return Err(error.into());
            }
        };
        if !member.carrier {
            return Err(ReceiveError::NoCarrier);
        }
        self.update |= member.partner != pdu.actor || member.status != Status::Current;
        member.status = Status::Current;
        member.rx_deadline = now + TIMEOUT_PERIODS * periodic(self.settings.fast);
        member.partner = pdu.actor;
        member.told = pdu.partner;
        // What is attached was selected for another partner where this one is new.
        Ok(self.partner == Some((member.partner.system_id, member.partner.key)) && member.may_enable(fallback_ab))
    }

    /// Does what the time asks for: lets partners expire, selects members, and sends.
    pub fn run(&mut self, now: Time) -> Outcome {
        let mut outcome = Outcome::default();
        for (id, member) in &mut self.members {
            if let Some(event) = member.expire(now, *id) {
                outcome.events.push(event);
                self.update = true;
            }
        }
        if std::mem::take(&mut self.update) {
            selection::select(self, &mut outcome.events);
        }
        let fallback_ab = self.settings.fallback_ab;
        for (id, member) in &mut self.members {
            let may_enable = member.may_enable(fallback_ab);
            if may_enable != std::mem::replace(&mut member.may_enable_said, may_enable) {
                outcome.events.push(Event::MayEnable(*id, may_enable));
            }
        }
        self.transmit(now, &mut outcome.frames);
        outcome
    }

    fn transmit(&mut self, now: Time, frames: &mut Vec<(MemberId, [u8; FRAME_LEN])>) {
        let is_due = |id: &MemberId| self.tx_deadline(*id).is_some_and(|at| at <= now);
        let due: Vec<MemberId> = self.members.keys().copied().filter(is_due).collect();
        for id in due {
            let actor = self.actor(id);
            let Some(member) = self.members.get_mut(&id) else { continue };
            frames.push((id, Lacpdu { actor, partner: member.partner }.emit(member.settings.mac)));
            member.told = actor;
            member.sent.rotate_right(1);
            member.sent[0] = Some(now);
            member.counters.tx_pdus += 1;
        }
    }

    /// When a member sends next, where it sends at all.
    fn tx_deadline(&self, id: MemberId) -> Option<Time> {
        let member = self.members.get(&id)?;
        if !member.carrier || !self.settings.active && member.status == Status::Defaulted {
            return None;
        }
        let period = periodic(member.partner.state.contains(State::TIMEOUT));
        let due = match member.sent[0] {
            Some(last) if told_enough(&self.actor(id), &member.told) => last + period,
            _ => Time::default(),
        };
        // What is out of date is sent as soon as the limit lets it.
        Some(member.sent[TX_LIMIT - 1].map_or(due, |earlier| due.max(earlier + FAST_PERIODIC)))
    }

    /// The state that is configured for this end of each link.
    pub fn configured_state(&self) -> State {
        let mut state = State::AGGREGATION;
        state.set(State::ACTIVITY, self.settings.active);
        state.set(State::TIMEOUT, self.settings.fast);
        state
    }

    /// This end of a member's link, as its PDUs say it.
    pub(super) fn actor(&self, id: MemberId) -> Info {
        let Some(member) = self.members.get(&id) else { return Info::default() };
        let mut state = State::empty();
        state.set(State::ACTIVITY, self.settings.active);
        state.set(State::TIMEOUT, self.settings.fast);
        state.set(State::AGGREGATION, self.settings.aggregates || self.members.len() > 1);
        state.set(State::SYNCHRONIZED, member.attached);
        state.set(State::COLLECTING | State::DISTRIBUTING, member.attached || !self.negotiated);
        state.set(State::DEFAULTED, member.status == Status::Defaulted);
        state.set(State::EXPIRED, member.status == Status::Expired);
        Info {
            system_priority: self.settings.system_priority,
            system_id: self.settings.system_id,
            key: self.key().unwrap_or(0),
            port_priority: member.settings.port_priority,
            port_id: member.settings.port_id,
            state,
        }
    }

    /// The members.
    pub fn members(&self) -> impl Iterator<Item = MemberId> {
        self.members.keys().copied()
    }

    /// The key of all members; `None` where there is none.
    pub fn key(&self) -> Option<u16> {
        let member = self.members.get(&self.key_member?)?;
        Some(if member.settings.key == 0 { member.settings.port_id } else { member.settings.key })
    }

    /// Whether a partner was found: `lacp_status` is `negotiated`, otherwise `configured`.
    pub fn negotiated(&self) -> bool {
        self.negotiated
    }

    /// Whether a member may carry traffic: it is attached and its partner is synchronized, or it has no partner and the
    /// bond falls back.
    pub fn may_enable(&self, id: MemberId) -> bool {
        self.members.get(&id).is_some_and(|member| member.may_enable(self.settings.fallback_ab))
    }

    /// Column `lacp_current`: whether what is known of a member's partner is not a default.
    pub fn is_current(&self, id: MemberId) -> bool {
        self.members.get(&id).is_some_and(|member| member.status != Status::Defaulted)
    }

    /// State of a member's receive machine.
    pub fn status(&self, id: MemberId) -> Option<Status> {
        self.members.get(&id).map(|member| member.status)
    }

    /// Both ends of a member's link: this one, and the partner's as it said last.
    pub fn ends(&self, id: MemberId) -> Option<(Info, Info)> {
        self.members.get(&id).map(|member| (self.actor(id), member.partner))
    }

    /// A member's counters.
    pub fn counters(&self, id: MemberId) -> Option<Counters> {
        self.members.get(&id).map(|member| member.counters)
    }
}

impl Session for Aggregator {
    fn next_wakeup(&self) -> Option<Time> {
        if self.update {
            return Some(Time::default());
        }
        let expiry = |member: &Member| (member.status != Status::Defaulted).then_some(member.rx_deadline);
        let deadlines = self.members.iter().flat_map(|(id, member)| [self.tx_deadline(*id), expiry(member)]);
        deadlines.flatten().min()
    }
}

impl Member {
    fn new(settings: MemberSettings, carrier: bool) -> Member {
        Member {
            settings,
            status: Status::Defaulted,
            attached: false,
            loopback: false,
            carrier,
            partner: Info::default(),
            told: Info::default(),
            rx_deadline: Time::default(),
            sent: [None; TX_LIMIT],
            may_enable_said: false,
            counters: Counters::default(),
        }
    }

    /// Receive machine, state EXPIRED: the partner is asked to hurry, and no longer counts as synchronized.
    fn set_expired(&mut self, now: Time) {
        self.status = Status::Expired;
        self.partner.state.insert(State::TIMEOUT);
        self.partner.state.remove(State::SYNCHRONIZED);
        self.rx_deadline = now + TIMEOUT_PERIODS * FAST_PERIODIC;
    }

    fn expire(&mut self, now: Time, id: MemberId) -> Option<Event> {
        if self.status == Status::Defaulted || now < self.rx_deadline {
            return None;
        }
        if self.status == Status::Current {
            self.set_expired(now);
            self.counters.link_expired += 1;
            return Some(Event::Expired(id));
        }
        self.status = Status::Defaulted;
        self.partner = Info::default();
        self.counters.link_defaulted += 1;
        Some(Event::Defaulted(id))
    }

    pub fn may_enable(&self, fallback_ab: bool) -> bool {
        let fallback = fallback_ab && self.status == Status::Defaulted;
        self.attached && (self.partner.state.contains(State::SYNCHRONIZED) || fallback)
    }
}

/// Period of transmission to a partner that wishes PDUs fast or not.
fn periodic(fast: bool) -> Duration {
    if fast { FAST_PERIODIC } else { SLOW_PERIODIC }
}

/// Whether a partner that believes `told` of an end need not hear `actual` before the next period (5.4.9, update_NTT).
fn told_enough(actual: &Info, told: &Info) -> bool {
    let compared = State::ACTIVITY | State::TIMEOUT | State::SYNCHRONIZED | State::AGGREGATION;
    Info { state: actual.state & compared, ..*actual } == Info { state: told.state & compared, ..*told }
}
