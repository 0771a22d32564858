//! What it costs to run a task at a place: time of its queue, time of its inputs on their links.
