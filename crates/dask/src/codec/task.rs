//! The pickle of a simple task.
//!
//! A task is written as msgpack, with what msgpack does not tell apart in tagged arrays ([`tag`]):
//! its payload. Around it is a pickle of four opcodes: a prefix that the caller knows, which loads
//! the function that reads tasks; the payload as bytes; and the call. So any unpickler understands
//! it, and ours finds the payload without one.

/// First items of the arrays that say what msgpack cannot
pub mod tag {
    /// Items
    pub const TUPLE: u64 = 0;
    /// Items
    pub const LIST: u64 = 1;
    /// Keys and values in turn
    pub const DICT: u64 = 2;
    /// Items
    pub const FROZEN_SET: u64 = 3;
    /// Start, stop, step
    pub const SLICE: u64 = 4;
    /// Key
    pub const TASK_REF: u64 = 5;
    /// Number of the class, slots
    pub const TASK: u64 = 6;
    /// Key, target
    pub const ALIAS: u64 = 7;
    /// Key, value
    pub const DATA_NODE: u64 = 8;
    /// Module, name
    pub const GLOBAL: u64 = 9;
    /// Pickle
    pub const FUNCTION: u64 = 10;
    /// Function, arguments, named arguments
    pub const PARTIAL: u64 = 11;
}

/// The opcodes before and after a payload; `None`, if it is too long for one
#[must_use]
pub fn pickle_around(payload_bytes: usize) -> Option<(Vec<u8>, &'static [u8])> {
    let len = u32::try_from(payload_bytes).ok()?;
    let head = match u8::try_from(len) {
        Ok(len) => vec![SHORT_BINBYTES, len],
        Err(_) => [&[BINBYTES][..], &len.to_le_bytes()].concat(),
    };
    Some((head, TAIL))
}

/// The payload in a pickle that was made with this prefix; `None`, if it is another one
#[must_use]
pub fn payload_of<'a>(pickle: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let rest = pickle.strip_prefix(prefix)?.strip_suffix(TAIL)?;
    let (payload, len) = match *rest.first()? {
        SHORT_BINBYTES => (rest.get(2..)?, usize::from(*rest.get(1)?)),
        BINBYTES => {
            let (len, payload) = rest[1..].split_first_chunk()?;
            (payload, u32::from_le_bytes(*len) as usize)
        }
        _ => return None,
    };
    (payload.len() == len).then_some(payload)
}

/// Opcodes of pickle, from the module `pickletools`
const SHORT_BINBYTES: u8 = b'C';
const BINBYTES: u8 = b'B';
/// `TUPLE1`, `REDUCE`, `STOP`
const TAIL: &[u8] = b"\x85R.";

#[cfg(test)]
mod tests {
    use super::*;

    fn pickled(payload: &[u8]) -> Vec<u8> {
        let (head, tail) = pickle_around(payload.len()).expect("not too long");
        [PREFIX, &head, payload, tail].concat()
    }

    #[test]
    fn a_payload_is_found_in_its_pickle() {
        for bytes in [0, 1, 255, 256, 70_000] {
            let payload = vec![7; bytes];
            let pickle = pickled(&payload);
            assert_eq!(payload_of(&pickle, PREFIX), Some(&payload[..]));
            assert_eq!(payload_of(&pickle, b"\x80\x05another"), None);
        }
    }

    #[test]
    fn a_pickle_that_is_cut_or_of_another_length_is_none() {
        for bytes in [3, 300] {
            let pickle = pickled(&vec![7; bytes]);
            for end in 0..pickle.len() {
                assert_eq!(payload_of(&pickle[..end], PREFIX), None, "{end}");
            }
            let mut longer = pickle;
            longer.insert(PREFIX.len() + 6, 7);
            assert_eq!(payload_of(&longer, PREFIX), None);
        }
        assert_eq!(payload_of(b"", b""), None);
        assert_eq!(payload_of(b"\x85R.", b""), None);
    }

    #[test]
    fn a_payload_that_one_opcode_cannot_hold_has_no_pickle() {
        assert!(pickle_around(u32::MAX as usize).is_some());
        assert!(pickle_around(u32::MAX as usize + 1).is_none());
    }

    const PREFIX: &[u8] = b"\x80\x05prefix";
}
