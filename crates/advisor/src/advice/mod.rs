// SPDX-License-Identifier: Apache-2.0
//! Advice: the storage that suits an application, the certainty and the reasons, and the change of
//! the application that would gain most.
//!
//! `storage_advice` compares the predictions of a model; `application_change` predicts the same
//! application with one property changed; `advice_text` and `advice_page` show both.

pub mod advice_page;
pub mod advice_text;
pub mod application_change;
pub mod storage_advice;
