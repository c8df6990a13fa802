//! Compiles the programs of the generators.

use libbpf_cargo::SkeletonBuilder;
use std::path::PathBuf;

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    for name in ["bench", "host"] {
        let source = format!("bpf/{name}.bpf.c");
        SkeletonBuilder::new()
            .source(&source)
            // Debian keeps <asm/types.h> in a directory that clang does not search for this target.
            .clang_args(["-mcpu=v3".to_owned(), format!("-I/usr/include/{arch}-linux-gnu")])
            .obj(out.join(format!("{name}.bpf.o")))
            .build()
            .unwrap_or_else(|error| panic!("{source} compiles: {error:#}"));
        println!("cargo:rerun-if-changed={source}");
    }
}
