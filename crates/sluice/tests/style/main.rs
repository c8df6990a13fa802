//! The rules of CONTRIBUTING.md that a program can check: lengths of files and functions, unsafe code,
//! unfinished work. The other files of this directory check dependencies, references and language.

mod dependencies;
mod language;
mod references;
mod scan;

use scan::{c_functions, code_only, comments, rust_functions};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 80;

/// Directories that may use `unsafe`, each block with its reason.
const UNSAFE_DIRECTORIES: [&str; 4] =
    ["crates/tables/", "crates/datapath/", "crates/sys/", "fuzz/decoders/examples/"];

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
    assert!(seen > 500, "only {seen} functions were found: the scanner may be broken");
    report(&format!("functions have at most {FUNCTION_LINES_MAX} lines"), &offenders);
}

#[test]
fn unsafe_code_stays_in_its_directories() {
    let mut offenders = Vec::new();
    for (name, text) in files().iter().filter(|(name, _)| name.ends_with(".rs")) {
        let code = code_only(text);
        if UNSAFE_DIRECTORIES.iter().any(|directory| name.starts_with(directory)) {
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
    report("unsafe code is in its directories only", &offenders);
}

/// Lines of unsafe blocks without a reason: a comment on the line, or at most eight lines above it and below the
/// block before.
fn unsafe_without_reason(text: &str) -> Vec<usize> {
    let reasons: BTreeSet<usize> = comments(text)
        .into_iter()
        .filter(|(_, comment)| ["safety", "sound"].iter().any(|word| comment.to_lowercase().contains(word)))
        .map(|(line, _)| line)
        .collect();
    let mut found = Vec::new();
    let mut block_before = 0;
    for (number, line) in (1_usize..).zip(code_only(text).lines()) {
        if line.contains("unsafe {") || line.contains("unsafe impl") {
            let first = number.saturating_sub(8).max(block_before + 1);
            if reasons.range(first..=number).next().is_none() {
                found.push(number);
            }
            block_before = number;
        }
    }
    found
}

#[test]
fn unsafe_blocks_say_why() {
    let mut offenders = Vec::new();
    for (name, text) in files().iter().filter(|(name, _)| name.ends_with(".rs")) {
        offenders.extend(unsafe_without_reason(text).iter().map(|line| format!("{name}:{line}")));
    }
    report("every unsafe block says why it is sound (`SAFETY: ...`)", &offenders);
    let text =
        "// SAFETY: a.\nlet a = unsafe { f() };\nlet b = unsafe { f() };\nunsafe { f() } // SAFETY: c.\n";
    assert_eq!(unsafe_without_reason(text), [3]);
}

#[test]
fn scripts_are_executable() {
    let mode =
        |name: &str| std::fs::metadata(root().join(name)).expect("a file of the tree").permissions().mode();
    let offenders: Vec<String> = files()
        .into_iter()
        .filter(|(name, text)| text.starts_with("#!/") && mode(name) & 0o111 == 0)
        .map(|(name, _)| name)
        .collect();
    report("a file that begins with #! is executable", &offenders);
}

#[test]
fn nothing_unfinished_or_private_is_left() {
    // Written in parts, so that this file does not report itself.
    let unfinished = [["TO", "DO"], ["FIX", "ME"], ["XX", "X:"], ["todo", "!("], ["unimplemented", "!("]];
    let private = [["/home", "/"], ["/root", "/"], ["/work", "/"], ["/Users", "/"]];
    let mut offenders = Vec::new();
    for (name, text) in files() {
        let license = name.starts_with("LICENSE");
        for (number, line) in text.lines().enumerate().filter(|_| !license && name != "Cargo.lock") {
            let bad = unfinished
                .iter()
                .chain(&private)
                .map(|parts| parts.concat())
                .find(|bad| line.contains(bad.as_str()));
            offenders.extend(bad.map(|bad| format!("{name}:{}: {bad}", number + 1)));
        }
    }
    report("no unfinished work, and no path of a developer's machine", &offenders);
}

#[test]
fn operators_can_look_up_every_drop() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).expect("a file of the tree");
    let (drops, guide) = (read("bpf/include/layout/drops.h"), read("docs/guide/operations.md"));
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
