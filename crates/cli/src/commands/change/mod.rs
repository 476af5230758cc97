// SPDX-License-Identifier: Apache-2.0
//! Change: commands that change trees.

mod attributes;
pub mod chmod;
pub mod chown;
pub mod cp;
pub mod ln;
pub mod mkdir;
pub mod mv;
pub mod put;
pub mod rm;
pub mod touch;

use crate::location::{StackArgument, StackPath};
use crate::usage;

/// The stack that all of `locations` share.
fn one_stack(locations: &[StackPath]) -> &StackArgument {
    let first = &locations.first().expect("clap asks for one").stack;
    match locations.iter().find(|location| location.stack != *first) {
        None => first,
        Some(other) => {
            let what = "one command changes one name or session";
            usage::exit(format!("{other} is not in {first}: {what}"))
        }
    }
}
