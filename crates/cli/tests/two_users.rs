// SPDX-License-Identifier: Apache-2.0
//! Several users: private stores and a store of their group, separated by mode bits.
//!
//! Only the superuser can act as several users, so these tests are skipped for others.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::user::{User, is_root};

/// The user `nobody`, since only users with a name may mount.
const ANN: u32 = 65_534;
const BOB: u32 = 65_502;
const EVE: u32 = 65_503;
/// The group that Ann and Bob are in, and Eve is not.
const LAB: u32 = 65_500;

/// Ann, whose files are private by default, and Bob, whose files everybody may read.
fn ann_and_bob() -> (User, User) {
    (User::new(ANN, vec![LAB], "077"), User::new(BOB, vec![LAB], "022"))
}

/// Ann, Bob and Eve with a store that Ann made with `--shared` or `--shared=world`.
fn lab(shared: &str) -> [User; 3] {
    let (ann, bob) = ann_and_bob();
    let store = ann.path("store");
    ann.does(&format!("mkdir store && chgrp {LAB} store"));
    ann.ok(["init", shared]);
    ann.does("mkdir -p tree/d && echo ann >tree/d/f && chmod -R a+rX tree");
    let eve = User::new(EVE, vec![], "022");
    [ann, bob.with_store(&store), eve.with_store(&store)]
}

fn skipped() -> bool {
    if !is_root() {
        println!("skipped: only the superuser can be two users");
    }
    !is_root()
}

/// Everything below `top`, and itself.
fn walk(top: &Path) -> Vec<PathBuf> {
    let mut found = vec![top.to_owned()];
    let mut next = 0;
    while let Some(path) = found.get(next) {
        if path.is_dir() {
            let entries: Vec<_> = fs::read_dir(path).expect("readable").collect();
            found.extend(entries.into_iter().map(|entry| entry.expect("an entry").path()));
        }
        next += 1;
    }
    found
}

/// Fails unless everything in the store has the group and these modes.
fn assert_modes(store: &Path, directory: u32, file: u32) {
    for path in walk(store) {
        let metadata = fs::metadata(&path).expect("there");
        let mode = if metadata.is_dir() { directory } else { file };
        let found = metadata.permissions().mode() & 0o7777;
        assert_eq!(format!("{found:o}"), format!("{mode:o}"), "{}", path.display());
        assert_eq!(metadata.gid(), LAB, "{}", path.display());
    }
}

/// Symptom: after the superuser had written to a user's store, the user's `gc`, `delete` and imports
/// failed with "permission denied".
/// Cause: objects and folders that the superuser made belonged to the superuser.
/// Fix: they belong to the owner of the store's folder.
#[test]
fn the_superuser_leaves_the_owner_of_a_store_in_charge() {
    if skipped() {
        return;
    }
    let ann = User::new(ANN, vec![], "077");
    ann.does("mkdir -p tree/d && echo ann >tree/d/f");
    // The folder may be made for her, and then be made a store by the superuser.
    ann.does("mkdir store");
    let root = User::of_suite("077").with_store(ann.store());
    root.ok(["init"]);
    root.does("mkdir more && echo root >more/g");
    root.ok(["import", "more", "first"]);
    ann.ok(["import", "tree", "ann"]);
    root.ok(["put", "more/g", "ann:/d/g", "--as", "both"]);
    root.ok(["delete", "first"]);
    let open = root.ok(["session", "begin"]);
    for path in walk(ann.store()) {
        let metadata = fs::symlink_metadata(&path).expect("there");
        let owner = (metadata.uid(), metadata.gid());
        assert_eq!(owner, (ANN, ANN), "{}", path.display());
    }
    // Each file in the tree belongs to the user who put it there.
    ann.fails(8, ["cat", "both:/d/g"]);
    ann.ok(["session", "drop", open.trim()]);
    ann.ok(["delete", "both"]);
    ann.ok(["gc", "--grace", "0s"]);
    ann.ok(["import", "tree", "again"]);
    ann.ok(["verify"]);
    root.ok(["gc", "--grace", "0s"]);
    ann.ok(["gc", "--grace", "0s"]);
}

/// Symptom: in a store of several users, nobody else could read what a user with umask 077 wrote:
/// `names`, `verify` and `gc` failed for all.
/// Cause: the umask of each writer determined the modes of objects.
/// Fix: in a store whose directory has the set-group-id bit, everything gets the directory's modes.
#[test]
fn a_group_shares_a_store_whatever_umasks_its_members_have() {
    if skipped() {
        return;
    }
    let [ann, bob, eve] = lab("--shared");
    ann.ok(["import", "tree", "ann"]);
    assert_eq!(bob.ok(["cat", "ann:/d/f"]), "ann\n");
    bob.does("mkdir more && echo bob >more/g");
    bob.ok(["import", "more", "bob"]);
    // Each writes on top of the other's snapshot, and beside it.
    bob.ok(["publish", "--base", "ann", "--base", "bob", "both"]);
    let session = ann.ok(["session", "begin", "--base", "both"]).trim().to_owned();
    ann.ok(["put", "tree/d/f", &format!("{session}:/h")]);
    for user in [&ann, &bob] {
        assert_eq!(user.ok(["names"]).lines().count(), 3);
        assert!(user.ok(["verify"]).starts_with("sound"));
        assert!(user.ok(["ls", &format!("{session}:/")]).contains('h'));
    }
    assert_modes(ann.store(), 0o2770, 0o660);
    // Each collects the other's garbage.
    bob.ok(["squash", "both", "--as", "flat"]);
    bob.ok(["session", "drop", &session]);
    bob.ok(["delete", "ann", "both"]);
    bob.ok(["gc", "--grace", "0s"]);
    ann.ok(["delete", "bob"]);
    ann.ok(["gc", "--grace", "0s"]);
    for user in [&ann, &bob] {
        assert_eq!(user.ok(["find", "flat:/", "--sorted"]), "/\n/d\n/d/f\n/g\n");
        assert!(user.ok(["verify"]).starts_with("sound"));
    }
    assert_modes(ann.store(), 0o2770, 0o660);
    let said = eve.fails(8, ["names"]);
    assert!(said.contains(&ann.store().display().to_string()), "{said}");
}

#[test]
fn all_the_world_reads_a_store_of_a_group() {
    if skipped() {
        return;
    }
    let [ann, bob, eve] = lab("--shared=world");
    ann.ok(["import", "tree", "ann"]);
    bob.does("mkdir tree && echo bob >tree/g");
    bob.ok(["import", "tree", "bob"]);
    assert_modes(ann.store(), 0o2775, 0o664);
    assert_eq!(eve.ok(["cat", "ann:/d/f"]), "ann\n");
    assert_eq!(eve.ok(["names"]).lines().count(), 2);
    assert!(eve.ok(["verify"]).starts_with("sound"));
    eve.does("mkdir tree");
    let said = eve.fails(8, ["import", "tree", "eve"]);
    assert!(said.contains(&ann.store().display().to_string()), "{said}");
    assert_eq!(ann.ok(["session", "list"]), "");
}

#[test]
fn a_store_is_shared_by_its_directory_alone() {
    if skipped() {
        return;
    }
    let (ann, bob) = ann_and_bob();
    // Without --shared the umask determines the modes.
    ann.ok(["init"]);
    ann.does("mkdir tree && echo ann >tree/f");
    ann.ok(["import", "tree", "ann"]);
    let bob = bob.with_store(ann.store());
    let said = bob.fails(8, ["names"]);
    assert!(said.contains(&ann.store().display().to_string()), "{said}");
    // Neither a store of a group that its creator is not in nor one outside a directory can be
    // shared.
    let eve = User::new(EVE, vec![], "022");
    eve.does("mkdir store");
    std::os::unix::fs::chown(eve.store(), None, Some(LAB)).expect("the superuser may");
    let said = eve.fails(8, ["init", "--shared"]);
    assert!(said.contains("chgrp"), "{said}");
    let said = eve.fails(13, ["init", "--shared", "--store", "memory:"]);
    assert!(said.contains("only a directory can be shared with a group"), "{said}");
}

/// Permissions that one user lacks on files, other users lack on snapshots of them.
#[test]
fn mode_bits_keep_users_apart() {
    if skipped() {
        return;
    }
    let [ann, bob, _] = lab("--shared");
    ann.does("mkdir tree/closed && echo secret >tree/closed/f && echo s >tree/secret");
    ann.does("chmod 700 tree/closed && chmod 600 tree/secret");
    ann.ok(["import", "tree", "ann"]);
    assert_eq!(ann.ok(["cat", "ann:/closed/f"]), "secret\n");
    bob.does("mkdir tree && touch tree/f");
    for denied in [
        &["cat", "ann:/secret"][..],
        &["cat", "ann:/closed/f"],
        &["ls", "ann:/closed"],
        &["rm", "ann:/d/f", "--as", "new"],
        &["put", "esker", "ann:/d/f", "--as", "new"],
        &["mkdir", "ann:/d/e", "--as", "new"],
        &["mv", "ann:/d", "ann:/e", "--as", "new"],
        &["cp", "ann:/secret", "ann:/copy", "--as", "new"],
    ] {
        let said = bob.fails(8, denied);
        assert!(said.contains("denied"), "{denied:?}: {said}");
        if denied.contains(&"new") {
            assert!(said.contains("esker publish --help"), "{denied:?}: {said}");
        }
        bob.fails(3, ["ls", "new"]);
    }
    // The error does not blame the source.
    let said = bob.fails(8, ["import", "tree", "new:/d", "--base", "ann"]);
    assert!(said.starts_with("esker: put tree/f into the target: f: permission denied"), "{said}");
    let said = bob.fails(8, ["ls", "ann:/closed"]);
    assert!(said.starts_with("esker: ann:/closed: list the directory"), "{said}");
    bob.fails(18, ["chmod", "777", "ann:/secret", "--as", "new"]);
    bob.fails(18, ["chown", &BOB.to_string(), "ann:/secret", "--as", "new"]);
    let found = bob.run(["find", "ann:/", "--sorted"]);
    assert_eq!(found.stdout, b"/\n/closed\n/d\n/d/f\n/secret\n");
    assert_eq!(found.status.code(), Some(8));
    // The same in her session, which stays open.
    let session = ann.ok(["session", "begin", "--base", "ann"]).trim().to_owned();
    bob.fails(8, ["put", "esker", &format!("{session}:/d/f")]);
    ann.ok(["put", "tree/d/f", &format!("{session}:/d/g")]);
    ann.ok(["publish", &session, "next"]);
    assert_eq!(ann.ok(["cat", "next:/d/g"]), "ann\n");
    // The new file has her umask.
    bob.fails(8, ["cat", "next:/d/g"]);
}

/// Symptom: an export of somebody else's snapshot was complete, and exited with 8.
/// Cause: the changed owner of each file was reported as a problem.
/// Fix: such files are counted and reported once; `tar` does not report them at all.
#[test]
fn an_export_of_what_others_own_is_complete() {
    if skipped() {
        return;
    }
    let [ann, bob, _] = lab("--shared");
    ann.does("chmod 4755 tree/d/f; ln -s f tree/d/l");
    ann.ok(["import", "tree", "ann"]);
    let output = bob.run(["export", "ann:/", "out"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("4 entries of other users") && said.lines().count() == 1, "{said}");
    let metadata = fs::metadata(bob.path("out/d/f")).expect("exported");
    assert_eq!((metadata.uid(), metadata.permissions().mode() & 0o7777), (BOB, 0o755));
    let report = bob.ok(["export", "--json", "ann:/", "again"]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!((&report["owners_dropped"], &report["problem_count"]), (&4.into(), &0.into()));
    // Their own files come back unchanged, and are imported as theirs.
    let output = ann.run(["export", "ann:/", "out"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    bob.ok(["import", "out", "bob"]);
    bob.assert_owned("bob:/d/f", "0755");
    // Files that they may not read are a problem.
    ann.does("echo s >tree/secret; chmod 600 tree/secret");
    ann.ok(["import", "tree", "more"]);
    let said = bob.fails(8, ["export", "more:/", "more"]);
    assert!(said.contains("more/secret"), "{said}");
    assert!(bob.path("more/d/f").exists() && !bob.path("more/secret").exists());
}

/// A mount shows other users what they may see, if its user allows that.
#[test]
fn others_work_in_a_mount_as_mode_bits_let_them() {
    if skipped() {
        return;
    }
    let [ann, bob, _] = lab("--shared");
    let allowed = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if !ann.can_mount() || !allowed.lines().any(|line| line.trim() == "user_allow_other") {
        println!("skipped: users may not mount for others here");
        return;
    }
    ann.does("mkdir mnt alone tree/open; chmod 777 tree/open");
    ann.ok(["import", "tree", "ann"]);
    ann.ok(["mount", "ann", "alone"]);
    ann.ok(["mount", "--allow-other", "--write", "work", "--base", "ann", "mnt"]);
    let (open, alone) = (ann.path("mnt"), ann.path("alone"));
    let (open, alone) = (open.display(), alone.display());
    let worked = bob.shell(&format!(
        "cat {open}/d/f && echo bob >{open}/open/b && ! echo bob 2>/dev/null >{open}/d/b && \
         ! rm -f {open}/d/f 2>/dev/null && ! ls {alone} 2>/dev/null"
    ));
    let ended = [ann.run(["umount", "mnt"]), ann.run(["umount", "alone"])];
    assert!(worked.status.success(), "{worked:?}");
    assert_eq!(worked.stdout, b"ann\n");
    assert!(ended.iter().all(|output| output.status.success()), "{ended:?}");
    bob.assert_owned("work:/open/b", "0644");
    assert_eq!(bob.ok(["cat", "work:/open/b"]), "bob\n");
}

/// Symptom: `mounts` showed the mounts of other users with their path twice and an error, or with
/// advice that only their owner can follow.
/// Cause: it showed the error of asking the mount, which is meant for the commands of its owner.
/// Fix: the kernel's list has name and owner of each mount; advice goes to those who can follow it.
#[test]
fn mounts_of_other_users_are_listed_with_their_owner() {
    if skipped() {
        return;
    }
    let (ann, bob) = ann_and_bob();
    if !ann.can_mount() {
        return;
    }
    ann.does("chmod 755 . && mkdir at");
    ann.ok(["init"]);
    ann.ok(["mount", "--write", "private", "at"]);
    let at = ann.path("at").display().to_string();
    let listed = |user: &User| {
        let lines = user.ok(["mounts"]);
        lines.lines().find(|line| line.contains(&at)).expect("it is mounted").to_owned()
    };
    let of_ann = format!("{at}  private  of nobody");
    assert_eq!(listed(&bob), of_ann);
    let of_json = |user: &User| -> serde_json::Value {
        let lines = user.ok(["mounts", "--json"]);
        let line = lines.lines().find(|line| line.contains(&at)).expect("it is mounted");
        serde_json::from_str(line).expect("JSON")
    };
    let object = of_json(&bob);
    assert_eq!((&object["name"], &object["uid"]), (&"private".into(), &ANN.into()), "{object}");
    assert_eq!(of_json(&ann)["uid"], ANN);
    assert!(listed(&ann).starts_with(&format!("{at}  private @")), "{}", listed(&ann));
    let pid = of_json(&ann)["pid"].as_i64().expect("a number");
    ann.does(&format!("kill -9 {pid}"));
    crate::mounted::wait_for_end(i32::try_from(pid).expect("a process id"));
    assert_eq!(listed(&bob), of_ann);
    let own = listed(&ann);
    assert!(own.starts_with(&format!("{at}  private  its process ended: ")), "{own}");
    assert!(own.contains("--resume"), "{own}");
    ann.does("fusermount3 -u at");
}
