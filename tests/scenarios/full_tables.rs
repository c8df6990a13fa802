//! Instances are created until the tables of a gateway are full. The API refuses the next one and names the table.
//! Everything that it accepted is programmed, and after a deletion there is space again.
//!
//! Catches: an accepted instance that a gateway cannot write, because a table holds less than its gateway reports or
//! because the API does not count what it accepted after the report; a refusal long before the tables are full; space
//! that is not reported again.

use crate::Ground;
use crate::support::{Failure, Outcome, ensure, eventually, is_tables_full};
use futures::{StreamExt, TryStreamExt, stream};
use sluice_client::{Error, Instance, NewInstance, NewSubnet, NewVpc, NodeTable, Subnet, Vpc};
use sluice_lab::{Lab, Options};
use sluice_types::{HostId, SubnetId, VpcId};
use std::time::Duration;

/// The gateway with small tables. The other one has larger tables.
const SMALL: &str = "gw-a";
const MIB: u32 = 1;
/// Cells of its tables.
const CELLS: u64 = (MIB as u64) << 14;
const PATIENCE: Duration = Duration::from_secs(30);
/// Sizes of the bulks with which the tables are filled.
const BULKS: [usize; 4] = [400, 40, 4, 1];
const DELETED: usize = 300;
/// API calls in progress at the same time.
const PARALLEL: usize = 8;

pub async fn scenario(ground: &Ground) -> Outcome {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    let small = options.topology.gateways.iter_mut().find(|gateway| gateway.name == SMALL);
    small.ok_or_else(|| Failure::new(format!("no {SMALL}")))?.table_memory_mib = Some(MIB);
    let lab = Lab::up(options).await?;
    let mut filler = Filler::new(&lab).await?;
    let refusal = filler.fill().await?;
    filler.check_refusal(&refusal).await?;
    filler.check_all().await?;
    let before = filler.created;
    ensure!(2 * before as u64 > CELLS / 2, "the tables of {CELLS} cells were full with {before} instances");

    filler.delete().await?;
    filler.check_all().await?;
    filler.fill().await?;
    let again = filler.created - before;
    ensure!(again >= DELETED - 2, "{DELETED} instances were deleted, and there was space for {again}");
    filler.check_all().await
}

/// A VPC whose instances have no ports.
struct Filler<'a> {
    lab: &'a Lab,
    vpc: VpcId,
    subnet: SubnetId,
    host: HostId,
    /// Number of instances that were created, also of those that were deleted.
    created: usize,
    deleted: usize,
}

impl<'a> Filler<'a> {
    async fn new(lab: &'a Lab) -> Result<Self, Failure> {
        let like = lab.api().get::<Vpc>(lab.vpc("web")?.id).await?;
        let name = "filler".to_owned();
        let (tenant, cluster) = (like.tenant, Some(like.cluster));
        let vpc =
            NewVpc { name, tenant, cluster, vni: None, mtu: None, offload_kbps: None, internet_meter: None };
        let vpc = lab.api().create((), &vpc).await?.object.id;
        let (ipv4, ipv6) = (Some("10.64.0.0/16".parse()?), Some("fd00:64::/64".parse()?));
        let subnet = NewSubnet { name: "filler".into(), ipv4, ipv6, ipv6_mode: None, dns: Vec::new() };
        let subnet: Subnet = lab.api().create(vpc, &subnet).await?.object;
        let host = lab.node("host-b")?.id.parse()?;
        Ok(Self { lab, vpc, subnet: subnet.id, host, created: 0, deleted: 0 })
    }

    /// Creates instances, or returns the error of the API.
    async fn create(&mut self, count: usize) -> Result<(), Error> {
        let new = (self.created..self.created + count).map(|number| NewInstance {
            name: format!("one-{number}"),
            subnet: self.subnet,
            host: self.host,
            mac: None,
            ipv4: None,
            ipv6: None,
            security_groups: Some(Vec::new()),
            settings: Default::default(),
        });
        self.lab.api().create_instances(self.vpc, &new.collect::<Vec<_>>()).await?;
        self.created += count;
        Ok(())
    }

    /// Creates instances in smaller and smaller bulks until a single one is refused, although the gateway has reported
    /// everything before. Returns the refusal.
    async fn fill(&mut self) -> Result<Error, Failure> {
        for _ in 0..10 {
            self.reported().await?;
            let before = self.created;
            let mut refusal = None;
            for size in BULKS {
                refusal = loop {
                    match self.create(size).await {
                        Ok(()) => self.check_writes().await?,
                        Err(error) if is_tables_full(&error) => break Some(error),
                        Err(error) => return Err(error.into()),
                    }
                };
            }
            if let Some(refusal) = refusal.filter(|_| self.created == before) {
                return Ok(refusal);
            }
        }
        Err(Failure::new("there was space again after each report"))
    }

    /// Waits until the gateway has all entries and has reported how full its tables are then.
    async fn reported(&self) -> Outcome {
        self.lab.synchronized(SMALL, PATIENCE).await?;
        // It reports once a second.
        tokio::time::sleep(Duration::from_millis(2_200)).await;
        Ok(())
    }

    /// How full the tables of the gateway are, as the API shows it.
    async fn tables(&self) -> Result<Vec<NodeTable>, Failure> {
        let id = &self.lab.node(SMALL)?.id;
        let node = self.lab.api().nodes().await?.into_iter().find(|node| node.node == *id);
        Ok(node.map(|node| node.tables).unwrap_or_default())
    }

    async fn check_refusal(&self, refusal: &Error) -> Outcome {
        let Error::Refused { problem, .. } = refusal else {
            return Err(Failure::new(format!("no refusal: {refusal}")));
        };
        let detail = problem.detail.clone().unwrap_or_default();
        let id = &self.lab.node(SMALL)?.id;
        let expected = format!("table `entries_with_ipv6` of {id} has ");
        ensure!(problem.status == 507 && detail.contains(&expected), "refused with {detail}");
        for NodeTable { table, used, capacity } in self.tables().await? {
            let metrics = self.lab.metrics(SMALL).await?;
            // The numbers for NAT addresses are not in the tables.
            let shown = match table.as_str() {
                "nat_addresses" => metrics.sum("sluice_nat_addresses_total", &[]),
                _ => metrics.sum("sluice_table_capacity", &[("table", &table)]),
            };
            ensure!(
                shown == capacity as f64,
                "capacity of {table}: {shown} in the metrics, {capacity} in the API"
            );
            let is_full = table == "entries_with_ipv6";
            ensure!(!is_full || (used..used + 3).contains(&capacity), "{table}: {used} of {capacity}");
        }
        Ok(())
    }

    /// Everything that was accepted is programmed, and no node misses anything.
    async fn check_all(&self) -> Outcome {
        let vpc = self.vpc.to_string();
        eventually(PATIENCE, async || {
            let all = self.lab.api().list::<Instance>(&[("vpc", &vpc)], None).await?;
            let missing: Vec<_> =
                all.iter().filter(|one| !one.programmed || !one.failures.is_empty()).collect();
            let count = missing.len();
            ensure!(count == 0, "{count} of {} are not programmed, such as {:?}", all.len(), missing[0]);
            for node in self.lab.api().nodes().await? {
                ensure!(node.failures.is_empty(), "{}: {:?}", node.node, node.failures);
            }
            Ok(())
        })
        .await?;
        self.check_writes().await
    }

    /// The gateway could write all entries so far.
    async fn check_writes(&self) -> Outcome {
        let failures = self.lab.metrics(SMALL).await?.sum("sluice_update_failures_total", &[]);
        let (created, deleted) = (self.created, self.deleted);
        ensure!(
            failures == 0.0,
            "{SMALL} could not write {failures} entries of {created} - {deleted} instances"
        );
        Ok(())
    }

    /// Deletes some instances.
    async fn delete(&mut self) -> Outcome {
        let vpc = self.vpc.to_string();
        let some = self.lab.api().list::<Instance>(&[("vpc", &vpc)], Some(DELETED)).await?;
        let delete = some.into_iter().map(|one| self.lab.api().delete::<Instance>(one.id, None));
        stream::iter(delete).buffer_unordered(PARALLEL).try_collect::<Vec<_>>().await?;
        self.deleted += DELETED;
        Ok(())
    }
}
