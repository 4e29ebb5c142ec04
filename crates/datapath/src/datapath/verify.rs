//! Samples for the verification of the caches: see [`crate::verify`].

use crate::datapath::Datapath;
use crate::verify::state::VerifyReader;
use crate::worker::mailbox::Command;

impl Datapath {
    /// Has one of so many packets that have a flow sampled, in each pass; zero for none. What was sampled by then can still be read. Not to be
    /// called from an upcall.
    pub fn set_verify_sampling(&self, one_in: u32) {
        let mut control = self.control.lock();
        if !control.verification.set(one_in) {
            return;
        }
        {
            let (pool, table) = (self.pool.read(), &self.resources.table);
            let workers = pool.mailboxes();
            for mailbox in workers.values() {
                mailbox.post(Command::SetVerifying(Box::new(control.verification.for_worker(table, workers.len()))));
            }
        }
        control.serve();
    }

    /// One of how many packets is sampled; zero for none.
    pub fn verify_sampling(&self) -> u32 {
        self.control.lock().verification.one_in()
    }

    /// The end by which samples are read.
    pub fn verify_reader(&self) -> VerifyReader {
        self.control.lock().verification.reader()
    }
}
