// SPDX-License-Identifier: Apache-2.0
//! The trial of this machine: it mounts where mounts work, and leaves nothing.

use crate::mounted::can_mount;

#[test]
fn a_trial_leaves_no_mount() {
    if !can_mount() {
        return;
    }
    esker_fuse::try_mount().expect("the superuser mounts here");
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("the kernel's list");
    assert!(!mounts.contains("esker-trial"), "{mounts}");
}
