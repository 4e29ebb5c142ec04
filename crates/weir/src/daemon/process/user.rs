//! Running as another user than root (`--user`).
//!
//! The capabilities that a switch needs are kept: network devices and raw sockets, XDP programs, locked memory, ports
//! below 1024. All others are dropped before anything is opened.
//!
//! Users and groups come from the system's name service, which may be more than /etc/passwd.

use nix::unistd::{Gid, Group, Uid, User, geteuid, getuid, initgroups, setgid, setuid};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_keep_capabilities};

/// Why the user cannot be changed to.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Error {
    #[error("--user: only root can change to another user")]
    NotRoot,
    #[error("--user: user {0} not found")]
    NoUser(String),
    #[error("--user: group {0} not found")]
    NoGroup(String),
    #[error("--user: user {user} is not in group {group}")]
    NotInGroup { user: String, group: String },
    #[error("--user: cannot {what}: {why}")]
    System { what: &'static str, why: String },
}

/// Whom to run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    name: String,
    uid: Uid,
    gid: Gid,
}

impl Identity {
    /// Looks up `USER`, `USER:GROUP` or `:GROUP`. The default is the user of this process, and that user's own group.
    pub fn find(spec: &str) -> Result<Identity, Error> {
        let (user, group) = spec.trim().split_once(':').unwrap_or((spec.trim(), ""));
        let (user_name, group_name) = (user.trim(), group.trim());
        let user = match user_name {
            "" => User::from_uid(getuid()),
            name => User::from_name(name),
        };
        let user = user.map_err(system("look up the user"))?.ok_or_else(|| Error::NoUser(user_name.into()))?;
        let mut gid = user.gid;
        if !group_name.is_empty() {
            let group = Group::from_name(group_name).map_err(system("look up the group"))?;
            let group = group.ok_or_else(|| Error::NoGroup(group_name.into()))?;
            if group.gid != gid && !group.mem.contains(&user.name) {
                return Err(Error::NotInGroup { user: user.name, group: group.name });
            }
            gid = group.gid;
        }
        Ok(Identity { name: user.name, uid: user.uid, gid })
    }

    /// Becomes that user. To be called while there is one thread only: capabilities belong to a thread, and later ones
    /// inherit them.
    pub fn assume(&self) -> Result<(), Error> {
        if !geteuid().is_root() || !getuid().is_root() {
            return Err(Error::NotRoot);
        }
        set_keep_capabilities(true).map_err(system("keep capabilities"))?;
        setgid(self.gid).map_err(system("change the group"))?;
        let name = std::ffi::CString::new(self.name.as_str()).map_err(system("change the groups"))?;
        initgroups(&name, self.gid).map_err(system("change the groups"))?;
        setuid(self.uid).map_err(system("change the user"))?;
        let kept = CapabilitySet::NET_ADMIN
            | CapabilitySet::NET_RAW
            | CapabilitySet::NET_BROADCAST
            | CapabilitySet::NET_BIND_SERVICE
            | CapabilitySet::IPC_LOCK
            | CapabilitySet::BPF;
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
        set_capabilities(None, sets).map_err(system("keep capabilities"))
    }
}

fn system<E: ToString>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |why| Error::System { what, why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_by_name() {
        let root = Identity { name: "root".into(), uid: Uid::from_raw(0), gid: Gid::from_raw(0) };
        for spec in ["root", "root:root", "root:", " root : root "] {
            assert_eq!(Identity::find(spec), Ok(root.clone()), "{spec:?}");
        }
        assert_eq!(Identity::find(":").unwrap().uid, getuid());
        assert_eq!(Identity::find("no-such-user"), Err(Error::NoUser("no-such-user".into())));
        assert_eq!(Identity::find("root:no-such-group"), Err(Error::NoGroup("no-such-group".into())));
        let outsider = Error::NotInGroup { user: "nobody".into(), group: "root".into() };
        assert_eq!(Identity::find("nobody:root"), Err(outsider));
    }
}
