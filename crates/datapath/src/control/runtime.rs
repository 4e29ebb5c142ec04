//! What drives workers and handlers: threads of their own, or the callers of [`Datapath::poll`](crate::Datapath::poll).

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use packet::Time;

use crate::control::maintenance::{self, Maintenance};
use crate::error::Error;
use crate::slowpath::channel::Notifier;
use crate::slowpath::handler::Handler;
use crate::worker::Worker;
use crate::worker::waker::Waker;

/// Drives workers and handlers.
///
/// To add one takes two steps. The first one can fail, changes nothing, and is taken before the worker or handler
/// exists. The second one cannot fail.
pub trait Runtime: Send {
    /// Whether workers and handlers run only when a method is called.
    fn is_inline(&self) -> bool;

    /// Makes ready for the worker of this number, which is to be woken by `waker` and pinned to `core`.
    fn prepare_worker(
        &self,
        number: usize,
        core: Option<usize>,
        waker: &Arc<Waker>,
    ) -> Result<Option<Seat<Worker>>, Error>;

    /// Drives a worker from now on. `seat`: what [`prepare_worker`](Runtime::prepare_worker) gave for it.
    fn add_worker(&mut self, worker: Worker, seat: Option<Seat<Worker>>);

    /// Drives a worker no longer. `None` where it has panicked.
    fn remove_worker(&mut self, number: usize) -> Option<Worker>;

    /// Makes ready for the handler of this number, which is to be woken by `notifier`.
    fn prepare_handler(&self, number: usize, notifier: &Arc<Notifier>) -> Result<Option<Seat<Handler>>, Error>;

    /// Drives a handler from now on. Its number is how many there are. `seat`: what
    /// [`prepare_handler`](Runtime::prepare_handler) gave for it.
    fn add_handler(&mut self, handler: Handler, seat: Option<Seat<Handler>>);

    /// Drives the handler with the highest number no longer. `None` where it has panicked.
    fn remove_handler(&mut self) -> Option<Handler>;

    /// Has workers and handlers do what they were asked to, where they do not do so by themselves.
    fn serve(&mut self);

    /// As [`serve`](Runtime::serve), until no packet is in the slow path any more.
    fn settle(&mut self);

    /// Runs one turn of each worker, with what the handlers answer, and returns how many packets were received. `None` where threads drive them.
    fn poll(&mut self) -> Option<usize>;

    /// Stops driving, and gives out the workers and handlers, by number. Those that have panicked are left out.
    fn release(&mut self) -> (Vec<Worker>, Vec<Handler>);

    /// The runtime of a test that looks into it.
    #[cfg(test)]
    fn inline(&mut self) -> &mut Inline {
        panic!("threads run")
    }
}

/// Workers and handlers run in the thread of the caller, when a method is called, and always in the same order.
#[derive(Default)]
pub struct Inline {
    /// By number.
    pub workers: BTreeMap<usize, Worker>,
    /// By number.
    pub handlers: Vec<Handler>,
}

impl Inline {
    fn take_returned(&mut self) {
        for worker in self.workers.values_mut() {
            worker.reader.quiescent();
            worker.take_returned(usize::MAX);
            worker.executor.outputs.end_of_batch(worker.executor.now);
            worker.reader.offline();
        }
    }

    fn answer(&mut self) -> usize {
        self.handlers.iter_mut().map(Handler::serve).sum()
    }
}

impl Runtime for Inline {
    fn is_inline(&self) -> bool {
        true
    }

    fn prepare_worker(&self, _: usize, _: Option<usize>, _: &Arc<Waker>) -> Result<Option<Seat<Worker>>, Error> {
        Ok(None)
    }

    fn add_worker(&mut self, worker: Worker, _: Option<Seat<Worker>>) {
        self.workers.insert(worker.number, worker);
    }

    fn remove_worker(&mut self, number: usize) -> Option<Worker> {
        self.workers.remove(&number)
    }

    fn prepare_handler(&self, _: usize, _: &Arc<Notifier>) -> Result<Option<Seat<Handler>>, Error> {
        Ok(None)
    }

    fn add_handler(&mut self, handler: Handler, _: Option<Seat<Handler>>) {
        self.handlers.push(handler);
    }

    fn remove_handler(&mut self) -> Option<Handler> {
        self.handlers.pop()
    }

    fn serve(&mut self) {
        for worker in self.workers.values_mut() {
            worker.reader.quiescent();
            worker.executor.now = worker.clock.now();
            worker.handle_commands();
            worker.executor.outputs.end_of_batch(worker.executor.now);
            worker.reader.offline();
        }
        self.handlers.iter_mut().for_each(Handler::change_channels);
    }

    fn settle(&mut self) {
        self.serve();
        loop {
            let answered = self.answer();
            self.take_returned();
            self.workers.values_mut().for_each(Worker::hand_over);
            if answered == 0 {
                break;
            }
        }
    }

    fn poll(&mut self) -> Option<usize> {
        let mut received = 0;
        for worker in self.workers.values_mut() {
            received += worker.turn();
            worker.reader.offline();
        }
        // Answers can cause further misses, by recirculation, but only so often.
        while self.answer() > 0 {
            self.take_returned();
        }
        Some(received)
    }

    fn release(&mut self) -> (Vec<Worker>, Vec<Handler>) {
        (std::mem::take(&mut self.workers).into_values().collect(), std::mem::take(&mut self.handlers))
    }

    #[cfg(test)]
    fn inline(&mut self) -> &mut Inline {
        self
    }
}

/// Each worker and each handler has a thread of its own.
pub struct Threads {
    workers: BTreeMap<usize, Thread<Worker>>,
    handlers: Vec<Thread<Handler>>,
    /// What the first handler's thread does beside.
    maintenance: Arc<Maintenance>,
}

impl Threads {
    /// No threads yet. The first handler's will do the maintenance.
    pub fn new(maintenance: Arc<Maintenance>) -> Threads {
        Threads { workers: BTreeMap::new(), handlers: Vec::new(), maintenance }
    }
}

impl Runtime for Threads {
    fn is_inline(&self) -> bool {
        false
    }

    fn prepare_worker(
        &self,
        number: usize,
        core: Option<usize>,
        waker: &Arc<Waker>,
    ) -> Result<Option<Seat<Worker>>, Error> {
        let error = |source| Error::Thread { what: "a worker that can sleep".to_owned(), source };
        waker.prepare().map_err(error)?;
        core.map_or(Ok(()), try_core)?;
        let waker = waker.clone();
        let work = move |worker: &mut Worker, stop: &AtomicBool| {
            pin(core);
            worker.run(stop);
        };
        Seat::new(format!("worker{number}"), move || waker.wake(), work).map(Some)
    }

    fn add_worker(&mut self, worker: Worker, seat: Option<Seat<Worker>>) {
        if let Some(seat) = seat {
            self.workers.insert(worker.number, seat.take(worker));
        }
    }

    fn remove_worker(&mut self, number: usize) -> Option<Worker> {
        self.workers.remove(&number)?.end()
    }

    fn prepare_handler(&self, number: usize, notifier: &Arc<Notifier>) -> Result<Option<Seat<Handler>>, Error> {
        let (waiter, notifier) = (notifier.clone(), notifier.clone());
        let maintenance = (number == 0).then(|| self.maintenance.clone());
        let work = move |handler: &mut Handler, stop: &AtomicBool| {
            let mut maintained = Time(0);
            while !stop.load(Ordering::Relaxed) {
                if let Some(maintenance) = &maintenance {
                    let now = handler.clock.now();
                    if now.since(maintained) >= maintenance::INTERVAL {
                        maintained = now;
                        maintenance.run();
                    }
                }
                if handler.serve() == 0 {
                    waiter.wait(maintenance::INTERVAL, || handler.has_work() || stop.load(Ordering::SeqCst));
                }
            }
        };
        Seat::new(format!("handler{number}"), move || notifier.notify(), work).map(Some)
    }

    fn add_handler(&mut self, handler: Handler, seat: Option<Seat<Handler>>) {
        self.handlers.extend(seat.map(|seat| seat.take(handler)));
    }

    fn remove_handler(&mut self) -> Option<Handler> {
        self.handlers.pop()?.end()
    }

    fn serve(&mut self) {}

    fn settle(&mut self) {}

    fn poll(&mut self) -> Option<usize> {
        None
    }

    fn release(&mut self) -> (Vec<Worker>, Vec<Handler>) {
        // All threads are notified before the first one is waited for.
        self.workers.values().for_each(Thread::stop);
        self.handlers.iter().for_each(Thread::stop);
        let workers = std::mem::take(&mut self.workers).into_values().filter_map(Thread::end).collect();
        (workers, std::mem::take(&mut self.handlers).into_iter().filter_map(Thread::end).collect())
    }
}

/// A thread that runs a worker or a handler, and how to end it. It returns `None` where it was given none.
struct Thread<T> {
    stop: Arc<AtomicBool>,
    wake: Box<dyn Fn() + Send>,
    handle: JoinHandle<Option<T>>,
}

impl<T> Thread<T> {
    fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        (self.wake)();
    }

    /// Ends the thread and gives out its worker or handler, which a panic takes with it.
    fn end(self) -> Option<T> {
        self.stop();
        self.handle.join().ok()?
    }
}

/// A thread that waits for its worker or handler. Threads are started before anything else changes, so that nothing has to
/// be undone where the system has none left. A seat that is dropped ends its thread.
pub struct Seat<T> {
    thread: Thread<T>,
    entrance: mpsc::SyncSender<T>,
}

impl<T: Send + 'static> Seat<T> {
    /// Starts the thread. `work` is to return when the flag is set and `wake` was called.
    fn new(
        name: String,
        wake: impl Fn() + Send + 'static,
        work: impl FnOnce(&mut T, &AtomicBool) + Send + 'static,
    ) -> Result<Seat<T>, Error> {
        let error = |source| Error::Thread { what: name.clone(), source };
        may_start().map_err(error)?;
        let (entrance, entered) = mpsc::sync_channel(1);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let body = move || {
            let mut driven = entered.recv().ok()?;
            work(&mut driven, &stopped);
            Some(driven)
        };
        let handle = std::thread::Builder::new().name(name.clone()).spawn(body).map_err(error)?;
        Ok(Seat { thread: Thread { stop, wake: Box::new(wake), handle }, entrance })
    }

    /// Gives the thread what it is to run.
    fn take(self, driven: T) -> Thread<T> {
        // The thread waits for nothing else, and there is room for one.
        let _ = self.entrance.send(driven);
        self.thread
    }
}

/// Where a test says that the system has no more threads.
#[cfg(not(test))]
fn may_start() -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
use crate::control::tests::may_start;

fn cpu_set(core: usize) -> Option<rustix::thread::CpuSet> {
    (core < rustix::thread::CpuSet::MAX_CPU).then(|| {
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        set
    })
}

/// Whether a thread can be pinned to this core, tried by one that ends at once.
fn try_core(core: usize) -> Result<(), Error> {
    let error = |source| Error::Thread { what: format!("a worker on core {core}"), source };
    let Some(set) = cpu_set(core) else { return Err(error(std::io::ErrorKind::InvalidInput.into())) };
    let tried = std::thread::Builder::new().spawn(move || rustix::thread::sched_setaffinity(None, &set));
    let result = tried.map_err(error)?.join().expect("pinning does not panic");
    result.map_err(|errno| error(errno.into()))
}

/// Prepares a worker's thread.
fn pin(core: Option<usize>) {
    if let Some(set) = core.and_then(cpu_set)
        && let Err(error) = rustix::thread::sched_setaffinity(None, &set)
    {
        tracing::warn!("a worker cannot be pinned to its core: {error}");
    }
    // Without this, the system may prolong short sleeps by 50 µs.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1000));
}
