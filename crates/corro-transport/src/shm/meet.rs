//! How the ranks of a group on one host come to share a segment.
//!
//! The first of them creates the memory and waits at an abstract Unix socket. The others come there, each with its doorbell
//! and a descriptor by which its exit can be seen, and get the memory and everyone's descriptors in return. Nothing appears
//! in a file system, so nothing can be left behind, and containers that share a network but no folder can meet.
//!
//! The socket's name is derived from the job's secret and the group, so nobody else can know it before it is taken, nor tell
//! the next from those he has seen. If it is taken all the same, the next of a few names is used.
//!
//! Nobody waits for the dead: each side sees when the other's end of the socket closes, and who gives up says so first, and
//! because of whom.
//!
//! Who may come: processes of the same user (the kernel vouches for that) that know the job's token (derived from the
//! job's secret, so that jobs of one user can't be confused).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use corro_core::{Error, GroupId, Rank, Result};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use super::segment::{Segment, Sizes};
use super::stream::Doorbells;
use crate::secret::Secret;
use crate::wait_limit::WaitLimit;

/// How long one one may take to say who it is.
const VISIT: Duration = Duration::from_secs(5);

/// How many names a meeting may have.
const NAMES: u8 = 4;

/// In place of the token: the host gives up because of the rank in the next four bytes.
const GIVES_UP: &[u8; 12] = b"meeting over";

/// What every member holds after the meeting.
pub(crate) struct Seats {
    pub(crate) segment: Arc<Segment>,
    pub(crate) doorbells: Doorbells,
    /// Readable once that member's process has exited.
    pub(crate) exits: Vec<Option<OwnedFd>>,
}

/// Where and as whom to meet.
pub(crate) struct Invitation<'a> {
    /// What the socket's name is made from; different for each job, and known to nobody else.
    pub(crate) names: &'a Secret,
    /// Not public: shown to the one we meet.
    pub(crate) token: &'a [u8; 32],
    pub(crate) group: GroupId,
    /// The members on this host, in the group's order.
    pub(crate) local: &'a [Rank],
    /// Which of them this is.
    pub(crate) me: usize,
    pub(crate) sizes: Sizes,
}

/// Meets the other local members.
pub(crate) fn meet(invitation: &Invitation<'_>, limit: &WaitLimit) -> Result<Seats> {
    let addresses = (0..NAMES).map(|attempt| {
        let name = socket_name(invitation, attempt);
        SocketAddr::from_abstract_name(name).map_err(|e| Error::io("naming a Unix socket", e))
    });
    let addresses = addresses.collect::<Result<Vec<_>>>()?;
    if invitation.me == 0 { host(invitation, &addresses, limit) } else { join(invitation, &addresses, limit) }
}

/// A doorbell: a counter that can be slept on.
pub(crate) fn doorbell() -> Result<OwnedFd> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| Error::io("creating an eventfd", out_of_descriptors(e)))
}

fn out_of_descriptors(e: rustix::io::Errno) -> String {
    match e {
        rustix::io::Errno::MFILE | rustix::io::Errno::NFILE => {
            format!("{e}: raise the limit of open files (ulimit -n)")
        }
        other => other.to_string(),
    }
}

/// A descriptor that becomes readable when this process has exited. Old kernels can't.
fn own_exit() -> Option<OwnedFd> {
    rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty()).ok()
}

fn socket_name(invitation: &Invitation<'_>, attempt: u8) -> String {
    use std::fmt::Write;
    let (group, first) = (invitation.group.0.to_le_bytes(), (invitation.local[0].index() as u64).to_le_bytes());
    let proof = invitation.names.prove("meeting", &[&group, &first, &[attempt]]);
    proof[..16].iter().fold(String::from("corro-"), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    })
}

/// Takes the first name that is free.
fn listen(addresses: &[SocketAddr]) -> Result<UnixListener> {
    for address in addresses {
        match UnixListener::bind_addr(address) {
            Ok(listener) => return Ok(listener),
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {
                tracing::warn!(
                    "somebody else uses the name {address:?}, which this job made up to meet at; taking another"
                );
            }
            Err(e) => return Err(Error::io(format!("binding {address:?}"), e)),
        }
    }
    Err(Error::io(
        "opening a Unix socket for the ranks of this host to meet",
        format!(
            "all of its {} names are used by other processes, which could know them only from this job itself. Start it \
             again: it will make up others",
            addresses.len()
        ),
    ))
}

/// The first member's side.
fn host(invitation: &Invitation<'_>, addresses: &[SocketAddr], limit: &WaitLimit) -> Result<Seats> {
    let listener = listen(addresses)?;
    listener.set_nonblocking(true).map_err(|e| Error::io("configuring a Unix socket", e))?;
    let (segment, memory) = Segment::create(invitation.sizes)?;
    let mut arrived: Vec<Option<Arrived>> = (0..invitation.local.len()).map(|_| None).collect();
    if let Err(error) = receive_all(invitation, &listener, &mut arrived, limit) {
        give_up(&arrived, &error);
        return Err(error);
    }
    let mut doorbells = vec![doorbell()?];
    let mut exits = vec![own_exit()];
    let mut streams = Vec::new();
    for (stream, doorbell, exit) in arrived.into_iter().flatten() {
        streams.push(stream);
        doorbells.push(doorbell);
        exits.push(exit);
    }
    for (i, stream) in streams.iter().enumerate() {
        hand_over(invitation, stream, &memory, &doorbells, &exits).map_err(|e| {
            Error::peer_lost(invitation.local[i + 1], "this host", format!("handing it shared memory: {e}"))
        })?;
    }
    Ok(Seats { segment: Arc::new(segment), doorbells: Arc::new(doorbells), exits })
}

/// One who has come: its connection, its doorbell, its exit.
type Arrived = (UnixStream, OwnedFd, Option<OwnedFd>);

/// Waits until all others are there.
fn receive_all(
    invitation: &Invitation<'_>,
    listener: &UnixListener,
    arrived: &mut [Option<Arrived>],
    limit: &WaitLimit,
) -> Result<()> {
    loop {
        let missing: Vec<Rank> =
            (1..arrived.len()).filter(|m| arrived[*m].is_none()).map(|m| invitation.local[m]).collect();
        let Some(first) = missing.first() else { return Ok(()) };
        match listener.accept() {
            Ok((stream, _)) => {
                match welcome(invitation, &stream) {
                    Ok((member, doorbell, exit)) => arrived[member] = Some((stream, doorbell, exit)),
                    Err(reason) => tracing::warn!("turned away a process at the shared-memory meeting: {reason}"),
                }
                continue;
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(Error::io("accepting a local rank", e)),
        }
        limit.check()?;
        if limit.is_over() {
            let cause = format!(
                "of the ranks on this host, {missing:?} did not come to share memory within {} s \
                 (CORRO_CONNECT_TIMEOUT sets this limit)",
                limit.deadline().granted().as_secs_f64()
            );
            return Err(Error::peer_lost(*first, "this host", cause));
        }
        if let Some(member) = wait_for_arrivals(listener, arrived, limit.nap()) {
            let cause = "its process has exited while the ranks of this host met";
            return Err(Error::peer_lost(invitation.local[member], "this host", cause));
        }
    }
}

/// Sleeps until somebody comes. Gives a one that has died meanwhile; one that gave up says so, and is missing again.
fn wait_for_arrivals(listener: &UnixListener, arrived: &mut [Option<Arrived>], nap: Duration) -> Option<usize> {
    let here: Vec<usize> = (0..arrived.len()).filter(|m| arrived[*m].is_some()).collect();
    let streams =
        here.iter().filter_map(|m| arrived[*m].as_ref()).map(|(stream, ..)| PollFd::new(stream, PollFlags::IN));
    let mut fds: Vec<PollFd<'_>> = std::iter::once(PollFd::new(listener, PollFlags::IN)).chain(streams).collect();
    let nap = Timespec { tv_sec: nap.as_secs() as i64, tv_nsec: i64::from(nap.subsec_nanos()) };
    let _ = poll(&mut fds, Some(&nap));
    let stirred: Vec<bool> = fds.iter().skip(1).map(|fd| !fd.revents().is_empty()).collect();
    drop(fds);
    for (member, _) in here.into_iter().zip(stirred).filter(|(_, stirred)| *stirred) {
        let said = arrived[member].as_ref().map(|(stream, ..)| receive(stream, &mut [0u8; 1]));
        arrived[member] = None;
        if matches!(said, Some(Err(_))) {
            return Some(member);
        }
    }
    None
}

/// Tells those who have come that the meeting is over, and because of whom.
fn give_up(arrived: &[Option<Arrived>], error: &Error) {
    let Error::PeerLost { rank, .. } = error else { return };
    let mut word = [0u8; 32];
    word[..12].copy_from_slice(GIVES_UP);
    word[12..16].copy_from_slice(&u32::try_from(rank.index()).unwrap_or(u32::MAX).to_le_bytes());
    for (stream, ..) in arrived.iter().flatten() {
        // Who has died, or whose buffer is full, learns it when the connection closes.
        let _ = send(stream, &word, &[]);
    }
}

type Descriptors = Vec<OwnedFd>;

/// Checks a one and takes what it brought: which member it is, its doorbell, its exit.
fn welcome(invitation: &Invitation<'_>, stream: &UnixStream) -> Result<(usize, OwnedFd, Option<OwnedFd>), String> {
    stream.set_read_timeout(Some(VISIT)).map_err(|e| e.to_string())?;
    stream.set_write_timeout(Some(VISIT)).map_err(|e| e.to_string())?;
    same_user(stream)?;
    let mut hello = [0u8; 36];
    let mut brought = receive(stream, &mut hello)?.into_iter();
    let (token, member) = hello.split_at(32);
    if token != invitation.token {
        return Err("it belongs to another job".into());
    }
    let member = u32::from_le_bytes(member.try_into().map_err(|_| "a short hello")?) as usize;
    if member == 0 || member >= invitation.local.len() {
        return Err(format!("it claims seat {member} of {}", invitation.local.len()));
    }
    let doorbell = brought.next().ok_or("it brought no doorbell")?;
    Ok((member, doorbell, brought.next()))
}

fn hand_over(
    invitation: &Invitation<'_>,
    stream: &UnixStream,
    memory: &OwnedFd,
    doorbells: &[OwnedFd],
    exits: &[Option<OwnedFd>],
) -> Result<(), String> {
    send(stream, invitation.token, &[memory.as_fd()])?;
    for (doorbell, exit) in doorbells.iter().zip(exits) {
        let fds: Vec<BorrowedFd<'_>> = std::iter::once(doorbell.as_fd()).chain(exit.iter().map(AsFd::as_fd)).collect();
        send(stream, &[fds.len() as u8], &fds)?;
    }
    Ok(())
}

/// The side of all other members.
fn join(invitation: &Invitation<'_>, addresses: &[SocketAddr], limit: &WaitLimit) -> Result<Seats> {
    let host = invitation.local[0];
    let lost = |cause: String| Error::peer_lost(host, "this host", cause);
    let stream = find_host(addresses, limit)?.map_err(|why| {
        lost(format!(
            "it did not open the shared-memory meeting within {} s ({why}; CORRO_CONNECT_TIMEOUT sets this limit)",
            limit.deadline().granted().as_secs_f64()
        ))
    })?;
    stream.set_read_timeout(Some(VISIT)).map_err(|e| Error::io("configuring a Unix socket", e))?;
    let mut hello = invitation.token.to_vec();
    hello.extend((invitation.me as u32).to_le_bytes());
    let own_doorbell = doorbell()?;
    let exit = own_exit();
    let fds: Vec<BorrowedFd<'_>> = std::iter::once(own_doorbell.as_fd()).chain(exit.iter().map(AsFd::as_fd)).collect();
    send(&stream, &hello, &fds).map_err(lost)?;
    // The host answers once everyone is there, or when its time is over, and then says who is missing. Its time began before
    // this rank was received, and a stranger may hold it up once more: who waits as long from now on hears of it, and is
    // not taken for one who has exited.
    let answer = wait_for_host(&stream, &limit.anew(VISIT));
    if !matches!(answer, Ok(Ok(()))) {
        let _ = send(&stream, &[0], &[]);
    }
    answer?.map_err(|e| lost(format!("it did not hand over shared memory, and did not say why ({e})")))?;

    let mut token = [0u8; 32];
    let memory = receive(&stream, &mut token).map_err(|e| {
        // A host that is called off as this rank is may close the connection before this rank has looked.
        limit.check().err().unwrap_or_else(|| lost(format!("it did not hand over shared memory ({e})")))
    })?;
    if token[..12] == *GIVES_UP {
        let culprit = Rank::new(u32::from_le_bytes([token[12], token[13], token[14], token[15]]) as usize);
        let cause = format!("rank {host} waited for it in vain to share memory, or saw it exit");
        return Err(Error::peer_lost(culprit, "this host", cause));
    }
    if token != *invitation.token {
        return Err(lost("the process at the shared-memory meeting belongs to another job".into()));
    }
    let memory = memory.into_iter().next().ok_or_else(|| lost("it handed over no memory".into()))?;
    let segment = Segment::attach(memory.as_fd(), invitation.sizes)?;
    let (mut doorbells, mut exits) = (Vec::new(), Vec::new());
    for _ in invitation.local {
        let mut fds = receive(&stream, &mut [0u8; 1]).map_err(lost)?.into_iter();
        doorbells.push(fds.next().ok_or_else(|| lost("it handed over too few descriptors".into()))?);
        exits.push(fds.next());
    }
    Ok(Seats { segment: Arc::new(segment), doorbells: Arc::new(doorbells), exits })
}

/// Connects to the host, by whichever name it has taken. An error if it was called off; inside, if the time is over.
fn find_host(addresses: &[SocketAddr], limit: &WaitLimit) -> Result<Result<UnixStream, String>> {
    loop {
        let mut why = String::new();
        for address in addresses {
            match UnixStream::connect_addr(address).map_err(|e| e.to_string()).and_then(|s| same_user(&s).map(|()| s)) {
                Ok(stream) => return Ok(Ok(stream)),
                // Not there yet, its queue is full, or somebody else is there: the host may still come, or be elsewhere.
                Err(e) => why = e,
            }
        }
        limit.check()?;
        if limit.is_over() {
            return Ok(Err(why));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the host says something. An error if it was called off; inside, if the time is over.
fn wait_for_host(stream: &UnixStream, limit: &WaitLimit) -> Result<Result<(), String>> {
    loop {
        let nap = limit.nap();
        let nap = Timespec { tv_sec: nap.as_secs() as i64, tv_nsec: i64::from(nap.subsec_nanos()) };
        if matches!(poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&nap)), Ok(1)) {
            return Ok(Ok(()));
        }
        limit.check()?;
        if limit.is_over() {
            return Ok(Err("no answer in time".into()));
        }
    }
}

/// The other end must be a process of the same user. Its process number means nothing: a process of another namespace has
/// none here.
fn same_user(stream: &UnixStream) -> Result<(), String> {
    let peer = getsockopt(stream, PeerCredentials).map_err(|e| e.to_string())?.uid();
    let own = rustix::process::geteuid().as_raw();
    if peer == own { Ok(()) } else { Err(format!("it runs as user {peer} and this rank as {own}")) }
}

fn send(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), String> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(fds.len()))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err("too many descriptors in one message".into());
    }
    loop {
        match sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(n) if n == bytes.len() => return Ok(()),
            Ok(n) => return Err(format!("only {n} of {} bytes were sent", bytes.len())),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.to_string()),
        }
    }
}

/// Exactly `bytes`, with the descriptors that came along with their beginning.
fn receive(stream: &UnixStream, bytes: &mut [u8]) -> Result<Descriptors, String> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut descriptors = Descriptors::new();
    let mut filled = 0;
    while filled < bytes.len() {
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got = match recvmsg(
            stream,
            &mut [IoSliceMut::new(&mut bytes[filled..])],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Ok(message) => message.bytes,
            Err(rustix::io::Errno::INTR) => continue,
            Err(rustix::io::Errno::AGAIN) => return Err("no answer in time".into()),
            Err(e) => return Err(e.to_string()),
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                descriptors.extend(fds);
            }
        }
        if got == 0 {
            return Err("the connection was closed".into());
        }
        filled += got;
    }
    Ok(descriptors)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use corro_core::Deadline;

    use super::super::segment::ControlWord;
    use super::*;
    use crate::wait_limit::GivenUp;
    use crate::withdrawal::Withdrawal;

    fn invitation<'a>(names: &'a Secret, token: &'a [u8; 32], local: &'a [Rank], me: usize) -> Invitation<'a> {
        let sizes = Sizes { members: local.len(), slot: 4096, ring: 4096, area: 4096, workspace: 0 };
        Invitation { names, token, group: GroupId(9), local, me, sizes }
    }

    fn wait_limit(time: Duration) -> WaitLimit {
        Deadline::after(time).into()
    }

    fn job() -> Secret {
        Secret::random().unwrap()
    }

    #[test]
    fn everyone_maps_the_same_memory() {
        let (job, token, local) = (job(), [2; 32], [4, 6, 9].map(Rank::new));
        let seats: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|me| {
                    let (job, token, local) = (&job, &token, &local);
                    scope.spawn(move || meet(&invitation(job, token, local, me), &wait_limit(VISIT)))
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap().unwrap()).collect()
        });
        seats[2].segment.word(1, ControlWord::Published).store(77, Ordering::SeqCst);
        assert!(seats.iter().all(|s| s.segment.word(1, ControlWord::Published).load(Ordering::SeqCst) == 77));
        assert!(seats.iter().all(|s| s.doorbells.len() == 3 && s.exits.len() == 3));
    }

    #[test]
    fn a_missing_rank_is_named_in_time() {
        let (job, token, local) = (job(), [2; 32], [4, 6, 9].map(Rank::new));
        let short = wait_limit(Duration::from_millis(100));
        let text = meet(&invitation(&job, &token, &local, 0), &short).err().unwrap().to_string();
        assert!(text.contains("[6, 9]") && text.contains("CORRO_CONNECT_TIMEOUT"), "{text}");
        let short = wait_limit(Duration::from_millis(100));
        let text = meet(&invitation(&job, &token, &local, 2), &short).err().unwrap().to_string();
        assert!(text.contains("rank 4"), "{text}");
    }

    #[test]
    fn strangers_are_turned_away_and_the_meeting_goes_on() {
        let (job, token, local) = (job(), [2; 32], [0, 1].map(Rank::new));
        std::thread::scope(|scope| {
            let host = scope.spawn(|| meet(&invitation(&job, &token, &local, 0), &wait_limit(VISIT)));
            let stranger = meet(&invitation(&job, &[3; 32], &local, 1), &wait_limit(VISIT));
            assert!(matches!(stranger, Err(Error::PeerLost { .. })));
            assert!(meet(&invitation(&job, &token, &local, 1), &wait_limit(VISIT)).is_ok());
            assert!(host.join().unwrap().is_ok());
        });
    }

    /// Comes and says hello as seat `me`, and nothing else.
    fn come(invitation: &Invitation<'_>) -> UnixStream {
        let address = SocketAddr::from_abstract_name(socket_name(invitation, 0)).unwrap();
        let stream = loop {
            match UnixStream::connect_addr(&address) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let hello = [invitation.token.as_slice(), &(invitation.me as u32).to_le_bytes()].concat();
        send(&stream, &hello, &[doorbell().unwrap().as_fd()]).unwrap();
        stream
    }

    /// Takes a name as somebody would who has seen it: connections to it are refused.
    fn take(name: &str) -> OwnedFd {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, socket};
        let taken = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&taken, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        taken
    }

    #[test]
    fn names_that_are_taken_only_make_it_choose_others() {
        let (job, token, local) = (job(), [2; 32], [0, 1].map(Rank::new));
        let mut occupied = Vec::new();
        for name in 0..NAMES {
            if name > 0 {
                std::thread::scope(|scope| {
                    let host = scope.spawn(|| meet(&invitation(&job, &token, &local, 0), &wait_limit(VISIT)));
                    assert!(meet(&invitation(&job, &token, &local, 1), &wait_limit(VISIT)).is_ok());
                    assert!(host.join().unwrap().is_ok());
                });
            }
            occupied.push(take(&socket_name(&invitation(&job, &token, &local, 0), name)));
        }
        assert_eq!(occupied.len(), usize::from(NAMES));
        let text = meet(&invitation(&job, &token, &local, 0), &wait_limit(VISIT)).err().unwrap().to_string();
        assert!(text.contains("Start it again"), "{text}");
    }

    #[test]
    fn one_name_tells_nothing_about_the_next() {
        let (job, token, local) = (job(), [2; 32], [0, 1].map(Rank::new));
        let one = invitation(&job, &token, &local, 0);
        let other = Invitation { group: GroupId(10), ..invitation(&job, &token, &local, 0) };
        let common = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
        for (a, b) in [(socket_name(&one, 0), socket_name(&other, 0)), (socket_name(&one, 0), socket_name(&one, 1))] {
            assert!(common(&a, &b) < "corro-".len() + 16, "{a} {b}");
        }
    }

    #[test]
    fn a_visitor_that_dies_ends_the_meeting_at_once() {
        let (job, token, local) = (job(), [2; 32], [4, 6, 9, 11].map(Rank::new));
        std::thread::scope(|scope| {
            let host = scope.spawn(|| meet(&invitation(&job, &token, &local, 0), &Deadline::never().into()));
            let waits = come(&invitation(&job, &token, &local, 1));
            drop(come(&invitation(&job, &token, &local, 2)));
            assert!(matches!(host.join().unwrap(), Err(Error::PeerLost { rank, .. }) if rank == Rank::new(9)));
            let mut word = [0; 32];
            receive(&waits, &mut word).unwrap();
            assert!(word.starts_with(GIVES_UP) && word[12] == 9, "the others are told: {word:?}");
        });
    }

    #[test]
    fn a_visitor_hears_because_of_whom_the_meeting_is_over() {
        let (job, token, local) = (job(), [2; 32], [4, 6, 9].map(Rank::new));
        let invitation = invitation(&job, &token, &local, 1);
        let listener =
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(socket_name(&invitation, 0)).unwrap()).unwrap();
        std::thread::scope(|scope| {
            let one = scope.spawn(|| meet(&invitation, &Deadline::never().into()));
            let (stream, _) = listener.accept().unwrap();
            let (_, doorbell, exit) = welcome(&invitation, &stream).unwrap();
            give_up(&[None, Some((stream, doorbell, exit))], &Error::peer_lost(Rank::new(9), "here", "it is gone"));
            assert!(matches!(one.join().unwrap(), Err(Error::PeerLost { rank, .. }) if rank == Rank::new(9)));
        });
    }

    #[test]
    fn a_meeting_can_be_called_off_by_either_side() {
        let (job, token, local) = (job(), [2; 32], [0, 1, 2].map(Rank::new));
        for me in 0..3 {
            let (withdrawal, given_up) = (Withdrawal::default(), GivenUp::default());
            let limit = WaitLimit::new(Duration::ZERO, &withdrawal, &given_up);
            std::thread::scope(|scope| {
                let host = (me == 2).then(|| scope.spawn(|| meet(&invitation(&job, &token, &local, 0), &limit)));
                let waits = scope.spawn(|| meet(&invitation(&job, &token, &local, me), &limit));
                std::thread::sleep(Duration::from_millis(20));
                withdrawal.set();
                assert_eq!(waits.join().unwrap().err(), Some(Error::Withdrawn), "member {me}");
                assert!(host.is_none_or(|h| h.join().unwrap().err() == Some(Error::Withdrawn)));
            });
        }
    }
}
