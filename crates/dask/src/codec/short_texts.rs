//! Cache of objects made for short texts that repeat: the keys of a message's maps, and short
//! values.

/// Values by the bytes of short texts
///
/// Each text has one place, given by a hash; a newer one takes it over. So nothing is ever
/// searched or evicted, and the size is fixed.
#[derive(Debug)]
pub struct ShortTexts<T> {
    places: Vec<Option<Place<T>>>,
}

#[derive(Debug)]
struct Place<T> {
    len: u8,
    is_interned: bool,
    bytes: [u8; SHORT_BYTES_MAX],
    value: T,
}

impl<T> ShortTexts<T> {
    /// Without any
    #[must_use]
    pub fn new() -> Self {
        let mut places = Vec::new();
        places.resize_with(PLACES, || None);
        Self { places }
    }

    /// Returns the last object for a text, if the text is short and its place was not taken over
    ///
    /// Where it `must_be_interned`, only what was put so counts.
    #[inline]
    #[must_use]
    pub fn get(&self, text: &[u8], must_be_interned: bool) -> Option<&T> {
        let found = self.places[place_of(text)].as_ref()?;
        let is_it = usize::from(found.len) == text.len()
            && found.bytes[..text.len()] == *text
            && (found.is_interned || !must_be_interned);
        is_it.then_some(&found.value)
    }

    /// Remembers what was made of a text, if it is short
    pub fn put(&mut self, text: &[u8], is_interned: bool, value: T) {
        let len = match u8::try_from(text.len()) {
            Ok(len) if text.len() <= SHORT_BYTES_MAX => len,
            _ => return,
        };
        let mut bytes = [0; SHORT_BYTES_MAX];
        bytes[..text.len()].copy_from_slice(text);
        self.places[place_of(text)] = Some(Place {
            len,
            is_interned,
            bytes,
            value,
        });
    }
}

impl<T> Default for ShortTexts<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// A hash of the length and of both ends, which may overlap, folded to the number of places
fn place_of(text: &[u8]) -> usize {
    let [first, last] = match (text.first_chunk(), text.last_chunk()) {
        (Some(first), Some(last)) => [u64::from_le_bytes(*first), u64::from_le_bytes(*last)],
        _ => {
            let mut bytes = [0; 8];
            bytes[..text.len()].copy_from_slice(text);
            [u64::from_le_bytes(bytes), 0]
        }
    };
    // Any odd factor that mixes all bits will do; this is 2**64 divided by the golden ratio
    // (Knuth, The Art of Computer Programming, 6.4).
    let mixed =
        (first ^ last.rotate_left(23) ^ text.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 48) as usize % PLACES
}

/// Longer texts, such as the keys of tasks, seldom come again
const SHORT_BYTES_MAX: usize = 30;

/// A few times the keys of all messages of Dask; a power of two
const PLACES: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_its_own_value_or_none_whatever_was_in_its_place() {
        let mut texts = ShortTexts::new();
        let mut found = 0;
        for number in 0..10 * PLACES {
            for text in [format!("key-{number}"), format!("{number}"), String::new()] {
                if let Some(value) = texts.get(text.as_bytes(), false) {
                    assert_eq!(*value, text);
                    found += 1;
                }
                texts.put(text.as_bytes(), false, text.clone());
                assert_eq!(texts.get(text.as_bytes(), false), Some(&text));
            }
        }
        assert!(found > 0);
    }

    #[test]
    fn a_value_that_is_not_interned_is_no_key() {
        let mut texts = ShortTexts::new();
        texts.put(b"op", false, 1);
        assert_eq!(texts.get(b"op", true), None);
        texts.put(b"op", true, 2);
        assert_eq!(texts.get(b"op", true), Some(&2));
        assert_eq!(texts.get(b"op", false), Some(&2));
    }

    #[test]
    fn long_texts_are_not_remembered() {
        let mut texts = ShortTexts::new();
        for bytes in [SHORT_BYTES_MAX + 1, 256, 256 + 1, 1 << 16] {
            let text = vec![b'k'; bytes];
            texts.put(&text, true, ());
            assert_eq!(texts.get(&text, true), None);
        }
        let text = [b'k'; SHORT_BYTES_MAX];
        texts.put(&text, true, ());
        assert_eq!(texts.get(&text, true), Some(&()));
        assert_eq!(texts.get(&[b'k'; SHORT_BYTES_MAX + 1], true), None);
    }
}
