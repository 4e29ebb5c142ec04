//! Ending many connections, in portions: others work in between.

use ::conntrack::filter::Filter;
use packet::Time;

use super::Conntrack;

/// Connections that a portion looks at.
const PORTION: usize = 256;

/// A flush that goes on. It takes no memory, and holds no lock between its steps.
#[derive(Clone, Debug)]
pub struct Flush {
    filter: Filter,
    cursor: u32,
    /// Connections that were removed.
    pub removed: u64,
}

impl Flush {
    /// Ends the connections that a filter leaves. One that is made meanwhile may stay.
    pub fn new(filter: Filter) -> Flush {
        Flush { filter, cursor: 0, removed: 0 }
    }

    /// Looks at some connections; whether there are more.
    pub fn step(&mut self, conntrack: &Conntrack) -> bool {
        let filter = &self.filter;
        let table = &conntrack.tracker.table;
        table.flush(&mut self.cursor, PORTION, &mut self.removed, |contents| filter.matches(contents))
    }
}

/// What became of a flush of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushOne {
    /// The filter names more than one: it is for [`Flush`].
    Many,
    /// The connection is removed.
    Removed,
    /// There is no such connection, or the tuple is that of the replies of a translated one.
    NotFound,
}

impl Conntrack {
    /// Ends the connection whose tuple a filter has as a whole, without looking at others.
    pub fn flush_one(&self, filter: &Filter, now: Time) -> FlushOne {
        let Some(tuple) = filter.whole() else { return FlushOne::Many };
        let table = &self.tracker.table;
        let Some(found) = table.find(&tuple, now) else { return FlushOne::NotFound };
        let Some((contents, _)) = table.read(found.connection) else { return FlushOne::NotFound };
        let named = !found.reply || contents.reply == contents.orig.reverse();
        if named && table.remove(found.connection) { FlushOne::Removed } else { FlushOne::NotFound }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use ::conntrack::filter::TupleFilter;
    use ::conntrack::table::slot::{Contents, Protocol};
    use ::conntrack::timeout::Timeout;
    use ::conntrack::{Tuple, protocol::simple::Seen};

    use super::*;

    fn add(conntrack: &Conntrack, port: u16, zone: u16, translated: Option<u16>) -> Tuple {
        let [client, server]: [IpAddr; 2] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        let orig = Tuple::new(client, server, 17, (port, 53), zone).unwrap();
        let reply = Tuple::new(server, client, 17, (53, translated.unwrap_or(port)), zone).unwrap();
        let contents = Contents { reply, ..Contents::new(orig, Protocol::Simple(Seen::First)) };
        conntrack.tracker.table.insert(&contents, Timeout::UdpFirst, Time(1)).unwrap();
        reply
    }

    fn whole(tuple: &Tuple) -> Filter {
        let [src_port, dst_port] =
            [::conntrack::tuple::Side::Src, ::conntrack::tuple::Side::Dst].map(|s| Some(tuple.port(s)));
        let orig = TupleFilter {
            src: Some(tuple.src()),
            dst: Some(tuple.dst()),
            src_port,
            dst_port,
            ..TupleFilter::default()
        };
        Filter { zone: Some(tuple.zone()), proto: Some(17), orig, ..Filter::default() }
    }

    #[test]
    fn a_zone_is_flushed_in_portions() {
        let conntrack = Conntrack::new(10_000, [1, 2]);
        for port in 1..=1000 {
            add(&conntrack, port, port % 2, None);
        }
        let mut flush = Flush::new(Filter { zone: Some(1), ..Filter::default() });
        let mut steps = 1;
        while flush.step(&conntrack) {
            steps += 1;
            assert!(flush.removed <= steps * PORTION as u64);
        }
        assert!(steps > 2, "{steps}");
        assert_eq!((flush.removed, conntrack.tracker.table.limits.connections()), (500, 500));
    }

    #[test]
    fn one_connection_is_named_by_either_tuple_unless_it_is_translated() {
        let conntrack = Conntrack::new(10_000, [1, 2]);
        let reply = add(&conntrack, 7, 3, None);
        assert_eq!(conntrack.flush_one(&whole(&reply.in_zone(0)), Time(2)), FlushOne::NotFound);
        assert_eq!(conntrack.flush_one(&whole(&reply), Time(2)), FlushOne::Removed);
        assert_eq!(conntrack.flush_one(&whole(&reply), Time(2)), FlushOne::NotFound);
        let reply = add(&conntrack, 7, 3, Some(8));
        assert_eq!(conntrack.flush_one(&whole(&reply), Time(2)), FlushOne::NotFound);
        let orig = Tuple::new(reply.dst(), reply.src(), 17, (7, 53), 3).unwrap();
        assert_eq!(conntrack.flush_one(&whole(&orig), Time(2)), FlushOne::Removed);
        assert_eq!(conntrack.flush_one(&Filter::default(), Time(2)), FlushOne::Many);
    }
}
