//! Compiles the timed eBPF programs, the C reader for user space and, if DPDK is installed, the program that
//! measures DPDK's structures.

use libbpf_cargo::SkeletonBuilder;
use std::path::{Path, PathBuf};
use std::process::Command;

const INCLUDE: &str = "../../bpf/include";

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    for watched in ["bpf", "peers", INCLUDE] {
        println!("cargo:rerun-if-changed={watched}");
    }
    SkeletonBuilder::new()
        .source("bpf/tables_bench.bpf.c")
        .clang_args([
            "-mcpu=v3".to_owned(),
            "-Wall".to_owned(),
            "-Werror".to_owned(),
            format!("-I{INCLUDE}"),
            // On Debian, <asm/types.h> is in a directory that clang does not search for this target.
            format!("-I/usr/include/{arch}-linux-gnu"),
        ])
        .obj(out.join("tables_bench.bpf.o"))
        .build()
        .expect("tables_bench.bpf.c compiles");

    let reader = out.join("tables-reader");
    let failure = compile("peers/tables_reader.c", &reader, &[format!("-I{INCLUDE}")], &[]).err();
    assert!(failure.is_none(), "peers/tables_reader.c: {}", failure.unwrap_or_default());
    println!("cargo:rustc-env=TABLES_READER={}", reader.display());
    build_dpdk_peers(&out, &arch);
}

/// Compiles by clang, because the table headers use its pragmas. Both sides get the same optimization.
fn compile(source: &str, to: &Path, before: &[String], after: &[String]) -> Result<(), String> {
    let output = Command::new("clang")
        .args(["-O3", "-std=gnu11", "-Wall", "-Wextra", "-Werror"])
        .args(before)
        .arg("-march=native")
        .arg(source)
        .arg("-o")
        .arg(to)
        .args(after)
        .output()
        .map_err(|error| format!("clang: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn pkg_config(what: &str) -> Option<Vec<String>> {
    let output = Command::new("pkg-config").args([what, "libdpdk"]).output().ok()?;
    let words = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| words.split_whitespace().map(str::to_owned).collect())
}

/// Builds the program with DPDK's structures. Without DPDK, or if it does not compile, the measures of DPDK
/// are left out.
fn build_dpdk_peers(out: &Path, arch: &str) {
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    // DPDK may be installed later. Cargo would rebuild each time for a path that does not exist.
    let packages = format!("/usr/lib/{arch}-linux-gnu/pkgconfig");
    if Path::new(&packages).is_dir() {
        println!("cargo:rerun-if-changed={packages}");
    }
    let (Some(before), Some(after)) = (pkg_config("--cflags"), pkg_config("--libs")) else { return };
    let peers = out.join("dpdk-peers");
    match compile("peers/dpdk_peers.c", &peers, &before, &after) {
        Ok(()) => println!("cargo:rustc-env=DPDK_PEERS={}", peers.display()),
        Err(error) => {
            println!(
                "cargo:warning=DPDK's structures are left out: {}",
                error.lines().next().unwrap_or_default()
            );
        }
    }
}
