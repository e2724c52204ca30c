//! Every way a handshake must and must not succeed.

use proptest::prelude::*;

use super::*;

const NONCE: [u8; 32] = [9; 32];

fn secret(seed: u8) -> Arc<Secret> {
    Arc::new(Secret::from_bytes([seed; 32]))
}

fn link() -> Purpose {
    Purpose::Link { from: Rank::new(5), to: Rank::new(2), group: GroupId(77), index: 1, count: 4, control: false }
}

fn client(seed: u8, purpose: Purpose, binding: Binding) -> Client {
    Client::with_nonce(secret(seed), purpose, binding, NONCE).unwrap()
}

fn server(seed: u8, serves: Serves, binding: Binding) -> Server {
    Server::new(secret(seed), serves, binding)
}

/// What `side` wants to send, taken out of it.
fn drain(side: &mut impl Side) -> Vec<u8> {
    let bytes = side.output().to_vec();
    side.sent(bytes.len());
    bytes
}

/// A whole handshake; `meddle(message number, its bytes)` may change each of the four messages on its way.
fn run(client: &mut Client, server: &mut Server, mut meddle: impl FnMut(usize, &mut Vec<u8>)) -> Result<Purpose> {
    let mut carry = |number: usize, mut bytes: Vec<u8>| {
        meddle(number, &mut bytes);
        bytes
    };
    server.receive(&carry(0, drain(client)))?;
    client.receive(&carry(1, drain(server)))?;
    if !client.server_is_proven() {
        return Err(Error::Malformed("the challenge was cut short".into()));
    }
    client.prove()?;
    server.receive(&carry(2, drain(client)))?;
    let Some(purpose) = server.proven() else { return Err(Error::Malformed("the proof was cut short".into())) };
    server.accept()?;
    client.receive(&carry(3, drain(server)))?;
    if !client.is_accepted() {
        return Err(Error::Malformed("the acceptance was cut short".into()));
    }
    Ok(purpose)
}

#[test]
fn members_of_one_job_agree() {
    let tls = Binding::Tls([3; 32]);
    for (purpose, serves) in [(link(), Serves::Rank(Rank::new(2))), (Purpose::Store, Serves::Store)] {
        for binding in [Binding::Plain, tls] {
            let agreed = run(&mut client(1, purpose, binding), &mut server(1, serves, binding), |_, _| {});
            assert_eq!(agreed, Ok(purpose));
        }
    }
}

#[test]
fn bytes_may_come_one_by_one() {
    let (mut c, mut s) = (client(1, link(), Binding::Plain), server(1, Serves::Rank(Rank::new(2)), Binding::Plain));
    let trickle = |from: Vec<u8>, to: &mut dyn Side| {
        for byte in from {
            assert!(to.wanted() > 0);
            to.receive(&[byte]).unwrap();
        }
    };
    trickle(drain(&mut c), &mut s);
    trickle(drain(&mut s), &mut c);
    c.prove().unwrap();
    trickle(drain(&mut c), &mut s);
    assert!(s.output().is_empty(), "nothing is said before the owner accepts");
    s.accept().unwrap();
    trickle(drain(&mut s), &mut c);
    assert!(c.is_accepted());
    assert_eq!((c.wanted(), s.wanted()), (0, 0));
}

#[test]
fn another_secret_or_tunnel_is_found_out_by_the_client_first() {
    let pairs = [
        (client(1, link(), Binding::Plain), server(2, Serves::Rank(Rank::new(2)), Binding::Plain)),
        (client(1, link(), Binding::Tls([1; 32])), server(1, Serves::Rank(Rank::new(2)), Binding::Tls([2; 32]))),
        (client(1, link(), Binding::Plain), server(1, Serves::Rank(Rank::new(2)), Binding::Tls([0; 32]))),
    ];
    for (mut c, mut s) in pairs {
        let error = run(&mut c, &mut s, |_, _| {}).unwrap_err();
        assert!(matches!(error, Error::Unauthenticated(_)), "{error}");
        assert!(drain(&mut c).is_empty(), "a client must say nothing more to an impostor");
        assert!(s.proven().is_none() && s.accept().is_err());
        assert!(c.prove().is_err() && c.withdraw().is_err());
    }
}

#[test]
fn a_client_without_the_secret_is_not_accepted() {
    // It skips the check of the server, which an attacker's client would.
    let mut honest = client(1, link(), Binding::Plain);
    let mut s = server(1, Serves::Rank(Rank::new(2)), Binding::Plain);
    s.receive(&drain(&mut honest)).unwrap();
    let challenge = drain(&mut s);
    let forged = secret(2).prove("client", &[&challenge]);
    assert!(matches!(s.receive(&forged), Err(Error::Unauthenticated(_))));
    assert!(s.proven().is_none() && s.accept().is_err() && drain(&mut s).is_empty() && s.wanted() == 0);
}

#[test]
fn a_servers_proof_sent_back_is_no_clients_proof() {
    let mut c = client(1, link(), Binding::Plain);
    let mut s = server(1, Serves::Rank(Rank::new(2)), Binding::Plain);
    s.receive(&drain(&mut c)).unwrap();
    let challenge = drain(&mut s);
    assert!(s.receive(&challenge[32..]).is_err());
}

#[test]
fn replayed_bytes_are_worthless() {
    let mut captured = vec![Vec::new(); 4];
    let record = |n: usize, bytes: &mut Vec<u8>| captured[n].clone_from(bytes);
    run(&mut client(1, link(), Binding::Plain), &mut server(1, Serves::Rank(Rank::new(2)), Binding::Plain), record)
        .unwrap();
    // To a server: its nonce is another one now.
    let mut s = server(1, Serves::Rank(Rank::new(2)), Binding::Plain);
    s.receive(&captured[0]).unwrap();
    assert!(matches!(s.receive(&captured[2]), Err(Error::Unauthenticated(_))));
    // To a client: its nonce is another one too.
    let mut c = Client::new(secret(1), link(), Binding::Plain).unwrap();
    assert!(matches!(c.receive(&captured[1]), Err(Error::Unauthenticated(_))));
}

#[test]
fn nonces_differ() {
    let hello = |_: usize| drain(&mut Client::new(secret(1), link(), Binding::Plain).unwrap());
    assert_ne!(hello(0), hello(1));
    let challenge = || {
        let mut s = server(1, Serves::Rank(Rank::new(2)), Binding::Plain);
        s.receive(&drain(&mut client(1, link(), Binding::Plain))).unwrap();
        drain(&mut s)
    };
    assert_ne!(challenge(), challenge());
}

#[test]
fn the_wrong_door_stays_shut_and_says_which_it_is() {
    let table = [
        (link(), Serves::Rank(Rank::new(3)), "this is rank 3"),
        (link(), Serves::Store, "rendezvous store"),
        (Purpose::Store, Serves::Rank(Rank::new(3)), "this is rank 3"),
    ];
    for (purpose, serves, word) in table {
        let mut s = server(1, serves, Binding::Plain);
        let error = s.receive(&drain(&mut client(1, purpose, Binding::Plain))).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
        assert!(drain(&mut s).is_empty(), "a stranger gets no byte");
    }
}

#[test]
fn withdrawing_is_told_from_having_another_secret() {
    let mut c = client(1, link(), Binding::Plain);
    let mut s = server(1, Serves::Rank(Rank::new(2)), Binding::Plain);
    s.receive(&drain(&mut c)).unwrap();
    c.receive(&drain(&mut s)).unwrap();
    c.withdraw().unwrap();
    s.receive(&drain(&mut c)).unwrap();
    assert!(s.is_withdrawn() && s.proven().is_none() && s.accept().is_err() && drain(&mut s).is_empty());
    assert!(!c.is_accepted());
}

#[test]
fn tls_at_a_plain_door_is_recognised() {
    let error = server(1, Serves::Store, Binding::Plain).receive(&[0x16, 3, 1]).unwrap_err().to_string();
    assert!(error.contains("CORRO_TLS"), "{error}");
}

#[test]
fn more_than_was_asked_for_is_refused() {
    let mut s = server(1, Serves::Rank(Rank::new(2)), Binding::Plain);
    let mut hello = drain(&mut client(1, link(), Binding::Plain));
    hello.push(0);
    assert!(matches!(s.receive(&hello), Err(Error::Malformed(_))));
    let mut c = client(1, link(), Binding::Plain);
    assert!(c.receive(&[0; CHALLENGE_BYTES + 1]).is_err());
}

#[test]
fn another_version_names_the_cure() {
    let mut hello = drain(&mut client(1, link(), Binding::Plain));
    hello[6] = 9;
    let error = server(1, Serves::Rank(Rank::new(2)), Binding::Plain).receive(&hello).unwrap_err().to_string();
    assert!(error.contains("same release"), "{error}");
}

#[test]
fn absurd_streams_are_refused() {
    for (index, count) in [(0, 0), (4, 4), (0, MAX_STREAMS as u32 + 1)] {
        let purpose =
            Purpose::Link { from: Rank::new(1), to: Rank::new(2), group: GroupId(0), index, count, control: false };
        assert!(Client::with_nonce(secret(1), purpose, Binding::Plain, NONCE).is_err());
    }
}

proptest! {
    #[test]
    fn one_flipped_bit_anywhere_ends_it(message in 0usize..4, at: usize, bit in 0u8..8) {
        let mut c = client(1, link(), Binding::Plain);
        let mut s = server(1, Serves::Rank(Rank::new(2)), Binding::Plain);
        let outcome = run(&mut c, &mut s, |n, bytes| {
            if n == message {
                let at = at % bytes.len();
                bytes[at] ^= 1 << bit;
            }
        });
        prop_assert!(matches!(outcome, Err(Error::Unauthenticated(_) | Error::Malformed(_))), "{:?}", outcome);
    }

    #[test]
    fn a_message_cut_short_is_waited_for(message in 0usize..4, keep: usize) {
        let mut c = client(1, link(), Binding::Plain);
        let mut s = server(1, Serves::Rank(Rank::new(2)), Binding::Plain);
        let outcome = run(&mut c, &mut s, |n, bytes| {
            if n == message {
                let keep = keep % bytes.len();
                bytes.truncate(keep);
            }
        });
        prop_assert!(outcome.is_err());
        prop_assert!(!c.is_accepted());
    }

    #[test]
    fn every_field_of_the_hello_is_agreed_on(from: usize, to: usize, group: u64, count in 1u32..=64, index in 0u32..64) {
        prop_assume!(index < count);
        let purpose = Purpose::Link { from: Rank::new(from), to: Rank::new(to), group: GroupId(group), index, count, control: index % 2 == 1 };
        let agreed = run(
            &mut client(1, purpose, Binding::Plain),
            &mut server(1, Serves::Rank(Rank::new(to)), Binding::Plain),
            |_, _| {},
        );
        prop_assert_eq!(agreed, Ok(purpose));
    }

    #[test]
    fn garbage_never_panics_and_gets_no_answer(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 1..8)) {
        let mut s = server(1, Serves::Rank(Rank::new(2)), Binding::Plain);
        let mut c = client(1, link(), Binding::Plain);
        drain(&mut c);
        for piece in &pieces {
            let _ = s.receive(piece);
            let _ = c.receive(piece);
        }
        prop_assert!(s.proven().is_none() && s.accept().is_err() && !c.is_accepted());
        prop_assert!(s.output().is_empty() && c.output().is_empty());
    }
}
