//! Machines and plans for people: a tree, a matrix, a picture

mod devices;
mod matrix;
mod svg;
mod tree;
mod view;
mod workers;

pub use matrix::matrix;
pub use svg::svg;
pub use tree::tree;
pub use workers::workers;
