//! Memory for 10K VRFs of very different sizes.

use crate::child::{PeerProgram, dpdk_tables, write_routes};
use crate::data::{Family, VrfSize};
use crate::kernel_peers::{trie_batch, trie_nodes};
use crate::ours::{add_routes, add_vrf, cells_upper_bound, cells_used, megabytes, table_routes};
use crate::rig::Programs;
use crate::{Outcome, Settings, report_progress};
use libbpf_rs::MapCore;
use sluice_bench_report::{Better, Measure, shell::Failure};

/// Memory that VPP's mtrie allocates for a VRF without routes.
const VPP_EMPTY_BYTES: f64 = 335_744.0;
/// Memory of DPDK's process, enough for one large VRF at a time.
const DPDK_MEGABYTES: u32 = 4096;

/// Number of VRFs of a size on which peers are measured; the result is multiplied.
fn sample(size: VrfSize) -> usize {
    match size {
        VrfSize::Small => 8,
        VrfSize::Medium => 2,
        VrfSize::Large => 1,
    }
}

/// VNIs of the VRFs of each size, beginning with 1.
fn vnis(scale: usize) -> Vec<(VrfSize, std::ops::Range<u32>)> {
    let mut first = 1;
    VrfSize::all(scale)
        .into_iter()
        .map(|(size, count)| {
            let range = first..first + count as u32;
            first = range.end;
            (size, range)
        })
        .collect()
}

/// Measures `vrf10k_mb`.
///
/// # Errors
/// Errors of the tables, the kernel or the programs.
pub fn vrfs(settings: &Settings, outcome: &mut Outcome) -> Result<(), Failure> {
    report_progress("vrf10k: filling");
    let all = vnis(settings.scale);
    let count = all.last().map_or(0, |(_, vnis)| vnis.end - 1);
    let ours = megabytes(ours_cells(&all, settings.scale)?);
    let trie = per_size(&all, |size, vnis| trie_bytes(size, vnis, settings.scale))?;
    let beside = |peer| Measure::computed_beside("vrf10k_mb", "MB", Better::Less, ours, peer);
    let vpp = f64::from(count) * VPP_EMPTY_BYTES / 1e6;
    let mut measures = vec![beside(("lpm_trie", trie / 1e6)), beside(("vpp_mtrie_empty", vpp))];
    if let Some(mut dpdk) = PeerProgram::dpdk(DPDK_MEGABYTES)? {
        let fib = per_size(&all, |size, vnis| fib_bytes(&mut dpdk, size, vnis, settings.scale))?;
        measures.insert(0, beside(("rte_fib", fib / 1e6)));
    }
    outcome.measures.extend(measures);
    outcome.note(format!(
        "vrf10k_mb: {count} VRFs; Sluice's figure is for all of them in one memory; rte_fib and lpm_trie are \
         measured on 8 small, 2 medium and 1 large VRF and multiplied, lpm_trie with the size that the kernel \
         counts for a node; vpp_mtrie_empty is the published {VPP_EMPTY_BYTES} B of a VRF without routes, \
         multiplied (DSR's published 2 KB make 20 MB for 10K VRFs without routes)"
    ));
    Ok(())
}

fn ours_cells(all: &[(VrfSize, std::ops::Range<u32>)], scale: usize) -> Result<u64, Failure> {
    let every = || all.iter().flat_map(|(size, vnis)| vnis.clone().map(move |vni| (*size, vni)));
    // The bound depends only on the number of routes, which is known without generating all of them.
    let upper_bound = every().map(|(size, vni)| match size {
        VrfSize::Small => cells_upper_bound(&size.routes(vni, scale)) / 64,
        VrfSize::Medium => 10_000 * 16,
        VrfSize::Large => 1_000_000 * 16,
    });
    cells_used(upper_bound.sum::<u64>() + (1 << 20), 0, |tables| {
        for (size, vni) in every() {
            add_vrf(tables, vni)?;
            add_routes(tables, &table_routes(vni, &size.routes(vni, scale))?)?;
        }
        Ok(())
    })
}

/// The sum over all VRFs, computed from `bytes_of` for a sample of each size.
fn per_size(
    all: &[(VrfSize, std::ops::Range<u32>)],
    mut bytes_of: impl FnMut(VrfSize, &[u32]) -> Result<f64, Failure>,
) -> Result<f64, Failure> {
    let mut sum = 0.0;
    for (size, vnis) in all {
        let sampled: Vec<u32> = vnis.clone().take(sample(*size)).collect();
        sum += bytes_of(*size, &sampled)? / sampled.len() as f64 * vnis.len() as f64;
    }
    Ok(sum)
}

fn trie_bytes(size: VrfSize, vnis: &[u32], scale: usize) -> Result<f64, Failure> {
    let mut bytes = 0.0;
    for &vni in vnis {
        let set = size.routes(vni, scale);
        let programs = Programs::load_maps(&[("trie4", set.routes.len() as u32)])?;
        let map = programs.map("trie4")?;
        trie_batch(&set).write(&map)?;
        let counted = map.query_fdinfo()?.memlock.ok_or("the kernel does not report the memory of a map")?;
        bytes += counted as f64 / set.routes.len() as f64 * trie_nodes(&set) as f64;
    }
    Ok(bytes)
}

fn fib_bytes(dpdk: &mut PeerProgram, size: VrfSize, vnis: &[u32], scale: usize) -> Result<f64, Failure> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("routes");
    let mut bytes = 0.0;
    for &vni in vnis {
        let set = size.routes(vni, scale);
        debug_assert_eq!(set.family, Family::V4);
        write_routes(&file, &set)?;
        bytes += dpdk.load("rte_fib", &file, dpdk_tables(&set))?;
        dpdk.free("rte_fib")?;
    }
    Ok(bytes)
}
