use crate::proto::NodeUpdate;
use bytes::{Buf, BufMut, Bytes};
use prost::encoding::{DecodeContext, WireType, skip_field};
use prost::{DecodeError, Message};

/// The part of an update that differs between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateHead {
    /// See [`Update::revision`](crate::Update::revision).
    pub revision: u64,
    /// See [`Update::commit_id`](crate::Update::commit_id).
    pub commit_id: u64,
    /// See [`Update::database_id`](crate::Update::database_id).
    pub database_id: u64,
    /// See [`Update::snapshot`](crate::Update::snapshot).
    pub snapshot: bool,
    /// See [`Update::keep_unmentioned`](crate::Update::keep_unmentioned).
    pub keep_unmentioned: bool,
}

/// A [`NodeUpdate`] in its wire form. The entries are encoded once for all nodes that get the same; only the
/// head differs. (The concatenation of two encoded messages is the encoding of their union.)
#[derive(Clone, Debug, Default)]
pub struct EncodedUpdate {
    head: Bytes,
    entries: Bytes,
}

impl EncodedUpdate {
    /// `entries` is a result of [`Self::encode_entries`].
    pub fn new(head: UpdateHead, entries: Bytes) -> Self {
        let UpdateHead { revision, commit_id, database_id, snapshot, keep_unmentioned } = head;
        let fields = NodeUpdate { revision, commit_id, database_id, snapshot, ..NodeUpdate::default() };
        let head = NodeUpdate { keep_unmentioned, ..fields };
        Self { head: head.encode_to_vec().into(), entries }
    }

    /// Encodes the shared part: a message without the fields of [`UpdateHead`].
    pub fn encode_entries(update: &NodeUpdate) -> Bytes {
        debug_assert!(update.revision == 0 && update.database_id == 0 && !update.snapshot);
        update.encode_to_vec().into()
    }

    /// Size on the wire in bytes.
    pub fn byte_len(&self) -> usize {
        self.head.len() + self.entries.len()
    }
}

/// Decodes a message as a node does.
///
/// # Errors
/// If the bytes are not a valid message.
pub fn decode_update(bytes: Bytes) -> Result<NodeUpdate, DecodeError> {
    NodeUpdate::decode(bytes)
}

impl Message for EncodedUpdate {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        buf.put_slice(&self.head);
        buf.put_slice(&self.entries);
    }

    // Required by prost; the controller never receives updates.
    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        skip_field(wire_type, tag, buf, context)
    }

    fn encoded_len(&self) -> usize {
        self.byte_len()
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{EndpointBatch, Vtep};

    #[test]
    fn head_and_entries_decode_as_one_message() {
        let entries = NodeUpdate {
            vteps: vec![Vtep {
                address: Some("192.0.2.1".parse::<std::net::IpAddr>().unwrap().into()),
                ..Vtep::default()
            }],
            endpoints: Some(EndpointBatch { endpoints: vec![Default::default(); 3] }),
            ..Default::default()
        };
        let head =
            UpdateHead { revision: 7, commit_id: 8, database_id: 9, snapshot: true, keep_unmentioned: true };
        let encoded = EncodedUpdate::new(head, EncodedUpdate::encode_entries(&entries));
        let bytes = encoded.encode_to_vec();
        assert_eq!(bytes.len(), encoded.byte_len());
        let decoded = NodeUpdate::decode(bytes.as_slice()).unwrap();
        assert_eq!(
            decoded,
            NodeUpdate {
                revision: 7,
                commit_id: 8,
                database_id: 9,
                snapshot: true,
                keep_unmentioned: true,
                ..entries
            }
        );
    }
}
