//! What may come to a parameter server, and to a worker from one: any bytes give frames or an error, what decodes encodes and
//! decodes again; and whatever frames come, in whatever order, neither a shard nor a session panics.

use std::net::SocketAddr;

use corro_core::DType;
use corro_server::frame::{Reader, Request, Response, StoreSetup, encode};
use corro_server::protocol::{Payload, ServerId, WorkerId};
use corro_server::session::{KeySpec, Session};
use corro_server::shard::Shard;
use corro_server::{Code, Consistency, Rule};
use serde::{Serialize, de::DeserializeOwned};

/// Feeds it.
pub fn run(bytes: &[u8]) {
    let Some((&kind, rest)) = bytes.split_first() else { return };
    let address = |port| vec![SocketAddr::from(([127, 0, 0, 1], port))];
    let (consistency, rule) = match kind % 4 {
        0 => (Consistency::Bsp, Rule::Sum),
        1 => (Consistency::Bsp, Rule::Update),
        2 => (Consistency::Ssp { bound: 1 }, Rule::Add),
        _ => (Consistency::Async { staleness_lr: true }, Rule::Update),
    };
    let setup =
        StoreSetup { store: 1, workers: 2, consistency, servers: vec![address(1), address(2)], you: ServerId(0) };
    let Ok(mut shard) = Shard::new(setup.clone()) else { return };
    let mut session = Session::new(WorkerId(0), setup, vec![1.0, 1.0]);
    for (name, code) in [("x", None), ("y", Some(Code::Int8 { block: 32 }))] {
        let spec = KeySpec { name: name.into(), dtype: DType::F32, rows: 2, width: 1, rule, striped: false, code };
        let _ = session.init(spec, None);
    }
    while let Some((request, payload)) = session.take(ServerId(0)) {
        shard.handle(WorkerId(0), request.clone(), payload.clone());
        shard.handle(WorkerId(1), request, payload);
    }
    for (request, payload) in hear::<Request>(rest, kind) {
        match kind >> 6 {
            0 => drop(shard.keep(ServerId(1), request, payload)),
            worker => shard.handle(WorkerId(u32::from(worker) - 1), request, payload),
        }
        assert!(shard.take_output().len() < 10_000);
    }
    let _ = (
        session.push("x", &[0; 8], 0, None),
        session.push("y", &[0; 8], 0, None),
        session.pull("x", 0),
        session.pull("y", 0),
    );
    for (response, payload) in hear::<Response>(rest, kind) {
        let _ = session.hear(ServerId(u32::from(kind & 1)), response, payload);
        while session.take(ServerId(0)).or_else(|| session.take(ServerId(1))).is_some() {}
    }
}

/// The frames in these bytes: as they are, and each piece as the head of a frame, so that the fuzzer need not find lengths first.
fn hear<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8], kind: u8) -> Vec<(T, Payload)> {
    let mut found = read::<T>(bytes);
    for piece in bytes.chunks(usize::from(kind & 63) + 4) {
        let (head, payload) = piece.split_at(piece.len() - piece.len() / 4);
        let total = (3 + piece.len()) as u32;
        let prefix = [total.to_le_bytes().as_slice(), &(head.len() as u16 + 1).to_le_bytes(), &[1]].concat();
        found.extend(read::<T>(&[&prefix, head, payload].concat()));
    }
    for (message, payload) in &found {
        // A number that is not one is equal to nothing, itself included.
        let bytes = encode(message, payload.len()).expect("what was decoded can be encoded");
        let again = read::<T>(&[&bytes, payload.as_slice()].concat());
        assert_eq!(format!("{again:?}"), format!("{:?}", [(message, payload)]));
    }
    found
}

fn read<T: DeserializeOwned>(mut bytes: &[u8]) -> Vec<(T, Payload)> {
    let (mut reader, mut found) = (Reader::<T>::default(), Vec::new());
    while !bytes.is_empty() {
        let count = reader.room().len().min(bytes.len());
        reader.room()[..count].copy_from_slice(&bytes[..count]);
        reader.filled(count);
        bytes = &bytes[count..];
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => found.push(frame),
                Ok(None) => break,
                Err(_) => return found,
            }
        }
    }
    found
}
