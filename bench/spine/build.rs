//! Compiles the generator's programs.

use libbpf_cargo::SkeletonBuilder;
use std::path::PathBuf;

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("bench.bpf.o");
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    SkeletonBuilder::new()
        .source("bpf/bench.bpf.c")
        // Debian keeps <asm/types.h> in a directory that clang does not search for this target.
        .clang_args(["-mcpu=v3".to_owned(), format!("-I/usr/include/{arch}-linux-gnu")])
        .obj(&out)
        .build()
        .expect("bench.bpf.c compiles");
    println!("cargo:rerun-if-changed=bpf/bench.bpf.c");
}
