//! Binds the table layout and reads the drop reasons, both from `bpf/include`,
//! so that neither is written twice.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const LAYOUT: &str =
    "#include \"cells.h\"\n#include \"drops.h\"\n#include \"flows.h\"\n#include \"meters.h\"\n";

fn main() {
    let include =
        PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("set by cargo")).join("../../bpf/include");
    let out = PathBuf::from(env::var("OUT_DIR").expect("set by cargo"));
    for header in ["atomic.h", "cells.h", "drops.h", "flows.h", "meters.h"] {
        println!("cargo:rerun-if-changed={}", include.join(header).display());
    }
    bind_layout(&include, &out.join("layout.rs"));
    compile_schedules(&include);
    let reasons = parse_drops(&include.join("drops.h"));
    fs::write(out.join("drops.rs"), reasons).expect("OUT_DIR can be written");
}

fn bind_layout(include: &Path, to: &Path) {
    bindgen::Builder::default()
        .header_contents("layout.h", LAYOUT)
        .clang_arg(format!("-I{}", include.display()))
        .allowlist_file(".*/(cells|drops|flows|meters)\\.h")
        .default_macro_constant_type(bindgen::MacroTypeVariation::Unsigned)
        .derive_default(true)
        .derive_eq(true)
        .layout_tests(true)
        .merge_extern_blocks(true)
        .generate()
        .expect("bpf/include/cells.h binds (libclang-14-dev and linux-libc-dev are needed)")
        .write_to_file(to)
        .expect("OUT_DIR can be written");
}

/// The packets' side of flow statistics and meters as a library that only
/// `tests/schedules` links.
fn compile_schedules(include: &Path) {
    let source = "tests/schedules/words.c";
    println!("cargo:rerun-if-changed={source}");
    let out = PathBuf::from(env::var("OUT_DIR").expect("set by cargo"));
    cc::Build::new()
        .file(source)
        .include(include)
        // The scheduler ends executions by unwinding.
        .flag("-fexceptions")
        .flag("-Wno-sign-compare")
        .flag("-Wno-unknown-pragmas")
        .warnings_into_errors(true)
        .cargo_metadata(false)
        .compile("schedules");
    println!("cargo:rustc-link-arg-tests={}", out.join("libschedules.a").display());
}

/// The lines `DROP(number, name, "text")` as the array literal `drops::ALL`.
fn parse_drops(header: &Path) -> String {
    let text = fs::read_to_string(header).expect("bpf/include/drops.h is readable");
    let mut array = String::from("&[\n");
    let mut count = 0;
    for line in text.lines().filter_map(|line| line.trim().strip_prefix("DROP(")) {
        let (number, rest) = line.split_once(',').expect("DROP(number, ...");
        let (name, rest) = rest.split_once(',').expect("DROP(number, name, ...");
        let words = rest.trim().trim_end_matches('\\').trim().strip_suffix(')').expect("DROP(...) ends");
        let number: u32 = number.trim().parse().expect("the number of a drop reason");
        writeln!(array, "    Reason {{ number: {number}, name: \"{}\", text: {words} }},", name.trim())
            .expect("a String takes it");
        count += 1;
    }
    assert!(count > 0, "drops.h has no DROP lines that can be read");
    array.push(']');
    array
}
