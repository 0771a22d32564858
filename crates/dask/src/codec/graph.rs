//! A graph of tasks as a client sends it: keys once, and of each task its pickle and what it needs.
//!
//! Keys are written as in the payload of a task ([`super::task`]) and named by their numbers from
//! then on. The first are those of the tasks, in the order of the graph; behind them are those of
//! inputs from other graphs. A pickle of this codec is its payload only: the bytes around it are
//! the same for all of them.

use std::collections::HashSet;

use super::calls::plain_key;
use super::task::pickle_around;
use crate::msgpack::{Reader, Token, TooLong, Writer};

/// Facts about a task in one number
pub mod flag {
    /// It produces data
    pub const DATA_PRODUCER: u64 = 1;
    /// It is of the class that stands for a call
    pub const IS_CALL: u64 = 2;
    /// Its pickle is there as a whole: it was not written by this codec
    pub const IS_WHOLE: u64 = 4;
}

/// A graph as a client sends it
#[derive(Clone, Debug)]
pub struct Tasks<'a> {
    /// Opcodes of a pickle, up to the payload
    prefix: &'a [u8],
    /// Msgpack of the keys, as they travel
    keys: Vec<Vec<u8>>,
    /// Keys that the client wants, as numbers
    wanted: Vec<u32>,
    count: u32,
    tasks: &'a [u8],
}

/// One task
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TaskItem<'a> {
    /// Place in the order of the graph
    pub order: u64,
    /// Numbers of the keys that it depends on
    pub needs: Vec<u32>,
    flags: u64,
    pickle: &'a [u8],
}

/// Writes what comes before the tasks: the prefix of their pickles, keys and what is wanted, both of
/// which the caller has written as arrays, and how many tasks follow
///
/// # Errors
///
/// [`TooLong`] for a prefix that msgpack cannot hold.
pub fn write_head(
    writer: &mut Writer,
    prefix: &[u8],
    keys: &[u8],
    wanted: &[u8],
    count: usize,
) -> Result<(), TooLong> {
    writer.bin(prefix)?;
    writer.extend(keys);
    writer.extend(wanted);
    writer.uint(count as u64);
    Ok(())
}

/// Writes a task
///
/// # Errors
///
/// [`TooLong`] for a pickle that msgpack cannot hold.
pub fn write_task(
    writer: &mut Writer,
    order: u64,
    flags: u64,
    needs: &[u32],
    pickle: &[u8],
) -> Result<(), TooLong> {
    writer.uint(order);
    writer.uint(flags);
    write_numbers(writer, needs)?;
    writer.bin(pickle)
}

/// Writes numbers of keys
///
/// # Errors
///
/// [`TooLong`] for more than msgpack can hold.
pub fn write_numbers(writer: &mut Writer, numbers: &[u32]) -> Result<(), TooLong> {
    writer.array(numbers.len())?;
    numbers
        .iter()
        .for_each(|&number| writer.uint(number.into()));
    Ok(())
}

impl<'a> Tasks<'a> {
    /// Reads a graph; `None` if it is malformed, names a key twice, or one that it has not
    #[must_use]
    pub fn read(data: &'a [u8]) -> Option<Self> {
        let graph = Self::read_head(data)?;
        let names = graph.keys.len();
        let mut known = HashSet::with_capacity(names);
        let is_there = |&number: &u32| (number as usize) < names;
        if graph.count as usize > names
            || !graph.keys.iter().all(|key| known.insert(&**key))
            || !graph.wanted.iter().all(is_there)
        {
            return None;
        }
        let mut reader = Reader::new(graph.tasks);
        for _ in 0..graph.count {
            let task = TaskItem::read(&mut reader)?;
            if !task.needs.iter().all(is_there) {
                return None;
            }
        }
        reader.rest().is_empty().then_some(graph)
    }

    /// Reads it as far as it is well formed, of bytes that [`Self::read`] has found to be
    #[must_use]
    pub fn read_head(data: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(data);
        let Ok(Token::Bin(prefix)) = reader.token() else {
            return None;
        };
        let Ok(Token::Array(count)) = reader.token() else {
            return None;
        };
        let keys = (0..count).map(|_| plain_key(&mut reader));
        let keys = keys.collect::<Option<_>>()?;
        let wanted = read_numbers(&mut reader)?;
        Some(Self {
            prefix,
            keys,
            wanted,
            count: read_number(&mut reader)?,
            tasks: reader.rest(),
        })
    }

    /// How many tasks there are
    #[must_use]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns whether there are none
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Msgpack of the keys, those of the tasks first
    #[must_use]
    pub fn keys(&self) -> &[Vec<u8>] {
        &self.keys
    }

    /// Numbers of the keys that are wanted
    #[must_use]
    pub fn wanted(&self) -> &[u32] {
        &self.wanted
    }

    /// Each task, in the order of their keys
    pub fn iter(&self) -> impl Iterator<Item = TaskItem<'a>> + use<'a> {
        let mut reader = Reader::new(self.tasks);
        (0..self.count).map_while(move |_| TaskItem::read(&mut reader))
    }

    /// The pickle of one of them; `None` if there is none so long
    #[must_use]
    pub fn pickle(&self, task: &TaskItem<'_>) -> Option<Vec<u8>> {
        if task.flags & flag::IS_WHOLE != 0 {
            return Some(task.pickle.to_vec());
        }
        let (head, tail) = pickle_around(task.pickle.len())?;
        Some([self.prefix, &head, task.pickle, tail].concat())
    }
}

impl<'a> TaskItem<'a> {
    fn read(reader: &mut Reader<'a>) -> Option<Self> {
        let Ok(Token::Int(order)) = reader.token() else {
            return None;
        };
        let Ok(Token::Int(flags)) = reader.token() else {
            return None;
        };
        let needs = read_numbers(reader)?;
        let Ok(Token::Bin(pickle)) = reader.token() else {
            return None;
        };
        Some(Self {
            order: u64::try_from(order).ok()?,
            needs,
            flags: u64::try_from(flags).ok()?,
            pickle,
        })
    }

    /// Returns whether it produces data
    #[must_use]
    pub fn is_data_producer(&self) -> bool {
        self.flags & flag::DATA_PRODUCER != 0
    }

    /// Returns whether it is of the class that stands for a call
    #[must_use]
    pub fn is_call(&self) -> bool {
        self.flags & flag::IS_CALL != 0
    }
}

fn read_numbers(reader: &mut Reader<'_>) -> Option<Vec<u32>> {
    let Ok(Token::Array(count)) = reader.token() else {
        return None;
    };
    (0..count).map(|_| read_number(reader)).collect()
}

fn read_number(reader: &mut Reader<'_>) -> Option<u32> {
    match reader.token() {
        Ok(Token::Int(number)) => u32::try_from(number).ok(),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed step fails the test")]
mod tests {
    use super::*;
    use crate::codec::task::{payload_of, tag};

    fn graph(needs: &[u32], keys: &[&str]) -> Vec<u8> {
        let mut names = Writer::default();
        names.array(1 + keys.len()).unwrap();
        keys.iter().for_each(|key| names.str(key).unwrap());
        names.array(3).unwrap();
        names.uint(tag::TUPLE);
        names.str("x").unwrap();
        names.uint(3);
        let mut wanted = Writer::default();
        write_numbers(&mut wanted, &[1]).unwrap();
        let mut writer = Writer::default();
        write_head(&mut writer, PREFIX, names.as_bytes(), wanted.as_bytes(), 2).unwrap();
        write_task(&mut writer, 1, flag::IS_CALL, &[], b"payload").unwrap();
        let flags = flag::IS_WHOLE | flag::DATA_PRODUCER;
        write_task(&mut writer, 0, flags, needs, b"pickle").unwrap();
        writer.into_bytes()
    }

    #[test]
    fn a_graph_is_read_as_it_was_written() {
        let data = graph(&[0, 2], &["a", "b"]);
        let read = Tasks::read(&data).unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!(read.wanted(), [1]);
        assert_eq!(read.keys(), [&b"\xa1a"[..], b"\xa1b", b"\x92\xa1x\x03"]);
        let tasks: Vec<_> = read.iter().collect();
        let pickle = read.pickle(&tasks[0]).unwrap();
        assert_eq!(payload_of(&pickle, PREFIX), Some(&b"payload"[..]));
        assert!(tasks[0].is_call() && !tasks[0].is_data_producer());
        assert_eq!(read.pickle(&tasks[1]), Some(b"pickle".to_vec()));
        assert!(!tasks[1].is_call() && tasks[1].is_data_producer());
        assert_eq!((&tasks[1].needs[..], tasks[1].order), (&[0, 2][..], 0));
    }

    #[test]
    fn truncated_or_overlong_graphs_and_unknown_keys_are_refused() {
        let mut data = graph(&[0], &["a", "b"]);
        for end in 0..data.len() {
            assert!(Tasks::read(&data[..end]).is_none(), "{end}");
        }
        data.push(0xc0);
        assert!(Tasks::read(&data).is_none());
        assert!(Tasks::read(&graph(&[3], &["a", "b"])).is_none());
        assert!(Tasks::read(&graph(&[0], &["a", "a"])).is_none());
        assert!(Tasks::read(&graph(&[0], &[])).is_none());
    }

    const PREFIX: &[u8] = b"\x80\x05prefix";
}
