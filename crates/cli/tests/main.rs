// SPDX-License-Identifier: Apache-2.0
//! Tests of the command as users run it.

mod advice;
mod advise;
mod advise_models;
mod advise_replays;
mod arguments;
mod doctor;
#[expect(dead_code, reason = "the tests of the workbench use the rest")]
#[path = "../../workbench/tests/driver_library.rs"]
mod driver_library;
mod esker;
mod failures;
mod far_stores;
#[cfg(feature = "s3")]
#[expect(dead_code, reason = "the tests of the stores use the rest")]
#[path = "../../base/tests/faulty_proxy.rs"]
mod faulty_proxy;
mod forbidden_calls;
mod full_stores;
mod guides;
mod holders;
mod imd;
mod imd_append;
mod imd_import;
mod imd_mount;
mod inherited;
mod interrupts;
mod json;
mod live;
mod live_mounts;
mod live_seat_mounts;
mod messages;
#[cfg(feature = "mongodb")]
#[expect(dead_code, reason = "the tests of the backend use the rest")]
#[path = "../../workbench/tests/mongo_server.rs"]
mod mongo_server;
mod mounted;
mod mounts;
mod parts;
#[cfg(feature = "postgresql")]
#[path = "../../workbench/tests/postgres_server.rs"]
mod postgres_server;
mod progress;
#[cfg(feature = "redis")]
#[path = "../../workbench/tests/redis_server.rs"]
mod redis_server;
mod round_trip;
mod run;
#[cfg(feature = "s3")]
mod s3;
#[cfg(feature = "s3")]
#[expect(dead_code, reason = "the tests of the stores use the rest")]
#[path = "../../base/tests/s3_server.rs"]
mod s3_server;
mod sessions;
mod shared;
mod shown;
mod stacks;
mod suites;
mod transports;
mod two_users;
mod unprivileged;
mod user;
mod workbench;
