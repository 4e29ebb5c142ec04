//! Multicast snooping: what columns of the tables Bridge and Port say of it (ovs-vswitchd.conf.db(5)).

use ovsdb::Row;
use protocols::mcast::{PortSettings, Settings};
use protocols::options::{OptionError, Options};

/// How a bridge snoops, if it does, and what is wrong with that: there the default counts.
pub fn of_bridge(bridge: &Row) -> (Option<Settings>, Vec<OptionError>) {
    if bridge.boolean("mcast_snooping_enable") != Some(true) {
        return (None, Vec::new());
    }
    let (settings, problems) = Settings::from_options(&options(bridge));
    (Some(settings), problems)
}

/// What a port gets of multicast whoever is a member.
pub fn of_port(port: &Row) -> (PortSettings, Vec<OptionError>) {
    PortSettings::from_options(&options(port))
}

fn options(row: &Row) -> Options {
    let pairs = row.string_pairs("other_config").filter(|(key, _)| key.starts_with("mcast-snooping-"));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}
