//! `sluice port`: the agent's local socket.

use crate::api::ApiArgs;
use crate::failure::Failure;
use crate::output;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Where the agent listens.
#[derive(Args)]
pub struct Socket {
    /// The agent's socket
    #[arg(long, env = "SLUICE_SOCKET", default_value = "/run/sluice/vswitch.sock")]
    socket: PathBuf,
}

/// What to do with ports.
#[derive(Subcommand)]
pub enum PortCommand {
    /// Join an interface of this host to the network as an instance's port
    Attach {
        /// The interface on the host's side
        ifname: String,
        /// Name or id of the instance; it must be placed on this host
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
    /// List this host's ports
    List {
        #[command(flatten)]
        socket: Socket,
    },
}

const COLUMNS: [&str; 6] = ["ifname", "instance", "vni", "mac", "ipv4", "ipv6"];

/// Runs one.
pub async fn run(command: PortCommand, api: &ApiArgs) -> Result<(), Failure> {
    match command {
        PortCommand::Attach { ifname, instance, socket } => {
            let body = json!({"ifname": ifname, "instance": instance});
            let port = call(&socket.socket, "attach", &format!("attach {ifname}"), Some(body)).await?;
            if port.is_object() { output::one(api.output, &port) } else { Ok(()) }
        }
        PortCommand::Detach { ifname, socket } => {
            let body = json!({"ifname": ifname});
            call(&socket.socket, "detach", &format!("detach {ifname}"), Some(body)).await.map(drop)
        }
        PortCommand::List { socket } => {
            let answer = call(&socket.socket, "", "list ports", None).await?;
            let ports = answer.get("ports").or_else(|| answer.get("items")).unwrap_or(&answer);
            let none = Vec::new();
            output::list(api.output, &COLUMNS, ports.as_array().unwrap_or(&none))
        }
    }
}

async fn call(
    socket: &std::path::Path,
    verb: &str,
    action: &str,
    body: Option<Value>,
) -> Result<Value, Failure> {
    let unreachable = |source| Failure::Agent { socket: socket.to_owned(), source };
    let http = reqwest::Client::builder().unix_socket(socket).build().map_err(unreachable)?;
    // The host part of the URL says nothing: the connection is the socket.
    let request = match body {
        Some(body) => http.post(format!("http://agent/ports/{verb}")).json(&body),
        None => http.get("http://agent/ports"),
    };
    let response = request.send().await.map_err(unreachable)?;
    let status = response.status();
    let text = response.text().await.map_err(unreachable)?;
    let answer: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    if status.is_success() {
        return Ok(answer);
    }
    let detail = ["detail", "error", "title"].iter().find_map(|key| answer.get(key)?.as_str());
    let detail = detail.map_or_else(|| text.trim().to_owned(), str::to_owned);
    Err(Failure::AgentRefused { action: action.to_owned(), status: status.as_u16(), detail })
}
