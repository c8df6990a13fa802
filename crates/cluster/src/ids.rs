//! Encoding of identifiers as plain numbers, for `#[serde(with = ...)]`. Elsewhere they are serialized as
//! text with their kind in front.

pub(crate) mod gateway {
    use serde::{Deserialize, Deserializer, Serializer};
    use sluice_types::GatewayId;

    pub fn serialize<S: Serializer>(id: &GatewayId, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(id.get())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<GatewayId, D::Error> {
        u64::deserialize(from).map(GatewayId::new)
    }
}

pub(crate) mod gateways {
    use serde::{Deserialize, Deserializer, Serializer};
    use sluice_types::GatewayId;

    pub fn serialize<S: Serializer>(ids: &[GatewayId], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(ids.iter().map(|id| id.get()))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<GatewayId>, D::Error> {
        Ok(Vec::<u64>::deserialize(from)?.into_iter().map(GatewayId::new).collect())
    }
}

pub(crate) mod cluster {
    use serde::{Deserialize, Deserializer, Serializer};
    use sluice_types::ClusterId;

    pub fn serialize<S: Serializer>(id: &ClusterId, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(id.get())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ClusterId, D::Error> {
        u64::deserialize(from).map(ClusterId::new)
    }
}
