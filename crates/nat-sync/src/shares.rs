//! Which gateway of a cluster gives out which ports. Gateways that do not reach each other may own the same vIP for a while;
//! they give out different ports.

use sluice_types::GatewayId;
use std::net::Ipv4Addr;

/// splitmix64. Part of the agreement between gateways, so it never changes.
const fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The gateway that may give out ports of a block: the first of the cluster's `members` in the order of a hash (rendezvous
/// hashing). `block` is the number of the block within its public address. If a member leaves, only its blocks get another
/// gateway; if one is added, it gets blocks of all others. `None` if there are no members.
#[must_use]
pub fn block_share(members: &[GatewayId], public: Ipv4Addr, block: u16) -> Option<GatewayId> {
    let key = mix(u64::from(u32::from(public)) << 16 | u64::from(block));
    members.iter().copied().max_by_key(|member| (mix(key ^ mix(member.get())), member.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLIC: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
    const BLOCKS: u16 = 1008;

    fn shares(ids: &[u64]) -> Vec<GatewayId> {
        let members: Vec<_> = ids.iter().copied().map(GatewayId::new).collect();
        (0..BLOCKS).map(|block| block_share(&members, PUBLIC, block).unwrap()).collect()
    }

    #[test]
    fn shares_are_even_and_do_not_depend_on_the_order_of_members() {
        let all = shares(&[1, 2, 3, 4]);
        assert_eq!(all, shares(&[4, 2, 1, 3]));
        for id in 1..=4 {
            let blocks = all.iter().filter(|owner| owner.get() == id).count();
            assert!((200..=304).contains(&blocks), "gateway {id} has {blocks} of {BLOCKS} blocks");
        }
        let elsewhere = block_share(&[1, 2].map(GatewayId::new), Ipv4Addr::new(203, 0, 113, 6), 0);
        assert!(elsewhere.is_some());
        assert_eq!(block_share(&[], PUBLIC, 0), None);
    }

    #[test]
    fn only_blocks_of_a_gateway_that_comes_or_goes_change() {
        let (three, four) = (shares(&[1, 2, 3]), shares(&[1, 2, 3, 4]));
        for (before, after) in three.iter().zip(&four) {
            assert!(before == after || after.get() == 4, "{before} before, {after} after");
        }
    }

    /// Gateways of two releases must agree.
    #[test]
    fn shares_never_change() {
        let first: Vec<u64> = shares(&[1, 2, 3]).iter().take(24).map(|id| id.get()).collect();
        assert_eq!(first, [1, 3, 3, 3, 1, 3, 3, 3, 1, 3, 1, 3, 3, 1, 1, 1, 3, 1, 2, 2, 2, 1, 2, 3]);
    }
}
