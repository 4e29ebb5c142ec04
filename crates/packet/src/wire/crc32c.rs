//! CRC-32C, SCTP's checksum (RFC 9260 appendix A): the Castagnoli polynomial, reflected.

const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Table `k` advances a byte over `k` further zero bytes.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut table = 0;
        while table < 8 {
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 1 != 0 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
                bit += 1;
            }
            tables[table][byte] = crc;
            table += 1;
        }
        byte += 1;
    }
    tables
}

/// The CRC of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    extend(0, bytes)
}

/// The CRC of a message of which `crc` is that of the first part and `bytes` is the rest.
pub fn extend(crc: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut crc = !crc;
    for word in words {
        let word = u64::from_le_bytes(*word) ^ u64::from(crc);
        crc =
            word.to_le_bytes().iter().rev().zip(&TABLES).fold(0, |crc, (&byte, table)| crc ^ table[usize::from(byte)]);
    }
    for byte in rest {
        crc = crc >> 8 ^ TABLES[0][usize::from(crc as u8 ^ byte)];
    }
    !crc
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bit_by_bit(bytes: &[u8]) -> u32 {
        let step = |crc: u32, _| if crc & 1 != 0 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
        !bytes.iter().fold(!0u32, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
    }

    #[test]
    fn known_values() {
        // RFC 3720 appendix B.4.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

    proptest! {
        #[test]
        fn equals_the_definition(a: Vec<u8>, b: Vec<u8>) {
            let whole = [&a[..], &b[..]].concat();
            prop_assert_eq!(crc32c(&whole), bit_by_bit(&whole));
            prop_assert_eq!(extend(crc32c(&a), &b), bit_by_bit(&whole));
        }
    }
}
