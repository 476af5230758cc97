// SPDX-License-Identifier: Apache-2.0
//! Paper: the paper's analysis, repeated, with its printed numbers beside ours.
//!
//! `published` has every number of Tables 1–5 and of the text about the figures; `printed_model`
//! predicts with Table 5 as printed; `contradictions` follow from the published numbers alone.
//! `simulated_systems` and `simulated_dataset` stand in for the paper's cluster where no measured
//! dataset is given: rows from them are marked as simulated. `tables` computes Tables 2–5 of any
//! dataset, `figures` the claims about figures, and `comparison` prints all of it.
//! `statistics_page` has the plots of residuals.
//!
//! Source: Kougkas et al. 2016.

pub mod comparison;
pub mod contradictions;
pub mod figures;
pub mod printed_model;
pub mod published;
pub mod simulated_dataset;
pub mod simulated_systems;
pub mod statistics_page;
pub mod tables;
