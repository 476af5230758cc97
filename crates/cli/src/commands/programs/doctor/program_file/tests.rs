// SPDX-License-Identifier: Apache-2.0
//! Tests of programs as files: scripts, modes, and files that are no programs.

use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use super::*;
use crate::commands::programs::doctor::elf_file::tests::ElfImage;

/// A directory with programs.
struct Programs(TempDir);

impl Programs {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Makes a file of this content and mode.
    fn add(&self, name: &str, content: impl AsRef<[u8]>, mode: u32) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode");
        path
    }
}

fn find(path: &Path) -> Result<ProgramFile> {
    ProgramFile::find(path.as_os_str())
}

#[test]
fn scripts_lead_to_their_program() {
    let programs = Programs::new();
    let program = programs.add("program", ElfImage::of_static().bytes(), 0o755);
    let one = programs.add("one", format!("#!{} -x\n", program.display()), 0o755);
    let two = programs.add("two", format!("#! {}\n", one.display()), 0o755);
    let found = find(&two).expect("a program");
    assert_eq!((&found.path, &found.interpreters), (&two, &vec![one, program]));
    assert!(matches!(found.content, ProgramContent::Elf(ElfFile::Native(_))));
    let shell = programs.add("shell", "#!/usr/bin/env sh\n", 0o755);
    let found = find(&shell).expect("every machine has sh");
    assert_eq!(found.interpreters[0].file_name(), Some(OsStr::new("sh")));
}

#[test]
fn interpreters_without_end_are_refused() {
    let programs = Programs::new();
    let this = programs.path("loop");
    programs.add("loop", format!("#!{}\n", this.display()), 0o755);
    let error = find(&this).expect_err("a loop");
    assert_eq!(error.kind(), Kind::Loop);
    // The kernel's own limit is the same.
    let program = programs.add("program", ElfImage::of_static().bytes(), 0o755);
    let mut last = program;
    for index in 0..=INTERPRETERS_MAX {
        let outcome = find(&last);
        assert!(outcome.is_ok(), "{index}: {outcome:?}");
        last = programs.add(&format!("{index}"), format!("#!{}\n", last.display()), 0o755);
    }
    assert_eq!(find(&last).expect_err("too deep").kind(), Kind::Loop);
}

#[test]
fn what_is_no_program_is_refused() {
    let programs = Programs::new();
    let absent = programs.path("absent");
    let orphan = programs.add("orphan", format!("#!{}\n", absent.display()), 0o755);
    for (path, kind, word) in [
        (absent.clone(), Kind::NotFound, "absent"),
        (orphan, Kind::NotFound, "the interpreter of"),
        (programs.path(""), Kind::IsADirectory, "a directory"),
        (programs.add("data", "x", 0o644), Kind::Denied, "chmod +x"),
        (programs.add("empty", "", 0o755), Kind::Invalid, "is empty"),
        (programs.add("binary", "a\0b", 0o755), Kind::Invalid, "neither an ELF program"),
        (programs.add("no-name", "#!\n", 0o755), Kind::Invalid, "names no interpreter"),
        (programs.add("no-env", "#!/usr/bin/env no-such-program\n", 0o755), Kind::NotFound, "PATH"),
        (programs.add("magic", "\x7fELF", 0o755), Kind::Invalid, "ends at byte 4"),
    ] {
        let error = find(&path).expect_err(word);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_eq!(
        ProgramFile::find(OsStr::new("no-such-program")).map_err(|e| e.kind()),
        Err(Kind::NotFound)
    );
}

#[test]
fn a_text_without_interpreter_is_for_a_shell() {
    let programs = Programs::new();
    let text = programs.add("text", "echo one\n", 0o755);
    assert_eq!(find(&text).expect("a text").content, ProgramContent::ShellText);
}

#[test]
fn privileges_are_those_of_others() {
    let programs = Programs::new();
    let own = programs.add("own", ElfImage::of_static().bytes(), 0o6755);
    // The bits of one's own files give nothing.
    assert_eq!(find(&own).expect("a program").privileges, Vec::new());
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only the superuser gives files away");
        return;
    }
    std::os::unix::fs::chown(&own, Some(65_534), Some(65_533))
        .expect("the superuser gives it away");
    for (mode, words) in [
        (0o755, &[][..]),
        (0o4755, &["set-user-id of user 65534"]),
        (0o2755, &["set-group-id of group 65533"]),
        (0o6755, &["set-user-id of user 65534", "set-group-id of group 65533"]),
        // Mandatory locking, not a privilege.
        (0o2745, &[]),
    ] {
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(mode)).expect("a mode");
        let found = find(&own).expect("a program");
        let shown: Vec<String> = found.privileges.iter().map(ToString::to_string).collect();
        assert_eq!(shown, words, "{mode:o}");
        assert_eq!(found.changes_user(), !words.is_empty(), "{mode:o}");
    }
}
