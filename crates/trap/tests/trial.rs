// SPDX-License-Identifier: Apache-2.0
//! The trial of this machine: it works where programs can be shown files, and leaves nothing.

use std::sync::Arc;

use esker_base::Kind;
use esker_base::clock::SystemClock;

use crate::shown::{can_show, of, session, show};

#[test]
fn a_trial_leaves_nothing() {
    if !can_show() {
        return;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    esker_trap::try_program(scratch.path(), Arc::new(SystemClock))
        .expect("programs can be shown files here");
    assert_eq!(std::fs::read_dir(scratch.path()).expect("list").count(), 0);
    let absent = scratch.path().join("absent");
    let error = esker_trap::try_program(&absent, Arc::new(SystemClock)).expect_err("no directory");
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().contains("absent"), "{error}");
}

#[test]
fn a_trial_inside_of_a_supervisor_is_refused() {
    if !can_show() {
        return;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let session = session();
    let outcome =
        show(of(&session), |_| esker_trap::try_program(scratch.path(), Arc::new(SystemClock)));
    assert_eq!(outcome.expect_err("one at a time").kind(), Kind::Conflict);
}
