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

/// Blocks of a group: an instance takes its blocks from few groups, and each gateway must have some of them.
pub const SHARE_BLOCKS: u16 = 16;

/// The gateway that may give out ports of a block: of the cluster's different `members` in the order of a hash of public address and
/// group (rendezvous hashing), the one at the block's number in its group, round robin. `block` is the number of the block within its
/// public address. `None` if there are no members.
///
/// Of each run of `k` blocks in a group, each of `n` members has `k / n`, or one more. So it does not matter that the first blocks of an
/// address cannot be used, which have ports below 1024. With more members than usable blocks in a group, some have none of it: 16,
/// and 15 if blocks have 4096 ports, of which an address has only one group. If a member comes or goes, most blocks get another gateway.
#[must_use]
pub fn block_share(members: &[GatewayId], public: Ipv4Addr, block: u16) -> Option<GatewayId> {
    let key = mix(u64::from(u32::from(public)) << 16 | u64::from(block / SHARE_BLOCKS));
    let mut order: Vec<_> = members.iter().map(|member| (mix(key ^ mix(member.get())), *member)).collect();
    let turn = usize::from(block % SHARE_BLOCKS).checked_rem(order.len())?;
    Some(order.select_nth_unstable(turn).1.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLIC: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
    const BLOCKS: u16 = 1024;

    fn shares(ids: &[u64]) -> Vec<GatewayId> {
        let members: Vec<_> = ids.iter().copied().map(GatewayId::new).collect();
        (0..BLOCKS).map(|block| block_share(&members, PUBLIC, block).unwrap()).collect()
    }

    #[test]
    fn each_member_has_its_part_of_each_group() {
        // The first blocks of the first group cannot be used: none, 1 of 4096 ports, 2 of 512, 8 of 128.
        for (members, unusable) in
            (1..=20).flat_map(|members| [0, 1, 2, 8].map(|unusable| (members, unusable)))
        {
            let ids: Vec<u64> = (1..=members).collect();
            for (number, group) in shares(&ids).chunks(SHARE_BLOCKS.into()).enumerate() {
                let usable = &group[if number == 0 { unusable } else { 0 }..];
                let least = usable.len() / ids.len();
                for id in &ids {
                    let blocks = usable.iter().filter(|owner| owner.get() == *id).count();
                    assert!((least..=least + 1).contains(&blocks), "{blocks} blocks of {usable:?} for {id}");
                }
            }
        }
    }

    #[test]
    fn shares_do_not_depend_on_the_order_of_members() {
        let all = shares(&[1, 2, 3, 4]);
        assert_eq!(all, shares(&[4, 2, 1, 3]));
        assert_eq!(block_share(&[], PUBLIC, 0), None);
    }

    /// The members that have a block more than others, or that have one at all, differ from group to group.
    #[test]
    fn no_member_is_the_first_one_of_all_groups() {
        let ids: Vec<u64> = (1..=32).collect();
        let all = shares(&ids);
        for id in ids {
            let blocks = all.iter().filter(|owner| owner.get() == id).count();
            assert!((16..=48).contains(&blocks), "gateway {id} has {blocks} of {BLOCKS} blocks");
        }
        let elsewhere = Ipv4Addr::new(203, 0, 113, 6);
        let members = [1, 2, 3].map(GatewayId::new);
        let differs = |block| block_share(&members, PUBLIC, block) != block_share(&members, elsewhere, block);
        assert!((0..BLOCKS).any(differs));
    }

    /// Gateways of two releases must agree.
    #[test]
    fn shares_never_change() {
        let first: Vec<u64> = shares(&[1, 2, 3]).iter().take(40).map(|id| id.get()).collect();
        // The third group begins at block 32.
        let orders = [[3, 2, 1].repeat(6)[..16].to_vec(), [1, 2, 3].repeat(6)[..16].to_vec()];
        assert_eq!(first[..32], orders.concat());
        assert_eq!(first[32..], [2, 1, 3, 2, 1, 3, 2, 1]);
    }
}
