//! Compiles the headers' functions for this machine and binds the structure of a test's operation.

use std::env;
use std::path::PathBuf;

fn main() {
    let include =
        PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("set by cargo")).join("../../../bpf/include");
    let out = PathBuf::from(env::var("OUT_DIR").expect("set by cargo"));
    for header in ["atomic.h", "flows.h", "meters.h", "session_layout.h", "sessions.h", "sessions_test.h"] {
        println!("cargo:rerun-if-changed={}", include.join(header).display());
    }
    for source in ["src/sessions.c", "src/words.c"] {
        println!("cargo:rerun-if-changed={source}");
    }
    cc::Build::new()
        .files(["src/sessions.c", "src/words.c"])
        .include(&include)
        .opt_level(2)
        // A schedule that fails a test unwinds through the functions that it suspended.
        .flag("-fexceptions")
        .flag("-fno-strict-aliasing")
        .flag("-Wno-unknown-pragmas")
        .flag("-Wno-sign-compare")
        .warnings_into_errors(true)
        .compile("sluice_tables_testing");
    bindgen::Builder::default()
        .header(include.join("sessions_test.h").display().to_string())
        .header(include.join("session_layout.h").display().to_string())
        .allowlist_type("session_test|session_op|session_answer")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .generate()
        .expect("bpf/include/sessions_test.h binds (libclang-14-dev and linux-libc-dev are needed)")
        .write_to_file(out.join("test.rs"))
        .expect("OUT_DIR can be written");
}
