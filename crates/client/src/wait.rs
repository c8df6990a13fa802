//! Waiting until the API is ready, objects are programmed or a plan has ended, by polling.

use crate::references::{End, resolve};
use crate::{
    Client, CloudFile, Cluster, Eip, Error, Gateway, Host, Instance, Meter, Migration, NatGateway, Peering,
    PlanSummary, PortForward, Removal, Resource, Result, Route, RouteTable, SecurityGroup, SecurityRule,
    Subnet, Tenant, Vpc,
};
use sluice_types::{MigrationStatus, VpcId};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The first pause between two polls is short, so that programming that takes milliseconds is seen at once.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// Instead of a timeout whose end no clock can show: a year.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// The end of a wait. Several calls can share one deadline.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
    /// Length of the whole wait, for error texts.
    timeout: Duration,
}

impl Deadline {
    /// The deadline of a wait that begins now.
    pub fn after(timeout: Duration) -> Self {
        let now = Instant::now();
        Self { at: now.checked_add(timeout).unwrap_or(now + LONGEST_WAIT), timeout }
    }
}

impl From<Duration> for Deadline {
    fn from(timeout: Duration) -> Self {
        Self::after(timeout)
    }
}

/// How a wait for a migration ended.
#[derive(Clone, Debug, PartialEq)]
pub enum MigrationEnd {
    /// The instance is on the target host.
    Migrated(Box<Instance>),
    /// The migration fails, for this reason. It has not ended: an operator cancels it, or removes the cause.
    Failed(String),
    /// It was canceled, or the instance was moved to another host.
    Canceled(Box<Instance>),
}

/// Pauses between polls, which grow from [`FIRST_PAUSE`] to [`LONGEST_PAUSE`], until a deadline.
struct Backoff {
    deadline: Deadline,
    pause: Duration,
}

impl Backoff {
    fn new(deadline: Deadline) -> Self {
        Self { deadline, pause: FIRST_PAUSE }
    }

    /// Pauses; returns false at the deadline.
    async fn pause(&mut self) -> bool {
        let left = self.deadline.at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        tokio::time::sleep(self.pause.min(left)).await;
        self.pause = (self.pause * 3 / 2).min(LONGEST_PAUSE);
        true
    }
}

impl Client {
    /// Waits until the API responds and its database is writable.
    ///
    /// # Errors
    /// The last transient error at the timeout; any other error at once.
    pub async fn wait_ready(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let mut backoff = Backoff::new(deadline.into());
        loop {
            match self.ready().await {
                Ok(()) => return Ok(()),
                Err(error) if !error.is_transient() || !backoff.pause().await => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Waits until every node that needs the object has programmed it; returns its state at that time.
    ///
    /// # Errors
    /// [`Error::NotProgrammed`] with the nodes that lag behind. Errors that are not transient end the wait at
    /// once.
    pub async fn wait_programmed<T: Resource>(&self, id: T::Id, deadline: impl Into<Deadline>) -> Result<T> {
        self.wait_until(id, deadline, |_| true).await
    }

    /// Waits until the object is programmed and `is_done`; returns its state at that time.
    ///
    /// # Errors
    /// The errors of [`Client::wait_programmed`], and [`Error::NotComplete`] if the object is not `is_done` at
    /// the deadline.
    pub async fn wait_until<T: Resource>(
        &self,
        id: T::Id,
        deadline: impl Into<Deadline>,
        is_done: impl Fn(&T) -> bool,
    ) -> Result<T> {
        let deadline = deadline.into();
        let mut backoff = Backoff::new(deadline);
        loop {
            let last = match self.get::<T>(id).await {
                Ok(object) if object.programmed() && is_done(&object) => return Ok(object),
                Ok(object) => Ok((is_done(&object), object)),
                Err(error) if error.is_transient() => Err(error),
                Err(error) => return Err(error),
            };
            if !backoff.pause().await {
                let (is_done, object) = last?;
                let (what, waited) = (format!("{} {id}", T::NOUN), deadline.timeout);
                if !is_done {
                    return Err(Error::NotComplete { what, waited });
                }
                let (behind, failures) =
                    (self.nodes_behind(object.revision()).await, object.failures().to_vec());
                return Err(Error::NotProgrammed { what, waited, behind, failures });
            }
        }
    }

    /// Waits until the instance of a migration, which belongs to this VPC, is on the target host, or until the migration fails
    /// or was canceled. `changed` is called with each change of its phase.
    ///
    /// # Errors
    /// [`Error::NotComplete`] at the deadline. Errors that are not transient end the wait at once.
    pub async fn wait_migrated(
        &self,
        vpc: VpcId,
        migration: &Migration,
        deadline: impl Into<Deadline>,
        mut changed: impl FnMut(&Migration),
    ) -> Result<MigrationEnd> {
        let deadline = deadline.into();
        let mut backoff = Backoff::new(deadline);
        let (id, mut phase) = (migration.instance, None);
        loop {
            match self.migration(vpc, id).await {
                Ok(now) if now.id == migration.id => {
                    if phase != Some(now.phase) {
                        changed(&now);
                        phase = Some(now.phase);
                    }
                    if now.phase == MigrationStatus::Failed {
                        return Ok(MigrationEnd::Failed(now.problem));
                    }
                }
                Err(error) if error.is_transient() => {}
                Err(error) if !error.is_not_found() => return Err(error),
                // It has no migration, or another one.
                Ok(_) | Err(_) => {
                    let instance = Box::new(self.get::<Instance>(id).await?);
                    let is_there = instance.host == migration.host;
                    let end = if is_there { MigrationEnd::Migrated } else { MigrationEnd::Canceled };
                    return Ok(end(instance));
                }
            }
            if !backoff.pause().await {
                let what = format!("the host of instance {id}");
                return Err(Error::NotComplete { what, waited: deadline.timeout });
            }
        }
    }

    /// Waits until no node has entries of the object that was deleted at this revision. `what` is its kind and id, for
    /// the error.
    ///
    /// # Errors
    /// [`Error::NotRemoved`] with the nodes that may still have entries. Errors that are not transient end the wait at
    /// once.
    pub async fn wait_removed(
        &self,
        what: &str,
        revision: u64,
        deadline: impl Into<Deadline>,
    ) -> Result<Removal> {
        let deadline = deadline.into();
        let mut backoff = Backoff::new(deadline);
        loop {
            let last = match self.removal(revision).await {
                Ok(removal) if removal.removed => return Ok(removal),
                Err(error) if !error.is_transient() => return Err(error),
                last => last,
            };
            if !backoff.pause().await {
                let waiting = last?.waiting.iter().map(|node| node.reason(revision)).collect();
                return Err(Error::NotRemoved { what: what.to_owned(), waited: deadline.timeout, waiting });
            }
        }
    }

    /// Waits until all objects that match the filters are programmed.
    ///
    /// # Errors
    /// The errors of [`Client::wait_programmed`].
    pub async fn wait_all_programmed<T: Resource>(
        &self,
        filters: &[(&str, &str)],
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let deadline = deadline.into();
        for object in self.list::<T>(filters, None).await? {
            if !object.programmed() {
                match self.wait_programmed::<T>(object.id(), deadline).await {
                    // It was deleted since it was listed.
                    Err(error) if error.is_not_found() => {}
                    waited => drop(waited?),
                }
            }
        }
        Ok(())
    }

    /// Waits until all objects in the VPCs of a cloud file are programmed, the EIPs and meters of its tenants, the peerings of
    /// all VPCs that it names, and all clusters, gateways and hosts of the cloud.
    ///
    /// # Errors
    /// The errors of [`Client::wait_programmed`] and [`Client::find`].
    pub async fn wait_cloud_programmed(
        &self,
        cloud: &CloudFile,
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let deadline = deadline.into();
        self.wait_all_programmed::<Cluster>(&[], deadline).await?;
        self.wait_all_programmed::<Gateway>(&[], deadline).await?;
        self.wait_all_programmed::<Host>(&[], deadline).await?;
        let mut tenants: BTreeSet<&str> = cloud.eips.iter().map(|eip| &*eip.tenant).collect();
        tenants.extend(cloud.meters.iter().map(|meter| &*meter.tenant));
        for spec in &cloud.vpcs {
            tenants.insert(&spec.tenant);
            let tenant = self.id_of::<Tenant>(&spec.tenant, &[]).await?.to_string();
            let vpc = self.id_of::<Vpc>(&spec.name, &[("tenant", &tenant)]).await?;
            self.wait_vpc_programmed(vpc, deadline).await?;
        }
        for end in resolve(self, cloud).await?.ends.into_iter().flatten() {
            if let End::InCloud(vpc) = end {
                self.wait_all_programmed::<Peering>(&[("vpc", &vpc.to_string())], deadline).await?;
            }
        }
        for tenant in tenants {
            let tenant = self.id_of::<Tenant>(tenant, &[]).await?.to_string();
            self.wait_all_programmed::<Meter>(&[("tenant", &tenant)], deadline).await?;
            self.wait_all_programmed::<Eip>(&[("tenant", &tenant)], deadline).await?;
        }
        Ok(())
    }

    /// Waits until the VPC, all objects in it and its peerings are programmed.
    async fn wait_vpc_programmed(&self, vpc: VpcId, deadline: Deadline) -> Result<()> {
        self.wait_programmed::<Vpc>(vpc, deadline).await?;
        let vpc = vpc.to_string();
        let within = [("vpc", vpc.as_str())];
        self.wait_all_programmed::<Subnet>(&within, deadline).await?;
        self.wait_all_programmed::<SecurityGroup>(&within, deadline).await?;
        self.wait_all_programmed::<SecurityRule>(&within, deadline).await?;
        self.wait_all_programmed::<Instance>(&within, deadline).await?;
        for table in self.list::<RouteTable>(&within, None).await? {
            self.wait_all_programmed::<Route>(&[("table", &table.id.to_string())], deadline).await?;
        }
        self.wait_all_programmed::<Peering>(&within, deadline).await?;
        self.wait_all_programmed::<NatGateway>(&within, deadline).await?;
        self.wait_all_programmed::<PortForward>(&within, deadline).await
    }

    /// Waits until a placement plan is done or stopped; returns its progress at that time or at the deadline.
    ///
    /// # Errors
    /// The last transient error at the deadline; any other error at once.
    pub async fn wait_plan(&self, id: u64, deadline: impl Into<Deadline>) -> Result<PlanSummary> {
        let mut backoff = Backoff::new(deadline.into());
        loop {
            let last = match self.plan(id).await {
                Ok(plan) if plan.progress.state != "applying" => return Ok(plan.progress),
                Ok(plan) => Ok(plan.progress),
                Err(error) if error.is_transient() => Err(error),
                Err(error) => return Err(error),
            };
            if !backoff.pause().await {
                return last;
            }
        }
    }

    /// Names of the nodes that have not acknowledged the revision. This is only for an error text: if the
    /// nodes cannot be listed, the text names none.
    async fn nodes_behind(&self, revision: u64) -> Vec<String> {
        let nodes = self.nodes().await.unwrap_or_default();
        nodes
            .into_iter()
            .filter(|node| node.acknowledged_revision < revision)
            .map(|node| node.name.unwrap_or(node.node))
            .collect()
    }
}
