//! The calls about public pools, EIPs, NAT gateways and their port forwards, and meters.

use super::{RETRIES, Store};
use crate::backend::is_retryable;
use crate::ops::{eips, meters, nat_gateways, port_forwards, public_pools};
use crate::rows::{get, page};
use crate::write::Write;
use crate::*;
use sluice_types::{ClusterId, EipId, MeterId, NatGatewayId, PortForwardId, PublicPoolId, TenantId};
use std::time::Duration;

impl Store {
    pub async fn create_public_pool(&self, new: NewPublicPool) -> Result<Created<PublicPool>> {
        write!(self, w => public_pools::create(w, &new))
    }

    pub async fn public_pool(&self, id: PublicPoolId) -> Result<PublicPool> {
        get(&mut self.reader(), id).await
    }

    pub async fn public_pools(
        &self,
        cluster: Option<ClusterId>,
        name: Option<&str>,
        at: Page,
    ) -> Result<Vec<PublicPool>> {
        let filters = vec![("cluster", cluster.map(|c| c.get().into())), ("name", name.map(Into::into))];
        page(&mut self.reader(), filters, at).await
    }

    /// Changes name or prefixes of a pool. A prefix in which EIPs or NAT gateways have addresses stays.
    pub async fn update_public_pool(
        &self,
        id: PublicPoolId,
        new: PublicPoolUpdate,
        expected: Option<u64>,
    ) -> Result<PublicPool> {
        write!(self, w => public_pools::update(w, id, &new, expected))
    }

    /// Deletes a pool of which there is no EIP and no NAT gateway.
    pub async fn delete_public_pool(&self, id: PublicPoolId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => public_pools::delete(w, id, expected))
    }

    /// Creates an EIP, with the lowest free address if none is given, which takes time in
    /// proportion to the EIPs of the pool.
    pub async fn create_eip(&self, new: NewEip) -> Result<Created<Eip>> {
        write!(self, w => eips::create(w, &new))
    }

    pub async fn eip(&self, id: EipId) -> Result<Eip> {
        get(&mut self.reader(), id).await
    }

    pub async fn eips(&self, filter: &EipFilter, at: Page) -> Result<Vec<Eip>> {
        page(&mut self.reader(), eips::filters(filter), at).await
    }

    /// Renames, attaches, moves or detaches an EIP, or changes which meter it has.
    pub async fn update_eip(&self, id: EipId, new: EipUpdate, expected: Option<u64>) -> Result<Eip> {
        write!(self, w => eips::update(w, id, &new, expected))
    }

    /// Deletes an EIP, attached or not. Nothing gets its addresses until the gateways of its cluster have removed them.
    pub async fn delete_eip(&self, id: EipId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => eips::delete(w, id, expected))
    }

    /// Creates the NAT gateway of a VPC, with the lowest free addresses if none are given, which takes time in
    /// proportion to the EIPs and NAT gateways of the pool.
    pub async fn create_nat_gateway(&self, new: NewNatGateway) -> Result<Created<NatGateway>> {
        write!(self, w => nat_gateways::create(w, &new))
    }

    pub async fn nat_gateway(&self, id: NatGatewayId) -> Result<NatGateway> {
        get(&mut self.reader(), id).await
    }

    pub async fn nat_gateways(&self, filter: &NatGatewayFilter, at: Page) -> Result<Vec<NatGateway>> {
        page(&mut self.reader(), nat_gateways::filters(filter), at).await
    }

    /// Changes addresses and limits of a NAT gateway. Nothing gets an address that it loses until the gateways of its
    /// cluster have removed it.
    pub async fn update_nat_gateway(
        &self,
        id: NatGatewayId,
        new: NatGatewayUpdate,
        expected: Option<u64>,
    ) -> Result<NatGateway> {
        write!(self, w => nat_gateways::update(w, id, &new, expected))
    }

    /// Creates a port forward of a NAT gateway.
    pub async fn create_port_forward(&self, new: NewPortForward) -> Result<Created<PortForward>> {
        write!(self, w => port_forwards::create(w, &new))
    }

    pub async fn port_forward(&self, id: PortForwardId) -> Result<PortForward> {
        get(&mut self.reader(), id).await
    }

    pub async fn port_forwards(&self, filter: &PortForwardFilter, at: Page) -> Result<Vec<PortForward>> {
        page(&mut self.reader(), port_forwards::filters(filter), at).await
    }

    pub async fn delete_port_forward(&self, id: PortForwardId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => port_forwards::delete(w, id, expected))
    }

    /// Deletes a NAT gateway that has no port forward. Nothing gets its addresses until the gateways of its cluster have removed them.
    pub async fn delete_nat_gateway(&self, id: NatGatewayId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => nat_gateways::delete(w, id, expected))
    }

    pub async fn create_meter(&self, new: NewMeter) -> Result<Created<Meter>> {
        write!(self, w => meters::create(w, &new))
    }

    pub async fn meter(&self, id: MeterId) -> Result<Meter> {
        get(&mut self.reader(), id).await
    }

    pub async fn meters(&self, tenant: Option<TenantId>, name: Option<&str>, at: Page) -> Result<Vec<Meter>> {
        let filters = vec![("tenant", tenant.map(|id| id.get().into())), ("name", name.map(Into::into))];
        page(&mut self.reader(), filters, at).await
    }

    pub async fn update_meter(&self, id: MeterId, new: MeterUpdate, expected: Option<u64>) -> Result<Meter> {
        write!(self, w => meters::update(w, id, &new, expected))
    }

    /// Deletes a meter that no EIP, no VPC and no peering has.
    pub async fn delete_meter(&self, id: MeterId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => meters::delete(w, id, expected))
    }
}
