//! Installs the sessions of an instance that has migrated to this host, as far as the policy of its port permits them here, or lets
//! its connections end. This file changes with what is judged before a session is installed; later changes of policies are a matter
//! of the review.

use std::sync::{Arc, Mutex};

use sluice_tables::sessions::{Installed, Session, Sessions, ticks_now};
use sluice_tables::{SharedReader, Verdict};

use super::lock;

/// What became of sessions that were to be installed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstallCounts {
    /// The table has them now.
    pub installed: u64,
    /// The table had them before.
    pub known: u64,
    /// The policy of the port does not permit them.
    pub refused: u64,
    /// They had expired.
    pub expired: u64,
    /// There was no room for them.
    pub full: u64,
}

impl InstallCounts {
    fn count(&mut self, installed: Installed) {
        match installed {
            Installed::New => self.installed += 1,
            Installed::Known => self.known += 1,
            Installed::Expired => self.expired += 1,
            Installed::Full => self.full += 1,
        }
    }
}

impl std::ops::AddAssign for InstallCounts {
    fn add_assign(&mut self, other: Self) {
        self.installed += other.installed;
        self.known += other.known;
        self.refused += other.refused;
        self.expired += other.expired;
        self.full += other.full;
    }
}

/// Installs sessions beside the thread that looks after them. Cheap to clone.
#[derive(Clone)]
pub struct SessionInstaller {
    sessions: Arc<Mutex<Sessions>>,
    tables: SharedReader,
    /// Sessions that a port may have.
    limit: u32,
}

impl SessionInstaller {
    pub(super) fn new(sessions: Arc<Mutex<Sessions>>, tables: SharedReader, limit: u32) -> Self {
        Self { sessions, tables, limit }
    }

    /// Installs sessions of a port with this policy. `None`: the tables do not have the policy now, so nothing was installed.
    /// To be called with few sessions at a time: the writer of the tables may wait for it.
    pub fn install(&self, policy: u32, copies: &[Session]) -> Option<InstallCounts> {
        let mut sessions = lock(&self.sessions);
        self.tables.read(|reader| {
            let cell = reader.policy_cell(policy).ok().flatten()?;
            let generation = reader.policy_generation(cell)?;
            let (mut counts, now) = (InstallCounts::default(), ticks_now());
            for copy in copies {
                // The identity of the remote is that by which the other host has judged it. It means the same here.
                let Verdict::Permitted(rule) = reader.evaluate(cell, &copy.first_packet()) else {
                    counts.refused += 1;
                    continue;
                };
                let judged = Session { action: copy.permitted_by(generation, rule), ..*copy };
                counts.count(sessions.install(&judged, self.limit, now));
            }
            Some(counts)
        })
    }

    /// Installs sessions of a port that are to end. No policy is asked, because no packet passes by them. To be called with few
    /// sessions at a time.
    pub fn install_resets(&self, resets: &[Session]) -> InstallCounts {
        let mut sessions = lock(&self.sessions);
        let (mut counts, now) = (InstallCounts::default(), ticks_now());
        for reset in resets {
            counts.count(sessions.install(reset, self.limit, now));
        }
        counts
    }
}
