//! Parses the body of a large bulk creation on two threads.
//!
//! The list is cut between two objects near its middle. Each half is completed to a list and parsed by itself. If both are lists,
//! the whole is the list of both, wherever the cut was; if one is not (the cut may be inside an instance, or in a text), or if
//! anything else is unusual, the caller parses the whole.

use super::instances::{MAX_BULK, NewInstance};
use super::request::Object;

/// Bodies of fewer bytes are parsed at once.
const MIN_BYTES: usize = 1 << 20;
/// What is between two instances.
const CUT: &[u8] = b"},{";

/// Parses and checks the instances of a body. `None` if the body is small, or has an error.
pub(super) fn parse(bytes: &[u8]) -> Option<Vec<sluice_store::NewInstance>> {
    if bytes.len() < MIN_BYTES {
        return None;
    }
    let list = list(bytes)?;
    let middle = list.len() / 2;
    let cut = middle + list[middle..].windows(CUT.len()).position(|window| window == CUT)?;
    let (first, second) = (&list[..=cut], &list[cut + 2..]);
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| half(first));
        let second = half(second);
        (first.join().ok().flatten(), second)
    });
    let (mut all, second) = first.zip(second)?;
    all.extend(second);
    (all.len() <= MAX_BULK).then_some(all)
}

/// What is between the brackets of a body with the field `instances` only.
fn list(bytes: &[u8]) -> Option<&[u8]> {
    let skip = |bytes: &'_ [u8], token: &[u8]| -> Option<usize> {
        let start = bytes.len() - bytes.trim_ascii_start().len();
        bytes[start..].starts_with(token).then_some(start + token.len())
    };
    let mut rest = bytes;
    for token in [&b"{"[..], b"\"instances\"", b":", b"["] {
        rest = &rest[skip(rest, token)?..];
    }
    for token in [&b"}"[..], b"]"] {
        rest = rest.trim_ascii_end().strip_suffix(token)?;
    }
    Some(rest)
}

fn half(objects: &[u8]) -> Option<Vec<sluice_store::NewInstance>> {
    let mut list = Vec::with_capacity(objects.len() + 2);
    list.push(b'[');
    list.extend_from_slice(objects);
    list.push(b']');
    let objects: Vec<Object<NewInstance>> = serde_json::from_slice(&list).ok()?;
    objects.into_iter().map(|Object(new)| new.checked().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(count: usize, one: impl Fn(usize) -> String) -> String {
        let all: Vec<_> = (0..count).map(one).collect();
        format!(" {{ \"instances\" : [{}] }}\n", all.join(","))
    }

    fn names(new: &[sluice_store::NewInstance]) -> Vec<&str> {
        new.iter().map(|one| one.name.as_str()).collect()
    }

    /// Catches a cut that loses, repeats or mixes up instances, and one in a nested list that is not noticed.
    #[test]
    fn halves_are_the_whole() {
        let plain = |i: usize| format!(r#"{{"name":"vm-{i}","subnet":"subnet-1","host":"host-{}"}}"#, i + 1);
        let text = body(30_000, plain);
        let new = parse(text.as_bytes()).unwrap();
        assert_eq!(names(&new), (0..30_000).map(|i| format!("vm-{i}")).collect::<Vec<_>>());
        assert!(new.iter().enumerate().all(|(i, one)| one.host.get() == i as u64 + 1));
        // Cut between two pairs of an instance, which is not a list then.
        let pair = r#"{"address":"10.0.0.9"}"#;
        let pairs = vec![pair; 50_000].join(",");
        let nested = |i: usize| {
            format!(r#"{{"name":"n{i}","subnet":"subnet-1","host":"host-1","address_pairs":[{pairs}]}}"#)
        };
        let text = body(1, nested);
        assert!(text.len() > MIN_BYTES);
        assert!(parse(text.as_bytes()).is_none());
        assert_eq!(super::super::instances::parse_bulk(text.as_bytes()).unwrap().len(), 1);
    }

    #[test]
    fn what_is_not_such_a_body_is_left_to_the_caller() {
        let plain = |i: usize| format!(r#"{{"name":"vm-{i}","subnet":"subnet-1","host":"host-1"}}"#);
        let good = body(30_000, plain);
        assert!(parse(good.as_bytes()).is_some());
        let unusual = [
            good.replace("\"instances\"", "\"instance\""),
            good.replace("] }", "], \"more\": 1 }"),
            good.replace("vm-29999", "no name"),
            good.replace("vm-7\"", "vm-7\",\"x\":1,\"y\":\""),
            good.replace("},{", "}{"),
            good.replace("] }", ",] }"),
            body(100, plain),
        ];
        for text in unusual {
            assert!(parse(text.as_bytes()).is_none(), "{}", &text[..60]);
        }
    }
}
