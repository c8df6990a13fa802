//! Gathering what is to be said, and not saying it twice.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::Hash;

/// What becomes of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// To be said.
    New,
    /// Said a moment ago.
    Repeated,
    /// So much was said that nobody remembers whether this was: it has to wait.
    Full,
}

/// Entries by receiver `R`. What an entry is about, `K`, is said once in a while only. Times are
/// microseconds of a clock that does not jump.
#[derive(Debug)]
pub struct Batch<R, K, E> {
    quiet_us: u64,
    gather_us: u64,
    memory_max: usize,
    said: HashSet<(R, K)>,
    order: VecDeque<(u64, (R, K))>,
    entries: BTreeMap<R, Vec<E>>,
    gathered: usize,
    taken_us: Option<u64>,
}

/// Entries that wait, at most: more are taken at once.
const GATHERED_MAX: usize = 16_384;

impl<R: Copy + Ord + Hash, K: Copy + Eq + Hash, E> Batch<R, K, E> {
    /// The same is said again after `quiet_us` at the earliest; what comes within `gather_us` of what was
    /// taken before goes together; `memory_max` of what was said is remembered.
    #[must_use]
    pub fn new(quiet_us: u64, gather_us: u64, memory_max: usize) -> Self {
        Self {
            quiet_us,
            gather_us,
            memory_max,
            said: HashSet::new(),
            order: VecDeque::new(),
            entries: BTreeMap::new(),
            gathered: 0,
            taken_us: None,
        }
    }

    /// Whether something may be said now; if so, it counts as said.
    pub fn admit(&mut self, now_us: u64, to: R, about: K) -> Admission {
        while let Some((at_us, known)) = self.order.front()
            && now_us.saturating_sub(*at_us) >= self.quiet_us
        {
            self.said.remove(known);
            self.order.pop_front();
        }
        if self.said.contains(&(to, about)) {
            return Admission::Repeated;
        }
        if self.said.len() >= self.memory_max {
            return Admission::Full;
        }
        self.said.insert((to, about));
        self.order.push_back((now_us, (to, about)));
        Admission::New
    }

    /// Adds an entry.
    pub fn push(&mut self, to: R, entry: E) {
        self.entries.entry(to).or_default().push(entry);
        self.gathered += 1;
    }

    /// When to take what has gathered; `None` while there is nothing. The first entry after a pause does
    /// not wait.
    #[must_use]
    pub fn due_us(&self) -> Option<u64> {
        if self.gathered == 0 {
            return None;
        }
        if self.gathered >= GATHERED_MAX {
            return Some(0);
        }
        Some(self.taken_us.map_or(0, |taken_us| taken_us.saturating_add(self.gather_us)))
    }

    /// Takes it.
    pub fn take(&mut self, now_us: u64) -> BTreeMap<R, Vec<E>> {
        self.taken_us = Some(now_us);
        self.gathered = 0;
        std::mem::take(&mut self.entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_goes_at_once_and_what_follows_goes_together() {
        let mut batch = Batch::<u8, u8, char>::new(100_000, 1000, 10);
        assert_eq!(batch.due_us(), None);
        batch.push(1, 'a');
        assert_eq!(batch.due_us(), Some(0));
        assert_eq!(batch.take(5000), BTreeMap::from([(1, vec!['a'])]));
        batch.push(2, 'b');
        batch.push(1, 'c');
        batch.push(2, 'd');
        assert_eq!(batch.due_us(), Some(6000));
        assert_eq!(batch.take(6000), BTreeMap::from([(1, vec!['c']), (2, vec!['b', 'd'])]));
        assert_eq!(batch.due_us(), None);
        for _ in 0..GATHERED_MAX {
            batch.push(1, 'e');
        }
        assert_eq!(batch.due_us(), Some(0));
    }

    #[test]
    fn the_same_is_said_once_in_a_while_to_each() {
        let mut batch = Batch::<u8, u8, ()>::new(100, 1, 10);
        assert_eq!(batch.admit(1000, 1, 7), Admission::New);
        assert_eq!(batch.admit(1099, 1, 7), Admission::Repeated);
        assert_eq!(batch.admit(1099, 2, 7), Admission::New);
        assert_eq!(batch.admit(1099, 1, 8), Admission::New);
        assert_eq!(batch.admit(1100, 1, 7), Admission::New);
        // What was not said does not keep itself quiet.
        assert_eq!(batch.admit(1150, 1, 7), Admission::Repeated);
        assert_eq!(batch.admit(1200, 1, 7), Admission::New);
    }

    #[test]
    fn memory_is_bounded_and_comes_back() {
        let mut batch = Batch::<u8, u32, ()>::new(100, 1, 10);
        let all: Vec<_> = (0..12).map(|about| batch.admit(0, 1, about)).collect();
        assert_eq!(all[..10], [Admission::New; 10]);
        assert_eq!(all[10..], [Admission::Full; 2]);
        assert_eq!(batch.admit(99, 1, 11), Admission::Full);
        assert_eq!(batch.admit(100, 1, 11), Admission::New);
        assert_eq!((batch.said.len(), batch.order.len()), (1, 1));
    }
}
