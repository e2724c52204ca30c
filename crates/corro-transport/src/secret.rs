//! The job's secret: what makes a process a member of the job.
//!
//! Owns the 32 bytes, wipes them when dropped, and does the arithmetic with them. Never prints them, not even in an
//! error about a text that is *almost* a secret.

use corro_core::{Error, Result};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroize;

/// Bytes of a secret, and of a proof made with it.
pub const SECRET_BYTES: usize = 32;

/// Shared by all processes of one job and by nobody else.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// A fresh one.
    pub fn random() -> Result<Self> {
        random_bytes().map(Self)
    }

    /// These bytes.
    pub const fn from_bytes(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    /// The secret written as 64 hexadecimal digits (see [`Secret::to_hex`]). The error says nothing of the text.
    pub fn parse(hex: &str) -> Result<Self> {
        let wrong = || {
            Error::Usage(format!(
                "CORRO_SECRET must be {} hexadecimal digits, as the launcher writes them (the text that was given has {} \
                 characters and is not shown)",
                2 * SECRET_BYTES,
                hex.trim().chars().count()
            ))
        };
        let digits = hex.trim().as_bytes();
        if digits.len() != 2 * SECRET_BYTES {
            return Err(wrong());
        }
        let mut secret = Self([0; SECRET_BYTES]);
        for (byte, pair) in secret.0.iter_mut().zip(digits.chunks_exact(2)) {
            let nibble = |digit: u8| char::from(digit).to_digit(16).ok_or_else(wrong);
            *byte = (nibble(pair[0])? * 16 + nibble(pair[1])?) as u8;
        }
        Ok(secret)
    }

    /// 64 hexadecimal digits, to hand to a child process. Never log this.
    pub fn to_hex(&self) -> String {
        use std::fmt::Write;
        self.0.iter().fold(String::with_capacity(2 * SECRET_BYTES), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// The bytes themselves, to be written where only this user can read them. Never log this.
    pub(crate) const fn to_bytes(&self) -> [u8; SECRET_BYTES] {
        self.0
    }

    /// A proof that its maker knows the secret: HMAC-SHA256 over `label` and `parts`, each with its length, so that no
    /// two lists of parts give the same bytes.
    pub fn prove(&self, label: &str, parts: &[&[u8]]) -> [u8; SECRET_BYTES] {
        self.mac(label, parts).finalize().into_bytes().into()
    }

    /// Whether `proof` is [`Secret::prove`] of the same label and parts. Takes the same time whatever differs.
    pub fn verify(&self, label: &str, parts: &[&[u8]], proof: &[u8]) -> bool {
        self.mac(label, parts).verify_slice(proof).is_ok()
    }

    /// Key material for one use, which tells nothing about the secret or about that of other uses.
    pub fn derive(&self, label: &str) -> [u8; SECRET_BYTES] {
        self.prove("derive", &[label.as_bytes()])
    }

    fn mac(&self, label: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        for part in std::iter::once(label.as_bytes()).chain(parts.iter().copied()) {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

/// Bytes nobody can guess, from the operating system.
pub(crate) fn random_bytes() -> Result<[u8; SECRET_BYTES]> {
    let mut bytes = [0; SECRET_BYTES];
    getrandom::fill(&mut bytes).map_err(|e| Error::io("asking the system for random bytes", e))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trips_and_errors_do_not_tell() {
        let secret = Secret::random().unwrap();
        assert_eq!(Secret::parse(&format!(" {}\n", secret.to_hex())).unwrap(), secret);
        assert_ne!(secret, Secret::random().unwrap());
        for bad in ["", "abcd", &"xy".repeat(32), &"é".repeat(32)] {
            let text = Secret::parse(bad).unwrap_err().to_string();
            assert!(bad.is_empty() || !text.contains(bad), "{text}");
        }
        assert!(!format!("{secret:?}").contains(&secret.to_hex()[..8]));
    }

    #[test]
    fn matches_the_standard() {
        // RFC 4231, test case 2, needs a free key; so this checks our framing against a value made with Python's hmac.
        let proof = Secret::from_bytes([7; 32]).prove("label", &[b"ab", b""]);
        assert_eq!(
            Secret::from_bytes(proof).to_hex(),
            "e92734cc40c3ed72c14c0ca7d1b8b17dce93e656b1029e441c498df43e856e1f"
        );
    }

    #[test]
    fn labels_and_boundaries_matter() {
        let secret = Secret::from_bytes([1; 32]);
        let proof = secret.prove("a", &[b"bc", b"d"]);
        assert!(secret.verify("a", &[b"bc", b"d"], &proof));
        assert!(!secret.verify("ab", &[b"c", b"d"], &proof));
        assert!(!secret.verify("a", &[b"b", b"cd"], &proof));
        assert!(!secret.verify("a", &[b"bcd"], &proof));
        assert!(!secret.verify("a", &[b"bc", b"d"], &proof[..31]));
        assert!(!Secret::from_bytes([2; 32]).verify("a", &[b"bc", b"d"], &proof));
        assert_ne!(secret.derive("x"), secret.derive("y"));
    }
}
