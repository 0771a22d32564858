//! Whole items: what a token begins, with all that is in it.

use super::{Reader, Token};

impl<'a> Reader<'a> {
    /// Takes an item with all that is in it, and gives its bytes; `None` if it is cut, or nests
    /// deeper
    pub fn item(&mut self, nesting_max: u32) -> Option<&'a [u8]> {
        let before = self.rest();
        let token = self.token().ok()?;
        self.skip(token, nesting_max)?;
        Some(&before[..before.len() - self.rest().len()])
    }

    /// Reads over the items of an array or map, if a token begins one
    pub fn skip(&mut self, token: Token<'_>, nesting_left: u32) -> Option<()> {
        let items = match token {
            Token::Array(items) => u64::from(items),
            Token::Map(pairs) => 2 * u64::from(pairs),
            _ => return Some(()),
        };
        let nesting_left = nesting_left.checked_sub(1)?;
        for _ in 0..items {
            let token = self.token().ok()?;
            self.skip(token, nesting_left)?;
        }
        Some(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed step fails the test")]
mod tests {
    use super::*;
    use crate::msgpack::Writer;

    #[test]
    fn an_item_is_taken_with_all_that_is_in_it() {
        let mut writer = Writer::default();
        writer.array(2).unwrap();
        writer.map(1).unwrap();
        writer.str("x").unwrap();
        writer.array(0).unwrap();
        writer.uint(7);
        let item = writer.as_bytes().to_vec();
        writer.nil();
        let mut reader = Reader::new(writer.as_bytes());
        assert_eq!(reader.item(3), Some(&item[..]));
        assert_eq!(reader.token(), Ok(Token::Nil));
        assert_eq!(Reader::new(&item).item(2), None);
        for end in 0..item.len() {
            assert_eq!(Reader::new(&item[..end]).item(3), None, "{end}");
        }
    }
}
