//! Fuzzes the packet programs, compiled natively under AddressSanitizer and
//! UndefinedBehaviorSanitizer (`fuzz/*_fuzz.c`), with the fixtures' tables and
//! seeds like their packets. Each target runs for `FUZZ_SECONDS`, 5 by default.
//!
//! An input that fails is kept in `target/tmp/fuzz/NAME/found/`.

mod gateway;
#[allow(dead_code, unused_macros, unused_imports, reason = "shared with the fixtures, which use all of it")]
#[path = "../fixtures/support/mod.rs"]
mod support;
mod vswitch;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::bench::Bench;

const SECONDS_DEFAULT: &str = "5";
const INPUT_BYTES_MAX: u32 = 4096;

/// Packets, and the setups that each of them is combined with: bytes of the target's `struct setup`.
type SeedGroup = (Vec<Vec<u8>>, Vec<Vec<u8>>);

/// Fuzz target in `fuzz/NAME_fuzz.c`.
struct Target {
    name: &'static str,
    dir: PathBuf,
}

impl Target {
    fn new(name: &'static str) -> Self {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fuzz").join(name);
        fs::create_dir_all(&dir).expect("the directory of the target can be created");
        Self { name, dir }
    }

    /// Path of the image of the tables, which the target reads.
    fn tables(&self) -> PathBuf {
        self.dir.join("cells")
    }

    /// Writes the corpus: in each group of seeds, every packet with every setup.
    fn write_seeds(&self, dir: &Path, groups: &[SeedGroup]) {
        fs::create_dir_all(dir).expect("the corpus can be created");
        let mut number = 0;
        for (packets, setups) in groups {
            for (packet, setup) in packets.iter().flat_map(|packet| setups.iter().map(move |s| (packet, s))) {
                let path = dir.join(format!("seed-{number}"));
                fs::write(path, [&setup[..], packet].concat()).expect("a seed can be written");
                number += 1;
            }
        }
    }

    fn compile(&self) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let program = self.dir.join("program");
        run(Command::new("clang")
            .args(["-g", "-O1", "-Wall", "-Werror", "-fno-strict-aliasing"])
            // The programs read headers at any alignment, which the processors that run them allow.
            .args(["-fsanitize=fuzzer,address,undefined", "-fno-sanitize=alignment"])
            .args(["-fno-sanitize-recover=undefined"])
            // Some attributes exist only for the BPF target.
            .args(["-Wno-unknown-attributes"])
            .arg("-I")
            .arg(root.join("fuzz/kernel"))
            .arg("-I")
            .arg(root.join("bpf/include"))
            .arg("-o")
            .arg(&program)
            .arg(root.join(format!("fuzz/{}_fuzz.c", self.name))));
        program
    }

    /// Compiles the target and runs it with these seeds. Panics if an input fails.
    fn fuzz(&self, seeds: &[SeedGroup]) {
        let (corpus, found) = (self.dir.join("corpus"), self.dir.join("found/"));
        fs::create_dir_all(&found).expect("the directory for failing inputs can be created");
        self.write_seeds(&corpus, seeds);
        let seconds = std::env::var("FUZZ_SECONDS").unwrap_or_else(|_| SECONDS_DEFAULT.to_owned());
        run(Command::new(self.compile())
            .env("SLUICE_FUZZ_TABLES", self.tables())
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-max_len={INPUT_BYTES_MAX}"))
            .arg(format!("-artifact_prefix={}/", found.display()))
            .args(["-timeout=5", "-verbosity=0", "-print_final_stats=1"])
            .arg(&corpus));
    }
}

/// Writes an image of the tables as they are now, up to the last cell in use.
fn write_cells(bench: &Bench, path: &Path) {
    let cells = bench.read_cells();
    let is_used = |cell: &Vec<u8>| cell.iter().any(|byte| *byte != 0);
    let used = cells.iter().rposition(is_used).expect("the tables are not empty") + 1;
    fs::write(path, cells[..used].concat()).expect("the tables can be written");
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}
