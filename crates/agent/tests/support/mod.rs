//! A controller of one node, for the tests of agents: it enrolls the node, records its reports, and sends the
//! updates of the test. Each test runs in a network namespace of its own.
#![allow(dead_code)] // Not every test needs all of it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sluice_southbound::proto::node_report::Report;
use sluice_southbound::proto::{
    Ack, EnrollRequest, EnrollResponse, Heartbeat, Hello, NodeReport, NodeUpdate,
};
use sluice_southbound::server::Southbound;
use sluice_southbound::{
    CertificateAuthority, EncodedUpdate, Node, UpdateHead, server_builder, server_service,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

/// How long tests wait for something that must happen.
pub const TIMEOUT: Duration = Duration::from_secs(20);

type Updates = mpsc::UnboundedSender<Result<EncodedUpdate, Status>>;

struct Service {
    ca: Arc<CertificateAuthority>,
    node: Node,
    current: Arc<Mutex<Option<Updates>>>,
    reports: mpsc::UnboundedSender<Report>,
}

#[tonic::async_trait]
impl Southbound for Service {
    async fn enroll(&self, request: Request<EnrollRequest>) -> Result<Response<EnrollResponse>, Status> {
        let request = request.into_inner();
        if request.token != "token" {
            return Err(Status::unauthenticated("the token is unknown, used or expired"));
        }
        let certificate_pem = self.ca.sign_csr(&request.csr_pem, self.node).unwrap();
        Ok(Response::new(EnrollResponse {
            certificate_pem,
            ca_pem: self.ca.certificate_pem().to_owned(),
            role: self.node.proto_role().into(),
            node_name: self.node.id(),
        }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<EncodedUpdate, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<Streaming<NodeReport>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (sender, receiver) = mpsc::unbounded_channel();
        *self.current.lock().unwrap() = Some(sender);
        let (mut incoming, reports) = (request.into_inner(), self.reports.clone());
        tokio::spawn(async move {
            while let Some(Ok(NodeReport { report: Some(report) })) = incoming.next().await {
                let _ = reports.send(report);
            }
        });
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(receiver))))
    }
}

/// A controller that serves one node.
pub struct Controller {
    current: Arc<Mutex<Option<Updates>>>,
    reports: mpsc::UnboundedReceiver<Report>,
}

impl Controller {
    /// Listens on the loopback interface, and writes the node's enrollment file.
    pub async fn start(node: &str, enrollment: &Path) -> Self {
        let node: Node = node.parse().unwrap();
        let ca = Arc::new(CertificateAuthority::create().unwrap());
        let own = ca.server_certificate(&["127.0.0.1".to_owned()]).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let bundle = serde_json::json!({
            "token": "token",
            "ca_pem": ca.certificate_pem(),
            "controller": listener.local_addr().unwrap().to_string(),
            "server_name": "127.0.0.1",
            "node": node.id(),
            "role": node.role(),
        });
        fs::write(enrollment, bundle.to_string()).unwrap();
        let (reports, received) = mpsc::unbounded_channel();
        let current = Arc::new(Mutex::new(None));
        let mut server = server_builder(&ca, &own).unwrap();
        let service = Service { ca, node, current: current.clone(), reports };
        let incoming = TcpListenerStream::new(listener);
        tokio::spawn(server.add_service(server_service(service)).serve_with_incoming(incoming));
        Self { current, reports: received }
    }

    /// Waits for a report that `select` accepts.
    async fn report<T>(&mut self, select: impl Fn(Report) -> Option<T>) -> T {
        let next = async {
            loop {
                if let Some(found) = select(self.reports.recv().await.unwrap()) {
                    return found;
                }
            }
        };
        tokio::time::timeout(TIMEOUT, next).await.expect("the node did not report")
    }

    /// Waits for the node's next Hello.
    pub async fn hello(&mut self) -> Hello {
        self.report(|report| if let Report::Hello(hello) = report { Some(hello) } else { None }).await
    }

    /// Waits for the node's next heartbeat.
    pub async fn heartbeat(&mut self) -> Heartbeat {
        let heartbeat =
            |report| if let Report::Heartbeat(heartbeat) = report { Some(heartbeat) } else { None };
        self.report(heartbeat).await
    }

    /// Sends an update and waits for the acknowledgment.
    pub async fn step(&mut self, update: impl Into<NodeUpdate>) -> Ack {
        let mut update = update.into();
        let revision = update.revision;
        let head = UpdateHead {
            revision: std::mem::take(&mut update.revision),
            commit_id: std::mem::take(&mut update.commit_id),
            database_id: std::mem::take(&mut update.database_id),
            snapshot: std::mem::take(&mut update.snapshot),
            keep_unmentioned: std::mem::take(&mut update.keep_unmentioned),
        };
        let entries = EncodedUpdate::encode_entries(&update);
        let message = EncodedUpdate::new(head, entries);
        self.current.lock().unwrap().as_ref().expect("no stream").send(Ok(message)).unwrap();
        self.report(move |report| match report {
            Report::Ack(ack) if ack.revision == revision => Some(ack),
            _ => None,
        })
        .await
    }

    /// Ends the stream with an error.
    pub fn hang_up(&self) {
        let stream = self.current.lock().unwrap().take().expect("no stream");
        let _ = stream.send(Err(Status::unavailable("the controller restarts")));
    }
}

/// Runs an `ip` command and returns its output.
pub fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `test` in a network namespace with a veth pair u0 - t0, where u0 has the addresses 192.0.2.10 and
/// 2001:db8::10.
pub fn in_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    // The agent's log is shown when the test fails.
    let _ = tracing_subscriber::fmt()
        .with_test_writer()
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .try_init();
    let run = move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        ip("link set lo up");
        ip("link add u0 type veth peer name t0");
        ip("addr add 192.0.2.10/24 dev u0");
        ip("addr add 2001:db8::10/64 dev u0 nodad");
        ip("link set u0 up");
        ip("link set t0 up");
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
            .block_on(test());
    };
    thread::spawn(run).join().unwrap();
}

/// Waits until `probe` returns a value.
pub async fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    for _ in 0..400 {
        if let Some(found) = probe() {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("did not happen within {TIMEOUT:?}: {what}");
}

/// Sends a request to the local API; returns the status and the body.
pub async fn local(socket: &Path, method: &str, path: &str, body: &str) -> (u16, serde_json::Value) {
    let mut stream = loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => break stream,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    let status = response[9..12].parse().unwrap();
    let (_, body) = response.split_once("\r\n\r\n").unwrap();
    (status, serde_json::from_str(body).unwrap_or(serde_json::Value::Null))
}

/// Fetches the metrics.
pub async fn metrics(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}
