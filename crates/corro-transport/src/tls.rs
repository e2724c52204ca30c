//! TLS 1.3 between the processes of one job, without certificates to distribute.
//!
//! An Ed25519 key is derived from the job's secret. Both sides present it as a raw public key (RFC 7250) and both accept
//! exactly that one, so whoever lacks the secret gets no tunnel. Inside the tunnel the handshake of `handshake` runs as
//! on plain TCP, bound to this very tunnel by [`TlsStream::tunnel`]'s key material.
//!
//! Owns the tunnel and its buffers, which are bounded. Never waits. There is no session resumption and no TLS 1.2.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use corro_core::{Error, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, DistinguishedName, ServerConfig,
    ServerConnection, SignatureScheme,
};
use zeroize::Zeroizing;

use crate::secret::Secret;
use crate::stream::{Broken, Stream};
use crate::tcp::plain::{CLOSED, answers, read_some, words};

/// How much encrypted output a stream holds before `try_write` takes no more.
const OUTPUT_LIMIT: usize = 256 * 1024;
/// How much encrypted input is fetched at once.
const INPUT_BYTES: usize = 128 * 1024;
/// A tunnel that is not built yet reads little, so that strangers cost little.
const STRANGER_INPUT_BYTES: usize = 4 * 1024;

/// The key this job's processes know each other by, and the settings made from it.
#[derive(Debug)]
pub(crate) struct TlsIdentity {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl TlsIdentity {
    pub(crate) fn new(secret: &Secret) -> Result<Self> {
        let bug = |what: &str, e: rustls::Error| Error::Bug(format!("{what} for TLS: {e}"));
        let key = ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8(secret).as_slice()))
            .map_err(|e| bug("deriving a key", e))?;
        let public = key.public_key().ok_or_else(|| Error::Bug("an Ed25519 key without its public half".into()))?;
        let mut provider = ring::default_provider();
        // AES first: every CPU that trains anything has instructions for it.
        provider.cipher_suites = vec![
            ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
            ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
            ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ];
        let provider = Arc::new(provider);
        let verifier = Arc::new(JobKey {
            public: public.clone().into_owned(),
            algorithms: provider.signature_verification_algorithms,
        });
        let certified = Arc::new(CertifiedKey::new(vec![CertificateDer::from(public.to_vec())], key));

        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| bug("choosing the version", e))?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_client_cert_resolver(Arc::new(rustls::client::AlwaysResolvesClientRawPublicKeys::new(
                certified.clone(),
            )));
        client.resumption = rustls::client::Resumption::disabled();
        client.enable_sni = false;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| bug("choosing the version", e))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(rustls::server::AlwaysResolvesServerRawPublicKeys::new(certified)));
        server.send_tls13_tickets = 0;
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }
}

/// The private key in the wrapping that RFC 8410 prescribes: a fixed head, then the 32 bytes.
fn pkcs8(secret: &Secret) -> Zeroizing<Vec<u8>> {
    const HEAD: [u8; 16] =
        [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
    let seed = Zeroizing::new(secret.derive("tls key"));
    let mut der = Zeroizing::new(Vec::with_capacity(HEAD.len() + seed.len()));
    der.extend_from_slice(&HEAD);
    der.extend_from_slice(&*seed);
    der
}

/// Accepts the job's own key and nothing else, on either side.
#[derive(Debug)]
struct JobKey {
    public: SubjectPublicKeyInfoDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl JobKey {
    fn check_key(&self, presented: &CertificateDer<'_>, chain: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        if presented.as_ref() == self.public.as_ref() && chain.is_empty() {
            return Ok(());
        }
        Err(rustls::Error::InvalidCertificate(rustls::CertificateError::ApplicationVerificationFailure))
    }

    fn check_signature(
        &self,
        message: &[u8],
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        // Against our own copy of the key: what the peer presented was compared with it before.
        verify_tls13_signature_with_raw_key(message, &self.public, signature, &self.algorithms)
    }

    fn refuse_tls12() -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("corro speaks no TLS 1.2".into()))
    }
}

impl ServerCertVerifier for JobKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check_key(end_entity, intermediates).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Self::refuse_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        _cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.check_signature(message, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for JobKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check_key(end_entity, intermediates).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Self::refuse_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        _cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.check_signature(message, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// A TCP connection through a TLS tunnel as a [`Stream`].
pub(crate) struct TlsStream {
    socket: std::net::TcpStream,
    connection: Connection,
    /// Encrypted bytes that were fetched and not yet fed to `connection`: `input[at..end]`.
    input: Vec<u8>,
    at: usize,
    end: usize,
    /// The first byte the other side ever sent; tells TLS from anything else.
    first: Option<u8>,
    /// The other side's key is not the job's.
    impostor: bool,
    broken: Option<Broken>,
}

impl TlsStream {
    pub(crate) fn client(socket: std::net::TcpStream, identity: &TlsIdentity) -> Result<Self> {
        let name = ServerName::try_from("corro").map_err(|e| Error::Bug(format!("a name for TLS: {e}")))?;
        let connection = ClientConnection::new(identity.client.clone(), name)
            .map_err(|e| Error::Bug(format!("opening a TLS tunnel: {e}")))?;
        Ok(Self::new(socket, connection.into()))
    }

    pub(crate) fn server(socket: std::net::TcpStream, identity: &TlsIdentity) -> Result<Self> {
        let connection = ServerConnection::new(identity.server.clone())
            .map_err(|e| Error::Bug(format!("opening a TLS tunnel: {e}")))?;
        Ok(Self::new(socket, connection.into()))
    }

    fn new(socket: std::net::TcpStream, mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(OUTPUT_LIMIT));
        Self { socket, connection, input: Vec::new(), at: 0, end: 0, first: None, impostor: false, broken: None }
    }

    pub(crate) fn tcp(&self) -> &std::net::TcpStream {
        &self.socket
    }

    /// Whether output waits for the socket to take it.
    pub(crate) fn holds_output(&self) -> bool {
        self.connection.wants_write()
    }

    /// Whether the other side showed a key that is not the job's.
    pub(crate) fn found_impostor(&self) -> bool {
        self.impostor
    }

    /// Drives the TLS handshake; when it is done, gives key material that only the two ends of this tunnel have.
    pub(crate) fn tunnel(&mut self) -> Result<Option<[u8; 32]>, Broken> {
        self.guarded(|me| {
            while me.connection.is_handshaking() {
                me.flush()?;
                if !me.advance()? {
                    me.flush()?;
                    return Ok(None);
                }
            }
            me.flush()?;
            me.connection
                .export_keying_material([0; 32], b"EXPORTER-corro-handshake", None)
                .map(Some)
                .map_err(|e| Broken(format!("the TLS tunnel gives no key material: {e}")))
        })
    }

    /// Runs `step` unless the stream is broken already, and remembers if it breaks now.
    fn guarded<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T, Broken>) -> Result<T, Broken> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let outcome = step(self);
        if let Err(broken) = &outcome {
            self.broken = Some(broken.clone());
            // Whatever rustls wants to say about it (an alert) is said if it fits.
            let _ = self.flush();
        }
        outcome
    }

    /// True when nothing is left to be sent.
    fn flush(&mut self) -> Result<bool, Broken> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(Broken(words(&e))),
            }
        }
        Ok(true)
    }

    /// Feeds more encrypted bytes to the tunnel. False when none have come.
    fn advance(&mut self) -> Result<bool, Broken> {
        if self.at == self.end {
            let size = if self.connection.is_handshaking() { STRANGER_INPUT_BYTES } else { INPUT_BYTES };
            if self.input.len() != size {
                self.input.resize(size, 0);
            }
            (self.at, self.end) = (0, 0);
            let count = read_some(&mut self.socket, &mut self.input).map_err(|broken| self.explain_end(broken))?;
            if count == 0 {
                return Ok(false);
            }
            self.first.get_or_insert(self.input[0]);
            self.end = count;
        }
        let fed = self.connection.read_tls(&mut &self.input[self.at..self.end]);
        let fed = fed.map_err(|e| Broken(format!("the TLS tunnel can't take what came: {e}")))?;
        self.at += fed;
        if let Err(e) = self.connection.process_new_packets() {
            self.impostor = matches!(e, rustls::Error::InvalidCertificate(_));
            return Err(self.explain_tls(&e));
        }
        // rustls takes nothing more after the end of the tunnel; without this the caller would try for ever.
        if fed == 0 { Err(Broken(CLOSED.into())) } else { Ok(true) }
    }

    fn explain_end(&self, broken: Broken) -> Broken {
        if self.connection.is_handshaking() {
            Broken(format!("{} (while TLS was being set up: is CORRO_TLS the same on every rank?)", broken.0))
        } else {
            broken
        }
    }

    fn explain_tls(&self, error: &rustls::Error) -> Broken {
        Broken(match (self.first, error) {
            // Every TLS record of a handshake starts with 0x16, an alert with 0x15.
            (Some(first), _) if !matches!(first, 0x14..=0x17) => {
                "it does not speak TLS: is CORRO_TLS the same on every rank?".into()
            }
            (_, rustls::Error::InvalidCertificate(_)) => {
                "its TLS key is not this job's (does CORRO_SECRET differ, or is it of another job?)".into()
            }
            (_, rustls::Error::AlertReceived(alert)) if self.connection.is_handshaking() => {
                format!("it refused the TLS tunnel ({alert:?}): does CORRO_SECRET differ, or is it of another job?")
            }
            _ => format!(
                "what came through the TLS tunnel is not what was sent ({error}); something between the hosts \
                          alters it"
            ),
        })
    }
}

impl Stream for TlsStream {
    fn try_write(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        self.guarded(|me| {
            let mut taken = 0;
            loop {
                let all_sent = me.flush()?;
                if taken == bytes.len() {
                    return Ok(taken);
                }
                // rustls cuts at its limit and takes nothing when that is reached.
                let count = me.connection.writer().write(&bytes[taken..]).map_err(|e| Broken(words(&e)))?;
                taken += count;
                if count == 0 && !all_sent {
                    return Ok(taken);
                }
            }
        })
    }

    fn try_read(&mut self, into: &mut [u8]) -> Result<usize, Broken> {
        self.guarded(|me| {
            let mut given = 0;
            while given < into.len() {
                match me.connection.reader().read(&mut into[given..]) {
                    // The other side has ended the tunnel in good order; for us that is the end all the same.
                    Ok(0) if given == 0 => return Err(Broken(CLOSED.into())),
                    Ok(0) => break,
                    Ok(count) => given += count,
                    Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => match me.advance() {
                        Ok(true) => {}
                        Ok(false) => break,
                        // What came before the end is still good; the next call tells of the end.
                        Err(broken) if given > 0 => {
                            me.broken = Some(broken);
                            return Ok(given);
                        }
                        Err(broken) => return Err(broken),
                    },
                    Err(e) => return Err(Broken(words(&e))),
                }
            }
            if me.connection.wants_write() {
                me.flush()?;
            }
            Ok(given)
        })
    }

    fn try_flush(&mut self) -> Result<bool, Broken> {
        self.guarded(Self::flush)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn writable_by_poll(&self) -> bool {
        true
    }

    fn check(&mut self) -> Result<(), Broken> {
        self.guarded(|me| answers(&me.socket))
    }
}

impl std::fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsStream").field("socket", &self.socket).finish_non_exhaustive()
    }
}
