//! In the place of the port where Weir was compiled without DPDK.

use std::sync::Arc;

use crate::options::Options;
use crate::registry::{Env, PortSpec};
use crate::{Error, Port};

/// Never reached: without DPDK its state says so first.
pub fn open(spec: &PortSpec, _options: &Options, _env: &Env, _client: bool) -> Result<Arc<dyn Port>, Error> {
    Err(Error::Unsupported { port: spec.name.clone(), what: "vhost-user" })
}
