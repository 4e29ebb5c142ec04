//! STP and RSTP: the keys of bridges and ports that are about spanning trees.

use std::collections::BTreeMap;

use protocols::options::{OptionError, Options};
use protocols::{rstp, stp};

use super::reader::Section;
use crate::config::desired::{SpanningTree, TREE_PROTOCOLS};

/// Where options stand, of bridges and of ports.
const OPTIONS: &str = "spanning-tree-options";

/// What a bridge has.
pub fn read_bridge(s: &mut Section) -> SpanningTree {
    let protocol = s.choice("spanning-tree", &TREE_PROTOCOLS).unwrap_or_default();
    let any = [2, 0, 0, 0, 0, 0];
    let options = read_options(s, &[stp::settings::KEYS, rstp::settings::KEYS], |options| {
        [stp::Settings::from_options(any, options).1, rstp::Settings::from_options(any, options).1].concat()
    });
    SpanningTree { protocol, options }
}

/// What of it is a port's.
pub fn read_port(s: &mut Section) -> BTreeMap<String, String> {
    let any = [2, 0, 0, 0, 0, 0];
    read_options(s, &[stp::settings::PORT_KEYS, rstp::settings::PORT_KEYS], |options| {
        let stp = stp::PortSettings::from_options("", any, options).1;
        [stp, rstp::PortSettings::from_options("", any, options).1].concat()
    })
}

fn read_options(s: &mut Section, known: &[&[&str]], check: impl Fn(&Options) -> Vec<OptionError>) -> Options {
    let options = s.map(OPTIONS, |key, item| {
        if !known.iter().any(|keys| keys.contains(&key)) {
            item.error(format!("no option of this name; there are {}", known.concat().join(", ")));
            return None;
        }
        item.scalar_text()
    });
    for problem in check(&options) {
        s.error_at(&format!("{OPTIONS}.{}", problem.key), problem.mistake());
    }
    options
}
