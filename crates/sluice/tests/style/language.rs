//! Comments, documents and messages are in the plain technical English that CONTRIBUTING.md asks for.

use crate::references::prose;
use crate::scan::{comments, has_word};
use crate::{files, report};

/// Words and phrases that no text of the project has. In parts, so that this file does not report itself.
const WORDS: &[[&str; 2]] = &[
    ["who", "m"],
    ["an", "ew"],
    ["sha", "ll"],
    ["there", "of"],
    ["where", "in"],
    ["where", "by"],
    ["le", "st"],
    ["nou", "ght"],
    ["in va", "in"],
    ["ob", "ey"],
    ["ob", "eys"],
    ["by and ", "by"],
    ["knows it ", "not"],
    ["the same ", "of"],
    ["for want ", "of"],
    ["impos", "tor"],
    ["home", "less"],
    ["he", "nce"],
    ["hen", "ceforth"],
    ["whe", "nce"],
    ["amo", "ngst"],
    ["up", "on"],
    ["ou", "ght"],
    ["nau", "ght"],
    ["need", "less"],
    ["cro", "wd"],
    ["lin", "gers"],
    ["lea", "rnt"],
    ["out of ", "turn"],
    ["gives ", "way"],
    ["is no ", "more"],
    ["are no ", "more"],
    ["knows ", "nothing"],
    ["one's ", "own"],
];
/// The same for comments and documents alone. Nodes and entries are not people.
const WORDS_OF_PROSE: &[[&str; 2]] = &[
    ["some", "body"],
    ["no", "body"],
    ["every", "body"],
    ["every", "one"],
    ["any", "body"],
    ["beha", "viour"],
];

/// Whether a line has a phrase as whole words, in small or capital letters.
fn has_phrase(line: &str, phrase: &str) -> bool {
    has_word(&line.to_lowercase(), phrase)
}

#[test]
fn no_archaic_words() {
    let phrases = |words: &[[&str; 2]]| words.iter().map(|parts| parts.concat()).collect::<Vec<String>>();
    let (anywhere, in_prose) = (phrases(WORDS), phrases(WORDS_OF_PROSE));
    let files: Vec<(String, String)> = files()
        .into_iter()
        .filter(|(name, _)| !name.starts_with("LICENSE") && name != "Cargo.lock")
        .collect();
    let mut offenders = Vec::new();
    for (name, text) in &files {
        // Tables of the changelog contain old names.
        let is_table = |line: &str| name == "CHANGELOG.md" && line.starts_with('|');
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !is_table(line)) {
            let found = anywhere.iter().find(|phrase| has_phrase(line, phrase));
            offenders.extend(found.map(|phrase| format!("{name}:{}: {phrase}", number + 1)));
        }
    }
    for (name, number, line) in prose(&files) {
        let found = in_prose.iter().find(|phrase| has_phrase(&line, phrase));
        offenders.extend(found.map(|phrase| format!("{name}:{number}: {phrase}")));
    }
    report("plain technical English (CONTRIBUTING.md, Language)", &offenders);
}

/// Doc comments of Rust that consist of one word, by their line.
fn one_word_docs(text: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, usize, String)> = Vec::new();
    for (number, line) in comments(text) {
        let Some(doc) = line.trim().strip_prefix("///") else { continue };
        match blocks.last_mut() {
            Some((_, last, block)) if *last + 1 == number => {
                *last = number;
                block.push_str(doc);
            }
            _ => blocks.push((number, number, doc.to_owned())),
        }
    }
    let single = |(first, _, block): (usize, usize, String)| {
        (block.split_whitespace().count() == 1).then(|| (first, block.trim().to_owned()))
    };
    blocks.into_iter().filter_map(single).collect()
}

#[test]
fn docs_say_more_than_a_word() {
    let files = files();
    let sources = files.iter().filter(|(name, _)| name.ends_with(".rs"));
    let found: Vec<String> = sources
        .flat_map(|(name, text)| {
            one_word_docs(text).into_iter().map(move |(number, word)| format!("{name}:{number}: {word}"))
        })
        .collect();
    report("a doc comment of one word says nothing", &found);
}

#[test]
fn phrases_and_docs_are_found() {
    let phrase = ["who", "m"].concat();
    assert!(has_phrase(&format!("To {phrase}."), &phrase) && !has_phrase(&format!("{phrase}_x"), &phrase));
    let text = "/// Why.\nA,\n/// Two words.\nB,\n/// Three\n/// lines\n/// here.\nC,\n";
    assert_eq!(one_word_docs(text), [(1, "Why.".to_owned())]);
}
