//! What operators ask of the thread that does the rounds, without waiting for it on their own thread.

use parking_lot::Mutex;

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowRequest {
    /// [`Switch::revalidate`](crate::Switch::revalidate).
    Revalidate,
    /// [`Switch::purge`](crate::Switch::purge).
    Purge,
}

/// Is called when it is done.
pub type Done = Box<dyn FnOnce() + Send>;

/// Requests that are not done yet. Who asks bounds how many there are.
#[derive(Default)]
pub(crate) struct FlowRequests(Mutex<Vec<(FlowRequest, Done)>>);

impl FlowRequests {
    /// Adds a request.
    pub fn add(&self, request: FlowRequest, done: Done) {
        self.0.lock().push((request, done));
    }

    /// Takes all requests.
    pub fn take(&self) -> Vec<(FlowRequest, Done)> {
        std::mem::take(&mut *self.0.lock())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use openflow::{Action, Match, OfPort};
    use packet::Clock;
    use packet::wire::build;

    use super::*;
    use crate::reference::tests::Bed;

    #[test]
    fn requests_are_left_to_the_thread_that_does_the_rounds() {
        let bed = Bed::new(2);
        bed.add_flow(0, 1, Match::any(), vec![Action::output(OfPort(2))]);
        let done = Arc::new(AtomicUsize::new(0));
        let ask = |request| {
            let done = done.clone();
            bed.switch.request(
                request,
                Box::new(move || {
                    done.fetch_add(1, SeqCst);
                }),
            );
        };
        let receive = || drop(bed.receive(OfPort(1), &build::ethernet([2; 6], [4; 6], &[], 0x1234, &[0; 46])));
        receive();
        assert_eq!(bed.datapath.flow_count(), 1);
        ask(FlowRequest::Purge);
        assert_eq!((done.load(SeqCst), bed.datapath.flow_count()), (1, 0), "there is no other thread");
        bed.switch.set_revalidator(true);
        receive();
        ask(FlowRequest::Purge);
        ask(FlowRequest::Revalidate);
        ask(FlowRequest::Revalidate);
        assert_eq!((done.load(SeqCst), bed.datapath.flow_count()), (1, 1));
        bed.switch.run(bed.clock.now());
        assert_eq!((done.load(SeqCst), bed.datapath.flow_count()), (4, 0));
    }
}
