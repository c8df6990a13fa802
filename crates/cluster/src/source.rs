/// The messages of one sender: which is the latest, and when it came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Source {
    incarnation: u64,
    seq: u64,
    /// Receipt of the latest message, if any came since this node last began to listen.
    pub heard_us: Option<u64>,
}

/// What a message is to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Overtaken or repeated: says nothing about how its sender is now.
    Stale,
    /// The next of the same life.
    Next,
    /// The first of another life.
    Reborn,
}

impl Source {
    /// Notes a message. One of an earlier life counts only after a silence of `limit_us`: a clock that was
    /// set back must not make a restarted sender unheard for ever.
    pub fn note(&mut self, now_us: u64, incarnation: u64, seq: u64, limit_us: u64) -> Arrival {
        let same = incarnation == self.incarnation;
        let accepted = match self.heard_us {
            _ if same => seq > self.seq,
            Some(heard_us) if now_us - heard_us <= limit_us => incarnation > self.incarnation,
            _ => true,
        };
        if !accepted {
            return Arrival::Stale;
        }
        (self.incarnation, self.seq, self.heard_us) = (incarnation, seq, Some(now_us));
        if same { Arrival::Next } else { Arrival::Reborn }
    }

    /// Whether the latest message is at most that old.
    pub fn is_heard(&self, now_us: u64, limit_us: u64) -> bool {
        self.heard_us.is_some_and(|heard_us| now_us - heard_us <= limit_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_messages_do_not_bring_back_the_dead() {
        let mut source = Source::default();
        assert_eq!(source.note(0, 7, 5, 10), Arrival::Reborn);
        assert_eq!(source.note(1, 7, 5, 10), Arrival::Stale);
        assert_eq!(source.note(50, 7, 4, 10), Arrival::Stale);
        assert!(source.is_heard(10, 10) && !source.is_heard(11, 10));
        assert_eq!(source.note(50, 7, 6, 10), Arrival::Next);
        // An earlier life: refused while the later one is heard, accepted after its silence.
        assert_eq!(source.note(55, 3, 1, 10), Arrival::Stale);
        assert_eq!(source.note(61, 3, 1, 10), Arrival::Reborn);
        assert_eq!(source.note(62, 7, 7, 10), Arrival::Reborn);
    }
}
