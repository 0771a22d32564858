//! Machines and plans for people: a tree, a matrix, a picture

mod matrix;
mod tree;
mod view;
mod workers;

pub use matrix::matrix;
pub use tree::tree;
pub use workers::workers;
