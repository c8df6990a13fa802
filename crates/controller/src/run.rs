//! Starts and stops a controller: connects the modules and starts their tasks. This file changes when a module
//! gets a task or an option.

use crate::api::{Api, Handles, router};
use crate::compile::{CompiledClusters, Model};
use crate::database::Database;
use crate::moves::{Moves, drive_gateway_moves, drive_health_migrations, drive_vpc_moves};
use crate::ownership::{Ownership, Socket, own, renew_keys};
use crate::place::Place;
use crate::place::apply::apply_plans;
use crate::place::scheduler::schedule;
use crate::push::{
    NodeConnection, Push, Reach, SouthboundService, compact_outbox, follow, hold_writes, judge_members,
    process_claims, process_migrations, release_removals, release_writes, save_all, save_health,
    save_node_states,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustls::pki_types::ServerName;
use sha2::{Digest, Sha256};
use sluice_envelope::BootId;
use sluice_http::{Connections, Limits, serve as serve_http};
use sluice_southbound::{CertificateAuthority, server_builder, server_service};
use sluice_store::{Store, StoreError};
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::StreamExt as _;
use tonic::transport::server::TcpIncoming;

/// Longest wait for requests in progress when the controller stops.
const GRACE: Duration = Duration::from_secs(5);
/// Shortest API token in characters: a shorter one could be guessed.
const MIN_TOKEN: usize = 16;

/// Options of `sluice controller`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Database: sqlite:PATH or postgres://USER@HOST/NAME; without it, sluice.db in the state directory
    #[arg(long, value_name = "URL", env = "SLUICE_DATABASE", hide_env_values = true)]
    pub database: Option<String>,
    /// Where the northbound API listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7440")]
    pub api: SocketAddr,
    /// Where nodes connect; gateways also send heartbeats to the UDP port of this number
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7443")]
    pub southbound: SocketAddr,
    /// Name or address by which nodes reach the southbound listener; repeatable, the first is used in
    /// enrollments
    #[arg(long, value_name = "NAME_OR_IP", value_parser = server_name)]
    pub southbound_name: Vec<String>,
    /// Directory for the default database
    #[arg(long, value_name = "DIR", default_value = "/var/lib/sluice/controller")]
    pub state_dir: PathBuf,
    /// File with the bearer token that API clients must send; without it, the API may listen only on a
    /// loopback address
    #[arg(long, value_name = "FILE")]
    pub api_token_file: Option<PathBuf>,
    /// Forwarding model: zeta, achelous (hosts decide which paths they learn), or one of the models for
    /// comparison. After a change of the model, all nodes get a snapshot
    #[arg(long, value_enum, default_value_t)]
    pub model: Model,
    /// Number of backup gateways of a cluster with the model gwzone: the last ones by id
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub zone_backups: usize,
}

/// Reason why a controller does not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Options that contradict each other.
    #[error("{0}")]
    Options(String),
    /// A file cannot be used.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was attempted.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The controller cannot listen on an address.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The database cannot be used.
    #[error("cannot use the database")]
    Store(#[from] StoreError),
    /// The certificate authority cannot be used.
    #[error("cannot set up certificates")]
    Certificates(#[from] sluice_southbound::Error),
    /// The northbound listener ended.
    #[error("the API ended")]
    Api(#[source] io::Error),
    /// The southbound listener ended.
    #[error("the southbound interface ended")]
    Southbound(#[source] tonic::transport::Error),
    /// The system provides no random numbers.
    #[error("the system provides no random numbers")]
    Random,
    /// The controller cannot wait for signals.
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
}

/// A running controller.
pub struct Controller {
    /// Where the API listens.
    pub api: SocketAddr,
    /// Where nodes connect.
    pub southbound: SocketAddr,
    push: Arc<Push>,
    end: watch::Sender<bool>,
    servers: JoinHandle<Result<(), Error>>,
    background: JoinSet<()>,
}

/// Runs a controller until SIGTERM or SIGINT.
///
/// # Errors
/// [`Error`], with the cause.
pub async fn run(args: Args) -> Result<(), Error> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
    let mut controller = Controller::start(args).await?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        ended = &mut controller.servers => {
            return ended.unwrap_or_else(|error| Err(Error::Api(io::Error::other(error))));
        }
    }
    controller.stop().await
}

fn read_token(args: &Args) -> Result<Option<[u8; 32]>, Error> {
    let Some(path) = &args.api_token_file else {
        if !args.api.ip().is_loopback() {
            return Err(Error::Options(format!(
                "the API may listen on {} only with --api-token-file: without a token, any client that \
                 reaches it has full access",
                args.api
            )));
        }
        return Ok(None);
    };
    let text = std::fs::read_to_string(path).map_err(|source| Error::File {
        action: "read",
        path: path.clone(),
        source,
    })?;
    let token = text.trim();
    if token.len() < MIN_TOKEN || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Error::Options(format!(
            "{} must hold a token of at least {MIN_TOKEN} printable characters",
            path.display()
        )));
    }
    Ok(Some(Sha256::digest(token.as_bytes()).into()))
}

/// Parses a name that a certificate can have and that nodes can connect to.
fn server_name(text: &str) -> Result<String, String> {
    match ServerName::try_from(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("not a DNS name or an IP address".to_owned()),
    }
}

/// The names by which nodes reach the listener, for its certificate.
fn names(args: &Args) -> Result<Vec<String>, Error> {
    if !args.southbound_name.is_empty() {
        return Ok(args.southbound_name.clone());
    }
    if args.southbound.ip().is_unspecified() {
        return Err(Error::Options(format!(
            "--southbound {} means every address of this machine: set the name or address that nodes use \
             with --southbound-name",
            args.southbound
        )));
    }
    Ok(vec![args.southbound.ip().to_string()])
}

fn host_and_port(name: &str, port: u16) -> String {
    match name.parse::<IpAddr>() {
        Ok(address) => SocketAddr::new(address, port).to_string(),
        Err(_) => format!("{name}:{port}"),
    }
}

/// Raises the number of files that this process may open to what the system admits. Each node is a connection, and
/// the usual limit is 1024.
fn raise_file_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the number of open files");
    }
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let failed = |source| Error::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

async fn open_store(args: &Args) -> Result<Arc<Store>, Error> {
    let url = match &args.database {
        Some(url) => url.clone(),
        None => {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&args.state_dir);
            made.map_err(|source| Error::File { action: "create", path: args.state_dir.clone(), source })?;
            format!("sqlite:{}", args.state_dir.join("sluice.db").display())
        }
    };
    Ok(sluice_store::open(&url).await?)
}

/// The certificate authority of the database. The first controller creates it.
async fn authority(store: &Store) -> Result<CertificateAuthority, Error> {
    let new = CertificateAuthority::create()?;
    let made = (new.key_pem().to_owned(), new.certificate_pem().to_owned());
    let (key, certificate) = store.certificate_authority(made).await?;
    Ok(CertificateAuthority::load(&key, &certificate)?)
}

async fn ended(mut end: watch::Receiver<bool>) {
    // The channel also ends if the sender is dropped.
    let _ = end.wait_for(|end| *end).await;
}

impl Controller {
    /// Starts a controller. It listens when this function returns.
    ///
    /// # Errors
    /// [`Error`], with the cause.
    pub async fn start(args: Args) -> Result<Self, Error> {
        let token_digest = read_token(&args)?;
        raise_file_limit();
        let names = names(&args)?;
        let store = open_store(&args).await?;
        let ca = Arc::new(authority(store.as_ref()).await?);
        let certificate = ca.server_certificate(&names)?;
        let (api_listener, api) = listen(args.api).await?;
        let (southbound_listener, southbound) = listen(args.southbound).await?;
        let gateways =
            Socket::bind(southbound).map_err(|source| Error::Listen { address: southbound, source })?;
        let boot = BootId::random().ok_or(Error::Random)?;
        let reach = Reach {
            controller: host_and_port(&names[0], southbound.port()),
            server_name: names[0].clone(),
            ca_pem: ca.certificate_pem().to_owned(),
        };
        let db = Arc::new(Database::new(store));
        let compiled = Arc::new(CompiledClusters::new(args.model, args.zone_backups));
        let push = Arc::new(Push::new(db.clone(), compiled.clone()));
        let ownership = Arc::new(Ownership::new(db.clone(), compiled));
        let place = Arc::new(Place::new(db.clone(), ownership.clone()));
        let moves = Arc::new(Moves::new(db.clone(), push.clone(), ownership.clone()));
        let awaited = hold_writes(&push).await?;
        let (end, ending) = watch::channel(false);
        let handles = Handles {
            db: db.clone(),
            push: push.clone(),
            ownership: ownership.clone(),
            place: place.clone(),
            moves: moves.clone(),
        };
        let limits = Limits::default();
        let connections = Connections::new(&limits);
        let app = router(Api::new(handles, reach, token_digest, connections.clone()));
        let northbound = serve_http(api_listener, app, limits, connections, ended(ending.clone()));
        let service =
            server_service(SouthboundService { push: push.clone(), loads: place.clone(), ca: ca.clone() });
        let incoming = TcpIncoming::from(southbound_listener).with_nodelay(Some(true));
        let incoming = incoming.map(|accepted| accepted.map(NodeConnection::new));
        let nodes = server_builder(&ca, &certificate)?
            .add_service(service)
            .serve_with_incoming_shutdown(incoming, ended(ending.clone()));
        let mut background = JoinSet::new();
        background.spawn(follow(push.clone(), place.clone()));
        background.spawn(release_writes(push.clone(), awaited));
        background.spawn(save_node_states(push.clone()));
        background.spawn(release_removals(push.clone()));
        background.spawn(process_claims(push.clone()));
        background.spawn(process_migrations(push.clone()));
        background.spawn(judge_members(push.clone()));
        background.spawn(compact_outbox(push.clone()));
        background.spawn(renew_keys(db.clone()));
        background.spawn(save_health(push.clone(), boot.number() >> 1));
        background.spawn(own(ownership, place.clone(), gateways, boot));
        background.spawn(drive_vpc_moves(moves.clone()));
        background.spawn(drive_health_migrations(moves.clone()));
        background.spawn(drive_gateway_moves(moves));
        background.spawn(apply_plans(place.clone()));
        background.spawn(schedule(place));
        tracing::info!(%api, %southbound, "controller ready");
        let servers = tokio::spawn(serve(northbound, nodes));
        Ok(Self { api, southbound, push, end, servers, background })
    }

    /// Stops the controller: requests in progress are answered, and streams are closed.
    ///
    /// # Errors
    /// The error of a server.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.push.hub.shutdown();
        self.end.send_replace(true);
        let servers = tokio::time::timeout(GRACE, &mut self.servers).await;
        self.background.shutdown().await;
        if let Err(error) = save_all(&self.push).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "cannot save the last acknowledgments");
        }
        match servers {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => Err(Error::Api(io::Error::other(error))),
            Err(_) => {
                tracing::warn!("requests in progress did not end in time");
                self.servers.abort();
                Ok(())
            }
        }
    }
}

/// Runs both servers until both have ended, or one fails.
async fn serve(
    northbound: impl Future<Output = ()>,
    nodes: impl Future<Output = Result<(), tonic::transport::Error>>,
) -> Result<(), Error> {
    let northbound = async {
        northbound.await;
        Ok(())
    };
    tokio::try_join!(northbound, async { nodes.await.map_err(Error::Southbound) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> Args {
        Args {
            database: None,
            api: "127.0.0.1:0".parse().unwrap(),
            southbound: "127.0.0.1:0".parse().unwrap(),
            southbound_name: Vec::new(),
            state_dir: "/nowhere".into(),
            api_token_file: None,
            model: Model::Zeta,
            zone_backups: 1,
        }
    }

    #[test]
    fn api_without_token_listens_only_on_loopback() {
        assert!(read_token(&args()).unwrap().is_none());
        let open = Args { api: "[::]:0".parse().unwrap(), ..args() };
        assert!(matches!(read_token(&open), Err(Error::Options(_))));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let with_token = Args { api_token_file: Some(file.clone()), ..open };
        assert!(matches!(read_token(&with_token), Err(Error::File { .. })));
        std::fs::write(&file, "short\n").unwrap();
        assert!(matches!(read_token(&with_token), Err(Error::Options(_))));
        std::fs::write(&file, "0123456789abcdef\n").unwrap();
        assert!(read_token(&with_token).unwrap().is_some());
    }

    #[test]
    fn certificate_has_names_that_nodes_can_reach() {
        assert_eq!(names(&args()).unwrap(), ["127.0.0.1"]);
        let any = Args { southbound: "0.0.0.0:7443".parse().unwrap(), ..args() };
        assert!(matches!(names(&any), Err(Error::Options(_))));
        let named = Args { southbound_name: vec!["ctl.example".into(), "::1".into()], ..any };
        assert_eq!(names(&named).unwrap(), ["ctl.example", "::1"]);
        assert!(["", "a b", "ctl.example:7443", "[::1]"].iter().all(|bad| server_name(bad).is_err()));
        assert!(["ctl", "ctl.example", "192.0.2.1", "::1"].iter().all(|good| server_name(good).is_ok()));
        assert_eq!(host_and_port("ctl.example", 1), "ctl.example:1");
        assert_eq!(host_and_port("::1", 1), "[::1]:1");
    }
}
