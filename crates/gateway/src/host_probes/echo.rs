//! Echo requests and replies of ICMP (RFC 792) and ICMPv6 (RFC 4443) with a random payload. Pure. This file changes with what a probe
//! carries.

use sluice_agent::health::echo::Nonce;

const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST6: u8 = 128;
const ECHO_REPLY6: u8 = 129;
const PAYLOAD_AT: usize = 8;
/// Length of a message.
pub const ECHO_BYTES: usize = PAYLOAD_AT + size_of::<Nonce>();

/// A request with the nonce as its payload. The checksum of ICMPv6, which includes addresses, is left to the system.
pub fn request(is_ipv4: bool, identifier: u16, sequence: u16, nonce: &Nonce) -> [u8; ECHO_BYTES] {
    let mut message = [0; ECHO_BYTES];
    message[0] = if is_ipv4 { ECHO_REQUEST } else { ECHO_REQUEST6 };
    message[4..6].copy_from_slice(&identifier.to_be_bytes());
    message[6..8].copy_from_slice(&sequence.to_be_bytes());
    message[PAYLOAD_AT..].copy_from_slice(nonce);
    if is_ipv4 {
        let checksum = checksum(&message);
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
    }
    message
}

/// The nonce of a reply to a request with this identifier; `None` for other messages.
pub fn reply(is_ipv4: bool, identifier: u16, message: &[u8]) -> Option<Nonce> {
    let kind = if is_ipv4 { ECHO_REPLY } else { ECHO_REPLY6 };
    if message.len() != ECHO_BYTES || message[..2] != [kind, 0] || message[4..6] != identifier.to_be_bytes() {
        return None;
    }
    message[PAYLOAD_AT..].try_into().ok()
}

/// The Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(message: &[u8]) -> u16 {
    let sum: u32 =
        message.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: Nonce = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

    #[test]
    fn a_request_has_its_checksum_and_its_reply_the_nonce() {
        let request4 = request(true, 0x1234, 7, &NONCE);
        assert_eq!((request4[..2].to_vec(), checksum(&request4)), (vec![8, 0], 0));
        assert_eq!(request4[4..8], [0x12, 0x34, 0, 7]);
        let request6 = request(false, 0x1234, 7, &NONCE);
        assert_eq!(request6[..4], [128, 0, 0, 0]);
        for (is_ipv4, request, kind) in [(true, request4, 0), (false, request6, 129)] {
            assert_eq!(reply(is_ipv4, 0x1234, &request), None, "a request is no reply");
            let mut answer = request;
            answer[0] = kind;
            assert_eq!(reply(is_ipv4, 0x1234, &answer), Some(NONCE));
            assert_eq!(reply(is_ipv4, 0x1235, &answer), None, "of another program");
            assert_eq!(reply(!is_ipv4, 0x1234, &answer), None);
            assert!((0..ECHO_BYTES).all(|cut| reply(is_ipv4, 0x1234, &answer[..cut]).is_none()));
            assert_eq!(reply(is_ipv4, 0x1234, &[&answer[..], &[0]].concat()), None);
        }
    }
}
