//! Numbers that stand for a worker's tasks, its peers, prefixes and what events carry.

use crate::ids::ids;

ids! {
    /// A task that the worker knows; used again once it is forgotten and its event is over
    pub TaskId;
    /// Another worker, from its first mention on
    pub PeerId;
    /// A prefix of keys
    pub PrefixId;
    /// A part of an event that only the caller understands: a value, an error, a duration
    pub PayloadId;
}
