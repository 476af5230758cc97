// SPDX-License-Identifier: Apache-2.0
//! Server address: the place at which a server of a seat of a live namespace accepts connections. Layout:
//! docs/format/live.md.
//!
//! It is only a hint: the newest manifest of the set has the actual writer. A server whose address
//! is out of date refuses connections, does not answer, or says that it was fenced.

use esker_base::store::{Store, put_own};
use esker_base::{Kind, Result};
use esker_fs::names::live_namespace::LiveNamespace;
use serde::{Deserialize, Serialize};

/// Maximum bytes of an address object.
const ADDRESS_BYTES_MAX: u64 = 64 << 10;

/// The address of a server, and the process that serves there.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ServerAddress {
    /// The server process: a random number, 16 hexadecimal digits.
    pub instance: String,
    /// The epoch of the server's writer: among several servers, the one with the highest epoch
    /// writes.
    pub epoch: u64,
    /// The machine, for people.
    pub host: String,
    /// The machine's boot: a Unix socket is reached only within it.
    pub boot: String,
    /// Process number, for people.
    pub pid: u32,
    /// The user who runs it.
    pub uid: u32,
    /// Time at which it began, in nanoseconds since the Unix epoch.
    pub began_ns: u64,
    /// Host and port that accept TCP connections, if any.
    pub tcp: Option<String>,
    /// The abstract Unix socket that accepts connections, if any.
    pub unix: Option<String>,
}

impl ServerAddress {
    /// Puts the address of a server of `seat` of the live namespace `name`, and removes those of earlier
    /// servers, which it has fenced. Cost: a write, a listing, a deletion for each.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn put(&self, store: &dyn Store, (name, seat): (&str, u16)) -> Result<()> {
        let folder = LiveNamespace::server_folder(name, seat);
        let bytes = serde_json::to_vec(self).expect("an address is plain JSON");
        put_own(store, &format!("{folder}{}", self.instance), &bytes)?;
        for (object, address) in Self::list(store, (name, seat))? {
            // A server that was fenced before this point must not remove its successor's address.
            if address.is_none_or(|address| address.epoch < self.epoch) {
                store.delete(&object)?;
            }
        }
        Ok(())
    }

    /// Removes the address of a server that ends.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn remove(&self, store: &dyn Store, (name, seat): (&str, u16)) -> Result<()> {
        let folder = LiveNamespace::server_folder(name, seat);
        store.delete(&format!("{folder}{}", self.instance))
    }

    /// Returns the addresses of servers of `seat` of the live namespace `name`, that of the newest writer
    /// first. Cost: a listing, and a request for each.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn all(store: &dyn Store, (name, seat): (&str, u16)) -> Result<Vec<Self>> {
        // Hints that cannot be read are left out.
        let read = Self::list(store, (name, seat))?.into_iter().filter_map(|(_, address)| address);
        let mut addresses: Vec<Self> = read.collect();
        addresses.sort_by_key(|address| std::cmp::Reverse((address.epoch, address.began_ns)));
        Ok(addresses)
    }

    /// Returns all address objects, each with its content if that can be read.
    fn list(store: &dyn Store, (name, seat): (&str, u16)) -> Result<Vec<(String, Option<Self>)>> {
        let mut found = Vec::new();
        for object in store.list(&LiveNamespace::server_folder(name, seat))? {
            match store.get(&object.name, ADDRESS_BYTES_MAX) {
                Ok(bytes) => found.push((object.name, serde_json::from_slice(&bytes).ok())),
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use esker_base::store::{FaultEffect, FaultStore, MemoryStore};

    use super::*;

    fn address(instance: &str, began_ns: u64) -> ServerAddress {
        ServerAddress {
            instance: instance.to_owned(),
            epoch: began_ns,
            host: "node7".into(),
            boot: "b".into(),
            pid: 12,
            uid: 1000,
            began_ns,
            tcp: Some("node7:4000".into()),
            unix: None,
        }
    }

    /// Symptom: a server ended because the answer to the put of its address was lost.
    /// Cause: it took its own address for that of another server.
    /// Fix: nobody else puts these bytes there, so they are its own.
    #[test]
    fn an_address_is_recognized_although_the_answer_was_lost() -> Result<()> {
        let memory = std::sync::Arc::new(MemoryStore::new());
        let store = FaultStore::new(memory.clone(), 1);
        store.fail_at_with(1, Kind::Unavailable, FaultEffect::Full);
        address("a", 1).put(&store, ("run", 0))?;
        assert_eq!(ServerAddress::all(&*memory, ("run", 0))?, [address("a", 1)]);
        Ok(())
    }

    #[test]
    fn a_server_replaces_the_addresses_of_earlier_ones() -> Result<()> {
        let store = MemoryStore::new();
        address("a", 1).put(&store, ("run", 0))?;
        address("c", 1).put(&store, ("other", 0))?;
        address("d", 1).put(&store, ("run", 1))?;
        store.put_if_absent("live/run/server/noise", b"{")?;
        assert_eq!(ServerAddress::all(&store, ("run", 0))?, [address("a", 1)]);
        address("b", 2).put(&store, ("run", 0))?;
        assert_eq!(ServerAddress::all(&store, ("run", 0))?, [address("b", 2)]);
        // Fenced, and late.
        address("late", 1).put(&store, ("run", 0))?;
        assert_eq!(ServerAddress::all(&store, ("run", 0))?[0], address("b", 2));
        address("late", 1).remove(&store, ("run", 0))?;
        address("b", 2).remove(&store, ("run", 0))?;
        assert_eq!(ServerAddress::all(&store, ("run", 0))?, []);
        assert_eq!(ServerAddress::all(&store, ("other", 0))?.len(), 1);
        Ok(())
    }
}
