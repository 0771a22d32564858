//! Parts of Dask's messages: msgpack, headers, pickles of tasks; and the order of graphs.

use backhaul_dask::codec::header::{of_pickle, pickle_of};
use backhaul_dask::codec::task::{payload_of, pickle_around};
use backhaul_dask::codec::{Bounded, Limits, ShortTexts};
use backhaul_dask::msgpack::{Reader, TIMESTAMP, Timestamp, Token, Writer};
use backhaul_dask::order::{GraphBuilder, TaskId, TaskKind, order};

use crate::Input;

/// Each token takes bytes, is within what is there, and comes back when it is written
pub(super) fn msgpack(data: &[u8]) {
    let mut reader = Reader::new(data);
    let mut written = Writer::default();
    let mut tokens = Vec::new();
    while !reader.rest().is_empty() {
        let left = reader.rest().len();
        let token = match reader.token() {
            Ok(token) => token,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                break;
            }
        };
        assert!(reader.rest().len() < left);
        match token {
            Token::Array(items) => assert!(items as usize <= data.len()),
            Token::Map(pairs) => assert!(pairs as usize <= data.len() / 2),
            Token::Str(bytes) | Token::Bin(bytes) => assert!(bytes.len() < left),
            Token::Ext(TIMESTAMP, bytes) => {
                if let Some(time) = Timestamp::parse(bytes) {
                    check_time(time);
                }
            }
            _ => {}
        }
        if write(&mut written, token) {
            tokens.push(token);
        }
    }
    assert!(written.len() <= data.len(), "the shortest form is longer");
    // Lengths of arrays and maps are bounded by the bytes at hand.
    written.extend(&vec![0; data.len()]);
    let mut again = Reader::new(written.as_bytes());
    for token in tokens {
        let read = again.token();
        assert!(
            read == Ok(token) || is_nan(token) && read.is_ok_and(is_nan),
            "{read:?}"
        );
    }
}

fn write(writer: &mut Writer, token: Token<'_>) -> bool {
    let is_written = match token {
        Token::Nil => {
            writer.nil();
            Ok(())
        }
        Token::Bool(value) => {
            writer.bool(value);
            Ok(())
        }
        Token::Int(value) => {
            writer.int(value);
            Ok(())
        }
        Token::Uint(value) => {
            writer.uint(value);
            Ok(())
        }
        // Written in eight bytes, where four may have come.
        Token::Float(_) => return false,
        Token::Str(text) => match str::from_utf8(text) {
            Ok(text) => writer.str(text),
            Err(_) => return false,
        },
        Token::Bin(bytes) => writer.bin(bytes),
        Token::Array(items) => writer.array(items as usize),
        Token::Map(pairs) => writer.map(pairs as usize),
        Token::Ext(code, bytes) => writer.ext(code, bytes),
    };
    is_written.is_ok()
}

fn check_time(time: Timestamp) {
    let mut writer = Writer::default();
    writer.timestamp(time.seconds, time.nanoseconds);
    let Ok(Token::Ext(TIMESTAMP, bytes)) = Reader::new(writer.as_bytes()).token() else {
        panic!("{time:?} is written as something else");
    };
    assert_eq!(Timestamp::parse(bytes), Some(time));
}

fn is_nan(token: Token<'_>) -> bool {
    matches!(token, Token::Float(value) if value.is_nan())
}

/// Headers and pickles are found whole or not at all; what is remembered stays within its bounds
pub(super) fn codec(data: &[u8]) {
    if let Some(pickle) = pickle_of(data) {
        let header = of_pickle(&[pickle]).expect("not longer than what it came from");
        assert_eq!(pickle_of(header.as_bytes()), Some(pickle));
    }
    let mut input = Input::new(data);
    let prefix = input.piece();
    let pickle = input.take(usize::MAX);
    if let Some(payload) = payload_of(pickle, prefix) {
        let (head, tail) = pickle_around(payload.len()).expect("not longer than what it came from");
        let again = [prefix, &head, payload, tail].concat();
        assert_eq!(payload_of(&again, prefix), Some(payload));
    }
    remember(pickle);
}

fn remember(data: &[u8]) {
    let mut input = Input::new(data);
    let limits = Limits {
        entries_max: input.below(9),
        bytes_max: usize::from(input.byte()),
        entry_bytes_max: usize::from(input.byte()),
    };
    let mut map = Bounded::new(limits);
    let mut texts = ShortTexts::new();
    let mut inside = 0_isize;
    while !input.is_empty() {
        let (key, text) = (input.byte(), input.piece());
        inside += 1 - isize::try_from(map.insert(key, (), text.len()).len()).unwrap();
        let (entries, bytes) = map.usage();
        assert!(entries <= limits.entries_max && bytes <= limits.bytes_max);
        assert_eq!(entries as isize, inside);
        if let Some(value) = texts.get(text, false) {
            assert_eq!(*value, text);
        }
        texts.put(text, input.flag(), text);
    }
}

/// A graph is refused, or each task is ordered once, after what it depends on
pub(super) fn graph(data: &[u8]) {
    let mut input = Input::new(data);
    let tasks = 1 + input.below(40);
    let externals = input.below(4);
    let mut builder = GraphBuilder::with_capacity(tasks);
    let mut ids = Vec::new();
    for number in 0..tasks + externals {
        let kind = match (number < tasks, input.below(8)) {
            (false, _) => TaskKind::External,
            (true, 0) => TaskKind::Data,
            (true, _) => TaskKind::Run,
        };
        let hash = if input.flag() {
            number as u64
        } else {
            input.number()
        };
        let label = match input.below(4) {
            0 => String::from_utf8_lossy(input.piece()).into_owned(),
            _ => format!("task-{number}"),
        };
        let id = builder.add_task(kind, hash as isize, &label);
        ids.push((id.expect("few tasks"), kind));
    }
    let mut dependencies: Vec<Vec<TaskId>> = Vec::new();
    for number in 0..tasks {
        let count = if ids[number].1 == TaskKind::Run {
            input.below(6)
        } else {
            0
        };
        let mut of: Vec<TaskId> = Vec::new();
        for _ in 0..count {
            // A later one may close a cycle.
            let bound = if input.below(32) == 0 {
                ids.len()
            } else {
                number.max(1)
            };
            let other = ids[input.below(bound)].0;
            if !of.contains(&other) {
                of.push(other);
            }
        }
        builder.add_dependencies(&of, input.choose(&[8, 32, 128, 3]));
        dependencies.push(of);
    }
    let graph = builder.build();
    let Ok(ordered) = order(&graph) else {
        return;
    };
    let mut place = vec![None; ids.len()];
    for (at, task) in ordered.iter().enumerate() {
        assert!(task.index() < tasks, "an external key has no place");
        assert!(
            place[task.index()].replace(at).is_none(),
            "a task has one place"
        );
    }
    assert_eq!(ordered.len(), tasks);
    for (task, of) in dependencies.iter().enumerate() {
        for other in of.iter().filter(|other| other.index() < tasks) {
            assert!(place[other.index()] < place[task] || other.index() == task);
        }
    }
}
