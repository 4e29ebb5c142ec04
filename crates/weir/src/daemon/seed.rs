//! Secrets that differ with each start.

/// A secret for the hash functions, so that no peer can construct collisions.
pub fn random_seed() -> [u64; 2] {
    let mut bytes = [0; 16];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(n) if n == bytes.len() => {}
        // No kernel since 3.17 is expected to come here; the pid and the time are better than a constant.
        _ => {
            let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            bytes = (time.as_nanos() ^ u128::from(std::process::id()) << 64).to_ne_bytes();
        }
    }
    let half = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    [half(0), half(8)]
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_start_has_its_own_secret() {
        let seeds: std::collections::BTreeSet<_> = (0..8).map(|_| super::random_seed()).collect();
        assert_eq!(seeds.len(), 8);
    }
}
