//! Events that were handled, and the work that follows for the event loop.

use std::sync::Arc;

use crate::scheduler::{GroupView, Message};

/// A task that was submitted
#[derive(Clone, Debug, PartialEq)]
pub struct Submitted {
    /// The client that submitted the task
    pub client: Arc<str>,
    /// When it came, in seconds
    pub start_s: f64,
    /// True if it was not known before
    pub is_new: bool,
    /// True if it is known with other dependencies, which it keeps
    pub has_collided: bool,
    /// True if nothing was to be done before
    pub was_idle: bool,
    /// The group that came to be with it, if one did
    pub group: Option<NewGroup>,
}

/// A group of a name that the event loop knew, created again
#[derive(Clone, Debug, PartialEq)]
pub struct NewGroup {
    /// Its name, and that of its prefix
    pub name: String,
    /// Its span: that of the last group of this name
    pub span: Option<String>,
    /// How many of [`HotNotes::gone_groups`] went before it came
    pub gone_before: usize,
}

/// Events that were handled, and the work that follows for the event loop
#[derive(Clone, Debug, Default)]
pub struct HotNotes {
    /// Addresses of workers that sent results that no client keeps
    pub unwanted_from: Vec<Arc<str>>,
    /// Prefixes of tasks of which workers have too many, sent on a wrong guess
    pub give_back: Vec<Arc<str>>,
    /// Submitted tasks
    pub submitted: Vec<Submitted>,
    /// Groups that were dropped, as they were last
    pub gone_groups: Vec<GroupView>,
    /// Why nothing is handled any more: what the core refused half way
    pub failure: Option<String>,
    /// Messages of the core that have no form here
    pub unsaid: Vec<Message>,
}

/// How many messages of each kind were handled
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct HotCounts {
    /// `task-finished`
    pub finished: u64,
    /// `release-worker-data`
    pub released_data: u64,
    /// `client-releases-keys`
    pub released_keys: u64,
    /// `add-keys`
    pub added_keys: u64,
    /// `long-running`
    pub long_running: u64,
    /// `backhaul-submit`
    pub submitted: u64,
    /// Batches that were left to the event loop
    pub batches_left: u64,
}
