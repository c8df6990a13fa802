//! The heartbeat by which an agent tells a gateway's packet programs that it runs.

use crate::layout::{self, superblock};
use crate::memory::Memory;
use std::mem::offset_of;

/// Tells a gateway's programs whether its agent runs and is healthy. While it is not, the programs answer
/// broadcast ARP and multicast ND requests for its vIPs from the port's own MAC, so that no switch learns
/// the vMAC from the answer (`send_answer` in `bpf/include/gateway/answer_underlay.h`).
///
/// Only one thread may use it at a time: it is the only writer of its word.
#[derive(Debug)]
pub struct AgentHeartbeat {
    memory: Memory,
}

impl AgentHeartbeat {
    /// An agent without a heartbeat for this long counts as down.
    pub const TIMEOUT_NS: u64 = layout::ATTENDED_NS as u64;

    pub(crate) fn new(memory: Memory) -> Self {
        Self { memory }
    }

    /// Records that the agent is healthy at `now_ns` (`CLOCK_MONOTONIC`).
    pub fn beat(&self, now_ns: u64) {
        self.store(now_ns.max(1));
    }

    /// Makes the programs ignore missing heartbeats: no other gateway can own this gateway's vIPs.
    pub fn disable(&self) {
        self.store(0);
    }

    /// Time of the last heartbeat (`CLOCK_MONOTONIC`); 0 if there was none or they are disabled.
    pub fn last_beat_ns(&self) -> u64 {
        self.memory.load64(0, offset_of!(superblock, attended_ns))
    }

    fn store(&self, word: u64) {
        self.memory.store64(0, offset_of!(superblock, attended_ns), word);
    }
}
