//! Explicit congestion notification through tunnels (RFC 6040).

use crate::Malformed;

/// The bits of TOS and traffic class that are ECN.
pub const MASK: u8 = 3;
/// The sender does not understand it.
pub const NOT_ECT: u8 = 0;
/// The sender understands it.
pub const ECT_1: u8 = 1;
/// The sender understands it.
pub const ECT_0: u8 = 2;
/// Congestion was met.
pub const CE: u8 = 3;

/// The TOS of the outer header of a packet whose TOS is `inner` (normal mode, section 4.1): the DSCP of `outer`, and the mark of the
/// packet.
pub fn encapsulate(outer: u8, inner: u8) -> u8 {
    outer & !MASK | inner & MASK
}

/// The TOS of a packet that has left its tunnel (section 4.2, figure 4): its own, with what its outer header tells.
pub fn decapsulate(outer: u8, inner: u8) -> Result<u8, Malformed> {
    match (outer & MASK, inner & MASK) {
        (CE, NOT_ECT) => Err(Malformed::Congestion),
        (CE, _) => Ok(inner | CE),
        (ECT_1, ECT_0) => Ok(inner & !MASK | ECT_1),
        _ => Ok(inner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figure 4 of the RFC, row by row.
    #[test]
    fn marks_are_combined_as_the_rfc_says() {
        let rows = [
            (NOT_ECT, [Some(NOT_ECT), Some(NOT_ECT), Some(NOT_ECT), None]),
            (ECT_0, [Some(ECT_0), Some(ECT_0), Some(ECT_1), Some(CE)]),
            (ECT_1, [Some(ECT_1), Some(ECT_1), Some(ECT_1), Some(CE)]),
            (CE, [Some(CE); 4]),
        ];
        for (inner, results) in rows {
            for (outer, result) in [NOT_ECT, ECT_0, ECT_1, CE].into_iter().zip(results) {
                let tos = decapsulate(0xa0 | outer, 0x48 | inner);
                assert_eq!(tos.ok(), result.map(|mark| 0x48 | mark), "{inner} in {outer}");
                assert_eq!(encapsulate(0xa0 | outer, 0x48 | inner), 0xa0 | inner);
            }
        }
    }
}
