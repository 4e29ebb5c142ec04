//! Which interfaces have to get another OpenFlow port number, which takes adding their ports anew.
//!
//! An interface keeps its number for as long as it can: until another number is requested for it, or its number
//! for another one that is there. A new one that requests it gets another number at first, as in OVS: only the next
//! configuration makes room for it. Of several that request one number, the one that has it keeps it.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::desired::{Bridge, Interface};

/// The numbers that interfaces have: by bridge and interface.
pub type Numbers = BTreeMap<String, BTreeMap<String, u16>>;

/// The numbers that are requested in a bridge, and who is to have them.
pub struct Owners<'a> {
    by_number: BTreeMap<u16, &'a str>,
    numbers: Option<&'a BTreeMap<String, u16>>,
}

impl<'a> Owners<'a> {
    /// Those of the bridge called `name` once it is as `wanted`.
    pub fn of(name: &str, wanted: &'a Bridge, numbers: &'a Numbers) -> Owners<'a> {
        let numbers = numbers.get(name);
        let mut by_number = BTreeMap::new();
        let interfaces = || wanted.ports.values().flat_map(|port| &port.interfaces);
        // Those that stay, and ask for no number.
        let has = |name: &String| numbers?.get(name).copied();
        let content = interfaces().filter(|(_, interface)| interface.ofport_request.is_none());
        let kept: BTreeSet<u16> = content.filter_map(|(name, _)| has(name)).collect();
        for (name, number) in interfaces().filter_map(|(name, interface)| Some((name, interface.ofport_request?))) {
            let comes_too_late = has(name).is_none() && kept.contains(&number);
            if has(name) == Some(number) || !by_number.contains_key(&number) && !comes_too_late {
                by_number.insert(number, name.as_str());
            }
        }
        Owners { by_number, numbers }
    }

    /// Whether the interface called `name` is to have the number that it requests.
    pub fn grants(&self, name: &str, interface: &Interface) -> bool {
        interface.ofport_request.is_some_and(|number| self.by_number.get(&number) == Some(&name))
    }

    /// Whether the interface called `name` has to be added anew.
    pub fn renumbers(&self, name: &str, have: &Interface, want: &Interface) -> bool {
        let Some(&number) = self.numbers.and_then(|numbers| numbers.get(name)) else {
            return want.ofport_request.is_some() && have.ofport_request != want.ofport_request;
        };
        if self.grants(name, want) {
            return want.ofport_request != Some(number);
        }
        self.by_number.contains_key(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::desired::{Port, Vlans};

    /// Which of p1 and p2, which have the numbers 1 and 2, have to be added anew.
    fn renumbered(p1: Option<u16>, p2: Option<u16>) -> [bool; 2] {
        let interface = |ofport_request| Interface { ofport_request, ..Interface::default() };
        let port = |name: &str, request| (name.to_owned(), Port::single(name, interface(request), Vlans::default()));
        let wanted = Bridge { ports: [port("p1", p1), port("p2", p2)].into(), ..Bridge::default() };
        let numbers = [("br0".to_owned(), [("p1".to_owned(), 1), ("p2".to_owned(), 2)].into())].into();
        let owners = Owners::of("br0", &wanted, &numbers);
        ["p1", "p2"].map(|name| owners.renumbers(name, &Interface::default(), &wanted.ports[name].interfaces[name]))
    }

    #[test]
    fn ports_keep_their_numbers_while_they_can() {
        assert_eq!(renumbered(None, None), [false, false]);
        assert_eq!(renumbered(Some(1), None), [false, false]);
        assert_eq!(renumbered(Some(1), Some(1)), [false, false], "the one that has it keeps it");
        assert_eq!(renumbered(Some(2), Some(2)), [false, false]);
        assert_eq!(renumbered(None, Some(1)), [true, true], "one makes room for the other");
        assert_eq!(renumbered(Some(2), Some(1)), [true, true]);
        assert_eq!(renumbered(Some(7), None), [true, false]);
        assert_eq!(renumbered(Some(7), Some(7)), [true, false]);
    }

    #[test]
    fn a_new_port_does_not_take_the_number_of_one_that_is_there() {
        let interface = |ofport_request| Interface { ofport_request, ..Interface::default() };
        let port = |name: &str, request| (name.to_owned(), Port::single(name, interface(request), Vlans::default()));
        let taken = |request_of_old, numbers: &[(&str, u16)]| {
            let ports = [port("new", Some(1)), port("old", request_of_old)].into();
            let wanted = Bridge { ports, ..Bridge::default() };
            let numbers = numbers.iter().map(|&(name, number)| (name.to_owned(), number)).collect();
            let numbers = [("br0".to_owned(), numbers)].into();
            let owners = Owners::of("br0", &wanted, &numbers);
            let old = &wanted.ports["old"].interfaces["old"];
            (owners.grants("new", &interface(Some(1))), owners.renumbers("old", &Interface::default(), old))
        };
        assert_eq!(taken(None, &[("old", 1)]), (false, false));
        assert_eq!(taken(None, &[("old", 1), ("new", 2)]), (true, true), "the next configuration makes room");
        assert_eq!(taken(Some(3), &[("old", 1)]), (true, true), "it wants another one anyway");
        assert_eq!(taken(None, &[("old", 3)]), (true, false));
        assert_eq!(taken(None, &[("gone", 1)]), (true, false), "what had it is not wanted any more");
    }
}
