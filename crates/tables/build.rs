//! Binds the table layout and reads the drop reasons, both from `bpf/include/layout`, so that each is written
//! only once.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const HEADERS: [&str; 12] = [
    "cells.h",
    "counter_layout.h",
    "credit_layout.h",
    "drops.h",
    "events.h",
    "flow_layout.h",
    "identity_layout.h",
    "meter_layout.h",
    "nat_fragment_layout.h",
    "nat_layout.h",
    "qos_layout.h",
    "session_layout.h",
];

fn main() {
    let include =
        PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("set by cargo")).join("../../bpf/include/layout");
    let out = PathBuf::from(env::var("OUT_DIR").expect("set by cargo"));
    for header in HEADERS {
        println!("cargo:rerun-if-changed={}", include.join(header).display());
    }
    bind_layout(&include, &out.join("layout.rs"));
    let reasons = parse_drops(&include.join("drops.h"));
    fs::write(out.join("drops.rs"), reasons).expect("OUT_DIR can be written");
}

fn bind_layout(include: &Path, to: &Path) {
    let includes: String = HEADERS.iter().map(|header| format!("#include \"{header}\"\n")).collect();
    bindgen::Builder::default()
        .header_contents("layout.h", &includes)
        .clang_arg(format!("-I{}", include.display()))
        .clang_arg(format!("-I{}", include.join("..").display()))
        .allowlist_file(".*/(cells|drops|events|\\w+_layout)\\.h")
        .default_macro_constant_type(bindgen::MacroTypeVariation::Unsigned)
        .derive_default(true)
        .derive_eq(true)
        .layout_tests(true)
        .merge_extern_blocks(true)
        .generate()
        .expect("bpf/include/layout/cells.h binds (libclang-14-dev and linux-libc-dev are needed)")
        .write_to_file(to)
        .expect("OUT_DIR can be written");
}

/// Converts the lines `DROP(number, name, "text")` to the array literal `drops::ALL`.
fn parse_drops(header: &Path) -> String {
    let text = fs::read_to_string(header).expect("bpf/include/layout/drops.h is readable");
    let mut array = String::from("&[\n");
    let mut count = 0;
    for line in text.lines().filter_map(|line| line.trim().strip_prefix("DROP(")) {
        let (number, rest) = line.split_once(',').expect("DROP(number, ...");
        let (name, rest) = rest.split_once(',').expect("DROP(number, name, ...");
        let text = rest.trim().trim_end_matches('\\').trim().strip_suffix(')').expect("DROP(...) ends");
        let number: u32 = number.trim().parse().expect("the number of a drop reason");
        writeln!(array, "    Reason {{ number: {number}, name: \"{}\", text: {text} }},", name.trim())
            .expect("writing to a String does not fail");
        count += 1;
    }
    assert!(count > 0, "bpf/include/layout/drops.h has no line DROP(number, name, text)");
    array.push(']');
    array
}
