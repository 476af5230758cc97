// SPDX-License-Identifier: Apache-2.0
//! Identity of a store: the object `esker.json`, which marks storage as an Esker store.
//!
//! ```json
//! {"format":2,"id":"9f86d081884c7d659a2feaa0c55ad015"}
//! ```
//! `format` determines how everything else in the store is read; it changes only when an older
//! release could not read the store. `id` tells apart stores that were reached by different names.

use serde::{Deserialize, Serialize};

use super::Store;
use crate::{Error, Kind, Random, Result};

/// The name of the object that marks a store.
pub const NAME: &str = "esker.json";

/// The format of stores that this release makes and reads. In format 1 each published name was an
/// object of its own.
pub const FORMAT: u32 = 2;

/// Maximum bytes of an `esker.json`; ours takes about 60.
const BYTES_MAX: u64 = 4096;

/// The contents of `esker.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreIdentity {
    /// The version of the store's format.
    pub format: u32,
    /// 32 hexadecimal digits, unique to the store.
    pub id: String,
}

impl StoreIdentity {
    /// Marks `store`, which is empty until now, as a store. One write request; survives power loss.
    ///
    /// # Errors
    /// `Exists` if it is marked already, else the store's own.
    pub fn create(store: &dyn Store, random: &mut Random) -> Result<Self> {
        let identity = Self { format: FORMAT, id: format!("{:032x}", random.u128()) };
        let json = serde_json::to_vec(&identity).expect("a number and a string are JSON");
        store.put_if_absent(NAME, &json).map_err(|error| match error.kind() {
            Kind::Exists => Error::new(Kind::Exists, format!("{} is already a store", store.url())),
            _ => error.within(format!("make a store at {}", store.url())),
        })?;
        Ok(identity)
    }

    /// Reads the identity of `store`. One read request.
    ///
    /// # Errors
    /// `NotFound` if it is not a store, `Invalid` if this release does not read its format,
    /// `Corrupt` if Esker did not write `esker.json`, else the store's own.
    pub fn read(store: &dyn Store) -> Result<Self> {
        let url = store.url();
        let json = store.get(NAME, BYTES_MAX).map_err(|error| match error.kind() {
            Kind::NotFound => {
                let what = "is not an Esker store: make one with `esker init --store";
                Error::new(Kind::NotFound, format!("{url} {what} {url}`"))
            }
            _ => error.within(format!("open the store {url}")),
        })?;
        let corrupt = |what: String| Error::corrupt(&format!("{NAME} of {url}"), 0, what);
        // The format first: a newer release may write fields that we do not know.
        let value: serde_json::Value = serde_json::from_slice(&json)
            .map_err(|error| corrupt(format!("expected JSON, got: {error}")))?;
        let format = value.get("format").and_then(serde_json::Value::as_u64);
        match format {
            None | Some(0) => Err(corrupt(format!("expected a format, got {value}"))),
            Some(format) if format != u64::from(FORMAT) => {
                let which = if format > u64::from(FORMAT) { "a newer" } else { "an older" };
                let what = format!(
                    "the store {url} has format {format} and this release supports {FORMAT}: use \
                     {which} release"
                );
                Err(Error::new(Kind::Invalid, what))
            }
            Some(_) => serde_json::from_value(value).map_err(|error| corrupt(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn is_read_as_it_was_made() {
        let store = MemoryStore::new();
        let made = StoreIdentity::create(&store, &mut Random::from_seed(1)).expect("create");
        assert_eq!(StoreIdentity::read(&store).expect("read"), made);
        let again = StoreIdentity::create(&store, &mut Random::from_seed(2)).expect_err("again");
        assert_eq!(again.kind(), Kind::Exists);
    }

    #[test]
    fn bytes_are_golden() {
        let store = MemoryStore::new();
        StoreIdentity::create(&store, &mut Random::from_seed(1)).expect("create");
        let json = store.get(NAME, 100).expect("get");
        assert_eq!(json, r#"{"format":2,"id":"cfc5d07f6f03c29bbf424132963fe08d"}"#);
    }

    #[test]
    fn what_is_no_store_is_refused() {
        for (json, kind, word) in [
            (None, Kind::NotFound, "esker init --store"),
            (Some(r#"{"format":3,"id":7}"#), Kind::Invalid, "use a newer release"),
            (Some(r#"{"format":1,"id":7}"#), Kind::Invalid, "use an older release"),
            (Some(r#"{"format":0,"id":"a"}"#), Kind::Corrupt, "expected a format"),
            (Some(r#"{"format":2,"id":7}"#), Kind::Corrupt, "string"),
            (Some(r#"{"id":"a"}"#), Kind::Corrupt, "expected a format"),
            (Some("{"), Kind::Corrupt, "expected JSON"),
        ] {
            let store = MemoryStore::new();
            if let Some(json) = json {
                store.put_if_absent(NAME, json.as_bytes()).expect("put");
            }
            let error = StoreIdentity::read(&store).expect_err("no store");
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
