// SPDX-License-Identifier: Apache-2.0
//! Tests of the crate from outside: every store runs the same conformance suite.

#[cfg(feature = "s3")]
mod faulty_proxy;
#[cfg(feature = "s3")]
mod s3;
#[cfg(feature = "s3")]
mod s3_faults;
#[cfg(feature = "s3")]
mod s3_keys;
#[cfg(feature = "s3")]
mod s3_server;
mod stores;
