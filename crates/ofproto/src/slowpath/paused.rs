//! Pipelines that wait for a controller: `controller(pause)` and NXT_RESUME.
//!
//! A pipeline that pauses is frozen as for recirculation ([`Frozen`]). The controller gets the packet with a token for
//! that state, and sends the token back to have the pipeline go on. It can change the packet and its metadata, but
//! nothing else of the state.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::xlate::frozen::Frozen;

/// Most states that are kept. The least recently used one is removed. Packets with equal states share one.
const MAX_STATES: usize = 4096;

/// The token's form is that of OVS's continuation, a nested property of its own, so that tools can show the
/// message around it: padding, NXCPT_BRIDGE, its length, and 16 bytes.
const TOKEN_HEAD: [u8; 8] = [0, 0, 0, 0, 0x80, 0, 0, 20];
/// Bytes of a token, with the padding behind the property.
const TOKEN_LEN: usize = 28;

/// The states of paused pipelines, by number.
pub(crate) struct Paused {
    /// Distinguishes the tokens of this process from those of another.
    nonce: u64,
    /// The one that was used last at the end.
    states: Mutex<VecDeque<(u32, Arc<Frozen>)>>,
}

impl Default for Paused {
    fn default() -> Paused {
        Paused { nonce: RandomState::new().build_hasher().finish(), states: Mutex::default() }
    }
}

impl Paused {
    /// Keeps a state, and returns the token for it.
    pub fn keep(&self, number: u32, state: Arc<Frozen>) -> Vec<u8> {
        let mut states = self.states.lock();
        states.retain(|(other, _)| *other != number);
        if states.len() == MAX_STATES {
            states.pop_front();
        }
        states.push_back((number, state));
        let mut token = TOKEN_HEAD.to_vec();
        token.extend(self.nonce.to_be_bytes());
        token.extend(number.to_be_bytes());
        token.resize(TOKEN_LEN, 0);
        token
    }

    /// The state that a token is for; `None` where it is not of this process, or too old.
    pub fn find(&self, token: &[u8]) -> Option<Arc<Frozen>> {
        let rest = token.strip_prefix(&TOKEN_HEAD)?.strip_prefix(&self.nonce.to_be_bytes())?;
        let number = u32::from_be_bytes(*rest.first_chunk()?);
        let states = self.states.lock();
        states.iter().rev().find(|(other, _)| *other == number).map(|(_, state)| state.clone())
    }
}

#[cfg(test)]
mod tests {
    use packet::Key;

    use super::*;
    use crate::model::forwarding::BridgeId;

    fn state(table: u8) -> Arc<Frozen> {
        Arc::new(Frozen {
            tlv: None,
            bridge: BridgeId(1),
            table,
            metadata: Key::new(),
            stack: Vec::new(),
            action_set: Vec::new(),
            steps: Vec::new(),
            bond: None,
            bonds: 0,
            bond_hash: false,
            mirrored: Default::default(),
            conntracked: false,
        })
    }

    #[test]
    fn tokens_lead_to_their_states_while_these_are_kept() {
        let paused = Paused::default();
        let tokens: Vec<_> = (0..=MAX_STATES as u32).map(|n| paused.keep(n, state(n as u8))).collect();
        assert!(paused.find(&tokens[0]).is_none(), "the oldest has made way");
        assert_eq!(paused.find(&tokens[7]).unwrap().table, 7);
        assert!(tokens.iter().all(|token| token.len() == TOKEN_LEN));
        assert!(Paused::default().find(&tokens[7]).is_none(), "another process's");
        for len in 0..20 {
            assert!(paused.find(&tokens[7][..len]).is_none());
        }
    }
}
