//! Which counters of a sender were seen (RFC 6479): a bitmap that is a ring of
//! words, of which the newest word is always partly ahead.

use crate::Refusal;

const WORDS: u64 = 32;

/// How far below the highest counter seen a packet may come and still be judged.
pub const WINDOW: u64 = (WORDS - 1) * 64;

/// Counters begin at 1, so an empty window has seen nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    top: u64,
    seen: [u64; WORDS as usize],
}

fn word(counter: u64) -> usize {
    (counter / 64 % WORDS) as usize
}

impl Window {
    /// Whether a packet of this counter may be taken.
    pub fn judge(&self, counter: u64) -> Result<(), Refusal> {
        if counter == 0 || self.top.saturating_sub(counter) >= WINDOW {
            return Err(Refusal::BehindWindow { counter });
        }
        if counter <= self.top && self.seen[word(counter)] & 1 << (counter % 64) != 0 {
            return Err(Refusal::Replayed { counter });
        }
        Ok(())
    }

    /// The packet was taken.
    pub fn mark(&mut self, counter: u64) {
        if counter > self.top {
            let (from, to) = (self.top / 64, counter / 64);
            for ahead in (from + 1..=to).rev().take(WORDS as usize) {
                self.seen[(ahead % WORDS) as usize] = 0;
            }
            self.top = counter;
        }
        self.seen[word(counter)] |= 1 << (counter % 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// A set of all counters says the same.
        #[test]
        fn agrees_with_a_set(steps in prop::collection::vec((any::<bool>(), 0u64..5000), 1..400), start in any::<u64>()) {
            let (mut window, mut seen) = (Window::default(), BTreeSet::new());
            let mut at = start >> 1;
            for (ahead, by) in steps {
                let counter = if ahead { at.saturating_add(by) } else { at.saturating_sub(by) };
                let top = seen.last().copied().unwrap_or(0);
                let expected = if counter == 0 || counter + WINDOW <= top {
                    Err(Refusal::BehindWindow { counter })
                } else if seen.contains(&counter) {
                    Err(Refusal::Replayed { counter })
                } else {
                    Ok(())
                };
                prop_assert_eq!(window.judge(counter), expected);
                if expected.is_ok() {
                    window.mark(counter);
                    seen.insert(counter);
                }
                at = counter;
            }
        }
    }

    #[test]
    fn largest_counter_is_a_counter() {
        let mut window = Window::default();
        window.mark(u64::MAX);
        assert_eq!(window.judge(u64::MAX), Err(Refusal::Replayed { counter: u64::MAX }));
        assert_eq!(window.judge(u64::MAX - WINDOW + 1), Ok(()));
        let counter = u64::MAX - WINDOW;
        assert_eq!(window.judge(counter), Err(Refusal::BehindWindow { counter }));
    }
}
