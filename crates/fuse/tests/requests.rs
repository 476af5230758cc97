// SPDX-License-Identifier: Apache-2.0
//! Requests: the number that the kernel sends for common operations; docs/guide/mount.md has the
//! table.

use esker_fs::session::view::NamespaceView;
use std::fs;
use std::sync::Arc;

use esker_fuse::{ControlRequest, ask};
use serde_json::{Value, json};

use crate::mounted::{Mounted, can_mount, session};

/// Files and directories of a test.
const FILES: u64 = 100;

/// The requests that `work` causes for each of [`FILES`] calls, without FORGET, which the kernel
/// sends later, at any time. RELEASE is asynchronous, so a few may come later.
fn requests_of(mounted: &Mounted, work: impl Fn(String)) -> Value {
    let requests = || {
        let answer = ask(&mounted.root(), &ControlRequest::Statistics).expect("it counts");
        answer["requests"].as_object().expect("an object").clone()
    };
    let before = requests();
    (0..FILES).for_each(|number| work(format!("{number}")));
    let mut after = requests();
    after.retain(|kind, count| {
        let before = before.get(kind).and_then(Value::as_u64).unwrap_or(0);
        let each = (count.as_u64().unwrap_or(0) - before + 5) / FILES;
        *count = each.into();
        each > 0 && kind != "forget"
    });
    after.into()
}

#[test]
fn common_operations_cost_no_more_requests_than_the_guide_says() {
    if !can_mount() {
        return;
    }
    let session = session();
    let view = NamespaceView::Session(Arc::clone(&session));
    let mounted = Mounted::with_options(view, |options| options.counts_requests = true);
    let path = |name: String| mounted.path(name);
    let made = requests_of(&mounted, |name| drop(fs::File::create_new(path(name)).expect("new")));
    let written = requests_of(&mounted, |name| fs::write(path(name), "text").expect("write"));
    let made_and_written = requests_of(&mounted, |name| {
        fs::write(path(format!("new.{name}")), "text").expect("write");
    });
    let shown = requests_of(&mounted, |name| assert!(fs::metadata(path(name)).is_ok()));
    let read = requests_of(&mounted, |name| drop(fs::read(path(name)).expect("read")));
    let removed = requests_of(&mounted, |name| fs::remove_file(path(name)).expect("unlink"));
    let directories = requests_of(&mounted, |name| fs::create_dir(path(name)).expect("mkdir"));
    let listed = requests_of(&mounted, |name| {
        assert_eq!(fs::read_dir(path(name)).expect("open").count(), 0);
    });
    let directories_removed =
        requests_of(&mounted, |name| fs::remove_dir(path(name)).expect("rmdir"));
    let expected = [
        // The kernel reads the attributes of a directory again once a name in it has changed.
        (made, json!({"lookup": 1, "create": 1, "release": 1, "getattr": 1})),
        // The kernel asks for `security.capability` before each change of content.
        (written, json!({"open": 1, "setattr": 1, "write": 1, "release": 1, "getxattr": 2})),
        (
            made_and_written,
            json!({"lookup": 1, "create": 1, "write": 1, "release": 1, "getattr": 1, "getxattr": 1}),
        ),
        (shown, json!({"getattr": 1})),
        (read, json!({"open": 1, "read": 1, "release": 1})),
        (removed, json!({"unlink": 1, "getattr": 1})),
        (directories, json!({"lookup": 1, "mkdir": 1, "getattr": 1})),
        (listed, json!({"opendir": 1, "readdirplus": 1, "readdir": 1, "releasedir": 1})),
        (directories_removed, json!({"rmdir": 1, "getattr": 1})),
    ];
    for (number, (requests, expected)) in expected.iter().enumerate() {
        for (kind, count) in requests.as_object().expect("an object") {
            let expected = expected[kind].as_u64().unwrap_or(0);
            assert!(count.as_u64().is_some_and(|count| count <= expected), "{number}: {requests}");
        }
    }
    mounted.end().expect("end");
}
