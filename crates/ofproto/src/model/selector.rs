//! How a select group chooses among its buckets.
//!
//! By `dp_hash`, as OVS does where nothing else is asked for: the datapath hashes the headers of each packet, and the
//! lowest bits of the hash are a place in a table of buckets. A bucket has so many places as its weight asks for. Flows
//! match these bits, so that a group has no more datapath flows than places, however many connections there are.
//! Where that would take too many places, and where it is asked for, translation hashes headers: those that the group
//! names, or those of connections.

use std::fmt::Write as _;

use datapath::HashAlgorithm;
use openflow::GroupId;
use openflow::group::{Bucket, GroupSpec, GroupType};

/// Fewest places.
const MIN_PLACES: usize = 16;

/// Most places, where the method is the switch's choice.
const MAX_PLACES_BY_CHOICE: usize = 64;

/// Most places.
const MAX_PLACES: usize = 256;

/// The method of a group.
#[derive(Debug)]
pub enum Selector {
    /// The hash that the datapath makes.
    DpHash(DpHash),
    /// A hash of the fields that the group names.
    Fields,
    /// A hash of the headers of connections.
    Default,
}

/// What of a hash that the datapath makes selects which bucket.
#[derive(Debug)]
pub struct DpHash {
    /// What the datapath hashes.
    pub algorithm: HashAlgorithm,
    /// What it hashes with that.
    pub basis: u32,
    /// For each place the index of its bucket; a power of two.
    places: Box<[u32]>,
}

impl DpHash {
    /// The bits of the hash that count.
    pub fn mask(&self) -> u32 {
        self.places.len() as u32 - 1
    }

    /// Indexes of buckets, beginning with that of the hash. Where it is not live, the next one is as good as any: neighbours
    /// are spread over the table by their weights.
    pub fn buckets(&self, hash: u32) -> impl Iterator<Item = usize> + '_ {
        let first = (hash & self.mask()) as usize;
        self.places[first..].iter().chain(&self.places[..first]).map(|&bucket| bucket as usize)
    }
}

impl Selector {
    /// The method that a group asks for, or that it gets. What is decided is in the log, in OVS's words, where messages of that
    /// level are.
    pub fn of(id: GroupId, spec: &GroupSpec) -> Selector {
        if spec.kind != GroupType::Select {
            return Selector::Default;
        }
        let mut log = Log::new(id);
        let selector = choose(spec, &mut log);
        log.write();
        selector
    }
}

fn choose(spec: &GroupSpec, log: &mut Log) -> Selector {
    let selection = &spec.selection;
    let (algorithm, basis, most) = match &*selection.method {
        "" => {
            log.line(|| "No selection method specified. Trying dp_hash.".into());
            (HashAlgorithm::SymmetricL4, 0, MAX_PLACES_BY_CHOICE)
        }
        "hash" => {
            log.line(|| "Selection method specified: hash.".into());
            if !selection.fields.is_empty() {
                return Selector::Fields;
            }
            log.line(|| "No hash fields. Falling back to default hash method.".into());
            return Selector::Default;
        }
        _ => {
            log.line(|| format!("Selection method specified: {}.", selection.method));
            // The upper half of the parameter is the algorithm, by OVS's numbers.
            let algorithm = if selection.param >> 32 == 1 { HashAlgorithm::SymmetricL4 } else { HashAlgorithm::L4 };
            (algorithm, selection.param as u32, MAX_PLACES)
        }
    };
    match places(&spec.buckets, most, log) {
        Some(places) => {
            log.line(|| format!("Use dp_hash with {} hash values using algorithm {}.", places.len(), algorithm as u8));
            Selector::DpHash(DpHash { algorithm, basis, places })
        }
        None => {
            log.line(|| "Falling back to default hash method.".into());
            Selector::Default
        }
    }
}

/// For each place the index of its bucket; `None` where there would be none, or too many.
fn places(buckets: &[Bucket], most: usize, log: &mut Log) -> Option<Box<[u32]>> {
    if buckets.is_empty() {
        log.line(|| "  Don't apply dp_hash method without buckets.".into());
        return None;
    }
    let total: u64 = buckets.iter().map(|bucket| u64::from(bucket.weight)).sum();
    let Some(least) = buckets.iter().map(|bucket| u64::from(bucket.weight)).filter(|&weight| weight > 0).min() else {
        log.line(|| "  Total weight is zero. No active buckets.".into());
        return None;
    };
    log.line(|| format!("  Minimum weight: {least}, total weight: {total}"));
    // The least of them is to have one place, at least.
    let count = total.div_ceil(least).next_power_of_two().max(MIN_PLACES as u64);
    if count > most as u64 {
        log.line(|| format!("  Too many hash values required: {count}"));
        return None;
    }
    log.line(|| format!("  Using {count} hash values:"));
    let places = apportion(buckets, count as usize);
    if log.is_on() {
        let mut hits = vec![0; buckets.len()];
        places.iter().for_each(|&bucket| hits[bucket as usize] += 1);
        for (bucket, hits) in buckets.iter().zip(hits) {
            let target = f64::from(bucket.weight) / total as f64 * count as f64;
            log.line(|| format!("  Bucket {}: weight={}, target={target:.2} hits={hits}", bucket.id, bucket.weight));
        }
    }
    Some(places)
}

/// Webster's method: each place in turn goes to the bucket with the greatest quotient of its weight by one, three, five, and so on, for
/// each place that it has already. So they are spread over the table, too.
fn apportion(buckets: &[Bucket], count: usize) -> Box<[u32]> {
    struct Claim {
        bucket: u32,
        weight: u64,
        divisor: u64,
    }
    let active = buckets.iter().enumerate().filter(|(_, bucket)| bucket.weight > 0);
    let mut claims: Vec<Claim> =
        active.map(|(n, bucket)| Claim { bucket: n as u32, weight: u64::from(bucket.weight), divisor: 1 }).collect();
    let mut places = Vec::with_capacity(count);
    for _ in 0..count {
        // Of equal claims the first.
        let greater = |a: &Claim, b: &Claim| a.weight * b.divisor > b.weight * a.divisor;
        let winner = claims.iter_mut().reduce(|best, claim| if greater(claim, best) { claim } else { best });
        let Some(winner) = winner else { break };
        winner.divisor += 2;
        places.push(winner.bucket);
    }
    places.into()
}

/// What is said about a group; nothing is made of it where nobody reads it.
struct Log(Option<String>);

impl Log {
    fn new(id: GroupId) -> Log {
        let on = tracing::enabled!(target: "ofproto_dpif", tracing::Level::DEBUG);
        let mut log = Log(on.then(String::new));
        log.line(|| format!("Constructing select group {}", id.0));
        log
    }

    fn is_on(&self) -> bool {
        self.0.is_some()
    }

    fn line(&mut self, text: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.0 {
            let _ = writeln!(lines, "{}", text());
        }
    }

    fn write(&self) {
        for line in self.0.iter().flat_map(|lines| lines.lines()) {
            tracing::debug!(target: "ofproto_dpif", "{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use openflow::OfPort;
    use openflow::group::Selection;
    use proptest::prelude::*;

    use super::*;

    fn spec(method: &str, param: u64, weights: &[u16]) -> GroupSpec {
        let bucket = |(id, &weight): (usize, &u16)| Bucket {
            id: id as u32,
            weight,
            watch_port: OfPort::ANY,
            watch_group: GroupId::ANY,
            actions: Vec::new(),
        };
        let selection = Selection { method: method.into(), param, fields: Vec::new() };
        let buckets = weights.iter().enumerate().map(bucket).collect();
        GroupSpec { kind: GroupType::Select, buckets, selection }
    }

    fn dp_hash(spec: &GroupSpec) -> Option<DpHash> {
        match Selector::of(GroupId(1), spec) {
            Selector::DpHash(places) => Some(places),
            _ => None,
        }
    }

    fn hits(places: &DpHash, buckets: usize) -> Vec<usize> {
        (0..buckets).map(|n| places.buckets(0).filter(|&bucket| bucket == n).count()).collect()
    }

    #[test]
    fn places_are_shared_by_weight() {
        let places = dp_hash(&spec("", 0, &[5, 10, 25, 60, 0])).unwrap();
        assert_eq!((hits(&places, 5), places.mask()), (vec![2, 3, 8, 19, 0], 31));
        assert_eq!(hits(&dp_hash(&spec("", 0, &[1, 1])).unwrap(), 2), [8, 8]);
        // A hash finds its place by its lowest bits, and then the neighbours.
        let [first, second] = [32, 33].map(|hash| places.buckets(hash).collect::<Vec<_>>());
        assert_eq!((first.len(), &first[1..], first[0]), (32, &second[..31], second[31]));
    }

    #[test]
    fn what_takes_too_many_places_is_left_to_translation() {
        assert!(dp_hash(&spec("", 0, &[1, 64])).is_none());
        assert!(dp_hash(&spec("dp_hash", 0, &[1, 64])).is_some());
        for weights in [&[1, 1000][..], &[], &[0, 0]] {
            assert!(dp_hash(&spec("dp_hash", 0, weights)).is_none(), "{weights:?}");
        }
        assert!(matches!(Selector::of(GroupId(1), &spec("hash", 0, &[1])), Selector::Default));
        let symmetric = dp_hash(&spec("dp_hash", 1 << 32 | 7, &[1])).unwrap();
        assert_eq!((symmetric.algorithm, symmetric.basis), (HashAlgorithm::SymmetricL4, 7));
        assert_eq!(dp_hash(&spec("dp_hash", 7, &[1])).unwrap().algorithm, HashAlgorithm::L4);
    }

    proptest! {
        #[test]
        fn each_bucket_has_its_places(weights in prop::collection::vec(any::<u16>(), 0..40)) {
            if let Some(places) = dp_hash(&spec("dp_hash", 0, &weights)) {
                prop_assert!(places.places.len().is_power_of_two() && (16..=256).contains(&places.places.len()));
                for (hits, weight) in hits(&places, weights.len()).into_iter().zip(weights) {
                    prop_assert_eq!(hits > 0, weight > 0);
                }
            }
        }
    }
}
