//! The controller's database goes back to an older state: the SQLite file is restored from a backup. VMs newer than
//! the backup keep their traffic, are listed, and are adopted or removed; numbers continue above those in use.

use crate::Ground;
use crate::streams::Streams;
use crate::support::{Failure, Outcome, address, answers, ensure, eventually, never_reaches};
use sluice_client::{
    Client, Instance, NewInstance, NewSubnet, NewTenant, NewVpc, Subnet, UnconfirmedEntry,
    UnconfirmedSelection, Vpc,
};
use sluice_lab::{CONTROLLER, Lab, Options, VmState};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

const PORT: u16 = 7040;
/// The nodes that have entries newer than the backup: the host of the newer instances, and the gateways.
const NEWER_ENTRIES: [&str; 3] = ["host-b", "gw-a", "gw-b"];
const BACK: Duration = Duration::from_secs(60);
/// From the restoration until all nodes have reported: an agent connects again after at most 2 s, and reports within
/// a second after the snapshot.
const REPORTED: Duration = Duration::from_secs(20);

/// How the scenario's database is backed up, and put back.
pub trait Backup {
    async fn back_up(&mut self, lab: &Lab) -> Outcome;
    async fn restore(&mut self, lab: &Lab) -> Outcome;
}

/// The file of the default database.
struct SqliteFile;

fn files(lab: &Lab) -> [(PathBuf, PathBuf); 3] {
    let directory = lab.paths().state_dir(CONTROLLER);
    ["", "-wal", "-shm"]
        .map(|end| (directory.join(format!("sluice.db{end}")), directory.join(format!("backup.db{end}"))))
}

impl Backup for SqliteFile {
    async fn back_up(&mut self, lab: &Lab) -> Outcome {
        lab.stop(CONTROLLER).await?;
        for (file, backup) in files(lab) {
            if file.exists() {
                std::fs::copy(file, backup)?;
            }
        }
        lab.restart(CONTROLLER)?;
        Ok(lab.api().wait_ready(BACK).await?)
    }

    async fn restore(&mut self, lab: &Lab) -> Outcome {
        lab.kill(CONTROLLER).await?;
        for (file, backup) in files(lab) {
            if file.exists() {
                std::fs::remove_file(&file)?;
            }
            if backup.exists() {
                std::fs::rename(backup, file)?;
            }
        }
        lab.restart(CONTROLLER)?;
        Ok(lab.api().wait_ready(BACK).await?)
    }
}

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = Lab::up(Options::standard(&ground.name, &ground.binary)?).await?;
    goes_back(&lab, &mut SqliteFile).await
}

/// What is newer than the backup.
struct Newer {
    kept: VmState,
    doomed: VmState,
    vpc: Vpc,
    subnet: Subnet,
    /// An instance of that VPC, whose port is not attached.
    alone: Instance,
}

pub async fn goes_back(lab: &Lab, database: &mut impl Backup) -> Outcome {
    database.back_up(lab).await?;
    let newer = make_newer(lab).await?;
    let (v4, v6) = (address(&newer.kept, false)?, address(lab.vm("web-1")?, true)?);
    let streams = Streams::to(lab, &[("web-1", "kept", v4), ("kept", "web-1", v6)], PORT, 500).await?;
    answers(lab, "web-1", address(&newer.doomed, false)?, &[]).await?;
    database.restore(lab).await?;
    ensure!(lab.api().get::<Instance>(newer.kept.id).await.is_err(), "the backup is older than the VM");
    listed(lab, &newer).await?;
    events_say_so(lab).await?;
    numbers_continue(lab, &newer).await?;
    address_in_use_is_named(lab, &newer).await?;
    // A new agent finds the same entries.
    for node in ["gw-a", "host-b"] {
        lab.kill(node).await?;
        lab.restart(node)?;
        lab.synchronized(node, BACK).await?;
    }
    listed(lab, &newer).await?;
    answers(lab, "web-1", address(&newer.doomed, false)?, &[]).await?;
    removed(lab, &newer).await?;
    adopted(lab, &newer).await?;
    streams.end().await?;
    nothing_is_left(lab, &newer).await
}

async fn make_newer(lab: &Lab) -> Result<Newer, Failure> {
    let kept = lab.add_vm("kept", "web", "front", "host-b").await?;
    let doomed = lab.add_vm("doomed", "web", "front", "host-b").await?;
    let api = lab.api();
    let tenant = api.get::<Vpc>(lab.vpc("web")?.id).await?.tenant;
    let vpc = api.create((), &new_vpc(tenant, "late", None)).await?.object;
    let subnet = api.create(vpc.id, &new_subnet()).await?.object;
    let host = api.get::<Instance>(kept.id).await?.host;
    let alone = NewInstance {
        name: "alone".into(),
        subnet: subnet.id,
        host,
        mac: None,
        ipv4: None,
        ipv6: None,
        security_groups: Some(Vec::new()),
        settings: Default::default(),
    };
    let alone = api.create(vpc.id, &alone).await?.object;
    let alone = api.wait_programmed::<Instance>(alone.id, BACK).await?;
    Ok(Newer { kept, doomed, vpc, subnet, alone })
}

fn new_vpc(tenant: sluice_types::TenantId, name: &str, vni: Option<sluice_types::Vni>) -> NewVpc {
    NewVpc {
        name: name.into(),
        tenant,
        cluster: None,
        vni,
        mtu: None,
        offload_kbps: None,
        internet_meter: None,
    }
}

fn new_subnet() -> NewSubnet {
    let (ipv4, ipv6) = ("10.77.0.0/24".parse().ok(), "fd10:0:0:77::/64".parse().ok());
    NewSubnet { name: "late".into(), ipv4, ipv6, ipv6_mode: None, dns: Vec::new() }
}

async fn entries(api: &Client) -> Result<Vec<UnconfirmedEntry>, Failure> {
    Ok(api.unconfirmed().await?.items)
}

/// All that is newer is listed, with all nodes that have it, and nothing else.
async fn listed(lab: &Lab, newer: &Newer) -> Outcome {
    let check = || async {
        let found = entries(lab.api()).await?;
        for (id, addresses) in [
            (newer.kept.id, newer.kept.addresses()),
            (newer.doomed.id, newer.doomed.addresses()),
            (
                newer.alone.id,
                newer
                    .alone
                    .ipv4
                    .map(Into::into)
                    .into_iter()
                    .chain(newer.alone.ipv6.map(Into::into))
                    .collect(),
            ),
        ] {
            let entry = found.iter().find(|entry| entry.instance == Some(id));
            let entry = entry.ok_or_else(|| Failure::new(format!("{id} is not listed: {found:?}")))?;
            ensure!(entry.addresses == addresses, "{entry:?} has not the addresses {addresses:?}");
            ensure!(entry.nodes == NEWER_ENTRIES, "{entry:?}");
        }
        let networks: Vec<_> = found.iter().filter(|entry| entry.kind == "network").collect();
        ensure!(networks.len() == 1 && networks[0].vni == Some(newer.vpc.vni), "{networks:?}");
        let routes =
            found.iter().filter(|entry| entry.kind == "route" && entry.vni == Some(newer.vpc.vni)).count();
        ensure!(routes == 2 && found.len() == 6, "{} entries, {routes} routes: {found:?}", found.len());
        Ok(())
    };
    eventually(REPORTED, check).await
}

async fn events_say_so(lab: &Lab) -> Outcome {
    let events = lab.api().events(None, None, 1000).await?;
    let forked = events.iter().filter(|event| event.kind == "history_forked").count();
    ensure!(forked == 1, "{forked} events say that numbers jumped");
    for (name, node) in &lab.state().nodes {
        let of_node = |event: &&sluice_client::HappenedEvent| {
            event.kind == "node_of_another_history" && event.subject == node.id
        };
        let count = events.iter().filter(of_node).count();
        // The other hosts have no entry that is newer than the backup. They may have heard of a newer
        // revision.
        let least = usize::from(NEWER_ENTRIES.contains(&name.as_str()));
        ensure!((least..=1).contains(&count), "{count} events about {name}");
    }
    Ok(())
}

/// New objects take no number that a node has.
async fn numbers_continue(lab: &Lab, newer: &Newer) -> Outcome {
    let tenant = lab.api().create((), &NewTenant { name: "after".into() }).await?.object;
    let vpc = lab.api().create((), &new_vpc(tenant.id, "after", None)).await?.object;
    let (id, vni) = (newer.alone.id.get(), newer.vpc.vni);
    ensure!(
        tenant.id.get() > id && vpc.id.get() > id && vpc.vni > vni,
        "{vpc:?}: {id} and VNI {vni} are in use"
    );
    ensure!(vpc.revision > newer.alone.revision, "revision {} was taken twice", vpc.revision);
    lab.api().wait_programmed::<Vpc>(vpc.id, BACK).await?;
    Ok(())
}

/// An instance with the address of one that the database lost is not programmed and names the nodes that refuse it. The
/// others stay programmed.
async fn address_in_use_is_named(lab: &Lab, newer: &Newer) -> Outcome {
    let api = lab.api();
    let vpc = lab.vpc("web")?.id;
    let web_1 = api.get::<Instance>(lab.vm("web-1")?.id).await?;
    let new = NewInstance {
        name: "second".into(),
        subnet: web_1.subnet,
        host: web_1.host,
        mac: None,
        ipv4: newer.doomed.ipv4,
        ipv6: None,
        security_groups: Some(Vec::new()),
        settings: Default::default(),
    };
    let second = api.create(vpc, &new).await?.object;
    let named = || async {
        let second = api.get::<Instance>(second.id).await?;
        let nodes: BTreeSet<_> = second.failures.iter().map(|failure| failure.node.clone()).collect();
        let gateways = lab.state().nodes.iter().filter(|(name, _)| name.starts_with("gw-"));
        let gateways: BTreeSet<_> = gateways.map(|(_, node)| node.id.to_string()).collect();
        ensure!(!second.programmed && nodes == gateways, "{second:?}");
        let reason = "adopt or remove it first";
        ensure!(second.failures.iter().all(|failure| failure.reason.contains(reason)), "{second:?}");
        Ok(())
    };
    eventually(REPORTED, named).await?;
    ensure!(api.get::<Instance>(web_1.id).await?.programmed, "another instance is not programmed any more");
    // A node that is away during a deletion would list what was deleted as unconfirmed.
    let removal = api.delete::<Instance>(second.id, None).await?;
    api.wait_removed("the second instance", removal.revision, BACK).await?;
    Ok(())
}

async fn removed(lab: &Lab, newer: &Newer) -> Outcome {
    let selection = UnconfirmedSelection { instance: Some(newer.doomed.id), ..Default::default() };
    let removal = lab.api().remove_unconfirmed(&selection).await?;
    ensure!(removal.nodes.len() == 3 && removal.entries == 5, "{removal:?}");
    let gone = || async {
        let found = entries(lab.api()).await?;
        ensure!(found.iter().all(|entry| entry.instance != Some(newer.doomed.id)), "still listed: {found:?}");
        Ok(())
    };
    eventually(REPORTED, gone).await?;
    never_reaches(lab, "web-1", address(&newer.doomed, false)?).await
}

async fn adopted(lab: &Lab, newer: &Newer) -> Outcome {
    let api = lab.api();
    let kept = api.adopt_unconfirmed(newer.kept.id, None, Some(&[])).await?;
    let same = (kept.id, kept.mac, kept.ipv4, kept.ipv6, kept.name.as_str());
    let VmState { id, mac, ipv4, ipv6, .. } = newer.kept;
    ensure!(same == (id, mac, ipv4, ipv6, "kept"), "{kept:?}");
    api.wait_programmed::<Instance>(kept.id, BACK).await?;
    // The network must exist first: it is created with its VNI.
    let error = api.adopt_unconfirmed(newer.alone.id, None, Some(&[])).await;
    ensure!(error.is_err(), "an instance of a network that does not exist was adopted");
    let vpc = api.create((), &new_vpc(newer.vpc.tenant, "late", Some(newer.vpc.vni))).await?.object;
    api.create(vpc.id, &new_subnet()).await?;
    let alone = api.adopt_unconfirmed(newer.alone.id, None, Some(&[])).await?;
    ensure!(
        (alone.mac, alone.ipv4, alone.ipv6) == (newer.alone.mac, newer.alone.ipv4, newer.alone.ipv6),
        "{alone:?}"
    );
    ensure!(alone.subnet != newer.subnet.id, "the subnet has a new id");
    api.wait_programmed::<Instance>(alone.id, BACK).await?;
    Ok(())
}

/// The list is empty, and nodes that connect again are of the database's history.
async fn nothing_is_left(lab: &Lab, newer: &Newer) -> Outcome {
    let empty = || async {
        let list = lab.api().unconfirmed().await?;
        ensure!(list.items.is_empty() && list.totals.is_empty(), "{list:?}");
        Ok(())
    };
    eventually(REPORTED, empty).await?;
    for node in ["gw-a", "host-b"] {
        lab.kill(node).await?;
        lab.restart(node)?;
        lab.synchronized(node, BACK).await?;
    }
    lab.kill(CONTROLLER).await?;
    lab.restart(CONTROLLER)?;
    lab.api().wait_ready(BACK).await?;
    for node in lab.state().nodes.keys() {
        lab.synchronized(node, BACK).await?;
    }
    events_say_so(lab).await?;
    eventually(REPORTED, empty).await?;
    answers(lab, "web-1", address(&newer.kept, true)?, &[]).await
}
