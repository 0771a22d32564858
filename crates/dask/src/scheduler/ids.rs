//! Numbers that stand for tasks, workers, clients, groups, prefixes and names.

pub(super) use crate::ids::Id;
use crate::ids::ids;

ids! {
    /// A task that the scheduler knows; used again once the task is forgotten and nothing refers to it
    pub(super) TaskId;
    /// A worker, from when it joins; never used again, so that what outlives the worker cannot
    /// mistake the next one for it
    pub(super) WorkerId;
    /// A client, from its first event on; the number is used again after the client has left
    pub(super) ClientId;
    /// A group of tasks; used again once it is gone and no other group depends on it
    pub(super) GroupId;
    /// A prefix of tasks
    pub(super) PrefixId;
    /// A host, a resource, a type of results or an action that takes time
    pub(super) NameId;
}
