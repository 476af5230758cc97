// SPDX-License-Identifier: Apache-2.0
//! Tests of indexed directories as a whole.

mod auxiliary;
mod bounds;
mod crash;
mod damage;
mod golden;
mod model;
mod parts;
mod schema;
mod slots;
mod vpic;
mod written;
