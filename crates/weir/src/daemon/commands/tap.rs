//! `weir/tap`: copies of packets, with what has become of each.

use std::collections::HashSet;

use super::Context;
use crate::tap::request::TapRequest;
use crate::tap::session;
use crate::unixctl::Reply;

/// Starts a tap, whose packets come by notifications until the client has enough.
pub fn start(context: &Context, args: &[String]) -> Reply {
    let stream = session::place().and_then(|place| {
        let (request, engine) = (request(context, args)?, &context.engine);
        session::start(request, place, &engine.datapath, &engine.switch, &engine.clock, &context.version)
    });
    stream.map_or_else(|problem| Reply::Now(Err(problem)), Reply::Stream)
}

/// What is asked for. Ports may be without their devices now: those of bridges count, too.
fn request(context: &Context, args: &[String]) -> Result<TapRequest, String> {
    let mut request = TapRequest::parse(args)?;
    let bridges = context.engine.switch.bridges();
    let mut ports: HashSet<String> =
        bridges.iter().flat_map(|bridge| bridge.ports().into_iter().map(|port| port.name)).collect();
    ports.extend(context.engine.datapath.ports().into_iter().map(|(_, port)| port.name().to_owned()));
    request.settle(|word| ports.contains(word))?;
    Ok(request)
}
