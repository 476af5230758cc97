// SPDX-License-Identifier: Apache-2.0
//! Workbench: latencies of a metadata service under the mixed load of many ranks.
//!
//! `backend` is the service; `pattern` says which rank does what to which object; `pace` says when;
//! `runner` drives the phases of one rank, and `recorder` keeps their latencies in bounded memory.
//! `result` joins the ranks; `summary`, `compare` and `report` show results, and `csv`, `parquet`
//! and `arrow` write their table.
//! Nothing here reads ambient time: the clock is passed in, so simulations drive the same code.
//!
//! Source: Kunkel and Markomanolis, Understanding Metadata Latency with MDWorkbench, 2018 (§3).

pub mod arrow;
pub mod arrow_message;
pub mod backend;
pub mod compare;
pub mod csv;
pub mod distribution;
pub mod environment;
pub mod gather;
pub mod histogram;
pub mod io500;
pub mod mix;
pub mod object_content;
pub mod operation;
pub mod options;
pub mod pace;
pub mod parquet;
pub mod pattern;
pub mod progress;
pub mod recorder;
pub mod report;
pub mod reservoir;
pub mod result;
pub mod result_table;
pub mod run;
pub mod runner;
pub mod slowest;
pub mod summary;
pub mod timer;
pub mod working_set;
