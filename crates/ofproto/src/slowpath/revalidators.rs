//! The threads that help with a round of revalidation (`n-revalidator-threads`).
//!
//! The thread that starts a round works on it, too. It alone decides which changes the round is about, applies the
//! findings, and expires rules. So with one revalidator there is no helper.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use datapath::FlowId;
use packet::Time;
use parking_lot::Mutex;

use super::change_set::ChangeSet;
use super::round::Round;

/// What a chunk of a round has come to.
#[derive(Default)]
pub(crate) struct Findings {
    /// Flows to be removed.
    pub gone: Vec<FlowId>,
    /// How many flows were translated again.
    pub translated: usize,
    /// Some have got other actions.
    pub acted: bool,
}

/// A round over the datapath's flows.
pub(crate) struct FlowRound {
    pub chunks: Round<Findings>,
    pub now: Time,
    pub purpose: Purpose,
}

/// What a round is for.
pub(crate) enum Purpose {
    /// Credits packets, and removes flows that no packet has used since this time, if any.
    Statistics(Option<Time>),
    /// Brings flows up to date with what has changed.
    Changes(ChangeSet),
}

/// Has the thread with this number take part in a round. Returns `None` where the switch is gone.
pub(crate) type TakePart = Arc<dyn Fn(&FlowRound, usize) -> Option<()> + Send + Sync>;

/// Threads that wait for rounds.
#[derive(Default)]
pub(crate) struct Helpers(Mutex<Vec<Helper>>);

struct Helper {
    /// Its thread ends when this is dropped.
    rounds: Sender<Arc<FlowRound>>,
    thread: JoinHandle<()>,
}

impl Helpers {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Starts or ends threads until there are so many. Those that end are waited for. Where a thread cannot be started,
    /// there are fewer.
    pub fn resize(&self, wanted: usize, take_part: &TakePart) {
        let mut helpers = self.0.lock();
        let staying = wanted.min(helpers.len());
        let leaving = helpers.split_off(staying);
        while helpers.len() < wanted {
            let (rounds, receiver) = channel();
            // The thread that starts rounds is the first one.
            let number = helpers.len() + 2;
            let (take_part, name) = (take_part.clone(), format!("revalidator{number}"));
            let run = move || help(&receiver, &take_part, number - 1);
            match std::thread::Builder::new().name(name).spawn(run) {
                Ok(thread) => helpers.push(Helper { rounds, thread }),
                Err(error) => {
                    let there = helpers.len() + 1;
                    tracing::warn!("no more than {there} of {} revalidators: {error}", wanted + 1);
                    break;
                }
            }
        }
        drop(helpers);
        for Helper { rounds, thread } in leaving {
            drop(rounds);
            // A panic has been reported by the hook.
            let _ = thread.join();
        }
    }

    /// Has the helpers take part in a round. One whose thread has ended is skipped.
    pub fn call(&self, round: &Arc<FlowRound>) {
        self.0.lock().iter().for_each(|helper| drop(helper.rounds.send(round.clone())));
    }
}

/// Takes part in rounds until the sender of rounds is dropped, or the switch is gone.
fn help(rounds: &Receiver<Arc<FlowRound>>, take_part: &TakePart, thread: usize) {
    while let Ok(round) = rounds.recv() {
        if take_part(&round, thread).is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use openflow::{Action, FlowMod, FlowModCommand, Instructions, Match, OfPort, TableId};
    use packet::wire::build;
    use packet::{Clock, Field};
    use proptest::prelude::*;
    use proptest::sample::select;

    use crate::reference::tests::{Bed, all_flows};
    use crate::switch::SwitchSettings;

    /// What happens to a switch.
    #[derive(Clone, Debug)]
    enum Event {
        /// A packet from each source of a range, so that each has a flow of its own.
        Receive(u32, u32),
        /// A change of the rule for the sources with this lowest bit, with an idle timeout.
        Change(u32, u32, u16),
        Remove(u32),
        Wait(u64),
        Revalidate,
        Purge,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => (0u32..900, 1u32..700).prop_map(|(from, count)| Event::Receive(from, count)),
            2 => (0u32..2, 1u32..4, select(vec![0u16, 3, 20])).prop_map(|(bit, port, idle)| Event::Change(bit, port, idle)),
            1 => (0u32..2).prop_map(Event::Remove),
            2 => (100u64..12_000).prop_map(Event::Wait),
            2 => Just(Event::Revalidate),
            1 => Just(Event::Purge),
        ]
    }

    fn of_bit(bit: u32) -> Match {
        let mut matching = Match::any();
        matching.set(Field::DlType, 0x0800);
        matching.set_masked(Field::NwSrc, bit.into(), 1);
        matching
    }

    fn bed(revalidators: usize) -> Bed {
        let bed = Bed::new(4);
        bed.switch.set_settings(SwitchSettings { revalidators, ..SwitchSettings::default() });
        assert_eq!(bed.switch.revalidators(), revalidators);
        bed.add_flow(0, 1, Match::any(), vec![Action::output(OfPort::NORMAL)]);
        bed
    }

    fn happen(bed: &Bed, event: &Event) {
        match *event {
            Event::Receive(from, count) => (from..from + count).for_each(|source| {
                let header = build::Ipv4 { src: source.into(), proto: 17, ..build::Ipv4::default() };
                let frame = build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(build::udp(1, 2, b"")));
                bed.receive(OfPort(1), &frame);
            }),
            Event::Change(bit, port, idle) => {
                // The whole address is looked at: one flow for each source.
                let copy = Action::RegMove {
                    src: openflow::Subfield::new(Field::NwSrc, 0, 32).unwrap(),
                    dst: openflow::Subfield::new(Field::Reg0, 0, 32).unwrap(),
                };
                let actions = Instructions::apply(vec![copy, Action::output(OfPort(port))]);
                let mut change = FlowMod::new(FlowModCommand::Add, of_bit(bit), actions);
                (change.table, change.priority, change.idle_timeout) = (Some(TableId(0)), 7, idle);
                bed.bridge.flow_mod(&change).unwrap();
            }
            Event::Remove(bit) => {
                let change = FlowMod::new(FlowModCommand::Delete, of_bit(bit), Instructions::default());
                bed.bridge.flow_mod(&change).unwrap();
            }
            Event::Wait(millis) => {
                bed.clock.advance(Duration::from_millis(millis));
                bed.switch.run(bed.clock.now());
            }
            Event::Revalidate => bed.switch.revalidate(),
            Event::Purge => bed.switch.purge(),
        }
    }

    /// All that can be seen of a switch.
    fn seen(bed: &Bed) -> (Vec<String>, Vec<String>, Vec<String>, Vec<String>) {
        let rules = bed.bridge.flow_stats(&all_flows()).unwrap();
        let mut rules: Vec<_> = rules.iter().map(|rule| format!("{rule:?}")).collect();
        let mut flows: Vec<_> = bed
            .datapath
            .flows()
            .map(|f| format!("{:?} {:?} {:?} {:?} {:?}", f.key, f.mask, f.actions, f.stats, f.created))
            .collect();
        rules.sort_unstable();
        flows.sort_unstable();
        let tables = bed.bridge.table_stats().iter().take(1).map(|table| format!("{table:?}")).collect();
        let macs = bed.bridge.macs().iter().map(|entry| format!("{entry:?}")).collect();
        (rules, flows, tables, macs)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 20, ..ProptestConfig::default() })]
        #[test]
        fn many_revalidators_do_what_one_does(events in prop::collection::vec(event(), 1..16)) {
            let (one, many) = (bed(1), bed(4));
            for event in &events {
                happen(&one, event);
                happen(&many, event);
                let looked_at = |bed: &Bed| bed.switch.revalidation_stats().by_thread.iter().sum::<usize>();
                prop_assert_eq!(looked_at(&many), looked_at(&one));
            }
            prop_assert_eq!(seen(&one), seen(&many));
        }
    }

    #[test]
    fn helpers_come_and_go_and_take_part() {
        let bed = bed(3);
        happen(&bed, &Event::Change(0, 2, 0));
        happen(&bed, &Event::Change(1, 3, 0));
        happen(&bed, &Event::Receive(0, 3000));
        // Whether a helper is quick enough to get a chunk is up to the machine; it does so sooner or later.
        let took_part = || {
            happen(&bed, &Event::Change(0, 2, 0));
            bed.switch.revalidate();
            bed.switch.revalidation_stats().by_thread[1..].iter().any(|&flows| flows > 0)
        };
        assert!((0..10_000).any(|_| took_part()));
        for revalidators in [1, 2, 5, 1] {
            bed.switch.set_settings(SwitchSettings { revalidators, ..SwitchSettings::default() });
            bed.switch.revalidate();
            let stats = bed.switch.revalidation_stats();
            assert_eq!((stats.by_thread.len(), stats.by_thread.iter().sum()), (revalidators, 3000));
        }
    }
}
