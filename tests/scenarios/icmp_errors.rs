//! A hop limit that ends at the gateway is answered by the VPC's router.

use crate::Ground;
use crate::support::{Outcome, address, answers, drops, ensure, eventually, ping};
use std::time::Duration;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    for (from, to) in [("web-1", "db-2"), ("db-2", "web-3")] {
        let vni = lab.vm(from)?.vni;
        let own = (&lab.vm(from)?.vpc, lab.state().topology.vms.iter().find(|vm| vm.name == from));
        let subnet = own.1.and_then(|vm| lab.state().topology.subnet(own.0, &vm.subnet)).cloned();
        for ipv6 in [false, true] {
            let target = address(lab.vm(to)?, ipv6)?;
            let prefix = subnet.as_ref().and_then(|subnet| {
                if ipv6 { subnet.ipv6.map(Into::into) } else { subnet.ipv4.map(Into::into) }
            });
            let router = prefix.and_then(|prefix| sluice_types::first_host(&prefix));
            let router = router.map(|router| router.to_string()).unwrap_or_default();
            let before = drops(lab, vni, "ttl_exceeded").await?;
            eventually(Duration::from_secs(2), async || {
                let one = ping(lab, from, target, &["-c", "2", "-i", "0.2", "-t", "1", "-W", "1"]).await?;
                let said = one.text.to_lowercase();
                ensure!(
                    one.received == 0
                        && said.contains(&format!("from {router}"))
                        && said.contains("exceeded"),
                    "{from} -> {target} with hop limit 1: {router} did not answer: {}",
                    one.text
                );
                Ok(())
            })
            .await?;
            eventually(Duration::from_secs(2), async || {
                let more = drops(lab, vni, "ttl_exceeded").await? - before;
                ensure!(more >= 2.0, "{more} of 2 packets counted as ttl_exceeded");
                Ok(())
            })
            .await?;
            answers(lab, from, target, &["-t", "2"]).await?;
        }
    }
    Ok(())
}
