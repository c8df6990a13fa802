//! Compiles the functions of the packet programs' headers for this machine, and binds `struct session_test` and `struct nat_test`.

use std::env;
use std::path::PathBuf;

fn main() {
    let include =
        PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("set by cargo")).join("../../../bpf/include");
    let out = PathBuf::from(env::var("OUT_DIR").expect("set by cargo"));
    for header in [
        "common/atomic.h",
        "common/flows.h",
        "common/hash.h",
        "common/meters.h",
        "common/nat.h",
        "common/nat_install.h",
        "common/nat_map.h",
        "common/nat_packet.h",
        "common/nat_shared.h",
        "common/sessions.h",
        "layout/flow_layout.h",
        "layout/meter_layout.h",
        "layout/nat_layout.h",
        "layout/session_layout.h",
        "test/nat_operation.h",
        "test/session_operation.h",
    ] {
        println!("cargo:rerun-if-changed={}", include.join(header).display());
    }
    const SOURCES: [&str; 3] = ["src/sessions.c", "src/flows_meters.c", "src/nat.c"];
    for source in SOURCES.iter().chain(&["src/nat.h", "src/scheduled.h"]) {
        println!("cargo:rerun-if-changed={source}");
    }
    cc::Build::new()
        .files(SOURCES)
        .include(&include)
        .opt_level(2)
        // When a schedule fails a test, the panic unwinds through C functions that were suspended.
        .flag("-fexceptions")
        .flag("-fno-strict-aliasing")
        .flag("-Wno-unknown-pragmas")
        .flag("-Wno-sign-compare")
        .warnings_into_errors(true)
        .compile("sluice_tables_testing");
    bindgen::Builder::default()
        .header(include.join("test/session_operation.h").display().to_string())
        .header(include.join("layout/session_layout.h").display().to_string())
        .header(include.join("layout/nat_layout.h").display().to_string())
        .header("src/nat.h")
        .clang_arg(format!("-I{}", include.display()))
        .allowlist_type("session_test|session_op|session_answer|nat_test|nat_op|nat_answer|sluice_nat_tables")
        .allowlist_var("NAT_ANY_REMOTE|NAT_SHARES_PORTS|NAT_COPY_OF_REMOTE|NAT_COPY_OF_SHARED")
        .opaque_type("nat_config|nat_group|nat_ports|nat_tuples|session_config|session_bucket4")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .generate()
        .expect("the headers of bpf/include/test bind (libclang-14-dev and linux-libc-dev are needed)")
        .write_to_file(out.join("test.rs"))
        .expect("OUT_DIR can be written");
}
