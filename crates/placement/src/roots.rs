//! Where the tasks without inputs go: a streaming partition of the graph.
