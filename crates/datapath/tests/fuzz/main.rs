//! Fuzzes the packet programs, compiled natively under AddressSanitizer and
//! UndefinedBehaviorSanitizer (`fuzz/*_fuzz.c`), over the fixtures' tables and
//! from packets as theirs. Each for `FUZZ_SECONDS`, 20 by default.
//!
//! An input that breaks something is kept in `target/tmp/fuzz/NAME/found/`.

mod gateway;
#[allow(dead_code, unused_macros, unused_imports, reason = "shared with the fixtures, which use all of it")]
#[path = "../fixtures/support/mod.rs"]
mod support;
mod vswitch;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::bench::Bench;

const SECONDS_DEFAULT: &str = "20";
const INPUT_BYTES_MAX: u32 = 4096;

/// A fuzz target: `fuzz/NAME_fuzz.c`.
struct Target {
    name: &'static str,
    dir: PathBuf,
}

impl Target {
    fn new(name: &'static str) -> Self {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fuzz").join(name);
        fs::create_dir_all(&dir).expect("a directory for the target");
        Self { name, dir }
    }

    /// Where the target looks for the tables' image.
    fn tables(&self) -> PathBuf {
        self.dir.join("cells")
    }

    /// One input a packet and set of switches, without patches to the tables.
    fn write_seeds(&self, dir: &Path, packets: &[Vec<u8>], switches: &[u8]) {
        fs::create_dir_all(dir).expect("the corpus can be made");
        for (number, packet) in packets.iter().enumerate() {
            for switches in switches {
                let input = [&[*switches, 0][..], packet].concat();
                fs::write(dir.join(format!("seed-{number}-{switches}")), input)
                    .expect("a seed can be written");
            }
        }
    }

    fn compile(&self) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let program = self.dir.join("program");
        run(Command::new("clang")
            .args(["-g", "-O1", "-Wall", "-Werror", "-fno-strict-aliasing"])
            // The programs read headers where they lie, as the processors that run them allow.
            .args(["-fsanitize=fuzzer,address,undefined", "-fno-sanitize=alignment"])
            .args(["-fno-sanitize-recover=undefined"])
            // Those of the packet programs' own target.
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

    /// Compiles and runs the target from these packets; panics if it finds something.
    fn fuzz(&self, packets: &[Vec<u8>], switches: &[u8]) {
        let (corpus, found) = (self.dir.join("corpus"), self.dir.join("found/"));
        fs::create_dir_all(&found).expect("a directory for what is found");
        self.write_seeds(&corpus, packets, switches);
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

/// Writes the tables as they are now, up to the last cell in use.
fn write_cells(bench: &Bench, path: &Path) {
    let cells = bench.read_cells();
    let used = cells.iter().rposition(|cell| cell.iter().any(|byte| *byte != 0)).expect("tables") + 1;
    fs::write(path, cells[..used].concat()).expect("the tables can be written");
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}
