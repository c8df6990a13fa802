//! What the cluster, the copies of sessions, the shares of ports and the ring of first packets tell each other. This file changes
//! when one of them gets another such input.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use sluice_agent::TableWriter;
use sluice_agent::rsp::Keys;
use sluice_agent::underlay::Vteps;
use sluice_agent::{Error, error_chain};
use sluice_cluster::Contacts;
use sluice_nat_sync::{SHARE_BLOCKS, block_share};
use sluice_tables::layout::NAT_GROUP_BLOCKS;
use sluice_types::GatewayId;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::nat::SharedNat;
use crate::nat::sync::{NatSync, NatUnits};
use crate::ownership::{ClusterView, Ownership};
use crate::role::GatewayRole;

/// Time until a place in the ring is tried again that could not be set: the tables may get the next gateway's VTEP later than the
/// cluster gets the gateway.
const RING_RETRY: Duration = Duration::from_secs(1);

// An instance takes its blocks from groups that all gateways share.
const _: () = assert!(SHARE_BLOCKS as u32 == NAT_GROUP_BLOCKS);

/// What source NAT of this gateway consists of, and what changes from outside the cluster protocol.
pub struct NatInputs {
    /// The NAT tables and their copies; `None` on a gateway that translates nothing.
    pub nat: Option<(SharedNat, Arc<NatSync>)>,
    /// The cluster's keys.
    pub keys: watch::Receiver<Arc<Keys>>,
    /// The NAT gateways of the tables.
    pub units: watch::Receiver<Option<NatUnits>>,
}

/// A place in the ring of the first packets of sessions: the own position, and the next gateway's with its VTEP.
type RingPlace = (u8, Option<(u8, IpAddr)>);

/// Passes on what changes, as long as it can.
///
/// # Errors
/// [`Error::WriterGone`] when one of the senders was dropped, as they are when the agent ends.
pub async fn follow_cluster(
    (own, vteps): (GatewayId, Vteps),
    ownership: &Ownership,
    writer: &TableWriter<GatewayRole>,
    inputs: NatInputs,
) -> Result<(), Error> {
    let NatInputs { nat, keys, units } = inputs;
    let (nat, sync) = nat.map_or((None, None), |(nat, sync)| (Some(nat), Some(sync)));
    // The writer may have much to do. Meanwhile, copies that become incomplete must be reported.
    tokio::select! {
        ended = follow_copies(ownership, sync.as_deref(), keys, units) => ended,
        ended = follow_members((own, vteps), ownership, writer, nat, sync.as_deref()) => ended,
    }
}

/// Passes the keys and NAT gateways on to the copies, and to the cluster whether these are complete.
async fn follow_copies(
    ownership: &Ownership,
    sync: Option<&NatSync>,
    mut keys: watch::Receiver<Arc<Keys>>,
    mut units: watch::Receiver<Option<NatUnits>>,
) -> Result<(), Error> {
    let (_never, unchanged) = watch::channel(false);
    let mut complete = sync.map_or(unchanged, NatSync::complete);
    keys.mark_changed();
    units.mark_changed();
    loop {
        let is_over = tokio::select! {
            changed = keys.changed() => {
                let keys = keys.borrow_and_update().cluster_protocol().clone();
                sync.into_iter().for_each(|sync| sync.set_keys(keys.clone()));
                changed.is_err()
            }
            changed = units.changed() => {
                let units = units.borrow_and_update().clone();
                match (units, sync) {
                    (Some(units), Some(sync)) => sync.set_units(units),
                    // Without NAT gateways there is nothing to copy.
                    (Some(units), None) => ownership.set_copies(units.is_empty()),
                    (None, _) => {}
                }
                changed.is_err()
            }
            changed = complete.changed() => {
                ownership.set_copies(*complete.borrow_and_update());
                changed.is_err()
            }
        };
        if is_over {
            return Err(Error::WriterGone);
        }
    }
}

/// Passes on which gateways there are and which of them answer: to the copies, the ring and the shares of ports.
async fn follow_members(
    (own, vteps): (GatewayId, Vteps),
    ownership: &Ownership,
    writer: &TableWriter<GatewayRole>,
    nat: Option<SharedNat>,
    sync: Option<&NatSync>,
) -> Result<(), Error> {
    let mut view = ownership.view();
    view.mark_changed();
    let (mut is_placed, mut shares, mut known) = (true, PortShares::default(), Contacts::default());
    // A gateway that does not translate has no place.
    let place = |view: &ClusterView| nat.as_ref().and_then(|_| ring_place(own, vteps, view));
    loop {
        let is_over = tokio::select! {
            changed = view.changed() => {
                let view = view.borrow_and_update().clone();
                sync.into_iter().for_each(|sync| sync.set_view(without_gains(&view, &known)));
                is_placed = set_place(writer, place(&view)).await?;
                if let Some(nat) = &nat
                    && let Some(changed) = shares.follow(&view)
                {
                    shares = changed;
                    share_ports(nat, own, shares.clone()).await?;
                }
                known = view.contacts.clone();
                sync.into_iter().for_each(|sync| sync.set_view(view.clone()));
                changed.is_err()
            }
            () = sleep(RING_RETRY), if !is_placed => {
                let place = place(&view.borrow());
                is_placed = set_place(writer, place).await?;
                false
            }
        };
        if is_over {
            return Err(Error::WriterGone);
        }
    }
}

/// The view as long as the ring is that of the contacts before. What was lost counts at once; a gateway that answers again does
/// when the ring has it: a pass to it that began before would lack sessions.
fn without_gains(view: &ClusterView, before: &Contacts) -> ClusterView {
    let mut view = view.clone();
    let contacts = &mut view.contacts;
    let (mutual, gained) = contacts.mutual.iter().copied().partition(|id| before.mutual.contains(id));
    contacts.mutual = mutual;
    let is_cut_off = |id: &GatewayId| before.cut_off.contains(id);
    contacts.cut_off.extend(Vec::into_iter(gained).filter(is_cut_off));
    view
}

/// By which members blocks of ports are shared out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PortShares {
    /// As this gateway knows them now.
    members: Vec<GatewayId>,
    /// The last ones that all of them knew.
    agreed: Vec<GatewayId>,
}

impl PortShares {
    /// The shares by this view, if they are others than these.
    fn follow(&self, view: &ClusterView) -> Option<Self> {
        let members = view.members();
        let agreed = if view.contacts.all_follow { &members } else { &self.agreed };
        let shares = Self { agreed: agreed.clone(), members };
        (shares != *self).then_some(shares)
    }

    /// Whether a gateway gives out the ports of a block. One that is no member gives out all. What another one has lost to it, only when all members
    /// know that: otherwise two owners in a split network could give out one port.
    fn is_of(&self, own: GatewayId, address: Ipv4Addr, block: u16) -> bool {
        let has = |members: &[GatewayId]| {
            !members.contains(&own) || block_share(members, address, block) == Some(own)
        };
        has(&self.members) && has(&self.agreed)
    }
}

/// Makes this gateway give out the ports of its share of all blocks.
async fn share_ports(nat: &SharedNat, own: GatewayId, shares: PortShares) -> Result<(), Error> {
    let nat = nat.clone();
    let are_copied = shares.members.len() > 1;
    let is_own = move |address, block| shares.is_of(own, address, block);
    // With many addresses and members, it takes some time.
    let set = tokio::task::spawn_blocking(move || nat.share_ports(are_copied, is_own)).await;
    set.map_err(|error| Error::io("share out ports")(error.into()))
}

/// The place of gateway `own` in the ring; `None` if it is no member of the cluster. The next gateway is the first one after it
/// that packets reach and that installs sessions.
fn ring_place(own: GatewayId, vteps: Vteps, view: &ClusterView) -> Option<RingPlace> {
    let (members, plan) = (view.members(), view.plan.as_ref()?);
    let number = |id: &GatewayId| members.iter().position(|member| member == id);
    let own = number(&own)?;
    let after = members.iter().cycle().skip(own + 1).take(members.len() - 1);
    let mut reached = after.filter(|member| view.contacts.ring.contains(member));
    let next = reached.find_map(|member| Some((number(member)? as u8, plan.member_address(*member, vteps)?)));
    Some((own as u8, next))
}

/// Writes the place into the tables. Returns false if they refuse it.
async fn set_place(writer: &TableWriter<GatewayRole>, place: Option<RingPlace>) -> Result<bool, Error> {
    let set = move |applier: &mut sluice_agent::Applier<GatewayRole>| match place {
        Some((own, next)) => applier.tables.set_nat_ring(own, next).map(drop).or_else(|error| {
            // Sessions begin without the next gateway rather than through one that is gone.
            applier.tables.set_nat_ring(own, None)?;
            Err(error)
        }),
        None => {
            applier.tables.leave_nat_ring();
            Ok(())
        }
    };
    let written = writer.run(set).await?;
    if let Err(error) = &written {
        tracing::warn!(
            ?place,
            error = error_chain(error),
            "cannot pass new sessions on to the next gateway yet"
        );
    }
    Ok(written.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ownership::{GatewayPlan, PlannedMember};
    use sluice_types::ClusterId;

    #[test]
    fn next_gateway_is_the_first_one_that_answers_after_the_own_position() {
        let vtep = |id: u64| Ipv4Addr::new(192, 0, 2, id as u8);
        let member = |id: u64| PlannedMember {
            gateway: GatewayId::new(id),
            vtep4: Some(vtep(id)),
            vtep6: None,
            draining: false,
        };
        let place = |own: u64, ring: &[u64]| {
            let plan = GatewayPlan {
                cluster: ClusterId::new(1),
                revision: 1,
                vips: Vec::new(),
                // Positions are in the order of ids, whatever the order of the plan is.
                members: [7, 2, 5].map(member).to_vec(),
                hello_interval_ms: 4,
            };
            let ring = ring.iter().copied().map(GatewayId::new).collect();
            let contacts = Contacts { ring, ..Contacts::default() };
            let view = ClusterView { plan: Some(plan), contacts, ..ClusterView::default() };
            ring_place(GatewayId::new(own), Vteps { v4: Some(vtep(own)), v6: None }, &view)
        };
        let next = |position: u8, id: u64| Some((position, vtep(id).into()));
        assert_eq!(place(2, &[5, 7]), Some((0, next(1, 5))));
        assert_eq!(place(2, &[7]), Some((0, next(2, 7))));
        assert_eq!(place(7, &[2, 5]), Some((2, next(0, 2))));
        assert_eq!(place(5, &[2]), Some((1, next(0, 2))));
        assert_eq!(place(5, &[]), Some((1, None)));
        assert_eq!(place(9, &[2, 5]), None, "not a member");
        assert_eq!(ring_place(GatewayId::new(2), Vteps::default(), &ClusterView::default()), None);
    }
    #[test]
    fn gateway_that_answers_again_counts_when_the_ring_has_it() {
        let ids = |ids: &[u64]| ids.iter().copied().map(GatewayId::new).collect::<Vec<_>>();
        let contacts = |mutual: &[u64], cut_off: &[u64]| Contacts {
            mutual: ids(mutual),
            cut_off: ids(cut_off),
            ..Contacts::default()
        };
        // 2 was cut off, 3 was dead, 4 answered.
        let view = ClusterView { contacts: contacts(&[2, 3, 5], &[4]), ..ClusterView::default() };
        let reduced = without_gains(&view, &contacts(&[4, 5], &[2])).contacts;
        assert_eq!(reduced, contacts(&[5], &[4, 2]));
        assert_eq!(without_gains(&view, &view.contacts).contacts, view.contacts);
    }

    /// Members that know of a change and those that do not, in each combination, give out different ports; in the end, all of them.
    #[test]
    fn no_block_has_two_gateways_while_members_change() {
        let ids = |numbers: &[u64]| numbers.iter().copied().map(GatewayId::new).collect::<Vec<_>>();
        let public = Ipv4Addr::new(203, 0, 113, 5);
        for (before, after) in [(ids(&[1, 2]), ids(&[1, 2, 3])), (ids(&[1, 2, 3]), ids(&[1, 3]))] {
            let old = PortShares { members: before.clone(), agreed: before.clone() };
            let new = PortShares { members: after.clone(), agreed: before.clone() };
            let all = PortShares { members: after.clone(), agreed: after.clone() };
            let both: Vec<_> = before.iter().filter(|id| after.contains(id)).copied().collect();
            for block in 0..126 {
                // Those that stay know it or not, and when one knows that all do, the others know it at least themselves.
                for states in
                    [[&old, &old], [&old, &new], [&new, &old], [&new, &new], [&new, &all], [&all, &all]]
                {
                    let owners =
                        both.iter().zip(states).filter(|(id, state)| state.is_of(**id, public, block));
                    assert!(owners.count() < 2, "block {block}, {states:?}");
                }
                let owners = after.iter().filter(|id| all.is_of(**id, public, block));
                assert_eq!(owners.count(), 1, "block {block}");
            }
        }
    }
}
