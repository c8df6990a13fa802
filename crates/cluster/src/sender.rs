//! Order and age of one sender's messages: which message is the latest, and when it arrived.

/// What a node remembers about the messages of one sender.
#[derive(Clone, Debug, Default)]
pub(crate) struct SenderState {
    incarnation: u64,
    seq: u64,
    /// Arrival of the latest message; `None` if none arrived since this node last entered its start-up phase.
    pub received_us: Option<u64>,
}

/// Relation of a message to the earlier messages of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The message was overtaken by a later one, or repeated. It says nothing about the sender's present
    /// state.
    Stale,
    /// A newer message of the same incarnation.
    Next,
    /// The first message of another incarnation.
    Restarted,
}

impl SenderState {
    /// Records a message. A message of an earlier incarnation is accepted only after a silence of `limit_us`:
    /// otherwise a sender that restarts after its clock was set back would be ignored forever.
    pub fn record(&mut self, now_us: u64, incarnation: u64, seq: u64, limit_us: u64) -> Arrival {
        let same = incarnation == self.incarnation;
        let accepted = match self.received_us {
            _ if same => seq > self.seq,
            Some(received_us) if now_us - received_us <= limit_us => incarnation > self.incarnation,
            _ => true,
        };
        if !accepted {
            return Arrival::Stale;
        }
        (self.incarnation, self.seq, self.received_us) = (incarnation, seq, Some(now_us));
        if same { Arrival::Next } else { Arrival::Restarted }
    }

    /// Returns whether the latest message arrived at most `limit_us` ago.
    pub fn is_reachable(&self, now_us: u64, limit_us: u64) -> bool {
        self.received_us.is_some_and(|received_us| now_us - received_us <= limit_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_messages_do_not_make_a_sender_reachable() {
        let mut sender = SenderState::default();
        assert_eq!(sender.record(0, 7, 5, 10), Arrival::Restarted);
        assert_eq!(sender.record(1, 7, 5, 10), Arrival::Stale);
        assert_eq!(sender.record(50, 7, 4, 10), Arrival::Stale);
        assert!(sender.is_reachable(10, 10) && !sender.is_reachable(11, 10));
        assert_eq!(sender.record(50, 7, 6, 10), Arrival::Next);
        // An earlier incarnation is refused while the later one is reachable, and accepted after its silence.
        assert_eq!(sender.record(55, 3, 1, 10), Arrival::Stale);
        assert_eq!(sender.record(61, 3, 1, 10), Arrival::Restarted);
        assert_eq!(sender.record(62, 7, 7, 10), Arrival::Restarted);
    }
}
