//! What the tests of the launcher run as ranks: `probe send PATTERN MIB` sends a pattern from rank 0 to the last rank over
//! the job's own connections; `probe answer` gives the job's payload back, with the rank in front; `probe join` joins;
//! `probe die PLACE` is killed while it joins: `seat` before it has told anybody how to reach it, `card` once it has and before
//! it meets anybody, a number so many microseconds after the beginning.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use corro_core::{Error, GroupId, Rank, Result};
use corro_engine::{Engine, Options};
use corro_membership::{Client, JoinRequest, Joined};
use corro_transport::{Channel, Fabric, Link, Settings};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["send", pattern, mib] => send(pattern, mib.parse().unwrap_or(1)),
        ["answer"] => answer(),
        ["join"] => Fabric::from_env().map(|fabric| println!("joined as {} of {}", fabric.rank(), fabric.size())),
        ["die", place] => die(place),
        _ => Err(Error::Usage(format!("probe does not know {words:?}"))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("probe: {e}");
            ExitCode::FAILURE
        }
    }
}

/// In an elastic job the beginning is when it has a seat.
fn die(place: &str) -> Result<()> {
    let client = Client::from_env()?;
    let seat = match client.as_ref().map(|client| client.join(JoinRequest::default())).transpose()? {
        Some(Joined::Seat(seat)) => Some(seat),
        Some(other) => return Err(Error::Usage(format!("no seat but {other:?}"))),
        None => None,
    };
    if place == "seat" {
        kill_oneself();
    }
    if let Ok(micros) = place.parse() {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(micros));
            kill_oneself();
        });
    }
    let settings = Settings { area: 1 << 20, ..Settings::from_env()? };
    let fabric = match (client, seat) {
        (Some(client), Some(seat)) => client.fabric(&seat, settings)?,
        _ => Fabric::from_env_with(settings)?,
    };
    if place == "card" {
        kill_oneself();
    }
    let _engine = Engine::start(fabric, Options::from_env()?)?;
    std::thread::sleep(Duration::from_secs(600));
    Err(Error::Usage(format!("nothing happened at {place}")))
}

fn kill_oneself() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}

fn answer() -> Result<()> {
    let fabric = Fabric::from_env()?;
    let mut result = fabric.rank().to_string().into_bytes();
    result.extend(corro_launch::worker::payload()?);
    corro_launch::worker::give_result(&result)
}

fn send(pattern: &str, mib: usize) -> Result<()> {
    let fabric = Fabric::from_env()?;
    let last = fabric.size() - 1;
    let bytes: Vec<u8> = pattern.bytes().cycle().take(mib << 20).collect();
    let Channel { mut links, .. } = fabric.open(GroupId::WORLD, &Rank::all(fabric.size()).collect::<Vec<_>>())?;
    match links.me() {
        0 => {
            pass(links.to(last)?, &bytes)?;
            // The other end says that it has everything.
            take(links.to(last)?, 1)?;
        }
        me if me == last => {
            let whole = take(links.to(0)?, bytes.len())? == bytes;
            println!("{}", if whole { "the pattern has come" } else { "the pattern is broken" });
            pass(links.to(0)?, &[1])?;
        }
        _ => {}
    }
    Ok(())
}

/// Calls `step` until it says that all is done.
fn insist(mut step: impl FnMut() -> Result<bool>) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(60);
    while !step()? {
        if Instant::now() > until {
            return Err(Error::Usage("the pattern did not pass within a minute".into()));
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(())
}

fn pass(link: &mut Link, bytes: &[u8]) -> Result<()> {
    let mut message = link.start_send(bytes.len())?;
    insist(|| {
        link.try_send(&mut message, bytes)?;
        Ok(message.is_sent())
    })
}

fn take(link: &mut Link, length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let mut message = link.start_receive(length)?;
    insist(|| {
        link.try_receive(&mut message, &mut bytes)?;
        Ok(message.is_received())
    })?;
    Ok(bytes)
}
