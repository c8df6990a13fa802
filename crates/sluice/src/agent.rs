//! What a node's agent says on its local socket: `sluice agent`, `sluice port`,
//! `sluice path`.

use crate::failure::Failure;
use crate::output::{self, Format};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Where the agent listens.
#[derive(Args)]
pub struct Socket {
    /// The agent's socket; a gateway's is /run/sluice/gateway.sock
    #[arg(long, env = "SLUICE_SOCKET", value_name = "PATH", default_value = "/run/sluice/vswitch.sock")]
    socket: PathBuf,
    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// What to ask this node's agent.
#[derive(Subcommand)]
pub enum AgentCommand {
    /// Show what it is, how full its tables are, how far it has come
    Status(Socket),
    /// List what was dropped here, and why
    Drops {
        #[command(flatten)]
        socket: Socket,
        /// A line for each VNI instead of the node's sums
        #[arg(long)]
        by_vni: bool,
    },
}

/// What to do with ports.
#[derive(Subcommand)]
pub enum PortCommand {
    /// Join an interface of this host to the network as an instance's port
    Attach {
        /// The interface on the host's side
        ifname: String,
        /// NAME, VPC/NAME or id of the instance; it must be placed on this host
        #[arg(long)]
        instance: String,
        #[command(flatten)]
        socket: Socket,
    },
    /// Take an interface out of the network
    Detach {
        /// The interface on the host's side
        ifname: String,
        #[command(flatten)]
        socket: Socket,
    },
    /// List this host's ports, and instances that wait for theirs
    List(Socket),
}

/// What to do with direct paths.
#[derive(Subcommand)]
pub enum PathCommand {
    /// List the destinations that this host reaches without a gateway
    List(Socket),
}

const PATH_COLUMNS: [&str; 8] =
    ["vni", "destination", "host", "mac", "path_vni", "revision", "installed", "fixed"];

const PORT_COLUMNS: [&str; 7] = ["ifname", "instance", "active", "vni", "mac", "ipv4", "ipv6"];

impl AgentCommand {
    /// Asks and prints.
    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Status(socket) => {
                output::one(socket.output, &socket.ask("ask for its status", "/status", None).await?)
            }
            Self::Drops { socket, by_vni } => {
                let drops = socket.ask("ask for its drops", "/drops", None).await?;
                let (list, columns): (_, &[&str]) = match by_vni {
                    true => ("by_vni", &["vni", "reason", "packets", "text"]),
                    false => ("total", &["reason", "packets", "text"]),
                };
                output::list(socket.output, columns, items(&drops, list))
            }
        }
    }
}

impl PortCommand {
    /// Does it and prints what came of it.
    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Attach { ifname, instance, socket } => {
                let body = json!({"ifname": ifname, "instance": instance});
                let port = socket.ask(&format!("attach {ifname}"), "/ports/attach", Some(body)).await?;
                output::one(socket.output, &port)
            }
            Self::Detach { ifname, socket } => {
                let body = json!({"ifname": ifname});
                socket.ask(&format!("detach {ifname}"), "/ports/detach", Some(body)).await.map(drop)
            }
            Self::List(socket) => {
                let answer = socket.ask("list ports", "/ports", None).await?;
                output::list(socket.output, &PORT_COLUMNS, items(&answer, "ports"))
            }
        }
    }
}

impl PathCommand {
    /// Asks and prints.
    pub async fn run(self) -> Result<(), Failure> {
        let Self::List(socket) = self;
        let answer = socket.ask("list direct paths", "/paths", None).await?;
        output::list(socket.output, &PATH_COLUMNS, items(&answer, "paths"))
    }
}

fn items<'a>(answer: &'a Value, list: &str) -> &'a [Value] {
    answer.get(list).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

impl Socket {
    /// A POST with a body, else a GET.
    async fn ask(&self, action: &str, path: &str, body: Option<Value>) -> Result<Value, Failure> {
        let unreachable = |source| Failure::Agent { socket: self.socket.clone(), source };
        let socket: &Path = &self.socket;
        let http = reqwest::Client::builder().unix_socket(socket).build().map_err(unreachable)?;
        // The host part of the URL says nothing: the connection is the socket.
        let url = format!("http://agent{path}");
        let request = match body {
            Some(body) => http.post(url).json(&body),
            None => http.get(url),
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let text = response.text().await.map_err(unreachable)?;
        let answer: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        if status.is_success() {
            return Ok(answer);
        }
        let detail = match answer.get("error").and_then(Value::as_str).unwrap_or(text.trim()) {
            "" => "this agent does not know that; is it another role's?",
            detail => detail,
        };
        let detail = detail.to_owned();
        Err(Failure::AgentRefused { action: action.to_owned(), status: status.as_u16(), detail })
    }
}
