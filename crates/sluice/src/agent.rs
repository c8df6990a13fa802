//! `sluice agent`, `sluice port` and `sluice path`: requests to the agent of this node on its local socket.

use crate::failure::Failure;
use crate::output::{self, Format};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The agent's socket and the output format.
#[derive(Args)]
pub struct Socket {
    /// Socket of the agent; the socket of a gateway's agent is /run/sluice/gateway.sock
    #[arg(long, env = "SLUICE_SOCKET", value_name = "PATH", default_value = "/run/sluice/vswitch.sock")]
    socket: PathBuf,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// `sluice agent VERB`.
#[derive(Subcommand)]
pub enum AgentCommand {
    /// Show the agent's role, table usage and programmed revision
    Status(Socket),
    /// List the drop counters of this node by reason
    Drops {
        #[command(flatten)]
        socket: Socket,
        /// List each VNI separately instead of the sums of the node
        #[arg(long)]
        by_vni: bool,
    },
}

/// `sluice port VERB`.
#[derive(Subcommand)]
pub enum PortCommand {
    /// Attach an interface of this host to the network as the port of an instance
    Attach {
        /// Host side of the interface
        ifname: String,
        /// Instance: NAME, VPC/NAME or id; its host must be this one
        #[arg(long)]
        instance: String,
        #[command(flatten)]
        socket: Socket,
    },
    /// Detach an interface from the network
    Detach {
        /// Host side of the interface
        ifname: String,
        #[command(flatten)]
        socket: Socket,
    },
    /// List the ports of this host, and its instances whose port is not attached yet
    List(Socket),
}

/// `sluice path VERB`.
#[derive(Subcommand)]
pub enum PathCommand {
    /// List the destinations that this host sends to directly, without a gateway
    List(Socket),
}

const PATH_COLUMNS: [&str; 8] =
    ["vni", "destination", "host", "mac", "path_vni", "revision", "installed", "fixed"];

const PORT_COLUMNS: [&str; 7] = ["ifname", "instance", "active", "vni", "mac", "ipv4", "ipv6"];

impl AgentCommand {
    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Status(socket) => {
                output::one(socket.output, &socket.request("read the status", "/status", None).await?)
            }
            Self::Drops { socket, by_vni } => {
                let drops = socket.request("read the drop counters", "/drops", None).await?;
                let (list, columns): (_, &[&str]) = match by_vni {
                    true => ("by_vni", &["vni", "reason", "packets", "text"]),
                    false => ("total", &["reason", "packets", "text"]),
                };
                output::list(socket.output, columns, list_field(&drops, list))
            }
        }
    }
}

impl PortCommand {
    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Attach { ifname, instance, socket } => {
                let body = json!({"ifname": ifname, "instance": instance});
                let port = socket.request(&format!("attach {ifname}"), "/ports/attach", Some(body)).await?;
                output::one(socket.output, &port)
            }
            Self::Detach { ifname, socket } => {
                let body = json!({"ifname": ifname});
                socket.request(&format!("detach {ifname}"), "/ports/detach", Some(body)).await.map(drop)
            }
            Self::List(socket) => {
                let answer = socket.request("list ports", "/ports", None).await?;
                output::list(socket.output, &PORT_COLUMNS, list_field(&answer, "ports"))
            }
        }
    }
}

impl PathCommand {
    pub async fn run(self) -> Result<(), Failure> {
        let Self::List(socket) = self;
        let answer = socket.request("list direct paths", "/paths", None).await?;
        output::list(socket.output, &PATH_COLUMNS, list_field(&answer, "paths"))
    }
}

fn list_field<'a>(answer: &'a Value, list: &str) -> &'a [Value] {
    answer.get(list).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

impl Socket {
    /// A POST if there is a body, otherwise a GET. `action` is for error messages.
    async fn request(&self, action: &str, path: &str, body: Option<Value>) -> Result<Value, Failure> {
        let unreachable = |source| Failure::Agent { socket: self.socket.clone(), source };
        let socket: &Path = &self.socket;
        let http = reqwest::Client::builder().unix_socket(socket).build().map_err(unreachable)?;
        // The host part of the URL is ignored: the connection is made to the socket.
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
            "" => "the agent does not serve this request; is it the agent of another role?",
            detail => detail,
        };
        let detail = detail.to_owned();
        Err(Failure::AgentRefused { action: action.to_owned(), status: status.as_u16(), detail })
    }
}
