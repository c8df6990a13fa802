//! Public pools, EIPs, NAT gateways and their port forwards, and meters.

use super::{Applier, Tally};
use crate::references::End;
use crate::{
    CloudFile, Eip, EipSpec, Instance, Meter, MeterSpec, NewEip, NewMeter, NewNatGateway, NewObject,
    NewPortForward, NewPublicPool, PeeringSpec, PortForwardSpec, PublicPool, PublicPoolSpec, Resource,
    Result, Subnet, VpcSpec,
};
use serde_json::{Map, json};
use sluice_types::{MeterId, NatGatewayId, PublicPoolId, TenantId, VpcId};
use std::collections::BTreeMap;

impl Applier<'_> {
    pub(super) async fn public_pool(&mut self, spec: &PublicPoolSpec) -> Result<()> {
        let cluster = self.cluster(&spec.cluster).await?;
        let PublicPoolSpec { name, prefixes, reserved, .. } = spec.clone();
        let body = cluster.map(|cluster| NewPublicPool { name, cluster, prefixes, reserved });
        let id = self.create_or_compare(&spec.name, Some(()), &[], body).await?;
        self.ids.pools.insert(spec.name.clone(), id);
        Ok(())
    }

    /// The EIPs of the file that ask for an address (`is_chosen`), or all others, after everything to which they can be attached.
    /// `vpcs` are the VPCs that the EIPs of the file name.
    pub(super) async fn eips(
        &mut self,
        cloud: &CloudFile,
        vpcs: &[Option<End>],
        is_chosen: bool,
    ) -> Result<()> {
        let all = cloud.eips.iter().zip(vpcs);
        for (spec, vpc) in all.filter(|(spec, _)| spec.address.is_some() == is_chosen) {
            let vpc = match vpc {
                Some(End::InFile(index)) => self.vpc_id(&cloud.vpcs[*index]),
                Some(End::InCloud(id)) => Some(*id),
                None => None,
            };
            self.eip(spec, vpc).await?;
        }
        Ok(())
    }

    async fn eip(&mut self, spec: &EipSpec, vpc: Option<VpcId>) -> Result<()> {
        let tenant = self.tenant(&spec.tenant).await?;
        let pool = self.pool(&spec.pool).await?;
        let instance = self.target::<Instance>(vpc, spec.instance.as_deref()).await?;
        let subnet = self.target::<Subnet>(vpc, spec.subnet.as_deref()).await?;
        let meter = self.meter_of(tenant, spec.meter.as_deref()).await?;
        let of = tenant.map(|tenant| tenant.to_string()).unwrap_or_default();
        let has_target = spec.instance.is_some() || spec.subnet.is_some();
        let target_exists = instance.is_some() && subnet.is_some();
        let body = tenant.zip(pool).zip(meter).map(|((tenant, pool), meter)| NewEip {
            name: spec.name.clone(),
            tenant,
            pool,
            address: spec.address,
            family: spec.family,
            prefix_length: spec.prefix_length,
            nptv6: spec.nptv6,
            instance: instance.flatten(),
            subnet: subnet.flatten(),
            inside: spec.inside,
            meter,
        });
        if let Some(body) = body.as_ref().filter(|_| has_target)
            && self.attach(body, &of).await?
        {
            return Ok(());
        }
        let (parent, body) = (tenant.map(|_| ()), body.filter(|_| target_exists));
        self.create_or_compare(&spec.name, parent, &[("tenant", &of)], body).await.map(drop)
    }

    /// Attaches an EIP that exists, is not attached, and has all else that the file says: the deletion of an instance detaches its
    /// EIPs. Returns false for all others. In a dry run, the instance may not exist yet.
    async fn attach(&mut self, wanted: &NewEip, tenant: &str) -> Result<bool> {
        let NewEip { instance, subnet, inside, .. } = *wanted;
        let Some(eip) = self.client.find_by_name::<Eip>(&wanted.name, &[("tenant", tenant)]).await? else {
            return Ok(false);
        };
        let is_alike = wanted.difference(&Eip { instance, subnet, inside, ..eip.clone() }).is_none();
        if eip.vpc.is_some() || !is_alike {
            return Ok(false);
        }
        if !self.options.dry_run {
            let mut target = Map::new();
            target.extend(instance.map(|id| ("instance".to_owned(), json!(id))));
            target.extend(subnet.map(|id| ("subnet".to_owned(), json!(id))));
            target.extend(inside.map(|address| ("inside".to_owned(), json!(address))));
            self.client.update::<Eip>(eip.id, &target, Some(eip.revision)).await?;
        }
        self.report_step(Eip::NOUN, &wanted.name, Tally { attached: 1, ..Tally::default() }, None);
        Ok(true)
    }

    /// The NAT gateway of a VPC with its port forwards, if the file has one that asks for addresses (`is_chosen`), or one that does
    /// not. After the instances.
    pub(super) async fn nat_gateway(&mut self, vpc: &VpcSpec, is_chosen: bool) -> Result<()> {
        let Some(spec) = vpc.nat_gateway.clone() else { return Ok(()) };
        if spec.addresses.is_some() != is_chosen {
            return Ok(());
        }
        let id = self.vpc_id(vpc);
        let body = id.zip(self.pool(&spec.pool).await?).map(|(vpc, pool)| NewNatGateway {
            name: spec.name.clone(),
            vpc,
            pool,
            addresses: spec.addresses,
            address_count: spec.address_count,
            sessions: spec.sessions,
            blocks: spec.blocks,
            filtering: spec.filtering,
            mapping: spec.mapping,
            nat64_prefix: spec.nat64_prefix,
        });
        let of = id.map(|id| id.to_string()).unwrap_or_default();
        let nat_gateway = self.create_or_compare(&spec.name, id.map(|_| ()), &[("vpc", &of)], body).await?;
        for forward in &spec.port_forwards {
            self.port_forward(forward, id, nat_gateway).await?;
        }
        Ok(())
    }

    async fn port_forward(
        &mut self,
        spec: &PortForwardSpec,
        vpc: Option<VpcId>,
        nat_gateway: Option<NatGatewayId>,
    ) -> Result<()> {
        let instance = self.target::<Instance>(vpc, Some(&spec.instance)).await?.flatten();
        let body = nat_gateway.zip(instance).map(|(nat_gateway, instance)| NewPortForward {
            name: spec.name.clone(),
            nat_gateway,
            protocol: spec.protocol,
            address: spec.address,
            port: spec.port,
            instance,
            inside_port: spec.inside_port,
        });
        let of = nat_gateway.map(|id| id.to_string()).unwrap_or_default();
        let parent = nat_gateway.map(|_| ());
        self.create_or_compare(&spec.name, parent, &[("nat_gateway", &of)], body).await.map(drop)
    }

    pub(super) async fn meter(&mut self, spec: &MeterSpec) -> Result<()> {
        let tenant = self.tenant(&spec.tenant).await?;
        let of = tenant.map(|tenant| tenant.to_string()).unwrap_or_default();
        let MeterSpec { name, in_kbps, in_burst, out_kbps, out_burst, .. } = spec.clone();
        let body = tenant.map(|tenant| NewMeter { name, tenant, in_kbps, in_burst, out_kbps, out_burst });
        let parent = tenant.map(|_| ());
        self.create_or_compare(&spec.name, parent, &[("tenant", &of)], body).await.map(drop)
    }

    /// The meter of an EIP or a VPC of a tenant, if any. The outer `None`: a dry run would create it.
    pub(super) async fn meter_of(
        &self,
        tenant: Option<TenantId>,
        text: Option<&str>,
    ) -> Result<Option<Option<MeterId>>> {
        let Some(text) = text else { return Ok(Some(None)) };
        let Some(tenant) = tenant else { return Ok(None) };
        let found = self.client.id_of::<Meter>(text, &[("tenant", &tenant.to_string())]).await;
        Ok(self.none_if_not_created_yet(found)?.map(Some))
    }

    /// The meters of the sides of a peering. `None`: a dry run would create one of them, or the VPC.
    pub(super) async fn meters_of_peering(
        &self,
        spec: &PeeringSpec,
        tenant: Option<&str>,
        vpcs: [Option<VpcId>; 2],
    ) -> Result<Option<BTreeMap<VpcId, MeterId>>> {
        let mut meters = BTreeMap::new();
        for (name, vpc) in spec.vpcs.iter().zip(vpcs) {
            let (Some(text), Some(tenant)) = (spec.meters.get(name), tenant) else { continue };
            let meter = self.meter_of(self.tenant(tenant).await?, Some(text)).await?.flatten();
            let Some((vpc, meter)) = vpc.zip(meter) else { return Ok(None) };
            meters.insert(vpc, meter);
        }
        Ok(Some(meters))
    }

    /// The id of a pool. `None`: a dry run would create it.
    async fn pool(&self, text: &str) -> Result<Option<PublicPoolId>> {
        match super::known(&self.ids.pools, text) {
            Some(id) => Ok(id),
            None => self.client.id_of::<PublicPool>(text, &[]).await.map(Some),
        }
    }

    /// The object of a VPC to which an EIP is attached or a port is forwarded, if any. The outer `None`: a dry run would create it.
    async fn target<T: Resource>(
        &self,
        vpc: Option<VpcId>,
        text: Option<&str>,
    ) -> Result<Option<Option<T::Id>>> {
        let Some(text) = text else { return Ok(Some(None)) };
        let Some(vpc) = vpc else { return Ok(None) };
        let found = self.client.id_of::<T>(text, &[("vpc", &vpc.to_string())]).await;
        Ok(self.none_if_not_created_yet(found)?.map(Some))
    }
}
