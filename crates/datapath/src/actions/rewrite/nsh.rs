//! Network service header (RFC 8300 section 2).

use packet::flow::block::Encap;
use packet::flow::extract::Layers;

use super::Rewriter;
use super::checksum::store;

/// Ethernet type.
pub(super) const ETHERTYPE: u16 = 0x894f;

/// Bytes of base and service path header.
const BASE: usize = 8;

/// Whether the mask has bits of the header that can be written.
pub(super) fn is_written(mask: &Encap) -> bool {
    mask.nsh_flags | mask.nsh_ttl != 0 || mask.nsh_path.get() != 0 || mask.nsh_c.iter().any(|c| c.get() != 0)
}

/// Writes flags, TTL, service path, and the context headers of metadata type 1.
pub(super) fn set_nsh(rewriter: &Rewriter, frame: &mut [u8], layers: &Layers) {
    let Some(encap) = rewriter.encap.as_deref() else { return };
    let Some(header) = frame.get_mut(usize::from(layers.l3)..).filter(|header| header.len() >= BASE) else { return };
    let word = |bits: &Encap| u16::from(bits.nsh_flags & 3) << 12 | u16::from(bits.nsh_ttl & 0x3f) << 6;
    let (value, mask) = (&encap.value, &encap.mask);
    store(&mut header[..2], &word(value).to_be_bytes(), &word(mask).to_be_bytes(), &mut []);
    store(&mut header[4..8], &value.nsh_path.to_bytes(), &mask.nsh_path.to_bytes(), &mut []);
    if header[2] == 1 {
        let contexts = header[BASE..].chunks_exact_mut(4).zip(value.nsh_c.iter().zip(&mask.nsh_c));
        for (context, (value, mask)) in contexts {
            store(context, &value.to_bytes(), &mask.to_bytes(), &mut []);
        }
    }
}
