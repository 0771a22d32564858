//! Decisions read from bytes.

/// The bytes of one run, read as decisions; once they have run out, each is 0
#[derive(Clone, Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// Reads from the start of `bytes`
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns whether nothing is left
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next byte
    pub fn byte(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    /// A number below `bound`, which is at most 256 and not 0
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    /// Yes or no
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// One of a list, which is not empty
    pub fn choose<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// Any 16 bits
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Any 64 bits
    pub fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A number that is small more often than not, and next to a limit of its type at times
    pub fn number(&mut self) -> u64 {
        match self.below(8) {
            0..=4 => u64::from(self.byte()),
            5 => u64::from(self.short()),
            6 => u64::MAX - u64::from(self.byte()),
            _ => self.word(),
        }
    }

    /// The next bytes, at most `bytes_max` of them
    pub fn take(&mut self, bytes_max: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(bytes_max.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// The next bytes, as many as the first of them says
    pub fn piece(&mut self) -> &'a [u8] {
        let bytes = usize::from(self.byte());
        self.take(bytes)
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.take(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }
}
