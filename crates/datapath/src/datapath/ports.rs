//! Ports of the datapath.

use std::sync::{Arc, mpsc};

use ports::{Port, QosState, RxQueue};

use crate::action::PortNo;
use crate::datapath::Datapath;
use crate::error::Error;
use crate::pipeline::ingress::{Ingress, IngressSource};
use crate::pipeline::port::{DpPort, Policers};
use crate::policer::{EgressLimits, EgressPolicer, Policer, PolicerLimits};
use crate::stats::{Drops, RxAssignment};
use crate::upcall::RemovedFlow;
use crate::worker::mailbox::{Command, GivenBack};

impl Datapath {
    /// Adds a port and spreads its receive queues over the workers. Numbers start at 1, ascend, and are
    /// not reused before all others were used once. When this returns, each worker can send to it. Not to be called from
    /// an upcall.
    pub fn add_port(&self, port: Arc<dyn Port>) -> Result<PortNo, Error> {
        self.add_port_with(port, |_| ())
    }

    /// The same, with `announce` called before the first frame is received, so that the slow path knows the port
    /// before its first upcall. `announce` must not manage ports or workers.
    pub fn add_port_with(&self, port: Arc<dyn Port>, announce: impl FnOnce(PortNo)) -> Result<PortNo, Error> {
        self.add_port_as(port, None, announce)
    }

    /// As [`add_port`](Datapath::add_port), under this number, which may also be zero.
    pub fn add_port_at(&self, port: Arc<dyn Port>, number: PortNo) -> Result<PortNo, Error> {
        self.add_port_as(port, Some(number), |_| ())
    }

    /// Both together: under this number, or else one that is free.
    pub fn add_port_as(
        &self,
        port: Arc<dyn Port>,
        number: Option<PortNo>,
        announce: impl FnOnce(PortNo),
    ) -> Result<PortNo, Error> {
        let mut control = self.control.lock();
        let mut new = {
            let mut ports = self.ports.lock();
            let pool = self.pool.read();
            ports.add(port, number, &pool.eligible(), pool.max_workers())?
        };
        let number = new.dp_port.no;
        self.resources.table.set_tunnel(number, new.dp_port.port.is_tunnel());
        announce(number);
        let (reply, added) = mpsc::channel();
        for (worker, mailbox) in self.pool.read().mailboxes() {
            if let Some(tx) = new.tx.remove(&worker) {
                let rx = new.rx.remove(&worker).unwrap_or_default();
                mailbox.post(Command::AddPort { port: new.dp_port.clone(), tx, rx, reply: reply.clone() });
            }
        }
        control.serve();
        drop(reply);
        // Otherwise a flow that sends there could reach a worker before the port does. Ends when each worker has answered
        // (or died).
        added.iter().for_each(drop);
        Ok(number)
    }

    /// Takes over the receive queues that have come into being since their ports were added, as when a guest
    /// enables more of its own: each goes to the worker with the fewest. Not to be called from an upcall.
    pub fn adopt_rx_queues(&self) {
        let ports = self.ports.lock().all();
        for dp_port in ports {
            let queues = dp_port.port.take_rx_queues();
            if !queues.is_empty() {
                self.add_rx_queues(&dp_port, queues);
            }
        }
    }

    fn add_rx_queues(&self, dp_port: &Arc<DpPort>, queues: Vec<Box<dyn RxQueue>>) {
        let mut control = self.control.lock();
        let pinned = {
            let mut ports = self.ports.lock();
            let pool = self.pool.read();
            for (worker, rx) in ports.add_rx_queues(dp_port, queues, &pool.eligible()) {
                if let Some(worker) = pool.get(worker) {
                    worker.mailbox.post(Command::TakeRx { rx });
                }
            }
            ports.has_affinity(dp_port.no)
        };
        control.serve();
        if pinned {
            control.schedule();
        }
    }

    /// Puts optional stages before classification in each receive queue that the port has now, as `make` makes them for the
    /// queue's number; or takes them away, where it makes none. When this returns, the queues' workers have them before they
    /// receive again. Not to be called from an upcall.
    pub fn set_ingress(&self, port: PortNo, make: impl Fn(usize) -> Option<Box<Ingress>>) -> Result<(), Error> {
        let mut control = self.control.lock();
        let queues = self.ports.lock().rx_assignments();
        self.port(port).ok_or(Error::NoSuchPort(port))?;
        {
            let pool = self.pool.read();
            for RxAssignment { queue, worker, .. } in queues.into_iter().filter(|of| of.port == port) {
                if let Some(worker) = pool.get(worker) {
                    worker.mailbox.post(Command::SetIngress { port, queue, ingress: make(queue) });
                }
            }
        }
        control.serve();
        Ok(())
    }

    /// Sets what makes the optional stages of receive queues that come into being from now on, with ports or later: they
    /// have them before they receive. Those of queues that are there are changed by [`set_ingress`](Datapath::set_ingress).
    pub fn set_ingress_source(&self, source: IngressSource) {
        let _one_change_at_a_time = self.control.lock();
        self.ports.lock().set_ingress_source(source);
    }

    /// Limits what a port receives, and what is sent to it; buckets are full at first. Limits that are as before stay as they are. When
    /// this returns, each worker has them before its next turn. Not to be called from an upcall.
    pub fn set_policers(&self, port: PortNo, ingress: PolicerLimits, egress: EgressLimits) -> Result<(), Error> {
        let mut control = self.control.lock();
        let dp_port = self.ports.lock().get(port).cloned().ok_or(Error::NoSuchPort(port))?;
        let (before, now) = (dp_port.policers(), self.now());
        let policers = Policers {
            ingress: match before.ingress {
                Some(same) if *same.limits() == ingress => Some(same),
                _ => (!ingress.is_empty()).then(|| Arc::new(Policer::new(ingress, now))),
            },
            egress: EgressPolicer::replace(before.egress, egress, now),
        };
        dp_port.set_policers(policers.clone());
        control.tell(|| Command::SetPolicers { port, policers: policers.clone() });
        control.serve();
        Ok(())
    }

    /// The policers of a port; none of a port that is not there.
    pub fn policers(&self, port: PortNo) -> Policers {
        self.ports.lock().get(port).map(|port| port.policers()).unwrap_or_default()
    }

    /// What limits that which a port is sent, as the tables QoS and Queue have it; `None` of a port without an egress policer.
    pub fn egress_state(&self, port: PortNo) -> Option<QosState> {
        Some(self.policers(port).egress?.state(self.now()))
    }

    /// What was dropped at a port since it was added; of a port that is not there, nothing.
    pub fn drops_at(&self, port: PortNo) -> Drops {
        // Not with the lock: each worker has counters of its own.
        let dp_port = self.ports.lock().get(port).cloned();
        dp_port.map(|port| port.read_drops()).unwrap_or_default()
    }

    /// Takes a port away. When this returns, no worker uses it: its queues are closed, packets that
    /// waited for transmission are sent, but not those that waited for a shaper, and flows for packets from it are removed and returned. Flows
    /// that send to it drop with `NoSuchPort` until the caller changes them. No packet of another port
    /// is lost. Not to be called from an upcall.
    pub fn remove_port(&self, port: PortNo) -> Result<Vec<RemovedFlow>, Error> {
        self.remove_ports(&[port])
    }

    /// Takes ports away, as [`remove_port`](Datapath::remove_port), waiting for the workers as often as for one.
    /// Where one of them does not exist, all stay.
    pub fn remove_ports(&self, going: &[PortNo]) -> Result<Vec<RemovedFlow>, Error> {
        let mut control = self.control.lock();
        // What is removed lives until no worker uses it.
        let removed = self.ports.lock().remove(going)?;
        let (reply, given_back) = mpsc::channel::<GivenBack>();
        let going: Arc<[PortNo]> = going.into();
        control.tell(|| Command::RemovePorts { ports: going.clone(), reply: reply.clone() });
        drop(reply);
        // Ends when each worker has answered (or died). The queues are closed here, not on a worker.
        given_back.iter().for_each(drop);
        control.purge_fragments(|in_port| going.contains(&in_port));
        drop(control);
        let table = &self.resources.table;
        let flows = table.remove(&table.ids_of(&going));
        drop(removed);
        Ok(flows)
    }

    /// The port with this number.
    pub fn port(&self, port: PortNo) -> Option<Arc<dyn Port>> {
        self.ports.lock().get(port).map(|dp_port| dp_port.port.clone())
    }

    /// The port with this name, and its number.
    pub fn port_named(&self, name: &str) -> Option<(PortNo, Arc<dyn Port>)> {
        self.ports.lock().named(name).map(|dp_port| (dp_port.no, dp_port.port.clone()))
    }

    /// All ports, in the order of their numbers.
    pub fn ports(&self) -> Vec<(PortNo, Arc<dyn Port>)> {
        self.ports.lock().all().into_iter().map(|dp_port| (dp_port.no, dp_port.port.clone())).collect()
    }

    /// Takes over changes of the port's MTU and administrative state at once, rather than within a
    /// second.
    pub fn refresh_port(&self, port: PortNo) -> Result<(), Error> {
        let dp_port = self.ports.lock().get(port).cloned();
        dp_port.ok_or(Error::NoSuchPort(port))?.refresh();
        Ok(())
    }

    /// Whether segments of TCP that are sent to a port stay as they are, which they do not at first where it takes super-frames: who looks at packets
    /// wants to see those that came.
    pub fn keep_segments(&self, port: PortNo, keeps: bool) -> Result<(), Error> {
        let dp_port = self.ports.lock().get(port).cloned();
        dp_port.ok_or(Error::NoSuchPort(port))?.keep_segments(keeps);
        Ok(())
    }

    /// Which worker polls which receive queue.
    pub fn rx_assignments(&self) -> Vec<RxAssignment> {
        self.ports.lock().rx_assignments()
    }
}
