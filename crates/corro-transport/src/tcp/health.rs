//! Whether the host at the other end of a connection still answers, as the kernel sees it.
//!
//! Keepalive finds a host that vanished while a connection was idle. While bytes are under way the kernel sends no
//! keepalive, and goes on trying for a quarter of an hour. `TCP_USER_TIMEOUT` looks like the cure but is none: it also
//! ends connections whose peer is well and merely does not read for a while, such as a rank that computes (measured).
//! So the question is asked here, of the kernel's own record. The one unsafe call of the network half.

#![expect(unsafe_code, reason = "no safe wrapper of TCP_INFO exists among our dependencies")]

use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// How long a host may be silent although the kernel keeps asking it.
const SILENCE_MS: u32 = 30_000;
/// How often the kernel must have asked in vain. It waits longer each time, so this alone takes some seconds.
const UNANSWERED: u8 = 5;

/// What the kernel knows about one connection.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// Segments under way that were not acknowledged.
    unacked: u32,
    /// How often the oldest of them was sent again in vain.
    retransmits: u8,
    /// How often the peer was asked in vain whether it has room again.
    probes: u8,
    /// Since the last acknowledgement of anything.
    last_ack_ms: u32,
}

/// Whether the peer's host has not answered for long, although it was asked.
pub(crate) fn is_silent(socket: &TcpStream) -> bool {
    ask(socket).is_some_and(judge)
}

fn judge(record: Record) -> bool {
    let asked_in_vain = (record.unacked > 0 && record.retransmits >= UNANSWERED) || record.probes >= UNANSWERED;
    asked_in_vain && record.last_ack_ms >= SILENCE_MS
}

fn ask(socket: &TcpStream) -> Option<Record> {
    // SAFETY: `tcp_info` is plain integers, for which all zeros is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open for the whole call because `socket` is borrowed; the kernel writes at most `length`
    // bytes, which is the size of `info`, and older kernels that know fewer fields write fewer.
    let outcome = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut length)
    };
    (outcome == 0).then_some(Record {
        unacked: info.tcpi_unacked,
        retransmits: info.tcpi_retransmits,
        probes: info.tcpi_probes,
        last_ack_ms: info.tcpi_last_ack_recv,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_silence_to_repeated_questions_counts() {
        let asked = Record { unacked: 3, retransmits: 7, probes: 0, last_ack_ms: 31_000 };
        assert!(judge(asked));
        assert!(judge(Record { unacked: 0, retransmits: 0, probes: 6, ..asked }));
        // A peer that computes for minutes and does not read: the kernel's probes are answered each time.
        assert!(!judge(Record { unacked: 0, retransmits: 0, probes: 1, last_ack_ms: 100_000 }));
        // Nothing under way for an hour.
        assert!(!judge(Record { last_ack_ms: 3_600_000, ..Record::default() }));
        // A lossy network.
        assert!(!judge(Record { last_ack_ms: 5_000, ..asked }));
    }

    #[test]
    fn the_kernel_answers() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let record = ask(&socket).unwrap();
        assert!(record.last_ack_ms < 60_000 && !judge(record), "{record:?}");
    }
}
