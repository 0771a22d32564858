//! Cost of running a task at a place: time of its queue, time of its inputs on their links.
//!
//! - [`links`]: the way of each pair of workers, and how fast its edges are
//! - [`mirror`]: what is under way on each edge, and what a placement would add to it
//! - [`candidates`]: which workers are worth asking
//! - [`meetings`]: where the result will be needed

pub mod candidates;
pub mod costs;
pub mod links;
pub mod meetings;
pub mod mirror;

pub use candidates::{Islands, Near};
pub use costs::{Candidate, Costs, Flow, Inputs, SharedCosts, Wish};
pub use links::{HostLinks, LinkCosts, LinkError, Route, RouteTable};
pub use meetings::{MEETINGS_MAX, MEMBERS_MAX, Meetings};
pub use mirror::{Beta, Input, Mirror, Transfer};
