// SPDX-License-Identifier: Apache-2.0
//! The guides of `docs/guide`, whose Rust examples are tested.

#[doc = include_str!("../guide/programs.md")]
pub mod programs {}

#[doc = include_str!("../guide/c.md")]
pub mod c {}

#[doc = include_str!("../guide/deltafs.md")]
pub mod deltafs {}

#[doc = include_str!("../guide/getting-started.md")]
pub mod getting_started {}

#[doc = include_str!("../guide/command.md")]
pub mod command {}

#[doc = include_str!("../guide/durability.md")]
pub mod durability {}

#[doc = include_str!("../guide/stores.md")]
pub mod stores {}

#[doc = include_str!("../guide/sharing.md")]
pub mod sharing {}

#[doc = include_str!("../guide/ranks.md")]
pub mod ranks {}

#[doc = include_str!("../guide/shared-files.md")]
pub mod shared_files {}

#[doc = include_str!("../guide/mpi-io.md")]
pub mod mpi_io {}

#[doc = include_str!("../guide/indexed-directories.md")]
pub mod indexed_directories {}

#[doc = include_str!("../guide/mount.md")]
pub mod mount {}

#[doc = include_str!("../guide/unmodified-programs.md")]
pub mod unmodified_programs {}

#[doc = include_str!("../guide/glossary.md")]
pub mod glossary {}
