//! What the targets of sealed protocols share: keys, addresses and a time.

use sluice_envelope::{BootId, ClusterKey, HEADER_BYTES, KeyRing, TAG_BYTES};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

/// Milliseconds since 1970 at which all packets are sent and received.
pub const NOW_MS: u64 = 1_700_000_000_000;
/// Address of the receiver.
pub const RECEIVER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9));
/// Boot id of the sender.
pub const BOOT: BootId = BootId::from_bytes([7; 16]);

/// A ring with one key, which sender and receiver have.
pub fn keys() -> &'static KeyRing {
    static KEYS: LazyLock<KeyRing> = LazyLock::new(|| {
        let key =
            ClusterKey::new(3, &std::array::from_fn(|i| i as u8), 0, u64::MAX).expect("the key is valid");
        KeyRing::new(vec![key]).expect("one key makes a ring")
    });
    &KEYS
}

/// Changes one bit that `choice` selects, so that the packet is no longer authentic. The header, the body and the tag
/// are all authenticated.
pub fn forge(packet: &[u8], choice: u8) -> Vec<u8> {
    let mut forged = packet.to_vec();
    let parts =
        [0..HEADER_BYTES, HEADER_BYTES..packet.len() - TAG_BYTES, packet.len() - TAG_BYTES..packet.len()];
    let part = parts[usize::from(choice >> 3) % parts.len()].clone();
    let at = part.start + usize::from(choice) % part.len().max(1);
    forged[at] ^= 1 << (choice & 7);
    forged
}
