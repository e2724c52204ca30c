//! The tests of this crate from outside, as one program: linking takes longer than compiling any of them. `races.rs` is
//! another, because it compiles the sources of the crate once more with other primitives.

mod store_server;
mod tampering;
mod tcp_endpoint;
mod tcp_throughput;
