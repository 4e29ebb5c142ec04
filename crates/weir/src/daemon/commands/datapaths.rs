//! Datapaths, and which of them a command means: the bridges' one, or one that no bridge uses. Those are made, changed and
//! ended here: `dpctl/add-dp`, `del-dp`, `add-if`, `set-if`, `del-if`.
//!
//! What opens or closes devices does so on a thread of its own, and its client waits.

use std::collections::BTreeSet;
use std::sync::Arc;

use datapath::{Datapath, PortNo};
use ofproto::DatapathType;
use ports::registry::PortSpec;
use tokio::sync::{Semaphore, oneshot};

use super::{Context, dpctl_error as error};
use crate::daemon::separate::{NewPort, SeparateDatapaths};
use crate::places::Places;
use crate::unixctl::Command;
use crate::unixctl::command::{Outcome, Reply};

const ANY: usize = usize::MAX;

/// How many changes are under way at a time.
static PLACES: Semaphore = Semaphore::const_new(16);

/// Requests to take ports from bridges, also those of clients that have gone.
static LEAVING: Places = Places::new(64);

/// The commands.
pub const COMMANDS: &[Command<Context>] = commands! {
    "dpctl/dump-dps" "" (0, 0) now!(list), "Names of the datapaths.";
    "dpctl/add-dp" "dp [iface...]" (1, ANY) slow!(add_dp), "Makes a datapath that no bridge uses.";
    "dpctl/del-dp" "dp" (1, 1) slow!(del_dp), "Ends a datapath that no bridge uses, with its ports and flows.";
    "dpctl/add-if" "dp iface..." (2, ANY) slow!(add_if), "Adds ports to a datapath that no bridge uses.";
    "dpctl/set-if" "dp iface..." (2, ANY) now!(set_if), "Says of ports what they are already; changes nothing.";
    "dpctl/del-if" "dp iface..." (2, ANY) slow!(del_if),
        "Takes ports from a datapath; those of a bridge until its next configuration.";
};

/// The kinds of datapath that bridges say they are on, in the order of their names; one if there is no
/// bridge.
pub fn of_bridges(context: &Context) -> BTreeSet<DatapathType> {
    let mut types: BTreeSet<_> =
        context.engine.switch.bridges().iter().map(|bridge| bridge.config().datapath_type).collect();
    if types.is_empty() {
        types.insert(DatapathType::default());
    }
    types
}

/// The bridges' datapath by this name, with or without its type.
pub fn find_of_bridges(context: &Context, name: &str) -> Option<DatapathType> {
    of_bridges(context).into_iter().find(|kind| {
        let whole = kind.datapath_name();
        whole == name || whole.split_once('@').is_some_and(|(_, short)| short == name)
    })
}

/// The datapath that a command names: the bridges' one where it names none. `None` where there is none of this name.
pub fn find(context: &Context, name: Option<&str>) -> Option<Arc<Datapath>> {
    let of_bridges = || context.engine.datapath.clone();
    let Some(name) = name else { return Some(of_bridges()) };
    if find_of_bridges(context, name).is_some() {
        return Some(of_bridges());
    }
    context.engine.separate.find(name).map(|found| found.datapath.clone())
}

/// As [`find`], with an error that says which there are.
pub fn find_or_list(context: &Context, name: &str) -> Result<Arc<Datapath>, String> {
    let found = find(context, Some(name));
    found.ok_or_else(|| format!("{name}: no such datapath; there is {}", names(context).join(", ")))
}

fn names(context: &Context) -> Vec<String> {
    let separate = context.engine.separate.all();
    let separate = separate.iter().map(|one| one.name.clone());
    let mut names: Vec<_> = of_bridges(context).into_iter().map(|kind| kind.datapath_name().to_owned()).collect();
    names.extend(separate);
    names.sort();
    names
}

fn list(context: &Context, _: &[String]) -> Outcome {
    Ok(names(context).into_iter().map(|name| name + "\n").collect())
}

/// An error for a datapath that does not exist.
fn not_there(context: &Context) -> String {
    error(context, "opening datapath (No such device)")
}

/// Changes separate datapaths on a thread of its own. What fails is worded as an error of dpctl.
fn on_a_thread(
    context: &Context,
    change: impl FnOnce(&SeparateDatapaths) -> Result<(), String> + Send + 'static,
) -> Reply {
    let (separate, program) = (context.engine.separate.clone(), context.log.program().to_owned());
    Reply::on_thread("datapath-change", &PLACES, move || {
        let outcome = change(&separate).map(|()| String::new());
        outcome.map_err(|problem| format!("{program}: {problem}\n"))
    })
}

fn add_dp(context: &Context, args: &[String]) -> Reply {
    match added_by(context, args) {
        Err(problem) => Reply::Now(Err(error(context, &problem))),
        Ok((kind, name, ports)) => on_a_thread(context, move |separate| {
            separate.add(kind, &name).map_err(|e| format!("add_dp ({e})"))?;
            let whole = format!("{}@{name}", type_of(kind));
            ports.iter().try_for_each(|port| add_port(separate, &whole, port))
        }),
    }
}

/// What datapath is to be added, and with which ports.
fn added_by(context: &Context, args: &[String]) -> Result<(DatapathType, String, Vec<NewPort>), String> {
    let (kind, name) = match args[0].split_once('@') {
        Some(("dummy", name)) => (DatapathType::Dummy, name),
        Some(("netdev", name)) => (DatapathType::Netdev, name),
        None => (DatapathType::Netdev, args[0].as_str()),
        Some((kind, _)) => return Err(format!("add_dp ({kind}: known types are dummy and netdev, Invalid argument)")),
    };
    if name.is_empty() {
        return Err("add_dp (a datapath needs a name, Invalid argument)".into());
    }
    // Also where no bridge is of that kind yet.
    let of_bridges = [DatapathType::Dummy, DatapathType::Netdev].map(DatapathType::datapath_name);
    if of_bridges.iter().any(|whole| whole.split_once('@').is_some_and(|(_, short)| short == name)) {
        return Err("add_dp (File exists)".into());
    }
    Ok((kind, name.to_owned(), new_ports(context, name, &args[1..])?))
}

fn type_of(kind: DatapathType) -> &'static str {
    match kind {
        DatapathType::Dummy => "dummy",
        DatapathType::Netdev => "netdev",
    }
}

fn del_dp(context: &Context, args: &[String]) -> Reply {
    let name = args[0].clone();
    if find_of_bridges(context, &name).is_some() {
        let problem = format!("deleting datapath {name} failed (bridges use it: Operation not supported)");
        return Reply::Now(Err(error(context, &problem)));
    }
    match context.engine.separate.find(&name) {
        None => Reply::Now(Err(not_there(context))),
        Some(_) => on_a_thread(context, move |separate| {
            separate.remove(&name).map_err(|e| format!("deleting datapath {name} failed ({e})"))
        }),
    }
}

fn add_if(context: &Context, args: &[String]) -> Reply {
    let name = args[0].clone();
    if find_of_bridges(context, &name).is_some() {
        let first = args[1].split(',').next().unwrap_or_default();
        let problem = format!("adding {first} to {name} failed (bridges add its ports: Operation not supported)");
        return Reply::Now(Err(error(context, &problem)));
    }
    if context.engine.separate.find(&name).is_none() {
        return Reply::Now(Err(not_there(context)));
    }
    match new_ports(context, &name, &args[1..]) {
        Err(problem) => Reply::Now(Err(error(context, &problem))),
        Ok(ports) => {
            on_a_thread(context, move |separate| ports.iter().try_for_each(|port| add_port(separate, &name, port)))
        }
    }
}

/// The ports that are to be added to a datapath, none of which is a bridge's.
fn new_ports(context: &Context, datapath: &str, texts: &[String]) -> Result<Vec<NewPort>, String> {
    let parse = |text: &String| {
        let port = parse_port(text)?;
        match is_taken(context, &port) {
            true => {
                let name = &port.spec.name;
                Err(format!("adding {name} to {datapath} failed (a bridge has it: Device or resource busy)"))
            }
            false => Ok(port),
        }
    };
    texts.iter().map(parse).collect()
}

/// Whether a bridge has the device of a port. Dummy ports are none.
fn is_taken(context: &Context, port: &NewPort) -> bool {
    let is_dummy = |kind: &str| ports::dummy::KIND.names.contains(&kind);
    let of_bridges = context.engine.datapath.ports();
    !is_dummy(&port.spec.kind) && of_bridges.iter().any(|(_, other)| other.name() == port.spec.name)
}

fn add_port(separate: &SeparateDatapaths, datapath: &str, port: &NewPort) -> Result<(), String> {
    let failed = |e| format!("adding {} to {datapath} failed ({e})", port.spec.name);
    separate.add_port(datapath, port).map(drop).map_err(failed)
}

/// `NAME[,type=TYPE][,port_no=NUMBER][,OPTION=VALUE]...`
pub(super) fn parse_port(text: &str) -> Result<NewPort, String> {
    let mut parts = text.split(',');
    let name = parts.next().filter(|name| !name.is_empty()).ok_or("a port needs a name (Invalid argument)")?;
    let mut port = NewPort { spec: PortSpec::new(name, ""), number: None };
    for part in parts.filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        match key {
            "type" => port.spec.kind = value.to_owned(),
            "port_no" => {
                let number =
                    value.parse().map_err(|_| format!("{name}: {value}: bad port number (Invalid argument)"))?;
                port.number = Some(PortNo(number));
            }
            _ => drop(port.spec.options.insert(key.to_owned(), value.to_owned())),
        }
    }
    Ok(port)
}

/// A device has its type and options from its opening on.
fn set_if(context: &Context, args: &[String]) -> Outcome {
    let datapath = find(context, Some(&args[0])).ok_or_else(|| not_there(context))?;
    for text in &args[1..] {
        let wanted = parse_port(text).map_err(|problem| error(context, &problem))?;
        let name = &wanted.spec.name;
        let ports = datapath.ports();
        let (number, port) =
            ports.iter().find(|(_, port)| port.name() == name).ok_or_else(|| no_port(context, name))?;
        let kind = port.kind();
        if !wanted.spec.kind.is_empty() && wanted.spec.kind != kind {
            let problem = format!("{name}: can't change type from {kind} to {}", wanted.spec.kind);
            return Err(error(context, &problem));
        }
        if let Some(wanted) = wanted.number.filter(|wanted| wanted != number) {
            let problem = format!("{name}: can't change port number from {} to {}", number.0, wanted.0);
            return Err(error(context, &problem));
        }
        if let Some(option) = wanted.spec.options.keys().next() {
            let hint = "dpctl/del-if, then dpctl/add-if";
            return Err(error(context, &format!("{name}: can't change {option} of an open device ({hint})")));
        }
    }
    Ok(String::new())
}

fn no_port(context: &Context, name: &str) -> String {
    error(context, &format!("no port named {name}"))
}

/// The ports are looked for one after the other, as in OVS: those before one that is wrong have gone.
fn del_if(context: &Context, args: &[String]) -> Reply {
    let (name, ports) = (args[0].clone(), args[1..].to_vec());
    if find_of_bridges(context, &name).is_some() {
        return del_if_of_bridge(context, &name, ports);
    }
    if context.engine.separate.find(&name).is_none() {
        return Reply::Now(Err(not_there(context)));
    }
    on_a_thread(context, move |separate| {
        ports.iter().try_for_each(|port| {
            let found = separate.find(&name).and_then(|datapath| datapath.device(port));
            let (number, _) = found.ok_or_else(|| format!("no port named {port}"))?;
            let failed = |e| format!("deleting port {port} from {name} failed ({e})");
            separate.remove_port(&name, number).map_err(failed)
        })
    })
}

/// A port of a bridge goes by the thread that configures bridges, so that its OpenFlow port goes with it.
fn del_if_of_bridge(context: &Context, datapath: &str, ports: Vec<String>) -> Reply {
    let Some(place) = LEAVING.take() else {
        let problem = format!("{} others delete ports already; try again", LEAVING.most());
        return Reply::Now(Err(error(context, &problem)));
    };
    let (reply, answer) = oneshot::channel();
    let mut going = Vec::new();
    for port in ports {
        match bridge_of(context, &port) {
            None => return Reply::Now(Err(no_port(context, &port))),
            Some((bridge, name)) if bridge == name => {
                let problem = format!("deleting port {port} from {datapath} failed (Operation not supported)");
                return Reply::Now(Err(error(context, &problem)));
            }
            Some(found) => going.push(found),
        }
    }
    let removing = context.configurator.take_from_datapath(going);
    let (program, datapath) = (context.log.program().to_owned(), datapath.to_owned());
    tokio::task::spawn_local(async move {
        let removed = removing.await;
        drop(place);
        if let Ok(outcome) = removed {
            let failed = |problem| format!("{program}: deleting ports from {datapath} failed ({problem})\n");
            // The receiver may have been dropped meanwhile.
            let _ = reply.send(outcome.map_err(failed));
        }
    });
    Reply::Later(answer)
}

/// The bridge of a port of the datapath that is called so, or numbered so, and the port's name.
fn bridge_of(context: &Context, port: &str) -> Option<(String, String)> {
    let number = port.parse().ok().map(PortNo);
    let has = |bridge: &ofproto::Bridge| {
        let ports = bridge.ports();
        let found = ports.iter().filter(|info| info.dp_port.is_some() && info.device.is_some());
        let found =
            found.clone().find(|info| info.name == port).or_else(|| found.clone().find(|i| i.dp_port == number));
        found.map(|info| (bridge.name().to_owned(), info.name.clone()))
    };
    context.engine.switch.bridges().iter().find_map(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_named_with_its_type_number_and_options() {
        let port = parse_port("p1,type=dummy,port_no=5,n_rxq=2").unwrap();
        assert_eq!(port.spec, PortSpec::new("p1", "dummy").with(&[("n_rxq", "2")]));
        assert_eq!(port.number, Some(PortNo(5)));
        let plain = parse_port("eth0,").unwrap();
        assert_eq!((plain.spec, plain.number), (PortSpec::new("eth0", ""), None));
        assert!(parse_port("").is_err() && parse_port(",type=dummy").is_err());
        assert!(parse_port("p,port_no=-1").is_err() && parse_port("p,port_no=").is_err());
    }
}
