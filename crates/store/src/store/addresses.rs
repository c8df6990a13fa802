//! The calls about what instances have besides their addresses and security groups.

use super::{RETRIES, Store};
use crate::backend::is_retryable;
use crate::ops::{claims, further};
use crate::write::Write;
use crate::*;
use sluice_types::{HostId, InstanceId, PortSettings};
use std::net::IpAddr;
use std::time::{Duration, Instant};

impl Store {
    /// Changes what an instance has besides its addresses and security groups.
    pub async fn update_instance(
        &self,
        id: InstanceId,
        settings: &PortSettings,
        expected: Option<u64>,
    ) -> Result<Instance> {
        write!(self, w => further::update(w, id, settings, expected))
    }

    /// Records that an instance has announced an address that it may have in turn with others: it holds the
    /// address from now on, unless another instance announced it later. `host` reported it. Claims that are refused, and
    /// those of holders, do not wait for other writes.
    ///
    /// # Errors
    /// [`Conflict::ClaimRefused`] if the instance is on another host or does not list the address;
    /// [`StoreError::NotFound`] if it does not exist.
    pub async fn claim_address(
        &self,
        host: HostId,
        id: InstanceId,
        address: IpAddr,
        announced: Instant,
    ) -> Result<Claim> {
        if claims::claimant(&mut self.reader(), host, id, address).await?.is_none() {
            return Ok(Claim::Held);
        }
        write!(self, w => claims::claim(w, host, id, address, announced))
    }
}
