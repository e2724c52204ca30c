//! Somebody on the way between two hosts changes what they say to each other, without TLS. What decides something is refused;
//! data arrives changed, and whoever checks its proof notices.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use corro_core::{Deadline, Error, GroupId, Rank, Result, codec};
use corro_transport::secret::Secret;
use corro_transport::{Broken, Card, Channel, Fabric, Rendezvous, Settings, Stream, store};

const HANG_LIMIT: Duration = Duration::from_secs(30);

fn soon() -> Deadline {
    Deadline::after(HANG_LIMIT)
}

/// Passes connections on; once it meddles, it turns a bit of whatever it passes on.
struct Proxy {
    address: SocketAddr,
    meddles: Arc<AtomicBool>,
}

impl Proxy {
    fn before(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, meddles) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let meddling = Arc::clone(&meddles);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(std::result::Result::ok) {
                let server = TcpStream::connect(target).unwrap();
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let meddling = Arc::clone(&meddling);
                    std::thread::spawn(move || pass_on(from, to, &meddling));
                }
            }
        });
        Self { address, meddles }
    }

    fn meddle(&self, meddle: bool) {
        self.meddles.store(meddle, Ordering::SeqCst);
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, meddling: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if meddling.load(Ordering::SeqCst) {
            // Deep inside a long payload, or near the end of a short message.
            bytes[count.saturating_sub(20)] ^= 0x40;
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Where the ranks leave their cards. Whoever asks for rank 0's gets the proxy's address.
#[derive(Clone, Default)]
struct Board(Arc<(Mutex<Cards>, Condvar)>);

#[derive(Default)]
struct Cards {
    left: HashMap<String, Vec<u8>>,
    proxy: Option<Arc<Proxy>>,
}

impl Rendezvous for Board {
    fn publish(&mut self, key: &str, value: Vec<u8>, _: Deadline) -> Result<()> {
        let (cards, changed) = &*self.0;
        let mut cards = cards.lock().unwrap();
        let mut value = value;
        if key.ends_with("/0") {
            let (mut card, _) = codec::take::<Card>(&value, 1 << 16).unwrap().unwrap();
            let proxy = Arc::new(Proxy::before(card.addresses[0]));
            card.addresses = vec![proxy.address];
            cards.proxy = Some(proxy);
            value = codec::encode(&card).unwrap();
        }
        cards.left.insert(key.into(), value);
        changed.notify_all();
        Ok(())
    }

    fn collect(&mut self, keys: &[String], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        let (cards, changed) = &*self.0;
        let mut cards = cards.lock().unwrap();
        while !keys.iter().all(|k| cards.left.contains_key(k)) {
            if deadline.passed() {
                return Err(Error::io("meeting", "nobody came"));
            }
            cards = changed.wait_timeout(cards, Duration::from_millis(20)).unwrap().0;
        }
        Ok(keys.iter().map(|k| cards.left[k].clone()).collect())
    }
}

const BOTH: [Rank; 2] = [Rank::ZERO, Rank::new(1)];

/// Two ranks on hosts of their own, between which there is a proxy.
fn two_ranks() -> (Vec<Arc<Fabric>>, Arc<Proxy>) {
    let (board, secret) = (Board::default(), Secret::random().unwrap());
    let join = |rank: usize| {
        let (mut board, secret) = (board.clone(), secret.clone());
        let settings =
            Settings { host: Some(format!("host{rank}")), one_host: true, area: 1 << 16, ..Settings::default() };
        std::thread::spawn(move || Fabric::join(Rank::new(rank), 2, &secret, &mut board, settings).unwrap())
    };
    let joining = [join(0), join(1)];
    let fabrics = joining.map(|rank| rank.join().unwrap()).into();
    let proxy = board.0.0.lock().unwrap().proxy.take().unwrap();
    (fabrics, proxy)
}

/// Runs `act` for both ranks at once.
fn both<T: Send>(fabrics: &[Arc<Fabric>], act: impl Fn(usize, &Arc<Fabric>) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let act = &act;
        let ranks: Vec<_> = fabrics.iter().enumerate().map(|(r, f)| scope.spawn(move || act(r, f))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn say(stream: &mut dyn Stream, bytes: &[u8]) {
    assert_eq!(stream.try_write(bytes), Ok(bytes.len()));
    let start = Instant::now();
    while !stream.try_flush().unwrap() {
        assert!(start.elapsed() < HANG_LIMIT);
    }
}

fn hear(stream: &mut dyn Stream, count: usize) -> Result<Vec<u8>, Broken> {
    let (start, mut all) = (Instant::now(), Vec::new());
    while all.len() < count {
        let mut bytes = [0; 100];
        let got = stream.try_read(&mut bytes)?;
        all.extend_from_slice(&bytes[..got]);
        assert!(start.elapsed() < HANG_LIMIT, "nothing came");
        std::thread::yield_now();
    }
    Ok(all)
}

#[test]
fn what_ranks_agree_on_cannot_be_changed_on_its_way() {
    for speaker in 0..2 {
        let (fabrics, proxy) = two_ranks();
        let mut wires = both(&fabrics, |rank, fabric| fabric.streams(GroupId(1), &BOTH, [1 - rank]).unwrap());
        let mut streams: Vec<_> = wires.iter_mut().map(|w| w.streams.pop().unwrap()).collect();
        say(&mut *streams[speaker], b"all is well");
        assert_eq!(hear(&mut *streams[1 - speaker], 11).unwrap(), b"all is well");
        proxy.meddle(true);
        say(&mut *streams[speaker], b"shut down, please");
        let Broken(why) = hear(&mut *streams[1 - speaker], 17).unwrap_err();
        assert!(why.contains("not what it sent"), "{why}");
    }
}

#[test]
fn data_that_was_changed_has_no_proof_any_more() {
    let (fabrics, proxy) = two_ranks();
    let mut channels = both(&fabrics, |_, fabric| fabric.open(GroupId(2), &BOTH).unwrap());
    let object = vec![7u8; 3000];
    let proof = fabrics[0].object_key().prove("object", &[&object]);
    let (mut sends, mut receives) = (channels.remove(0), channels.remove(0));
    connect(&mut sends, &mut receives);
    proxy.meddle(true);
    let message = [object.as_slice(), &proof].concat();
    let sender = std::thread::spawn(move || {
        let link = sends.links.to(1).unwrap();
        let mut outgoing = link.start_send(message.len()).unwrap();
        while !outgoing.is_sent() {
            link.try_send(&mut outgoing, &message).unwrap();
        }
        sends
    });
    let link = receives.links.to(0).unwrap();
    let mut came = vec![0; object.len() + proof.len()];
    let mut incoming = link.start_receive(came.len()).unwrap();
    let start = Instant::now();
    // The header may have been met as well: then it is refused right there.
    let outcome = loop {
        match link.try_receive(&mut incoming, &mut came) {
            Err(error) => break Err(error),
            Ok(_) if incoming.is_received() => break Ok(()),
            Ok(_) => assert!(start.elapsed() < HANG_LIMIT, "nothing came"),
        }
    };
    let _sends = sender.join().unwrap();
    outcome.unwrap();
    let (data, tag) = came.split_at(object.len());
    assert!(came[..] != [object.as_slice(), &proof].concat(), "the proxy did nothing");
    assert!(!fabrics[1].object_key().verify("object", &[data], tag), "a changed object was taken for whole");
}

/// Makes the data link between both, before anybody meddles: links are made on first use.
fn connect(one: &mut Channel, other: &mut Channel) {
    std::thread::scope(|scope| {
        scope.spawn(|| one.links.to(1).map(drop).unwrap());
        scope.spawn(|| other.links.to(0).map(drop).unwrap());
    });
}

#[test]
fn what_the_store_says_cannot_be_changed_on_its_way() {
    let secret = Secret::random().unwrap();
    let bind = "127.0.0.1:0".parse().unwrap();
    let server = store::Server::start(bind, &secret, false, store::Limits::default()).unwrap();
    let proxy = Proxy::before(server.address());
    let mut client = store::Client::connect(&[proxy.address], &secret, false, soon()).unwrap();
    client.set("function", b"harmless".to_vec(), soon()).unwrap();
    assert_eq!(client.get("function", soon()).unwrap(), b"harmless");
    proxy.meddle(true);
    let error = client.get("function", soon()).unwrap_err().to_string();
    // Which of the two notices first, the store or its client, is a matter of who is changed first.
    assert!(error.contains("not what it sent") || error.contains("lost the store"), "{error}");
}
