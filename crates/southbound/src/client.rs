//! A node's side of the southbound interface: enrollment and the stream.

use crate::identity::prepare;
use crate::proto::node_report::Report;
use crate::proto::southbound_client::SouthboundClient;
use crate::proto::{
    Ack, AddressClaims, EndingSessions, EnrollRequest, Heartbeat, Hello, HostStates, MemberStates,
    MigrationStates, NodeReport, NodeUpdate, TableDigests, TableRepair,
};
use crate::{
    AddressClaim, EnrollmentBundle, Error, HealthReport, HostState, Identity, MAX_CLAIMS, MAX_ENDING_PORTS,
    MAX_FAILURES, MAX_MEMBER_STATES, MAX_MIGRATIONS, MAX_REPORT_BYTES, MAX_UPDATE_BYTES, MAX_WATCHED_HOSTS,
    MemberState, MigrationState, Missing, transport,
};
use rcgen::{CertificateParams, KeyPair};
use sluice_types::{DIGEST_VERSION, Digests};
use std::path::Path;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Reports that wait to be sent. When the queue is full, the sender waits for the controller.
const REPORTS: usize = 64;

/// Exchanges the bundle's token for a certificate, and stores it and its key in the state directory. The
/// private key never leaves the node.
///
/// # Errors
/// [`Error::Status`] with the controller's reason, [`Error::Connect`], [`Error::File`].
pub async fn enroll(bundle: &EnrollmentBundle, state_dir: &Path) -> Result<Identity, Error> {
    let node = bundle.node()?;
    prepare(state_dir)?;
    let failed = |source| Error::Certificate { action: "create a certificate request", source };
    let key = KeyPair::generate().map_err(failed)?;
    let request = CertificateParams::default().serialize_request(&key).map_err(failed)?;
    let channel = transport::channel(&bundle.controller, &bundle.server_name, &bundle.ca_pem, None).await?;
    let answer = SouthboundClient::new(channel)
        .enroll(EnrollRequest { token: bundle.token.clone(), csr_pem: request.pem().map_err(failed)? })
        .await?
        .into_inner();
    if answer.node_name != node.id() || answer.role() != node.proto_role() {
        return Err(Error::OtherNode { given: answer.node_name, expected: node.id() });
    }
    let identity = Identity::new(bundle, node, answer.certificate_pem, key.serialize_pem());
    identity.save(state_dir)?;
    Ok(identity)
}

/// A node's open stream to the controller.
pub struct Connection {
    /// From the node to the controller.
    pub reports: ReportSender,
    /// From the controller to the node.
    pub updates: UpdateStream,
}

/// Opens the node's stream. `controller` is usually `identity.controller`.
///
/// # Errors
/// [`Error::Connect`], or [`Error::Status`] with the controller's reason.
pub async fn connect(identity: &Identity, controller: &str, hello: Hello) -> Result<Connection, Error> {
    let own = (identity.certificate_pem.as_str(), identity.key_pem.as_str());
    let channel = transport::channel(controller, &identity.server_name, &identity.ca_pem, Some(own)).await?;
    let (sender, receiver) = mpsc::channel(REPORTS);
    let reports = ReportSender { sender };
    reports.send(Report::Hello(hello)).await?;
    let updates = SouthboundClient::new(channel)
        .max_decoding_message_size(MAX_UPDATE_BYTES)
        .max_encoding_message_size(MAX_REPORT_BYTES)
        .watch(ReceiverStream::new(receiver))
        .await?
        .into_inner();
    Ok(Connection { reports, updates: UpdateStream { updates } })
}

/// Sends the node's reports. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ReportSender {
    sender: mpsc::Sender<NodeReport>,
}

impl ReportSender {
    /// Acknowledges all entries up to `revision`, except those in `failures`. `complete`: nothing is missing of
    /// earlier revisions either. Of the failures the first
    /// [`MAX_FAILURES`] are sent; a longer list ends with the number of the others.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub async fn ack(&self, revision: u64, mut failures: Vec<String>, complete: bool) -> Result<(), Error> {
        if failures.len() > MAX_FAILURES {
            let rest = failures.len() - (MAX_FAILURES - 1);
            failures.truncate(MAX_FAILURES - 1);
            failures.push(format!("and {rest} more"));
        }
        self.send(Report::Ack(Ack { revision, failures, complete })).await
    }

    /// Reports what is missing in the tables. To be sent before the acknowledgment of the step.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub async fn missing(&self, missing: Missing) -> Result<(), Error> {
        self.send(Report::Missing(missing.into())).await
    }

    /// Reports addresses that VMs have announced and do not hold. Of these the first [`MAX_CLAIMS`] are sent.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub async fn claims(&self, mut claims: Vec<AddressClaim>) -> Result<(), Error> {
        claims.truncate(MAX_CLAIMS);
        let claims = claims.into_iter().map(Into::into).collect();
        self.send(Report::Claims(AddressClaims { claims })).await
    }

    /// Sends states of migrations; those beyond the limit of a report are left out.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub async fn migrations(&self, mut states: Vec<MigrationState>) -> Result<(), Error> {
        states.truncate(MAX_MIGRATIONS);
        let states = states.into_iter().map(Into::into).collect();
        self.send(Report::Migrations(MigrationStates { states })).await
    }

    /// Reports which instances that are members of services answer; those beyond the limit of a report are left out.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub async fn members(&self, mut states: Vec<MemberState>) -> Result<(), Error> {
        states.truncate(MAX_MEMBER_STATES);
        let states = states.into_iter().map(Into::into).collect();
        self.send(Report::Members(MemberStates { states })).await
    }

    /// Reports which of the watched hosts answer; those beyond the limit of a report are left out.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub async fn hosts(&self, mut states: Vec<HostState>) -> Result<(), Error> {
        states.truncate(MAX_WATCHED_HOSTS);
        let states = states.into_iter().map(Into::into).collect();
        self.send(Report::Hosts(HostStates { states })).await
    }

    /// Reports what health checks have found.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub async fn health(&self, health: HealthReport) -> Result<(), Error> {
        self.send(Report::Health(health.into())).await
    }

    /// Sends a heartbeat.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<(), Error> {
        self.send(Report::Heartbeat(heartbeat)).await
    }

    /// Sends the digests of the tables at a revision.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub async fn digests(&self, revision: u64, digests: &Digests) -> Result<(), Error> {
        let shards = digests.shards().to_vec();
        self.send(Report::Digests(TableDigests { version: DIGEST_VERSION, revision, shards })).await
    }

    /// Reports which entries a snapshot repaired. Of these the first [`MAX_FAILURES`] are named.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub async fn repair(&self, revision: u64, differences: u64, mut named: Vec<String>) -> Result<(), Error> {
        named.truncate(MAX_FAILURES);
        self.send(Report::Repair(TableRepair { revision, differences, named })).await
    }

    /// Answers an [`EndingSessionsRequest`](crate::proto::EndingSessionsRequest). The first [`MAX_ENDING_PORTS`] ports are
    /// named.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub async fn ending_sessions(&self, mut answer: EndingSessions) -> Result<(), Error> {
        answer.ports.truncate(MAX_ENDING_PORTS);
        self.send(Report::EndingSessions(answer)).await
    }

    /// Waits until the stream has ended.
    pub async fn ended(&self) {
        self.sender.closed().await;
    }

    async fn send(&self, report: Report) -> Result<(), Error> {
        self.sender.send(NodeReport { report: Some(report) }).await.map_err(|_| Error::Ended)
    }
}

/// The controller's updates, in order.
#[derive(Debug)]
pub struct UpdateStream {
    updates: tonic::Streaming<NodeUpdate>,
}

impl UpdateStream {
    /// The next message; `None` if the controller ended the stream. [`crate::Update::read`] parses it.
    ///
    /// # Errors
    /// [`Error::Status`] if the stream broke or the controller ended it with an error.
    pub async fn next(&mut self) -> Result<Option<NodeUpdate>, Error> {
        Ok(self.updates.message().await?)
    }
}
