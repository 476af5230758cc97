// SPDX-License-Identifier: Apache-2.0
//! Plasma: a small particle-in-cell simulation, as an application that uses only Esker's messages
//! between ranks.
//!
//! Electrons move in a periodic plane over a background of ions at rest: their charges are spread
//! over a grid ([`grid`]), the field follows from the charges ([`poisson`]), and the field and a
//! constant magnetic field push the electrons ([`boris`]). Each rank has the electrons in its slab
//! of the plane; electrons that leave it move to a neighbour ([`exchange`]).
//!
//! Units: time in inverse plasma frequencies; electrons have charge −1 and mass 1, and their mean
//! density is 1, so the plasma frequency is 1. Lengths and velocities share one free unit.
//! Source: Birdsall and Langdon, Plasma physics via computer simulation, 1985.

pub mod boris;
pub mod electron;
pub mod exchange;
pub mod grid;
pub mod poisson;
pub mod program;
pub mod setup;
mod simulation;

pub use electron::Electron;
pub use setup::Setup;
pub use simulation::{Energies, Simulation};
