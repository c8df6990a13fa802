//! The hosts from which this one accepts packets directly. A gateway permits each one, by RSP, before it gives it a
//! path to this host, and renews the permit while the path is in use (`crates/gateway/src/permits.rs`). This file
//! changes with the time and the number of permits.

use std::time::Duration;

use sluice_agent::error_chain;
use sluice_rsp::PermitEntry;
use sluice_tables::{Error, NodeTables, PERMIT_STEP};

/// How long packets of a sender are accepted after its last permit: longer than it can use its paths
/// (`api/rsp.md`).
const PERMIT_LINGER: Duration = Duration::from_secs(105);
/// Most permits. Further ones are not confirmed, so their senders get no paths to this host.
pub const SENDERS_MAX: usize = 65_536;

/// Accepts the packets of these senders. Returns the entries that were written.
pub fn permit(tables: &mut NodeTables, mut entries: Vec<PermitEntry>) -> Vec<PermitEntry> {
    entries.retain(|entry| {
        let has_space = tables.senders() < SENDERS_MAX || tables.is_sender(entry.vni.get(), entry.host);
        let written = has_space.then(|| tables.permit_sender(entry.vni, entry.host));
        if let Some(Err(error)) = &written {
            tracing::debug!(?entry, error = error_chain(error), "permit refused");
        }
        matches!(written, Some(Ok(())))
    });
    entries
}

/// Refuses packets of senders whose permits are over.
///
/// # Errors
/// [`Error::Grace`].
pub fn remove_expired(tables: &mut NodeTables) -> Result<usize, Error> {
    tables.remove_idle_senders(PERMIT_LINGER + PERMIT_STEP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_tables::{Immediate, Memory, Role, Sizes};
    use sluice_types::Vni;
    use std::net::IpAddr;

    fn host(number: u32) -> IpAddr {
        IpAddr::from((number + (10 << 24)).to_be_bytes())
    }

    #[test]
    fn permits_are_for_known_hosts_and_limited() {
        let memory = Memory::anonymous(1 << 16).unwrap();
        let mut tables = NodeTables::create(memory, Immediate, Sizes::default()).unwrap();
        let gateway: IpAddr = "192.0.2.11".parse().unwrap();
        tables.upsert_vtep(gateway, Role::Gateway).unwrap();
        tables.upsert_vtep(host(0), Role::Host).unwrap();
        let entry = |number, host| PermitEntry { vni: Vni::new(number).unwrap(), host };
        let asked = vec![entry(1, host(0)), entry(1, gateway), entry(1, host(1)), entry(2, host(0))];
        assert_eq!(permit(&mut tables, asked), [entry(1, host(0)), entry(2, host(0))]);
        assert!(
            tables.is_sender(1, host(0)) && !tables.is_sender(1, host(1)) && !tables.is_sender(1, gateway)
        );
        for number in 3..=SENDERS_MAX as u32 {
            assert_eq!(permit(&mut tables, vec![entry(number, host(0))]).len(), 1);
        }
        let more = vec![entry(SENDERS_MAX as u32 + 1, host(0)), entry(1, host(0))];
        assert_eq!(permit(&mut tables, more), [entry(1, host(0))], "a known one can be renewed");
        assert_eq!((remove_expired(&mut tables).unwrap(), tables.senders()), (0, SENDERS_MAX));
        // A node that becomes a gateway is no longer a permitted host.
        tables.upsert_vtep(host(0), Role::Gateway).unwrap();
        assert!(!tables.is_sender(1, host(0)));
    }
}
