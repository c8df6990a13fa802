//! Documents and comments name only what exists.

use crate::scan::comments;
use crate::{files, is_source, report};
use std::collections::BTreeSet;

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
        .filter(|(name, _)| !name.contains("tests/style/"))
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

/// True where the text holds the name as a word; of `a::b` and `a.b`, its last part.
fn mentions(text: &str, name: &str) -> bool {
    let name = name.trim_end_matches("()").rsplit("::").next().unwrap_or(name);
    let word = |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    text.match_indices(name)
        .any(|(at, _)| !word(text[..at].chars().next_back()) && !word(text[at + name.len()..].chars().next()))
}

/// Top directories whose paths are checked wherever a comment or document names one.
const DIRECTORIES: [&str; 9] =
    ["crates/", "bpf/", "docs/", "tests/", "bench/", "api/", "scripts/", "fuzz/", "deploy/"];

/// Paths of this repository that a line of text names.
fn paths_in(line: &str) -> Vec<&str> {
    let part = |letter: char| letter.is_alphanumeric() || "_-./".contains(letter);
    line.split(|letter: char| !part(letter))
        .map(|word| word.trim_matches(['.', '-']).trim_end_matches('/'))
        .filter(|word| DIRECTORIES.iter().any(|directory| word.starts_with(directory)))
        .collect()
}

/// Comments of sources and lines of documents, with file name and line number.
pub fn prose(files: &[(String, String)]) -> Vec<(&str, usize, String)> {
    let mut lines = Vec::new();
    for (name, text) in files {
        let found: Vec<(usize, String)> = match name.rsplit('.').next() {
            Some("rs" | "c" | "h") => comments(text),
            Some("md") => text.lines().enumerate().map(|(at, line)| (at + 1, line.to_owned())).collect(),
            _ => continue,
        };
        lines.extend(found.into_iter().map(|(number, line)| (name.as_str(), number, line)));
    }
    lines
}

/// Whether a path that the file `name` mentions exists, from the root or from a directory above the file. A
/// test may be named without its ending.
fn is_known(known: &BTreeSet<&str>, name: &str, path: &str) -> bool {
    let above = name.match_indices('/').map(|(at, _)| format!("{}/{path}", &name[..at]));
    above
        .chain([path.to_owned()])
        .any(|path| known.contains(path.as_str()) || known.contains(format!("{path}.rs").as_str()))
}

#[test]
fn paths_in_prose_exist() {
    let files = files();
    let mut known: BTreeSet<&str> = BTreeSet::new();
    for (name, _) in &files {
        known.extend(name.match_indices('/').map(|(at, _)| &name[..at]));
        known.insert(name);
    }
    let mut seen = 0;
    let mut offenders = Vec::new();
    // Older entries of the changelog name files as they were then.
    for (name, number, line) in prose(&files).into_iter().filter(|(name, ..)| *name != "CHANGELOG.md") {
        for path in paths_in(&line) {
            seen += 1;
            let placeholder =
                path.split(['/', '_', '.']).any(|part| part.len() > 1 && part == part.to_uppercase());
            if !is_known(&known, name, path) && !placeholder && !path.starts_with("bench/out") {
                offenders.push(format!("{name}:{number}: {path}"));
            }
        }
    }
    assert!(seen > 100, "only {seen} paths were found: is the scanner blind?");
    report("every path that a comment or document names exists", &offenders);
}

/// `name (file.h)` and `name (a.h, b.h)` in a comment: the name, and the headers. The name is empty where a
/// stage or a topic is named instead of code.
fn header_references(line: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices('(') {
        let Some(end) = line[at..].find(')') else { continue };
        let inside: Vec<&str> = line[at + 1..at + end].split(", ").collect();
        if !inside.iter().all(|word| word.ends_with(".h") && !word.contains(' ')) {
            continue;
        }
        let before = line[..at].trim_end().rsplit([' ', '`', '\t', '*']).find(|word| !word.is_empty());
        let name = before.unwrap_or_default().trim_end_matches("()");
        let is_code =
            name.contains('_') && name.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
        found.push((if is_code { name } else { "" }, inside));
    }
    found
}

#[test]
fn headers_named_in_comments_hold_what_is_said() {
    let files = files();
    let headers: Vec<&(String, String)> =
        files.iter().filter(|(name, _)| name.starts_with("bpf/") && name.ends_with(".h")).collect();
    let header = |wanted: &str| {
        let ending = format!("/{wanted}");
        headers.iter().find(|(name, _)| name.ends_with(&ending)).map(|(_, text)| text)
    };
    let mut offenders = Vec::new();
    let mut seen = 0;
    let sources = prose(&files).into_iter().filter(|(name, ..)| name.starts_with("bpf/"));
    for (name, number, line) in sources {
        for (code, named) in header_references(&line) {
            seen += 1;
            let texts: Vec<&String> = named.iter().filter_map(|wanted| header(wanted)).collect();
            let holds = code.is_empty() || texts.iter().any(|text| mentions(text, code));
            if texts.len() < named.len() || !holds {
                offenders.push(format!("{name}:{number}: {code} ({})", named.join(", ")));
            }
        }
    }
    assert!(seen >= 5, "only {seen} references were found: is the scanner blind?");
    report("every `name (file.h)` in a comment is true", &offenders);
}

#[test]
fn references_are_found() {
    assert!(mentions("struct vrf {", "vrf") && !mentions("vrfs", "vrf") && mentions("fn run()", "a::run()"));
    assert_eq!(quoted_names("a `b` c\n```\n`x`\n```\n`d`"), ["b", "d"]);
    assert_eq!(
        paths_in("see `bpf/vswitch.bpf.c`, docs/guide/. Not a/docs/x"),
        ["bpf/vswitch.bpf.c", "docs/guide"]
    );
    assert_eq!(header_references("* by send_it() (a.h)"), [("send_it", vec!["a.h"])]);
    assert_eq!(header_references("parse (a.h, b.h) and (c)"), [("", vec!["a.h", "b.h"])]);
}
