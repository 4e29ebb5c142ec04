//! The CA certificate that a peer sends at the end of its chain, written to a file: trust on first use.
//!
//! As in OVS, it has to be self-signed, as far as that is said by its names. Which certificates it has signed is seen when
//! the connection is made again.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustls::pki_types::CertificateDer;

use crate::error::Error;

/// The CA certificate of a peer that has presented these.
pub fn of_chain(chain: &[CertificateDer<'static>]) -> Result<CertificateDer<'static>, Error> {
    let last = chain.last().ok_or(Error::Bootstrap("the peer has presented no certificate"))?;
    match names(last) {
        Some((issuer, subject)) if issuer == subject => Ok(last.clone()),
        Some(_) if chain.len() == 1 => Err(Error::Bootstrap(
            "only one certificate was received, which is not self-signed: probably the peer is not configured to send its \
             CA certificate",
        )),
        Some(_) => Err(Error::Bootstrap("the last certificate of the peer is not self-signed")),
        None => Err(Error::Bootstrap("the last certificate of the peer cannot be read")),
    }
}

/// Writes a certificate to a file that is not there yet. One that somebody else has written meanwhile is as good.
pub fn write(file: &Path, certificate: &CertificateDer<'_>) -> Result<(), Error> {
    let opened = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o444).open(file);
    let mut opened = match opened {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => return Ok(()),
        opened => opened.map_err(|e| Error::file(file, format!("cannot create it: {e}")))?,
    };
    opened.write_all(pem(certificate).as_bytes()).map_err(|e| {
        // Half a certificate would be in the way of a whole one.
        let _ = std::fs::remove_file(file);
        Error::file(file, format!("cannot write it: {e}"))
    })
}

/// Issuer and subject of a certificate (RFC 5280 section 4.1).
fn names(certificate: &[u8]) -> Option<(&[u8], &[u8])> {
    const SEQUENCE: u8 = 0x30;
    const INTEGER: u8 = 0x02;
    const VERSION: u8 = 0xa0;
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (mut rest, _) = element(certificate, SEQUENCE)?;
    // Absent in the first version.
    if let Some((_, after)) = element(rest, VERSION) {
        rest = after;
    }
    let (_serial, rest) = element(rest, INTEGER)?;
    let (_signature, rest) = element(rest, SEQUENCE)?;
    let (issuer, rest) = element(rest, SEQUENCE)?;
    let (_validity, rest) = element(rest, SEQUENCE)?;
    let (subject, _) = element(rest, SEQUENCE)?;
    Some((issuer, subject))
}

/// The contents of an element with this tag, and what follows it (X.690 section 8.1).
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // A certificate's length has three octets at most.
        0x81..=0x83 => {
            let (octets, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (octets.iter().fold(0, |len, &octet| len << 8 | usize::from(octet)), rest)
        }
        _ => return None,
    };
    (found == tag).then(|| rest.split_at_checked(len))?
}

/// A certificate as text (RFC 7468).
fn pem(der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::from("-----BEGIN CERTIFICATE-----\n");
    // 48 bytes make a line of 64 characters.
    for line in der.chunks(48) {
        for group in line.chunks(3) {
            let octet = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
            let bits = octet(0) << 16 | octet(1) << 8 | octet(2);
            for at in 0..4 {
                let digit = ALPHABET[(bits >> (18 - 6 * at) & 0x3f) as usize];
                out.push(if at <= group.len() { char::from(digit) } else { '=' });
            }
        }
        out.push('\n');
    }
    out + "-----END CERTIFICATE-----\n"
}

/// Entry point for fuzzing: any bytes as a certificate.
pub fn fuzz(data: &[u8]) {
    let certificate = CertificateDer::from(data.to_vec());
    let _ = of_chain(std::slice::from_ref(&certificate));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    /// A certificate as far as it is looked at.
    fn certificate(issuer: &[u8], subject: &[u8]) -> CertificateDer<'static> {
        let element = |tag: u8, contents: &[u8]| {
            let len = u16::try_from(contents.len()).unwrap().to_be_bytes();
            [&[tag, 0x82, len[0], len[1]], contents].concat()
        };
        let parts = [
            element(0xa0, &[2, 1, 2]),
            element(2, &[1]),
            element(0x30, &[]),
            element(0x30, issuer),
            element(0x30, &[]),
            element(0x30, subject),
        ];
        element(0x30, &element(0x30, &parts.concat())).into()
    }

    #[test]
    fn only_a_self_signed_certificate_is_a_ca() {
        let (leaf, ca) = (certificate(b"ca", b"switch"), certificate(b"ca", b"ca"));
        assert_eq!(of_chain(&[leaf.clone(), ca.clone()]), Ok(ca.clone()));
        assert_eq!(of_chain(std::slice::from_ref(&ca)), Ok(ca.clone()));
        let text = |chain: &[_]| of_chain(chain).unwrap_err().to_string();
        assert!(text(std::slice::from_ref(&leaf)).contains("only one certificate"));
        assert!(text(&[ca.clone(), leaf]).contains("not self-signed"));
        assert!(text(&[]).contains("no certificate"));
        assert!(text(&[ca.as_ref()[..20].to_vec().into()]).contains("cannot be read"));
    }

    #[test]
    fn a_file_that_is_there_is_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ca.pem");
        let (first, second) = (certificate(b"a", b"a"), certificate(b"b", b"b"));
        write(&file, &first).unwrap();
        write(&file, &second).unwrap();
        assert_eq!(CertificateDer::from_pem_file(&file).unwrap(), first);
        assert!(write(&directory.path().join("no/ca.pem"), &first).unwrap_err().to_string().contains("cannot create"));
    }

    proptest! {
        #[test]
        fn any_bytes(mut data: Vec<u8>, flips in proptest::collection::vec((0usize..60, any::<u8>()), 0..4)) {
            fuzz(&data);
            data = certificate(b"issuer", b"subject").to_vec();
            for (at, value) in flips {
                let at = at % data.len();
                data[at] = value;
            }
            fuzz(&data);
        }

        #[test]
        fn what_is_written_is_read_again(data in proptest::collection::vec(any::<u8>(), 1..300)) {
            let read = CertificateDer::from_pem_slice(pem(&data).as_bytes()).unwrap();
            prop_assert_eq!(read.as_ref(), &data[..]);
        }
    }
}
