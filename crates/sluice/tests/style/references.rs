//! Documents and comments name only what exists.

use crate::scan::{comments, has_word};
use crate::{files, is_source, report};
use std::collections::BTreeSet;

/// What stands in backticks in a document, code blocks left out.
fn quoted_names(text: &str) -> Vec<String> {
    let prose: String = text.split("```").step_by(2).collect::<Vec<_>>().join("\n");
    prose.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn architecture_names_exist() {
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

/// Whether the text has the name as a word; of `a::b`, its last part.
fn mentions(text: &str, name: &str) -> bool {
    has_word(text, name.trim_end_matches("()").rsplit("::").next().unwrap_or(name))
}

/// Top directories whose paths are checked wherever a comment or document names one.
const DIRECTORIES: [&str; 9] =
    ["crates/", "bpf/", "docs/", "tests/", "bench/", "api/", "scripts/", "fuzz/", ".ci/"];

/// Paths of this repository that a line of text names.
fn paths_in(line: &str) -> Vec<&str> {
    let part = |letter: char| letter.is_alphanumeric() || "_-./".contains(letter);
    line.split(|letter: char| !part(letter))
        .map(|word| word.trim_start_matches('-').trim_end_matches(['.', '-']).trim_end_matches('/'))
        .filter(|word| DIRECTORIES.iter().any(|directory| word.starts_with(directory)))
        .collect()
}

/// Comments of sources and scripts and lines of documents, with file name and line number.
pub fn prose(files: &[(String, String)]) -> Vec<(&str, usize, String)> {
    let mut lines = Vec::new();
    for (name, text) in files {
        let found: Vec<(usize, String)> = match name.rsplit('.').next() {
            Some("rs" | "c" | "h" | "proto") => comments(text),
            Some("md") => numbered(text).collect(),
            Some("sh" | "toml" | "yaml" | "Makefile" | "ci/run") => {
                numbered(text).filter(|(_, line)| line.trim_start().starts_with('#')).collect()
            }
            _ => continue,
        };
        lines.extend(found.into_iter().map(|(number, line)| (name.as_str(), number, line)));
    }
    lines
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, String)> {
    (1..).zip(text.lines().map(str::to_owned))
}

/// Whether a path that the file `name` mentions exists, from the root or from a directory above the file. A
/// test may be named without its ending.
fn is_known(known: &BTreeSet<&str>, name: &str, path: &str) -> bool {
    let above = name.match_indices('/').map(|(at, _)| format!("{}/{path}", &name[..at]));
    above
        .chain([path.to_owned()])
        .any(|path| known.contains(path.as_str()) || known.contains(format!("{path}.rs").as_str()))
}

/// All files and directories.
fn known_paths(files: &[(String, String)]) -> BTreeSet<&str> {
    let mut known: BTreeSet<&str> = BTreeSet::new();
    for (name, _) in files {
        known.extend(name.match_indices('/').map(|(at, _)| &name[..at]));
        known.insert(name);
    }
    known
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split(['/', '_', '.'])
}

#[test]
fn paths_in_prose_exist() {
    let files = files();
    let known = known_paths(&files);
    let known_parts: BTreeSet<&str> = known.iter().flat_map(|path| parts(path)).collect();
    // A word in capital letters, such as NAME, that is not part of a path such as README.md.
    let is_placeholder = |part: &str| {
        part.len() > 1
            && part.contains(char::is_uppercase)
            && !part.contains(char::is_lowercase)
            && !known_parts.contains(part)
    };
    let mut seen = 0;
    let mut offenders = Vec::new();
    // Older entries of the changelog name files as they were then.
    for (name, number, line) in prose(&files).into_iter().filter(|(name, ..)| *name != "CHANGELOG.md") {
        for path in paths_in(&line) {
            seen += 1;
            if !is_known(&known, name, path)
                && !parts(path).any(is_placeholder)
                && !path.starts_with("bench/out")
            {
                offenders.push(format!("{name}:{number}: {path}"));
            }
        }
    }
    assert!(seen > 100, "only {seen} paths were found: the scanner may be broken");
    report("every path that a comment or document names exists", &offenders);
}

/// Targets of the links of a document that lead to files, code blocks left out, without the section.
fn relative_links(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    let targets = prose.flat_map(|part| part.split("](").skip(1)).filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| !target.contains("://"))
        .filter_map(|target| target.split('#').next())
        .filter(|path| !path.is_empty())
        .collect()
}

/// A path from the root for a link in the file `name`; `None` if the link leads out of the tree.
fn link_target(name: &str, link: &str) -> Option<String> {
    let mut target: Vec<&str> = name.split('/').collect();
    target.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                target.pop()?;
            }
            part => target.push(part),
        }
    }
    Some(target.join("/"))
}

#[test]
fn relative_links_lead_to_files() {
    let files = files();
    let known = known_paths(&files);
    let mut offenders = Vec::new();
    let mut seen = 0;
    for (name, text) in files.iter().filter(|(name, _)| name.ends_with(".md")) {
        for link in relative_links(text) {
            seen += 1;
            if !link_target(name, link).is_some_and(|target| known.contains(target.as_str())) {
                offenders.push(format!("{name}: {link}"));
            }
        }
    }
    assert!(seen > 20, "only {seen} links were found: the scanner may be broken");
    report("every relative link of a document leads to a file", &offenders);
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
    assert!(seen >= 5, "only {seen} references were found: the scanner may be broken");
    report("every `name (file.h)` in a comment is true", &offenders);
}

#[test]
fn references_are_found() {
    assert!(mentions("struct vrf {", "vrf") && !mentions("vrfs", "vrf") && mentions("fn run()", "a::run()"));
    assert_eq!(quoted_names("a `b` c\n```\n`x`\n```\n`d`"), ["b", "d"]);
    assert_eq!(
        paths_in("see `bpf/vswitch.bpf.c`, docs/guide/. Not a/docs/x. -.ci/run-"),
        ["bpf/vswitch.bpf.c", "docs/guide", ".ci/run"]
    );
    let links = "[a](../b.md#c), [d](https://e), [f](#g)\n```\n[h](i)\n```\n[j](k)";
    assert_eq!(relative_links(links), ["../b.md", "k"]);
    assert_eq!(link_target("docs/a/x.md", "../b.md").as_deref(), Some("docs/b.md"));
    assert_eq!(link_target("x.md", "../b.md"), None);
    assert_eq!(header_references("* by send_it() (a.h)"), [("send_it", vec!["a.h"])]);
    assert_eq!(header_references("parse (a.h, b.h) and (c)"), [("", vec!["a.h", "b.h"])]);
}

/// The environment variables of Sluice that a text names.
fn variables(text: &str) -> BTreeSet<&str> {
    let ends = |c: char| !c.is_ascii_uppercase() && c != '_';
    let names =
        text.match_indices("SLUICE_").map(|(at, _)| text[at..].split(ends).next().unwrap_or_default());
    names.filter(|name| name.len() > "SLUICE_".len()).collect()
}

/// A script that sets a variable which no program reads any more has no effect.
#[test]
fn environment_variables_are_read() {
    let files = files();
    let is_script = |name: &str| name.ends_with(".sh") || name == "Makefile" || name == ".ci/run";
    let read: BTreeSet<&str> = files
        .iter()
        .flat_map(|(name, text)| {
            let has = |found: String| text.contains(&found);
            let reads = move |variable: &&str| match is_script(name) {
                true => has(format!("${variable}")) || has(format!("${{{variable}")),
                false => has(format!("\"{variable}\"")),
            };
            variables(text).into_iter().filter(reads)
        })
        .collect();
    let named = files.iter().filter(|(name, _)| is_script(name) || name.ends_with(".md"));
    let missing: Vec<String> = named
        .flat_map(|(name, text)| variables(text).into_iter().map(move |variable| (name, variable)))
        .filter(|(_, variable)| !read.contains(variable))
        .map(|(name, variable)| format!("{name}: no program reads {variable}"))
        .collect();
    report("every environment variable is read by a program or a script", &missing);
}
