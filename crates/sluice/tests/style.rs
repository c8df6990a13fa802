//! The house's rules, checked: how long files and functions are, which way
//! dependencies point, that ARCHITECTURE.md speaks of what exists, and that
//! nothing unfinished or private slipped in.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 80;

/// Rooms that may use `unsafe`, each block with its reason.
const UNSAFE_ROOMS: [&str; 2] = ["crates/tables/", "crates/datapath/"];

/// Which crates of the workspace each crate may depend on, tests included.
const MAY_DEPEND: &[(&str, &[&str])] = &[
    ("sluice-types", &[]),
    ("sluice-tables", &["sluice-types", "sluice-tables-testing"]),
    ("sluice-tables-testing", &[]),
    ("sluice-rsp", &["sluice-types"]),
    ("sluice-cluster", &["sluice-types", "sluice-rsp"]),
    ("sluice-store", &["sluice-types", "sluice-cluster"]),
    ("sluice-client", &["sluice-types"]),
    ("sluice-southbound", &["sluice-types"]),
    ("sluice-placement", &["sluice-types"]),
    ("sluice-datapath", &["sluice-types", "sluice-tables", "sluice-tables-testing"]),
    (
        "sluice-controller",
        &[
            "sluice-types",
            "sluice-store",
            "sluice-southbound",
            "sluice-placement",
            "sluice-cluster",
            "sluice-rsp",
        ],
    ),
    (
        "sluice-agent",
        &["sluice-types", "sluice-tables", "sluice-rsp", "sluice-southbound", "sluice-datapath"],
    ),
    (
        "sluice-gateway",
        &[
            "sluice-types",
            "sluice-tables",
            "sluice-rsp",
            "sluice-cluster",
            "sluice-southbound",
            "sluice-datapath",
            "sluice-agent",
        ],
    ),
    (
        "sluice-vswitch",
        &[
            "sluice-types",
            "sluice-tables",
            "sluice-rsp",
            "sluice-southbound",
            "sluice-datapath",
            "sluice-agent",
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

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is there")
}

/// Every file of the tree that is or would be committed, with its text.
fn files() -> Vec<(String, String)> {
    let root = root();
    let listed = Command::new("git")
        .args(["-C", root.to_str().expect("a UTF-8 path")])
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .output();
    let names: Vec<String> = match listed {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
        }
        // An unpacked archive is no repository.
        _ => walk(&root, &root),
    };
    assert!(names.len() > 50, "only {} files found in {}", names.len(), root.display());
    names
        .into_iter()
        .filter_map(|name| std::fs::read_to_string(root.join(&name)).ok().map(|text| (name, text)))
        .collect()
}

fn walk(root: &Path, folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder of the tree").flatten() {
        let path = entry.path();
        if path.is_dir() && !["target", ".git"].iter().any(|skip| path.ends_with(skip)) {
            found.extend(walk(root, &path));
        } else if path.is_file() {
            found.push(path.strip_prefix(root).expect("below the root").to_string_lossy().into_owned());
        }
    }
    found
}

fn is_source(name: &str) -> bool {
    ["rs", "c", "h", "sh", "py", "proto", "sql"].iter().any(|ending| name.ends_with(&format!(".{ending}")))
}

/// The text with comments, strings and characters blanked, line breaks kept,
/// so that braces and words are code's. Good enough for Rust and C.
fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < bytes.len() {
        let skipped = skip_at(bytes, at);
        if skipped > at {
            out.extend(bytes[at..skipped].iter().filter(|&&byte| byte == b'\n').map(|_| '\n'));
            out.push(' ');
            at = skipped;
        } else {
            out.push(char::from(bytes[at]));
            at += 1;
        }
    }
    out
}

/// Where the comment, string or character that begins at `at` ends; `at` if none does.
fn skip_at(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let find = |from: usize, what: &[u8]| {
        rest[from.min(rest.len())..]
            .windows(what.len())
            .position(|window| window == what)
            .map(|found| from + found)
    };
    let end = |found: Option<usize>, length: usize| at + found.map_or(rest.len(), |found| found + length);
    if rest.starts_with(b"//") {
        return end(find(0, b"\n"), 0);
    }
    if rest.starts_with(b"/*") {
        return end(find(2, b"*/"), 2);
    }
    let before = at.checked_sub(1).map(|before| bytes[before]);
    let word_before = before.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if rest[0] == b'r' && (!word_before || before == Some(b'b')) {
        let hashes = rest[1..].iter().take_while(|&&byte| byte == b'#').count();
        if rest.get(1 + hashes) == Some(&b'"') {
            let close = [&b"\""[..], &vec![b'#'; hashes]].concat();
            return end(find(2 + hashes, &close), close.len());
        }
    }
    if rest[0] == b'"' {
        return at + quoted(rest, b'"');
    }
    // A character, not a lifetime: 'x' or an escape.
    if rest[0] == b'\''
        && (rest.get(1) == Some(&b'\\')
            || find(1, b"'").is_some_and(|close| {
                (2..=5).contains(&close)
                    && std::str::from_utf8(&rest[1..close]).is_ok_and(|text| text.chars().count() == 1)
            }))
    {
        return at + quoted(rest, b'\'');
    }
    at
}

/// Length of the quoted text at the start of `rest`, escapes followed.
fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// Functions of Rust code: name, first line, lines, from `fn NAME` to its closing brace.
fn rust_functions(code: &str) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        if code[..at].chars().next_back().is_some_and(|before| before.is_alphanumeric() || before == '_') {
            continue;
        }
        let name: String =
            code[at + 3..].chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
        if !name.is_empty() {
            found.extend(body_of(code, at).map(|(first, lines)| (name, first, lines)));
        }
    }
    found
}

/// Functions of C code: a name and parentheses at the start of a line or behind
/// its type, then a body whose brace stands alone at the start of a line.
fn c_functions(code: &str) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("\n{") {
        let head = &code[code[..at].rfind(['}', ';']).map_or(0, |end| end + 1)..at];
        let Some(open) = head.find('(') else { continue };
        let name: String = head[..open]
            .chars()
            .rev()
            .take_while(|letter| letter.is_alphanumeric() || *letter == '_')
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .collect();
        found.extend(body_of(code, at).map(|(first, lines)| (name, first, lines)));
    }
    found
}

/// First line and number of lines from `at` to the end of the first braces behind it; `None` where a
/// declaration ends before any.
fn body_of(code: &str, at: usize) -> Option<(usize, usize)> {
    let mut depth = 0_usize;
    // Semicolons within [T; N] do not end a declaration.
    let mut brackets = 0_usize;
    for (offset, byte) in code[at..].bytes().enumerate() {
        match byte {
            b'[' | b'(' => brackets += 1,
            b']' | b')' => brackets = brackets.saturating_sub(1),
            b';' if depth == 0 && brackets == 0 => return None,
            b'{' => depth += 1,
            b'}' if depth == 0 => return None,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    let first = code[..at].matches('\n').count() + 1;
                    return Some((first, code[at..at + offset].matches('\n').count() + 1));
                }
            }
            _ => {}
        }
    }
    None
}

fn report(what: &str, offenders: &[String]) {
    assert!(offenders.is_empty(), "{what}:\n  {}", offenders.join("\n  "));
}

#[test]
fn files_are_short() {
    let offenders: Vec<String> = files()
        .iter()
        .filter(|(name, text)| is_source(name) && text.lines().count() > FILE_LINES_MAX)
        .map(|(name, text)| format!("{name}: {} lines", text.lines().count()))
        .collect();
    report(&format!("source files have at most {FILE_LINES_MAX} lines"), &offenders);
}

#[test]
fn functions_are_short() {
    let mut offenders = Vec::new();
    let mut seen = 0;
    for (name, text) in files() {
        let functions = match name.rsplit('.').next() {
            Some("rs") => rust_functions(&code_only(&text)),
            Some("c" | "h") => c_functions(&code_only(&text)),
            _ => continue,
        };
        seen += functions.len();
        offenders.extend(
            functions
                .into_iter()
                .filter(|(_, _, lines)| *lines > FUNCTION_LINES_MAX)
                .map(|(function, first, lines)| format!("{name}:{first}: {function} has {lines} lines")),
        );
    }
    assert!(seen > 500, "only {seen} functions were found: is the scanner blind?");
    report(&format!("functions have at most {FUNCTION_LINES_MAX} lines"), &offenders);
}

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

#[test]
fn unsafe_stays_in_its_rooms() {
    let mut offenders = Vec::new();
    for (name, text) in files().iter().filter(|(name, _)| name.ends_with(".rs")) {
        let code = code_only(text);
        if UNSAFE_ROOMS.iter().any(|room| name.starts_with(room)) {
            continue;
        }
        offenders.extend(
            code.lines()
                .enumerate()
                .filter(|(_, line)| {
                    line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe")
                })
                .map(|(number, _)| format!("{name}:{}", number + 1)),
        );
        if name.starts_with("crates/")
            && name.matches('/').count() == 3
            && (name.ends_with("/src/lib.rs") || name.ends_with("/src/main.rs"))
            && !code.contains("#![forbid(unsafe_code)]")
        {
            offenders.push(format!("{name} does not forbid unsafe code"));
        }
    }
    report("unsafe code is for crates/tables and crates/datapath", &offenders);
}

#[test]
fn unsafe_blocks_say_why() {
    let mut offenders = Vec::new();
    for (name, text) in files().iter().filter(|(name, _)| name.ends_with(".rs")) {
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in code_only(text).lines().enumerate() {
            let opens = line.contains("unsafe {") || line.contains("unsafe impl");
            // The reason stands on the line itself or in the comment above the statement.
            let reasons =
                lines[number.saturating_sub(8)..=number.min(lines.len() - 1)].join("\n").to_lowercase();
            if opens && !reasons.contains("safety") && !reasons.contains("sound") {
                offenders.push(format!("{name}:{}", number + 1));
            }
        }
    }
    report("every unsafe block says why it is sound (`SAFETY: ...`)", &offenders);
}

#[test]
fn nothing_unfinished_or_private_is_left() {
    // Written in parts, so that this file does not accuse itself.
    let unfinished = [["TO", "DO"], ["FIX", "ME"], ["XX", "X:"], ["todo", "!("], ["unimplemented", "!("]];
    let private = [["/home", "/"], ["/root", "/"], ["/work", "/"], ["/Users", "/"]];
    let mut offenders = Vec::new();
    for (name, text) in files() {
        let licence = name.starts_with("LICENSE");
        for (number, line) in text.lines().enumerate().filter(|_| !licence && name != "Cargo.lock") {
            let bad = unfinished
                .iter()
                .chain(&private)
                .map(|parts| parts.concat())
                .find(|bad| line.contains(bad.as_str()));
            offenders.extend(bad.map(|bad| format!("{name}:{}: {bad}", number + 1)));
        }
    }
    report("no unfinished work, and no path of somebody's machine", &offenders);
}

/// What stands in backticks in a document, code blocks left out.
fn quoted_names(text: &str) -> Vec<String> {
    let prose: String = text.split("```").step_by(2).collect::<Vec<_>>().join("\n");
    prose.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn architecture_speaks_of_what_exists() {
    let files = files();
    let text = files
        .iter()
        .find(|(name, _)| name == "ARCHITECTURE.md")
        .map(|(_, text)| text)
        .expect("ARCHITECTURE.md is there");
    let sources: Vec<&(String, String)> = files
        .iter()
        .filter(|(name, _)| {
            is_source(name) || name.ends_with(".toml") || name == "Makefile" || name.ends_with(".json")
        })
        .filter(|(name, _)| !name.ends_with("tests/style.rs"))
        .collect();
    let names = quoted_names(text);
    assert!(names.len() > 20, "only {} names found", names.len());
    let missing: Vec<String> = names
        .into_iter()
        .filter(|name| {
            let path = name.trim_end_matches('/');
            let is_path = files.iter().any(|(file, _)| file == path || file.starts_with(&format!("{path}/")));
            !is_path && !sources.iter().any(|(_, text)| mentions(text, name))
        })
        .collect();
    report("every name in ARCHITECTURE.md exists in the tree", &missing);
}

#[test]
fn operators_can_look_up_every_drop() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).expect("a file of the tree");
    let (drops, guide) = (read("bpf/include/drops.h"), read("docs/guide/operations.md"));
    let names: Vec<&str> = drops
        .lines()
        .filter_map(|line| line.trim().strip_prefix("DROP(")?.split(", ").nth(1))
        .filter(|name| *name != "name")
        .collect();
    assert!(names.len() >= 40, "only {} reasons found", names.len());
    let missing: Vec<String> = names
        .iter()
        .filter(|name| !guide.contains(&format!("`{name}`")))
        .map(|name| (*name).to_owned())
        .collect();
    report("docs/guide/operations.md explains every drop reason", &missing);
}

/// True where the text holds the name as a word; of `a::b` and `a.b`, its last part.
fn mentions(text: &str, name: &str) -> bool {
    let name = name.trim_end_matches("()").rsplit("::").next().unwrap_or(name);
    let word = |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    text.match_indices(name)
        .any(|(at, _)| !word(text[..at].chars().next_back()) && !word(text[at + name.len()..].chars().next()))
}

#[test]
fn scanner_sees_functions_and_not_what_looks_like_them() {
    let rust = "fn one() {\n  let s = \"}\"; // }\n  let c = '}';\n}\nfn none(x: [u8; 4]);\n/* fn no() { */\nimpl<'a> X<'a> { fn two<'b>(&'b self) -> [u8; 2] {\n [0; 2] } }";
    assert_eq!(rust_functions(&code_only(rust)), [("one".to_owned(), 1, 4), ("two".to_owned(), 7, 2)]);
    let c = "struct s {\n\tint a;\n};\nstatic int add(int a,\n\t       int b)\n{\n\tif (a) {\n\t}\n\treturn '{';\n}\n";
    assert_eq!(c_functions(&code_only(c)), [("add".to_owned(), 5, 6)]);
    assert_eq!(code_only("a r#\"x\" {\"# b"), "a   b");
    assert!(mentions("struct vrf {", "vrf") && !mentions("vrfs", "vrf") && mentions("fn run()", "a::run()"));
    assert_eq!(quoted_names("a `b` c\n```\n`x`\n```\n`d`"), ["b", "d"]);
}
