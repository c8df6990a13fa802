//! Compiles the programs of the generators and of the minimal forwarder, and the stages of the gateway's fast path.

use libbpf_cargo::SkeletonBuilder;
use std::path::{Path, PathBuf};

/// Where the packet programs and their headers are.
const PROGRAMS: &str = "../../bpf";
/// The stages of `gateway/stage_end.h`.
const STAGES: std::ops::Range<usize> = 0..8;

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for name in ["bench", "minimal", "host"] {
        compile(&format!("bpf/{name}.bpf.c"), &out.join(format!("{name}.bpf.o")), &[]);
    }
    println!("cargo:rerun-if-changed={PROGRAMS}/gateway.bpf.c");
    println!("cargo:rerun-if-changed={PROGRAMS}/include");
    std::thread::scope(|scope| {
        for stage in STAGES {
            let object = out.join(format!("stage-{stage}.bpf.o"));
            scope.spawn(move || {
                let include = format!("-I{PROGRAMS}/include");
                let last = format!("-DLAST_STAGE={stage}");
                let arguments = [include.as_str(), "-DWITHOUT_GENERAL_PATH", &last];
                compile(&format!("{PROGRAMS}/gateway.bpf.c"), &object, &arguments);
            });
        }
    });
}

fn compile(source: &str, object: &Path, arguments: &[&str]) {
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    // Debian keeps <asm/types.h> in a directory that clang does not search for this target.
    let multiarch = format!("/usr/include/{arch}-linux-gnu");
    let common = ["-mcpu=v3", "-idirafter", &multiarch];
    SkeletonBuilder::new()
        .source(source)
        .clang_args(common.iter().chain(arguments).map(|argument| (*argument).to_owned()))
        .obj(object)
        .build()
        .unwrap_or_else(|error| panic!("{source} compiles: {error:#}"));
    println!("cargo:rerun-if-changed={source}");
}
