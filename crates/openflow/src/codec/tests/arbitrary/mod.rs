//! Messages with everything that they can say, for round trips. What an encoding cannot say is not
//! generated for it.

mod action;
mod flow;
mod group;
mod matching;
mod monitor;
mod stats;
mod switch;

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;

use crate::*;

pub use flow::{flow_mod, packet};
pub use group::group;
pub use monitor::monitor;
pub use stats::{reply, request};
pub use switch::small;

pub fn version() -> impl Strategy<Value = Version> {
    select(&Version::ALL[..])
}

pub fn port() -> impl Strategy<Value = OfPort> {
    prop_oneof![(0u32..0xff00).prop_map(OfPort), Just(OfPort::LOCAL)]
}

fn out_port() -> impl Strategy<Value = OfPort> {
    prop_oneof![port(), select(vec![OfPort::IN_PORT, OfPort::NORMAL, OfPort::FLOOD, OfPort::ALL, OfPort::CONTROLLER])]
}

fn dialect(version: Version) -> impl Strategy<Value = Dialect> {
    let nicira = if version == Version::V1_0 { Dialect::Nicira } else { Dialect::Standard };
    select(vec![Dialect::Standard, nicira])
}

/// A version and dialect, and what can be made of them.
fn with_dialect<T: std::fmt::Debug + 'static, S: Strategy<Value = T> + 'static>(
    f: impl Fn(Version, Dialect) -> S + Clone + 'static,
) -> impl Strategy<Value = (Version, Dialect, T)> {
    version().prop_flat_map(|v| (Just(v), dialect(v))).prop_flat_map(move |(v, d)| (Just(v), Just(d), f(v, d)))
}

fn message((version, dialect, body): (Version, Dialect, Body)) -> Message {
    Message { version, xid: 0x1234_5678, dialect, body }
}

type Said = BoxedStrategy<(Dialect, Body)>;

fn standard(s: impl Strategy<Value = Body> + 'static) -> Said {
    s.prop_map(|b| (Dialect::Standard, b)).boxed()
}

fn duration() -> impl Strategy<Value = Duration> {
    (any::<u32>(), 0u32..1_000_000_000).prop_map(|(s, n)| Duration::new(s.into(), n))
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..200)
}

pub fn any_message() -> impl Strategy<Value = Message> {
    prop_oneof![flow_mod(), packet(), small(), request(), reply(), group(), monitor()]
}
