//! Commands of README and the guides: pasted in order into an empty folder they work.
//!
//! Every `sh` block of a page is run by one shell, the blocks of a page one after the other. A second
//! word says what a block needs; one that this machine or user does not have is skipped by its name.
//!
//! | word | needs |
//! |---|---|
//! | `checkout` | the sources: builds, or runs a script of theirs |
//! | `site` | programs, files and places that the reader puts in |
//! | `fuse` | `/dev/fuse`, and `fusermount3` unless the user is the superuser |

use std::fmt::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// Who pastes the commands if the suite's user is the superuser.
const NOBODY: u32 = 65_534;

/// Words that begin a block of something else than commands.
const NO_COMMANDS: [&str; 4] = ["", "json", "rust", "text"];

/// Commands between two fences.
struct Block {
    line: usize,
    need: String,
    commands: String,
}

/// The `sh` blocks of a page.
fn blocks_of(page: &Path) -> Vec<Block> {
    let text = std::fs::read_to_string(page).expect("a page");
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
        let commands = inside.fold(String::new(), |commands, line| commands + line + "\n");
        let (language, need) = info.split_once(' ').unwrap_or((info, ""));
        let place = format!("{}:{}", page.display(), index + 1);
        if language == "sh" {
            blocks.push(Block { line: index + 1, need: need.to_owned(), commands });
        } else {
            assert!(NO_COMMANDS.contains(&language), "{place}: commands are `sh`, not {language}");
        }
    }
    blocks
}

/// README and all guides.
fn pages() -> Vec<PathBuf> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guides = std::fs::read_dir(top.join("docs/guide")).expect("guides");
    let mut pages: Vec<_> = guides.map(|entry| entry.expect("an entry").path()).collect();
    pages.push(top.join("README.md"));
    pages.sort();
    pages
}

/// An empty folder and the user who pastes commands there.
struct Reader {
    folder: TempDir,
    program: TempDir,
    is_other: bool,
}

impl Reader {
    /// The user of the suite, or another one.
    fn new(is_other: bool) -> Self {
        let [folder, program] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        // The build's own directory may be closed to others.
        let to = program.path().join("esker");
        std::fs::copy(env!("CARGO_BIN_EXE_esker"), &to).expect("room for a copy");
        for path in [&to, program.path()] {
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(path, mode).expect("mode");
        }
        if is_other {
            chown(folder.path(), Some(NOBODY), Some(NOBODY)).expect("the superuser gives it away");
        }
        Self { folder, program, is_other }
    }

    fn bash(&self, script: &str) -> Output {
        let path = std::env::var("PATH").expect("a path");
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", script]).current_dir(self.folder.path());
        command.env("PATH", format!("{}:{path}", self.program.path().display()));
        command.env("HOME", self.folder.path()).env_remove("ESKER_STORE").stdin(Stdio::null());
        if self.is_other {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.output().expect("bash; every Debian has it")
    }

    fn has(&self, need: &str) -> bool {
        let can_mount = "test -r /dev/fuse -a -w /dev/fuse && \
                         { test $(id -u) = 0 || command -v fusermount3; }";
        match need {
            "" => true,
            "checkout" | "site" => false,
            "fuse" => self.bash(can_mount).status.success(),
            _ => panic!("`sh {need}`: this file lists what a block may need"),
        }
    }
}

/// Pastes the commands of all pages, each into a folder of its own.
fn paste_all(is_other: bool) {
    for page in pages() {
        let reader = Reader::new(is_other);
        let name = page.file_name().expect("a file").to_string_lossy().into_owned();
        let mut script = String::new();
        for Block { line, need, commands } in blocks_of(&page) {
            if reader.has(&need) {
                write!(script, "echo '== {name}:{line}' >&2\n{commands}").expect("a string");
            } else {
                println!("skipped: {name}:{line} needs `{need}`");
            }
        }
        let output = reader.bash(&script);
        let (said, printed) =
            (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
        assert!(output.status.success(), "{:?}\n{printed}\n{said}", output.status);
        assert!(!said.contains("esker: "), "{said}");
    }
}

/// Symptom: a page published two results under one name, and wrote to places that only the superuser
/// has, so that its later commands failed.
/// Cause: nobody ran the commands.
/// Fix: this test does.
#[test]
fn commands_of_all_pages_work() {
    paste_all(false);
}

#[test]
fn commands_of_all_pages_work_for_a_user() {
    if rustix::process::geteuid().is_root() {
        paste_all(true);
    } else {
        println!("skipped: only the superuser can be somebody else; the other test ran as a user");
    }
}
