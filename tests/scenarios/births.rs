//! The controller programs gateways, and of the hosts only the one that an instance is on (Achelous section 4.1): when an instance
//! comes into a VPC, hosts that have others of that VPC get nothing, whether or not their policies name its security groups. There is one
//! exception: the first instance of the VPC with a set of security groups gets an identity that hosts do not know yet, and hosts
//! whose policies name one of the groups get these policies again. Under `preprogrammed` every host with the VPC gets a path.
//!
//! Catches: entries of an instance that go to all hosts of its VPC; policies that are sent with each member of a group.

use crate::Ground;
use crate::support::{Failure, Outcome, ensure, ensure_timely, eventually};
use sluice_client::{DEFAULT_GROUP, Instance, NewInstance, NewSecurityGroup, SecurityGroup};
use sluice_lab::{Lab, Options, down};
use sluice_types::SecurityGroupId;
use std::time::{Duration, Instant};

const TOLD: Duration = Duration::from_secs(10);
/// From when an instance is programmed until what other hosts get of it has come.
const LATER: Duration = Duration::from_millis(700);
/// The hosts, which all have instances of the VPC. The first one gets the new instances; the last one has the other underlay.
const HOSTS: [&str; 3] = ["host-a", "host-b", "host-c"];
const VPC: &str = "shop";
/// How often a host that gets nothing else gets the number of the newest revision, which is a step without entries.
const NUMBERED: Duration = Duration::from_secs(10);

pub async fn scenario(ground: &Ground) -> Outcome {
    for model in ["zeta", "achelous", "preprogrammed"] {
        println!("    model {model}");
        let name = format!("{}{}", ground.name, &model[..1]);
        let outcome = under(ground, &name, model).await;
        down(&name).await?;
        outcome?;
    }
    Ok(())
}

async fn under(ground: &Ground, name: &str, model: &str) -> Outcome {
    let mut options = Options::standard(name, &ground.binary)?;
    options.model = Some(model.to_owned());
    for vm in options.topology.vms.iter_mut().filter(|vm| vm.vpc == VPC) {
        vm.security_groups = vec![DEFAULT_GROUP.to_owned()];
    }
    let lab = Lab::up(options).await?;
    let vpc = lab.vpc(VPC)?.id;
    let groups = lab.api().list::<SecurityGroup>(&[("vpc", &vpc.to_string())], None).await?;
    let default = groups.iter().find(|group| group.name == DEFAULT_GROUP).map(|group| group.id);
    let default = default.ok_or_else(|| Failure::new(format!("{VPC} has no group `{DEFAULT_GROUP}`")))?;
    let new = NewSecurityGroup { name: "further".to_owned(), description: None };
    let further = lab.api().create(vpc, &new).await?.object.id;
    for host in HOSTS {
        lab.synchronized(host, TOLD).await?;
    }
    are_quiet(&lab).await?;
    if model == "preprogrammed" {
        return others_get_paths(&lab).await;
    }
    for (name, groups) in [("alone", vec![]), ("member", vec![default]), ("second", vec![default])] {
        concerns_one_host(&lab, name, groups).await?;
    }
    let both = vec![default, further];
    policies_come_once(&lab, both.clone()).await?;
    concerns_one_host(&lab, "next-of-set", both).await
}

/// What a host has got from the controller.
#[derive(Clone, Copy, Debug)]
struct Received {
    entries: f64,
    steps: f64,
}

async fn received(lab: &Lab) -> Result<[Received; 3], Failure> {
    let mut all = [Received { entries: 0.0, steps: 0.0 }; 3];
    for (of_host, host) in all.iter_mut().zip(HOSTS) {
        let metrics = lab.metrics(host).await?;
        let (entries, steps) = ("sluice_update_entries_total", "sluice_update_steps_total");
        *of_host = Received { entries: metrics.sum(entries, &[]), steps: metrics.sum(steps, &[]) };
        ensure!(of_host.entries > 0.0 && of_host.steps > 0.0, "{host} has got nothing at all");
    }
    Ok(all)
}

/// Waits until hosts get no more entries of what was made before.
async fn are_quiet(lab: &Lab) -> Outcome {
    eventually(TOLD, || async {
        let before = received(lab).await?;
        tokio::time::sleep(LATER).await;
        let after = received(lab).await?;
        let is_quiet = before.iter().zip(&after).all(|(before, after)| before.entries == after.entries);
        ensure!(is_quiet, "hosts still get entries: {before:?}, {after:?}");
        Ok(())
    })
    .await
}

/// Creates an instance on the first host. Returns what the hosts had got before, after it is programmed and the others have had time.
async fn bear(lab: &Lab, name: &str, groups: Vec<SecurityGroupId>) -> Result<[Received; 3], Failure> {
    let before = received(lab).await?;
    let vpc = lab.vpc(VPC)?;
    let subnet = vpc.subnets.get("front").ok_or_else(|| Failure::new("no subnet `front`"))?;
    let new = NewInstance {
        name: name.to_owned(),
        subnet: *subnet,
        host: lab.node(HOSTS[0])?.id.parse()?,
        mac: None,
        ipv4: None,
        ipv6: None,
        security_groups: Some(groups),
        settings: Default::default(),
    };
    let made = lab.api().create(vpc.id, &new).await?.object;
    lab.api().wait_programmed::<Instance>(made.id, TOLD).await?;
    tokio::time::sleep(LATER).await;
    Ok(before)
}

/// An instance comes, of which the other hosts hear nothing.
async fn concerns_one_host(lab: &Lab, name: &str, groups: Vec<SecurityGroupId>) -> Outcome {
    let began = Instant::now();
    let before = bear(lab, name, groups).await?;
    let after = received(lab).await?;
    let numbers = 1.0 + (began.elapsed().as_secs_f64() / NUMBERED.as_secs_f64()).floor();
    ensure!(after[0].entries > before[0].entries, "{} got nothing of {name}: {after:?}", HOSTS[0]);
    for (host, (before, after)) in HOSTS.iter().zip(before.iter().zip(&after)).skip(1) {
        let entries = after.entries - before.entries;
        ensure!(entries == 0.0, "{host} got {entries} entries when {name} came to {}", HOSTS[0]);
        let steps = after.steps - before.steps;
        ensure_timely!(steps <= numbers, "{host} got {steps} steps when {name} came to {}", HOSTS[0]);
    }
    Ok(())
}

/// The first instance with a set of groups, one of which is named by the policies of all hosts: each gets one policy.
async fn policies_come_once(lab: &Lab, groups: Vec<SecurityGroupId>) -> Outcome {
    let before = bear(lab, "first-of-set", groups).await?;
    let after = received(lab).await?;
    for (host, (before, after)) in HOSTS.iter().zip(before.iter().zip(&after)).skip(1) {
        let entries = after.entries - before.entries;
        ensure!(entries == 1.0, "{host} got {entries} entries of a new set of groups, not one policy");
    }
    Ok(())
}

/// Under `preprogrammed` the host with an underlay of the same family gets the paths to the instance's addresses.
async fn others_get_paths(lab: &Lab) -> Outcome {
    let before = bear(lab, "everywhere", Vec::new()).await?;
    eventually(TOLD, || async {
        let more = received(lab).await?[1].entries - before[1].entries;
        ensure!(more >= 2.0, "{} got {more} entries, not the paths to two addresses", HOSTS[1]);
        Ok(())
    })
    .await
}
