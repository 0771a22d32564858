//! Sets as masks: words of 32 bits in hexadecimal digits, the highest word first
//!
//! `00000003,ffffffff` in sysfs, `0x00000003,,0x00000001` in XML of hwloc.

use crate::cpuset::{CPUS_MAX, CpuSet};

/// Reads a mask; `None` if it is none
pub(super) fn parse(text: &str) -> Option<CpuSet> {
    let words: Vec<&str> = text.trim().split(',').collect();
    if words.len() > CPUS_MAX as usize / 32 {
        return None;
    }
    let mut members = Vec::new();
    for (at, word) in (0..).zip(words.into_iter().rev()) {
        let digits = word.strip_prefix("0x").unwrap_or(word);
        let word = match digits {
            "" => 0,
            digits if digits.bytes().all(|b| b.is_ascii_hexdigit()) => {
                u32::from_str_radix(digits, 16).ok()?
            }
            _ => return None,
        };
        let bits = (0..32).filter(|bit| word >> bit & 1 == 1);
        members.extend(bits.map(|bit| at * 32 + bit));
    }
    Some(members.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_from_the_highest_down() {
        let list = |text: &str| parse(text).map(|cpus| cpus.to_string());
        assert_eq!(list("0x0000ffff,,0x00000001").as_deref(), Some("0,64-79"));
        assert_eq!(list("00000003,80000000\n").as_deref(), Some("31-33"));
        assert_eq!(list("0x0").as_deref(), Some(""));
        for text in ["0-3", "+1", "0x100000000", "g"] {
            assert_eq!(list(text), None, "{text}");
        }
        assert_eq!(parse(&",".repeat(1 << 20)), None);
    }
}
