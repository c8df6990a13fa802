//! States that a node reports whole: of members of services, or of watched hosts. This file changes when something else decides
//! when they are sent.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use crate::Error;

/// Longest time between two reports.
const REPEAT: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Shared<T> {
    states: Mutex<Vec<T>>,
    changed: Notify,
}

/// The states, shared between the thread that finds them and the stream that sends them. Cheap to clone.
#[derive(Debug)]
pub struct StateReports<T>(Arc<Shared<T>>);

impl<T> Clone for StateReports<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for StateReports<T> {
    fn default() -> Self {
        Self(Arc::new(Shared { states: Mutex::default(), changed: Notify::new() }))
    }
}

impl<T: Clone + PartialEq> StateReports<T> {
    /// Replaces the states. If they are others, they are sent at once.
    pub fn set(&self, states: Vec<T>) {
        let mut known = self.0.states.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != states {
            *known = states;
            drop(known);
            self.0.changed.notify_one();
        }
    }

    /// The present states.
    #[must_use]
    pub fn get(&self) -> Vec<T> {
        self.0.states.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends the states, again after each change, and every [`REPEAT`], until the stream ends. A node that has none, and had
    /// none on this stream, sends nothing.
    pub(crate) async fn send<F>(&self, send: impl Fn(Vec<T>) -> F) -> Result<(), Error>
    where
        F: Future<Output = Result<(), sluice_southbound::Error>>,
    {
        let mut had_any = false;
        loop {
            let states = self.get();
            let has_any = !states.is_empty();
            if has_any || had_any {
                send(states).await?;
            }
            had_any = has_any;
            tokio::select! {
                () = self.0.changed.notified() => {}
                () = sleep(REPEAT) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    /// Catches a change that waits for the next repetition, and the end of the last state that is not reported.
    #[test]
    fn changes_are_sent_at_once_and_the_last_one_is_taken_back() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (reports, sent) = (StateReports::<u32>::default(), Mutex::new(Vec::new()));
            let send = |states: Vec<u32>| {
                sent.lock().unwrap().push(states);
                std::future::ready(Ok(()))
            };
            let changes = async {
                for states in [vec![], vec![1], vec![1], vec![1, 2], vec![]] {
                    reports.set(states);
                    sleep(Duration::from_millis(20)).await;
                }
            };
            let both = async {
                tokio::select! {
                    ended = reports.send(send) => panic!("{ended:?}"),
                    () = changes => {}
                }
            };
            timeout(Duration::from_secs(4), both).await.unwrap();
            assert_eq!(*sent.lock().unwrap(), [vec![1], vec![1, 2], vec![]]);
        });
    }
}
