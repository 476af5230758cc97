// SPDX-License-Identifier: Apache-2.0
//! Proof: shows that both sides of a connection know a user's secret, which is never sent.
//!
//! The secret is a file of 32 random bytes that only its user can read, by default in the user's
//! configuration directory, which the nodes of a cluster share. A proof is a hash, keyed with the
//! secret, of the prover's side, the hello and the server's nonce, for a client also of the
//! identity that it claims. It is valid for one side of one connection. Frames after the handshake
//! are neither encrypted nor authenticated: the network must be one on which nobody eavesdrops or
//! tampers.
//! Source: mutual challenge and response, ISO/IEC 9798-4 (mechanism 4), with BLAKE3 as the MAC.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use esker_base::{Error, Kind, Random, Result};

use crate::wire::{CONNECTION_NONCE_BYTES, ClientHello};

const SECRET_BYTES: usize = 32;
const PROOF_BYTES: usize = blake3::OUT_LEN;

/// A user's secret.
#[derive(Clone)]
pub struct UserSecret([u8; SECRET_BYTES]);

impl std::fmt::Debug for UserSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UserSecret")
    }
}

/// The side of a connection that proves its knowledge of the secret.
#[derive(Clone, Copy, Debug)]
enum Prover {
    Client = 1,
    Server = 2,
}

impl UserSecret {
    /// The file of this user's secret, unless the user chose another: `esker/live-secret` in
    /// `XDG_CONFIG_HOME` or `~/.config`. `None` for a user without a home.
    #[must_use]
    pub fn default_path() -> Option<PathBuf> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let config = set("XDG_CONFIG_HOME").map(PathBuf::from);
        let config = config.or_else(|| Some(PathBuf::from(set("HOME")?).join(".config")))?;
        Some(config.join("esker/live-secret"))
    }

    /// Reads the secret in the file `path`.
    ///
    /// # Errors
    /// `NotFound`; `Denied` if others can read it; `Corrupt` for a file of another size.
    pub fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let failed = |error| Error::io(error, format!("read the secret {shown}"));
        let mut file = fs::File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let own = rustix::process::geteuid().as_raw();
        if metadata.mode() & 0o077 != 0 || (metadata.uid() != own && own != 0) {
            let what =
                format!("{shown}: others may know this secret; `chmod 600` it, or make another");
            return Err(Error::new(Kind::Denied, what));
        }
        let mut secret = [0; SECRET_BYTES];
        let whole = metadata.len() == SECRET_BYTES as u64;
        match file.read_exact(&mut secret) {
            Ok(()) if whole => Ok(Self(secret)),
            _ => Err(Error::corrupt(&shown.to_string(), 0, "32 bytes expected".to_owned())),
        }
    }

    /// Reads the secret in the file `path`; makes a new one, which only this user can read, if
    /// there is none.
    ///
    /// # Errors
    /// As [`UserSecret::read`]; those of making a file.
    pub fn read_or_make(path: &Path) -> Result<Self> {
        if let Some(folder) = path.parent() {
            let failed = |error| Error::io(error, format!("make {}", folder.display()));
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut secret = [0; SECRET_BYTES];
        Random::from_system().fill(&mut secret);
        let shown = path.display();
        // The name appears with the whole content, so that two processes agree on one secret.
        let unique = Random::from_system().next_u64();
        let aside = path.with_extension(format!("{unique:016x}.tmp"));
        let mut options = OpenOptions::new();
        let written = options.write(true).create_new(true).mode(0o600).open(&aside);
        let made = written.and_then(|mut file| {
            file.write_all(&secret)?;
            file.sync_all()?;
            match fs::hard_link(&aside, path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
                made => made,
            }
        });
        let _ = fs::remove_file(&aside);
        made.map_err(|error| Error::io(error, format!("make the secret {shown}")))?;
        Self::read(path)
    }

    fn prove(
        &self,
        prover: Prover,
        hello: &ClientHello,
        nonce: &[u8; CONNECTION_NONCE_BYTES],
        identity: &[u8],
    ) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[prover as u8]).update(&hello.encode()).update(nonce).update(identity);
        hasher.finalize()
    }

    /// Returns the server's challenge to the client that sent `hello`: `nonce` and a proof.
    #[cfg(any(feature = "server", test))]
    pub(crate) fn challenge(
        &self,
        hello: &ClientHello,
        nonce: [u8; CONNECTION_NONCE_BYTES],
    ) -> Vec<u8> {
        let proof = self.prove(Prover::Server, hello, &nonce, b"");
        [&nonce[..], proof.as_bytes()].concat()
    }

    /// Returns the client's answer to `challenge`, in which it claims `identity`; `None` unless the
    /// challenge proves that the server knows the secret.
    pub(crate) fn answer(
        &self,
        hello: &ClientHello,
        challenge: &[u8],
        identity: &[u8],
    ) -> Option<Vec<u8>> {
        let (nonce, proof) = challenge.split_first_chunk()?;
        if !is_equal(proof, &self.prove(Prover::Server, hello, nonce, b"")) {
            return None;
        }
        let own = self.prove(Prover::Client, hello, nonce, identity);
        Some([own.as_bytes(), identity].concat())
    }

    /// Returns the identity that a client claims with `answer`; `None` unless the answer proves
    /// that it knows the secret.
    #[cfg(any(feature = "server", test))]
    pub(crate) fn claimed<'a>(
        &self,
        hello: &ClientHello,
        nonce: &[u8; CONNECTION_NONCE_BYTES],
        answer: &'a [u8],
    ) -> Option<&'a [u8]> {
        let (proof, identity) = answer.split_at_checked(PROOF_BYTES)?;
        is_equal(proof, &self.prove(Prover::Client, hello, nonce, identity)).then_some(identity)
    }
}

/// Compares in constant time.
fn is_equal(bytes: &[u8], proof: &blake3::Hash) -> bool {
    <[u8; PROOF_BYTES]>::try_from(bytes).is_ok_and(|bytes| *proof == blake3::Hash::from(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use esker_table::manifest::SetId;

    use super::*;
    use crate::wire::HelloMethod;

    const HELLO: ClientHello = ClientHello {
        method: HelloMethod::Secret,
        client: 1,
        set: SetId(2),
        nonce: [3; CONNECTION_NONCE_BYTES],
    };
    const NONCE: [u8; CONNECTION_NONCE_BYTES] = [4; CONNECTION_NONCE_BYTES];

    #[test]
    fn a_proof_holds_for_one_side_of_one_connection_and_one_identity() {
        let (secret, other) = (UserSecret([1; 32]), UserSecret([2; 32]));
        let challenge = secret.challenge(&HELLO, NONCE);
        let answer = secret.answer(&HELLO, &challenge, b"me").expect("a valid challenge");
        assert_eq!(secret.claimed(&HELLO, &NONCE, &answer), Some(&b"me"[..]));
        assert_eq!(other.claimed(&HELLO, &NONCE, &answer), None);
        assert!(other.answer(&HELLO, &challenge, b"me").is_none());
        let another = ClientHello { client: 9, ..HELLO };
        assert_eq!(secret.claimed(&another, &NONCE, &answer), None);
        assert_eq!(secret.claimed(&HELLO, &HELLO.nonce, &answer), None);
        let reflected = [&challenge[CONNECTION_NONCE_BYTES..], b""].concat();
        assert_eq!(secret.claimed(&HELLO, &NONCE, &reflected), None);
        for bit in 0..answer.len() * 8 {
            let mut flipped = answer.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(secret.claimed(&HELLO, &NONCE, &flipped), None);
        }
        for length in 0..challenge.len() {
            assert!(secret.answer(&HELLO, &challenge[..length], b"").is_none());
        }
    }

    #[test]
    fn a_secret_is_made_once_and_for_its_user_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a/b/secret");
        assert_eq!(UserSecret::read(&path).unwrap_err().kind(), Kind::NotFound);
        let made = UserSecret::read_or_make(&path).expect("made");
        assert_eq!(UserSecret::read_or_make(&path).expect("read").0, made.0);
        assert_eq!(fs::metadata(&path).expect("a file").mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("chmod");
        assert_eq!(UserSecret::read(&path).unwrap_err().kind(), Kind::Denied);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
        fs::write(&path, b"short").expect("write");
        assert_eq!(UserSecret::read(&path).unwrap_err().kind(), Kind::Corrupt);
    }
}
