//! In the place of DPDK where this program was compiled without it.

use std::sync::Arc;

use super::{Init, Settings, State};
use crate::options::Options;
use crate::registry::{Env, PortSpec};
use crate::{Error, Port};

/// Says why no port is opened.
pub fn open(spec: &PortSpec, _options: &Options, _env: &Env) -> Result<Arc<dyn Port>, Error> {
    let problem = State::Absent.problem().unwrap_or_default();
    Err(Error::Dpdk { port: spec.name.clone(), problem })
}

/// Says why nothing is started.
pub fn initialise(settings: &Settings) -> State {
    if settings.init != Init::Off {
        tracing::error!(target: "dpdk", "DPDK is asked for; {}", State::Absent.problem().unwrap_or_default());
    }
    State::Absent
}

/// That there is none.
pub fn state() -> State {
    State::Absent
}

/// The version of the library; `None`.
pub fn version() -> Option<String> {
    None
}

fn nothing<T>() -> Result<T, String> {
    Err(State::Absent.problem().unwrap_or_default())
}

/// `dpdk/lcore-list`.
pub fn lcore_list() -> Result<String, String> {
    nothing()
}

/// `dpdk/log-list`.
pub fn log_list() -> Result<String, String> {
    nothing()
}

/// `dpdk/get-malloc-stats`.
pub fn malloc_stats() -> Result<String, String> {
    nothing()
}

/// `netdev-dpdk/get-mempool-info`.
pub fn mempool_info(_port: Option<&str>) -> Result<String, String> {
    nothing()
}

/// `dpdk/log-set`.
pub fn set_log(_changes: &[&str]) -> Result<(), String> {
    nothing()
}

/// `netdev-dpdk/detach`.
pub fn detach(_devargs: &str) -> Result<String, String> {
    nothing()
}
