//! The sessions of this host's ports as the local API lists them. The tables are read while packets use them, and their
//! writer is asked only for names.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;
use sluice_agent::{Applier, Error, Node};
use sluice_tables::sessions::{Session, SessionReader, ticks_now};
use sluice_tables::{Direction, layout};
use sluice_types::{InstanceId, Protocol};

use crate::policies::RuleIds;
use crate::port_manager::PortError;
use crate::port_registry::{PortRegistry, RegistryError};
use crate::role::HostRole;

/// Sessions that are listed unless another number is asked for, and most that can be asked for.
pub const LISTED: usize = 1000;
pub const LISTED_MAX: usize = 100_000;

/// Which sessions are listed.
#[derive(Clone, Debug)]
pub struct Query {
    /// Only those of this interface.
    pub port: Option<String>,
    /// Only those of this instance: its name, `VPC/NAME` or id.
    pub instance: Option<String>,
    /// Only those of this protocol.
    pub protocol: Option<u8>,
    /// Only those with this address at either end.
    pub address: Option<IpAddr>,
    /// At most so many.
    pub limit: usize,
}

/// A session.
#[derive(Clone, Debug, Serialize)]
pub struct SessionView {
    /// Interface of the port.
    pub ifname: String,
    /// `VPC/NAME` of the instance.
    pub instance: String,
    /// Who began the session: the instance (`egress`), or the other end (`ingress`).
    pub direction: &'static str,
    /// Protocol above IP.
    pub protocol: String,
    /// Address of the instance.
    pub local_address: IpAddr,
    /// Its port; of ICMP the identifier where the query comes from, and its type where it goes to; 0 for protocols without
    /// ports.
    pub local_port: u16,
    /// Address of the other end.
    pub remote_address: IpAddr,
    /// Its port, as that of the instance.
    pub remote_port: u16,
    /// The phase of the session: `new`, `established` or `closing`; `revoked`: the policy permits it no longer, and its packets
    /// are dropped until it ends.
    pub state: &'static str,
    /// Seconds since it began.
    pub age_s: u32,
    /// Seconds until it ends, unless a packet comes.
    pub expires_in_s: u32,
    /// Packets and bytes that the instance has sent, and received.
    pub packets_out: u64,
    pub bytes_out: u64,
    pub packets_in: u64,
    pub bytes_in: u64,
    /// Id of the rule that permits it; `None` while its policy is being replaced.
    pub rule: Option<String>,
    /// Identity of the security groups of the other end; 0 if it is not known.
    pub remote_identity: u16,
}

/// A list of sessions.
#[derive(Clone, Debug, Serialize)]
pub struct SessionViews {
    /// The sessions, in no order.
    pub sessions: Vec<SessionView>,
    /// Whether there are more than the limit.
    pub is_cut: bool,
}

/// A port whose sessions are listed.
struct ListedPort {
    ifname: String,
    instance: String,
}

/// Lists sessions.
pub struct SessionList {
    node: Arc<Node<HostRole>>,
    reader: SessionReader,
}

impl SessionList {
    /// Lists the sessions of this node.
    pub fn new(node: Arc<Node<HostRole>>, reader: SessionReader) -> Self {
        Self { node, reader }
    }

    /// The sessions that match.
    ///
    /// # Errors
    /// If the port or the instance is unknown, or the instance has no port.
    pub async fn get(&self, query: Query) -> Result<SessionViews, PortError> {
        let asked = query.clone();
        let names = move |applier: &mut Applier<HostRole>| {
            let registry = &applier.role.ports;
            let ports = listed_ports(registry, &asked)?;
            Ok::<_, PortError>((ports, registry.policies().rule_ids(&applier.tables)))
        };
        let (ports, rules) = self.node.writer.run(names).await??;
        let reader = self.reader.clone();
        let list = move || list(&reader, &query, &ports, &rules);
        Ok(tokio::task::spawn_blocking(list)
            .await
            .map_err(|error| Error::io("list the sessions")(std::io::Error::other(error)))?)
    }
}

/// The ports that a query is about, by the numbers of their sessions.
fn listed_ports(registry: &PortRegistry, query: &Query) -> Result<HashMap<u32, ListedPort>, PortError> {
    if let Some(port) = query.port.as_ref().filter(|port| !registry.attachments().contains_key(*port)) {
        return Err(PortError::NotAttached(port.clone()));
    }
    let instance: Option<InstanceId> = match &query.instance {
        Some(name) => Some(registry.find(name)?.instance),
        None => None,
    };
    let mut ports = HashMap::new();
    for (ifname, attachment) in registry.attachments() {
        let is_asked = query.port.as_ref().is_none_or(|port| port == ifname)
            && instance.is_none_or(|instance| instance == attachment.instance);
        let Some(port) = registry.instance(attachment.instance).filter(|_| is_asked) else { continue };
        let listed = ListedPort { ifname: ifname.clone(), instance: port.name.clone() };
        ports.insert(u32::from(attachment.scope), listed);
    }
    match instance.and_then(|id| registry.instance(id)) {
        Some(port) if ports.is_empty() && query.port.is_none() => {
            Err(RegistryError::NoPort(port.name.clone()).into())
        }
        _ => Ok(ports),
    }
}

fn list(
    reader: &SessionReader,
    query: &Query,
    ports: &HashMap<u32, ListedPort>,
    rules: &HashMap<u32, RuleIds>,
) -> SessionViews {
    let now = ticks_now();
    let matches = |session: &Session| {
        let flow = &session.flow;
        query.protocol.is_none_or(|protocol| protocol == flow.protocol)
            && query.address.is_none_or(|ip| ip == flow.source.ip() || ip == flow.destination.ip())
            && session.expires_at.wrapping_sub(now).cast_signed() > 0
    };
    let found = reader.iter().filter(matches).filter_map(|session| {
        let port = ports.get(&session.flow.scope)?;
        Some(view(&session, port, rules, now))
    });
    let mut sessions: Vec<SessionView> = found.take(query.limit + 1).collect();
    let is_cut = sessions.len() > query.limit;
    sessions.truncate(query.limit);
    SessionViews { sessions, is_cut }
}

fn view(session: &Session, port: &ListedPort, rules: &HashMap<u32, RuleIds>, now: u32) -> SessionView {
    let (flow, direction) = (&session.flow, session.begun_by());
    let is_egress = direction == Direction::Egress;
    let (local, remote) =
        if is_egress { (flow.source, flow.destination) } else { (flow.destination, flow.source) };
    let (out, into) = if is_egress { (0, 1) } else { (1, 0) };
    let seconds = |ticks: u32| ticks / layout::SESSION_TICKS_PER_SECOND;
    let number = session.rule() as usize;
    let rule = rules.get(&session.policy_generation()).and_then(|ids| ids.get(number.checked_sub(1)?));
    SessionView {
        ifname: port.ifname.clone(),
        instance: port.instance.clone(),
        direction: if is_egress { "egress" } else { "ingress" },
        protocol: Protocol::new(flow.protocol).unwrap_or(Protocol::ANY).to_string(),
        local_address: local.ip(),
        local_port: local.port(),
        remote_address: remote.ip(),
        remote_port: remote.port(),
        state: if session.is_revoked() { "revoked" } else { session.phase().name() },
        age_s: seconds(now.wrapping_sub(session.created_at)),
        expires_in_s: seconds(session.expires_at.wrapping_sub(now)),
        packets_out: session.packets[out],
        bytes_out: session.bytes[out],
        packets_in: session.packets[into],
        bytes_in: session.bytes[into],
        rule: rule.map(ToString::to_string),
        remote_identity: session.identity(),
    }
}
