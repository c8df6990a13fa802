//! The gRPC service: enrolls nodes and opens their streams. A node is identified by its verified certificate,
//! and must exist in the database.

use super::connection::ConnectionHandle;
use super::digests::{DigestReport, repair_event};
use super::enrollment::digest;
use super::health::note_health;
use super::history::{is_newer_than_database, start};
use super::hub::{Closing, Session};
use super::node::{southbound_id, store_id};
use super::stream::{Ended, NodeStream, QUEUE, Side};
use super::{LoadObserver, Push, count};
use crate::clock::now_ms;
use sluice_southbound::proto::node_report::Report;
use sluice_southbound::proto::{
    Ack, AddressClaims, EnrollRequest, EnrollResponse, Heartbeat, Hello, HostStates, MemberStates,
    MigrationStates, NodeReport, TableDigests, TableRepair,
};
use sluice_southbound::{
    AddressClaim, CertificateAuthority, EncodedUpdate, HealthReport, HealthSubject, HostState, MAX_CLAIMS,
    MAX_FAILURES, MAX_MEMBER_STATES, MAX_MIGRATIONS, MAX_WATCHED_HOSTS, MemberState, MigrationState, Missing,
    Node, server::Southbound,
};
use sluice_store::{NewEvent, NodeId, StoreError};
use sluice_types::{DIGEST_SHARDS, DIGEST_VERSION, Digests};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TlsConnectInfo;
use tonic::{Request, Response, Status, Streaming};

/// Longest wait for a stream's first message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest text, in bytes, that a node may send as a failure, a version or evidence. Longer ones are cut.
const MAX_TEXT: usize = 512;
/// Longest certificate request that is accepted.
const MAX_CSR_BYTES: usize = 16 << 10;
/// Longest wait until the node takes the status with which its stream ends. Then its connection is ended.
const LINGER: Duration = Duration::from_secs(1);
/// A node that sends no report for this time, and none for this time again, is disconnected if it has not
/// acknowledged what it had been sent after the first time. Agents send a heartbeat each second.
const REPORT_TIMEOUT: Duration = Duration::from_secs(15);

/// The gRPC service of `api/southbound.proto`.
pub struct SouthboundService {
    /// Streams and states of nodes.
    pub push: Arc<Push>,
    /// Receives the loads that gateways report.
    pub loads: Arc<dyn LoadObserver>,
    /// Signs nodes' certificates.
    pub ca: Arc<CertificateAuthority>,
}

fn shorten(mut text: String) -> String {
    let end = text.char_indices().map(|(at, _)| at).take_while(|at| *at <= MAX_TEXT).last().unwrap_or(0);
    if text.len() > MAX_TEXT {
        text.truncate(end);
    }
    text.retain(|c| !c.is_control());
    text
}

fn store_status(push: &Push, error: &StoreError) -> Status {
    match error {
        StoreError::NotFound { .. } => sluice_southbound::deleted(push.database_id()),
        StoreError::Unavailable { .. } | StoreError::Rewound => Status::unavailable(error.to_string()),
        _ => Status::internal("the database cannot be read"),
    }
}

impl SouthboundService {
    /// The node as the database has it.
    async fn find_node(&self, node: NodeId) -> Result<Side, StoreError> {
        let store = &self.push.db.store;
        Ok(match node {
            NodeId::Gateway(id) => Side::gateway(&store.gateway(id).await?),
            NodeId::Host(id) => Side::host(store.host(id).await?.id),
        })
    }

    /// The node that sends a request, and its connection.
    fn peer<T>(request: &Request<T>) -> Result<(NodeId, ConnectionHandle), Status> {
        let info = request.extensions().get::<TlsConnectInfo<ConnectionHandle>>();
        let info = info.ok_or_else(|| Status::internal("the connection has no TLS"))?;
        let certificates = info.peer_certs().unwrap_or_default();
        let certificate = certificates.first().ok_or_else(|| {
            Status::unauthenticated("a client certificate is needed: enroll the node first")
        })?;
        let node = Node::of_certificate(certificate)
            .map_err(|error| Status::unauthenticated(format!("client certificate: {error}")))?;
        Ok((store_id(node), info.get_ref().clone()))
    }

    async fn open(
        &self,
        request: Request<Streaming<NodeReport>>,
    ) -> Result<ReceiverStream<Result<EncodedUpdate, Status>>, Status> {
        let (node, connection) = Self::peer(&request)?;
        let mut reports = request.into_inner();
        let first = tokio::time::timeout(HELLO_TIMEOUT, reports.message())
            .await
            .map_err(|_| Status::deadline_exceeded("no Hello"))??;
        let Some(NodeReport { report: Some(Report::Hello(hello)) }) = first else {
            return Err(Status::invalid_argument("the first report must be a Hello"));
        };
        let side = self.side(node, &hello).await?;
        let start =
            start(&self.push, node, &hello).await.map_err(|error| store_status(&self.push, &error))?;
        let applied = start.applied;
        let session = self.push.hub.open(node, applied, shorten(hello.version));
        if let NodeId::Gateway(id) = node {
            self.loads.stream_opened(id, session.id);
        }
        tracing::info!(?node, applied, "node connected");
        let (out, updates) = mpsc::channel(QUEUE);
        let stream = NodeStream::new(self.push.clone(), session.id, side, start, out.clone());
        let listener =
            Listener { push: self.push.clone(), loads: self.loads.clone(), node, session: session.id };
        tokio::spawn(serve(listener, session, stream, reports, out, connection));
        Ok(ReceiverStream::new(updates))
    }

    /// The node as the database has it. A node that the database does not have was deleted, unless it is newer than
    /// the backup from which the database was restored.
    async fn side(&self, node: NodeId, hello: &Hello) -> Result<Side, Status> {
        let status = |error: StoreError| store_status(&self.push, &error);
        match self.find_node(node).await {
            Err(error @ StoreError::NotFound { .. }) => {
                if is_newer_than_database(&self.push, hello).await.map_err(status)? {
                    return Err(Status::failed_precondition(
                        "the database went back to an earlier state, in which this node does not exist: create the \
                         node again and enroll it",
                    ));
                }
                Err(status(error))
            }
            found => found.map_err(status),
        }
    }
}

/// Serves one stream to its end.
async fn serve(
    listener: Listener,
    session: Session,
    stream: NodeStream,
    reports: Streaming<NodeReport>,
    out: mpsc::Sender<Result<EncodedUpdate, Status>>,
    connection: ConnectionHandle,
) {
    let Session { id, closing, mut questions } = session;
    let sent = stream.sent();
    let had = sent.load(Ordering::Acquire);
    let mut stalled = false;
    let status = tokio::select! {
        closing = closing => Some(match closing {
            Ok(Closing::Replaced) => Status::aborted("the node opened another stream"),
            Ok(Closing::Removed) => Status::permission_denied("this node was deleted"),
            Ok(Closing::Rewound) => Status::unavailable(StoreError::Rewound.to_string()),
            Ok(Closing::Shutdown) | Err(_) => Status::unavailable("the controller is stopping"),
        }),
        Err(ended) = stream.run() => match &ended {
            Ended::Closed => None,
            Ended::Unknown(_) => Some(Status::permission_denied(ended.to_string())),
            Ended::Stalled => {
                stalled = true;
                Some(Status::deadline_exceeded(ended.to_string()))
            }
            Ended::Store(error) => Some(store_status(&listener.push, error)),
            Ended::NoSnapshot => Some(Status::unavailable(ended.to_string())),
            Ended::Failed(_) => Some(Status::internal(ended.to_string())),
        },
        () = send_questions(&mut questions, &out) => None,
        (status, silent) = listener.listen(reports, had, &sent) => {
            stalled = silent;
            status
        }
    };
    let Listener { push, loads, node, .. } = listener;
    if push.hub.close(node, id) {
        push.unconfirmed.forget(node);
        push.health.forget(node);
        push.services.forget(node);
        if let NodeId::Host(host) = node {
            push.claims.forget(host);
            push.migrations.forget(host);
        }
    }
    if stalled {
        record_stall(&push, node, status.as_ref().map_or("", Status::message)).await;
    }
    if let NodeId::Gateway(gateway) = node {
        loads.stream_closed(gateway, id);
    }
    tracing::info!(?node, reason = status.as_ref().map(Status::message), "node's stream ended");
    let end = async {
        if let Some(status) = status {
            // Fails if the node has closed its stream.
            let _ = out.send(Err(status)).await;
            out.closed().await;
        }
    };
    if tokio::time::timeout(LINGER, end).await.is_err() {
        connection.end();
    }
}

/// Sends questions to the node. Does not end: the stream ends for another reason.
async fn send_questions(
    questions: &mut mpsc::Receiver<EncodedUpdate>,
    out: &mpsc::Sender<Result<EncodedUpdate, Status>>,
) {
    while let Some(question) = questions.recv().await {
        // It fails if the node has closed its stream.
        let _ = out.send(Ok(question)).await;
    }
    std::future::pending().await
}

/// Counts and logs that a node's stream stalled. The event log gets one entry until the node takes a snapshot again.
async fn record_stall(push: &Push, node: NodeId, reason: &str) {
    count(&push.counters.stalled);
    let name = push.members(|members| members.name(node));
    tracing::warn!(name, reason, "a node is slow; its stream is ended");
    if !push.hub.stalled(node) {
        return;
    }
    let event = NewEvent {
        kind: "node_stalled".to_owned(),
        subject: southbound_id(node).id(),
        text: format!("The stream of {name} was ended: {reason}."),
        details: serde_json::json!({}),
    };
    if let Err(error) = push.db.store.add_event(event).await {
        push.db.count_error();
        tracing::warn!(error = &error as &dyn std::error::Error, "cannot record an event");
    }
}

/// The receiving half of a node's stream.
struct Listener {
    push: Arc<Push>,
    loads: Arc<dyn LoadObserver>,
    node: NodeId,
    session: u64,
}

impl Listener {
    /// Handles reports until the node ends the stream, violates the protocol or sends none any more. The flag says
    /// that it sends none. `had` is the revision that the node had before the stream.
    async fn listen(
        &self,
        mut reports: Streaming<NodeReport>,
        had: u64,
        sent: &AtomicU64,
    ) -> (Option<Status>, bool) {
        let mut acked = had;
        // What the node had been sent when the first wait for a report ended.
        let mut due = None;
        loop {
            let report = match tokio::time::timeout(REPORT_TIMEOUT, reports.message()).await {
                Ok(Ok(Some(report))) => report.report,
                Ok(Ok(None) | Err(_)) => return (None, false),
                Err(_) if due.is_some_and(|due| due > acked) => {
                    let text = format!("the node sent no report for {} s", 2 * REPORT_TIMEOUT.as_secs());
                    return (Some(Status::deadline_exceeded(text)), true);
                }
                Err(_) => {
                    due = Some(sent.load(Ordering::Acquire));
                    continue;
                }
            };
            due = None;
            match report {
                Some(Report::Ack(ack)) => {
                    let limit = sent.load(Ordering::Acquire);
                    if ack.revision > limit {
                        let text =
                            format!("revision {} was acknowledged, but only {limit} sent", ack.revision);
                        return (Some(Status::invalid_argument(text)), false);
                    }
                    acked = acked.max(ack.revision);
                    self.handle_ack(ack);
                }
                Some(Report::Heartbeat(heartbeat)) => self.handle_heartbeat(heartbeat),
                Some(Report::Digests(digests)) => {
                    if let Err(status) = self.handle_digests(digests, sent) {
                        return (Some(status), false);
                    }
                }
                Some(Report::Repair(repair)) => self.handle_repair(repair).await,
                Some(Report::Missing(missing)) => {
                    let mut missing = Missing::from(missing);
                    missing.entries.values_mut().for_each(|reason| *reason = shorten(std::mem::take(reason)));
                    self.push.hub.missing(self.node, self.session, missing);
                }
                Some(Report::Hello(_)) => {
                    let text = "only the first report may be a Hello";
                    return (Some(Status::invalid_argument(text)), false);
                }
                Some(Report::Claims(claims)) => self.handle_claims(claims),
                Some(Report::Migrations(states)) => self.handle_migrations(states),
                Some(Report::Health(report)) => self.handle_health(report.into()).await,
                Some(Report::EndingSessions(mut answer)) => {
                    answer.problem = shorten(answer.problem);
                    if let NodeId::Host(host) = self.node {
                        self.push.note_ending(host, answer);
                    }
                }
                Some(Report::Members(report)) => self.handle_members(report),
                Some(Report::Hosts(report)) => self.handle_hosts(report),
                // A kind of report that a newer agent sends.
                None => {}
            }
        }
    }

    /// Claims that cannot be read, and those beyond the limit of a report, are refused.
    fn handle_claims(&self, report: AddressClaims) {
        let NodeId::Host(host) = self.node else { return };
        let count = report.claims.len();
        let claims = report.claims.into_iter().take(MAX_CLAIMS).filter_map(|claim| claim.try_into().ok());
        let claims: Vec<AddressClaim> = claims.collect();
        let refused = count - claims.len() + self.push.claims.add(host, claims);
        if refused > 0 {
            tracing::warn!(%host, refused, "claims of addresses refused: they are malformed, or too many wait");
            self.push.counters.claims_refused.fetch_add(refused as u64, Ordering::Relaxed);
        }
    }

    /// The same for states of migrations.
    fn handle_migrations(&self, report: MigrationStates) {
        let NodeId::Host(host) = self.node else { return };
        let count = report.states.len();
        let states = report.states.into_iter().take(MAX_MIGRATIONS).filter_map(|state| state.try_into().ok());
        let states: Vec<MigrationState> = states.collect();
        let refused = count - states.len() + self.push.migrations.add(host, states);
        if refused > 0 {
            tracing::warn!(%host, refused, "states of migrations refused: they are malformed, or too many wait");
            self.push.counters.migrations_ignored.fetch_add(refused as u64, Ordering::Relaxed);
        }
    }

    /// States that cannot be read, and those beyond the limit of a report, are ignored.
    fn handle_members(&self, report: MemberStates) {
        let NodeId::Host(host) = self.node else { return };
        if self.push.hub.is_current(self.node, self.session) {
            let states = report.states.into_iter().take(MAX_MEMBER_STATES);
            let states: Vec<MemberState> = states.filter_map(|state| state.try_into().ok()).collect();
            self.push.services.put_members(host, states);
        }
    }

    /// The same for states of hosts.
    fn handle_hosts(&self, report: HostStates) {
        let NodeId::Gateway(gateway) = self.node else { return };
        if self.push.hub.is_current(self.node, self.session) {
            let states = report.states.into_iter().take(MAX_WATCHED_HOSTS);
            let states: Vec<HostState> = states.filter_map(|state| state.try_into().ok()).collect();
            let vteps: Vec<_> = states.iter().map(|state| state.host).collect();
            let hosts = self.push.members(|members| members.hosts_at(&vteps));
            self.push.services.put_hosts(gateway, states, &hosts);
        }
    }

    async fn handle_health(&self, mut report: HealthReport) {
        if !self.push.hub.is_current(self.node, self.session) {
            return;
        }
        for finding in &mut report.findings {
            finding.evidence = shorten(std::mem::take(&mut finding.evidence));
            finding.cause = shorten(std::mem::take(&mut finding.cause));
            if let HealthSubject::Interface(name) = &mut finding.subject {
                *name = shorten(std::mem::take(name));
            }
        }
        if let Err(error) = note_health(&self.push, self.node, report).await {
            self.push.db.count_error();
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot record the health of a node");
        }
    }

    fn handle_ack(&self, ack: Ack) {
        let failures: Vec<_> = ack.failures.into_iter().take(MAX_FAILURES).map(shorten).collect();
        if !failures.is_empty() {
            let (node, revision) = (self.node, ack.revision);
            tracing::warn!(?node, revision, ?failures, "node could not write all entries");
        }
        let failures = if ack.complete { Vec::new() } else { failures };
        self.push.hub.ack(self.node, self.session, ack.revision, failures);
        if ack.complete {
            self.push.hub.complete(self.node, self.session);
        }
        if let NodeId::Gateway(id) = self.node {
            self.push.timeline.acked(id, ack.revision);
        }
    }

    fn handle_digests(&self, report: TableDigests, sent: &AtomicU64) -> Result<(), Status> {
        if report.version != DIGEST_VERSION {
            return Ok(());
        }
        let shards = report.shards.try_into().map_err(|shards: Vec<u64>| {
            Status::invalid_argument(format!("{} digests instead of {DIGEST_SHARDS}", shards.len()))
        })?;
        let digests = Digests::from_shards(shards);
        // A host that has what it was sent last has all later revisions that it counts as having, because nothing in
        // them is for it (`Hub::skip`). What it was sent is read last: it may have been sent more meanwhile.
        let counted = self.push.hub.with_acked(|acked| acked(self.node));
        let is_latest = report.revision == sent.load(Ordering::Acquire);
        let revision = if is_latest { counted.max(report.revision) } else { report.revision };
        let report = DigestReport { session: self.session, revision, digests };
        self.push.digests.put(self.node, report);
        Ok(())
    }

    async fn handle_repair(&self, repair: TableRepair) {
        let TableRepair { revision, differences, named } = repair;
        let named: Vec<_> = named.into_iter().take(MAX_FAILURES).map(shorten).collect();
        tracing::warn!(node = ?self.node, revision, differences, ?named, "node repaired its tables");
        self.push.counters.repaired.fetch_add(differences, Ordering::Relaxed);
        let name = self.push.names(&[self.node]).concat();
        let event = repair_event(self.node, &name, revision, differences, &named);
        if let Err(error) = self.push.db.store.add_event(event).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot record the repair as an event");
        }
    }

    fn handle_heartbeat(&self, mut heartbeat: Heartbeat) {
        if let NodeId::Gateway(id) = self.node {
            self.loads.heartbeat(id, self.session, &heartbeat);
        }
        if let Some(unconfirmed) = heartbeat.unconfirmed.take()
            && self.push.hub.is_current(self.node, self.session)
        {
            self.push.unconfirmed.report(self.node, unconfirmed);
        }
        // The observer has the list, which may be long.
        heartbeat.vnis = Vec::new();
        self.push.hub.heartbeat(self.node, self.session, heartbeat);
    }
}

#[tonic::async_trait]
impl Southbound for SouthboundService {
    type WatchStream = ReceiverStream<Result<EncodedUpdate, Status>>;

    async fn enroll(&self, request: Request<EnrollRequest>) -> Result<Response<EnrollResponse>, Status> {
        let result = self.issue_certificate(request.into_inner()).await;
        count(if result.is_ok() { &self.push.counters.enrolled } else { &self.push.counters.refused });
        if let Err(status) = &result {
            tracing::warn!(reason = status.message(), "enrollment refused");
        }
        result.map(Response::new)
    }

    async fn watch(
        &self,
        request: Request<Streaming<NodeReport>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let result = self.open(request).await;
        if let Err(status) = &result {
            count(&self.push.counters.refused);
            tracing::warn!(reason = status.message(), "stream refused");
        }
        result.map(Response::new)
    }
}

impl SouthboundService {
    async fn issue_certificate(&self, request: EnrollRequest) -> Result<EnrollResponse, Status> {
        let unreadable = |error: sluice_southbound::Error| {
            let cause = std::error::Error::source(&error).map(|e| format!(": {e}")).unwrap_or_default();
            Status::invalid_argument(format!("{error}{cause}"))
        };
        if request.csr_pem.len() > MAX_CSR_BYTES {
            return Err(Status::invalid_argument("the certificate request is too long"));
        }
        // Checked before the token is used, so that an invalid request does not use it up.
        CertificateAuthority::check_csr(&request.csr_pem).map_err(unreadable)?;
        let node = self
            .push
            .db
            .store
            .take_enrollment_token(digest(&request.token), now_ms())
            .await
            .map_err(|error| store_status(&self.push, &error))?
            .ok_or_else(|| Status::unauthenticated("the token is unknown, used or expired"))?;
        self.find_node(node).await.map_err(|error| store_status(&self.push, &error))?;
        let name = southbound_id(node);
        let certificate_pem = self.ca.sign_csr(&request.csr_pem, name).map_err(unreadable)?;
        tracing::info!(node = %name, "node enrolled");
        Ok(EnrollResponse {
            certificate_pem,
            ca_pem: self.ca.certificate_pem().to_owned(),
            role: name.proto_role().into(),
            node_name: name.id(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shorten("a\nb".into()), "ab");
        let long = shorten("ä".repeat(400));
        assert!(long.len() <= MAX_TEXT && long.chars().all(|c| c == 'ä') && long.len() > 250);
        assert_eq!(shorten("x".repeat(256)).len(), 256);
    }
}
