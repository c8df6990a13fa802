//! One list of cases that runs against every backend: SQLite in a file, SQLite in memory, and a PostgreSQL
//! server that is started here from the system's package.
//!
//! `cargo test -p sluice-store --test conformance -- [FILTER]...` runs the cases whose `backend::case`
//! contains a filter.
#![allow(missing_docs)]

mod addresses;
mod bulk;
mod cloud;
mod clusters;
mod concurrency;
mod conflicts;
mod gateway_moves;
mod health;
mod history;
mod instances;
mod internet;
mod meters;
mod migrations;
mod model;
mod moves;
mod nat_gateways;
mod network_classes;
mod objects;
mod old_database;
mod outage;
mod outbox;
mod port_forwards;
mod postgres;
mod random;
mod removals;
mod security;
mod services;
mod settings;
mod southbound;
mod subnets;

use sluice_store::{Store, open};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest duration of a case.
const LIMIT: Duration = Duration::from_secs(120);

/// The input of a case: a new, empty database.
#[derive(Clone)]
pub struct Fixture {
    pub url: String,
    pub store: Arc<Store>,
}

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Case {
    name: &'static str,
    run: fn(Fixture) -> Running,
}

macro_rules! cases {
    ($($module:ident: $($case:ident),+;)*) => {
        vec![$($(Case {
            name: concat!(stringify!($module), "::", stringify!($case)),
            run: |fixture| Box::pin($module::$case(fixture)),
        }),+),*]
    };
}

fn cases() -> Vec<Case> {
    cases! {
        objects: lifecycle_of_each_kind, creation_is_idempotent, another_content_names_the_difference,
            if_match, pages, filters, names, reopening_keeps_everything, unchanged_updates_take_no_revision,
            a_newer_schema_is_refused, ids_ascend_across_kinds;
        clusters: vips_keep_their_slots, repeated_vips_change_nothing, hello_intervals, preferred_owners_follow_the_gateways, plans_are_reissued, keys_are_renewed,
            keys_are_renewed_when_a_node_is_deleted,
            keys_recover_from_clock_errors_and_outages, secrets_are_stored_in_one_table_only;
        conflicts: prefixes, addresses, underlay_addresses, vnis, peerings, routes, in_use,
            clusters_and_gateways, gateways_have_the_families_of_their_vips, not_found, peers_of_a_peer;
        instances: allocation_order, freed_addresses_come_last, ipv6_by_eui64, ipv6_in_other_lengths,
            taken_macs_and_addresses, derived_ones_are_avoided, deletion;
        bulk: many_at_once, all_or_nothing, repeated_and_existing_names, given_and_allocated_mix,
            onto_existing, full_subnet_is_named, many_hosts;
        subnets: ipv6_modes;
        addresses: options_are_stored_whole, values_that_no_instance_can_have, what_another_has,
            macs_of_pairs_are_no_instances_own,
            routes_and_subnets_exclude_the_same_prefix, allocation_avoids_them, derived_addresses_avoid_them,
            addresses_are_held, an_address_of_a_pair_is_held_until_all_hosts_have_removed_it, claims_have_one_holder,
            adopted_instances_have_them_again;
        gateway_moves: there_and_back, reversed_move, refusals,
            vpc_that_arrives_during_a_move_keeps_the_last_gateway, preferred_owners_set_by_the_scheduler_are_kept;
        removals: addresses_are_held, vnis_and_vteps_are_held, awaited_nodes, release_in_parts, host_that_an_instance_left_is_awaited,
            adoption_takes_held_addresses;
        moves: make_before_break, hosts_find_vips_of_their_family, peered_vpcs_move_together, reversed_move, refusals, many_instances_in_parts,
            instances_change_hosts, gateways_drain, vips_are_added_before_others_are_removed, thresholds, events;
        migrations: a_switch_is_committed_once, a_canceled_migration_is_refused, failures_are_recorded_once,
            moves_and_deletions_end_migrations, refusals, snapshots_of_both_hosts_have_the_instance, hosts_have_limits;
        health: each_node_has_its_newest_report, migrations_for_health_are_limited,
            migrations_for_health_are_checked_as_others;
        outbox: every_kind_of_change, parts_of_a_bulk, limits_keep_revisions_whole, compaction,
            slow_snapshots_leave_connections, snapshot_is_one_revision, snapshot_of_a_host, snapshot_ends_when_its_receiver_is_dropped;
        history: positions_are_found_by_commit, numbers_jump_past_those_of_nodes, lost_instances_are_adopted,
            held_writes_wait;
        concurrency: writers_are_serialized, two_stores_on_one_database, same_name_is_created_once,
            vips_are_replaced_while_the_cluster_changes, cancelled_call_leaves_all_or_nothing;
        security: each_vpc_has_a_default_group, lifecycle, rules_are_stored_whole, refused_rules, instances_have_groups,
            groups_of_an_instance_change, used_groups_are_not_deleted, identities_are_held_and_used_again,
            identities_jump_with_the_history, ids_within_ids_are_told_apart,
            the_last_identity_is_assigned_once, deletion_and_members_exclude_each_other, limits, groups_in_bulk;
        internet: pools, reserved_addresses, addresses_of_eips, eips_are_attached_moved_and_detached, prefixes_are_attached_to_subnets, prefixes_are_mapped_by_nptv6_on_request,
            eips_stay_on_their_cluster, internet_routes;
        nat_gateways: nat_gateways, addresses_of_nat_gateways, prefixes_of_nat64, nat_gateways_stay_on_their_cluster;
        meters: lifecycle, refused_limits, eips_have_meters, vpcs_have_meters, peerings_have_meters, number_of_a_tenant;
        network_classes: lifecycle, refused_policies, instances_have_classes, rates_and_classes_exclude_each_other,
            a_changed_class_sends_its_instances, at_most_one_class_is_the_default, used_classes_are_not_deleted;
        port_forwards: port_forwards, impossible_port_forwards, port_forwards_and_eips_exclude_each_other, instances_take_their_port_forwards_with_them;
        services: lifecycle, owners_consent_to_mounts, members_have_numbers_and_vnics, members_stay_where_they_are,
            mounts_have_addresses_of_their_own, mounts_have_security_groups, states_are_recorded_once, limits;
        settings: vip_gets_another_preferred_owner, setting_is_written_only_if_unchanged, addresses_are_counted, plans_are_stored_and_one_is_applied_at_a_time;
        southbound: node_states, many_node_states, node_states_are_saved_after_other_writes, tokens_work_once, the_first_authority_stays, writable;
        random: operations_match_the_model;
    }
}

/// A source of databases.
enum Backend {
    SqliteFile(tempfile::TempDir),
    SqliteMemory,
    Postgres(postgres::Server),
}

impl Backend {
    fn name(&self) -> &'static str {
        match self {
            Self::SqliteFile(_) => "sqlite",
            Self::SqliteMemory => "memory",
            Self::Postgres(_) => "postgres",
        }
    }

    async fn url(&self, number: usize) -> String {
        match self {
            Self::SqliteFile(dir) => format!("sqlite:{}/{number}.db", dir.path().display()),
            Self::SqliteMemory => "sqlite::memory:".to_owned(),
            Self::Postgres(server) => server.create_database(&format!("case{number}")).await,
        }
    }
}

async fn check(name: &str, work: impl Future<Output = ()> + Send + 'static) -> bool {
    let started = Instant::now();
    let task = tokio::spawn(tokio::time::timeout(LIMIT, work));
    let verdict = match task.await {
        Ok(Ok(())) => "ok",
        Ok(Err(_)) => "FAILED: took too long",
        Err(_) => "FAILED",
    };
    println!("test {name} ... {verdict} ({} ms)", started.elapsed().as_millis());
    verdict == "ok"
}

/// Parts of names that the arguments of `cargo test -- ...` select and exclude.
#[derive(Default)]
struct Selection {
    /// Empty if all cases are selected.
    filters: Vec<String>,
    skipped: Vec<String>,
}

impl Selection {
    fn from_arguments(arguments: Vec<String>) -> Self {
        let mut selection = Self::default();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--skip" => selection.skipped.extend(arguments.next()),
                "--test-threads" => drop(arguments.next()),
                option if option.starts_with('-') => {}
                _ => selection.filters.push(argument),
            }
        }
        selection
    }
}

async fn run(filters: &[String], skipped: &[String]) -> (usize, Vec<String>) {
    let wanted = |name: &str| {
        let has = |part: &String| name.contains(part.as_str());
        (filters.is_empty() || filters.iter().any(has)) && !skipped.iter().any(has)
    };
    let mut backends =
        vec![Backend::SqliteFile(tempfile::tempdir().expect("a temporary directory")), Backend::SqliteMemory];
    let needs_postgres =
        filters.is_empty() || filters.iter().any(|f| !f.starts_with("sqlite") && !f.starts_with("memory"));
    if needs_postgres {
        backends.push(Backend::Postgres(postgres::Server::start().await));
    }
    let (mut passed, mut failed) = (0, Vec::new());
    for backend in &backends {
        for (number, case) in cases().iter().enumerate() {
            let name = format!("{}::{}", backend.name(), case.name);
            if !wanted(&name) {
                continue;
            }
            let url = backend.url(number).await;
            let run = case.run;
            let ok = check(&name, async move {
                let store = open(&url).await.expect("the database opens");
                run(Fixture { url, store }).await;
            })
            .await;
            if ok { passed += 1 } else { failed.push(name) }
        }
    }
    for (name, work) in outage::cases() {
        if wanted(name) {
            if check(name, work()).await { passed += 1 } else { failed.push(name.to_owned()) }
        }
    }
    (passed, failed)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    if let [first, directory] = args.as_slice()
        && first == outage::SMALL_DISK
    {
        return runtime.block_on(outage::on_a_small_disk(directory.as_ref()));
    }
    let Selection { filters, skipped } = Selection::from_arguments(args);
    let (passed, failed) = runtime.block_on(run(&filters, &skipped));
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    println!("\ntest result: {verdict}. {passed} passed; {} failed", failed.len());
    for name in &failed {
        println!("    {name}");
    }
    if !failed.is_empty() || passed == 0 {
        std::process::exit(1);
    }
}
