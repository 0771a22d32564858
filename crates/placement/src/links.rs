//! Estimates of links, learned from what has travelled.
