//! The tables of a bridge: their configuration, and what they tell.

use openflow::stats::TableStats;
use openflow::table::{EvictionFlags, TableDesc};
use openflow::{FlowRemovedReason, OfError, TableId, TableMiss, TableMod, TableStatus};

use super::Bridge;
use crate::model::config::N_TABLES;
use crate::model::forwarding::BridgeState;
use crate::table::Table;

/// What a table has and has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableCounts {
    /// Table.
    pub table: TableId,
    /// Flows.
    pub flows: u32,
    /// Most flows, where that is limited.
    pub limit: Option<u32>,
    /// Packets looked up.
    pub lookups: u64,
    /// Packets that matched a flow.
    pub matched: u64,
}

impl Bridge {
    /// What the announced tables have and have done. Nothing is brought up to date for it.
    pub fn table_counts(&self) -> Vec<TableCounts> {
        self.each_table(|table, of| TableCounts {
            table,
            flows: of.rules.len() as u32,
            limit: of.settings.max_flows,
            lookups: of.counters.lookups(),
            matched: of.counters.matched(),
        })
    }

    /// Counters of the announced tables, as up to date as [`macs`](Bridge::macs).
    pub fn table_stats(&self) -> Vec<TableStats> {
        self.switch.refresh_statistics();
        self.each_table(|id, table| TableStats {
            table: id,
            name: table.name().to_owned(),
            // Every wildcard of OpenFlow 1.0.
            wildcards: (1 << 22) - 1,
            max_entries: table.max_entries(),
            active_count: table.rules.len() as u32,
            lookup_count: table.counters.lookups(),
            matched_count: table.counters.matched(),
            early: None,
        })
    }

    /// How many flows there are in all tables. Nothing is brought up to date for it.
    pub fn flow_count(&self) -> usize {
        self.read(BridgeState::flow_count).unwrap_or_default()
    }

    /// Descriptions of the announced tables.
    pub fn table_descs(&self) -> Vec<TableDesc> {
        self.each_table(describe)
    }

    /// What becomes of packets that miss, for each announced table.
    pub fn table_misses(&self) -> Vec<TableMiss> {
        self.each_table(|_, table| table.state.miss)
    }

    fn each_table<T>(&self, shown: impl Fn(TableId, &Table) -> T) -> Vec<T> {
        let tables = self.read(|bridge| {
            let tables = bridge.tables.iter().take(N_TABLES.into()).enumerate();
            tables.map(|(n, table)| shown(TableId(n as u8), table)).collect()
        });
        tables.unwrap_or_default()
    }

    /// Changes how a table is configured, or all tables.
    pub fn table_mod(&self, change: &TableMod) -> Result<(), OfError> {
        // The one above those that are told of is the switch's own, as flow-mods find, too.
        if change.table.0 >= N_TABLES && change.table != TableId::ALL {
            return Err(OfError::OFPTMFC_EPERM);
        }
        // The flow to evict is chosen in one way only.
        if change.eviction_flags.is_some_and(|flags| flags != EvictionFlags::all()) {
            return Err(OfError::OFPTMFC_BAD_CONFIG);
        }
        let wanted = |id: usize| change.table == TableId::ALL || usize::from(change.table.0) == id;
        self.change(|bridge, generation| {
            for (id, table) in bridge.tables.iter_mut().enumerate().take(N_TABLES.into()) {
                if wanted(id) {
                    modify(table, change);
                    table.changed = generation;
                }
            }
            bridge.watch_vacancies();
        });
        Ok(())
    }

    /// Gives tables names. Those that the operator has named keep their names: another is refused.
    pub fn name_tables(&self, names: &[(TableId, String)]) -> Result<(), OfError> {
        if names.iter().any(|(id, _)| id.0 >= N_TABLES) {
            return Err(OfError::OFPTFFC_BAD_TABLE);
        }
        let change = |bridge: &mut BridgeState, _| {
            // A name that the operator has given stays.
            let given = |id: TableId| bridge.tables[usize::from(id.0)].settings.name.as_ref();
            if names.iter().any(|(id, name)| given(*id).is_some_and(|given| given != name)) {
                return Err(OfError::OFPTFFC_EPERM);
            }
            for (id, name) in names {
                let table = &mut bridge.tables[usize::from(id.0)];
                // Who describes all tables to name one repeats the operator's names, which are not the controller's for that.
                if table.settings.name.is_none() {
                    table.state.name = Some(name.clone()).filter(|name| !name.is_empty());
                }
            }
            Ok(())
        };
        self.change(change).unwrap_or(Ok(()))
    }

    /// Brings the tables' configuration into force. Flows above a limit are evicted, where they may be.
    pub(super) fn configure_tables(&self) {
        let _: Result<(), OfError> = self.transact(|transaction| {
            transaction.bridge.configure_tables();
            for id in 0..transaction.bridge.tables.len() {
                let table = &transaction.bridge.tables[id];
                let excess = table.excess();
                let victims = if excess > 0 { table.victims(excess) } else { Vec::new() };
                victims.iter().for_each(|victim| transaction.remove(victim, FlowRemovedReason::Eviction));
            }
            Ok(())
        });
    }
}

impl BridgeState {
    /// How many flows there are in all tables.
    pub(crate) fn flow_count(&self) -> usize {
        self.tables.iter().map(|table| table.rules.len()).sum()
    }

    /// Watches the tables of which controllers want to know whether they are full.
    pub(crate) fn watch_vacancies(&mut self) {
        self.watched_tables.clear();
        for (id, table) in self.tables.iter_mut().enumerate() {
            table.watch_vacancy();
            if table.state.vacancy.is_some() {
                self.watched_tables.insert(TableId(id as u8));
            }
        }
    }

    /// What is to be told of the watched tables after a change of flows.
    pub(crate) fn vacancy_events(&mut self) -> Vec<TableStatus> {
        let mut due = Vec::new();
        for &id in &self.watched_tables {
            let table = &mut self.tables[usize::from(id.0)];
            let event = table.vacancy_event();
            due.extend(event.map(|reason| TableStatus { reason, desc: describe(id, table) }));
        }
        due
    }

    /// Gives each table its settings.
    pub(crate) fn configure_tables(&mut self) {
        for (id, table) in self.tables.iter_mut().enumerate() {
            table.settings = self.config.tables.get(&TableId(id as u8)).cloned().unwrap_or_default();
            table.rules.use_prefixes(table.settings.prefixes.as_deref());
        }
    }
}

fn describe(id: TableId, table: &Table) -> TableDesc {
    TableDesc {
        table: id,
        eviction: table.state.evict,
        eviction_flags: Some(EvictionFlags::all()),
        vacancy: table.state.vacancy.map(|mut vacancy| {
            vacancy.now = table.free_percent();
            vacancy
        }),
    }
}

fn modify(table: &mut Table, change: &TableMod) {
    if change.miss != TableMiss::Default {
        table.state.miss = change.miss;
    }
    if let Some(evict) = change.eviction {
        table.state.evict = evict;
    }
    match (change.vacancy, change.vacancy_at) {
        (Some(false), _) => table.state.vacancy = None,
        (Some(true), at) => table.state.vacancy = Some(at.or(table.state.vacancy).unwrap_or_default()),
        (None, _) => {}
    }
}
