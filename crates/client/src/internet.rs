//! Public pools and EIPs (elastic IP addresses).

use crate::model::{EntryFailure, resource};
use crate::new::difference;
use crate::{NewObject, Resource};
use serde::{Deserialize, Serialize};
use sluice_types::{ClusterId, EipId, InstanceId, IpNet, PublicPoolId, SubnetId, TenantId, VpcId};
use std::net::IpAddr;

/// Public addresses from which tenants get EIPs.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublicPool {
    pub id: PublicPoolId,
    pub name: String,
    pub cluster: ClusterId,
    pub prefixes: Vec<IpNet>,
    pub revision: u64,
    pub programmed: bool,
    #[serde(default)]
    pub failures: Vec<EntryFailure>,
}

/// A public address, or an IPv6 prefix.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Eip {
    pub id: EipId,
    pub name: String,
    pub tenant: TenantId,
    pub pool: PublicPoolId,
    pub address: IpAddr,
    pub prefix_length: u8,
    pub vpc: Option<VpcId>,
    pub instance: Option<InstanceId>,
    pub subnet: Option<SubnetId>,
    pub inside: Option<IpAddr>,
    pub revision: u64,
    pub programmed: bool,
    #[serde(default)]
    pub failures: Vec<EntryFailure>,
}

resource!(PublicPool, PublicPoolId, "public-pools", "public pool", "", true, |it| it.name.clone());
resource!(Eip, EipId, "eips", "EIP", "", true, |it| it.name.clone());

/// A new pool.
#[allow(missing_docs)]
#[derive(Clone, Debug, Serialize)]
pub struct NewPublicPool {
    pub name: String,
    pub cluster: ClusterId,
    pub prefixes: Vec<IpNet>,
}

/// A new EIP.
#[allow(missing_docs)]
#[derive(Clone, Debug, Serialize)]
pub struct NewEip {
    pub name: String,
    pub tenant: TenantId,
    pub pool: PublicPoolId,
    pub address: Option<IpAddr>,
    pub instance: Option<InstanceId>,
}

impl NewObject for NewPublicPool {
    type Object = PublicPool;
    type Parent = ();
    fn path((): ()) -> String {
        "/v1/public-pools".to_owned()
    }
    fn name(&self) -> String {
        self.name.clone()
    }
    fn difference(&self, object: &PublicPool) -> Option<String> {
        difference("cluster", &self.cluster, &object.cluster)
    }
}

impl NewObject for NewEip {
    type Object = Eip;
    type Parent = ();
    fn path((): ()) -> String {
        "/v1/eips".to_owned()
    }
    fn name(&self) -> String {
        self.name.clone()
    }
    fn difference(&self, object: &Eip) -> Option<String> {
        difference("instance", &self.instance, &object.instance)
    }
}
