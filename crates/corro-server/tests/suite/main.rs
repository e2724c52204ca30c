//! Servers and workers from outside, over loopback.

mod processes;
mod stores;
