// SPDX-License-Identifier: Apache-2.0
//! Advice: which storage suits an application, how sure that is, why, and which change of the
//! application would gain most.
//!
//! `storage_advice` compares the predictions of a model; `application_change` predicts the same
//! application with one property changed; `advice_text` and `advice_page` show both.

pub mod advice_page;
pub mod advice_text;
pub mod application_change;
pub mod storage_advice;
