//! Asks hosts which of their sessions would end if some rules of security groups did not exist. A host whose stream is on
//! another replica of the controller is not asked, and counts as one that did not answer.

use super::Push;
use sluice_southbound::proto::{EndingSessions, EndingSessionsRequest, NodeUpdate};
use sluice_southbound::{EncodedUpdate, UpdateHead};
use sluice_store::NodeId;
use sluice_types::{HostId, InstanceId, SecurityRuleId, VpcId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// Longest wait for the answers. A host needs some hundredths of a second for 100,000 sessions.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Questions that may be open at a time.
const OPEN_MAX: usize = 16;

/// A host's answer: numbers of sessions by instance, and of all instances.
#[derive(Debug, Default)]
pub struct HostEnding {
    /// Sessions that would end.
    pub sessions: u64,
    /// The first instances with such sessions.
    pub instances: BTreeMap<InstanceId, u64>,
}

/// The sessions that would end.
#[derive(Debug, Default)]
pub struct Ending {
    /// The hosts that answered.
    pub hosts: BTreeMap<HostId, HostEnding>,
    /// The hosts that did not, and why.
    pub unanswered: BTreeMap<HostId, String>,
}

/// As many questions as may be open are being asked.
#[derive(Debug, thiserror::Error)]
#[error("{OPEN_MAX} questions about sessions are being asked already")]
pub struct TooManyQuestions;

type Answers = mpsc::UnboundedSender<(NodeId, EndingSessions)>;

/// The questions that are open.
#[derive(Debug, Default)]
pub struct EndingQuestions {
    last: AtomicU64,
    open: Mutex<HashMap<u64, Answers>>,
}

impl EndingQuestions {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Answers>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self) -> Result<(u64, mpsc::UnboundedReceiver<(NodeId, EndingSessions)>), TooManyQuestions> {
        let mut open = self.lock();
        if open.len() >= OPEN_MAX {
            return Err(TooManyQuestions);
        }
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, answers) = mpsc::unbounded_channel();
        open.insert(id, sender);
        Ok((id, answers))
    }

    /// A node has answered. Answers to questions that are not open are ignored.
    pub fn answered(&self, node: NodeId, answer: EndingSessions) {
        if let Some(answers) = self.lock().get(&answer.id) {
            // It fails if the question is being closed.
            let _ = answers.send((node, answer));
        }
    }
}

/// Closes its question.
struct Open<'a>(&'a EndingQuestions, u64);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

impl Push {
    /// The sessions of the VPC's instances that would end if these rules did not exist.
    ///
    /// # Errors
    /// [`TooManyQuestions`].
    pub async fn ending_sessions(
        &self,
        vpc: VpcId,
        rules: &[SecurityRuleId],
    ) -> Result<Ending, TooManyQuestions> {
        let (id, mut answers) = self.ending.ask()?;
        let _open = Open(&self.ending, id);
        let deadline = Instant::now() + TIMEOUT;
        let request = EndingSessionsRequest { id, rules: rules.iter().map(|rule| rule.get()).collect() };
        let question = NodeUpdate { ending_sessions: Some(request), ..NodeUpdate::default() };
        // An agent that does not know the question takes it for a part of a step without entries, of its database.
        let head = UpdateHead { database_id: self.database_id(), ..UpdateHead::default() };
        let question = EncodedUpdate::new(head, EncodedUpdate::encode_entries(&question));
        let mut ending = Ending::default();
        let mut awaited = BTreeSet::new();
        for host in self.members(|members| members.hosts_of(vpc)) {
            if self.hub.ask(NodeId::Host(host), question.clone()) {
                awaited.insert(host);
            } else {
                ending.unanswered.insert(host, "it has no stream to this controller".to_owned());
            }
        }
        while !awaited.is_empty() {
            let Ok(Some((NodeId::Host(host), answer))) = timeout_at(deadline, answers.recv()).await else {
                break;
            };
            if awaited.remove(&host) {
                ending.note(host, answer);
            }
        }
        let late = awaited.into_iter().map(|host| (host, "it did not answer in time".to_owned()));
        ending.unanswered.extend(late);
        Ok(ending)
    }
}

impl Ending {
    fn note(&mut self, host: HostId, answer: EndingSessions) {
        let EndingSessions { sessions, ports, problem, .. } = answer;
        if problem.is_empty() {
            let instances =
                ports.iter().map(|port| (InstanceId::new(port.instance), port.sessions)).collect();
            self.hosts.insert(host, HostEnding { sessions, instances });
        } else {
            self.unanswered.insert(host, problem);
        }
    }
}
