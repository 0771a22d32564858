//! Messages to one peer, as Dask sends them: a header of msgpack, and a frame for each task.

use crate::codec::header;
use crate::msgpack::Writer;
use crate::scheduler::{ClientMessage, ComputeTask, Holders, Key, WorkerMessage};

use super::{keys, specs};

/// The frames of one batch of messages, the header first
pub type Frames = Vec<Vec<u8>>;

/// Messages that gather for one peer
#[derive(Debug, Default)]
pub struct Batch {
    /// Batches that have reached their largest size
    full: Vec<Frames>,
    items: Writer,
    count: usize,
    frames: Frames,
    /// Keys that a worker is to release, behind all that is written
    freed: Freed,
}

/// Keys of messages `free-keys` of one stimulus that follow each other
///
/// The scheduler has one for each key. A worker handles an event for each message, and one with many
/// keys takes it little more than one with a single key.
#[derive(Debug, Default)]
struct Freed {
    stimulus: String,
    keys: Writer,
    count: usize,
}

/// A message that has no form here
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Unsayable;

impl Batch {
    /// How many messages there are in the last batch
    pub(super) fn len(&self) -> usize {
        self.count + usize::from(self.freed.count > 0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0 && self.full.is_empty()
    }

    /// Takes them, as one batch or more
    pub(super) fn take(&mut self) -> Vec<Frames> {
        self.say_freed();
        self.seal();
        std::mem::take(&mut self.full)
    }

    fn seal(&mut self) {
        if self.count == 0 {
            return;
        }
        let items = std::mem::take(&mut self.items);
        let mut header = Writer::with_capacity(items.len() + HEAD_BYTES);
        // A batch has far fewer than the format allows.
        if header.array(std::mem::take(&mut self.count)).is_ok() {
            header.extend(items.as_bytes());
            let mut frames = vec![header.into_bytes()];
            frames.append(&mut self.frames);
            self.full.push(frames);
        }
    }

    /// Adds a message, or nothing of it
    fn add(
        &mut self,
        write: impl FnOnce(&mut Writer, &mut Frames) -> Result<(), Unsayable>,
    ) -> Result<(), Unsayable> {
        self.say_freed();
        self.write(write)
    }

    /// Adds keys to those that the worker is to release, or none of them
    fn free(&mut self, keys: &[Key], stimulus: &str) -> Result<(), Unsayable> {
        if self.freed.count >= FREED_MAX || self.freed.stimulus != stimulus {
            self.say_freed();
            self.freed.stimulus = stimulus.to_owned();
        }
        let bytes = self.freed.keys.len();
        let written = keys
            .iter()
            .try_for_each(|key| keys::write(&mut self.freed.keys, key.as_ref()));
        match written {
            Ok(()) => self.freed.count += keys.len(),
            Err(_) => self.freed.keys.truncate(bytes),
        }
        written
    }

    /// Writes the message with the keys that the worker is to release
    fn say_freed(&mut self) {
        if self.freed.count == 0 {
            return;
        }
        let freed = std::mem::take(&mut self.freed);
        // A message that was written alone before can be written.
        let _ = self.write(|writer, _| {
            writer.map(3)?;
            op(writer, "free-keys")?;
            writer.str("keys")?;
            writer.array(freed.count)?;
            writer.extend(freed.keys.as_bytes());
            field_text(writer, "stimulus_id", &freed.stimulus)
        });
    }

    fn write(
        &mut self,
        write: impl FnOnce(&mut Writer, &mut Frames) -> Result<(), Unsayable>,
    ) -> Result<(), Unsayable> {
        let (bytes, frames) = (self.items.len(), self.frames.len());
        if let Err(unsayable) = write(&mut self.items, &mut self.frames) {
            self.items.truncate(bytes);
            self.frames.truncate(frames);
            return Err(unsayable);
        }
        self.count += 1;
        if self.frames.len() >= FRAMES_MAX || self.items.len() >= ITEMS_BYTES_MAX {
            self.seal();
        }
        Ok(())
    }

    /// A result, for a client that keeps it
    pub(super) fn result(&mut self, key: &[u8], value: &[u8]) -> Result<(), Unsayable> {
        self.add(|writer, _| {
            writer.map(3)?;
            op(writer, "backhaul-result")?;
            field_key(writer, key)?;
            writer.str("value")?;
            Ok(writer.bin(value)?)
        })
    }

    pub(super) fn add_for_worker(
        &mut self,
        message: &WorkerMessage,
        now_s: f64,
    ) -> Result<(), Unsayable> {
        if let WorkerMessage::FreeKeys { keys, stimulus } = message {
            return self.free(keys, stimulus);
        }
        self.add(|writer, frames| match message {
            WorkerMessage::ComputeTask(task) => compute_task(writer, frames, task, now_s),
            WorkerMessage::RemoveReplicas { keys, stimulus } => {
                writer.map(3)?;
                op(writer, "remove-replicas")?;
                field_keys(writer, keys)?;
                field_text(writer, "stimulus_id", stimulus)
            }
            WorkerMessage::AcquireReplicas {
                who_has,
                nbytes,
                stimulus,
            } => {
                writer.map(4)?;
                op(writer, "acquire-replicas")?;
                field_holders(writer, who_has)?;
                field_sizes(writer, who_has, nbytes)?;
                field_text(writer, "stimulus_id", stimulus)
            }
            WorkerMessage::RefreshWhoHas { who_has, stimulus } => {
                writer.map(3)?;
                op(writer, "refresh-who-has")?;
                field_holders(writer, who_has)?;
                field_text(writer, "stimulus_id", stimulus)
            }
            WorkerMessage::StealRequest { key, stimulus } => {
                writer.map(3)?;
                op(writer, "steal-request")?;
                field_key(writer, key)?;
                field_text(writer, "stimulus_id", stimulus)
            }
            WorkerMessage::FreeKeys { .. }
            | WorkerMessage::Close
            | WorkerMessage::RemoveWorker { .. } => Err(Unsayable),
        })
    }

    pub(super) fn add_for_client(&mut self, message: &ClientMessage) -> Result<(), Unsayable> {
        self.add(|writer, _| match message {
            ClientMessage::KeyInMemory {
                key,
                type_,
                workers,
            } => {
                writer.map(2 + usize::from(type_.is_some()) + usize::from(workers.is_some()))?;
                op(writer, "key-in-memory")?;
                field_key(writer, key)?;
                if let Some(type_) = type_ {
                    writer.str("type")?;
                    writer.bin(type_)?;
                }
                if let Some(workers) = workers {
                    writer.str("workers")?;
                    writer.array(workers.len())?;
                    for worker in workers {
                        writer.str(worker)?;
                    }
                }
                Ok(())
            }
            ClientMessage::LostData { key } => {
                writer.map(2)?;
                op(writer, "lost-data")?;
                field_key(writer, key)
            }
            ClientMessage::TaskRetried { key } => {
                writer.map(2)?;
                op(writer, "task-retried")?;
                field_key(writer, key)
            }
            ClientMessage::CancelledKeys {
                keys,
                reason,
                message,
            } => {
                writer.map(2 + usize::from(reason.is_some()) + usize::from(message.is_some()))?;
                op(writer, "cancelled-keys")?;
                field_keys(writer, keys)?;
                if let Some(reason) = reason {
                    field_text(writer, "reason", reason)?;
                }
                if let Some(message) = message {
                    field_text(writer, "msg", message)?;
                }
                Ok(())
            }
            // The scheduler pickles its own errors.
            ClientMessage::TaskErred { .. } => Err(Unsayable),
        })
    }
}

/// Writes `compute-task`, as `LiveCore._translate` has it
fn compute_task(
    writer: &mut Writer,
    frames: &mut Frames,
    task: &ComputeTask,
    now_s: f64,
) -> Result<(), Unsayable> {
    let spec = task.spec.as_ref().ok_or(Unsayable)?;
    writer.map(12)?;
    op(writer, "compute-task")?;
    field_key(writer, &task.key)?;
    writer.str("run_id")?;
    writer.uint(task.run_id);
    writer.str("priority")?;
    writer.array(3)?;
    for part in task.priority.0 {
        writer.float(part);
    }
    field_holders(writer, &task.who_has)?;
    field_sizes(writer, &task.who_has, &task.nbytes)?;
    writer.str("run_spec")?;
    // The header is the frame before the first of the task.
    header::write_placeholder(writer, header::PICKLED, 1 + frames.len())?;
    let span = specs::read(spec, &task.key, frames).ok_or(Unsayable)?;
    writer.str("resource_restrictions")?;
    let resources = task.resources.as_deref().unwrap_or_default();
    writer.map(resources.len())?;
    for (name, amount) in resources {
        writer.str(name)?;
        writer.float(*amount);
    }
    writer.str("actor")?;
    writer.bool(task.actor);
    writer.str("annotations")?;
    match &task.annotations {
        // As `graph_import.py` packs them
        Some(annotations) => writer.extend(annotations),
        None => writer.map(0)?,
    }
    field_text(writer, "stimulus_id", &format!("compute-task-{now_s}"))?;
    writer.str("span_id")?;
    match span {
        Some(span) => writer.str(span)?,
        None => writer.nil(),
    }
    Ok(())
}

fn op(writer: &mut Writer, name: &str) -> Result<(), Unsayable> {
    field_text(writer, "op", name)
}

fn field_text(writer: &mut Writer, name: &str, text: &str) -> Result<(), Unsayable> {
    writer.str(name)?;
    Ok(writer.str(text)?)
}

fn field_key(writer: &mut Writer, key: &[u8]) -> Result<(), Unsayable> {
    writer.str("key")?;
    keys::write(writer, key)
}

fn field_keys<K: AsRef<[u8]>>(writer: &mut Writer, keys: &[K]) -> Result<(), Unsayable> {
    writer.str("keys")?;
    writer.array(keys.len())?;
    keys.iter()
        .try_for_each(|key| keys::write(writer, key.as_ref()))
}

fn field_holders(writer: &mut Writer, who_has: &Holders) -> Result<(), Unsayable> {
    writer.str("who_has")?;
    writer.map(who_has.len())?;
    for (key, addresses) in who_has {
        keys::write(writer, key)?;
        writer.array(addresses.len())?;
        for address in addresses {
            writer.str(address)?;
        }
    }
    Ok(())
}

fn field_sizes(
    writer: &mut Writer,
    who_has: &Holders,
    nbytes: &[Option<u64>],
) -> Result<(), Unsayable> {
    writer.str("nbytes")?;
    writer.map(who_has.len())?;
    for ((key, _), nbytes) in who_has.iter().zip(nbytes) {
        keys::write(writer, key)?;
        match nbytes {
            Some(nbytes) => writer.uint(*nbytes),
            None => writer.int(-1),
        }
    }
    Ok(())
}

/// The head of an array takes no more
const HEAD_BYTES: usize = 8;

/// Frames of one batch: a peer may refuse many more, and handles so many at a time
const FRAMES_MAX: usize = 512;

/// Keys that one message releases
const FREED_MAX: usize = 256;

/// Bytes of a header, likewise
const ITEMS_BYTES_MAX: usize = 1 << 20;
