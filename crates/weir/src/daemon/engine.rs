//! The datapath, the OpenFlow tables and the revalidator thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use datapath::{Datapath, Topology};
use ofproto::{Switch, SwitchSettings};
use packet::Clock;
use packet::flow::VlanLimit;
use parking_lot::Mutex;
use ports::{pools, registry};

use super::account::log_account;
use super::ingress::IngressFilters;
use super::links::Links;
use super::mii::MiiMonitors;
use super::mtu::LocalMtus;
use super::process::{exit, limits};
use super::seed::random_seed;
use super::separate::SeparateDatapaths;
use super::{Error, aging, topology};
use crate::config::desired::{self, Workers};
use crate::features;
use crate::timer::Timer;

/// The longest that the revalidator waits, and so the longest that it takes to notice that it is to end.
const REVALIDATOR_WAIT: Duration = Duration::from_millis(200);

/// The switch. Cheap to clone: every part of the daemon has one.
#[derive(Clone)]
pub struct Engine {
    /// Bridges and OpenFlow tables.
    pub switch: Arc<Switch>,
    /// Ports, flows and workers.
    pub datapath: Arc<Datapath>,
    /// The datapaths that no bridge uses.
    pub separate: Arc<SeparateDatapaths>,
    /// What ports need from the process.
    pub env: ports::registry::Env,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The same clock, for sleeping.
    pub timer: Timer,
    /// The links of the ports as they were seen last.
    pub links: Arc<Links>,
    /// The ingress filters of the ports.
    pub ingress: Arc<IngressFilters>,
    /// The MTUs of LOCAL ports.
    pub local_mtus: Arc<LocalMtus>,
    /// The members of bonds whose drivers are asked for their links.
    pub mii: Arc<MiiMonitors>,
    /// Whether the configuration limits the connections of zones. Held by who changes limits of zones.
    pub limits_zones: Arc<Mutex<bool>>,
}

impl Engine {
    /// Makes the switch and starts its workers.
    pub fn start(
        workers: &Workers,
        caches: &desired::Datapath,
        topology: Topology,
        timer: Timer,
    ) -> Result<Engine, Error> {
        limits::raise_open_files();
        topology::log(&topology);
        let clock = timer.clock();
        let config = datapath::Config {
            workers: cores(workers),
            max_workers: max_workers(&topology),
            topology,
            max_sleep: workers.sleep_max,
            tx_flush_interval: workers.tx_flush_interval,
            max_flows: caches.flow_limit as usize,
            max_flow_memory: flow_memory(caches),
            max_masks: caches.mask_limit as usize,
            exact_entries: exact_entries(caches),
            exact_one_in: caches.emc_insert_inv_prob,
            vlan_limit: VlanLimit::of(caches.vlan_limit),
            seed: random_seed(),
            ..datapath::Config::default()
        };
        let datapath = Datapath::new(config, clock.clone());
        datapath.set_rx_policy(workers.rx_assign, workers.rx_isolate);
        datapath.set_auto_balance(workers.auto_balance);
        datapath.set_perf_metrics(workers.perf_metrics);
        datapath.set_verify_sampling(caches.verify_sampling);
        log_max_sleep(workers.sleep_max);
        let switch = Switch::new(switch_settings(caches), clock.clone());
        switch.attach(datapath.clone());
        datapath.start()?;
        features::log();
        let env = registry::Env {
            memory: pools::frames().map(|pool| pool.memory()).unwrap_or_else(no_pool),
            large: pools::large_frames().map(|pool| pool.memory()).unwrap_or_else(no_pool),
            ..registry::Env::default()
        };
        let ingress = Arc::<IngressFilters>::default();
        datapath.set_ingress_source(ingress.source());
        let (links, local_mtus, limits_zones, mii) = (Arc::default(), Arc::default(), Arc::default(), Arc::default());
        let separate = SeparateDatapaths::new(env.clone(), timer.clone());
        Ok(Engine { switch, datapath, separate, env, clock, timer, links, ingress, local_mtus, mii, limits_zones })
    }
}

/// How long the end waits for packets that are under way.
const LAST_PACKETS: Duration = Duration::from_secs(1);

impl Engine {
    /// Stops the threads, when all ports are gone, and logs the account of packets and buffers. If one is missing
    /// there, that is a bug.
    pub fn end(&self) {
        self.datapath.settle(LAST_PACKETS);
        self.datapath.stop();
        // In parallel: the kernel closes them one after the other at the end of a process, which takes minutes for a
        // thousand ports.
        ports::afpacket::finish_closing(exit::TIMEOUT);
        log_account("packets", &self.datapath);
        for (pool, in_use) in pools::in_use() {
            if in_use == 0 {
                tracing::info!("pool {pool}: all buffers are free");
            } else {
                tracing::warn!("pool {pool}: {in_use} buffers are in use by nobody");
            }
        }
    }
}

/// The memory that datapath flows may take, in bytes.
pub fn flow_memory(caches: &desired::Datapath) -> usize {
    caches.flow_memory as usize * (1 << 20)
}

/// How many flows an exact-match cache may remember.
pub fn exact_entries(caches: &desired::Datapath) -> usize {
    datapath::Config::exact_entries_in(caches.exact_cache_memory as usize * (1 << 20))
}

/// Without memory for a pool, ports take their frames from the heap, one by one.
fn no_pool(e: ports::Error) -> &'static packet::Memory {
    tracing::warn!("{e}; taking frames from the heap");
    &packet::buffer::heap::HEAP
}

/// The part of the settings that the OpenFlow side takes.
pub fn switch_settings(caches: &desired::Datapath) -> SwitchSettings {
    SwitchSettings {
        max_idle: caches.max_idle,
        revalidate_interval: caches.max_revalidator,
        hold_misses: caches.flow_restore_wait,
        revalidators: caches.revalidators as usize,
        controller_memory: caches.controller_memory as usize * (1 << 20),
        bundle_idle: caches.bundle_idle,
        vlan_limit: VlanLimit::of(caches.vlan_limit),
    }
}

/// The cores that workers run on, as the datapath takes them.
pub fn cores(workers: &Workers) -> Vec<usize> {
    workers.cores.iter().map(|&core| core as usize).collect()
}

/// One worker on each core that this process may use, and one that is not pinned: while one set of workers replaces
/// another, all of them exist at once.
fn max_workers(topology: &Topology) -> usize {
    topology.cores().len().max(1) + 1
}

/// Says in the log how long idle workers may sleep, as OVS does.
pub fn log_max_sleep(sleep: Duration) {
    let are = if sleep.is_zero() { "disabled" } else { "enabled" };
    tracing::info!(target: "dpif_netdev", "PMD max sleep request is {} usecs.", sleep.as_micros());
    tracing::info!(target: "dpif_netdev", "PMD load based sleeps are {are}.");
}

/// The thread that brings datapath flows up to date. Dropping it ends the thread, and those that help it.
pub struct Revalidator {
    switch: Arc<Switch>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Revalidator {
    /// Starts the thread.
    pub fn start(engine: &Engine) -> Result<Revalidator, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let (switch, clock, stopped) = (engine.switch.clone(), engine.clock.clone(), stop.clone());
        let datapath = engine.datapath.clone();
        engine.switch.set_revalidator(true);
        let thread = std::thread::Builder::new().name("revalidator".into()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                aging::forget_neighbours(&switch, clock.now());
                let next = switch.run(clock.now());
                datapath.balance();
                switch.wait(next.since(clock.now()).min(REVALIDATOR_WAIT));
            }
        });
        let switch = engine.switch.clone();
        Ok(Revalidator { switch, stop, thread: Some(thread.map_err(Error::Thread)?) })
    }
}

impl Drop for Revalidator {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.switch.set_revalidator(false);
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the hook.
            let _ = thread.join();
        }
        self.switch.set_settings(SwitchSettings { revalidators: 1, ..self.switch.settings() });
    }
}
