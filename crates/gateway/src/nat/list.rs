//! The sessions of NAT gateways as the local API lists them: `GET /nat/sessions`. The tables are read while packets use them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use sluice_agent::local_api::ApiError;
use sluice_tables::layout;
use sluice_tables::nat::Translation;
use sluice_tables::sessions::{SessionReader, ticks_now};
use sluice_types::Protocol;

/// Sessions that are listed unless another number is asked for, and most that can be asked for.
const LISTED: usize = 1000;
const LISTED_MAX: usize = 100_000;

/// Endpoints of sessions: all of an address, or those with this port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Endpoints {
    address: IpAddr,
    port: Option<u16>,
}

impl Endpoints {
    fn contain(&self, end: SocketAddr) -> bool {
        end.ip() == self.address && self.port.is_none_or(|port| port == end.port())
    }
}

impl FromStr for Endpoints {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let address = text.parse().map(|address| Self { address, port: None });
        let with_port = |end: SocketAddr| Self { address: end.ip(), port: Some(end.port()) };
        address
            .or_else(|_| text.parse().map(with_port))
            .map_err(|_| format!("`{text}` is not an IP address, or ADDRESS:PORT"))
    }
}

impl TryFrom<String> for Endpoints {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl std::fmt::Display for Endpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.address, port).fmt(f),
            None => self.address.fmt(f),
        }
    }
}

/// Which sessions are listed. Each field may be absent.
#[derive(Clone, Debug, Default, Deserialize)]
struct SessionQuery {
    vni: Option<u32>,
    inside: Option<Endpoints>,
    outside: Option<Endpoints>,
    remote: Option<Endpoints>,
    protocol: Option<Protocol>,
    limit: Option<usize>,
}

impl SessionQuery {
    fn matches(&self, shown: &Translation, now: u32) -> bool {
        let contains = |ends: Option<Endpoints>, end: SocketAddr| ends.is_none_or(|ends| ends.contain(end));
        let flow = &shown.session.flow;
        self.vni.is_none_or(|vni| vni == flow.scope)
            && self.protocol.and_then(Protocol::number).is_none_or(|protocol| protocol == flow.protocol)
            && contains(self.inside, shown.inside)
            && contains(self.outside, shown.outside.into())
            && contains(self.remote, shown.remote.into())
            && shown.session.expires_at.wrapping_sub(now).cast_signed() > 0
    }
}

/// A session. Of ICMP, the inside and the outside port are identifiers, and the remote port is the type of the query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct SessionView {
    vni: u32,
    protocol: String,
    inside_address: IpAddr,
    inside_port: u16,
    outside_address: Ipv4Addr,
    outside_port: u16,
    remote_address: Ipv4Addr,
    remote_port: u16,
    /// Who began the session: the instance (`egress`), or the remote endpoint (`ingress`).
    direction: &'static str,
    /// The phase of the session: `new`, `established` or `closing`.
    state: &'static str,
    /// Seconds since it began.
    age_s: u32,
    /// Seconds until it ends, unless a packet comes.
    expires_in_s: u32,
    /// Packets and bytes that the instance has sent, and received.
    packets_out: u64,
    bytes_out: u64,
    packets_in: u64,
    bytes_in: u64,
}

/// A list of sessions, in no order, and whether there are more than the limit.
#[derive(Clone, Debug, Serialize)]
struct SessionViews {
    sessions: Vec<SessionView>,
    is_cut: bool,
}

/// Route `GET /nat/sessions`, with `vni`, `inside`, `outside`, `remote`, `protocol` and `limit`.
pub fn routes(reader: SessionReader) -> Router {
    Router::new().route("/nat/sessions", get(list_sessions)).with_state(reader)
}

async fn list_sessions(
    State(reader): State<SessionReader>,
    fields: Result<Query<SessionQuery>, QueryRejection>,
) -> Result<Json<SessionViews>, ApiError> {
    let bad = |message: String| ApiError::new(StatusCode::BAD_REQUEST, message);
    let Query(query) = fields.map_err(|error| bad(error.body_text()))?;
    let limit = query.limit.unwrap_or(LISTED);
    if !(1..=LISTED_MAX).contains(&limit) {
        return Err(bad(format!("limit {limit} is not between 1 and {LISTED_MAX}")));
    }
    let list = move || list(&reader, &query, limit);
    let failed = |error: tokio::task::JoinError| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot list sessions: {error}"))
    };
    tokio::task::spawn_blocking(list).await.map(Json).map_err(failed)
}

fn list(reader: &SessionReader, query: &SessionQuery, limit: usize) -> SessionViews {
    let now = ticks_now();
    let found = reader.iter().map(Translation::from).filter(|shown| query.matches(shown, now));
    let mut sessions: Vec<_> = found.take(limit + 1).map(|shown| view(&shown, now)).collect();
    let is_cut = sessions.len() > limit;
    sessions.truncate(limit);
    SessionViews { sessions, is_cut }
}

fn view(shown: &Translation, now: u32) -> SessionView {
    let Translation { session, inside, outside, remote, is_of_remote, .. } = shown;
    let (out, into) = if *is_of_remote { (1, 0) } else { (0, 1) };
    let seconds = |ticks: u32| ticks / layout::SESSION_TICKS_PER_SECOND;
    SessionView {
        vni: session.flow.scope,
        protocol: Protocol::new(session.flow.protocol).unwrap_or(Protocol::ANY).to_string(),
        inside_address: inside.ip(),
        inside_port: inside.port(),
        outside_address: *outside.ip(),
        outside_port: outside.port(),
        remote_address: *remote.ip(),
        remote_port: remote.port(),
        direction: if *is_of_remote { "ingress" } else { "egress" },
        state: session.phase().name(),
        age_s: seconds(now.wrapping_sub(session.created_at)),
        expires_in_s: seconds(session.expires_at.wrapping_sub(now)),
        packets_out: session.packets[out],
        bytes_out: session.bytes[out],
        packets_in: session.packets[into],
        bytes_in: session.bytes[into],
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::nat::SharedNat;
    use sluice_tables::sessions::{Flow, Session};

    fn parse(query: &str) -> Result<SessionQuery, String> {
        let uri = format!("http://agent/nat/sessions?{query}").parse().unwrap();
        Query::try_from_uri(&uri).map(|Query(query)| query).map_err(|error| error.body_text())
    }

    /// The sessions that match.
    pub fn listed(nat: &SharedNat, query: &str) -> Vec<String> {
        let views = list(&nat.reader(), &parse(query).unwrap(), LISTED).sessions;
        views.iter().map(|view| format!("{view:?}")).collect()
    }

    fn end(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// A UDP session that the remote endpoint began.
    fn translation() -> Translation {
        let flow =
            Flow { scope: 9, protocol: 17, source: end("203.0.113.9:53"), destination: end("10.0.0.5:7") };
        let now = ticks_now();
        Translation::from(Session {
            flow,
            created_at: now.wrapping_sub(80),
            expires_at: now.wrapping_add(800),
            state: 0,
            packets: [1, 2],
            bytes: [100, 200],
            action: [u32::from(Ipv4Addr::new(198, 51, 100, 1)), 0x8003_0000 | 40_000],
            generation: 0,
        })
    }

    #[test]
    fn sessions_are_found_by_each_of_their_ends() {
        let (shown, now) = (translation(), ticks_now());
        let matches = |query: &str| parse(query).unwrap().matches(&shown, now);
        for yes in [
            "",
            "vni=9",
            "inside=10.0.0.5",
            "inside=10.0.0.5:7",
            "outside=198.51.100.1:40000",
            "remote=203.0.113.9",
            "protocol=udp",
            "vni=9&inside=10.0.0.5&outside=198.51.100.1&remote=203.0.113.9:53&protocol=17",
        ] {
            assert!(matches(yes), "{yes}");
        }
        for no in [
            "vni=8",
            "inside=203.0.113.9",
            "inside=10.0.0.5:8",
            "outside=198.51.100.1:40001",
            "remote=10.0.0.5",
            "protocol=tcp",
        ] {
            assert!(!matches(no), "{no}");
        }
        assert!(!parse("").unwrap().matches(&shown, now.wrapping_add(801)), "it has expired");
        let error = parse("inside=10.0.0").unwrap_err();
        assert!(error.contains("`10.0.0` is not an IP address, or ADDRESS:PORT"), "{error}");
        assert!(parse("vni=x").is_err());
    }

    #[test]
    fn a_session_of_nat64_has_an_inside_address_of_ipv6() {
        let mut session = translation().session;
        (session.flow.source, session.flow.destination) =
            (end("[64:ff9b::203.0.113.9]:53"), end("[2001:db8::5]:7"));
        let shown = Translation::from(session);
        let matches = |query: &str| parse(query).unwrap().matches(&shown, ticks_now());
        assert!(matches("inside=2001:db8::5") && matches("inside=[2001:db8::5]:7&remote=203.0.113.9:53"));
        assert!(!matches("inside=2001:db8::6") && !matches("remote=203.0.113.8"));
        let view = view(&shown, ticks_now());
        assert_eq!(
            (view.inside_address, view.remote_address),
            (end("[2001:db8::5]:7").ip(), [203, 0, 113, 9].into())
        );
    }

    #[test]
    fn a_session_that_a_remote_endpoint_began_is_shown_from_inside() {
        let view = view(&translation(), ticks_now());
        assert_eq!((view.inside_address, view.inside_port), (end("10.0.0.5:7").ip(), 7));
        assert_eq!((view.remote_address, view.remote_port), (Ipv4Addr::new(203, 0, 113, 9), 53));
        assert_eq!((view.outside_address, view.outside_port), (Ipv4Addr::new(198, 51, 100, 1), 40_000));
        assert_eq!((view.direction, view.packets_out, view.bytes_in), ("ingress", 2, 100));
    }
}
