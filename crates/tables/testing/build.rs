//! Compiles the functions of the packet programs' headers for this machine, and binds `struct session_test`.

use std::env;
use std::path::PathBuf;

fn main() {
    let include =
        PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("set by cargo")).join("../../../bpf/include");
    let out = PathBuf::from(env::var("OUT_DIR").expect("set by cargo"));
    for header in [
        "common/atomic.h",
        "common/flows.h",
        "common/meters.h",
        "common/sessions.h",
        "layout/flow_layout.h",
        "layout/meter_layout.h",
        "layout/session_layout.h",
        "test/session_operation.h",
    ] {
        println!("cargo:rerun-if-changed={}", include.join(header).display());
    }
    for source in ["src/sessions.c", "src/flows_meters.c"] {
        println!("cargo:rerun-if-changed={source}");
    }
    cc::Build::new()
        .files(["src/sessions.c", "src/flows_meters.c"])
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
        .allowlist_type("session_test|session_op|session_answer")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .generate()
        .expect("bpf/include/test/session_operation.h binds (libclang-14-dev and linux-libc-dev are needed)")
        .write_to_file(out.join("test.rs"))
        .expect("OUT_DIR can be written");
}
