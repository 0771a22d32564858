//! Pickles of numbers and short text.

/// Longest text that is taken for a scalar, and longest pickle of one, in bytes
///
/// Longer ones are rare and gain nothing; less than what Dask tries to compress.
pub const PICKLED_BYTES_MAX: usize = 1000;

/// Returns whether Dask sends a scalar as this pickle: neither compressed nor pickled once more
#[must_use]
pub fn is_sent_as_it_is(pickled: &[u8]) -> bool {
    // Text that seems to refer to the main module is left to cloudpickle.
    pickled.len() <= PICKLED_BYTES_MAX && !pickled.windows(MAIN.len()).any(|part| part == MAIN)
}

const MAIN: &[u8] = b"__main__";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_pickles_and_those_of_the_main_module_are_left_to_dask() {
        assert!(is_sent_as_it_is(b"\x80\x05K\x01."));
        assert!(is_sent_as_it_is(b""));
        assert!(is_sent_as_it_is(&[0; PICKLED_BYTES_MAX]));
        assert!(!is_sent_as_it_is(&[0; PICKLED_BYTES_MAX + 1]));
        assert!(!is_sent_as_it_is(b"\x80\x05\x8c\x08__main__\x94."));
    }
}
