//! Path checks of an interface: BFD and CFM, as they are configured, and what translation reads of them.
//!
//! The sessions themselves are elsewhere (`slowpath::path_sessions`), so that their frames wait for no change of tables.

use std::collections::BTreeMap;

use protocols::options::OptionError;
use protocols::{bfd, cfm};

/// How the path behind an interface is checked, as the columns of table `Interface` have it (ovs-vswitchd.conf.db(5)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathCheckConfig {
    /// Column `bfd`.
    pub bfd: BTreeMap<String, String>,
    /// Column `cfm_mpid`.
    pub cfm_mpid: Option<i64>,
    /// The pairs of `other_config` that begin with `cfm_`.
    pub cfm: BTreeMap<String, String>,
    /// The interface is a tunnel whose key is that of the flow (`options:key=flow`): frames of CFM with another key than 0 are data.
    pub key_of_flow: bool,
}

/// The path checks of a port.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathChecks {
    pub config: PathCheckConfig,
    /// `None` where BFD is not enabled.
    pub bfd: Option<bfd::Settings>,
    /// `None` without a maintenance point.
    pub cfm: Option<cfm::Settings>,
    /// Whether both find the path down. Where one of the two is not configured, the other decides.
    pub down: bool,
}

impl PathChecks {
    /// The checks of a configuration, and what is wrong in it. A path that is checked is down until it is found to be up.
    pub fn new(config: PathCheckConfig) -> (PathChecks, Vec<OptionError>) {
        let (bfd, mut problems) = bfd::Settings::from_column(&config.bfd);
        let (cfm, of_cfm) = cfm::Settings::from_row(config.cfm_mpid, &config.cfm, config.key_of_flow);
        problems.extend(of_cfm);
        let down = bfd.is_some() || cfm.is_some();
        (PathChecks { config, bfd, cfm, down }, problems)
    }

    /// Whether anything is checked.
    pub fn are_on(&self) -> bool {
        self.bfd.is_some() || self.cfm.is_some()
    }
}
