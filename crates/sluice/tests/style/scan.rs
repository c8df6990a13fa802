//! Finds functions, comments and code in Rust and C text, well enough for the checks of this directory.

/// The text with comments, strings and characters blanked, line breaks kept,
/// so that braces and words are code's. Good enough for Rust and C.
pub fn code_only(text: &str) -> String {
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
pub fn rust_functions(code: &str) -> Vec<(String, usize, usize)> {
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
pub fn c_functions(code: &str) -> Vec<(String, usize, usize)> {
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

/// The comments of Rust and C code, each with its line number: what [`code_only`] leaves out, but for
/// strings.
pub fn comments(text: &str) -> Vec<(usize, String)> {
    let bytes = text.as_bytes();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let end = skip_at(bytes, at);
        if end > at && bytes[at] == b'/' {
            let first = text[..at].matches('\n').count() + 1;
            let lines = String::from_utf8_lossy(&bytes[at..end]).into_owned();
            found.extend(lines.lines().enumerate().map(|(number, line)| (first + number, line.to_owned())));
        }
        at = end.max(at + 1);
    }
    found
}

/// Whether a text has a word, or a phrase, that no letter, digit or underscore extends.
pub fn has_word(text: &str, word: &str) -> bool {
    let extends =
        |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    text.match_indices(word).any(|(at, _)| {
        !extends(text[..at].chars().next_back()) && !extends(text[at + word.len()..].chars().next())
    })
}

#[test]
fn scanner_sees_functions_and_not_what_looks_like_them() {
    let rust = "fn one() {\n  let s = \"}\"; // }\n  let c = '}';\n}\nfn none(x: [u8; 4]);\n/* fn no() { */\nimpl<'a> X<'a> { fn two<'b>(&'b self) -> [u8; 2] {\n [0; 2] } }";
    assert_eq!(rust_functions(&code_only(rust)), [("one".to_owned(), 1, 4), ("two".to_owned(), 7, 2)]);
    let c = "struct s {\n\tint a;\n};\nstatic int add(int a,\n\t       int b)\n{\n\tif (a) {\n\t}\n\treturn '{';\n}\n";
    assert_eq!(c_functions(&code_only(c)), [("add".to_owned(), 5, 6)]);
    assert_eq!(code_only("a r#\"x\" {\"# b"), "a   b");
    let text = "let s = \"// no\"; // one\n/* two\n three */ x\n";
    assert_eq!(
        comments(text),
        [(1, "// one"), (2, "/* two"), (3, " three */")].map(|(at, line)| (at, line.to_owned()))
    );
}
