//! Copies of the sessions of source NAT on all gateways of a cluster, so that each of them can take any vIP over: messages,
//! and the state machines that exchange them. They take inputs and return outputs; time is an argument, and the only timer is
//! an output. The caller has the sockets, the clock and the table ([`SessionTable`]), and says which gateway owns which vIP
//! ([`Input::Owners`]).
//!
//! The owner of a NAT gateway's vIP sends all its sessions to each other gateway in passes, one after the other. When a pass
//! is over, the receiver ends what it has and what was not in the pass, unless it is newer. So a pass copies, refreshes,
//! repairs and deletes, and there is no log of changes. A gateway that has lost a vIP returns what it has to the new owner by
//! the same means.
//!
//! `docs/decisions/nat-replication.md` has the reasons, and `api/nat-sync.md` the messages.
//!
//! Modules form layers. A module uses only modules in the layers below it:
//!
//! ```text
//! 4  replicator (all of a gateway)    codec (sealed datagrams)
//! 3  sender, receiver (of one other gateway)
//! 2  wire (encoding)    table (what is needed of the sessions' memory)
//! 1  message    record (a session)    params (times)    shares (who gives out which ports)
//! ```
#![forbid(unsafe_code)]

mod codec;
mod message;
mod params;
mod receiver;
mod record;
mod replicator;
mod sender;
mod shares;
mod table;
mod wire;

pub use codec::{MessageCodec, NAT_SYNC_PORT, Refused};
pub use message::{Ack, Data, Message, PassId, Progress, Role, WINDOW};
pub use params::Params;
pub use receiver::Counters;
pub use record::{Record, State};
pub use replicator::{Input, Output, Replicator};
pub use shares::{SHARE_BLOCKS, block_share};
pub use table::{Installed, Mark, PART_SESSIONS_MAX, SessionTable, Source, Unseen};
pub use wire::{DATAGRAM_BYTES_MAX, DecodeError, MESSAGE_BYTES_MAX, RECORD_BYTES, RECORDS_MAX, UNIT_BYTES};
