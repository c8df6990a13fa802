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
    ("moves", &["clock", "database", "push", "ownership"]),
    ("place", &["clock", "database", "push", "ownership"]),
    ("api", &["clock", "database", "compile", "push", "ownership", "moves", "place"]),
];

/// Modules that connect the others and may use all of them.
const UNRESTRICTED: [&str; 3] = ["convergence_tests", "lib", "run"];

fn sources(at: &Path) -> Vec<PathBuf> {
    if at.is_file() {
        return vec![at.to_owned()];
    }
    let entries = std::fs::read_dir(at).expect("a directory of the crate");
    entries.flat_map(|entry| sources(&entry.expect("an entry").path())).collect()
}

/// Modules of the crate, by the names of their files or directories.
fn modules(src: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(src).expect("the sources of the crate");
    let names = entries.map(|entry| entry.expect("an entry").path().with_extension(""));
    names.map(|path| path.file_name().expect("a name").to_string_lossy().into_owned()).collect()
}

/// The text before the tests at its end, which may connect modules as `run` does.
fn without_tests(text: &str) -> &str {
    let starts = ["#[cfg(test)]\nmod tests {", "#[cfg(test)]\npub mod tests {"];
    let end = starts.iter().filter_map(|start| text.find(start)).min();
    &text[..end.unwrap_or(text.len())]
}

/// The names that follow a prefix of paths.
fn names_after(prefix: &str, text: &str) -> BTreeSet<String> {
    let names = text.split(prefix).skip(1);
    names.map(|rest| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()).collect()
}

/// What a source text names by `crate::`, and the modules of the crate that it names by as many `super::` as it
/// is below the root. `file` is the path in the directory of sources.
fn used(text: &str, file: &Path, modules: &BTreeSet<String>) -> BTreeSet<String> {
    let depth = file.components().count() - usize::from(file.ends_with("mod.rs"));
    let above = names_after(&"super::".repeat(depth), text);
    &names_after("crate::", text) | &(&above & modules)
}

#[test]
fn modules_depend_only_on_modules_below_them() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let modules = modules(&src);
    let known = ALLOWED.iter().map(|(module, _)| *module).chain(UNRESTRICTED).map(str::to_owned);
    let known: BTreeSet<String> = known.collect();
    assert_eq!(modules, known, "a module is missing here, or does not exist");
    let mut offenders = Vec::new();
    for (module, allowed) in ALLOWED {
        let (file, directory) = (src.join(format!("{module}.rs")), src.join(module));
        for path in sources(if file.is_file() { &file } else { &directory }) {
            let text = std::fs::read_to_string(&path).expect("a source file");
            let inside = path.strip_prefix(&src).expect("a file of the sources");
            let others = used(without_tests(&text), inside, &modules);
            let bad = others.into_iter().filter(|name| name != module && !allowed.contains(&name.as_str()));
            offenders.extend(bad.map(|name| format!("{}: {name}", path.display())));
        }
    }
    assert!(offenders.is_empty(), "{offenders:#?}");
}

#[test]
fn paths_to_other_modules_are_found() {
    let modules = ["api", "place", "push"].map(str::to_owned).into();
    let used = |text: &str, file: &str| used(without_tests(text), Path::new(file), &modules);
    let text = "use super::super::push::Hub; use super::api::X; use crate::api::Y;";
    assert_eq!(used(text, "place/usage.rs"), ["api", "push"].map(str::to_owned).into());
    assert_eq!(used("use super::push::Hub;", "place/mod.rs"), ["push".to_owned()].into());
    assert_eq!(used("use super::place::X;", "place/usage.rs"), BTreeSet::new());
    let tests = "use crate::push::A;\n\n#[cfg(test)]\nmod tests {\n    use crate::api::B;\n}\n";
    assert_eq!(used(tests, "place/usage.rs"), ["push".to_owned()].into());
}
