//! Carries codes between peers, beside whoever makes them.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};

use corro_core::{Error, Result};

use crate::peers::Peers;

/// How a parcel goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A part of it to each peer.
    Exchange,
    /// All of it to all.
    Gather,
}

/// Bytes for peers, and room for what comes from them.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) way: Way,
    pub(crate) out: Vec<u8>,
    /// Bytes for each peer. All get the same where all get everything.
    pub(crate) sends: Vec<usize>,
    pub(crate) into: Vec<u8>,
    /// Bytes from each peer.
    pub(crate) receives: Vec<usize>,
}

impl Parcel {
    fn carry(&mut self, peers: &mut impl Peers) -> Result<()> {
        match self.way {
            Way::Exchange => peers.exchange(&self.out, &self.sends, &mut self.into, &self.receives),
            Way::Gather => peers.gather(&self.out, &self.receives, &mut self.into),
        }
    }
}

/// Takes parcels, and hands them back in the same order when they are carried. All peers give theirs in the same order.
pub(crate) trait Courier {
    fn give(&mut self, parcel: Parcel) -> Result<()>;
    fn take(&mut self) -> Result<Parcel>;
}

/// Runs `act` with a courier: one that carries at once, or, where there is something to do meanwhile, one with a thread of
/// its own.
pub(crate) fn with_courier<T>(
    peers: &mut impl Peers,
    beside: bool,
    act: impl FnOnce(&mut dyn Courier) -> Result<T>,
) -> Result<T> {
    if !beside {
        return act(&mut AtOnce { peers, carried: VecDeque::new() });
    }
    std::thread::scope(|scope| {
        let (to, parcels) = channel::<Parcel>();
        let (carried, from) = channel();
        let carry = move || {
            for mut parcel in parcels {
                let outcome = parcel.carry(peers);
                let failed = outcome.is_err();
                if carried.send(outcome.map(|()| parcel)).is_err() || failed {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("corro-courier".into());
        thread.spawn_scoped(scope, carry).map_err(|refused| no_thread(&refused))?;
        act(&mut Beside { to, from })
    })
}

fn no_thread(refused: &std::io::Error) -> Error {
    Error::Io { doing: "starting a thread that carries codes".into(), cause: refused.to_string() }
}

struct AtOnce<'a, P> {
    peers: &'a mut P,
    carried: VecDeque<Parcel>,
}

impl<P: Peers> Courier for AtOnce<'_, P> {
    fn give(&mut self, mut parcel: Parcel) -> Result<()> {
        parcel.carry(self.peers)?;
        self.carried.push_back(parcel);
        Ok(())
    }

    fn take(&mut self) -> Result<Parcel> {
        self.carried.pop_front().ok_or_else(|| Error::Bug("a parcel that was never given".into()))
    }
}

struct Beside {
    to: Sender<Parcel>,
    from: Receiver<Result<Parcel>>,
}

impl Courier for Beside {
    /// A courier that has failed says so when its parcels are taken.
    fn give(&mut self, parcel: Parcel) -> Result<()> {
        let _ = self.to.send(parcel);
        Ok(())
    }

    fn take(&mut self) -> Result<Parcel> {
        self.from.recv().unwrap_or_else(|_| Err(Error::Bug("the courier of codes is gone".into())))
    }
}
