//! Which cores there are, and at which NUMA node each of them is.

use std::collections::{BTreeMap, BTreeSet};

/// Most cores that can be made up.
const MAX_MADE_UP: usize = 256;

/// NUMA nodes are numbered from zero up to here, as in OVS.
const MAX_NODES: usize = 128;

/// The cores and NUMA nodes of the machine, or made-up ones, for tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The node of each core.
    nodes: BTreeMap<usize, usize>,
    made_up: bool,
}

impl Topology {
    /// That of the machine: these cores, each at its node.
    pub fn of_machine(nodes: BTreeMap<usize, usize>) -> Topology {
        Topology { nodes, made_up: false }
    }

    /// Cores that do not exist, from zero on: `text` has the node of each, with commas between them. Workers on them may run
    /// anywhere.
    pub fn made_up(text: &str) -> Result<Topology, String> {
        let node = |text: &str| {
            let node = text.trim().parse().ok().filter(|&node| node < MAX_NODES);
            node.ok_or_else(|| format!("{text:?} is not a NUMA node; they are 0 to {}", MAX_NODES - 1))
        };
        let nodes = text.split(',').map(node).take(MAX_MADE_UP + 1).collect::<Result<Vec<_>, _>>()?;
        if nodes.len() > MAX_MADE_UP {
            return Err(format!("there can be {MAX_MADE_UP} cores"));
        }
        Ok(Topology { nodes: nodes.into_iter().enumerate().collect(), made_up: true })
    }

    /// Whether the process has but one core.
    pub fn has_one_core(&self) -> bool {
        !self.made_up && self.nodes.len() == 1
    }

    /// Whether the cores do not exist, so that nothing can be pinned to them.
    pub fn is_made_up(&self) -> bool {
        self.made_up
    }

    /// The cores.
    pub fn cores(&self) -> BTreeSet<usize> {
        self.nodes.keys().copied().collect()
    }

    /// The NUMA node of a core. What is not known, or runs on any core, counts as at node 0.
    pub fn node_of(&self, core: Option<usize>) -> usize {
        core.and_then(|core| self.nodes.get(&core)).copied().unwrap_or(0)
    }

    /// How many cores there are at each node.
    pub fn cores_by_node(&self) -> BTreeMap<usize, usize> {
        let mut counts = BTreeMap::new();
        self.nodes.values().for_each(|&node| *counts.entry(node).or_default() += 1);
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_cores_are_numbered_in_their_order() {
        let topology = Topology::made_up("1,1,0,8").unwrap();
        let nodes = [0, 1, 2, 3, 4].map(|core| topology.node_of(Some(core)));
        assert_eq!(nodes, [1, 1, 0, 8, 0], "a core that is not there counts as at node 0");
        assert_eq!(topology.node_of(None), 0);
        assert_eq!(topology.cores_by_node(), BTreeMap::from([(0, 1), (1, 2), (8, 1)]));
        assert!(topology.is_made_up() && !Topology::default().is_made_up());
    }

    #[test]
    fn one_core_is_all_where_it_exists() {
        let of_machine = |cores: &[usize]| Topology::of_machine(cores.iter().map(|&core| (core, 0)).collect());
        assert!(of_machine(&[3]).has_one_core() && !of_machine(&[3, 4]).has_one_core());
        assert!(!Topology::made_up("0").unwrap().has_one_core() && !Topology::default().has_one_core());
    }

    #[test]
    fn what_is_no_list_of_nodes_is_refused() {
        for bad in
            ["", "x", "0,", "-1", "128", "0,,1", &"0,".repeat(MAX_MADE_UP), &vec!["0"; MAX_MADE_UP + 1].join(",")]
        {
            assert!(Topology::made_up(bad).is_err(), "{bad:?}");
        }
        assert!(Topology::made_up(&vec!["127"; MAX_MADE_UP].join(",")).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_accepted_has_its_nodes(text in "[0-9, ]{0,16}|\\PC{0,16}", nodes in proptest::collection::vec(0usize..128, 1..16)) {
            let _ = Topology::made_up(&text);
            let text = nodes.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            let topology = Topology::made_up(&text).unwrap();
            let got: Vec<usize> = topology.cores().into_iter().map(|core| topology.node_of(Some(core))).collect();
            proptest::prop_assert_eq!(got, nodes);
        }
    }
}
