//! The replay window: which packet counters of one boot id were received (RFC 6479).
//!
//! The window is a bitmap of 32 words of 64 bits, used as a ring. `top` is the highest counter received. The
//! word that contains `top` also covers counters above it, so only 31 words are guaranteed to lie below:
//!
//! ```text
//!        counter <= top - WINDOW         top - WINDOW < counter <= top          counter > top
//!   ... ----------------------------|--------------------------------------|-------------------- ...
//!        BehindWindow                bit set: Replayed                      accepted;
//!                                    bit clear: accepted                    `mark` advances the window
//! ```
//!
//! `check` and `mark` are separate because a packet is authenticated between the two: a forged counter never
//! advances the window.

use crate::refusal::Refusal;

const WORDS: u64 = 32;

/// Number of counters, up to the highest one received, that the window can tell apart.
pub const WINDOW: u64 = (WORDS - 1) * 64;

/// Counters start at 1, so an empty window has `top` 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    top: u64,
    seen: [u64; WORDS as usize],
}

fn word(counter: u64) -> usize {
    (counter / 64 % WORDS) as usize
}

impl Window {
    /// Checks whether a packet with this counter may be accepted.
    pub fn check(&self, counter: u64) -> Result<(), Refusal> {
        if counter == 0 || self.top.saturating_sub(counter) >= WINDOW {
            return Err(Refusal::BehindWindow { counter });
        }
        if counter <= self.top && self.seen[word(counter)] & 1 << (counter % 64) != 0 {
            return Err(Refusal::Replayed { counter });
        }
        Ok(())
    }

    /// Records that the packet with this counter was accepted.
    pub fn mark(&mut self, counter: u64) {
        if counter > self.top {
            let (from, to) = (self.top / 64, counter / 64);
            for next in (from + 1..=to).rev().take(WORDS as usize) {
                self.seen[(next % WORDS) as usize] = 0;
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
        /// Compares the window with a set of all counters received. A wrong word index, a word that is not
        /// cleared when the window advances, or a bound that is off by one makes the two disagree.
        #[test]
        fn window_agrees_with_a_set_of_all_counters(
            steps in prop::collection::vec((any::<bool>(), 0u64..5000), 1..400),
            start in any::<u64>(),
        ) {
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
                prop_assert_eq!(window.check(counter), expected);
                if expected.is_ok() {
                    window.mark(counter);
                    seen.insert(counter);
                }
                at = counter;
            }
        }
    }

    #[test]
    fn largest_counter_does_not_overflow() {
        let mut window = Window::default();
        window.mark(u64::MAX);
        assert_eq!(window.check(u64::MAX), Err(Refusal::Replayed { counter: u64::MAX }));
        assert_eq!(window.check(u64::MAX - WINDOW + 1), Ok(()));
        let counter = u64::MAX - WINDOW;
        assert_eq!(window.check(counter), Err(Refusal::BehindWindow { counter }));
    }
}
