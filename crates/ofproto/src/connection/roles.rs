//! The roles of a bridge's controllers: at most one is primary (OpenFlow 1.3.5 section 6.3.5).

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use openflow::switch::{RoleReason, RoleStatus};
use openflow::{OfError, Role};
use parking_lot::Mutex;

/// The roles of all connections of a bridge, shared by them.
#[derive(Default)]
pub struct Roles {
    table: Mutex<RoleTable>,
}

/// The roles by member.
#[derive(Default)]
struct RoleTable {
    next: u64,
    roles: BTreeMap<u64, Role>,
    /// Who is told when another one's request changes a role.
    listeners: BTreeMap<u64, Weak<dyn RoleListener>>,
    /// The largest generation id that a primary or secondary has given.
    generation: Option<u64>,
}

/// Is told of roles that another one's request changes.
pub(super) trait RoleListener: Send + Sync {
    /// The connection has another role now. Called with no lock of the roles held.
    fn role_changed(&self, status: RoleStatus);
}

/// Names a connection among its bridge's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member(u64);

impl Roles {
    /// A new connection, with the role equal.
    pub(super) fn join(&self) -> Member {
        let mut table = self.table.lock();
        table.next += 1;
        let id = table.next;
        table.roles.insert(id, Role::Equal);
        Member(id)
    }

    /// Tells `listener` when the connection loses its role to another.
    pub(super) fn listen(&self, member: Member, listener: Weak<dyn RoleListener>) {
        self.table.lock().listeners.insert(member.0, listener);
    }

    pub(super) fn leave(&self, member: Member) {
        let mut table = self.table.lock();
        table.roles.remove(&member.0);
        table.listeners.remove(&member.0);
    }

    pub(super) fn role(&self, member: Member) -> Role {
        self.table.lock().roles.get(&member.0).copied().unwrap_or(Role::Equal)
    }

    /// The generation id in force.
    pub(super) fn generation(&self) -> Option<u64> {
        self.table.lock().generation
    }

    /// Gives a connection a role. A new primary makes the old one secondary. A generation id that is older
    /// than one seen before is stale; ids wrap around.
    pub(super) fn change(&self, member: Member, role: Role, generation: Option<u64>) -> Result<(), OfError> {
        let mut table = self.table.lock();
        if matches!(role, Role::Primary | Role::Secondary)
            && let Some(new) = generation
        {
            if table.generation.is_some_and(|old| (new.wrapping_sub(old) as i64) < 0) {
                return Err(OfError::OFPRRFC_STALE);
            }
            table.generation = Some(new);
        }
        let mut demoted: Vec<Arc<dyn RoleListener>> = Vec::new();
        if role == Role::Primary {
            let RoleTable { roles, listeners, .. } = &mut *table;
            for (id, old) in roles.iter_mut().filter(|(id, old)| **id != member.0 && **old == Role::Primary) {
                *old = Role::Secondary;
                demoted.extend(listeners.get(id).and_then(Weak::upgrade));
            }
        }
        if role != Role::NoChange {
            table.roles.insert(member.0, role);
        }
        let generation_id = table.generation;
        drop(table);
        let status = RoleStatus { role: Role::Secondary, reason: RoleReason::PrimaryRequest, generation_id };
        demoted.iter().for_each(|listener| listener.role_changed(status));
        Ok(())
    }
}
