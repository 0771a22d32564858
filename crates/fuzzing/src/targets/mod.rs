//! The targets, by what they feed.

mod carriers;
mod connection;
mod dask;
mod dask_streams;
mod frames;
mod handshake;
mod hello;
mod link;
mod ring;
mod segments;
mod tls;
mod tls_between;
mod topology;

use crate::Target;

/// All of them
pub(crate) const ALL: &[Target] = &[
    target("hello", hello::hello),
    target("handshake", handshake::handshake),
    target("frames", frames::frames),
    target("connection", connection::connection),
    target("link", link::link),
    target("ring", ring::ring),
    target("segments", segments::segments),
    target("completion", segments::completion),
    target("bootstrap", carriers::bootstrap),
    target("lease", carriers::lease),
    target("ucx", carriers::ucx),
    target("cuda", carriers::cuda),
    target("address", carriers::address),
    target("pem", tls::pem),
    target("certificate", tls::certificate),
    target("tls", tls::stranger),
    target("tls_between", tls_between::tls_between),
    target("msgpack", dask::msgpack),
    target("codec", dask::codec),
    target("graph", dask::graph),
    target("calls", dask_streams::calls),
    target("tasks", dask_streams::tasks),
    target("streams", dask_streams::streams),
    target("machine_text", topology::machine_text),
    target("plan_text", topology::plan_text),
    target("sysfs", topology::sysfs),
];

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}
