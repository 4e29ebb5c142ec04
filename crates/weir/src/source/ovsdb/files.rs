//! Which files the database may name.
//!
//! A client that may write to the database need not be root, while this process often is. So a file that would be
//! made, written to, read or connected to has to be in the run directory, unless OVS accepts any
//! (`vhost-server-path`). [`ports::files`] deals with what is there already.

use std::path::{Component, Path, PathBuf};

use ports::options::Form;
use ports::registry;

use crate::config::Target;
use crate::config::http::HttpAddress;

/// The files that the database may name.
#[derive(Clone, Debug)]
pub struct Files {
    /// The run directory: as it was given, and without symbolic links.
    rundirs: [PathBuf; 2],
    /// Whether the files of dummy and pcap ports may be anywhere: `--enable-dummy` is given, for tests.
    any_for_ports: bool,
}

impl Files {
    /// For a process with this run directory.
    pub fn new(rundir: &Path, any_for_ports: bool) -> Files {
        let real = rundir.canonicalize().unwrap_or_else(|_| rundir.into());
        Files { rundirs: [rundir.into(), real], any_for_ports }
    }

    /// The parts of a path behind that of the run directory, to which a relative one is taken to belong.
    /// `None` where it leads elsewhere.
    fn within<'a>(&self, path: &'a Path) -> Option<Vec<&'a Path>> {
        let found = self.rundirs.iter().find_map(|rundir| path.strip_prefix(rundir).ok());
        let rest = found.or(path.is_relative().then_some(path))?;
        let name = |part| if let Component::Normal(name) = part { Some(Path::new(name)) } else { None };
        rest.components().map(name).collect::<Option<Vec<_>>>().filter(|parts| !parts.is_empty())
    }

    /// Whether a bridge may have this controller: it connects to sockets below the run directory, and listens
    /// on such as are called after the bridge, `RUNDIR/BRIDGE.*`.
    pub fn controller(&self, bridge: &str, target: &Target) -> Result<(), String> {
        let rundir = self.rundirs[0].display();
        let otherwise = format!("{rundir}/{bridge}.mgmt is always there for local clients");
        // One line, whatever the name has in it.
        let shown = target.to_string();
        let shown = shown.escape_debug();
        match target {
            Target::Unix(path) if self.within(path).is_none() => Err(format!(
                "bridge {bridge}: Not connecting to socket controller \"{shown}\": it could be any in the system; only \
                 those below {rundir} are allowed ({otherwise})"
            )),
            Target::PassiveUnix(path) if !self.belongs_to(bridge, path) => Err(format!(
                "bridge {bridge}: Not adding Unix domain socket controller \"{shown}\": it could take the place of any \
                 file; only {rundir}/{bridge}.* is allowed ({otherwise})"
            )),
            _ => Ok(()),
        }
    }

    /// Whether the HTTP server may have this address and this file with its token: sockets are called `RUNDIR/*.http`, as another name
    /// could take the place of any file, and the token is in the run directory.
    pub fn http(&self, address: &HttpAddress, token: Option<&Path>) -> Result<(), String> {
        let rundir = self.rundirs[0].display();
        let is_own = |path: &Path| match self.within(path).as_deref() {
            Some([name]) => name.extension().is_some_and(|extension| extension == "http"),
            _ => false,
        };
        if let HttpAddress::Unix(path) = address
            && !is_own(path)
        {
            return Err(format!(
                "other_config:http: {path:?}: a socket of the database's has to be called {rundir}/NAME.http"
            ));
        }
        if let Some(path) = token.filter(|path| self.within(path).is_none()) {
            return Err(format!(
                "other_config:http-token-file: {path:?}: a file that the database names has to be in {rundir}"
            ));
        }
        Ok(())
    }

    fn belongs_to(&self, bridge: &str, path: &Path) -> bool {
        let name = match self.within(path).as_deref() {
            Some([name]) => name.as_os_str().as_encoded_bytes(),
            _ => return false,
        };
        name.strip_prefix(bridge.as_bytes()).is_some_and(|rest| rest.starts_with(b"."))
    }

    /// Whether a port of a kind may have an option with this value.
    pub fn option(&self, kind: &str, name: &str, value: &str) -> Result<(), String> {
        let form = registry::kind(kind).and_then(|kind| kind.options.iter().find(|o| o.name == name)).map(|o| o.form);
        let path = match form {
            // As in OVS, the socket of a virtual machine may be anywhere. It is only connected to.
            Some(Form::Path) if name == "vhost-server-path" => return Ok(()),
            Some(Form::Path) => value,
            Some(Form::Stream) => match value.strip_prefix("unix:").or_else(|| value.strip_prefix("punix:")) {
                Some(path) => path,
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        let path = Path::new(path);
        let allowed = self.any_for_ports || path.is_absolute() && self.within(path).is_some_and(|p| p.len() == 1);
        match allowed {
            true => Ok(()),
            false => Err(format!(
                "options:{name}={value:?}: the file has to be in {}, as long as the daemon runs without --enable-dummy",
                self.rundirs[0].display()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Files {
        Files { rundirs: ["/var/run/ovs".into(), "/run/ovs".into()], any_for_ports: false }
    }

    #[test]
    fn controllers_have_sockets_of_the_run_directory() {
        for (target, allowed) in [
            ("punix:/var/run/ovs/br0.controller", true),
            ("punix:/run//ovs/./br0.controller", true),
            ("punix:br0.controller", true),
            ("punix:/var/run/ovs/br00.controller", false),
            ("punix:/var/run/ovs/br1.controller", false),
            ("punix:/var/run/ovs/br0", false),
            ("punix:/var/run/ovs/br0.a/b", false),
            ("punix:/var/run/ovs/br0./../../../etc/passwd", false),
            ("punix:/var/run/ovs/../ovs/br0.controller", false),
            ("punix:/etc/passwd", false),
            ("punix:/var/run/ovsbr0.x", false),
            ("punix:..", false),
            ("unix:/var/run/ovs/any", true),
            ("unix:/run/ovs/a/b", true),
            ("unix:any", true),
            ("unix:/var/run/ovs", false),
            ("unix:/var/run/ovs/../docker.sock", false),
            ("unix:../docker.sock", false),
            ("unix:/run/docker.sock", false),
            ("tcp:10.0.0.1", true),
            ("ptcp:", true),
        ] {
            let verdict = files().controller("br0", &target.parse().unwrap());
            assert_eq!(verdict.is_ok(), allowed, "{target}: {verdict:?}");
        }
    }

    #[test]
    fn the_http_server_has_files_of_the_run_directory() {
        for (address, token, allowed) in [
            ("127.0.0.1:6640", None, true),
            ("unix:weir.http", Some("token"), true),
            ("unix:/run/ovs/a.http", Some("/var/run/ovs/sub/token"), true),
            ("unix:br0.mgmt", None, false),
            ("unix:.http", None, false),
            ("unix:sub/a.http", None, false),
            ("unix:../a.http", None, false),
            ("unix:/etc/a.http", None, false),
            ("127.0.0.1:6640", Some("/etc/shadow"), false),
            ("127.0.0.1:6640", Some("../token"), false),
        ] {
            let verdict = files().http(&HttpAddress::parse(address, false).unwrap(), token.map(Path::new));
            assert_eq!(verdict.is_ok(), allowed, "{address} {token:?}: {verdict:?}");
        }
    }

    #[test]
    fn ports_have_files_in_the_run_directory() {
        for (kind, name, value, allowed) in [
            ("pcap", "tx_pcap", "/var/run/ovs/a.pcap", true),
            ("pcap", "tx_pcap", "/etc/passwd", false),
            ("pcap", "rx_pcap", "/etc/shadow", false),
            ("pcap", "rx_pcap", "/var/run/ovs/../../../etc/shadow", false),
            ("pcap", "tx_pcap", "a.pcap", false),
            ("pcap", "rate", "/etc/passwd", true),
            ("dummy", "tx_pcap", "/etc/passwd", false),
            ("dummy-pmd", "rxq_pcap", "/etc/passwd", false),
            ("dummy-internal", "pcap", "/etc/passwd", false),
            ("dummy", "pstream", "punix:/etc/passwd", false),
            ("dummy", "pstream", "punix:/run/ovs/sub/p", false),
            ("dummy", "pstream", "punix:/run/ovs/p", true),
            ("dummy", "stream", "unix:/run/docker.sock", false),
            ("dummy", "stream", "tcp:10.0.0.1:80", true),
            ("dpdkvhostuserclient", "vhost-server-path", "/tmp/vm", true),
        ] {
            let verdict = files().option(kind, name, value);
            assert_eq!(verdict.is_ok(), allowed, "{kind} {name} {value}: {verdict:?}");
            let anywhere = Files { any_for_ports: true, ..files() };
            assert_eq!(anywhere.option(kind, name, value), Ok(()));
        }
    }
}
