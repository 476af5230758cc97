// SPDX-License-Identifier: Apache-2.0
//! Test hooks: in builds for tests, environment variables modify the store that a command opens.
//!
//! | variable | effect |
//! |---|---|
//! | `ESKER_TEST_SIGNAL=SIGNAL:N[:TIMES]` | the process gets the signal, by its number, TIMES times in place of request N, counted from 1 |
//! | `ESKER_TEST_RUN=TEXT:COMMAND` | a shell runs the command before the first request for an object whose name contains the text |
//! | `ESKER_TEST_ROUNDS=FILE` | the store acts as a far one, and each request adds a line to the file: the number of its round trip, and the request |

use esker_base::store::SharedStore;

/// Adds the hooks from the environment to `store`.
#[cfg(debug_assertions)]
pub fn with_test_hooks(store: SharedStore) -> SharedStore {
    hooked_store::wrap(store)
}

/// Returns `store` unchanged.
#[cfg(not(debug_assertions))]
pub fn with_test_hooks(store: SharedStore) -> SharedStore {
    store
}

#[cfg(debug_assertions)]
mod hooked_store;
