//! Batches of messages as they come: what of them is hot.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::{PeerKind, keys};
use crate::msgpack::{Reader, Token};
use crate::scheduler::{NBYTES_MAX, SchedulerCore};

/// A key as the core has it
type KeyBytes<'a> = Cow<'a, [u8]>;

/// Actions that took time, each with its begin and end in seconds
type Actions<'a> = SmallVec<[(&'a str, f64, f64); 4]>;

/// One hot message
#[derive(Debug)]
pub(super) enum Incoming<'a> {
    Finished(Finished<'a>),
    ReleaseData {
        key: KeyBytes<'a>,
        stimulus: &'a str,
    },
    ReleaseKeys {
        keys: Vec<KeyBytes<'a>>,
        stimulus: Option<&'a str>,
    },
    AddKeys {
        keys: Vec<KeyBytes<'a>>,
        stimulus: &'a str,
    },
    LongRunning {
        key: KeyBytes<'a>,
        stimulus: &'a str,
        run_id: u64,
        compute_s: Option<f64>,
    },
    Submit(Submit<'a>),
}

/// `backhaul-submit` of a task without anything that is asked for besides
#[derive(Debug)]
pub(super) struct Submit<'a> {
    pub(super) key: KeyBytes<'a>,
    /// Group, and prefix, of the key
    pub(super) group: String,
    /// The task, pickled
    pub(super) spec: &'a [u8],
    pub(super) dependencies: Vec<KeyBytes<'a>>,
}

/// `task-finished`
#[derive(Debug)]
pub(super) struct Finished<'a> {
    pub(super) key: KeyBytes<'a>,
    pub(super) stimulus: &'a str,
    pub(super) run_id: u64,
    pub(super) nbytes: u64,
    pub(super) type_: &'a [u8],
    pub(super) type_name: &'a str,
    pub(super) actions: Actions<'a>,
    pub(super) value: Option<&'a [u8]>,
    pub(super) thread: Option<u64>,
}

impl Incoming<'_> {
    /// Returns whether its keys may be looked up: one that is no text may be spelled in several ways
    pub(super) fn is_known(&self, core: &SchedulerCore) -> bool {
        let is_known = |key: &KeyBytes<'_>| key.first() != Some(&0) || core.has_task(key);
        match self {
            Self::Finished(finished) => is_known(&finished.key),
            Self::ReleaseData { key, .. } | Self::LongRunning { key, .. } => is_known(key),
            Self::ReleaseKeys { keys, .. } | Self::AddKeys { keys, .. } => {
                keys.iter().all(is_known)
            }
            Self::Submit(submit) => submit.dependencies.iter().all(is_known),
        }
    }
}

impl Finished<'_> {
    /// How long it ran, in seconds
    pub(super) fn compute_s(&self) -> f64 {
        let actions = self.actions.iter();
        actions
            .filter(|(action, ..)| *action == "compute")
            .map(|(_, start_s, stop_s)| stop_s - start_s)
            .sum()
    }
}

/// Reads a batch of a peer of this name; None unless all of it is hot
pub(super) fn parse<'a>(header: &'a [u8], from: PeerKind, name: &str) -> Option<Vec<Incoming<'a>>> {
    let mut reader = Reader::new(header);
    let Ok(Token::Array(count)) = reader.token() else {
        return None;
    };
    let mut messages = Vec::with_capacity(count as usize);
    for _ in 0..count {
        messages.push(message(&mut reader, from, name)?);
    }
    reader.rest().is_empty().then_some(messages)
}

/// The fields of a message that mean something here
#[derive(Default)]
struct Fields<'a> {
    op: &'a [u8],
    key: Option<KeyBytes<'a>>,
    keys: Option<Vec<KeyBytes<'a>>>,
    stimulus: Option<&'a str>,
    run_id: Option<u64>,
    nbytes: u64,
    type_: Option<&'a [u8]>,
    type_name: Option<&'a str>,
    actions: Option<Actions<'a>>,
    value: Option<&'a [u8]>,
    thread: Option<u64>,
    /// Field of `long-running` only
    compute_s: Option<Option<f64>>,
    /// Fields of `task-finished` only
    is_of_task: bool,
    spec: Option<&'a [u8]>,
    dependencies: Option<Vec<KeyBytes<'a>>>,
}

impl Fields<'_> {
    /// Returns whether it is said of a run of a task
    fn is_of_run(&self) -> bool {
        self.run_id.is_some() || self.compute_s.is_some()
    }
}

fn message<'a>(reader: &mut Reader<'a>, from: PeerKind, peer: &str) -> Option<Incoming<'a>> {
    let Ok(Token::Map(pairs)) = reader.token() else {
        return None;
    };
    let mut fields = Fields::default();
    for _ in 0..pairs {
        let Ok(Token::Str(name)) = reader.token() else {
            return None;
        };
        // Dask takes a message for that of the client it names.
        if name == b"client" && from == PeerKind::Client {
            if text(reader)? != peer {
                return None;
            }
            continue;
        }
        field(&mut fields, name, reader)?;
    }
    let is_submit = fields.spec.is_some() || fields.dependencies.is_some();
    match (fields.op, from) {
        (b"backhaul-submit", PeerKind::Client)
            if !fields.is_of_task
                && fields.keys.is_none()
                && fields.stimulus.is_none()
                && !fields.is_of_run() =>
        {
            let key = fields.key?;
            Some(Incoming::Submit(Submit {
                group: keys::group_of(&key)?,
                key,
                spec: fields.spec.filter(|spec| spec.len() <= SPEC_BYTES_MAX)?,
                dependencies: fields.dependencies.unwrap_or_default(),
            }))
        }
        _ if is_submit => None,
        (b"long-running", PeerKind::Worker) if !fields.is_of_task && fields.keys.is_none() => {
            Some(Incoming::LongRunning {
                key: fields.key?,
                stimulus: fields.stimulus?,
                run_id: fields.run_id?,
                compute_s: fields.compute_s?,
            })
        }
        _ if fields.compute_s.is_some() => None,
        (b"task-finished", PeerKind::Worker) if fields.keys.is_none() => {
            Some(Incoming::Finished(Finished {
                key: fields.key?,
                stimulus: fields.stimulus?,
                run_id: fields.run_id?,
                nbytes: fields.nbytes,
                type_: fields.type_?,
                type_name: fields.type_name?,
                actions: fields.actions?,
                value: fields.value,
                thread: fields.thread,
            }))
        }
        (b"release-worker-data", PeerKind::Worker)
            if !fields.is_of_task && fields.keys.is_none() && !fields.is_of_run() =>
        {
            Some(Incoming::ReleaseData {
                key: fields.key?,
                stimulus: fields.stimulus?,
            })
        }
        (b"client-releases-keys", PeerKind::Client)
            if !fields.is_of_task && fields.key.is_none() && !fields.is_of_run() =>
        {
            Some(Incoming::ReleaseKeys {
                keys: fields.keys?,
                stimulus: fields.stimulus,
            })
        }
        (b"add-keys", PeerKind::Worker)
            if !fields.is_of_task && fields.key.is_none() && !fields.is_of_run() =>
        {
            Some(Incoming::AddKeys {
                keys: fields.keys?,
                stimulus: fields.stimulus?,
            })
        }
        _ => None,
    }
}

fn field<'a>(fields: &mut Fields<'a>, name: &[u8], reader: &mut Reader<'a>) -> Option<()> {
    match name {
        b"op" => fields.op = bytes_of(reader.token().ok()?)?,
        b"key" => fields.key = Some(key(reader)?),
        b"keys" => fields.keys = Some(all_keys(reader)?),
        b"stimulus_id" => fields.stimulus = Some(text(reader)?),
        b"spec" => {
            let Ok(Token::Bin(spec)) = reader.token() else {
                return None;
            };
            fields.spec = Some(spec);
        }
        b"dependencies" => fields.dependencies = Some(all_keys(reader)?),
        b"run_id" => fields.run_id = Some(unsigned(reader.token().ok()?)?),
        b"compute_duration" => {
            fields.compute_s = Some(match reader.token().ok()? {
                Token::Nil => None,
                token => Some(number(token)?),
            });
        }
        _ => {
            fields.is_of_task = true;
            return field_of_task(fields, name, reader);
        }
    }
    Some(())
}

fn field_of_task<'a>(fields: &mut Fields<'a>, name: &[u8], reader: &mut Reader<'a>) -> Option<()> {
    match name {
        b"nbytes" => {
            fields.nbytes = match reader.token().ok()? {
                Token::Nil => 0,
                // Dask handles larger sizes.
                token => unsigned(token).filter(|&nbytes| nbytes <= NBYTES_MAX)?,
            }
        }
        b"type" => {
            let Ok(Token::Bin(type_)) = reader.token() else {
                return None;
            };
            fields.type_ = Some(type_);
        }
        b"typename" => fields.type_name = Some(text(reader)?),
        b"startstops" => fields.actions = Some(actions(reader)?),
        b"value" => {
            let Ok(Token::Bin(value)) = reader.token() else {
                return None;
            };
            fields.value = Some(value);
        }
        // Any is for Dask.
        b"metadata" => match reader.token().ok()? {
            Token::Map(0) | Token::Nil => {}
            _ => return None,
        },
        b"thread" => {
            fields.thread = match reader.token().ok()? {
                Token::Nil => None,
                token => Some(unsigned(token)?),
            }
        }
        b"status" => {
            if bytes_of(reader.token().ok()?)? != b"OK" {
                return None;
            }
        }
        _ => return None,
    }
    Some(())
}

fn key<'a>(reader: &mut Reader<'a>) -> Option<KeyBytes<'a>> {
    let before = reader.rest();
    match reader.token().ok()? {
        Token::Str(text) => keys::of_text(text),
        token => {
            reader.skip(token, NESTING_MAX)?;
            let taken = before.len() - reader.rest().len();
            Some(Cow::Owned(keys::key_of(&before[..taken])))
        }
    }
}

fn all_keys<'a>(reader: &mut Reader<'a>) -> Option<Vec<KeyBytes<'a>>> {
    let Ok(Token::Array(count)) = reader.token() else {
        return None;
    };
    (0..count).map(|_| key(reader)).collect()
}

fn actions<'a>(reader: &mut Reader<'a>) -> Option<Actions<'a>> {
    let Ok(Token::Array(count)) = reader.token() else {
        return None;
    };
    let mut actions = SmallVec::new();
    for _ in 0..count {
        let Ok(Token::Map(pairs)) = reader.token() else {
            return None;
        };
        let (mut action, mut start_s, mut stop_s) = (None, None, None);
        for _ in 0..pairs {
            let Ok(Token::Str(name)) = reader.token() else {
                return None;
            };
            match name {
                b"action" => action = Some(text(reader)?),
                b"start" => start_s = Some(number(reader.token().ok()?)?),
                b"stop" => stop_s = Some(number(reader.token().ok()?)?),
                _ => {
                    let token = reader.token().ok()?;
                    reader.skip(token, NESTING_MAX)?;
                }
            }
        }
        actions.push((action?, start_s?, stop_s?));
    }
    Some(actions)
}

fn text<'a>(reader: &mut Reader<'a>) -> Option<&'a str> {
    std::str::from_utf8(bytes_of(reader.token().ok()?)?).ok()
}

fn bytes_of(token: Token<'_>) -> Option<&[u8]> {
    match token {
        Token::Str(text) => Some(text),
        _ => None,
    }
}

fn unsigned(token: Token<'_>) -> Option<u64> {
    match token {
        Token::Int(value) => u64::try_from(value).ok(),
        Token::Uint(value) => Some(value),
        _ => None,
    }
}

fn number(token: Token<'_>) -> Option<f64> {
    match token {
        Token::Float(value) => Some(value),
        Token::Int(value) => Some(value as f64),
        _ => None,
    }
}

/// Longest task that is handled here: plain ones are far shorter
const SPEC_BYTES_MAX: usize = 1 << 20;

/// Keys nest less than this, and so does what is said of an action
const NESTING_MAX: u32 = 32;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed step fails the test")]
mod tests {
    use super::*;
    use crate::msgpack::Writer;

    fn finished(
        writer: &mut Writer,
        key: impl Fn(&mut Writer),
        more: impl Fn(&mut Writer) -> usize,
    ) {
        let mut rest = Writer::default();
        let pairs = more(&mut rest);
        writer.map(6 + pairs).unwrap();
        writer.str("op").unwrap();
        writer.str("task-finished").unwrap();
        writer.str("key").unwrap();
        key(writer);
        writer.str("stimulus_id").unwrap();
        writer.str("because").unwrap();
        writer.str("run_id").unwrap();
        writer.uint(7);
        writer.str("typename").unwrap();
        writer.str("int").unwrap();
        writer.str("startstops").unwrap();
        writer.array(1).unwrap();
        writer.map(3).unwrap();
        writer.str("action").unwrap();
        writer.str("compute").unwrap();
        writer.str("stop").unwrap();
        writer.float(3.5);
        writer.str("start").unwrap();
        writer.uint(3);
        writer.extend(rest.as_bytes());
    }

    fn type_field(writer: &mut Writer) -> usize {
        writer.str("type").unwrap();
        writer.bin(b"int").unwrap();
        1
    }

    #[test]
    fn a_finished_task_is_read() {
        let mut writer = Writer::default();
        writer.array(1).unwrap();
        finished(&mut writer, |writer| writer.str("x").unwrap(), type_field);
        let batch = parse(writer.as_bytes(), PeerKind::Worker, "w").unwrap();
        let [Incoming::Finished(finished)] = &batch[..] else {
            panic!("{batch:?}");
        };
        assert_eq!(&*finished.key, b"x");
        assert_eq!(finished.run_id, 7);
        assert_eq!(finished.compute_s(), 0.5);
        // A client does not say so.
        assert!(parse(writer.as_bytes(), PeerKind::Client, "c").is_none());
    }

    #[test]
    fn a_key_that_is_no_text_comes_back_as_it_was() {
        let mut tuple = Writer::default();
        tuple.array(2).unwrap();
        tuple.str("x").unwrap();
        tuple.uint(200);
        let mut writer = Writer::default();
        writer.array(1).unwrap();
        finished(
            &mut writer,
            |writer| writer.extend(tuple.as_bytes()),
            type_field,
        );
        let batch = parse(writer.as_bytes(), PeerKind::Worker, "w").unwrap();
        let [Incoming::Finished(finished)] = &batch[..] else {
            panic!("{batch:?}");
        };
        assert_eq!(&*finished.key, keys::key_of(tuple.as_bytes()));
        let mut written = Writer::default();
        keys::write(&mut written, &finished.key).unwrap();
        assert_eq!(written.as_bytes(), tuple.as_bytes());
    }

    #[test]
    fn results_that_a_worker_has_got_are_read() {
        let mut writer = Writer::default();
        writer.array(1).unwrap();
        writer.map(3).unwrap();
        writer.str("op").unwrap();
        writer.str("add-keys").unwrap();
        writer.str("keys").unwrap();
        writer.array(2).unwrap();
        writer.str("x").unwrap();
        writer.uint(7);
        writer.str("stimulus_id").unwrap();
        writer.str("because").unwrap();
        let batch = parse(writer.as_bytes(), PeerKind::Worker, "w").unwrap();
        let [Incoming::AddKeys { keys, stimulus }] = &batch[..] else {
            panic!("{batch:?}");
        };
        assert_eq!(*stimulus, "because");
        assert_eq!(&*keys[0], b"x");
        assert_eq!(&*keys[1], keys::key_of(&[7]));
        // A client has none.
        assert!(parse(writer.as_bytes(), PeerKind::Client, "c").is_none());
    }

    #[test]
    fn a_task_that_leaves_its_thread_is_read() {
        for (duration, expected) in [(None, None), (Some(1.5), Some(1.5))] {
            let mut writer = Writer::default();
            writer.array(1).unwrap();
            writer.map(5).unwrap();
            writer.str("op").unwrap();
            writer.str("long-running").unwrap();
            writer.str("key").unwrap();
            writer.str("x").unwrap();
            writer.str("run_id").unwrap();
            writer.uint(3);
            writer.str("compute_duration").unwrap();
            match duration {
                Some(seconds) => writer.float(seconds),
                None => writer.nil(),
            }
            writer.str("stimulus_id").unwrap();
            writer.str("because").unwrap();
            let batch = parse(writer.as_bytes(), PeerKind::Worker, "w").unwrap();
            let [
                Incoming::LongRunning {
                    key,
                    run_id,
                    compute_s,
                    ..
                },
            ] = &batch[..]
            else {
                panic!("{batch:?}");
            };
            assert_eq!((&**key, *run_id, *compute_s), (&b"x"[..], 3, expected));
        }
    }

    #[test]
    fn a_message_that_is_not_hot_leaves_the_whole_batch() {
        for more in [
            |writer: &mut Writer| {
                writer.str("metadata").unwrap();
                writer.map(1).unwrap();
                writer.str("x").unwrap();
                writer.nil();
                1 + type_field(writer)
            },
            |writer: &mut Writer| {
                writer.str("unheard-of").unwrap();
                writer.nil();
                1 + type_field(writer)
            },
            // Sizes that the core cannot count
            |writer: &mut Writer| {
                writer.str("nbytes").unwrap();
                writer.float(28.5);
                1 + type_field(writer)
            },
            |writer: &mut Writer| {
                writer.str("nbytes").unwrap();
                writer.uint(NBYTES_MAX + 1);
                1 + type_field(writer)
            },
            // A run that was never assigned
            |writer: &mut Writer| {
                writer.str("run_id").unwrap();
                writer.extend(&[0xff]);
                1 + type_field(writer)
            },
            // No type at all
            |_: &mut Writer| 0,
        ] {
            let mut writer = Writer::default();
            writer.array(2).unwrap();
            finished(&mut writer, |writer| writer.str("x").unwrap(), type_field);
            finished(&mut writer, |writer| writer.str("y").unwrap(), more);
            assert!(parse(writer.as_bytes(), PeerKind::Worker, "w").is_none());
        }
    }

    #[test]
    fn a_batch_that_is_cut_or_goes_on_is_left() {
        let mut writer = Writer::default();
        writer.array(1).unwrap();
        finished(&mut writer, |writer| writer.str("x").unwrap(), type_field);
        let mut bytes = writer.into_bytes();
        for end in 0..bytes.len() {
            assert!(
                parse(&bytes[..end], PeerKind::Worker, "w").is_none(),
                "{end}"
            );
        }
        bytes.push(0xc0);
        assert!(parse(&bytes, PeerKind::Worker, "w").is_none());
    }
}
