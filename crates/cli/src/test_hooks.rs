//! Test hooks: in builds for tests, what the environment asks of the store that a command opens.
//!
//! | variable | what |
//! |---|---|
//! | `ESKER_TEST_SIGNAL=SIGNAL:N` | the process gets the signal, by its number, in place of request N, counted from 1 |
//! | `ESKER_TEST_ROUNDS=FILE` | the store is a far one, and each request is a line of the file: the number of its round trip, and what was asked |

use esker_base::store::SharedStore;

/// `store`, with what the environment asks for.
#[cfg(debug_assertions)]
pub fn with_test_hooks(store: SharedStore) -> SharedStore {
    hooked_store::wrap(store)
}

/// `store`.
#[cfg(not(debug_assertions))]
pub fn with_test_hooks(store: SharedStore) -> SharedStore {
    store
}

#[cfg(debug_assertions)]
mod hooked_store;
