// SPDX-License-Identifier: Apache-2.0
//! Handshake: the exchange in which two ranks prove to each other that they belong to one job.
//! Layout: docs/format/message.md, "Frames".
//!
//! ```text
//! opener                                          accepter
//!    hello: ranks, channel, opener's nonce     →
//!                                              ←     challenge: accepter's nonce and proof
//!    proof, and then messages                  →
//!                                              ←     welcome
//! ```
//! Every job has a secret of 32 bytes, generated at its rendezvous and readable by every process
//! that can read the store. It is never sent. A proof is a hash, keyed with the secret, of the
//! prover's side, both ranks, the channel and both nonces. It is valid for one side of one
//! connection, so a process that has taken over the port of a dead rank gains nothing from the
//! bytes that it receives or has seen.
//! The bytes on the network are not encrypted, and only the handshake is authenticated: as with
//! MPI, the network must be one on which nobody eavesdrops or tampers.
//! Source: mutual challenge and response, ISO/IEC 9798-4 (mechanism 4), with BLAKE3 as the MAC.

use esker_base::Random;

use crate::{Channel, Rank};

const MAGIC: &[u8; 8] = b"ESKRRANK";
const VERSION: u16 = 2;

const HELLO_BYTES: usize = 36;
const NONCE_BYTES: usize = 16;
const PROOF_BYTES: usize = blake3::OUT_LEN;

/// Largest payload of a handshake frame, in bytes.
pub(super) const GREETING_BYTES_MAX: usize = NONCE_BYTES + PROOF_BYTES;

const _: () = assert!(HELLO_BYTES <= GREETING_BYTES_MAX);

/// The secret of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct JobSecret(pub [u8; 32]);

impl std::fmt::Debug for JobSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// A number used for one connection only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HandshakeNonce(pub [u8; NONCE_BYTES]);

impl HandshakeNonce {
    /// An unpredictable nonce: each comes from the kernel.
    pub fn random() -> Self {
        let mut bytes = [0; NONCE_BYTES];
        Random::from_system().fill(&mut bytes);
        Self(bytes)
    }
}

/// The first frame of a handshake: sender, receiver, channel and the opener's nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HandshakeHello {
    pub from: Rank,
    pub to: Rank,
    pub channel: Channel,
    pub nonce: HandshakeNonce,
}

impl HandshakeHello {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HELLO_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.channel.0.to_le_bytes());
        bytes.extend_from_slice(&self.from.0.to_le_bytes());
        bytes.extend_from_slice(&self.to.0.to_le_bytes());
        bytes.extend_from_slice(&self.nonce.0);
        bytes
    }

    /// Decodes a hello of this version; `None` for other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (version, rest) = rest.split_first_chunk::<2>()?;
        let (channel, rest) = rest.split_first_chunk::<2>()?;
        let (from, rest) = rest.split_first_chunk::<4>()?;
        let (to, nonce) = rest.split_first_chunk::<4>()?;
        let is_known = magic == MAGIC && u16::from_le_bytes(*version) == VERSION;
        let nonce = HandshakeNonce(nonce.try_into().ok()?);
        is_known.then_some(Self {
            from: Rank(u32::from_le_bytes(*from)),
            to: Rank(u32::from_le_bytes(*to)),
            channel: Channel(u16::from_le_bytes(*channel)),
            nonce,
        })
    }
}

/// The side of a connection that proves its knowledge of the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prover {
    Opener = 1,
    Accepter = 2,
}

impl JobSecret {
    /// The payload that answers `hello`: the accepter's nonce and its proof.
    pub fn challenge(&self, hello: &HandshakeHello, nonce: HandshakeNonce) -> Vec<u8> {
        let mut bytes = nonce.0.to_vec();
        bytes.extend_from_slice(self.proof_of(Prover::Accepter, hello, nonce).as_bytes());
        bytes
    }

    /// The opener's proof in answer to `challenge`; `None` unless the challenge proves the rank
    /// that `hello` was addressed to.
    pub fn answer(&self, hello: &HandshakeHello, challenge: &[u8]) -> Option<Vec<u8>> {
        let (nonce, proof) = challenge.split_first_chunk::<NONCE_BYTES>()?;
        let nonce = HandshakeNonce(*nonce);
        let is_proved = is_equal(proof, &self.proof_of(Prover::Accepter, hello, nonce));
        is_proved.then(|| self.proof_of(Prover::Opener, hello, nonce).as_bytes().to_vec())
    }

    /// Returns whether `proof` is from the rank that `hello` names as its sender, challenged with
    /// `nonce`.
    pub fn is_answer(&self, hello: &HandshakeHello, nonce: HandshakeNonce, proof: &[u8]) -> bool {
        is_equal(proof, &self.proof_of(Prover::Opener, hello, nonce))
    }

    fn proof_of(
        &self,
        prover: Prover,
        hello: &HandshakeHello,
        accepter: HandshakeNonce,
    ) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[prover as u8]).update(&hello.encode()).update(&accepter.0);
        hasher.finalize()
    }
}

/// Compares in constant time.
fn is_equal(bytes: &[u8], proof: &blake3::Hash) -> bool {
    <[u8; PROOF_BYTES]>::try_from(bytes).is_ok_and(|bytes| *proof == blake3::Hash::from(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: JobSecret = JobSecret([1; 32]);
    const HELLO: HandshakeHello = HandshakeHello {
        from: Rank(3),
        to: Rank(258),
        channel: Channel(0x7f20),
        nonce: HandshakeNonce([2; 16]),
    };
    const NONCE: HandshakeNonce = HandshakeNonce([3; 16]);

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The bytes of docs/format/message.md.
    #[test]
    fn golden() {
        let parts = ["45534b5252414e4b", "0200", "207f", "03000000", "02010000"];
        assert_eq!(hex(&HELLO.encode()), parts.concat() + &"02".repeat(16));
        assert_eq!(HandshakeHello::decode(&HELLO.encode()), Some(HELLO));
        let challenge = SECRET.challenge(&HELLO, NONCE);
        let parts = [
            "03".repeat(16),
            "a4e99c6e2126a374106e70c41eaca8b9e5db82086267c2bd787ceb2795c5f88a".to_owned(),
        ];
        assert_eq!(hex(&challenge), parts.concat());
        let proof = SECRET.answer(&HELLO, &challenge).expect("a challenge of this job");
        assert_eq!(hex(&proof), "cee400bc0cce7a7ecedb45f0a4ed47648c5e096c3819e1467571f6c9649b17c2");
    }

    #[test]
    fn hellos_of_another_length_or_version_are_refused() {
        let bytes = HELLO.encode();
        for length in 0..bytes.len() {
            assert_eq!(HandshakeHello::decode(&bytes[..length]), None);
        }
        assert_eq!(HandshakeHello::decode(&[&bytes[..], &[1]].concat()), None);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(HandshakeHello::decode(&flipped), Some(HELLO));
            assert!(bit >= 80 || HandshakeHello::decode(&flipped).is_none(), "magic and version");
        }
    }

    /// A proof is valid for one secret, side, pair of ranks, channel and pair of nonces.
    #[test]
    fn a_proof_holds_for_one_side_of_one_connection() {
        let challenge = SECRET.challenge(&HELLO, NONCE);
        let proof = SECRET.answer(&HELLO, &challenge).expect("a challenge of this job");
        assert!(SECRET.is_answer(&HELLO, NONCE, &proof));
        let others = [
            HandshakeHello { from: Rank(4), ..HELLO },
            HandshakeHello { to: Rank(4), ..HELLO },
            HandshakeHello { from: HELLO.to, to: HELLO.from, ..HELLO },
            HandshakeHello { channel: Channel(1), ..HELLO },
            HandshakeHello { nonce: NONCE, ..HELLO },
        ];
        for other in others {
            assert!(SECRET.answer(&other, &challenge).is_none(), "{other:?}");
            assert!(!SECRET.is_answer(&other, NONCE, &proof), "{other:?}");
        }
        assert!(!SECRET.is_answer(&HELLO, HELLO.nonce, &proof));
        assert!(!SECRET.is_answer(&HELLO, NONCE, &challenge[16..]), "the other side's");
        assert!(SECRET.answer(&HELLO, &[&NONCE.0[..], &proof].concat()).is_none());
        assert!(JobSecret([9; 32]).answer(&HELLO, &challenge).is_none());
        assert!(!JobSecret([9; 32]).is_answer(&HELLO, NONCE, &proof));
        for length in 0..proof.len() {
            assert!(!SECRET.is_answer(&HELLO, NONCE, &proof[..length]));
        }
        for length in 0..challenge.len() {
            assert!(SECRET.answer(&HELLO, &challenge[..length]).is_none());
        }
    }
}
