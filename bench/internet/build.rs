//! Compiles the programs of the generator.

use libbpf_cargo::SkeletonBuilder;
use std::path::PathBuf;

const SOURCE: &str = "bpf/internet.bpf.c";

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    // Debian keeps <asm/types.h> in a directory that clang does not search for this target.
    let multiarch = format!("/usr/include/{arch}-linux-gnu");
    SkeletonBuilder::new()
        .source(SOURCE)
        .clang_args(["-mcpu=v3", "-idirafter", &multiarch])
        .obj(out.join("internet.bpf.o"))
        .build()
        .unwrap_or_else(|error| panic!("{SOURCE} compiles: {error:#}"));
    println!("cargo:rerun-if-changed={SOURCE}");
}
