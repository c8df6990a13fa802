//! Routes: creation and deletion.

use super::{further, nat_gateways, removals};
use crate::check::{self, Difference};
use crate::rows::{check_revision, find, find_one, get};
use crate::value::args;
use crate::write::Write;
use crate::{
    Change, Conflict, Created, NewRoute, Peering, Result, Route, RouteTable, RouteTarget, Subnet, Vpc,
};
use sluice_types::{PeeringId, RouteId};

fn target_text(target: RouteTarget) -> String {
    match target {
        RouteTarget::Peering(peering) => peering.to_string(),
        RouteTarget::Drop => "drop".to_owned(),
        RouteTarget::Internet => "internet".to_owned(),
    }
}

/// The VPC at the other end of a route's peering.
async fn peer(w: &mut Write, vpc: &Vpc, target: RouteTarget) -> Result<Option<Vpc>> {
    let RouteTarget::Peering(id) = target else { return Ok(None) };
    let peering: Peering = get(w.q(), id).await?;
    let other = match vpc.id {
        id if id == peering.a => peering.b,
        id if id == peering.b => peering.a,
        _ => return Err(Conflict::ForeignPeering { peering: peering.name }.into()),
    };
    get(w.q(), other).await.map(Some)
}

pub(crate) async fn create(w: &mut Write, new: &NewRoute) -> Result<Created<Route>> {
    check::destination(new.prefix)?;
    let table: RouteTable = get(w.q(), new.table).await?;
    let vpc: Vpc = get(w.q(), table.vpc).await?;
    let peer = peer(w, &vpc, new.target).await?;
    let prefix = new.prefix.to_string();
    let same = vec![("route_table", table.id.get().into()), ("prefix", prefix.as_str().into())];
    if let Some(existing) = find_one::<Route>(w.q(), same).await? {
        Difference::default()
            .field("target", target_text(existing.target), target_text(new.target))
            .conflict("route", &prefix)?;
        return Ok(Created::Existing(existing));
    }
    for subnet in find::<Subnet>(w.q(), vec![("vpc", vpc.id.get().into())]).await? {
        if let Some(existing) = check::prefixes(&subnet).find(|net| net.contains(&new.prefix)) {
            let existing = existing.to_string();
            return Err(Conflict::RouteInsideSubnet { prefix, subnet: subnet.name, existing }.into());
        }
    }
    if new.target != RouteTarget::Internet {
        nat_gateways::check_not_nat64(w.q(), vpc.id, new.prefix, |net, prefix| prefix.contains(net)).await?;
    }
    let owner = || format!("the route of route table `{}`", table.name);
    further::check_not_delegated(w.q(), vpc.id, &[new.prefix], owner).await?;
    let route = Route {
        id: RouteId::new(w.id()),
        table: table.id,
        prefix: new.prefix,
        target: new.target,
        revision: w.revision,
    };
    let peering = match new.target {
        RouteTarget::Peering(peering) => Some(PeeringId::get(peering) as i64),
        RouteTarget::Drop | RouteTarget::Internet => None,
    };
    let sql = "INSERT INTO routes (id, route_table, prefix, peering, internet, revision) \
               VALUES ($1, $2, $3, $4, $5, $6)";
    let internet = new.target == RouteTarget::Internet;
    w.q().run(sql, args![route.id.get(), table.id.get(), prefix, peering, internet, route.revision]).await?;
    w.push(&Change::RouteUpserted { vpc, route: route.clone(), peer })?;
    Ok(Created::New(route))
}

pub(crate) async fn delete(w: &mut Write, id: RouteId, expected: Option<u64>) -> Result<u64> {
    let route: Route = get(w.q(), id).await?;
    check_revision(id, &route, expected)?;
    let table: RouteTable = get(w.q(), route.table).await?;
    let vpc: Vpc = get(w.q(), table.vpc).await?;
    w.q().run("DELETE FROM routes WHERE id = $1", args![id.get()]).await?;
    let (nodes, name) = (removals::gateways_of(w.q(), &vpc).await?, route.prefix.to_string());
    w.push(&Change::RouteRemoved { vpc, route })?;
    removals::record(w, ("route", id.get(), &name), nodes, &[]).await
}
