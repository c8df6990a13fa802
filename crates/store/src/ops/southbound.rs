//! State of the southbound interface: nodes' streams, one-time enrollment tokens, the certificate authority.
//! These are not objects: changing them takes no revision.

use crate::backend::Query;
use crate::rows::get;
use crate::value::args;
use crate::{EnrollmentToken, Gateway, Host, NodeId, NodeState, Result, StoreError};
use sluice_types::{GatewayId, HostId};

/// Numbers of rows in a statement that stores states, in descending order; the last must be 1. Each statement is
/// prepared once.
const SAVE_SIZES: [usize; 3] = [128, 16, 1];

pub(super) fn kind_and_number(node: NodeId) -> (&'static str, u64) {
    match node {
        NodeId::Gateway(id) => ("gateway", id.get()),
        NodeId::Host(id) => ("host", id.get()),
    }
}

pub(super) fn parse_node(kind: &str, number: u64) -> Result<NodeId> {
    match kind {
        "gateway" => Ok(NodeId::Gateway(GatewayId::new(number))),
        "host" => Ok(NodeId::Host(HostId::new(number))),
        other => Err(StoreError::Corrupt(format!("a node of unknown kind `{other}`"))),
    }
}

async fn check_exists(q: &mut dyn Query, node: NodeId) -> Result<()> {
    match node {
        NodeId::Gateway(id) => get::<Gateway>(q, id).await.map(drop),
        NodeId::Host(id) => get::<Host>(q, id).await.map(drop),
    }
}

/// Stores states of different nodes. Nodes that do not exist are ignored.
pub(crate) async fn save_states(q: &mut dyn Query, mut states: &[NodeState]) -> Result<()> {
    for size in SAVE_SIZES {
        while states.len() >= size {
            let (now, later) = states.split_at(size);
            states = later;
            let mut values = Vec::with_capacity(size * 5);
            for state in now {
                let (kind, number) = kind_and_number(state.node);
                let failures =
                    serde_json::to_string(&state.failures).map_err(|e| StoreError::Corrupt(e.to_string()))?;
                values.extend(args![kind, number, state.acknowledged_revision, state.last_seen_ms, failures]);
            }
            q.run(&save_sql(size), values).await?;
        }
    }
    Ok(())
}

fn save_sql(rows: usize) -> String {
    let row = |n: usize| format!("(${}, ${}, ${}, ${}, ${})", n + 1, n + 2, n + 3, n + 4, n + 5);
    let rows: Vec<String> = (0..rows).map(|number| row(number * 5)).collect();
    format!(
        "INSERT INTO node_states (kind, node, acked, last_seen_ms, failures) \
         SELECT v.column1, v.column2, v.column3, v.column4, v.column5 FROM (VALUES {}) AS v \
         WHERE (v.column1 = 'gateway' AND EXISTS (SELECT 1 FROM gateways WHERE id = v.column2)) \
         OR (v.column1 = 'host' AND EXISTS (SELECT 1 FROM hosts WHERE id = v.column2)) \
         ON CONFLICT (kind, node) DO UPDATE \
         SET acked = excluded.acked, last_seen_ms = excluded.last_seen_ms, failures = excluded.failures",
        rows.join(", ")
    )
}

pub(crate) async fn states(q: &mut dyn Query) -> Result<Vec<NodeState>> {
    let sql = "SELECT kind, node, acked, last_seen_ms, failures FROM node_states ORDER BY kind, node";
    q.rows(sql, vec![])
        .await?
        .iter()
        .map(|row| {
            Ok(NodeState {
                node: parse_node(row.text(0)?, row.number(1)?)?,
                acknowledged_revision: row.number(2)?,
                last_seen_ms: row.number(3)?,
                failures: serde_json::from_str(row.text(4)?)
                    .map_err(|e| StoreError::Corrupt(format!("a node's failures: {e}")))?,
            })
        })
        .collect()
}

async fn delete_expired_tokens(q: &mut dyn Query, now_ms: u64) -> Result<()> {
    q.run("DELETE FROM enrollment_tokens WHERE expires_ms <= $1", args![now_ms]).await.map(drop)
}

/// Stores the SHA-256 of a token, and deletes all tokens that expired.
pub(crate) async fn add_token(
    q: &mut dyn Query,
    digest: [u8; 32],
    token: &EnrollmentToken,
    now_ms: u64,
) -> Result<()> {
    check_exists(q, token.node).await?;
    delete_expired_tokens(q, now_ms).await?;
    let (kind, number) = kind_and_number(token.node);
    let sql = "INSERT INTO enrollment_tokens (digest, kind, node, expires_ms) VALUES ($1, $2, $3, $4)";
    q.run(sql, args![digest.to_vec(), kind, number, token.expires_ms]).await.map(drop)
}

/// Deletes a token, and all that expired. Returns the node of the token if it was still valid.
pub(crate) async fn take_token(q: &mut dyn Query, digest: [u8; 32], now_ms: u64) -> Result<Option<NodeId>> {
    delete_expired_tokens(q, now_ms).await?;
    let sql = "DELETE FROM enrollment_tokens WHERE digest = $1 RETURNING kind, node";
    let Some(row) = q.row(sql, args![digest.to_vec()]).await? else { return Ok(None) };
    let node = parse_node(row.text(0)?, row.number(1)?)?;
    // From now on the node may get cluster keys, so its deletion must replace them (`forget_node`), also before the
    // state of its first stream is stored.
    let (kind, number) = kind_and_number(node);
    let sql = "INSERT INTO node_states (kind, node, acked, last_seen_ms, failures) \
               VALUES ($1, $2, 0, 0, '[]') ON CONFLICT (kind, node) DO NOTHING";
    q.run(sql, args![kind, number]).await?;
    Ok(Some(node))
}

/// Stores `new`, a PEM pair of certificate and key, unless there is an authority already. Returns the stored
/// pair.
pub(crate) async fn authority(q: &mut dyn Query, new: &(String, String)) -> Result<(String, String)> {
    let sql = "INSERT INTO certificate_authority (id, certificate, private_key) VALUES (1, $1, $2) \
               ON CONFLICT (id) DO NOTHING";
    q.run(sql, args![new.0.as_str(), new.1.as_str()]).await?;
    let sql = "SELECT certificate, private_key FROM certificate_authority";
    let row =
        q.row(sql, vec![]).await?.ok_or_else(|| StoreError::Corrupt("no certificate authority".into()))?;
    Ok((row.text(0)?.to_owned(), row.text(1)?.to_owned()))
}

/// Deletes the stream state, the health and the enrollment tokens of a node that is deleted. Returns true if the node ever
/// enrolled, so that it may have cluster keys.
pub(super) async fn forget_node(q: &mut dyn Query, kind: &str, id: u64) -> Result<bool> {
    let seen = q.run("DELETE FROM node_states WHERE kind = $1 AND node = $2", args![kind, id]).await?;
    q.run("DELETE FROM enrollment_tokens WHERE kind = $1 AND node = $2", args![kind, id]).await?;
    q.run("DELETE FROM health_reports WHERE kind = $1 AND node = $2", args![kind, id]).await?;
    Ok(seen > 0)
}
