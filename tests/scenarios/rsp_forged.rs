//! RSP packets from the underlay without a valid key, forged notifications and noise, are refused and counted, and so
//! is a notification that another host seals with its own key, which the controller gave it. With the key of a
//! gateway the same notification is accepted until the host asks its gateway, and the same packet sent twice is
//! refused as a replay.

use crate::Ground;
use crate::support::{Failure, Outcome, Probe, ensure, eventually, path_to};
use serde_json::Value;
use sluice_lab::Lab;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

const RSP_PORT: u16 = 4797;
const HOST: &str = "host-a";
/// The sender: a node of the underlay.
const FROM: &str = "gw-b";
/// Another host of the same cluster.
const OTHER_HOST: &str = "host-b";
const SECRET: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const SOON: Duration = Duration::from_secs(5);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    let vm = lab.vm("web-1")?;
    let destination: IpAddr = "10.1.0.200".parse()?;
    let vtep = lab.state().topology.hosts.iter().find(|host| host.name == HOST).map(|host| host.vtep());
    let vtep = vtep.ok_or_else(|| Failure::new(format!("no host {HOST}")))?;
    let to = SocketAddr::new(vtep, RSP_PORT).to_string();
    // Gateways have the secret of the cluster, from which those of hosts are derived.
    let (id, secret) = key(lab, FROM)?;
    let cluster: [u8; 32] = bytes(&secret)?;
    let derived = sluice_rsp::host_secret(&cluster, vtep);
    let secret: String = derived.iter().map(|byte| format!("{byte:02x}")).collect();
    ensure!(key(lab, HOST)? == (id.clone(), secret.clone()), "{HOST} has another key than gateways derive");
    let vni = vm.vni.to_string();
    let say = |from: &'static str, secret: String| {
        let words =
            ["rsp", &to, &id, &secret, &vni, &destination.to_string(), "192.0.2.22"].map(str::to_owned);
        async move {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            Probe::start(lab, from, &words)?.end().await
        }
    };

    let before = refused(lab, "authentication_failed").await?;
    say(FROM, SECRET.to_owned()).await?;
    counted(lab, "authentication_failed", before + 2.0).await?;
    let (_, neighbor) = key(lab, OTHER_HOST)?;
    ensure!(neighbor != secret, "two hosts have the same key");
    say(OTHER_HOST, neighbor).await?;
    counted(lab, "authentication_failed", before + 4.0).await?;
    let before = refused(lab, "short").await?;
    Probe::start(lab, FROM, &["send", &to, "20", "1"])?.end().await?;
    counted(lab, "short", before + 1.0).await?;
    ensure!(path_to(lab, HOST, vm.vni, destination).await?.is_none(), "{HOST} believed a forger");

    let learned = learned(lab).await?;
    let before = refused(lab, "replayed").await?;
    say(FROM, secret).await?;
    counted(lab, "replayed", before + 1.0).await?;
    eventually(SOON, || async {
        ensure!(
            self::learned(lab).await? > learned,
            "with the key, too, nothing is learned: what was tested?"
        );
        let path = path_to(lab, HOST, vm.vni, destination).await?;
        ensure!(path.is_none(), "no gateway put the host right: {path:?}");
        Ok(())
    })
    .await
}

fn bytes(secret: &str) -> Result<[u8; 32], Failure> {
    let byte = |at: usize| u8::from_str_radix(secret.get(2 * at..2 * at + 2).unwrap_or(""), 16);
    let all: Result<Vec<u8>, _> = (0..32).map(byte).collect();
    all?.try_into().map_err(|_| Failure::new("a secret has not 32 bytes"))
}

/// Id and secret of the first key of a node.
fn key(lab: &Lab, node: &str) -> Result<(String, String), Failure> {
    let file = lab.paths().state_dir(node).join("rsp-keys.json");
    let clusters: Value = serde_json::from_slice(&std::fs::read(file)?)?;
    let key = &clusters[0]["keys"][0];
    let secret = key["secret"].as_str().ok_or_else(|| Failure::new(format!("{node} has no key")))?;
    Ok((key["id"].to_string(), secret.to_owned()))
}

async fn refused(lab: &Lab, reason: &str) -> Result<f64, Failure> {
    Ok(lab.metrics(HOST).await?.sum("sluice_rsp_refused_total", &[("reason", reason)]))
}

async fn learned(lab: &Lab) -> Result<f64, Failure> {
    Ok(lab.metrics(HOST).await?.sum("sluice_paths_learned_total", &[]))
}

async fn counted(lab: &Lab, reason: &str, least: f64) -> Outcome {
    eventually(SOON, || async {
        let now = refused(lab, reason).await?;
        ensure!(now >= least, "{HOST} counted {now} packets as {reason}, of at least {least}");
        Ok(())
    })
    .await
}
