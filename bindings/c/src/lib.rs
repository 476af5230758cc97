// SPDX-License-Identifier: Apache-2.0
//! The C library: the functions that `include/esker.h` declares, over the crate `esker`.
//!
//! The header is written by hand and is the documentation; a test compares it with the functions
//! that this crate exports. One file here has the functions of one kind of object:
//!
//! | file | objects |
//! |---|---|
//! | [`repository`], [`names`] | repositories, published names, garbage, verification |
//! | [`session`], [`namespace`], [`job`] | trees to write, trees to read, parts of jobs |
//! | [`dir`], [`attributes`], [`entries`], [`file`], [`bulk`] | what is in a tree |
//! | [`live`] | trees that many clients change at once |
//! | [`communicator`], [`message_functions`] | ranks and their messages |
//! | [`indexed_writer`], [`indexed_reader`] | indexed directories |
//! | [`shared`] | files that many ranks write |
//!
//! [`handle`] holds the objects, [`arguments`] and [`options`] check what a caller passes, and
//! [`boundary`] turns results into return values.
//!
//! Invariants: (1) no panic leaves a function; (2) a null pointer, a closed handle and a handle of
//! another kind are errors, never undefined behaviour; (3) a callback of the caller runs while no
//! lock of this crate is held.
//!
//! Concurrency: any thread may call any function, except that one thread at a time uses a
//! communicator, and the writers and jobs on it.

#[cfg(test)]
mod abi;
mod arguments;
mod attributes;
mod boundary;
mod bulk;
mod communicator;
mod dir;
mod entries;
mod file;
mod handle;
mod indexed_reader;
mod indexed_writer;
mod job;
mod live;
mod message_functions;
mod names;
mod namespace;
mod options;
mod repository;
mod session;
mod shared;
