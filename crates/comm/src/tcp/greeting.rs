//! Greeting: how two ranks find out that each is who it says. Layout: docs/format/message.md §4.
//!
//! Every job has a secret of 32 bytes, made at its meeting and readable by who can read the store.
//! Who connects shows the first half, who accepts the second: so neither talks to a rank of another
//! job that now has the port, nor to somebody who only found it. The bytes on the network are not
//! encrypted: as with MPI, it has to be one on which nobody listens in.

use crate::{Channel, Rank};

const MAGIC: &[u8; 8] = b"ESKRRANK";
const VERSION: u16 = 1;

/// The secret of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Secret {
    pub opener: [u8; 16],
    pub accepter: [u8; 16],
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Who connects to whom, for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub from: Rank,
    pub to: Rank,
    pub channel: Channel,
}

impl Hello {
    pub fn encode(&self, secret: &Secret) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(36);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.channel.0.to_le_bytes());
        bytes.extend_from_slice(&self.from.0.to_le_bytes());
        bytes.extend_from_slice(&self.to.0.to_le_bytes());
        bytes.extend_from_slice(&secret.opener);
        bytes
    }

    /// The greeting in `bytes`, if it is one of this job.
    pub fn decode(bytes: &[u8], secret: &Secret) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (version, rest) = rest.split_first_chunk::<2>()?;
        let (channel, rest) = rest.split_first_chunk::<2>()?;
        let (from, rest) = rest.split_first_chunk::<4>()?;
        let (to, token) = rest.split_first_chunk::<4>()?;
        let is_ours = magic == MAGIC && u16::from_le_bytes(*version) == VERSION;
        (is_ours && is_same(token, &secret.opener)).then_some(Self {
            from: Rank(u32::from_le_bytes(*from)),
            to: Rank(u32::from_le_bytes(*to)),
            channel: Channel(u16::from_le_bytes(*channel)),
        })
    }
}

/// Whether `bytes` answer a greeting of this job.
pub(super) fn is_welcome(bytes: &[u8], secret: &Secret) -> bool {
    is_same(bytes, &secret.accepter)
}

/// In the same time wherever they differ.
fn is_same(bytes: &[u8], secret: &[u8; 16]) -> bool {
    let differences = bytes.iter().zip(secret).fold(0, |found, (a, b)| found | (a ^ b));
    bytes.len() == secret.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: Secret = Secret { opener: [1; 16], accepter: [2; 16] };
    const HELLO: Hello = Hello { from: Rank(3), to: Rank(258), channel: Channel(0x7f20) };

    /// The bytes of docs/format/message.md.
    #[test]
    fn golden() {
        let bytes = HELLO.encode(&SECRET);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let parts = ["45534b5252414e4b", "0100", "207f", "03000000", "02010000"];
        assert_eq!(hex, parts.concat() + &"01".repeat(16));
        assert_eq!(Hello::decode(&bytes, &SECRET), Some(HELLO));
    }

    #[test]
    fn others_are_refused() {
        let bytes = HELLO.encode(&SECRET);
        for length in 0..bytes.len() {
            assert_eq!(Hello::decode(&bytes[..length], &SECRET), None);
        }
        assert_eq!(Hello::decode(&[&bytes[..], &[1]].concat(), &SECRET), None);
        let other = Secret { opener: [9; 16], ..SECRET };
        assert_eq!(Hello::decode(&bytes, &other), None);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Hello::decode(&flipped, &SECRET), Some(HELLO));
        }
        assert!(is_welcome(&[2; 16], &SECRET));
        assert!(!is_welcome(&[1; 16], &SECRET) && !is_welcome(&[2; 15], &SECRET));
    }
}
