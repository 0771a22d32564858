//! Payloads that show where each byte belongs.
//!
//! The word at offset `8 * i` is a mix of `i` and a seed, so that a byte that is lost, doubled,
//! swapped or from another message is seen, at the speed of memory.

/// Makes `bytes` bytes
pub fn make(seed: u64, bytes: usize) -> Vec<u8> {
    let mut memory = vec![0; bytes];
    let (words, rest) = memory.as_chunks_mut::<8>();
    for (index, target) in words.iter_mut().enumerate() {
        *target = word(seed, index as u64).to_le_bytes();
    }
    let last = word(seed, words.len() as u64).to_le_bytes();
    rest.copy_from_slice(&last[..rest.len()]);
    memory
}

/// Checks that `memory` is what [`make`] made
///
/// # Panics
///
/// If it is not, naming the first wrong offset.
#[track_caller]
pub fn check(seed: u64, memory: &[u8]) {
    check_at(seed, 0, memory);
}

/// Checks `memory` as the part at `offset` of what [`make`] made
///
/// # Panics
///
/// If it is not, naming the first wrong offset.
#[track_caller]
pub fn check_at(seed: u64, offset: usize, memory: &[u8]) {
    let head = memory.len().min(offset.next_multiple_of(8) - offset);
    let (head, aligned) = memory.split_at(head);
    check_bytes(seed, offset, head);
    let mut at = offset + head.len();
    let (words, rest) = aligned.as_chunks::<8>();
    for found in words {
        if u64::from_le_bytes(*found) != word(seed, at as u64 / 8) {
            check_bytes(seed, at, found);
        }
        at += 8;
    }
    check_bytes(seed, at, rest);
}

#[track_caller]
fn check_bytes(seed: u64, offset: usize, memory: &[u8]) {
    for (at, found) in (offset..).zip(memory) {
        let expected = word(seed, at as u64 / 8).to_le_bytes()[at % 8];
        assert_eq!(
            *found, expected,
            "byte {at} of a message of seed {seed} is wrong"
        );
    }
}

fn word(seed: u64, index: u64) -> u64 {
    // An odd multiplier is a bijection: Knuth, TAOCP vol. 3, 6.4.
    (index.wrapping_add(seed << 40) ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_passes_in_any_pieces() {
        let memory = make(7, 101);
        check(7, &memory);
        for cut in 0..101 {
            check_at(7, 0, &memory[..cut]);
            check_at(7, cut, &memory[cut..]);
        }
    }

    #[test]
    #[should_panic(expected = "byte 50")]
    fn a_wrong_byte_is_named() {
        let mut memory = make(7, 101);
        memory[50] ^= 1;
        check(7, &memory);
    }

    #[test]
    #[should_panic(expected = "is wrong")]
    fn another_message_is_not_this_one() {
        check(8, &make(7, 101));
    }
}
