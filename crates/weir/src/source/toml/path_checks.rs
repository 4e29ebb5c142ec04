//! BFD and CFM: the keys of a port that say how the path behind it is checked.

use std::collections::BTreeMap;

use protocols::{bfd, cfm};

use super::reader::Section;
use crate::config::desired::Cfm;

/// The options of BFD, as column `bfd` has them.
pub fn read_bfd(s: &mut Section) -> BTreeMap<String, String> {
    let options = read_options(s, "bfd", bfd::settings::KEYS);
    let (_, problems) = bfd::Settings::from_column(&options);
    problems.iter().for_each(|problem| s.error_at(&format!("bfd.{}", problem.key), problem.mistake()));
    options
}

/// The maintenance point, and its options as the database has them in `other_config`.
pub fn read_cfm(s: &mut Section) -> Cfm {
    let mpid = s.integer("cfm-mpid", i64::MIN..=i64::MAX, "a maintenance point identifier");
    let options = read_options(s, "cfm", cfm::settings::KEYS);
    let (_, problems) = cfm::Settings::from_row(mpid, &options, false);
    for problem in problems {
        let key = if problem.key == "cfm_mpid" { "cfm-mpid".into() } else { format!("cfm.{}", problem.key) };
        s.error_at(&key, problem.mistake());
    }
    Cfm { mpid, options }
}

fn read_options(s: &mut Section, table: &'static str, known: &[&str]) -> BTreeMap<String, String> {
    s.map(table, |key, item| {
        if !known.contains(&key) {
            item.error(format!("no option of this name; there are {}", known.join(", ")));
            return None;
        }
        item.scalar_text()
    })
}
