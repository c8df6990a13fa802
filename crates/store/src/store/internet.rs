//! The calls about public pools and EIPs.

use super::{RETRIES, Store};
use crate::backend::is_retryable;
use crate::ops::{eips, public_pools};
use crate::rows::{get, page};
use crate::write::Write;
use crate::*;
use sluice_types::{ClusterId, EipId, PublicPoolId};
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

    /// Changes name or prefixes of a pool. A prefix in which EIPs are stays.
    pub async fn update_public_pool(
        &self,
        id: PublicPoolId,
        new: PublicPoolUpdate,
        expected: Option<u64>,
    ) -> Result<PublicPool> {
        write!(self, w => public_pools::update(w, id, &new, expected))
    }

    /// Deletes a pool of which there is no EIP.
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

    /// Renames, attaches, moves or detaches an EIP.
    pub async fn update_eip(&self, id: EipId, new: EipUpdate, expected: Option<u64>) -> Result<Eip> {
        write!(self, w => eips::update(w, id, &new, expected))
    }

    /// Deletes an EIP, attached or not. Nothing gets its addresses until the gateways of its cluster have removed them.
    pub async fn delete_eip(&self, id: EipId, expected: Option<u64>) -> Result<u64> {
        write!(self, w => eips::delete(w, id, expected))
    }
}
