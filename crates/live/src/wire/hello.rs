// SPDX-License-Identifier: Apache-2.0
//! Hello: the handshake that begins a connection. The client names its user, and each side proves
//! that it is what it claims. Layout: docs/format/live.md, "Handshake".
//!
//! ```text
//! client                                       server
//!    hello: method, client, set, nonce     →
//!                                          ←      challenge: nonce, proof     (method Secret)
//!    proof, identity                       →
//!                                          ←      welcome: instance, epoch
//! ```
//! Invariant: frames of a handshake are at most [`GREETING_BYTES_MAX`] long, so that a stranger
//! costs a server little memory.

use esker_base::wire::{WireDamage, WireInput, put_varint};
use esker_base::{Error, Result};
use esker_fs::stack::identity::Identity;
use esker_table::manifest::SetId;

const MAGIC: &[u8; 8] = b"ESKRLIVE";
const VERSION: u16 = 4;
/// Supplementary groups of a user, at most: as many as Linux allows.
const GROUPS_MAX: usize = 65_536;

/// Bytes of a nonce.
pub const CONNECTION_NONCE_BYTES: usize = 16;
/// Maximum bytes of a frame before the end of the handshake.
pub const GREETING_BYTES_MAX: usize = 512 << 10;

/// The means by which a client proves its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HelloMethod {
    /// The kernel names the user of the process at the other end of a Unix socket.
    PeerCredentials = 1,
    /// Both sides know a secret.
    Secret = 2,
}

/// The first frame of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// The client's proof of its user.
    pub method: HelloMethod,
    /// The client, the same over all of its connections: a random number.
    pub client: u64,
    /// The change set of the live namespace.
    pub set: SetId,
    /// A number used once.
    pub nonce: [u8; CONNECTION_NONCE_BYTES],
}

impl ClientHello {
    /// Returns the payload.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.push(self.method as u8);
        out.extend_from_slice(&self.client.to_le_bytes());
        out.extend_from_slice(&self.set.0.to_le_bytes());
        out.extend_from_slice(&self.nonce);
        out
    }

    /// Reads the payload of a hello from `peer`.
    ///
    /// # Errors
    /// `Corrupt` for other bytes, and other versions.
    pub fn decode(payload: &[u8], peer: &str) -> Result<Self> {
        Self::take(&mut WireInput::new(payload)).map_err(|damage| damage.of(peer, 0))
    }

    fn take(input: &mut WireInput) -> Result<Self, WireDamage> {
        if input.take(MAGIC.len())? != MAGIC {
            return Err(input.damage("a client of a live namespace"));
        }
        if input.u16()? != VERSION {
            return Err(input.damage("version 4 of the protocol"));
        }
        let method = match input.u8()? {
            1 => HelloMethod::PeerCredentials,
            2 => HelloMethod::Secret,
            _ => return Err(input.damage("a method of authentication")),
        };
        let (client, set) = (input.u64()?, SetId(input.u128()?));
        let nonce = input.take(CONNECTION_NONCE_BYTES)?.try_into().expect("as many as taken");
        input.end()?;
        Ok(Self { method, client, set, nonce })
    }
}

/// Returns `identity` as bytes.
#[must_use]
pub fn encode_identity(identity: &Identity) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, u64::from(identity.uid));
    put_varint(&mut out, u64::from(identity.gid));
    put_varint(&mut out, identity.groups.len() as u64);
    identity.groups.iter().for_each(|group| put_varint(&mut out, u64::from(*group)));
    out
}

/// Reads an identity that is all of `bytes`, from `peer`.
///
/// # Errors
/// `Corrupt` for other bytes.
pub fn decode_identity(bytes: &[u8], peer: &str) -> Result<Identity> {
    let mut input = WireInput::new(bytes);
    let identity = take_identity(&mut input).and_then(|identity| Ok((input.end()?, identity).1));
    identity.map_err(|damage| damage.of(peer, 0))
}

/// Reads an identity.
///
/// # Errors
/// Damage if the bytes are none.
pub(super) fn take_identity(input: &mut WireInput) -> Result<Identity, WireDamage> {
    let id = |input: &mut WireInput| {
        let id = input.varint()?;
        u32::try_from(id).map_err(|_| input.damage("a user or group of 32 bits"))
    };
    let (uid, gid) = (id(input)?, id(input)?);
    let count = input.varint_max(GROUPS_MAX.min(input.left()), "as many groups as follow")?;
    let groups = (0..count).map(|_| id(input)).collect::<Result<_, _>>()?;
    Ok(Identity { uid, gid, groups })
}

/// The last frame of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerWelcome {
    /// The server process: a random number.
    pub instance: u64,
    /// The epoch of its writer.
    pub epoch: u64,
    /// True if the server of the epoch before ended in order: then it lost no answered change.
    pub follows_orderly_end: bool,
}

impl ServerWelcome {
    /// Returns the payload.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = [self.instance.to_le_bytes(), self.epoch.to_le_bytes()].concat();
        out.push(u8::from(self.follows_orderly_end));
        out
    }

    /// Reads the payload of a welcome from `peer`.
    ///
    /// # Errors
    /// `Corrupt` for other bytes.
    pub fn decode(payload: &[u8], peer: &str) -> Result<Self> {
        match payload.as_chunks() {
            ([instance, epoch], [end @ (0 | 1)]) => Ok(Self {
                instance: u64::from_le_bytes(*instance),
                epoch: u64::from_le_bytes(*epoch),
                follows_orderly_end: *end == 1,
            }),
            _ => Err(Error::corrupt(peer, 0, format!("a welcome of {} bytes", payload.len()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_come_back_and_others_are_refused() {
        let hello = ClientHello {
            method: HelloMethod::Secret,
            client: 3,
            set: SetId(u128::MAX - 5),
            nonce: [9; CONNECTION_NONCE_BYTES],
        };
        let bytes = hello.encode();
        assert_eq!(ClientHello::decode(&bytes, "x").unwrap(), hello);
        for length in 0..bytes.len() {
            assert!(ClientHello::decode(&bytes[..length], "x").is_err());
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let decoded = ClientHello::decode(&flipped, "x");
            assert!(bit >= 88 || decoded.is_err() || decoded.is_ok_and(|other| other != hello));
        }
    }

    #[test]
    fn identities_come_back_and_allocate_by_what_is_there() {
        let identity = Identity { uid: 1000, gid: 7, groups: vec![0, u32::MAX] };
        let bytes = encode_identity(&identity);
        assert_eq!(decode_identity(&bytes, "x").unwrap(), identity);
        for length in 0..bytes.len() {
            assert!(decode_identity(&bytes[..length], "x").is_err());
        }
        assert!(decode_identity(&[1, 1, 0xff, 0xff, 3], "x").is_err());
        let welcome = ServerWelcome { instance: 1, epoch: u64::MAX, follows_orderly_end: true };
        assert_eq!(ServerWelcome::decode(&welcome.encode(), "x").unwrap(), welcome);
        assert!(ServerWelcome::decode(&[0; 15], "x").is_err());
    }
}
