// SPDX-License-Identifier: Apache-2.0
//! Tests of namespaces that programs see without a mount.

mod attributes;
mod crashes;
mod directories;
mod files;
mod names;
mod preload;
mod programs;
mod shown;
mod spool;
mod surroundings;
mod trial;
