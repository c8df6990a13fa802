//! Batches entries for each receiver, and suppresses entries that were sent a moment ago. This file changes
//! when messages should be combined or repeated at another rate.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::Hash;

/// Whether an entry may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The entry may be sent.
    New,
    /// The entry was sent within the quiet time.
    Repeated,
    /// So many entries were sent within the quiet time that no further one can be remembered: try again
    /// later.
    Full,
}

/// Entries `E` by receiver `R`. An entry with the key `K` is sent to a receiver at most once per quiet time.
/// Times are microseconds of a monotonic clock.
#[derive(Debug)]
pub struct Batcher<R, K, E> {
    quiet_us: u64,
    gather_us: u64,
    remembered_max: usize,
    sent: HashSet<(R, K)>,
    /// The keys of `sent` by the time at which they were sent.
    order: VecDeque<(u64, (R, K))>,
    entries: BTreeMap<R, Vec<E>>,
    entry_count: usize,
    taken_us: Option<u64>,
}

/// Waiting entries at which the batch is due at once.
const BATCH_MAX: usize = 16_384;

impl<R: Copy + Ord + Hash, K: Copy + Eq + Hash, E> Batcher<R, K, E> {
    /// An empty batch. A key may be sent again after `quiet_us`; entries that come within `gather_us` after
    /// the last batch was taken are sent together; at most `remembered_max` sent keys are remembered.
    #[must_use]
    pub fn new(quiet_us: u64, gather_us: u64, remembered_max: usize) -> Self {
        Self {
            quiet_us,
            gather_us,
            remembered_max,
            sent: HashSet::new(),
            order: VecDeque::new(),
            entries: BTreeMap::new(),
            entry_count: 0,
            taken_us: None,
        }
    }

    /// Whether an entry with this key may be sent now. If it may, it counts as sent.
    pub fn admit(&mut self, now_us: u64, receiver: R, key: K) -> Admission {
        while let Some((sent_us, oldest)) = self.order.front()
            && now_us.saturating_sub(*sent_us) >= self.quiet_us
        {
            self.sent.remove(oldest);
            self.order.pop_front();
        }
        if self.sent.contains(&(receiver, key)) {
            return Admission::Repeated;
        }
        if self.sent.len() >= self.remembered_max {
            return Admission::Full;
        }
        self.sent.insert((receiver, key));
        self.order.push_back((now_us, (receiver, key)));
        Admission::New
    }

    /// Adds an entry to the batch.
    pub fn push(&mut self, receiver: R, entry: E) {
        self.entries.entry(receiver).or_default().push(entry);
        self.entry_count += 1;
    }

    /// Time at which the batch is due; `None` if it is empty. The first entry after a pause is due at once.
    #[must_use]
    pub fn due_us(&self) -> Option<u64> {
        if self.entry_count == 0 {
            return None;
        }
        if self.entry_count >= BATCH_MAX {
            return Some(0);
        }
        Some(self.taken_us.map_or(0, |taken_us| taken_us.saturating_add(self.gather_us)))
    }

    /// Takes the batch, and begins a new one.
    pub fn take(&mut self, now_us: u64) -> BTreeMap<R, Vec<E>> {
        self.taken_us = Some(now_us);
        self.entry_count = 0;
        std::mem::take(&mut self.entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_entry_is_due_at_once_and_later_ones_are_batched() {
        let mut batcher = Batcher::<u8, u8, char>::new(100_000, 1000, 10);
        assert_eq!(batcher.due_us(), None);
        batcher.push(1, 'a');
        assert_eq!(batcher.due_us(), Some(0));
        assert_eq!(batcher.take(5000), BTreeMap::from([(1, vec!['a'])]));
        batcher.push(2, 'b');
        batcher.push(1, 'c');
        batcher.push(2, 'd');
        assert_eq!(batcher.due_us(), Some(6000));
        assert_eq!(batcher.take(6000), BTreeMap::from([(1, vec!['c']), (2, vec!['b', 'd'])]));
        assert_eq!(batcher.due_us(), None);
        for _ in 0..BATCH_MAX {
            assert_ne!(batcher.due_us(), Some(0), "not full yet");
            batcher.push(1, 'e');
        }
        assert_eq!(batcher.due_us(), Some(0));
    }

    #[test]
    fn key_is_sent_once_per_quiet_time_to_each_receiver() {
        let mut batcher = Batcher::<u8, u8, ()>::new(100, 1, 10);
        assert_eq!(batcher.admit(1000, 1, 7), Admission::New);
        assert_eq!(batcher.admit(1099, 1, 7), Admission::Repeated);
        assert_eq!(batcher.admit(1099, 2, 7), Admission::New);
        assert_eq!(batcher.admit(1099, 1, 8), Admission::New);
        assert_eq!(batcher.admit(1100, 1, 7), Admission::New);
        // A suppressed entry does not extend the quiet time.
        assert_eq!(batcher.admit(1150, 1, 7), Admission::Repeated);
        assert_eq!(batcher.admit(1200, 1, 7), Admission::New);
    }

    #[test]
    fn remembered_keys_are_bounded_and_expire() {
        let mut batcher = Batcher::<u8, u32, ()>::new(100, 1, 10);
        let all: Vec<_> = (0..12).map(|key| batcher.admit(0, 1, key)).collect();
        assert_eq!(all[..10], [Admission::New; 10]);
        assert_eq!(all[10..], [Admission::Full; 2]);
        assert_eq!(batcher.admit(99, 1, 11), Admission::Full);
        assert_eq!(batcher.admit(100, 1, 11), Admission::New);
        assert_eq!((batcher.sent.len(), batcher.order.len()), (1, 1));
    }
}
