//! Compiles every program of `bpf/` to an object that is embedded in the crate.
//!
//! The objects are opened from memory at run time. The generated skeletons of
//! libbpf-cargo are not used: they borrow from storage that has to outlive
//! them, while an object alone owns all it needs.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let source_dir = Path::new(&env::var("CARGO_MANIFEST_DIR").unwrap()).join("../../bpf");
    let out_dir = PathBuf::from(env::var("OUT_DIR").unwrap());
    println!("cargo:rerun-if-changed={}", source_dir.display());
    println!("cargo:rerun-if-changed={}", source_dir.join("include").display());

    let mut list = String::from("pub(crate) static OBJECTS: &[(&str, &[u8])] = &[\n");
    for source in programs(&source_dir) {
        let file = source.file_name().unwrap().to_str().expect("file names in bpf/ are UTF-8");
        let name = file.trim_end_matches(".bpf.c");
        let object = out_dir.join(format!("{name}.bpf.o"));
        SkeletonBuilder::new()
            .source(&source)
            .obj(&object)
            .clang_args(clang_args(&source_dir))
            .build()
            .unwrap_or_else(|error| panic!("bpf/{file}: {error:#}"));
        writeln!(list, "    ({name:?}, aligned_bytes!({:?})),", object.display().to_string()).unwrap();
    }
    list.push_str("];\n");
    fs::write(out_dir.join("objects.rs"), list).expect("OUT_DIR can be written");
}

fn programs(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut found: Vec<_> = entries
        .map(|entry| entry.expect("bpf/ can be listed").path())
        .filter(|path| path.to_string_lossy().ends_with(".bpf.c"))
        .collect();
    found.sort();
    for path in &found {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    found
}

fn clang_args(source_dir: &Path) -> Vec<String> {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap();
    let mut args = vec![
        format!("-I{}", source_dir.join("include").display()),
        // The instruction set of Linux 5.1 and later: 32-bit registers and jumps.
        "-mcpu=v3".to_owned(),
        "-Wall".to_owned(),
        "-Werror".to_owned(),
    ];
    // Debian keeps <asm/types.h> in a directory that clang does not search for this target.
    let multiarch = format!("/usr/include/{arch}-linux-gnu");
    if Path::new(&multiarch).is_dir() {
        args.extend(["-idirafter".to_owned(), multiarch]);
    }
    args
}
