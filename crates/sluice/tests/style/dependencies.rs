//! Dependencies point in one direction: between crates, and between the modules of a crate.

use crate::scan::code_only;
use crate::{files, report, root};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Which crates of the workspace each crate may depend on, tests included.
const MAY_DEPEND: &[(&str, &[&str])] = &[
    ("sluice-types", &[]),
    ("sluice-tables", &["sluice-types", "sluice-tables-testing"]),
    ("sluice-tables-testing", &[]),
    ("sluice-envelope", &["sluice-types"]),
    ("sluice-rsp", &["sluice-types", "sluice-envelope"]),
    ("sluice-cluster", &["sluice-types", "sluice-envelope"]),
    ("sluice-nat-sync", &["sluice-types", "sluice-envelope"]),
    ("sluice-store", &["sluice-types", "sluice-cluster"]),
    ("sluice-client", &["sluice-types"]),
    ("sluice-southbound", &["sluice-types"]),
    ("sluice-http", &[]),
    ("sluice-placement", &["sluice-types"]),
    ("sluice-sys", &[]),
    ("sluice-datapath", &["sluice-types", "sluice-tables", "sluice-tables-testing"]),
    (
        "sluice-controller",
        &[
            "sluice-types",
            "sluice-store",
            "sluice-southbound",
            "sluice-http",
            "sluice-placement",
            "sluice-cluster",
            "sluice-envelope",
            "sluice-rsp",
        ],
    ),
    (
        "sluice-agent",
        &[
            "sluice-types",
            "sluice-tables",
            "sluice-envelope",
            "sluice-rsp",
            "sluice-southbound",
            "sluice-http",
            "sluice-datapath",
            "sluice-sys",
        ],
    ),
    (
        "sluice-gateway",
        &[
            "sluice-types",
            "sluice-tables",
            "sluice-tables-testing",
            "sluice-envelope",
            "sluice-nat-sync",
            "sluice-rsp",
            "sluice-cluster",
            "sluice-southbound",
            "sluice-datapath",
            "sluice-sys",
            "sluice-agent",
        ],
    ),
    (
        "sluice-vswitch",
        &[
            "sluice-types",
            "sluice-tables",
            "sluice-envelope",
            "sluice-rsp",
            "sluice-southbound",
            "sluice-datapath",
            "sluice-sys",
            "sluice-agent",
        ],
    ),
    // Its targets are the decoders of all crates below it.
    (
        "sluice-fuzz-decoders",
        &[
            "sluice-types",
            "sluice-tables",
            "sluice-envelope",
            "sluice-rsp",
            "sluice-cluster",
            "sluice-nat-sync",
            "sluice-southbound",
            "sluice-agent",
            "sluice-vswitch",
            "sluice-controller",
        ],
    ),
    // The lab talks to the controller by its public API only, and to nodes by running the binary;
    // from the data path it has the program of its switches' ports.
    ("sluice-lab", &["sluice-types", "sluice-tables", "sluice-datapath", "sluice-client"]),
    (
        "sluice",
        &[
            "sluice-types",
            "sluice-client",
            "sluice-controller",
            "sluice-gateway",
            "sluice-vswitch",
            "sluice-lab",
        ],
    ),
];

/// Workspace crates that each crate's manifest names.
fn manifest_dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let manifests = files().into_iter().filter(|(name, _)| name.ends_with("/Cargo.toml"));
    manifests
        .filter_map(|(_, text)| {
            let own =
                text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))?.to_owned();
            let dependencies = text
                .lines()
                .map(|line| line.split(['.', '=', ' ']).next().unwrap_or_default())
                .filter(|word| word.starts_with("sluice-") || *word == "sluice")
                .map(str::to_owned)
                .collect();
            Some((own, dependencies))
        })
        .collect()
}

#[test]
fn dependencies_point_one_way() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_DEPEND.iter().copied().collect();
    let found = manifest_dependencies();
    let mut offenders = Vec::new();
    for (name, rule) in &allowed {
        match found.get(*name) {
            None => offenders.push(format!("{name} has rules here but no manifest")),
            Some(dependencies) => offenders.extend(
                dependencies
                    .iter()
                    .filter(|dependency| !rule.contains(&dependency.as_str()))
                    .map(|dependency| format!("{name} depends on {dependency}")),
            ),
        }
    }
    for name in found.keys() {
        // Benchmarks and scenarios stand above everything and nothing may depend on them.
        if !allowed.contains_key(name.as_str())
            && !name.contains("bench")
            && !name.contains("test")
            && !name.contains("scenarios")
        {
            offenders.push(format!("{name} has no rule: say in MAY_DEPEND what it may use"));
        }
    }
    report("crates depend on those below them only", &offenders);
}

/// Names of all packages that one is built of, tests left out.
fn linked_with(name: &str, metadata: &Value) -> BTreeSet<String> {
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let names: BTreeMap<String, String> = items(&metadata["packages"])
        .iter()
        .map(|package| (text(&package["id"]), text(&package["name"])))
        .collect();
    let nodes: BTreeMap<String, Value> =
        items(&metadata["resolve"]["nodes"]).into_iter().map(|node| (text(&node["id"]), node)).collect();
    let mut seen = BTreeSet::new();
    let mut next: Vec<String> =
        names.iter().filter(|(_, package)| *package == name).map(|(id, _)| id.clone()).collect();
    while let Some(id) = next.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        let dependencies = items(&nodes.get(&id).unwrap_or(&Value::Null)["deps"]);
        let built = dependencies
            .iter()
            .filter(|dependency| items(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"] != "dev"));
        next.extend(built.map(|dependency| text(&dependency["pkg"])));
    }
    seen.iter().filter_map(|id| names.get(id).cloned()).collect()
}

#[test]
fn controller_never_links_ebpf() {
    let root = root();
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .current_dir(&root)
        .args(["metadata", "--offline", "--locked", "--format-version", "1"])
        // What other platforms need may not have been downloaded.
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let linked = linked_with("sluice-controller", &metadata);
    assert!(linked.contains("sluice-store") && linked.len() > 50, "not what it links: {linked:?}");
    let offenders: Vec<String> = linked
        .into_iter()
        .filter(|name| ["libbpf", "sluice-datapath", "sluice-tables"].iter().any(|bad| name.starts_with(bad)))
        .collect();
    report("the controller runs on machines without eBPF", &offenders);
}

/// Code without the item that follows each `#[cfg(test)]`: up to its semicolon or, for a module of tests at
/// the end of a file, to the end.
fn without_tests(code: &str) -> String {
    let mut parts = code.split("#[cfg(test)]");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let first_line = part.trim_start().lines().next().unwrap_or_default();
        if !first_line.ends_with('{') {
            kept.push_str(part.split_once(';').map_or("", |(_, rest)| rest));
        }
    }
    kept
}

/// The module of each name that `lib.rs` exports again from one of its modules: `pub use module::{A, B};`.
fn exported_again(lib: &str, modules: &BTreeSet<String>) -> BTreeMap<String, String> {
    let code = without_tests(&code_only(lib));
    let mut module_of = BTreeMap::new();
    for item in code.split(';').filter_map(|item| item.rsplit_once("use ").map(|(_, item)| item)) {
        let mut words = item
            .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
            .filter(|word| !word.is_empty());
        if let Some(module) = words.find(|word| *word != "crate").filter(|word| modules.contains(*word)) {
            module_of.extend(words.map(|name| (name.to_owned(), module.to_owned())));
        }
    }
    module_of
}

/// Code in which a path to the crate's root begins with `crate::`, also if it was written with `super::`. `file` is
/// the name of the file in the directory of sources. Paths in a module within a file count as those of the file.
fn with_paths_from_root(code: &str, file: &str) -> String {
    let module = file.trim_end_matches(".rs").trim_end_matches("/mod");
    code.replace(&"super::".repeat(module.split('/').count()), "crate::")
}

/// Modules of a crate's top level that each other one names by `crate::` or `super::`, directly or by a name that
/// `lib.rs` exports again, tests left out.
fn module_uses(crate_source: &str, files: &[(String, String)]) -> BTreeMap<String, BTreeSet<String>> {
    let top = |rest: &str| {
        let module = rest.split('/').next()?.trim_end_matches(".rs");
        let mut parts = rest.trim_end_matches(".rs").split('/');
        let is_test = parts.any(|part| part == "tests" || part.ends_with("_tests"));
        (!matches!(module, "lib" | "main") && !is_test).then(|| module.to_owned())
    };
    let sources: Vec<(String, &str, &String)> = files
        .iter()
        .filter(|(name, _)| name.ends_with(".rs"))
        .filter_map(|(name, text)| Some((name.strip_prefix(crate_source)?, text)))
        .filter_map(|(rest, text)| Some((top(rest)?, rest, text)))
        .collect();
    let modules: BTreeSet<String> = sources.iter().map(|(module, ..)| module.clone()).collect();
    let lib = files.iter().find(|(name, _)| *name == format!("{crate_source}lib.rs"));
    let exported = lib.map(|(_, text)| exported_again(text, &modules)).unwrap_or_default();
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, rest, text) in sources {
        let code = with_paths_from_root(&without_tests(&code_only(text)), rest);
        for (at, _) in code.match_indices("crate::") {
            let rest = &code[at + "crate::".len()..];
            // `crate::{a, b::c}` names several.
            let named =
                if rest.starts_with('{') { &rest[..rest.find(';').unwrap_or(rest.len())] } else { rest };
            let words = named.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            let words = words.filter(|word| !word.is_empty());
            let names = if rest.starts_with('{') { usize::MAX } else { 1 };
            let used = words.take(names).filter_map(|word| modules.get(word).or_else(|| exported.get(word)));
            uses.entry(module.clone()).or_default().extend(used.filter(|used| **used != module).cloned());
        }
    }
    uses
}

/// A path from a module back to itself, if there is one.
fn cycle(uses: &BTreeMap<String, BTreeSet<String>>, from: &str) -> Option<Vec<String>> {
    let mut paths = vec![vec![from.to_owned()]];
    let mut seen = BTreeSet::new();
    while let Some(path) = paths.pop() {
        for next in path.last().and_then(|last| uses.get(last)).into_iter().flatten() {
            let longer: Vec<String> = path.iter().cloned().chain([next.clone()]).collect();
            if next == from {
                return Some(longer);
            }
            if seen.insert(next.clone()) {
                paths.push(longer);
            }
        }
    }
    None
}

#[test]
fn modules_of_a_crate_form_no_cycle() {
    let files = files();
    let manifests = files.iter().filter_map(|(name, _)| name.strip_suffix("/Cargo.toml"));
    let mut offenders = Vec::new();
    let mut edges = 0;
    for directory in manifests.filter(|name| name.starts_with("crates/")) {
        let uses = module_uses(&format!("{directory}/src/"), &files);
        edges += uses.values().map(BTreeSet::len).sum::<usize>();
        // One cycle of each crate: those that share modules would only repeat it.
        let first = uses.keys().find_map(|module| cycle(&uses, module));
        offenders.extend(first.map(|path| format!("{directory}: {}", path.join(" -> "))));
    }
    assert!(edges > 100, "only {edges} uses were found: the scanner may be broken");
    report("modules of a crate form layers", &offenders);
}

#[test]
fn cycles_are_found() {
    let code = "use crate::a;\n#[cfg(test)]\nuse crate::b;\nuse crate::c;\n#[cfg(test)]\nmod tests {\n use crate::d;\n}";
    assert_eq!(
        without_tests(code).split_whitespace().collect::<Vec<_>>(),
        ["use", "crate::a;", "use", "crate::c;"]
    );
    let file = |name: &str, text: &str| (format!("src/{name}"), text.to_owned());
    let files = [
        file("lib.rs", "pub use b::Thing;"),
        file("a.rs", "use super::Thing;"),
        file("b.rs", "struct Thing;"),
        file("b/inner.rs", "use super::Thing; use super::super::a::Other;"),
        file("a/tests.rs", "use crate::c::Only;"),
        file("c.rs", ""),
    ];
    let found = module_uses("src/", &files);
    let found: Vec<_> =
        found.iter().flat_map(|(from, to)| to.iter().map(move |to| (&from[..], &to[..]))).collect();
    assert_eq!(found, [("a", "b"), ("b", "a")]);
    let uses = |pairs: &[(&str, &str)]| {
        let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (from, to) in pairs {
            uses.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        uses
    };
    assert_eq!(cycle(&uses(&[("a", "b"), ("a", "c"), ("b", "c")]), "a"), None);
    let modules = ["a", "b"].map(str::to_owned).into();
    let exported =
        exported_again("mod a;\npub use a::{One, Two};\npub(crate) use b::Three;\nuse std::fs;", &modules);
    let names: Vec<_> = exported.iter().map(|(name, module)| (name.as_str(), module.as_str())).collect();
    assert_eq!(names, [("One", "a"), ("Three", "b"), ("Two", "a")]);
    let path = cycle(&uses(&[("a", "b"), ("b", "c"), ("c", "a")]), "a");
    assert_eq!(path, Some(["a", "b", "c", "a"].map(str::to_owned).to_vec()));
}
