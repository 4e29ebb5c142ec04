//! The messages in a datagram.

use std::io;

use netlink_packet_core::{ErrorBuffer, NLMSG_ERROR, NetlinkBuffer, NetlinkMessage};
use netlink_packet_route::RouteNetlinkMessage;

/// Messages start at multiples of it (NLMSG_ALIGNTO).
const ALIGNMENT: usize = 4;

/// The messages in a datagram. One of impossible length is the last.
pub struct Messages<'a>(pub &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = io::Result<NetlinkBuffer<&'a [u8]>>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = std::mem::take(&mut self.0);
        if bytes.is_empty() {
            return None;
        }
        let message = NetlinkBuffer::new_checked(bytes).map_err(io::Error::other);
        if let Ok(message) = &message {
            self.0 = bytes.get((message.length() as usize).next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        }
        Some(message)
    }
}

/// A message as bytes.
pub fn message(body: RouteNetlinkMessage, flags: u16, sequence: u32) -> Vec<u8> {
    let mut message = NetlinkMessage::from(body);
    (message.header.flags, message.header.sequence_number) = (flags, sequence);
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// The error that a message of that kind reports; zero is an acknowledgement.
pub fn error_of(body: &[u8]) -> io::Result<()> {
    match ErrorBuffer::new_checked(body).map_err(io::Error::other)?.code() {
        None => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.get().wrapping_neg())),
    }
}

/// Where the body of a message is, if it is more than an acknowledgement.
pub type Body = Option<std::ops::Range<usize>>;

/// Finds the message with this sequence number and says where its body is, or what error it reports.
pub fn find_answer(bytes: &[u8], sequence: u32) -> Option<io::Result<Body>> {
    for message in Messages(bytes) {
        let message = match message {
            Ok(message) if message.sequence_number() != sequence => continue,
            Ok(message) => message,
            Err(error) => return Some(Err(error)),
        };
        let body = message.payload();
        if message.message_type() == NLMSG_ERROR {
            return Some(error_of(body).map(|()| None));
        }
        let start = body.as_ptr().addr() - bytes.as_ptr().addr();
        return Some(Ok(Some(start..start + body.len())));
    }
    None
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::{ErrorMessage, NetlinkHeader, NetlinkPayload};
    use proptest::prelude::*;

    use super::*;

    /// An error as the kernel reports it, in an answer to request 7.
    fn error_message(code: i32) -> Vec<u8> {
        let mut error = ErrorMessage::default();
        (error.code, error.header) = (std::num::NonZeroI32::new(code), vec![0; 16]);
        let mut message =
            NetlinkMessage::<RouteNetlinkMessage>::new(NetlinkHeader::default(), NetlinkPayload::Error(error));
        message.header.sequence_number = 7;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    #[test]
    fn error_answers_become_errors() {
        let message = error_message(-libc::EPERM);
        let error = find_answer(&message, 7).unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        assert!(find_answer(&message, 8).is_none());
        assert!(matches!(find_answer(&error_message(0), 7), Some(Ok(None))));
    }

    #[test]
    fn an_error_number_without_a_positive_form_is_an_error() {
        assert!(find_answer(&error_message(i32::MIN), 7).unwrap().is_err());
    }

    proptest! {
        /// Whatever it is: what is taken for an answer lies within it.
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), sequence: u32) {
            let _ = Messages(&bytes).count();
            if let Some(Ok(Some(body))) = find_answer(&bytes, sequence) {
                prop_assert!(bytes.get(body).is_some());
            }
        }
    }
}
