// SPDX-License-Identifier: Apache-2.0
//! The command run by an ordinary user, with a private store.

use crate::user::User;

/// A user with a private store.
fn user() -> User {
    let user = User::ordinary("027");
    user.ok(["init"]);
    user
}

/// Symptom: only the superuser could import, put or create anything: everything was denied, and an
/// import published an empty snapshot.
/// Cause: the root directory of a new file system was assumed to be the superuser's.
/// Fix: the first session writes a root directory that belongs to its user.
#[test]
fn a_user_fills_a_store_of_their_own() {
    let user = user();
    assert!(user.shell("mkdir -p tree/d; echo 1 >tree/d/f; chmod 750 tree").status.success());
    user.ok(["import", "tree", "tree"]);
    assert_eq!(user.ok(["cat", "tree:/d/f"]), "1\n");
    // The root has the attributes of the imported directory.
    user.assert_owned("tree:/", "0750");
    user.ok(["put", "tree/d/f", "tree:/g", "--as", "put"]);
    user.ok(["mkdir", "tree:/e", "--as", "made"]);
    let id = user.ok(["session", "begin"]).trim().to_owned();
    user.assert_owned(&format!("{id}:/"), "0750");
    assert_ne!(user.stat(&format!("{id}:/"))["mtime"], "1970-01-01T00:00:00Z");
    user.ok(["mkdir", &format!("{id}:/e")]);
    user.ok(["put", "tree/d/f", &format!("{id}:/e/f")]);
    user.ok(["publish", &id, "session"]);
    assert_eq!(user.ok(["find", "session:/", "--sorted"]), "/\n/e\n/e/f\n");
    // In a composition the root of the first snapshot wins.
    user.ok(["publish", "--base", "session", "--base", "tree", "both"]);
    user.assert_owned("both:/", "0750");
    user.ok(["rm", "-r", "both:/d", "--as", "less"]);
    assert!(user.ok(["verify"]).starts_with("sound"));
}

/// Symptom: an import into a directory that its user may not write to published an empty snapshot,
/// with exit code 8.
/// Cause: each denied entry was merely counted as left out.
/// Fix: a denial by the target ends the import, and its session is abandoned.
#[test]
fn an_import_that_is_denied_publishes_nothing() {
    let user = user();
    assert!(user.shell("mkdir -p tree; echo 1 >tree/f").status.success());
    let id = user.ok(["session", "begin"]).trim().to_owned();
    user.ok(["mkdir", "-m", "555", &format!("{id}:/closed")]);
    user.ok(["publish", &id, "base"]);
    let said = user.fails(8, ["import", "tree", "new:/closed", "--base", "base"]);
    assert!(said.contains("denied") && said.contains("tree/f"), "{said}");
    user.fails(3, ["ls", "new"]);
    for failing in [
        &["put", "tree/f", "base:/closed/f", "--as", "new"][..],
        &["mkdir", "base:/closed/d", "--as", "new"],
        &["touch", "base:/closed/f", "--as", "new"],
        &["cp", "base:/closed", "base:/copy", "--as", "new"],
        &["chown", "0", "base:/closed", "--as", "new"],
    ] {
        assert!(!user.run(failing).status.success(), "{failing:?}");
        user.fails(3, ["ls", "new"]);
    }
    assert_eq!(user.ok(["session", "list"]), "");
}

#[test]
fn a_user_changes_attributes_of_their_files() {
    let user = user();
    let id = user.ok(["session", "begin"]).trim().to_owned();
    let at = |path: &str| format!("{id}:{path}");
    user.ok(["touch", "-d", "2026-01-31", &at("/f")]);
    user.assert_owned(&at("/f"), "0640");
    user.ok(["chmod", "u+x,o=r", &at("/f")]);
    user.assert_owned(&at("/f"), "0744");
    user.ok(["chgrp", &user.gid.to_string(), &at("/f")]);
    user.ok(["chown", &format!("{}:{}", user.uid, user.gid), &at("/f")]);
    let said = user.fails(18, ["chown", "0", &at("/f")]);
    assert!(said.contains("not permitted"), "{said}");
    assert!(user.shell("echo content >content").status.success());
    user.ok(["put", "content", &at("/f")]);
    user.ok(["ln", &at("/f"), &at("/hard")]);
    user.ok(["ln", "-s", "f", &at("/soft")]);
    user.ok(["cp", &at("/soft"), &at("/copy")]);
    for path in ["/hard", "/soft", "/copy"] {
        assert_eq!(user.ok(["cat", &at(path)]), "content\n");
    }
    user.ok(["mkdir", "-p", &at("/d/e")]);
    user.ok(["mv", &at("/copy"), &at("/d/e")]);
    user.ok(["cp", "-r", "-p", &at("/d"), &at("/d2")]);
    user.ok(["chmod", "-R", "go-rwx", &at("/d2")]);
    user.assert_owned(&at("/d2/e"), "0700");
    user.assert_owned(&at("/d2/e/copy"), "0700");
    user.ok(["publish", &id, "done"]);
    user.ok(["chmod", "600", "done:/f", "--as", "closed"]);
    user.assert_owned("closed:/f", "0600");
    assert!(user.ok(["verify"]).starts_with("sound"));
}

/// A user works in a mount as in a home directory.
#[test]
fn a_user_mounts_and_works() {
    let user = user();
    if !user.can_mount() {
        if !user.shell("test -r /dev/fuse -a -w /dev/fuse").status.success() {
            let said = user.shell("mkdir mnt; ./esker mount --write work mnt").stderr;
            let said = String::from_utf8_lossy(&said).into_owned();
            assert!(said.contains("/dev/fuse"), "{said}");
        }
        println!("skipped: this user may not open /dev/fuse, or there is no fusermount3");
        return;
    }
    assert!(user.shell("mkdir mnt").status.success());
    user.ok(["mount", "--write", "work", "mnt"]);
    let script = "cd mnt && mkdir -p a/b && echo content >a/b/f && ln a/b/f a/g && chmod 600 a/g && \
                  ln -s a/g s && mv a/b a/c && cp -p s t && touch -d @5 t && mkfifo p && cat s && \
                  rm a/c/f && ! chown 0 t 2>/dev/null && ! mknod d c 1 3 2>/dev/null";
    let worked = user.shell(script);
    let ended = user.run(["umount", "mnt"]);
    assert!(worked.status.success(), "{}", String::from_utf8_lossy(&worked.stderr));
    assert_eq!(worked.stdout, b"content\n");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(user.ok(["find", "work:/", "--sorted"]), "/\n/a\n/a/c\n/a/g\n/p\n/s\n/t\n");
    user.assert_owned("work:/", "0750");
    user.assert_owned("work:/a", "0750");
    user.assert_owned("work:/t", "0600");
}

/// Symptom: `ls -R` and `tree` reported an unreadable directory without its path, and exited with
/// 0; `du` and `find` left out the snapshot; the first location that failed ended the command.
/// Cause: each command treated such directories differently.
/// Fix: all report the path, continue, and exit with the code of the first problem, as GNU's do.
#[test]
fn walks_go_on_past_what_cannot_be_read_and_say_so() {
    let user = user();
    user.does("mkdir -p tree/a tree/closed/below tree/z; echo 1 >tree/a/f; echo 2 >tree/z/f");
    let id = user.ok(["session", "begin"]).trim().to_owned();
    user.ok(["import", "tree", &format!("{id}:/")]);
    user.ok(["chmod", "0", &format!("{id}:/closed")]);
    user.ok(["publish", &id, "n"]);
    if user.uid == 0 {
        // The superuser reads everything.
        return;
    }
    for command in [&["ls", "-R"][..], &["tree"], &["du"], &["find", "--sorted"]] {
        let output = user.run([command, &["n:/"]].concat());
        let (printed, said) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(8), "{command:?}: {said}");
        assert!(said.contains("n:/closed: ") && said.lines().count() == 1, "{command:?}: {said}");
        // Later entries are still shown.
        assert!(printed.contains('z'), "{command:?}: {printed}");
    }
    for command in [&["ls"][..], &["du"], &["find"]] {
        let output = user.run([command, &["n:/closed", "n:/missing", "n:/z"]].concat());
        let (printed, said) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(8), "{command:?}: {said}");
        assert!(said.contains("n:/closed: ") && said.contains("n:/missing: "), "{said}");
        assert!(printed.contains('z'), "{command:?}: {printed}");
    }
}
