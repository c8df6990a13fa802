//! A deleted instance's address stays unused while a gateway that cannot be reached still has its entries. Waiting for
//! the removal names that gateway. When it returns, the address is free: an instance that gets it also gets its
//! packets, and the old one, whose VM still runs, gets none.
//!
//! Catches: a removal that ends although a node has not acknowledged it, or never ends; an address that is held by the
//! allocation or by the check of requests alone; a host or gateway that keeps entries of the old instance.

use crate::Ground;
use crate::support::{Outcome, address, answers, ensure, stack_counter};
use sluice_client::{Instance, NewInstance};
use sluice_lab::{Lab, Options, Paths, VmState};
use std::time::Duration;

/// The gateway whose agent stops. Its packet programs go on with the tables that they have.
const GATEWAY: &str = "gw-b";
const BACK: Duration = Duration::from_secs(10);
/// Exit code of a wait whose time is over.
const TIMED_OUT: i32 = 5;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = Lab::up(Options::standard(&ground.name, &ground.binary)?).await?;
    let old = lab.add_vm("old", "web", "front", "host-b").await?;
    for target in old.addresses() {
        answers(&lab, "web-1", target, &[]).await?;
    }
    lab.kill(GATEWAY).await?;

    let (binary, api) = (ground.binary.display().to_string(), lab.api().url().to_owned());
    let token = Paths::new(&ground.name)?.token();
    let mut delete = tokio::process::Command::new(&binary);
    delete.args(["instances", "delete", "old", "--vpc", "web", "--wait", "1", "--api", &api, "--token-file"]);
    let output = delete.arg(&token).output().await?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(TIMED_OUT), "the wait ended with {}: {text}", output.status);
    ensure!(text.contains(&format!("(`{GATEWAY}`) is not connected")), "{GATEWAY} is not named: {text}");
    ensure!(text.matches("(`").count() == 1, "other nodes are named: {text}");
    let pending = lab.api().removals(None).await?;
    ensure!(pending.len() == 1 && pending[0].name == "old", "pending removals: {pending:?}");
    let revision = pending[0].revision;

    let wanted = wanted(&lab, &old)?;
    let vpc = lab.vpc("web")?.id;
    let error = lab.api().create(vpc, &wanted).await.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(
        error.contains("held") && error.contains("instance `old`"),
        "the address was given away: {error}"
    );

    lab.restart(GATEWAY)?;
    lab.synchronized(GATEWAY, BACK).await?;
    lab.api().wait_removed("the old instance", revision, BACK).await?;
    lab.api().create(vpc, &wanted).await?;
    // The instance exists: this adds its VM.
    let new = lab.add_vm("new", "web", "front", "host-a").await?;
    ensure!(new.addresses() == old.addresses(), "{:?} instead of {:?}", new.addresses(), old.addresses());
    let before = echoes(&lab).await?;
    for from in ["web-1", "web-3"] {
        for target in new.addresses() {
            answers(&lab, from, target, &[]).await?;
        }
    }
    let after = echoes(&lab).await?;
    ensure!(before == after, "the old VM got packets: echo requests {before:?}, then {after:?}");
    lab.api().delete::<Instance>(new.id, None).await?;
    Ok(())
}

/// A request for an instance with the addresses of the old one: VMs derive their IPv6 addresses from their MACs.
fn wanted(lab: &Lab, old: &VmState) -> Result<NewInstance, crate::support::Failure> {
    let subnet = lab.vpc("web")?.subnets["front"];
    let host = lab.node("host-a")?.id.parse()?;
    ensure!(address(old, false)?.is_ipv4() && address(old, true)?.is_ipv6(), "a family is missing");
    Ok(NewInstance {
        name: "new".into(),
        subnet,
        host,
        mac: Some(old.mac),
        ipv4: old.ipv4,
        ipv6: None,
        security_groups: Some(Vec::new()),
        settings: Default::default(),
    })
}

/// Echo requests that the old VM got, of both families.
async fn echoes(lab: &Lab) -> Result<[u64; 2], crate::support::Failure> {
    Ok([stack_counter(lab, "old", "IcmpInEchos").await?, stack_counter(lab, "old", "Icmp6InEchos").await?])
}
