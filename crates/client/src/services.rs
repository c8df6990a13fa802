//! Services, their members and their mounts: the objects of the API, the requests that create them, and the calls of members.

use crate::model::resource;
use crate::new::{difference, difference_if_given};
use crate::{Client, EntryFailure, NewObject, Removal, Result};
use serde::{Deserialize, Serialize};
use sluice_types::{
    HostId, InstanceId, MacAddr, MemberId, MemberStatus, MountId, SecurityGroupId, ServiceId, SubnetId,
    TenantId, VpcId,
};
use std::net::{Ipv4Addr, Ipv6Addr};

/// A service: VPCs that mount it reach its members by one address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// Identifier, such as `svc-7`.
    pub id: ServiceId,
    /// Name, unique in the VPC.
    pub name: String,
    /// VPC whose instances are its members.
    pub vpc: VpcId,
    /// VPCs of all tenants may mount it.
    pub allow_all_tenants: bool,
    /// Tenants whose VPCs may mount it, besides that of its own VPC.
    pub allow_tenants: Vec<TenantId>,
    /// Revision of the last change: the ETag of the object.
    pub revision: u64,
    /// True: nodes need only its mounts.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

resource!(Service, ServiceId, "services", "service", ", or say --vpc", true, |it| it.name.clone());

/// A mount: addresses of a VPC that belong to all members of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mount {
    /// Identifier, such as `mount-7`.
    pub id: MountId,
    /// Name, unique in the VPC.
    pub name: String,
    /// VPC that reaches the service by it.
    pub vpc: VpcId,
    /// Subnet of the addresses.
    pub subnet: SubnetId,
    /// The service.
    pub service: ServiceId,
    /// IPv4 address, if the subnet has an IPv4 prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address, if the subnet has an IPv6 prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Addr>,
    /// Revision of the last change: the ETag of the object.
    pub revision: u64,
    /// True if every node that needs the object has programmed this revision.
    pub programmed: bool,
    /// Entries of the object that nodes could not write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EntryFailure>,
}

resource!(Mount, MountId, "mounts", "mount", ", or say --vpc", true, |it| it.name.clone());

/// A member of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceMember {
    /// Identifier, such as `member-7`.
    pub id: MemberId,
    /// The instance.
    pub instance: InstanceId,
    /// Name of the instance.
    pub name: String,
    /// Host of the instance.
    pub host: HostId,
    /// Number in the service.
    pub number: u8,
    /// MAC address of its vNICs.
    pub mac: MacAddr,
    /// Whether it works.
    pub status: MemberStatus,
    /// New flows go to other members.
    pub draining: bool,
    /// What was measured when the status changed.
    pub evidence: String,
    /// When the status changed, in milliseconds of the UNIX epoch.
    pub since_ms: u64,
    /// Revision of the last change.
    pub revision: u64,
}

/// The port of a member in the VPC of a mount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Vnic {
    /// Identifier, by which an interface of the host is attached.
    pub id: InstanceId,
    /// The instance that is the member.
    pub member: InstanceId,
    /// Name of that instance.
    pub name: String,
    /// Host of that instance.
    pub host: HostId,
    /// Status of the member.
    pub status: MemberStatus,
    /// New flows go to other members.
    pub draining: bool,
    /// True if the host and the gateways have programmed it.
    pub programmed: bool,
}

/// A new service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NewService {
    /// Name, unique in the VPC.
    pub name: String,
    /// VPCs of all tenants may mount it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_all_tenants: Option<bool>,
    /// Tenants whose VPCs may mount it, besides that of its own VPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_tenants: Option<Vec<TenantId>>,
}

impl NewObject for NewService {
    type Object = Service;
    type Parent = VpcId;
    fn path(vpc: VpcId) -> String {
        format!("/v1/vpcs/{vpc}/services")
    }
    fn name(&self) -> String {
        self.name.clone()
    }
    fn difference(&self, found: &Service) -> Option<String> {
        let all = Some(&found.allow_all_tenants);
        difference_if_given("allow_all_tenants", self.allow_all_tenants.as_ref(), all).or_else(|| {
            let mut tenants = self.allow_tenants.clone()?;
            tenants.sort();
            tenants.dedup();
            difference("allow_tenants", &tenants, &found.allow_tenants)
        })
    }
}

/// A new mount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewMount {
    /// Name, unique in the VPC.
    pub name: String,
    /// The service.
    pub service: ServiceId,
    /// Subnet of the addresses.
    pub subnet: SubnetId,
    /// IPv4 address; `None`: the lowest free one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address; `None`: the lowest free one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Addr>,
    /// Security groups of the vNICs; `None`: the group `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_groups: Option<Vec<SecurityGroupId>>,
}

impl NewObject for NewMount {
    type Object = Mount;
    type Parent = VpcId;
    fn path(vpc: VpcId) -> String {
        format!("/v1/vpcs/{vpc}/mounts")
    }
    fn name(&self) -> String {
        self.name.clone()
    }
    /// The API does not show the security groups of a mount, so they are not compared here.
    fn difference(&self, found: &Mount) -> Option<String> {
        difference("service", &self.service, &found.service)
            .or_else(|| difference("subnet", &self.subnet, &found.subnet))
            .or_else(|| difference_if_given("ipv4", self.ipv4.as_ref(), found.ipv4.as_ref()))
            .or_else(|| difference_if_given("ipv6", self.ipv6.as_ref(), found.ipv6.as_ref()))
    }
}

#[derive(Deserialize)]
struct Items<T> {
    items: Vec<T>,
}

fn members_path(service: ServiceId) -> String {
    format!("/v1/services/{service}/members")
}

impl Client {
    /// The members of a service, in order of their addition.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn members(&self, service: ServiceId) -> Result<Vec<ServiceMember>> {
        let found: Items<_> = self.get_at("list members", &members_path(service)).await?;
        Ok(found.items)
    }

    /// Makes an instance a member of a service, or finds that it is one.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn add_member(&self, service: ServiceId, instance: InstanceId) -> Result<ServiceMember> {
        let action = format!("add member {instance}");
        let body = serde_json::json!({"instance": instance});
        Ok(self.post(&action, &members_path(service), &body).await?.1)
    }

    /// Drains a member of a service, or gives it new flows again.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn drain_member(
        &self,
        service: ServiceId,
        instance: InstanceId,
        draining: bool,
    ) -> Result<ServiceMember> {
        let action = format!("drain member {instance}");
        let body = serde_json::json!({"draining": draining});
        self.patch(&action, &format!("{}/{instance}", members_path(service)), &body).await
    }

    /// Removes a member of a service and its vNICs.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn remove_member(&self, service: ServiceId, instance: InstanceId) -> Result<Removal> {
        let action = format!("remove member {instance}");
        self.delete_at(&action, &format!("{}/{instance}", members_path(service))).await
    }

    /// The vNICs of a mount, one for each member of its service.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn vnics(&self, mount: MountId) -> Result<Vec<Vnic>> {
        let found: Items<_> = self.get_at("list vNICs", &format!("/v1/mounts/{mount}/vnics")).await?;
        Ok(found.items)
    }
}
