//! Test support: a real controller in this process over a SQLite file, with real HTTP and southbound clients.
#![allow(dead_code)] // each test file uses a part

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sluice_controller::{Args, Controller};
use sluice_southbound::proto::Hello;
use sluice_southbound::{Connection, EnrollmentBundle, Error, Identity, Update, connect, enroll};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// Longest wait for anything, also on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Cloud {
    pub controller: Option<Controller>,
    pub api: SocketAddr,
    pub southbound: SocketAddr,
    pub http: reqwest::Client,
    pub dir: TempDir,
}

pub struct Answer {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub fn id(&self) -> String {
        self.body["id"].as_str().unwrap_or_else(|| panic!("no id in {}", self.body)).to_owned()
    }

    /// Status, kind and offender of the problem.
    pub fn problem(&self) -> (u16, &str, &str) {
        assert_eq!(self.header("content-type"), "application/problem+json", "{}", self.body);
        assert_eq!(self.body["status"], self.status.as_u16());
        let kind = self.body["type"].as_str().unwrap().strip_prefix("urn:sluice:problem:").unwrap();
        (self.status.as_u16(), kind, self.body["offender"].as_str().unwrap_or(""))
    }
}

pub fn args(dir: &TempDir) -> Args {
    Args {
        database: None,
        api: "127.0.0.1:0".parse().unwrap(),
        southbound: "127.0.0.1:0".parse().unwrap(),
        southbound_name: Vec::new(),
        state_dir: dir.path().join("state"),
        api_token_file: None,
        model: sluice_controller::Model::Zeta,
        zone_backups: 1,
    }
}

impl Cloud {
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let args = args(&dir);
        Self::with(dir, args).await
    }

    pub async fn with(dir: TempDir, args: Args) -> Self {
        let controller = Controller::start(args).await.unwrap();
        let (api, southbound) = (controller.api, controller.southbound);
        Self { controller: Some(controller), api, southbound, http: reqwest::Client::new(), dir }
    }

    /// Stops the controller and starts another one with the same addresses and database.
    pub async fn restart(&mut self) {
        self.controller.take().unwrap().stop().await.unwrap();
        let args = Args { api: self.api, southbound: self.southbound, ..args(&self.dir) };
        self.controller = Some(Controller::start(args).await.unwrap());
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let response = request.timeout(PATIENCE).send().await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = response.bytes().await.unwrap();
        let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
        let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| text());
        Answer { status, headers, body }
    }

    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("http://{}{path}", self.api))
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::POST, path).json(&body)).await
    }

    /// Creates an object. Returns its id.
    pub async fn make(&self, path: &str, body: Value) -> String {
        let answer = self.post(path, body).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        answer.id()
    }

    pub async fn wait_until(&self, what: &str, path: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let wait = async {
            loop {
                let answer = self.get(path).await;
                if answer.status.is_success() && fits(&answer.body) {
                    return answer.body;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never {what}"))
    }

    pub async fn bundle(&self, path: &str) -> EnrollmentBundle {
        let answer = self.post(&format!("{path}/enrollment"), json!({})).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        serde_json::from_value(answer.body).unwrap()
    }

    pub fn state_dir(&self, node: &str) -> PathBuf {
        self.dir.path().join(node)
    }

    /// Enrolls a node, given by its path like `/v1/gateways/gw-1`.
    pub async fn enroll(&self, path: &str) -> Identity {
        let bundle = self.bundle(path).await;
        enroll(&bundle, &self.state_dir(&bundle.node)).await.unwrap()
    }
}

/// Ids of a tenant, a cluster with two vIPs and one gateway, a host with an agent, and a VPC with a subnet.
pub struct Basics {
    pub tenant: String,
    pub cluster: String,
    pub gateway: String,
    pub host: String,
    pub vpc: String,
    pub subnet: String,
}

pub async fn basics(cloud: &Cloud) -> Basics {
    let tenant = cloud.make("/v1/tenants", json!({"name": "t"})).await;
    let vips = json!({"name": "c", "vips": ["192.0.2.10", "fd00::10"]});
    let cluster = cloud.make("/v1/clusters", vips).await;
    let gateway = json!({"name": "g", "cluster": cluster, "vtep4": "192.0.2.1", "vtep6": "fd00::91"});
    let gateway = cloud.make("/v1/gateways", gateway).await;
    let host = cloud.make("/v1/hosts", json!({"name": "h", "vtep": "192.0.2.21"})).await;
    let vpc = cloud.make("/v1/vpcs", json!({"name": "v", "tenant": tenant})).await;
    let subnet = json!({"name": "s", "ipv4": "10.0.0.0/16", "ipv6": "2001:db8::/64"});
    let subnet = cloud.make(&format!("/v1/vpcs/{vpc}/subnets"), subnet).await;
    Basics { tenant, cluster, gateway, host, vpc, subnet }
}

impl Basics {
    pub fn instance(&self, name: &str) -> Value {
        json!({"name": name, "subnet": self.subnet, "host": self.host})
    }

    pub fn instances_path(&self) -> String {
        format!("/v1/vpcs/{}/instances", self.vpc)
    }

    pub fn gateway_path(&self) -> String {
        format!("/v1/gateways/{}", self.gateway)
    }

    pub fn host_path(&self) -> String {
        format!("/v1/hosts/{}", self.host)
    }
}

/// The stream of a node.
pub struct Node {
    pub connection: Connection,
    pub database: u64,
}

pub async fn join(cloud: &Cloud, identity: &Identity, applied: u64, database: u64) -> Node {
    let hello = Hello {
        applied_revision: applied,
        database_id: database,
        version: "test".into(),
        ..Hello::default()
    };
    let controller = cloud.southbound.to_string();
    Node { connection: connect(identity, &controller, hello).await.unwrap(), database }
}

impl Node {
    pub async fn try_next(&mut self) -> Result<Option<Update>, Error> {
        let next = tokio::time::timeout(PATIENCE, self.connection.updates.next()).await;
        Ok(next.expect("the controller sends nothing")?.map(|message| {
            let (update, bad) = Update::read(message);
            assert_eq!(bad, []);
            update
        }))
    }

    pub async fn next(&mut self) -> Update {
        let update = self.try_next().await.unwrap().expect("the controller ended the stream");
        self.database = update.database_id;
        update
    }

    /// All messages of the next step that has entries or is a snapshot. Empty steps are acknowledged.
    pub async fn step(&mut self) -> Vec<Update> {
        let mut step: Vec<Update> = Vec::new();
        loop {
            let update = self.next().await;
            let revision = update.revision;
            step.push(update);
            if revision == 0 {
                continue;
            }
            if step.iter().any(|part| part.snapshot || !part.is_empty()) {
                return step;
            }
            // An empty step for revisions without entries for this node.
            self.ack(revision).await;
            step.clear();
        }
    }

    pub async fn ack(&self, revision: u64) {
        self.connection.reports.ack(revision, Vec::new(), true).await.unwrap();
    }

    /// Acknowledges the next step. Returns its revision and messages.
    pub async fn acked_step(&mut self) -> (u64, Vec<Update>) {
        let step = self.step().await;
        let revision = step.last().unwrap().revision;
        self.ack(revision).await;
        (revision, step)
    }

    /// The error with which the stream ends; `None` if it ends without one.
    pub async fn end(&mut self) -> Option<Error> {
        loop {
            match self.try_next().await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(error) => return Some(error),
            }
        }
    }
}

/// The gRPC status code of an error.
pub fn code(error: &Error) -> String {
    match error {
        Error::Status(status) => format!("{:?}", status.code()),
        other => panic!("no status: {other:?}"),
    }
}

/// Opens a stream without a client certificate. Returns the refusal.
pub async fn anonymous_watch(bundle: &EnrollmentBundle) -> tonic::Status {
    use sluice_southbound::proto::southbound_client::SouthboundClient;
    use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
    let tls = ClientTlsConfig::new()
        .domain_name(&bundle.server_name)
        .ca_certificate(Certificate::from_pem(&bundle.ca_pem));
    let endpoint = Endpoint::from_shared(format!("https://{}", bundle.controller)).unwrap();
    let channel = endpoint.tls_config(tls).unwrap().connect().await.unwrap();
    let hello = sluice_southbound::proto::node_report::Report::Hello(Hello::default());
    let report = sluice_southbound::proto::NodeReport { report: Some(hello) };
    SouthboundClient::new(channel).watch(tokio_stream::once(report)).await.expect_err("refused")
}

/// A node that opens its stream, says that it has no tables, and then reads nothing: its window of HTTP/2 is full
/// after 64 KiB.
pub struct Stalled {
    _updates: tonic::Streaming<sluice_southbound::proto::NodeUpdate>,
    reports: tokio::sync::mpsc::Sender<sluice_southbound::proto::NodeReport>,
}

impl Stalled {
    /// Waits until its connection has ended: the stream alone cannot end before the node reads.
    pub async fn disconnected(&self) {
        self.reports.closed().await;
    }
}

pub async fn stall(identity: &Identity) -> Stalled {
    use sluice_southbound::proto::southbound_client::SouthboundClient;
    use sluice_southbound::proto::{NodeReport, node_report::Report};
    use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
    // As the node stores it.
    let stored = serde_json::to_value(identity).unwrap();
    let pem = |name: &str| stored[name].as_str().unwrap();
    let own = tonic::transport::Identity::from_pem(pem("certificate_pem"), pem("key_pem"));
    let tls = ClientTlsConfig::new()
        .domain_name(&identity.server_name)
        .ca_certificate(Certificate::from_pem(pem("ca_pem")))
        .identity(own);
    let endpoint = Endpoint::from_shared(format!("https://{}", identity.controller)).unwrap();
    let endpoint = endpoint.initial_stream_window_size(65_535);
    let channel = endpoint.tls_config(tls).unwrap().connect().await.unwrap();
    let (reports, receiver) = tokio::sync::mpsc::channel(1);
    reports.send(NodeReport { report: Some(Report::Hello(Hello::default())) }).await.unwrap();
    let receiver = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let _updates = SouthboundClient::new(channel).watch(receiver).await.unwrap().into_inner();
    Stalled { _updates, reports }
}
