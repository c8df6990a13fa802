//! Whether the host has IPsec policies, which packets that the programs encapsulate do not pass. This file changes with
//! the tool that lists them.

use tokio::process::Command;

/// Whether the kernel has IPsec policies (`ip xfrm policy count`). False if that cannot be found out.
pub async fn has_policies() -> bool {
    let output = Command::new("ip").args(["xfrm", "policy", "count"]).output().await;
    output.is_ok_and(|output| counts_any(&String::from_utf8_lossy(&output.stdout)))
}

/// Whether a line such as `SPD IN  0 OUT 2 FWD 0` has a number other than 0.
fn counts_any(text: &str) -> bool {
    text.split_whitespace().filter_map(|word| word.parse::<u64>().ok()).any(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_counted() {
        assert!(!counts_any("\t SPD IN  0 OUT 0 FWD 0\n"));
        assert!(counts_any("\t SPD IN  0 OUT 2 FWD 0 (Sock: IN 0 OUT 0 FWD 0)\n"));
        assert!(!counts_any(""));
    }
}
