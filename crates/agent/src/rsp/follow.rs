//! From the controller's stream to the keys in use and those on disk.

use tokio::sync::watch;

use super::keys::{ClusterKeys, Key, KeyBook};
use crate::chain;

impl KeyBook {
    /// Takes in what the stream says of keys, for as long as there is a stream. Of a cluster that the
    /// stream has not mentioned, the book's keys stay; one that it mentioned and mentions no more is
    /// forgotten.
    pub async fn follow(mut self, mut stream: watch::Receiver<crate::Keys>) {
        let mut mentioned = Vec::new();
        loop {
            let told: Vec<ClusterKeys> = stream.borrow_and_update().values().map(of_stream).collect();
            let gone = |cluster: &u32| told.iter().all(|keys| keys.cluster != *cluster);
            let forgotten: Vec<u32> = mentioned.iter().copied().filter(gone).collect();
            mentioned = told.iter().map(|keys| keys.cluster).collect();
            let forgotten = forgotten.into_iter().map(|cluster| ClusterKeys { cluster, keys: Vec::new() });
            for keys in told.into_iter().chain(forgotten) {
                let cluster = keys.cluster;
                if let Err(error) = self.replace(keys) {
                    tracing::error!(cluster, error = chain(&error), "the controller's keys cannot be used");
                }
            }
            if let Err(error) = self.commit() {
                tracing::error!(error = chain(&error), "keys are in use, but not kept for the next start");
            }
            if stream.changed().await.is_err() {
                return;
            }
        }
    }
}

fn of_stream(keys: &sluice_southbound::ClusterKeys) -> ClusterKeys {
    let key = |key: &sluice_southbound::Key| Key {
        id: key.id,
        secret: *key.secret.bytes(),
        not_before_ms: key.not_before_ms,
        not_after_ms: key.not_after_ms,
    };
    ClusterKeys { cluster: keys.cluster, keys: keys.keys.iter().map(key).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_types::Secret;

    fn keys(cluster: u32, id: u32) -> (u32, sluice_southbound::ClusterKeys) {
        let secret = Secret::new(std::array::from_fn(|i| i as u8 ^ id as u8));
        let key = sluice_southbound::Key { id, secret, not_before_ms: 1, not_after_ms: 2 };
        (cluster, sluice_southbound::ClusterKeys { cluster, keys: vec![key] })
    }

    #[tokio::test]
    async fn the_stream_is_followed_and_what_it_is_silent_about_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (sender, stream) = watch::channel(crate::Keys::from([keys(1, 10), keys(2, 20)]));
        let (book, complete) = KeyBook::load(dir.path());
        assert!(!complete);
        let mut published = book.subscribe();
        let follower = tokio::spawn(book.follow(stream));
        published.wait_for(|keys| keys.all().get(20).is_some()).await.unwrap();
        sender.send_replace(crate::Keys::from([keys(2, 21)]));
        let now = published.wait_for(|keys| keys.all().get(21).is_some()).await.unwrap().clone();
        assert!(now.all().get(10).is_none() && now.all().get(20).is_none());
        drop(sender);
        follower.await.unwrap();
        // A successor whose stream says nothing has them from the disk.
        let (book, complete) = KeyBook::load(dir.path());
        assert!(complete && book.subscribe().borrow().all().get(21).is_some());
        let published = book.subscribe();
        let (sender, stream) = watch::channel(crate::Keys::new());
        let follower = tokio::spawn(book.follow(stream));
        drop(sender);
        follower.await.unwrap();
        assert!(published.borrow().all().get(21).is_some());
    }
}
