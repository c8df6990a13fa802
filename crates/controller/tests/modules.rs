//! Checks that the modules of this crate depend on each other only as the diagram in `src/lib.rs` says. This
//! file changes with that diagram.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Each module with those that it may use.
const ALLOWED: [(&str, &[&str]); 8] = [
    ("clock", &[]),
    ("database", &[]),
    ("compile", &["database"]),
    ("push", &["clock", "database", "compile"]),
    ("ownership", &["clock", "database", "compile"]),
    ("moves", &["database", "push", "ownership"]),
    ("place", &["clock", "database", "push", "ownership"]),
    ("api", &["clock", "database", "compile", "push", "ownership", "moves", "place"]),
];

fn sources(at: &Path) -> Vec<PathBuf> {
    if at.is_file() {
        return vec![at.to_owned()];
    }
    let entries = std::fs::read_dir(at).expect("a directory of the crate");
    entries.flat_map(|entry| sources(&entry.expect("an entry").path())).collect()
}

/// The modules of this crate that a source text names by `crate::`.
fn used(text: &str) -> BTreeSet<String> {
    let names = text.split("crate::").skip(1);
    names.map(|rest| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()).collect()
}

#[test]
fn modules_depend_only_on_modules_below_them() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut offenders = Vec::new();
    for (module, allowed) in ALLOWED {
        let (file, directory) = (src.join(format!("{module}.rs")), src.join(module));
        for path in sources(if file.is_file() { &file } else { &directory }) {
            let text = std::fs::read_to_string(&path).expect("a source file");
            let others = used(&text).into_iter().filter(|name| name != module);
            let bad = others.filter(|name| !allowed.contains(&name.as_str()));
            offenders.extend(bad.map(|name| format!("{}: crate::{name}", path.display())));
        }
    }
    assert!(offenders.is_empty(), "{offenders:#?}");
}
