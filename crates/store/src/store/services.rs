//! The calls about services, their members and their mounts.

use super::{RETRIES, Store};
use crate::backend::is_retryable;
use crate::ops::{members, mounts, services};
use crate::rows::{get, page};
use crate::write::Write;
use crate::*;
use sluice_types::{HostId, InstanceId, MountId, ServiceId, VpcId};
use std::time::Duration;

impl Store {
    pub async fn create_service(&self, new: NewService) -> Result<Created<Service>> {
        write!(self, w => services::create(w, &new))
    }

    pub async fn service(&self, id: ServiceId) -> Result<Service> {
        get(&mut self.reader(), id).await
    }

    pub async fn services(&self, vpc: Option<VpcId>, name: Option<&str>, at: Page) -> Result<Vec<Service>> {
        let filters = vec![("vpc", vpc.map(|v| v.get().into())), ("name", name.map(Into::into))];
        page(&mut self.reader(), filters, at).await
    }

    /// Changes which tenants may mount a service. A tenant that has a mount keeps its permission.
    pub async fn update_service(
        &self,
        id: ServiceId,
        new: ServiceUpdate,
        expected: Option<u64>,
    ) -> Result<Service> {
        write!(self, w => services::update(w, id, &new, expected))
    }

    /// Deletes a service without members and mounts.
    pub async fn delete_service(&self, id: ServiceId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => services::delete(w, id, expected))
    }

    /// Makes an instance of the VPC of a service a member, which gets a vNIC for each mount of the service.
    pub async fn add_member(
        &self,
        service: ServiceId,
        instance: InstanceId,
    ) -> Result<Created<StoredMember>> {
        write!(self, w => members::add(w, service, instance))
    }

    /// The members of a service, in order of id.
    pub async fn members(&self, service: ServiceId) -> Result<Vec<StoredMember>> {
        members::of_service(&mut self.reader(), service).await
    }

    /// The member of a service that an instance is.
    pub async fn member(&self, service: ServiceId, instance: InstanceId) -> Result<StoredMember> {
        members::of_instance(&mut self.reader(), service, instance).await
    }

    /// The memberships of instances.
    pub async fn members_of_instances(&self, instances: &[InstanceId]) -> Result<Vec<StoredMember>> {
        members::of_instances(&mut self.reader(), instances).await
    }

    /// The members on hosts.
    pub async fn members_on_hosts(&self, hosts: &[HostId]) -> Result<Vec<StoredMember>> {
        members::on_hosts(&mut self.reader(), hosts).await
    }

    /// Sets whether new flows go to other members than this one.
    pub async fn drain_member(
        &self,
        service: ServiceId,
        instance: InstanceId,
        draining: bool,
    ) -> Result<StoredMember> {
        write!(self, w => members::drain(w, service, instance, draining))
    }

    /// Removes a member and its vNICs.
    pub async fn remove_member(&self, service: ServiceId, instance: InstanceId) -> Result<u64> {
        write!(self, w => members::remove(w, service, instance))
    }

    /// Records what hosts and gateways have found of members, in one revision. Returns those whose status has changed.
    pub async fn set_member_states(&self, reports: &[MemberReport]) -> Result<Vec<StoredMember>> {
        write!(self, w => members::set_states(w, reports))
    }

    /// Creates a mount, with the lowest free addresses if none are given, and a vNIC for each member of the service.
    pub async fn create_mount(&self, new: NewMount) -> Result<Created<Mount>> {
        write!(self, w => mounts::create(w, &new, self.max_identity))
    }

    pub async fn mount(&self, id: MountId) -> Result<Mount> {
        get(&mut self.reader(), id).await
    }

    pub async fn mounts(&self, filter: &MountFilter, at: Page) -> Result<Vec<Mount>> {
        page(&mut self.reader(), mounts::filters(filter), at).await
    }

    /// The vNICs of a mount, in order of id.
    pub async fn vnics(&self, mount: MountId) -> Result<Vec<Vnic>> {
        mounts::vnics(&mut self.reader(), "mount", mount.get()).await
    }

    /// The vNICs on a host, in order of id.
    pub async fn vnics_of_host(&self, host: HostId) -> Result<Vec<Vnic>> {
        mounts::vnics(&mut self.reader(), "host", host.get()).await
    }

    /// Deletes a mount and its vNICs. Nothing gets its addresses until all nodes have removed them.
    pub async fn delete_mount(&self, id: MountId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => mounts::delete(w, id, expected))
    }
}
