//! What distinguishes the protocols that use the envelope, and the sizes that all of them share.

/// Size of the packet header, which precedes the encrypted body.
pub const HEADER_BYTES: usize = 64;

/// Size of the authentication tag, which follows the encrypted body.
pub const TAG_BYTES: usize = 16;

/// Size of the largest packet, from the first byte of the header to the last byte of the tag. It fits an
/// Ethernet frame of 9216 bytes over IPv4.
pub const PACKET_BYTES_MAX: usize = 9216 - 28;

/// A protocol that uses the envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    pub(crate) magic: [u8; 2],
    pub(crate) version: (u8, u8),
    pub(crate) label: [u8; 4],
    pub(crate) body_bytes_min: usize,
}

impl Protocol {
    /// Makes a protocol whose packets begin with `magic` and whose keys are derived with `label`. No two
    /// protocols may share either of them. Receivers refuse packets of another major `version.0`.
    #[must_use]
    pub const fn new(magic: [u8; 2], version: (u8, u8), label: [u8; 4]) -> Self {
        Self { magic, version, label, body_bytes_min: 0 }
    }

    /// Sets the size of the shortest valid body. Receivers refuse a shorter packet before they decrypt it.
    #[must_use]
    pub const fn with_body_bytes_min(self, body_bytes_min: usize) -> Self {
        Self { body_bytes_min, ..self }
    }
}
