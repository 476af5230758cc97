// SPDX-License-Identifier: Apache-2.0
//! Advisor: recommends storage for an application, from a trace of its I/O.
//!
//! `observation` is one measured run, and the interface between the half that measures and the half
//! that models; `features` are the same variables computed from a trace. `statistics` are the
//! procedures of the paper: means, correlation, regression, its diagnostics. `regressors` are the
//! columns of the paper's equation, and `paper` has its numbers beside ours. `model` predicts
//! rates, and is chosen by cross-validation; `advice` draws the conclusions for one application.
//! Nothing here reads ambient time or randomness: both are passed in.
//!
//! Source: Kougkas, Eslami, Sun, Thakur and Gropp, Rethinking key-value store for parallel I/O
//! optimization, IJHPCA 2016.

pub mod advice;
mod exclusive_lock;
pub mod features;
pub mod measure;
pub mod model;
pub mod observation;
pub mod paper;
pub mod parquet_table;
pub mod pattern;
pub mod player;
pub mod regressors;
pub mod statistics;
pub mod trace;
