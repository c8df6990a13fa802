//! `sluice agent`, `sluice port`, `sluice path` and `sluice nat`: requests to the agent of this node on its local socket.

use crate::failure::Failure;
use crate::output::{self, Format};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use sluice_gateway::Endpoints;
use sluice_types::{Protocol, Vni};
use sluice_vswitch::PortName;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest time of a request. An agent may have to write many entries before it can attach a port.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after which a command says what it waits for.
const NOTICE_AFTER: Duration = Duration::from_millis(300);
/// The host part of the URL is ignored: the connection is made to the socket.
const AGENT_URL: &str = "http://agent";
/// Longest name that the kernel gives to an interface, in bytes.
const INTERFACE_NAME_MAX: usize = 15;

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

/// The socket of a gateway's agent and the output format.
#[derive(Args)]
pub struct GatewaySocket {
    /// Socket of the gateway's agent
    #[arg(long, env = "SLUICE_SOCKET", value_name = "PATH", default_value = "/run/sluice/gateway.sock")]
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
    /// Show a gateway's state in its cluster: its vIPs, its peers, whether its tables are current
    Cluster(Socket),
    /// List a gateway's meters: its share of each, the bytes that are left, that passed and that were dropped
    Meters(GatewaySocket),
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
        #[arg(value_parser = interface_name)]
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
        #[arg(value_parser = interface_name)]
        ifname: String,
        #[command(flatten)]
        socket: Socket,
    },
    /// Open the port of an instance that migrates to this host, because its guest runs here now; without this command, its
    /// first frame does that. On the host from which it migrates: the guest continues there after `pause`
    Resume {
        /// Instance: NAME, VPC/NAME or id
        #[arg(long)]
        instance: String,
        #[command(flatten)]
        socket: Socket,
    },
    /// Send the packets of an instance that migrates from this host to its new one, because its guest is stopped: the interface there
    /// keeps them until the guest continues. Without this command they are lost
    Pause {
        /// Instance: NAME, VPC/NAME or id
        #[arg(long)]
        instance: String,
        #[command(flatten)]
        socket: Socket,
    },
    /// List the ports of this host, and its instances whose port is not attached yet
    List(Socket),
    /// Show a port of this host, and what the network class of its instance grants now
    Show {
        /// Interface, or instance: NAME, VPC/NAME or id
        name: String,
        #[command(flatten)]
        socket: Socket,
    },
    /// List the connections of this host's filtered ports
    Sessions {
        /// Only those of this interface
        #[arg(long, value_name = "IFNAME", value_parser = interface_name, conflicts_with = "instance")]
        port: Option<String>,
        /// Only those of this instance: NAME, VPC/NAME or id
        #[arg(long, value_name = "NAME")]
        instance: Option<String>,
        /// Only those of this protocol: a name such as tcp, or a number
        #[arg(long, value_name = "PROTOCOL")]
        protocol: Option<Protocol>,
        /// Only those with this address at either end
        #[arg(long, value_name = "ADDRESS")]
        address: Option<IpAddr>,
        /// At most so many
        #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
        #[command(flatten)]
        socket: Socket,
    },
    /// List the interfaces that may be ports and are not, with the number of packets dropped from each
    Guarded(Socket),
    /// Keep interfaces with these names away from this host's own network stack, without an agent: run this at boot
    /// before VMs start
    Guard {
        /// Names, or beginnings of names followed by *
        #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "sl-*")]
        port_names: Vec<PortName>,
    },
}

/// `sluice path VERB`.
#[derive(Subcommand)]
pub enum PathCommand {
    /// List the destinations that this host sends to directly, without a gateway
    List(Socket),
}

/// `sluice nat VERB`.
#[derive(Subcommand)]
pub enum NatCommand {
    /// List the connections of NAT gateways that this gateway translates, and the copies that it has of those of other gateways
    Sessions {
        /// Only those of the VPC with this VNI
        #[arg(long, value_name = "VNI")]
        vni: Option<Vni>,
        /// Only those of this instance: its address, or ADDRESS:PORT
        #[arg(long, value_name = "ADDRESS")]
        inside: Option<Endpoints>,
        /// Only those with this public address, or ADDRESS:PORT
        #[arg(long, value_name = "ADDRESS")]
        outside: Option<Endpoints>,
        /// Only those with this other end: its address, or ADDRESS:PORT
        #[arg(long, value_name = "ADDRESS")]
        remote: Option<Endpoints>,
        /// Only those of this protocol: a name such as tcp, or a number
        #[arg(long, value_name = "PROTOCOL")]
        protocol: Option<Protocol>,
        /// At most so many
        #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
        #[command(flatten)]
        socket: GatewaySocket,
    },
    /// List the NAT gateways of the cluster, which gateway translates for each, and whether this one has all its connections
    Copies(GatewaySocket),
}

const PATH_COLUMNS: [&str; 9] =
    ["vni", "destination", "host", "mac", "path_vni", "mtu", "revision", "installed", "fixed"];

const PORT_COLUMNS: [&str; 12] = [
    "ifname",
    "instance",
    "active",
    "vni",
    "mac",
    "ipv4",
    "ipv6",
    "identity",
    "filter",
    "dscp",
    "rate_mbps",
    "terms",
];

const CREDIT_COLUMNS: [&str; 5] = ["dimension", "used", "limit", "credit", "limited"];

const COST_COLUMNS: [&str; 6] = ["packet_ns", "kib_ns", "sent_ns", "received_ns", "calibrated", "windows"];

const SESSION_COLUMNS: [&str; 13] = [
    "ifname",
    "direction",
    "protocol",
    "local_address",
    "local_port",
    "remote_address",
    "remote_port",
    "state",
    "age_s",
    "expires_in_s",
    "packets_out",
    "packets_in",
    "rule",
];

const NAT_COLUMNS: [&str; 14] = [
    "vni",
    "protocol",
    "inside_address",
    "inside_port",
    "outside_address",
    "outside_port",
    "remote_address",
    "remote_port",
    "direction",
    "state",
    "age_s",
    "expires_in_s",
    "packets_out",
    "packets_in",
];

const COPY_COLUMNS: [&str; 5] = ["vni", "vip", "owner", "is_own", "complete"];

const METER_COLUMNS: [&str; 16] = [
    "id",
    "in_kbps",
    "in_share",
    "in_burst_bytes",
    "in_left_bytes",
    "in_passed_bytes",
    "in_dropped_bytes",
    "out_kbps",
    "out_share",
    "out_burst_bytes",
    "out_left_bytes",
    "out_passed_bytes",
    "out_dropped_bytes",
    "public_prefixes",
    "vpcs",
    "peerings",
];

const GUARDED_COLUMNS: [&str; 3] = ["ifname", "named", "dropped"];

impl AgentCommand {
    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Status(socket) => {
                output::one(socket.output, &socket.request("read the status", "/status", None).await?)
            }
            Self::Cluster(socket) => output::one(
                socket.output,
                &socket.request("read the state of the cluster", "/cluster", None).await?,
            ),
            Self::Meters(GatewaySocket { socket, output }) => {
                let answer = Socket { socket, output }.request("list meters", "/meters", None).await?;
                output::list(output, &METER_COLUMNS, list_field(&answer, "meters"))
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
                let action = format!("attach {ifname}");
                let notice = format!(
                    "waiting for the agent; if the controller has not sent it instance `{instance}` yet, it waits \
                     {} s for that",
                    sluice_vswitch::INSTANCE_WAIT.as_secs()
                );
                let request = socket.request(&action, "/ports/attach", Some(body));
                output::one(socket.output, &with_notice(request, &notice).await?)
            }
            Self::Detach { ifname, socket } => {
                let body = json!({"ifname": ifname});
                socket.request(&format!("detach {ifname}"), "/ports/detach", Some(body)).await.map(drop)
            }
            Self::Resume { instance, socket } => {
                let body = json!({"instance": instance});
                let action = format!("resume the port of {instance}");
                socket.request(&action, "/ports/resume", Some(body)).await.map(drop)
            }
            Self::Pause { instance, socket } => {
                let body = json!({"instance": instance});
                let action = format!("pause the port of {instance}");
                socket.request(&action, "/ports/pause", Some(body)).await.map(drop)
            }
            Self::List(socket) => {
                let answer = socket.request("list ports", "/ports", None).await?;
                output::list(socket.output, &PORT_COLUMNS, list_field(&answer, "ports"))
            }
            Self::Show { name, socket } => {
                let answer = socket.request("list ports", "/ports", None).await?;
                show_port(socket.output, named_port(list_field(&answer, "ports"), &name)?)
            }
            Self::Sessions { port, instance, protocol, address, limit, socket } => {
                let fields = [
                    ("port", port),
                    ("instance", instance),
                    ("protocol", protocol.map(|protocol| protocol.to_string())),
                    ("address", address.map(|address| address.to_string())),
                    ("limit", Some(limit.to_string())),
                ];
                let answer = socket.request("list sessions", &with_query("/sessions", &fields), None).await?;
                show_sessions(socket.output, &answer, &SESSION_COLUMNS, session_row)?;
                if is_cut(&answer) {
                    eprintln!(
                        "there are more than {limit}; give --limit, or choose a port, an address or a protocol"
                    );
                }
                Ok(())
            }
            Self::Guarded(socket) => {
                let answer = socket.request("list guarded interfaces", "/ports/guarded", None).await?;
                output::list(socket.output, &GUARDED_COLUMNS, list_field(&answer, "guarded"))
            }
            Self::Guard { port_names } => {
                sluice_vswitch::install_guard(&port_names).await.map_err(Failure::role("vswitch"))
            }
        }
    }
}

impl NatCommand {
    pub async fn run(self) -> Result<(), Failure> {
        let (vni, inside, outside, remote, protocol, limit, socket) = match self {
            Self::Sessions { vni, inside, outside, remote, protocol, limit, socket } => {
                (vni, inside, outside, remote, protocol, limit, socket)
            }
            Self::Copies(GatewaySocket { socket, output }) => {
                return copies(&Socket { socket, output }).await;
            }
        };
        let GatewaySocket { socket, output } = socket;
        let end = |end: Option<Endpoints>| end.map(|end| end.to_string());
        let fields = [
            ("vni", vni.map(|vni| vni.to_string())),
            ("inside", end(inside)),
            ("outside", end(outside)),
            ("remote", end(remote)),
            ("protocol", protocol.map(|protocol| protocol.to_string())),
            ("limit", Some(limit.to_string())),
        ];
        let socket = Socket { socket, output };
        let answer = socket.request("list sessions", &with_query("/nat/sessions", &fields), None).await?;
        show_sessions(output, &answer, &NAT_COLUMNS, nat_row)?;
        if is_cut(&answer) {
            eprintln!("there are more than {limit}; give --limit, or choose a VNI, an address or a protocol");
        }
        Ok(())
    }
}

/// Lists what a gateway has of the NAT gateways of its cluster.
async fn copies(socket: &Socket) -> Result<(), Failure> {
    let answer = socket.request("list copies of sessions", "/nat/copies", None).await?;
    output::list(socket.output, &COPY_COLUMNS, list_field(&answer, "copies"))?;
    if answer.get("has_heir") == Some(&Value::Bool(false)) {
        eprintln!(
            "no other gateway has copies of all sessions: those of this one's NAT gateways end if it dies"
        );
    }
    Ok(())
}

impl PathCommand {
    pub async fn run(self) -> Result<(), Failure> {
        let Self::List(socket) = self;
        let answer = socket.request("list direct paths", "/paths", None).await?;
        output::list(socket.output, &PATH_COLUMNS, list_field(&answer, "paths"))
    }
}

/// The port with this interface, or of this instance.
fn named_port<'a>(ports: &'a [Value], name: &str) -> Result<&'a Value, Failure> {
    let with = |field: &str| ports.iter().find(|port| port[field] == name);
    if let Some(port) = with("ifname").or_else(|| with("id")) {
        return Ok(port);
    }
    let full_name = |port: &'a Value| port["instance"].as_str().unwrap_or_default();
    let has_name = |port: &&'a Value| {
        let full = full_name(port);
        full == name || full.rsplit_once('/').is_some_and(|(_, short)| short == name)
    };
    let found: Vec<&Value> = ports.iter().filter(has_name).collect();
    match found.as_slice() {
        [port] => Ok(port),
        [] => Err(Failure::AgentRefused {
            action: "show the port".to_owned(),
            status: 404,
            detail: format!(
                "no port of this host, and no instance placed on it, is {name:?}; `sluice port list` lists both"
            ),
        }),
        several => {
            let candidates: Vec<&str> = several.iter().map(|port| full_name(port)).collect();
            Err(Failure::Usage(format!(
                "{name:?} names several instances of this host: {}; give VPC/NAME, the id or the interface",
                candidates.join(", ")
            )))
        }
    }
}

/// Prints a port. What it uses and may use, and what its packets cost, are tables of their own: they would not fit into one line.
fn show_port(output: Format, port: &Value) -> Result<(), Failure> {
    let credit = list_field(port, "credit");
    if output != Format::Table || credit.is_empty() {
        return output::one(output, port);
    }
    let mut others = port.clone();
    if let Some(fields) = others.as_object_mut() {
        fields.remove("credit");
        fields.remove("packet_costs");
    }
    output::one(output, &others)?;
    output::print("\n")?;
    output::list(output, &CREDIT_COLUMNS, credit)?;
    let Some(costs) = port.get("packet_costs").filter(|costs| costs.is_object()) else { return Ok(()) };
    output::print("\n")?;
    output::list(output, &COST_COLUMNS, std::slice::from_ref(costs))
}

/// Checks the name of an interface by the rules of the kernel.
fn interface_name(text: &str) -> Result<String, String> {
    let is_allowed = |letter: char| !letter.is_whitespace() && !matches!(letter, '/' | ':');
    let problem = if text.is_empty() {
        "the name is empty".to_owned()
    } else if text.len() > INTERFACE_NAME_MAX {
        format!("names of interfaces have at most {INTERFACE_NAME_MAX} bytes")
    } else if matches!(text, "." | "..") || !text.chars().all(is_allowed) {
        "no interface can have this name".to_owned()
    } else {
        return Ok(text.to_owned());
    };
    Err(problem)
}

/// Awaits a request. If it takes long, prints the notice, once.
async fn with_notice<T>(request: impl Future<Output = T>, notice: &str) -> T {
    let mut request = std::pin::pin!(request);
    match tokio::time::timeout(NOTICE_AFTER, request.as_mut()).await {
        Ok(output) => output,
        Err(_) => {
            eprintln!("{notice}");
            request.await
        }
    }
}

/// A path with the fields that have a value.
fn with_query(path: &str, fields: &[(&str, Option<String>)]) -> String {
    let fields = fields.iter().filter_map(|(name, value)| Some((*name, value.as_ref()?)));
    let url = reqwest::Url::parse_with_params(&format!("{AGENT_URL}{path}"), fields);
    let query = url.ok().and_then(|url| url.query().map(|query| format!("?{query}")));
    format!("{path}{}", query.unwrap_or_default())
}

/// A session as a table shows it. ICMP has no ports: where the query comes from, its number is the identifier, and where it
/// goes to, the type.
fn session_row(session: &Value) -> Value {
    let mut row = session.clone();
    if matches!(session["protocol"].as_str(), Some("icmp" | "icmpv6")) {
        let (local, remote) = if session["direction"] == "egress" { ("id", "type") } else { ("type", "id") };
        row["local_port"] = json!(format!("{local} {}", session["local_port"]));
        row["remote_port"] = json!(format!("{remote} {}", session["remote_port"]));
    }
    row
}

/// A session of a NAT gateway as a table shows it.
fn nat_row(session: &Value) -> Value {
    let mut row = session.clone();
    if session["protocol"] == "icmp" {
        for (field, what) in [("inside_port", "id"), ("outside_port", "id"), ("remote_port", "type")] {
            row[field] = json!(format!("{what} {}", session[field]));
        }
    }
    row
}

fn show_sessions(
    output: Format,
    answer: &Value,
    columns: &[&str],
    row: fn(&Value) -> Value,
) -> Result<(), Failure> {
    let sessions = list_field(answer, "sessions");
    if output == Format::Table {
        output::list(output, columns, &sessions.iter().map(row).collect::<Vec<_>>())
    } else {
        output::list(output, &[], sessions)
    }
}

/// Whether there are more sessions than were asked for.
fn is_cut(answer: &Value) -> bool {
    answer.get("is_cut") == Some(&Value::Bool(true))
}

fn list_field<'a>(answer: &'a Value, list: &str) -> &'a [Value] {
    answer.get(list).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

impl Socket {
    /// A POST if there is a body, otherwise a GET. `action` is for error messages.
    async fn request(&self, action: &str, path: &str, body: Option<Value>) -> Result<Value, Failure> {
        self.request_within(REQUEST_TIMEOUT, action, path, body).await
    }

    async fn request_within(
        &self,
        timeout: Duration,
        action: &str,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, Failure> {
        let unreachable = |source| Failure::Agent { socket: self.socket.clone(), source };
        let socket: &Path = &self.socket;
        let http =
            reqwest::Client::builder().unix_socket(socket).timeout(timeout).build().map_err(unreachable)?;
        let url = format!("{AGENT_URL}{path}");
        let request = match body {
            Some(body) => http.post(url).json(&body),
            None => http.get(url),
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let text = response.text().await.map_err(unreachable)?;
        let answer = serde_json::from_str::<Value>(&text);
        if status.is_success() {
            return answer.map_err(|source| Failure::AgentMalformed { action: action.to_owned(), source });
        }
        let answer = answer.unwrap_or_default();
        let detail = match answer.get("error").and_then(Value::as_str).unwrap_or(text.trim()) {
            "" => "the agent does not serve this request; is it the agent of another role?",
            detail => detail,
        };
        let detail = detail.to_owned();
        Err(Failure::AgentRefused { action: action.to_owned(), status: status.as_u16(), detail })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    /// The outcome of a request to a program that sends `response` and then waits for the end of the connection.
    fn request(response: &'static str, timeout: Duration) -> Result<Value, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            lines.by_ref().take_while(|line| !line.is_empty()).for_each(drop);
            (&stream).write_all(response.as_bytes()).unwrap();
            lines.for_each(drop);
        });
        let socket = Socket { socket, output: Format::Json };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let outcome = runtime.block_on(socket.request_within(timeout, "read the status", "/status", None));
        drop(runtime);
        server.join().unwrap();
        outcome
    }

    #[test]
    fn impossible_interface_names_are_refused() {
        for name in ["eth0", "sl-web-1", "a.100", "123456789012345"] {
            assert_eq!(interface_name(name).as_deref(), Ok(name));
        }
        for name in ["", "1234567890123456", "a/b", "a b", "a\n", "eth0:1", ".."] {
            assert!(interface_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn ports_are_found_by_interface_id_and_name() {
        let port = |ifname: Option<&str>, instance: &str, id: &str| json!({"ifname": ifname, "instance": instance, "id": id});
        let ports = [
            port(Some("tap1"), "red/web", "inst-1"),
            port(None, "blue/web", "inst-2"),
            port(Some("tap3"), "blue/db", "inst-3"),
            port(Some("db"), "blue/cache", "inst-4"),
            // The controller has removed this instance.
            port(Some("tap5"), "inst-5", "inst-5"),
        ];
        let found = |name: &str| named_port(&ports, name).map(|port| port["id"].clone());
        for (name, id) in [
            ("tap1", "inst-1"),
            ("red/web", "inst-1"),
            ("inst-2", "inst-2"),
            ("cache", "inst-4"),
            ("db", "inst-4"),
            ("blue/db", "inst-3"),
            ("inst-5", "inst-5"),
        ] {
            assert_eq!(found(name).unwrap(), id, "{name}");
        }
        let error = found("web").unwrap_err();
        assert!(error.code() == 2 && error.to_string().contains("red/web, blue/web"), "{error}");
        let error = found("tap9").unwrap_err();
        assert!(error.code() == 4 && error.to_string().contains("is \"tap9\";"), "{error}");
    }

    #[test]
    fn only_given_fields_are_asked_for() {
        let fields =
            [("port", None), ("instance", Some("red/web 1&2".to_owned())), ("limit", Some("5".to_owned()))];
        assert_eq!(with_query("/sessions", &fields), "/sessions?instance=red%2Fweb+1%262&limit=5");
    }

    #[test]
    fn numbers_of_icmp_sessions_are_not_shown_as_ports() {
        let row = |protocol, direction| {
            let session =
                json!({"protocol": protocol, "direction": direction, "local_port": 8, "remote_port": 77});
            let row = session_row(&session);
            (row["local_port"].clone(), row["remote_port"].clone())
        };
        assert_eq!(row("icmp", "ingress"), (json!("type 8"), json!("id 77")));
        assert_eq!(row("icmpv6", "egress"), (json!("id 8"), json!("type 77")));
        assert_eq!(row("tcp", "egress"), (json!(8), json!(77)));
    }

    #[test]
    fn response_that_is_not_an_agents_is_an_error() {
        let long = Duration::from_secs(60);
        let answer = request("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", long).unwrap();
        assert_eq!(answer, json!({}));
        let error = request("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", long).unwrap_err();
        assert!(matches!(error, Failure::AgentMalformed { .. }) && error.code() == 3, "{error}");
        let error = request("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", long).unwrap_err();
        assert_eq!(error.code(), 4);
    }

    #[test]
    fn numbers_of_icmp_sessions_of_nat_gateways_are_not_shown_as_ports() {
        let session = |protocol| json!({"protocol": protocol, "inside_port": 7, "outside_port": 5000, "remote_port": 8});
        let row = nat_row(&session("icmp"));
        let shown = ["inside_port", "outside_port", "remote_port"].map(|field| row[field].clone());
        assert_eq!(shown, ["id 7", "id 5000", "type 8"]);
        assert_eq!(nat_row(&session("udp")), session("udp"));
    }

    /// Catches a request without a timeout: it would never end.
    #[test]
    fn agent_that_does_not_answer_is_an_error() {
        let error = request("", Duration::from_millis(100)).unwrap_err();
        assert!(matches!(&error, Failure::Agent { source, .. } if source.is_timeout()), "{error}");
    }
}
