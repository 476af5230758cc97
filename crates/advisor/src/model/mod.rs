// SPDX-License-Identifier: Apache-2.0
//! Model: predicts the rate of an application on each storage system.
//!
//! `response_features` are the variables on scales on which effects multiply; `rate_predictor` fits
//! one of five methods to one system: the paper's linear model, a log-linear one with interactions,
//! `boosted_trees` and `random_forest` of `regression_tree`s, and the mean of the last three. `cross_validation` leaves out one family of workloads at a
//! time, and `decision_score` counts right decisions and regret. `advisor_model` fits all methods
//! and keeps the winner; `esker advise model` saves it.

pub mod advisor_model;
pub mod boosted_trees;
pub mod cross_validation;
pub mod decision_score;
pub mod random_forest;
pub mod rate_predictor;
mod regression_tree;
pub mod response_features;
